"""Values against null distributions, bootstrap intervals, corrections for many tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.errors import InputError

__all__ = [
    "NullSummary",
    "benjamini_hochberg",
    "bootstrap_means",
    "compare_with_null",
    "percentile_interval",
]

_TIE = 1e-12  # draws this close to the value (relative) are the same number in another rounding
LEAST_BOOTSTRAP = 3  # values below which no interval is given


@dataclass(frozen=True)
class NullSummary:
    """A value beside its null distribution; every field has the shape of the value.

    Parameters
    ----------
    value : what was observed.
    mean, sd : of the null's draws (sd with ddof 1).
    difference : value - mean.
    z : difference / sd; NaN where the null does not vary.
    p : two-sided, 2·min over both tails of (1 + draws at least as extreme) / (1 + draws), at
        most 1 (Phipson & Smyth 2010).
    draws : draws that are defined; undefined ones (NaN) are left out of all the above.
    undefined : number of draws that are NaN.
    """

    value: NDArray[np.float64]
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    difference: NDArray[np.float64]
    z: NDArray[np.float64]
    p: NDArray[np.float64]
    draws: NDArray[np.int64]
    undefined: NDArray[np.int64]


def compare_with_null(value: ArrayLike, null: ArrayLike) -> NullSummary:
    """Summarise a value, or an array of them, against draws of a null.

    Parameters
    ----------
    value : shape (...); NaN where undefined, and then all that needs it is NaN.
    null : shape (draws, ...), NaN where a draw is undefined.

    Raises
    ------
    InputError : the shapes do not fit.
    """
    observed = np.asarray(value, dtype=np.float64)
    samples = np.asarray(null, dtype=np.float64)
    if samples.ndim == 0 or samples.shape[1:] != observed.shape:
        raise InputError(
            f"null draws of shape {samples.shape} do not fit values of shape {observed.shape}; "
            "the draws go along the first axis."
        )
    defined = ~np.isnan(samples)
    count = defined.sum(axis=0)
    kept = np.where(defined, samples, 0.0)
    mean = np.where(count > 0, kept.sum(axis=0) / np.maximum(count, 1), np.nan)
    spread = np.where(defined, samples - mean, 0.0)
    variance = (spread**2).sum(axis=0) / np.maximum(count - 1, 1)
    sd = np.where(count > 1, np.sqrt(variance), np.nan)
    scale = np.maximum(np.abs(kept).max(axis=0, initial=0.0), np.abs(observed))
    # a null without spread has an sd of rounding only
    sd = np.where(sd <= _TIE * scale, 0.0, sd)
    difference = observed - mean
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(sd > 0, difference / sd, np.nan)
    tie = _TIE * scale
    above = (defined & (samples >= observed - tie)).sum(axis=0)
    below = (defined & (samples <= observed + tie)).sum(axis=0)
    p = np.minimum(1.0, 2.0 * (1 + np.minimum(above, below)) / (count + 1))
    p = np.where((count > 0) & ~np.isnan(observed), p, np.nan)
    return NullSummary(observed, mean, sd, difference, z, p, count, len(samples) - count)


def percentile_interval(
    samples: ArrayLike, level: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Central interval of samples along the first axis, NaN left out.

    Parameters
    ----------
    samples : shape (draws, ...).
    level : share of the samples inside.

    Returns
    -------
    Lower and upper end, shape (...); NaN where no sample is defined.
    """
    if not 0 < level < 1:
        raise InputError(f"level={level} must be between 0 and 1.")
    values = np.asarray(samples, dtype=np.float64)
    tails = [(1 - level) / 2, (1 + level) / 2]
    if not np.isnan(values).any():
        low, high = np.quantile(values, tails, axis=0)
        return low, high
    columns = values.reshape(len(values), -1)
    ends = np.full((2, columns.shape[1]), np.nan)
    for i, column in enumerate(columns.T):
        finite = column[~np.isnan(column)]
        if len(finite):
            ends[:, i] = np.quantile(finite, tails)
    low, high = ends.reshape(2, *values.shape[1:])
    return low, high


def bootstrap_means(values: ArrayLike, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Means of values resampled with replacement along the first axis.

    Parameters
    ----------
    values : shape (k, ...); the same resample is used for all columns.
    draws : number of resamples.
    rng : source of randomness.

    Returns
    -------
    Shape (draws, ...); all NaN for fewer than three values, and NaN for a column with a NaN.
    """
    if draws < 1:
        raise InputError(f"draws={draws} must be at least 1.")
    items = np.asarray(values, dtype=np.float64)
    k = len(items)
    if k < LEAST_BOOTSTRAP:
        return np.full((draws, *items.shape[1:]), np.nan)
    counts = rng.multinomial(k, np.full(k, 1 / k), size=draws)
    means = counts @ items.reshape(k, -1) / k
    return means.reshape(draws, *items.shape[1:])


def benjamini_hochberg(p: ArrayLike) -> NDArray[np.float64]:
    """Correct p values for the false discovery rate; NaN stay NaN and are not counted."""
    from scipy.stats import false_discovery_control

    values = np.asarray(p, dtype=np.float64)
    corrected = np.full_like(values, np.nan)
    defined = ~np.isnan(values)
    if defined.any():
        corrected[defined] = false_discovery_control(values[defined], method="bh")
    return corrected
