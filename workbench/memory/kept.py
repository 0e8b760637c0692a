"""What one layer keeps of one text: sinks, near tokens, and stored units with their index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import DiskSpaceError
from workbench.memory.ann import ApproximateIndex
from workbench.memory.attend import Far
from workbench.memory.log import RetrievalLog
from workbench.memory.near import NearTokens
from workbench.memory.representatives import representatives
from workbench.memory.rotation import Rotation
from workbench.memory.select import Recalled
from workbench.memory.settings import Settings
from workbench.memory.store import FileStore, TensorStore, TokenStore
from workbench.memory.units import Units

__all__ = ["EVERYWHERE", "KeptLayer", "LayerShape"]

EVERYWHERE = 2**62  # a window that everything is in


@dataclass(frozen=True)
class LayerShape:
    """A layer of a model: its number, heads, and the window of its own design, if it has one."""

    layer: int
    heads: int
    kv_heads: int
    own_window: int | None
    recalls: bool
    """False: the layer sees its own window and nothing else (sliding layers of Gemma 3)."""


class KeptLayer:
    """One layer of one text: sinks, near tokens, and stored units with their index.

    Parameters
    ----------
    shape : the layer.
    settings : of the system.
    rotation : the layer's rotary tables.
    units : the units of the text, shared with whoever forms them; None: nothing is stored, what
        leaves the window is forgotten.
    log : where retrievals are written down.
    file : of the stored tokens, for store="disk".
    """

    def __init__(
        self,
        shape: LayerShape,
        settings: Settings,
        rotation: Rotation,
        units: Units | None,
        log: RetrievalLog,
        file: Path | None,
    ) -> None:
        self.shape = shape
        if not shape.recalls:
            settings = replace(settings, n_init=0, n_local=shape.own_window, position="fixed")
            units = None
        self._s = settings
        self._units = units
        self._log = log
        self._file = file
        self.window = EVERYWHERE if settings.n_local is None else settings.n_local
        # At true places there is one window for all: far and near are turned alike.
        self._true = settings.position == "true"
        room = None if self._true or settings.n_local is None else self.window + settings.chunk
        self.near = NearTokens(rotation, shape.heads, None if room is None else 2 * room)
        self._rotation = rotation
        self.sinks: tuple[Tensor, Tensor] | None = None
        self.store: TokenStore | None = None
        self.index: Tensor | None = None  # (capacity, heads, [r,] dim)
        self.n_indexed = 0
        self.sizes: list[int] = []  # stored tokens of each indexed unit
        self.offsets: list[int] = []  # of each unit in the store
        self.first_recalled = 0  # units before it lie within the sinks
        self.query: Tensor | None = None  # (heads, dim), mean of the chunk before
        self._queue: list[list[int]] = [[]]
        self._held: tuple[Any, Far | None, float] = (None, None, 0.0)
        self._recalled: list[Recalled] | None = None
        self.seen = np.zeros(0)  # keys seen by each of the last queries
        self.ann = None if settings.ann_above is None else ApproximateIndex(settings.ann_above)

    # --- keeping ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Before tokens are read: move what left the window to the sinks and to the store."""
        near = self.near
        if near.n == 0:
            return
        edge = near.first + near.n - self.window + 1  # what lies before it is out of sight
        if near.first < self._s.n_init and edge > near.first:
            self._sink(min(edge, self._s.n_init) - near.first)
        if self._units is None:
            if self._s.n_local is not None and edge > near.first:
                near.drop(edge - near.first)
            return
        sizes = []
        for unit in range(self.n_indexed, self._units.n):
            start, end = self._units.span(unit)
            if end > edge:
                break
            sizes.append(max(0, end - max(start, self._s.n_init)))
        if sizes:
            self._store(sizes)

    def _sink(self, count: int) -> None:
        near = self.near
        keys, values = near.keys[:, :count].clone(), near.values[:, :count].clone()
        if self.sinks is not None:
            keys = torch.cat((self.sinks[0], keys), dim=1)
            values = torch.cat((self.sinks[1], values), dim=1)
        self.sinks = keys, values
        near.drop(count)

    def _store(self, sizes: list[int]) -> None:
        """Store the next units, which are the first near tokens: so many of each.

        A unit without tokens stands among the sinks as a whole.
        """
        near, total = self.near, sum(sizes)
        before = 0 if self.store is None else self.store.n
        if total:
            keys, values = near.keys[:, :total], near.values[:, :total]
            if self.store is None:
                self.store = self._new_store(keys)
            self._check_budget(before, total, 2 * keys.nbytes // total)
            self.store.append(keys, values)
        done = 0
        for size in sizes:
            self.offsets.append(before + done)
            self.sizes.append(size)
            if size == 0:
                self._index_row(None)
                self.first_recalled = self.n_indexed
                continue
            part = slice(done, done + size)
            keys, received = near.keys[:, part], near.received[:, part]
            self._index_row(representatives(keys, received, self._s.r, averaged=self._s.averaged))
            done += size
        near.drop(total)

    def _check_budget(self, held: int, more: int, row: int) -> None:
        # What is stored counts, not the room kept ready for more: the same for every store.
        if self._s.budget is not None and (held + more) * row > self._s.budget:
            first = self.near.first
            raise DiskSpaceError(
                f"layer {self.shape.layer}: storing the events at positions {first} ... "
                f"{first + more - 1} beside {held * row} bytes needs {more * row} more, beyond the "
                f"budget of {self._s.budget} for this layer. Raise budget=, or keep the memory on "
                "disk (store='disk')."
            )

    def _new_store(self, like: Tensor) -> TokenStore:
        if self._s.store == "disk":
            assert self._file is not None
            kv_heads, _, dim = like.shape
            return FileStore(self._file, kv_heads, dim, like.dtype)
        return TensorStore("cpu" if self._s.store == "host" else None)

    def _index_row(self, row: Tensor | None) -> None:
        if row is not None or self.index is not None:
            if self.index is None:
                assert row is not None
                self.index = row.new_zeros(max(256, self.n_indexed + 1), *row.shape)
            elif self.n_indexed >= len(self.index):
                size = max(256, len(self.index) + len(self.index) // 2)
                grown = self.index.new_zeros(size, *self.index.shape[1:])
                grown[: self.n_indexed] = self.index[: self.n_indexed]
                self.index = grown
            if row is not None:
                self.index[self.n_indexed] = row
        self.n_indexed += 1

    @property
    def n_recallable(self) -> int:
        """Stored units."""
        return self.n_indexed - self.first_recalled

    # --- going back ------------------------------------------------------------------------

    def copy(self) -> dict[str, Any]:
        """What `restore` needs to come back to now."""
        return {
            "near": self.near.copy() if self.near.n or self.near.first else None,
            "sinks": self.sinks,
            "stored": 0 if self.store is None else self.store.n,
            "indexed": self.n_indexed,
            "first_recalled": self.first_recalled,
            "query": self.query,
            "queue": [list(queue) for queue in self._queue],
            "held": self._held,
            "recalled": self._recalled,
        }

    def restore(self, copy: dict[str, Any]) -> None:
        """Back to a copy that was made of this layer earlier."""
        if copy["near"] is None:
            room = self.near._reach
            self.near = NearTokens(self._rotation, self.shape.heads, room)
        else:
            self.near.restore(copy["near"])
        self.sinks, self.query = copy["sinks"], copy["query"]
        if self.store is not None:
            self.store.truncate(copy["stored"])
        self.n_indexed, self.first_recalled = copy["indexed"], copy["first_recalled"]
        del self.sizes[self.n_indexed :], self.offsets[self.n_indexed :]
        if self.ann is not None:
            self.ann.truncate(self.n_recallable)
        self._queue = [list(queue) for queue in copy["queue"]]
        self._held, self._recalled = copy["held"], copy["recalled"]

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Everything but the stored tokens, for a file: numbers, and tensors by name."""
        near, tensors = self.near, {}
        if near.n:
            tensors = {"keys": near.keys, "values": near.values, "received": near.received}
            tensors["rotated"] = near.rotated
        if self.sinks is not None:
            tensors["sink_keys"], tensors["sink_values"] = self.sinks
        if self.index is not None:
            tensors["index"] = self.index[: self.n_indexed]
        if self.query is not None:
            tensors["query"] = self.query
        like = near.keys if near.n else None
        numbers = {
            **near.numbers(),
            "stored": 0 if self.store is None else self.store.n,
            "shape": None if like is None else [like.shape[0], like.shape[2]],
            "dtype": None if like is None else str(like.dtype).removeprefix("torch."),
            "indexed": self.n_indexed,
            "sizes": self.sizes,
            "offsets": self.offsets,
            "first_recalled": self.first_recalled,
            "queue": self._queue,
            "recalled": None
            if self._recalled is None
            else [[r.similar.tolist(), r.contiguous.tolist()] for r in self._recalled],
        }
        return numbers, tensors

    def restore_state(
        self,
        numbers: dict[str, Any],
        tensors: dict[str, Tensor],
        store: TokenStore | None,
        device: torch.device,
    ) -> None:
        """The reverse of `state`, with the store that holds the stored tokens."""
        held = {name: tensor.to(device) for name, tensor in tensors.items()}
        names = ("keys", "rotated", "values", "received")
        kept = tuple(held[name] for name in names) if "keys" in held else None
        self.near.set(numbers, kept)
        self.store = store
        self.sinks = (held["sink_keys"], held["sink_values"]) if "sink_keys" in held else None
        self.index, self.query = held.get("index"), held.get("query")
        self.n_indexed, self.first_recalled = numbers["indexed"], numbers["first_recalled"]
        self.sizes, self.offsets = list(numbers["sizes"]), list(numbers["offsets"])
        self._queue = [list(queue) for queue in numbers["queue"]]
        self._recalled = None
        if numbers["recalled"] is not None:
            self._recalled = [
                Recalled(np.array(similar, dtype=np.int64), np.array(contiguous, dtype=np.int64))
                for similar, contiguous in numbers["recalled"]
            ]

    def footprint(self) -> dict[str, int]:
        """Bytes: resident_kv (sinks, near, and what was fetched last), stored_kv, index."""
        resident = self.near.nbytes
        for pair in (self.sinks, self._held[1] and (self._held[1].keys, self._held[1].values)):
            if pair:
                resident += sum(tensor.nbytes for tensor in pair)
        memory = 0 if self.store is None else self.store.resident_bytes
        file = 0 if self.store is None else self.store.file_bytes
        return {
            "resident_kv": resident,
            "stored_in_memory": memory,
            "stored_in_files": file,
            "index": (0 if self.index is None else self.index.nbytes)
            + (0 if self.ann is None else self.ann.nbytes),
        }
