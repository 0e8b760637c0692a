"""The library: named stories, bundled stories, names that are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import DataError, InputError, MissingDataError
from workbench.core.story import Story
from workbench.stories import named
from workbench.stories.bundled import bundled_names, load_bundled
from workbench.stories.download import human_data_folder, source_file, sources
from workbench.stories.library import list_stories, load_story, story_names
from workbench.stories.named import NAMED, published_times

# --- without the public data -------------------------------------------------------------------


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no story or file 'pie man'.*lift.*pieman.*eventnoise-3"):
        load_story("pie man")
    with pytest.raises(InputError, match=r"no story or file 'words.csv'"):
        load_story("words.csv")


def test_named_stories_take_no_reader_options() -> None:
    with pytest.raises(InputError, match="columns= is for files of your own; 'lift' is a named"):
        load_story("lift", columns={})
    story = load_story("lift")
    assert load_story(story) is story
    with pytest.raises(InputError, match="text= has no effect on a story already loaded"):
        load_story(story, text="x")


@pytest.mark.parametrize("name", bundled_names())
def test_bundled_stories(name: str) -> None:
    story = load_story(name)
    assert story.text == " ".join(story.text.split())
    assert story.words["word"].tolist() == story.text.split()
    assert not story.has_times
    assert [(a.kind, a.source) for a in story.annotations] == [("author", "scenes")]
    boundaries = story.boundaries()
    assert boundaries.method == "author"
    assert boundaries.n_events > 5
    assert story.title
    assert story.licence
    assert any("author's, not people's" in note for note in story.notes)
    with pytest.raises(MissingDataError, match="has no per-person presses"):
        story.consensus()


def test_three_stories_are_bundled_and_come_first() -> None:
    assert len(bundled_names()) == 3
    assert story_names()[:3] == bundled_names()
    assert story_names()[3:] == list(NAMED)


def test_bundled_stories_say_when_their_table_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stories").mkdir()
    (tmp_path / "stories" / "odd.txt").write_text("One\nnight  it rained.")
    (tmp_path / "stories" / "odd.scenes.tsv").write_text("first_word\tquote\n0\tOne\n2\tnight\n")
    monkeypatch.setattr("workbench.stories.bundled.data_folder", lambda: tmp_path)
    assert bundled_names() == ["odd"]
    with pytest.raises(DataError, match=r"odd\.scenes\.tsv, row 2: the text has 'it' at word 2"):
        load_bundled("odd")


def test_list_stories_shows_licence_and_citation() -> None:
    table = list_stories()
    assert table["name"].tolist() == story_names()
    assert (table["licence"] != "").all()
    assert (table["citation"] != "").all()
    assert table["where"].isin(["bundled", "data folder", "cache", "download"]).all()
    by_name = table.set_index("name")
    assert not by_name.loc["tunnel", "word_times"]
    assert "people" in by_name.loc["pieman", "annotations"]
    assert "people" not in by_name.loc["lift", "annotations"]


def test_published_lists_are_complete() -> None:
    sizes = {
        ("pieman", "raw"): (19, 27.118, 431.517),
        ("pieman", "filtered"): (18, 27.118, 423.366),
        ("monkey", "raw"): (30, 21.7, 1797.724),
        ("monkey", "filtered"): (22, 21.7, 1778.312),
        ("monkey", "filtered_p90"): (31, 21.7, 1797.724),
        ("tunnel", "filtered"): (20, 37.5, 1534.5),
    }
    for (story, which), (count, first, last) in sizes.items():
        times = published_times(story, which)
        assert (len(times), times[0], times[-1]) == (count, first, last)
        assert (np.diff(times) > 0).all()
    with pytest.raises(DataError, match="has no list 'best' for 'pieman'"):
        published_times("pieman", "best")


def test_every_file_of_a_story_has_a_source() -> None:
    assert {file for entry in NAMED.values() for file in entry.files} <= set(sources())
    assert all(len(source.sha256) == 64 for source in sources().values())
    assert all(len(source.commit) == 40 for source in sources().values())


def test_a_data_folder_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"WORKBENCH_DATA names .*nowhere, which is not a folder"):
        human_data_folder()


def test_a_changed_file_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ccn25_dimensions/story_pieman.txt"
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("something else")
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=r"story_pieman\.txt is not the version the workbench knows"
    ):
        source_file(name)


# --- with the public data ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def stories(data_folder: Path) -> dict[str, Story]:
    return {name: load_story(name) for name in NAMED}


@pytest.mark.parametrize(
    ("name", "n_words", "n_timed", "first", "last"),
    [
        ("pieman", 964, 959, 15.015, 450.0),
        ("monkey", 5136, 5106, 3.71, 1799.367),
        ("eventnoise-1", 1669, 1669, 1.38, 584.12),
        ("eventnoise-2", 1520, 1518, 0.98, 544.86),
        ("eventnoise-3", 1740, 1740, 0.98, 665.22),
    ],
)
def test_words_and_times(
    stories: dict[str, Story], name: str, n_words: int, n_timed: int, first: float, last: float
) -> None:
    story = stories[name]
    assert story.name == name
    assert story.n_words == n_words
    assert int(story.words["timed"].sum()) == n_timed
    assert story.has_times
    onset, offset = story.words["onset"].to_numpy(), story.words["offset"].to_numpy()
    assert (np.diff(onset) >= 0).all()
    assert (offset >= onset).all()
    assert (offset[:-1] <= onset[1:]).all()
    assert onset[0] == pytest.approx(first, abs=1e-4)
    assert offset[-1] <= last
    assert offset[-1] > 0.95 * last
    assert any(f"{n_timed} of {n_words} words" in note for note in story.notes)
    rebuilt = [story.text[a:b] for a, b in zip(*_spans(story.words), strict=True)]
    assert rebuilt == story.words["word"].tolist() == story.text.split()
    assert "\ufeff" not in story.text


def _spans(words: pd.DataFrame) -> tuple[list[int], list[int]]:
    return words["char_start"].tolist(), words["char_end"].tolist()


def test_measured_times_are_those_of_the_table(
    data_folder: Path, stories: dict[str, Story]
) -> None:
    story = stories["pieman"]
    table = pd.read_csv(data_folder / "michelmann2021_pieman" / "rep_results.csv")
    timed = story.words[story.words["timed"]]
    assert np.isin(timed["onset"], table["word_onsets"]).all()
    # Some words by hand: the eleventh, and the last before and the first after a pause.
    assert story.words["onset"].iloc[:4].tolist() == table["word_onsets"].iloc[:4].tolist()
    assert story.words["onset"].iloc[-1] == table["word_onsets"].iloc[-1]


def test_annotations(stories: dict[str, Story]) -> None:
    pieman = stories["pieman"]
    assert [a.source for a in pieman.annotations] == ["published", "presses"]
    assert pieman.annotation("people", "presses").duration == 450.0
    assert pieman.annotation("people", "presses").n_people == 205
    assert len(pieman.consensus()) == 18
    assert len(stories["monkey"].consensus()) == 31
    filtered = stories["monkey:filtered"]
    assert filtered.name == "monkey:filtered"
    assert len(filtered.consensus()) == 22
    tunnel = stories["tunnel"]
    assert tunnel.n_words == 3432
    assert len(tunnel.consensus()) == 20
    with pytest.raises(MissingDataError, match="story 'tunnel' has none"):
        tunnel.boundaries()
    # Nothing made by a model is offered as people's, or at all.
    for story in stories.values():
        assert {a.kind for a in story.annotations} == {"people"}


@pytest.mark.parametrize(
    ("name", "people", "duration"),
    [
        ("eventnoise-1", {"+2SNR": 15, "-4SNR": 10, "clear": 11}, 585.5),
        ("eventnoise-2", {"+2SNR": 10, "-4SNR": 13, "clear": 13}, 545.4),
        ("eventnoise-3", {"+2SNR": 11, "-4SNR": 13, "clear": 12}, 667.3),
    ],
)
def test_eventnoise_presses(
    data_folder: Path, stories: dict[str, Story], name: str, people: dict[str, int], duration: float
) -> None:
    story = stories[name]
    presses = story.presses
    assert presses.groupby("condition")["subject"].nunique().to_dict() == people
    table = pd.read_csv(data_folder / "panela2026_eventnoise" / "auditory_data.csv")
    own = table[table["story_id"] == int(name[-1])]
    np.testing.assert_allclose(presses["time"], own["times"])
    assert story.annotation().duration == duration
    assert presses["time"].max() < duration
    assert any("fewer than 30 people per condition" in note for note in story.notes)
    # People's boundaries come from clear speech unless asked otherwise.
    np.testing.assert_array_equal(story.consensus(), story.consensus(condition="clear"))
    assert not np.array_equal(story.consensus(), story.consensus(condition="-4SNR"))


def test_the_words_of_monkey_have_no_sentences(stories: dict[str, Story]) -> None:
    story = stories["monkey"]
    assert any("no sentences" in note for note in story.notes)
    with pytest.raises(MissingDataError, match="printed nearly without punctuation"):
        story.boundaries(rule="sentence")


def test_where_pie_man_boundaries_fall(stories: dict[str, Story]) -> None:
    """Second hearing: 17 of 18 published times lie in the pause before a sentence."""
    story = stories["pieman"]
    words = story.boundaries(rule="next").inner
    onset, offset = story.words["onset"].to_numpy(), story.words["offset"].to_numpy()
    in_pause = [offset[w - 1] <= t <= onset[w] for w, t in zip(words, story.consensus())]
    assert sum(in_pause) == 17


def test_durations_are_those_of_the_table(stories: dict[str, Story]) -> None:
    for number, duration in named.EVENTNOISE_DURATIONS.items():
        words = stories[f"eventnoise-{number}"].words
        assert 0 < duration - words["offset"].max() < 3
