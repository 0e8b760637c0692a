"""Table 2 from its values per chunk and head: means, spreads, tests and orders of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.analysis.graph import Measure
from workbench.analysis.statistics import benjamini_hochberg, compare_with_null, percentile_interval
from workbench.analysis.table2_published import METHODS, PUBLISHED, agreement, published_order

__all__ = [
    "PAIRS",
    "PAIR_COLUMNS",
    "Differences",
    "HeadTests",
    "Nested",
    "nested_spread",
    "order_rows",
    "pair_rows",
    "per_head_tests",
    "summary_rows",
]

PAIRS = (
    ("S", "F"),
    ("SM", "S"),
    ("SC", "S"),
    ("FM", "F"),
    ("FC", "F"),
    ("SM", "FM"),
    ("SC", "FC"),
    ("SM", "SC"),
)
"""Methods that are compared head by head."""

PAIR_COLUMNS = (
    "model",
    "method",
    "against",
    "measure",
    "variant",
    "null",
    "difference",
    "sd",
    "sd_chunks",
    "sd_layers",
    "ci_low",
    "ci_high",
    "resampled",
    "heads",
    "heads_up",
    "heads_down",
    "heads_up_sign",
    "heads_down_sign",
    "chunks",
)
"""Columns of the table of pairs, which is empty where no pair was asked for."""

_LEAST_TEXTS = 3  # below this many texts, chunks are resampled instead


class Nested(NamedTuple):
    """Spread of values over chunks × heads, and over the means of one level at a time.

    sd : over all values (chunk × layer × head), as in the paper, ddof 1.
    chunks, layers : of the means of chunks (over heads) and of layers (over chunks and heads).
    undefined : share of the values that are NaN and left out.
    """

    mean: float
    sd: float
    chunks: float
    layers: float
    undefined: float


class HeadTests(NamedTuple):
    """Paired tests of each head over chunks; p values corrected over heads (Benjamini–Hochberg).

    wilcoxon, sign : corrected p of each head, shape (heads,); NaN with fewer than two chunks that
        differ. median : median over chunks, shape (heads,).
    """

    wilcoxon: NDArray[np.float64]
    sign: NDArray[np.float64]
    median: NDArray[np.float64]

    def significant(self, level: float = 0.05) -> tuple[int, int, int, int]:
        """Heads above and below zero by Wilcoxon's test, then by the sign test."""
        counts = []
        for p in (self.wilcoxon, self.sign):
            passed = p <= level
            counts += [int((passed & (self.median > 0)).sum())]
            counts += [int((passed & (self.median < 0)).sum())]
        return counts[0], counts[1], counts[2], counts[3]


@dataclass(frozen=True, eq=False)
class Differences:
    """Everything that one model's Table 2 is made of.

    Parameters
    ----------
    model : its name.
    texts : the text of each chunk, length chunks.
    layers : the layer of each head, shape (heads,).
    value : (method, measure) → shape (chunks, heads).
    null_mean : (method, null, measure) → mean over draws, shape (chunks, heads).
    null_draws : (method, null, measure) → mean over heads, shape (chunks, draws).
    used : (method, null) → the null(s) drawn.
    events : method → events per chunk, shape (chunks,).
    """

    model: str
    texts: Sequence[str]
    layers: NDArray[np.int64]
    value: Mapping[tuple[str, Measure], NDArray[np.float64]]
    null_mean: Mapping[tuple[str, str, Measure], NDArray[np.float64]]
    null_draws: Mapping[tuple[str, str, Measure], NDArray[np.float64]]
    used: Mapping[tuple[str, str], str]
    events: Mapping[str, NDArray[np.int64]]

    def difference(self, method: str, null: str, pair: Measure) -> NDArray[np.float64]:
        """Value less the mean of the random cuts, shape (chunks, heads)."""
        return self.value[method, pair] - self.null_mean[method, null, pair]


def nested_spread(values: NDArray[np.float64], layers: NDArray[np.int64]) -> Nested:
    """Mean and spreads of values of shape (chunks, heads); NaN is left out."""
    defined = np.isfinite(values)
    flat = values[defined]
    if len(flat) == 0:
        return Nested(np.nan, np.nan, np.nan, np.nan, 1.0)
    by_layer = [values[:, layers == layer] for layer in np.unique(layers)]
    return Nested(
        float(flat.mean()),
        _sd(flat),
        _sd([row[np.isfinite(row)].mean() for row in values if np.isfinite(row).any()]),
        _sd([part[np.isfinite(part)].mean() for part in by_layer if np.isfinite(part).any()]),
        float(1 - defined.mean()),
    )


def per_head_tests(differences: NDArray[np.float64]) -> HeadTests:
    """Wilcoxon's signed-rank test and the sign test of each head over chunks, two-sided.

    Parameters
    ----------
    differences : shape (chunks, heads); NaN is left out, chunks without a difference too.

    Chunks of one text are not independent; the tests say how regular a difference is over the
    chunks at hand, and the interval of the mean, which resamples texts, how sure it is.
    """
    from scipy.stats import binom, wilcoxon

    heads = differences.shape[1]
    signed_rank = np.full(heads, np.nan)
    scale = np.max(np.abs(differences), initial=0.0, where=np.isfinite(differences))
    clear = np.isfinite(differences) & (np.abs(differences) > 1e-12 * scale)
    regular = clear.all(axis=0) & (len(differences) >= 2)
    if regular.any():
        signed_rank[regular] = wilcoxon(differences[:, regular], axis=0).pvalue
    for head in np.flatnonzero(~regular).tolist():
        # what is rounding only is no difference
        kept = differences[clear[:, head], head]
        if len(kept) >= 2:
            signed_rank[head] = wilcoxon(kept).pvalue
    up = (differences > 1e-12 * scale).sum(axis=0)
    down = (differences < -1e-12 * scale).sum(axis=0)
    count = up + down
    tail = binom.cdf(np.minimum(up, down), count, 0.5)
    sign = np.where(count >= 2, np.minimum(1.0, 2 * tail), np.nan)
    whole = np.isfinite(differences).all(axis=0)
    median = np.full(heads, np.nan)
    median[whole] = np.median(differences[:, whole], axis=0)
    for head in np.flatnonzero(~whole).tolist():
        column = differences[np.isfinite(differences[:, head]), head]
        median[head] = np.median(column) if len(column) else np.nan
    return HeadTests(benjamini_hochberg(signed_rank), benjamini_hochberg(sign), median)


def summary_rows(
    found: Differences,
    methods: Sequence[str],
    measures: Sequence[Measure],
    nulls: Sequence[str],
    *,
    resamples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """One row per method, measure and null; see `workbench.analysis.table2.Table2`."""
    counts, what = _resamples(found.texts, resamples, seed)
    rows = []
    for method in methods:
        for pair in measures:
            for null in nulls:
                differences = found.difference(method, null, pair)
                spread = nested_spread(differences, found.layers)
                tests = per_head_tests(differences).significant()
                means = _weighted(differences, counts)
                low, high = percentile_interval(means) if what else (np.nan, np.nan)
                value = found.value[method, pair]
                z, p = _against_random(value, found.null_draws[method, null, pair])
                rows.append(
                    {
                        "model": found.model,
                        "method": method,
                        "measure": pair[0],
                        "variant": pair[1],
                        "null": null,
                        "null_used": found.used[method, null],
                        "value": nested_spread(value, found.layers).mean,
                        "null_mean": nested_spread(value - differences, found.layers).mean,
                        "difference": spread.mean,
                        "sd": spread.sd,
                        "sd_chunks": spread.chunks,
                        "sd_layers": spread.layers,
                        "ci_low": float(low),
                        "ci_high": float(high),
                        "resampled": what,
                        "z": z,
                        "p": p,
                        "heads": len(found.layers),
                        "heads_up": tests[0],
                        "heads_down": tests[1],
                        "heads_up_sign": tests[2],
                        "heads_down_sign": tests[3],
                        "undefined": spread.undefined,
                        "texts": len(set(found.texts)),
                        "chunks": len(found.texts),
                        "events": float(found.events[method].mean()),
                    }
                )
    return rows


def pair_rows(
    found: Differences,
    methods: Sequence[str],
    measures: Sequence[Measure],
    nulls: Sequence[str],
    *,
    resamples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """One row per pair of methods, measure and null: the paired tests."""
    counts, what = _resamples(found.texts, resamples, seed)
    rows = []
    for a, b in PAIRS:
        if a not in methods or b not in methods:
            continue
        for pair in measures:
            for null in nulls:
                gap = found.difference(a, null, pair) - found.difference(b, null, pair)
                spread = nested_spread(gap, found.layers)
                tests = per_head_tests(gap).significant()
                means = _weighted(gap, counts)
                low, high = percentile_interval(means) if what else (np.nan, np.nan)
                rows.append(
                    {
                        "model": found.model,
                        "method": a,
                        "against": b,
                        "measure": pair[0],
                        "variant": pair[1],
                        "null": null,
                        "difference": spread.mean,
                        "sd": spread.sd,
                        "sd_chunks": spread.chunks,
                        "sd_layers": spread.layers,
                        "ci_low": float(low),
                        "ci_high": float(high),
                        "resampled": what,
                        "heads": len(found.layers),
                        "heads_up": tests[0],
                        "heads_down": tests[1],
                        "heads_up_sign": tests[2],
                        "heads_down_sign": tests[3],
                        "chunks": len(found.texts),
                    }
                )
    return rows


def order_rows(
    found: Differences,
    methods: Sequence[str],
    measures: Sequence[Measure],
    nulls: Sequence[str],
    *,
    resamples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """One row per measure, null and published model: how far the order of methods agrees."""
    counts, what = _resamples(found.texts, resamples, seed)
    shared = [m for m in METHODS if m in methods]
    rows = []
    for pair in measures:
        for null in nulls:
            all_differences = [found.difference(m, null, pair) for m in shared]
            means = np.array([nested_spread(d, found.layers).mean for d in all_differences])
            drawn = np.stack([_weighted(d, counts) for d in all_differences], axis=1)
            ours = dict(zip(shared, means.tolist(), strict=True))
            for paper in PUBLISHED:
                tau, p, agree, pairs = agreement(ours, paper, pair[0])
                order = published_order(paper, pair[0])
                better = np.array([-order.index(m) for m in shared], dtype=np.float64)
                if pair[0] == "conductance":
                    better = -better
                low, high = np.nan, np.nan
                if what and len(shared) > 2:
                    low, high = map(float, percentile_interval(_taus(drawn, better)))
                rows.append(
                    {
                        "model": found.model,
                        "published": paper,
                        "measure": pair[0],
                        "variant": pair[1],
                        "null": null,
                        "tau": tau,
                        "tau_low": low,
                        "tau_high": high,
                        "resampled": what,
                        "p": p,
                        "agree": agree,
                        "pairs": pairs,
                        "order": " > ".join(_ordered(ours, pair[0])),
                        "published_order": " > ".join(order),
                    }
                )
    return rows


def _ordered(values: Mapping[str, float], measure: str) -> list[str]:
    sign = 1 if measure == "conductance" else -1
    return sorted((m for m in values if np.isfinite(values[m])), key=lambda m: sign * values[m])


def _taus(values: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kendall's τ-a of each row of values (draws, methods) with one order."""
    rows, columns = np.triu_indices(values.shape[1], k=1)
    ours = np.sign(values[:, rows] - values[:, columns])
    return (ours * np.sign(other[rows] - other[columns])).mean(axis=1)


def _resamples(texts: Sequence[str], draws: int, seed: int) -> tuple[NDArray[np.int64], str]:
    """How often each chunk counts in each resample, shape (draws, chunks), and what is drawn.

    Whole texts where there are at least three, else chunks; nothing ("") with fewer than three
    chunks.
    """
    rng = np.random.default_rng([seed, 0])
    names, which = np.unique(np.asarray(texts), return_inverse=True)
    if len(names) >= _LEAST_TEXTS:
        return rng.multinomial(len(names), np.full(len(names), 1 / len(names)), draws)[
            :, which
        ], "texts"
    chunks = len(texts)
    if chunks < 3:
        return np.ones((1, chunks), dtype=np.int64), ""
    return rng.multinomial(chunks, np.full(chunks, 1 / chunks), draws), "chunks"


def _weighted(values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean over chunks and heads of each resample; NaN values are left out, shape (draws,)."""
    defined = np.isfinite(values)
    total = counts @ np.where(defined, values, 0.0).sum(axis=1)
    number = counts @ defined.sum(axis=1)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _against_random(value: NDArray[np.float64], draws: NDArray[np.float64]) -> tuple[float, float]:
    """Z and p of the mean over chunks, against random draws in every chunk.

    value (chunks, heads); draws (chunks, draws), means over heads. Chunks where either is not
    defined are left out.
    """
    defined = np.isfinite(draws).all(axis=1) & np.isfinite(value).any(axis=1)
    if not defined.any():
        return float("nan"), float("nan")
    observed = np.mean([row[np.isfinite(row)].mean() for row in value[defined]])
    against = compare_with_null(observed, draws[defined].mean(axis=0))
    return float(against.z), float(against.p)


def _sd(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
