"""Readers of free-recall data: item tables, BIDS behaviour files, and recall matrices."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from workbench.core.checks import check_option
from workbench.core.errors import DataError, InputError
from workbench.stories.tables import read_table

__all__ = ["FORMATS", "load_recalls", "recalls_from_lists", "recalls_from_matrix"]

FORMATS = ("auto", "table", "bids", "ordered")

_COLUMNS = ("subject", "list", "position", "trial_type", "item")
_MISSING = {"", "n/a", "nan", "na"}


def load_recalls(
    path: str | Path | Iterable[str | Path],
    *,
    format: str = "auto",
    columns: dict[str, str] | None = None,
    study: str | Path | pd.DataFrame | Sequence[Any] | None = None,
    practice: bool = False,
    encoding: str | None = None,
) -> pd.DataFrame:
    """Read free-recall data as one table: subject, list, position, trial_type, item (and more).

    Parameters
    ----------
    path : a .csv or .tsv file, a folder (all its `*_beh.tsv` files, subfolders too), or several
        files. Files of one study stand below each other.
    format : "table": rows of study and recall events with the five columns; "bids": behaviour
        files of the Penn group on OpenNeuro (WORD and REC_WORD events, in order); "ordered": only
        recalled items, in order, with `study` telling what was studied; "auto": found by the
        columns.
    columns : role → name of the column, where yours differ: {"subject": "participant", ...}.
    study : for "ordered": the studied items, as a table (or file) with list and item columns
        (and subject, when lists differ between subjects), or one sequence of items that everybody
        studied.
    practice : for "bids": keep practice lists (trial 0 and below; in the VFFR experiment lists
        count from 0 and none is practice).
    encoding : of the text; see `workbench.stories.text.decode`.

    Returns
    -------
    One row per study or recall event. BIDS data also have session, and `list` is
    "session-trial". Words are compared as they are written.

    Raises
    ------
    InputError : there is no such file, or the format is unknown.
    DataError : a file has not the columns of its format; the message names what is missing.
    """
    check_option("format", format, FORMATS)
    files = _files(path)
    tables = []
    for file in files:
        table, where = read_table(file, encoding=encoding)
        table = _renamed(table, columns, where)
        kind = _kind(table, study, where) if format == "auto" else format
        if kind == "bids":
            tables.append(_from_bids(table, file, where, practice))
        elif kind == "ordered":
            if study is None:
                raise DataError(
                    f"{where} holds recalled items only; say what was studied with study=."
                )
            tables.append(_from_ordered(table, study, columns, encoding, where))
        else:
            tables.append(_from_table(table, where))
    return pd.concat(tables, ignore_index=True)


def recalls_from_lists(
    studied: Sequence[Sequence[Hashable]],
    recalled: Sequence[Sequence[Hashable]],
    subject: Sequence[Hashable] | Hashable = "all",
) -> pd.DataFrame:
    """A free-recall table from studied and recalled items, one sequence per list.

    Parameters
    ----------
    studied, recalled : items of each list, in order.
    subject : one label per list, or one for all. Lists are numbered within the subject.
    """
    if len(studied) != len(recalled):
        raise DataError(
            f"there are {len(studied)} studied and {len(recalled)} recalled lists; give one of "
            "each, an empty one where nothing was recalled."
        )
    subjects: list[Hashable] = (
        list(subject)
        if isinstance(subject, Sequence) and not isinstance(subject, str)
        else [subject] * len(studied)
    )
    if len(subjects) != len(studied):
        raise DataError(f"there are {len(subjects)} subjects for {len(studied)} lists.")
    number: dict[Hashable, int] = {}
    rows: list[tuple[Any, ...]] = []
    for who, items, outputs in zip(subjects, studied, recalled):
        number[who] = number.get(who, 0) + 1
        for kind, sequence in (("study", items), ("recall", outputs)):
            rows += [(who, number[who], at, kind, item) for at, item in enumerate(sequence, 1)]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def recalls_from_matrix(
    matrix: ArrayLike, length: int | Sequence[int], subject: Sequence[Hashable] | Hashable = "all"
) -> pd.DataFrame:
    """A free-recall table from a recall matrix, as older toolboxes keep it.

    Parameters
    ----------
    matrix : (n_lists, n_outputs): serial position of each recall (from 1), negative for an
        intrusion, 0 or NaN after the last one.
    length : items of each list, or one number for all.
    subject : one label per list, or one for all.
    """
    values = np.atleast_2d(np.asarray(matrix, dtype=np.float64))
    values = np.where(np.isfinite(values), values, 0.0)
    lengths = np.broadcast_to(np.asarray(length, dtype=np.int64), (len(values),))
    if (values % 1 != 0).any() or (values > lengths[:, None]).any():
        row, column = np.argwhere((values % 1 != 0) | (values > lengths[:, None]))[0]
        raise DataError(
            f"list {row + 1}, recall {column + 1} of the recall matrix is {values[row, column]:g}; "
            f"positions of this list are 1 ... {lengths[row]}, negative for intrusions, 0 at the "
            "end."
        )
    studied = [list(range(1, n + 1)) for n in lengths]
    recalled = [[int(value) for value in row if value != 0] for row in values]
    return recalls_from_lists(studied, recalled, subject)


# --- formats -------------------------------------------------------------------------------


def _files(path: str | Path | Iterable[str | Path]) -> list[Path]:
    given = [path] if isinstance(path, (str, Path)) else list(path)
    files: list[Path] = []
    for entry in map(Path, given):
        if entry.is_dir():
            found = sorted(entry.rglob("*_beh.tsv"))
            if not found:
                raise InputError(
                    f"folder {entry} has no *_beh.tsv file; name the files themselves."
                )
            files += found
        elif entry.is_file():
            files.append(entry)
        else:
            raise InputError(f"recall file {entry} does not exist; check the path.")
    if not files:
        raise InputError("no recall file was given.")
    return files


def _renamed(table: pd.DataFrame, columns: dict[str, str] | None, where: str) -> pd.DataFrame:
    for role, name in (columns or {}).items():
        check_option("columns", role, _COLUMNS)
        if name not in table.columns:
            raise DataError(
                f"{where} has no column {name!r} for the {role}; it has: "
                f"{', '.join(map(str, table.columns))}."
            )
        if role != name and role in table.columns:
            table = table.drop(columns=role)
        table = table.rename(columns={name: role})
    twice = [name for name in _COLUMNS if list(table.columns).count(name) > 1]
    if twice:
        raise DataError(f"{where} has the column(s) {', '.join(twice)} more than once.")
    return table


def _kind(table: pd.DataFrame, study: object, where: str) -> str:
    names = set(table.columns)
    if "trial_type" in names:
        kinds = set(table["trial_type"])
        if "WORD" in kinds or "REC_WORD" in kinds:
            return "bids"
        return "table"
    if study is not None or {"list", "item"} <= names:
        return "ordered"
    raise DataError(
        f"{where} is no recall table: it needs the columns {', '.join(_COLUMNS)}; it has: "
        f"{', '.join(map(str, table.columns))}. Name yours with columns=."
    )


def _from_table(table: pd.DataFrame, where: str) -> pd.DataFrame:
    missing = [name for name in _COLUMNS if name not in table.columns]
    if missing:
        raise DataError(
            f"{where} lacks the column(s) {', '.join(missing)}; it has: "
            f"{', '.join(map(str, table.columns))}. Name yours with columns=."
        )
    result = table.copy()
    for name in ("subject", "list", "position"):
        result[name] = _numbers_where_all_are(result[name])
    return result


def _from_bids(table: pd.DataFrame, file: Path, where: str, practice: bool) -> pd.DataFrame:
    item = next((name for name in ("item_name", "item") if name in table.columns), None)
    if item is None or "trial" not in table.columns or "trial_type" not in table.columns:
        raise DataError(
            f"{where} lacks trial_type, trial or item_name, which a behaviour file of free recall "
            f"has; it has: {', '.join(map(str, table.columns))}."
        )
    rows = table[table["trial_type"].isin(["WORD", "REC_WORD"])].reset_index(drop=True)
    if not (rows["trial_type"] == "WORD").any():
        raise DataError(f"{where} has no WORD events, so nothing that was studied.")
    trial = pd.to_numeric(rows["trial"], errors="coerce")
    if trial.isna().any():
        row = int(np.flatnonzero(trial.isna())[0])
        raise DataError(f"{where}: a {rows['trial_type'][row]} event has no trial number.")
    label = _entity(file, "task") if "experiment" not in rows else rows["experiment"]
    counts_from_zero = pd.Series(label, index=rows.index).eq("VFFR")
    keep = practice | (trial >= 1) | counts_from_zero
    time = next((name for name in ("mstime", "onset") if name in table.columns), None)
    order = (
        pd.to_numeric(rows[time], errors="coerce") if time else pd.Series(rows.index, rows.index)
    )
    frame = pd.DataFrame(
        {
            "subject": rows["subject"] if "subject" in rows else _entity(file, "sub"),
            "session": rows["session"] if "session" in rows else _entity(file, "ses"),
            "trial": trial.astype(np.int64),
            "trial_type": rows["trial_type"].map({"WORD": "study", "REC_WORD": "recall"}),
            "item": rows[item].where(~rows[item].str.lower().isin(["", "n/a"])),
            "time": order,
        }
    )[keep]
    frame = frame.sort_values("time", kind="stable")
    frame["list"] = frame["session"].astype(str) + "-" + frame["trial"].astype(str)
    group = frame.groupby(["subject", "list", "trial_type"], sort=False)
    frame["position"] = group.cumcount() + 1
    return frame.loc[:, [*_COLUMNS, "session"]].reset_index(drop=True)


def _from_ordered(
    table: pd.DataFrame,
    study: str | Path | pd.DataFrame | Sequence[Any],
    columns: dict[str, str] | None,
    encoding: str | None,
    where: str,
) -> pd.DataFrame:
    if "item" not in table.columns:
        raise DataError(
            f"{where} has no column 'item'; it has: {', '.join(map(str, table.columns))}."
        )
    recall = pd.DataFrame(
        {
            "subject": table.get("subject", "all"),
            "list": table.get("list", 1),
            "item": table["item"].where(~table["item"].astype(str).str.lower().isin(_MISSING)),
        }
    ).astype({"subject": object, "list": object})
    if "position" in table:
        place = pd.to_numeric(table["position"], errors="coerce")
        if place.isna().any():
            raise DataError(f"{where}, row {int(np.flatnonzero(place.isna())[0])}: no position.")
        recall = recall.iloc[np.argsort(place.to_numpy(), kind="stable")]
    lists = recall[["subject", "list"]].drop_duplicates()
    if isinstance(study, (str, Path, pd.DataFrame)):
        source, name = read_table(study, encoding=encoding)
        # Names are those of the recalled items' table; the other one may have its own columns.
        own = {role: theirs for role, theirs in (columns or {}).items() if theirs in source}
        source = _renamed(source, own, name)
        lacking = [c for c in ("list", "item") if c not in source.columns]
        if lacking:
            raise DataError(f"the studied items ({name}) lack the column(s) {', '.join(lacking)}.")
        keys = ["subject", "list"] if "subject" in source.columns else ["list"]
        items = source.loc[:, [*keys, "item"]]
        # A list of which nothing was recalled belongs to the data all the same.
        studied = (
            items
            if "subject" in keys
            else lists[["subject"]].drop_duplicates().merge(items, how="cross")
        )
    else:
        studied = lists.merge(pd.DataFrame({"item": list(study)}), how="cross")
    parts = []
    for kind, frame in (("study", studied), ("recall", recall)):
        part = frame.assign(trial_type=kind)
        part["position"] = part.groupby(["subject", "list"], sort=False).cumcount() + 1
        parts.append(part)
    result = pd.concat(parts, ignore_index=True).loc[:, list(_COLUMNS)]
    for column in ("subject", "list"):
        result[column] = _numbers_where_all_are(result[column])
    return result


def _entity(file: Path, name: str) -> str:
    """Value of a BIDS entity in a file name: sub-LTP063_ses-0_... → LTP063."""
    found = re.search(rf"(?:^|_){name}-([^_.]+)", file.name)
    return found.group(1) if found else "n/a"


def _numbers_where_all_are(values: pd.Series[Any]) -> pd.Series[Any]:
    """Text cells as integers when every one is; labels stay labels."""
    converted = pd.to_numeric(values, errors="coerce")
    if converted.notna().all() and (converted % 1 == 0).all():
        return converted.astype(np.int64)
    return values
