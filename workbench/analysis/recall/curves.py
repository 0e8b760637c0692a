"""Lag curves of people, heads, models and memories as one table, for one figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.recall.cmr import CMRParameters, cmr_crp
from workbench.analysis.recall.lag import LagCounter, crp
from workbench.analysis.recall.resampling import bootstrap_weights
from workbench.analysis.recall.sequences import Recalls, RecallSequences, as_sequences
from workbench.analysis.recall.serial import first_recall, serial_position
from workbench.core.checks import check_option, plural
from workbench.core.errors import InputError
from workbench.recording.heads import HeadRecall

__all__ = ["CURVE_COLUMNS", "Curved", "lag_curve", "lag_curves", "position_curve"]

CURVE_COLUMNS = ("label", "source", "scale", "lag", "value", "low", "high", "band", "provenance")

_KNOWN = ("people", "CMR")

Curved = Recalls | HeadRecall | CMRParameters
"""What has a lag curve."""


def lag_curve(
    recall: Curved,
    label: str | None = None,
    *,
    max_lag: int = 5,
    rescale: bool = False,
    layer: int | None = None,
    head: int | None = None,
    scale: str = "raw",
    errors: str = "tokens",
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """The lag curve of a group of people, a head, CMR or a memory system, with its band.

    Parameters
    ----------
    recall : recall sequences or a free-recall table (people, retold events, simulated recall,
        retrieved events): mean over subjects of the lag-CRP, with a percentile interval from a
        bootstrap over subjects; `head_recall`'s result with a layer and head: its mean curve ± one
        standard error; `CMRParameters`: the expected curve, without a band.
    label : how figures call it; None: the source, or "L5H1" for a head.
    max_lag : -max_lag ... max_lag.
    rescale : True: value and band shifted and stretched so that the curve runs from 0 to 1. The
        sources' units differ (a probability given availability, an attention score, a probability
        with replacement): in one panel only shapes can be compared.
    layer, head, scale, errors : of a head: which, on which scale ("raw", "log-centred",
        "probability"), standard error over "tokens" or "seeds".
    confidence, resamples, seed : of the bootstrap over subjects.

    Returns
    -------
    Tidy table with the columns `CURVE_COLUMNS`; value and band are NaN where undefined.
    """
    if isinstance(recall, CMRParameters):
        curve = _cmr(recall, max_lag)
    elif isinstance(recall, HeadRecall):
        curve = _head(recall, layer, head, scale, errors, max_lag)
    else:
        curve = _people(recall, max_lag, confidence, resamples, seed)
    if label is not None:
        curve["label"] = label
    if rescale:
        low, high = curve["value"].min(), curve["value"].max()
        if not high > low:
            raise InputError(f"the curve of {curve['label'][0]} is constant; it has no shape.")
        for column in ("value", "low", "high"):
            curve[column] = (curve[column] - low) / (high - low)
        curve["scale"] = "rescaled " + curve["scale"]
    return curve.loc[:, list(CURVE_COLUMNS)]


def lag_curves(
    recalls: Mapping[str, Curved | tuple[HeadRecall, int, int]], **options: Any
) -> pd.DataFrame:
    """Several curves in one table.

    Parameters
    ----------
    recalls : label → what recalled; a head as (head_recall result, layer, head).
    options : as in `lag_curve`, for all of them.
    """
    if not recalls:
        raise InputError("there is nothing to show; give at least one source of recall.")
    tables = []
    for label, source in recalls.items():
        if isinstance(source, tuple):
            heads, layer, head = source
            tables.append(lag_curve(heads, label, layer=layer, head=head, **options))
        else:
            tables.append(lag_curve(source, label, **options))
    return pd.concat(tables, ignore_index=True)


def position_curve(
    recalls: Recalls,
    label: str | None = None,
    *,
    what: str = "recall",
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Serial position curve ("recall"), or probability of first recall ("first"), with its band.

    Returns
    -------
    Tidy table: label, source, what, position, value (mean over subjects), low, high, band,
    provenance.
    """
    check_option("what", what, ("recall", "first"))
    sequences = as_sequences(recalls)
    table = serial_position(sequences) if what == "recall" else first_recall(sequences)
    curves = table["prob"].to_numpy(dtype=np.float64).reshape(len(sequences.subjects), -1)
    value, low, high, band = _mean_with_band(curves, sequences, confidence, resamples, seed)
    return pd.DataFrame(
        {
            "label": label or sequences.source,
            "source": sequences.source,
            "what": what,
            "position": np.arange(1, len(value) + 1),
            "value": value,
            "low": low,
            "high": high,
            "band": band,
            "provenance": _provenance(sequences),
        }
    )


def _table(
    source: str,
    label: str,
    scale: str,
    lags: NDArray[np.int64],
    value: NDArray[np.float64],
    low: NDArray[np.float64] | float,
    high: NDArray[np.float64] | float,
    band: str,
    provenance: str,
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "label": label,
            "source": source,
            "scale": scale,
            "lag": lags,
            "value": value,
            "low": low,
            "high": high,
            "band": band,
            "provenance": provenance,
        }
    )


def _people(
    recall: Recalls, max_lag: int, confidence: float, resamples: int, seed: int
) -> pd.DataFrame:
    sequences = as_sequences(recall)
    counter = LagCounter(sequences, np.arange(-max_lag, max_lag + 1))
    curves = crp(*counter())
    value, low, high, band = _mean_with_band(curves, sequences, confidence, resamples, seed)
    provenance = _provenance(sequences)
    return _table(
        sequences.source,
        sequences.source,
        "probability given availability",
        counter.lags,
        value,
        low,
        high,
        band,
        provenance,
    )


def _mean_with_band(
    curves: NDArray[np.float64],
    sequences: RecallSequences,
    confidence: float,
    resamples: int,
    seed: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], str]:
    """Mean over subjects of (n_subjects, n) curves, undefined values left out, and its interval."""
    some = np.isfinite(curves).any(axis=1)
    if some.any():
        curves = curves[some]  # a subject without a curve is no sample of one
    who = _who(sequences, len(curves))
    defined = np.isfinite(curves)
    filled, present = np.where(defined, curves, 0.0), defined.astype(np.int64)

    def mean(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        count = weights @ present
        return np.where(count > 0, weights @ filled / np.maximum(count, 1), np.nan)

    n = len(curves)
    value = mean(np.ones((1, n), dtype=np.int64))[0]
    low, high = np.full((2, len(value)), np.nan)
    if n < 2 or not resamples:
        return value, low, high, f"none ({who})" if n < 2 else "none"
    sample = mean(bootstrap_weights(n, resamples, seed))
    tail = (1 - confidence) / 2
    known = defined.sum(axis=0) > 1  # one subject has no interval
    low[known], high[known] = np.nanquantile(sample[:, known], [tail, 1 - tail], axis=0)
    return value, low, high, f"{confidence:.0%} interval over {who}"


def _provenance(sequences: RecallSequences) -> str:
    return f"{sequences.source}: {_who(sequences)}, {plural(sequences.n_lists, 'list')}"


def _who(sequences: RecallSequences, n: int | None = None) -> str:
    kind = "participant" if sequences.source == "people" else "simulated subject"
    n = len(sequences.subjects) if n is None else n
    return plural(n, kind if sequences.source in _KNOWN else "subject")


def _head(
    recall: HeadRecall, layer: int | None, head: int | None, scale: str, errors: str, max_lag: int
) -> pd.DataFrame:
    check_option("errors", errors, ("tokens", "seeds"))
    curves = recall.curves(scale)
    layers = recall.layers.tolist()
    if layer not in layers or head not in range(curves.shape[1]):
        raise InputError(
            f"layer={layer}, head={head} is not there; choose a layer of {layers[0]} ... "
            f"{layers[-1]} and a head of 0 ... {curves.shape[1] - 1}."
        )
    if max_lag > recall.lags.max():
        raise InputError(
            f"max_lag={max_lag} was not measured; head_recall covered ±{recall.lags.max()}."
        )
    keep = np.abs(recall.lags) <= max_lag
    place = layers.index(layer)
    sem = (recall.token_sem[scale] if errors == "tokens" else recall.seed_sem(scale))[place, head]
    value = curves[place, head]
    names = {
        "raw": "attention score before softmax",
        "log-centred": "log attention, row-centred",
        "probability": "attention probability",
    }
    return _table(
        "head",
        f"L{layer}H{head}",
        names[scale],
        recall.lags[keep],
        value[keep],
        (value - sem)[keep],
        (value + sem)[keep],
        f"± one standard error over {errors}",
        str(recall.settings.get("provenance", "")),
    )


def _cmr(parameters: CMRParameters, max_lag: int) -> pd.DataFrame:
    p = parameters
    curve = cmr_crp(
        p.beta_enc, p.beta_rec, p.gamma, max_lag=max_lag, parametrisation=p.parametrisation
    )
    return _table(
        "CMR",
        f"CMR ({p.beta_enc:g}, {p.beta_rec:g}, {p.gamma:g})",
        "probability with replacement",
        curve["lag"].to_numpy(),
        curve["prob"].to_numpy(),
        np.nan,
        np.nan,
        "none (expected curve)",
        f"CMR, {p.parametrisation} parameters β_enc {p.beta_enc:g}, β_rec {p.beta_rec:g}, "
        f"γ {p.gamma:g}",
    )
