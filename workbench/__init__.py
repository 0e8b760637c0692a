"""Event segmentation and memory in language models, compared with people.

Every public name is importable from here; submodules (and torch) load when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from workbench.comparison.result import Comparison, load_comparison
    from workbench.comparison.compare import compare
    from workbench.core.boundaries import Boundaries
    from workbench.core.errors import WorkbenchError
    from workbench.core.keygraph import KeyGraph
    from workbench.core.story import Annotation, Story
    from workbench.core.trace import Trace
    from workbench.events.methods import segment
    from workbench.events.refinement import refine
    from workbench.models import LanguageModel, load_model
    from workbench.recording.record import record
    from workbench.recording.storage import load_trace
    from workbench.stories.library import list_stories, load_story

_HOME = {
    "Annotation": "workbench.core.story",
    "Boundaries": "workbench.core.boundaries",
    "Comparison": "workbench.comparison.result",
    "KeyGraph": "workbench.core.keygraph",
    "LanguageModel": "workbench.models",
    "Story": "workbench.core.story",
    "Trace": "workbench.core.trace",
    "WorkbenchError": "workbench.core.errors",
    "compare": "workbench.comparison.compare",
    "list_stories": "workbench.stories.library",
    "load_comparison": "workbench.comparison.result",
    "load_model": "workbench.models",
    "load_story": "workbench.stories.library",
    "load_trace": "workbench.recording.storage",
    "record": "workbench.recording.record",
    "refine": "workbench.events.refinement",
    "segment": "workbench.events.methods",
}

__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
