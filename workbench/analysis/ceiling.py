"""How close people come to each other, and how a distance varies with who took part.

The ceiling bounds what a method can be expected to reach: its distance to people's boundaries is
read against the distances that people reach among themselves. Two of them are computed, both on
the same measures as the methods':

- leave-one-out: each person's own presses against the consensus of all others;
- split-half: the consensus of one random half of the people against that of the other half.

A person's presses are few or many (3 to 95 on Pie Man) and noisy, so leave-one-out is usually
the larger distance; a consensus is an average, so split-half is usually the smaller one.

Resampling works on a grid of 10 ms: smoothing is linear, so with every person's course smoothed
once, the consensus of any group is one weighted sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.human import ABSENT, hamming_many, wasserstein_many, words_to_gaps
from workbench.analysis.reference import first_distinct, has_presses
from workbench.analysis.statistics import percentile_interval
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.story import Story
from workbench.stories.consensus import (
    likely_times,
    peaks,
    people_presses,
    press_matrix,
    smooth,
)
from workbench.stories.timing import words_of_times

__all__ = [
    "Ceiling",
    "People",
    "Resamples",
    "bootstrap_consensus",
    "bootstrap_interval",
    "ceilings",
    "people_on_words",
]

STEP = 0.01
"""Width in seconds of the grid of resampled consensuses."""

_NO_PRESSES = "no presses of single people are public for this story"
_NO_WORD_TIMES = "the words of this story have no public times"
_TOO_FEW = "fewer than two people pressed"


# --- people on the words of a story --------------------------------------------------------


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
            times = likely_times(density, self.step, len(density))
        bins = np.round(times / self.step).astype(np.int64)
        if n_boundaries is not None:
            bins = bins[first_distinct(self.word_of_bin[bins], n_boundaries, self.n_words)]
        return self.inner(self.word_of_bin[bins]), self.inner(self.gap_word_of_bin[bins])

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
    starts = story.sentence_starts()
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
    )


def _people(story: Story, options: dict[str, object]) -> People | str:
    """The story's people, or why there are none to compare."""
    if not has_presses(story):
        return _NO_PRESSES
    if not story.has_times:
        return _NO_WORD_TIMES
    people = people_on_words(story, **options)  # type: ignore[arg-type]
    return people if len(people.subjects) >= 2 else _TOO_FEW


# --- the ceiling ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ceiling:
    """Distances that people reach among themselves, on one measure.

    Parameters
    ----------
    measure : "wasserstein" or "hamming".
    leave_one_out : each person's presses against the consensus of the others, shape (people,),
        people in the order of `subjects`.
    split_half : consensus of one half against that of the other, shape (splits,).
    subjects : the people's names.
    note : why there is no ceiling, or who was left out.
    """

    measure: str
    leave_one_out: NDArray[np.float64]
    split_half: NDArray[np.float64]
    subjects: tuple[str, ...]
    note: str = ""

    @property
    def leave_one_out_mean(self) -> float:
        """Mean distance of a person to the consensus of the others."""
        return _mean(self.leave_one_out)

    @property
    def split_half_mean(self) -> float:
        """Mean distance of the consensuses of two random halves."""
        return _mean(self.split_half)

    @property
    def low(self) -> float:
        """The smaller of the two means (`ceiling_low`): as close as people come; NaN without."""
        return float(np.minimum(self.leave_one_out_mean, self.split_half_mean))

    @property
    def high(self) -> float:
        """The larger of the two means (`ceiling_high`)."""
        return float(np.maximum(self.leave_one_out_mean, self.split_half_mean))


def ceilings(
    story: Story | People,
    *,
    n_boundaries: int | None = None,
    n_splits: int = 100,
    seed: int = 0,
    sigma: float = 0.0,
    **options: object,
) -> dict[str, Ceiling]:
    """Leave-one-out and split-half distances of people, for both measures.

    Parameters
    ----------
    story : a story, or its people as `people_on_words` places them.
    n_boundaries : k of match="method": consensuses are the k most likely positions. A person's
        own presses keep their number, whatever the match: nobody pressed as often as asked.
    n_splits : number of random halves.
    seed : of the halves.
    sigma : width in words of the Gaussians of the Wasserstein distance.
    options : rule, condition, percentile and step of `people_on_words`.

    Returns
    -------
    {"wasserstein": Ceiling, "hamming": Ceiling}; NaN with the reason in `note` where no presses
    of single people, no word times or fewer than two people are known. The consensus of a half
    is noisier than that of all, so split-half overstates what a second group of the same size
    would differ by.
    """
    people = _given(story, options)
    if isinstance(people, str):
        nothing = np.full(0, np.nan)
        return {name: Ceiling(name, nothing, nothing, (), people) for name in _MEASURES}
    count = len(people.subjects)
    total = people.courses.sum(axis=0, dtype=np.float64)
    alone: list[dict[str, float]] = []
    for i, course in enumerate(people.courses):
        others = people.consensus((total - course) / (count - 1), n_boundaries)
        own = people.inner(people.own_words[i]), people.inner(people.own_gap_words[i])
        alone.append(_between(people, own, others, sigma))
    rng = np.random.default_rng([seed, 0])
    halves: list[dict[str, float]] = []
    for _ in range(n_splits):
        chosen = np.zeros(count, dtype=np.float32)
        chosen[rng.permutation(count)[: count // 2]] = 1
        first, second = people.density(np.stack([chosen, 1 - chosen]))
        halves.append(
            _between(
                people,
                people.consensus(first, n_boundaries),
                people.consensus(second, n_boundaries),
                sigma,
            )
        )
    note = f"{people.n_silent} of {count + people.n_silent} people never pressed"
    return {
        name: Ceiling(
            name,
            np.array([values[name] for values in alone]),
            np.array([values[name] for values in halves]),
            tuple(people.subjects),
            note if people.n_silent else "",
        )
        for name in _MEASURES
    }


_MEASURES = ("wasserstein", "hamming")


def _given(story: Story | People, options: dict[str, object]) -> People | str:
    if isinstance(story, Story):
        return _people(story, options)
    if options:
        raise InputError(f"{next(iter(options))}= is an option of people_on_words: pass it there.")
    return story


def _between(
    people: People,
    first: tuple[NDArray[np.int64], NDArray[np.int64]],
    second: tuple[NDArray[np.int64], NDArray[np.int64]],
    sigma: float,
) -> dict[str, float]:
    """Both distances of two sets of (words, gap words)."""
    left, right = (
        words_to_gaps(side[1], people.n_words, people.sentence_starts) for side in (first, second)
    )
    moved = wasserstein_many(first[0][None, :], second[0], people.n_words, sigma=sigma)
    return {"wasserstein": float(moved[0]), "hamming": float(hamming_many(left[None, :], right)[0])}


def _mean(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


# --- resampled people ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Resamples:
    """Consensuses of people drawn with replacement; made once per story, used for all methods.

    Parameters
    ----------
    words : words at which an event starts, shape (draws, k), `ABSENT` where a draw has fewer.
    gaps : marks on the sentence gaps, shape (draws, n_sentences - 1).
    n_words, sentence_starts : of the story.
    note : why there are none; "" when there are.
    """

    words: NDArray[np.int64]
    gaps: NDArray[np.bool_]
    n_words: int
    sentence_starts: NDArray[np.int64]
    note: str = ""


def bootstrap_consensus(
    story: Story | People,
    *,
    draws: int = 500,
    n_boundaries: int | None = None,
    seed: int = 0,
    **options: object,
) -> Resamples:
    """Consensuses of as many people, drawn with replacement.

    Parameters
    ----------
    story : a story, or its people as `people_on_words` places them.
    draws : number of resamples.
    n_boundaries : k of match="method": the k most likely positions of each resample.
    seed : of the draws.
    options : rule, condition, percentile and step of `people_on_words`.

    Returns
    -------
    Resamples; without rows, and with the reason in `note`, where there are no people to resample.
    """
    if draws < 1:
        raise InputError(f"draws={draws} must be at least 1.")
    people = _given(story, options)
    if isinstance(people, str):
        assert isinstance(story, Story)
        return Resamples(
            np.zeros((0, 0), dtype=np.int64),
            np.zeros((0, 0), dtype=bool),
            story.n_words,
            np.zeros(1, dtype=np.int64),
            people,
        )
    count = len(people.subjects)
    rng = np.random.default_rng([seed, 1])
    weights = rng.multinomial(count, np.full(count, 1 / count), size=draws)
    found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for block in np.array_split(weights, max(1, draws // 50)):  # 50 densities at a time
        found += [people.consensus(row, n_boundaries) for row in people.density(block)]
    words = _padded([pair[0] for pair in found])
    gap_words = _padded([pair[1] for pair in found])
    gaps = words_to_gaps(gap_words, people.n_words, people.sentence_starts)
    return Resamples(words, gaps, people.n_words, people.sentence_starts)


def bootstrap_interval(
    events: Boundaries, resamples: Resamples, *, level: float = 0.95, sigma: float = 0.0
) -> dict[str, tuple[float, float]]:
    """Percentile interval of a method's distances over the resampled people.

    The method's boundaries stay fixed; only who took part varies. A resample repeats some people
    and misses others, so its consensus is noisier than people's own, and distances to it tend to
    be larger: the interval can lie too high, and may even exclude the value itself. It says how
    much the distance depends on the people, not where the distance to all people would lie.

    Parameters
    ----------
    events : the method's events over the story's words.
    resamples : see `bootstrap_consensus`.
    level : share of the resamples inside.
    sigma : width in words of the Gaussians of the Wasserstein distance.

    Returns
    -------
    {"wasserstein": (low, high), "hamming": (low, high)}, NaN where `resamples.note` says why.
    """
    if events.unit != "word" or events.n != resamples.n_words:
        raise InputError(
            f"expected boundaries over the story's {resamples.n_words} words, got {events.n} "
            f"{events.unit}s; convert them with trace.to_words(events)."
        )
    if len(resamples.words) == 0:
        return {name: (float("nan"), float("nan")) for name in _MEASURES}
    marks = words_to_gaps(events.inner, resamples.n_words, resamples.sentence_starts)
    samples = {
        "wasserstein": wasserstein_many(
            resamples.words, events.inner, resamples.n_words, sigma=sigma
        ),
        "hamming": hamming_many(resamples.gaps, marks),
    }
    ends = {name: percentile_interval(values, level) for name, values in samples.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def _padded(rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Rows of different lengths as one array, filled up with `ABSENT`."""
    filled = np.full((len(rows), max(map(len, rows))), ABSENT, dtype=np.int64)
    for line, row in zip(filled, rows, strict=True):
        line[: len(row)] = row
    return filled
