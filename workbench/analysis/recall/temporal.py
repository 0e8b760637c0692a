"""Temporal factor: how near, in study order, successive recalls are (percentile rank of lag)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.recall.lag import recall_time, transitions
from workbench.analysis.recall.resampling import permutation_summary, permuted_outputs
from workbench.analysis.recall.sequences import Recalls, RecallSequences, as_sequences

__all__ = ["lag_rank", "temporal_factor"]

_BLOCK = 65_536
"""Transitions ranked at a time, so that long lists do not fill the memory."""


def lag_rank(outputs: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.float64]:
    """Percentile rank of each transition's absolute lag, shape (n_transitions,).

    The share of the other available positions that lie farther away than the one recalled, ties
    counting half: 1 is the nearest, 0 the farthest, 0.5 chance; NaN when one position is left
    (Sederberg, Miller, Howard & Kahana 2010, Polyn, Norman & Kahana 2009).

    Parameters
    ----------
    outputs, length : as in `RecallSequences`.
    """
    moves = transitions(outputs)
    time = recall_time(outputs, length)
    ranks = np.full(len(moves.row), np.nan)
    position = np.arange(time.shape[1])
    for low in range(0, len(ranks), _BLOCK):
        part = slice(low, low + _BLOCK)
        available = time[moves.row[part]] > moves.place[part, None]
        distance = np.abs(position[None, :] - moves.start[part, None])
        made = np.abs(moves.end[part] - moves.start[part])[:, None]
        farther = (available & (distance > made)).sum(axis=1)
        ties = (available & (distance == made)).sum(axis=1) - 1
        others = available.sum(axis=1) - 1
        with np.errstate(invalid="ignore", divide="ignore"):
            ranks[part] = np.where(
                others > 0, (farther + 0.5 * ties) / np.maximum(others, 1), np.nan
            )
    return ranks


def temporal_factor(
    recalls: Recalls, *, draws: int = 0, null: str = "shuffle", seed: int = 0
) -> pd.DataFrame:
    """Mean percentile rank of the lags each subject made.

    Parameters
    ----------
    recalls : as in `lag_crp`.
    draws : permutations for the null distribution; 0: none.
    null : "shuffle" (the recalled items of a list in random order) or "reverse". Shuffled recalls
        are not at 0.5 exactly: what is recalled (first and last items, often) is kept, and that is
        unevenly spread.
    seed : of the permutations.

    Returns
    -------
    Table: subject, temporal_factor (NaN where a subject has no transition with a choice),
    n_transitions; with `draws`, also null_mean, null_sd, z and p (two-sided) per subject, and in
    the last row, subject "mean", those of the mean over subjects.
    """
    sequences = as_sequences(recalls)
    values, counts = _by_subject(sequences, sequences.outputs)
    table = pd.DataFrame(
        {"subject": sequences.subjects, "temporal_factor": values, "n_transitions": counts}
    )
    if draws == 0:
        return table
    sampled = np.array(
        [
            _by_subject(sequences, outputs)[0]
            for outputs in permuted_outputs(sequences, null, draws, seed)
        ]
    )
    everyone = pd.DataFrame(
        {
            "subject": ["mean"],
            "temporal_factor": [_mean(values)],
            "n_transitions": [int(counts.sum())],
        }
    )
    table = pd.concat([table, everyone], ignore_index=True)
    means = np.array([_mean(row) for row in sampled])
    summary = [
        permutation_summary(value, sample)
        for value, sample in zip(table["temporal_factor"], np.column_stack([sampled, means]).T)
    ]
    return pd.concat([table, pd.DataFrame(summary)], axis=1)


def _by_subject(
    sequences: RecallSequences, outputs: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    ranks = lag_rank(outputs, sequences.length)
    code = sequences.subject_code[transitions(outputs).row]
    defined = np.isfinite(ranks)
    n = len(sequences.subjects)
    counts = np.bincount(code[defined], minlength=n)
    sums = np.bincount(code[defined], weights=ranks[defined], minlength=n)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), counts


def _mean(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
