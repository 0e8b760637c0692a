"""Which windows stand before which: the readings of `distraction`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import DataError, InputError

__all__ = ["Reading", "current_windows", "places_of", "plan_readings"]


@dataclass(frozen=True)
class Reading:
    """d previous windows and the one that asks, each as (document, number of its window).

    Parameters
    ----------
    previous : in the order in which they are read.
    place : of the own document's window among them, from 0.
    current : C_curr; the own window is the one directly before it.
    """

    previous: tuple[tuple[int, int], ...]
    place: int
    current: tuple[int, int]


def current_windows(
    allowed: Sequence[NDArray[np.int64]], per_document: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """The windows that ask: up to `per_document` of each document, drawn without repeats.

    Parameters
    ----------
    allowed : of each document, the numbers of the windows that may ask (none is 0).
    """
    return [
        (document, int(window))
        for document, windows in enumerate(allowed)
        for window in np.sort(rng.permutation(windows)[:per_document])
    ]


def places_of(n: int, d: int, rng: np.random.Generator, orders: int = 1) -> NDArray[np.int64]:
    """Places 0 ... d - 1 of n own windows in each of `orders` orders, balanced, (n, orders).

    Each place comes ⌊m/d⌋ or ⌈m/d⌉ times in all m = n·orders readings; with fewer readings than
    places they are spread evenly over the places from a random start, so that each place is as
    likely as any other. A window's orders have neighbouring shares of the places: with d orders its
    own window stands once in each.
    """
    m = n * orders
    spread = np.floor((np.arange(m) + rng.random()) * d / m).astype(np.int64)
    shares = np.minimum(spread, d - 1).reshape(orders, n)
    return np.stack([rng.permutation(share) for share in shares], axis=1)


def plan_readings(
    n_windows: Sequence[int],
    current: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    *,
    orders: int = 1,
    bar_own: bool = True,
    seed: int = 0,
) -> dict[int, list[Reading]]:
    """Readings for each d; the same windows ask in all, and a larger d adds windows to a smaller.

    Parameters
    ----------
    n_windows : windows of each document.
    current : the windows that ask.
    sizes : the values of d.
    orders : in how many orders each window is read for each d, at most d of them.
    bar_own : no further window of the asking document stands among the d; False: it may, but
        never C_curr itself, and its previous window only once.
    seed : of draws and orders.

    Other windows come from as many other documents as there are: a document gives a second one
    only when each has given one.

    Raises
    ------
    DataError : there are not enough windows for the largest d.
    """
    largest = max(sizes)
    others = [
        _others(n_windows, one, largest - 1, bar_own, np.random.default_rng([seed, 1, number]))
        for number, one in enumerate(current)
    ]
    plans = {}
    for d in sizes:
        rng = np.random.default_rng([seed, 2, d])
        readings = []
        places = places_of(len(current), d, rng, min(orders, d))
        for (document, window), drawn, row in zip(current, others, places, strict=True):
            for place in row.tolist():
                order = [drawn[at] for at in rng.permutation(d - 1)]
                order.insert(place, (document, window - 1))
                readings.append(Reading(tuple(order), place, (document, window)))
        plans[d] = readings
    return plans


def _others(
    n_windows: Sequence[int],
    current: tuple[int, int],
    count: int,
    bar_own: bool,
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    own, window = current
    left = {
        document: list(rng.permutation(size))
        for document, size in enumerate(n_windows)
        if document != own or not bar_own
    }
    if own in left:
        left[own] = [number for number in left[own] if number not in (window - 1, window)]
    available = sum(map(len, left.values()))
    if available < count:
        kind = "windows of other documents" if bar_own else "other windows"
        raise DataError(
            f"d={count + 1} needs {count} {kind} beside document {own}, and there are {available}; "
            "give more or longer documents, a smaller window or a smaller d."
        )
    drawn: list[tuple[int, int]] = []
    while len(drawn) < count:
        for document in rng.permutation([name for name, windows in left.items() if windows]):
            drawn.append((int(document), int(left[int(document)].pop())))
    return drawn[:count]


def check_sizes(d: Sequence[int]) -> list[int]:
    """The values of d, increasing."""
    from workbench.core.checks import whole_number

    sizes = sorted({whole_number("d", one, 1) for one in d})
    if not sizes:
        raise InputError("d is empty; give numbers of previous windows, e.g. d=(1, 2, 4).")
    return sizes
