"""Event segmentation and memory in language models, compared with people.

Every public name is importable from here; submodules (and torch) load when first used.
"""

# The imports below are for type checkers; at run time `__getattr__` fetches each name when used.
# ruff: noqa: F401

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from workbench.analysis.agreement import layer_agreement
    from workbench.analysis.recall.asymmetry import asymmetry
    from workbench.analysis.recall.cmr import CMRParameters, cmr_crp
    from workbench.analysis.recall.cmr_fit import fit_cmr
    from workbench.analysis.recall.contiguity_fit import contiguity_fit
    from workbench.analysis.recall.curves import lag_curves
    from workbench.analysis.recall.heads import head_fit_summary, head_table
    from workbench.analysis.recall.lag import lag_crp
    from workbench.analysis.recall.rho_cmr import FreeRecallCMR, simulate_free_recall
    from workbench.analysis.recall.sequences import RecallSequences
    from workbench.analysis.recall.serial import first_recall, serial_position
    from workbench.analysis.recall.summary import recall_summary
    from workbench.analysis.recall.temporal import temporal_factor
    from workbench.analysis.recall_predictors import recall_table
    from workbench.analysis.recall_regression import recall_regression
    from workbench.analysis.retrieval import RetrievedEvents
    from workbench.analysis.retrieval_curve import retrieval_curve
    from workbench.analysis.retrieval_lag import retrieval_lag_crp
    from workbench.analysis.retrieval_recency import recency
    from workbench.analysis.story_recall import story_recall
    from workbench.analysis.table2 import table2
    from workbench.comparison.compare import compare
    from workbench.comparison.result import Comparison, load_comparison
    from workbench.core.blockgraph import BlockGraph
    from workbench.core.boundaries import Boundaries
    from workbench.core.errors import WorkbenchError
    from workbench.core.keygraph import KeyGraph
    from workbench.core.story import Annotation, Story
    from workbench.core.trace import Trace
    from workbench.encoders import load_encoder
    from workbench.events.methods import segment
    from workbench.events.optimum import optimal_boundaries
    from workbench.events.refinement import refine
    from workbench.events.streaming import StreamingSegmenter
    from workbench.memory.focused import FOT, LongLLaMA, MemorizingTransformer
    from workbench.memory.named import (
        EMLLM,
        FullContext,
        InfLLM,
        MemorySystem,
        SlidingWindow,
        make_system,
    )
    from workbench.memory.saving import load_memory
    from workbench.models import LanguageModel, load_model
    from workbench.recording.heads import head_recall
    from workbench.recording.record import record
    from workbench.recording.reducer import Reducer
    from workbench.recording.storage import load_trace
    from workbench.stories.library import list_stories, load_story
    from workbench.stories.recall_readers import load_recalls
    from workbench.stories.transcripts import load_transcripts
    from workbench.tasks.capacity import capacity_sweep
    from workbench.tasks.distraction import distraction
    from workbench.tasks.grid import run_grid
    from workbench.tasks.key_value import KeyValue
    from workbench.tasks.needle import Needle
    from workbench.tasks.passkey import Passkey
    from workbench.tasks.perplexity import perplexity_curve

_HOME = {
    "Annotation": "workbench.core.story",
    "BlockGraph": "workbench.core.blockgraph",
    "Boundaries": "workbench.core.boundaries",
    "CMRParameters": "workbench.analysis.recall.cmr",
    "Comparison": "workbench.comparison.result",
    "EMLLM": "workbench.memory.named",
    "FOT": "workbench.memory.focused",
    "FreeRecallCMR": "workbench.analysis.recall.rho_cmr",
    "FullContext": "workbench.memory.named",
    "InfLLM": "workbench.memory.named",
    "KeyGraph": "workbench.core.keygraph",
    "KeyValue": "workbench.tasks.key_value",
    "LanguageModel": "workbench.models",
    "LongLLaMA": "workbench.memory.focused",
    "MemorizingTransformer": "workbench.memory.focused",
    "MemorySystem": "workbench.memory.named",
    "Needle": "workbench.tasks.needle",
    "Passkey": "workbench.tasks.passkey",
    "RecallSequences": "workbench.analysis.recall.sequences",
    "Reducer": "workbench.recording.reducer",
    "RetrievedEvents": "workbench.analysis.retrieval",
    "SlidingWindow": "workbench.memory.named",
    "Story": "workbench.core.story",
    "StreamingSegmenter": "workbench.events.streaming",
    "Trace": "workbench.core.trace",
    "WorkbenchError": "workbench.core.errors",
    "asymmetry": "workbench.analysis.recall.asymmetry",
    "capacity_sweep": "workbench.tasks.capacity",
    "cmr_crp": "workbench.analysis.recall.cmr",
    "compare": "workbench.comparison.compare",
    "contiguity_fit": "workbench.analysis.recall.contiguity_fit",
    "distraction": "workbench.tasks.distraction",
    "first_recall": "workbench.analysis.recall.serial",
    "fit_cmr": "workbench.analysis.recall.cmr_fit",
    "head_fit_summary": "workbench.analysis.recall.heads",
    "head_recall": "workbench.recording.heads",
    "head_table": "workbench.analysis.recall.heads",
    "lag_crp": "workbench.analysis.recall.lag",
    "lag_curves": "workbench.analysis.recall.curves",
    "layer_agreement": "workbench.analysis.agreement",
    "list_stories": "workbench.stories.library",
    "load_comparison": "workbench.comparison.result",
    "load_encoder": "workbench.encoders",
    "load_memory": "workbench.memory.saving",
    "load_model": "workbench.models",
    "load_recalls": "workbench.stories.recall_readers",
    "load_story": "workbench.stories.library",
    "load_trace": "workbench.recording.storage",
    "load_transcripts": "workbench.stories.transcripts",
    "make_system": "workbench.memory.named",
    "optimal_boundaries": "workbench.events.optimum",
    "perplexity_curve": "workbench.tasks.perplexity",
    "recall_regression": "workbench.analysis.recall_regression",
    "recall_summary": "workbench.analysis.recall.summary",
    "recall_table": "workbench.analysis.recall_predictors",
    "recency": "workbench.analysis.retrieval_recency",
    "record": "workbench.recording.record",
    "refine": "workbench.events.refinement",
    "retrieval_curve": "workbench.analysis.retrieval_curve",
    "retrieval_lag_crp": "workbench.analysis.retrieval_lag",
    "run_grid": "workbench.tasks.grid",
    "segment": "workbench.events.methods",
    "serial_position": "workbench.analysis.recall.serial",
    "simulate_free_recall": "workbench.analysis.recall.rho_cmr",
    "story_recall": "workbench.analysis.story_recall",
    "table2": "workbench.analysis.table2",
    "temporal_factor": "workbench.analysis.recall.temporal",
}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
