"""The stories that come with the workbench, with their author's scenes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from workbench.core.errors import DataError
from workbench.core.folders import data_folder
from workbench.core.story import Annotation, Story
from workbench.stories.alignment import untimed_words
from workbench.stories.tables import column_of, numbers, read_table
from workbench.stories.text import read_text

__all__ = ["bundled_names", "load_bundled", "read_scenes"]


def bundled_names() -> list[str]:
    """Names of the bundled stories: data/stories/NAME.txt with NAME.scenes.tsv."""
    folder = data_folder() / "stories"
    return sorted(
        path.stem for path in folder.glob("*.txt") if (folder / f"{path.stem}.scenes.tsv").is_file()
    )


def load_bundled(name: str) -> Story:
    """A bundled story: its words have no times, its boundaries are the author's."""
    folder = data_folder() / "stories"
    about_file = folder / f"{name}.json"
    about: dict[str, str] = {}
    if about_file.is_file():
        about = json.loads(about_file.read_text(encoding="utf-8"))
    text = read_text(folder / f"{name}.txt")
    citation = about.get("citation", "written for the workbench")
    return Story(
        name=name,
        text=text,
        words=untimed_words(text),
        annotations=(read_scenes(folder / f"{name}.scenes.tsv", text, citation=citation),),
        title=about.get("title", name),
        citation=citation,
        licence=about.get("licence", "Apache-2.0"),
        notes=("Its scene boundaries are the author's, not people's.",),
    )


def read_scenes(
    path: str | Path, text: str, *, encoding: str | None = None, citation: str = ""
) -> Annotation:
    """An author's scenes: one row per scene with the number and the words it starts with.

    Parameters
    ----------
    path : .tsv (cells as they are, without quoting) or .csv with the columns first_word (number of
        the scene's first word over text.split(), from 0) and quote (the first words, checked
        against the text).
    text : the story.
    encoding : see `text.decode`.
    citation : kept with the annotation.

    Raises
    ------
    DataError : the numbers do not increase or lie outside the text, or a quote is not there.
    """
    # Scenes often open with speech: in a .tsv the quotation mark belongs to the quote.
    quoted = Path(path).suffix.lower() != ".tsv"
    table, where = read_table(path, encoding=encoding, quoted=quoted)
    number_column = column_of(table, "first_word", None, where)
    quote_column = column_of(table, "quote", None, where, needed=False)
    if len(table) == 0:
        raise DataError(f"{where} has no rows; it needs one for each scene.")
    values = numbers(table, number_column, where)
    first = values.astype(np.int64)
    words = text.split()
    for row, (value, place) in enumerate(zip(values, first, strict=True), start=1):
        if value != place or not 0 <= place < len(words):
            raise DataError(
                f"{where}, row {row}: first_word is {value:g}; it must be a word number from 0 to "
                f"{len(words) - 1}."
            )
        if row > 1 and place <= first[row - 2]:
            raise DataError(
                f"{where}, row {row}: first_word {place} does not come after the row before "
                f"({first[row - 2]}); sort the scenes."
            )
        if quote_column is not None:
            quote = str(table[quote_column].iloc[row - 1]).split()
            found = words[place : place + len(quote)]
            if quote != found:
                raise DataError(
                    f"{where}, row {row}: the text has {' '.join(found)!r} at word {place}, not "
                    f"{' '.join(quote)!r}; correct first_word or the quote."
                )
    return Annotation(kind="author", source="scenes", words=first[first > 0], citation=citation)
