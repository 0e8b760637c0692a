from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.recall.sequences import as_sequences
from workbench.core.errors import DataError, InputError
from workbench.stories.recall_readers import (
    load_recalls,
    recalls_from_lists,
    recalls_from_matrix,
)

BIDS = """\
mstime\ttrial_type\tsubject\texperiment\tsession\ttrial\titem_name\titem_num
0\tSESS_START\tS1\tltpFR2\t0\tn/a\tn/a\tn/a
5\tWORD\tS1\tltpFR2\t0\t0\tPRACTICE\t9
10\tWORD\tS1\tltpFR2\t0\t1\tNULL\t1
20\tWORD\tS1\tltpFR2\t0\t1\tPIE\t2
30\tWORD\tS1\tltpFR2\t0\t1\tNA\t3
35\tREC_START\tS1\tltpFR2\t0\t1\tn/a\tn/a
50\tREC_WORD\tS1\tltpFR2\t0\t1\tn/a\t-1
40\tREC_WORD\tS1\tltpFR2\t0\t1\tNA\t3
60\tREC_WORD_VV\tS1\tltpFR2\t0\t1\tVV\t-1
70\tREC_WORD\tS1\tltpFR2\t0\t1\tNULL\t1
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_bids_events_in_time_order(tmp_path: Path) -> None:
    file = write(tmp_path / "sub-S1_ses-0_task-ltpFR2_beh.tsv", BIDS)
    found = as_sequences(load_recalls(file))
    # Vocalisations are dropped, practice too; words like NULL and NA are words.
    assert found.outputs.tolist() == [[3, 0, 1]]
    assert found.lists.tolist() == ["0-1"]
    assert found.subject.tolist() == ["S1"]
    with_practice = as_sequences(load_recalls(tmp_path, practice=True))
    assert sorted(with_practice.length.tolist()) == [1, 3]


def test_bids_columns_may_be_missing(tmp_path: Path) -> None:
    table = pd.read_csv(
        write(tmp_path / "x.tsv", BIDS), sep="\t", keep_default_na=False, dtype=str
    ).drop(columns=["subject", "session", "experiment"])
    table = table.rename(columns={"mstime": "onset"})
    file = tmp_path / "sub-LTP9_ses-3_task-VFFR_beh.tsv"
    table.to_csv(file, sep="\t", index=False)
    found = load_recalls(file)
    assert set(found["subject"]) == {"LTP9"}
    # In the VFFR experiment lists count from 0: none is practice.
    assert set(found["list"]) == {"3-0", "3-1"}


def test_sessions_stand_apart(tmp_path: Path) -> None:
    write(tmp_path / "sub-S1_ses-0_task-a_beh.tsv", BIDS)
    write(tmp_path / "sub-S1_ses-1_task-a_beh.tsv", BIDS.replace("\tltpFR2\t0", "\tltpFR2\t1"))
    found = as_sequences(load_recalls(tmp_path))
    assert found.lists.tolist() == ["0-1", "1-1"]
    assert len(found.subjects) == 1


def test_tables_with_other_names(tmp_path: Path) -> None:
    raw = recalls_from_lists([["a", "b", "c"]], [["c", "b"]], subject="p")
    named = raw.rename(columns={"subject": "participant", "item": "word"})
    file = tmp_path / "recall.csv"
    named.to_csv(file, index=False)
    found = load_recalls(file, columns={"subject": "participant", "item": "word"})
    pd.testing.assert_frame_equal(lag_crp(found), lag_crp(raw))
    with pytest.raises(DataError, match=r"lacks the column\(s\) subject, item; it has"):
        load_recalls(file)
    with pytest.raises(DataError, match="no column 'who' for the subject"):
        load_recalls(file, columns={"subject": "who"})
    with pytest.raises(InputError, match="columns='name'"):
        load_recalls(file, columns={"name": "word"})


def test_items_in_order_with_a_list_everybody_studied(tmp_path: Path) -> None:
    file = write(tmp_path / "o.csv", "subject,list,item\n1,1,c\n1,1,a\n2,1,b\n2,1,zebra\n")
    found = as_sequences(load_recalls(file, study=["a", "b", "c"]))
    assert found.outputs.tolist() == [[3, 1], [2, 0]]
    assert found.subject.tolist() == [1, 2]
    assert found.n_intrusions.tolist() == [0, 1]
    with pytest.raises(DataError, match="say what was studied with study="):
        load_recalls(file)


def test_items_in_order_with_a_study_table(tmp_path: Path) -> None:
    file = write(tmp_path / "o.csv", "subject;list;item;position\n1;1;a;2\n1;1;b;1\n1;2;d;1\n")
    study = write(tmp_path / "s.csv", "list,item\n1,a\n1,b\n2,c\n2,d\n3,e\n")
    found = as_sequences(load_recalls(file, study=study))
    assert found.outputs[:2].tolist() == [[2, 1], [2, -1]]
    assert found.n_lists == 3  # nothing was recalled of the third
    with pytest.raises(DataError, match=r"lack the column\(s\) list"):
        load_recalls(file, study=pd.DataFrame({"item": ["a"]}))


def test_retold_events_take_the_same_way() -> None:
    """Events of a story, retold in order with one left out and one come back to."""
    table = recalls_from_lists(
        [[f"event {i}" for i in range(6)]], [["event 0", "event 1", "event 3", "event 1"]]
    )
    curve = lag_crp(table).set_index("lag")
    assert curve.loc[[1, 2], "actual"].tolist() == [1, 1]


def test_recall_matrix() -> None:
    found = as_sequences(recalls_from_matrix([[2, -1, 1, 0], [3, 3, 0, 0]], 3, subject=["p", "q"]))
    assert found.outputs.tolist() == [[2, 0, 1], [3, 0, -1]]
    assert found.n_intrusions.tolist() == [1, 0]
    assert found.n_repeats.tolist() == [0, 1]
    with pytest.raises(
        DataError, match=r"list 1, recall 2 .* is 7; positions of this list are 1 ... 3"
    ):
        recalls_from_matrix([[2, 7]], 3)
    with pytest.raises(DataError, match="2 studied and 1 recalled"):
        recalls_from_lists([["a"], ["b"]], [["a"]])
    with pytest.raises(DataError, match="1 subjects for 2 lists"):
        recalls_from_lists([["a"], ["b"]], [[], []], subject=["p"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "is no recall table: it needs the columns subject, list"),
        ("subject,trial_type\n1,study\n", r"lacks the column\(s\) list, position, item"),
        ("trial_type,trial\nWORD,1\n", "lacks trial_type, trial or item_name"),
        ("trial_type,trial,item_name\nREC_WORD,1,a\n", "has no WORD events"),
        ("trial_type,trial,item_name\nWORD,n/a,a\n", "a WORD event has no trial number"),
        ("subject,list,item,item\n1,1,a,b\n", r"column\(s\) item more than once"),
    ],
)
def test_unusable_files(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_recalls(write(tmp_path / "file.csv", content), study=None)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_recalls(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match=r"has no \*_beh.tsv file"):
        load_recalls(tmp_path)
    with pytest.raises(InputError, match="no recall file was given"):
        load_recalls([])
    with pytest.raises(InputError, match="format='xml'"):
        load_recalls(tmp_path, format="xml")


def test_peers(data_folder: Path) -> None:
    """Three sessions of three experiments, counted in the files themselves."""
    found = as_sequences(load_recalls(data_folder / "peers"))
    lists = pd.Series(found.length).groupby(found.subject).agg(["size", "min", "max"])
    assert lists.loc["LTP063"].tolist() == [16, 16, 16]
    assert lists.loc["LTP093"].tolist() == [24, 24, 24]
    assert lists.loc["LTP229"].tolist() == [576, 1, 1]
    recalled = pd.Series((found.outputs >= 0).sum(axis=1)).groupby(found.subject).sum()
    assert recalled.to_dict() == {"LTP063": 114, "LTP093": 232, "LTP229": 590}
    curve = lag_crp(found).set_index(["subject", "lag"])["prob"]
    assert curve["LTP093", 1] == 91 / 161
    assert curve["LTP063", -1] == 14 / 62
    assert curve["LTP229"].isna().all()  # one word a list


def test_peers_same_as_psifr(data_folder: Path) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from psifr import fr

        for name in ("sub-LTP063_ses-0_task-ltpFR_beh.tsv", "sub-LTP093_ses-0_task-ltpFR2_beh.tsv"):
            table = load_recalls(data_folder / "peers" / name)
            merged = fr.merge_free_recall(table)
            theirs = fr.lag_crp(merged)
            ours = lag_crp(table)
            columns = ["actual", "possible"]
            assert (ours[columns].to_numpy() == theirs[columns].to_numpy()).all()
