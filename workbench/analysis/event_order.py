"""The order in which events are retold, against retellings in random order."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.analysis.recall.curves import lag_curve
from workbench.analysis.recall.lag import LagCounter, crp
from workbench.analysis.recall.resampling import permutation_summary, permuted_outputs
from workbench.analysis.recall.sequences import Recalls, as_sequences
from workbench.core.errors import InputError

__all__ = ["event_contiguity"]


def event_contiguity(
    recalls: Recalls,
    *,
    max_lag: int = 4,
    draws: int = 1000,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Lag-CRP over events: mean over people, interval over people, random order as the null.

    People mostly retell a story forward, so the curve lies far from that of free recall of word
    lists; what it is compared with here is the same recalled events in random order.

    Parameters
    ----------
    recalls : `story_recall`'s result, or any recall sequences.
    max_lag : -max_lag ... max_lag.
    draws : random orders of each list's recalled events.
    resamples : bootstrap samples of people.
    seed : of both.

    Returns
    -------
    One row per lag but 0: lag, prob (mean over the people for whom it is defined), ci_low, ci_high
    (95 %), n_subjects (for whom the lag was ever possible), null_mean, null_sd, z, p (two-sided).

    Raises
    ------
    InputError : a lag beyond the longest list.
    """
    sequences = as_sequences(recalls)
    if not 1 <= max_lag < sequences.max_length:
        raise InputError(
            f"max_lag={max_lag} must lie between 1 and {sequences.max_length - 1}, one less than "
            "the events of the longest story."
        )
    curve = lag_curve(sequences, max_lag=max_lag, resamples=resamples, seed=seed)
    counter = LagCounter(sequences, np.arange(-max_lag, max_lag + 1))
    people = np.isfinite(crp(*counter())).sum(axis=0)
    null = np.full((draws, 2 * max_lag + 1), np.nan)
    for number, outputs in enumerate(permuted_outputs(sequences, "shuffle", draws, seed)):
        curves = crp(*counter(outputs))
        defined = np.isfinite(curves)
        count = defined.sum(axis=0)
        total = np.where(defined, curves, 0.0).sum(axis=0)
        null[number] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    numbers = {name: curve[name].to_numpy(dtype=np.float64) for name in ("value", "low", "high")}
    rows = []
    for column, lag in enumerate(counter.lags.tolist()):
        if lag == 0:
            continue
        value = float(numbers["value"][column])
        rows.append(
            {
                "lag": lag,
                "prob": value,
                "ci_low": float(numbers["low"][column]),
                "ci_high": float(numbers["high"][column]),
                "n_subjects": int(people[column]),
                **permutation_summary(value, null[:, column]),
            }
        )
    return pd.DataFrame(rows)
