"""Every head of a model beside CMR: scores, asymmetry, width, fit and nulls in one table."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.recall.asymmetry import asymmetry_of_curve
from workbench.analysis.recall.cmr_fit import fit_cmr
from workbench.core.errors import InputError
from workbench.recording.heads import HeadRecall

__all__ = ["half_width", "head_table"]


def head_table(
    recall: HeadRecall,
    scale: str = "raw",
    *,
    fit_lag: int = 5,
    parametrisation: str = "icl-cmr",
    draws: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per head: what it does with a repeated list, and how CMR-like its curve is.

    A curve like CMR's is not a sign of induction: heads that attend to the same token (`lag0_peak`)
    are fitted by CMR without drift, and half of GPT-2's CMR-like heads have a matching score near
    0. Hence the scores, the flag and the nulls beside the distance.

    Parameters
    ----------
    recall : result of `head_recall`.
    scale : of the curves that are measured and fitted: "raw", "log-centred" or "probability".
        On probabilities strong induction heads look like pure chaining (β 1, 1, γ 0); a graded
        curve exists on the other two.
    fit_lag, parametrisation, draws, seed : as in `fit_cmr` (max_lag there).

    Returns
    -------
    Columns: layer, head, matching, matching_sem, duplicate, previous, copying, scale, peak_lag,
    forward (value at lag +1), backward (at -1), difference (forward - backward; on the raw and
    log scales the log ratio of attention, in nats) with difference_sem over seeds, index
    ((f - b) / (f + b) of probabilities; on the other scales tanh(difference / 2), the same number
    for the ratio they stand for), forward_half_width, backward_half_width (lags), and the columns
    of `fit_cmr`.
    """
    if fit_lag > recall.lags.max():
        raise InputError(
            f"fit_lag={fit_lag} was not measured; head_recall covered ±{recall.lags.max()}."
        )
    curves = recall.curves(scale)
    flat = curves.reshape(-1, curves.shape[-1])
    measures = asymmetry_of_curve(recall.lags, flat)
    difference = measures["difference"]
    per_seed = asymmetry_of_curve(recall.lags, recall.seed_curves[scale])["difference"]
    per_seed = per_seed.reshape(len(per_seed), -1)
    n_seeds = len(per_seed)
    sem = (
        per_seed.std(axis=0, ddof=1) / np.sqrt(n_seeds)
        if n_seeds > 1
        else np.full(len(flat), np.nan)
    )
    table = recall.scores.assign(
        scale=scale,
        forward=flat[:, recall.lags == 1][:, 0],
        backward=flat[:, recall.lags == -1][:, 0],
        difference=difference,
        difference_sem=sem,
        index=measures["index"] if scale == "probability" else np.tanh(difference / 2),
        forward_half_width=half_width(recall.lags, flat, 1),
        backward_half_width=half_width(recall.lags, flat, -1),
    )
    fit = fit_cmr(
        flat,
        recall.lags,
        max_lag=fit_lag,
        parametrisation=parametrisation,
        draws=draws,
        seed=seed,
    )
    return pd.concat([table.reset_index(drop=True), fit], axis=1)


def half_width(lags: ArrayLike, curves: ArrayLike, direction: int) -> NDArray[np.float64]:
    """Lags from ±1 outward until a curve has fallen half the way to its lowest value.

    Measured from |lag| 1, by linear interpolation, on the side of `direction`, shape (n,). NaN
    where the curve at ±1 is its lowest value already, or never falls so far on that side.

    Parameters
    ----------
    lags : (n_lags,) ; curves : (n, n_lags).
    direction : +1 forward, -1 backward.
    """
    numbers = np.asarray(lags, dtype=np.int64)
    values = np.atleast_2d(np.asarray(curves, dtype=np.float64))
    values = values - values.min(axis=1, keepdims=True)
    side = np.argsort(direction * numbers)
    side = side[(direction * numbers[side]) >= 1]
    outward = values[:, side]
    widths = np.full(len(values), np.nan)
    half = outward[:, 0] / 2
    below = outward <= half[:, None]
    for row in np.flatnonzero((half > 0) & below.any(axis=1)):
        last = int(below[row].argmax())
        high, low = outward[row, last - 1], outward[row, last]
        widths[row] = last - 1 + (high - half[row]) / (high - low)
    return widths
