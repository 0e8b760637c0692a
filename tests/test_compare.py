"""The comparison, from stories to table and files, on a tiny random model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fakes import fake_story
from tiny_lm import tiny_lm

import workbench as wb
from workbench.analysis.reference import reference
from workbench.analysis.wasserstein import wasserstein
from workbench.comparison.report import events_table, report
from workbench.comparison.table import COLUMNS, HEADLINE, as_table, head_levels
from workbench.core.errors import DataError, InputError, MissingDataError

WORDS = (
    "It rained on the town . She stayed in bed . He left at noon . "
    "The town did not mind . Nobody said a word . The bus came late . "
) * 5


@pytest.fixture(scope="module")
def lm():
    return tiny_lm()


def presses(times: list[list[float]]) -> pd.DataFrame:
    rows = [
        {"subject": s, "time": t, "start": t - 0.5, "end": t + 0.499, "merged": False}
        for s, listed in enumerate(times)
        for t in listed
    ]
    return pd.DataFrame(rows).assign(condition="")


@pytest.fixture(scope="module")
def people_story():
    words = WORDS.split()
    rng = np.random.default_rng(1)
    marks = [15.0, 33.0, 51.0, 69.0]
    times = [sorted(m + rng.normal(0, 0.3) for m in marks) for _ in range(6)]
    return fake_story(
        words, name="timed", seconds_per_word=0.5, people=marks, presses=presses(times)
    )


@pytest.fixture(scope="module")
def author_story():
    return fake_story(WORDS.split(), name="written", author=[30, 70, 120])


@pytest.fixture(scope="module")
def result(lm, people_story, author_story):
    return wb.compare(
        stories=[people_story, author_story],
        methods=["S", "SM", "SC", "F", "FM", "R"],
        model=lm,
        null=["lengths", "uniform"],
        draws=40,
        bootstrap=30,
        gamma=0.5,
        cache=False,
    )


@pytest.fixture(scope="module")
def with_people(lm, people_story):
    return wb.compare(
        people_story, ["S", "F", "H", "HM"], lm, draws=40, bootstrap=30, gamma=0.5, cache=False
    )


def test_table_has_exactly_the_named_columns_and_every_level(result):
    table = result.table
    assert tuple(table.columns) == COLUMNS
    graph = table[(table["measure"] == "modularity") & (table["variant"] == "newman")]
    one = graph[(graph["story"] == "timed") & (graph["method"] == "S")]
    one = one[one["null"] == "lengths"]
    # 3 layers × 2 heads, 3 layer means, the mean, and the summed graph
    assert len(one) == 6 + 3 + 1 + 1
    assert one["layer"].isna().sum() == 1
    assert ((one["layer"] == -1) & (one["head"] == -1)).sum() == 1
    assert set(table["match"]) == {"people"}
    assert set(table["provenance"]) == {"random weights"}
    assert set(table["annotation"]) == {"people", "author"}


def test_values_equal_the_graphs_own_measures(lm, people_story, result):
    trace = wb.record(people_story, lm)
    count = reference(people_story).count
    events = wb.segment(trace, "SM", gamma=0.5, n_boundaries=count)
    graph = trace.key_graph(layer=1, head=1)
    rows = result.table[
        (result.table["story"] == "timed")
        & (result.table["method"] == "SM")
        & (result.table["null"] == "uniform")
        & (result.table["layer"] == 1)
        & (result.table["head"] == 1)
    ].set_index(["measure", "variant"])["value"]
    assert rows["modularity", "newman"] == pytest.approx(graph.modularity(events), rel=1e-9)
    assert rows["conductance", "standard:min"] == pytest.approx(graph.conductance(events), rel=1e-9)
    assert rows["intra_inter", "sums"] == pytest.approx(graph.intra_inter(events), rel=1e-9)


def test_layer_means_and_their_nulls_are_means_over_heads(result):
    table = result.table
    rows = table[
        (table["story"] == "timed")
        & (table["method"] == "S")
        & (table["null"] == "uniform")
        & (table["measure"] == "modularity")
        & (table["variant"] == "newman")
        & (table["layer"] == 2)
    ]
    heads, mean = rows[rows["head"].notna()], rows[rows["head"].isna()].iloc[0]
    for column in ("value", "null_mean", "difference", "fixed"):
        assert mean[column] == pytest.approx(heads[column].mean())
    assert mean["null_sd"] <= heads["null_sd"].mean() + 1e-12  # heads vary together, or less


def test_differences_and_scores_follow_from_the_columns(result):
    table = result.table.dropna(subset=["z"])
    np.testing.assert_allclose(table["difference"], table["value"] - table["null_mean"], atol=1e-12)
    np.testing.assert_allclose(table["z"], table["difference"] / table["null_sd"], rtol=1e-6)
    assert table["p"].between(2 / 41 - 1e-12, 1).all()


def test_human_distance_is_that_of_the_matched_boundaries(lm, people_story, result):
    trace = wb.record(people_story, lm)
    target = reference(people_story)
    events = trace.to_words(wb.segment(trace, "S", gamma=0.5, n_boundaries=target.count))
    expected = wasserstein(events.inner, target.words, trace.n_words)
    row = result.table.query(
        "story == 'timed' and method == 'S' and measure == 'wasserstein' and null == 'uniform'"
    ).iloc[0]
    assert row["value"] == pytest.approx(expected)
    assert row["n_events"] == target.count + 1
    assert row["ceiling_low"] <= row["ceiling_high"]
    assert row["ci_low"] <= row["ci_high"]


def test_fixed_column_is_the_value_of_the_fixed_method(result):
    rows = result.table[(result.table["method"] == "F") & result.table["value"].notna()]
    np.testing.assert_allclose(rows["value"], rows["fixed"], rtol=1e-12)


def test_lengths_null_of_even_events_is_replaced_and_said(result):
    rows = result.table[result.table["method"] == "F"]
    assert set(rows["null"]) == {"shift", "uniform"}
    assert rows.loc[rows["null"] == "shift", "note"].str.contains("lengths are all alike").all()
    assert set(result.under("lengths").query("method == 'F'")["null"]) == {"shift"}
    assert "shift" not in set(result.under("uniform")["null"])


def test_author_is_never_called_people_and_has_no_ceiling(result):
    rows = result.table.query("story == 'written' and measure == 'wasserstein'")
    assert set(rows["annotation"]) == {"author"}
    assert rows["ceiling_low"].isna().all()
    assert rows["ci_low"].isna().all()
    assert rows["value"].notna().all()
    assert any("author's scenes, not people's" in note for note in result.settings["notes"])


def test_people_against_themselves_are_not_a_number(with_people):
    rows = with_people.table.query("method == 'H' and measure in ['wasserstein', 'hamming']")
    assert rows["value"].isna().all()
    assert rows["note"].str.contains("self").all()
    assert rows["p"].isna().all()
    moved = with_people.table.query("method == 'HM' and measure == 'wasserstein'")
    assert moved["value"].notna().all()


def test_same_seed_same_numbers_and_another_seed_other_nulls(lm, author_story):
    options = {"draws": 20, "bootstrap": 10, "gamma": 0.5, "cache": False}
    first = wb.compare(author_story, ["S", "R"], lm, seed=3, **options).table
    again = wb.compare(author_story, ["S", "R"], lm, seed=3, **options).table
    other = wb.compare(author_story, ["S", "R"], lm, seed=4, **options).table
    pd.testing.assert_frame_equal(first, again)
    pick = (first["method"] == "S") & (first["measure"] == "modularity")
    assert not np.allclose(first.loc[pick, "null_mean"], other.loc[pick, "null_mean"])
    np.testing.assert_allclose(first.loc[pick, "value"], other.loc[pick, "value"])


def test_adding_a_null_or_a_method_changes_no_other_number(lm, author_story):
    options = {"draws": 20, "bootstrap": 10, "gamma": 0.5, "cache": False}
    small = wb.compare(author_story, ["S"], lm, **options).table
    large = wb.compare(author_story, ["R", "S"], lm, null=["uniform", "lengths"], **options)
    same = large.under("lengths").query("method == 'S'").reset_index(drop=True)
    pd.testing.assert_frame_equal(small, same)


def test_match_none_keeps_the_methods_own_count(lm, author_story):
    found = wb.compare(
        author_story, ["S"], lm, match=None, draws=10, bootstrap=10, gamma=0.5, cache=False
    )
    trace = wb.record(author_story, lm)
    own = wb.segment(trace, "S", gamma=0.5).n_events
    assert set(found.table["n_events"]) == {own}
    assert set(found.table["match"]) == {"none"}


def test_match_method_takes_as_many_of_peoples_positions(lm, people_story):
    found = wb.compare(
        people_story, ["S", "H"], lm, match="method", draws=10, bootstrap=10, gamma=2.0, cache=False
    )
    counts = found.table.groupby("method")["n_events"].unique()
    assert counts["S"].tolist() == counts["H"].tolist()


def test_summary_has_one_row_per_story_method_measure_and_null(result):
    summary = result.summary()
    assert not summary.duplicated(["story", "model", "method", "measure", "null"]).any()
    assert set(summary["measure"]) == set(HEADLINE)
    shown = result.summary({"conductance": "standard:min"})
    assert set(shown.query("measure == 'conductance'")["variant"]) == {"standard:min"}
    with pytest.raises(InputError, match="has no variant 'other'"):
        result.summary({"conductance": "other"})


def test_saved_comparison_is_the_same_again(result, tmp_path):
    folder = result.save(tmp_path / "out", formats=["html"])
    again = wb.load_comparison(folder)
    pd.testing.assert_frame_equal(again.table, result.table)
    pd.testing.assert_frame_equal(again.words, result.words)
    assert again.events == result.events
    assert again.references == result.references
    pd.testing.assert_frame_equal(again.summary(), result.summary())
    assert again.figure("human").to_dict()["data"]
    names = {path.name for path in (folder / "figures").iterdir()}
    assert {"graph_lengths.html", "human_uniform.html", "trace_timed.html"} <= names
    written = pd.read_csv(folder / "table.csv", keep_default_na=False)
    assert tuple(written.columns) == COLUMNS


def test_saving_refuses_to_overwrite_and_to_mix_with_other_files(result, tmp_path):
    folder = result.save(tmp_path / "out", formats=["html"])
    with pytest.raises(InputError, match="already holds a comparison"):
        result.save(folder, formats=["html"])
    result.save(folder, formats=["html"], overwrite=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="holds other files"):
        result.save(other, overwrite=True)
    assert (other / "thesis.txt").read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_loading_what_is_no_comparison_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"no settings\.json"):
        wb.load_comparison(tmp_path)
    (tmp_path / "settings.json").write_text('{"format": "something else"}')
    with pytest.raises(DataError, match="is not of the format"):
        wb.load_comparison(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["S", "XQ"]}, "'XQ' is not known. Choose one of: "),
        ({"methods": ["S+C"]}, "contiguity buffer"),
        ({"methods": []}, "empty list"),
        ({"methods": ["S", "s"]}, "given more than once"),
        ({"null": "shuffle"}, "null='shuffle' is not known"),
        ({"match": "all"}, "match='all' is not known"),
        ({"draws": 1}, "at least 2"),
        ({"stories": "no-such-story"}, "no story or file"),
    ],
)
def test_bad_arguments_are_told_before_any_model_is_loaded(options, message, author_story):
    arguments = {"stories": author_story, "methods": ["S"], "model": "no such model", **options}
    with pytest.raises(InputError, match=message):
        wb.compare(**arguments)


def test_people_are_refused_where_there_are_none(author_story):
    with pytest.raises(MissingDataError, match="written has only the author's scenes"):
        wb.compare(author_story, ["S", "H"], "no such model")
    untimed = fake_story(10, name="untimed", people=[1.0])
    with pytest.raises(MissingDataError, match="no public word times"):
        wb.compare(untimed, ["H"], "no such model")
    listed = fake_story(10, name="listed", people=[1.0], seconds_per_word=0.5)
    with pytest.raises(MissingDataError, match="no presses to rank"):
        wb.compare(listed, ["H"], "no such model", match="method")


def test_story_without_annotation_still_gets_graph_measures(lm):
    plain = fake_story(WORDS.split(), name="plain")
    found = wb.compare(plain, ["S"], lm, draws=10, bootstrap=10, gamma=0.5, cache=False)
    assert set(found.table["measure"]) == {"modularity", "conductance", "intra_inter"}
    assert found.table["note"].str.contains("keeps its own").all()
    assert "human" not in found.figures()


def test_consensus_without_word_times_keeps_the_count_and_says_why(lm):
    untimed = fake_story(WORDS.split(), name="untimed", people=[1.0, 9.0, 20.0])
    found = wb.compare(untimed, ["S"], lm, draws=10, bootstrap=10, gamma=0.5, cache=False)
    assert set(found.table["n_events"]) == {4}
    rows = found.table.query("measure == 'wasserstein'")
    assert rows["value"].isna().all()
    assert rows["note"].str.contains("no public times").all()


def test_report_shows_null_and_provenance(result):
    text = report(result)
    for part in ("timed · tiny", "people's boundaries", "one author's", "random weights", "±"):
        assert part in text
    assert "modularity (newman), higher is better" in text
    assert "wasserstein (sigma=0), lower is better" in text


def test_report_numbers_its_notes_and_fits_a_terminal(result):
    text = report(result)
    assert max(map(len, text.splitlines())) <= 130
    notes = [line for line in text.splitlines() if line.startswith("note 1: ")]
    assert len(notes) == len(result.nulls) * len(result.stories)
    assert "null shift, since" in text


def test_figures_open_for_every_null_story_and_model(result):
    assert len(result.figure("graph", story="timed", null="uniform").data) > 0
    with pytest.raises(InputError, match="kind='pie'"):
        result.figure("pie")
    with pytest.raises(InputError, match="story='nobody'"):
        result.figure("trace", story="nobody")
    with pytest.raises(InputError, match="null='shift'"):
        result.figure("graph", null="shift")


def test_events_table_names_each_event(lm, people_story):
    trace = wb.record(people_story, lm)
    events = wb.segment(trace, "S", gamma=0.5, n_boundaries=4)
    table = events_table(trace, events)
    assert table["n_tokens"].sum() == trace.n_tokens
    assert table["event"].tolist() == list(range(events.n_events))
    for row in table.itertuples():
        assert row.text.split()[0] == people_story.words["word"].iloc[row.word]
        assert row.onset == people_story.words["onset"].iloc[row.word]


def test_empty_table_has_the_columns():
    assert tuple(as_table([]).columns) == COLUMNS


def test_levels_are_heads_layer_means_and_the_mean():
    levels = head_levels([(0, 0), (0, 1), (3, 0), (3, 1)])
    assert [(a, b) for a, b, _ in levels[-3:]] == [(0, None), (3, None), (None, None)]
    assert levels[-2][2].tolist() == [2, 3]


def test_two_jobs_give_the_same_table_as_one(people_story, author_story, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    folder = tmp_path / "model"
    lm = tiny_lm()
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    options = {"draws": 10, "bootstrap": 10, "gamma": 0.5, "model": folder}
    stories = [people_story, author_story]
    alone = wb.compare(stories, ["S", "F"], **options)
    together = wb.compare(stories, ["S", "F"], n_jobs=2, **options)
    pd.testing.assert_frame_equal(alone.table, together.table)
