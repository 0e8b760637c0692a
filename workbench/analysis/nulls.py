"""Random segmentations with the same number of events: what a method's cut is compared with.

Which null is used decides the conclusion (a method whose events are merely regular in length
differs from one null and not from another), so every one has a name and none is a default here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError

__all__ = [
    "NULLS",
    "lengths_degenerate",
    "null_min_size",
    "null_note",
    "null_starts",
]

NULLS = ("lengths", "uniform", "min_gap", "shift")


def null_starts(
    events: Boundaries,
    null: str,
    draws: int,
    rng: np.random.Generator,
    min_size: int = 8,
) -> NDArray[np.int64]:
    """Draw random segmentations with as many events as the given one.

    Parameters
    ----------
    events : the segmentation that is tested.
    null : which random segmentations count as equally likely:

        - "lengths": every order of the events' own lengths;
        - "uniform": every choice of boundary positions (EM-LLM's random segmentation);
        - "min_gap": every segmentation whose events have at least `null_min_size` positions;
        - "shift": every rotation of the boundaries around the n - 1 gaps, none included.
    draws : number of segmentations.
    rng : source of randomness.
    min_size : for "min_gap".

    Returns
    -------
    First positions of the events, shape (draws, n_events), increasing, column 0 all 0.
    """
    check_option("null", null, NULLS)
    if draws < 1:
        raise InputError(f"draws={draws} must be at least 1.")
    n_events = events.n_events
    starts = np.zeros((draws, n_events), dtype=np.int64)
    if n_events == 1:
        return starts
    if null == "lengths":
        orders = rng.permuted(np.tile(events.lengths, (draws, 1)), axis=1)
        starts[:, 1:] = np.cumsum(orders[:, :-1], axis=1)
    elif null == "shift":
        turns = rng.integers(events.n - 1, size=(draws, 1))
        starts[:, 1:] = np.sort((events.inner - 1 + turns) % (events.n - 1), axis=1) + 1
    else:
        least = 1 if null == "uniform" else null_min_size(events, min_size)
        starts[:, 1:] = _at_least(events.n, n_events, least, draws, rng)
    return starts


def null_min_size(events: Boundaries, min_size: int = 8) -> int:
    """Minimum event size that the null "min_gap" uses.

    It is `min_size`, or the length of the shortest event where that is less: the tested
    segmentation has to be one of those that the null can draw.
    """
    if min_size < 1:
        raise InputError(f"min_size={min_size} must be at least 1.")
    return min(min_size, int(events.lengths.min()))


def lengths_degenerate(events: Boundaries) -> bool:
    """True when the order of the lengths says nothing: use the null "shift" instead.

    That is so when all events but the last differ by at most one position and the last, which
    the end of the text may cut short, is no longer than that (fixed-length segmentation), and
    with fewer than three events.
    """
    body = events.lengths[:-1]
    if events.n_events < 3:
        return True
    last = int(events.lengths[-1])
    return bool(np.ptp(body) <= 1 and last <= body.min() + 1)


def null_note(events: Boundaries, null: str, min_size: int = 8) -> str:
    """What a reader of a result under this null has to know; empty where nothing is special."""
    check_option("null", null, NULLS)
    if events.n_events == 1:
        return "one event: every random segmentation is the same"
    if null == "min_gap":
        least = null_min_size(events, min_size)
        if least < min_size:
            return f"null min_gap: minimum size {least} (shortest event) instead of {min_size}"
    if null == "lengths" and lengths_degenerate(events):
        return "null lengths is degenerate: the events have (nearly) equal lengths"
    return ""


def _at_least(
    n: int, n_events: int, least: int, draws: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Inner boundaries of segmentations with events of at least `least`, all equally likely.

    After `least` positions per event, the rest is dealt out by stars and bars: each choice of
    n_events - 1 bars among rest + n_events - 1 places is one segmentation.
    """
    bars = n_events - 1
    places = n - n_events * least + bars
    chosen = np.empty((draws, bars), dtype=np.int64)
    for row in chosen:
        row[:] = rng.choice(places, size=bars, replace=False, shuffle=False)
    chosen.sort(axis=1)
    # the i-th bar has `bar - i` stars before it, and i + 1 events of at least `least`
    step = np.arange(bars)
    return chosen - step + least * (step + 1)
