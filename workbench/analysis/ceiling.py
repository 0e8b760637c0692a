"""The ceiling: how close people come to each other on the measures of `human`.

It bounds what a method can be expected to reach: its distance to people's boundaries is read
against the distances that people reach among themselves.

- leave-one-out: each person's own presses against the consensus of all others;
- split-half: the consensus of one random half of the people against that of the other half.

Which of the two is smaller depends on the number of people and on the measure. With many people
a consensus of half of them is stable, while one person's presses are few or many (3 to 95 on Pie
Man) and noisy; with a dozen people it is noisy itself. Numbers of boundaries are not matched
among people. For the Hamming distance that matters most: whoever presses rarely is close to any
consensus of m boundaries on N gaps, at m/N without a single press.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.analysis.human import hamming, wasserstein, words_to_gaps
from workbench.analysis.people import People, people_or_reason
from workbench.core.errors import InputError
from workbench.core.story import Story

__all__ = ["Ceiling", "ceilings"]

_MEASURES = ("wasserstein", "hamming")


@dataclass(frozen=True, eq=False)
class Ceiling:
    """Distances that people reach among themselves, on one measure.

    Parameters
    ----------
    measure : "wasserstein" or "hamming".
    leave_one_out : each person's presses against the consensus of the others, shape (people,),
        people in the order of `subjects`; NaN for one whose presses cannot be compared.
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
    **options: Any,
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
    if n_splits < 1:
        raise InputError(f"n_splits={n_splits} must be at least 1.")
    people = people_or_reason(story, options)
    if isinstance(people, str):
        nothing = np.full(0, np.nan)
        return {name: Ceiling(name, nothing, nothing, (), people) for name in _MEASURES}
    count = len(people.subjects)
    alone: list[dict[str, float]] = []
    for block in np.array_split(np.arange(count), -(-count // 50)):  # 50 densities at a time
        # Sums of the others, not the total less one's own: that would leave rounding where
        # nobody else pressed.
        others = np.ones((len(block), count))
        others[np.arange(len(block)), block] = 0
        for i, density in zip(block, people.density(others), strict=True):
            own = people.inner(people.own_words[i]), people.inner(people.own_gap_words[i])
            alone.append(_between(people, own, people.consensus(density, n_boundaries), sigma))
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
    remarks = []
    if people.n_silent:
        remarks.append(f"{people.n_silent} of {count + people.n_silent} people never pressed")
    outside = sum(len(people.inner(words)) == 0 for words in people.own_words)
    if outside:
        remarks.append(f"{outside} of {count} people have no boundary inside the text")
    notes = {
        "wasserstein": "; ".join(remarks),
        "hamming": people.gap_note or "; ".join(remarks),
    }
    return {
        name: Ceiling(
            name,
            np.array([values[name] for values in alone]),
            np.array([values[name] for values in halves]),
            tuple(people.subjects),
            notes[name],
        )
        for name in _MEASURES
    }


def _between(
    people: People,
    first: tuple[NDArray[np.int64], NDArray[np.int64]],
    second: tuple[NDArray[np.int64], NDArray[np.int64]],
    sigma: float,
) -> dict[str, float]:
    """Both distances of two sets of (words, gap words)."""
    moved = wasserstein(first[0], second[0], people.n_words, sigma=sigma)
    differing = float("nan")
    if not people.gap_note:
        left, right = (
            words_to_gaps(side[1], people.n_words, people.sentence_starts)
            for side in (first, second)
        )
        differing = hamming(left, right)
    return {"wasserstein": moved, "hamming": differing}


def _mean(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")
