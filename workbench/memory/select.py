"""Which stored units are recalled: by similarity, and by nearness in time to what was recalled.

Pure functions over one retrieval: similarities and sizes of all stored units in, unit numbers out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import InputError

__all__ = ["Recalled", "neighbours", "next_queue", "recall_units"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Recalled:
    """Units of one retrieval.

    similar : the similarity buffer, most similar first.
    contiguous : the contiguity buffer, newest first.
    """

    similar: Ints
    contiguous: Ints

    @property
    def in_order(self) -> Ints:
        """All of them in the order of the text."""
        return np.sort(np.concatenate((self.similar, self.contiguous)))


def recall_units(
    similarity: NDArray[np.floating],
    sizes: Ints,
    *,
    tokens: int | None = None,
    units: int | None = None,
    share: float = 0.0,
    reach: int = 1,
    queue: Sequence[int] = (),
) -> Recalled:
    """Units recalled from a store (EM-LLM, section 3.4: k = k_s + k_c).

    Parameters
    ----------
    similarity : (n_units,), of each unit to the query; -inf: never recalled by similarity (not
        among the candidates of an approximate search).
    sizes : (n_units,), tokens in each unit.
    tokens, units : the budget, one of the two: at most so many tokens, or units, in both buffers
        together. The most similar units are taken until the next one does not fit.
    share : part of the budget that is the contiguity buffer's: round(share · budget). If all
        units fit into the whole budget, all are recalled by similarity.
    reach : how far in time from a recalled unit its neighbours are taken: +1, -1, +2, -2, ...
        ±reach.
    queue : the contiguity buffer before this retrieval, newest first.

    Raises
    ------
    InputError : no budget, or two.
    """
    if (tokens is None) == (units is None):
        raise InputError("give the budget in tokens or in units, one of the two.")
    n = len(similarity)
    weights = sizes if units is None else np.ones(n, dtype=np.int64)
    budget = int(tokens if units is None else units)  # type: ignore[arg-type]
    nothing = np.zeros(0, dtype=np.int64)
    if n == 0 or budget <= 0:
        return Recalled(nothing, nothing)
    for_contiguous = round(share * budget)
    whole = int(weights.sum()) <= budget
    similar = _most_similar(similarity, weights, budget if whole else budget - for_contiguous)
    if for_contiguous == 0:
        return Recalled(similar, nothing)
    fresh = neighbours(similar, n, reach)
    contiguous = next_queue(fresh, queue, similar, weights, for_contiguous)
    return Recalled(similar, contiguous)


def _most_similar(similarity: NDArray[np.floating], weights: Ints, budget: int) -> Ints:
    n = len(similarity)
    # No more units than this can fit, so the rest need not be sorted.
    most = n if not len(weights) else min(n, budget // max(1, int(weights.min())))
    if most <= 0:
        return np.zeros(0, dtype=np.int64)
    places = np.arange(n)
    if most < n:
        places = np.argpartition(-similarity, most - 1)[:most]
        # Units as similar as the last one must not be left to chance: the earlier one is taken.
        last = similarity[places].min()
        places = np.flatnonzero(similarity >= last)
    order = places[np.lexsort((places, -similarity[places]))][:most]
    order = order[similarity[order] != -np.inf]
    fits = np.cumsum(weights[order]) <= budget
    count = len(order) if fits.all() else int(np.argmin(fits))
    return order[:count].astype(np.int64)


def neighbours(units: Iterable[int], n: int, reach: int = 1) -> list[int]:
    """Neighbours in time of units, first those of the first unit: +1, -1, +2, -2, ... ±reach."""
    found: dict[int, None] = {}
    for unit in units:
        for step in range(1, reach + 1):
            for place in (int(unit) + step, int(unit) - step):
                if 0 <= place < n:
                    found.setdefault(place)
    return list(found)


def next_queue(
    fresh: Sequence[int], queue: Sequence[int], similar: Ints, weights: Ints, budget: int
) -> Ints:
    """The contiguity buffer after a retrieval.

    What is in the similarity buffer leaves it; new neighbours come first and push the oldest out
    where the budget is used up.
    """
    taken = set(similar.tolist())
    kept: list[int] = []
    used = 0
    for unit in (*fresh, *queue):
        if unit in taken:
            continue
        used += int(weights[unit])
        if used > budget:
            break
        taken.add(unit)
        kept.append(unit)
    return np.array(kept, dtype=np.int64)
