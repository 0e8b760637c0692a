"""Attention without matrices: softmax rows by blocks of queries, handed to reducers.

A text of n tokens has n²/2 attention weights per head; at 2,000 tokens those of a small model are
already 4 GB. Here one block of rows of one key-value head exists at a time, each reducer
(`workbench.recording.reducers`) takes from it what it needs, and memory grows with n. The layer's
own output still comes from the model's own attention function; some rows of every block, times
the values, are compared with it, so a scale, cap, mask or sink that was misread is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.recording.instruments import AttentionCall, Observer

if TYPE_CHECKING:
    import xarray as xr

    from workbench.recording.reducers import Reducer

__all__ = ["AttentionObserver", "AttentionRows", "Reading", "check_rows"]

# A masked score: exp gives exactly 0, and 0 times it is 0 (minus infinity would give NaN).
_MASKED = -1e30
# Rows worked on at once: with their keys about a level-2 cache, and enough for a fast product.
_ROWS = 256


@dataclass(frozen=True)
class Reading:
    """What is read, as reducers are told before it starts.

    Parameters
    ----------
    n : tokens of the text.
    skip : tokens before the text (a start token). Positions count from the first of these;
        text token t is at position skip + t.
    layers, heads : numbers of the layers and query heads observed, zero-based, increasing.
    """

    n: int
    skip: int
    layers: list[int]
    heads: list[int]


@dataclass(eq=False)
class AttentionRows:
    """Softmax rows of a block of successive queries, for the query heads of one key-value head.

    The buffers are used again for the next block: keep results, not views of them.

    Parameters
    ----------
    layer : number of the layer.
    place : its place in `Reading.layers`.
    heads : the heads' places in `Reading.heads`.
    start : position of the first query.
    first_key : position of the first key; keys before it are masked for the whole block.
    origin : position of the first token of this reading (0 but for windows of a long text, each
        of which begins with the start token).
    skip : tokens before the text in each reading.
    tokens : the queries as tokens of the text.
    weights : (heads, rows, keys), exp(score - largest score of the row); 0 where masked, so also
        after the query's own position.
    total : (heads, rows), what the weights are divided by: their sum, and the sink's weight.
    shifted : (heads, rows, keys), score - largest score of the row; a large negative number
        where masked.
    sink : (heads, rows), log-weight of a learned sink that takes part in the softmax (gpt-oss);
        None without one.
    """

    layer: int
    place: int
    heads: slice
    start: int
    first_key: int
    origin: int
    skip: int
    tokens: slice
    weights: Tensor
    total: Tensor
    shifted: Tensor
    sink: Tensor | None
    _largest: Tensor
    _buffer: Tensor
    _pad: int
    _scratch: Tensor

    @property
    def n_rows(self) -> int:
        """Number of queries of the block."""
        return self.weights.shape[1]

    @property
    def text_start(self) -> int:
        """Position of the first token of the text in this reading."""
        return self.origin + self.skip

    @property
    def stop(self) -> int:
        """Position after the last query (and after the last key)."""
        return self.start + self.n_rows

    @cached_property
    def probability(self) -> Tensor:
        """Attention (heads, rows, keys). Costs a copy of the block: prefer `weights`/`total`."""
        return self.weights / self.total[..., None]

    @cached_property
    def sink_mass(self) -> Tensor:
        """Share that goes to the learned sink, and so to no token, (heads, rows)."""
        if self.sink is None:
            return torch.zeros_like(self.total)
        return self.sink.exp() / self.total

    @cached_property
    def entropy(self) -> Tensor:
        """-Σ p log p in nats, (heads, rows); the sink counts as one more outcome.

        With w = exp(d) and Z = Σw it is log Z - Σ w·d / Z: no logarithm per weight.
        """
        product = self._scratch[: self.weights.numel()].view(self.weights.shape)
        weighted = torch.mul(self.weights, self.shifted, out=product).sum(-1)
        if self.sink is not None:
            weighted = weighted + self.sink.exp() * self.sink
        return self.total.log() - weighted / self.total

    def columns(self, first: int, stop: int) -> slice:
        """The keys at positions first ... stop - 1 as a slice of the last axis."""
        size = self.weights.shape[2]
        return slice(
            min(max(first - self.first_key, 0), size), min(max(stop - self.first_key, 0), size)
        )

    def text(self, first: int, stop: int) -> slice:
        """The text's tokens first ... stop - 1, as far as they are read here, as such a slice."""
        return self.columns(max(first + self.skip, self.text_start), stop + self.skip)

    def lag_sums(self, row_weights: Tensor, from_key: int = 0) -> Tensor:
        """Sums over the block's rows of `row_weights` × `weights`, by lag.

        Lag = position of the query minus position of the key. Along a skewed view of the block,
        in which each row begins one place later, equal lags lie below each other: so all lags
        are one matrix product over memory as it is.

        Parameters
        ----------
        row_weights : (heads, m, rows), m sums at once.
        from_key : position of the first key that counts.

        Returns
        -------
        (heads, m, lags), lags 0, 1, ... up to that of the first key to the last query.
        """
        groups, rows, _ = self.weights.shape
        width = self.start - self.first_key + rows
        height, row = self._buffer.stride()[:2]
        view = self._buffer.as_strided(
            (groups, rows, width),
            (height, row + 1, 1),
            self._buffer.storage_offset() + self._pad - (rows - 1),
        )
        left_out = self.columns(self.first_key, from_key)
        if left_out.stop == left_out.start:
            return torch.bmm(row_weights, view).flip(-1)
        kept = self.weights[..., left_out].clone()
        self.weights[..., left_out] = 0.0
        sums = torch.bmm(row_weights, view).flip(-1)
        self.weights[..., left_out] = kept
        return sums


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
        mask = _Mask(call, first, key_start)
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
        good = total.isfinite() & (total > 0) & (largest > _MASKED / 2)
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


def check_rows(probability: Tensor, upper: Tensor, *, layer: int, token: int) -> None:
    """Rows of attention must sum to 1, and give nothing to later tokens.

    Parameters
    ----------
    probability : (heads, keys), of one token, a sink included.
    upper : (heads, any), what a query gives to tokens after it.

    Raises
    ------
    ModelError : one of the two does not hold; names layer, token and the number.
    """
    total = probability.sum(-1)
    gap = float((total - 1).abs().max())
    if not gap <= 1e-4:
        worst = float(total[(total - 1).abs().argmax()])
        raise ModelError(
            f"layer {layer}: the attention of token {token} sums to {worst:.6g} instead of 1."
        )
    if upper.numel() and float(upper.abs().max()) > 0:
        raise ModelError(
            f"layer {layer}: token {token} or one shortly before it gives attention to tokens "
            "after it (the upper triangle is not 0); only causal models can be recorded."
        )


def _sink(call: AttentionCall, place: slice, heads: Sequence[int], like: Tensor) -> Tensor | None:
    """Learned sink scores of some heads, shape (heads, rows); None without them."""
    learned = call.options.get("s_aux")
    if learned is None:
        return None
    chosen = learned.detach().reshape(-1)[list(heads[place])].to(like.dtype)
    return chosen[:, None].expand_as(like)


class _Mask:
    """What a layer's mask means for a block of queries, as scores to add.

    Parameters
    ----------
    first : position of the call's first query.
    origin : position of its first key.
    """

    def __init__(self, call: AttentionCall, first: int, origin: int) -> None:
        self.layer = call.layer
        self.first, self.origin = first, origin
        self.device = call.query.device
        self.mask = call.mask
        window = call.options.get("sliding_window")
        self.window = window if isinstance(window, int) else None
        if self.mask is not None and (self.mask.dim() != 4 or self.mask.shape[1] != 1):
            raise ModelError(
                f"layer {call.layer}: a mask of shape {tuple(self.mask.shape)} is not known here; "
                "load the model with attn_implementation='sdpa'."
            )

    def block(self, start: int, stop: int, dtype: torch.dtype) -> tuple[int, Tensor]:
        """Position of the first key, and the bias (rows, last keys) of queries start ... stop - 1.

        The bias covers the last of the keys first_key ... stop - 1; before it nothing is masked.
        """
        queries = torch.arange(start, stop, device=self.device)
        if self.mask is None:
            first_key, begin = self.origin, start
            if self.window is not None:  # a query sees itself and the window - 1 before it
                first_key = max(self.origin, start - self.window + 1)
                begin = start if stop - self.window <= first_key else first_key
            keys = torch.arange(begin, stop, device=self.device)
            allowed = keys[None, :] <= queries[:, None]
            if self.window is not None:
                allowed &= keys[None, :] > queries[:, None] - self.window
            return first_key, _additive(allowed, dtype)
        rows = self.mask[0, 0, start - self.first : stop - self.first]
        boolean = rows.dtype == torch.bool
        allowed = rows if boolean else rows > torch.finfo(rows.dtype).min / 2
        if bool(allowed.triu(start - self.origin + 1).any()):
            raise ModelError(
                f"layer {self.layer}: the model's mask lets one of the tokens at positions "
                f"{start} to {stop - 1} attend to later ones; only causal models can be recorded."
            )
        seen = allowed[:, : stop - self.origin].any(dim=0)
        first_key = int(seen.int().argmax())
        columns = slice(first_key, stop - self.origin)
        bias = _additive(allowed[:, columns], dtype)
        if not boolean:
            bias += torch.where(allowed[:, columns], rows[:, columns], 0).to(dtype)
        return first_key + self.origin, bias


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return bias.masked_fill_(~allowed, _MASKED)
