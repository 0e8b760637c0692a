"""Proposal `V`: event segmentation by a hidden Markov model (Baldassano et al. 2017).

The events follow each other from left to right; each has one mean pattern, and a position's
pattern correlates with the one of its event. Patterns and posteriors are estimated in turn, with
a variance that shrinks, until the likelihood falls. The model sees the whole text and visits all of
its events: their number is given, or chosen by the likelihood of positions it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.trace import Trace
from workbench.events.patterns import patterns_of
from workbench.events.proposal import Options, Proposal, check_count, matched
from workbench.events.signals import boundary_count

__all__ = [
    "EVENT_HMM",
    "LIMIT",
    "EventHMM",
    "Posterior",
    "fit_events",
    "forward_backward",
    "held_out_likelihood",
    "hmm_boundaries",
    "most_probable_starts",
]

LIMIT = 8192
"""Most positions: the correlations of every pair of them are held."""

_FIRST_VARIANCE, _SHRINKING = 4.0, 0.98
_NOTHING = 1e-12  # a mean pattern whose square is below this share of one pattern's is rounding

Floats = NDArray[np.float64]


class Posterior(NamedTuple):
    """What the forward–backward algorithm says.

    events : P(position t lies in event k), shape (n, K); rows sum to 1.
    starts : P(event k starts at position t), shape (n, K); columns sum to 1.
    log_likelihood : log p(all positions | patterns), every event visited.
    """

    events: Floats
    starts: Floats
    log_likelihood: float


@dataclass(frozen=True, eq=False)
class EventHMM:
    """A fitted model.

    Parameters
    ----------
    posterior : of the positions it was fitted to.
    scores : log probability of each position under each event, shape (n, K).
    weights : share of each position in each event's mean pattern, shape (n, K), columns sum to 1.
    variance : of the step with the greatest likelihood.
    likelihoods : log likelihood of each step, shape (steps,).
    """

    posterior: Posterior
    scores: Floats
    weights: Floats
    variance: float
    likelihoods: Floats


def forward_backward(scores: ArrayLike) -> Posterior:
    """Posterior of a left-to-right chain of K events over n positions, in log space, O(n·K).

    The chain starts in the first event, ends in the last, and goes on to the next event with
    probability (K − 1)/n at each position.

    Parameters
    ----------
    scores : log probability of each position under each event, shape (n, K), K ≤ n.
    """
    given = np.asarray(scores, dtype=np.float64)
    n, k = given.shape
    stay, go = _steps(n, k)
    forward = np.full((n, k), -np.inf)
    forward[0, 0] = given[0, 0]
    for t in range(1, n):
        row = forward[t - 1] + stay
        np.logaddexp(row[1:], forward[t - 1, :-1] + go, out=row[1:])
        np.add(row, given[t], out=forward[t])
    backward = np.full((n, k), -np.inf)
    backward[-1, -1] = 0.0
    for t in range(n - 2, -1, -1):
        ahead = backward[t + 1] + given[t + 1]
        row = ahead + stay
        np.logaddexp(row[:-1], ahead[1:] + go, out=row[:-1])
        backward[t] = row
    total = float(forward[-1, -1])
    starts = np.zeros((n, k))
    starts[0, 0] = 1.0
    starts[1:, 1:] = np.exp(forward[:-1, :-1] + go + given[1:, 1:] + backward[1:, 1:] - total)
    return Posterior(np.exp(forward + backward - total), starts, total)


def most_probable_starts(scores: ArrayLike) -> NDArray[np.int64]:
    """First position of each event on the most probable path (Viterbi), shape (K,), first 0."""
    given = np.asarray(scores, dtype=np.float64)
    n, k = given.shape
    stay, go = _steps(n, k)
    best = np.full(k, -np.inf)
    best[0] = given[0, 0]
    moved = np.zeros((n, k), dtype=bool)
    for t in range(1, n):
        kept, came = best + stay, best[:-1] + go
        moved[t, 1:] = came > kept[1:]
        kept[1:] = np.maximum(kept[1:], came)
        best = kept + given[t]
    starts = np.zeros(k, dtype=np.int64)
    event = k - 1
    for t in range(n - 1, 0, -1):
        # as many positions as events left: each of them starts one
        if event and (moved[t, event] or t == event):
            starts[event] = t
            event -= 1
    return starts


def fit_events(patterns: ArrayLike, n_events: int, *, most_steps: int = 500) -> EventHMM:
    """Fit an event HMM (Baldassano et al. 2017).

    Columns are standardised over positions; then only the correlations of positions matter, so
    the model is fitted to their matrix. A position's score under an event with the correlation r is
    −log(2πv)/2 − (1 − r)·(d − 1)/(d·v): the Gaussian density of standardised patterns, per
    dimension. The variance v is 4·0.98^step, and steps end when the likelihood falls.

    Parameters
    ----------
    patterns : shape (n, d), finite.
    n_events : K, 1 ... n.
    most_steps : steps at most.

    Raises
    ------
    InputError : patterns that cannot be correlated, or K out of range.
    """
    gram, d = _gram(patterns)
    return _fit(gram, d, n_events, most_steps)


def held_out_likelihood(patterns: ArrayLike, n_events: int, *, most_steps: int = 500) -> float:
    """Mean log probability of a position under a model that was fitted to every other one.

    Fitted to the even positions, scored on the odd ones with the patterns of the even ones, and
    the other way round. Neighbouring positions resemble each other, so this favours more events
    than held-out readers would: it ranks numbers of events, and tests nothing.
    """
    gram, d = _gram(patterns)
    n = len(gram)
    total = 0.0
    for first in (0, 1):
        seen, kept = np.arange(first, n, 2), np.arange(1 - first, n, 2)
        if n_events > min(len(seen), len(kept)):
            raise InputError(f"n_events={n_events} cannot be held out in {n} positions.")
        model = _fit(gram[np.ix_(seen, seen)], d, n_events, most_steps)
        scores = _scores(
            gram[np.ix_(kept, seen)],
            gram[np.ix_(seen, seen)],
            np.sqrt(np.diag(gram)[kept]),
            model.weights,
            model.variance,
            d,
        )
        total += forward_backward(scores).log_likelihood
    return total / n


def hmm_boundaries(
    patterns: ArrayLike,
    *,
    n_events: int | str = "held-out",
    candidates: Iterable[int] | None = None,
    most_steps: int = 500,
) -> Boundaries:
    """Events of a series of patterns by an event HMM, over words.

    Parameters
    ----------
    patterns : shape (n, d), finite.
    n_events : how many, or "held-out": the candidate with the greatest `held_out_likelihood`.
    candidates : numbers of events tried; None: a dozen from 2 to n / 4, evenly spaced in their
        logarithm.
    most_steps : steps of each fit at most.

    Returns
    -------
    Boundaries (unit "word") on the most probable path, which visits every event. `strength` is the
    posterior probability that the event starts exactly there.

    Raises
    ------
    InputError : as `fit_events`; no candidate fits.
    """
    rows = np.asarray(patterns, dtype=np.float64)
    n = len(rows)
    settings: dict[str, Any] = {}
    if isinstance(n_events, str):
        if n_events != "held-out":
            raise InputError(f"n_events={n_events!r}: give a number of events, or 'held-out'.")
        if candidates is None:
            candidates = np.unique(np.geomspace(2, max(2, n / 4), 12).round().astype(int)).tolist()
        tried = sorted({int(k) for k in candidates if 1 <= k <= n // 2})
        if not tried:
            raise InputError(f"no candidate number of events lies between 1 and {n // 2}.")
        scored = {k: held_out_likelihood(rows, k, most_steps=most_steps) for k in tried}
        count = max(tried, key=lambda k: (scored[k], -k))
        settings["held_out"] = {str(k): value for k, value in scored.items()}
        if count == tried[-1]:
            settings["note"] = (
                f"the held-out likelihood is greatest at the most events tried, {count}"
            )
    else:
        count = n_events
    model = fit_events(rows, count, most_steps=most_steps)
    starts = most_probable_starts(model.scores)
    strength = model.posterior.starts[starts, np.arange(len(starts))][1:]
    settings |= {
        "n_events": int(count),
        "steps": len(model.likelihoods),
        "variance": model.variance,
        "log_likelihood": model.posterior.log_likelihood,
    }
    return Boundaries(starts, n, unit="word", strength=strength, method="V", settings=settings)


def _steps(n: int, k: int) -> tuple[float, float]:
    """Log probabilities of staying in an event and of going on to the next."""
    if not 1 <= k <= n:
        raise InputError(f"{n} positions have 1 to {n} events, not {k}.")
    if k == 1:
        return 0.0, -np.inf
    return float(np.log1p(-(k - 1) / n)), float(np.log((k - 1) / n))


def _gram(patterns: ArrayLike) -> tuple[Floats, int]:
    """Products of the standardised, centred patterns, and the number of columns that vary."""
    rows = np.asarray(patterns, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2:
        raise InputError(f"patterns must have the shape (n ≥ 2, d), not {rows.shape}.")
    if len(rows) > LIMIT:
        raise InputError(
            f"{len(rows)} positions: the event HMM holds the correlations of every pair of them, "
            f"and takes at most {LIMIT:,}; use unit='word' or 'sentence'."
        )
    if not np.isfinite(rows).all():
        first = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise InputError(f"pattern {first} is not finite.")
    spread = rows.std(axis=0, ddof=1)
    rows = (rows - rows.mean(axis=0))[:, spread > 0] / spread[spread > 0]
    if rows.shape[1] < 2:
        raise InputError("patterns need at least 2 columns that vary over positions.")
    rows -= rows.mean(axis=1, keepdims=True)
    gram = rows @ rows.T
    flat = np.diag(gram) <= 1e-20 * rows.shape[1]
    if flat.any():
        first = int(np.flatnonzero(flat)[0])
        raise InputError(f"standardised pattern {first} is constant and correlates with nothing.")
    return gram, rows.shape[1]


def _scores(
    cross: Floats, gram: Floats, lengths: Floats, weights: Floats, variance: float, d: int
) -> Floats:
    """Log probability of positions under the events whose mean patterns have these weights."""
    squares = np.einsum("tk,tk->k", weights, gram @ weights)
    # The mean of all standardised patterns (the first step's) is 0 and correlates with nothing.
    some = squares > _NOTHING * np.diag(gram).mean()
    norms = np.sqrt(np.where(some, squares, 1.0))
    correlation = np.where(some, (cross @ weights) / np.multiply.outer(lengths, norms), 0.0)
    return -0.5 * np.log(2 * np.pi * variance) - (1 - correlation) * (d - 1) / (d * variance)


def _fit(gram: Floats, d: int, n_events: int, most_steps: int) -> EventHMM:
    n = len(gram)
    if n_events != int(n_events) or not 1 <= n_events <= n:
        raise InputError(f"n_events={n_events}: {n} positions have 1 to {n} events.")
    if most_steps < 1:
        raise InputError(f"most_steps={most_steps} must be at least 1.")
    lengths = np.sqrt(np.diag(gram))
    weights = np.full((n, int(n_events)), 1 / n)
    best: EventHMM | None = None
    likelihoods: list[float] = []
    for step in range(most_steps):
        variance = _FIRST_VARIANCE * _SHRINKING**step
        scores = _scores(gram, gram, lengths, weights, variance, d)
        posterior = forward_backward(scores)
        if best is not None and posterior.log_likelihood < best.posterior.log_likelihood:
            break
        likelihoods.append(posterior.log_likelihood)
        best = EventHMM(posterior, scores, weights, variance, np.array(likelihoods))
        weights = posterior.events / posterior.events.sum(axis=0)
    assert best is not None
    return best


def _propose(trace: Trace, options: Options) -> Boundaries:
    chosen = dict(options.more)
    unit, n_events = chosen.pop("unit"), chosen.pop("n_events")
    rows, starts, made_of = patterns_of(trace, options, unit)
    asked: int | None = None
    if options.n_boundaries is not None:
        check_count(options.n_boundaries, trace.n_tokens)
        n_events, why = options.n_boundaries + 1, "n_boundaries"
    elif n_events is None:
        n_events, why = boundary_count(trace, options)[0] + 1, "as S"
    else:
        why = "n_events"
    if not isinstance(n_events, str):
        asked = n_events - 1
        n_events = min(n_events, len(rows))
    found = hmm_boundaries(rows, n_events=n_events, **chosen)
    settings: dict[str, Any] = {**found.settings, "count": why, **made_of}
    if asked is not None and why != "n_events":
        settings |= matched(asked, found.n_events - 1)
    return Boundaries(
        starts[found.inner], trace.n_tokens, strength=found.strength, settings=settings
    )


EVENT_HMM = Proposal(
    "V",
    "event HMM",
    "Words (unit='sentence': sentences) whose keys correlate with one mean pattern form an event; "
    "as many events as n_boundaries + 1 or, without it, as S finds, or n_events=, a number or "
    "'held-out'. It sees the whole text.",
    "Baldassano et al. 2017",
    _propose,
    options={"unit": "word", "n_events": None, "candidates": None, "most_steps": 500},
    uses_keys=lambda options: True,
)
