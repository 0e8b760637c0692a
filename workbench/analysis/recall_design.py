"""A logistic regression of recall in numbers: its columns, its groups and its fits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.core.errors import DataError

__all__ = ["Design", "clustered", "newton", "residual_on", "two_way_errors"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(eq=False)
class Design:
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
    def of(cls, rows: pd.DataFrame, terms: list[str], reference: str) -> Design:
        """Columns of the terms: numbers standardised, categories against the reference.

        Raises
        ------
        DataError : the columns determine each other.
        """
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
        """How many people ("subject"), stories, events or lists there are."""
        return int(self.groups[name].max()) + 1

    def named(self) -> Iterator[tuple[int, str]]:
        """Columns and names of the terms, the intercepts left out."""
        return ((c, self.names[c]) for c in range(self.n_intercepts, self.X.shape[1]))

    def vif(self, column: int) -> float:
        """1 / (1 - R²) of this column on all others, within stories."""
        others = np.delete(self.X, column, axis=1)
        own = self.X[:, column]
        intercepts = self.X[:, : self.n_intercepts]
        total = float(np.sum(residual_on(own, intercepts) ** 2))
        return total / float(np.sum(residual_on(own, others) ** 2))


def _codes(rows: pd.DataFrame, by: list[str]) -> Ints:
    return np.asarray(rows.groupby(by, sort=False).ngroup(), dtype=np.int64)


def _level(rows: pd.DataFrame, term: str, groups: dict[str, Ints]) -> str:
    """Whose property a term is: constant within events, else within lists, else of rows."""
    for name in ("event", "list"):
        if (rows[term].groupby(groups[name]).nunique() <= 1).all():
            return name
    return "row"


def residual_on(values: Floats, on: Floats) -> Floats:
    """What a least-squares fit on other columns leaves."""
    return values - on @ np.linalg.lstsq(on, values, rcond=None)[0]


# --- fits --------------------------------------------------------------------------------------


def clustered(design: Design) -> tuple[Floats, Floats]:
    """Coefficients and their standard errors with people as clusters."""
    import statsmodels.api as sm

    newton(design.X, design.y)  # says clearly what separation would make of the estimates
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


def two_way_errors(design: Design, beta: Floats) -> Floats:
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


def newton(X: Floats, y: Floats, start: Floats | None = None) -> Floats:
    """Maximum likelihood of a logistic regression."""
    beta = np.zeros(X.shape[1]) if start is None else start.copy()
    for _ in range(50):
        chance = _expit(X @ beta)
        weight = np.maximum(chance * (1 - chance), 1e-12)
        step = np.linalg.solve((X * weight[:, None]).T @ X, X.T @ (y - chance))
        beta = beta + np.clip(step, -3, 3)
        if np.abs(step).max() < 1e-6:  # the error left is of the order of its square
            return beta
        if np.abs(beta).max() > 30:
            break
    raise DataError(
        "the terms (or stories) tell without fail what was recalled, so the regression has no "
        "finite estimate; leave a term out, or use more people or events."
    )


def _expit(values: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(values, -700, 700)))
