"""Refinement O against every cut there is, and as a bound of M."""

from __future__ import annotations

import time
import warnings
from itertools import combinations, pairwise

import numpy as np
import pytest
from fakes import fake_trace
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph
from workbench.events.methods import segment
from workbench.events.optimum import UNLIMITED, optimal_boundaries
from workbench.events.refinement import refine


def modularity(weights, starts):
    """Newman's Q from its definition: Σ_c Σ_ij∈c (A_ij / W − d_i d_j / W²)."""
    total, degree = weights.sum(), weights.sum(axis=1)
    surplus = weights / total - np.outer(degree, degree) / total**2
    edges = [*starts, len(weights)]
    return sum(surplus[a:b, a:b].sum() for a, b in pairwise(edges))


def every_cut(n, least, longest, final):
    for k in range(n):
        for inner in combinations(range(1, n), k):
            lengths = np.diff([0, *inner, n])
            short = (lengths[:-1] < least).any() or lengths[-1] < min(final, n)
            if lengths.max() <= longest and not short:
                yield [0, *inner]


def keys_for(n, seed, shift, d=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) + shift * rng.normal(size=d)


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(2, 10),
    seed=st.integers(0, 9999),
    least=st.integers(1, 4),
    room=st.integers(0, 8),
    final=st.integers(1, 4),
    shift=st.sampled_from([1.0, 30.0]),
    diagonal=st.booleans(),
)
def test_it_is_the_best_of_all_cuts(n, seed, least, room, final, shift, diagonal):
    graph = KeyGraph(keys_for(n, seed, shift), diagonal=diagonal)
    weights = graph.to_dense()
    assume(weights.sum() > 1e-3 * np.abs(weights).sum())
    longest, final = least + room, min(final, least)
    cuts = {tuple(cut): modularity(weights, cut) for cut in every_cut(n, least, longest, final)}
    sizes = {"min_size": least, "max_size": longest, "last_size": final}
    if not cuts:
        with pytest.raises(InputError, match="no number of events"):
            optimal_boundaries(graph, **sizes)
        return
    counts = sorted({len(cut) for cut in cuts})
    found = optimal_boundaries(graph, **sizes)
    assert tuple(found.starts) in cuts
    best = max(cuts.values())
    assert found.settings["modularity"] == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert cuts[tuple(found.starts)] == pytest.approx(best, rel=1e-9, abs=1e-12)
    for k in counts:
        exact = optimal_boundaries(graph, n_events=k, **sizes)
        assert exact.n_events == k
        of_k = max(value for cut, value in cuts.items() if len(cut) == k)
        assert cuts[tuple(exact.starts)] == pytest.approx(of_k, rel=1e-9, abs=1e-12)
        most = optimal_boundaries(graph, at_most=k, **sizes)
        assert most.n_events <= k
        up_to_k = max(value for cut, value in cuts.items() if len(cut) <= k)
        assert cuts[tuple(most.starts)] == pytest.approx(up_to_k, rel=1e-9, abs=1e-12)
    if longest >= n:
        assert optimal_boundaries(graph, **{**sizes, "max_size": None}) == found
        if final == least:
            assert optimal_boundaries(graph, min_size=least, max_size=longest) == found


def test_blocks_of_ends_join(monkeypatch):
    graph = KeyGraph(keys_for(700, 1, 2.0, d=8))
    whole = [
        optimal_boundaries(graph),
        optimal_boundaries(graph, n_events=30),
        optimal_boundaries(graph, n_events=5, max_size=None),
    ]
    monkeypatch.setattr("workbench.events.optimum._ENDS", 7)
    assert whole == [
        optimal_boundaries(graph),
        optimal_boundaries(graph, n_events=30),
        optimal_boundaries(graph, n_events=5, max_size=None),
    ]


def distinct_events(seed, shift, noise=0.05):
    """Events of 27 ... 33 positions, each with a direction of its own."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(27, 34, 12)
    keys = np.repeat(np.eye(12), lengths, axis=0) + shift
    return keys + noise * rng.normal(size=keys.shape), Boundaries.from_lengths(lengths)


@pytest.mark.parametrize("shift", [0.0, 1.0, 1e4])
def test_distinct_events_are_the_optimum(shift):
    # Also where what all keys share is so large that plain differences of squares would drown it.
    keys, planted = distinct_events(3, shift)
    graph = KeyGraph(keys)
    for options in ({}, {"n_events": 12}, {"at_most": 30}, {"n_events": 12, "max_size": None}):
        found = optimal_boundaries(graph, **options)
        assert found == planted
        assert found.settings["modularity"] == graph.modularity(planted)


def test_bounds_bind():
    keys, planted = distinct_events(3, 0.0)
    graph = KeyGraph(keys)
    merged = optimal_boundaries(graph, at_most=6)
    assert merged.n_events == 6
    assert set(merged.inner) <= set(planted.inner)
    assert optimal_boundaries(graph, max_size=20).lengths.max() <= 20


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 9999),
    st.sampled_from([None, 5]),
    st.sampled_from(["next", "rest", "three"]),
    st.sampled_from([12, 40, None]),
)
def test_refinement_never_beats_it(seed, k, scope, max_size):
    rng = np.random.default_rng(seed)
    n = 300
    trace = fake_trace(
        rng.gamma(1.5, 2.0, n), rng.normal(size=(1, 2, n, 4)) + 2 * rng.normal(size=(1, 2, 1, 4))
    )
    graph = trace.key_graph().summed()
    options = {"n_boundaries": k, "scope": scope, "max_size": max_size}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        surprise, moved, best = (segment(trace, code, **options) for code in ("S", "SM", "SO"))
        most = segment(trace, "SO", optimum="at most", **options)
        free = segment(trace, "SO", optimum="free", **options)
    assert best.n_events == moved.n_events == surprise.n_events
    assert best.method == "SO"
    assert best.open == surprise.open
    limit = 1e-12
    assert graph.modularity(best) >= graph.modularity(moved) - limit
    assert graph.modularity(best) >= graph.modularity(surprise) - limit
    assert graph.modularity(most) >= graph.modularity(best) - limit
    assert most.n_events <= surprise.n_events
    if max_size is not None:
        assert free.lengths.max() <= max_size
    assert best.settings["refinement"]["optimum"] == "exactly"


def test_heads_are_added():
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(3, 200, 4)) + 1
    assert optimal_boundaries(KeyGraph(keys)) == optimal_boundaries(KeyGraph(keys).summed())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_events": 3, "at_most": 3}, "not both"),
        ({"n_events": 0}, "n_events=0 must be a whole number of at least 1"),
        ({"at_most": 1.5}, "at_most=1.5 must be"),
        ({"n_events": 1, "max_size": 50}, "1 events of at most max_size=50 cannot cover 100.*2"),
        ({"n_events": 14}, "n_events=14 events of at least min_size=8 do not fit into 100"),
        ({"min_size": 0}, "min_size=0"),
        ({"last_size": 9}, "last_size=9 must lie between 1 and min_size=8"),
        ({"min_size": 60, "max_size": 70}, "no number of events of 60 to 70 positions covers 100"),
        ({"max_size": 4}, "max_size=4 is smaller"),
    ],
)
def test_impossible_cuts_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        optimal_boundaries(KeyGraph(keys_for(100, 0, 1.0)), **options)


def test_limits_are_said():
    long = KeyGraph(np.ones((UNLIMITED + 1, 2)))
    with pytest.raises(InputError, match=r"33,566,721 gains \(0\.3 GB\)\. Give a max_size"):
        optimal_boundaries(long, max_size=None)
    flat = KeyGraph(np.ones((20_000, 1)))
    with pytest.raises(InputError, match=r"n_events=19000 .* a table of 4\.6 GB"):
        optimal_boundaries(flat, n_events=19_000, min_size=1)
    assert optimal_boundaries(flat, at_most=19_000).n == 20_000  # as good as any number
    keys = keys_for(50, 0, 0.0)
    with pytest.raises(InputError, match="total weight"):
        optimal_boundaries(KeyGraph(keys - keys.mean(axis=0), diagonal=False))
    with pytest.raises(InputError, match="optimum='best' is not known"):
        segment(
            fake_trace(np.ones(100) + np.arange(100), np.ones((100, 2))), "FO:10", optimum="best"
        )


def test_it_is_a_local_optimum_of_the_refinement():
    graph = KeyGraph(keys_for(600, 5, 3.0, d=6))
    best = optimal_boundaries(graph, n_events=20, max_size=None)
    for scope in ("next", "rest", "three"):
        moved = refine(graph, best, scope=scope)
        assert graph.modularity(moved) <= graph.modularity(best) + 1e-12


def test_long_texts_take_seconds():
    graph = KeyGraph(keys_for(8192, 0, 1.0, d=64))
    begin = time.perf_counter()
    found = optimal_boundaries(graph)
    assert time.perf_counter() - begin < 5
    assert found.lengths.max() <= 128
    assert found.lengths.min() >= 8


def test_long_proposals_can_be_met():
    keys = keys_for(900, 2, 1.0)
    trace = fake_trace(np.arange(900.0), keys)
    graph = trace.key_graph(int(trace.layers[-1]), 0)
    moved, best = (segment(trace, f"F{x}:300", graph=graph, max_size=16) for x in "MO")
    assert moved.n_events == best.n_events == 3
    assert graph.modularity(best) >= graph.modularity(moved)
