"""Methods K (ruptures) and G (statesegmentation): what the adapters add to the libraries."""

from __future__ import annotations

import json
import sys
from itertools import combinations, pairwise

import numpy as np
import pytest
from fakes import fake_story, fake_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import InputError, MissingDataError, MissingPackageError
from workbench.events import kernels, states
from workbench.events.kernels import kernel_boundaries, median_gamma
from workbench.events.methods import segment
from workbench.events.states import state_boundaries


def needs(package):
    return pytest.importorskip(package, reason=f"the extra 'segment' ({package}) is not installed")


def gram(rows, kernel, gamma):
    if kernel == "rbf":
        return np.exp(-gamma * ((rows[:, None] - rows[None]) ** 2).sum(axis=2))
    if kernel == "cosine":
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def cost(matrix, edges):
    return sum(
        np.trace(matrix[a:b, a:b]) - matrix[a:b, a:b].sum() / (b - a) for a, b in pairwise(edges)
    )


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(4, 11),
    k=st.integers(1, 3),
    least=st.integers(1, 3),
    seed=st.integers(0, 999),
    kernel=st.sampled_from(["rbf", "cosine", "linear"]),
)
def test_k_is_the_best_of_all_cuts(n, k, least, seed, kernel):
    needs("ruptures")
    if (k + 1) * least > n:
        return
    rows = np.random.default_rng(seed).normal(size=(n, 3))
    found = kernel_boundaries(rows, n_boundaries=k, kernel=kernel, bandwidth=0.3, min_size=least)
    matrix = gram(rows, kernel, 0.3)
    cuts = [[0, *inner, n] for inner in combinations(range(1, n), k)]
    costs = {tuple(c): cost(matrix, c) for c in cuts if np.diff(c).min() >= least}
    assert tuple(found.edges) in costs  # every position is a candidate, and min_size holds
    assert costs[tuple(found.edges)] == pytest.approx(min(costs.values()), abs=1e-9)


def test_penalty_trades_cost_for_boundaries():
    needs("ruptures")
    rows = np.random.default_rng(0).normal(size=60)
    matrix = gram(rows[:, None], "rbf", 0.5)
    for penalty in (0.3, 1.0, 5.0, 100.0):
        found = kernel_boundaries(rows, penalty=penalty, bandwidth=0.5, min_size=2)
        assert found.settings["penalty"] == penalty
        total = cost(matrix, found.edges) + penalty * (found.n_events - 1)
        for k in range(1, 12):
            other = kernel_boundaries(rows, n_boundaries=k, bandwidth=0.5, min_size=2)
            assert total <= cost(matrix, other.edges) + penalty * k + 1e-9
    assert found.n_events == 1


def test_bandwidth_is_the_median():
    rows = np.random.default_rng(0).normal(size=(50, 2))
    squares = [((a - b) ** 2).sum() for a, b in combinations(rows, 2)]
    assert median_gamma(rows) == pytest.approx(1 / np.median(squares))
    assert median_gamma(np.ones((5, 2))) == 1.0
    assert median_gamma(np.ones((1, 2))) == 1.0


def planted_trace(words=5, seed=0):
    rng = np.random.default_rng(seed)
    topics = np.repeat(rng.normal(size=(3, 8)), [20, 25, 15], axis=0)
    rows = topics + 0.2 * rng.normal(size=topics.shape)
    heads, ends = ["W" if i % words == 0 else "w" for i in range(60)], ["", "", "", "", "."] * 12
    text = [f"{head}{i}{end}" for i, (head, end) in enumerate(zip(heads, ends))]
    surprisal = np.repeat([1.0, 6.0, 2.0], [20, 25, 15]) + 0.1 * rng.normal(size=60)
    keys = np.stack([rows[:, :4], rows[:, 4:]])[None]
    return fake_trace(surprisal, keys, story=fake_story(text))


def test_k_is_a_method():
    needs("ruptures")
    trace = planted_trace()
    for options in (
        {},
        {"signal": "keys"},
        {"signal": "keys", "unit": "sentence"},
        {"unit": "word", "kernel": "linear"},
    ):
        found = segment(trace, "K", n_boundaries=2, **options)
        assert found.inner.tolist() == [20, 45], options
        assert found.method == "K"
        assert found.settings["count"] == "n_boundaries"
        assert json.loads(json.dumps(found.settings)) == found.settings
    assert segment(trace, "K", penalty=1.0).inner.tolist() == [20, 45]
    many = segment(trace, "K", n_boundaries=30)
    assert many.settings["note"] == "only 6 of the 30 boundaries asked for fit"
    assert many.lengths.min() >= 8
    with pytest.warns(UserWarning, match="no token exceeds"):
        assert segment(fake_trace(np.full(40, 2.0)), "K").n_events == 1
    gappy = trace.surprisal.copy()
    gappy[[0, 30]] = np.nan
    assert segment(fake_trace(gappy), "K", n_boundaries=2).inner.tolist() == [20, 45]
    with pytest.raises(MissingDataError, match="holds no keys"):
        segment(fake_trace(gappy), "K", signal="keys", n_boundaries=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": "laplace"}, "kernel='laplace' is not known"),
        ({"penalty": 0.0, "n_boundaries": None}, "penalty=0.0 must be more"),
        ({"penalty": 1.0}, "either n_boundaries or penalty"),
        ({"bandwidth": -1.0}, "bandwidth=-1.0"),
        ({"min_size": 0}, "min_size=0"),
        ({"min_size": 20}, "3 events of at least min_size=20 do not fit into 40"),
    ],
)
def test_k_names_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        kernel_boundaries(np.arange(40.0), **{"n_boundaries": 2, **options})


def test_k_names_bad_values():
    with pytest.raises(InputError, match="value at position 3 is not finite"):
        kernel_boundaries([1.0, 2.0, 3.0, np.nan], n_boundaries=1, min_size=1)
    with pytest.raises(InputError, match=r"20001 positions.*at most 20,000"):
        kernel_boundaries(np.ones(kernels.LIMIT + 1), n_boundaries=1)
    with pytest.raises(InputError, match="a row of zeros has no direction"):
        kernel_boundaries(np.zeros((20, 2)), n_boundaries=1, kernel="cosine")
    with pytest.raises(InputError, match="shape"):
        kernel_boundaries(np.zeros((0, 2)), n_boundaries=1)


# --- G -------------------------------------------------------------------------------------------


def test_fewer_columns_have_the_same_correlations():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(9, 40)) + 3
    fewer = states._same_correlations(rows)
    assert fewer.shape == (9, 10)
    mixes = rng.dirichlet(np.ones(9), size=12)
    np.testing.assert_allclose(np.corrcoef(mixes @ fewer), np.corrcoef(mixes @ rows), atol=1e-12)
    narrow = rng.normal(size=(9, 10))
    assert states._same_correlations(narrow) is narrow


def test_g_is_the_librarys_search():
    library = needs("statesegmentation")
    rng = np.random.default_rng(1)
    topics = np.repeat(rng.normal(size=(4, 30)), [6, 5, 7, 4], axis=0)
    rows = topics + 0.5 * rng.normal(size=topics.shape)
    theirs = library.GSBS(kmax=11, x=rows)
    theirs.fit(showProgressBar=False)
    found = state_boundaries(rows)
    assert found.inner.tolist() == np.flatnonzero(theirs.deltas).tolist() == [6, 11, 18]
    np.testing.assert_allclose(found.strength, theirs.strengths[found.inner], atol=1e-10)
    assert found.settings["search"] == "statewise"
    for k in (1, 3, 6):
        exact = state_boundaries(rows, n_boundaries=k)
        assert exact.n_events == k + 1
        assert exact.settings["search"] == "one by one"
    assert state_boundaries(rows, n_boundaries=3) == found


def test_g_is_a_method_on_sentences(capfd):
    needs("statesegmentation")
    trace = planted_trace()
    found = segment(trace, "G")
    assert found.inner.tolist() == [20, 45]
    assert found.method == "G"
    assert found.unit == "token"
    assert segment(trace, "G", n_boundaries=2) == found
    assert json.loads(json.dumps(found.settings)) == found.settings
    many = segment(trace, "G", n_boundaries=40)
    assert many.n_events == 12
    assert many.settings["note"] == "only 11 of the 40 boundaries asked for could be found"
    assert capfd.readouterr().err == ""  # no progress bar
    with pytest.raises(MissingDataError, match="holds no keys"):
        segment(fake_trace(np.ones(60), story=trace.story), "G")


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (np.random.default_rng(0).normal(size=(3, 5)), {}, "4 to 500 patterns"),
        (np.ones((states.LIMIT + 1, 5)), {}, "not 501; use method V or K"),
        (np.ones((9, 5)), {}, "pattern 0 is constant"),
        (np.full((9, 5), np.inf), {}, "pattern 0 is not finite"),
        (np.ones((9, 1)), {}, "d ≥ 2"),
        (np.random.default_rng(0).normal(size=(9, 5)), {"most_states": 1}, "2 and 9, not 1"),
        (np.random.default_rng(0).normal(size=(9, 5)), {"n_boundaries": 9}, "more than the 8"),
    ],
)
def test_g_names_bad_input(rows, options, words):
    with pytest.raises(InputError, match=words):
        state_boundaries(rows, **options)


@pytest.mark.parametrize(("code", "package"), [("K", "ruptures"), ("G", "statesegmentation")])
def test_a_missing_extra_is_named(monkeypatch, code, package):
    monkeypatch.setitem(sys.modules, package, None)
    words = rf'{package}.*pip install "workbench\[segment\]"'
    with pytest.raises(MissingPackageError, match=words):
        segment(planted_trace(), code, n_boundaries=2)
