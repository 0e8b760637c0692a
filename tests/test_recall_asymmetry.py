from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.recall.asymmetry import asymmetry, asymmetry_of_curve
from workbench.analysis.recall.contiguity_fit import contiguity_fit, fit_exponentials
from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.recall.resampling import (
    bootstrap_weights,
    permutation_summary,
    permuted_outputs,
)
from workbench.analysis.recall.rho_cmr import FreeRecallCMR, simulate_free_recall
from workbench.analysis.recall.sequences import RecallSequences
from workbench.core.errors import DataError, InputError

LAGS = np.arange(-3, 4)


def test_measures_by_definition() -> None:
    found = asymmetry_of_curve(LAGS, [0.1, 0.15, 0.2, np.nan, 0.6, 0.3, 0.15], max_lag=2)
    assert found["index"] == pytest.approx(0.5)
    assert found["ratio"] == pytest.approx(3)
    assert found["log_ratio"] == pytest.approx(np.log(3))
    assert found["difference"] == pytest.approx(0.4)
    assert found["forward_share"] == pytest.approx(0.9 / 1.25)


def test_measures_that_mean_nothing_are_nan() -> None:
    scores = asymmetry_of_curve(LAGS, [-5.0, -4, -3, 0, 8, -1, -4])
    assert scores["difference"] == 11.0
    assert np.isnan([scores["index"], scores["ratio"], scores["log_ratio"]]).all()
    empty = asymmetry_of_curve(LAGS, [0.0, 0, 0, 0, 0.5, 0, 0])
    assert empty["index"] == 1.0
    assert np.isnan(empty["ratio"])
    with pytest.raises(InputError, match="lags ±4 are needed"):
        asymmetry_of_curve(LAGS, np.ones(7), lag=4)


def test_group_values_are_those_of_the_mean_curve() -> None:
    data = simulate_free_recall(n_lists=60, n_subjects=6, seed=2)
    mean = lag_crp(data).groupby("lag")["prob"].mean()
    table = asymmetry(data, draws=0, resamples=0).set_index("measure")
    assert table.loc["ratio", "value"] == pytest.approx(mean[1] / mean[-1])
    assert table["ci_low"].isna().all()
    assert table["p"].isna().all()
    pooled = lag_crp(data, pooled=True).set_index("lag")["prob"]
    table = asymmetry(data, draws=0, average="pooled", max_lag=2).set_index("measure")
    share = pooled[[1, 2]].sum() / pooled[[-2, -1, 1, 2]].sum()
    assert table.loc["forward_share", "value"] == pytest.approx(share)


def test_forward_recall_is_significant_and_its_mirror_image_too() -> None:
    forward = simulate_free_recall(FreeRecallCMR(gamma_fc=0.0), n_lists=200, seed=1)
    mirrored = RecallSequences.from_positions(
        [row[row > 0][::-1] for row in forward.outputs], 16, subject=forward.subject.tolist()
    )
    for data, sign in ((forward, 1), (mirrored, -1)):
        row = asymmetry(data, draws=199, resamples=200).set_index("measure").loc["difference"]
        assert sign * row["value"] > 0
        assert row["p"] == 1 / 200
        assert row["ci_low"] <= row["value"] <= row["ci_high"]
        assert sign * row["z"] > 5


def test_no_direction_is_not_significant_on_average() -> None:
    rng = np.random.default_rng(0)
    p = []
    for seed in range(20):
        orders = [rng.permutation(8) + 1 for _ in range(40)]
        data = RecallSequences.from_positions(orders, 8, subject=[i % 4 for i in range(40)])
        row = asymmetry(data, draws=99, resamples=0, null="shuffle", seed=seed)
        p.append(row.set_index("measure").loc["index", "p"])
    assert min(p) > 0.001
    assert np.mean(np.array(p) <= 0.05) <= 0.25
    assert 0.25 < np.mean(p) < 0.75


def test_one_subject_has_no_interval() -> None:
    data = RecallSequences.from_positions([[1, 2, 4, 3], [2, 3, 1]], 4)
    assert asymmetry(data, draws=9)["ci_low"].isna().all()
    with pytest.raises(InputError, match="lag 4 does not exist"):
        asymmetry(data, lag=4)
    with pytest.raises(InputError, match="null='flip'"):
        asymmetry(data, null="flip")
    with pytest.raises(InputError, match="average='median'"):
        asymmetry(data, average="median")


@given(
    st.lists(st.lists(st.integers(0, 6), max_size=9), min_size=1, max_size=5),
    st.sampled_from(["shuffle", "reverse"]),
)
@settings(max_examples=60, deadline=None)
def test_permutations_keep_what_is_recalled(recalled: list[list[int]], null: str) -> None:
    data = RecallSequences.from_positions(recalled, 6)
    for outputs in permuted_outputs(data, null, 5, seed=0):
        assert (np.sort(outputs, axis=1) == np.sort(data.outputs, axis=1)).all()
        assert ((outputs == -1) == (data.outputs == -1)).all()
        if null == "shuffle":
            assert ((outputs > 0) == (data.outputs > 0)).all()
        else:
            for new, old in zip(outputs, data.outputs):
                kept = old[old >= 0]
                assert new[: len(kept)].tolist() in (kept.tolist(), kept[::-1].tolist())


def test_all_orders_come_equally_often() -> None:
    data = RecallSequences.from_positions([[1, 0, 2, 3]], 3)
    seen = [tuple(o[0]) for o in permuted_outputs(data, "shuffle", 3000, seed=1)]
    counts = np.unique(seen, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert (np.abs(counts - 500) < 100).all()


def test_permutation_summary_by_hand() -> None:
    found = permutation_summary(3.0, np.array([-1.0, 0.0, 1.0, 0.0]))
    assert found["null_mean"] == 0.0
    assert found["p"] == 1 / 5
    assert permutation_summary(1.0, np.array([-1.0, 0.0, 1.0, 0.0]))["p"] == 3 / 5
    assert np.isnan(permutation_summary(np.nan, np.ones(3))["p"])
    weights = bootstrap_weights(7, 50, 0)
    assert (weights.sum(axis=1) == 7).all()


# --- exponential fits ----------------------------------------------------------------------


def exponentials(lags: np.ndarray, ahead: float, behind: float, floor: float) -> np.ndarray:
    reach = np.abs(lags) - 1
    forward, backward = 0.4 * np.exp(-reach / ahead), 0.2 * np.exp(-reach / behind)
    return floor + np.where(lags > 0, forward, backward)


@pytest.mark.parametrize(("ahead", "behind", "floor"), [(0.8, 1.7, 0.03), (3.0, 0.5, 0.0)])
def test_exponentials_are_recovered(ahead: float, behind: float, floor: float) -> None:
    lags = np.arange(-6, 7)
    values = exponentials(lags, ahead, behind, floor)
    values[6] = np.nan
    found = fit_exponentials(lags, values)
    assert found["forward_scale"] == pytest.approx(ahead, rel=1e-3)
    assert found["backward_scale"] == pytest.approx(behind, rel=1e-3)
    assert found["forward_amplitude"] == pytest.approx(0.4, rel=1e-3)
    assert found["backward_amplitude"] == pytest.approx(0.2, rel=1e-3)
    assert found["floor"] == pytest.approx(floor, abs=1e-4)
    assert found["forward_half_width"] == pytest.approx(ahead * np.log(2), rel=1e-3)
    assert found["r2"] > 0.99999


def test_fit_is_the_best_of_a_numerical_search() -> None:
    from scipy.optimize import minimize

    rng = np.random.default_rng(4)
    lags = np.arange(-5, 6)
    keep = lags != 0
    reach = np.abs(lags) - 1
    for floor in (True, False):
        values = exponentials(lags, 1.0, 1.5, 0.05) + rng.normal(0, 0.02, len(lags))
        found = fit_exponentials(lags, values, floor=floor)

        def model(p: np.ndarray) -> np.ndarray:
            side = np.where(lags > 0, p[0] * np.exp(-reach / p[2]), p[1] * np.exp(-reach / p[3]))
            return side + p[4]

        def error(p: np.ndarray, values: np.ndarray = values) -> float:
            return float(((model(p) - values)[keep] ** 2).sum())

        bounds = [(0, 2), (0, 2), (0.05, 50), (0.05, 50), (0, 1 if floor else 0)]
        start = np.array([0.3, 0.3, 1.0, 1.0, 0.01 if floor else 0.0])
        best = minimize(error, start, bounds=bounds, options={"maxiter": 5000})
        total = ((values[keep] - values[keep].mean()) ** 2).sum()
        assert found["r2"] >= 1 - best.fun / total - 1e-4


def test_flat_curve_has_no_width() -> None:
    found = fit_exponentials(np.arange(-4, 5), np.full(9, 0.1))
    assert np.isnan(found["forward_scale"])
    assert np.isnan(found["backward_half_width"])
    assert found["floor"] == pytest.approx(0.1)


def test_group_fit_has_intervals_and_clear_errors() -> None:
    data = simulate_free_recall(n_lists=200, n_subjects=10)
    table = contiguity_fit(data, resamples=50).set_index("parameter")
    row = table.loc["forward_scale"]
    assert row["ci_low"] <= row["value"] <= row["ci_high"]
    assert table.loc["forward_amplitude", "value"] > table.loc["backward_amplitude", "value"]
    with pytest.raises(InputError, match="max_lag=16 does not fit lists of at most 16"):
        contiguity_fit(data, max_lag=16)
    with pytest.raises(DataError, match="two on each side"):
        fit_exponentials([-1, 0, 1, 2], [0.1, np.nan, 0.2, 0.1])
