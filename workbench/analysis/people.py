"""People's presses on the words of a story, ready for the consensus of any group of them.

Smoothing is linear, so with every person's time course smoothed once, the consensus of a group is
the peaks of one weighted sum. The grid has 10 ms: on Pie Man the peaks lie within 10 ms of those
of the 1 ms grid and fall on the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.reference import has_presses, likely_times_on_words
from workbench.core.errors import InputError, MissingDataError
from workbench.core.story import Story
from workbench.stories.consensus import peaks, people_presses, press_matrix, smooth
from workbench.stories.sentences import lack_of_sentences, sentence_starts
from workbench.stories.timing import words_of_times

__all__ = ["People", "people_on_words", "people_or_reason"]

STEP = 0.01
"""Width in seconds of the grid of resampled consensuses."""

_NO_PRESSES = "no presses of single people are public for this story"
_NO_WORD_TIMES = "the words of this story have no public times"
_TOO_FEW = "fewer than two people pressed"


@dataclass(frozen=True, eq=False)
class People:
    """People's presses, ready for the consensus of any group of them.

    Parameters
    ----------
    courses : each person's press time course, smoothed; shape (people, bins).
    step : width of a bin in seconds.
    word_of_bin : word at which an event starts that is marked in this bin, by the named rule; 0
        or n_words where there is none; shape (bins,).
    gap_word_of_bin : the same by the rule "sentence".
    own_words, own_gap_words : each person's presses as words, by either rule.
    subjects : their names.
    n_words, sentence_starts : of the story.
    condition : whose presses they are.
    n_silent : people who took part and never pressed; they change no consensus.
    percentile : of the consensus.
    gap_note : why the text has no sentence gaps to go by; "" when it has.
    """

    courses: NDArray[np.float32]
    step: float
    word_of_bin: NDArray[np.int64]
    gap_word_of_bin: NDArray[np.int64]
    own_words: list[NDArray[np.int64]]
    own_gap_words: list[NDArray[np.int64]]
    subjects: list[str]
    n_words: int
    sentence_starts: NDArray[np.int64]
    condition: str
    n_silent: int
    percentile: float
    gap_note: str = ""

    def density(self, weights: ArrayLike) -> NDArray[np.float64]:
        """Weighted mean of the smoothed time courses, shape (..., bins).

        Parameters
        ----------
        weights : how often each person counts, shape (people,) or (groups, people).
        """
        counts = np.asarray(weights, dtype=np.float32)
        summed = (counts @ self.courses).astype(np.float64)
        total = np.asarray(counts.sum(axis=-1, dtype=np.float64))
        return np.asarray(summed / total[..., None])

    def consensus(
        self, density: NDArray[np.float64], n_boundaries: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Consensus of one density: words, and first words after the marked sentence gaps.

        Parameters
        ----------
        density : shape (bins,).
        n_boundaries : the k most likely positions on different words instead of the peaks above
            the percentile.
        """
        if n_boundaries is None:
            times = peaks(density, self.step, self.percentile)
        else:
            times = likely_times_on_words(
                density, self.step, n_boundaries, self._words, self.n_words
            )
        bins = self._bins(times)
        return self.inner(self.word_of_bin[bins]), self.inner(self.gap_word_of_bin[bins])

    def _bins(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.round(times / self.step).astype(np.int64)

    def _words(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        return self.word_of_bin[self._bins(times)]

    def inner(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Different words that start an event, in order, without word 0 and those past the end."""
        return np.unique(words[(words > 0) & (words < self.n_words)])


def people_on_words(
    story: Story,
    *,
    rule: str = "next",
    condition: str | None = None,
    percentile: float = 95.0,
    step: float = STEP,
) -> People:
    """Place people's presses on the words of a story.

    Parameters
    ----------
    story : with presses of single people and word times.
    rule : how a time becomes a word, see `timing.times_to_words`.
    condition : of the presses, see `consensus.people_presses`.
    percentile : of the consensus.
    step : width of the grid in seconds.

    Raises
    ------
    MissingDataError : no presses, or no word times.
    """
    presses, duration, n_people, condition = people_presses(story, condition)
    story.require_times("comparing people with each other")
    onsets = story.words["onset"].to_numpy(dtype=np.float64)
    offsets = story.words["offset"].to_numpy(dtype=np.float64)
    starts, lack = sentence_starts(story), lack_of_sentences(story)
    if rule == "sentence" and lack:
        raise MissingDataError(f"rule='sentence' cannot be used: {lack}")
    courses = smooth(press_matrix(presses, duration, step), step).astype(np.float32)
    times = np.arange(courses.shape[1]) * step
    subjects = [str(name) for name in presses["subject"].unique()]
    own = [presses.loc[presses["subject"].astype(str) == name, "time"] for name in subjects]
    return People(
        courses=courses,
        step=step,
        word_of_bin=words_of_times(times, onsets, offsets, rule, starts),
        gap_word_of_bin=words_of_times(times, onsets, offsets, "sentence", starts),
        own_words=[words_of_times(t, onsets, offsets, rule, starts) for t in own],
        own_gap_words=[words_of_times(t, onsets, offsets, "sentence", starts) for t in own],
        subjects=subjects,
        n_words=story.n_words,
        sentence_starts=starts,
        condition=condition,
        n_silent=max(0, n_people - len(subjects)),
        percentile=percentile,
        gap_note=lack or ("" if len(starts) > 1 else "the text is one sentence and has no gap"),
    )


def people_or_reason(story: Story | People, options: dict[str, Any]) -> People | str:
    """A story's people as `people_on_words` places them, or why there are none to compare.

    Parameters
    ----------
    story : a story, or its people, which are returned as they are.
    options : of `people_on_words`; none may be given with people that were placed already.
    """
    if isinstance(story, People):
        if options:
            raise InputError(
                f"{next(iter(options))}= has no effect on people already placed: pass it to "
                "people_on_words."
            )
        return story
    if not has_presses(story):
        return _NO_PRESSES
    if not story.has_times:
        return _NO_WORD_TIMES
    try:
        people = people_on_words(story, **options)
    except MissingDataError as error:
        return str(error)
    return people if len(people.subjects) >= 2 else _TOO_FEW
