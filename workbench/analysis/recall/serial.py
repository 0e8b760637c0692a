"""Serial position curve and probability of first recall."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.recall.lag import crp
from workbench.analysis.recall.sequences import Recalls, RecallSequences, as_sequences
from workbench.core.errors import InputError

__all__ = ["first_recall", "serial_position"]


def serial_position(recalls: Recalls, *, pooled: bool = False) -> pd.DataFrame:
    """Probability that the item of each study position is recalled at all.

    Parameters
    ----------
    recalls, pooled : as in `lag_crp`.

    Returns
    -------
    Tidy table: subject, position (1 ... L), prob, actual (lists in which it was recalled),
    possible (lists that had this position).
    """
    sequences = as_sequences(recalls)
    row, place = np.nonzero(sequences.outputs > 0)
    actual = _per_subject(sequences, row, sequences.outputs[row, place])
    row, position = np.nonzero(
        np.arange(1, sequences.max_length + 1)[None, :] <= sequences.length[:, None]
    )
    possible = _per_subject(sequences, row, position + 1)
    return _table(sequences, actual, possible, pooled)


def first_recall(recalls: Recalls, *, nth: int = 1, pooled: bool = False) -> pd.DataFrame:
    """Probability that each study position is the first (or nth) one recalled.

    Repeats and intrusions are skipped, not counted as outputs. Recall that starts at the first
    item and chains forward inflates lag +1: read this beside the lag-CRP.

    Parameters
    ----------
    recalls, pooled : as in `lag_crp`.
    nth : which recall, from 1. For later ones the probability is conditional: only positions not
        recalled before count as possible.

    Returns
    -------
    Tidy table: subject, position, prob, actual, possible (lists with an nth recall in which the
    position was still to be recalled); prob is NaN where possible is 0.
    """
    if nth < 1:
        raise InputError(f"nth={nth} is not allowed; the first recall is nth=1.")
    sequences = as_sequences(recalls)
    valid = sequences.outputs > 0
    rank = np.cumsum(valid, axis=1)
    row, place = np.nonzero(valid & (rank == nth))
    actual = _per_subject(sequences, row, sequences.outputs[row, place])
    still = np.arange(1, sequences.max_length + 1)[None, :] <= sequences.length[:, None]
    earlier_row, earlier_place = np.nonzero(valid & (rank < nth))
    still[earlier_row, sequences.outputs[earlier_row, earlier_place] - 1] = False
    still &= (valid.sum(axis=1) >= nth)[:, None]
    row, position = np.nonzero(still)
    return _table(sequences, actual, _per_subject(sequences, row, position + 1), pooled)


def _per_subject(
    sequences: RecallSequences, row: NDArray[np.int64], position: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Counts (n_subjects, max_length) of (list, position) pairs."""
    n_subjects, width = len(sequences.subjects), sequences.max_length
    flat = sequences.subject_code[row] * width + position - 1
    return np.bincount(flat, minlength=n_subjects * width).reshape(n_subjects, width)


def _table(
    sequences: RecallSequences,
    actual: NDArray[np.int64],
    possible: NDArray[np.int64],
    pooled: bool,
) -> pd.DataFrame:
    subjects = sequences.subjects
    if pooled:
        actual, possible = actual.sum(axis=0, keepdims=True), possible.sum(axis=0, keepdims=True)
        subjects = ["pooled"]
    labels = np.empty(len(subjects), dtype=object)
    labels[:] = subjects
    width = actual.shape[1]
    return pd.DataFrame(
        {
            "subject": np.repeat(labels, width),
            "position": np.tile(np.arange(1, width + 1), len(subjects)),
            "prob": crp(actual, possible).ravel(),
            "actual": actual.ravel(),
            "possible": possible.ravel(),
        }
    ).infer_objects()
