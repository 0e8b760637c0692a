"""One softmax over what is near and what is recalled, each at its own positions.

Near keys are rotated to their places; far keys (sinks, recalled events, tokens that left the local
window and are not stored yet) share one place, so that the query is rotated for them instead
(InfLLM, section 3.2; EM-LLM, section 3.1). Both sets of scores stand in one matrix, a block of
queries at a time, and go through one softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Far", "Near", "attend"]

_SCORES = 3 * 2**20  # bytes of scores that exist at once: what a processor's cache holds


@dataclass(frozen=True)
class Near:
    """Tokens that are not stored yet, the newest ones last: positions first ... last.

    Parameters
    ----------
    keys : (kv_heads, n, dim), before rotation.
    rotated : (kv_heads, n, dim), rotated to their places.
    values : (kv_heads, n, dim).
    first : position of the first of them in the text.
    window : a query at position t is near the tokens t - window + 1 ... t.
    far_limit : tokens that left the window are seen as far ones if their position is smaller;
        those from it on are not seen any more.
    """

    keys: Tensor
    rotated: Tensor
    values: Tensor
    first: int
    window: int
    far_limit: int


@dataclass(frozen=True)
class Far:
    """What is seen at one place: keys and values (kv_heads, n, dim).

    allowed : (kv_heads, n) or None for all; where the heads recalled different numbers of tokens,
        the rest is filled up with what nobody sees.
    """

    keys: Tensor
    values: Tensor
    allowed: Tensor | None = None


def attend(
    near_query: Tensor,
    far_query: Tensor,
    near: Near,
    far: Far | None,
    scale: float,
    *,
    received: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Attention of the newest tokens.

    Parameters
    ----------
    near_query, far_query : (heads, m, dim), queries of the m newest tokens of `near`, rotated for
        near keys and for far ones.
    near, far : what can be seen.
    scale : factor of the scores.
    received : also add up what each near token receives.

    Returns
    -------
    output : (m, heads, dim).
    received : (heads, n_near) float32: the sum over queries of their attention (probability) to
        each token that was near them; None where it was not asked for.
    """
    heads, m, dim = near_query.shape
    kv_heads, n_near, _ = near.rotated.shape
    groups = heads // kv_heads
    wide = near_query.dtype if near_query.dtype == torch.float64 else torch.float32
    newest = near.first + n_near - m  # position of the first query
    n_far = 0 if far is None else far.keys.shape[1]
    output = near_query.new_empty(m, heads, dim)
    total = near_query.new_zeros(heads, n_near, dtype=wide) if received else None
    near_query = near_query.view(kv_heads, groups, m, dim)
    far_query = far_query.view(kv_heads, groups, m, dim)
    columns = n_far + min(n_near, near.window) + min(n_near, m)
    block = max(1, min(m, _SCORES // max(1, 4 * heads * columns)))
    if block < m:
        block = max(1, block // 16 * 16)
    for start in range(0, m, block):
        stop = min(start + block, m)
        size = stop - start
        first = max(near.first, newest + start - near.window + 1) - near.first
        last = newest + stop - near.first
        # Of the near tokens those that some query of the block has left behind come first.
        left = max(0, min(newest + stop - near.window, near.far_limit) - near.first)
        parts_k = [(far_query, near.keys[:, :left]), (near_query, near.rotated[:, first:last])]
        parts_v = [near.values[:, :left], near.values[:, first:last]]
        if far is not None:
            parts_k.insert(0, (far_query, far.keys))
            parts_v.insert(0, far.values)
        width = n_far + left + last - first
        scores = near_query.new_empty(kv_heads, groups * size, width, dtype=wide)
        column = 0
        for query, keys in parts_k:
            rows = query[:, :, start:stop].reshape(kv_heads, groups * size, dim)
            here = scores[:, :, column : column + keys.shape[1]]
            _products(rows * scale, keys, here)
            column += keys.shape[1]
        if far is not None and far.allowed is not None:
            scores[:, :, :n_far].masked_fill_(~far.allowed[:, None], -torch.inf)
        shaped = scores.view(kv_heads, groups, size, width)
        _mask(shaped, n_far, left, first, newest + start - near.first, near.window)
        scores.sub_(scores.amax(dim=2, keepdim=True)).exp_()
        share = scores.sum(dim=2).reciprocal_()
        # Sums of many weights overflow half precision: there the weights are made shares first.
        early = near.values.dtype == torch.float16
        column, result = 0, None
        for values in parts_v:
            weights = scores[:, :, column : column + values.shape[1]]
            if early:
                weights = weights * share[:, :, None]
            part = torch.bmm(weights.to(values.dtype), values)
            result = part if result is None else result.add_(part)
            column += values.shape[1]
        assert result is not None
        if not early:
            result = result * share[:, :, None].to(result.dtype)
        output[start:stop] = (
            result.view(kv_heads, groups, size, dim).permute(2, 0, 1, 3).reshape(size, heads, dim)
        )
        if total is not None:
            by_head = share.view(heads, 1, size)
            seen = torch.bmm(by_head, shaped.reshape(heads, size, width)[:, :, n_far + left :])
            total[:, first:last] += seen[:, 0]
    return output, total


def _products(rows: Tensor, keys: Tensor, out: Tensor) -> None:
    """Scores rows · keys, written to `out` (kv_heads, rows, keys)."""
    if rows.dtype == out.dtype:
        for head in range(len(rows)):
            torch.mm(rows[head], keys[head].t(), out=out[head])
    else:
        out.copy_(torch.bmm(rows, keys.transpose(1, 2)))


def _mask(scores: Tensor, n_far: int, left: int, first: int, query: int, window: int) -> None:
    """Hide tokens that a query has not read, and each token from one of its two places.

    `scores` (kv_heads, groups, queries, columns): far ones, left ones, near ones from `first`;
    `first` and `query` (the first query's own place) count from the first near token.
    """
    size = scores.shape[2]
    if size == 1 and left <= max(0, query - window + 1):
        return
    rows = query + torch.arange(size, device=scores.device)[:, None]

    def hide(begin: int, end: int, token: int, left_behind: bool) -> None:
        if begin >= end:
            return
        tokens = token + torch.arange(end - begin, device=scores.device)[None]
        gone = tokens <= rows - window
        hidden = ~gone if left_behind else gone | (tokens > rows)
        scores[..., begin:end].masked_fill_(hidden, -torch.inf)

    # Only columns near an edge differ between the queries of a block.
    edge = max(0, min(query - window + 1, left))
    hide(n_far + edge, n_far + left, edge, left_behind=True)
    begin = n_far + left
    width = scores.shape[3] - begin
    low = min(width, max(0, query + size - window - first))
    high = max(low, query + 1 - first)
    hide(begin, begin + low, first, left_behind=False)
    hide(begin + high, begin + width, first + high, left_behind=False)
