"""What people said when they retold a story: transcripts of free recall.

A table of transcripts has the columns subject (str), story (str, a name of the library or the
user's own), condition (str, "" where there is none), trial (Int64, <NA> where unknown), text (the
transcript, whitespace collapsed) and source (the file, or the row of a table).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from workbench.core.errors import DataError, InputError
from workbench.stories.download import source_file, sources
from workbench.stories.tables import numbers, read_table
from workbench.stories.text import clean_text, read_text

__all__ = ["COLUMNS", "NAMED_SETS", "load_transcripts", "trial_stories"]

COLUMNS = ("subject", "story", "condition", "trial", "text", "source")

NAMED_SETS = ("eventnoise",)
"""Public sets of transcripts."""

_EVENTNOISE = "panela2026_eventnoise"
_EVENTNOISE_NAME = re.compile(r"en(?P<subject>\d+)Auditory_recall(?P<trial>\d+)\.txt")
_FOLDER_NAME = r"(?P<subject>.+)\.txt"
_FIELDS = ("subject", "story", "condition", "trial")


def load_transcripts(
    source: str | Path | pd.DataFrame = "eventnoise",
    *,
    story: str | None = None,
    columns: dict[str, str] | None = None,
    pattern: str | None = None,
    encoding: str | None = None,
) -> pd.DataFrame:
    r"""Transcripts of recall, one row per person and story.

    Parameters
    ----------
    source : "eventnoise" (Panela et al. 2026: 34 people × 3 stories; found in the folder that
        WORKBENCH_DATA names, else downloaded); a folder of .txt files; or a table (.csv, .tsv,
        DataFrame) with the columns subject and text, and story, condition, trial where there are.
    story : which story it is, where files or table do not say; for "eventnoise", keep this one.
    columns : other names of a table's columns, e.g. {"text": "transcript"}.
    pattern : for a folder: regular expression that a whole file name must match, with groups named
        subject and, where the name tells, story, condition and trial. None: the name without .txt
        is the subject. Example: r"sub-(?P<subject>\d+)_(?P<story>\w+)\.txt".
    encoding : of the files; see `workbench.stories.text.decode`.

    Returns
    -------
    Columns `COLUMNS`, sorted as the source is.

    Raises
    ------
    InputError : no such set, file or folder; a pattern without the group subject; no story given.
    DataError : no transcripts, an empty one, two of one person for one story, a file name that
        the pattern does not match, a trial that the table of trials does not know.
    """
    if isinstance(source, str) and source in NAMED_SETS:
        if columns or pattern or encoding:
            raise InputError("columns=, pattern= and encoding= belong to your own transcripts.")
        return _eventnoise(story)
    if isinstance(source, pd.DataFrame):
        return _from_table(source, story, columns, encoding)
    place = Path(source).expanduser()
    if place.is_dir():
        if columns:
            raise InputError("columns= belongs to a table; name the parts of a file in pattern=.")
        return _from_folder(place, story, pattern or _FOLDER_NAME, encoding)
    if not place.is_file():
        raise InputError(
            f"transcripts {str(source)!r} are not known: no such file or folder, and the named "
            f"sets are {', '.join(NAMED_SETS)}."
        )
    if pattern:
        raise InputError("pattern= belongs to a folder of files; name columns in columns=.")
    return _from_table(place, story, columns, encoding)


def trial_stories(table: pd.DataFrame, where: str = "the table") -> pd.DataFrame:
    """Which story a person heard in which trial, and in which condition.

    Parameters
    ----------
    table : one row per press or per trial: subject, trial, story_id, noise_condition.
    where : the file, for messages.

    Returns
    -------
    Indexed by (subject, trial), both int: story ("eventnoise-1", ...), condition.

    Raises
    ------
    DataError : a column is missing, or one trial of a person has two stories or conditions.
    """
    wanted = ["subject", "trial", "story_id", "noise_condition"]
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        raise DataError(f"{where} has no column {missing[0]!r}; it needs {', '.join(wanted)}.")
    trials = pd.DataFrame(
        {name: numbers(table, name, where).astype(int) for name in wanted[:3]}
    ).assign(condition=table["noise_condition"].astype(str).to_numpy())
    trials = trials.drop_duplicates()
    twice = trials.duplicated(["subject", "trial"])
    if twice.any():
        row = trials[twice].iloc[0]
        raise DataError(
            f"{where}: subject {row['subject']} has two stories or conditions in trial "
            f"{row['trial']}; a trial must be one story in one condition."
        )
    story = "eventnoise-" + trials["story_id"].astype(str)
    return trials.assign(story=story).set_index(["subject", "trial"])[["story", "condition"]]


# --- one reader per kind of source ----------------------------------------------------------


def _eventnoise(story: str | None) -> pd.DataFrame:
    trials_file = f"{_EVENTNOISE}/auditory_data.csv"
    table, where = read_table(source_file(trials_file))
    trials = trial_stories(table, where)
    names = [name for name in sources() if name.startswith(f"{_EVENTNOISE}/recall_transcripts/")]
    known = sorted(set(trials["story"]))
    if story is not None and story not in known:
        raise InputError(f"story={story!r} is not in this set. Choose one of: {', '.join(known)}.")
    rows: list[dict[str, object]] = []
    for name, heard in zip(names, _heard(names, trials, where)):
        if story in (None, heard["story"]):
            rows.append({**heard, "text": read_text(source_file(name)), "source": name})
    return _finished(rows, "eventnoise")


def _heard(names: Iterable[str], trials: pd.DataFrame, where: str) -> list[dict[str, object]]:
    """Subject, story, condition and trial of each EventNoise file, by the trial in its name."""
    known = dict(zip(trials.index, zip(trials["story"], trials["condition"])))
    heard: list[dict[str, object]] = []
    for name in names:
        match = _EVENTNOISE_NAME.fullmatch(name.rsplit("/", 1)[-1])
        if match is None:
            raise DataError(
                f"{name} is not named like a transcript of this set (en<subject>Auditory_recall"
                "<trial>.txt), so its person and trial are unknown."
            )
        key = (int(match["subject"]), int(match["trial"]))
        if key not in known:
            raise DataError(
                f"{name}: {where} has no trial {key[1]} of subject {key[0]}, so the story that was "
                "recalled is unknown; leave the file out or complete the table."
            )
        story, condition = known[key]
        heard.append(
            {"subject": str(key[0]), "story": story, "condition": condition, "trial": key[1]}
        )
    return heard


def _from_folder(
    folder: Path, story: str | None, pattern: str, encoding: str | None
) -> pd.DataFrame:
    try:
        shape = re.compile(pattern)
    except re.error as error:
        raise InputError(f"pattern={pattern!r} is no regular expression: {error}.") from None
    if "subject" not in shape.groupindex:
        raise InputError(f"pattern={pattern!r} needs a group named subject: (?P<subject>...).")
    unknown = set(shape.groupindex) - set(_FIELDS)
    if unknown:
        raise InputError(
            f"pattern= has the unknown group {sorted(unknown)[0]!r}; use {', '.join(_FIELDS)}."
        )
    rows: list[dict[str, object]] = []
    for path in sorted(folder.glob("*.txt")):
        match = shape.fullmatch(path.name)
        if match is None:
            raise DataError(
                f"{path} does not match pattern={pattern!r}; move it away or change the pattern."
            )
        text = read_text(path, encoding=encoding)
        rows.append({"story": story, **match.groupdict(), "text": text, "source": str(path)})
    if not rows:
        raise DataError(f"{folder} holds no .txt file; put one transcript into each.")
    return _finished(rows, str(folder))


def _from_table(
    source: Path | pd.DataFrame,
    story: str | None,
    columns: dict[str, str] | None,
    encoding: str | None,
) -> pd.DataFrame:
    roles = (*_FIELDS, "text")
    unknown = set(columns or {}) - set(roles)
    if unknown:
        raise InputError(
            f"columns= has the unknown key {sorted(unknown)[0]!r}; use {', '.join(roles)}."
        )
    table, where = read_table(source, encoding=encoding)
    if len(table) == 0:
        raise DataError(f"{where} has no rows; it needs one for each transcript.")
    names = {role: (columns or {}).get(role, role) for role in roles}
    for role in roles:
        needed = role in ("subject", "text") or role in (columns or {})
        if names[role] not in table.columns and needed:
            seen = ", ".join(map(repr, map(str, table.columns)))
            raise DataError(
                f"{where} has no column {names[role]!r} for the {role}; it has {seen}. Name it "
                f'with columns={{"{role}": ...}}.'
            )
    rows: list[dict[str, object]] = []
    for number, row in enumerate(table.to_dict("records"), start=1):
        cells = {role: row[name] for role, name in names.items() if name in row}
        empty = {role for role, cell in cells.items() if pd.isna(cell) or not str(cell).strip()}
        for role in ("subject", "text", "story"):
            if role in empty:
                raise DataError(f"{where}, row {number}: the {role} is missing; fill it in.")
        given = {role: str(cell).strip() for role, cell in cells.items() if role not in empty}
        given["text"] = clean_text(given["text"], where=f"{where}, row {number}")
        rows.append({"story": story, **given, "source": f"{where}, row {number}"})
    return _finished(rows, where)


def _finished(rows: list[dict[str, object]], where: str) -> pd.DataFrame:
    """The table in its final form, checked."""
    frame = pd.DataFrame(rows, dtype=object).reindex(columns=list(COLUMNS)).astype(object)
    if frame["story"].isna().any():
        raise InputError(
            f"{where} does not say which story was recalled; name it: story='pieman', or as a "
            "column or a group of pattern=."
        )
    for name in ("subject", "story", "text", "source"):
        frame[name] = frame[name].astype(str)
    frame["condition"] = frame["condition"].where(frame["condition"].notna(), "").astype(str)
    trial = pd.to_numeric(frame["trial"], errors="coerce")
    wrong = (trial.isna() & frame["trial"].notna()) | (trial % 1 != 0) & trial.notna()
    if wrong.any():
        row = frame[wrong].iloc[0]
        raise DataError(f"{row['source']}: the trial {row['trial']!r} is not a whole number.")
    frame["trial"] = trial.astype("Int64")
    twice = frame.duplicated(["subject", "story"])
    if twice.any():
        row = frame[twice].iloc[0]
        raise DataError(
            f"{row['source']} is the second transcript of subject {row['subject']!r} for story "
            f"{row['story']!r}; join them, or give the subjects different names."
        )
    return frame
