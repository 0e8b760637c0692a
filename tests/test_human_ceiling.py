"""How close people come to each other, and people drawn anew: slow loops as oracles."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fakes import fake_story
from scipy.spatial.distance import hamming as scipy_hamming
from scipy.stats import wasserstein_distance
from test_human_reference import N_WORDS, cut, presses, sentences, timed

from workbench.analysis.bootstrap import Interval, bootstrap_consensus, bootstrap_interval
from workbench.analysis.ceiling import ceilings
from workbench.analysis.human import words_to_gaps
from workbench.analysis.people import people_on_words
from workbench.analysis.reference import distances, reference
from workbench.core.errors import InputError, MissingDataError
from workbench.stories.consensus import peaks, press_matrix, smooth
from workbench.stories.presses import presses_from_times
from workbench.stories.timing import times_to_words


def slow_consensus(table, story, rule: str) -> np.ndarray:
    """Consensus words of a table of presses, by the recipe on arrays and nothing else."""
    density = smooth(press_matrix(table, 60.0, 0.01).mean(axis=0), 0.01)
    onsets, offsets = story.words["onset"], story.words["offset"]
    times = peaks(density, 0.01)
    return times_to_words(times, onsets, offsets, rule, story.sentence_starts())


def slow_distances(first, second, story) -> tuple[float, float]:
    """Both measures of two (words, gap words), by scipy."""
    moved = wasserstein_distance(first[0], second[0]) / N_WORDS
    marks = [words_to_gaps(side[1], N_WORDS, story.sentence_starts()) for side in (first, second)]
    return moved, scipy_hamming(*marks)


def test_leave_one_out_equals_a_slow_loop() -> None:
    table = presses(n_people=6)
    story = timed(presses=table)
    found = ceilings(story, n_splits=2)
    onsets, offsets = story.words["onset"], story.words["offset"]
    for i, subject in enumerate(table["subject"].unique()):
        own, others = table[table["subject"] == subject], table[table["subject"] != subject]
        mine = [
            times_to_words(own["time"], onsets, offsets, rule, story.sentence_starts())
            for rule in ("next", "sentence")
        ]
        theirs = [slow_consensus(others, story, rule) for rule in ("next", "sentence")]
        expected = slow_distances(mine, theirs, story)
        got = [found[name].leave_one_out[i] for name in ("wasserstein", "hamming")]
        np.testing.assert_allclose(got, expected, atol=1e-12)
        assert found["hamming"].subjects[i] == subject


def test_split_half_equals_a_slow_loop() -> None:
    table = presses(n_people=7)
    story = timed(presses=table)
    found = ceilings(story, n_splits=4, seed=5)
    names = table["subject"].unique()
    rng = np.random.default_rng([5, 0])
    for split in range(4):
        chosen = names[rng.permutation(7)[:3]]
        halves = [table[table["subject"].isin(chosen)], table[~table["subject"].isin(chosen)]]
        sides = [[slow_consensus(h, story, rule) for rule in ("next", "sentence")] for h in halves]
        got = [found[name].split_half[split] for name in ("wasserstein", "hamming")]
        np.testing.assert_allclose(got, slow_distances(*sides, story), atol=1e-12)


def test_low_and_high_are_the_two_means_in_order() -> None:
    for ceiling in ceilings(timed(presses=presses()), n_splits=10).values():
        means = {ceiling.leave_one_out.mean(), ceiling.split_half.mean()}
        assert (ceiling.low, ceiling.high) == (min(means), max(means))


def test_people_who_agree_exactly_are_at_distance_zero_of_each_other() -> None:
    times = [12.0, 24.0, 42.0]
    table = presses_from_times(np.repeat(["a", "b", "c", "d"], 3), times * 4)
    for ceiling in ceilings(timed(presses=table), n_splits=5).values():
        assert ceiling.high == 0
        assert len(ceiling.leave_one_out) == 4


def test_seeded() -> None:
    story = timed(presses=presses())
    first, again, other = (ceilings(story, n_splits=6, seed=s)["wasserstein"] for s in (1, 1, 2))
    np.testing.assert_array_equal(first.split_half, again.split_half)
    assert not np.array_equal(first.split_half, other.split_half)
    np.testing.assert_array_equal(first.leave_one_out, other.leave_one_out)


def test_noisier_people_are_farther_apart() -> None:
    rng = np.random.default_rng(8)
    means = []
    for spread in (0.2, 6.0):
        times = (np.array([12.0, 24.0, 42.0]) + rng.normal(0, spread, (20, 3))).ravel()
        table = presses_from_times(np.repeat(np.arange(20), 3), np.clip(times, 1, 59))
        means.append(ceilings(timed(presses=table), n_splits=20)["wasserstein"].high)
    assert means[1] > 2 * means[0]


def test_who_is_left_out_is_said() -> None:
    table = presses(n_people=5)
    late = presses_from_times(["late"], [59.9])  # after the last word's onset
    story = timed(presses=pd.concat([table, late], ignore_index=True))
    ceiling = ceilings(story, n_splits=3)["wasserstein"]
    assert np.isnan(ceiling.leave_one_out).sum() == 1
    assert np.isfinite(ceiling.leave_one_out_mean)
    assert "1 of 6 people have no boundary inside the text" in ceiling.note


@pytest.mark.parametrize(
    ("story", "reason"),
    [
        (timed(people=[3.0]), "no presses of single people"),
        (fake_story(sentences(), author=[13]), "no presses of single people"),
        (fake_story(sentences(), presses=presses(), duration=60.0), "no public times"),
        (timed(presses=presses(n_people=1)), "fewer than two people"),
    ],
)
def test_undefined_with_the_reason(story, reason: str) -> None:
    for ceiling in ceilings(story).values():
        assert np.isnan([ceiling.low, ceiling.high]).all()
        assert reason in ceiling.note
    resamples = bootstrap_consensus(story, draws=3)
    assert reason in resamples.note
    for interval in bootstrap_interval(cut([12]), resamples).values():
        assert np.isnan([interval.low, interval.high]).all()
        assert reason in interval.note


def test_text_without_sentences_has_no_hamming_ceiling() -> None:
    story = fake_story(250, seconds_per_word=0.24, presses=presses())
    found = ceilings(story, n_splits=3)
    assert np.isfinite(found["wasserstein"].low)
    assert np.isnan(found["hamming"].low)
    assert "punctuation" in found["hamming"].note
    cuts = type(cut([1]))([0, 50, 90], n=250, unit="word")
    interval = bootstrap_interval(cuts, bootstrap_consensus(story, draws=5))
    assert np.isfinite(interval["wasserstein"].low)
    assert "punctuation" in interval["hamming"].note
    with pytest.raises(MissingDataError, match="punctuation"):
        people_on_words(story, rule="sentence")


def test_conditions() -> None:
    both = [presses(1, 5, "clear"), presses(2, 4, "noise")]
    table = pd.concat(both, ignore_index=True)
    story = timed(presses=table)
    assert people_on_words(story).condition == "clear"
    alone = ceilings(timed(presses=both[0]), n_splits=3)["wasserstein"]
    np.testing.assert_array_equal(
        ceilings(story, n_splits=3)["wasserstein"].leave_one_out, alone.leave_one_out
    )
    assert len(ceilings(story, n_splits=1, condition="noise")["hamming"].leave_one_out) == 4


def test_options_have_no_effect_on_people_already_placed() -> None:
    people = people_on_words(timed(presses=presses()))
    with pytest.raises(InputError, match="rule="):
        ceilings(people, rule="next")


# --- resampled people ---------------------------------------------------------------------------


def test_resamples_equal_a_slow_loop() -> None:
    table = presses(n_people=6)
    story = timed(presses=table)
    people = people_on_words(story)
    resamples = bootstrap_consensus(people, draws=5, seed=3)
    names = table["subject"].unique()
    counts = np.random.default_rng([3, 1]).multinomial(6, np.full(6, 1 / 6), size=5)
    for row, marks, weights in zip(resamples.words, resamples.gaps, counts):
        drawn = [
            table[table["subject"] == name].assign(subject=f"{name}-{copy}")
            for name, times in zip(names, weights)
            for copy in range(times)
        ]
        drawn = pd.concat(drawn, ignore_index=True)
        np.testing.assert_array_equal(row[row >= 0], slow_consensus(drawn, story, "next"))
        gap_words = slow_consensus(drawn, story, "sentence")
        expected = words_to_gaps(gap_words, N_WORDS, story.sentence_starts())
        np.testing.assert_array_equal(marks, expected)


def test_interval_is_the_percentiles_of_the_distances() -> None:
    story = timed(presses=presses())
    resamples = bootstrap_consensus(story, draws=40)
    events = cut([10, 30, 50])
    interval = bootstrap_interval(events, resamples, level=0.9)
    by_hand = [
        wasserstein_distance(row[row >= 0], events.inner) / N_WORDS for row in resamples.words
    ]
    got = (interval["wasserstein"].low, interval["wasserstein"].high)
    np.testing.assert_allclose(got, np.quantile(by_hand, [0.05, 0.95]))
    low, high = interval["hamming"]
    assert low - 1e-12 <= interval["hamming"].mean <= high + 1e-12


def test_k_most_likely_positions_of_every_resample() -> None:
    resamples = bootstrap_consensus(timed(presses=presses()), draws=10, n_boundaries=8)
    assert ((resamples.words >= 0).sum(axis=1) == 8).all()
    ceiling = ceilings(timed(presses=presses()), n_splits=4, n_boundaries=3)["wasserstein"]
    assert ceiling.split_half_mean < 0.05


def test_an_interval_that_excludes_the_value_says_so() -> None:
    interval = Interval(0.02, 0.05, 0.03)
    assert interval.remark(0.03) == ""
    assert interval.remark(float("nan")) == ""
    assert "above the value" in interval.remark(0.01)
    assert "below the value" in interval.remark(0.06)


def test_resampled_people_are_noisier_than_people() -> None:
    # The bias that the docstring names: boundaries equal to people's own have distance 0, and
    # no resample can be closer.
    story = timed(presses=presses(4, n_people=12))
    ref = reference(story)
    events = cut(ref.words.tolist())
    value = distances(events, ref)["wasserstein"].value
    interval = bootstrap_interval(events, bootstrap_consensus(story, draws=100))["wasserstein"]
    assert value == 0
    assert interval.mean > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: ceilings(s, n_splits=0), "n_splits=0"),
        (lambda s: bootstrap_consensus(s, draws=0), "draws=0"),
        (
            lambda s: bootstrap_interval(
                cut([3]).with_(unit="token"), bootstrap_consensus(s, draws=2)
            ),
            "60 words, got 60 tokens",
        ),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(timed(presses=presses()))
