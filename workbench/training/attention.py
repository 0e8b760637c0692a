"""Attention over a local window and what else may be seen: one softmax over both, or a gate.

FOT (arXiv 2307.03170, section 3.1) puts the scores of local and memory keys into one softmax;
the Memorizing Transformer (arXiv 2203.08913, section 3.2) mixes two softmaxes by a gate per head.
Everything here is differentiable in every argument.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Far", "Near", "attend", "masses", "own_share_loss"]


@dataclass(frozen=True)
class Near:
    """The local window of each row.

    Parameters
    ----------
    query : (rows, heads, n, dim).
    key, value : (rows, kv_heads, n, dim).
    allowed : bool, broadcast to (rows, heads, n, n): which key a query may see. Each query sees at
        least itself, so that padding gives finite numbers that nobody uses.
    scale : factor of the scores; 1 where the query carries its own temperature.
    bias : added to the scores, broadcast to (rows, heads, n, n); None for none.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    allowed: Tensor
    scale: float
    bias: Tensor | None = None


@dataclass(frozen=True)
class Far:
    """What a row may see outside its window: all of it precedes the window.

    Parameters
    ----------
    key, value : (rows, kv_heads, m, dim).
    allowed : (rows, m) bool; False for padding and for places that are not filled.
    own : (rows, m) bool, tokens of the row's own document.
    bias : added to the scores, broadcast to (rows, heads, n, m); None for none.
    top_k : only the k best keys of each query and head take part; None for all of them.
    """

    key: Tensor
    value: Tensor
    allowed: Tensor
    own: Tensor
    bias: Tensor | None = None
    top_k: int | None = None


def attend(near: Near, far: Far | None, gate: Tensor | None = None) -> Tensor:
    """Attention of every row to its window and to what else it sees.

    Parameters
    ----------
    near, far : what can be seen; without `far` plain local attention.
    gate : (heads,) logits b: output = σ(b)·far + (1 - σ(b))·near, two softmaxes. None for one
        softmax over both. A row that sees nothing far is left to its window.

    Returns
    -------
    output : (rows, heads, n, dim).
    """
    if far is None:
        if near.bias is None:
            return _sdpa(near.query, near.key, near.value, near.allowed, near.scale)
        return _weights(_near_scores(near)) @ _grouped(near.value, near.query)
    if gate is None and near.bias is None and far.bias is None and far.top_k is None:
        n = near.query.shape[2]
        rows = near.query.shape[0]
        allowed = torch.cat(
            (
                near.allowed.expand(rows, 1, n, n),
                far.allowed[:, None, None].expand(rows, 1, n, far.allowed.shape[1]),
            ),
            dim=-1,
        )
        key = torch.cat((near.key, far.key), dim=2)
        value = torch.cat((near.value, far.value), dim=2)
        return _sdpa(near.query, key, value, allowed, near.scale)
    here, there = _near_scores(near), _far_scores(near, far)
    near_value = _grouped(near.value, near.query)
    far_value = _grouped(far.value, near.query)
    if gate is None:
        weights = _weights(torch.cat((here, there), dim=-1))
        n = here.shape[-1]
        return weights[..., :n] @ near_value + weights[..., n:] @ far_value
    some = far.allowed.any(dim=1)[:, None, None, None]
    # A row without memory would divide 0 by 0: give it finite scores, then take no part of them.
    recalled = _weights(torch.where(some, there, 0.0)) @ far_value
    share = torch.sigmoid(gate)[None, :, None, None] * some
    return share * recalled + (1 - share) * (_weights(here) @ near_value)


def masses(near: Near, far: Far) -> tuple[Tensor, Tensor]:
    """Attention mass of each query on its own document's far tokens, and on all far tokens.

    The masses are those of the one softmax over window and far tokens, so that
    r_d = own / all (FOT, Figure 3); without far tokens both are 0.

    Returns
    -------
    own, all : (rows, heads, n) float32.
    """
    with torch.no_grad():
        here, there = _near_scores(near).float(), _far_scores(near, far).float()
        total = torch.cat((here, there), dim=-1).logsumexp(dim=-1)
        own = there.masked_fill(~far.own[:, None, None], -torch.inf).logsumexp(dim=-1)
        return (own - total).exp(), (there.logsumexp(dim=-1) - total).exp()


def own_share_loss(near: Near, far: Far) -> Tensor:
    """InfoNCE of the attention scores: -log(Σ over own far tokens / Σ over all far tokens).

    Returns
    -------
    (rows, heads, n); 0 where a row has no far tokens of its own, or only those.
    """
    there = _far_scores(near, far).float()
    own = far.own & far.allowed
    some = own.any(dim=1) & (far.allowed & ~far.own).any(dim=1)
    there = torch.where(some[:, None, None, None], there, 0.0)
    mine = there.masked_fill(~own[:, None, None] & some[:, None, None, None], -torch.inf)
    return (there.logsumexp(dim=-1) - mine.logsumexp(dim=-1)) * some[:, None, None]


def _sdpa(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scale: float) -> Tensor:
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=allowed,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _near_scores(near: Near) -> Tensor:
    scores = near.query @ _grouped(near.key, near.query).mT * near.scale
    if near.bias is not None:
        scores = scores + near.bias
    return scores.masked_fill(~near.allowed, -torch.inf)


def _far_scores(near: Near, far: Far) -> Tensor:
    scores = near.query @ _grouped(far.key, near.query).mT * near.scale
    if far.bias is not None:
        scores = scores + far.bias
    scores = scores.masked_fill(~far.allowed[:, None, None], -torch.inf)
    if far.top_k is not None and far.top_k < scores.shape[-1]:
        best = scores.detach().topk(far.top_k, dim=-1).indices
        kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)
        scores = scores.masked_fill(~kept, -torch.inf)
    return scores


def _weights(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


def _grouped(keys: Tensor, query: Tensor) -> Tensor:
    """Keys or values repeated for the query heads that share them."""
    repeats = query.shape[1] // keys.shape[1]
    return keys if repeats == 1 else keys.repeat_interleave(repeats, dim=1)
