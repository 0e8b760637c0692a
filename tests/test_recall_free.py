from __future__ import annotations

import numpy as np
import pytest

from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.recall.rho_cmr import (
    FreeRecallCMR,
    _drift,
    _strength,
    _study,
    simulate_free_recall,
)
from workbench.analysis.recall.temporal import temporal_factor
from workbench.core.errors import InputError


def summary(**changes: float | str) -> tuple[np.ndarray, float]:
    """Pooled lag-CRP at -3 ... 3 (lag 0 left out) and temporal factor."""
    data = simulate_free_recall(FreeRecallCMR(**changes), n_lists=3000)  # type: ignore[arg-type]
    prob = lag_crp(data, pooled=True).set_index("lag")["prob"]
    factor = temporal_factor(data)["temporal_factor"].mean()
    return prob.loc[[-3, -2, -1, 1, 2, 3]].to_numpy(), float(factor)


# A reference simulation of 4,000 lists (standard errors below .005), same equations.
REFERENCE = [
    ({}, [0.137, 0.203, 0.284, 0.505, 0.301, 0.191], 0.768),
    ({"gamma_fc": 0.9}, [0.145, 0.230, 0.360, 0.400, 0.265, 0.170], 0.787),
    ({"beta_enc": 0.4}, [0.127, 0.145, 0.165, 0.259, 0.199, 0.165], 0.614),
    ({"beta_enc": 0.9}, [0.022, 0.140, 0.819, 0.878, 0.161, 0.028], 0.948),
    ({"beta_rec": 0.3}, [0.128, 0.172, 0.229, 0.319, 0.229, 0.175], 0.600),
    ({"beta_rec": 1.0}, [0.130, 0.199, 0.285, 0.631, 0.307, 0.162], 0.819),
    ({"choice": "exponential"}, [0.118, 0.153, 0.216, 0.469, 0.255, 0.158], 0.720),
]


@pytest.mark.parametrize(("changes", "expected", "factor"), REFERENCE)
def test_reference_simulation(changes: dict, expected: list[float], factor: float) -> None:
    found, temporal = summary(**changes)
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert temporal == pytest.approx(factor, abs=0.008)


def test_monotone_facts() -> None:
    ratio = [c[3] / c[2] for c, _ in (summary(gamma_fc=g) for g in (0.0, 0.4, 0.9))]
    assert ratio == sorted(ratio, reverse=True)  # asymmetry falls with γ_fc
    assert ratio[-1] > 1
    near = [c[3] / c[5] for c, _ in (summary(beta_enc=b) for b in (0.4, 0.6, 0.9))]
    assert near == sorted(near)  # width falls with β_enc
    near = [c[3] / c[5] for c, _ in (summary(tau=t) for t in (1.0, 3.0, 6.0))]
    assert near == sorted(near)  # and with τ
    factor = [f for _, f in (summary(beta_rec=b) for b in (0.3, 0.7, 1.0))]
    assert factor == sorted(factor)  # the temporal factor rises with β_rec


def test_context_keeps_its_length() -> None:
    rng = np.random.default_rng(0)
    for beta in (0.0, 0.3, 1.0):
        c, given = rng.normal(size=(2, 5, 7))
        c /= np.linalg.norm(c, axis=1, keepdims=True)
        given /= np.linalg.norm(given, axis=1, keepdims=True)
        np.testing.assert_allclose(np.linalg.norm(_drift(c, given, beta), axis=1), 1)
    stored, end = _study(FreeRecallCMR(beta_enc=0.6), 4)
    rho = 0.8
    np.testing.assert_allclose(end, [rho**4, 0.6 * rho**3, 0.6 * rho**2, 0.6 * rho, 0.6])
    np.testing.assert_allclose(stored[-1], end)
    before, _ = _study(FreeRecallCMR(beta_enc=0.6, stores="before"), 4)
    np.testing.assert_allclose(before[1:], stored[:-1])


def test_choice_rules() -> None:
    activation = np.array([[0.2, 0.4, 0.8]])
    open_ = np.array([[True, True, False]])
    luce = _strength(FreeRecallCMR(tau=2.0), activation, open_)[0]
    assert luce[0] / luce[1] == pytest.approx(0.25)
    assert luce[2] == 0
    soft = _strength(FreeRecallCMR(choice="exponential", temperature=0.5), activation, open_)[0]
    assert soft[1] / soft[0] == pytest.approx(np.exp(2 * 0.2 / 0.5))


def test_recall_is_without_replacement_and_reproducible() -> None:
    a, b = simulate_free_recall(n_lists=50, seed=3), simulate_free_recall(n_lists=50, seed=3)
    assert (a.outputs == b.outputs).all()
    assert a.n_repeats.sum() == a.n_intrusions.sum() == 0
    assert len(a.subjects) == 20
    silent = simulate_free_recall(FreeRecallCMR(stop_scale=1.0), n_lists=20)
    assert (silent.outputs == -1).all()
    assert lag_crp(silent)["prob"].isna().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta_enc": 1.2}, "beta_enc=1.2"),
        ({"tau": 0.0}, "tau=0.0"),
        ({"choice": "race"}, "choice='race'"),
        ({"stores": "both"}, "stores='both'"),
        ({"stop_scale": -1.0}, "stop_scale=-1.0"),
    ],
)
def test_illegal_parameters(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FreeRecallCMR(**changes)


def test_illegal_sizes() -> None:
    with pytest.raises(InputError, match="no more subjects than lists"):
        simulate_free_recall(n_lists=3, n_subjects=5)
