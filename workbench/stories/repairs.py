"""Times that are missing or go backwards, and the spelling by which words are compared."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.checks import plural
from workbench.core.errors import DataError

__all__ = ["fill_times", "normalised", "repair_times", "spread"]

MAX_BACKWARDS = 0.05
"""Above this share of onsets that go backwards the times are refused rather than repaired."""

Floats = NDArray[np.float64]


def normalised(word: str) -> str:
    """A word as alignment compares it: compatibility forms and case folded, letters, digits, marks.

    Quotes, apostrophes, hyphens and other punctuation go ("He'd" and "hed" are equal), ligatures
    and composed characters are unified (NFKC). A word of nothing but symbols stays as it is.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
    kept = "".join(char for char in folded if unicodedata.category(char)[0] in "LNM")
    return kept or folded


def spread(low: float, high: float, words: Sequence[str]) -> Floats:
    """Edges that divide [low, high] among words in proportion to their lengths."""
    share = np.cumsum([0.0, *(max(1, len(word)) for word in words)])
    return low + (high - low) * (share / share[-1])


def fill_times(words: Sequence[str], onset: ArrayLike, offset: ArrayLike) -> tuple[Floats, Floats]:
    """Fill unknown times from the neighbours.

    A run of words without times shares the pause between the word before and the word after it,
    in proportion to the words' lengths. Before the first and after the last known word there is no
    pause to share: those words take the nearest known time and no duration.

    Parameters
    ----------
    words : the words, n (their lengths matter, nothing else).
    onset, offset : seconds, shape (n,); a word is known when both are finite.
    """
    starts = np.array(onset, dtype=np.float64)
    ends = np.array(offset, dtype=np.float64)
    known = np.isfinite(starts) & np.isfinite(ends)
    if not known.any():
        return np.full_like(starts, np.nan), np.full_like(ends, np.nan)
    steps = np.diff(np.concatenate([[1], known.astype(int), [1]]))
    firsts, lasts = np.flatnonzero(steps == -1).tolist(), np.flatnonzero(steps == 1).tolist()
    for first, last in zip(firsts, lasts, strict=True):
        low = ends[first - 1] if first else starts[last]
        high = starts[last] if last < len(starts) else low
        edges = spread(low, max(low, high), [normalised(word) for word in words[first:last]])
        starts[first:last], ends[first:last] = edges[:-1], edges[1:]
    return starts, ends


def repair_times(
    onset: ArrayLike, offset: ArrayLike, *, where: str = "the table"
) -> tuple[Floats, Floats, tuple[str, ...]]:
    """Times that never go backwards.

    Onsets outside the longest non-decreasing subsequence (so the fewest possible) become NaN, with
    their offsets, to be interpolated. An offset after the next word's onset is cut to that onset.

    Parameters
    ----------
    onset, offset : seconds, shape (n,), NaN where unknown.
    where : the file, for messages.

    Returns
    -------
    onset, offset : the repaired times.
    notes : what was done, in sentences; empty when nothing was.

    Raises
    ------
    DataError : a word ends before it starts, or more than 5 % of the onsets go backwards.
    """
    starts = np.array(onset, dtype=np.float64)
    ends = np.array(offset, dtype=np.float64)
    wrong = np.flatnonzero(ends < starts)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{where}, row {row + 1}: the word ends at {ends[row]:g} s before it starts at "
            f"{starts[row]:g} s; are the onset and offset columns exchanged? Set columns=."
        )
    notes = []
    known = np.flatnonzero(np.isfinite(starts))
    kept = known[_longest_rise(starts[known])]
    out_of_order = np.setdiff1d(known, kept)
    if len(out_of_order) > MAX_BACKWARDS * len(known):
        falls = np.flatnonzero(np.diff(starts[known]) < 0)
        row = int(known[falls[0] + 1])
        raise DataError(
            f"{where}, row {row + 1}: time goes backwards, from {starts[known[falls[0]]]:g} s to "
            f"{starts[row]:g} s, and {len(out_of_order)} of {len(known)} words are out of order; "
            "sort the table by onset, or load one speaker or one part at a time."
        )
    if len(out_of_order):
        starts[out_of_order] = ends[out_of_order] = np.nan
        notes.append(
            f"{plural(len(out_of_order), 'onset')} went backwards and "
            f"{'was' if len(out_of_order) == 1 else 'were'} interpolated."
        )
    ordered = np.flatnonzero(np.isfinite(starts))
    following = np.append(starts[ordered][1:], np.inf)
    overlap = ends[ordered] > following
    if overlap.any():
        ends[ordered[overlap]] = following[overlap]
        notes.append(
            f"{plural(int(overlap.sum()), 'offset')} after the next word's onset "
            f"{'was' if overlap.sum() == 1 else 'were'} cut to it."
        )
    return starts, ends, tuple(notes)


def _longest_rise(values: Floats) -> NDArray[np.int64]:
    """Places of a longest non-decreasing subsequence (patience sorting)."""
    tails: list[float] = []
    at: list[int] = []
    before = np.full(len(values), -1, dtype=np.int64)
    for i, value in enumerate(values.tolist()):
        length = bisect_right(tails, value)
        before[i] = at[length - 1] if length else -1
        if length == len(tails):
            tails.append(value)
            at.append(i)
        else:
            tails[length], at[length] = value, i
    places = []
    place = at[-1] if at else -1
    while place >= 0:
        places.append(place)
        place = int(before[place])
    return np.array(places[::-1], dtype=np.int64)
