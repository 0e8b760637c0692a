"""How much a method's distance to people depends on who took part: people drawn anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.analysis.human import ABSENT, hamming_many, wasserstein_many, words_to_gaps
from workbench.analysis.people import People, people_or_reason
from workbench.analysis.statistics import percentile_interval
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.story import Story

__all__ = ["Interval", "Resamples", "bootstrap_consensus", "bootstrap_interval"]

_MEASURES = ("wasserstein", "hamming")


@dataclass(frozen=True, eq=False)
class Resamples:
    """Consensuses of people drawn with replacement; made once per story, used for all methods.

    Parameters
    ----------
    words : words at which an event starts, shape (draws, k), `ABSENT` where a draw has fewer.
    gaps : marks on the sentence gaps, shape (draws, n_sentences - 1).
    n_words, sentence_starts : of the story.
    note : why there are none; "" when there are.
    gap_note : why the text has no sentence gaps to go by; "" when it has.
    """

    words: NDArray[np.int64]
    gaps: NDArray[np.bool_]
    n_words: int
    sentence_starts: NDArray[np.int64]
    note: str = ""
    gap_note: str = ""


@dataclass(frozen=True)
class Interval:
    """Percentile interval of a distance over resampled people; NaN where there are none.

    Parameters
    ----------
    low, high : its ends (`ci_low`, `ci_high`).
    mean : of the distance over the resamples.
    note : why there is no interval; "" when there is.
    """

    low: float
    high: float
    mean: float
    note: str = ""

    def __iter__(self) -> Iterator[float]:
        """The two ends, so that `low, high = interval`."""
        return iter((self.low, self.high))

    def remark(self, value: float) -> str:
        """What has to be said when the interval excludes the value it stands beside; else ""."""
        inside = self.low - 1e-12 <= value <= self.high + 1e-12
        if inside or np.isnan(value) or np.isnan(self.low):
            return ""
        side = "above" if value < self.low else "below"
        return (
            f"the interval lies {side} the value: the consensus of resampled people is noisier "
            f"than people's own (mean distance {self.mean:.4f})"
        )


def bootstrap_consensus(
    story: Story | People,
    *,
    draws: int = 500,
    n_boundaries: int | None = None,
    seed: int = 0,
    **options: Any,
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
    people = people_or_reason(story, options)
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
    return Resamples(words, gaps, people.n_words, people.sentence_starts, gap_note=people.gap_note)


def bootstrap_interval(
    events: Boundaries, resamples: Resamples, *, level: float = 0.95, sigma: float = 0.0
) -> dict[str, Interval]:
    """Percentile interval of a method's distances over the resampled people.

    The method's boundaries stay fixed; only who took part varies. A resample repeats some people
    and misses others, so its consensus is noisier than people's own, and distances to it tend to
    be larger: the interval lies too high, and for a method close to people it can exclude the
    value itself (`Interval.remark` says so). Measured for W1, people's own boundaries jittered:
    on Pie Man (205 people) nearly always below a distance of 0.005, one time in five at 0.026,
    never at 0.04 or for random boundaries (ceiling 0.034 to 0.072); on EventNoise 1 (11 people)
    nearly always below 0.02. The interval says how much the distance depends on who took part;
    it is no test of the value.

    Parameters
    ----------
    events : the method's events over the story's words.
    resamples : see `bootstrap_consensus`.
    level : share of the resamples inside.
    sigma : width in words of the Gaussians of the Wasserstein distance.

    Returns
    -------
    {"wasserstein": Interval, "hamming": Interval}; NaN with the reason in `note` where nobody
    could be resampled, or where the method has no boundary to move.
    """
    if events.unit != "word" or events.n != resamples.n_words:
        raise InputError(
            f"expected boundaries over the story's {resamples.n_words} words, got {events.n} "
            f"{events.unit}s; convert them with trace.to_words(events)."
        )
    if len(resamples.words) == 0:
        return dict.fromkeys(_MEASURES, _no_interval(resamples.note))
    marks = words_to_gaps(events.inner, resamples.n_words, resamples.sentence_starts)
    samples = {
        "wasserstein": wasserstein_many(
            resamples.words, events.inner, resamples.n_words, sigma=sigma
        ),
        "hamming": hamming_many(resamples.gaps, marks),
    }
    result = {}
    for name, values in samples.items():
        if name == "hamming" and resamples.gap_note:
            result[name] = _no_interval(resamples.gap_note)
            continue
        if np.isnan(values).all():
            result[name] = _no_interval("one side has no boundary to move")
            continue
        low, high = percentile_interval(values, level)
        result[name] = Interval(float(low), float(high), float(np.nanmean(values)))
    return result


def _no_interval(reason: str) -> Interval:
    return Interval(float("nan"), float("nan"), float("nan"), reason)


def _padded(rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Rows of different lengths as one array, filled up with `ABSENT`."""
    filled = np.full((len(rows), max(map(len, rows))), ABSENT, dtype=np.int64)
    for line, row in zip(filled, rows, strict=True):
        line[: len(row)] = row
    return filled
