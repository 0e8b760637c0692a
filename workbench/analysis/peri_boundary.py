"""A word measure around boundaries, against the same around other sentence starts.

People put boundaries between sentences, and the first words of sentences are hard to predict
anyway. So the question is whether a measure is higher at boundaries than at sentence starts
without one: the null permutes which sentence starts are boundaries.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.core.errors import InputError

__all__ = ["around", "peri_boundary"]


def around(
    values: ArrayLike, places: ArrayLike, before: int = 8, after: int = 8
) -> NDArray[np.float64]:
    """Values from `before` words before each place to `after` words after it.

    Shape (n_places, before + 1 + after); NaN beyond the ends of the text.
    """
    series = np.asarray(values, dtype=np.float64)
    middle = np.asarray(places, dtype=np.int64)
    if before < 0 or after < 0:
        raise InputError(f"before={before}, after={after}: give numbers of words, 0 or more.")
    if len(middle) and (middle.min() < 0 or middle.max() >= len(series)):
        raise InputError(f"places must be words 0 ... {len(series) - 1}.")
    index = middle[:, None] + np.arange(-before, after + 1)[None, :]
    inside = (index >= 0) & (index < len(series))
    return np.where(inside, series[np.where(inside, index, 0)], np.nan)


def peri_boundary(
    values: ArrayLike,
    boundaries: ArrayLike,
    candidates: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    before: int = 8,
    after: int = 8,
    draws: int = 5000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Average of a word measure around boundaries, with its null.

    Parameters
    ----------
    values : (n_words,), the measure; NaN is left out.
    boundaries : words at which an event starts; each must be a candidate.
    candidates : words that could have been one (sentence starts, for the matched null; all
        words, for the naive one).
    groups : a label per word, shape (n_words,): stories that were put one after the other. The
        null then permutes, and the bootstrap resamples, within each. Between two stories there
        must be as many NaN as words are shown on a side, or one's words count for the other.
    before, after : words shown on either side.
    draws : random choices of as many candidates, without replacement.
    level : coverage of the intervals.
    seed : of the draws and the bootstrap.

    Returns
    -------
    One row per offset in words (0: the first word of an event): `offset`, `mean`; `low`, `high`:
    bootstrap over boundaries; `null_mean`, `null_low`, `null_high`: of the draws; `difference` =
    mean - null_mean; `p`: two-sided, share of draws at least as far from the null's mean, the
    data counted among them, not corrected for the number of offsets; `p_any`: the same for the
    largest standardised distance over all offsets (corrected for looking at all of them);
    `n` boundaries.

    Raises
    ------
    InputError : fewer than two boundaries, or one that is no candidate; as many boundaries as
        candidates.
    """
    starts = np.unique(np.asarray(boundaries, dtype=np.int64))
    pool = np.unique(np.asarray(candidates, dtype=np.int64))
    if len(starts) < 2:
        raise InputError(f"{len(starts)} boundaries; an average with an interval needs two.")
    if not np.isin(starts, pool).all():
        strange = int(starts[~np.isin(starts, pool)][0])
        raise InputError(f"boundary at word {strange} is none of the candidates.")
    if len(starts) == len(pool):
        raise InputError("every candidate is a boundary; there is nothing to compare with.")
    rng = np.random.default_rng(seed)
    every = around(values, pool, before, after)
    is_own = np.isin(pool, starts)
    own = every[is_own]
    mean = _means(np.ones((1, len(own))), own)[0]

    of_pool = np.zeros(len(pool), dtype=np.int64)
    if groups is not None:
        _, labels = np.unique(np.asarray(groups), return_inverse=True)
        if len(labels) != len(np.asarray(values)):
            raise InputError(f"groups names {len(labels)} words, values {len(np.asarray(values))}.")
        of_pool = labels[pool]
    chosen = np.zeros((draws, len(pool)))
    weights = np.zeros((draws, len(own)))
    for group in np.unique(of_pool):
        here = np.flatnonzero(of_pool == group)
        chosen[:, here] = rng.permuted(np.tile(is_own[here], (draws, 1)), axis=1)
        mine = np.flatnonzero(of_pool[is_own] == group)
        if len(mine):
            equal = np.full(len(mine), 1 / len(mine))
            weights[:, mine] = rng.multinomial(len(mine), equal, size=draws)
    null = _means(chosen, every)
    boot = _means(weights, own)

    tails = [(1 - level) / 2, (1 + level) / 2]
    with warnings.catch_warnings():
        # An offset beyond the ends of the text for every boundary stays NaN.
        warnings.filterwarnings("ignore", "All-NaN|Mean of empty|Degrees of freedom")
        low, high = np.nanquantile(boot, tails, axis=0)
        null_low, null_high = np.nanquantile(null, tails, axis=0)
        centre, spread = np.nanmean(null, axis=0), np.nanstd(null, axis=0)
    spread = np.where(spread > 0, spread, np.nan)
    far = np.abs(null - centre)
    data = np.abs(mean - centre)
    # A draw as far away as the data counts, also when the last digit says otherwise.
    p = (1 + (far >= data - 1e-12).sum(axis=0)) / (draws + 1)
    p = np.where(np.isfinite(data), p, np.nan)
    largest = np.fmax.reduce(far / spread, axis=1)
    most = np.fmax.reduce(data / spread)
    any_p = (1 + (largest >= most - 1e-12).sum()) / (draws + 1) if np.isfinite(most) else np.nan
    return pd.DataFrame(
        {
            "offset": np.arange(-before, after + 1),
            "mean": mean,
            "low": low,
            "high": high,
            "null_mean": centre,
            "null_low": null_low,
            "null_high": null_high,
            "difference": mean - centre,
            "p": p,
            "p_any": any_p,
            "n": len(starts),
        }
    )


def _means(weights: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weighted means of rows, NaN left out: (draws, rows) and (rows, offsets)."""
    known = np.isfinite(values)
    total = weights @ np.where(known, values, 0.0)
    count = weights @ known.astype(np.float64)
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
