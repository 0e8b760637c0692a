"""The named public stories: which files they come from, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.core.errors import DataError
from workbench.core.folders import data_folder
from workbench.core.story import Annotation, Story
from workbench.stories.alignment import timed_words, untimed_words
from workbench.stories.consensus import FEW_PEOPLE
from workbench.stories.download import source_file
from workbench.stories.presses import presses_from_times, read_mat
from workbench.stories.tables import numbers, read_table, read_word_table
from workbench.stories.text import read_text

__all__ = ["NAMED", "NamedStory", "published_times"]

KUMAR = (
    "Kumar, Goldstein, Michelmann, Zacks, Hasson & Norman (2023), Bayesian surprise predicts human "
    "event segmentation in story listening, Cognitive Science 47(10), e13343"
)
MICHELMANN = (
    "Michelmann, Price, Aubrey et al. (2021), Moment-by-moment tracking of naturalistic learning "
    "and its underlying hippocampo-cortical interactions, Nature Communications 12, 5394"
)
LOSITSKY = (
    "Lositsky, Chen, Toker et al. (2016), Neural pattern change during encoding of a narrative "
    "predicts retrospective duration estimates, eLife 5, e16070"
)
ZADA = (
    'Zada, Nastase, Aubrey et al. (2025), The "Podcast" ECoG dataset, OpenNeuro ds005574, '
    "doi:10.18112/openneuro.ds005574.v1.0.2"
)
PANELA = (
    "Panela, Barnett, Lamekina, Barense & Herrmann (2026), Perception and encoding of narrative "
    "events during continuous speech listening in background noise, "
    "doi:10.31234/osf.io/e67qr_v1"
)

# The recordings' lengths in seconds.
PIEMAN_DURATION = 450.0
EVENTNOISE_DURATIONS = {1: 585.5, 2: 545.4, 3: 667.3}
EVENTNOISE_FILES = {1: "Run", 2: "GoHitler", 3: "MyMothersLife"}


@dataclass(frozen=True)
class NamedStory:
    """A public story: what it is, and the function that loads it."""

    name: str
    title: str
    citation: str
    licence: str
    annotations: str
    word_times: bool
    files: tuple[str, ...]
    build: Callable[[NamedStory], Story]

    def load(self) -> Story:
        """The story, its files found or downloaded."""
        return self.build(self)

    def story(
        self,
        text: str,
        words: pd.DataFrame,
        annotations: tuple[Annotation, ...],
        notes: tuple[str, ...] = (),
    ) -> Story:
        """A `Story` with this one's name, title, citation and licence."""
        return Story(
            name=self.name,
            text=text,
            words=words,
            annotations=annotations,
            title=self.title,
            citation=self.citation,
            licence=self.licence,
            notes=notes,
        )


def published_times(story: str, which: str) -> NDArray[np.float64]:
    """A consensus list of data/consensus/kumar2023.csv, in seconds.

    Parameters
    ----------
    story : "pieman", "monkey" or "tunnel".
    which : "raw", "filtered" or "filtered_p90".
    """
    path = data_folder() / "consensus" / "kumar2023.csv"
    table = pd.read_csv(path, comment="#")
    rows = table[(table["story"] == story) & (table["list"] == which)]
    if rows.empty:
        raise DataError(f"{path} has no list {which!r} for {story!r}.")
    return rows["time_ms"].to_numpy(dtype=np.float64) / 1000


def _published(story: str, which: str, n_people: int | None) -> Annotation:
    return Annotation(
        kind="people",
        source="published",
        times=published_times(story, which),
        n_people=n_people,
        citation=KUMAR,
    )


def _pieman(entry: NamedStory) -> Story:
    text_file, words_file, presses_file = entry.files
    text = read_text(source_file(text_file))
    table, assumed = read_word_table(source_file(words_file))
    words, notes = timed_words(text, table, where=words_file)
    presses = read_mat(source_file(presses_file), "alldata_run2")
    annotations = (
        _published("pieman", "filtered", 205),
        Annotation(
            kind="people",
            source="presses",
            presses=presses,
            duration=PIEMAN_DURATION,
            n_people=presses["subject"].nunique(),
            citation=MICHELMANN,
        ),
    )
    heard = "People pressed while they heard the story for the second time."
    return entry.story(text, words, annotations, (*assumed, *notes, heard))


def _monkey(entry: NamedStory) -> Story:
    (words_file,) = entry.files
    tokens, where = read_table(source_file(words_file))
    # One row per token; the tokens of a word repeat its word, start and end.
    first = tokens.drop_duplicates("word_idx")
    table = pd.DataFrame(
        {
            "word": first["word"].to_numpy(),
            "onset": numbers(first, "start", where),
            "offset": numbers(first, "end", where),
        }
    )
    text = " ".join(table["word"])
    words, notes = timed_words(text, table, where=words_file)
    which = "filtered" if entry.name.endswith(":filtered") else "filtered_p90"
    printed = "The words are printed nearly without punctuation, so the text has no sentences."
    return entry.story(text, words, (_published("monkey", which, None),), (*notes, printed))


def _tunnel(entry: NamedStory) -> Story:
    (text_file,) = entry.files
    text = read_text(source_file(text_file))
    note = (
        "No word times are public for this story, so its consensus times cannot be placed on the "
        "text."
    )
    return entry.story(
        text, untimed_words(text), (_published("tunnel", "filtered", None),), (note,)
    )


def _eventnoise(entry: NamedStory) -> Story:
    text_file, words_file, presses_file = entry.files
    number = int(entry.name.rsplit("-", 1)[1])
    text = read_text(source_file(text_file))
    spoken, _ = read_table(source_file(words_file))
    own = spoken[spoken["story_id"] == str(number)].reset_index(drop=True)
    table, assumed = read_word_table(own)
    words, notes = timed_words(text, table, where=words_file)
    pressed, where = read_table(source_file(presses_file))
    pressed = pressed[pressed["story_id"] == str(number)].reset_index(drop=True)
    presses = presses_from_times(
        pressed["subject"],
        numbers(pressed, "times", where),
        condition=pressed["noise_condition"],
    )
    annotation = Annotation(
        kind="people",
        source="presses",
        presses=presses,
        duration=EVENTNOISE_DURATIONS[number],
        n_people=presses["subject"].nunique(),
        citation=PANELA,
    )
    counts = presses.groupby("condition")["subject"].nunique()
    heard = "People per condition: " + ", ".join(
        f"{counts[name]} {name}" for name in sorted(counts.index)
    )
    remarks = [*assumed, *notes, f"{heard}."]
    if counts.max() < FEW_PEOPLE:
        remarks.append(
            f"With fewer than {FEW_PEOPLE} people per condition the consensus depends on the "
            "percentile: see percentile_sensitivity."
        )
    return entry.story(text, words, (annotation,), tuple(remarks))


_EVENTNOISE = "panela2026_eventnoise"


def _eventnoise_entry(number: int, title: str) -> NamedStory:
    return NamedStory(
        name=f"eventnoise-{number}",
        title=title,
        citation=f"Trevor Noah, Born a Crime (2016); data: {PANELA}",
        licence="text in copyright (not distributed here); data MIT",
        annotations="people/presses",
        word_times=True,
        files=(
            f"{_EVENTNOISE}/stories_raw/{EVENTNOISE_FILES[number]}.txt",
            f"{_EVENTNOISE}/word_times.csv",
            f"{_EVENTNOISE}/auditory_data.csv",
        ),
        build=_eventnoise,
    )


def _monkey_entry(name: str, title: str) -> NamedStory:
    return NamedStory(
        name=name,
        title=title,
        citation=f"This American Life, Monkey in the Middle; words: {ZADA}; people: {KUMAR}",
        licence="text in copyright (not distributed here); word times CC0",
        annotations="people/published",
        word_times=True,
        files=("podcast_ecog_ds005574/gpt2-xl_transcript.tsv",),
        build=_monkey,
    )


_ENTRIES = (
    NamedStory(
        name="pieman",
        title="Pie Man",
        citation=f"Jim O'Grady, Pie Man (The Moth); presses: {MICHELMANN}; people: {KUMAR}",
        licence="text in copyright (not distributed here); data without a stated licence",
        annotations="people/published, people/presses",
        word_times=True,
        files=(
            "ccn25_dimensions/story_pieman.txt",
            "michelmann2021_pieman/rep_results.csv",
            "michelmann2021_pieman/alldata_run2.mat",
        ),
        build=_pieman,
    ),
    _monkey_entry("monkey", "Monkey in the Middle"),
    _monkey_entry("monkey:filtered", "Monkey in the Middle, the shorter consensus list"),
    NamedStory(
        name="tunnel",
        title="The Tunnel under the World",
        citation=f"Frederik Pohl, The Tunnel under the World; presses: {LOSITSKY}; people: {KUMAR}",
        licence="text without a stated licence (not distributed here)",
        annotations="people/published",
        word_times=False,
        files=("ccn25_dimensions/story_tunnel.txt",),
        build=_tunnel,
    ),
    _eventnoise_entry(1, "Run"),
    _eventnoise_entry(2, "Go Hitler!"),
    _eventnoise_entry(3, "My Mother's Life"),
)

NAMED = {entry.name: entry for entry in _ENTRIES}
"""The public stories by name."""
