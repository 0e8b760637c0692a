"""Proposal `P`: Bayesian online change-point detection (Adams & MacKay 2007).

An event is a stretch of values from one normal distribution, whose mean and precision are drawn
anew (normal-gamma prior) at each start; a start has the same probability at every value. Integrated
over mean and precision, the next value given the r values of the event so far follows Student's
t, and the probability of every r is updated value by value: nothing that follows is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.trace import Trace
from workbench.events.proposal import Options, Proposal, check_count, matched
from workbench.events.signals import signal_of
from workbench.events.sizes import check_sizes, size_events, thin

__all__ = ["CHANGE_POINTS", "NormalGamma", "RunLengths", "change_points", "run_lengths"]

_NEGLIGIBLE = 1e-9  # of an event's length: the default longest event is exceeded so rarely


class NormalGamma(NamedTuple):
    """Prior of an event's mean and precision: mean ~ N(mean, 1/(kappa·λ)), λ ~ Γ(alpha, rate beta).

    The defaults suit log surprisal in nats: a mean near 0.5 (1.6 nats), a sd near 1, both vague.
    """

    mean: float = 0.5
    kappa: float = 1.0
    alpha: float = 1.0
    beta: float = 1.0


_PRIOR = NormalGamma()


@dataclass
class RunLengths:
    """Probability of each number of values that the present event has had, value by value.

    Parameters
    ----------
    expected_length : mean number of values of an event a priori; the hazard is its inverse.
    prior : of the mean and precision of an event's values.
    longest : most values of an event. Lengths are geometric, and what is longer is put on
        `longest`: the total variation between the two is `truncation`, and for that prior the
        probabilities are exact. None: the length that is exceeded with probability 1e-9.

    Attributes
    ----------
    probability : shape (r,), r ≤ longest: entry i is P(the present event has had i + 1 values |
        all values so far); empty before the first value.

    Raises
    ------
    InputError : expected_length ≤ 1, a prior that is none, longest < 1.
    """

    expected_length: float = 50.0
    prior: NormalGamma = _PRIOR
    longest: int | None = None
    probability: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), init=False)
    _means: NDArray[np.float64] = field(init=False, repr=False)
    _betas: NDArray[np.float64] = field(init=False, repr=False)
    _constants: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.expected_length) and self.expected_length > 1):
            raise InputError(f"expected_length={self.expected_length} must be more than 1.")
        prior = self.prior = NormalGamma(*map(float, self.prior))
        if not (all(map(math.isfinite, prior)) and min(prior[1:]) > 0):
            raise InputError(
                f"prior={tuple(prior)}: the mean must be finite, and kappa, alpha and beta above 0."
            )
        if self.longest is None:
            self.longest = math.ceil(math.log(_NEGLIGIBLE) / math.log1p(-1 / self.expected_length))
        if self.longest < 1:
            raise InputError(f"longest={self.longest} must be at least 1.")
        seen = np.arange(self.longest)
        alpha = prior.alpha + seen / 2
        kappa = prior.kappa + seen
        # log density of t: constant - (alpha + 1/2)·log(1 + (x - mean)² kappa/(2 beta (kappa + 1)))
        # less half of log(beta), which changes with the values
        self._constants = (
            gammaln(alpha + 0.5) - gammaln(alpha) - 0.5 * np.log(2 * np.pi * (kappa + 1) / kappa)
        )
        self._means = np.array([prior.mean])
        self._betas = np.array([prior.beta])

    @property
    def truncation(self) -> float:
        """Prior probability that an event is longer than `longest`."""
        assert self.longest is not None
        return (1 - 1 / self.expected_length) ** self.longest

    def update(self, value: float) -> NDArray[np.float64]:
        """Take in a value; the new `probability`.

        Raises
        ------
        InputError : the value is not finite.
        """
        assert self.longest is not None
        if not math.isfinite(value):
            raise InputError(f"a value is {value}; change points need finite values.")
        seen = np.arange(len(self._means))  # values of the event before this one
        kappa = self.prior.kappa + seen
        growth = kappa * (value - self._means) ** 2 / (2 * (kappa + 1))
        likelihood = (
            self._constants[seen]
            - 0.5 * np.log(self._betas)
            - (self.prior.alpha + seen / 2 + 0.5) * np.log1p(growth / self._betas)
        )
        weights = np.ones(1)
        if len(self.probability):
            hazard = np.full(len(self.probability), 1 / self.expected_length)
            if len(hazard) == self.longest:
                hazard[-1] = 1.0
            going = self.probability * (1 - hazard)
            weights = np.concatenate([[self.probability @ hazard], going])[: self.longest]
        with np.errstate(divide="ignore"):
            joint = np.log(weights) + likelihood
        joint = np.exp(joint - joint.max())
        self.probability = joint / joint.sum()
        means = (kappa * self._means + value) / (kappa + 1)
        keep = self.longest - 1
        self._means = np.concatenate([[self.prior.mean], means[:keep]])
        self._betas = np.concatenate([[self.prior.beta], (self._betas + growth)[:keep]])
        return self.probability


def run_lengths(
    values: ArrayLike,
    *,
    expected_length: float = 50.0,
    prior: tuple[float, float, float, float] = _PRIOR,
    longest: int | None = None,
) -> NDArray[np.float64]:
    """P(the event that value t belongs to has had r values | values up to t).

    Parameters
    ----------
    values : shape (n,), finite.
    expected_length, prior, longest : see `RunLengths`.

    Returns
    -------
    Shape (n, n) (or (n, longest)): row t, column r - 1. Rows sum to 1.
    """
    series = np.asarray(values, dtype=np.float64)
    state = RunLengths(expected_length, NormalGamma(*prior), longest)
    assert state.longest is not None
    found = np.zeros((len(series), min(len(series), state.longest)))
    for row, value in zip(found, series.tolist(), strict=True):
        probability = state.update(value)
        row[: len(probability)] = probability
    return found


def change_points(
    values: ArrayLike,
    *,
    n_boundaries: int | None = None,
    expected_length: float = 50.0,
    prior: tuple[float, float, float, float] = _PRIOR,
    longest: int | None = None,
    lag: int = 8,
    log: bool = True,
    floor: float = 0.1,
    min_size: int = 8,
    max_size: int | None = 128,
    short: str = "merge",
) -> Boundaries:
    """Events of a series by Bayesian online change-point detection (Adams & MacKay 2007).

    Parameters
    ----------
    values : shape (n,), e.g. surprisal in nats; NaN where there is none (left out).
    n_boundaries : None: an event starts where the most probable run length drops: at the start of
        the new most probable run, if that lies after the last one found. k: the k positions with
        the greatest `strength` at least `min_size` apart.
    expected_length, prior, longest : see `RunLengths`.
    lag : values after t that are waited for before a start at t is judged.
    log, floor : model log(value + floor) instead, since surprisal is skewed; the floor makes all
        values far below it alike.
    min_size, max_size, short : with n_boundaries None: see `size_events`.

    Returns
    -------
    Boundaries over tokens. `strength` is the probability that the present event began at t, given
    all values up to t + lag (or to the end); −inf where only `max_size` cut.

    Raises
    ------
    InputError : a prior or length that is none, or a value that has no logarithm.
    """
    check_sizes(min_size, max_size)
    if lag < 0:
        raise InputError(f"lag={lag} must be at least 0.")
    series = np.asarray(values, dtype=np.float64)
    n = len(series)
    scored = np.flatnonzero(~np.isnan(series))
    state = RunLengths(expected_length, NormalGamma(*prior), longest)
    begun = np.zeros(len(scored))  # probability that the present event began here
    drops: list[int] = []
    known = _logarithms(series[scored], scored, floor) if log else series[scored]
    for t, value in enumerate(known.tolist()):
        probability = state.update(value)
        if t >= lag and lag < len(probability):
            begun[t - lag] = probability[lag]
        start = t - int(probability.argmax())
        if start > (drops[-1] if drops else 0):
            drops.append(start)
    rest = min(lag, len(scored), len(state.probability))
    begun[len(scored) - rest :] = state.probability[:rest][::-1]
    strength = np.zeros(n)
    strength[scored] = begun
    settings: dict[str, Any] = {
        "expected_length": float(expected_length),
        "prior": list(state.prior),
        "longest": state.longest,
        "truncation": state.truncation,
        "lag": int(lag),
        "log": bool(log),
        "min_size": min_size,
    }
    if log:
        settings["floor"] = float(floor)
    if n_boundaries is None:
        flags = scored[np.array(drops, dtype=np.int64)]
        cut = size_events(
            flags, strength[flags], n, min_size=min_size, max_size=max_size, short=short
        )
        settings |= {"rule": "run length drops", "max_size": max_size, "short": short}
    else:
        check_count(n_boundaries, n)
        places = np.arange(1, n)
        cut = thin(places, strength[1:], n_boundaries, min_size)
        settings |= {"rule": "most probable", **matched(n_boundaries, len(cut.starts))}
    return Boundaries(
        cut.starts, n, strength=cut.strength, open=True, method="P", settings=settings
    )


def _logarithms(
    values: NDArray[np.float64], places: NDArray[np.int64], floor: float
) -> NDArray[np.float64]:
    shifted = values + floor
    bad = ~(shifted > 0)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"value {values[first]:g} at position {int(places[first])} plus floor={floor} has no "
            "logarithm; give a larger floor, or log=False."
        )
    return np.log(shifted)


def _propose(trace: Trace, options: Options) -> Boundaries:
    chosen = dict(options.more)
    signal = chosen.pop("signal")
    found = change_points(
        signal_of(trace, signal),
        n_boundaries=options.n_boundaries,
        min_size=options.min_size,
        max_size=options.max_size,
        short=options.short,
        **chosen,
    )
    return found.with_(settings={"signal": signal, **found.settings})


CHANGE_POINTS = Proposal(
    "P",
    "Bayesian online change-point",
    "An event starts where the values up to now make it most probable that a stretch of another "
    "mean or spread has begun (log surprisal by default).",
    "Adams & MacKay 2007 (arXiv 0710.3742)",
    _propose,
    options={
        "signal": "surprisal",
        "expected_length": 50.0,
        "prior": NormalGamma(),
        "longest": None,
        "lag": 8,
        "log": True,
        "floor": 0.1,
    },
)
