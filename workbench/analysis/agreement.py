"""How much the cuts of different layers, heads or methods agree."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.nulls import lengths_degenerate, null_note, null_starts
from workbench.analysis.statistics import compare_with_null
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AGREEMENT",
    "adjusted_rand",
    "boundary_overlap",
    "layer_agreement",
    "normalised_mutual_information",
]

AGREEMENT = ("adjusted_rand", "normalised_mutual_information", "boundary_overlap")

Ints = NDArray[np.int64]


def adjusted_rand(one: ArrayLike, other: ArrayLike, n: int) -> float:
    """Adjusted Rand index of two cuts of n positions into contiguous events.

    Parameters
    ----------
    one, other : first positions of the events, increasing, first 0.
    n : number of positions.

    scikit-learn's `adjusted_rand_score` of the labels (Hubert & Arabie 1985), from the lengths of
    the pieces that both cuts make together, without a table of labels. Its 0 is chance for labels
    that need not be contiguous; random contiguous cuts score far above 0, so read it beside a null.
    """
    own, others, both = _lengths(one, other, n)
    pairs = n * (n - 1) / 2
    together, first, second = (float((x * (x - 1) / 2).sum()) for x in (both, own, others))
    expected = first * second / pairs if pairs else 0.0
    most = (first + second) / 2
    return 1.0 if most == expected else (together - expected) / (most - expected)


def normalised_mutual_information(one: ArrayLike, other: ArrayLike, n: int) -> float:
    """Mutual information of two cuts over the mean of their entropies; arguments as above.

    scikit-learn's `normalized_mutual_info_score` of the labels. It grows with the number of events
    by chance alone: read it beside a null.
    """
    own, others, both = _lengths(one, other, n)
    first, second, joint = (float(-(p * np.log(p)).sum()) for p in (own / n, others / n, both / n))
    if first + second == 0:
        return 1.0  # both are one event
    return max(0.0, 2 * (first + second - joint) / (first + second))


def boundary_overlap(one: ArrayLike, other: ArrayLike, tolerance: int = 0) -> float:
    """2 · matches / (boundaries of both): matches pair each boundary at most once.

    Parameters
    ----------
    one, other : first positions of the events, or only the boundaries; 0 is left out.
    tolerance : positions that two matched boundaries may lie apart.

    Returns
    -------
    In 0 ... 1 (an F score); NaN where neither cut has a boundary.
    """
    a, b = (np.asarray(x, dtype=np.int64) for x in (one, other))
    first, second = a[a > 0].tolist(), b[b > 0].tolist()
    if not first and not second:
        return float("nan")
    matches = i = j = 0
    # Taking the first possible pair never makes a later one impossible that is not made up for.
    while i < len(first) and j < len(second):
        if abs(first[i] - second[j]) <= tolerance:
            matches, i, j = matches + 1, i + 1, j + 1
        elif first[i] < second[j]:
            i += 1
        else:
            j += 1
    return 2 * matches / (len(first) + len(second))


def layer_agreement(
    cuts: Mapping[Any, Boundaries],
    *,
    tolerance: int = 3,
    null: str = "lengths",
    draws: int = 200,
    seed: int = 0,
    min_size: int = 8,
) -> pd.DataFrame:
    """Agreement of every pair of cuts of the same text, beside random cuts with as many events.

    Parameters
    ----------
    cuts : by layer or by (layer, head), as `segment(..., per="layer")` gives them, or by any name
        (method codes).
    tolerance : positions that two matched boundaries may lie apart.
    null : random cuts that take the place of the second one of a pair, see `null_starts`; "shift"
        is used where "lengths" says nothing.
    draws, seed, min_size : number of random cuts, seed, and the size for null "min_gap".

    Returns
    -------
    One row per pair and measure. Columns: a, b (the keys), n_a, n_b (events), measure
    (`AGREEMENT`), tolerance (NaN where it has no meaning), value, null, null_mean, null_sd,
    difference (value − null_mean), z, p (two-sided, of the draws), note.

    Raises
    ------
    InputError : fewer than two cuts, or cuts of different sequences.
    """
    import pandas as pd

    items: list[tuple[Hashable, Boundaries]] = list(cuts.items())
    if len(items) < 2:
        raise InputError(f"agreement needs at least two cuts, not {len(items)}.")
    n, unit = items[0][1].n, items[0][1].unit
    for key, cut in items:
        if (cut.n, cut.unit) != (n, unit):
            raise InputError(
                f"cut {key!r} is over {cut.n} {cut.unit}s, cut {items[0][0]!r} over {n} {unit}s; "
                "agreement is of cuts of one text."
            )
    if tolerance < 0:
        raise InputError(f"tolerance={tolerance} must be at least 0.")
    rows = []
    for place, ((a, one), (b, other)) in enumerate(combinations(items, 2)):
        used, note = null, null_note(other, null, min_size)
        if null == "lengths" and lengths_degenerate(other) and other.n_events > 1:
            used, note = "shift", "null shift, since the events' lengths are all alike"
        rng = np.random.default_rng([seed, place])
        starts = null_starts(other, used, draws, rng, min_size)
        observed = np.array([_measured(one.starts, other.starts, n, tolerance)])
        drawn = np.array([_measured(one.starts, random, n, tolerance) for random in starts])
        against = compare_with_null(observed[0], drawn)
        for i, measure in enumerate(AGREEMENT):
            rows.append(
                {
                    "a": a,
                    "b": b,
                    "n_a": one.n_events,
                    "n_b": other.n_events,
                    "measure": measure,
                    "tolerance": tolerance if measure == "boundary_overlap" else np.nan,
                    "value": against.value[i],
                    "null": used,
                    "null_mean": against.mean[i],
                    "null_sd": against.sd[i],
                    "difference": against.difference[i],
                    "z": against.z[i],
                    "p": against.p[i],
                    "note": note,
                }
            )
    return pd.DataFrame(rows)


def _measured(one: Ints, other: Ints, n: int, tolerance: int) -> list[float]:
    return [
        adjusted_rand(one, other, n),
        normalised_mutual_information(one, other, n),
        boundary_overlap(one, other, tolerance),
    ]


def _lengths(
    one: ArrayLike, other: ArrayLike, n: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Lengths of the events of both cuts, and of the pieces that they make together."""
    a, b = (np.asarray(x, dtype=np.int64) for x in (one, other))
    pieces = np.union1d(a, b)
    own, others, both = (np.diff(x, append=n).astype(np.float64) for x in (a, b, pieces))
    return own, others, both
