"""Forward asymmetry of recall: several measures, each by name, with intervals and tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.recall.lag import LagCounter, crp
from workbench.analysis.recall.resampling import (
    bootstrap_weights,
    interval,
    permutation_summary,
    permuted_outputs,
)
from workbench.analysis.recall.sequences import Recalls, as_sequences
from workbench.core.checks import check_option
from workbench.core.errors import InputError

__all__ = ["MEASURES", "asymmetry", "asymmetry_of_curve"]

MEASURES = ("index", "ratio", "log_ratio", "difference", "forward_share")


def asymmetry_of_curve(
    lags: ArrayLike, values: ArrayLike, *, lag: int = 1, max_lag: int = 1
) -> dict[str, NDArray[np.float64]]:
    """Asymmetry of lag curves; no single measure is standard, so all are named.

    With f and b the values at +lag and -lag:

    - `index` (f - b) / (f + b): 0 symmetric, 1 purely forward
    - `ratio` f / b, and `log_ratio` ln(f / b)
    - `difference` f - b: for curves on a score (logit) scale this *is* the log ratio of the
      probabilities, in nats, and the other measures mean nothing
    - `forward_share`: sum over lags 1 ... max_lag over the sum over all |lag| <= max_lag, 0 left
      out

    Parameters
    ----------
    lags : (n_lags,).
    values : (..., n_lags) curves.
    lag : the lag of all but the share.
    max_lag : reach of the share.

    Returns
    -------
    Measure → array of the curves' leading shape; NaN where undefined (0/0, b = 0 for the ratio,
    either one 0 for its logarithm, negative values for all but the difference).
    """
    numbers = np.asarray(lags, dtype=np.int64)
    curves = np.asarray(values, dtype=np.float64)
    reach = max(lag, max_lag)
    if lag < 1 or max_lag < 1 or not {-reach, reach} <= set(numbers.tolist()):
        raise InputError(
            f"lags ±{reach} are needed for the asymmetry; the curve has "
            f"{numbers.min()} ... {numbers.max()}."
        )
    forward = curves[..., numbers == lag][..., 0]
    backward = curves[..., numbers == -lag][..., 0]
    right = curves[..., (numbers >= 1) & (numbers <= max_lag)].sum(axis=-1)
    left = curves[..., (numbers <= -1) & (numbers >= -max_lag)].sum(axis=-1)
    legal = (forward >= 0) & (backward >= 0)
    return {
        "index": _divide(forward - backward, forward + backward, legal),
        "ratio": _divide(forward, backward, legal),
        "log_ratio": _log_ratio(forward, backward, legal),
        "difference": forward - backward,
        "forward_share": _divide(right, right + left, legal & (right >= 0) & (left >= 0)),
    }


def asymmetry(
    recalls: Recalls,
    *,
    lag: int = 1,
    max_lag: int | None = None,
    average: str = "subjects",
    null: str = "reverse",
    draws: int = 1000,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Asymmetry of the lag-CRP of a group, with a permutation test and a participant bootstrap.

    Parameters
    ----------
    recalls : as in `lag_crp`.
    lag, max_lag : as in `asymmetry_of_curve`; max_lag None: the same as lag.
    average : what curve is measured: "subjects", the mean over subjects of their lag-CRPs, or
        "pooled", counts summed over subjects. (A ratio per subject is often undefined: many
        people never make some transition.)
    null : "reverse" (each list's order backwards with probability 1/2: contiguity without
        direction) or "shuffle" (recalled items in random order).
    draws : permutations; 0: no test.
    resamples : bootstrap samples of participants; 0: no interval.
    confidence : of the bootstrap percentile interval.
    seed : of permutations and bootstrap.

    Returns
    -------
    One row per measure: measure, lag, average, value, ci_low, ci_high, null, null_mean, null_sd,
    z, p (two-sided), n_subjects (those who have a curve), n_lists, seed. The interval is NaN for
    fewer than two subjects.
    """
    check_option("average", average, ("subjects", "pooled"))
    sequences = as_sequences(recalls)
    max_lag = lag if max_lag is None else max_lag
    reach = max(lag, max_lag)
    if reach >= sequences.max_length:
        raise InputError(
            f"lag {reach} does not exist in lists of at most {sequences.max_length} items."
        )
    counter = LagCounter(sequences, np.arange(-reach, reach + 1))
    combine = _mean_of_subjects if average == "subjects" else _ratio_of_sums
    ones = np.ones((1, counter.n_subjects), dtype=np.int64)

    def measures(
        counts: tuple[NDArray[np.int64], NDArray[np.int64]], weights: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        curve = combine(*counts, weights)
        curve[:, reach] = 0.0  # lag 0 has no value and takes no part
        return asymmetry_of_curve(counter.lags, curve, lag=lag, max_lag=max_lag)

    observed_counts = counter()
    # Whoever never had one of these lags to choose from has no curve, and is no sample of one.
    with_curve = observed_counts[1].sum(axis=1) > 0
    n_subjects = int(with_curve.sum())
    observed = measures(observed_counts, ones)
    nulls: dict[str, list[float]] = {name: [] for name in MEASURES}
    for outputs in permuted_outputs(sequences, null, draws, seed) if draws else ():
        for name, drawn in measures(counter(outputs), ones).items():
            nulls[name].append(float(drawn[0]))
    boot = None
    if resamples and n_subjects > 1:
        own = (observed_counts[0][with_curve], observed_counts[1][with_curve])
        boot = measures(own, bootstrap_weights(n_subjects, resamples, seed))
    rows = []
    for name in MEASURES:
        value = float(observed[name][0])
        low, high = interval(boot[name], confidence) if boot is not None else (np.nan, np.nan)
        rows.append(
            {
                "measure": name,
                "lag": max_lag if name == "forward_share" else lag,
                "average": average,
                "value": value,
                "ci_low": low,
                "ci_high": high,
                "null": null if draws else None,
                **permutation_summary(value, np.array(nulls[name])),
                "n_subjects": n_subjects,
                "n_lists": sequences.n_lists,
                "seed": seed,
            }
        )
    return pd.DataFrame(rows)


Combine = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]


def _mean_of_subjects(
    actual: NDArray[np.int64], possible: NDArray[np.int64], weights: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Weighted mean over subjects of their curves where they have a value, (draws, lags)."""
    curves = crp(actual, possible)
    defined = np.isfinite(curves)
    return _divide(weights @ np.where(defined, curves, 0.0), weights @ defined.astype(np.int64))


def _ratio_of_sums(
    actual: NDArray[np.int64], possible: NDArray[np.int64], weights: NDArray[np.int64]
) -> NDArray[np.float64]:
    return _divide(weights @ actual, weights @ possible)


def _divide(
    top: NDArray[np.float64] | NDArray[np.int64],
    bottom: NDArray[np.float64] | NDArray[np.int64],
    legal: NDArray[np.bool_] | bool = True,
) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(legal & (bottom != 0), top / np.where(bottom == 0, 1, bottom), np.nan)


def _log_ratio(
    forward: NDArray[np.float64], backward: NDArray[np.float64], legal: NDArray[np.bool_]
) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(forward) - np.log(backward)
    return np.where(legal & (forward > 0) & (backward > 0), ratio, np.nan)
