"""Reading texts, word tables, presses and scenes; what is wrong with a file is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from workbench.core.errors import DataError, InputError
from workbench.stories.bundled import read_scenes
from workbench.stories.library import load_story
from workbench.stories.presses import (
    presses_from_matrix,
    presses_from_times,
    read_mat,
    read_presses,
)
from workbench.stories.tables import read_word_table
from workbench.stories.text import clean_text, decode, read_text

TEXT = "Caf\u00e9 \u201cna\u00efve\u201d"


# --- text --------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_marks_are_recognised_and_dropped(encoding: str) -> None:
    assert decode(TEXT.encode(encoding)) == TEXT


def test_utf_16_of_either_order_is_recognised() -> None:
    assert decode(b"\xff\xfe" + TEXT.encode("utf-16-le")) == TEXT
    assert decode(b"\xfe\xff" + TEXT.encode("utf-16-be")) == TEXT


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [
        ("cp1252", TEXT.encode("cp1252")),
        ("utf-16-le", TEXT.encode("utf-16-le")),
        ("utf-16", TEXT.encode("utf-16")),
        ("utf-8", TEXT.encode("utf-8-sig")),
        ("latin-1", "Caf\u00e9".encode("latin-1")),
    ],
)
def test_a_named_encoding_is_used(encoding: str, raw: bytes) -> None:
    assert decode(raw, encoding=encoding) == TEXT[: len(decode(raw, encoding=encoding))]
    assert "\ufeff" not in decode(raw, encoding=encoding)


def test_other_encodings_are_an_error_with_the_byte_and_the_mend(tmp_path: Path) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes(b"Caf\xe9 au lait")
    with pytest.raises(DataError, match=r"old\.txt: byte 3 \(0xe9\) is not UTF-8 .*'cp1252'"):
        read_text(path)
    assert read_text(path, encoding="cp1252") == "Caf\u00e9 au lait"
    # With a mark in front the byte is still counted from the start of the file.
    with pytest.raises(DataError, match=r"byte 6 \(0xe9\)"):
        decode(b"\xef\xbb\xbfCaf\xe9 au")


def test_utf_16_without_a_mark_is_an_error() -> None:
    with pytest.raises(DataError, match=r"zero byte.*utf-16-le"):
        decode("plain".encode("utf-16-le"))


def test_an_unknown_encoding_is_an_error() -> None:
    with pytest.raises(InputError, match="encoding='utf-9' is not known"):
        decode(b"x", encoding="utf-9")


def test_whitespace() -> None:
    raw = "  One line\r\nand a\u00a0second.\n\nA  paragraph. \n"
    assert clean_text(raw) == "One line and a second. A paragraph."
    assert clean_text(raw, "keep") == "One line\nand a\u00a0second.\n\nA  paragraph."
    with pytest.raises(InputError, match="whitespace='squash' is not known"):
        clean_text(raw, "squash")


@pytest.mark.parametrize("content", [b"", b" \n\t ", b"\xef\xbb\xbf\n"])
def test_an_empty_text_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nothing.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"nothing\.txt is empty"):
        load_story(path)


# --- word tables -------------------------------------------------------------------------------


def write(folder: Path, content: str, name: str = "words.csv") -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


GOOD = "word,onset,offset\nOnce,0.5,0.8\nupon,0.8,1.0\nnull,1.2,1.5\nnan,1.5,1.9\n"


def test_a_word_table(tmp_path: Path) -> None:
    table, notes = read_word_table(write(tmp_path, GOOD))
    # "null" and "nan" are words here, not missing values.
    assert table["word"].tolist() == ["Once", "upon", "null", "nan"]
    assert table["onset"].tolist() == [0.5, 0.8, 1.2, 1.5]
    assert table["offset"].tolist() == [0.8, 1.0, 1.5, 1.9]
    assert notes == ()


@pytest.mark.parametrize(
    ("header", "name", "separator"),
    [
        ("word,start,end", "a.csv", ","),
        ("Word;time_start;time_end", "a.csv", ";"),
        ("word\tword_onsets\tword_offsets", "a.tsv", "\t"),
        ("text\tstart_time\tend_time", "a.csv", "\t"),
    ],
)
def test_common_names_and_separators(
    tmp_path: Path, header: str, name: str, separator: str
) -> None:
    body = GOOD.split("\n", 1)[1].replace(",", separator)
    table, _ = read_word_table(write(tmp_path, f"{header}\n{body}", name))
    assert table["offset"].tolist() == [0.8, 1.0, 1.5, 1.9]


def test_named_columns_and_milliseconds(tmp_path: Path) -> None:
    path = write(tmp_path, "w,t0,t1,onset\nOne,500,800,9\ntwo,800,900,9\n")
    table, _ = read_word_table(
        path, columns={"word": "w", "onset": "t0", "offset": "t1"}, time_unit="ms"
    )
    assert table["onset"].tolist() == [0.5, 0.8]
    assert table["offset"].tolist() == [0.8, 0.9]


def test_durations_and_missing_offsets(tmp_path: Path) -> None:
    table, notes = read_word_table(write(tmp_path, "word,onset,duration\na,1,0.5\nb,2,0.25\n"))
    assert table["offset"].tolist() == [1.5, 2.25]
    assert notes == ()
    table, notes = read_word_table(write(tmp_path, "word,onset\na,1\nb,2\n"))
    assert table["offset"].tolist() == [2.0, 2.0]
    assert notes == ("The table has no offsets: a word is taken to last until the next onset.",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"words\.csv is empty"),
        ("word,onset,offset\n", r"words\.csv has a header but no rows"),
        (
            "token,onset\na,1\n",
            r"has no column 'word' for the word; it has 'token', 'onset'\. Name",
        ),
        ("word,time\na,1\n", r"has no column 'onset' for the onset; it has 'word', 'time'"),
        (
            "word,onset,offset\na,1,2\nb,,3\n",
            r"words\.csv, row 2: no value in column 'onset'; fill",
        ),
        (
            "word,onset,offset\na,nan,2\n",
            r"row 1: no value in column 'onset'.*missing='interpolate'",
        ),
        ("word,onset,offset\na,1,2\n,2,3\n", r"row 2: the word is missing"),
        ("word,onset,offset\na,1 s,2\n", r"row 1: '1 s' in column 'onset' is not a number"),
        ("word,onset,offset\na,inf,2\n", r"row 1: 'inf' in column 'onset' is infinite"),
        ("word,onset,offset\na,1,2\nb,2\n", r"row 2: 2 cells under a header of 3"),
        ("word,onset,offset\na,2,1\n", r"row 1: the word ends at 1 s before it starts at 2 s"),
        ("word,onset,offset\na,3,3\nb,2,2\nc,1,1\n", r"row 2: time goes backwards, from 3 s to 2"),
    ],
)
def test_bad_tables_are_errors_by_row(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_story(write(tmp_path, content))


def test_missing_times_are_interpolated_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path, "word,onset,offset\na,1,2\nb,NA,\nc,4,5\n")
    story = load_story(path, missing="interpolate")
    assert story.words["onset"].tolist() == [1.0, 2.0, 4.0]
    assert story.words["offset"].tolist() == [2.0, 4.0, 5.0]
    assert story.words["timed"].tolist() == [True, False, True]
    assert "1 of 3 words had no time in the table." in story.notes
    assert any("2 of 3 words (66.7%)" in note for note in story.notes)


def test_units_a_thousand_times_off_are_an_error(tmp_path: Path) -> None:
    rows = "".join(f"w{i},{i * 400},{i * 400 + 300}\n" for i in range(20))
    path = write(tmp_path, f"word,onset,offset\n{rows}")
    with pytest.raises(DataError, match="look like milliseconds: pass time_unit='ms'"):
        load_story(path)
    assert load_story(path, time_unit="ms").words["onset"].iloc[-1] == 7.6
    rows = "".join(f"w{i},{i * 0.4},{i * 0.4 + 0.3}\n" for i in range(20))
    with pytest.raises(DataError, match="look like seconds: pass time_unit='s'"):
        load_story(write(tmp_path, f"word,onset,offset\n{rows}"), time_unit="ms")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"words": "w"}}, "columns= has the unknown key 'words'"),
        ({"columns": {"onset": "t9"}}, "has no column 't9' for the onset"),
        ({"time_unit": "minutes"}, "time_unit='minutes' is not known"),
        ({"missing": "drop"}, "missing='drop' is not known"),
        ({"text": "nowhere.txt"}, "text='nowhere.txt': there is no such file"),
        ({"text": "  "}, "text= is empty"),
        ({"consensus": []}, "consensus= must be a list of finite times"),
        ({"consensus": [1.0, float("nan")]}, "consensus= must be a list of finite times"),
    ],
)
def test_bad_options_are_errors(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises((InputError, DataError), match=message):
        load_story(write(tmp_path, GOOD), **options)


# --- own stories, whole ------------------------------------------------------------------------


def test_a_story_of_ones_own(tmp_path: Path) -> None:
    words = write(tmp_path, "word,start,end\nit,1,2\nrained,2,3\nthen,5,6\nit,6,7\nstopped,7,8\n")
    clean = write(tmp_path, "It rained.\nThen it stopped!", "clean.txt")
    presses = write(tmp_path, "id,when\np1,4\np2,4.2\np2,7.5\n", "presses.csv")
    story = load_story(
        words,
        text=clean,
        presses=presses,
        press_columns={"subject": "id", "time": "when"},
        consensus=[4.1],
        duration=9.0,
        name="rain",
        citation="me",
    )
    assert story.text == "It rained. Then it stopped!"
    assert story.share_timed == 1.0
    assert story.has_times
    assert [a.source for a in story.annotations] == ["published", "presses"]
    assert story.annotations[1].duration == 9.0
    assert story.annotations[1].n_people == 2
    np.testing.assert_allclose(story.consensus(), [4.1])
    assert story.boundaries().starts.tolist() == [0, 2]
    assert story.presses["subject"].tolist() == ["p1", "p2", "p2"]
    # Text given as it is, instead of as a file.
    assert load_story(words, text="It rained. Then it stopped!").text == story.text


def test_a_text_without_times(tmp_path: Path) -> None:
    text = write(tmp_path, "One night. Another day came.", "own.txt")
    scenes = write(tmp_path, "first_word\tquote\n0\tOne night.\n2\tAnother day\n", "own.scenes.tsv")
    story = load_story(text, scenes=scenes)
    assert not story.has_times
    assert story.share_timed == 0.0
    assert story.annotation_kind == "author"
    boundaries = story.boundaries()
    assert boundaries.starts.tolist() == [0, 2]
    assert boundaries.method == "author"
    with pytest.raises(InputError, match="columns= is for tables of words"):
        load_story(text, columns={"word": "w"})


def test_other_kinds_of_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ending in '\.docx' are not read"):
        load_story(write(tmp_path, "x", "story.docx"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0\tOne\n9\tx\n", r"row 2: first_word is 9; it must be a word number from 0 to 4"),
        ("0\tOne\n1.5\tx\n", r"row 2: first_word is 1\.5"),
        ("0\tOne\n3\tday\n2\tAnother\n", r"row 3: first_word 2 does not come after the row before"),
        ("0\tOne\n2\tAn other\n", r"row 2: the text has 'Another day' at word 2, not 'An other'"),
        ("", r"has no rows"),
    ],
)
def test_bad_scenes_are_errors_by_row(tmp_path: Path, rows: str, message: str) -> None:
    path = write(tmp_path, f"first_word\tquote\n{rows}", "s.tsv")
    with pytest.raises(DataError, match=message):
        read_scenes(path, "One night. Another day came.")


# --- presses -----------------------------------------------------------------------------------


def test_a_run_of_ones_is_a_press_at_its_middle() -> None:
    matrix = np.zeros((2, 5000), dtype=np.uint8)
    matrix[0, 1000:1999] = 1
    matrix[0, 0:400] = 1
    matrix[1, 3000:4500] = 1
    presses = presses_from_matrix(matrix)
    assert presses["subject"].tolist() == ["0", "0", "1"]
    np.testing.assert_allclose(presses["start"], [0.0, 1.0, 3.0])
    np.testing.assert_allclose(presses["end"], [0.4, 1.999, 4.5])
    np.testing.assert_allclose(presses["time"], [0.2, 1.4995, 3.75])
    assert presses["merged"].tolist() == [False, False, True]


def test_presses_from_times_are_widened_around_them() -> None:
    presses = presses_from_times([3, 4], [10.0, 20.0], condition=["a", "b"])
    np.testing.assert_allclose(presses["end"] - presses["start"], 0.999)
    np.testing.assert_allclose((presses["end"] + presses["start"]) / 2, [10.0, 20.0])
    assert presses["condition"].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros(5), "people × bins array"),
        (np.array([[0.0, 0.25]]), "0 or 1 in every bin"),
        (np.array([[0.0, np.nan]]), "0 or 1 in every bin"),
    ],
)
def test_bad_time_courses_are_errors(matrix: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        presses_from_matrix(matrix)


def test_mat_files(tmp_path: Path) -> None:
    matrix = np.zeros((2, 3000), dtype=np.uint8)
    matrix[1, 500:1499] = 1
    path = tmp_path / "presses.mat"
    savemat(path, {"alldata": matrix})
    presses = read_presses(path)
    pd.testing.assert_frame_equal(presses, presses_from_matrix(matrix))
    with pytest.raises(DataError, match="name one of its variables: alldata"):
        read_mat(path, "other")
    text = tmp_path / "no.mat"
    text.write_text("not MATLAB")
    with pytest.raises(DataError, match="is not a MATLAB file of version 7"):
        read_mat(text)


def test_press_tables(tmp_path: Path) -> None:
    path = write(tmp_path, "participant,times,noise_condition\n1,4500,clear\n2,5000,noisy\n")
    presses = read_presses(path, time_unit="ms")
    assert presses["time"].tolist() == [4.5, 5.0]
    assert presses["condition"].tolist() == ["clear", "noisy"]
    with pytest.raises(DataError, match=r"row 1: no value in column 'time'; fill it in"):
        read_presses(write(tmp_path, "subject,time\n1,\n"))
    with pytest.raises(DataError, match="has no rows"):
        read_presses(write(tmp_path, "subject,time\n"))
    with pytest.raises(DataError, match="has no column 'time' for the time"):
        read_presses(write(tmp_path, "subject,rt\n1,4\n"))
    story = write(tmp_path, GOOD)
    late = write(tmp_path, "subject,time\n1,1\n1,99\n", "late.csv")
    with pytest.raises(DataError, match="presses, row 2: 99 s is after the end of the recording"):
        load_story(story, presses=late, duration=10.0)
