"""Every head of a model beside CMR: scores, asymmetry, width, fit and nulls in one table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.recall.asymmetry import asymmetry_of_curve
from workbench.analysis.recall.cmr_fit import best_distance, fit_cmr, null_distances
from workbench.core.errors import InputError
from workbench.recording.heads import HeadRecall

__all__ = ["half_width", "head_fit_summary", "head_table"]


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


def head_fit_summary(
    recall: HeadRecall,
    scale: str = "raw",
    *,
    fit_lag: int = 5,
    thresholds: Sequence[float] = (0.5, 0.1),
    low_matching: float = 0.01,
    draws: int = 100,
    seed: int = 0,
) -> pd.DataFrame:
    """How many heads are nearer to CMR than a threshold, beside how many curves without meaning.

    Parameters
    ----------
    recall, scale, fit_lag : as in `head_table`.
    thresholds : of the distance; 0.5 and 0.1 in Ji-An et al. (2024).
    low_matching : matching score below which a head does not look for what followed.
    draws : permutations of each head's own curve; random walks are at least 1,000.
    seed : of these.

    Returns
    -------
    One row per threshold: threshold, scale, n_heads (with a shape), n_below, share, list_low and
    list_high (lowest and highest share on one list alone), random_walk and permuted (share of such
    curves below the threshold), and of the heads below it: n_lag0 (peak at lag 0) and
    n_low_matching.
    """
    curves = recall.curves(scale)
    keep = np.abs(recall.lags) <= fit_lag
    lags = recall.lags[keep]
    flat = curves.reshape(-1, curves.shape[-1])[:, keep]
    fit = fit_cmr(flat, lags, max_lag=fit_lag, draws=0)
    known = fit["distance"].notna().to_numpy()
    distance = fit["distance"].to_numpy()[known]
    lag0 = fit["lag0_peak"].to_numpy(dtype=bool)[known]
    matching = recall.scores["matching"].to_numpy()[known]
    singles = recall.seed_curves[scale]
    singles = singles.reshape(-1, singles.shape[-1])[:, keep]
    single = best_distance(singles, lags).reshape(len(recall.surprisal), -1)
    walks = null_distances("random_walk", lags, max(draws, 1000), seed=seed)
    permuted = np.array(
        [null_distances("permuted", lags, draws, curve=curve, seed=seed) for curve in flat[known]]
    )
    rows = []
    for threshold in thresholds:
        below = distance < threshold
        # A head without a shape on one list is not below any threshold there.
        shares = (single < threshold).sum(axis=1) / np.maximum(np.isfinite(single).sum(axis=1), 1)
        rows.append(
            {
                "threshold": threshold,
                "scale": scale,
                "n_heads": len(distance),
                "n_below": int(below.sum()),
                "share": float(below.mean()) if len(below) else float("nan"),
                "list_low": float(shares.min()),
                "list_high": float(shares.max()),
                "random_walk": float((walks < threshold).mean()),
                "permuted": float((permuted < threshold).mean()) if permuted.size else np.nan,
                "n_lag0": int((below & lag0).sum()),
                "n_low_matching": int((below & (matching < low_matching)).sum()),
            }
        )
    return pd.DataFrame(rows)
