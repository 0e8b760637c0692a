"""Rule "reference" (the released EM-LLM code's behaviour) against its restated facts."""

from __future__ import annotations

import numpy as np
import oracles_graph as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from workbench.core.boundaries import Boundaries
from workbench.core.keygraph import KeyGraph
from workbench.events.objectives import OBJECTIVES
from workbench.events.reference import drop_close
from workbench.events.refinement import refine

OPTIONS = [(objective, variant) for objective in OBJECTIVES for variant in OBJECTIVES[objective]]


def two_blocks(n=64, edge=32):
    keys = np.zeros((n, 2))
    keys[:edge, 0] = 1
    keys[edge:, 1] = 1
    return KeyGraph(keys)


@pytest.mark.parametrize(("surprise", "refined"), [(32, 31), (36, 32), (28, 27)])
def test_published_behaviour_on_two_perfect_blocks(surprise, refined):
    found = refine(two_blocks(), Boundaries([surprise], 64), rule="reference")
    assert found.inner.tolist() == [refined]


def test_close_boundaries_are_dropped_in_chains():
    assert drop_close([20, 24, 29, 33], 8, offset=0) == [0]
    assert drop_close([20, 28, 29, 37], 8, offset=0) == [0, 1, 3]
    # the first: kept at the chunk's own start, dropped when too close to the look-back's edge
    assert drop_close([3], 8, offset=0) == [0]
    assert drop_close([3], 8, offset=2) == []
    events = Boundaries([20, 24, 29, 33], 64, strength=[4, 3, 2, 1], method="S")
    found = refine(two_blocks(), events, rule="reference")
    assert found.n_events == 2
    assert found.strength.tolist() == [4]
    assert found.method == "SM"


def test_the_original_place_is_no_candidate():
    keys = np.random.default_rng(0).normal(size=(400, 6)) + 0.5
    events = Boundaries(np.arange(25, 400, 25), 400)
    found = refine(KeyGraph(keys), events, rule="reference")
    assert (found.inner < events.inner).all()


def test_a_boundary_exactly_the_minimum_after_the_one_before_stays():
    keys = np.random.default_rng(1).normal(size=(60, 6)) + 0.5
    found = refine(KeyGraph(keys), Boundaries([8], 60), rule="reference")
    assert found.inner.tolist() == [8]


@st.composite
def cases(draw, max_n=36):
    n = draw(st.integers(4, max_n))
    if draw(st.booleans()):
        keys = draw(arrays(np.float64, (n, 2), elements=st.integers(0, 2).map(float)))
    else:
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        keys = rng.normal(size=(n, 3)) + draw(st.sampled_from([0.5, 2.0]))
    inner = draw(st.sets(st.integers(1, n - 1), max_size=8))
    return keys, Boundaries(sorted(inner), n)


@given(
    cases(),
    st.sampled_from(OPTIONS),
    st.integers(1, 6),
    st.sampled_from([None, 5, 9, 16]),
)
@settings(max_examples=500, deadline=None)
def test_equals_the_restated_search(case, option, min_size, chunk):
    keys, events = case
    objective, variant = option
    found = refine(
        KeyGraph(keys),
        events,
        rule="reference",
        objective=objective,
        variant=variant,
        min_size=min_size,
        chunk=chunk,
    )
    expected = oracle.refine_released(
        keys, events.starts.tolist(), objective, variant, min_size, chunk
    )
    assert found.inner.tolist() == expected


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("chunk", [None, 64])
def test_equals_the_restated_search_on_a_longer_text(objective, chunk):
    rng = np.random.default_rng(2)
    keys = rng.normal(size=(200, 5)) + 0.6
    events = Boundaries(np.flatnonzero(rng.random(199) < 0.06) + 1, 200)
    variant = {"modularity": "em-llm", "conductance": "em-llm-code", "intra_inter": "means"}
    found = refine(KeyGraph(keys), events, rule="reference", objective=objective, chunk=chunk)
    assert found.settings["refinement"]["variant"] == variant[objective]
    expected = oracle.refine_released(
        keys, events.starts.tolist(), objective, variant[objective], 8, chunk
    )
    assert found.inner.tolist() == expected
    assert len(expected) > 5


def test_chunks_look_back_to_the_last_boundary_before_them():
    keys = np.repeat(np.eye(4), 16, axis=0)
    events = Boundaries([18, 42, 50], 64)
    graph = KeyGraph(keys)
    assert refine(graph, events, rule="reference", min_size=4).inner.tolist() == [16, 32, 48]
    # the second chunk, 32 ... 63, looks back to 16, but candidates start 4 after its own start
    chunked = refine(graph, events, rule="reference", min_size=4, chunk=32)
    assert chunked.inner.tolist() == [16, 36, 48]
    # a boundary within the minimum of the chunk's start stays
    close = refine(graph, Boundaries([18, 36], 64), rule="reference", chunk=32)
    assert close.inner.tolist() == [16, 36]
