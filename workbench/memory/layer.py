"""What one layer keeps of one text, and how it recalls from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.core.errors import DiskSpaceError
from workbench.memory.ann import ApproximateIndex
from workbench.memory.attend import Far, Near, attend
from workbench.memory.log import RetrievalLog
from workbench.memory.near import NearTokens
from workbench.memory.representatives import representatives, similarities
from workbench.memory.rotation import Rotation
from workbench.memory.select import Recalled, recall_units
from workbench.memory.settings import Settings
from workbench.memory.store import FileStore, TensorStore, TokenStore
from workbench.memory.units import Units

__all__ = ["LayerMemory", "LayerShape"]

_EVERYWHERE = 2**62  # a window that everything is in


@dataclass(frozen=True)
class LayerShape:
    """A layer of a model: its number, heads, and the window of its own design, if it has one."""

    layer: int
    heads: int
    kv_heads: int
    own_window: int | None
    recalls: bool
    """False: the layer sees its own window and nothing else (sliding layers of Gemma 3)."""


class LayerMemory:
    """One layer of one text: sinks, near tokens, stored units, and the recall from them.

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
        self.window = _EVERYWHERE if settings.n_local is None else settings.n_local
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

    # --- recalling -------------------------------------------------------------------------

    @property
    def n_recallable(self) -> int:
        """Stored units."""
        return self.n_indexed - self.first_recalled

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float,
        *,
        step: int,
        reading: bool,
    ) -> Tensor:
        """Take in the newest tokens and let them attend; (m, heads, dim).

        Parameters
        ----------
        queries : (heads, m, dim), before rotation.
        keys, values : (kv_heads, m, dim), keys before rotation.
        scale : of the scores.
        step : number of the retrieval step.
        reading : False while generating: each token then looks for what is like itself.
        """
        near = self.near
        near.append(keys, values)
        m = queries.shape[1]
        near_query = near.turned(queries)
        far_query = self._far_query(queries, near_query)
        # At the places of the far keys, so that similarity and attention are of one kind.
        wanted = queries if self._s.position in ("true", "zero") else far_query
        split = self._s.query == "token" or not reading
        if split and m > 1 and self.shape.recalls and self.n_recallable:
            return self._token_by_token(
                near_query, far_query, wanted, scale, step=step, reading=reading
            )
        place = near.first + near.n - m
        far = self._recall(self._mean_query(wanted, reading), step, place, reading=reading)
        output = self._attended(near_query, far_query, far, scale, 0)
        if self.shape.recalls and self._units is not None:
            self.query = wanted.mean(dim=1)
        return output

    def _token_by_token(
        self,
        near_query: Tensor,
        far_query: Tensor,
        wanted: Tensor,
        scale: float,
        *,
        step: int,
        reading: bool,
    ) -> Tensor:
        m = near_query.shape[1]
        rows, seen = [], []
        for i in range(m):
            place = self.near.first + self.near.n - m + i
            far = self._recall(wanted[:, i], step, place, reading=reading)
            part = slice(i, i + 1)
            rows.append(
                self._attended(near_query[:, part], far_query[:, part], far, scale, m - 1 - i)
            )
            seen.append(self.seen)
        self.seen = np.concatenate(seen)
        self.query = wanted.mean(dim=1)
        return torch.cat(rows)

    def _far_query(self, queries: Tensor, near_query: Tensor) -> Tensor:
        if self._s.position == "true":
            return near_query
        if self._s.position == "zero":
            return self.near.turned(queries, alone=True)
        if self._s.position == "none" or self._s.n_local is None:
            return queries
        return self.near.far(queries, self.window - 1)

    def _mean_query(self, wanted: Tensor, reading: bool) -> Tensor | None:
        if not reading or self._s.query == "token":
            return wanted[:, -1]  # a chunk of one token
        if self._s.query == "chunk":
            return wanted.mean(dim=1)
        return self.query

    def _attended(
        self, near_query: Tensor, far_query: Tensor, far: Far | None, scale: float, later: int
    ) -> Tensor:
        """Attention of the newest tokens, but for the `later` ones that come after them."""
        near = self.near
        n = near.n - later
        strict = self._units is None
        shown = Near(
            keys=near.rotated[:, :n] if self._true else near.keys[:, :n],
            rotated=near.rotated[:, :n],
            values=near.values[:, :n],
            first=near.first,
            window=_EVERYWHERE if self._true and not strict else self.window,
            far_limit=self._s.n_init if strict else _EVERYWHERE,
        )
        m = near_query.shape[1]
        output, received = attend(
            near_query, far_query, shown, far, scale, received=self._units is not None
        )
        if received is not None:
            near.received[:, :n] += received
        self.seen = self._held[2] + self._near_seen(np.arange(n - m, n), strict=strict)
        return output

    def _near_seen(self, queries: NDArray[np.int64], *, strict: bool) -> NDArray[np.float64]:
        """Near tokens that queries see, which are themselves so many-th near tokens."""
        if not strict:
            return np.asarray(queries + 1.0, dtype=np.float64)
        left = np.minimum(queries - self.window + 1, self._s.n_init - self.near.first)
        seen = np.minimum(queries + 1, self.window) + np.maximum(left, 0)
        return seen.astype(np.float64)

    def _recall(
        self, query: Tensor | None, step: int, position: int, *, reading: bool
    ) -> Far | None:
        """Sinks and recalled units as far keys."""
        recalled: list[Recalled] = []
        if self.n_recallable and (query is not None or self._s.everything):
            stale = not reading and not self._s.everything and position % self._s.every > 0
            if not stale or self._recalled is None:
                self._recalled = self._chosen(query, step, position)
            recalled = self._recalled
        key = (
            None if self.sinks is None else self.sinks[0].shape[1],
            self._true and self._rotation.beyond(self.near.reach),
            *(tuple(r.in_order.tolist()) for r in recalled),
        )
        if self._held[0] != key:
            far = self._fetched(recalled)
            count = 0.0
            if far is not None:
                count = float(far.keys.shape[1])
                if far.allowed is not None:
                    count = float(far.allowed.sum()) / len(far.keys)
            self._held = key, far, count
        return self._held[1]

    def _chosen(self, query: Tensor | None, step: int, position: int) -> list[Recalled]:
        first, n = self.first_recalled, self.n_recallable
        sizes = np.array(self.sizes[first:], dtype=np.int64)
        if self._s.everything or query is None:
            return [Recalled(np.arange(first, first + n), np.zeros(0, dtype=np.int64))]
        assert self.index is not None
        values = self._similarity(query, first, n)
        budget: dict[str, Any] = {"tokens": self._s.n_mem}
        if self._s.top_units is not None:
            budget = {"units": self._s.top_units}
        chosen = []
        if len(self._queue) != len(values):
            self._queue = [[] for _ in values]
        for head, row in enumerate(values):
            found = recall_units(
                row,
                sizes,
                **budget,
                share=self._s.share,
                reach=self._s.reach,
                queue=[unit - first for unit in self._queue[head]],
            )
            shifted = Recalled(found.similar + first, found.contiguous + first)
            self._queue[head] = shifted.contiguous.tolist()
            number = head if self._s.per_head else -1
            if self.ann is not None:
                self._complete(row, found.contiguous[row[found.contiguous] == -np.inf], query)
            padded = row if first == 0 else np.concatenate((np.full(first, np.nan), row))
            self._log.add(
                step,
                position,
                self.shape.layer,
                number,
                n,
                shifted.similar,
                shifted.contiguous,
                padded,
            )
            chosen.append(shifted)
        return chosen

    def _similarity(self, query: Tensor, first: int, n: int) -> list[NDArray[np.floating]]:
        assert self.index is not None
        per_head = self.shape.kv_heads if self._s.per_head else None
        rows = self.index[first : first + n]
        query = query.to(rows.dtype)
        # A unit has a token at least, so no more than these could be recalled.
        most = self._s.n_mem if self._s.top_units is None else self._s.top_units
        if self.ann is not None and n > max(self.ann.above, most):
            row = np.full(n, -np.inf, dtype=np.float32)
            self._complete(row, self.ann.candidates(rows, query, most), query)
            return [row]
        values = similarities(query, rows, per_head=per_head).float().cpu().numpy()
        return list(values) if values.ndim == 2 else [values]

    def _complete(self, row: NDArray[np.floating], units: NDArray[np.int64], query: Tensor) -> None:
        """Write the exact similarity of some units to `row`, counted from the first recallable."""
        assert self.index is not None
        if len(units):
            chosen = self.index[torch.from_numpy(units + self.first_recalled).to(self.index.device)]
            row[units] = similarities(query.to(chosen.dtype), chosen).float().cpu().numpy()

    def _fetched(self, recalled: list[Recalled]) -> Far | None:
        parts: list[tuple[Tensor, Tensor]] = [] if self.sinks is None else [self.sinks]
        places = [] if self.sinks is None else [torch.arange(self.sinks[0].shape[1])[None]]
        allowed: Tensor | None = None
        device = self.near.keys.device
        if recalled and self.store is not None:
            rows = [self._tokens_of(r.in_order) for r in recalled]
            longest = max(len(row) for row in rows)
            if longest:
                tokens = torch.zeros(len(rows), longest, dtype=torch.long)
                for head, row in enumerate(rows):
                    tokens[head, : len(row)] = torch.from_numpy(row)
                if len(rows) == 1:
                    keys, values = self.store.gather(tokens[0])
                else:
                    keys, values = self.store.gather(tokens)
                    there = torch.tensor([len(row) for row in rows])[:, None]
                    known = 0 if self.sinks is None else self.sinks[0].shape[1]
                    allowed = torch.arange(-known, longest)[None] < there
                    allowed = None if bool(allowed.all()) else allowed.to(device)
                parts.append((keys.to(device), values.to(device)))
                places.append(tokens + self._s.n_init)
        if not parts:
            return None
        keys = torch.cat([part[0] for part in parts], dim=1).contiguous()
        if self._true:
            heads = len(places[-1])
            joined = torch.cat([part.expand(heads, -1) for part in places], dim=1)
            keys = self._rotation.at(keys, joined[0] if heads == 1 else joined, self.near.reach)
        values = torch.cat([part[1] for part in parts], dim=1).contiguous()
        return Far(keys, values, allowed)

    def _tokens_of(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        spans = [
            np.arange(self.offsets[unit], self.offsets[unit] + self.sizes[unit])
            for unit in units.tolist()
        ]
        return np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)

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
