"""Method P against every segmentation there is, against scipy's t, and against a library."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from fakes import fake_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import gammaln

from workbench.core.errors import InputError, MissingDataError
from workbench.events.changepoint import NormalGamma, RunLengths, change_points, run_lengths
from workbench.events.methods import segment


def evidence(values, prior):
    """log p(values of one event), from the closed form of the normal-gamma model (Murphy 2007)."""
    n, mean = len(values), values.mean()
    kappa, alpha = prior.kappa + n, prior.alpha + n / 2
    beta = (
        prior.beta
        + ((values - mean) ** 2).sum() / 2
        + prior.kappa * n * (mean - prior.mean) ** 2 / (2 * kappa)
    )
    return (
        gammaln(alpha)
        - gammaln(prior.alpha)
        + prior.alpha * math.log(prior.beta)
        - alpha * math.log(beta)
        + (math.log(prior.kappa) - math.log(kappa)) / 2
        - n / 2 * math.log(2 * math.pi)
    )


def enumerated(values, expected, prior, longest):
    """P(run length) after the last value, by summing over every segmentation of the values."""
    n, hazard = len(values), 1 / expected
    found = np.zeros(n)
    for mask in range(2 ** (n - 1)):
        edges = [0, *(i + 1 for i in range(n - 1) if mask >> i & 1), n]
        weight = 1.0
        for a, b in pairwise(edges):
            length, last = b - a, b == n
            if length > longest:
                weight = 0.0
                break
            # an event of this length went on length − 1 times, then ended (or is open)
            weight *= (1 - hazard) ** (length - 1)
            if not last:
                weight *= 1.0 if length == longest else hazard
            weight *= math.exp(evidence(values[a:b], prior))
        found[n - edges[-2] - 1] += weight
    return found / found.sum()


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(1, 8),
    seed=st.integers(0, 9999),
    expected=st.sampled_from([1.5, 4.0, 100.0]),
    longest=st.sampled_from([1, 2, 3, 100]),
)
def test_run_lengths_sum_over_every_segmentation(n, seed, expected, longest):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n) + 3 * rng.integers(2, size=n)
    prior = NormalGamma(0.3, 0.7, 1.4, 0.9)
    found = run_lengths(values, expected_length=expected, prior=prior, longest=longest)
    assert found.shape == (n, min(n, longest))
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    truth = enumerated(values, expected, prior, longest)
    np.testing.assert_allclose(found[-1], truth[: found.shape[1]], rtol=1e-9, atol=1e-14)


def test_the_next_value_follows_students_t():
    # Of one event that cannot end, the growth of the evidence is the predictive density.
    prior = NormalGamma(0.2, 1.5, 2.0, 0.6)
    values = np.array([0.4, -1.0, 2.2, 0.1])
    seen, here = values[:3], values[3]
    kappa, alpha = prior.kappa + 3, prior.alpha + 1.5
    mean = (prior.kappa * prior.mean + seen.sum()) / kappa
    beta = (
        prior.beta
        + ((seen - seen.mean()) ** 2).sum() / 2
        + prior.kappa * 3 * (seen.mean() - prior.mean) ** 2 / (2 * kappa)
    )
    scale = math.sqrt(beta * (kappa + 1) / (alpha * kappa))
    grown = evidence(values, prior) - evidence(seen, prior)
    assert grown == pytest.approx(stats.t.logpdf(here, 2 * alpha, mean, scale), rel=1e-12)
    state = RunLengths(10.0, prior)
    for value in seen:
        before = state.update(value)
    after = state.update(here)
    start = stats.t.pdf(
        here,
        2 * prior.alpha,
        prior.mean,
        math.sqrt(prior.beta * (prior.kappa + 1) / (prior.alpha * prior.kappa)),
    )
    assert after[3] / after[0] == pytest.approx(
        before[2] * 0.9 * math.exp(grown) / (0.1 * start), rel=1e-9
    )


def test_a_library_finds_the_same():
    library = pytest.importorskip(
        "bayesian_changepoint_detection.bayesian_models",
        reason="the package bayesian-changepoint is not installed",
    )
    import torch
    from bayesian_changepoint_detection.hazard_functions import constant_hazard
    from bayesian_changepoint_detection.online_likelihoods import StudentT

    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 1, 40), rng.normal(4, 0.5, 40), rng.normal(1, 2, 40)])
    theirs, _ = library.online_changepoint_detection(
        torch.tensor(values, dtype=torch.float32),
        lambda r: constant_hazard(30.0, r),
        StudentT(alpha=1.0, beta=1.0, kappa=1.0, mu=0.5),
    )
    # Theirs is (run length, time), with the change after a value already drawn in row 0.
    shifted = np.asarray(theirs)[1 : len(values) + 1, 1 : len(values) + 1].T
    shifted = shifted / shifted.sum(axis=1, keepdims=True)
    ours = run_lengths(values, expected_length=30.0)
    np.testing.assert_allclose(ours, shifted, atol=2e-4)


def test_truncation_is_what_it_says():
    state = RunLengths(50.0)
    assert state.truncation <= 1e-9 < (1 - 1 / 50) ** (state.longest - 1)
    rng = np.random.default_rng(1)
    values = rng.normal(size=400)
    full = run_lengths(values, expected_length=20.0, longest=400)
    cut = run_lengths(values, expected_length=20.0, longest=300)
    np.testing.assert_array_equal(full[:300, :300], cut[:300])
    assert cut.shape == (400, 300)


def test_planted_changes_are_found():
    rng = np.random.default_rng(2)
    means = np.repeat([0.0, 3.0, -2.0, 2.0], [60, 70, 50, 80])
    values = np.exp(means + 0.3 * rng.normal(size=260))
    for options in ({}, {"n_boundaries": 3}):
        found = change_points(values, floor=0.0, **options)
        assert found.inner.tolist() == [60, 130, 180], options
        assert (found.strength > 0.9).all()
        assert found.open


def test_strength_is_the_lagged_probability():
    rng = np.random.default_rng(5)
    values = rng.gamma(1.5, 2.0, 90)
    lag = 4
    found = change_points(values, lag=lag, n_boundaries=5, min_size=3, expected_length=12.0)
    table = run_lengths(np.log(values + 0.1), expected_length=12.0)
    expected = [table[min(t + lag, 89), min(lag, 89 - t)] for t in range(90)]
    np.testing.assert_allclose(found.strength, np.array(expected)[found.inner])
    weakest = found.strength.min()
    free = [t for t in range(3, 90) if np.abs(found.starts - t).min() >= 3]
    assert all(expected[t] <= weakest for t in free)


def test_nothing_that_follows_matters():
    values = np.random.default_rng(3).gamma(1.5, 2.0, 300)
    table = run_lengths(np.log(values + 0.1))
    np.testing.assert_array_equal(table[:120, :120], run_lengths(np.log(values[:120] + 0.1)))


def test_unscored_values_are_left_out():
    values = np.random.default_rng(4).gamma(1.5, 2.0, 200)
    later = np.concatenate([[np.nan], values])
    one, two = (change_points(x, n_boundaries=6) for x in (values, later))
    assert two.inner.tolist() == [t + 1 for t in one.inner.tolist()]


def test_it_is_a_method():
    trace = fake_trace(np.random.default_rng(0).gamma(1.5, 2.0, 500))
    found = segment(trace, "P", n_boundaries=9, expected_length=30)
    assert found.method == "P"
    assert found.n_events == 10
    assert found == change_points(trace.surprisal, n_boundaries=9, expected_length=30)
    assert found.settings["expected_length"] == 30
    assert json.loads(json.dumps(found.settings)) == found.settings
    sized = segment(trace, "P", expected_length=10, max_size=40)
    assert sized.lengths.max() <= 40
    assert sized.lengths[:-1].min() >= 8
    with pytest.raises(MissingDataError, match="holds no entropy per token"):
        segment(trace, "P", signal="entropy")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"expected_length": 1.0}, "expected_length=1.0 must be more than 1"),
        ({"prior": (0.0, 0.0, 1.0, 1.0)}, "kappa, alpha and beta above 0"),
        ({"longest": 0}, "longest=0"),
        ({"lag": -1}, "lag=-1"),
        ({"floor": 0.0}, r"value 0 at position 3 plus floor=0.0 has no logarithm"),
    ],
)
def test_bad_options_are_named(options, words):
    values = np.ones(20)
    values[3] = 0.0
    with pytest.raises(InputError, match=words):
        change_points(values, **options)
    with pytest.raises(InputError, match="a value is inf"):
        change_points([1.0, math.inf])
