"""The tokens that stand for a unit when it is looked for (InfLLM, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["representatives", "similarities"]


def representatives(keys: Tensor, received: Tensor, r: int, *, averaged: bool = True) -> Tensor:
    """Keys of the r tokens of a unit that received the most attention, for each query head.

    Parameters
    ----------
    keys : (kv_heads, n, dim), the unit's keys before rotation.
    received : (heads, n), attention that each token received from the queries it was near to.
    r : how many; units with fewer tokens have all of them (and, if not averaged, the last one
        more than once).
    averaged : their mean, instead of each of them.

    Returns
    -------
    (heads, dim) if averaged, else (heads, r, dim).
    """
    kv_heads, n, _ = keys.shape
    heads = len(received)
    count = min(r, n)
    # Stable, so that of equal tokens the earlier ones stand for the unit.
    order = torch.sort(received, dim=1, descending=True, stable=True).indices[:, :count]
    head = torch.arange(heads, device=keys.device)[:, None] // (heads // kv_heads)
    chosen = keys[head, order.to(keys.device)]
    if averaged:
        return chosen.mean(dim=1)
    if count < r:
        chosen = torch.cat((chosen, chosen[:, -1:].expand(-1, r - count, -1)), dim=1)
    return chosen


def similarities(query: Tensor, index: Tensor, *, per_head: int | None = None) -> Tensor:
    """Similarity of every unit to a query: the dot product, summed over heads.

    Parameters
    ----------
    query : (heads, dim).
    index : (n_units, heads, dim), or (n_units, heads, r, dim): then the best of the r tokens
        counts, head by head.
    per_head : sum over the query heads of each of so many key-value heads only.

    Returns
    -------
    (n_units,), or (per_head, n_units).
    """
    heads, dim = query.shape
    n = len(index)
    if index.dim() == 3 and per_head is None:
        return torch.mv(index.reshape(n, heads * dim), query.reshape(heads * dim))
    if index.dim() == 3:
        products = torch.einsum("uhd,hd->hu", index, query)
    else:
        products = torch.einsum("uhrd,hd->hur", index, query).amax(dim=2)
    if per_head is None:
        return products.sum(dim=0)
    return products.view(per_head, heads // per_head, n).sum(dim=1)
