"""Recall of events regressed on what the events are like.

A marginal logistic regression (generalised estimating equations, independence working correlation)
with people as clusters and a covariance corrected for few clusters (Mancl & DeRouen 2001). People
are only half of the sample: a predictor that belongs to events has as many independent values as
there are events. So beside the interval over people stand one over people and events (two-way
clustered, Cameron, Gelbach & Miller 2011) and a permutation test in which the *events* (or
whatever carries the predictor) are exchanged; for predictors of events these two decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from workbench.analysis.recall.resampling import permutation_summary
from workbench.analysis.recall_design import Design, clustered, newton, two_way_errors
from workbench.analysis.recall_exchange import orders, permuted
from workbench.core.errors import DataError, InputError

__all__ = ["DEFAULT_TERMS", "RecallRegression", "recall_regression"]

DEFAULT_TERMS = (
    "boundary",
    "surprisal",
    "onset_surprisal",
    "log_words",
    "position",
    "position_squared",
    "condition",
)
"""Predictors of `recall_regression` where a table has values for them."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RecallRegression:
    """A fitted regression of recall.

    Parameters
    ----------
    coefficients : one row per term: term, level (of what it is a property: "event", "list" (a
        person's hearing of a story) or "row"), estimate (log odds per standard deviation; for a
        category, against the reference), se, ci_low, ci_high, p (people as clusters, t with
        n_subjects - 1 degrees of freedom), se_two_way, ci_low_two_way, ci_high_two_way,
        p_two_way (people and events as clusters; NaN where that variance is not positive),
        null_mean, null_sd, z_permutation, p_permutation, mean, sd (of the predictor, in its
        units), vif (variance inflation by the other terms).
    fit : one row: n_rows, n_dropped (rows without a value), n_subjects, n_events, n_stories,
        recalled (mean), auc (area under the ROC curve for held-out events), auc_null_mean,
        auc_null_sd, auc_p (the predictors of events exchanged among the events of a story).
    settings : terms, omitted (default terms without values), reference (of categories), draws,
        folds, seed.
    """

    coefficients: pd.DataFrame
    fit: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)


def recall_regression(
    table: pd.DataFrame,
    terms: Sequence[str] | None = None,
    *,
    reference: str = "clear",
    draws: int = 1000,
    folds: int = 10,
    seed: int = 0,
    confidence: float = 0.95,
) -> RecallRegression:
    """Regress recall of events on their predictors and on the condition.

    Parameters
    ----------
    table : one row per person, story and event (`recall_table`): subject, story, event, recalled
        (0 or 1), and a column per term. Rows in which a term is missing are left out and counted.
    terms : columns; numbers are standardised over the rows used, text is a category. None:
        `DEFAULT_TERMS`, as far as the table has values for them. Each story has its intercept.
    reference : the category others are compared with, where it occurs; else the first.
    draws : permutations per term. A term of events: what the other terms of events leave of it
        is exchanged among the events of a story (Dekker, Krackhardt & Snijders 2007). A term of
        lists: exchanged among the stories of a person (among the people who heard a story, where
        everybody heard one). A term of rows: what the others leave of
        it is exchanged among the events of a person's list. 0: none.
    folds : the area under the curve is that of predictions for events (all rows of them) left out
        of the fit, in this many parts; 0: none.
    seed : of permutations and parts.
    confidence : of the intervals.

    Raises
    ------
    DataError : a column is missing, recall other than 0 and 1, everything or nothing recalled,
        fewer than three people or events, terms that determine each other or recall.
    InputError : no terms, or draws, folds or confidence out of range.
    """
    if draws < 0 or folds < 0 or folds == 1:
        raise InputError(f"draws={draws} and folds={folds}: 0 or a positive number, folds from 2.")
    if not 0 < confidence < 1:
        raise InputError(f"confidence={confidence} must lie between 0 and 1.")
    chosen, omitted = _terms(table, terms)
    rows, dropped = _rows(table, chosen)
    design = Design.of(rows, chosen, reference)
    beta, se = clustered(design)
    two_way = two_way_errors(design, beta)
    alpha = (1 - confidence) / 2
    n_people, n_events = design.n_groups("subject"), design.n_groups("event")
    null = permuted(design, draws, np.random.default_rng(seed))
    lines = []
    for column, name in design.named():
        inside = float(stats.t.ppf(1 - alpha, n_people - 1))
        least = min(n_people, n_events) - 1
        inside_two = float(stats.t.ppf(1 - alpha, least))
        value = float(beta[column])
        lines.append(
            {
                "term": name,
                "level": design.level[column],
                "estimate": value,
                "se": se[column],
                "ci_low": value - inside * se[column],
                "ci_high": value + inside * se[column],
                "p": _two_sided(value, se[column], n_people - 1),
                "se_two_way": two_way[column],
                "ci_low_two_way": value - inside_two * two_way[column],
                "ci_high_two_way": value + inside_two * two_way[column],
                "p_two_way": _two_sided(value, two_way[column], least),
                **{
                    {"z": "z_permutation", "p": "p_permutation"}.get(key, key): number
                    for key, number in permutation_summary(value, null[column]).items()
                },
                "mean": design.mean[column],
                "sd": design.sd[column],
                "vif": design.vif(column),
            }
        )
    fit = {
        "n_rows": len(rows),
        "n_dropped": dropped,
        "n_subjects": n_people,
        "n_events": n_events,
        "n_stories": int(rows["story"].nunique()),
        "recalled": float(design.y.mean()),
        **_held_out(design, folds, draws, seed),
    }
    settings = {
        "terms": list(chosen),
        "omitted": omitted,
        "reference": design.reference,
        "draws": draws,
        "folds": folds,
        "seed": seed,
        "confidence": confidence,
    }
    return RecallRegression(pd.DataFrame(lines), pd.DataFrame([fit]), settings)


# --- the table and its design ----------------------------------------------------------------


def _terms(table: pd.DataFrame, terms: Sequence[str] | None) -> tuple[list[str], list[str]]:
    for name in ("subject", "story", "event", "recalled"):
        if name not in table.columns:
            raise DataError(f"the table has no column {name!r}; make it with recall_table.")
    if terms is None:
        usable = [
            name
            for name in DEFAULT_TERMS
            if name in table.columns and table[name].dropna().nunique() > 1
        ]
        return usable, [name for name in DEFAULT_TERMS if name not in usable]
    if isinstance(terms, str) or len(terms) == 0 or len(set(terms)) != len(terms):
        raise InputError(f"terms={terms!r} must be a list of different columns, at least one.")
    for name in terms:
        if name not in table.columns:
            raise DataError(
                f"the table has no column {name!r}; it has {', '.join(map(str, table.columns))}."
            )
        if table[name].dropna().nunique() < 2:
            raise DataError(
                f"the term {name!r} has no two different values in this table; leave it out, or "
                "give what it needs (presses, a trace) to recall_table."
            )
    return list(terms), []


def _rows(table: pd.DataFrame, terms: list[str]) -> tuple[pd.DataFrame, int]:
    if not terms:
        raise DataError("no term has values in this table.")
    recalled = table["recalled"]
    if not recalled.isin([0, 1]).all():
        raise DataError("the column 'recalled' must hold 0 or 1 in every row.")
    whole = table[terms].notna().all(axis=1)
    rows = table[whole].reset_index(drop=True)
    if rows["recalled"].nunique() < 2:
        raise DataError("everything, or nothing, is recalled in these rows; there is no contrast.")
    people = rows["subject"].nunique()
    events = len(rows[["story", "event"]].drop_duplicates())
    if people < 3 or events < 3:
        raise DataError(
            f"{people} people and {events} events are too few for a regression; three of each are "
            "the least."
        )
    return rows, int((~whole).sum())


def _two_sided(value: float, se: float, df: int) -> float:
    return float(2 * stats.t.sf(abs(value / se), df)) if se > 0 else float("nan")


# --- prediction of held-out events -------------------------------------------------------------


def _held_out(design: Design, folds: int, draws: int, seed: int) -> dict[str, float]:
    names = ("auc", "auc_null_mean", "auc_null_sd", "auc_p")
    if not folds:
        return dict.fromkeys(names, float("nan"))
    rng = np.random.default_rng([seed, 1])
    n_events = design.n_groups("event")
    part = rng.permutation(np.arange(n_events) % min(folds, n_events))[design.groups["event"]]
    value = _auc_of(design.X, design.y, part)
    own = [c for c, _ in design.named() if design.level[c] == "event"]
    null = np.full(min(draws, 200) if own else 0, np.nan)
    _, rows, back = np.unique(design.groups["event"], return_index=True, return_inverse=True)
    exchanged = orders(design.groups["story"][rows], rng)
    X = design.X.copy()
    for number in range(len(null)):
        X[:, own] = design.X[rows][next(exchanged)][back][:, own]
        null[number] = _auc_of(X, design.y, part)
    summary = permutation_summary(value, null)
    numbers = (value, summary["null_mean"], summary["null_sd"], summary["p"])
    return dict(zip(names, numbers))


def _auc_of(X: Floats, y: Floats, part: Ints) -> float:
    """Area under the ROC curve of predictions for the parts left out."""
    predicted = np.empty(len(y))
    for code in np.unique(part):
        out = part == code
        try:
            beta = newton(X[~out], y[~out])
        except (DataError, np.linalg.LinAlgError):
            return float("nan")
        predicted[out] = X[out] @ beta
    ranks = stats.rankdata(predicted)
    positive = y == 1
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))
