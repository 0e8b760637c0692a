"""Attention heads on a story: their statistics with intervals, and attention within events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.nulls import NULLS, null_note, null_starts
from workbench.analysis.statistics import (
    benjamini_hochberg,
    bootstrap_means,
    compare_with_null,
    percentile_interval,
)
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError, MissingDataError
from workbench.core.trace import Trace

if TYPE_CHECKING:
    from workbench.recording.reducer import Reducer

__all__ = ["PER_TOKEN", "head_statistics", "in_event_mass", "inside_reducers"]

PER_TOKEN = {
    "entropy": "nat",
    "distance": "token",
    "first": "share",
    "sink": "share",
    "inside": "share",
}
"""Statistics with a number per token, and their units."""

_PREFIX = "attention_inside_"


def head_statistics(
    trace: Trace, *, blocks: int = 20, draws: int = 500, seed: int = 0
) -> pd.DataFrame:
    """Mean over the text of each head's attention statistics.

    Parameters
    ----------
    trace : recorded with attention=("entropy", ...).
    blocks : successive parts of the text that are resampled for the interval: attention of
        neighbouring tokens is alike, so tokens are not.
    draws, seed : of that bootstrap.

    Returns
    -------
    DataFrame
        One row per statistic and head: story, model, layer, head, measure, unit, value, ci_low,
        ci_high (95 %), n_tokens, provenance. The interval says how much the mean depends on the
        passages of this text, not how it would be in another.

    Raises
    ------
    MissingDataError : the trace holds no such statistics.
    """
    dataset = trace.dataset
    measures = [name for name in PER_TOKEN if f"attention_{name}" in dataset]
    if not measures:
        raise MissingDataError(
            "this trace holds no attention per token; record it with "
            'attention=("entropy", "distance", "first").'
        )
    rng = np.random.default_rng(seed)
    tables = []
    for name in measures:
        values = _per_token(trace, name)
        means = np.stack(
            [part.mean(axis=-1).ravel() for part in np.array_split(values, blocks, axis=-1)]
            if values.shape[-1] >= blocks
            else [values.mean(axis=-1).ravel()]
        )
        low, high = percentile_interval(bootstrap_means(means, draws, rng))
        table = _heads(trace)
        table["measure"], table["unit"] = name, PER_TOKEN[name]
        table["value"] = values.mean(axis=-1).ravel()
        table["ci_low"], table["ci_high"] = low, high
        tables.append(table)
    return _labelled(pd.concat(tables, ignore_index=True), trace)


def inside_reducers(
    events: Boundaries,
    nulls: Sequence[str] = ("lengths", "shift"),
    *,
    draws: int = 999,
    seed: int = 0,
    min_size: int = 8,
    among: ArrayLike | None = None,
) -> list[Reducer]:
    """What `record(attention=...)` needs for `in_event_mass`: the events and draws of each null.

    Parameters
    ----------
    events : boundaries over the trace's tokens.
    nulls : of `workbench.analysis.nulls.NULLS`.
    draws : segmentations per null. With D draws no p is below 2/(D + 1), and the correction for
        many heads needs small ones.
    seed : of the draws.
    min_size : for the null "min_gap".
    among : tokens at which sentences start; adds the null "sentences": draws of "lengths" whose
        boundaries are moved to sentence starts, each to one of its own, as little as possible.
        Events mostly begin where a sentence does, so a head that keeps to sentences beats every
        null that cuts through them.

    Raises
    ------
    InputError : fewer sentence starts than boundaries.
    """
    from scipy.optimize import linear_sum_assignment

    from workbench.recording.reducers import Inside, InsideDraws

    rng = np.random.default_rng(seed)
    drawn = {null: null_starts(events, null, draws, rng, min_size) for null in nulls}
    if among is not None:
        places = np.setdiff1d(np.asarray(among, dtype=np.int64), [0])
        inner = len(events.inner)
        if len(places) < inner:
            raise InputError(f"among: {len(places)} sentence starts for {inner} boundaries.")
        drawn["sentences"] = null_starts(events, "lengths", draws, rng)
        for row in drawn["sentences"]:
            distance = np.abs(row[1:, None] - places[None, :])
            row[1:] = np.sort(places[linear_sum_assignment(distance)[1]])
    return [
        Inside(events),
        *(InsideDraws(starts, name=f"inside_{null}") for null, starts in drawn.items()),
    ]


def in_event_mass(trace: Trace, *, draws: int = 500, seed: int = 0) -> pd.DataFrame:
    """How much of a token's attention stays in its own event, beside segmentations by chance.

    That share alone says little: heads look at near tokens, and near tokens are mostly of the
    same event in any segmentation. So it stands beside the same share in random segmentations
    of the same text and attention (`nulls.null_starts`).

    Parameters
    ----------
    trace : recorded with attention=inside_reducers(events).
    draws, seed : of the bootstrap over events that gives the interval of the share.

    Returns
    -------
    DataFrame
        One row per null and head, then per layer (head missing: mean over its heads) and one
        for all heads (both missing): story, model, method, n_events, null, layer, head, value,
        ci_low, ci_high, null_mean, null_sd, difference, z, p, p_fdr (Benjamini-Hochberg over
        the heads of a null; NaN in the other rows), note, provenance.

    Raises
    ------
    MissingDataError : the trace was not recorded so.
    """
    dataset = trace.dataset
    nulls = [str(name).removeprefix(_PREFIX) for name in dataset if str(name).startswith(_PREFIX)]
    if "attention_inside" not in dataset or not nulls:
        raise MissingDataError(
            "this trace holds no attention within events with its nulls; record it with "
            "attention=inside_reducers(events)."
        )
    settings = next(s for s in trace.settings["attention_statistics"] if s["name"] == "inside")
    events = Boundaries(settings["starts"], n=trace.n_tokens, method=settings["method"])
    values = _per_token(trace, "inside")
    by_event = np.add.reduceat(values, events.starts, axis=-1)
    rng = np.random.default_rng(seed)
    tables = []
    for null in nulls:
        chance = np.moveaxis(np.asarray(dataset[_PREFIX + null].values, np.float64), -1, 0)
        parts = []
        for level in ("head", "layer", "all"):
            observed, samples = _level(by_event, level), _level_draws(chance, level)
            low, high = _over_events(observed, events.lengths, draws, rng)
            summary = compare_with_null(observed.sum(axis=-1) / events.n, samples)
            part = _heads(trace, level)
            part["value"], part["ci_low"], part["ci_high"] = summary.value, low, high
            part["null_mean"], part["null_sd"] = summary.mean, summary.sd
            part["difference"], part["z"], part["p"] = summary.difference, summary.z, summary.p
            part["p_fdr"] = benjamini_hochberg(summary.p) if level == "head" else np.nan
            parts.append(part)
        table = pd.concat(parts, ignore_index=True)
        table["null"] = null
        table["note"] = null_note(events, null) if null in NULLS else ""
        tables.append(table)
    result = pd.concat(tables, ignore_index=True)
    result["method"], result["n_events"] = events.method, events.n_events
    order = ["method", "n_events", "null", "layer", "head", "value", "ci_low", "ci_high"]
    order += ["null_mean", "null_sd", "difference", "z", "p", "p_fdr", "note"]
    return _labelled(result[order], trace)


# --- parts -----------------------------------------------------------------------------------


def _per_token(trace: Trace, name: str) -> NDArray[np.float64]:
    values = np.asarray(trace.dataset[f"attention_{name}"].values, dtype=np.float64)
    if np.isnan(values).any():
        raise InputError(f"attention_{name} has missing values; record the whole text.")
    return values


def _heads(trace: Trace, level: str = "head") -> pd.DataFrame:
    """Layer and head columns of one row per head, per layer, or of one row."""
    layers = np.asarray(trace.dataset["layer"].values, dtype=np.int64)
    heads = np.asarray(trace.dataset["head"].values, dtype=np.int64)
    rows: list[tuple[int | None, int | None]]
    if level == "head":
        rows = [(int(layer), int(head)) for layer in layers for head in heads]
    elif level == "layer":
        rows = [(int(layer), None) for layer in layers]
    else:
        rows = [(None, None)]
    return pd.DataFrame(rows, columns=["layer", "head"]).astype("Int64")


def _level(values: NDArray[np.float64], level: str) -> NDArray[np.float64]:
    """(layers, heads, events) → (rows, events)."""
    if level == "head":
        return values.reshape(-1, values.shape[-1])
    by_layer = values.mean(axis=1)
    return by_layer if level == "layer" else by_layer.mean(axis=0, keepdims=True)


def _level_draws(chance: NDArray[np.float64], level: str) -> NDArray[np.float64]:
    """(draws, layers, heads) → (draws, rows)."""
    return _level(np.moveaxis(chance, 0, -1), level).T


def _over_events(
    sums: NDArray[np.float64], lengths: NDArray[np.int64], draws: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95 % interval of Σ sums / Σ lengths over events drawn with replacement; (rows,) each."""
    k = len(lengths)
    if k < 3:
        missing = np.full(len(sums), np.nan)
        return missing, missing
    counts = rng.multinomial(k, np.full(k, 1 / k), size=draws).astype(np.float64)
    return percentile_interval((counts @ sums.T) / (counts @ lengths)[:, None])


def _labelled(table: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    table.insert(0, "story", trace.story.name)
    table.insert(1, "model", trace.settings["model"])
    table["n_tokens"] = trace.n_tokens
    table["provenance"] = trace.settings["provenance"]
    return table
