"""Cuts per layer and head, how much they agree, and the signals B, E and T."""

from __future__ import annotations

import json

import networkx as nx
import numpy as np
import pytest
from fakes import fake_story, fake_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from workbench.analysis.agreement import (
    AGREEMENT,
    adjusted_rand,
    boundary_overlap,
    layer_agreement,
    normalised_mutual_information,
)
from workbench.analysis.nulls import null_starts
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError, MissingDataError
from workbench.events.methods import methods_table, segment
from workbench.events.signals import surprise_boundaries


def keyed_trace(n=400, seed=0):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(3, 2, n, 5)) + rng.normal(size=(3, 2, 1, 5))
    return fake_trace(rng.gamma(1.5, 2.0, n), keys)


# --- per layer and head ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options"), [("SM", {}), ("FC:40", {}), ("SO", {}), ("V", {"n_boundaries": 4})]
)
def test_each_layer_and_head_is_cut_on_its_own(method, options):
    trace = keyed_trace(200)
    by_layer = segment(trace, method, per="layer", **options)
    assert list(by_layer) == [0, 1, 2]
    for layer, cut in by_layer.items():
        assert cut == segment(trace, method, layers=layer, **options)
        assert cut.method == method
    if method == "SM":
        assert by_layer[0].settings["graph"] == {"layers": [0], "heads": [0, 1]}
    by_head = segment(trace, method, per="head", layers=[0, 2], **options)
    assert list(by_head) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    for (layer, head), cut in by_head.items():
        assert cut == segment(trace, method, layers=layer, heads=head, **options)
    assert len(set(by_head.values())) > 1


def test_what_cannot_differ_between_layers_is_refused():
    trace = keyed_trace()
    with pytest.raises(InputError, match=r"per='layer' cuts .*'S' uses no keys.*\(SM, SC, SO\)"):
        segment(trace, "S", per="layer")
    with pytest.raises(InputError, match="per='word' is not known"):
        segment(trace, "SM", per="word")
    with pytest.raises(InputError, match="leave out graph="):
        segment(trace, "SM", per="head", graph=trace.key_graph())
    with pytest.raises(MissingDataError, match="holds no keys"):
        segment(fake_trace(np.ones(50)), "SM", per="layer")


def test_options_belong_to_their_method():
    trace = keyed_trace()
    with pytest.raises(InputError, match=r"method 'S' has no argument 'lag'.* belongs to method P"):
        segment(trace, "S", lag=3)
    with pytest.raises(InputError, match=r"'PM' has no argument 'gama' .*method P has signal, exp"):
        segment(trace, "PM", gama=3)


# --- agreement ---------------------------------------------------------------------------------


def cuts_of(n, data):
    inner = st.sets(st.integers(1, max(n - 1, 1)), max_size=n)
    found = [sorted(x for x in data.draw(inner) if x < n) for _ in range(2)]
    return [Boundaries(np.array(x, dtype=int), n) for x in found]


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 40), st.data())
def test_indices_equal_scikit_learn(n, data):
    one, other = cuts_of(n, data)
    labels = one.labels(), other.labels()
    assert adjusted_rand(one.starts, other.starts, n) == pytest.approx(
        adjusted_rand_score(*labels), abs=1e-12
    )
    assert normalised_mutual_information(one.starts, other.starts, n) == pytest.approx(
        normalized_mutual_info_score(*labels), abs=1e-9
    )


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 30), st.integers(0, 5), st.data())
def test_overlap_is_the_largest_matching(n, tolerance, data):
    one, other = cuts_of(n, data)
    graph = nx.Graph()
    graph.add_edges_from(
        (("a", int(x)), ("b", int(y)))
        for x in one.inner
        for y in other.inner
        if abs(x - y) <= tolerance
    )
    both = len(one.inner) + len(other.inner)
    found = boundary_overlap(one.starts, other.starts, tolerance)
    if both == 0:
        assert np.isnan(found)
    else:
        assert found == 2 * len(nx.max_weight_matching(graph, maxcardinality=True)) / both


def test_agreement_is_read_beside_matched_cuts():
    trace = keyed_trace()
    cuts = segment(trace, "SM", per="layer")
    table = layer_agreement(cuts, draws=50, seed=1)
    assert len(table) == 3 * len(AGREEMENT)
    assert set(zip(table["a"], table["b"])) == {(0, 1), (0, 2), (1, 2)}
    assert layer_agreement(cuts, draws=50, seed=1).equals(table)
    row = table[(table["a"] == 0) & (table["b"] == 2)].set_index("measure")
    one, other = cuts[0], cuts[2]
    assert row.loc["adjusted_rand", "value"] == adjusted_rand(one.starts, other.starts, 400)
    assert row.loc["boundary_overlap", "value"] == boundary_overlap(one.starts, other.starts, 3)
    assert row.loc["boundary_overlap", "tolerance"] == 3
    assert np.isnan(row.loc["adjusted_rand", "tolerance"])
    drawn = null_starts(other, "lengths", 50, np.random.default_rng([1, 1]))
    expected = [boundary_overlap(one.starts, starts, 3) for starts in drawn]
    assert row.loc["boundary_overlap", "null_mean"] == pytest.approx(np.mean(expected))
    assert row.loc["boundary_overlap", "null"] == "lengths"
    # A cut agrees with itself perfectly, and contiguity alone keeps the null's Rand index above 0.
    itself = layer_agreement({"x": one, "y": one}, draws=50).set_index("measure")
    assert (itself["value"] == 1).all()
    assert (itself["p"] < 0.05).all()
    assert itself.loc["adjusted_rand", "null_mean"] > 0.05


def test_degenerate_cuts_are_noted():
    even = Boundaries(np.arange(0, 100, 10), 100)
    table = layer_agreement({"a": Boundaries([0, 33], 100), "b": even}, draws=20)
    assert set(table["null"]) == {"shift"}
    assert table["note"].str.contains("lengths are all alike").all()
    whole = Boundaries([0], 100)
    none = layer_agreement({"a": whole, "b": whole}, draws=20).set_index("measure")
    assert np.isnan(none.loc["boundary_overlap", "value"])
    assert none["note"].str.contains("one event").all()


@pytest.mark.parametrize(
    ("cuts", "options", "words"),
    [
        ({"a": Boundaries([0], 9)}, {}, "at least two cuts, not 1"),
        (
            {"a": Boundaries([0], 9), "b": Boundaries([0], 8)},
            {},
            "cut 'b' is over 8 tokens",
        ),
        ({"a": Boundaries([0], 9), "b": Boundaries([0], 9)}, {"tolerance": -1}, "tolerance=-1"),
        ({"a": Boundaries([0], 9), "b": Boundaries([0], 9)}, {"null": "x"}, "null='x'"),
    ],
)
def test_cuts_of_different_texts_are_refused(cuts, options, words):
    with pytest.raises(InputError, match=words):
        layer_agreement(cuts, **options)


# --- other signals -----------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "name"), [("B", "bayesian_surprise"), ("E", "entropy")])
def test_thresholds_of_other_signals(code, name):
    trace = keyed_trace()
    with pytest.raises(MissingDataError, match=rf"holds no {name} per token.*record\(story, model"):
        segment(trace, code)
    values = np.random.default_rng(5).gamma(2.0, 1.0, 400)
    values[0] = np.nan
    trace.dataset[name] = ("token", values, {"units": "nats"})
    for options in ({}, {"n_boundaries": 5}, {"window": "chunk", "start": "before"}):
        found = segment(trace, code, **options)
        assert found == surprise_boundaries(values, **options)
        assert found.method == code
    assert segment(trace, f"{code}M").n_events == segment(trace, code).n_events
    trace.dataset[name] = ("token", np.ones(400))
    with pytest.warns(UserWarning, match=r"no token exceeds the .* threshold"):
        segment(trace, code)


def test_sentences_start_at_their_first_token():
    words = [
        "It",
        "rained",
        "all",
        "day.",
        "We",
        "stayed",
        "in.",
        "Dr.",
        "Smith",
        "came",
        "by",
        "at",
        "noon,",
        "and",
        "left.",
    ]
    owner = np.repeat(np.arange(len(words)), 2)
    trace = fake_trace(np.ones(len(owner)), token_word=owner, story=fake_story(words))
    found = segment(trace, "T")
    assert found.inner.tolist() == [8, 14]
    assert found.method == "T"
    assert found.settings["splitter"].startswith("pysbd ")
    assert not found.open
    kept = segment(trace, "T", n_boundaries=1)
    assert kept == found
    assert kept.settings["note"].startswith("sentence starts have no strength")
    assert "note" not in segment(trace, "T", n_boundaries=2).settings
    assert json.loads(json.dumps(kept.settings)) == kept.settings
    with pytest.raises(MissingDataError, match="printed nearly without punctuation"):
        segment(fake_trace(np.ones(300)), "T")


def test_every_method_has_a_source():
    table = methods_table().set_index("code")
    assert set("RFSBETPKGVH") <= set(table.index)
    assert table.loc["O", "part"] == "refinement"
    assert (table["source"].str.contains(r"\d{4}")).all()
