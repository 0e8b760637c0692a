"""Rows of the tables of a scored retelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.event_matching import first_mentions, match_sentences
from workbench.core.boundaries import Boundaries

__all__ = ["Scored", "event_rows", "sentence_rows", "sequence_rows"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Scored:
    """One transcript against the events of its story."""

    similarity: Floats
    assigned: Ints
    level: float

    @classmethod
    def of(cls, similarity: NDArray[np.floating[Any]], level: float) -> Scored:
        """Match the sentences of a (sentences, events) similarity at this level."""
        values = np.asarray(similarity, dtype=np.float64)
        return cls(values, match_sentences(values, level), level)

    @property
    def best(self) -> Floats:
        """Similarity of each sentence to the event it resembles most."""
        return self.similarity.max(axis=1)

    @property
    def recalled(self) -> Ints:
        """1 for the events that a sentence belongs to, else 0."""
        counts = np.bincount(self.assigned[self.assigned >= 0], minlength=self.similarity.shape[1])
        return (counts > 0).astype(np.int64)


def _labels(rows: pd.DataFrame, place: int, length: int) -> dict[str, Any]:
    return {name: [rows[name].iloc[place]] * length for name in ("subject", "story", "condition")}


def event_rows(
    rows: pd.DataFrame, scored: list[Scored], cut: Boundaries, by_chance: Floats
) -> pd.DataFrame:
    """One row per transcript and event; see `StoryRecall.events`."""
    n = cut.n_events
    frames = []
    for place, item in enumerate(scored):
        order = np.full(n, np.nan)
        sequence = first_mentions(item.assigned)
        order[sequence] = np.arange(1, len(sequence) + 1)
        frames.append(
            pd.DataFrame(
                {
                    **_labels(rows, place, n),
                    "event": np.arange(1, n + 1),
                    "start": cut.starts,
                    "n_words": cut.lengths,
                    "recalled": item.recalled,
                    "similarity": item.similarity.max(axis=0),
                    "order": pd.array(order, dtype="Float64").astype("Int64"),
                    "n_sentences": np.bincount(item.assigned[item.assigned >= 0], minlength=n),
                    "shuffled": by_chance,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def sequence_rows(rows: pd.DataFrame, scored: list[Scored], n: int) -> pd.DataFrame:
    """The free-recall table of the transcripts; see `StoryRecall.sequences`."""
    frames = []
    for place, item in enumerate(scored):
        sequence = first_mentions(item.assigned) + 1
        studied = np.arange(1, n + 1)
        frames.append(
            pd.DataFrame(
                {
                    **_labels(rows, place, n + len(sequence)),
                    "list": rows["story"].iloc[place],
                    "position": np.concatenate([studied, np.arange(1, len(sequence) + 1)]),
                    "trial_type": ["study"] * n + ["recall"] * len(sequence),
                    "item": np.concatenate([studied, sequence]),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def sentence_rows(rows: pd.DataFrame, scored: list[Scored], said: list[list[str]]) -> pd.DataFrame:
    """One row per sentence said; see `StoryRecall.sentences`."""
    frames = []
    for place, item in enumerate(scored):
        n = len(said[place])
        frames.append(
            pd.DataFrame(
                {
                    **_labels(rows, place, n),
                    "sentence": np.arange(1, n + 1),
                    "n_words": [len(sentence.split()) for sentence in said[place]],
                    "event": item.similarity.argmax(axis=1) + 1,
                    "similarity": item.best,
                    "passed": item.assigned >= 0,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
