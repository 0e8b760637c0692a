from __future__ import annotations

import numpy as np
import oracles_recall as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.recall.cmr import (
    CMRParameters,
    cmr_crp,
    cmr_grid,
    convert_beta,
    expected_crps,
)
from workbench.analysis.recall.cmr_fit import (
    cmr_distance,
    fit_cmr,
    gaussian_distance,
    null_distances,
)
from workbench.core.errors import DataError, InputError

LAGS = np.arange(-8, 9)
# GPT-2's L5H1, lags -5 ... 5, as released with Ji-An et al. (2024).
L5H1 = [-7.35, -6.81, -6.16, -5.37, -4.22, 0.71, 8.21, -1.00, -4.50, -5.83, -6.60]
# Lags -3 ... 3 of the released simulation.
GOLDEN = {
    (0.7, 0.7, 0.0): [0.0161, 0.0315, 0.0610, 0.1182, 0.5027, 0.1640, 0.0562],
    (0.7, 0.7, 0.5): [0.0227, 0.0517, 0.1195, 0.2822, 0.3249, 0.1127, 0.0414],
    (0.7, 0.7, 1.0): [0.0225, 0.0591, 0.1608, 0.4552, 0.1806, 0.0665, 0.0252],
    (0.5, 0.5, 0.0): [0.0416, 0.0551, 0.0721, 0.0949, 0.2596, 0.1481, 0.0879],
    (0.6, 0.75, 0.3): [0.0249, 0.0486, 0.0928, 0.1832, 0.3522, 0.1516, 0.0665],
}


def curve(*parameters: float, **options: object) -> np.ndarray:
    return cmr_crp(*parameters, **options)["prob"].to_numpy()  # type: ignore[arg-type]


# --- closed forms --------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.05, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("gamma", [0.0, 0.6, 1.0])
def test_context_that_never_moves_draws_independently(beta: float, gamma: float) -> None:
    """Two independent geometric draws differ by l with probability ∝ (1 - β)^|l|."""
    shape = (1 - beta) ** np.abs(LAGS)
    np.testing.assert_allclose(curve(beta, 0, gamma), shape / shape.sum(), atol=1e-9)


@pytest.mark.parametrize("beta", [0.05, 0.3, 0.7, 0.95])
def test_context_that_is_the_last_item_goes_forward_geometrically(beta: float) -> None:
    shape = np.where(LAGS > 0, (1 - beta) ** (np.maximum(LAGS, 1) - 1.0), 0.0)
    np.testing.assert_allclose(curve(beta, 1, 0), shape / shape.sum(), atol=1e-9)


@pytest.mark.parametrize("beta", [0.3, 0.7])
def test_pure_study_context_draws_symmetrically(beta: float) -> None:
    """β_rec = 1, γ = 1: the item's own study context is the cue, two steps of one kernel."""
    step = np.where(LAGS > 0, (1 - beta) ** (np.maximum(LAGS, 1) - 1.0), 0.0)
    two = (1 - beta) ** np.abs(LAGS)
    recalls = 100
    expected = beta * step / recalls + (recalls - 1) / recalls * beta / (2 - beta) * two
    np.testing.assert_allclose(curve(beta, 1, 1), expected / expected.sum(), atol=1e-9)


def test_pure_chaining_and_pure_repetition() -> None:
    np.testing.assert_allclose(curve(1, 1, 0), (LAGS == 1).astype(float), atol=1e-9)
    np.testing.assert_allclose(curve(1, 0, 0), (LAGS == 0).astype(float), atol=1e-9)
    wide = curve(0.95, 0, 0)[5:12]
    np.testing.assert_allclose(
        wide, [0.0001, 0.0023, 0.0452, 0.9048, 0.0452, 0.0023, 0.0001], atol=6e-5
    )


# --- against simulation --------------------------------------------------------------------


@pytest.mark.parametrize(("parameters", "expected"), GOLDEN.items())
def test_released_curves(parameters: tuple[float, ...], expected: list[float]) -> None:
    """The released curves come from a simulation of a list of 100; ours from an endless one."""
    np.testing.assert_allclose(curve(*parameters)[5:12], expected, atol=0.0075)


@pytest.mark.parametrize(
    "parameters",
    [(0.7, 0.7, 0.0), (0.7, 0.7, 1.0), (0.5, 0.1, 0.2), (0.4, 0.9, 0.5), (0.9, 0.3, 0.8)],
)
def test_against_drawing(parameters: tuple[float, float, float]) -> None:
    drawn = oracle.simulate_with_replacement(*parameters, seed=1)
    np.testing.assert_allclose(curve(*parameters), drawn, atol=0.011)


@given(st.floats(0.1, 1), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_curves_are_distributions_and_batches_agree(enc: float, rec: float, gamma: float) -> None:
    one = curve(enc, rec, gamma)
    assert one.sum() == pytest.approx(1)
    assert (one >= 0).all()
    several = expected_crps([0.5, enc], [0.5, rec], [0.5, gamma])
    np.testing.assert_allclose(several[1], one, atol=1e-12)


def test_meaning_of_the_parameters() -> None:
    def width(c: np.ndarray) -> float:
        return float((c * np.abs(LAGS)).sum())

    assert width(curve(0.3, 0.7, 0.2)) > width(curve(0.7, 0.7, 0.2))
    assert curve(0.7, 0.3, 0.2)[:9].sum() > curve(0.7, 0.9, 0.2)[:9].sum()
    backward = [curve(0.7, 0.7, gamma)[:8].sum() for gamma in (0.0, 0.5, 1.0)]
    assert backward == sorted(backward)
    # Totals backward : forward of the released simulation.
    for gamma, forward, back in ((0, 0.756, 0.125), (0.5, 0.506, 0.212), (1, 0.288, 0.257)):
        c = curve(0.7, 0.7, gamma)
        assert c[9:].sum() == pytest.approx(forward, abs=0.015)
        assert c[:8].sum() == pytest.approx(back, abs=0.015)


def test_grid_holds_every_node() -> None:
    parameters, curves = cmr_grid()
    assert parameters.shape == (20 * 21 * 11, 3)
    assert curves.shape == (4620, 17)
    row = int(np.flatnonzero((parameters == [0.6, 0.75, 0.3]).all(axis=1))[0])
    np.testing.assert_allclose(curves[row], curve(0.6, 0.75, 0.3), atol=1e-12)
    assert np.isfinite(curves).all()


# --- parametrisations ----------------------------------------------------------------------


def test_conversion_known_values() -> None:
    beta = [0.3, 0.5, 0.6, 0.7, 0.8]
    recall = [0.394, 0.707, 0.832, 0.919, 0.970]
    study = [0.714, 0.866, 0.917, 0.954, 0.980]
    np.testing.assert_allclose(convert_beta(beta, "recall"), recall, atol=6e-4)
    np.testing.assert_allclose(convert_beta(beta, "encoding"), study, atol=6e-4)


@given(st.floats(0, 1), st.sampled_from(["encoding", "recall"]))
def test_conversion_comes_back(beta: float, phase: str) -> None:
    there = convert_beta(beta, phase)
    back = convert_beta(there, phase, source="rho-cmr", target="icl-cmr")
    assert back == pytest.approx(beta, abs=1e-7)


def test_same_model_in_both_forms() -> None:
    icl = CMRParameters(0.6, 0.75, 0.3)
    rho = icl.to("rho-cmr")
    assert rho.parametrisation == "rho-cmr"
    np.testing.assert_allclose(
        curve(rho.beta_enc, rho.beta_rec, rho.gamma, parametrisation="rho-cmr"),
        curve(0.6, 0.75, 0.3),
        atol=1e-9,
    )


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0.0, 0.5, 0.5), {}, r"beta_enc=0.0 .* \(0, 1\]"),
        ((0.5, 1.5, 0.5), {}, "beta_rec=1.5"),
        ((0.5, 0.5, -0.1), {}, "gamma=-0.1"),
        ((0.5, 0.5, 0.5), {"parametrisation": "cmr2"}, "parametrisation='cmr2'"),
        ((0.5, 0.5, 0.5), {"recalls": 1}, "at least 2 recalls"),
    ],
)
def test_illegal_parameters(arguments: tuple[float, ...], options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cmr_crp(*arguments, **options)


# --- distance and fits ---------------------------------------------------------------------


def distance_by_definition(a: np.ndarray, p: np.ndarray) -> float:
    a = a - a.min()
    p = p - p.min()
    p = p * a.max() / p.max()
    return float(np.mean((p - a) ** 2) / np.var(a))


def test_distance_by_definition_and_invariance() -> None:
    rng = np.random.default_rng(0)
    curves, models = rng.normal(size=(4, 11)), rng.random((6, 11))
    found = cmr_distance(curves, models)
    for i, a in enumerate(curves):
        for j, p in enumerate(models):
            assert found[i, j] == pytest.approx(distance_by_definition(a, p))
    np.testing.assert_allclose(cmr_distance(3 * curves - 7, 2 * models + 1), found)
    assert np.isnan(cmr_distance(np.full((1, 11), 0.1), models)).all()


@given(st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_nearest_node_is_the_minimum_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = rng.normal(size=11) * 10.0 ** rng.integers(-3, 4) + rng.normal() * 5
    models = cmr_grid()[1][:, 3:14]
    best = min(distance_by_definition(own, p) for p in models[::7])
    found = fit_cmr(own, draws=0)["distance"][0]
    assert found <= best + 1e-9
    assert found == pytest.approx(cmr_distance(own[None], models).min(), rel=1e-5)


def test_published_head() -> None:
    """Released: (.60, .75, .3) at distance .0061."""
    found = fit_cmr(L5H1, draws=100).iloc[0]
    assert found["distance"] == pytest.approx(0.0061, abs=5e-4)
    assert found["beta_enc"] == pytest.approx(0.6, abs=0.051)
    assert found["beta_rec"] == pytest.approx(0.75, abs=0.051)
    assert found["gamma"] == pytest.approx(0.3, abs=0.051)
    assert found["peak_lag"] == 1
    assert not found["lag0_peak"]
    assert found["permuted_percentile"] <= 0.02
    assert found["random_walk_percentile"] <= 0.01
    assert found["parametrisation"] == "icl-cmr"


def test_grid_curves_are_fitted_by_themselves() -> None:
    parameters, curves = cmr_grid()
    rows = [400, 2000, 3333]
    found = fit_cmr(5 * curves[rows] - 2, draws=0)
    np.testing.assert_allclose(found["distance"], 0, atol=1e-9)
    np.testing.assert_allclose(found[["beta_enc", "beta_rec", "gamma"]], parameters[rows])
    np.testing.assert_allclose(found["inverse_temperature"], 5)
    rho = fit_cmr(curves[rows], draws=0, parametrisation="rho-cmr")
    np.testing.assert_allclose(rho["beta_rec"], convert_beta(parameters[rows, 1], "recall"))


def test_lag_zero_heads_are_flagged() -> None:
    found = fit_cmr([curve(0.95, 0, 0)[3:14], L5H1], draws=0)
    assert found["lag0_peak"].tolist() == [True, False]
    assert found["distance"][0] < 0.001


def test_curves_without_lag_zero_and_without_shape() -> None:
    people = np.array(L5H1)
    people[5] = np.nan
    found = fit_cmr([people, L5H1, np.full(11, 0.3)], draws=0)
    assert found["distance"][1] == pytest.approx(fit_cmr(L5H1, draws=0)["distance"][0])
    assert found["distance"][0] < 0.01
    assert np.isnan(found["distance"][2])
    assert found["beta_enc"].isna().tolist() == [False, False, True]


def test_nulls() -> None:
    lags = np.arange(-5, 6)
    walks = null_distances("random_walk", lags, 2000)
    # A threshold of 0.5 lets many random walks pass, one of 0.1 hardly any.
    assert 0.1 < (walks < 0.5).mean() < 0.25
    assert (walks < 0.1).mean() < 0.03
    noise = np.random.default_rng(1).normal(size=(1000, 11))
    noise = cmr_distance(noise, cmr_grid()[1][:, 3:14]).min(axis=1)
    assert (noise < 0.5).mean() < 0.04
    straight = fit_cmr(np.arange(11.0), draws=0)["distance"][0]
    assert straight < 0.5
    permuted = null_distances("permuted", lags, 300, curve=L5H1)
    assert (permuted < 0.0061).mean() < 0.05
    # A curve without order sits anywhere within its own null.
    table = fit_cmr(np.random.default_rng(2).normal(size=(100, 11)), draws=100)
    assert 0.4 < table["permuted_percentile"].mean() < 0.6
    with pytest.raises(InputError, match="needs the curve"):
        null_distances("permuted", lags, 10)


def test_gaussian_baseline_recovers_bumps() -> None:
    lags = np.arange(-5, 6)
    bumps = [
        3 + 2 * np.exp(-((lags - centre) ** 2) / 2 / width**2)
        for centre, width in ((1, 0.6), (0.4, 1.7), (-4, 3), (0, 0.35))
    ]
    np.testing.assert_allclose(gaussian_distance(bumps, lags), 0, atol=1e-6)
    # Never worse than a constant (1), nor than the best bump centred at a lag.
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(20, 11))
    assert (gaussian_distance(noise, lags) <= 1).all()


@pytest.mark.parametrize(
    ("curves", "lags", "error", "message"),
    [
        (np.ones(10), None, InputError, "cannot be symmetric"),
        (np.ones(11), [1, 2], InputError, "do not fit 2 lags"),
        (np.ones(3), [1, 1, 2], InputError, "different integers"),
        (np.array([np.inf] + [0.0] * 10), None, DataError, "infinite at lag -5"),
        (np.array([1.0, 2, 3, *[np.nan] * 8]), None, InputError, "has 3 lags with a value"),
    ],
)
def test_unusable_curves(curves: object, lags: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        fit_cmr(curves, lags, draws=0)  # type: ignore[arg-type]
