"""Lag-CRP and asymmetry of what a memory system recalled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.recall.asymmetry import asymmetry_of_curve
from workbench.analysis.recall.lag import LagCounter, crp
from workbench.analysis.recall.resampling import (
    bootstrap_weights,
    interval,
    permutation_summary,
    permuted_outputs,
)
from workbench.analysis.recall.sequences import RecallSequences
from workbench.analysis.retrieval import LEAST_STEPS, OVER, RetrievedEvents
from workbench.core.checks import check_option, whole_number

__all__ = ["NULLS", "retrieval_asymmetry", "retrieval_lag_crp"]

NULLS = ("uniform", "shuffle")


def retrieval_lag_crp(
    events: RetrievedEvents,
    *,
    buffer: str = "similarity",
    order: str = "log",
    max_lag: int = 5,
    null: str = "uniform",
    draws: int = 200,
    over: str = "steps",
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Probability of each lag between units recalled one after the other, given it was possible.

    The lag-CRP of free recall (Kahana 1996; see `workbench.analysis.recall.lag.lag_crp`) with a
    retrieval as a list: units that were stored and not yet recalled in it are possible. Counts of
    a layer are summed over its retrievals; layer "all" is the mean over layers, as the curve of a
    group is the mean over people.

    Parameters
    ----------
    events : what was recalled.
    buffer, order : see `RetrievedEvents.recall_sequences`.
    max_lag : -max_lag ... max_lag, in units.
    null : "uniform": as many units as were recalled, drawn from those that could be; "shuffle":
        the units that were recalled, in random order (which units are recalled together is kept).
        Draws of different retrievals are independent.
    draws : of the null; 0: no null.
    over : what the bootstrap draws. "steps": retrieval steps, all layers of a step together (how
        much the curve depends on this text; neighbouring steps are treated as independent);
        "layers": layers, as if they were people, which gives layer "all" an interval only.
    resamples, confidence : of the bootstrap.
    seed : of null and bootstrap.

    Returns
    -------
    Tidy table: layer (a number, or "all"), lag, prob, ci_low, ci_high, null_mean, null_sd, z, p
    (two-sided, not corrected), actual, possible, n_steps, buffer, order, null. NaN at lag 0 and
    wherever a lag was never possible; no interval where it was possible at fewer than `LEAST_STEPS`
    steps (or layers).
    """
    check_option("null", null, NULLS)
    check_option("over", over, OVER)
    whole_number("max_lag", max_lag, 1)
    whole_number("draws", draws)
    whole_number("resamples", resamples)
    sequences = events.recall_sequences(buffer, order)
    counter = _LayerCounter(events, sequences, max_lag)
    actual, possible = counter()
    once = np.ones((1, counter.n_steps), dtype=np.int64)
    value = _curves(actual, possible, once)[:, 0]
    sample, enough = _sample(actual, possible, over, resamples, seed)
    nulls = np.array(
        [
            _curves(*counter(outputs), once)[:, 0]
            for outputs in (_null_outputs(sequences, null, draws, seed) if draws else ())
        ]
    ).reshape(draws, *value.shape)
    totals = [
        np.concatenate((n, n.sum(0, keepdims=True))) for n in (actual.sum(1), possible.sum(1))
    ]
    rows = []
    for place, layer in enumerate([*counter.layers, "all"]):
        for column, lag in enumerate(counter.lags.tolist()):
            known = enough[place, column]
            low, high = interval(sample[place, :, column], confidence) if known else (np.nan,) * 2
            rows.append(
                {
                    "layer": layer,
                    "lag": lag,
                    "prob": value[place, column],
                    "ci_low": low,
                    "ci_high": high,
                    **permutation_summary(value[place, column], nulls[:, place, column]),
                    "actual": int(totals[0][place, column]),
                    "possible": int(totals[1][place, column]),
                }
            )
    return pd.DataFrame(rows).assign(
        n_steps=counter.n_steps,
        buffer=buffer,
        order=order if buffer == "both" else "log",
        null=null,
        over=over,
        source=events.source,
    )


def retrieval_asymmetry(
    events: RetrievedEvents,
    *,
    buffer: str = "similarity",
    order: str = "log",
    lag: int = 1,
    draws: int = 200,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, float]:
    """Whether recall goes forward: (f - b) / (f + b) of the lag-CRP at +lag and -lag.

    Parameters
    ----------
    events, buffer, order, draws, resamples, confidence, seed : as in `retrieval_lag_crp`; the
        curve is the mean over layers, the null "uniform", the bootstrap over steps.
    lag : which.

    Returns
    -------
    forward, backward, asymmetry (0 symmetric, 1 purely forward), asymmetry_low, asymmetry_high,
    null_mean, null_sd, z, p, n_steps.
    """
    whole_number("lag", lag, 1)
    whole_number("draws", draws)
    whole_number("resamples", resamples)
    sequences = events.recall_sequences(buffer, order)
    counter = _LayerCounter(events, sequences, lag)
    actual, possible = counter()
    once = np.ones((1, counter.n_steps), dtype=np.int64)
    sample, enough = _sample(actual, possible, "steps", resamples, seed)

    def index(curves: NDArray[np.float64]) -> NDArray[np.float64]:
        return asymmetry_of_curve(counter.lags, curves, lag=lag)["index"]

    curve = _curves(actual, possible, once)[-1, 0]
    nulls = [
        index(_curves(*counter(outputs), once)[-1, 0])
        for outputs in (_null_outputs(sequences, "uniform", draws, seed) if draws else ())
    ]
    low, high = np.nan, np.nan
    if enough[-1, [0, -1]].all():
        low, high = interval(index(sample[-1]), confidence)
    value = float(index(curve))
    return {
        "forward": float(curve[-1]),
        "backward": float(curve[0]),
        "asymmetry": value,
        "asymmetry_low": low,
        "asymmetry_high": high,
        **permutation_summary(value, np.array(nulls)),
        "n_steps": counter.n_steps,
    }


class _LayerCounter:
    """Actual and possible transitions, each (n_layers, n_steps, n_lags)."""

    def __init__(self, events: RetrievedEvents, sequences: RecallSequences, max_lag: int) -> None:
        # Every list is its own subject here, so that the counter keeps retrievals apart.
        apart = replace(sequences, subject=np.arange(sequences.n_lists).astype(object))
        self._count = LagCounter(apart, np.arange(-max_lag, max_lag + 1))
        self.lags = self._count.lags
        layers, self._layer = np.unique(events.retrievals["layer"], return_inverse=True)
        steps, self._step = np.unique(events.retrievals["step"], return_inverse=True)
        self.layers, self.n_steps = layers.tolist(), len(steps)

    def __call__(
        self, outputs: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        shape = (len(self.layers), self.n_steps, len(self.lags))
        counts = np.zeros((2, *shape), dtype=np.int64)
        for total, single in zip(counts, self._count(outputs), strict=True):
            np.add.at(total, (self._layer, self._step), single)
        return counts[0], counts[1]


def _curves(
    actual: NDArray[np.int64], possible: NDArray[np.int64], weights: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Curves of each layer and last their mean, for weights of steps; (layers + 1, n, lags)."""
    curves = crp(weights @ actual, weights @ possible)
    known = np.isfinite(curves)
    count = known.sum(axis=0)
    total = np.where(known, curves, 0.0).sum(axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return np.concatenate((curves, mean[None]))


def _sample(
    actual: NDArray[np.int64], possible: NDArray[np.int64], over: str, resamples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Resampled curves (layers + 1, resamples, lags), and where they make an interval."""
    n_layers, n_steps, n_lags = actual.shape
    if over == "steps":
        there = possible > 0
        there = np.concatenate((there, there.any(axis=0, keepdims=True))).sum(axis=1)
        weights = bootstrap_weights(n_steps, resamples, seed)
        return _curves(actual, possible, weights), there >= LEAST_STEPS
    curves = crp(actual.sum(axis=1), possible.sum(axis=1))
    known = np.isfinite(curves)
    weights = bootstrap_weights(n_layers, resamples, seed)
    sample = np.full((n_layers + 1, resamples, n_lags), np.nan)
    with np.errstate(invalid="ignore"):
        sample[-1] = (weights @ np.where(known, curves, 0.0)) / (weights @ known)
    enough = np.zeros((n_layers + 1, n_lags), dtype=bool)
    enough[-1] = known.sum(axis=0) >= LEAST_STEPS
    return sample, enough


def _null_outputs(
    sequences: RecallSequences, null: str, draws: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    if null == "shuffle":
        yield from permuted_outputs(sequences, "shuffle", draws, seed)
        return
    rng = np.random.default_rng([seed, 1])
    for _ in range(draws):
        yield _uniform(sequences, rng)


def _uniform(sequences: RecallSequences, rng: np.random.Generator) -> NDArray[np.int64]:
    """As many positions of each list as were recalled, drawn without replacement."""
    width = sequences.max_length
    there = np.arange(width)[None, :] < sequences.length[:, None]
    order = np.where(there, rng.random(there.shape), 2.0).argsort(axis=1)
    drawn = order[:, : sequences.outputs.shape[1]] + 1
    # A list can be shorter than the longest sequence of another one.
    room = sequences.outputs.shape[1] - drawn.shape[1]
    drawn = np.pad(drawn, ((0, 0), (0, max(0, room))), constant_values=-1)
    return np.where(sequences.outputs > 0, drawn, -1)
