"""Wasserstein distance between two sets of event boundaries (EM-LLM, Figure 4B, App. B.1).

Read no value of it alone: W1 rewards even spacing. On Pie Man, boundaries at equal distances,
placed without reading the story, come closer to people's consensus than the average listener
does. Nulls, matched fixed segmentation and the ceiling belong beside every number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from workbench.core.errors import InputError

__all__ = ["ABSENT", "EVEN_SPACING", "wasserstein", "wasserstein_many"]

ABSENT = -1
"""Fills the rows of an array of boundaries that have fewer boundaries than others."""

EVEN_SPACING = (
    "The Wasserstein distance alone rewards even spacing: read it beside its nulls, the matched "
    "fixed segmentation and the ceiling."
)
"""The caution that stands wherever a Wasserstein distance is shown."""

# A Gaussian is taken as 0 or 1 beyond 8 SD, where its tail is 6e-16.
_TAIL = 8.0
_COARSE = 8  # cells per SD of the first pass over the difference of the two CDFs
_FINE = 64  # cells into which one that may hold a change of sign is cut


def wasserstein(first: ArrayLike, second: ArrayLike, n: int, *, sigma: float = 0.0) -> float:
    """First Wasserstein distance between two sets of boundaries, as a share of the text.

    Every boundary carries the same weight, 1/k, so the two sets may differ in number. The
    positions are the values that are compared, not weights over positions (mixing up the two is
    the known trap of `scipy.stats.wasserstein_distance`). W1 rewards even spacing: see the head
    of this module.

    Parameters
    ----------
    first, second : positions of the boundaries (word numbers, without the start of the text at
        0), shapes (k,) and (m,), in any order.
    n : length of the text in the same unit; positions are divided by it.
    sigma : standard deviation, in the same unit as the positions, of the Gaussian that stands
        at every boundary (EM-LLM App. B.1 compares mixtures of Gaussians and does not say how
        wide they are). 0: the boundaries themselves. The Gaussians may reach beyond the ends of
        the text, so that moving both sets together changes nothing.

    Returns
    -------
    The distance in units of the whole text (0 ... 1). NaN when one of the sets is empty: there
    is nothing to move. With sigma > 0 the absolute error is below 1e-10.
    """
    left = np.asarray(first, dtype=np.float64).ravel()
    right = np.asarray(second, dtype=np.float64).ravel()
    _check(left, right, n, sigma)
    if len(left) == 0 or len(right) == 0:
        return float("nan")
    if sigma > 0:
        return _mixtures(left / sigma, right / sigma) * sigma / n
    return float(_quantiles(np.sort(left)[None, :], np.sort(right))[0]) / n


def wasserstein_many(
    draws: ArrayLike, reference: ArrayLike, n: int, *, sigma: float = 0.0
) -> NDArray[np.float64]:
    """`wasserstein` of many sets of boundaries (null draws, resamples) against one.

    Parameters
    ----------
    draws : positions, shape (draws, k), in any order; negative entries (`ABSENT`) are no
        boundaries, so that rows may differ in number.
    reference : positions, shape (m,).
    n, sigma : as in `wasserstein`.

    Returns
    -------
    Distances, shape (draws,); NaN for a row without boundaries, or where `reference` is empty.
    """
    rows = np.asarray(draws, dtype=np.float64)
    if rows.ndim != 2:
        raise InputError(f"draws must have the shape (draws, boundaries), not {rows.shape}.")
    fixed = np.sort(np.asarray(reference, dtype=np.float64).ravel())
    _check(rows.ravel(), fixed, n, sigma)
    result = np.full(len(rows), np.nan)
    if len(fixed) == 0:
        return result
    present = rows >= 0
    counts = present.sum(axis=1)
    ordered = np.sort(np.where(present, rows, np.inf), axis=1)
    for count in np.unique(counts[counts > 0]):
        chosen = np.flatnonzero(counts == count)
        positions = ordered[chosen, :count]
        if sigma > 0:
            scaled = [_mixtures(row / sigma, fixed / sigma) for row in positions]
            result[chosen] = np.array(scaled) * sigma / n
        else:
            result[chosen] = _quantiles(positions, fixed) / n
    return result


def _check(left: NDArray[np.float64], right: NDArray[np.float64], n: int, sigma: float) -> None:
    if n < 1:
        raise InputError(f"n={n}: the text must have at least one position.")
    if not np.isfinite(sigma) or sigma < 0:
        raise InputError(f"sigma={sigma}: give a standard deviation of 0 or more.")
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise InputError("boundary positions must be finite; leave out those without a position.")


def _quantiles(rows: NDArray[np.float64], fixed: NDArray[np.float64]) -> NDArray[np.float64]:
    """W1 = ∫|F⁻¹(u) − G⁻¹(u)| du of sorted rows (draws, k) and a sorted set (m,).

    Both quantile functions are steps, at multiples of 1/k and of 1/m; counted in units of
    1/(k·m) the steps are whole numbers, so no rounding can shift one.
    """
    k, m = rows.shape[1], len(fixed)
    steps = np.union1d(np.arange(k) * m, np.arange(m) * k)
    weights = np.diff(np.append(steps, k * m)) / (k * m)
    return np.asarray(np.abs(rows[:, steps // m] - fixed[steps // k]) @ weights)


def _mixtures(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """W1 = ∫|F(x) − G(x)| dx of two equal-weight mixtures of unit Gaussians at these means.

    A cell in which F − G keeps its sign is integrated in closed form. Where the sign changes, or
    may change twice unseen (F − G moves towards 0 at the left edge and away from it at the right
    one), the cell is cut into finer ones, and those with a change of sign are split at their
    linear root.
    """
    edges = _cells(left, right)
    difference, area, slope = _difference(edges, left, right)
    difference[np.abs(difference) < 1e-13] = 0.0  # the signs of rounding are no crossings
    low, high = difference[:-1], difference[1:]
    towards = (low * slope[:-1] < 0) & (high * slope[1:] > 0)
    # Wide cells lie beyond every tail, where F − G is constant.
    unsure = ((low * high < 0) | towards) & (np.diff(edges) < 1.5 / _COARSE)
    total = float(np.abs(np.diff(area))[~unsure].sum())
    if not unsure.any():
        return total
    shares = np.linspace(0.0, 1.0, _FINE + 1)
    fine = edges[:-1][unsure, None] + np.diff(edges)[unsure, None] * shares
    values, area, _ = _difference(fine, left, right)
    low, high = values[:, :-1], values[:, 1:]
    crosses = low * high < 0
    share = np.where(crosses, low / np.where(crosses, low - high, 1.0), 0.0)
    root = fine[:, :-1] + share * np.diff(fine, axis=1)
    middle = _difference(root, left, right)[1]
    return total + float((np.abs(middle - area[:, :-1]) + np.abs(area[:, 1:] - middle)).sum())


def _cells(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Edges of cells of 1/_COARSE wherever a Gaussian changes, one wide cell elsewhere."""
    centres = np.unique(np.concatenate([left, right]))
    origin = centres[0] - _TAIL
    first = np.floor((centres - _TAIL - origin) * _COARSE).astype(np.int64)
    last = np.ceil((centres + _TAIL - origin) * _COARSE).astype(np.int64)
    merged_last = np.maximum.accumulate(last)
    opens = np.append(True, first[1:] > merged_last[:-1])
    starts, stops = first[opens], merged_last[np.append(opens[1:], True)]
    numbers = [np.arange(a, b + 1) for a, b in zip(starts, stops, strict=True)]
    return np.asarray(origin + np.concatenate(numbers) / _COARSE)


def _difference(
    x: NDArray[np.float64], left: NDArray[np.float64], right: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """F − G of the two mixtures at x, its antiderivative and its derivative.

    For one Gaussian these are Φ(z), z·Φ(z) + φ(z) and φ(z).
    """
    weights = np.concatenate(
        [np.full(len(left), 1.0 / len(left)), np.full(len(right), -1.0 / len(right))]
    )
    z = x[..., None] - np.concatenate([left, right])
    below, density = ndtr(z), np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    return below @ weights, (z * below + density) @ weights, density @ weights
