"""Pictures of a stretch of a key graph: the numbers drawn are the graph's."""

from __future__ import annotations

import numpy as np
import pytest
from test_figures_table import footnote
from test_figures_table import traces as drawn

from workbench.core.blockgraph import BlockGraph
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph
from workbench.figures.similarity import figure_candidates, figure_similarity


@pytest.mark.parametrize("kind", [KeyGraph, BlockGraph])
def test_the_stretch_and_what_modularity_counts_of_it(kind):
    keys = np.random.default_rng(0).normal(size=(50, 4)) + 1
    graph = kind(keys)
    events = {"S": Boundaries([12, 22, 40], 50), "SM": Boundaries([10, 22, 38], 50)}
    fig = figure_similarity(graph, events, 10, 30, provenance="A small model")
    dense = graph.to_dense()
    degree, total = dense.sum(axis=1), dense.sum()
    (weights,) = drawn(fig, "weights")
    np.testing.assert_allclose(weights["z"], dense[10:30, 10:30])
    (excess,) = drawn(fig, "excess")
    expected = (dense - np.outer(degree, degree) / total) / dense.mean()
    np.testing.assert_allclose(excess["z"], expected[10:30, 10:30], rtol=1e-9, atol=1e-12)
    assert excess["zmin"] == -excess["zmax"]
    squares = next(t for t in drawn(fig, "events") if t["meta"]["method"] == "S")
    corners = {x for x in squares["x"] if x is not None}
    assert corners == {9.5, 11.5, 21.5, 29.5}  # cut off at the stretch's ends
    assert "A small model." in footnote(fig)


def test_candidates_and_their_band():
    scores = np.array([0.1, 0.4, 0.3])
    random = np.random.default_rng(1).normal(size=(40, 3))
    fig = figure_candidates([8, 9, 10], scores, 10, 9, random=random)
    (line,) = drawn(fig, "score")
    np.testing.assert_array_equal(line["y"], scores)
    assert [drawn(fig, w)[0]["x"][0] for w in ("original", "chosen")] == [10, 9]
    (band,) = drawn(fig, "random")
    low, high = np.quantile(random, [0.025, 0.975], axis=0)
    np.testing.assert_allclose(band["y"], np.concatenate([low, high[::-1]]))


def test_bad_input():
    graph = KeyGraph(np.ones((3, 20, 2)))
    with pytest.raises(InputError, match="there are 3 graphs"):
        figure_similarity(graph, {}, 0, 5)
    with pytest.raises(InputError, match="must be a stretch"):
        figure_similarity(KeyGraph(np.ones((500, 2))), {}, 0, 450)
    with pytest.raises(InputError, match="equally long"):
        figure_candidates([1, 2], [0.1], 1, 2)
