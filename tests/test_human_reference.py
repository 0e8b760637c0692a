"""What methods are compared with: counts, rules, notes, and the table over the rules."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fakes import fake_story

from workbench.analysis.human import ABSENT, words_to_gaps
from workbench.analysis.reference import (
    SELF,
    distances,
    distances_many,
    likely_times_on_words,
    reference,
)
from workbench.analysis.sensitivity import percentile_distances, rule_sensitivity
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.story import Story
from workbench.stories.presses import presses_from_times

N_WORDS = 60


def sentences(every: int = 6) -> list[str]:
    """60 words in sentences of six: "Word word word word word word."."""
    return [
        ("Word" if i % every == 0 else "word") + ("." if i % every == every - 1 else "")
        for i in range(N_WORDS)
    ]


def presses(seed: int = 0, n_people: int = 15, condition: str = "") -> pd.DataFrame:
    """People who press about 12, 24 and 42 s, and once anywhere."""
    rng = np.random.default_rng(seed)
    times = np.array([12.0, 24.0, 42.0])
    rows = [
        (f"s{i}", t)
        for i in range(n_people)
        for t in [*(times + rng.normal(0, 0.3, 3)), rng.uniform(2, 58)]
    ]
    subject, time = zip(*rows)
    return presses_from_times(subject, time, condition=condition)


def timed(**options) -> Story:
    return fake_story(sentences(), seconds_per_word=1.0, **options)


def cut(words: list[int], method: str = "S") -> Boundaries:
    return Boundaries([0, *words], n=N_WORDS, unit="word", method=method)


# --- the reference ------------------------------------------------------------------------------


def test_people_by_hand() -> None:
    # Word i starts at i s and ends at i + 0.8 s; sentences start at 0, 6, 12, ...; the gap before
    # word 12 lies at (11.8 + 12) / 2 = 11.9 s, the one before word 18 at 17.9 s.
    story = timed(people=[11.95, 15.1, 30.4])
    assert story.sentence_starts().tolist() == list(range(0, 60, 6))
    ref = reference(story)
    assert (ref.kind, ref.source, ref.match, ref.count, ref.n_times) == (
        "people",
        "published",
        "people",
        3,
        3,
    )
    assert ref.words.tolist() == [12, 16, 31]
    assert np.flatnonzero(ref.gaps).tolist() == [1, 2, 4]  # before words 12, 18 and 30
    assert reference(story, rule="previous").words.tolist() == [11, 15, 30]
    assert reference(story, rule="nearest").words.tolist() == [12, 15, 30]
    by_sentence = reference(story, rule="sentence")
    assert by_sentence.words.tolist() == [12, 18, 30]
    np.testing.assert_array_equal(by_sentence.gaps, ref.gaps)


def test_two_times_on_one_gap_count_once() -> None:
    ref = reference(timed(people=[11.0, 12.5, 30.0]))
    assert ref.count == 3
    assert ref.gaps.sum() == 2


def test_author() -> None:
    ref = reference(fake_story(sentences(), author=[13, 31]))
    assert (ref.kind, ref.source) == ("author", "scenes")
    assert ref.words.tolist() == [13, 31]
    assert np.flatnonzero(ref.gaps).tolist() == [1, 4]
    unranked = reference(fake_story(sentences(), author=[13]), match="method", n_boundaries=4)
    assert unranked.words is None
    assert "author" in unranked.note


def test_people_come_before_the_author() -> None:
    story = timed(people=[30.0], author=[13, 31])
    assert reference(story).kind == "people"
    assert reference(story, kind="author").count == 2


def test_method_matching_takes_the_most_likely_positions() -> None:
    story = timed(people=[5.0], presses=presses())
    for k in (1, 2, 3, 10):
        ref = reference(story, match="method", n_boundaries=k)
        assert ref.count == len(np.unique(ref.words)) == k
        assert ref.source == "presses"
        if k <= 3:
            assert all(np.abs(np.array([12, 24, 42]) - word).min() <= 1 for word in ref.words)
    more = reference(story, match="method", n_boundaries=10)
    fewer = reference(story, match="method", n_boundaries=3)
    assert set(fewer.words) <= set(more.words)
    # the same positions as the annotation's own conversion
    own = story.boundaries(kind="people", n_boundaries=10)
    np.testing.assert_array_equal(own.inner, more.words)


def test_method_matching_without_presses_is_undefined_and_says_so() -> None:
    ref = reference(timed(people=[5.0]), match="method", n_boundaries=4)
    assert ref.words is None
    assert ref.count is None
    result = distances(cut([5, 9, 20, 30]), ref)
    assert all(np.isnan(d.value) and "only consensus times" in d.note for d in result.values())


def test_more_than_people_pressed_is_undefined_and_says_so() -> None:
    few = presses_from_times(["a", "b"], [10.0, 10.1])
    ref = reference(timed(presses=few), match="method", n_boundaries=40)
    assert ref.words is None
    assert "40 boundaries" in ref.note


def test_without_word_times_people_have_a_count_but_no_place() -> None:
    ref = reference(fake_story(sentences(), people=[3.0, 9.0]))
    assert ref.count == 2
    assert ref.words is None
    assert "no public times" in distances(cut([5]), ref)["hamming"].note


def test_without_annotation() -> None:
    ref = reference(fake_story(sentences()))
    assert ref.kind is None
    assert "no boundaries" in ref.note
    assert np.isnan(distances_many([[3, 5]], ref)["wasserstein"]).all()


def test_text_without_sentences_has_no_hamming() -> None:
    # 250 words and not one full stop: every boundary would go to one gap, at a distance of 0.
    story = fake_story(250, seconds_per_word=1.0, people=[30.0, 80.0])
    ref = reference(story)
    events = Boundaries([0, 30, 90], n=250, unit="word", method="S")
    result = distances(events, ref)
    assert np.isfinite(result["wasserstein"].value)
    assert np.isnan(result["hamming"].value)
    assert "punctuation" in result["hamming"].note
    many = distances_many([[30, 90]], ref)
    assert many["wasserstein"][0] == result["wasserstein"].value
    assert np.isnan(many["hamming"][0])
    by_sentence = distances(events, reference(story, rule="sentence"))
    assert all(np.isnan(d.value) and "punctuation" in d.note for d in by_sentence.values())


def test_likely_times_on_words_by_a_slow_search() -> None:
    from workbench.stories.consensus import likely_times

    rng = np.random.default_rng(2)
    density = np.convolve(rng.random(3000), np.ones(30) / 30, mode="same")
    step = 0.01

    def place(times: np.ndarray) -> np.ndarray:
        return (times / 2.5).astype(np.int64)  # 12 "words" of 2.5 s, number 0 ... 11

    for k in (1, 4, 11, 12):
        found: dict[int, float] = {}
        for time in likely_times(density, step, len(density)):
            word = int(time / 2.5)
            if 0 < word < 12 and word not in found and len(found) < k:
                found[word] = time
        times = likely_times_on_words(density, step, k, place, 12)
        np.testing.assert_allclose(times, list(found.values()))
    assert len(times) == 11  # words 1 ... 11: fewer than asked for


# --- distances ------------------------------------------------------------------------------------


def test_distances_by_hand() -> None:
    ref = reference(timed(people=[11.9, 29.5]))  # words 12 and 30, gaps 1 and 4
    result = distances(cut([12, 33]), ref)  # 33 is as near to 30 as to 36: the earlier gap
    assert result["wasserstein"].value == pytest.approx(3 / 2 / 60)
    assert result["hamming"].value == 0
    assert result["hamming"].note == ""
    result = distances(cut([13, 14, 50]), ref)  # gaps 1, 1 and 7 (48) against 1 and 4
    assert result["hamming"].value == pytest.approx(2 / 9)
    assert "1 of 3 boundaries share" in result["hamming"].note
    assert "3 boundaries against 2" in result["wasserstein"].note
    assert "share" not in result["wasserstein"].note


def test_people_against_themselves_are_undefined() -> None:
    story = timed(people=[11.9, 29.5])
    result = distances(story.boundaries(), reference(story))
    assert {d.note for d in result.values()} == {SELF}
    assert all(np.isnan(d.value) for d in result.values())


def test_no_boundary_to_move() -> None:
    result = distances(cut([]), reference(timed(people=[11.9, 29.5])))
    assert np.isnan(result["wasserstein"].value)
    assert "no boundary to move" in result["wasserstein"].note
    assert result["hamming"].value == pytest.approx(2 / 9)


def test_many_equal_one_by_one() -> None:
    rng = np.random.default_rng(3)
    ref = reference(timed(people=[11.9, 29.5, 48.2]))
    draws = np.sort(rng.integers(1, N_WORDS, (20, 4)), axis=1)
    draws[:, 1:][draws[:, 1:] == draws[:, :-1]] = ABSENT
    many = distances_many(draws, ref)
    for i, row in enumerate(draws):
        single = distances(cut(row[row > 0].tolist()), ref)
        for measure, distance in single.items():
            assert many[measure][i] == pytest.approx(distance.value, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: reference(s, match="both"), "match='both'"),
        (lambda s: reference(s, match="method"), "needs n_boundaries"),
        (lambda s: reference(s, kind="model"), "kind='model'"),
        (lambda s: distances(Boundaries([0, 3], n=9), reference(s)), "60 words, got 9 tokens"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(timed(people=[11.9]))


# --- sensitivity ----------------------------------------------------------------------------------


def test_table_over_the_rules() -> None:
    story = timed(people=[11.95, 15.1, 30.4])
    table = rule_sensitivity(story, {"S": cut([12, 16, 31]), "F": cut([15, 30, 45])})
    assert len(table) == 2 * 4 * 2
    by = table.set_index(["method", "rule", "measure"])["value"]
    assert by["S", "next", "wasserstein"] == 0
    assert by["S", "previous", "wasserstein"] == pytest.approx(1 / 60)
    assert by["S", "nearest", "wasserstein"] == pytest.approx((0 + 1 + 1) / 3 / 60)
    # "next" gives word 16, whose nearest gap is 18; "previous" gives 15: 12 by the tie.
    assert by["S", "next", "hamming"] == 0
    marks = words_to_gaps([11, 15, 30], N_WORDS, story.sentence_starts())
    own = words_to_gaps([12, 16, 31], N_WORDS, story.sentence_starts())
    assert by["S", "previous", "hamming"] == pytest.approx((marks != own).mean())
    assert by["S", "previous", "hamming"] > 0


def test_table_over_the_rules_is_empty_for_an_author() -> None:
    table = rule_sensitivity(fake_story(sentences(), author=[13]), {"S": cut([12])})
    assert table.empty
    assert "rule" in table.columns


def test_percentiles() -> None:
    story = timed(presses=presses())
    table = percentile_distances(story, {"S": cut([12, 24, 42])}, percentiles=(80, 95))
    assert table["few_people"].all()
    assert set(table["n_people"]) == {15}
    counts = table.drop_duplicates("percentile").set_index("percentile")["n_people_boundaries"]
    assert counts[95] == len(reference(story).words)
    usual = table[(table["percentile"] == 95) & (table["measure"] == "wasserstein")]
    assert (
        usual["value"].item() == distances(cut([12, 24, 42]), reference(story))["wasserstein"].value
    )
    assert percentile_distances(timed(people=[3.0]), {"S": cut([12])}).empty
