"""One text of a batch: what every layer keeps of it, its events, and what was seen of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.memory.forming import EventFormer, Forming
from workbench.memory.kept import LayerShape
from workbench.memory.layer import LayerMemory
from workbench.memory.log import RetrievalLog
from workbench.memory.rotation import Rotation
from workbench.memory.settings import Settings

__all__ = ["Row", "Text"]

MEASURED = ("surprisal", "entropy", "bayesian_surprise")


@dataclass
class Text:
    """What was read, piece by piece: ids and what was measured of each token of the text."""

    ids: list[int] = field(default_factory=list)
    measures: dict[str, list[float]] = field(default_factory=dict)
    seen: list[float] = field(default_factory=list)

    def truncate(self, n: int) -> None:
        """Forget all but the first n tokens."""
        del self.ids[n:], self.seen[n:]
        for values in self.measures.values():
            del values[n:]


class Row:
    """One text.

    Parameters
    ----------
    shapes, rotations : of the layers.
    settings, forming : of the system; forming None: nothing is stored.
    skip : 1 where a start token stands before the text, else 0.
    folder : of the layers' files, for store="disk".
    refining : layers whose keys refine boundaries.
    """

    def __init__(
        self,
        shapes: list[LayerShape],
        rotations: list[Rotation],
        settings: Settings,
        forming: Forming | None,
        skip: int,
        folder: Path | None,
        *,
        refining: list[int] | None = None,
    ) -> None:
        self.refining = list(refining or ())
        self.skip = skip
        self.n = 0  # tokens read, with the start token
        self.step = 0
        self.log = RetrievalLog()
        self.text = Text()
        self.former: EventFormer | None = None
        if forming is not None:
            count = len(shapes) if forming.per == "layer" else 1
            self.former = EventFormer(forming, count, skip)
        self.layers: list[LayerMemory] = []
        for number, (shape, rotation) in enumerate(zip(shapes, rotations, strict=True)):
            units = None
            if self.former is not None:
                units = self.former.units[number if len(self.former.units) > 1 else 0]
            file = None if folder is None else folder / f"layer-{number:03d}.kv"
            self.layers.append(LayerMemory(shape, settings, rotation, units, self.log, file))
        self.hidden: Tensor | None = None  # (hidden,), state after the last token read
        self.log_p: Tensor | None = None  # (vocabulary,), its prediction, where it was computed
        self.keys: dict[int, Tensor] = {}  # of the tokens just read, of layers that refine
        self.closed = False  # generation of this text has ended

    def settle(self) -> None:
        """Before tokens are read."""
        for layer in self.layers:
            layer.settle()

    def feed(self, ids: list[int], measures: dict[str, NDArray[np.float64]]) -> None:
        """After tokens of the text were read: note them and form events."""
        text = self.text
        text.ids += ids
        for name in MEASURED:
            values = measures.get(name)
            column = text.measures.setdefault(name, [])
            column += [float("nan")] * len(ids) if values is None else values.tolist()
        seen = [layer.seen[len(layer.seen) - len(ids) :] for layer in self.layers]
        text.seen += np.mean(seen, axis=0).tolist()
        if self.former is None:
            return
        forming = self.former.forming
        keys: list[NDArray[Any]] | None = None
        if forming.refined:
            skipped = {
                layer: kept[:, kept.shape[1] - len(ids) :] for layer, kept in self.keys.items()
            }
            parts = [kept.float().cpu().numpy() for _, kept in sorted(skipped.items())]
            keys = parts if forming.per == "layer" else [np.concatenate(parts)]
        values = np.array(text.measures[forming.signal][-len(ids) :], dtype=np.float64)
        self.former.feed(values, keys)

    def copy(self) -> dict[str, Any]:
        """What `restore` needs to come back to now."""
        return {
            "n": self.n,
            "step": self.step,
            "log": len(self.log),
            "text": len(self.text.ids),
            "former": None if self.former is None else self.former.copy(),
            "layers": [layer.copy() for layer in self.layers],
            "hidden": self.hidden,
            "log_p": self.log_p,
            "closed": self.closed,
        }

    def restore(self, copy: dict[str, Any]) -> None:
        """Back to a copy made earlier."""
        self.n, self.step = copy["n"], copy["step"]
        self.log.truncate(copy["log"])
        self.text.truncate(copy["text"])
        if self.former is not None:
            self.former.restore(copy["former"])
        for layer, copied in zip(self.layers, copy["layers"], strict=True):
            layer.restore(copied)
        self.hidden, self.log_p, self.closed = copy["hidden"], copy["log_p"], copy["closed"]

    def measure_step(self, token: int) -> dict[str, NDArray[np.float64]]:
        """Surprisal and entropy of a token under the last prediction (nats), each (1,)."""
        if self.log_p is None:
            return {}
        log_p = self.log_p
        return {
            "surprisal": np.array([-float(log_p[token])]),
            "entropy": np.array([float(-(log_p.exp() * log_p).sum())]),
        }

    def predicted(self, logits: Tensor) -> Tensor:
        """Log-probabilities (vocabulary,), in float32 or better."""
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return torch.log_softmax(wide, dim=-1)
