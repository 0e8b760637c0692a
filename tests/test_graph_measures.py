"""Measures of many segmentations at once against KeyGraph's methods one by one."""

from __future__ import annotations

import math
import tracemalloc
import warnings

import numpy as np
import pytest

from workbench.analysis import graph as module
from workbench.analysis.graph import (
    GRAPH_MEASURES,
    event_contributions,
    event_excess,
    measure_segmentations,
)
from workbench.analysis.nulls import null_starts
from workbench.analysis.statistics import bootstrap_means
from workbench.core.blocksums import span_sums
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph


def one_by_one(graph, events, measure, variant):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the total weight", RuntimeWarning)
        if measure == "conductance":
            name, _, how = variant.partition(":")
            return graph.conductance(events, name, how)
        if measure == "intra_inter":
            name, _, how = variant.partition(":")
            return graph.intra_inter(events, name, how or "mean")
        return graph.modularity(events, variant)


def make(seed=0, heads=5, n=120, d=6, diagonal=True, inner=(13, 40, 66, 67, 99), shift=0.6):
    keys = np.random.default_rng(seed).normal(size=(heads, n, d)) + shift
    return KeyGraph(keys, diagonal=diagonal), Boundaries(inner, n)


def test_the_measures_are_the_decided_ones():
    assert set(GRAPH_MEASURES) == {
        ("modularity", "newman"),
        ("modularity", "em-llm"),
        ("conductance", "standard:min"),
        ("conductance", "standard:mean"),
        ("conductance", "em-llm-paper:min"),
        ("conductance", "em-llm-paper:mean"),
        ("conductance", "em-llm-code:min"),
        ("conductance", "em-llm-code:mean"),
        ("intra_inter", "sums"),
        ("intra_inter", "means"),
        ("intra_inter", "sums:min"),
        ("intra_inter", "means:min"),
        ("intra_inter", "sums:pooled"),
    }


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("null", ["lengths", "uniform", "shift"])
@pytest.mark.parametrize("shift", [0.0, 0.6])
def test_the_same_as_one_by_one(diagonal, null, shift, monkeypatch):
    monkeypatch.setattr(module, "_BYTES", 30_000)  # several batches, the last one shorter
    graph, events = make(diagonal=diagonal, shift=shift)
    starts = null_starts(events, null, 17, np.random.default_rng(1))
    found = measure_segmentations(graph, starts)
    assert list(found) == list(GRAPH_MEASURES)
    for (measure, variant), values in found.items():
        assert values.shape == (17, 5)
        for row, start in zip(values, starts, strict=True):
            expected = one_by_one(graph, Boundaries(start, 120), measure, variant)
            np.testing.assert_allclose(row, expected, rtol=1e-12, atol=1e-14)


def test_wide_rows_take_the_same_values():
    graph, events = make(heads=30, d=64)  # the path that subtracts row by row
    starts = null_starts(events, "uniform", 9, np.random.default_rng(2))
    found = measure_segmentations(graph, starts, [("modularity", "newman")])
    for row, start in zip(found["modularity", "newman"], starts, strict=True):
        expected = graph.modularity(Boundaries(start, 120))
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-14)


def test_a_head_without_weight_is_nan_alone():
    keys = np.random.default_rng(3).normal(size=(2, 60, 4)) + 0.5
    keys[1] -= keys[1].mean(axis=0)
    found = measure_segmentations(KeyGraph(keys), np.array([[0, 20, 31], [0, 8, 50]]))
    for values in found.values():
        assert np.isnan(values[:, 1]).all()
        assert np.isfinite(values[:, 0]).all()


def test_one_graph_has_one_column():
    keys = np.random.default_rng(4).normal(size=(60, 4)) + 0.5
    starts = np.array([[0, 20, 31]])
    found = measure_segmentations(KeyGraph(keys), starts, [("intra_inter", "sums")])
    expected = KeyGraph(keys).intra_inter(Boundaries(starts[0], 60))
    assert found["intra_inter", "sums"].tolist() == [[pytest.approx(expected)]]


def test_memory_stays_bounded():
    graph, events = make(heads=20, n=400, d=16, inner=tuple(range(10, 400, 10)))
    starts = null_starts(events, "lengths", 2000, np.random.default_rng(5))
    tracemalloc.start()
    found = measure_segmentations(graph, starts, [("conductance", "standard:min")])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # all at once, each of about ten arrays would take 2000 × 40 events × 20 heads × 8 = 13 MB
    assert peak < 24e6 + sum(values.nbytes for values in found.values())


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        (np.array([0, 4]), r"shape \(segmentations, events\)"),
        (np.array([[1, 4]]), "increase from 0"),
        (np.array([[0, 4, 4]]), "increase from 0"),
        (np.array([[0, 120]]), "below n=120"),
    ],
)
def test_bad_starts(starts, message):
    with pytest.raises(InputError, match=message):
        measure_segmentations(make()[0], starts)


def test_unknown_measure_lists_the_known():
    graph, events = make()
    with pytest.raises(InputError, match="conductance/standard:min"):
        measure_segmentations(graph, events.starts[None], [("conductance", "standard")])
    with pytest.raises(InputError, match="modularity/newman"):
        event_contributions(graph, events, [("modularity", "louvain")])


@pytest.mark.parametrize("diagonal", [True, False])
def test_contributions_average_to_the_measure(diagonal):
    graph, events = make(diagonal=diagonal, inner=(13, 40, 66, 99))
    found = event_contributions(graph, events)
    for (measure, variant), terms in found.items():
        assert terms.shape == (5, 5)
        expected = one_by_one(graph, events, measure, variant)
        if variant.endswith((":min", ":pooled")):
            assert np.isnan(terms).all()
        else:
            np.testing.assert_allclose(terms.mean(axis=0), expected, rtol=1e-10)


def test_bootstrap_over_events_resamples_their_terms():
    graph, events = make(inner=(13, 40, 66, 99))
    sums = graph.sums(events)
    terms = event_contributions(graph, events)["modularity", "newman"]
    counts = np.random.default_rng(7).multinomial(5, np.full(5, 0.2), size=30)
    means = bootstrap_means(terms, 30, np.random.default_rng(7))
    for row, count in zip(means, counts, strict=True):
        expected = 0.0
        for event, times in enumerate(count):
            share = sums.degree[event] / sums.total
            expected = expected + times * (sums.within[event] / sums.total - share**2)
        np.testing.assert_allclose(row, expected, rtol=1e-10)
    assert math.isnan(bootstrap_means(terms[:2], 1, np.random.default_rng(0))[0, 0])


# --- what events contribute beyond their length --------------------------------------------


def test_sums_of_spans_are_those_of_the_dense_block():
    rng = np.random.default_rng(3)
    keys = rng.normal(size=(2, 30, 4)) + 0.5
    graph = KeyGraph(keys)
    first, last = np.array([0, 5, 5, 29]), np.array([30, 9, 20, 30])
    sums = span_sums(graph.prefix, graph.norms, first, last)
    for head in range(2):
        weights = keys[head] @ keys[head].T
        for row, (a, b) in enumerate(zip(first, last, strict=True)):
            assert sums.within[row, head] == pytest.approx(weights[a:b, a:b].sum())
            assert sums.degree[row, head] == pytest.approx(weights[a:b].sum())


def test_excess_is_the_contribution_less_that_of_spans_of_the_same_length():
    rng = np.random.default_rng(4)
    keys = rng.normal(size=(1, 24, 3)) + 1.0
    graph = KeyGraph(keys)
    events = Boundaries([0, 4, 10, 18], n=24)
    found = event_excess(graph, events)["modularity", "newman"][:, 0]
    weights = keys[0] @ keys[0].T
    total = weights.sum()

    def term(a: int, b: int) -> float:
        return weights[a:b, a:b].sum() / total - (weights[a:b].sum() / total) ** 2

    for row, (a, b) in enumerate(events):
        length = b - a
        elsewhere = np.mean([term(s, s + length) for s in range(24 - length + 1)])
        assert found[row] == pytest.approx(4 * (term(a, b) - elsewhere))


def test_excess_of_uniform_keys_is_zero_whatever_the_lengths():
    graph = KeyGraph(np.ones((1, 40, 2)))
    excess = event_excess(graph, Boundaries([0, 3, 20, 31], n=40))
    for (measure, variant), values in excess.items():
        if variant.endswith((":min", ":pooled")):
            assert np.isnan(values).all(), (measure, variant)
        else:
            np.testing.assert_allclose(values, 0, atol=1e-12)
