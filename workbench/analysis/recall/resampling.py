"""Permutations of recall order, and bootstraps over participants."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workbench.analysis.recall.sequences import RecallSequences
from workbench.core.checks import check_option
from workbench.core.errors import InputError

__all__ = ["NULLS", "bootstrap_weights", "interval", "permutation_summary", "permuted_outputs"]

NULLS = ("shuffle", "reverse")


def permuted_outputs(
    sequences: RecallSequences, null: str, draws: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Recall orders as they would be if a hypothesis held, one (n_lists, n_outputs) per draw.

    Parameters
    ----------
    sequences : the recalls; which items are recalled, how many, and where repeats and intrusions
        stand between them, is kept.
    null : "shuffle": the recalled items of each list in random order (neither contiguity nor
        direction); "reverse": each list's sequence as it is or backwards with probability 1/2
        (contiguity, but no direction).
    draws, seed : how many, from which seed.
    """
    check_option("null", null, NULLS)
    if draws < 1:
        raise InputError(f"draws={draws} is not allowed; at least one permutation is needed.")
    rng = np.random.default_rng(seed)
    outputs = sequences.outputs
    n_lists, width = outputs.shape
    if null == "reverse":
        n_outputs = np.sum(outputs >= 0, axis=1, keepdims=True)
        place = np.arange(width)[None, :]
        backward = np.where(place < n_outputs, n_outputs - 1 - place, place)
        reversed_ = np.take_along_axis(outputs, backward, axis=1)
        for _ in range(draws):
            yield np.where(rng.random((n_lists, 1)) < 0.5, outputs, reversed_)
        return
    valid = outputs > 0
    rows, slots = np.nonzero(valid)
    for _ in range(draws):
        # Sorting random keys within a list shuffles its valid slots; the others sort behind them.
        keys = np.where(valid, rng.random(outputs.shape), 2.0)
        order = np.argsort(keys, axis=1)
        shuffled = np.take_along_axis(outputs, order, axis=1)
        rank = (np.cumsum(valid, axis=1) - 1)[rows, slots]
        result = outputs.copy()
        result[rows, slots] = shuffled[rows, rank]
        yield result


def permutation_summary(value: float, sample: NDArray[np.float64]) -> dict[str, float]:
    """Mean, SD, z and two-sided p of a value under a null sample (one-dimensional).

    p = (1 + number of draws at least as far from the null mean) / (1 + draws), Phipson & Smyth
    (2010): never 0. NaN where the value, or every draw, is undefined.
    """
    sample = np.asarray(sample, dtype=np.float64)
    sample = sample[np.isfinite(sample)]
    if not np.isfinite(value) or len(sample) == 0:
        return dict.fromkeys(("null_mean", "null_sd", "z", "p"), float("nan"))
    mean = float(sample.mean())
    sd = float(sample.std(ddof=1)) if len(sample) > 1 else float("nan")
    tolerance = 1e-12 * max(1.0, abs(mean))
    extreme = np.abs(sample - mean) >= abs(value - mean) - tolerance
    return {
        "null_mean": mean,
        "null_sd": sd,
        "z": (value - mean) / sd if sd > 0 else float("nan"),
        "p": float((1 + extreme.sum()) / (1 + len(sample))),
    }


def bootstrap_weights(n: int, draws: int, seed: int) -> NDArray[np.int64]:
    """How often each of n participants is drawn, (draws, n), each row summing to n."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n, np.full(n, 1 / n), size=draws)


def interval(sample: NDArray[np.float64], confidence: float = 0.95) -> tuple[float, float]:
    """Percentile interval of a bootstrap sample; NaN when fewer than two draws are defined."""
    finite = sample[np.isfinite(sample)]
    if len(finite) < 2:
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    low, high = np.quantile(finite, [tail, 1 - tail])
    return float(low), float(high)
