"""Hamming distance over sentence gaps and the mapping of boundaries to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import distance

from workbench.analysis.human import (
    ABSENT,
    hamming,
    hamming_many,
    nearest_gaps,
    shuffle_p,
    token_draws_to_words,
    words_to_gaps,
)
from workbench.analysis.nulls import null_starts
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError

STARTS = [0, 4, 10, 13]  # four sentences in 20 words: gaps before words 4, 10 and 13


@st.composite
def texts(draw) -> tuple[int, list[int]]:
    n = draw(st.integers(2, 40))
    inner = draw(st.sets(st.integers(1, n - 1), min_size=1))
    return n, [0, *sorted(inner)]


# --- gaps -------------------------------------------------------------------------------------


def test_words_go_to_the_nearest_gap_by_hand() -> None:
    # 1 → 4; 7 is 3 from 4 and from 10: the earlier; 8 → 10; 12 → 13 (1 against 2); 19 → 13.
    marks = [words_to_gaps([word], 20, STARTS).tolist() for word in (1, 7, 8, 12, 19)]
    expected = [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert marks == [[bool(x) for x in row] for row in expected]
    assert words_to_gaps([1, 3, 8], 20, STARTS).tolist() == [True, True, False]  # 1, 3 share one
    assert words_to_gaps([], 20, STARTS).tolist() == [False] * 3


@given(texts())
@settings(deadline=None)
def test_nearest_gap_equals_a_slow_search(text: tuple[int, list[int]]) -> None:
    n, starts = text
    for word, gap in enumerate(nearest_gaps(n, starts)):
        away = [abs(word - start) for start in starts[1:]]
        assert gap == away.index(min(away))


@given(texts(), st.data())
@settings(deadline=None)
def test_many_rows_equal_one_by_one(text: tuple[int, list[int]], data: st.DataObject) -> None:
    n, starts = text
    row = st.lists(st.integers(-1, n - 1), min_size=4, max_size=4)
    rows = np.array(data.draw(st.lists(row, min_size=1, max_size=5)))
    together = words_to_gaps(rows, n, starts)
    for line, marks in zip(rows, together):
        np.testing.assert_array_equal(marks, words_to_gaps(line[line >= 0], n, starts))


def test_a_text_of_one_sentence_has_no_gap() -> None:
    assert words_to_gaps([3, 5], 9, [0]).shape == (0,)
    assert words_to_gaps([[3, 5], [1, ABSENT]], 9, [0]).shape == (2, 0)
    assert (nearest_gaps(9, [0]) == ABSENT).all()
    assert np.isnan(hamming([], []))
    assert np.isnan(hamming_many(np.zeros((2, 0)), [])).all()
    assert np.isnan(shuffle_p([], []))


# --- distance ---------------------------------------------------------------------------------

vectors = st.integers(1, 30).flatmap(
    lambda n: st.tuples(
        st.lists(st.booleans(), min_size=n, max_size=n),
        st.lists(st.booleans(), min_size=n, max_size=n),
    )
)


@given(vectors)
@settings(deadline=None)
def test_equals_scipy(pair: tuple[list[bool], list[bool]]) -> None:
    first, second = pair
    assert hamming(first, second) == pytest.approx(distance.hamming(first, second))
    assert hamming_many([first, second], second)[0] == pytest.approx(hamming(first, second))
    assert hamming_many([first, second], second)[1] == 0


def test_baseline_depends_on_the_counts_as_documented() -> None:
    apart = np.zeros(10, dtype=bool), np.zeros(10, dtype=bool)
    apart[0][[0, 3]] = True
    apart[1][[5, 6, 9]] = True
    assert hamming(*apart) == pytest.approx((2 + 3) / 10)
    assert hamming(np.zeros(10), apart[1]) == pytest.approx(3 / 10)


# --- p by shuffles ------------------------------------------------------------------------------


def test_shuffle_p_by_counting_all_shuffles() -> None:
    from itertools import permutations

    first, second = [1, 1, 0, 0, 0], [1, 0, 1, 0, 0]
    orders = set(permutations(first))
    closer = sum(hamming(order, second) <= hamming(first, second) for order in orders)
    assert shuffle_p(first, second) == pytest.approx(closer / len(orders))


def test_shuffle_p_is_what_shuffles_estimate() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random(60) < 0.25, rng.random(60) < 0.2
    second[:8] = first[:8]
    exact = shuffle_p(first, second)
    drawn = shuffle_p(first, second, draws=25_000, rng=rng)
    assert 0.001 < exact < 0.999
    assert drawn == pytest.approx(exact, abs=5 * np.sqrt(exact * (1 - exact) / 25_000))


@given(vectors)
@settings(deadline=None)
def test_shuffle_p_of_equal_vectors_is_the_smallest(pair: tuple[list[bool], list[bool]]) -> None:
    first, second = pair
    assert 0 < shuffle_p(second, second) <= 1
    if sum(first) == sum(second):
        assert shuffle_p(second, second) <= shuffle_p(first, second) + 1e-12


# --- null draws -----------------------------------------------------------------------------


@pytest.mark.parametrize("null", ["lengths", "uniform", "min_gap", "shift"])
def test_draws_map_to_words_as_boundaries_do(null: str) -> None:
    rng = np.random.default_rng(1)
    n_words = 25
    mapping = np.sort(rng.integers(0, n_words + 1, 70))  # some tokens lie past the last word
    mapping[0] = 0
    events = Boundaries([0, *np.sort(rng.choice(np.arange(1, 70), 20, replace=False))], n=70)
    draws = null_starts(events, null, 30, rng, min_size=2)
    words = token_draws_to_words(draws, mapping, n_words)
    assert words.shape == (30, 20)
    for starts, row in zip(draws, words):
        expected = Boundaries(starts, n=70).mapped(mapping, n_words, unit="word").inner
        np.testing.assert_array_equal(row[row != ABSENT], expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: token_draws_to_words([[1, 2]], [0, 1, 2], 3), "begin with token 0"),
        (lambda: token_draws_to_words([[0, 2, 1]], [0, 1, 2], 3), "in order"),
        (lambda: token_draws_to_words([[0, 3]], [0, 1, 2], 3), "lie in the 3 tokens"),
        (lambda: token_draws_to_words([[0, 1]], [1, 0], 2), "never decrease"),
        (lambda: words_to_gaps([20], 20, STARTS), "outside the 20 words"),
        (lambda: words_to_gaps([[[1]]], 20, STARTS), r"\(draws, k\)"),
        (lambda: words_to_gaps([1], 20, [4, 10]), "begin with word 0"),
        (lambda: words_to_gaps([1], 20, [0, 25]), "outside the 20 words"),
        (lambda: hamming([1, 0], [1]), "one entry per sentence gap"),
        (lambda: hamming_many([[1, 0]], [1]), "one entry per sentence gap"),
        (lambda: shuffle_p([1, 0], [1, 0], draws=10), "rng="),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
