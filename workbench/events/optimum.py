"""Refinement `O`: the cut with the highest modularity of all, by dynamic programming.

Newman's modularity of a cut is a sum over its events, Q = Σ_e within_e / W − (degree_e / W)², so
the best cut of the first b positions is the best cut of some a < b followed by the event [a, b).
EM-LLM's refinement moves one boundary after the other; the optimum says how much that leaves.
(Jackson et al. 2005 give the dynamic programme for any score that adds up over the parts.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workbench.core.blocksums import total_weight
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph

__all__ = ["UNLIMITED", "optimal_boundaries"]

UNLIMITED = 8192
"""Most positions that are cut without a largest event: every pair of them is an event then."""

_ENDS = 256  # ends of events whose gains exist at once
_TABLE_BYTES = 2**32


def optimal_boundaries(
    graph: KeyGraph,
    *,
    n_events: int | None = None,
    at_most: int | None = None,
    min_size: int = 8,
    max_size: int | None = 128,
    last_size: int | None = None,
) -> Boundaries:
    """The cut into events that has the highest modularity of all.

    Parameters
    ----------
    graph : key-similarity graph; of several heads the weights are added, as in refinement.
    n_events : exactly so many events.
    at_most : at most so many events, the best number of them. Neither: any number.
    min_size, max_size : positions per event. max_size=None sets no limit, for up to 8,192
        positions.
    last_size : fewest positions of the last event, which the end of the text may have cut off;
        None: min_size.

    Returns
    -------
    Boundaries (unit "token") with `settings`: n_events and at_most as asked for, the sizes, and
    `modularity` ("newman"). Of cuts that are equally good to the last bit, the one whose last
    events are longest.

    Raises
    ------
    InputError : sizes and counts that no cut has, a total weight too near zero for modularity, or
        more than 8,192 positions without a maximum.

    Notes
    -----
    Time is O(n·(max_size·(d + k) + d)) and memory beside the graph O(n·k) for k events (k = 1
    where their number is free). The gain of an event is formed from what its sum of keys has
    perpendicular to the sum of all keys, within − degree²/W = ‖S − (S·T/‖T‖²) T‖², with sums
    taken from a position near by: no large numbers cancel.
    """
    n = graph.n
    final = min(min_size if last_size is None else last_size, n)
    _check(n, n_events, at_most, min_size, max_size, final)
    prefix = graph.prefix.reshape(n + 1, -1)
    norms = graph.norms.sum(axis=1)
    if np.isnan(total_weight(prefix[-1], norms[-1], graph.diagonal)):
        raise InputError(
            "the total weight of the graph is at most 1e-9 of the keys' squared lengths, so "
            "modularity is not defined; keep the diagonal, or take other layers or heads."
        )
    longest = n if max_size is None else min(max_size, n)
    gains = _gains(prefix, norms, graph.diagonal, longest)
    wanted = n_events if n_events is not None else at_most
    if wanted is None or (at_most is not None and _no_bound(at_most, n, min_size)):
        starts = _any_number(gains, n, min_size, longest, final)
    else:
        starts = _counted(gains, n, min_size, longest, final, wanted, n_events is not None)
    found = Boundaries(starts, n, method="O")
    settings = {
        "n_events": n_events if n_events is None else int(n_events),
        "at_most": at_most if at_most is None else int(at_most),
        "min_size": int(min_size),
        "max_size": max_size if max_size is None else int(max_size),
        "last_size": int(final),
        "modularity": float(graph.summed().modularity(found)),
    }
    return found.with_(settings=settings)


def _check(
    n: int,
    n_events: int | None,
    at_most: int | None,
    min_size: int,
    max_size: int | None,
    last_size: int,
) -> None:
    from workbench.events.sizes import check_sizes

    check_sizes(min_size, max_size)
    if not 1 <= last_size <= min_size:
        raise InputError(f"last_size={last_size} must lie between 1 and min_size={min_size}.")
    fewest = 1 if max_size is None else math.ceil(n / max_size)
    if (fewest - 1) * min_size + last_size > n:
        raise InputError(
            f"no number of events of {min_size} to {max_size} positions covers {n}; lower min_size "
            "or last_size, or raise max_size."
        )
    if n_events is not None and at_most is not None:
        raise InputError("give n_events (exactly so many) or at_most, not both.")
    for name, count in (("n_events", n_events), ("at_most", at_most)):
        if count is None:
            continue
        if count < 1 or count != int(count):
            raise InputError(f"{name}={count} must be a whole number of at least 1.")
        if count < fewest:
            raise InputError(
                f"{name}={count} events of at most max_size={max_size} cannot cover {n} "
                f"positions; it takes at least {fewest}, or a larger max_size."
            )
        if name == "n_events" and (count - 1) * min_size + last_size > n:
            raise InputError(
                f"n_events={count} events of at least min_size={min_size} do not fit into {n} "
                "positions; lower one of the two."
            )
        needed = 12 * count * (n + 1)
        if needed > _TABLE_BYTES and not (name == "at_most" and _no_bound(count, n, min_size)):
            raise InputError(
                f"{name}={count} over {n} positions needs a table of {needed / 1e9:.1f} GB; leave "
                "the number of events free, or cut a shorter text."
            )
    if max_size is None and n > UNLIMITED:
        raise InputError(
            f"without max_size every pair of the {n} positions is an event: {n * (n + 1) // 2:,} "
            f"gains ({4e-9 * n * (n + 1):.1f} GB). Give a max_size (128), or at most {UNLIMITED:,} "
            "positions."
        )


def _no_bound(at_most: int, n: int, min_size: int) -> bool:
    """Whether no cut has more events than that anyway."""
    return at_most * min_size >= n + min_size


_Block = tuple[int, int, NDArray[np.float64]]


def _gains(
    prefix: NDArray[np.float64], norms: NDArray[np.float64], diagonal: bool, longest: int
) -> Iterator[_Block]:
    """What each event adds to modularity, by blocks of ends in increasing order.

    Yields
    ------
    first end, first start, and the gains (ends, starts) of the events [start, end); those with
    start ≥ end are meaningless.
    """
    n = len(prefix) - 1
    vector = prefix[-1]
    raw = float(vector @ vector)
    whole = _perpendicular(prefix, vector, raw) if longest == n else None
    for first in range(1, n + 1, _ENDS):
        stop = min(n + 1, first + _ENDS)
        low = max(0, first - longest)
        if whole is not None:
            rows, along, squares = (part[low:stop] for part in whole)
        else:
            rows, along, squares = _perpendicular(prefix[low:stop], vector, raw)
        ends = slice(first - low, stop - low)
        energy = rows[ends] @ rows.T
        energy *= -2
        energy += squares[ends, None]
        energy += squares[None, :]
        np.maximum(energy, 0, out=energy)
        if diagonal:
            energy /= raw
            yield first, low, energy
            continue
        # within/W − (degree/W)² less the diagonal weights of all three, multiplied out so that
        # the large terms cancel on paper
        norm = float(norms[-1])
        total = raw - norm
        volume = along[ends, None] - along[None, :]
        own = norms[low:stop][ends, None] - norms[low:stop][None, :]
        gain = energy * total - norm * volume**2 / raw - own * total + 2 * volume * own - own**2
        yield first, low, gain / total**2


def _perpendicular(
    prefix: NDArray[np.float64], vector: NDArray[np.float64], raw: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Of each row, counted from the middle one: the part perpendicular to `vector`, the product
    with it, and the squared length of that part.
    """
    rows = prefix - prefix[len(prefix) // 2]
    along = rows @ vector
    rows -= np.multiply.outer(along / raw, vector)
    return rows, along, np.einsum("td,td->t", rows, rows)


def _any_number(gains: Iterator[_Block], n: int, least: int, longest: int, final: int) -> list[int]:
    best = np.full(n + 1, -np.inf)
    best[0] = 0.0
    before = np.zeros(n + 1, dtype=np.int64)
    for first, low, block in gains:
        for end, row in enumerate(block, first):
            start, stop = _starts(end, final if end == n else least, longest)
            if start < stop:
                scores = best[start:stop] + row[start - low : stop - low]
                place = int(scores.argmax())
                best[end], before[end] = scores[place], start + place
    starts, end = [], n
    while end > 0:
        end = int(before[end])
        starts.append(end)
    return starts[::-1]


def _counted(
    gains: Iterator[_Block], n: int, least: int, longest: int, final: int, k: int, exactly: bool
) -> list[int]:
    # row j: the best cut into j + 1 events of the positions before the column
    best = np.full((k, n + 1), -np.inf)
    before = np.zeros((k, n + 1), dtype=np.int32)
    for first, low, block in gains:
        for end, row in enumerate(block, first):
            start, stop = _starts(end, final if end == n else least, longest)
            if start >= stop:
                continue
            values = row[start - low : stop - low]
            if start == 0:
                best[0, end] = values[0]
            # j events before this one cover at most j·longest and at least j·least positions
            fewest, most = max(1, -(-start // longest)), min(k - 1, (stop - 1) // least)
            if fewest > most:
                continue
            scores = best[fewest - 1 : most, start:stop] + values
            places = scores.argmax(axis=1)
            rows = slice(fewest, most + 1)
            best[rows, end] = scores[np.arange(len(places)), places]
            before[rows, end] = start + places
    last = k - 1 if exactly else int(best[:, n].argmax())
    starts, end = [], n
    for j in range(last, -1, -1):
        end = int(before[j, end])
        starts.append(end)
    return starts[::-1]


def _starts(end: int, least: int, longest: int) -> tuple[int, int]:
    """Starts [start, stop) that an event with this end can have."""
    return max(0, end - longest), end - least + 1
