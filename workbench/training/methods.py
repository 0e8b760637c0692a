"""Ways of training long context, on one loop: crossbatch and what it is compared with.

A method says which rows it needs and makes the `Memory` of each step. Crossbatch and standard
training keep nothing between steps. Transformer-XL (arXiv 1901.02860) and the Memorizing
Transformer (arXiv 2203.08913) keep keys and values of earlier windows, detached: rows of
successive steps are successive windows of one document, a row whose document ends starts empty.
Keys and values are cached as they were computed, with the weights of their own step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from workbench.core.checks import whole_number
from workbench.training.attention import Far
from workbench.training.crossbatch import Crossbatch, Memory, Probe
from workbench.training.rows import Batch, Mixed, Paper

__all__ = [
    "METHODS",
    "CrossbatchMethod",
    "MemorizingTransformer",
    "Method",
    "Standard",
    "Switch",
    "TransformerXL",
]

METHODS = ("fot", "standard", "xl", "mt", "fot+mt")
"""Names of the methods; the last is FOT first and the Memorizing Transformer after it."""


class Method:
    """One way of training.

    `suppliers` previous windows of each document are wanted beside the current one; `together`
    consecutive windows of a document stand in one batch.
    """

    suppliers = 0
    together = 1

    def memory(
        self,
        batch: Batch,
        d: int,
        rng: np.random.Generator,
        *,
        micro: int = 0,
        probe: Probe | None = None,
    ) -> Memory:
        """What the rows of one micro-batch see."""
        raise NotImplementedError

    def begin(self, step: int) -> None:
        """Called before the batches of a step are made."""

    def end(self) -> None:
        """Called when a step is over: what it left behind becomes the memory of the next."""

    def tensors(self) -> dict[str, Tensor]:
        """What is kept between steps."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up what was kept."""


class Standard(Method):
    """Plain training on the local window, which may be long."""

    def memory(
        self,
        batch: Batch,
        d: int,
        rng: np.random.Generator,
        *,
        micro: int = 0,
        probe: Probe | None = None,
    ) -> Memory:
        """Nothing but the window."""
        return Memory(batch, probe=probe)


@dataclass
class CrossbatchMethod(Method):
    """Focused Transformer training.

    Parameters
    ----------
    windows : previous windows per document (w) of the paper's form.
    negatives : "next", "random" or "hardest".
    parts : LongLLaMA's (positives, negatives) instead of the paper's form; d is then unused.
    detach : no gradient into keys and values of other rows (ablation).
    top_k : only so many keys of each query and head.
    contrast : weight of the InfoNCE term; 0 is the paper.
    """

    windows: int = 1
    negatives: str = "next"
    parts: tuple[tuple[int, int], ...] | None = None
    detach: bool = False
    top_k: int | None = None
    contrast: float = 0.0

    def __post_init__(self) -> None:
        whole_number("windows", self.windows, 1)
        if self.parts is None:
            self.suppliers = self.windows
        else:
            self.together = len(self.parts)

    def form(self, d: int) -> Paper | Mixed:
        """Who sees whom at d."""
        if self.parts is None:
            return Paper(d, self.windows, self.negatives)
        return Mixed(self.parts, self.negatives)

    def memory(
        self,
        batch: Batch,
        d: int,
        rng: np.random.Generator,
        *,
        micro: int = 0,
        probe: Probe | None = None,
    ) -> Memory:
        """The linked rows of the batch."""
        return Crossbatch(
            batch,
            self.form(d),
            rng,
            detach=self.detach,
            top_k=self.top_k,
            probe=probe,
            contrast=self.contrast > 0,
        )


@dataclass
class _Kept:
    """Keys and values of one layer and micro-batch, oldest first."""

    key: Tensor
    value: Tensor
    allowed: Tensor


@dataclass
class _Streams(Method):
    """Keeps the latest `capacity` tokens of each row's document, detached."""

    capacity: int = 512
    top_k: int | None = None
    every_layer: bool = False
    rotated: bool = False
    _kept: dict[tuple[int, int], _Kept] = field(default_factory=dict, repr=False)
    _place: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)
    _last: dict[int, _StreamMemory] = field(default_factory=dict, repr=False)

    def memory(
        self,
        batch: Batch,
        d: int,
        rng: np.random.Generator,
        *,
        micro: int = 0,
        probe: Probe | None = None,
    ) -> Memory:
        """The earlier windows of each row's document, where the row continues it."""
        continues = np.zeros(len(batch.document), dtype=bool)
        if micro in self._place and len(self._place[micro][0]) == len(batch.document):
            document, window = self._place[micro]
            continues = (document == batch.document) & (window + 1 == batch.window)
        memory = _StreamMemory(self, batch, micro, continues, probe)
        self._last[micro] = memory
        return memory

    def end(self) -> None:
        """Append what the step computed; the oldest tokens go."""
        for micro, memory in self._last.items():
            for layer, fresh in memory.fresh.items():
                self._kept[micro, layer] = memory.after(layer, fresh)
            self._place[micro] = (memory.batch.document, memory.batch.window)
        self._last.clear()

    def tensors(self) -> dict[str, Tensor]:
        """Kept keys and values, and where each row's stream stands."""
        found: dict[str, Tensor] = {}
        for (micro, layer), kept in self._kept.items():
            for name in ("key", "value", "allowed"):
                found[f"kept.{micro}.{layer}.{name}"] = getattr(kept, name).contiguous()
        for micro, (document, window) in self._place.items():
            found[f"place.{micro}"] = torch.from_numpy(np.stack((document, window)))
        return found

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up what was kept."""
        self._kept.clear()
        self._place.clear()
        for name, tensor in tensors.items():
            kind, micro, *rest = name.split(".")
            if kind == "place":
                document, window = tensor.cpu().numpy()
                self._place[int(micro)] = (document, window)
            elif rest[1] == "key":
                stem = f"kept.{micro}.{rest[0]}."
                self._kept[int(micro), int(rest[0])] = _Kept(
                    *(tensors[stem + part] for part in ("key", "value", "allowed"))
                )


class _StreamMemory(Memory):
    def __init__(
        self,
        method: _Streams,
        batch: Batch,
        micro: int,
        continues: np.ndarray,
        probe: Probe | None,
    ) -> None:
        super().__init__(batch, probe=probe)
        self.method = method
        self.micro = micro
        self.continues = torch.from_numpy(continues).to(batch.ids.device)
        self.rotated = method.rotated
        self.positions = "document" if method.rotated else "window"
        self.fresh: dict[int, tuple[Tensor, Tensor]] = {}

    def wanted(self, layer: int, is_memory_layer: bool) -> bool:
        return is_memory_layer or self.method.every_layer

    def far(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Far | None:
        # A layer that is run again for its gradient leaves the same behind once more.
        self.fresh[layer] = (key.detach(), value.detach())
        kept = self.method._kept.get((self.micro, layer))
        if kept is None or not bool(self.continues.any()):
            return None
        allowed = kept.allowed & self.continues[:, None]
        return Far(kept.key, kept.value, allowed, allowed, top_k=self.method.top_k)

    def after(self, layer: int, fresh: tuple[Tensor, Tensor]) -> _Kept:
        """The layer's memory with the step's tokens in it."""
        key, value = fresh
        allowed = self.batch.valid
        kept = self.method._kept.get((self.micro, layer))
        if kept is not None and bool(self.continues.any()):
            key = torch.cat((kept.key, key), dim=2)
            value = torch.cat((kept.value, value), dim=2)
            allowed = torch.cat((kept.allowed & self.continues[:, None], allowed), dim=1)
        size = self.method.capacity
        return _Kept(key[:, :, -size:], value[:, :, -size:], allowed[:, -size:])


@dataclass
class TransformerXL(_Streams):
    """Every layer sees the last `capacity` tokens before the window, at their true distance."""

    every_layer: bool = True
    rotated: bool = True


@dataclass
class MemorizingTransformer(_Streams):
    """Memory layers see the top k of the last `capacity` tokens, which carry no position.

    The gate, or the one softmax, is the decoder's own choice (`join`). As in the original the
    window is asked before its own tokens are added; there is no further cache of the previous
    window in the local attention.
    """

    capacity: int = 8192
    top_k: int | None = 32


@dataclass
class Switch(Method):
    """One method first, another from step `at` on: FOT, then the Memorizing Transformer."""

    first: Method
    then: Method
    at: int

    def __post_init__(self) -> None:
        whole_number("at", self.at, 1)
        self._now = self.first

    def begin(self, step: int) -> None:
        """Choose the method of the step."""
        self._now = self.first if step < self.at else self.then
        self.suppliers, self.together = self._now.suppliers, self._now.together
        self._now.begin(step)

    @property
    def contrast(self) -> float:
        """Weight of the InfoNCE term of the present method."""
        return float(getattr(self._now, "contrast", 0.0))

    def memory(
        self,
        batch: Batch,
        d: int,
        rng: np.random.Generator,
        *,
        micro: int = 0,
        probe: Probe | None = None,
    ) -> Memory:
        """That of the present method."""
        return self._now.memory(batch, d, rng, micro=micro, probe=probe)

    def end(self) -> None:
        """End the step of the present method."""
        self._now.end()

    def tensors(self) -> dict[str, Tensor]:
        """What the second method keeps (the first one comes before it)."""
        return self._now.tensors()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up what was kept."""
        if tensors:
            self.then.restore(tensors)
