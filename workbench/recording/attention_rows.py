"""Softmax rows of attention as reducers get them, their checks, and what a mask means for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.recording.instruments import AttentionCall

__all__ = ["MASKED", "AttentionRows", "Reading", "RowMask", "check_rows"]

MASKED = -1e30
"""A masked score: exp gives exactly 0, and 0 times it is 0 (minus infinity would give NaN)."""


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


class RowMask:
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
    return bias.masked_fill_(~allowed, MASKED)
