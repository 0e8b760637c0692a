"""Training a pretrained decoder on a user's documents or instructions, by any method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from workbench.core.checks import check_option
from workbench.core.errors import InputError, MissingDataError
from workbench.models import LanguageModel
from workbench.training.instruction import InstructionLoader, instruction_method_parts
from workbench.training.loader import DocumentLoader
from workbench.training.loop import Data, Settings, Trainer
from workbench.training.methods import (
    METHODS,
    CrossbatchMethod,
    MemorizingTransformer,
    Method,
    Standard,
    Switch,
    TransformerXL,
)
from workbench.training.pretrained import PretrainedDecoder
from workbench.training.schedules import ContextSchedule

__all__ = ["fine_tune", "load_memory_settings", "make_method", "save_pretrained"]


def make_method(
    name: str,
    *,
    window: int,
    steps: int,
    windows: int = 1,
    negatives: str = "next",
    parts: tuple[tuple[int, int], ...] | None = None,
    contrast: float = 0.0,
    top_k: int | None = None,
    capacity: int | None = None,
) -> Method:
    """A method by its name.

    Parameters
    ----------
    name : "fot", "standard", "xl", "mt", or "fot+mt" (the second from half of the steps on).
    window, steps : of the training.
    windows, negatives, parts, contrast, top_k : see `CrossbatchMethod`.
    capacity : tokens that "mt" and "xl" keep; default 16 windows and one window.
    """
    check_option("method", name, METHODS)
    crossbatch = CrossbatchMethod(
        windows=windows, negatives=negatives, parts=parts, contrast=contrast, top_k=top_k
    )
    if name == "fot":
        return crossbatch
    if name == "standard":
        return Standard()
    if name == "xl":
        return TransformerXL(capacity=capacity or window)
    memorizing = MemorizingTransformer(capacity=capacity or 16 * window, top_k=top_k or 32)
    return memorizing if name == "mt" else Switch(crossbatch, memorizing, max(1, steps // 2))


def fine_tune(
    lm: LanguageModel,
    documents: Sequence[NDArray[np.int64]] | None,
    settings: Settings,
    d: ContextSchedule,
    *,
    method: str = "fot",
    memory_layers: Sequence[int] | None = None,
    memory_positions: str = "zero",
    join: str = "softmax",
    instructions: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]] | None = None,
    rows: int = 4,
    window: int = 512,
    accumulation: int = 1,
    short: str = "drop",
    first: str = "alone",
    weights: NDArray[np.float64] | None = None,
    out: Path | str | None = None,
    log: str = "auto",
    cpu: bool = False,
    **options: Any,
) -> Trainer:
    """A trainer of a pretrained model, ready to `train()`.

    Parameters
    ----------
    lm : the model; its weights are changed in place.
    documents : token arrays (`document_tokens`); None with `instructions`.
    memory_layers : zero-based; default the layers at a quarter, a half and three quarters of the
        depth (LongLLaMA 3B: 6, 12, 18 of 26).
    memory_positions, join : see `PretrainedDecoder`.
    instructions : prompts and answers (`read_instructions`); each stands in two windows.
    rows, window, accumulation, short, first, weights : see `DocumentLoader`.
    options : of `make_method`.
    """
    from accelerate import PartialState

    if (documents is None) == (instructions is None):
        raise InputError("give documents or instructions, one of the two.")
    if memory_layers is None:
        depth = int(lm.model.config.get_text_config(decoder=True).num_hidden_layers)
        memory_layers = sorted({depth * part // 4 for part in (1, 2, 3)})
    place = PartialState(cpu=cpu)
    shared: dict[str, Any] = {
        "rows": rows,
        "window": window,
        "accumulation": accumulation,
        "seed": settings.seed,
        "rank": place.process_index,
        "world": place.num_processes,
    }
    data: Data
    if instructions is not None:
        data = InstructionLoader(instructions, longer="cut", **shared)
        options["parts"] = instruction_method_parts(2)
    else:
        assert documents is not None
        data = DocumentLoader(documents, short=short, first=first, weights=weights, **shared)
    torch.manual_seed(settings.seed)
    lm.model.requires_grad_(True)
    decoder = PretrainedDecoder(
        lm.model, memory_layers, memory_positions=memory_positions, join=join
    )
    chosen = make_method(method, window=window, steps=settings.steps, **options)
    return Trainer(decoder, data, chosen, d, settings, out=out, log=log, cpu=cpu)


def save_pretrained(decoder: PretrainedDecoder, tokenizer: Any, folder: Path | str) -> None:
    """Write a trained model so that `load_model` reads it, with `memory.json` beside it.

    The JSON holds memory_layers, memory_positions and join; gates stand in gates.safetensors.
    """
    folder = Path(folder)
    decoder.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    about = {
        "memory_layers": list(decoder.memory_layers),
        "memory_positions": decoder.memory_positions,
        "join": "gate" if len(decoder.gates) else "softmax",
    }
    (folder / "memory.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    if len(decoder.gates):
        gates = {name: gate.detach().cpu() for name, gate in decoder.gates.items()}
        save_file(gates, folder / "gates.safetensors")


def load_memory_settings(lm: LanguageModel, folder: Path | str) -> PretrainedDecoder:
    """The decoder that `save_pretrained` wrote, around its loaded model."""
    file = Path(folder) / "memory.json"
    if not file.is_file():
        raise MissingDataError(f"{file} is not there: the model was not trained with memory.")
    decoder = PretrainedDecoder(lm.model, **json.loads(file.read_text(encoding="utf-8")))
    if len(decoder.gates):
        kept = load_file(Path(folder) / "gates.safetensors")
        with torch.no_grad():
            for name, gate in decoder.gates.items():
                gate.copy_(kept[name])
    return decoder
