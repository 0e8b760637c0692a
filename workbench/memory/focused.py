"""Memory layers: the Focused Transformer, LongLLaMA and the Memorizing Transformer at inference.

Chosen layers keep keys and values of single tokens once these leave the local window; the other
layers see the window alone. A model that was not trained so reads on, and how much the memory helps
or distracts it is what `distraction` measures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError, MissingDataError
from workbench.memory.choices import Index, Select, Units
from workbench.memory.named import MemorySystem
from workbench.recording import adapter

if TYPE_CHECKING:
    from workbench.models import LanguageModel

__all__ = ["FOT", "LongLLaMA", "MemorizingTransformer"]

Gate = float | str | Path | Sequence[float] | Mapping[Any, Any]
Gates = tuple[tuple[float, ...], ...]


class FOT(MemorySystem):
    """Focused Transformer (Tworkowski et al. 2023); the memory is filled from what is read.

    Nothing of the training corpus is in it. In memory layers each query and head takes the `top_k`
    keys that fit it best, found exactly, and they share one softmax with the window (section 3.1).
    What is taken is not logged: `retrievals` stays empty.

    Parameters
    ----------
    lm : the language model.
    memory_layers : zero-based; None: those the model was trained with (`trained`), else the layers
        at a quarter, a half and three quarters of the depth.
    top_k : keys of each query and head; None: all.
    n_local : a token sees the n_local newest tokens, itself among them, in every layer, and in
        memory layers what came before them.
    chunk : tokens read at once; the result does not depend on it.
    position : "zero", keys in memory unturned, as if first, for a query at its place in the window;
        "none", no positions in memory layers, in the window either: for models trained so.
    temperature : scores of memory layers are divided by it.
    capacity : tokens a memory layer holds at most, the oldest go first; 0: the plain window.
    per_document : every call of `read` begins a document with an empty memory (single-document
        evaluation); False keeps what was read before (multi-document).
    narrow, skip, flat : fewer keys, or none, where scores say so (nats); see `Look`.
    last_context_length : None: the window slides. A number: what one call of `read`, `score` or
        `generate` is given is cut into windows as in LongLLaMA's released code (`cut_windows`), the
        last of which has so many tokens; only what is generated, and a prompt of at most 64 tokens,
        then lets the window slide on.
    trained : folder that `workbench train` wrote, with layers, positions and gates.
    store, budget : "device" or "host", and bytes per layer.
    bos, name : see `MemoryModel`.

    Raises
    ------
    InputError : layers the model does not have, or that see a window of their own.
    """

    def __init__(
        self,
        lm: LanguageModel,
        memory_layers: Sequence[int] | None = None,
        *,
        top_k: int | None = 128,
        n_local: int = 512,
        chunk: int = 512,
        position: str | None = None,
        temperature: float = 1.0,
        capacity: int | None = None,
        per_document: bool = False,
        narrow: float | None = None,
        skip: float | None = None,
        flat: float | None = None,
        join: str = "softmax",
        gate: Gate | None = None,
        last_context_length: int | None = None,
        trained: str | Path | None = None,
        store: str = "device",
        budget: int | None = None,
        bos: str | int = "auto",
        name: str = "fot",
    ) -> None:
        about = {} if trained is None else _trained(Path(trained))
        if memory_layers is None:
            memory_layers = about.get("memory_layers") or _default_layers(lm)
        position = position or about.get("memory_positions", "zero")
        if gate is None and join == "gate" and about.get("join") == "gate":
            gate = trained
        layers = tuple(memory_layers)
        super().__init__(
            lm,
            units=Units.token(
                layers,
                capacity=capacity,
                per_document=per_document,
                temperature=temperature,
                last_context=last_context_length,
                narrow=narrow,
                skip=skip,
                flat=flat,
            ),
            index=Index("none" if top_k is None else "keys"),
            select=Select("all") if top_k is None else Select("topk", top_k),
            position=str(position),
            join=join,
            gate=None if gate is None else _gates(lm, gate, layers),
            n_init=0,
            n_local=n_local,
            chunk=chunk,
            store=store,
            budget=budget,
            bos=bos,
            name=name,
        )


class LongLLaMA(FOT):
    """LongLLaMA (Tworkowski et al. 2023, section 5); the memory is filled from what is read.

    Every query of a memory layer attends to all tokens in memory, exactly. The window slides, in
    generation too: the released code lets go of the whole window whenever it is full, after which
    its other layers see next to nothing; `last_context_length` has a text read as it does. Any
    LLaMA can be given; without memory (`capacity=0`) it is the plain model within its window.
    Nothing is logged: `retrievals` stays empty.

    Parameters
    ----------
    n_local : tokens of the window; 2048 in the released 3B models, 4096 in the 7B one.
    options : see `FOT`.
    """

    def __init__(
        self,
        lm: LanguageModel,
        memory_layers: Sequence[int] | None = None,
        *,
        n_local: int = 2048,
        name: str = "longllama",
        **options: Any,
    ) -> None:
        if options.get("top_k") is not None:
            raise InputError("LongLLaMA looks at all of its memory; use FOT for top_k=.")
        super().__init__(
            lm, memory_layers, n_local=n_local, name=name, **{**options, "top_k": None}
        )


class MemorizingTransformer(FOT):
    """Memorizing Transformer (Wu et al. 2022); the memory is filled from what is read.

    Window and memory have a softmax each, mixed by a gate of each head: σ(b) · memory +
    (1 - σ(b)) · window (section 3.2). A memory holds one document, oldest tokens out first. What is
    taken is not logged: `retrievals` stays empty.

    Parameters
    ----------
    gate : the logits b, which are learned: the folder of a model trained with join="gate", numbers
        for the heads of all memory layers or of each ({layer: numbers}), or one number for all.
    join : "softmax" instead puts both into one softmax, without a gate.
    top_k, capacity : keys of each query and head, and tokens that a memory holds at most.
    options : see `FOT`.
    """

    def __init__(
        self,
        lm: LanguageModel,
        memory_layers: Sequence[int] | None = None,
        *,
        gate: Gate | None = None,
        join: str = "gate",
        top_k: int | None = 32,
        capacity: int | None = 65536,
        per_document: bool = True,
        name: str = "mt",
        **options: Any,
    ) -> None:
        if join == "gate" and gate is None and options.get("trained") is None:
            raise InputError(
                "a gate needs learned values, and none were given: gate= takes the folder of a "
                "model trained with join='gate', numbers for the heads, or one number for all; "
                "join='softmax' needs none."
            )
        super().__init__(
            lm,
            memory_layers,
            gate=gate,
            join=join,
            top_k=top_k,
            capacity=capacity,
            per_document=per_document,
            name=name,
            **options,
        )


def _default_layers(lm: LanguageModel) -> list[int]:
    depth = adapter.geometry(lm.model)["n_layers"]
    return sorted({depth * part // 4 for part in (1, 2, 3)})


def _trained(folder: Path) -> dict[str, Any]:
    """What stands beside a model that was trained with memory: layers, positions, join."""
    file = folder / "memory.json"
    if not file.is_file():
        raise MissingDataError(f"{file} is not there: the model was not trained with memory.")
    about = dict(json.loads(file.read_text(encoding="utf-8")))
    if "memory_layers" not in about:
        raise MissingDataError(f"{file} names no memory layers: it is not of a trained model.")
    return about


def _gates(lm: LanguageModel, gate: Gate, layers: Sequence[int]) -> Gates:
    """Logits for each memory layer and head, from any of the forms they are given in."""
    heads = adapter.geometry(lm.model)["n_heads"]
    if isinstance(gate, str | Path):
        from safetensors.torch import load_file

        file = Path(gate) / "gates.safetensors"
        if not file.is_file():
            raise MissingDataError(f"{file} is not there: the model was trained without gates.")
        gate = load_file(str(file))
    if isinstance(gate, int | float):
        return tuple((float(gate),) * heads for _ in layers)
    if isinstance(gate, Mapping) or hasattr(gate, "items"):
        known = {int(layer): values for layer, values in gate.items()}
        missing = [layer for layer in layers if layer not in known]
        if missing:
            raise InputError(
                f"gate= has no numbers for the memory layers {missing}, only for {sorted(known)}."
            )
        return tuple(tuple(float(value) for value in known[layer]) for layer in layers)
    return tuple(tuple(float(value) for value in gate) for _ in layers)
