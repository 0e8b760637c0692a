"""Recall of events regressed on what the events are like.

A marginal logistic regression (generalised estimating equations, independence working correlation)
with people as clusters and a covariance corrected for few clusters (Mancl & DeRouen 2001). People
are only half of the sample: a predictor that belongs to events has as many independent values as
there are events. So beside the interval over people stand one over people and events (two-way
clustered, Cameron, Gelbach & Miller 2011) and a permutation test in which the *events* (or
whatever carries the predictor) are exchanged; for predictors of events these two decide.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from workbench.analysis.recall.resampling import permutation_summary
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
    design = _Design.of(rows, chosen, reference)
    beta, se = _clustered(design)
    two_way = _two_way(design, beta)
    alpha = (1 - confidence) / 2
    n_people, n_events = design.n_groups("subject"), design.n_groups("event")
    null = _permuted(design, draws, np.random.default_rng(seed))
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


@dataclass(eq=False)
class _Design:
    """Numbers of a regression: X (rows × columns), the intercepts of stories in front."""

    X: Floats
    y: Floats
    names: list[str]
    level: list[str]
    mean: list[float]
    sd: list[float]
    groups: dict[str, Ints]
    reference: dict[str, str]
    n_intercepts: int
    category: dict[int, tuple[str, str]]
    labels: dict[str, NDArray[np.object_]]

    @classmethod
    def of(cls, rows: pd.DataFrame, terms: list[str], reference: str) -> _Design:
        story = _codes(rows, ["story"])
        groups = {
            "subject": _codes(rows, ["subject"]),
            "story": story,
            "event": _codes(rows, ["story", "event"]),
            "list": _codes(rows, ["subject", "story"]),
        }
        n_stories = int(story.max()) + 1
        columns: list[Floats] = [(story == code).astype(np.float64) for code in range(n_stories)]
        names = [f"story {code}" for code in range(n_stories)]
        level, mean, sd = ["story"] * n_stories, [np.nan] * n_stories, [np.nan] * n_stories
        references: dict[str, str] = {}
        category: dict[int, tuple[str, str]] = {}
        labels: dict[str, NDArray[np.object_]] = {}
        for term in terms:
            where = _level(rows, term, groups)
            if pd.api.types.is_numeric_dtype(rows[term]):
                values = rows[term].to_numpy(dtype=np.float64)
                spread = float(values.std())
                columns.append((values - values.mean()) / spread if spread else values)
                names.append(term)
                level.append(where)
                mean.append(float(values.mean()))
                sd.append(spread)
                continue
            known = sorted(set(rows[term].astype(str)))
            first = reference if reference in known else known[0]
            references[term] = first
            labels[term] = rows[term].astype(str).to_numpy(dtype=object)
            for name in (name for name in known if name != first):
                category[len(columns)] = (term, name)
                columns.append((labels[term] == name).astype(np.float64))
                names.append(f"{term}: {name}")
                level.append(where)
                mean.append(float(columns[-1].mean()))
                sd.append(np.nan)
        X = np.column_stack(columns)
        if np.linalg.matrix_rank(X) < X.shape[1]:
            raise DataError(
                "the terms determine each other (or a term is constant within every story); leave "
                f"one out of: {', '.join(terms)}."
            )
        y = rows["recalled"].to_numpy(dtype=np.float64)
        return cls(X, y, names, level, mean, sd, groups, references, n_stories, category, labels)

    def n_groups(self, name: str) -> int:
        return int(self.groups[name].max()) + 1

    def named(self) -> Iterator[tuple[int, str]]:
        """Columns and names of the terms, the intercepts left out."""
        return ((c, self.names[c]) for c in range(self.n_intercepts, self.X.shape[1]))

    def vif(self, column: int) -> float:
        """1 / (1 - R²) of this column on all others, within stories."""
        others = np.delete(self.X, column, axis=1)
        own = self.X[:, column]
        intercepts = self.X[:, : self.n_intercepts]
        total = float(np.sum(_residual(own, intercepts) ** 2))
        return total / float(np.sum(_residual(own, others) ** 2))


def _codes(rows: pd.DataFrame, by: list[str]) -> Ints:
    return np.asarray(rows.groupby(by, sort=False).ngroup(), dtype=np.int64)


def _level(rows: pd.DataFrame, term: str, groups: dict[str, Ints]) -> str:
    """Whose property a term is: constant within events, else within lists, else of rows."""
    for name in ("event", "list"):
        if (rows[term].groupby(groups[name]).nunique() <= 1).all():
            return name
    return "row"


def _residual(values: Floats, on: Floats) -> Floats:
    return values - on @ np.linalg.lstsq(on, values, rcond=None)[0]


# --- fits --------------------------------------------------------------------------------------


def _clustered(design: _Design) -> tuple[Floats, Floats]:
    """Coefficients and their standard errors with people as clusters."""
    import statsmodels.api as sm

    _newton(design.X, design.y)  # says clearly what separation would make of the estimates
    model = sm.GEE(
        design.y,
        design.X,
        groups=design.groups["subject"],
        family=sm.families.Binomial(),
        cov_struct=sm.cov_struct.Independence(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = model.fit(cov_type="bias_reduced")
    return np.asarray(result.params), np.asarray(result.bse)


def _two_way(design: _Design, beta: Floats) -> Floats:
    """Standard errors clustered by people and by events: V_people + V_events - V_both."""
    chance = _expit(design.X @ beta)
    bread = np.linalg.inv((design.X * (chance * (1 - chance))[:, None]).T @ design.X)
    score = design.X * (design.y - chance)[:, None]
    both = np.unique(
        np.stack([design.groups["subject"], design.groups["event"]]), axis=1, return_inverse=True
    )[1].ravel()
    total = np.zeros_like(bread)
    for codes, sign in ((design.groups["subject"], 1), (design.groups["event"], 1), (both, -1)):
        count = int(codes.max()) + 1
        sums = np.zeros((count, score.shape[1]))
        np.add.at(sums, codes, score)
        total += sign * count / (count - 1) * sums.T @ sums
    variance = np.diag(bread @ total @ bread)
    return np.where(variance > 0, np.sqrt(np.maximum(variance, 0)), np.nan)


def _newton(X: Floats, y: Floats, start: Floats | None = None) -> Floats:
    """Maximum likelihood of a logistic regression."""
    beta = np.zeros(X.shape[1]) if start is None else start.copy()
    for _ in range(50):
        chance = _expit(X @ beta)
        weight = np.maximum(chance * (1 - chance), 1e-12)
        step = np.linalg.solve((X * weight[:, None]).T @ X, X.T @ (y - chance))
        beta = beta + np.clip(step, -3, 3)
        if np.abs(step).max() < 1e-9:
            return beta
        if np.abs(beta).max() > 30:
            break
    raise DataError(
        "the terms (or stories) tell without fail what was recalled, so the regression has no "
        "finite estimate; leave a term out, or use more people or events."
    )


def _expit(values: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(values, -700, 700)))


def _two_sided(value: float, se: float, df: int) -> float:
    return float(2 * stats.t.sf(abs(value / se), df)) if se > 0 else float("nan")


# --- permutations ------------------------------------------------------------------------------


def _permuted(design: _Design, draws: int, rng: np.random.Generator) -> dict[int, Floats]:
    """Coefficients of each column when its term is exchanged, (draws,) each."""
    null = {column: np.full(draws, np.nan) for column, _ in design.named()}
    if not draws:
        return null
    start = _newton(design.X, design.y)
    units = {"event": ("event", "story"), "row": (None, "list")}
    done: set[str] = set()
    for column, _ in design.named():
        if column in design.category:
            term, _ = design.category[column]
            if term not in done:
                done.add(term)
                _permute_category(design, term, null, draws, start, rng)
            continue
        if design.level[column] == "list":
            draw = _exchange_lists(design, design.X[:, column], rng)
        else:
            unit, within = units[design.level[column]]
            draw = _exchange_residuals(design, column, unit, within, rng)
        X = design.X.copy()
        for number in range(draws):
            X[:, column] = next(draw)
            null[column][number] = _coefficient(X, design.y, start, [column])[0]
    return null


def _permute_category(
    design: _Design,
    term: str,
    null: dict[int, Floats],
    draws: int,
    start: Floats,
    rng: np.random.Generator,
) -> None:
    columns = [column for column, (of, _) in design.category.items() if of == term]
    labels = design.labels[term]
    codes = pd.factorize(labels)[0].astype(np.float64)
    names = list(dict.fromkeys(labels.tolist()))
    if design.level[columns[0]] == "list":
        draw = _exchange_lists(design, codes, rng)
    else:
        unit = design.groups["event"] if design.level[columns[0]] == "event" else None
        draw = _exchange_values(codes, unit, design.groups["story"], rng)
    X = design.X.copy()
    for number in range(draws):
        drawn = next(draw)
        for column in columns:
            X[:, column] = drawn == names.index(design.category[column][1])
        values = _coefficient(X, design.y, start, columns)
        for column, value in zip(columns, values):
            null[column][number] = value


def _coefficient(X: Floats, y: Floats, start: Floats, columns: list[int]) -> Floats:
    """Coefficients of a permuted fit; NaN where it has none."""
    try:
        return _newton(X, y, start)[columns]
    except (DataError, np.linalg.LinAlgError):
        return np.full(len(columns), np.nan)


def _exchange_residuals(
    design: _Design, column: int, unit: str | None, within: str, rng: np.random.Generator
) -> Iterator[Floats]:
    """What the other terms leave of a column, exchanged among units, on what they explain."""
    if unit is None:
        rows = np.arange(len(design.y))
        back = rows
        others = np.delete(design.X, column, axis=1)
    else:
        _, rows, back = np.unique(design.groups[unit], return_index=True, return_inverse=True)
        same = [c for c in range(design.X.shape[1]) if design.level[c] in (unit, "story")]
        others = design.X[rows][:, [c for c in same if c != column]]
    own = design.X[rows, column]
    residual = _residual(own, others)
    explained = own - residual
    blocks = design.groups[within][rows]
    for order in _orders(blocks, rng):
        yield (explained + residual[order])[back]


def _exchange_values(
    values: Floats, unit: Ints | None, blocks: Ints, rng: np.random.Generator
) -> Iterator[Floats]:
    """Values of units exchanged within blocks."""
    codes = np.arange(len(values)) if unit is None else unit
    _, rows, back = np.unique(codes, return_index=True, return_inverse=True)
    for order in _orders(blocks[rows], rng):
        yield values[rows][order][back]


def _exchange_lists(design: _Design, values: Floats, rng: np.random.Generator) -> Iterator[Floats]:
    """Values of lists exchanged among a person's stories, or among people who heard one each."""
    one_each = design.n_groups("list") == design.n_groups("subject")
    blocks = design.groups["story" if one_each else "subject"]
    return _exchange_values(values, design.groups["list"], blocks, rng)


def _orders(blocks: Ints, rng: np.random.Generator) -> Iterator[Ints]:
    """Random orders that keep everything in its block, without end."""
    home = np.argsort(blocks, kind="stable")
    while True:
        mixed = np.lexsort((rng.random(len(blocks)), blocks))
        order = np.empty(len(blocks), dtype=np.int64)
        order[home] = mixed
        yield order


# --- prediction of held-out events -------------------------------------------------------------


def _held_out(design: _Design, folds: int, draws: int, seed: int) -> dict[str, float]:
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
    orders = _orders(design.groups["story"][rows], rng)
    X = design.X.copy()
    for number in range(len(null)):
        X[:, own] = design.X[rows][next(orders)][back][:, own]
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
            beta = _newton(X[~out], y[~out])
        except (DataError, np.linalg.LinAlgError):
            return float("nan")
        predicted[out] = X[out] @ beta
    ranks = stats.rankdata(predicted)
    positive = y == 1
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))
