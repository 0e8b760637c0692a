"""How one layer attends to what it keeps, and recalls from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.memory.attend import Far, Near, attend
from workbench.memory.kept import EVERYWHERE, KeptLayer
from workbench.memory.representatives import similarities
from workbench.memory.select import Recalled, recall_units

__all__ = ["LayerMemory"]


class LayerMemory(KeptLayer):
    """One layer of one text: what it keeps, and the recall from it."""

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
            window=EVERYWHERE if self._true and not strict else self.window,
            far_limit=self._s.n_init if strict else EVERYWHERE,
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
