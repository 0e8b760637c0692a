"""Recall of stories: which events a person retells, and in which order.

The sentences of a transcript are matched to the events of the story by the cosine similarity of
their sentence vectors. A sentence belongs to the event it resembles most if the similarity exceeds
the level that sentences of shuffled transcripts exceed 5 % of the time; an event is recalled when
a sentence belongs to it, and its place in the order is that of its first mention.

What is shuffled is a named choice (`null`):

- "words": the words of each transcript in random order, cut where its sentences were. What is
  left is the vocabulary of this retelling (names, places, theme), without any one event's content
  (of a retelling of one event alone, shuffling leaves that content: with nothing but such
  transcripts the level is too high);
- "stories": the sentences of transcripts of the *other* stories, as they were said. What is left
  is how people talk when they retell, without this story's content.

The level is set per story and set of events, from at least `n_null` such sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.event_matching import calibrated_level
from workbench.analysis.retelling import StoryRecall
from workbench.analysis.retelling_rows import Scored, event_rows, sentence_rows, sequence_rows
from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import DataError, InputError
from workbench.core.story import Story
from workbench.encoders import DEFAULT_ENCODER, CachedEncoder, Encoder, load_encoder
from workbench.stories.sentences import sentence_starts_of_text, splitter
from workbench.stories.transcripts import load_transcripts

__all__ = ["NULLS", "StoryRecall", "event_texts", "story_recall", "transcript_sentences"]

NULLS = ("words", "stories")


def story_recall(
    transcripts: pd.DataFrame | str | Path = "eventnoise",
    events: Boundaries | Mapping[str, Boundaries] | None = None,
    *,
    stories: Story | Iterable[Story] | None = None,
    encoder: Encoder | str | Path = DEFAULT_ENCODER,
    null: str = "words",
    rate: float = 0.05,
    n_null: int = 1000,
    condition: str | None = None,
    seed: int = 0,
    progress: bool = False,
) -> StoryRecall:
    """Which events of a story people retell, and in which order.

    Parameters
    ----------
    transcripts : a table (`load_transcripts`), or what `load_transcripts` takes.
    events : over the words of the story; a mapping by name for several. None: the boundaries that
        people (else the author) marked. A model's events are given as `trace.to_words(events)`.
    stories : the stories that were retold; those not given are loaded by name.
    encoder : what `load_encoder` takes, or an object with an `encode` method. To score several
        sets of events, make one `CachedEncoder` and pass it each time.
    null : "words" or "stories", see the module; the second needs transcripts of another story.
    rate : share of null sentences above the level.
    n_null : least number of null sentences per story.
    condition : of the presses, for the default events; see `story_consensus`.
    seed : of the shuffles.
    progress : show what is being encoded on standard error.

    Raises
    ------
    InputError : unknown null, events that do not fit the story's words, too few null sentences.
    DataError : the table lacks a column or has no rows.
    MissingDataError : no events given, and the story has no annotation.
    """
    check_option("null", null, NULLS)
    table = _transcript_table(transcripts)
    known = _stories(table, stories)
    cuts = _cuts(known, events, condition)
    memo = encoder if isinstance(encoder, CachedEncoder) else CachedEncoder(_encoder(encoder))
    rng = np.random.default_rng(seed)
    said = [transcript_sentences(text) for text in table["text"]]
    if null == "stories" and len(known) < 2:
        raise InputError(
            "null='stories' compares with transcripts of other stories, and there are none; use "
            "null='words'."
        )
    shuffled = {
        name: _null_transcripts(name, table["story"], said, null, n_null, rng) for name in known
    }
    needed = [text for name in known for text in event_texts(known[name], cuts[name])]
    needed += [text for sentences in said for text in sentences]
    needed += [text for groups in shuffled.values() for group in groups for text in group]
    memo.prepare(needed, progress=progress)

    parts: list[tuple[pd.DataFrame, ...]] = []
    for name, story in known.items():
        vectors = memo.encode(event_texts(story, cuts[name]))
        similarity = [memo.encode(sentences) @ vectors.T for sentences in said]
        nulls = [memo.encode(sentences) @ vectors.T for sentences in shuffled[name]]
        level = calibrated_level(np.concatenate([s.max(axis=1) for s in nulls]), rate)
        own = np.flatnonzero((table["story"] == name).to_numpy())
        rows = table.iloc[own].reset_index(drop=True)
        scored = [Scored.of(similarity[place], level) for place in own]
        null_scored = [Scored.of(similarity_, level) for similarity_ in nulls]
        by_chance = np.mean([item.recalled for item in null_scored], axis=0)
        events_frame = event_rows(rows, scored, cuts[name], by_chance)
        sentences_frame = sentence_rows(rows, scored, [said[place] for place in own])
        best = np.concatenate([item.best for item in null_scored])
        level_row = {
            "story": name,
            "n_events": cuts[name].n_events,
            "n_subjects": len(rows),
            "n_sentences": len(sentences_frame),
            "level": level,
            "rate": rate,
            "null": null,
            "n_null": len(best),
            "null_passed": float((best > level).mean()),
            "passed": float(sentences_frame["passed"].mean()),
            "recalled": float(events_frame["recalled"].mean()),
            "baseline": float(by_chance.mean()),
        }
        parts.append(
            (
                events_frame,
                sequence_rows(rows, scored, cuts[name].n_events),
                sentences_frame,
                pd.DataFrame([level_row]),
            )
        )
    frames = [pd.concat(list(frame), ignore_index=True) for frame in zip(*parts)]
    settings = {
        "encoder": memo.name,
        "encoder_identity": memo.identity,
        "provenance": memo.provenance,
        "splitter": splitter(),
        "null": null,
        "rate": rate,
        "n_null": n_null,
        "condition": condition,
        "seed": seed,
    }
    events_, sequences, sentences_, levels = frames
    return StoryRecall(events_, sequences, sentences_, levels, cuts, settings)


def transcript_sentences(text: str) -> list[str]:
    """The sentences of a transcript, in order; whole words, each word in one sentence."""
    words = text.split()
    edges = [*sentence_starts_of_text(text).tolist(), len(words)]
    return [" ".join(words[a:b]) for a, b in pairwise(edges)]


def event_texts(story: Story, events: Boundaries) -> list[str]:
    """The text of each event, from its first word to its last, as the story prints it.

    Raises
    ------
    InputError : the events are not over the words of this story.
    """
    if events.unit != "word" or events.n != story.n_words:
        raise InputError(
            f"events are over {events.n} {events.unit}s, and story {story.name!r} has "
            f"{story.n_words} words; a model's events become words by trace.to_words(events)."
        )
    first = story.words["char_start"].to_numpy(dtype=np.int64)
    last = story.words["char_end"].to_numpy(dtype=np.int64)
    return [story.text[first[a] : last[b - 1]] for a, b in events]


# --- parts of `story_recall` ---------------------------------------------------------------


def _transcript_table(transcripts: pd.DataFrame | str | Path) -> pd.DataFrame:
    if not isinstance(transcripts, pd.DataFrame):
        return load_transcripts(transcripts)
    for name in ("subject", "story", "text"):
        if name not in transcripts.columns:
            raise DataError(
                f"the table of transcripts has no column {name!r}; read it with load_transcripts."
            )
    if "condition" not in transcripts.columns or "source" not in transcripts.columns:
        return load_transcripts(transcripts)
    if transcripts.empty:
        raise DataError("the table of transcripts has no rows.")
    return transcripts.reset_index(drop=True)


def _stories(table: pd.DataFrame, stories: Story | Iterable[Story] | None) -> dict[str, Story]:
    from workbench.stories.library import load_story

    given = [stories] if isinstance(stories, Story) else list(stories or ())
    by_name = {story.name: story for story in given}
    names = list(dict.fromkeys(table["story"]))
    unused = sorted(set(by_name) - set(names))
    if unused:
        raise InputError(
            f"story {unused[0]!r} was given, and no transcript retells it; the transcripts are of: "
            f"{', '.join(names)}."
        )
    return {name: by_name[name] if name in by_name else load_story(name) for name in names}


def _cuts(
    stories: dict[str, Story],
    events: Boundaries | Mapping[str, Boundaries] | None,
    condition: str | None,
) -> dict[str, Boundaries]:
    if events is None:
        options: dict[str, Any] = {} if condition is None else {"condition": condition}
        return {name: story.boundaries(**options) for name, story in stories.items()}
    if condition is not None:
        raise InputError(
            f"condition={condition!r} chooses whose boundaries are the default events; leave it "
            "out when events are given."
        )
    if isinstance(events, Boundaries):
        if len(stories) > 1:
            raise InputError(
                f"the transcripts are of {len(stories)} stories; give events as a mapping from "
                "the story's name."
            )
        return dict.fromkeys(stories, events)
    missing = [name for name in stories if name not in events]
    if missing:
        raise InputError(f"events has none for story {missing[0]!r}, which transcripts retell.")
    return {name: events[name] for name in stories}


def _encoder(encoder: Encoder | str | Path) -> Encoder:
    if isinstance(encoder, (str, Path)):
        return load_encoder(encoder)
    if not callable(getattr(encoder, "encode", None)):
        raise InputError(
            f"encoder is a {type(encoder).__name__}; give a name for load_encoder, or an object "
            "with an encode method."
        )
    return encoder


def _null_transcripts(
    name: str,
    story: pd.Series,
    said: list[list[str]],
    null: str,
    n_null: int,
    rng: np.random.Generator,
) -> list[list[str]]:
    """Transcripts that recall nothing of this story, of at least `n_null` sentences together."""
    own = [sentences for sentences, of in zip(said, story) if (of == name) == (null == "words")]
    if null == "stories":
        return own
    available = sum(map(len, own))
    draws = max(1, -(-n_null // max(1, available)))
    return [_shuffled(sentences, rng) for _ in range(draws) for sentences in own]


def _shuffled(sentences: list[str], rng: np.random.Generator) -> list[str]:
    """The words of a transcript in random order, in sentences of the same lengths."""
    words = [sentence.split() for sentence in sentences]
    flat = [word for sentence in words for word in sentence]
    order = iter(rng.permutation(len(flat)).tolist())
    return [" ".join(flat[next(order)] for _ in sentence) for sentence in words]
