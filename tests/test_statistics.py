"""Null summaries, bootstrap intervals and corrections against their definitions and peers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from workbench.analysis.statistics import (
    benjamini_hochberg,
    bootstrap_means,
    compare_with_null,
    percentile_interval,
)
from workbench.core.errors import InputError

whole = st.integers(-3, 3).map(float) | st.just(math.nan)


@given(whole, st.lists(whole, min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_summary_is_its_definition(value, draws):
    found = compare_with_null(value, draws)
    kept = [d for d in draws if not math.isnan(d)]
    assert found.undefined == len(draws) - len(kept)
    assert found.draws == len(kept)
    mean = math.fsum(kept) / len(kept) if kept else math.nan
    np.testing.assert_allclose(found.mean, mean, atol=1e-12, equal_nan=True)
    np.testing.assert_allclose(found.difference, value - mean, atol=1e-12, equal_nan=True)
    sd = np.std(kept, ddof=1) if len(kept) > 1 else math.nan
    np.testing.assert_allclose(found.sd, sd, atol=1e-12, equal_nan=True)
    z = (value - mean) / sd if sd > 1e-9 else math.nan
    np.testing.assert_allclose(found.z, z, rtol=1e-10, atol=1e-12, equal_nan=True)
    p = math.nan
    if kept and not math.isnan(value):
        above = (1 + sum(d >= value for d in kept)) / (1 + len(kept))
        below = (1 + sum(d <= value for d in kept)) / (1 + len(kept))
        p = min(1.0, 2 * min(above, below))
    np.testing.assert_allclose(found.p, p, rtol=1e-12, equal_nan=True)


def test_known_p():
    null = np.arange(99.0)
    assert compare_with_null(1000, null).p == pytest.approx(2 / 100)  # beyond all 99 draws
    assert compare_with_null(-1, null).p == pytest.approx(2 / 100)
    assert compare_with_null(49, null).p == 1
    assert compare_with_null(97, null).p == pytest.approx(2 * 3 / 100)


def test_p_equals_scipys_permutation_p():
    rng = np.random.default_rng(0)
    x = rng.normal(size=12) + 0.4

    def statistic(values):
        return values.mean()

    peer = stats.permutation_test(
        (x,), statistic, permutation_type="samples", n_resamples=500, rng=1, vectorized=False
    )
    found = compare_with_null(x.mean(), peer.null_distribution)
    assert found.p == pytest.approx(peer.pvalue)


def test_under_the_null_p_is_not_too_small():
    """A value drawn like the null has p ≤ 0.05 at most 5 % of the time."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=20_000)
    p = compare_with_null(values, rng.normal(size=(79, 20_000))).p
    share = (p <= 0.05).mean()
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 20_000)
    assert share > 0.04


def test_columns_are_taken_one_by_one():
    rng = np.random.default_rng(2)
    values, null = rng.normal(size=(2, 3)), rng.normal(size=(50, 2, 3))
    null[rng.random(null.shape) < 0.2] = np.nan
    together = compare_with_null(values, null)
    for i in range(2):
        for j in range(3):
            alone = compare_with_null(values[i, j], null[:, i, j])
            for name in ("mean", "sd", "difference", "z", "p", "draws", "undefined"):
                assert getattr(together, name)[i, j] == pytest.approx(getattr(alone, name))


def test_another_rounding_of_the_same_number_is_a_tie():
    value = 0.1 + 0.2
    found = compare_with_null(value, [0.3, 0.3, 0.3])
    assert found.sd == 0
    assert math.isnan(found.z)
    assert found.p == 1


def test_shapes_that_do_not_fit():
    with pytest.raises(InputError, match="do not fit values of shape"):
        compare_with_null([1.0, 2.0], np.zeros((10, 3)))
    with pytest.raises(InputError, match="do not fit"):
        compare_with_null(1.0, 2.0)


def test_percentile_interval_leaves_out_nan():
    rng = np.random.default_rng(3)
    samples = rng.normal(size=(500, 2))
    samples[::5, 1] = np.nan
    low, high = percentile_interval(samples)
    np.testing.assert_allclose([low, high], np.nanpercentile(samples, [2.5, 97.5], axis=0))
    low, high = percentile_interval(samples[:, 0], level=0.5)
    assert (low, high) == pytest.approx(tuple(np.percentile(samples[:, 0], [25, 75])))
    low, high = percentile_interval(np.full((4, 1), np.nan))
    assert np.isnan([low, high]).all()
    with pytest.raises(InputError, match="level=95"):
        percentile_interval(samples, level=95)


def test_bootstrap_of_a_mean_has_its_moments():
    rng = np.random.default_rng(4)
    values = rng.normal(size=(40, 2))
    means = bootstrap_means(values, 20_000, rng)
    assert means.shape == (20_000, 2)
    sd = values.std(axis=0) / math.sqrt(40)
    np.testing.assert_allclose(means.mean(axis=0), values.mean(axis=0), atol=4 * sd.max() / 141)
    np.testing.assert_allclose(means.std(axis=0), sd, rtol=0.03)
    # the same resample for all columns: a linear function of columns can be resampled afterwards
    summed = bootstrap_means(values.sum(axis=1), 10, np.random.default_rng(5))
    apart = bootstrap_means(values, 10, np.random.default_rng(5))
    np.testing.assert_allclose(apart.sum(axis=1), summed)


def test_bootstrap_of_few_or_undefined_values_is_undefined():
    rng = np.random.default_rng(6)
    assert np.isnan(bootstrap_means([1.0, 2.0], 5, rng)).all()
    assert bootstrap_means([1.0, 1.0, 1.0], 5, rng).tolist() == [1.0] * 5
    found = bootstrap_means([[1.0, np.nan], [2.0, 1.0], [3.0, 1.0]], 50, rng)
    assert np.isnan(found[:, 1]).all()
    assert np.isfinite(found[:, 0]).all()
    with pytest.raises(InputError, match="draws=0"):
        bootstrap_means([1.0, 2.0, 3.0], 0, rng)


def test_benjamini_hochberg_is_its_definition_and_skips_nan():
    p = np.array([[0.01, 0.04, math.nan], [0.03, 0.2, 0.005]])
    kept = np.sort(p[~np.isnan(p)])
    expected = {
        value: min(1, min(kept[j] * 5 / (j + 1) for j in range(i, 5)))
        for i, value in enumerate(kept)
    }
    found = benjamini_hochberg(p)
    for value, corrected in zip(p.ravel(), found.ravel(), strict=True):
        if math.isnan(value):
            assert math.isnan(corrected)
        else:
            assert corrected == pytest.approx(expected[value])
    assert np.isnan(benjamini_hochberg([math.nan])).all()
