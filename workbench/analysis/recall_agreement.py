"""Agreement of two scorings of the same retellings.

Neither is the truth: a high value says that two methods see the same, not that either is right.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from workbench.analysis.recall.resampling import bootstrap_weights, interval, permutation_summary
from workbench.core.errors import DataError, InputError

__all__ = ["method_agreement"]

Floats = NDArray[np.float64]


def method_agreement(
    table: pd.DataFrame,
    own: str,
    other: str,
    *,
    draws: int = 1000,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Rank correlation over the events of a retelling between two scores, averaged over people.

    Parameters
    ----------
    table : one row per person, story and event: subject, story, event and two columns of numbers.
        Rows without one of them are left out.
    own, other : the two columns.
    draws : permutations for the first baseline.
    resamples : bootstrap samples of people.
    seed : of both.

    Returns
    -------
    Two rows, by baseline: "events" (the other method's scores exchanged among the events of each
    retelling) and "people" (its scores of the other people's retellings of the story, averaged
    per event: what is left when only the story is known, not who retold it). Columns: own, other,
    baseline, value (mean over people of their mean Spearman correlation), ci_low, ci_high (95 %,
    bootstrap over people), baseline_mean, baseline_sd, z, p (by permutation; NaN for "people"),
    difference, difference_low, difference_high (value minus baseline, bootstrap over people),
    n_subjects, n_lists, n_events (rows used).

    Raises
    ------
    DataError : a column is missing, or no retelling has three events with two different scores.
    InputError : fewer than one draw.
    """
    for name in ("subject", "story", "event", own, other):
        if name not in table.columns:
            raise DataError(f"the table has no column {name!r}.")
    if draws < 1 or resamples < 1:
        raise InputError(f"draws={draws} and resamples={resamples} must be at least 1.")
    rows = table[table[[own, other]].notna().all(axis=1)]
    mine: list[Floats] = []
    theirs: list[Floats] = []
    elsewhere: list[Floats] = []
    who: list[object] = []
    used = 0
    for (subject, story), part in rows.groupby(["subject", "story"], sort=False):
        a, b = _standard(part[own]), _standard(part[other])
        if a is None or b is None:
            continue
        rest = rows[(rows["story"] == story) & (rows["subject"] != subject)]
        means = rest.groupby("event")[other].mean().reindex(part["event"])
        c = _standard(means) if means.notna().all() else None
        mine.append(a)
        theirs.append(b)
        elsewhere.append(np.full(len(a), np.nan) if c is None else c)
        who.append(subject)
        used += len(part)
    if not mine:
        raise DataError(
            f"no retelling has three events with different values of {own!r} and {other!r}."
        )
    code, people = pd.factorize(np.array(who, dtype=object))
    value = _by_person([float(a @ b) for a, b in zip(mine, theirs)], code)
    others = _by_person([float(a @ c) for a, c in zip(mine, elsewhere)], code)
    rng = np.random.default_rng(seed)
    null = np.empty((draws, len(people)))
    for number in range(draws):
        null[number] = _by_person(
            [float(a @ rng.permutation(b)) for a, b in zip(mine, theirs)], code
        )
    by_events = permutation_summary(float(value.mean()), null.mean(axis=1))
    weights = bootstrap_weights(len(people), resamples, seed) / len(people)
    low, high = interval(weights @ value)
    lines = []
    for name, baseline in (("events", np.zeros(len(people))), ("people", others)):
        mean = by_events["null_mean"] if name == "events" else float(baseline.mean())
        gap = value - (mean if name == "events" else baseline)
        gap_low, gap_high = interval(weights @ gap)
        lines.append(
            {
                "own": own,
                "other": other,
                "baseline": name,
                "value": float(value.mean()),
                "ci_low": low,
                "ci_high": high,
                "baseline_mean": mean,
                "baseline_sd": by_events["null_sd"] if name == "events" else np.nan,
                "z": by_events["z"] if name == "events" else np.nan,
                "p": by_events["p"] if name == "events" else np.nan,
                "difference": float(gap.mean()),
                "difference_low": gap_low,
                "difference_high": gap_high,
                "n_subjects": len(people),
                "n_lists": len(mine),
                "n_events": used,
            }
        )
    return pd.DataFrame(lines)


def _standard(values: pd.Series) -> Floats | None:
    """Ranks with mean 0 and length 1, so that a dot product is Spearman's correlation."""
    numbers = values.to_numpy(dtype=np.float64)
    if len(numbers) < 3 or len(np.unique(numbers)) < 2:
        return None
    ranks = rankdata(numbers)
    ranks -= ranks.mean()
    standard: Floats = ranks / np.linalg.norm(ranks)
    return standard


def _by_person(values: list[float], code: NDArray[np.intp]) -> Floats:
    return np.bincount(code, weights=values) / np.bincount(code)
