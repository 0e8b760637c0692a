"""Exponential fits of contiguity: how high, how wide, forward and backward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.recall.lag import LagCounter, crp
from workbench.analysis.recall.resampling import bootstrap_weights, interval
from workbench.analysis.recall.sequences import Recalls, as_sequences
from workbench.core.checks import check_option
from workbench.core.errors import DataError, InputError

__all__ = ["contiguity_fit", "fit_exponentials"]

_SCALES = np.geomspace(0.05, 50.0, 61)
"""Decay lengths (lags) searched before refinement: from a spike to a line."""


def fit_exponentials(lags: ArrayLike, values: ArrayLike, *, floor: bool = True) -> dict[str, float]:
    """Least-squares fit of p(lag) = c + a± · exp(-(|lag| - 1) / τ±), + for lag > 0, - for lag < 0.

    Amplitudes a and the floor c are at least 0; given both decay lengths the problem is linear,
    so the two decay lengths are searched on a grid (0.05 ... 50 lags) that is then refined.

    Parameters
    ----------
    lags : (n,) integers; lag 0 and NaN values are left out.
    values : (n,) probabilities.
    floor : False: c = 0.

    Returns
    -------
    `forward_amplitude`, `backward_amplitude` (height over the floor at |lag| 1),
    `forward_scale`, `backward_scale` (τ, lags), `forward_half_width`, `backward_half_width`
    (τ ln 2, lags), `floor`, `r2`. A scale is NaN where its amplitude is 0 (no contiguity to
    measure).

    Raises
    ------
    DataError : fewer than two lags on a side, or fewer points than parameters.
    """
    numbers = np.asarray(lags, dtype=np.float64)
    heights = np.asarray(values, dtype=np.float64)
    keep = (numbers != 0) & np.isfinite(heights)
    numbers, heights = numbers[keep], heights[keep]
    forward, backward = numbers > 0, numbers < 0
    wanted = 5 if floor else 4
    if min(forward.sum(), backward.sum()) < 2 or len(numbers) < wanted:
        raise DataError(
            f"{forward.sum()} forward and {backward.sum()} backward lags have a value; the fit "
            f"needs two on each side and {wanted} in all. Raise max_lag."
        )
    sides = [(np.abs(numbers[side]) - 1, heights[side]) for side in (forward, backward)]
    scales = [_SCALES, _SCALES]
    best = _best(sides, scales, floor)
    width = _SCALES[1] / _SCALES[0]
    for _ in range(8):  # each round searches a step to both sides, in thirds of it
        scales = [
            scale * np.geomspace(1 / width, width, 7) if amplitude > 0 else _SCALES[:1]
            for amplitude, scale in zip(best.amplitudes, best.scales)
        ]
        best = min(best, _best(sides, scales, floor), key=lambda found: found.error)
        width **= 1 / 3
    total = float(((heights - heights.mean()) ** 2).sum())
    tiny = 1e-9 * float(np.abs(heights).max())  # an amplitude of rounding errors has no length
    ahead, behind = (
        scale if amplitude > tiny else float("nan")
        for amplitude, scale in zip(best.amplitudes, best.scales)
    )
    return {
        "forward_amplitude": best.amplitudes[0],
        "backward_amplitude": best.amplitudes[1],
        "forward_scale": ahead,
        "backward_scale": behind,
        "forward_half_width": ahead * float(np.log(2)),
        "backward_half_width": behind * float(np.log(2)),
        "floor": best.floor,
        "r2": 1 - best.error / total if total > 0 else float("nan"),
    }


def contiguity_fit(
    recalls: Recalls,
    *,
    max_lag: int = 5,
    floor: bool = True,
    average: str = "subjects",
    resamples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Exponential fit of a group's lag-CRP, with intervals by a bootstrap over participants.

    Parameters
    ----------
    recalls : as in `lag_crp`.
    max_lag : the fit covers |lag| 1 ... max_lag. Small lags only: at the ends of a list's range
        the lag-CRP rises again, because few items remain there.
    floor : whether a constant is added (see `fit_exponentials`).
    average : "subjects" (mean of the subjects' curves) or "pooled" (summed counts).
    resamples : bootstrap samples; 0: no interval.
    confidence, seed : of the bootstrap.

    Returns
    -------
    One row per parameter: parameter, value, ci_low, ci_high, average, max_lag, n_subjects (who
    have a curve), seed.
    """
    check_option("average", average, ("subjects", "pooled"))
    sequences = as_sequences(recalls)
    if not 1 < max_lag < sequences.max_length:
        raise InputError(
            f"max_lag={max_lag} does not fit lists of at most {sequences.max_length} items; give "
            f"2 ... {sequences.max_length - 1}."
        )
    counter = LagCounter(sequences, np.arange(-max_lag, max_lag + 1))
    actual, possible = counter()
    with_curve = possible.sum(axis=1) > 0  # the others have no curve
    actual, possible = actual[with_curve], possible[with_curve]
    n_subjects = int(with_curve.sum())

    def curve(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        if average == "pooled":
            return crp(weights @ actual, weights @ possible)
        curves = crp(actual, possible)
        defined = np.isfinite(curves)
        sums = weights @ np.where(defined, curves, 0.0)
        counts = weights @ defined.astype(np.int64)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    observed = fit_exponentials(counter.lags, curve(np.ones(n_subjects, np.int64)), floor=floor)
    sampled: dict[str, list[float]] = {name: [] for name in observed}
    if n_subjects > 1:
        for weights in bootstrap_weights(n_subjects, resamples, seed):
            try:
                fitted = fit_exponentials(counter.lags, curve(weights), floor=floor)
            except DataError:  # a sample of participants without one of the lags
                continue
            for name, value in fitted.items():
                sampled[name].append(value)
    rows = []
    for name, value in observed.items():
        low, high = interval(np.array(sampled[name]), confidence)
        rows.append(
            {
                "parameter": name,
                "value": value,
                "ci_low": low,
                "ci_high": high,
                "average": average,
                "max_lag": max_lag,
                "n_subjects": n_subjects,
                "seed": seed,
            }
        )
    return pd.DataFrame(rows)


class _Fit(NamedTuple):
    error: float
    amplitudes: tuple[float, float]
    scales: tuple[float, float]
    floor: float


def _best(
    sides: list[tuple[NDArray[np.float64], NDArray[np.float64]]],
    scales: list[NDArray[np.float64]],
    floor: bool,
) -> _Fit:
    """Best legal fit over the grid of two decay lengths.

    The two exponentials share no lag, so that, with the floor c, each side is a linear regression
    of its own: eliminating the amplitude leaves for every decay length three sums (of the constant
    and the data, each without its part along the exponential), and the error of a pair of decay
    lengths follows from the sums of the two. Amplitude 0 is one more "decay length" per side.
    """
    parts = [_side(reach, heights, grid) for (reach, heights), grid in zip(sides, scales)]
    (one_f, mix_f, all_f, _, _), (one_b, mix_b, all_b, _, _) = parts
    one = one_f[:, None] + one_b[None, :]
    mix = mix_f[:, None] + mix_b[None, :]
    everything = all_f[:, None] + all_b[None, :]
    free = np.where(one > 1e-12, mix / np.maximum(one, 1e-12), 0.0)
    found: _Fit | None = None
    for level in (free, np.zeros_like(free)) if floor else (np.zeros_like(free),):
        error = everything - 2 * level * mix + level**2 * one
        # (e·y - c e·1) / e·e for each side; the last entry is the side without an exponential.
        ahead = parts[0][3][:, None] - level * parts[0][4][:, None]
        behind = parts[1][3][None, :] - level * parts[1][4][None, :]
        legal = (level >= 0) & (ahead >= 0) & (behind >= 0)
        error = np.where(legal, np.maximum(error, 0.0), np.inf)
        row, column = np.unravel_index(int(np.argmin(error)), error.shape)
        fit = _Fit(
            float(error[row, column]),
            (float(ahead[row, column]), float(behind[row, column])),
            (float(np.append(scales[0], 0.0)[row]), float(np.append(scales[1], 0.0)[column])),
            float(level[row, column]),
        )
        if found is None or fit.error < found.error:
            found = fit
    assert found is not None
    return found


def _side(
    reach: NDArray[np.float64], heights: NDArray[np.float64], grid: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    """Sums 1·1, 1·y, y·y off the exponential, and e·y / e·e, e·1 / e·e, per decay length."""
    shape = np.exp(-reach[None, :] / grid[:, None])
    norm = (shape**2).sum(axis=1)
    to_data, to_one = shape @ heights, shape.sum(axis=1)
    n = len(reach)
    off = [
        n - to_one**2 / norm,
        heights.sum() - to_one * to_data / norm,
        (heights**2).sum() - to_data**2 / norm,
    ]
    without = [float(n), heights.sum(), (heights**2).sum(), 0.0, 0.0]
    values = [*off, to_data / norm, to_one / norm]
    return tuple(np.append(value, last) for value, last in zip(values, without))
