"""Which event of a story a sentence of its retelling is about: matching by similarity.

Pure functions on similarities: no text, no encoder.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.errors import InputError

__all__ = ["calibrated_level", "first_mentions", "match_sentences"]


def calibrated_level(best: ArrayLike, rate: float = 0.05) -> float:
    """The least level that at most a given share of null sentences exceeds.

    Parameters
    ----------
    best : (n_sentences,) similarity of each null sentence to the event it resembles most.
    rate : share of the null sentences that may lie above the level.

    Raises
    ------
    InputError : a rate outside (0, 1), or so few sentences that none could lie above the level.
    """
    values = np.asarray(best, dtype=np.float64).ravel()
    if not 0 < rate < 1:
        raise InputError(f"rate={rate} must lie between 0 and 1.")
    # 0.05 · 20 is 1.0000000000000002 − ε in some roundings; a whole number must stay whole.
    above = int(np.floor(rate * len(values) + 1e-9))
    if above < 1:
        raise InputError(
            f"{len(values)} null sentences cannot show what passes {rate:g} of the time; at least "
            f"{int(np.ceil(1 / rate))} are needed."
        )
    if not np.isfinite(values).all():
        raise InputError("best holds values that are not finite.")
    return float(np.sort(values)[len(values) - 1 - above])


def match_sentences(similarity: ArrayLike, level: float) -> NDArray[np.int64]:
    """The event each sentence belongs to: the most similar one, if it exceeds the level.

    Parameters
    ----------
    similarity : (n_sentences, n_events).
    level : a similarity equal to it does not pass.

    Returns
    -------
    (n_sentences,) event numbers from 0, -1 for none; of two events as similar, the earlier.
    """
    values = np.asarray(similarity, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] == 0:
        raise InputError(
            f"similarity has the shape {values.shape}; it must be sentences × events, with an "
            "event."
        )
    best = values.argmax(axis=1)
    passed = values.max(axis=1) > level
    return np.where(passed, best, -1).astype(np.int64)


def first_mentions(assigned: ArrayLike) -> NDArray[np.int64]:
    """Events in the order in which they are first mentioned, each once.

    Parameters
    ----------
    assigned : (n_sentences,) event of each sentence in the order they were said, -1 for none.

    Returns
    -------
    (n_recalled,) event numbers. Sentences of no event are passed over, and so is whatever returns
    to an event already mentioned: neither breaks the transition between two first mentions.
    """
    events = np.asarray(assigned, dtype=np.int64).ravel()
    events = events[events >= 0]
    _, first = np.unique(events, return_index=True)
    return events[np.sort(first)]
