"""KeyGraph: bad input by message, dense and networkx forms, signs of the weights."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph


@pytest.mark.parametrize("shape", [(5,), (2, 2, 5, 3)])
def test_wrong_shape(shape):
    with pytest.raises(InputError, match=r"\(n, d\) or \(heads, n, d\)"):
        KeyGraph(np.ones(shape))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 5, 4)])
def test_no_numbers(shape):
    with pytest.raises(InputError, match="hold no numbers"):
        KeyGraph(np.ones(shape))


def test_wrong_type():
    with pytest.raises(InputError, match="real numbers, not complex128"):
        KeyGraph(np.ones((3, 2), dtype=complex))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_names_the_first_place(bad):
    keys = np.ones((3, 600, 8), dtype=np.float32)
    keys[2, 450, 1] = bad
    keys[1, 451, 1] = bad
    with pytest.raises(InputError, match=r"position 450 of head 2 \(2 keys in all"):
        KeyGraph(keys)
    with pytest.raises(InputError, match=r"at position 450 \(1 keys"):
        KeyGraph(keys[2])


def test_infinities_that_cancel_are_found():
    keys = np.ones((4, 2))
    keys[1], keys[2] = np.inf, -np.inf
    with pytest.raises(InputError, match="position 1"):
        KeyGraph(keys)


def test_overflow_is_named():
    with pytest.raises(InputError, match="overflow"):
        KeyGraph(np.full((4, 2), 1e200))


def test_events_of_another_length():
    graph = KeyGraph(np.ones((10, 2)))
    with pytest.raises(InputError, match=r"cut 9 words, but the graph has 10 positions.*to_tokens"):
        graph.modularity(Boundaries([0, 3], 9, unit="word"))


def test_index_of_another_length():
    with pytest.raises(InputError, match="index names 1 heads, keys have 2"):
        KeyGraph(np.ones((2, 5, 3)), index=[(0, 0)])


def test_unknown_options_list_the_known():
    graph, events = KeyGraph(np.ones((6, 2))), Boundaries([3], 6)
    with pytest.raises(InputError, match="'newman', 'em-llm'"):
        graph.modularity(events, "louvain")
    with pytest.raises(InputError, match="'standard', 'em-llm-paper', 'em-llm-code'"):
        graph.conductance(events, "em-llm")
    with pytest.raises(InputError, match="'min', 'mean', None"):
        graph.conductance(events, reduce="max")
    with pytest.raises(InputError, match="'sums', 'means'"):
        graph.intra_inter(events, "ratio")
    with pytest.raises(InputError, match="'mean', 'min', 'pooled', None"):
        graph.intra_inter(events, reduce="max")
    with pytest.raises(InputError, match='use variant="sums"'):
        graph.intra_inter(events, "means", "pooled")


def test_integers_and_lists_are_keys():
    graph = KeyGraph([[1, 0], [1, 0], [0, 1]])
    assert graph.to_dense().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert graph.to_dense().dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_keys_are_taken_in_any_precision_and_left_alone(dtype):
    keys = np.arange(12, dtype=dtype).reshape(2, 3, 2)
    before = keys.copy()
    graph = KeyGraph(keys)
    np.testing.assert_array_equal(graph.prefix[-1], keys.astype(float).sum(axis=1))
    np.testing.assert_array_equal(keys, before)


def test_to_networkx_keeps_the_degrees():
    keys = np.array([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]])
    peer = KeyGraph(keys).to_networkx()
    dense = keys @ keys.T
    degrees = [degree for _, degree in peer.degree(weight="weight")]
    np.testing.assert_allclose(degrees, dense.sum(axis=1))
    assert KeyGraph(keys, diagonal=False).to_networkx().number_of_edges() == 3


def test_to_networkx_of_several_heads():
    with pytest.raises(InputError, match=r"2 graphs.*summed\(\)"):
        KeyGraph(np.ones((2, 4, 3))).to_networkx()


def test_to_dense_refuses_what_does_not_fit():
    graph = KeyGraph(np.ones((50_000, 1), dtype=np.float32))
    with pytest.raises(InputError, match=r"20\.0 GB"):
        graph.to_dense()


def test_repr_names_size():
    assert repr(KeyGraph(np.ones((2, 4, 3)), diagonal=False)) == (
        "KeyGraph(2 heads over 4 positions, 3 dims, no diagonal)"
    )


# --- signs -------------------------------------------------------------------------------------


def test_negative_share_of_all_pairs():
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(3, 600, 4)) + 0.3  # more rows than one block
    found = KeyGraph(keys).negative_share()
    upper = np.triu_indices(600, k=1)
    expected = [((head @ head.T)[upper] < 0).mean() for head in keys]
    np.testing.assert_allclose(found.share, expected, rtol=1e-12)
    assert found.exact
    assert found.pairs == 600 * 599 // 2
    assert not np.any(found.error)


def test_negative_share_of_a_sample_is_within_its_error():
    rng = np.random.default_rng(1)
    keys = rng.normal(size=(2, 400, 4)) + 0.2
    graph = KeyGraph(keys)
    exact = graph.negative_share()
    sampled = graph.negative_share(sample=20_000, seed=3)
    assert not sampled.exact
    assert sampled.pairs == 20_000
    assert (np.abs(sampled.share - exact.share) < 4 * sampled.error).all()
    np.testing.assert_allclose(
        sampled.error, np.sqrt(exact.share * (1 - exact.share) / 20_000), rtol=0.05
    )
    again = graph.negative_share(sample=20_000, seed=3)
    np.testing.assert_array_equal(sampled.share, again.share)


def test_negative_share_of_a_summed_graph():
    keys = np.random.default_rng(2).normal(size=(3, 50, 4))
    summed = KeyGraph(keys).summed()
    dense = summed.to_dense()
    expected = (dense[np.triu_indices(50, k=1)] < 0).mean()
    assert summed.negative_share().share == pytest.approx(expected)
    sampled = summed.negative_share(sample=1000)
    assert abs(sampled.share - expected) < 4 * sampled.error


def test_negative_share_without_pairs():
    found = KeyGraph(np.ones((1, 3))).negative_share()
    assert np.isnan(found.share)
    assert found.pairs == 0
    with pytest.raises(InputError, match="at least one pair"):
        KeyGraph(np.ones((4, 3))).negative_share(sample=0)
