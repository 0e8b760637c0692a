"""Rule "paper" against a search in loops over dense weights, and where the best is known."""

from __future__ import annotations

import numpy as np
import oracles_graph as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph
from workbench.events.objectives import OBJECTIVES
from workbench.events.refinement import SCOPES, refine

OPTIONS = [(objective, variant) for objective in OBJECTIVES for variant in OBJECTIVES[objective]]


@st.composite
def cases(draw, max_n=22):
    n = draw(st.integers(2, max_n))
    whole = draw(st.booleans())
    if whole:  # many equal scores and undefined candidates
        keys = draw(arrays(np.float64, (n, 2), elements=st.integers(-1, 2).map(float)))
    else:
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        keys = rng.normal(size=(n, 3)) + draw(st.sampled_from([0.0, 0.5, 2.0]))
    inner = draw(st.sets(st.integers(1, n - 1), max_size=4))
    return keys, Boundaries(sorted(inner), n)


@given(
    cases(),
    st.sampled_from(OPTIONS),
    st.sampled_from(SCOPES),
    st.integers(1, 5),
    st.sampled_from([2, 5, 8, 512]),
    st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_equals_the_definition(case, option, scope, min_size, window, diagonal):
    keys, events = case
    objective, variant = option
    found = refine(
        KeyGraph(keys, diagonal=diagonal),
        events,
        objective=objective,
        variant=variant,
        scope=scope,
        min_size=min_size,
        window=window,
    )
    expected = oracle.refine_paper(
        keys, events.starts.tolist(), objective, variant, scope, min_size, window, diagonal
    )
    assert found.inner.tolist() == expected


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("diagonal", [True, False])
def test_equals_the_definition_on_a_longer_text(scope, option, diagonal):
    rng = np.random.default_rng([SCOPES.index(scope), OPTIONS.index(option)])
    keys = rng.normal(size=(2, 90, 4)) + 0.7
    events = Boundaries([0, 18, 40, 44, 71], 90)
    objective, variant = option
    found = refine(
        KeyGraph(keys, diagonal=diagonal),
        events,
        objective=objective,
        variant=variant,
        scope=scope,
        window=40,
    )
    expected = oracle.refine_paper(
        keys, events.starts.tolist(), objective, variant, scope, 8, 40, diagonal
    )
    assert found.inner.tolist() == expected


@given(cases(), st.sampled_from(OPTIONS), st.sampled_from(SCOPES), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_boundaries_only_move_left_and_keep_the_minimum(case, option, scope, min_size):
    keys, events = case
    objective, variant = option
    found = refine(
        KeyGraph(keys), events, objective=objective, variant=variant, scope=scope, min_size=min_size
    )
    assert found.n_events == events.n_events
    assert (found.inner <= events.inner).all()
    moved = found.inner != events.inner
    assert (found.lengths[:-1][moved] >= min_size).all()


def blocks(lengths, d=None):
    """Keys with one direction per block: the cut at the blocks is the best one."""
    d = d or len(lengths)
    return np.repeat(np.eye(len(lengths), d), lengths, axis=0)


@pytest.mark.parametrize("objective", ["modularity", "conductance"])
@pytest.mark.parametrize("late", [0, 1, 5, 11])
def test_planted_blocks_are_found(objective, late):
    lengths = [30, 25, 40, 20]
    true = np.cumsum(lengths)[:-1]
    found = refine(
        KeyGraph(blocks(lengths)), Boundaries(true + late, sum(lengths)), objective=objective
    )
    assert found.inner.tolist() == true.tolist()


@pytest.mark.parametrize("scope", ["next", "three"])
def test_planted_blocks_in_noise_are_found_by_modularity(scope):
    rng = np.random.default_rng(0)
    lengths = [40, 35, 50, 45]
    keys = 3 * blocks(lengths, 16) + 0.3 * rng.normal(size=(170, 16)) + 2
    true = np.cumsum(lengths)[:-1]
    found = refine(KeyGraph(keys), Boundaries(true + 6, 170), scope=scope)
    assert found.inner.tolist() == true.tolist()


def test_conductance_against_everything_else_does_not_move():
    """A longer event has the larger volume, so that "rest" keeps the original (keys alike)."""
    keys = np.random.default_rng(1).normal(size=(200, 8)) * 0.1 + 1
    events = Boundaries([0, 40, 77, 130], 200)
    found = refine(KeyGraph(keys), events, objective="conductance", scope="rest")
    assert found == events


def test_equal_keys_leave_all_boundaries_where_they_are():
    keys = np.full((60, 3), 0.1)
    events = Boundaries([0, 13, 31, 50], 60)
    for scope in SCOPES:
        assert refine(KeyGraph(keys), events, scope=scope) == events


def test_no_weight_leaves_all_boundaries_where_they_are():
    events = Boundaries([0, 13, 31, 50], 60)
    for objective in OBJECTIVES:
        assert refine(KeyGraph(np.zeros((60, 3))), events, objective=objective) == events


def test_people_boundaries_closer_than_the_minimum_stay():
    keys = blocks([20, 20])
    found = refine(KeyGraph(keys), Boundaries([0, 25, 28, 31], 40))
    # 25 moves to the block's edge; 28 and 31 then have room to go to 28 and 36 at the least
    assert found.inner.tolist()[0] == 20
    assert found.n_events == 4
    close = refine(KeyGraph(keys), Boundaries([0, 3, 5], 40))
    assert close.inner.tolist() == [3, 5]


def test_the_window_limits_what_is_seen():
    """A block edge 30 positions before the boundary is out of reach of a window of 20."""
    keys = blocks([50, 100])
    events = Boundaries([0, 80], 150)
    assert refine(KeyGraph(keys), events, window=512).inner.tolist() == [50]
    assert refine(KeyGraph(keys), events, window=20).inner.tolist() == [80]
    assert refine(KeyGraph(keys), events, window=62).inner.tolist() == [50]


def test_several_heads_are_their_sum():
    rng = np.random.default_rng(2)
    keys = rng.normal(size=(6, 150, 5)) + 0.4
    events = Boundaries([0, 40, 95], 150)
    graph = KeyGraph(keys)
    assert refine(graph, events) == refine(graph.summed(), events)
    joined = keys.transpose(1, 0, 2).reshape(150, 30)
    assert refine(graph, events) == refine(KeyGraph(joined), events)


@pytest.mark.parametrize("objective", ["modularity", "conductance"])
def test_a_large_common_component_far_into_a_long_text(objective):
    """At 100,000 positions and a shared part 300 times the rest, as a dense float64 search."""
    rng = np.random.default_rng(3)
    n, far = 100_000, 99_800
    keys = rng.normal(size=(n, 6))
    keys[far + 60 :] += 0.5
    keys += 300 * np.ones(6) / np.sqrt(6)
    found = refine(KeyGraph(keys), Boundaries([far, far + 90], n), objective=objective)
    # the second boundary is judged between where the first went and the end
    alpha = int(found.inner[0])
    dense = keys[alpha:] @ keys[alpha:].T
    total = dense.sum()
    scores = []
    for t in range(8, far + 90 - alpha + 1):
        inner, other, cut = dense[:t, :t].sum(), dense[t:, t:].sum(), dense[:t, t:].sum()
        if objective == "modularity":
            volumes = np.array([inner + cut, other + cut])
            scores.append((inner + other) / total - ((volumes / total) ** 2).sum())
        else:
            scores.append(-cut / min(inner + cut, other + cut))
    assert found.inner[1] - alpha == 8 + int(np.argmax(scores))


# --- what goes along, and bad input ------------------------------------------------------------


def test_strength_method_and_settings_go_along():
    events = Boundaries([0, 20, 45], 70, strength=[2.5, 1.0], method="S", settings={"gamma": 1.0})
    keys = np.random.default_rng(4).normal(size=(70, 4)) + 1
    found = refine(KeyGraph(keys), events)
    assert found.method == "SM"
    assert found.strength.tolist() == [2.5, 1.0]
    assert found.settings["gamma"] == 1.0
    assert found.settings["refinement"] == {
        "rule": "paper",
        "objective": "modularity",
        "variant": "newman",
        "min_size": 8,
        "scope": "next",
        "window": 512,
    }
    assert events.settings == {"gamma": 1.0}
    assert refine(KeyGraph(keys), events, objective="conductance").method == "SC"
    assert refine(KeyGraph(keys), events.with_(method="F:64")).method == "FM:64"
    assert refine(KeyGraph(keys), events.with_(method=None)).method is None


def test_one_event_stays_one_event():
    found = refine(KeyGraph(np.ones((5, 2))), Boundaries([0], 5))
    assert found.n_events == 1


def test_half_modularity_gives_the_same_boundaries():
    keys = np.random.default_rng(5).normal(size=(90, 4)) + 0.5
    events = Boundaries([0, 30, 61], 90)
    assert refine(KeyGraph(keys), events, variant="em-llm") == refine(KeyGraph(keys), events)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "papers"}, "'paper', 'reference'"),
        ({"scope": "all"}, "'next', 'rest', 'three'"),
        ({"objective": "Q"}, "'modularity', 'conductance', 'intra_inter'"),
        ({"variant": "standard"}, "'newman', 'em-llm'"),
        ({"min_size": 0}, "min_size=0 must be at least 1"),
        ({"window": 1}, "window=1 must be at least 2"),
        ({"rule": "reference", "chunk": 0}, "chunk=0 must be at least 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        refine(KeyGraph(np.ones((20, 2))), Boundaries([10], 20), **options)


def test_another_length():
    with pytest.raises(InputError, match="cut 30 tokens, but the graph has 20"):
        refine(KeyGraph(np.ones((20, 2))), Boundaries([10], 30))
