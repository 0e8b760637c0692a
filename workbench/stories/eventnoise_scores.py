"""EventNoise's own scoring of its transcripts, and the events it was scored on.

Both are made by models: the events are those that runs of a large language model agreed on, and
the scores are similarities of its text embeddings. They are something to compare a method with,
never people's boundaries and never the truth about recall.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.story import Story
from workbench.stories.download import source_file
from workbench.stories.tables import numbers, read_table
from workbench.stories.timing import times_to_words

__all__ = ["published_events", "published_scores"]

_FOLDER = "panela2026_eventnoise"
SCORES = ("recall_events", "random_events", "diagonal_score", "reversed_score", "recall_index")


def published_events(story: Story) -> Boundaries:
    """The model-made events of an EventNoise story, over its words (method "model").

    An event starts at the word whose onset is nearest to the printed time.

    Raises
    ------
    InputError : another story.
    """
    number = _number(story.name)
    table, where = read_table(source_file(f"{_FOLDER}/normative_boundaries.csv"))
    own = numbers(table, "story_id", where) == number
    times = np.sort(numbers(table, "time_start", where)[own])
    onsets = story.words["onset"].to_numpy(dtype=np.float64)
    offsets = story.words["offset"].to_numpy(dtype=np.float64)
    words = times_to_words(times, onsets, offsets, "nearest")
    return Boundaries(
        np.concatenate([[0], words]),
        n=story.n_words,
        unit="word",
        method="model",
        settings={"kind": "model", "source": "normative_boundaries"},
    )


def published_scores() -> pd.DataFrame:
    """The data set's scores per person, story and (model-made) event.

    Returns
    -------
    subject, story, condition, event (from 1), and the columns `SCORES`: similarity of the event
    to the part of the transcript that resembles it most, to random events, in presented and in
    reversed order, and which part that was.
    """
    table, where = read_table(source_file(f"{_FOLDER}/event_recall.csv"))
    story = numbers(table, "story_id", where).astype(int)
    return pd.DataFrame(
        {
            "subject": numbers(table, "subject", where).astype(int).astype(str),
            "story": [f"eventnoise-{number}" for number in story],
            "condition": table["noise_condition"].astype(str).to_numpy(),
            "event": numbers(table, "event_number", where).astype(int),
            **{name: numbers(table, name, where) for name in SCORES},
        }
    )


def _number(name: str) -> int:
    stem, _, number = name.rpartition("-")
    if stem != "eventnoise" or number not in ("1", "2", "3"):
        raise InputError(
            f"story {name!r} is not of EventNoise; its events are known for eventnoise-1, "
            "eventnoise-2 and eventnoise-3."
        )
    return int(number)
