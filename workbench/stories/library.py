"""load_story: a story by name, or from one's own text or word table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from workbench.core.errors import DataError, InputError
from workbench.core.story import Annotation, Story
from workbench.stories.alignment import timed_words, untimed_words
from workbench.stories.bundled import bundled_names, load_bundled, read_scenes
from workbench.stories.download import available
from workbench.stories.named import NAMED
from workbench.stories.presses import read_presses
from workbench.stories.tables import TIME_UNITS, read_word_table
from workbench.stories.text import clean_text, read_text

__all__ = ["list_stories", "load_story", "story_from_file", "story_names"]

TABLES = (".csv", ".tsv")
TEXTS = (".txt", ".md", "")


def story_names() -> list[str]:
    """Names that `load_story` knows: the bundled stories first."""
    return [*bundled_names(), *NAMED]


def load_story(name_or_path: str | Path | Story, **options: Any) -> Story:
    """A story with its words, times and annotations.

    Parameters
    ----------
    name_or_path : one of `story_names()`; or the path of a text (.txt) or of a table of timed words
        (.csv, .tsv). A `Story` is returned as it is.
    options : for a path; a named story takes none. All of them: `help` of
        `workbench.stories.library.story_from_file`. The ones most used:

        - name: what results call the story (default: the file's name);
        - text: for a table of words, the punctuated text that the model is to read;
        - presses: people's presses, a table with the columns subject and time, or
          consensus: a list of people's boundary times, or scenes: the author's;
        - columns, press_columns: the file's own names of the columns word, onset and offset, and
          of subject and time, e.g. {"onset": "t0"};
        - time_unit: of all times, "s" or "ms";
        - missing: what becomes of words without times.

    Raises
    ------
    InputError : no such name or file; the message lists the names.
    DataError : the file cannot be used; the message names file, row and mend.
    DownloadError : a public story's file could not be fetched.

    Examples
    --------
    >>> load_story("words.csv", columns={"onset": "t0", "offset": "t1"}, time_unit="ms",
    ...            text="clean.txt", presses="presses.csv")  # doctest: +SKIP
    """
    if isinstance(name_or_path, Story):
        if options:
            raise InputError(f"{next(iter(options))}= has no effect on a story already loaded.")
        return name_or_path
    if isinstance(name_or_path, str):
        known = name_or_path in NAMED
        if known or name_or_path in bundled_names():
            if options:
                raise InputError(
                    f"{next(iter(options))}= is for files of your own; {name_or_path!r} is a named "
                    "story."
                )
            return NAMED[name_or_path].load() if known else load_bundled(name_or_path)
    if not isinstance(name_or_path, (str, Path)):
        raise InputError(
            f"{name_or_path!r} is no story: give its name, the path of a file, or a Story."
        )
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return story_from_file(path, **options)
    raise InputError(
        f"there is no story or file {str(name_or_path)!r}. Stories: {', '.join(story_names())}; or "
        "give the path of a .txt, .csv or .tsv file."
    )


def story_from_file(
    path: str | Path,
    *,
    name: str | None = None,
    text: str | Path | None = None,
    columns: dict[str, str] | None = None,
    time_unit: str = "s",
    missing: str = "error",
    encoding: str | None = None,
    separator: str | None = None,
    whitespace: str = "collapse",
    presses: str | Path | pd.DataFrame | None = None,
    press_columns: dict[str, str] | None = None,
    duration: float | None = None,
    consensus: ArrayLike | None = None,
    scenes: str | Path | None = None,
    title: str = "",
    citation: str = "",
    licence: str = "",
) -> Story:
    """A story from a text or a table of timed words, with what was annotated.

    Parameters
    ----------
    path : text (.txt) or table of words (.csv, .tsv).
    name : short name; None: the file's.
    text : for a table: the clean text the model is to read, as a path ending in .txt or as the
        text itself; None: the table's words, joined by spaces.
    columns, time_unit, missing, separator : of the word table, see `tables.read_word_table`.
    encoding : of `path` and `text`, e.g. "cp1252"; None: by byte-order mark, else UTF-8.
    whitespace : "collapse" or "keep", see `text.clean_text`.
    presses : people's presses (.csv or .tsv with subject and time, or .mat of time courses, or a
        DataFrame), in the same unit of time; press_columns names other columns.
    duration : length of the recording in seconds; None: the end of the last word or press.
    consensus : people's boundaries in the unit of time, a list.
    scenes : the author's scenes, see `bundled.read_scenes`.
    title, citation, licence : shown with the story.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in TABLES:
        table, assumed = read_word_table(
            path,
            columns=columns,
            time_unit=time_unit,
            missing=missing,
            encoding=encoding,
            separator=separator,
        )
        story_text = _clean(text, encoding, whitespace) if text is not None else None
        if story_text is None:
            story_text = " ".join(table["word"])
        words, notes = timed_words(story_text, table, where=str(path))
        notes = (*assumed, *notes)
    elif suffix in TEXTS:
        for option, value in (("text", text), ("columns", columns), ("separator", separator)):
            if value is not None:
                raise InputError(f"{option}= is for tables of words; {path.name} is a text.")
        story_text = read_text(path, encoding=encoding, whitespace=whitespace)
        words, notes = untimed_words(story_text), ()
    else:
        raise InputError(
            f"{path.name}: files ending in {suffix!r} are not read; use a text (.txt) or a table "
            "of words (.csv, .tsv)."
        )
    annotations = []
    if consensus is not None:
        annotations.append(_listed(consensus, time_unit, citation))
    if presses is not None:
        annotations.append(
            _pressed(presses, press_columns, time_unit, duration, words["offset"], citation)
        )
    if scenes is not None:
        annotations.append(read_scenes(scenes, story_text, citation=citation))
    return Story(
        name=name or path.stem,
        text=story_text,
        words=words,
        annotations=tuple(annotations),
        title=title or path.stem,
        citation=citation,
        licence=licence,
        notes=notes,
    )


def list_stories() -> pd.DataFrame:
    """All named stories.

    Returns
    -------
    One row per story: name, title, annotations (kind/source), word_times (bool), where ("bundled",
    "data folder", "cache" or "download"), licence, citation.
    """
    rows = []
    for name in bundled_names():
        story = load_bundled(name)
        rows.append(
            {
                "name": name,
                "title": story.title,
                "annotations": "author/scenes",
                "word_times": False,
                "where": "bundled",
                "licence": story.licence,
                "citation": story.citation,
            }
        )
    for entry in NAMED.values():
        places = [available(file) for file in entry.files]
        rows.append(
            {
                "name": entry.name,
                "title": entry.title,
                "annotations": entry.annotations,
                "word_times": entry.word_times,
                "where": "download" if "download" in places else places[0],
                "licence": entry.licence,
                "citation": entry.citation,
            }
        )
    return pd.DataFrame(rows)


def _clean(text: str | Path, encoding: str | None, whitespace: str) -> str:
    if isinstance(text, Path) or text.lower().endswith(".txt"):
        if not Path(text).is_file():
            raise InputError(f"text={str(text)!r}: there is no such file.")
        return read_text(text, encoding=encoding, whitespace=whitespace)
    return clean_text(text, whitespace, where="text=")


def _listed(consensus: ArrayLike | Sequence[float], unit: str, citation: str) -> Annotation:
    times = np.array(consensus, dtype=np.float64).ravel() / TIME_UNITS[unit]
    if len(times) == 0 or not np.isfinite(times).all():
        raise DataError("consensus= must be a list of finite times, at least one.")
    return Annotation(kind="people", source="published", times=np.unique(times), citation=citation)


def _pressed(
    presses: str | Path | pd.DataFrame,
    columns: dict[str, str] | None,
    unit: str,
    duration: float | None,
    offsets: pd.Series,
    citation: str,
) -> Annotation:
    table = read_presses(presses, columns=columns, time_unit=unit)
    end = float(np.nanmax([offsets.max(), table["end"].max()]))
    if duration is not None and (table["time"] > duration).any():
        row = int(np.flatnonzero(table["time"] > duration)[0])
        raise DataError(
            f"presses, row {row + 1}: {table['time'].iloc[row]:g} s is after the end of the "
            f"recording ({duration:g} s); check duration= and time_unit=."
        )
    return Annotation(
        kind="people",
        source="presses",
        presses=table,
        duration=end if duration is None else float(duration),
        n_people=table["subject"].nunique(),
        citation=citation,
    )
