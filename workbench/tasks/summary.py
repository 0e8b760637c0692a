"""Accuracy with its uncertainty, and systems against each other on the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from workbench.core.errors import InputError, MissingDataError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["accuracy_table", "paired_interval", "paired_table", "wilson_interval"]

_CELL = ("length", "depth", "seed")


def wilson_interval(
    correct: ArrayLike, asked: ArrayLike, level: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson's score interval of a proportion; it stays inside 0 ... 1 and is not empty at 0.

    Parameters
    ----------
    correct, asked : counts, of equal shape.
    level : coverage.
    """
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(
        np.asarray(correct), np.asarray(asked), alpha=1 - level, method="wilson"
    )
    return np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)


def accuracy_table(
    table: pd.DataFrame,
    by: Sequence[str] = ("system", "length", "depth"),
    *,
    measure: str = "correct",
    level: float = 0.95,
) -> pd.DataFrame:
    """Share of right answers in each group of rows, with its interval.

    Parameters
    ----------
    table : rows of `run_grid`.
    by : columns that make a group; leave out depth to average over depths.
    measure : "correct" (the task's rule), "contains" or "key_recalled" (among the rows where it
        is known).
    level : of Wilson's interval, which takes answers as independent; those on one text (labelled
        keys) are less so, and the interval is then too narrow.

    Returns
    -------
    One row per group, systems in the order of the table: the columns of `by`, right, asked,
    accuracy, low, high.

    Raises
    ------
    MissingDataError : no rows. InputError : a column is missing.
    """
    if len(table) == 0:
        raise MissingDataError("the run has no rows yet; let it finish at least one.")
    for column in (*by, measure):
        if column not in table:
            raise InputError(f"the table has no column {column!r}; it has {list(table.columns)}.")
    known = table[table[measure].notna()]
    order = {system: place for place, system in enumerate(table["system"].unique())}
    groups = known.groupby(list(by), sort=True)[measure]
    found = pd.DataFrame(
        {"right": groups.sum().astype(np.int64), "asked": groups.count().astype(np.int64)}
    ).reset_index()
    found["accuracy"] = found["right"] / found["asked"]
    found["low"], found["high"] = wilson_interval(found["right"], found["asked"], level)
    if "system" in by:
        rank = found["system"].map(order)
        found = found.iloc[np.argsort(rank, kind="stable")].reset_index(drop=True)
    return found


def paired_table(
    table: pd.DataFrame, *, per_length: bool = True, level: float = 0.95
) -> pd.DataFrame:
    """Every two systems on the texts that both have read: difference and exact McNemar test.

    Parameters
    ----------
    table : rows of `run_grid`.
    per_length : a test for each length; False: one over all lengths both have read.
    level : of the interval.

    Returns
    -------
    One row per pair (and length): first, second, length, n (texts), right_first, right_second,
    only_first, only_second (right where the other is wrong), difference (of accuracies, first
    minus second), low, high (`paired_interval`), p (exact, two-sided: whether the answers that
    only one got right fall evenly on both), p_holm (corrected for all rows of this table).
    """
    from scipy.stats import binomtest
    from statsmodels.stats.multitest import multipletests

    wide = table.pivot_table(
        index=list(_CELL), columns="system", values="correct", aggfunc="first", sort=False
    )
    systems = list(table["system"].unique())
    rows = []
    for first, second in combinations(systems, 2):
        both = wide[[first, second]].dropna().astype(bool)
        lengths = sorted(both.index.get_level_values("length").unique()) if per_length else [None]
        for length in lengths:
            part = both if length is None else both.xs(length, level="length")
            if len(part) == 0:
                continue
            x, y = part[first].to_numpy(), part[second].to_numpy()
            only_x, only_y = int((x & ~y).sum()), int((y & ~x).sum())
            low, high = paired_interval(x, y, level)
            unequal = only_x + only_y
            rows.append(
                {
                    "first": first,
                    "second": second,
                    "length": "all" if length is None else length,
                    "n": len(part),
                    "right_first": int(x.sum()),
                    "right_second": int(y.sum()),
                    "only_first": only_x,
                    "only_second": only_y,
                    "difference": (only_x - only_y) / len(part),
                    "low": low,
                    "high": high,
                    "p": binomtest(only_x, unequal).pvalue if unequal else 1.0,
                }
            )
    columns = (
        *("first", "second", "length", "n", "right_first", "right_second", "only_first"),
        *("only_second", "difference", "low", "high", "p"),
    )
    found = pd.DataFrame(rows, columns=list(columns))
    found["p_holm"] = multipletests(found["p"], method="holm")[1] if len(found) else []
    return found


def paired_interval(
    first: NDArray[np.bool_], second: NDArray[np.bool_], level: float = 0.95
) -> tuple[float, float]:
    """Interval of a difference of two proportions on the same texts.

    Newcombe's score method for paired data (1998, Statistics in Medicine 17:2635, method 10):
    Wilson intervals of both, combined with their correlation φ, whose numerator is reduced by n/2
    where positive.

    Parameters
    ----------
    first, second : right or not, shape (n,).
    level : coverage.
    """
    n = len(first)
    x, y = int(first.sum()), int(second.sum())
    a, d = int((first & second).sum()), int((~first & ~second).sum())
    b, c = x - a, y - a
    product = (a + b) * (c + d) * (a + c) * (b + d)
    cross = float(a * d - b * c)
    if cross > 0:
        cross = max(cross - n / 2, 0)
    phi = cross / np.sqrt(product) if product else 0.0
    (low_x, low_y), (high_x, high_y) = wilson_interval(np.array([x, y]), np.array([n, n]), level)
    p, q = x / n, y / n
    down_x, up_x, down_y, up_y = p - low_x, high_x - p, q - low_y, high_y - q
    below = np.sqrt(down_x**2 - 2 * phi * down_x * up_y + up_y**2)
    above = np.sqrt(up_x**2 - 2 * phi * up_x * down_y + down_y**2)
    difference = (b - c) / n
    return float(difference - below), float(difference + above)
