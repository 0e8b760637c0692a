"""Scores of candidate boundaries where the weights of a region are there as a matrix.

The counterpart of `workbench.events.objectives` for similarities that are no dot product: sums over
blocks of a region come from the 2-D running sums of its weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workbench.core.blockgraph import BlockGraph
from workbench.core.blocksums import (
    BlockSums,
    conductance_terms,
    intra_inter_terms,
    modularity_terms,
    without_noise,
)
from workbench.core.errors import InputError
from workbench.events.objectives import Region

__all__ = ["MOST_POSITIONS", "block_split_scores"]

MOST_POSITIONS = 8192
"""Largest region: its weights are formed as one matrix (512 MB)."""

_EMPTY = 1e-9


def block_split_scores(
    graph: BlockGraph, region: Region, candidates: range, objective: str, variant: str
) -> NDArray[np.float64]:
    """Score of ending the event at each candidate; as `objectives.split_scores`.

    Parameters
    ----------
    graph : one graph (`summed()` where there are several heads).
    region, candidates, objective, variant : see `split_scores`.

    Raises
    ------
    InputError : a region of more than 8,192 positions.
    """
    size = region.high - region.low
    if size > MOST_POSITIONS:
        raise InputError(
            f"window: a region of {size} positions needs all its weights at once for similarity "
            f"{graph.similarity!r}; choose a window of at most {MOST_POSITIONS}."
        )
    everything = slice(region.low, region.high)
    weights = graph.weights(everything, everything)
    corner = np.zeros((size + 1, size + 1))  # corner[a, b] = Σ of the first a rows, b columns
    np.cumsum(np.cumsum(weights, axis=0), axis=1, out=corner[1:, 1:])
    total = float(corner[-1, -1])
    if not total > _EMPTY * float(np.abs(weights).sum()):
        return np.full(len(candidates), np.nan)
    e = region.event - region.low
    c = np.arange(candidates.start, candidates.stop) - region.low
    inner = _square(corner, e, c)
    volume = corner[c, -1] - corner[e, -1]
    constant = np.ones_like(inner)
    if region.separate and e > 0:
        ahead, ahead_volume = float(corner[e, e]), float(corner[e, -1])
        rest = _square(corner, c, size)
        within = np.stack([inner, ahead * constant, rest], axis=1)
        degree = np.stack([volume, ahead_volume * constant, total - ahead_volume - volume], axis=1)
        sizes = np.stack([c - e, np.full_like(c, e), size - c], axis=1)
    else:
        # what is not the event: both sides of it together
        rest = total - 2 * volume + inner
        within = np.stack([inner, rest], axis=1)
        degree = np.stack([volume, total - volume], axis=1)
        sizes = np.stack([c - e, size - c + e], axis=1)
    within = without_noise(within, np.full_like(within, total))
    sums = BlockSums(
        within=within[..., None],
        cut=without_noise(degree - within, np.abs(degree) + np.abs(within))[..., None],
        degree=degree[..., None],
        sizes=sizes,
        total=np.array([total]),
        n=size,
        diagonal=graph.diagonal,
    )
    if objective == "modularity":
        return modularity_terms(sums, variant)[..., 0].sum(axis=1)
    if objective == "conductance":
        return -conductance_terms(sums, variant)[..., 0].min(axis=1)
    return intra_inter_terms(sums, variant)[..., 0].mean(axis=1)


def _square(
    corner: NDArray[np.float64], first: int | NDArray[np.int64], last: int | NDArray[np.int64]
) -> NDArray[np.float64]:
    """Σ of the weights of [first, last)²."""
    return np.asarray(
        corner[last, last] - corner[first, last] - corner[last, first] + corner[first, first]
    )
