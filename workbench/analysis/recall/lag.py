"""Conditional response probability as a function of lag (lag-CRP)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.recall.sequences import Recalls, RecallSequences, as_sequences

__all__ = ["LagCounter", "Transitions", "crp", "lag_counts", "lag_crp", "transitions"]


@dataclass(frozen=True, eq=False)
class Transitions:
    """Every scorable transition between two successive recalls.

    `row` is the list, `place` the output place (from 0) of the item the transition starts from,
    `start` and `end` are the positions (from 1). Repeats and intrusions break the transition into
    them and out of them.
    """

    row: NDArray[np.int64]
    place: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]


def transitions(outputs: NDArray[np.int64]) -> Transitions:
    """Transitions of `RecallSequences.outputs` (n_lists, n_outputs)."""
    row, place = np.nonzero((outputs[:, :-1] > 0) & (outputs[:, 1:] > 0))
    return Transitions(row, place, outputs[row, place], outputs[row, place + 1])


def recall_time(outputs: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.int64]:
    """Output place at which each position is recalled, (n_lists, max_length + 1).

    Column 0 and positions beyond a list's length hold -1 (never available), positions that are
    never recalled hold the number of outputs (available to the end).
    """
    width = int(length.max())
    time = np.full((len(outputs), width + 1), outputs.shape[1], dtype=np.int64)
    time[np.arange(width + 1)[None, :] > length[:, None]] = -1
    row, place = np.nonzero(outputs > 0)
    time[row, outputs[row, place]] = place
    time[:, 0] = -1
    return time


class LagCounter:
    """Counts actual and possible transitions at chosen lags, for many orders of the same recalls.

    A resampling test asks for the same counts a thousand times: what does not change is kept.

    Parameters
    ----------
    sequences : the recalls.
    lags : (n_lags,) the lags wanted; None: all from -(L - 1) to L - 1.
    """

    def __init__(self, sequences: RecallSequences, lags: ArrayLike | None = None) -> None:
        longest = sequences.max_length
        self.lags = (
            np.arange(-(longest - 1), longest) if lags is None else np.asarray(lags, dtype=np.int64)
        )
        self.length = sequences.length
        self.code = sequences.subject_code
        self.n_subjects = len(sequences.subjects)
        self.outputs = sequences.outputs

    def __call__(
        self, outputs: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Actual and possible counts, each (n_subjects, n_lags), of these outputs.

        At each transition every not yet recalled position of the list is a possible one; lag 0 is
        never possible.
        """
        outputs = self.outputs if outputs is None else outputs
        moves = transitions(outputs)
        time = recall_time(outputs, self.length)
        code = self.code[moves.row]
        jump = moves.end - moves.start
        shape = (self.n_subjects, len(self.lags))
        actual, possible = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        longest = time.shape[1] - 1
        for column, lag in enumerate(self.lags):
            target = moves.start + lag
            inside = (target >= 1) & (target <= longest) & (lag != 0)
            open_ = time[moves.row, np.where(inside, target, 0)] > moves.place
            possible[:, column] = np.bincount(code[open_], minlength=self.n_subjects)
            actual[:, column] = np.bincount(code[open_ & (jump == lag)], minlength=self.n_subjects)
        return actual, possible


def lag_counts(
    sequences: RecallSequences, lags: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Lags, actual and possible counts: (n_lags,), (n_subjects, n_lags), (n_subjects, n_lags)."""
    counter = LagCounter(sequences, lags)
    actual, possible = counter()
    return counter.lags, actual, possible


def crp(actual: NDArray[np.int64], possible: NDArray[np.int64]) -> NDArray[np.float64]:
    """Actual / possible, NaN where a lag was never possible."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(possible > 0, actual / np.maximum(possible, 1), np.nan)


def lag_crp(recalls: Recalls, *, pooled: bool = False) -> pd.DataFrame:
    """Probability of each lag between successive recalls, given that it was possible.

    The definition of Kahana (1996): at each transition the lags to all items that are still to be
    recalled count as possible, the lag that was made counts as actual, and the probability is
    actual over possible. Transitions into and out of a repeat or an intrusion are left out.

    Parameters
    ----------
    recalls : a table with subject, list, position, trial_type ("study" or "recall") and item; or
        recall sequences of any other source.
    pooled : False: one ratio per subject (average these for a group curve). True: counts summed
        over subjects before dividing, one curve with the subject "pooled". The two differ.

    Returns
    -------
    Tidy table: subject, lag (-(L - 1) ... L - 1), prob, actual, possible. `prob` is NaN at lag 0
    and wherever a lag was never possible, hence throughout for a subject without two successive
    recalls.

    Raises
    ------
    DataError : the table is unusable; the message says where and why.
    """
    sequences = as_sequences(recalls)
    lags, actual, possible = lag_counts(sequences)
    subjects = sequences.subjects
    if pooled:
        actual, possible = actual.sum(axis=0, keepdims=True), possible.sum(axis=0, keepdims=True)
        subjects = ["pooled"]
    labels = np.empty(len(subjects), dtype=object)
    labels[:] = subjects
    return pd.DataFrame(
        {
            "subject": np.repeat(labels, len(lags)),
            "lag": np.tile(lags, len(subjects)),
            "prob": crp(actual, possible).ravel(),
            "actual": actual.ravel(),
            "possible": possible.ravel(),
        }
    ).infer_objects()
