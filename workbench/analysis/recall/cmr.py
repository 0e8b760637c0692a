"""Context maintenance and retrieval: expected lag curves in the form fitted to attention heads.

The model and its parametrisation ("icl-cmr") are those of Ji-An, Zhou, Benna & Mattar (NeurIPS
2024), which recalls *with replacement*: an item may come again, so that lag 0 exists. It is not a
model of people's free recall; that one is `rho_cmr`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError

__all__ = [
    "GRID_BETA_ENC",
    "GRID_BETA_REC",
    "GRID_GAMMA",
    "PARAMETRISATIONS",
    "CMRParameters",
    "cmr_crp",
    "cmr_grid",
    "convert_beta",
    "expected_crps",
]

PARAMETRISATIONS = ("icl-cmr", "rho-cmr")

GRID_BETA_ENC = np.round(np.arange(1, 21) * 0.05, 2)
GRID_BETA_REC = np.round(np.arange(0, 21) * 0.05, 2)
GRID_GAMMA = np.round(np.arange(0, 11) * 0.1, 1)

_PERIOD = 1024
"""Positions on the circle on which an unbounded list is represented."""


@dataclass(frozen=True)
class CMRParameters:
    """Three parameters of CMR, in a named parametrisation.

    Parameters
    ----------
    beta_enc : drift of context while studying, in (0, 1].
    beta_rec : drift of context while recalling, in [0, 1].
    gamma : weight of the retrieved study context in what a recalled item puts back into context,
        in [0, 1]; 0: only the item's own unit. The same number in both parametrisations.
    parametrisation : "icl-cmr": context is (1 - β) old + β new, then normalised (in recall), or
        decays by 1 - β (in study). "rho-cmr": context is ρ old + β new with ρ such that its length
        stays 1 (Howard & Kahana 2002; Polyn, Norman & Kahana 2009). The same number means a
        different drift in the two: `to` converts.
    """

    beta_enc: float
    beta_rec: float
    gamma: float
    parametrisation: str = "icl-cmr"

    def __post_init__(self) -> None:
        check_option("parametrisation", self.parametrisation, PARAMETRISATIONS)
        _check_range("beta_enc", self.beta_enc, open_low=True)
        _check_range("beta_rec", self.beta_rec)
        _check_range("gamma", self.gamma)

    def to(self, parametrisation: str) -> CMRParameters:
        """The same drift in another parametrisation (see `convert_beta`)."""
        args = {"source": self.parametrisation, "target": parametrisation}
        return CMRParameters(
            float(convert_beta(self.beta_enc, "encoding", **args)),
            float(convert_beta(self.beta_rec, "recall", **args)),
            self.gamma,
            parametrisation,
        )


def convert_beta(
    beta: ArrayLike, phase: str, *, source: str = "icl-cmr", target: str = "rho-cmr"
) -> NDArray[np.float64]:
    """Drift parameter(s) of one parametrisation in the other, for inputs orthogonal to context.

    Recall: the mixture (1 - β) : β of unit vectors, rescaled to length 1, has the new part
    β' = β / √(β² + (1 - β)²). Study: context that decays by 1 - β per item is ρ = 1 - β, hence
    β' = √(1 - (1 - β)²).

    Parameters
    ----------
    beta : value(s) in [0, 1].
    phase : "encoding" or "recall".
    source, target : "icl-cmr" or "rho-cmr".
    """
    check_option("phase", phase, ("encoding", "recall"))
    check_option("source", source, PARAMETRISATIONS)
    check_option("target", target, PARAMETRISATIONS)
    values = np.asarray(beta, dtype=np.float64)
    if (values < 0).any() or (values > 1).any():
        raise InputError(f"beta={beta!r} is not allowed; drift lies in [0, 1].")
    if source == target:
        return values
    if target == "rho-cmr":
        if phase == "recall":
            return values / np.hypot(values, 1 - values)
        return np.sqrt(1 - (1 - values) ** 2)
    rho = np.sqrt(1 - values**2)
    return values / (values + rho) if phase == "recall" else 1 - rho


def cmr_crp(
    beta_enc: float,
    beta_rec: float,
    gamma: float,
    *,
    max_lag: int = 8,
    recalls: int = 100,
    parametrisation: str = "icl-cmr",
) -> pd.DataFrame:
    """Expected lag curve of CMR as recall with replacement (Ji-An et al. 2024).

    Study gives item i the context Σ_{j<i} (1 - β_enc)^(i-j-1) e_j, recall draws an item with
    probability proportional to its context's match with the current one (Luce, exponent 1), and
    the item drawn moves the context by β_rec towards (1 - γ) e_i + γ · its study context.

    The curve is computed, not simulated: the first and second moments of context are propagated
    through `recalls` draws (see `expected_crps`). The list is unbounded, so that no lag is cut
    off by its ends; the released code studies 100 items.

    Parameters
    ----------
    beta_enc, beta_rec, gamma, parametrisation : see `CMRParameters`.
    max_lag : the curve covers -max_lag ... max_lag.
    recalls : number of items drawn, the first one counted relative to the cue.

    Returns
    -------
    Tidy table: lag, prob (sums to 1 over the lags shown). It is not conditional on availability
    and hence not comparable in height with people's lag-CRP.
    """
    parameters = CMRParameters(beta_enc, beta_rec, gamma, parametrisation).to("icl-cmr")
    curve = expected_crps(
        [parameters.beta_enc],
        [parameters.beta_rec],
        [parameters.gamma],
        max_lag=max_lag,
        recalls=recalls,
    )[0]
    return pd.DataFrame({"lag": np.arange(-max_lag, max_lag + 1), "prob": curve})


def expected_crps(
    beta_enc: ArrayLike,
    beta_rec: ArrayLike,
    gamma: ArrayLike,
    *,
    max_lag: int = 8,
    recalls: int = 100,
) -> NDArray[np.float64]:
    """Expected lag distributions of many parameter sets (icl-cmr form), shape (n, 2 max_lag + 1).

    Write context as a distribution s over positions. A draw has probabilities a * s (a the
    geometric kernel β_enc (1 - β_enc)^(d-1), d ≥ 1), the item drawn puts back v, and s becomes
    (1 - w) s + w v, so that two successive draws i, j have the joint probability
    E[(a*s)_i (a * ((1-w) s + w v_i))_j]: it needs the autocorrelation of s, E Σ_x s_x s_(x+d),
    whose expectation obeys a closed recursion. On an unbounded list all of these are convolutions
    in d, hence products after a Fourier transform: with R, A, V the transforms,

        R' = R [(1-w)² + 2 w (1-w) Re(A V)] + w² |V|²,
        lag distribution = (1-w) R |A|² + w A V.

    The one approximation is in w, the share of the new input after the two vectors were scaled to
    Euclidean length 1: it depends on how concentrated the old context is, for which its mean
    square length R(0) stands. Against simulation the curves are off by .002 (median over a grid of
    45 parameter sets, largest of 17 lags), by up to .026 for β_enc .95, β_rec .3, γ 1, where
    context is either one item or spread out. For β_rec 0 and 1 nothing is approximate. At
    β_rec = 0 context never moves and the draws are independent; there, as in the released code,
    the transition from the cue is left out, and γ plays no part.

    The released simulation ends runs at the end of 100 items, which matters below β_enc 0.2: its
    curves lean forward there, because runs from the first 20 items are short.

    Parameters
    ----------
    beta_enc, beta_rec, gamma : (n,) each, icl-cmr form.
    max_lag : lags kept; the distribution is rescaled to sum 1 over them.
    recalls : number of draws, at least 2.
    """
    enc, rec, mix = np.broadcast_arrays(
        np.atleast_1d(np.asarray(beta_enc, np.float64)),
        np.atleast_1d(np.asarray(beta_rec, np.float64)),
        np.atleast_1d(np.asarray(gamma, np.float64)),
    )
    _check_range("beta_enc", enc, open_low=True)
    _check_range("beta_rec", rec)
    _check_range("gamma", mix)
    if recalls < 2 or not 1 <= max_lag < _PERIOD // 4:
        raise InputError(
            f"recalls={recalls}, max_lag={max_lag}: give at least 2 recalls and a max_lag of "
            f"1 ... {_PERIOD // 4 - 1}."
        )
    curves = np.empty((len(enc), 2 * max_lag + 1))
    block = 256  # parameter sets at a time: their spectra stay in the processor's cache
    for low in range(0, len(enc), block):
        part = slice(low, low + block)
        curves[part] = _propagate(enc[part], rec[part], mix[part], max_lag, recalls)
    return curves


def _propagate(
    enc: NDArray[np.float64],
    rec: NDArray[np.float64],
    mix: NDArray[np.float64],
    max_lag: int,
    recalls: int,
) -> NDArray[np.float64]:
    turn = np.exp(-2j * np.pi * np.arange(_PERIOD // 2 + 1) / _PERIOD)[None, :]
    keep = (1 - enc)[:, None]
    choice = enc[:, None] * turn / (1 - keep * turn)
    # What an item puts back: (1 - γ) its own unit + γ Σ (1 - β_enc)^(m-1) units m before it.
    length = np.sqrt((1 - mix) ** 2 + mix**2 / (1 - (1 - enc) ** 2))
    weight = (1 - mix + mix / enc) / length  # sum of the input once scaled to Euclidean length 1
    given = ((1 - mix)[:, None] + mix[:, None] * np.conj(turn) / (1 - keep * np.conj(turn))) / (
        1 - mix + mix / enc
    )[:, None]
    both = choice * given
    both_real, given_power = both.real.copy(), np.abs(given) ** 2
    # Mean over the whole circle from its half spectrum: inner frequencies count twice.
    half = np.full(turn.shape[1], 2.0 / _PERIOD)
    half[[0, -1]] = 1.0 / _PERIOD

    context = np.ones_like(both_real)
    old_part = np.zeros_like(both_real)
    new_share = np.zeros(len(enc))
    for _ in range(recalls - 1):
        concentration = np.sqrt(context @ half)
        share = rec * weight / ((1 - rec) / concentration + rec * weight)
        stay = (1 - share)[:, None]
        old_part += stay * context
        new_share += share
        share = share[:, None]
        context *= stay**2 + 2 * share * stay * both_real
        context += share**2 * given_power
    total = old_part * np.abs(choice) ** 2 + new_share[:, None] * both
    total += np.where(rec[:, None] > 0, choice, 0.0)  # from the cue to the first draw
    lags = np.arange(-max_lag, max_lag + 1)
    curve = np.fft.irfft(total, n=_PERIOD, axis=1)[:, lags % _PERIOD]
    curve = np.maximum(curve, 0.0)  # rounding
    return curve / curve.sum(axis=1, keepdims=True)


@lru_cache(maxsize=4)
def cmr_grid(
    max_lag: int = 8, recalls: int = 100
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Curves of the 20 × 21 × 11 grid of Ji-An et al. (2024), computed once.

    Returns
    -------
    parameters (4620, 3): β_enc .05 ... 1, β_rec 0 ... 1, γ 0 ... 1 (icl-cmr form), and curves
    (4620, 2 max_lag + 1), both read-only.
    """
    grid = np.meshgrid(GRID_BETA_ENC, GRID_BETA_REC, GRID_GAMMA, indexing="ij")
    parameters = np.stack([axis.ravel() for axis in grid], axis=1)
    curves = expected_crps(*parameters.T, max_lag=max_lag, recalls=recalls)
    parameters.flags.writeable = curves.flags.writeable = False
    return parameters, curves


def _check_range(name: str, value: ArrayLike, *, open_low: bool = False) -> None:
    values = np.asarray(value, dtype=np.float64)
    low = values <= 0 if open_low else values < 0
    if low.any() or not (values <= 1).all():
        bounds = "(0, 1]" if open_low else "[0, 1]"
        raise InputError(f"{name}={value!r} is not allowed; it lies in {bounds}.")
