"""Reading tables: word tables and whatever else comes as .csv or .tsv."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Literal, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.core.checks import check_option
from workbench.core.errors import DataError, InputError
from workbench.stories.text import decode

__all__ = ["KNOWN_COLUMNS", "column_of", "numbers", "read_table", "read_word_table"]

KNOWN_COLUMNS = {
    "word": ("word", "words", "text"),
    "onset": ("onset", "word_onset", "word_onsets", "start", "time_start", "start_time", "begin"),
    "offset": ("offset", "word_offset", "word_offsets", "end", "time_end", "end_time", "stop"),
    "duration": ("duration",),
    "subject": ("subject", "participant", "subject_id", "participant_id"),
    "time": ("time", "times", "onset", "press"),
    "condition": ("condition", "noise_condition"),
    "first_word": ("first_word",),
    "quote": ("quote",),
}
"""Names a column is found by when none is given; the first that is there counts."""

TIME_UNITS = {"s": 1, "ms": 1000}
"""Units of time and how many of them a second has."""
_EMPTY = {"", "nan", "na", "n/a", "none", "null"}


def read_table(
    path: str | Path | pd.DataFrame,
    *,
    encoding: str | None = None,
    separator: str | None = None,
    quoted: bool = True,
) -> tuple[pd.DataFrame, str]:
    """A table with every cell as text, so that the words "null" and "nan" stay words.

    Parameters
    ----------
    path : .csv or .tsv, or a DataFrame, which is taken as it is.
    encoding : see `text.decode`.
    separator : None: a tab for .tsv; else the one of comma, semicolon and tab that divides the
        header most often.
    quoted : whether a quote at the start of a cell opens a quoted cell; False: it is a character
        like any other.

    Returns
    -------
    table : strings; rows as in the file.
    where : the file's name for messages.

    Raises
    ------
    DataError : empty, or a row with more cells than the header.
    """
    if isinstance(path, pd.DataFrame):
        return path, "the table"
    where = str(path)
    content = decode(Path(path).read_bytes(), encoding=encoding, where=where)
    if not content.strip():
        raise DataError(f"{where} is empty; it needs a header and one row for each entry.")
    lines = io.StringIO(content, newline="")
    header = content.lstrip("\r\n").splitlines()[0]
    if separator is None:
        tab = Path(path).suffix.lower() == ".tsv"
        separator = "\t" if tab else max(",;\t", key=header.count)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    rows = [row for row in csv.reader(lines, delimiter=separator, quoting=quoting) if row]
    names, body = [name.strip() for name in rows[0]], rows[1:]
    for number, row in enumerate(body, start=1):
        if len(row) != len(names):
            raise DataError(
                f"{where}, row {number}: {len(row)} cells under a header of {len(names)}; quote "
                f"cells that contain {separator!r}, or set separator=."
            )
    return pd.DataFrame(body, columns=names, dtype=str), where


@overload
def column_of(
    table: pd.DataFrame, role: str, columns: dict[str, str] | None, where: str
) -> str: ...
@overload
def column_of(
    table: pd.DataFrame, role: str, columns: dict[str, str] | None, where: str, *, needed: bool
) -> str | None: ...
def column_of(
    table: pd.DataFrame,
    role: str,
    columns: dict[str, str] | None,
    where: str,
    *,
    needed: bool = True,
) -> str | None:
    """The name of the column that plays a role: the one given, else the first known name.

    Raises
    ------
    DataError : it is not there; the message lists the columns that are.
    """
    given = (columns or {}).get(role)
    present = {str(name).strip().lower(): str(name) for name in table.columns[::-1]}
    if given is not None:
        if given in table.columns:
            return given
    else:
        for name in KNOWN_COLUMNS[role]:
            if name in present:
                return present[name]
        if not needed:
            return None
    seen = ", ".join(repr(str(name)) for name in table.columns) or "none"
    raise DataError(
        f"{where} has no column {given or role!r} for the {role}; it has {seen}. Name it with "
        f'columns={{"{role}": ...}}.'
    )


def numbers(
    table: pd.DataFrame,
    column: str,
    where: str,
    *,
    unit: str | None = None,
    missing: str = "error",
) -> NDArray[np.float64]:
    """A column as numbers, in seconds where a unit is given.

    Raises
    ------
    DataError : a cell is no number, or empty (with missing="error"); file and row are named.
    """
    check_option("missing", missing, ("error", "interpolate"))
    if unit is not None:
        check_option("time_unit", unit, tuple(TIME_UNITS))
    values = np.empty(len(table))
    for row, cell in enumerate(table[column].tolist()):
        content = str(cell).strip()
        if content.lower() in _EMPTY:
            if missing == "error":
                raise DataError(
                    f"{where}, row {row + 1}: no value in column {column!r}; fill it in"
                    + (" or pass missing='interpolate'." if unit else ".")
                )
            values[row] = np.nan
            continue
        try:
            values[row] = float(content)
        except ValueError:
            raise DataError(
                f"{where}, row {row + 1}: {content!r} in column {column!r} is not a number; write "
                "it with a decimal point and without a unit."
            ) from None
        if not np.isfinite(values[row]):
            raise DataError(
                f"{where}, row {row + 1}: {content!r} in column {column!r} is infinite."
            )
    return values / (TIME_UNITS[unit] if unit else 1)


def read_word_table(
    path: str | Path | pd.DataFrame,
    *,
    columns: dict[str, str] | None = None,
    time_unit: str = "s",
    missing: str = "error",
    encoding: str | None = None,
    separator: str | None = None,
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Timed words from a table with one row per word.

    Parameters
    ----------
    path : .csv or .tsv with a header, or a DataFrame.
    columns : which column is the "word", the "onset" and the "offset" (or "duration"); known
        names are found without (`KNOWN_COLUMNS`).
    time_unit : "s" or "ms".
    missing : what an empty time means: "error", or "interpolate" from the neighbours.
    encoding, separator : see `read_table`.

    Returns
    -------
    table : word, onset, offset (s; NaN where missing).
    notes : what was assumed, in sentences.

    Raises
    ------
    DataError : no such column, no rows, an empty word, a time that is missing or no number, a
        unit that cannot be right.
    """
    unknown = set(columns or {}) - {"word", "onset", "offset", "duration"}
    if unknown:
        raise InputError(
            f"columns= has the unknown key {sorted(unknown)[0]!r}; use word, onset, offset, "
            "duration."
        )
    table, where = read_table(path, encoding=encoding, separator=separator)
    word = column_of(table, "word", columns, where)
    start = column_of(table, "onset", columns, where)
    if len(table) == 0:
        raise DataError(f"{where} has a header but no rows; it needs one row for each word.")
    words = [str(cell).strip() for cell in table[word]]
    for row, content in enumerate(words, start=1):
        if not content or pd.isna(table[word].iloc[row - 1]):
            raise DataError(
                f"{where}, row {row}: the word is missing; remove the row or fill it in."
            )
    onset = numbers(table, start, where, unit=time_unit, missing=missing)
    _check_pace(onset, time_unit, where)
    offset, notes = _offsets(table, columns, where, onset, time_unit, missing)
    unknown_times = int((~(np.isfinite(onset) & np.isfinite(offset))).sum())
    if unknown_times:
        notes = (*notes, f"{unknown_times} of {len(words)} words had no time in the table.")
    return pd.DataFrame({"word": words, "onset": onset, "offset": offset}), notes


def _offsets(
    table: pd.DataFrame,
    columns: dict[str, str] | None,
    where: str,
    onset: NDArray[np.float64],
    unit: str,
    missing: str,
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    end = column_of(table, "offset", columns, where, needed=False)
    if end is not None:
        return numbers(table, end, where, unit=unit, missing=missing), ()
    length = column_of(table, "duration", columns, where, needed=False)
    if length is not None:
        return onset + numbers(table, length, where, unit=unit, missing=missing), ()
    known = np.flatnonzero(np.isfinite(onset))
    offset = np.full(len(onset), np.nan)
    # A word whose successor starts earlier would end before it starts; the repair comes later.
    following = np.append(onset[known][1:], onset[known][-1:])
    offset[known] = np.maximum(onset[known], following)
    return offset, ("The table has no offsets: a word is taken to last until the next onset.",)


def _check_pace(onset: NDArray[np.float64], unit: str, where: str) -> None:
    """Refuse units a thousand times off: people say two to four words a second."""
    known = onset[np.isfinite(onset)]
    if len(known) < 10:
        return
    pace = (known.max() - known.min()) / len(known)
    other = {"s": "ms", "ms": "s"}[unit]
    if (unit == "s" and pace > 60) or (unit == "ms" and pace < 0.006):
        raise DataError(
            f"{where}: {pace:.3g} s between words with time_unit={unit!r}; these look like "
            f"{'milliseconds' if other == 'ms' else 'seconds'}: pass time_unit={other!r}."
        )
