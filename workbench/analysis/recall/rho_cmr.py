"""Free recall of people as context maintenance and retrieval: a simulator in the ρ form.

Equations: Howard & Kahana (2002) for drift; Polyn, Norman & Kahana (2009) for association and
primacy. Recall is without replacement, so its sequences go through the same measures as people's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.analysis.recall.sequences import RecallSequences
from workbench.core.checks import check_option
from workbench.core.errors import InputError

__all__ = ["CHOICES", "STORES", "FreeRecallCMR", "simulate_free_recall"]

CHOICES = ("luce", "exponential")
STORES = ("after", "before")


@dataclass(frozen=True)
class FreeRecallCMR:
    """Parameters of CMR for free recall of one list of unrelated items.

    Context c keeps length 1: c ← ρ c + β c_in, ρ = √(1 + β²((c·c_in)² - 1)) - β (c·c_in).

    Parameters
    ----------
    beta_enc, beta_rec, beta_start : drift while studying, at each recall, and back to the start
        of the list when recall begins; in [0, 1].
    gamma_fc : share of the learned (study) context in what an item puts back, in [0, 1]; the rest
        is its own unit. Forward asymmetry falls with it.
    primacy_scale, primacy_decay : association of item i to its context is scaled by
        1 + φ_s exp(-φ_d (i - 1)).
    choice : "luce": P ∝ a^τ; "exponential": P ∝ exp(2 a / T) (Howard & Kahana 2002).
    tau, temperature : τ and T of these.
    stop_scale, stop_growth : probability X_1 exp(X_2 k) of ending recall after k recalls.
    stores : which context an item is associated with: "after" it has entered context, or
        "before" (Lohnas, Polyn & Kahana 2015). It changes the balance of lag -1.
    """

    beta_enc: float = 0.6
    beta_rec: float = 0.7
    beta_start: float = 0.3
    gamma_fc: float = 0.4
    primacy_scale: float = 1.4
    primacy_decay: float = 1.0
    choice: str = "luce"
    tau: float = 3.0
    temperature: float = 0.35
    stop_scale: float = 0.001
    stop_growth: float = 0.3
    stores: str = "after"

    def __post_init__(self) -> None:
        check_option("choice", self.choice, CHOICES)
        check_option("stores", self.stores, STORES)
        for name in ("beta_enc", "beta_rec", "beta_start", "gamma_fc"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)} is not allowed; it lies in [0, 1].")
        for name in ("tau", "temperature"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}={getattr(self, name)} is not allowed; it is above 0.")
        for name in ("primacy_scale", "primacy_decay", "stop_scale"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} is not allowed; it is at least 0.")


def simulate_free_recall(
    parameters: FreeRecallCMR | None = None,
    *,
    length: int = 16,
    n_lists: int = 1000,
    n_subjects: int = 20,
    seed: int = 0,
) -> RecallSequences:
    """Recall of lists by CMR, ready for every measure of recall.

    Parameters
    ----------
    parameters : None: the defaults of `FreeRecallCMR`.
    length : items of a list.
    n_lists : lists in all, shared out evenly between the subjects.
    n_subjects : labels 1, 2, ...: all alike, so that intervals show sampling only.
    seed : of the choices.

    Returns
    -------
    RecallSequences, source "CMR"; no repeats, no intrusions.
    """
    p = parameters or FreeRecallCMR()
    if length < 1 or n_lists < 1 or not 1 <= n_subjects <= n_lists:
        raise InputError(
            f"length={length}, n_lists={n_lists}, n_subjects={n_subjects}: each is at least 1, and "
            "there are no more subjects than lists."
        )
    rng = np.random.default_rng(seed)
    stored, end = _study(p, length)
    item_to_context = p.gamma_fc * stored
    item_to_context[np.arange(length), np.arange(length) + 1] += 1 - p.gamma_fc
    norms = np.linalg.norm(item_to_context, axis=1, keepdims=True)
    item_to_context = item_to_context / np.where(norms > 0, norms, 1.0)
    primacy = 1 + p.primacy_scale * np.exp(-p.primacy_decay * np.arange(length))
    context_to_item = primacy[:, None] * stored

    start = np.zeros((1, length + 1))
    start[0, 0] = 1.0
    context = np.repeat(_drift(end[None, :], start, p.beta_start), n_lists, axis=0)
    outputs = np.full((n_lists, length), -1, dtype=np.int64)
    open_ = np.ones((n_lists, length), dtype=bool)
    active = np.arange(n_lists)
    for k in range(length):
        stop = min(1.0, p.stop_scale * float(np.exp(p.stop_growth * k)))
        active = active[rng.random(len(active)) >= stop]
        if len(active) == 0:
            break
        weight = _strength(p, context[active] @ context_to_item.T, open_[active])
        total = weight.cumsum(axis=1)
        item = (total <= rng.random((len(active), 1)) * total[:, -1:]).sum(axis=1)
        outputs[active, k] = item + 1
        open_[active, item] = False
        context[active] = _drift(context[active], item_to_context[item], p.beta_rec)
    return RecallSequences.from_positions(
        [row[row > 0] for row in outputs],
        length,
        subject=(np.arange(n_lists) % n_subjects + 1).tolist(),
        source="CMR",
    )


def _study(p: FreeRecallCMR, length: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Context each item is associated with (length, length + 1), and context at the end.

    Unit 0 is the start of the list; an item's own unit is orthogonal to all before.
    """
    rho = np.sqrt(1 - p.beta_enc**2)
    context = np.zeros(length + 1)
    context[0] = 1.0
    stored = np.empty((length, length + 1))
    for item in range(length):
        before = context
        context = rho * before
        context[item + 1] += p.beta_enc
        stored[item] = before if p.stores == "before" else context
    return stored, context


def _drift(
    context: NDArray[np.float64], given: NDArray[np.float64], beta: float
) -> NDArray[np.float64]:
    """ρ c + β c_in with ρ such that the length stays 1; rows."""
    overlap = (context * given).sum(axis=1, keepdims=True)
    rho = np.sqrt(np.maximum(1 + beta**2 * (overlap**2 - 1), 0.0)) - beta * overlap
    return rho * context + beta * given


def _strength(
    p: FreeRecallCMR, activation: NDArray[np.float64], open_: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Weights of choice, 0 for recalled items; rows are scaled so that nothing under- or overflows.

    Activations have a floor of 1e-6: context may have nothing in common with what is left.
    """
    a = np.maximum(activation, 1e-6)
    power = p.tau * np.log(a) if p.choice == "luce" else 2 * a / p.temperature
    power = np.where(open_, power, -np.inf)
    weight: NDArray[np.float64] = np.exp(power - power.max(axis=1, keepdims=True))
    return weight
