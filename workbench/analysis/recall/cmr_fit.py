"""How CMR-like a lag curve is: grid fit, distance, nulls and a Gaussian baseline."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from workbench.analysis.recall.cmr import PARAMETRISATIONS, cmr_grid, convert_beta
from workbench.core.checks import check_option
from workbench.core.errors import DataError, InputError

__all__ = [
    "FIT_NULLS",
    "best_distance",
    "cmr_distance",
    "fit_cmr",
    "gaussian_distance",
    "null_distances",
]

FIT_NULLS = ("permuted", "random_walk")

_CHUNK = 128
"""Curves compared with the whole grid at a time."""


def cmr_distance(curves: ArrayLike, models: ArrayLike) -> NDArray[np.float64]:
    """Distance D of every curve to every model curve (Ji-An et al. 2024), shape (n, m).

    a' = a - min a; p' = (p - min p) · max a' / max(p - min p); D = mean((p' - a')²) / var(a').
    D is 0 for the same shape and does not change when either curve is shifted or stretched; a
    curve's own mean is at distance 1 or more. NaN for constant curves, which have no shape.

    Parameters
    ----------
    curves : (n, n_lags).
    models : (m, n_lags), on the same lags.
    """
    shape, variance = _shifted(np.asarray(curves, dtype=np.float64))
    templates = _templates(np.asarray(models, dtype=np.float64))
    top = shape.max(axis=1, keepdims=True)
    n_lags = shape.shape[1]
    squares = (templates**2).mean(axis=1)[None, :]
    # mean((m f - a')²) = m² mean(f²) - 2 m mean(f a') + mean(a'²), f the template scaled to 0 ... 1
    total = top * (top * squares - 2 * (shape @ templates.T) / n_lags)
    total += (shape**2).mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.maximum(total, 0.0) / variance[:, None]


def fit_cmr(
    curves: ArrayLike,
    lags: ArrayLike | None = None,
    *,
    max_lag: int = 5,
    parametrisation: str = "icl-cmr",
    draws: int = 200,
    recalls: int = 100,
    seed: int = 0,
) -> pd.DataFrame:
    """Fit CMR to lag curves on the grid of Ji-An et al. (2024), with nulls for the distance.

    A distance below 0.5 ("CMR-like" in the paper) is reached by 15 % of random walks over 11 lags
    (20,000 drawn), and by a straight line (0.42): read it beside its nulls. CMR with β_rec = 0
    peaks at lag 0, so that heads that attend to the same token fit well; they are flagged. On
    probabilities and on raw scores the fitted parameters differ a lot: say which the curves were.
    The model recalls with replacement: fitted to people's lag-CRP its parameters only describe a
    shape (`rho_cmr` models people).

    Parameters
    ----------
    curves : (n_lags,) or (n, n_lags), on any scale. NaN lags (people have no lag 0) are left out
        of that curve's fit.
    lags : (n_lags,) integers; None: symmetric about 0.
    max_lag : the fit covers |lag| <= max_lag.
    parametrisation : of the parameters in the table, "icl-cmr" or "rho-cmr".
    draws : curves per null; 0: no null.
    recalls : of the model (see `cmr_crp`).
    seed : of the nulls.

    Returns
    -------
    One row per curve: distance, beta_enc, beta_rec, gamma, parametrisation, inverse_temperature
    (scale of the curve over that of the model), peak_lag, lag0_peak (True: the curve or its fit
    peaks at lag 0), gaussian_distance (a + b exp(-(lag - μ)²/2s²), four parameters),
    permuted_percentile and random_walk_percentile (share of null curves, 0 ... 1, that come at
    least as near to CMR: the curve's own values at permuted lags; sums of independent steps).
    All NaN for a constant curve.

    Raises
    ------
    InputError : shapes do not fit; fewer than four lags in reach.
    DataError : an infinite value.
    """
    check_option("parametrisation", parametrisation, PARAMETRISATIONS)
    values, numbers = _as_curves(curves, lags)
    reach = np.abs(numbers) <= max_lag
    values, numbers = values[:, reach], numbers[reach]
    # A curve without an own value has the full set of lags; what it has is fitted on its own grid.
    masks = np.isfinite(values)
    table = pd.DataFrame(index=range(len(values)), columns=_COLUMNS, dtype=np.float64)
    table["lag0_peak"] = False
    for mask in np.unique(masks, axis=0):
        rows = np.flatnonzero((masks == mask).all(axis=1))
        if mask.sum() < 4:
            raise InputError(
                f"curve {rows[0]} has {int(mask.sum())} lags with a value within ±{max_lag}; the "
                "fit of three parameters needs at least four."
            )
        part = _fit(values[rows][:, mask], numbers[mask], recalls, draws, seed)
        for column in part:
            table.loc[rows, column] = part[column]
    table["peak_lag"] = table["peak_lag"].astype("Int64")
    if parametrisation == "rho-cmr":
        table["beta_enc"] = convert_beta(table["beta_enc"], "encoding")
        table["beta_rec"] = convert_beta(table["beta_rec"], "recall")
    table.insert(4, "parametrisation", parametrisation)
    return table


_COLUMNS = (
    "distance",
    "beta_enc",
    "beta_rec",
    "gamma",
    "inverse_temperature",
    "peak_lag",
    "lag0_peak",
    "gaussian_distance",
    "permuted_percentile",
    "random_walk_percentile",
)


def best_distance(curves: ArrayLike, lags: ArrayLike, *, recalls: int = 100) -> NDArray[np.float64]:
    """Distance of each curve to the nearest node of CMR's grid, and nothing else, shape (n,).

    Parameters
    ----------
    curves : (n, n_lags), every lag with a value; lags : (n_lags,) integers.
    """
    values, numbers = _as_curves(curves, lags)
    return _nearest(values, numbers, recalls)[0]


def null_distances(
    null: str,
    lags: ArrayLike,
    draws: int,
    *,
    curve: ArrayLike | None = None,
    recalls: int = 100,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Best distances to CMR of curves that have no contiguity, shape (draws,).

    Parameters
    ----------
    null : "permuted" (the values of `curve` at permuted lags) or "random_walk" (running sums of
        independent normal steps over the lags: smooth, and without meaning).
    lags : (n_lags,) integers.
    curve : (n_lags,), needed for "permuted".
    """
    check_option("null", null, FIT_NULLS)
    numbers = np.asarray(lags, dtype=np.int64)
    rng = np.random.default_rng(seed)
    if null == "random_walk":
        sample = rng.standard_normal((draws, len(numbers))).cumsum(axis=1)
    else:
        if curve is None:
            raise InputError("the null 'permuted' needs the curve whose values are permuted.")
        own = np.asarray(curve, dtype=np.float64)
        sample = rng.permuted(np.tile(own, (draws, 1)), axis=1)
    return _nearest(sample, numbers, recalls)[0]


def gaussian_distance(curves: ArrayLike, lags: ArrayLike) -> NDArray[np.float64]:
    """Distance of each curve to its best Gaussian bump a + b exp(-(lag - μ)²/2s²), shape (n,).

    The measure is D's (mean squared error over the curve's variance). The search starts from the
    best of a grid of centres at the lags and widths 0.3 ... 2 × the range: unlike the released
    code, whose start takes the height of the peak for its place, this gives the baseline its due.

    Parameters
    ----------
    curves : (n, n_lags) ; lags : (n_lags,).
    """
    values, numbers = _as_curves(curves, lags)
    x = numbers.astype(np.float64)
    span = float(np.ptp(x))
    centres, widths = np.meshgrid(x, np.geomspace(0.3, 2 * span, 12), indexing="ij")
    bumps = np.exp(
        -((x[None, :] - centres.ravel()[:, None]) ** 2) / 2 / widths.ravel()[:, None] ** 2
    )
    variance = values.var(axis=1)
    centred_bumps = bumps - bumps.mean(axis=1, keepdims=True)
    centred = values - values.mean(axis=1, keepdims=True)
    explained = (centred @ centred_bumps.T) ** 2 / np.maximum(
        (centred_bumps**2).sum(axis=1), 1e-300
    )
    start = explained.argmax(axis=1)
    result = np.full(len(values), np.nan)
    for row in np.flatnonzero(variance > 0):
        y = centred[row] / np.sqrt(variance[row])

        def residual(shape: NDArray[np.float64], y: NDArray[np.float64] = y) -> NDArray[np.float64]:
            bump = np.exp(-((x - shape[0]) ** 2) / 2 / np.exp(2 * shape[1]))
            bump -= bump.mean()
            norm = bump @ bump
            # a and b follow by linear regression; y has mean 0.
            return y - bump * ((bump @ y) / norm if norm > 1e-300 else 0.0)

        first = np.array([centres.ravel()[start[row]], np.log(widths.ravel()[start[row]])])
        low = [x.min() - span, np.log(0.1)]
        high = [x.max() + span, np.log(10 * span)]
        fitted = least_squares(residual, first, bounds=(low, high), max_nfev=60)
        result[row] = float(np.mean(fitted.fun**2))
    return result


def _fit(
    values: NDArray[np.float64], lags: NDArray[np.int64], recalls: int, draws: int, seed: int
) -> dict[str, NDArray[Any]]:
    distance, best = _nearest(values, lags, recalls)
    reach = max(8, int(np.abs(lags).max()))
    parameters, grid = cmr_grid(reach, recalls)
    models = grid[:, reach + lags]
    defined = np.isfinite(distance)
    chosen = parameters[best]
    chosen[~defined] = np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.ptp(values, axis=1) / np.ptp(models[best], axis=1)
    peak = lags[values.argmax(axis=1)]
    fitted_peak = lags[models[best].argmax(axis=1)]
    result: dict[str, NDArray[Any]] = {
        "distance": distance,
        "beta_enc": chosen[:, 0],
        "beta_rec": chosen[:, 1],
        "gamma": chosen[:, 2],
        "inverse_temperature": np.where(defined, scale, np.nan),
        "peak_lag": np.where(defined, peak, np.nan),
        "lag0_peak": defined & ((peak == 0) | (fitted_peak == 0)),
        "gaussian_distance": gaussian_distance(values, lags),
    }
    percentile = np.full((2, len(values)), np.nan)
    if draws:
        walks = null_distances("random_walk", lags, max(draws, 1000), recalls=recalls, seed=seed)
        percentile[1, defined] = (walks[None, :] <= distance[defined, None]).mean(axis=1)
        rng = np.random.default_rng(seed)
        rows = np.flatnonzero(defined)
        # One set of permutations serves all curves: draws are then comparable between heads.
        orders = rng.permuted(np.tile(np.arange(len(lags)), (draws, 1)), axis=1)
        for row in rows:
            nulls = _nearest(values[row][orders], lags, recalls)[0]
            percentile[0, row] = (nulls <= distance[row]).mean()
    result["permuted_percentile"], result["random_walk_percentile"] = percentile
    return result


def _nearest(
    values: NDArray[np.float64], lags: NDArray[np.int64], recalls: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Smallest distance to the grid, and where, of each curve.

    Which node is nearest depends on two of the three terms of the distance only; these are
    compared in single precision, and the distance to the node found is computed in double.
    """
    reach = max(8, int(np.abs(lags).max()))
    templates = _grid_templates(reach, recalls, tuple(lags.tolist()))
    squares = (templates**2).mean(axis=1).astype(np.float32)
    single = np.ascontiguousarray(templates.T, dtype=np.float32) * np.float32(2 / len(lags))
    shape, variance = _shifted(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = shape / shape.max(axis=1, keepdims=True)  # D does not change with the scale
    best = np.zeros(len(values), dtype=np.int64)
    part = np.empty((_CHUNK, len(templates)), dtype=np.float32)
    for low in range(0, len(values), _CHUNK):
        rows = unit[low : low + _CHUNK].astype(np.float32)
        scores = np.matmul(rows, single, out=part[: len(rows)])
        np.subtract(scores, squares, out=scores)
        best[low : low + _CHUNK] = scores.argmax(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = ((templates[best] - unit) ** 2).mean(axis=1) / unit.var(axis=1)
    return np.where(np.isfinite(variance), gap, np.nan), best


@lru_cache(maxsize=16)
def _grid_templates(reach: int, recalls: int, lags: tuple[int, ...]) -> NDArray[np.float64]:
    """The grid's curves at these lags, scaled to 0 ... 1; constant ones never come nearest."""
    _, grid = cmr_grid(reach, recalls)
    templates = _templates(grid[:, reach + np.array(lags)])
    templates[~np.isfinite(templates).all(axis=1)] = 1e3
    templates.flags.writeable = False
    return templates


def _shifted(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Curves with minimum 0, and their variance: NaN for a constant (rounding is no shape)."""
    size = np.maximum(np.abs(values).max(axis=1), np.finfo(np.float64).tiny)
    varied = np.ptp(values, axis=1) > 1e-12 * size
    variance = np.where(varied, values.var(axis=1), np.nan)
    return values - values.min(axis=1, keepdims=True), variance


def _templates(models: NDArray[np.float64]) -> NDArray[np.float64]:
    """Model curves scaled to 0 ... 1; NaN for constant ones."""
    templates = models - models.min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled: NDArray[np.float64] = templates / templates.max(axis=1, keepdims=True)
    return scaled


def _as_curves(
    curves: ArrayLike, lags: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    values = np.atleast_2d(np.asarray(curves, dtype=np.float64))
    if lags is None:
        if values.shape[1] % 2 == 0:
            raise InputError(
                f"the curves have {values.shape[1]} values, which cannot be symmetric about lag "
                "0; give lags=."
            )
        lags = np.arange(values.shape[1]) - values.shape[1] // 2
    numbers = np.asarray(lags)
    if values.ndim != 2 or numbers.shape != (values.shape[1],):
        raise InputError(
            f"curves of shape {values.shape} do not fit {numbers.size} lags; give (n, n_lags)."
        )
    if not np.array_equal(numbers, np.round(numbers)) or len(np.unique(numbers)) < len(numbers):
        raise InputError("lags must be different integers.")
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise DataError(f"curve {row} is infinite at lag {numbers[column]}; NaN means 'no value'.")
    return values, numbers.astype(np.int64)
