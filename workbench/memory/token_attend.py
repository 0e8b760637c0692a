"""Attention to the local window and to single tokens in memory.

Every query at position t sees the n_local tokens t - n_local + 1 ... t at their places, and in
memory the tokens before them, the oldest ones left out where the memory is full. Of those each
query and head takes the k whose keys it likes best (Memorizing Transformer, section 3.2; FOT,
section 3.1), or all of them (LongLLaMA). What a query sees depends on its position alone, never on
how many tokens are read at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.memory.attend import Near

__all__ = ["Look", "Stored", "attend_tokens"]

_SCORES = 2**23  # bytes of scores that exist at once
_GROUP = 64  # columns whose best score is looked at first
_PIECE = 2**14  # tokens brought over at once where the memory lies on another device


@dataclass(frozen=True)
class Stored:
    """Tokens in memory: keys (as if at position 0) and values (kv_heads, n, dim).

    first : position of the oldest one; the newest one stands just before the near tokens.
    """

    keys: Tensor
    values: Tensor
    first: int


@dataclass(frozen=True)
class Look:
    """How queries look at the memory.

    Parameters
    ----------
    top_k : keys taken by each query and head; None: all.
    capacity : tokens that the memory holds at most, the newest ones; None: any number.
    floor : tokens before this position are in nobody's memory.
    origin : where the window began: no query's window reaches before it.
    gate : (heads,) logits b: σ(b)·memory + (1 - σ(b))·window, each with a softmax of its own. None:
        one softmax over both.
    narrow : of the keys taken only those whose score is at most so much (nats) below the best.
    skip : leave the memory out where its best score is more than so much (nats) below the best one
        of the window.
    flat : leave the memory out where the k best scores differ by less than so much (nats).
    """

    top_k: int | None = None
    capacity: int | None = None
    floor: int = 0
    origin: int = 0
    gate: Tensor | None = None
    narrow: float | None = None
    skip: float | None = None
    flat: float | None = None

    def seen(self, query: int, window: int) -> tuple[int, int]:
        """Positions (first, last + 1) that a query has in memory."""
        stop = max(self.origin, query - window + 1)
        start = self.floor
        if self.capacity is not None:
            start = max(start, stop - self.capacity)
        return start, max(start, stop)


def attend_tokens(
    near_query: Tensor,
    far_query: Tensor,
    near: Near,
    stored: Stored | None,
    look: Look,
    scale: float,
) -> tuple[Tensor, NDArray[np.float64]]:
    """Attention of the newest tokens to window and memory.

    Parameters
    ----------
    near_query, far_query : (heads, m, dim), queries of the m newest tokens of `near`, turned for
        near keys and for keys in memory.
    near : tokens not yet in the store; those that left a query's window are in its memory.
    stored : what left the window before; None: nothing.
    scale : factor of the scores.

    Returns
    -------
    output : (m, heads, dim).
    used : (m,), keys of the memory that took part, mean over heads.
    """
    heads, m, dim = near_query.shape
    kv_heads, n_near, _ = near.rotated.shape
    groups = heads // kv_heads
    query = near.first + n_near - m  # position of the first query
    begin = near.first if stored is None else stored.first
    near_query = near_query.view(kv_heads, groups, m, dim)
    far_query = far_query.view(kv_heads, groups, m, dim)
    output = near_query.new_empty(m, heads, near.values.shape[2])
    used = np.zeros(m)
    width = near.first - begin + n_near + (look.top_k or 0) * dim
    # Looking for the best keys, all of them are read once per block: few blocks are better.
    room = _SCORES if look.top_k is None else 4 * _SCORES
    block = max(1, min(m, room // max(1, 4 * heads * width)))
    for start in range(0, m, block):
        stop = min(start + block, m)
        size = stop - start
        rows = (kv_heads, groups * size, dim)
        places = query + torch.arange(start, stop, device=near_query.device)
        first = max(near.first, query + start - near.window + 1)
        last = query + stop
        here = _scores(
            near_query[:, :, start:stop].reshape(rows) * scale,
            near.rotated[:, first - near.first : last - near.first],
        )
        _hide(here, places, first, places - near.window + 1, places + 1, groups)
        low = max(begin, look.seen(query + start, near.window)[0])
        high = max(low, look.seen(query + stop - 1, near.window)[1])
        parts = list(_parts(near, stored, low, high))
        values = near.values[:, first - near.first : last - near.first]
        if not parts:
            result = torch.bmm(here.softmax(dim=2).to(values.dtype), values)
        else:
            asking = far_query[:, :, start:stop].reshape(rows) * scale
            there = _far_scores(asking, parts)
            highs = (places - near.window + 1).clamp(min=look.origin)
            lows = torch.full_like(places, look.floor)
            if look.capacity is not None:
                lows = lows.maximum(highs - look.capacity)
            _hide(there, places, low, lows, highs, groups)
            there, chosen = _best(there, here, look)
            count = (there != -torch.inf).view(heads, size, -1).sum(dim=(0, 2))
            used[start:stop] = count.cpu().numpy() / heads
            result = _joined(here, values, there, chosen, parts, look.gate, groups, size)
        result = result.view(kv_heads, groups, size, -1).permute(2, 0, 1, 3)
        output[start:stop] = result.reshape(size, heads, -1)
    return output, used


def _parts(
    near: Near, stored: Stored | None, low: int, high: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Keys and values of the positions low ... high - 1: from the store, and from near tokens."""
    if stored is not None and low < min(high, near.first):
        span = slice(low - stored.first, min(high, near.first) - stored.first)
        yield stored.keys[:, span], stored.values[:, span]
    if high > near.first:
        span = slice(max(low, near.first) - near.first, high - near.first)
        if span.stop > span.start:
            yield near.keys[:, span], near.values[:, span]


def _scores(query: Tensor, keys: Tensor) -> Tensor:
    found = torch.bmm(query, keys.transpose(1, 2))
    return found if found.dtype == torch.float64 else found.float()


def _far_scores(query: Tensor, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    found = []
    for keys, _ in parts:
        pieces = [keys] if keys.device == query.device else keys.split(_PIECE, dim=1)
        found += [_scores(query, piece.to(query.device)) for piece in pieces]
    return found[0] if len(found) == 1 else torch.cat(found, dim=2)


def _hide(
    scores: Tensor, places: Tensor, first: int, low: Tensor, high: Tensor, groups: int
) -> None:
    """Leave each query only the positions low ... high - 1; the first column stands at `first`."""
    tokens = first + torch.arange(scores.shape[2], device=scores.device)
    hidden = (tokens < low[:, None]) | (tokens >= high[:, None])
    if len(places) > 1 or bool(hidden.any()):
        shaped = scores.view(len(scores), groups, len(places), -1)
        shaped.masked_fill_(hidden, -torch.inf)


def _best(there: Tensor, here: Tensor, look: Look) -> tuple[Tensor, Tensor | None]:
    """Scores of the keys that take part, and their columns (None: all)."""
    chosen = None
    if look.top_k is not None and look.top_k < there.shape[2]:
        there, chosen = _largest(there, look.top_k)
    best = there.amax(dim=2, keepdim=True)
    if look.narrow is not None:
        there = there.masked_fill(there < best - look.narrow, -torch.inf)
    if look.skip is not None:
        top = here.amax(dim=2, keepdim=True)
        there = there.masked_fill(best < top - look.skip, -torch.inf)
    if look.flat is not None:
        worst = torch.where(there == -torch.inf, torch.inf, there).amin(dim=2, keepdim=True)
        there = there.masked_fill(best - worst < look.flat, -torch.inf)
    return there, chosen


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and their columns.

    The k largest stand in the k groups of columns whose own largest ones are the largest, so most
    columns are looked at but once.
    """
    n = scores.shape[2]
    whole = n // _GROUP
    if whole < 4 * k:
        found = scores.topk(k, dim=2)
        return found.values, found.indices
    grouped = scores[:, :, : whole * _GROUP].unflatten(2, (whole, _GROUP))
    groups = grouped.amax(dim=3).topk(k, dim=2).indices
    columns = (groups[..., None] * _GROUP + torch.arange(_GROUP, device=scores.device)).flatten(2)
    rest = torch.arange(whole * _GROUP, n, device=scores.device).expand(*scores.shape[:2], -1)
    columns = torch.cat((columns, rest), dim=2)
    found = scores.gather(2, columns).topk(k, dim=2)
    return found.values, columns.gather(2, found.indices)


def _joined(
    here: Tensor,
    values: Tensor,
    there: Tensor,
    chosen: Tensor | None,
    parts: list[tuple[Tensor, Tensor]],
    gate: Tensor | None,
    groups: int,
    size: int,
) -> Tensor:
    """One softmax over both sets of scores, or two and a gate."""
    top = here.amax(dim=2, keepdim=True)
    best = there.amax(dim=2, keepdim=True)
    if gate is None:
        top = torch.maximum(top, best)
        best = top
    else:
        # A query without memory would get -inf - (-inf): keep its numbers finite.
        best = best.where(best != -torch.inf, 0.0)
    here, there = (here - top).exp_(), (there - best).exp_()
    near_sum, far_sum = here.sum(dim=2, keepdim=True), there.sum(dim=2, keepdim=True)
    near_out = torch.bmm(here.to(values.dtype), values)
    far_out = _weighted(there.to(values.dtype), chosen, parts)
    if gate is None:
        return (near_out + far_out) / (near_sum + far_sum).to(values.dtype)
    share = torch.sigmoid(gate.to(here)).view(-1, groups, 1).expand(-1, -1, size)
    share = share.reshape(len(here), -1, 1) * (far_sum > 0)
    far_sum = far_sum.where(far_sum > 0, 1.0)
    mixed = share.to(values.dtype) * (far_out / far_sum.to(values.dtype))
    return mixed + (1 - share).to(values.dtype) * (near_out / near_sum.to(values.dtype))


def _weighted(weights: Tensor, chosen: Tensor | None, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Sum of the values of the memory by their weights (kv_heads, rows, keys)."""
    column, total = 0, None
    for _, values in parts:
        n = values.shape[1]
        if chosen is None:
            found = weights.new_zeros(*weights.shape[:2], values.shape[2])
            pieces = (values,) if values.device == weights.device else values.split(_PIECE, dim=1)
            place = column
            for piece in pieces:
                share = weights[:, :, place : place + piece.shape[1]]
                found += torch.bmm(share, piece.to(weights.device))
                place += piece.shape[1]
        else:
            inside = (chosen >= column) & (chosen < column + n)
            index = (chosen - column).clamp(0, n - 1).to(values.device)
            head = torch.arange(len(values), device=values.device)[:, None, None]
            picked = values[head, index].to(weights.device)
            found = ((weights * inside)[:, :, None] @ picked)[:, :, 0]
        total = found if total is None else total + found
        column += n
    assert total is not None
    return total
