"""Recency: whether a memory system recalls what it stored last more often."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.analysis.recall.resampling import bootstrap_weights, interval
from workbench.analysis.retrieval import LEAST_STEPS, OVER, RetrievedEvents, recalled_of
from workbench.core.checks import check_option, whole_number

__all__ = ["recency"]


def recency(
    events: RetrievedEvents,
    *,
    buffer: str = "both",
    max_age: int | None = None,
    over: str = "steps",
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Probability of recall against age, given that a unit of that age could be recalled.

    Parameters
    ----------
    events : what was recalled.
    buffer : "similarity", "contiguity" or "both".
    max_age : oldest age; None: all.
    over, resamples, confidence, seed : of the bootstrap, see `retrieval_lag_crp`.

    Returns
    -------
    Tidy table: layer (a number, or "all": opportunities of all layers together), age (units, 1 is
    the newest one stored), prob, ci_low, ci_high, chance (the same if each retrieval had drawn its
    units at random), recalled, possible (retrievals at which there was a unit of that age),
    buffer.
    """
    check_option("over", over, OVER)
    whole_number("resamples", resamples)
    retrievals = events.retrievals
    longest = int(retrievals["available"].max())
    reach = longest if max_age is None else min(whole_number("max_age", max_age, 1), longest)
    layers, layer = np.unique(retrievals["layer"], return_inverse=True)
    steps, step = np.unique(retrievals["step"], return_inverse=True)
    hit = recalled_of(events, buffer)  # (n_retrievals, n_units that could be recalled)
    available = retrievals["available"].to_numpy()
    age = np.arange(1, reach + 1)
    there = age[None, :] <= available[:, None]
    unit = np.where(there, available[:, None] - age[None, :], 0)
    recalled = np.take_along_axis(hit, unit, axis=1) & there
    chance = there * (hit.sum(axis=1) / available)[:, None]
    shape = (len(layers), len(steps), reach)
    parts = [np.zeros(shape) for _ in range(3)]  # (layers, steps, ages) each
    for part, values in zip(parts, (recalled, there, chance), strict=True):
        np.add.at(part, (layer, step), values)
    tables = []
    for place, label in enumerate([*layers.tolist(), "all"]):
        # (what is drawn, ages): steps, of one layer or of all together, or layers
        others = 1 if over == "layers" else 0
        drawn = [part.sum(axis=others) if label == "all" else part[place] for part in parts]
        own, possible, random = drawn
        weights = bootstrap_weights(len(own), resamples, seed)
        with np.errstate(invalid="ignore", divide="ignore"):
            sample = (weights @ own) / (weights @ possible)
            prob, by_chance = (x.sum(axis=0) / possible.sum(axis=0) for x in (own, random))
        ends = np.full((reach, 2), np.nan)
        enough = (possible > 0).sum(axis=0) >= LEAST_STEPS
        if over == "steps" or label == "all":
            for column in np.flatnonzero(enough):
                ends[column] = interval(sample[:, column], confidence)
        tables.append(
            pd.DataFrame(
                {
                    "layer": label,
                    "age": age,
                    "prob": prob,
                    "ci_low": ends[:, 0],
                    "ci_high": ends[:, 1],
                    "chance": by_chance,
                    "recalled": own.sum(axis=0).astype(np.int64),
                    "possible": possible.sum(axis=0).astype(np.int64),
                }
            )
        )
    return pd.concat(tables, ignore_index=True).assign(
        buffer=buffer, over=over, source=events.source
    )
