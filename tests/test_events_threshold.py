"""The threshold of EM-LLM's Equation 1 against its definition, in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import InputError
from workbench.events.threshold import MovingThreshold, threshold_flags


def moments(past):
    """Mean and sd (n − 1) without rounding before the end."""
    n = len(past)
    exact = [Fraction(float(value)) for value in past]
    scale = max(value.denominator for value in exact)  # powers of two: whole numbers are faster
    whole = [int(value * scale) for value in exact]
    total = sum(whole)
    squares = n * sum(value * value for value in whole) - total * total
    return Fraction(total, n * scale), math.sqrt(Fraction(squares, n * (n - 1) * scale**2))


def z_score(value, past):
    mean, sd = moments(past)
    deviation = float(Fraction(float(value)) - mean)
    if sd > 0:
        return deviation / sd
    return math.copysign(math.inf, deviation) if deviation else 0.0


def moving_oracle(values, window, min_values):
    """z of each value among the scored values before it, written from the definition."""
    z = np.full(len(values), np.nan)
    for t, value in enumerate(values):
        past = [earlier for earlier in values[:t] if not math.isnan(earlier)][-window:]
        if not math.isnan(value) and len(past) >= min_values:
            z[t] = z_score(value, past)
    return z


def chunk_oracle(values, chunk, n_local, n_init, first_whole, rng):
    """z as the released code has it: the window is counted in what was not evicted yet."""
    scored = [i for i, value in enumerate(values) if not math.isnan(value)]
    z = np.full(len(values), np.nan)
    remainder: list[float] = []
    for begin in range(0, len(scored), chunk):
        places = scored[begin : begin + chunk]
        length = len(places)
        remainder += [values[i] for i in places]
        end = len(remainder)
        past = remainder[max(end - n_local, 0) : max(end - length, n_init)]
        if first_whole and end <= length:
            past = remainder
        if len(past) >= 2:
            for i in places:
                z[i] = z_score(values[i], past)
        # Sinks and finished events leave, but n_local values always stay.
        del remainder[: rng.integers(0, max(end - n_local, 0) + 1)]
    return z


def assert_matches(result, expected, gamma, rtol=1e-9):
    flags, strength = result
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(strength), ~known)
    np.testing.assert_allclose(strength[known], expected[known], rtol=rtol, atol=rtol)
    clear = known & ~(np.abs(expected - gamma) < 10 * rtol)  # a tie may fall either way
    if gamma < 0:  # in a constant window the mean itself is not above mean + gamma · 0
        clear &= expected != 0
    np.testing.assert_array_equal(flags[clear], expected[clear] > gamma)
    assert not flags[~known].any()


# Eighths keep constant stretches and repeats frequent, and their squares exact.
eighths = st.integers(0, 40).map(lambda number: number / 8)
series = st.lists(
    st.one_of(eighths, st.just(float("nan")), st.floats(0, 30, width=16)),
    max_size=70,
)


@settings(deadline=None, max_examples=150)
@given(series, st.integers(2, 20), st.integers(0, 8), st.sampled_from([0.0, 0.37, 1.03, 2.1, -0.5]))
def test_moving_window_is_the_definition(values, window, spare, gamma):
    least = max(2, window - spare)
    expected = moving_oracle(values, window, least)
    assert_matches(
        threshold_flags(values, gamma, window=window, min_values=least), expected, gamma, 1e-6
    )


@settings(deadline=None, max_examples=150)
@given(
    series,
    st.integers(1, 9),
    st.integers(0, 30),
    st.integers(2, 12),
    st.booleans(),
    st.integers(0, 1000),
)
def test_chunk_window_is_the_released_rule(values, chunk, more, n_init, whole, seed):
    gamma, n_local = 1.03, chunk + n_init + more
    expected = chunk_oracle(values, chunk, n_local, n_init, whole, np.random.default_rng(seed))
    result = threshold_flags(
        values,
        gamma,
        window="chunk",
        chunk=chunk,
        n_local=n_local,
        n_init=n_init,
        first_chunk="whole" if whole else "init",
    )
    assert_matches(result, expected, gamma, 1e-6)


def test_default_windows_on_a_long_series():
    rng = np.random.default_rng(0)
    values = np.round(rng.gamma(1.2, 2.5, 1500), 3)
    values[0] = np.nan
    flags, strength = threshold_flags(values)
    for t in [*range(17), 17, 18, 511, 512, 513, 514, 1024, 1025, 1300, 1499]:
        past = values[max(t - 512, 1) : t]
        if len(past) < 16:
            assert not flags[t]
            assert np.isnan(strength[t])
        else:
            assert strength[t] == pytest.approx((values[t] - past.mean()) / past.std(ddof=1))
            assert flags[t] == (values[t] > past.mean() + past.std(ddof=1))
    frozen = threshold_flags(values, window="chunk")  # chunks of the 1,499 scored values
    for a, b, past in [(1, 513, values[1:129]), (513, 1025, values[1:513])]:
        expected = values[a:b] > past.mean() + past.std(ddof=1)
        np.testing.assert_array_equal(frozen.flags[a:b], expected)


@pytest.mark.parametrize("offset", [1e6, 1e9, -1e9])
def test_large_offsets_lose_nothing(offset):
    values = (np.random.default_rng(1).integers(0, 64, 400) / 8 + offset).tolist()
    expected = moving_oracle(values, 60, 16)
    assert_matches(threshold_flags(values, window=60), expected, 1.0, rtol=1e-6)
    expected = chunk_oracle(values, 50, 150, 20, False, np.random.default_rng(0))
    result = threshold_flags(values, window="chunk", chunk=50, n_local=150, n_init=20)
    assert_matches(result, expected, 1.0, rtol=1e-6)


def test_a_constant_window_has_sd_zero_whatever_came_before():
    values = np.concatenate(
        [np.random.default_rng(2).gamma(1, 1e6, 200), np.full(200, 0.1), [0.1 + 1e-12]]
    )
    flags, strength = threshold_flags(values, window=50)
    assert not flags[250:400].any()
    assert (strength[250:400] == 0).all()
    assert flags[400]
    assert strength[400] == np.inf
    constant = threshold_flags(np.full(700, 0.1), window="chunk", chunk=100, n_local=300, n_init=10)
    assert not constant.flags.any()
    assert (constant.strength == 0).all()


def test_the_comparison_is_strict():
    # The window −1, 1 repeated has mean 0 and, with n − 1 = 15 and 16 values, sd √(16/15).
    past = [-1.0, 1.0] * 8
    sd = math.sqrt(16 / 15)
    assert not threshold_flags([*past, sd], 1.0, window=16).flags[-1]
    assert threshold_flags([*past, np.nextafter(sd, 2)], 1.0, window=16).flags[-1]
    assert not threshold_flags([*past, 0.0], 0.0, window=16).flags[-1]


def test_value_itself_and_later_ones_do_not_count():
    values = np.random.default_rng(3).gamma(1, 2, 300)
    changed = values.copy()
    changed[200:] = 1e3
    one, other = threshold_flags(values), threshold_flags(changed)
    np.testing.assert_array_equal(one.strength[:200], other.strength[:200])


def test_fed_one_by_one_it_is_the_same():
    values = np.random.default_rng(4).gamma(1, 2, 500)
    values[[0, 77]] = np.nan
    moving = MovingThreshold(gamma=1.5, window=64, min_values=10)
    fed = [moving.update(value) for value in values.tolist()]
    flags, strength = threshold_flags(values, 1.5, window=64, min_values=10)
    np.testing.assert_array_equal([flag for flag, _ in fed], flags)
    np.testing.assert_array_equal([z for _, z in fed], strength)


def test_unscored_values_hold_no_place():
    values = np.random.default_rng(5).gamma(1, 2, 300)
    gaps = np.insert(values, [0, 40, 41, 300], np.nan)
    for window in (64, "chunk"):
        options = {"window": window, "chunk": 50, "n_local": 100, "n_init": 20}
        whole, holes = threshold_flags(values, **options), threshold_flags(gaps, **options)
        scored = ~np.isnan(gaps)
        np.testing.assert_array_equal(holes.flags[scored], whole.flags)
        np.testing.assert_array_equal(holes.strength[scored], whole.strength)
        assert not holes.flags[~scored].any()


def test_empty_and_short_series_have_no_threshold():
    for window in (512, "chunk"):
        assert threshold_flags([], window=window).flags.shape == (0,)
        assert not threshold_flags([3.0], window=window).flags.any()
    assert not threshold_flags(np.arange(16.0)).flags.any()
    assert threshold_flags(np.arange(17.0)).flags.any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gamma": math.nan}, "gamma=nan must be a finite number"),
        ({"window": 8}, "window=8 never holds the min_values=16"),
        ({"window": 8, "min_values": 1}, "min_values=1: an sd needs at least 2"),
        ({"window": "moving"}, "window='moving' is not known"),
        ({"window": "chunk", "first_chunk": "half"}, "first_chunk='half' is not known"),
        ({"window": "chunk", "chunk": 600, "n_local": 512}, "chunk=600 must lie between"),
        ({"window": "chunk", "chunk": 0}, "chunk=0 must lie between"),
        ({"window": "chunk", "n_init": 1}, "n_init=1"),
        ({"values": [1.0, math.inf]}, "position 1 is infinite"),
        ({"values": [[1.0]]}, "one-dimensional"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(InputError, match=words):
        threshold_flags(**{"values": [1.0, 2.0], **arguments})


def test_an_infinite_value_cannot_be_fed():
    with pytest.raises(InputError, match="infinite"):
        MovingThreshold().update(math.inf)
