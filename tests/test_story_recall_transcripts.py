"""Reading transcripts of recall: trials to stories, folders, tables, bad input."""

from __future__ import annotations

import pandas as pd
import pytest
from fakes import fake_story

from workbench.core.errors import DataError, InputError
from workbench.stories.transcripts import _heard, load_transcripts, trial_stories


@pytest.fixture
def trials() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "subject": ["1", "1", "1", "2", "2"],
            "trial": ["1", "1", "2", "1", "2"],
            "story_id": ["3", "3", "1", "2", "3"],
            "noise_condition": ["clear", "clear", "+2SNR", "-4SNR", "clear"],
        }
    )


def test_the_number_in_a_file_name_is_the_trial(trials):
    names = [
        "x/en01Auditory_recall1.txt",
        "x/en01Auditory_recall2.txt",
        "x/en02Auditory_recall1.txt",
    ]
    heard = _heard(names, trial_stories(trials), "the table")
    assert heard == [
        {"subject": "1", "story": "eventnoise-3", "condition": "clear", "trial": 1},
        {"subject": "1", "story": "eventnoise-1", "condition": "+2SNR", "trial": 2},
        {"subject": "2", "story": "eventnoise-2", "condition": "-4SNR", "trial": 1},
    ]


def test_files_that_cannot_be_mapped(trials):
    known = trial_stories(trials)
    with pytest.raises(DataError, match=r"en03Auditory_recall1\.txt: .* no trial 1 of subject 3"):
        _heard(["en03Auditory_recall1.txt"], known, "auditory_data.csv")
    with pytest.raises(DataError, match=r"no trial 3 of subject 1.*leave the file out"):
        _heard(["en01Auditory_recall3.txt"], known, "auditory_data.csv")
    with pytest.raises(DataError, match="is not named like a transcript"):
        _heard(["recall1.txt"], known, "auditory_data.csv")


def test_bad_tables_of_trials(trials):
    with pytest.raises(DataError, match="no column 'trial'"):
        trial_stories(trials.drop(columns="trial"))
    trials.loc[1, "story_id"] = "2"
    with pytest.raises(DataError, match="subject 1 has two stories or conditions in trial 1"):
        trial_stories(trials, "auditory_data.csv")
    trials.loc[1, "story_id"] = "two"
    with pytest.raises(DataError, match="row 2: 'two' in column 'story_id' is not a number"):
        trial_stories(trials)


def test_a_folder_of_files(tmp_path):
    (tmp_path / "anna.txt").write_text("She left.\r\n\r\nThen it  rained.\n")
    (tmp_path / "ben.txt").write_bytes("caf\xe9".encode("cp1252"))
    (tmp_path / "notes.md").write_text("not a transcript")
    with pytest.raises(DataError, match="cp1252"):
        load_transcripts(tmp_path, story="tale")
    found = load_transcripts(tmp_path, story="tale", encoding="cp1252")
    assert found.columns.tolist() == ["subject", "story", "condition", "trial", "text", "source"]
    assert found["subject"].tolist() == ["anna", "ben"]
    assert found["text"].tolist() == ["She left. Then it rained.", "caf\xe9"]
    assert found["condition"].tolist() == ["", ""]
    assert found["trial"].isna().all()
    with pytest.raises(InputError, match="does not say which story"):
        load_transcripts(tmp_path, encoding="cp1252")


def test_a_pattern_reads_the_parts_of_a_name(tmp_path):
    for name in ("sub-01_pieman_t2.txt", "sub-02_tunnel_t1.txt"):
        (tmp_path / name).write_text("He left.")
    pattern = r"sub-(?P<subject>\d+)_(?P<story>\w+)_t(?P<trial>\d)\.txt"
    found = load_transcripts(tmp_path, pattern=pattern)
    assert found[["subject", "story"]].to_numpy().tolist() == [["01", "pieman"], ["02", "tunnel"]]
    assert found["trial"].tolist() == [2, 1]
    (tmp_path / "other.txt").write_text("x")
    with pytest.raises(DataError, match=r"other\.txt does not match"):
        load_transcripts(tmp_path, pattern=pattern)
    with pytest.raises(InputError, match="needs a group named subject"):
        load_transcripts(tmp_path, pattern=r".+\.txt")
    with pytest.raises(InputError, match="is no regular expression"):
        load_transcripts(tmp_path, pattern="(")
    with pytest.raises(InputError, match="unknown group 'who'"):
        load_transcripts(tmp_path, pattern=r"(?P<subject>.)(?P<who>.*)")


def test_a_table(tmp_path):
    path = tmp_path / "recall.csv"
    path.write_text('id,transcript,condition\n1,"He left,\nthen came.",loud\n2,She stayed.,\n')
    found = load_transcripts(path, story="tale", columns={"subject": "id", "text": "transcript"})
    assert found["text"].tolist() == ["He left, then came.", "She stayed."]
    assert found["condition"].tolist() == ["loud", ""]
    assert found["story"].tolist() == ["tale", "tale"]
    assert found["source"].tolist() == [f"{path}, row 1", f"{path}, row 2"]
    frame = pd.DataFrame(
        {"subject": [1, 1], "story": ["a", "b"], "text": ["x.", "y."], "trial": [1, 2]}
    )
    own = load_transcripts(frame)
    assert own["subject"].tolist() == ["1", "1"]
    assert own["trial"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        ({"text": ["x", " "]}, {}, DataError, "row 2: the text is missing"),
        ({"text": ["x", None]}, {}, DataError, "row 2: the text is missing"),
        ({"subject": ["", "b"]}, {}, DataError, "row 1: the subject is missing"),
        ({"story": ["t", None]}, {}, DataError, "row 2: the story is missing"),
        ({"subject": ["a", "a"]}, {}, DataError, "second transcript of subject 'a' for story 't'"),
        ({"trial": ["1", "one"]}, {}, DataError, "row 2: the trial 'one' is not a whole number"),
        ({"trial": [1.5, 2]}, {}, DataError, "is not a whole number"),
        ({}, {"columns": {"text": "said"}}, DataError, "no column 'said' for the text"),
        ({}, {"columns": {"txt": "text"}}, InputError, "unknown key 'txt'"),
    ],
)
def test_bad_tables(change, options, error, message):
    frame = pd.DataFrame({"subject": ["a", "b"], "story": ["t", "t"], "text": ["x", "y"]})
    with pytest.raises(error, match=message):
        load_transcripts(frame.assign(**change), **options)


def test_bad_sources(tmp_path):
    with pytest.raises(
        InputError, match="no such file or folder, and the named sets are eventnoise"
    ):
        load_transcripts("nowhere")
    with pytest.raises(DataError, match=r"holds no \.txt file"):
        load_transcripts(tmp_path, story="tale")
    with pytest.raises(InputError, match="belong to your own transcripts"):
        load_transcripts("eventnoise", encoding="utf-8")
    with pytest.raises(InputError, match="columns= belongs to a table"):
        load_transcripts(tmp_path, columns={"text": "x"})
    (tmp_path / "x.csv").write_text("subject,text\n")
    with pytest.raises(DataError, match="has no rows"):
        load_transcripts(tmp_path / "x.csv")
    with pytest.raises(InputError, match="pattern= belongs to a folder"):
        load_transcripts(tmp_path / "x.csv", pattern="x")
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"empty\.txt is empty"):
        load_transcripts(tmp_path, story="tale")


def test_eventnoise(data_folder):
    found = load_transcripts("eventnoise")
    assert len(found) == 102
    assert found["subject"].nunique() == 34
    counts = found.groupby(["story", "condition"]).size()
    assert counts["eventnoise-1"].to_dict() == {"+2SNR": 14, "-4SNR": 10, "clear": 10}
    assert counts.groupby("story").sum().tolist() == [34, 34, 34]
    # Subject 1 heard the stories in the order 1, 2, 3; the trials table decides, not the name.
    table = pd.read_csv(data_folder / "panela2026_eventnoise" / "auditory_data.csv")
    for row in found.itertuples():
        rows = table[(table["subject"] == int(row.subject)) & (table["trial"] == row.trial)]
        assert set("eventnoise-" + rows["story_id"].astype(str)) == {row.story}
        assert set(rows["noise_condition"]) == {row.condition}
    different = (found["trial"].astype(str) != found["story"].str[-1]).mean()
    assert different > 0.5
    one = load_transcripts("eventnoise", story="eventnoise-2")
    assert len(one) == 34
    with pytest.raises(InputError, match="Choose one of: eventnoise-1, eventnoise-2, eventnoise-3"):
        load_transcripts("eventnoise", story="pieman")


def test_published_scores_agree_on_which_story_was_heard_in_which_condition(data_folder):
    found = load_transcripts("eventnoise").set_index(["subject", "story"])["condition"]
    scores = pd.read_csv(data_folder / "panela2026_eventnoise" / "event_recall.csv")
    rows = scores[["subject", "story_id", "noise_condition"]].drop_duplicates()
    assert len(rows) == 102
    for row in rows.itertuples():
        assert found[(str(row.subject), f"eventnoise-{row.story_id}")] == row.noise_condition


def test_published_scores_and_events_are_a_models_and_fit_each_other(data_folder):
    import workbench
    from workbench.stories.eventnoise_scores import SCORES, published_events, published_scores

    scores = published_scores()
    raw = pd.read_csv(data_folder / "panela2026_eventnoise" / "event_recall.csv")
    assert scores[list(SCORES)].to_numpy().tolist() == raw[list(SCORES)].to_numpy().tolist()
    counts = scores.groupby("story")["event"].nunique()
    assert counts.tolist() == [21, 13, 9]
    story = workbench.load_story("eventnoise-3")
    events = published_events(story)
    assert (events.n_events, events.unit, events.method) == (9, "word", "model")
    printed = pd.read_csv(data_folder / "panela2026_eventnoise" / "normative_boundaries.csv")
    times = sorted(printed.loc[printed["story_id"] == 3, "time_start"])
    onsets = story.words["onset"].to_numpy()[events.inner]
    assert abs(onsets - times).max() < 0.5
    other = fake_story(5, name="tale")
    with pytest.raises(InputError, match="story 'tale' is not of EventNoise"):
        published_events(other)
