"""KeyGraph's measures against dense weights summed in loops, networkx, and known values."""

from __future__ import annotations

import math
import warnings

import networkx as nx
import numpy as np
import oracles_graph as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from workbench.core.boundaries import Boundaries
from workbench.core.keygraph import KeyGraph


@st.composite
def graphs(draw, low=-2, high=3, max_n=12):
    """Whole-number keys, for which sums are exact, and a segmentation."""
    n = draw(st.integers(1, max_n))
    keys = draw(arrays(np.float64, (n, 3), elements=st.integers(low, high).map(float)))
    inner = draw(st.sets(st.integers(1, n - 1))) if n > 1 else set()
    return keys, Boundaries(sorted(inner), n)


def same(found, expected, tol=1e-12):
    np.testing.assert_allclose(found, expected, rtol=tol, atol=tol, equal_nan=True)


def quiet(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the total weight", RuntimeWarning)
        return call(*args, **kwargs)


def reduced(values, how):
    if any(map(math.isnan, values)):
        return math.nan
    return min(values) if how == "min" else math.fsum(values) / len(values)


@given(graphs(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_modularity_is_its_definition(case, diagonal):
    keys, events = case
    graph = KeyGraph(keys, diagonal=diagonal)
    dense = oracle.weights(keys, diagonal)
    expected = oracle.modularity(
        dense, oracle.events_of(events.starts, events.n), float((keys**2).sum())
    )
    same(quiet(graph.modularity, events), expected, 1e-10)
    same(quiet(graph.modularity, events, "em-llm"), expected / 2, 1e-10)


@given(graphs(), st.booleans(), st.sampled_from(["standard", "em-llm-paper", "em-llm-code"]))
@settings(max_examples=300, deadline=None)
def test_conductance_is_its_definition(case, diagonal, variant):
    keys, events = case
    graph = KeyGraph(keys, diagonal=diagonal)
    dense = oracle.weights(keys, diagonal)
    expected = oracle.conductances(
        dense, oracle.events_of(events.starts, events.n), variant, float((keys**2).sum())
    )
    same(quiet(graph.conductance, events, variant, None), expected)
    for how in ("min", "mean"):
        same(quiet(graph.conductance, events, variant, how), reduced(expected, how))


@given(graphs(), st.booleans(), st.sampled_from(["sums", "means"]))
@settings(max_examples=200, deadline=None)
def test_intra_inter_is_its_definition(case, diagonal, variant):
    keys, events = case
    graph = KeyGraph(keys, diagonal=diagonal)
    dense = oracle.weights(keys, diagonal)
    communities = oracle.events_of(events.starts, events.n)
    own = float((keys**2).sum())
    expected = oracle.intra_inters(dense, communities, variant, own, diagonal)
    same(quiet(graph.intra_inter, events, variant, None), expected)
    same(quiet(graph.intra_inter, events, variant), reduced(expected, "mean"))


@given(graphs(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_pooled_intra_inter_is_a_ratio_of_sums(case, diagonal):
    keys, events = case
    dense = oracle.weights(keys, diagonal)
    communities = oracle.events_of(events.starts, events.n)
    inner = sum(oracle.block(dense, c, c) for c in communities)
    cut = oracle.block(dense, range(events.n), range(events.n)) - inner
    undefined = cut <= 0 or oracle.nearly_no_weight(dense, float((keys**2).sum()))
    graph = KeyGraph(keys, diagonal=diagonal)
    same(quiet(graph.intra_inter, events, reduce="pooled"), math.nan if undefined else inner / cut)


def random_case(seed, n=80, d=16, shift=0.3, k=9):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(n, d)) + shift
    return keys, Boundaries(np.sort(rng.choice(n - 1, k, replace=False)) + 1, n)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("diagonal", [True, False])
def test_modularity_equals_networkx(seed, diagonal):
    keys, events = random_case(seed)
    graph = KeyGraph(keys, diagonal=diagonal)
    communities = [set(range(a, b)) for a, b in events]
    expected = nx.community.modularity(graph.to_networkx(), communities)
    assert abs(graph.modularity(events) - expected) < 1e-12


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("diagonal", [True, False])
def test_conductance_equals_networkx(seed, diagonal):
    keys, events = random_case(seed, shift=0.8)
    graph = KeyGraph(keys, diagonal=diagonal)
    peer = graph.to_networkx()
    expected = [nx.conductance(peer, set(range(a, b)), weight="weight") for a, b in events]
    same(graph.conductance(events, reduce=None), expected)


def test_many_heads_are_the_heads_one_by_one():
    rng = np.random.default_rng(1)
    keys = (rng.normal(size=(5, 60, 8)) + 0.5).astype(np.float32)
    events = Boundaries([0, 10, 33, 41], 60)
    together = KeyGraph(keys, index=[(0, h) for h in range(5)])
    for name, options in [
        ("modularity", {}),
        ("conductance", {"reduce": "mean"}),
        ("conductance", {"variant": "em-llm-code"}),
        ("intra_inter", {}),
        ("intra_inter", {"reduce": "pooled"}),
        ("intra_inter", {"variant": "means"}),
    ]:
        found = getattr(together, name)(events, **options)
        assert found.shape == (5,)
        alone = [getattr(KeyGraph(head), name)(events, **options) for head in keys]
        assert all(isinstance(value, float) for value in alone)
        same(found, alone)
    assert together.conductance(events, reduce=None).shape == (4, 5)
    assert KeyGraph(keys[0]).conductance(events, reduce=None).shape == (4,)


@pytest.mark.parametrize("diagonal", [True, False])
def test_summed_adds_the_weights_of_the_heads(diagonal):
    rng = np.random.default_rng(2)
    keys = rng.normal(size=(4, 30, 6)) + 0.3
    graph = KeyGraph(keys, diagonal=diagonal)
    summed = graph.summed()
    dense = graph.to_dense().sum(axis=0)
    same(summed.to_dense(), dense)
    assert np.shares_memory(summed.prefix, graph.prefix)
    assert summed.index == [(-1, -1)]
    events = Boundaries([0, 7, 19], 30)
    expected = oracle.modularity(dense, oracle.events_of(events.starts, 30), 1.0)
    assert summed.modularity(events) == pytest.approx(expected, abs=1e-13)
    assert summed.modularity(events) != pytest.approx(graph.modularity(events).mean(), abs=1e-6)
    same(summed.summed().to_dense(), dense)


def test_prefix_sums_are_running_sums_in_float64():
    rng = np.random.default_rng(3)
    # longer than one working block, so that the sums are carried across blocks
    keys = rng.normal(size=(3, 3000, 64)).astype(np.float32)
    graph = KeyGraph(keys)
    assert graph.prefix.shape == (3001, 3, 64)
    assert graph.prefix.dtype == np.float64
    running = np.cumsum(keys.astype(np.float64), axis=1).transpose(1, 0, 2)
    np.testing.assert_allclose(graph.prefix[1:], running, rtol=0, atol=1e-10)
    assert not graph.prefix[0].any()
    np.testing.assert_allclose(
        graph.norms[1:], np.cumsum((keys.astype(np.float64) ** 2).sum(axis=2), axis=1).T, rtol=1e-12
    )


def test_many_narrow_heads_and_long_rows_take_the_same_values():
    rng = np.random.default_rng(4)
    keys = rng.normal(size=(40, 50, 64)) + 0.2  # rows of 20 kB
    events = Boundaries([0, 9, 21, 30], 50)
    whole = KeyGraph(keys).modularity(events)
    same(whole, [KeyGraph(head).modularity(events) for head in keys])


def test_perfect_blocks_have_the_textbook_values():
    keys = np.zeros((40, 4))
    for event in range(4):
        keys[10 * event : 10 * event + 10, event] = 1
    events = Boundaries([0, 10, 20, 30], 40)
    graph = KeyGraph(keys)
    assert graph.modularity(events) == pytest.approx(1 - 1 / 4)
    assert graph.conductance(events) == 0
    assert math.isnan(graph.intra_inter(events))  # nothing is cut
    assert graph.modularity(Boundaries([0], 40)) == pytest.approx(0)


def test_one_event_has_no_conductance_and_no_intra_inter():
    graph = KeyGraph(np.ones((5, 2)))
    one = Boundaries([0], 5)
    for variant in ("standard", "em-llm-paper", "em-llm-code"):
        assert math.isnan(graph.conductance(one, variant))
    assert math.isnan(graph.intra_inter(one))
    assert math.isnan(graph.intra_inter(one, reduce="pooled"))


def test_rounding_never_poses_as_weight():
    """Single positions without the diagonal hold nothing; keys of opposed signs cut nothing."""
    rng = np.random.default_rng(5)
    keys = rng.normal(size=(30, 7)) * 1e3 + 1e3
    graph = KeyGraph(keys, diagonal=False)
    alone = Boundaries([0, 12, 13], 30)
    assert math.isnan(graph.conductance(alone, "em-llm-paper", None)[1])
    assert math.isnan(graph.conductance(alone, "em-llm-code", None)[1])
    assert graph.intra_inter(alone, reduce=None)[1] == 0
    assert math.isnan(graph.intra_inter(alone, "means", None)[1])
    orthogonal = np.zeros((20, 2))
    orthogonal[:10, 0] = rng.normal(size=10) + 3
    orthogonal[10:, 1] = rng.normal(size=10) + 3
    cut = Boundaries([10], 20)
    for _ in range(20):  # turned, so that the products' zeros are not exact in float64
        turned = KeyGraph(orthogonal @ np.linalg.qr(rng.normal(size=(2, 2)))[0])
        assert turned.conductance(cut) == 0
        assert math.isnan(turned.intra_inter(cut))
    assert math.isnan(KeyGraph(orthogonal).intra_inter(cut))


def test_conductance_of_the_paper_measures_event_size():
    """With keys that hardly differ, cut / within is about n/s - 1 for an event of s of n."""
    keys = np.ones((100, 3)) + 1e-6 * np.random.default_rng(6).normal(size=(100, 3))
    found = KeyGraph(keys).conductance(Boundaries([0, 20], 100), "em-llm-paper", None)
    assert found == pytest.approx([4, 4], rel=1e-4)


def test_total_weight_near_zero_is_nan_and_says_so():
    rng = np.random.default_rng(7)
    keys = rng.normal(size=(2, 50, 4))
    keys[1] -= keys[1].mean(axis=0)
    events = Boundaries([0, 20], 50)
    graph = KeyGraph(keys, index=[(3, 0), (3, 1)])
    with pytest.warns(RuntimeWarning, match=r"heads \[\(3, 1\)\].*1e-9"):
        found = graph.modularity(events)
    assert np.isfinite(found[0])
    assert math.isnan(found[1])
    # without the diagonal the total is negative; the formula would give a number far below -1
    with pytest.warns(RuntimeWarning, match="total weight is at most 1e-9"):
        assert math.isnan(KeyGraph(keys[1], diagonal=False).modularity(events))


def test_a_large_common_component_far_into_a_long_text():
    """Block sums at position 200,000 keep ten digits of a weight 1e-6 of the prefix."""
    rng = np.random.default_rng(8)
    n = 200_000
    keys = rng.normal(size=(n, 4)) + 100
    graph = KeyGraph(keys)
    events = Boundaries([0, n - 50], n)
    part = keys[-50:].astype(np.longdouble).sum(axis=0)
    within = graph.sums(events).within[1, 0]
    assert within == pytest.approx(float((part * part).sum()), rel=1e-10)
