"""Null segmentations: what they keep, and that all they can draw is equally likely."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from workbench.analysis.nulls import (
    NULLS,
    lengths_degenerate,
    null_min_size,
    null_note,
    null_starts,
)
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError


@st.composite
def cuts(draw, max_n=60):
    n = draw(st.integers(1, max_n))
    inner = draw(st.sets(st.integers(1, n - 1), max_size=12)) if n > 1 else set()
    return Boundaries(sorted(inner), n)


@given(cuts(), st.sampled_from(NULLS), st.integers(1, 20), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_every_draw_is_a_segmentation_of_the_same_kind(events, null, draws, min_size):
    found = null_starts(events, null, draws, np.random.default_rng(0), min_size)
    assert found.shape == (draws, events.n_events)
    assert found.dtype == np.int64
    for row in found:
        drawn = Boundaries(row, events.n)  # increasing, within the text
        assert row[0] == 0
        if null == "lengths":
            assert sorted(drawn.lengths) == sorted(events.lengths)
        if null == "min_gap":
            assert drawn.lengths.min() >= min(min_size, events.lengths.min())
        if null == "shift" and events.n_events > 1:
            period = events.n - 1
            gaps = {int(s) for s in row[1:]}
            turns = [{(int(s) - 1 + k) % period + 1 for s in events.inner} for k in range(period)]
            assert gaps in turns


def all_segmentations(events, null, min_size):
    n, k = events.n, events.n_events - 1
    if null == "lengths":
        found = {tuple(np.cumsum(order)[:-1].tolist()) for order in permutations(events.lengths)}
    elif null == "shift":
        period = n - 1
        found = {
            tuple(sorted((int(s) - 1 + turn) % period + 1 for s in events.inner))
            for turn in range(period)
        }
    else:
        least = 1 if null == "uniform" else min_size
        found = {
            inner for inner in combinations(range(1, n), k) if min(np.diff([0, *inner, n])) >= least
        }
    return sorted(found)


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize(("n", "inner"), [(12, [3, 7]), (13, [3, 6, 10]), (9, [4])])
def test_all_are_equally_likely(null, n, inner):
    events = Boundaries(inner, n)
    draws = 20_000
    rng = np.random.default_rng(sum(inner) + n)
    found = null_starts(events, null, draws, rng, min_size=3)
    possible = all_segmentations(events, null, 3)
    place = {inner: i for i, inner in enumerate(possible)}
    counts = np.bincount([place[tuple(row)] for row in found[:, 1:].tolist()], minlength=len(place))
    assert len(possible) > 1
    assert (counts > 0).all()
    assert chisquare(counts).pvalue > 1e-3


def test_lengths_with_repeats_are_equally_likely_orders():
    events = Boundaries.from_lengths([2, 2, 2, 5])
    found = null_starts(events, "lengths", 8000, np.random.default_rng(1))
    place = np.argmax(np.diff(np.c_[found, np.full(8000, 11)]), axis=1)
    assert chisquare(np.bincount(place, minlength=4)).pvalue > 1e-3


def test_same_seed_same_draws():
    events = Boundaries([5, 11, 30], 50)
    for null in NULLS:
        first, again = (null_starts(events, null, 7, np.random.default_rng(3)) for _ in range(2))
        np.testing.assert_array_equal(first, again)


def test_min_gap_is_lowered_to_the_shortest_event_and_said():
    events = Boundaries([20, 23, 60], 100)
    assert null_min_size(events, 8) == 3
    assert null_min_size(Boundaries([20, 60], 100), 8) == 8
    assert null_note(events, "min_gap", 8) == (
        "null min_gap: minimum size 3 (shortest event) instead of 8"
    )
    assert null_note(events, "min_gap", 3) == ""
    found = null_starts(events, "min_gap", 2000, np.random.default_rng(4), 8)
    assert np.diff(np.c_[found, np.full(2000, 100)]).min() == 3


@pytest.mark.parametrize(
    ("lengths", "degenerate"),
    [
        ([10, 10, 10, 10], True),
        ([10, 11, 10, 11], True),
        ([64, 64, 64, 12], True),  # fixed length, cut short by the end of the text
        ([64, 64, 64, 66], False),
        ([10, 12, 10, 11], False),
        ([10, 50, 30], False),
        ([10, 50], True),
        ([30], True),
    ],
)
def test_degenerate_lengths(lengths, degenerate):
    events = Boundaries.from_lengths(lengths)
    assert lengths_degenerate(events) is degenerate
    assert bool(null_note(events, "lengths")) is degenerate
    assert lengths_degenerate(Boundaries(np.unique(np.arange(7) * 100 // 7), 100))


def test_one_event_says_that_nothing_is_random():
    for null in NULLS:
        assert "one event" in null_note(Boundaries([0], 9), null)


def test_bad_options():
    events, rng = Boundaries([3], 9), np.random.default_rng(0)
    with pytest.raises(InputError, match="'lengths', 'uniform', 'min_gap', 'shift'"):
        null_starts(events, "random", 5, rng)
    with pytest.raises(InputError, match="draws=0 must be at least 1"):
        null_starts(events, "shift", 0, rng)
    with pytest.raises(InputError, match="min_size=0 must be at least 1"):
        null_starts(events, "min_gap", 5, rng, min_size=0)
