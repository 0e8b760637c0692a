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

_COLUMNS = (
    "baseline",
    "value",
    "ci_low",
    "ci_high",
    "baseline_mean",
    "baseline_sd",
    "z",
    "p",
    "difference",
    "difference_low",
    "difference_high",
    "n_subjects",
    "n_lists",
    "n_events",
)


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
    per event: what is left when only the story is known, not who retold it; over the retellings
    all whose events somebody else has a score for, left out where there are none). Columns: own,
    other,
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
    elsewhere: list[Floats | None] = []
    who: list[object] = []
    for (subject, story), part in rows.groupby(["subject", "story"], sort=False):
        a, b = _standard(part[own]), _standard(part[other])
        if a is None or b is None:
            continue
        rest = rows[(rows["story"] == story) & (rows["subject"] != subject)]
        means = rest.groupby("event")[other].mean().reindex(part["event"])
        mine.append(a)
        theirs.append(b)
        elsewhere.append(_standard(means) if means.notna().all() else None)
        who.append(subject)
    if not mine:
        raise DataError(
            f"no retelling has three events with different values of {own!r} and {other!r}."
        )
    rng = np.random.default_rng(seed)
    own_scores = np.array([float(a @ b) for a, b in zip(mine, theirs)])
    all_lists = np.ones(len(mine), dtype=bool)
    value, _ = _by_person(own_scores, who, all_lists)
    null = np.empty(draws)
    for number in range(draws):
        drawn = np.array([float(a @ rng.permutation(b)) for a, b in zip(mine, theirs)])
        null[number] = _by_person(drawn, who, all_lists)[0].mean()
    against_events = permutation_summary(float(value.mean()), null)
    mean = against_events.pop("null_mean")
    lines = [
        _line("events", value, np.full(len(value), mean), resamples, seed)
        | {"baseline_sd": against_events["null_sd"]}
        | {name: against_events[name] for name in ("z", "p")}
        | {"n_lists": len(mine), "n_events": int(sum(map(len, mine)))}
    ]
    # Where nobody else has a score for one of the events, there is nothing to compare with.
    comparable = np.array([c is not None for c in elsewhere])
    if comparable.any():
        others = np.array([np.nan if c is None else float(a @ c) for a, c in zip(mine, elsewhere)])
        value, _ = _by_person(own_scores, who, comparable)
        baseline, code = _by_person(others, who, comparable)
        lines.append(
            _line("people", value, baseline, resamples, seed)
            | {"baseline_sd": np.nan, "z": np.nan, "p": np.nan}
            | {
                "n_lists": len(code),
                "n_events": int(sum(len(a) for a, kept in zip(mine, comparable) if kept)),
            }
        )
    columns = ["own", "other", *_COLUMNS]
    return pd.DataFrame([{"own": own, "other": other, **line} for line in lines])[columns]


def _line(
    name: str, value: Floats, baseline: Floats, resamples: int, seed: int
) -> dict[str, object]:
    """Means over people and their bootstrap intervals."""
    weights = bootstrap_weights(len(value), resamples, seed) / len(value)
    low, high = interval(weights @ value)
    gap_low, gap_high = interval(weights @ (value - baseline))
    return {
        "baseline": name,
        "value": float(value.mean()),
        "ci_low": low,
        "ci_high": high,
        "baseline_mean": float(baseline.mean()),
        "difference": float((value - baseline).mean()),
        "difference_low": gap_low,
        "difference_high": gap_high,
        "n_subjects": len(value),
    }


def _standard(values: pd.Series) -> Floats | None:
    """Ranks with mean 0 and length 1, so that a dot product is Spearman's correlation."""
    numbers = values.to_numpy(dtype=np.float64)
    if len(numbers) < 3 or len(np.unique(numbers)) < 2:
        return None
    ranks = rankdata(numbers)
    ranks -= ranks.mean()
    standard: Floats = ranks / np.linalg.norm(ranks)
    return standard


def _by_person(
    values: Floats, who: list[object], keep: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.intp]]:
    """Mean per person over the retellings kept, and the person of each of these."""
    code, _ = pd.factorize(np.array(who, dtype=object)[keep])
    return np.bincount(code, weights=values[keep]) / np.bincount(code), code
