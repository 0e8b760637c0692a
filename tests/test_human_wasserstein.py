"""Wasserstein distance between boundaries: scipy, quantiles and hand-made numbers as oracles."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, wasserstein_distance

from workbench.analysis.human import ABSENT, EVEN_SPACING, wasserstein, wasserstein_many
from workbench.core.errors import InputError

places = st.lists(st.integers(1, 299), min_size=1, max_size=12)


def test_by_hand() -> None:
    # One boundary moved by 10 words of 100; two of which one moves; 1 against 2 (half moves each).
    assert wasserstein([40], [50], 100) == pytest.approx(0.10)
    assert wasserstein([20, 60], [20, 80], 100) == pytest.approx(0.10)
    assert wasserstein([50], [40, 70], 100) == pytest.approx((10 + 20) / 2 / 100)


def test_positions_are_values_not_weights() -> None:
    # Histograms over four places, as somebody might pass them to scipy by mistake (scipy #15832):
    # as values these are the same numbers, and scipy answers 0.
    assert wasserstein_distance([0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]) == 0
    assert wasserstein([1, 2], [3, 4], 4) == pytest.approx(0.5)


@given(places, places)
@settings(deadline=None)
def test_equals_scipy(first: list[int], second: list[int]) -> None:
    expected = wasserstein_distance(first, second) / 300
    assert wasserstein(first, second, 300) == pytest.approx(expected, abs=1e-14)


@given(st.lists(places, min_size=1, max_size=8), places)
@settings(deadline=None)
def test_many_equals_scipy_row_by_row(rows: list[list[int]], fixed: list[int]) -> None:
    width = max(map(len, rows))
    draws = np.full((len(rows), width), ABSENT)
    for line, row in zip(draws, rows):
        line[: len(row)] = row
    draws = draws[:, ::-1]  # where the absent entries stand must not matter
    expected = [wasserstein_distance(row, fixed) / 300 for row in rows]
    np.testing.assert_allclose(wasserstein_many(draws, fixed, 300), expected, atol=1e-14)


@given(places, places, st.integers(0, 500), st.sampled_from([0.0, 0.5, 7.0]))
@settings(max_examples=40, deadline=None)
def test_moving_both_sets_changes_nothing(
    first: list[int], second: list[int], shift: int, sigma: float
) -> None:
    a, b = np.array(first), np.array(second)
    here = wasserstein(a, b, 300, sigma=sigma)
    assert wasserstein(a + shift, b + shift, 300, sigma=sigma) == pytest.approx(here, abs=1e-10)
    assert wasserstein(b, a, 300, sigma=sigma) == pytest.approx(here, abs=1e-10)


@given(places, places, places)
@settings(deadline=None)
def test_triangle(first: list[int], second: list[int], third: list[int]) -> None:
    direct = wasserstein(first, third, 300)
    assert direct <= wasserstein(first, second, 300) + wasserstein(second, third, 300) + 1e-12


def _by_integration(first: list[int], second: list[int], sigma: float) -> float:
    """∫|F − G| by a plain sum over a very fine grid."""
    x = np.linspace(-10 * sigma, 300 + 10 * sigma, 400_001)
    difference = sum(norm.cdf(x, c, sigma) for c in first) / len(first)
    difference -= sum(norm.cdf(x, c, sigma) for c in second) / len(second)
    return float(np.trapezoid(np.abs(difference), x)) / 300


@pytest.mark.parametrize("sigma", [0.7, 6.0, 45.0])
@pytest.mark.parametrize("counts", [(1, 1), (3, 3), (9, 14)])
def test_mixtures_equal_integration(sigma: float, counts: tuple[int, int]) -> None:
    rng = np.random.default_rng(int(sigma * 10) + counts[1])
    first, second = (rng.integers(1, 300, k).tolist() for k in counts)
    exact = wasserstein(first, second, 300, sigma=sigma)
    assert exact == pytest.approx(_by_integration(first, second, sigma), abs=2e-9)


def test_mixtures_with_touching_cdfs_equal_integration() -> None:
    # F − G touches 0 without crossing it where the middle pair lies: hard for a sign search.
    first, second, sigma = [100, 150, 200], [101, 150, 201], 3.0
    exact = wasserstein(first, second, 300, sigma=sigma)
    assert exact == pytest.approx(_by_integration(first, second, sigma), abs=2e-9)


def test_mixtures_equal_sampling() -> None:
    rng = np.random.default_rng(3)
    first, second, sigma = np.array([40, 90, 220]), np.array([60, 95, 180, 280]), 12.0
    samples = [
        rng.choice(centres, 200_000) + sigma * rng.standard_normal(200_000)
        for centres in (first, second)
    ]
    sampled = wasserstein_distance(*samples) / 300
    assert wasserstein(first, second, 300, sigma=sigma) == pytest.approx(sampled, abs=1e-3)


@given(places, places)
@settings(max_examples=25, deadline=None)
def test_narrow_gaussians_are_the_boundaries_themselves(
    first: list[int], second: list[int]
) -> None:
    narrow = wasserstein(first, second, 300, sigma=1e-4)
    assert narrow == pytest.approx(wasserstein(first, second, 300), abs=1e-6)


def test_wider_gaussians_never_add_distance() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.integers(1, 300, 8), rng.integers(1, 300, 8)
    widths = [0.0, 0.5, 2.0, 10.0, 50.0]
    values = [wasserstein(first, second, 300, sigma=sigma) for sigma in widths]
    assert (np.diff(values) <= 1e-12).all()
    assert values[-1] < values[0]


def test_two_single_gaussians_differ_by_their_means() -> None:
    assert wasserstein([30], [75], 300, sigma=20.0) == pytest.approx(45 / 300, abs=1e-12)


def test_many_with_sigma_equals_one_by_one() -> None:
    rng = np.random.default_rng(5)
    draws, fixed = rng.integers(1, 300, (6, 5)), rng.integers(1, 300, 7)
    draws[2, 1] = ABSENT
    expected = [wasserstein(row[row >= 0], fixed, 300, sigma=4.0) for row in draws]
    many = wasserstein_many(draws, fixed, 300, sigma=4.0)
    np.testing.assert_allclose(many, expected, atol=1e-12)


def test_without_boundaries_there_is_no_distance() -> None:
    assert np.isnan(wasserstein([], [3], 10))
    assert np.isnan(wasserstein([3], [], 10))
    many = wasserstein_many([[ABSENT, ABSENT], [3, ABSENT]], [3], 10)
    assert np.isnan(many[0])
    assert many[1] == 0
    assert np.isnan(wasserstein_many([[1], [2]], [], 10)).all()


def test_even_spacing_beats_random_boundaries() -> None:
    # The caution in numbers: boundaries at equal distances, placed without looking, are closer to
    # irregular ones than random boundaries are.
    rng = np.random.default_rng(6)
    n, k = 1000, 18
    even = np.round(np.arange(1, k + 1) * n / (k + 1))
    targets = [np.sort(rng.choice(np.arange(1, n), k, replace=False)) for _ in range(200)]
    regular = np.mean([wasserstein(even, target, n) for target in targets])
    other = np.mean([wasserstein(a, b, n) for a, b in pairwise(targets)])
    assert regular < 0.75 * other
    assert "even spacing" in EVEN_SPACING


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wasserstein([1], [2], 0), "n=0"),
        (lambda: wasserstein([1], [2], 5, sigma=-1), "sigma=-1"),
        (lambda: wasserstein([np.nan], [2], 5), "must be finite"),
        (lambda: wasserstein_many([1, 2], [2], 5), r"\(draws, boundaries\)"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
