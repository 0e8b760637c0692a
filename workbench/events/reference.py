"""Boundary refinement as the released EM-LLM code does it, restated from its behaviour.

It differs from the paper's Algorithm 1: a boundary only ever moves left and its original place is
not a candidate, boundaries that follow the one before too closely are dropped, and candidates are
judged within half an event's length of context on both sides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workbench.events.objectives import Region, best_candidate, split_scores

__all__ = ["drop_close", "refine_chunk", "refine_released"]

_ZERO = 1e-15  # the released code's stand-in for a conductance's zero denominator


def drop_close(places: list[int], min_size: int, offset: int) -> list[int]:
    """Indices of the boundaries that are kept, places relative to the chunk's left edge.

    The first is kept when it is at least `min_size` from the edge or the edge is the chunk's own
    start (offset 0); each other when it is at least `min_size` after the one before it, kept or
    not. So 20, 24, 29, 33 leaves only 20 with a minimum of 8.
    """
    kept = []
    for i, place in enumerate(places):
        if i == 0:
            if place >= min_size or offset == 0:
                kept.append(i)
        elif place - places[i - 1] >= min_size:
            kept.append(i)
    return kept


def refine_chunk(
    prefix: NDArray[np.float64],
    norms: NDArray[np.float64],
    places: list[int],
    edge: int,
    offset: int,
    end: int,
    *,
    objective: str,
    variant: str,
    min_size: int,
    diagonal: bool,
) -> tuple[list[int], list[int]]:
    """Refined boundaries of one chunk, and the indices of the originals they come from.

    Parameters
    ----------
    places : boundaries of the chunk, positions in the text, increasing.
    edge : where the judged stretch starts: the last boundary before the chunk, or its start.
    offset : distance from `edge` to the chunk's start.
    end : where the chunk ends.
    """
    kept = drop_close([place - edge for place in places], min_size, offset)
    moved = []
    previous = edge
    for i in kept:
        place = places[i]
        if place - previous > min_size and place - edge - offset > min_size:
            half = (place - previous) // 2
            low, high = max(edge, previous - half), min(end, place + half)
            candidates = range(max(edge + offset, previous) + min_size, place)
            if len(candidates) and high > place - 1:
                scores = split_scores(
                    prefix,
                    norms,
                    Region(low, high, low),
                    candidates,
                    objective,
                    variant,
                    diagonal=diagonal,
                    zero=_ZERO,
                )
                found = best_candidate(scores, candidates, prefer="first")
                place = place if found is None else found
        moved.append(place)
        previous = place
    return moved, kept


def refine_released(
    prefix: NDArray[np.float64],
    norms: NDArray[np.float64],
    places: NDArray[np.int64],
    *,
    objective: str,
    variant: str,
    min_size: int,
    chunk: int | None,
    diagonal: bool,
) -> tuple[list[int], list[int]]:
    """All boundaries, in one chunk or in chunks that look back to the last refined boundary.

    Parameters
    ----------
    places : inner boundaries, positions in the text, increasing.
    chunk : positions per chunk (512 as released); None takes the whole text as one.

    A chunk of L positions that has at least L positions before it looks back to the last boundary
    among the L positions before it, if there is one.

    Returns
    -------
    Refined boundaries and the indices of the originals they come from.
    """
    n = len(prefix) - 1
    step = n if chunk is None else chunk
    moved: list[int] = []
    kept: list[int] = []
    for start in range(0, n, step):
        end = min(n, start + step)
        edge = start
        if moved and end >= 2 * (end - start) and moved[-1] >= start - (end - start):
            edge = moved[-1]
        first, last = np.searchsorted(places, [start, end])
        chunk_moved, chunk_kept = refine_chunk(
            prefix,
            norms,
            places[first:last].tolist(),
            edge,
            start - edge,
            end,
            objective=objective,
            variant=variant,
            min_size=min_size,
            diagonal=diagonal,
        )
        moved += chunk_moved
        kept += [int(first) + i for i in chunk_kept]
    return moved, kept
