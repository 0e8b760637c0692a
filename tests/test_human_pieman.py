"""Known values on Pie Man (205 people), measured independently from the public files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.analysis.bootstrap import bootstrap_consensus, bootstrap_interval
from workbench.analysis.ceiling import ceilings
from workbench.analysis.human import hamming, wasserstein, wasserstein_many
from workbench.analysis.people import People, people_on_words
from workbench.analysis.reference import distances, reference
from workbench.core.boundaries import Boundaries
from workbench.core.story import Story
from workbench.stories.consensus import peaks, people_presses, press_matrix, smooth, story_consensus
from workbench.stories.timing import words_of_times


@pytest.fixture(scope="module")
def story(data_folder: Path) -> Story:
    import workbench

    return workbench.load_story("pieman")


@pytest.fixture(scope="module")
def people(story: Story) -> People:
    return people_on_words(story)


@pytest.fixture(scope="module")
def published(data_folder: Path) -> tuple[int, np.ndarray, list[np.ndarray]]:
    """Number of words, consensus words and each person's words in the published word table.

    The known values are of the 965 aligned words and the word that a time falls in ("previous"),
    a press before the first word counting as word 0, one after the last as the last, and several
    in one word once.
    """
    folder = data_folder / "michelmann2021_pieman"
    words = pd.read_csv(folder / "rep_results.csv")
    onsets = np.maximum.accumulate(words["word_onsets"].to_numpy())
    offsets = words["word_offsets"].to_numpy()
    lists = json.loads(
        (data_folder / "kumar2023_consensus" / "consensus_boundaries_ms.json").read_text()
    )
    times = np.array(lists["pieman"]["filtered"]) / 1000
    presses = pd.read_csv(folder / "button_presses_run2_long.csv")

    def place(seconds: np.ndarray) -> np.ndarray:
        found = words_of_times(seconds, onsets, offsets, "previous", None)
        return np.unique(np.minimum(found, len(words) - 1))

    own = [
        place(group.to_numpy() / 1000)
        for _, group in presses.groupby("subject")["press_ms_estimate"]
    ]
    return len(words), place(times), own


def test_mean_person_against_the_consensus(published) -> None:
    n, consensus, own = published
    assert (n, len(consensus), len(own)) == (965, 18, 205)
    assert np.mean([wasserstein(words, consensus, n) for words in own]) == pytest.approx(
        0.0779, abs=5e-5
    )


def test_hamming_of_a_person_over_words(published) -> None:
    n, consensus, own = published
    marks = np.zeros((206, n), dtype=bool)
    for row, words in zip(marks, [consensus, *own]):
        row[words] = True
    mean = np.mean([hamming(row, marks[0]) for row in marks[1:]])
    assert mean == pytest.approx(0.0290, abs=5e-5)


def test_even_spacing_beats_the_average_person(published) -> None:
    n, consensus, _ = published
    even = wasserstein(np.arange(1, 19) * n / 19, consensus, n)
    assert even == pytest.approx(0.0496, abs=5e-5)
    rng = np.random.default_rng(0)
    draws = np.stack([rng.choice(np.arange(1, n), 18, replace=False) for _ in range(4000)])
    random = wasserstein_many(draws, consensus, n)
    # 0.0830 is a mean over an unstated number of draws; these 4,000 give 0.0847 ± 0.0006.
    assert random.mean() == pytest.approx(0.0847, abs=0.002)
    assert even < 0.0779 < random.mean()


def test_thousand_draws_take_milliseconds(published) -> None:
    n, consensus, _ = published
    draws = np.random.default_rng(1).integers(1, n, (1000, 60))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        wasserstein_many(draws, consensus, n)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.05


def test_story_has_the_published_boundaries(story: Story) -> None:
    ref = reference(story)
    assert (ref.source, ref.count, ref.n_times) == ("published", 18, 18)
    assert ref.gaps.sum() == 18
    assert len(ref.gaps) == 94


def test_coarse_grid_changes_nothing_that_matters(story: Story, people: People) -> None:
    fine = story_consensus(story, "presses")
    coarse = peaks(people.density(np.ones(205)), people.step)
    assert len(fine) == len(coarse) == 19
    assert np.abs(fine - coarse).max() <= 0.020
    table, duration, _, _ = people_presses(story)
    matrix = press_matrix(table, duration, 0.001)
    rng = np.random.default_rng(2)
    for weights in rng.multinomial(205, np.full(205, 1 / 205), size=3):
        density = smooth(weights.astype(np.float32) @ matrix / 205, 0.001)
        fine = peaks(density, 0.001)
        coarse = peaks(people.density(weights), people.step)
        assert len(fine) == len(coarse)
        assert np.abs(fine - coarse).max() <= 0.020


def test_ceilings(people: People) -> None:
    found = ceilings(people, n_splits=40)
    moved, differing = found["wasserstein"], found["hamming"]
    assert len(moved.leave_one_out) == 205
    assert moved.low == moved.split_half_mean == pytest.approx(0.034, abs=0.004)
    assert moved.high == moved.leave_one_out_mean == pytest.approx(0.0725, abs=0.0005)
    assert differing.low == differing.split_half_mean == pytest.approx(0.061, abs=0.006)
    assert differing.high == differing.leave_one_out_mean == pytest.approx(0.232, abs=0.002)


def test_presses_after_the_story_mark_nothing_in_it(story: Story, people: People) -> None:
    end = story.words["offset"].iloc[-1]
    late = story.consensus("presses")[-1]
    assert late > end  # 431.04 s: 97 people press when the story is over
    for rule in ("next", "previous", "nearest", "sentence"):
        ref = reference(story, source="presses", rule=rule, match=None)
        assert len(ref.words) == ref.gaps.sum() == 18
    assert (people.gap_word_of_bin[people.word_of_bin == story.n_words][-1:] == story.n_words).all()


def test_interval_contains_the_value_of_distant_boundaries(story: Story, people: People) -> None:
    ref = reference(story)
    resamples = bootstrap_consensus(people, draws=200)
    rng = np.random.default_rng(3)
    n = story.n_words
    outside = 0
    for _ in range(20):
        words = np.sort(rng.choice(np.arange(1, n), 18, replace=False))
        events = Boundaries(words, n=n, unit="word", method="R")
        interval = bootstrap_interval(events, resamples)
        for measure, distance in distances(events, ref).items():
            outside += bool(interval[measure].remark(distance.value))
    assert outside <= 2  # of 40
    # and the documented bias: people's own boundaries lie below their interval
    own = Boundaries(ref.words, n=n, unit="word", method="S")
    interval = bootstrap_interval(own, resamples)["wasserstein"]
    assert "above the value" in interval.remark(distances(own, ref)["wasserstein"].value)
