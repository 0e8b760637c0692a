"""Averages around boundaries against loops, exact enumeration and planted effects."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from workbench.analysis.peri_boundary import around, peri_boundary
from workbench.core.errors import InputError


def test_around_by_hand():
    found = around([1.0, 2.0, 3.0, 4.0], [0, 2], before=1, after=2)
    np.testing.assert_array_equal(found, [[np.nan, 1, 2, 3], [2, 3, 4, np.nan]])


def test_null_is_that_of_all_choices():
    """With few candidates every choice can be listed."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=40)
    values[7] = np.nan
    pool = np.array([3, 7, 12, 18, 25, 31, 36])
    starts = np.array([12, 31, 36])
    table = peri_boundary(values, starts, pool, before=2, after=2, draws=40_000, seed=3)
    rows = around(values, pool, 2, 2)
    listed = [np.nanmean(rows[list(c)], axis=0) for c in itertools.combinations(range(7), 3)]
    every = np.array(listed)
    own = np.nanmean(around(values, starts, 2, 2), axis=0)
    np.testing.assert_allclose(table["mean"], own)
    np.testing.assert_allclose(table["null_mean"], every.mean(axis=0), atol=0.02)
    centre = every.mean(axis=0)
    far = np.abs(every - centre)
    exact = (far >= np.abs(own - centre) - 1e-9).mean(axis=0)
    np.testing.assert_allclose(table["p"], exact, atol=0.04)
    largest = (far / every.std(axis=0)).max(axis=1)
    data = (np.abs(own - centre) / every.std(axis=0)).max()
    assert table["p_any"].iloc[0] == pytest.approx((largest >= data - 1e-9).mean(), abs=0.06)
    assert (table["n"] == 3).all()


def test_interval_is_the_bootstrap_of_boundaries():
    values = np.random.default_rng(2).normal(size=400)
    starts = np.arange(10, 390, 20)
    table = peri_boundary(values, starts, np.arange(400), before=0, after=0, draws=20_000)
    error = values[starts].std() / np.sqrt(len(starts))
    width = float(table["high"].iloc[0] - table["low"].iloc[0])
    assert width == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_planted_effect_is_found_and_nothing_is_not():
    rng = np.random.default_rng(4)
    pool = np.arange(5, 1000, 10)
    found = []
    for seed in range(200):
        values = rng.normal(size=1000)
        starts = np.sort(rng.choice(pool, 20, replace=False))
        table = peri_boundary(values, starts, pool, before=3, after=3, draws=199, seed=seed)
        found.append((table["p"].iloc[3], table["p_any"].iloc[0]))
    of_nothing = (np.array(found) <= 0.05).mean(axis=0)
    assert (of_nothing < 0.105).all()  # 5 %: more than 21 of 200 has probability 0.001
    values[starts] += 1.5
    table = peri_boundary(values, starts, pool, before=3, after=3)
    assert table["p"].iloc[3] < 0.01
    assert table["p_any"].iloc[0] < 0.01
    assert table["low"].iloc[3] > table["null_high"].iloc[3]


def test_sentence_starts_that_are_high_anyway_are_no_effect():
    """What every sentence start has shows against the naive null and not against the matched."""
    rng = np.random.default_rng(5)
    pool = np.arange(5, 1000, 10)
    found = []
    for seed in range(60):
        values = rng.normal(size=1000)
        values[pool] += 3
        starts = np.sort(rng.choice(pool, 20, replace=False))
        options = {"before": 0, "after": 0, "draws": 199, "seed": seed}
        naive = peri_boundary(values, starts, np.arange(1000), **options)
        matched = peri_boundary(values, starts, pool, **options)
        found.append((naive["p"].iloc[0], matched["p"].iloc[0]))
    naive_p, matched_p = np.array(found).T
    assert (naive_p <= 0.01).all()
    assert (matched_p <= 0.05).sum() <= 9  # 3 of 60 are expected; more than 9: 0.1 %


def test_offsets_beyond_the_text_are_nan():
    table = peri_boundary(np.arange(10.0), [3, 5], [2, 3, 4, 5, 6], before=8, after=1, draws=99)
    outside = table["offset"] < -6
    assert table.loc[outside, ["mean", "low", "high", "null_mean", "p"]].isna().all(axis=None)
    inside = table["offset"] >= -5
    assert table.loc[inside, ["mean", "p", "p_any"]].notna().all(axis=None)


def test_nothing_to_find_in_a_constant():
    table = peri_boundary(np.ones(30), [5, 9], [5, 9, 12, 20], before=1, after=1, draws=99)
    assert (table["p"] == 1).all()
    assert table["p_any"].isna().all()


def test_groups_are_permuted_within_themselves():
    """Two stories of different level and share of boundaries: together nothing, unless mixed."""
    rng = np.random.default_rng(6)
    gap = np.full(8, np.nan)
    low, high = rng.normal(size=300), rng.normal(5, 1, size=300)
    values = np.concatenate([low, gap, high])
    groups = np.repeat([0, 0, 1], [300, 8, 300])
    pools = [np.arange(4, 300, 6), np.arange(312, 608, 6)]
    starts = np.concatenate([pools[0][::10], pools[1][::2]])
    pool = np.concatenate(pools)
    mixed = peri_boundary(values, starts, pool, before=4, after=4)
    apart = peri_boundary(values, starts, pool, groups=groups, before=4, after=4)
    assert (mixed["p"] < 0.01).all()
    assert apart["p_any"].iloc[0] > 0.05
    n_low, n_high = len(pools[0][::10]), len(pools[1][::2])
    rows = around(values, pool, 4, 4)
    parts = np.nanmean(rows[:50], axis=0), np.nanmean(rows[50:], axis=0)
    expected = (n_low * parts[0] + n_high * parts[1]) / (n_low + n_high)
    assert len(pools[0]) == 50
    np.testing.assert_allclose(apart["null_mean"], expected, atol=0.02)
    assert (apart["high"] - apart["low"] < mixed["null_high"] - mixed["null_low"]).all()


def test_bad_input_by_message():
    values = np.zeros(10)
    with pytest.raises(InputError, match="1 boundaries; an average"):
        peri_boundary(values, [3], [3, 4])
    with pytest.raises(InputError, match="boundary at word 5 is none of the candidates"):
        peri_boundary(values, [3, 5], [3, 4])
    with pytest.raises(InputError, match="every candidate is a boundary"):
        peri_boundary(values, [3, 4], [3, 4])
    with pytest.raises(InputError, match=r"places must be words 0 ... 9"):
        around(values, [10])
    with pytest.raises(InputError, match="groups names 3 words, values 10"):
        peri_boundary(values, [3, 4], [3, 4, 5], groups=[0, 0, 1])
    with pytest.raises(InputError, match="before=-1"):
        around(values, [1], before=-1)
