"""Merging, dropping, splitting and thinning against loops written from their definitions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import InputError
from workbench.events.sizes import (
    drop_short,
    limit_sizes,
    merge_short,
    size_events,
    split_long,
    thin,
)


@st.composite
def flagged(draw):
    """n, sorted inner flags, their strengths (ties are common)."""
    n = draw(st.integers(2, 80))
    places = sorted(draw(st.sets(st.integers(1, n - 1), max_size=n - 1)))
    marks = draw(
        st.lists(
            st.sampled_from([0.5, 1.0, 1.5, np.inf]), min_size=len(places), max_size=len(places)
        )
    )
    return n, places, marks


def released_blocks(flags, n, least, most):
    """Block sizes as the released code forms them from the segments between flags."""
    edges = [0, *flags, n]
    sizes, carried = [], 0
    for row, (a, b) in enumerate(pairwise(edges)):
        carried += b - a
        while carried >= most:
            sizes.append(most)
            carried -= most
        if row < len(edges) - 2 and carried >= least:
            sizes.append(carried)
            carried = 0
    return [*sizes, carried] if carried else sizes


@settings(deadline=None)
@given(flagged(), st.integers(1, 12), st.integers(0, 20))
def test_limits_are_the_released_blocks(case, least, more):
    n, places, _ = case
    starts = limit_sizes(places, n, least, least + more)
    edges = np.array([0, *starts, n])
    assert np.diff(edges).tolist() == released_blocks(places, n, least, least + more)
    assert (np.diff(edges)[:-1] >= least).all()
    assert (np.diff(edges) <= least + more).all()


@settings(deadline=None)
@given(flagged(), st.integers(1, 12))
def test_merging_keeps_what_is_far_from_the_last_kept(case, least):
    n, places, _ = case
    kept = merge_short(places, least).tolist()
    last = 0
    for place in places:
        assert (place in kept) == (place - last >= least)
        last = place if place in kept else last
    assert kept == limit_sizes(places, n, least, None).tolist()


@settings(deadline=None)
@given(flagged(), st.integers(1, 12))
def test_dropping_looks_at_the_flag_before_kept_or_not(case, least):
    _, places, _ = case
    expected = [b for a, b in zip([0, *places], places) if b - a >= least]
    assert drop_short(places, least).tolist() == expected


def test_known_values():
    assert merge_short([20, 24, 29, 33], 8).tolist() == [20, 29]
    assert drop_short([20, 24, 29, 33], 8).tolist() == [20]
    assert split_long([300], 700, 128).tolist() == [128, 256, 300, 428, 556, 684]
    # The flag at 130 is 2 after the cut at 128, and merges; 256 is the next cut.
    assert limit_sizes([130], 300, 8, 128).tolist() == [128, 256]
    assert limit_sizes([128], 256, 8, 128).tolist() == [128]
    assert limit_sizes([], 128, 8, 128).tolist() == []
    assert limit_sizes([], 129, 8, 128).tolist() == [128]
    # The last event stays as it is, however short: it is open.
    assert merge_short([95], 100 - 10).tolist() == [95]


@settings(deadline=None)
@given(flagged(), st.integers(1, 12))
def test_splitting_only_adds_starts(case, most):
    n, places, _ = case
    starts = split_long(places, n, most)
    edges = [0, *places, n]
    expected = {a + i for a, b in pairwise(edges) for i in range(0, b - a, most)} - {0}
    assert starts.tolist() == sorted(expected)


@settings(deadline=None)
@given(flagged(), st.integers(1, 12), st.integers(0, 20), st.sampled_from(["merge", "drop"]))
def test_every_start_keeps_its_strength(case, least, more, short):
    n, places, marks = case
    cut = size_events(places, marks, n, min_size=least, max_size=least + more, short=short)
    kept = drop_short(places, least).tolist() if short == "drop" else places
    assert cut.starts.tolist() == limit_sizes(kept, n, least, least + more).tolist()
    strength = dict(zip(places, marks))
    expected = [strength[a] if a in kept else -np.inf for a in cut.starts.tolist()]
    assert cut.strength.tolist() == expected


def thin_oracle(places, marks, k, least):
    left = sorted(zip(places, marks), key=lambda pair: (-pair[1], pair[0]))
    kept = []
    while left and len(kept) < k:
        best = left.pop(0)[0]
        if all(abs(best - other) >= least for other in [0, *kept]):
            kept.append(best)
    return sorted(kept)


@settings(deadline=None)
@given(flagged(), st.integers(0, 10), st.integers(1, 12))
def test_thinning_is_greedy_from_the_strongest(case, k, least):
    _, places, marks = case
    cut = thin(places, marks, k, least)
    assert cut.starts.tolist() == thin_oracle(places, marks, k, least)
    strength = dict(zip(places, marks))
    assert cut.strength.tolist() == [strength[place] for place in cut.starts.tolist()]


def test_of_equally_strong_neighbours_the_earlier_stays():
    assert thin([10, 14, 30], [1.0, 1.0, 0.5], 2, 8).starts.tolist() == [10, 30]
    assert thin([10, 14, 30], [1.0, 1.1, 0.5], 2, 8).starts.tolist() == [14, 30]
    assert thin([7, 8], [9.0, 1.0], 5, 8).starts.tolist() == [8]  # 7 is too near to the start


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"min_size": 0}, "min_size=0 must be at least 1"),
        ({"min_size": 9, "max_size": 8}, "max_size=8 is smaller than min_size=9"),
        ({"short": "keep"}, "short='keep' is not known. Choose one of: 'merge', 'drop'"),
    ],
)
def test_bad_sizes_are_named(arguments, words):
    with pytest.raises(InputError, match=words):
        size_events([10], [1.0], 100, **arguments)
