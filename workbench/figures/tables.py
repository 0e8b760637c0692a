"""Rows of the tidy table that a figure draws, with clear errors where they cannot be chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from workbench.core.errors import InputError, MissingDataError
from workbench.figures.theme import method_order

__all__ = [
    "PREFERRED_VARIANTS",
    "annotation_kinds",
    "choose",
    "describe_nulls",
    "match_note",
    "measure_variants",
    "one_row_each",
    "require_columns",
]

# The variant shown when none is named; the table may hold more. (The minimum of conductance has
# no interval: a minimum over events is not resampled.)
PREFERRED_VARIANTS = {
    "modularity": "newman",
    "conductance": "standard:mean",
    "intra_inter": "sums",
    "wasserstein": "sigma=0",
    "hamming": "sentence-gaps",
}
# Columns in which two rows for one mark can differ; named in the error.
_FACTORS = ("null", "match", "gamma", "annotation", "seed", "n_events", "provenance")


def require_columns(table: pd.DataFrame, columns: Sequence[str], figure: str) -> None:
    """Raise `InputError` unless the table has these columns and at least one row."""
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise InputError(
            f"{figure} needs the column(s) {', '.join(missing)}; the table has: "
            f"{', '.join(map(str, table.columns)) or 'none'}. Give it the table of a comparison."
        )
    if table.empty:
        raise MissingDataError(f"{figure}: the table has no rows.")


def choose(table: pd.DataFrame, column: str, value: str | None) -> pd.DataFrame:
    """Rows with one value of a column (None: all), or an error that lists what there is."""
    if value is None:
        return table
    rows = table[table[column] == value]
    if rows.empty:
        have = ", ".join(repr(v) for v in table[column].drop_duplicates())
        raise InputError(f"{column}={value!r} is not in the table; it has: {have}.")
    return rows


def measure_variants(
    table: pd.DataFrame,
    measures: Sequence[str],
    variants: Mapping[str, str] | Sequence[str] | None,
    figure: str,
) -> list[tuple[str, str]]:
    """(measure, variant) of each row of panels.

    Parameters
    ----------
    measures : measures to show, in order; those the table lacks are left out.
    variants : one variant per measure as a mapping, several as a list ("newman",
        "standard:min", "standard:mean"), or None: the usual one, else the table's first.

    Raises
    ------
    MissingDataError : the table has none of the measures.
    InputError : a named variant is not in the table.
    """
    pairs: list[tuple[str, str]] = []
    for measure in measures:
        have = [str(v) for v in table.loc[table["measure"] == measure, "variant"].drop_duplicates()]
        if not have:
            continue
        if variants is None or (isinstance(variants, Mapping) and measure not in variants):
            usual = PREFERRED_VARIANTS.get(measure)
            wanted = [usual if usual in have else have[0]]
        elif isinstance(variants, Mapping):
            wanted = [variants[measure]]
        else:
            wanted = [variant for variant in variants if variant in have]
        for variant in wanted:
            if variant not in have:
                raise InputError(
                    f"variant {variant!r} of {measure} is not in the table; it has: "
                    f"{', '.join(map(repr, have))}."
                )
            pairs.append((measure, str(variant)))
    if not pairs:
        there = ", ".join(map(str, table["measure"].drop_duplicates())) or "none"
        raise MissingDataError(
            f"{figure}: the table has no rows to draw for the measures {', '.join(measures)}"
            f"{'' if variants is None else ' in the named variants'}; measures there: {there}."
        )
    return pairs


def one_row_each(rows: pd.DataFrame, keys: Sequence[str], figure: str) -> pd.DataFrame:
    """The rows, after checking that each combination of `keys` has one.

    Raises
    ------
    InputError : two rows would share one mark; the message names the columns that differ.
    """
    repeated = rows[rows.duplicated(list(keys), keep=False)]
    if repeated.empty:
        return rows
    first = repeated.groupby(list(keys), dropna=False, sort=False).get_group(
        tuple(repeated.iloc[0][list(keys)])
    )
    differing = {
        column: first[column].drop_duplicates().tolist()
        for column in _FACTORS
        if column in first.columns and first[column].nunique(dropna=False) > 1
    }
    place = ", ".join(f"{key} {first.iloc[0][key]}" for key in keys)
    if not differing:
        raise InputError(f"{figure}: {len(first)} rows for {place}; remove repeated rows.")
    column, values = next(iter(differing.items()))
    listed = "; ".join(f"{name}: {', '.join(map(str, v))}" for name, v in differing.items())
    raise InputError(
        f"{figure}: {len(first)} rows for {place}, which differ in {listed}. Keep one, e.g. "
        f"table[table[{column!r}] == {values[0]!r}]."
    )


def describe_nulls(rows: pd.DataFrame) -> str:
    """The null(s) of some rows: "lengths, 1000 draws", or "lengths (F: shift), 1000 draws".

    The number of draws is taken from a column `draws` or from `table.attrs["draws"]`, where known.
    """
    known_null = rows.dropna(subset=["null"])
    if known_null.empty:
        return "none"
    usual = str(known_null["null"].mode().iloc[0])
    others = []
    for method in method_order(known_null["method"]):
        names = known_null.loc[known_null["method"] == method, "null"].drop_duplicates()
        if list(names) != [usual]:
            others.append(f"{method}: {' or '.join(map(str, names))}")
    draws = rows["draws"].dropna() if "draws" in rows else pd.Series(dtype=float)
    known = draws.iloc[0] if len(draws) else rows.attrs.get("draws")
    text = usual + (f" ({', '.join(others)})" if others else "")
    return text if known is None else f"{text}, {int(known):,} draws"


def annotation_kinds(rows: pd.DataFrame) -> dict[str, str]:
    """Story → who marked the boundaries it is compared with, where the table says so."""
    if "annotation" not in rows:
        return {}
    known = rows[rows["annotation"].fillna("") != ""].drop_duplicates("story")
    return {str(s): str(k) for s, k in zip(known["story"], known["annotation"], strict=True)}


_MATCHES = {
    "people": "Each method has as many events as the annotation",
    "method": "As many of people's most likely boundaries as the method has",
}


def match_note(rows: pd.DataFrame) -> str:
    """How the numbers of events were matched, as a sentence; empty where it is not known."""
    if "match" not in rows or rows["match"].isna().all():
        return ""
    if "annotation" in rows:
        # Without an annotation there is nothing to match.
        rows = rows[rows["annotation"].fillna("") != ""]
    rules = [str(rule) for rule in rows["match"].dropna().unique()]
    if not rules:
        return ""
    said = [f"{_MATCHES.get(rule, 'Numbers of events')} (match: {rule})" for rule in rules]
    return "; ".join(said) + "."
