"""Graphs whose weights are no dot products: dense matrices, networkx and the definition."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import fake_trace
from tests.oracles_graph import conductances, events_of, intra_inters, modularity
from workbench.analysis.graph import (
    EVENT_MEASURES,
    GRAPH_MEASURES,
    event_contributions,
    event_excess,
    measure_events,
    measure_segmentations,
)
from workbench.analysis.nulls import null_starts
from workbench.core import blockgraph
from workbench.core.blockgraph import BlockGraph
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph
from workbench.core.similarities import median_distance


def laplace(x, y):
    return np.exp(-np.abs(x[:, None] - y[None]).sum(axis=2) / 3)


def signed(x, y):
    return np.tanh(x @ y.T)


SIMILARITIES = ["clipped", "rbf", "exp", laplace, signed]


def dense_of(similarity, keys, diagonal=True):
    """Straight from the definitions, one pair at a time."""
    keys = np.asarray(keys, dtype=np.float64)
    n, d = keys.shape
    distances = [np.linalg.norm(keys[i] - keys[j]) for i in range(n) for j in range(i + 1, n)]
    sigma = np.median(distances) if distances else 1.0
    largest = max(float(k @ k) for k in keys)
    found = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            product = float(keys[i] @ keys[j])
            if similarity == "clipped":
                found[i, j] = max(0.0, product)
            elif similarity == "rbf":
                found[i, j] = np.exp(-np.sum((keys[i] - keys[j]) ** 2) / (2 * sigma**2))
            elif similarity == "exp":
                found[i, j] = np.exp((product - largest) / np.sqrt(d))
            else:
                found[i, j] = similarity(keys[i : i + 1], keys[j : j + 1])[0, 0]
            if i == j and not diagonal:
                found[i, j] = 0.0
    return found


def make(seed=0, n=40, d=5, shift=0.3):
    return np.random.default_rng(seed).normal(size=(n, d)) + shift


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_weights_and_measures_are_those_of_the_dense_graph(similarity, diagonal):
    keys = make()
    graph = BlockGraph(keys, similarity, diagonal=diagonal, block=7)
    dense = dense_of(similarity, keys, diagonal)
    np.testing.assert_allclose(graph.to_dense(), dense, rtol=1e-9, atol=1e-12)
    starts = [0, 9, 17, 30]
    events, communities = Boundaries(starts, 40), events_of(starts, 40)
    own = np.abs(dense).sum()  # the scale below which a total counts as zero
    assert graph.modularity(events) == pytest.approx(modularity(dense, communities, own), rel=1e-9)
    parts = graph.modularity(events, reduce=None)
    assert parts.shape == (4,)
    assert parts.sum() == pytest.approx(graph.modularity(events), rel=1e-12)
    for variant in ("standard", "em-llm-paper", "em-llm-code"):
        expected = conductances(dense, communities, variant, own)
        found = graph.conductance(events, variant, None)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert graph.conductance(events, variant, "min") == pytest.approx(
            min(expected), nan_ok=True
        )
    for variant in ("sums", "means"):
        expected = intra_inters(dense, communities, variant, own, diagonal)
        found = graph.intra_inter(events, variant, None)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        least = graph.intra_inter(events, variant, "min")
        assert least == pytest.approx(np.min(expected), nan_ok=True)


@pytest.mark.parametrize("similarity", ["clipped", "rbf"])
def test_networkx_agrees(similarity):
    graph = BlockGraph(make(1), similarity)
    starts = [0, 12, 25]
    communities = [set(c) for c in events_of(starts, 40)]
    peer = graph.to_networkx()
    events = Boundaries(starts, 40)
    assert graph.modularity(events) == pytest.approx(nx.community.modularity(peer, communities))
    each = [nx.conductance(peer, c, weight="weight") for c in communities]
    np.testing.assert_allclose(graph.conductance(events, reduce=None), each)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(1, 60),
    block=st.integers(1, 70),
    cuts=st.sets(st.integers(1, 59), max_size=8),
    similarity=st.sampled_from(["clipped", "rbf", laplace, signed]),
    diagonal=st.booleans(),
)
def test_any_block_size_gives_the_same_sums(seed, n, block, cuts, similarity, diagonal):
    keys = make(seed, n, 3)
    graph = BlockGraph(keys, similarity, block=block, diagonal=diagonal, scale=None)
    dense = graph.to_dense()
    events = Boundaries([c for c in sorted(cuts) if c < n], n)
    sums = graph.span_sums(events.edges[:-1], events.edges[1:])
    for i, (a, b) in enumerate(events):
        assert sums.within[i, 0] == pytest.approx(dense[a:b, a:b].sum(), rel=1e-10, abs=1e-10)
        assert sums.degree[i, 0] == pytest.approx(dense[a:b].sum(), rel=1e-10, abs=1e-10)
    assert graph.negative_share() == pytest.approx(
        (dense[np.triu_indices(n, 1)] < 0).mean() if n > 1 else np.nan, nan_ok=True
    )


def test_the_table_of_short_spans_and_single_spans_agree(monkeypatch):
    keys = make(2, 90, 4)
    rng = np.random.default_rng(0)
    starts = null_starts(Boundaries([20, 50, 61], 90), "uniform", 60, rng)
    graph = BlockGraph(keys, signed, block=16)
    by_table = measure_segmentations(graph, starts)
    called = []
    monkeypatch.setattr(BlockGraph, "_short_spans", lambda *_: called.append(1))
    monkeypatch.setattr(blockgraph, "_LONGEST", 0)  # no span is short
    one_by_one = measure_segmentations(BlockGraph(keys, signed, block=16), starts)
    assert not called
    for pair, values in by_table.items():
        np.testing.assert_allclose(values, one_by_one[pair], rtol=1e-9, atol=1e-13, err_msg=pair)


@pytest.mark.parametrize("similarity", ["clipped", "exp", signed])
def test_many_segmentations_of_many_heads_are_those_one_by_one(similarity):
    keys = np.stack([make(3), make(4), make(5)])
    graph = BlockGraph(keys, similarity, index=[(1, 0), (1, 1), (2, 0)], block=16)
    events = Boundaries([7, 16, 30], 40)
    starts = null_starts(events, "lengths", 9, np.random.default_rng(1))
    found = measure_segmentations(graph, starts)
    for row, start in enumerate(starts):
        cut = Boundaries(start, 40)
        np.testing.assert_allclose(found["modularity", "newman"][row], graph.modularity(cut))
        np.testing.assert_allclose(
            found["conductance", "standard:mean"][row], graph.conductance(cut, reduce="mean")
        )
        np.testing.assert_allclose(
            found["intra_inter", "sums:pooled"][row], graph.intra_inter(cut, reduce="pooled")
        )
        np.testing.assert_allclose(
            found["intra_inter", "means:min"][row], graph.intra_inter(cut, "means", "min")
        )
    contributions = event_contributions(graph, events)
    excess = event_excess(graph, events)
    for pair in GRAPH_MEASURES:
        assert contributions[pair].shape == excess[pair].shape == (4, 3)
        undefined = pair[1].endswith((":min", ":pooled"))
        assert np.isnan(contributions[pair]).all() == undefined
        assert np.isnan(excess[pair]).all() == undefined


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_the_summed_graph_has_the_summed_weights(similarity):
    keys = np.stack([make(6), make(7)])
    graph = BlockGraph(keys, similarity)
    summed = graph.summed()
    np.testing.assert_allclose(summed.to_dense(), graph.to_dense().sum(axis=0), rtol=1e-12)
    events = Boundaries([11, 23], 40)
    dense = graph.to_dense().sum(axis=0)
    expected = modularity(dense, events_of([0, 11, 23], 40), 1.0)
    assert summed.modularity(events) == pytest.approx(expected, rel=1e-9)
    assert summed.index == [(-1, -1)]
    one = graph.head(1)
    assert one.modularity(events) == pytest.approx(graph.modularity(events)[1])


def test_cosines_are_dot_products_of_unit_keys():
    keys = make(8, 30, 6)
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    graph = KeyGraph(keys, similarity="cosine")
    np.testing.assert_allclose(graph.to_dense(), unit @ unit.T, atol=1e-14)
    events = Boundaries([8, 20], 30)
    assert graph.modularity(events) == pytest.approx(KeyGraph(unit).modularity(events))
    scaled = keys * np.random.default_rng(0).uniform(0.1, 9, size=(30, 1))
    again = KeyGraph(scaled, similarity="cosine").modularity(events)
    assert again == pytest.approx(graph.modularity(events))  # lengths do not matter
    assert graph.summed().similarity == "cosine"


def test_clipping_changes_nothing_where_no_weight_is_negative():
    keys = np.abs(make(9))
    events = Boundaries([10, 24], 40)
    clipped, plain = BlockGraph(keys, "clipped"), KeyGraph(keys)
    assert clipped.modularity(events) == pytest.approx(plain.modularity(events), rel=1e-9)
    assert clipped.negative_share() == 0


def test_the_default_scale_of_the_gaussian_is_the_median_distance():
    keys = np.stack([make(10), 3 * make(10)])
    graph = BlockGraph(keys, "rbf")
    assert graph.scales == [median_distance(keys[0]), median_distance(keys[1])]
    assert graph.scales[1] == pytest.approx(3 * graph.scales[0])
    events = Boundaries([13], 40)
    first, second = graph.modularity(events)
    assert first == pytest.approx(second)  # scaling the keys changes nothing then
    assert BlockGraph(keys[0], "rbf", scale=0.1).modularity(events) != pytest.approx(first)


def test_exponential_weights_stay_finite_for_long_keys():
    graph = BlockGraph(100 * make(11), "exp")
    assert np.isfinite(graph.degrees).all()
    assert np.isfinite(graph.modularity(Boundaries([20], 40)))


def test_no_weight_at_all_is_undefined_with_a_warning():
    def nothing(x, y):
        return np.zeros((len(x), len(y)))

    graph = BlockGraph(make(12), nothing)
    with pytest.warns(RuntimeWarning, match="total weight is at most 1e-9"):
        assert np.isnan(graph.modularity(Boundaries([9], 40)))


def test_traces_offer_every_similarity():
    rng = np.random.default_rng(13)
    keys = rng.normal(size=(2, 2, 30, 4))
    trace = fake_trace(rng.normal(size=30), keys)
    layers = trace.layers.tolist()
    assert isinstance(trace.key_graph(similarity="cosine"), KeyGraph)
    graph = trace.key_graph(similarity="rbf", scale=2.0)
    assert isinstance(graph, BlockGraph)
    assert graph.index == [(layer, head) for layer in layers for head in (0, 1)]
    one = trace.key_graph(layers[1], 1, similarity=signed)
    assert one.scalar
    np.testing.assert_allclose(
        one.to_dense(), np.tanh(keys[1, 1].astype(np.float32) @ keys[1, 1].T), atol=1e-6
    )
    with pytest.raises(InputError, match="similarity='euclid' is not known"):
        trace.key_graph(similarity="euclid")
    with pytest.raises(InputError, match="scale= belongs to"):
        trace.key_graph(similarity="cosine", scale=1.0)


@pytest.mark.parametrize("kind", [KeyGraph, BlockGraph])
def test_measures_of_single_events_at_every_level(kind):
    keys = np.stack([make(14), make(15), make(16)])
    graph = kind(keys, index=[(4, 0), (4, 1), (6, 0)])
    events = Boundaries([10, 25], 40)
    table = measure_events(graph, events)
    assert len(table) == len(EVENT_MEASURES) * 3 * (3 + 2 + 1)
    rows = table[(table["measure"] == "conductance") & (table["variant"] == "em-llm-code")]
    each = graph.conductance(events, "em-llm-code", None)
    head = rows[(rows["layer"] == 4) & (rows["head"] == 1)]
    np.testing.assert_allclose(head["value"], each[:, 1])
    assert head[["start", "end", "size"]].to_numpy().tolist() == [
        [0, 10, 10],
        [10, 25, 15],
        [25, 40, 15],
    ]
    layer = rows[(rows["layer"] == 4) & rows["head"].isna()]
    np.testing.assert_allclose(layer["value"], each[:, :2].mean(axis=1))
    everything = rows[rows["layer"].isna() & rows["head"].isna()]
    np.testing.assert_allclose(everything["value"], each.mean(axis=1))
    summed = measure_events(graph.summed(), events, [("modularity", "newman")])
    assert set(zip(summed["layer"], summed["head"])) == {(-1, -1)}
    assert summed["value"].sum() == pytest.approx(graph.summed().modularity(events))
    with pytest.raises(InputError, match="of an event is not known"):
        measure_events(graph, events, [("conductance", "standard:min")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"similarity": "gauss"}, "similarity='gauss' is not known"),
        ({"similarity": "rbf", "scale": 0.0}, "must be a number above 0"),
        ({"similarity": "clipped", "scale": 1.0}, "not 'clipped'"),
        ({"similarity": signed, "scale": 1.0}, "scale= belongs to"),
        ({"similarity": lambda x, y: x @ y[:1].T}, "it must return"),
        ({"similarity": lambda x, y: x @ y.T + np.nan}, "NaN or infinite"),
        ({"similarity": lambda x, y: x @ y.T + x[:, :1]}, "not symmetric"),
        ({"block": 0}, "block=0"),
        ({"index": [(0, 0), (0, 1)]}, "index names 2 heads"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        BlockGraph(make(), **arguments)


def test_bad_keys():
    keys = make()
    keys[4, 1] = np.inf
    with pytest.raises(InputError, match="first at position 4"):
        BlockGraph(keys)
    with pytest.raises(InputError, match="first at position 4"):
        KeyGraph(keys, similarity="cosine")
    with pytest.raises(InputError, match="position 2 has length 0"):
        KeyGraph(np.array([[1.0, 0], [2, 0], [0, 0]]), similarity="cosine")
    with pytest.raises(InputError, match="median distance is 0"):
        BlockGraph(np.ones((10, 3)), "rbf")
    with pytest.raises(InputError, match="similarity='rbf' is not known"):
        KeyGraph(make(), similarity="rbf")
    with pytest.raises(InputError, match="no prefix sums"):
        _ = BlockGraph(make()).prefix
