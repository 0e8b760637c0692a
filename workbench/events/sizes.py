"""From flagged positions to events of usable size, and to a wanted number of them.

All functions take and return inner starts (sorted, in 1 ... n − 1): position 0 starts the first
event without being listed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError

__all__ = ["Cut", "drop_short", "limit_sizes", "merge_short", "size_events", "split_long", "thin"]


class Cut(NamedTuple):
    """Inner starts, int64 (k,), and the strength of each, float64 (k,)."""

    starts: NDArray[np.int64]
    strength: NDArray[np.float64]


def merge_short(flags: ArrayLike, min_size: int) -> NDArray[np.int64]:
    """Keep a flag if it is at least `min_size` after the last kept start (0 at first).

    An event that would be shorter goes on into the next one. The end of the text cuts nothing
    off: the last event is whatever follows the last kept start, and may be shorter (it is open).
    """
    kept, last = [], 0
    for flag in np.asarray(flags, dtype=np.int64).tolist():
        if flag - last >= min_size:
            kept.append(flag)
            last = flag
    return np.array(kept, dtype=np.int64)


def drop_short(flags: ArrayLike, min_size: int) -> NDArray[np.int64]:
    """Keep a flag if it is at least `min_size` after the flag before it, kept or not.

    The filter of the released EM-LLM code before refinement: of 20, 24, 29, 33 only 20 stays.
    Position 0 counts as the flag before the first one.
    """
    places = np.asarray(flags, dtype=np.int64)
    return places[np.diff(places, prepend=0) >= min_size]


def split_long(flags: ArrayLike, n: int, max_size: int) -> NDArray[np.int64]:
    """Add a start every `max_size` positions, from the left, within each longer event."""
    return limit_sizes(flags, n, 1, max_size)


def limit_sizes(flags: ArrayLike, n: int, min_size: int, max_size: int | None) -> NDArray[np.int64]:
    """Merge short events forward and split long ones, in one walk from the left.

    As the released EM-LLM code does when it forms its blocks: an event is cut off as soon as it
    is longer than `max_size`, and a flag less than `min_size` after such a cut is merged like
    any other. All events but the last have min_size ... max_size positions; the last has at most
    `max_size`.
    """
    kept: list[int] = []
    last = 0
    for flag in [*np.asarray(flags, dtype=np.int64).tolist(), n]:
        while max_size is not None and flag - last > max_size:
            last += max_size
            kept.append(last)
        if flag < n and flag - last >= min_size:
            kept.append(flag)
            last = flag
    return np.array(kept, dtype=np.int64)


def size_events(
    flags: ArrayLike,
    strength: ArrayLike,
    n: int,
    *,
    min_size: int = 8,
    max_size: int | None = 128,
    short: str = "merge",
) -> Cut:
    """Events of min_size ... max_size positions from flagged positions.

    Parameters
    ----------
    flags, strength : inner starts and how strongly each is marked, shape (k,).
    n : number of positions.
    min_size, max_size : positions per event; max_size None: no limit.
    short : "merge" (`merge_short`) or "drop" (`drop_short` before anything else, as released).

    Returns
    -------
    Cut ; starts that only `max_size` made have strength −inf.
    """
    check_sizes(min_size, max_size)
    check_option("short", short, ["merge", "drop"])
    places = np.asarray(flags, dtype=np.int64)
    kept = drop_short(places, min_size) if short == "drop" else places
    starts = limit_sizes(kept, n, min_size, max_size)
    marks = np.full(len(starts), -np.inf)
    flagged = np.isin(starts, kept)
    marks[flagged] = np.asarray(strength, dtype=np.float64)[
        np.searchsorted(places, starts[flagged])
    ]
    return Cut(starts, marks)


def thin(flags: ArrayLike, strength: ArrayLike, k: int, min_size: int = 1) -> Cut:
    """The k strongest flags that are at least `min_size` from each other and from position 0.

    Greedy: the strongest first, of equal ones the earlier; fewer than k where no more fit.

    Parameters
    ----------
    flags, strength : sorted positions and how strongly each is marked, shape (m,).
    k : number wanted.
    min_size : smallest distance; 1 leaves neighbours in.
    """
    places = np.asarray(flags, dtype=np.int64)
    marks = np.asarray(strength, dtype=np.float64)
    kept = [0]
    for row in np.lexsort((places, -marks)).tolist():
        if len(kept) > k:
            break
        place = int(places[row])
        spot = bisect_left(kept, place)
        near = kept[max(spot - 1, 0) : spot + 1]
        if all(abs(place - other) >= min_size for other in near):
            insort(kept, place)
    starts = np.array(kept[1:], dtype=np.int64)
    return Cut(starts, marks[np.searchsorted(places, starts)])


def check_sizes(min_size: int, max_size: int | None) -> None:
    """Raise `InputError` unless 1 ≤ min_size ≤ max_size."""
    if min_size < 1:
        raise InputError(f"min_size={min_size} must be at least 1.")
    if max_size is not None and max_size < min_size:
        raise InputError(f"max_size={max_size} is smaller than min_size={min_size}.")
