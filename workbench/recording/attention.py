"""Attention without matrices: softmax rows by blocks of queries, handed to reducers.

A text of n tokens has n²/2 attention weights per head; at 2,000 tokens those of a small model are
already 4 GB. Here one block of rows of one key-value head exists at a time, each reducer
(`workbench.recording.reducer`) takes from it what it needs, and memory grows with n. The layer's
own output still comes from the model's own attention function; some rows of every block, times
the values, are compared with it, so a scale, cap, mask or sink that was misread is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.recording.attention_rows import (
    MASKED,
    AttentionRows,
    Reading,
    RowMask,
    check_rows,
)
from workbench.recording.instruments import AttentionCall, Observer

if TYPE_CHECKING:
    import xarray as xr

    from workbench.recording.reducer import Reducer

__all__ = ["AttentionObserver"]

# Rows worked on at once: with their keys about a level-2 cache, and enough for a fast product.
_ROWS = 256


class AttentionObserver(Observer):
    """Gives the softmax rows of chosen layers and heads to reducers, block by block.

    Parameters
    ----------
    reducers : what receives the rows.
    layers, heads : layers and query heads, zero-based, increasing.
    n : tokens of the text.
    skip : tokens read before them (a start token), whose own rows are not given on.
    rows : queries per block; None takes what suits the number of heads.

    Raises
    ------
    ModelError : (while reading) a layer's mask lets a token see later ones, a row has no finite
        sum, or rows times values are not the layer's own output.
    """

    def __init__(
        self,
        reducers: Sequence[Reducer],
        layers: Sequence[int],
        heads: Sequence[int],
        n: int,
        skip: int = 0,
        *,
        rows: int | None = None,
    ) -> None:
        self.reading = Reading(n, skip, list(layers), list(heads))
        self.reducers = list(reducers)
        self._block_rows = rows
        self._place = {layer: place for place, layer in enumerate(self.reading.layers)}
        self._next = dict.fromkeys(self.reading.layers, 0)
        self._expected: list[tuple[int, int, Tensor, float]] = []
        self._buffers: dict[str, Tensor] = {}
        self._origin, self._fresh = 0, skip
        for reducer in self.reducers:
            reducer.start(self.reading)

    def window(self, origin: int, fresh: int) -> None:
        """Announce that what is read next begins at position `origin`.

        Parameters
        ----------
        origin : position of the first token of the next reading.
        fresh : position from which its rows count; those before it were given on before.
        """
        self._origin, self._fresh = origin, max(fresh, self.reading.skip)
        self._next = dict.fromkeys(self.reading.layers, origin)

    def attention(self, call: AttentionCall) -> None:
        """Reduce one layer."""
        if call.layer not in self._place:
            return
        self._expected = []
        batch, n_heads, n_query, _ = call.query.shape
        n_kv, n_key = call.key.shape[1], call.key.shape[2]
        if batch != 1:
            raise ModelError(f"attention of a batch of {batch} texts; read one text at a time.")
        group = n_heads // n_kv
        chosen: dict[int, list[int]] = {}
        for head in self.reading.heads:
            chosen.setdefault(head // group, []).append(head)
        # Positions of the first query and key: a cache may hold earlier keys, or the last few.
        first = self._next[call.layer]
        key_start = first + n_query - n_key
        begin = max(first, self._fresh)
        size = self._block_rows or max(32, _ROWS // max(len(h) for h in chosen.values()))
        mask = RowMask(call, first, key_start)
        work = torch.promote_types(call.query.dtype, torch.float32)
        scaling = call.scaling if call.scaling is not None else call.query.shape[-1] ** -0.5
        queries = {kv: call.query[0, heads].to(work) * scaling for kv, heads in chosen.items()}
        keys = {kv: call.key[0, kv].to(work) for kv in chosen}
        for start in range(begin, first + n_query, size):
            stop = min(start + size, first + n_query)
            if not any(reducer.wants(call.layer, start, stop) for reducer in self.reducers):
                continue
            first_key, bias = mask.block(start, stop, work)
            done = 0
            for kv, heads in chosen.items():
                place = slice(done, done + len(heads))
                done += len(heads)
                key = keys[kv][first_key - key_start : stop - key_start]
                query = queries[kv][:, start - first : stop - first]
                rows = self._rows(call, query, key, bias, (start, first_key), place, size)
                value = call.value[0, kv, first_key - key_start : stop - key_start]
                self._check(call, rows, heads, value, stop - 1 - first)
                for reducer in self.reducers:
                    if reducer.wants(call.layer, start, stop):
                        reducer.update(rows)
        self._next[call.layer] = first + n_query

    def after(self, call: AttentionCall, output: Tensor) -> None:
        """Compare rows times values with what the layer itself made of them."""
        for row, head, expected, tolerance in self._expected:
            own = output[0, row, head].to(expected.dtype)
            gap = float((own - expected).abs().max())
            if not gap <= tolerance:
                raise ModelError(
                    f"layer {call.layer}, head {head}: attention as computed here, times the "
                    f"values, is not the layer's own output at token {row} (they differ by "
                    f"{gap:.2g}, allowed {tolerance:.2g}). This architecture does more to its "
                    "scores than is known here; record it with attention=None."
                )
        self._expected = []

    def results(self) -> dict[str, xr.Variable]:
        """The variables of all reducers, by name.

        Raises
        ------
        ModelError : not the whole text was read.
        """
        expected = self.reading.n + self.reading.skip
        missing = [layer for layer, done in self._next.items() if done != expected]
        if missing:
            raise ModelError(f"layers {missing} gave no attention, or not of the whole text.")
        found: dict[str, xr.Variable] = {}
        for reducer in self.reducers:
            found |= reducer.finish()
        return found

    # --- one block -------------------------------------------------------------------------

    def _rows(
        self,
        call: AttentionCall,
        query: Tensor,
        key: Tensor,
        bias: Tensor,
        positions: tuple[int, int],
        place: slice,
        size: int,
    ) -> AttentionRows:
        """Weights of queries (heads, rows, dim) on keys (keys, dim)."""
        groups, n_rows, dim = query.shape
        n_keys = len(key)
        longest = self.reading.n + self.reading.skip
        scratch = self._buffer("scratch", (groups * size * longest,), query)
        flat = self._buffer("scores", (groups * size * longest,), query)[: groups * n_rows * n_keys]
        # Left of its keys each row has `size` zeros, which `lag_sums` needs.
        padded = self._buffer(f"weights of {groups}", (groups, size, size + longest), query)
        torch.mm(query.reshape(groups * n_rows, dim), key.t(), out=flat.view(-1, n_keys))
        scores = flat.view(groups, n_rows, n_keys)
        if call.softcap is not None:
            scores.div_(call.softcap).tanh_().mul_(call.softcap)
        # Left of the bias nothing is masked.
        scores[:, :, n_keys - bias.shape[1] :] += bias
        largest = scores.amax(-1)
        sink = _sink(call, place, self.reading.heads, largest)
        if sink is not None:
            largest = torch.maximum(largest, sink)
            sink = sink - largest
        scores.sub_(largest[..., None])
        weights = padded[:, :n_rows, size : size + n_keys]
        torch.exp(scores, out=weights)
        total = weights.sum(-1)
        if sink is not None:
            total = total + sink.exp()
        self._check_sums(call.layer, positions[0], largest, total)
        start, first_key = positions
        skip = self.reading.skip
        return AttentionRows(
            layer=call.layer,
            place=self._place[call.layer],
            heads=place,
            start=start,
            first_key=first_key,
            origin=self._origin,
            skip=skip,
            tokens=slice(start - skip, start - skip + n_rows),
            weights=weights,
            total=total,
            shifted=scores,
            sink=sink,
            _largest=largest,
            _buffer=padded,
            _pad=size,
            _scratch=scratch,
        )

    def _buffer(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A buffer of zeros that is kept from block to block."""
        kept = self._buffers.get(name)
        if (
            kept is None
            or any(a < b for a, b in zip(kept.shape, shape, strict=True))
            or kept.dtype != like.dtype
            or kept.device != like.device
        ):
            kept = torch.zeros(shape, dtype=like.dtype, device=like.device)
            self._buffers[name] = kept
        return kept

    def _check_sums(self, layer: int, start: int, largest: Tensor, total: Tensor) -> None:
        good = total.isfinite() & (total > 0) & (largest > MASKED / 2)
        if not bool(good.all()):
            token = start - self.reading.skip + int((~good).nonzero()[0, 1])
            raise ModelError(
                f"layer {layer}: the attention of token {token} has no finite sum over the tokens "
                "it may see; load the model with dtype='float32', and check its weights."
            )

    def _check(
        self, call: AttentionCall, rows: AttentionRows, heads: list[int], value: Tensor, query: int
    ) -> None:
        """Check the last row of a block, and keep what the layer's output at it must be.

        Parameters
        ----------
        value : (keys, dim) of the block's keys.
        query : place of that row among the call's queries.
        """
        last = rows.n_rows - 1
        probability = rows.weights[:, last] / rows.total[:, last, None]
        upper = rows.weights[:, 0, rows.start - rows.first_key + 1 :]
        check_rows(
            torch.cat([probability, rows.sink_mass[:, last, None]], dim=1),
            upper,
            layer=call.layer,
            token=rows.tokens.stop - 1,
        )
        value = value.to(probability.dtype)
        expected = probability @ value
        eps = torch.finfo(call.query.dtype).eps
        # What the number format leaves of a score, and so of a probability.
        reach = float(rows._largest[:, last].abs().max()) + 1
        tolerance = float(value.abs().max()) * (1e-4 + 2 * eps * reach)
        self._expected += [(query, head, expected[i], tolerance) for i, head in enumerate(heads)]


def _sink(call: AttentionCall, place: slice, heads: Sequence[int], like: Tensor) -> Tensor | None:
    """Learned sink scores of some heads, shape (heads, rows); None without them."""
    learned = call.options.get("s_aux")
    if learned is None:
        return None
    chosen = learned.detach().reshape(-1)[list(heads[place])].to(like.dtype)
    return chosen[:, None].expand_as(like)
