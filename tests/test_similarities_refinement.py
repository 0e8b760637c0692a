"""Refinement on graphs that are not dot products, against Algorithm 1 on the dense matrix."""

import numpy as np
import pytest

from tests.fakes import fake_trace
from tests.oracles_graph import choose, score
from workbench.core.blockgraph import BlockGraph
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph
from workbench.events.methods import segment
from workbench.events.optimum import optimal_boundaries
from workbench.events.refinement import refine


def oracle(dense, starts, objective, variant, scope, min_size, window, diagonal):
    """Algorithm 1 in the decided readings, one candidate at a time."""
    n = len(dense)
    originals = [s for s in starts if s > 0]
    refined = []
    for i, beta in enumerate(originals):
        alpha = refined[-1] if refined else 0
        following = originals[i + 1] if i + 1 < len(originals) else n
        left, right = (alpha, following) if scope == "next" else (0, n)
        high = min(right, beta + window // 2)
        low = max(left, high - window)
        sub = dense[low:high, low:high]
        begin = max(alpha, low)
        candidates, scores = [], []
        for candidate in range(max(alpha + min_size, begin + 1), beta + 1):
            event = list(range(begin - low, candidate - low))
            before = list(range(begin - low))
            after = list(range(candidate - low, high - low))
            communities = [event, before + after]
            if scope == "three":
                communities = [c for c in (before, event, after) if c]
            candidates.append(candidate)
            own = float(np.abs(sub).sum())
            scores.append(score(sub, communities, objective, variant, own, diagonal))
        chosen = choose(scores, candidates, last=True)
        refined.append(beta if chosen is None else chosen)
    return refined


@pytest.mark.parametrize("similarity", ["clipped", "rbf", "exp"])
@pytest.mark.parametrize("scope", ["next", "rest", "three"])
@pytest.mark.parametrize(
    ("objective", "variant"),
    [("modularity", "newman"), ("conductance", "standard"), ("intra_inter", "means")],
)
@pytest.mark.parametrize("window", [24, 512])
def test_refinement_is_that_of_the_dense_matrix(similarity, scope, objective, variant, window):
    rng = np.random.default_rng(3)
    scenes = np.repeat(rng.normal(size=(4, 4)), [13, 17, 9, 11], axis=0)
    keys = np.stack([scenes + rng.normal(size=(50, 4)), rng.normal(size=(50, 4)) + 0.4])
    diagonal = objective != "intra_inter"
    graph = BlockGraph(keys, similarity, diagonal=diagonal)
    starts = [16, 33, 42]
    found = refine(
        graph,
        Boundaries(starts, 50, method="S"),
        objective=objective,
        variant=variant,
        scope=scope,
        min_size=4,
        window=window,
    )
    dense = graph.to_dense().sum(axis=0)
    expected = oracle(dense, starts, objective, variant, scope, 4, window, diagonal)
    assert found.inner.tolist() == expected
    assert found.settings["refinement"]["similarity"] == similarity


def test_a_dot_product_given_as_a_function_refines_as_the_key_graph():
    def dot(x, y):
        return x @ y.T

    rng = np.random.default_rng(4)
    keys = np.repeat(rng.normal(size=(8, 6)), 25, axis=0) + rng.normal(size=(200, 6)) + 0.5
    events = Boundaries(np.arange(20, 200, 22), 200)
    for scope in ("next", "rest", "three"):
        for objective in ("modularity", "conductance"):
            options = {"scope": scope, "objective": objective}
            by_blocks = refine(BlockGraph(keys, dot), events, **options)
            assert by_blocks == refine(KeyGraph(keys), events, **options)


def test_a_planted_scene_is_found_by_a_kernel():
    rng = np.random.default_rng(5)
    keys = np.repeat(rng.normal(size=(2, 5)) * 4, [30, 34], axis=0) + rng.normal(size=(64, 5))
    graph = BlockGraph(keys, "rbf")
    assert refine(graph, Boundaries([38], 64)).inner.tolist() == [30]


def test_what_needs_prefix_sums_is_refused_by_name():
    graph = BlockGraph(np.random.default_rng(6).normal(size=(60, 4)), "rbf")
    events = Boundaries([20, 40], 60)
    with pytest.raises(InputError, match="rule='reference' restates the released code"):
        refine(graph, events, rule="reference")
    with pytest.raises(InputError, match="'rbf' is not a dot product"):
        optimal_boundaries(graph, n_events=3)


def test_segment_takes_such_a_graph():
    rng = np.random.default_rng(7)
    keys = np.repeat(rng.normal(size=(5, 4)) * 3, 30, axis=0) + rng.normal(size=(150, 4))
    trace = fake_trace(rng.exponential(size=150), keys)
    graph = trace.key_graph(similarity="clipped")
    found = segment(trace, "FM", n_boundaries=4, graph=graph)
    start = segment(trace, "F", n_boundaries=4)
    assert found == refine(graph, start)
    assert found.method == "FM"
