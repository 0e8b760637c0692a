"""Coefficients of a recall regression when what carries a term is exchanged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.recall_design import Design, newton, residual_on
from workbench.core.errors import DataError

__all__ = ["orders", "permuted"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def permuted(design: Design, draws: int, rng: np.random.Generator) -> dict[int, Floats]:
    """Coefficients of each column when its term is exchanged, (draws,) each."""
    null = {column: np.full(draws, np.nan) for column, _ in design.named()}
    if not draws:
        return null
    start = newton(design.X, design.y)
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
    design: Design,
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
        return newton(X, y, start)[columns]
    except (DataError, np.linalg.LinAlgError):
        return np.full(len(columns), np.nan)


def _exchange_residuals(
    design: Design, column: int, unit: str | None, within: str, rng: np.random.Generator
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
    residual = residual_on(own, others)
    explained = own - residual
    blocks = design.groups[within][rows]
    for order in orders(blocks, rng):
        yield (explained + residual[order])[back]


def _exchange_values(
    values: Floats, unit: Ints | None, blocks: Ints, rng: np.random.Generator
) -> Iterator[Floats]:
    """Values of units exchanged within blocks."""
    codes = np.arange(len(values)) if unit is None else unit
    _, rows, back = np.unique(codes, return_index=True, return_inverse=True)
    for order in orders(blocks[rows], rng):
        yield values[rows][order][back]


def _exchange_lists(design: Design, values: Floats, rng: np.random.Generator) -> Iterator[Floats]:
    """Values of lists exchanged among a person's stories, or among people who heard one each."""
    one_each = design.n_groups("list") == design.n_groups("subject")
    blocks = design.groups["story" if one_each else "subject"]
    return _exchange_values(values, design.groups["list"], blocks, rng)


def orders(blocks: Ints, rng: np.random.Generator) -> Iterator[Ints]:
    """Random orders that keep everything in its block, without end."""
    home = np.argsort(blocks, kind="stable")
    while True:
        mixed = np.lexsort((rng.random(len(blocks)), blocks))
        order = np.empty(len(blocks), dtype=np.int64)
        order[home] = mixed
        yield order
