"""Communities of windowed graphs against planted scenes, scikit-learn and slow counts."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis.communities import (
    communities_against_events,
    contiguity,
    find_communities,
    windowed_graph,
)
from workbench.core.blockgraph import BlockGraph
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph


def scenes(seed=0, lengths=(20, 35, 25), d=8, noise=0.4):
    rng = np.random.default_rng(seed)
    centres = np.eye(d)[: len(lengths)] * 3
    return np.repeat(centres, lengths, axis=0) + noise * rng.normal(size=(sum(lengths), d))


def slow_edges(dense, window, strongest):
    n = len(dense)
    near = {(i, j) for i in range(n) for j in range(i + 1, min(n, i + window + 1))}
    if strongest is None:
        return near
    kept = set()
    for node in range(n):
        mine = sorted((e for e in near if node in e), key=lambda e: (-dense[e], e[0], e[1]))
        kept |= set(mine[:strongest])
    return kept


@pytest.mark.parametrize("kind", [lambda k: KeyGraph(k), lambda k: BlockGraph(k, "rbf")])
@pytest.mark.parametrize(("window", "strongest"), [(3, None), (7, 2), (100, 4), (500, None)])
def test_edges_are_the_strongest_in_the_window(kind, window, strongest):
    keys = np.abs(np.random.default_rng(1).normal(size=(40, 3)))
    graph = kind(keys)
    dense = graph.to_dense()
    found = windowed_graph(graph, window=window, strongest=strongest)
    assert {tuple(sorted(e)) for e in found.edges} == slow_edges(dense, window, strongest)
    largest = max(dense[e] for e in found.edges)
    for i, j, weight in found.edges(data="weight"):
        assert weight == pytest.approx(dense[i, j] / largest, abs=1e-6)


def test_what_is_done_with_negative_weights_is_named():
    keys = np.random.default_rng(2).normal(size=(30, 4))
    graph = KeyGraph(keys)
    dense = graph.to_dense()
    with pytest.raises(InputError, match="% of the weights in the window are negative"):
        windowed_graph(graph)
    clipped = windowed_graph(graph, window=5, strongest=None, negative="clip")
    assert all(dense[e] > 0 for e in clipped.edges)
    shifted = windowed_graph(graph, window=5, strongest=None, negative="shift")
    near = [(i, j) for i in range(30) for j in range(i + 1, min(30, i + 6))]
    least = min(dense[e] for e in near)
    top = max(dense[e] for e in near) - least
    assert shifted.number_of_edges() == len(near) - 1  # the smallest weight is 0 then
    for i, j, weight in shifted.edges(data="weight"):
        assert weight == pytest.approx((dense[i, j] - least) / top, abs=1e-6)


def test_planted_scenes_are_found_under_every_seed():
    found = find_communities(KeyGraph(scenes()), negative="clip", window=80, seeds=2)
    truth = np.repeat([0, 1, 2], [20, 35, 25])
    assert (found.labels == truth).all()
    assert found.contiguity.whole == 1
    assert found.contiguity.runs == found.contiguity.communities == 3
    # with a window over the whole text, nothing of the order is left when it is shuffled
    assert found.shuffled.neighbours < 0.6
    table = communities_against_events(
        found, {"true": Boundaries([20, 55], 80), "wrong": Boundaries([10, 40], 80)}, draws=49
    ).set_index(["method", "score", "null"])
    assert table.loc[("true", "adjusted_rand", "shift"), "value"] == 1
    assert table.loc[("true", "normalised_mutual_information", "shift"), "value"] == 1
    assert table.loc[("true", "adjusted_rand", "shift"), "p"] < 0.2
    assert table.loc[("wrong", "adjusted_rand", "lengths"), "value"] < 0.6


def test_a_window_alone_makes_contiguous_communities_and_the_control_says_so():
    keys = np.random.default_rng(3).normal(size=(200, 16)) + 2  # no scenes at all
    found = find_communities(KeyGraph(keys), window=10, strongest=None, seeds=2, negative="clip")
    assert found.contiguity.neighbours > 0.9
    assert found.shuffled.neighbours > 0.9
    events = {"S": Boundaries(np.arange(17, 200, 19), 200)}
    table = communities_against_events(found, events, nulls=["uniform"], draws=60)
    rand = table[table["score"] == "adjusted_rand"].iloc[0]
    assert rand["value"] > 0.2  # far from 0 without any agreement beyond contiguity
    assert abs(rand["z"]) < 3


def test_the_same_seed_gives_the_same_communities():
    graph = KeyGraph(np.abs(np.random.default_rng(4).normal(size=(60, 5))))
    first, second = (find_communities(graph, seeds=3, seed=7) for _ in range(2))
    assert (first.labels == second.labels).all()
    assert first.shuffled == second.shuffled
    sparse = windowed_graph(graph)
    parts = [set(np.flatnonzero(first.labels[0] == c)) for c in np.unique(first.labels[0])]
    assert first.modularity[0] == pytest.approx(nx.community.modularity(sparse, parts))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_contiguity_counts_runs(labels):
    found = contiguity(np.array(labels))
    runs = [labels[0]]
    same = 0
    for before, here in pairwise(labels):
        if here != before:
            runs.append(here)
        same += here == before
    assert found.runs == len(runs)
    assert found.communities == len(set(labels))
    assert found.whole == pytest.approx(np.mean([runs.count(c) == 1 for c in set(labels)]))
    assert found.neighbours == pytest.approx(same / (len(labels) - 1) if len(labels) > 1 else 1)


@pytest.mark.parametrize("kind", [KeyGraph, BlockGraph])
def test_reordered_graphs_have_the_weights_in_another_order(kind):
    keys = np.random.default_rng(5).normal(size=(3, 12, 4)) + 1
    order = np.random.default_rng(6).permutation(12)
    events = Boundaries([4, 9], 12)
    for graph in (kind(keys, diagonal=False), kind(keys).summed(), kind(keys[0])):
        moved = graph.reordered(order)
        dense = np.asarray(graph.to_dense())[..., order, :][..., order]
        np.testing.assert_allclose(moved.to_dense(), dense, atol=1e-12)
        again = kind(keys[:, order], diagonal=graph.diagonal)
        expected = again if graph.n_heads == len(keys) else again.summed()
        if graph.n_heads == 1 and graph.index is None:
            expected = kind(keys[0][order])
        np.testing.assert_allclose(
            moved.modularity(events), expected.modularity(events), rtol=1e-10
        )
        block = moved.weights(slice(2, 7), slice(5, 12))
        np.testing.assert_allclose(block, dense.reshape(-1, 12, 12)[0][2:7, 5:12], atol=1e-12)
        with pytest.raises(InputError, match="each of the 12 positions once"):
            graph.reordered(np.zeros(12, dtype=int))


def test_bad_input():
    graph = KeyGraph(np.abs(scenes()))
    with pytest.raises(InputError, match="negative='drop' is not known"):
        windowed_graph(graph, negative="drop")
    with pytest.raises(InputError, match="window=0"):
        windowed_graph(graph, window=0)
    with pytest.raises(InputError, match="strongest=0"):
        windowed_graph(graph, strongest=0)
    with pytest.raises(InputError, match="take one, or summed"):
        windowed_graph(KeyGraph(np.ones((2, 5, 3))))
    with pytest.raises(InputError, match="seeds=0"):
        find_communities(graph, seeds=0)
    with pytest.raises(InputError, match="no edge with a weight above 0"):
        find_communities(KeyGraph(np.eye(5)))
    found = find_communities(graph, seeds=1)
    with pytest.raises(InputError, match="S cuts 10 tokens"):
        communities_against_events(found, {"S": Boundaries([3], 10)})
    with pytest.raises(InputError, match="non-empty"):
        contiguity(np.zeros((2, 2)))
