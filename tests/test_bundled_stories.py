"""The bundled stories: texts, the author's scene boundaries and their descriptions agree."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "data" / "stories"
NAMES = ("lift", "reservoir", "tortoise")
CHANGES = {"time", "place", "people", "goal", "activity"}
MARKUP = re.compile(
    r"^\s*(#|\*\s*\*|\* *$|---|===|~|chapter\b|scene\b|[ivx]+\.?$|\d+\.?$)", re.I | re.M
)


def read_text(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_bytes().decode("ascii")


def read_scenes(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.scenes.tsv").open(encoding="ascii", newline="") as table:
        return list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))


def scene_lengths(name: str) -> np.ndarray:
    starts = [int(row["first_word"]) for row in read_scenes(name)]
    return np.diff([*starts, len(read_text(name).split())])


def test_every_story_has_its_three_files_and_there_are_no_others() -> None:
    found = {path.name for path in FOLDER.iterdir()}
    expected = {f"{n}.{ending}" for n in NAMES for ending in ("txt", "scenes.tsv", "json")}
    assert found == expected | {"README.md"}


@pytest.mark.parametrize("name", NAMES)
def test_text_is_plain_and_within_bounds(name: str) -> None:
    text = read_text(name)  # raises on a character outside ASCII
    assert 1100 <= len(text.split()) <= 1900
    assert max(map(len, text.splitlines())) <= 100
    assert "\r" not in text
    assert "\t" not in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert MARKUP.search(text) is None, "a heading or a scene mark would give the scenes away"
    # Every quotation that is opened in a paragraph is closed in it.
    assert all(paragraph.count('"') % 2 == 0 for paragraph in text.split("\n\n"))
    # No token without a letter or digit: each would count as a word.
    assert all(re.search(r"[A-Za-z0-9]", word) for word in text.split())


@pytest.mark.parametrize("name", NAMES)
def test_scenes_point_at_their_quotes(name: str) -> None:
    words = read_text(name).split()
    rows = read_scenes(name)
    starts = [int(row["first_word"]) for row in rows]
    assert list(rows[0]) == ["scene", "first_word", "quote", "change"]
    assert 8 <= len(rows) <= 16
    assert [int(row["scene"]) for row in rows] == list(range(1, len(rows) + 1))
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    for row, start in zip(rows, starts, strict=True):
        assert row["quote"].split(" ") == words[start : start + 5]


@pytest.mark.parametrize("name", NAMES)
def test_scenes_begin_where_a_sentence_begins(name: str) -> None:
    words = read_text(name).split()
    for row in read_scenes(name)[1:]:
        start = int(row["first_word"])
        assert re.search(r'[.?!]"?$', words[start - 1]), row["quote"]
        assert re.match(r'"?[A-Z]', words[start]), row["quote"]


@pytest.mark.parametrize("name", NAMES)
def test_scene_lengths_vary(name: str) -> None:
    lengths = scene_lengths(name)
    assert lengths.min() >= 40
    assert lengths.max() <= 250
    # Evenly spaced scenes would let a segmentation of fixed length do well by chance.
    assert lengths.std() / lengths.mean() > 0.3


@pytest.mark.parametrize("name", NAMES)
def test_changes_are_named(name: str) -> None:
    first, *others = [row["change"].split(",") for row in read_scenes(name)]
    assert first == ["start"]
    for change in others:
        assert change
        assert set(change) <= CHANGES
        assert len(set(change)) == len(change)
    assert {word for change in others for word in change} == CHANGES


@pytest.mark.parametrize("name", NAMES)
def test_description_has_its_fields(name: str) -> None:
    about = json.loads((FOLDER / f"{name}.json").read_text(encoding="ascii"))
    assert set(about) == {"title", "summary", "licence", "citation", "annotation_note"}
    assert all(isinstance(value, str) and value.strip() for value in about.values())
    assert about["licence"] == "CC0-1.0"
    assert about["citation"] == "Written for workbench"
    assert "by the author of the text, not by readers" in about["annotation_note"]


@pytest.mark.parametrize("name", NAMES)
def test_readme_states_the_counts(name: str) -> None:
    lengths = scene_lengths(name)
    row = next(
        line
        for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| `{name}` |")
    )
    assert [cell.strip() for cell in row.strip("|").split("|")][-3:] == [
        str(lengths.sum()),
        str(len(lengths)),
        f"{lengths.min()} to {lengths.max()}",
    ]
