"""Comparisons at their edges: undefined heads, odd arguments, odd names, odd folders."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from fakes import fake_story, fake_trace
from tiny_lm import tiny_lm

import workbench as wb
from workbench.analysis.nulls import null_starts
from workbench.comparison.graph_rows import GraphMeasures
from workbench.core.boundaries import Boundaries
from workbench.core.errors import DataError, InputError

WORDS = (
    "It rained on the town. She stayed in bed. He left at noon. "
    "The town did not mind. Nobody said a word. The bus came late. "
) * 5
FEW = {"draws": 10, "bootstrap": 5, "gamma": 0.5, "cache": False}


@pytest.fixture(scope="module")
def lm():
    return tiny_lm()


def written(name: str = "written"):
    return fake_story(WORDS.split(), name=name, author=[30, 70, 120])


@pytest.fixture(scope="module")
def result(lm):
    return wb.compare(written(), ["S", "F"], lm, **FEW)


# --- one head's undefined values stay its own ------------------------------------------------


@pytest.fixture(scope="module")
def one_bad_head():
    """Rows of two heads; in the second, the events attract nothing outside themselves."""
    rng = np.random.default_rng(0)
    n = 60
    good = rng.normal(size=(n, 4)) + 3
    bad = rng.normal(size=(n, 4))
    bad[:20] -= 2
    bad[20:] += 2
    trace = fake_trace(rng.random(n), np.stack([good, bad])[None])
    events = Boundaries([0, 20, 40], n)
    starts = null_starts(events, "uniform", 60, rng)
    rows = GraphMeasures.of(trace, 10, 0).rows(events, starts, events)
    return trace, events, starts, pd.DataFrame(rows)


def test_undefined_head_leaves_the_other_heads_alone(one_bad_head):
    trace, events, starts, table = one_bad_head
    layer = int(trace.layers[0])
    graph = trace.key_graph(layer, 0)
    null = np.array([graph.intra_inter(Boundaries(row, events.n)) for row in starts])
    assert not np.isnan(null).any()
    rows = table[(table["measure"] == "intra_inter") & (table["variant"] == "sums")]
    good = rows[rows["head"] == 0].iloc[0]
    assert good["value"] == pytest.approx(graph.intra_inter(events), rel=1e-9)
    assert good["null_mean"] == pytest.approx(null.mean(), rel=1e-9)
    assert good["null_sd"] == pytest.approx(null.std(ddof=1), rel=1e-9)
    assert np.isfinite(good["p"])


def test_undefined_values_and_lost_draws_say_so(one_bad_head):
    table = one_bad_head[-1]
    rows = table[(table["measure"] == "intra_inter") & (table["variant"] == "sums")]
    assert rows.loc[rows["head"] == 1, "value"].isna().all()
    assert rows.loc[rows["value"].isna(), "note"].str.startswith("undefined").all()


def test_lost_draws_are_counted_in_the_note():
    rng = np.random.default_rng(1)
    n = 60
    keys = rng.normal(size=(n, 4))
    keys[:3] -= 2
    keys[3:] += 1
    trace = fake_trace(rng.random(n), keys)
    graph = trace.key_graph(int(trace.layers[0]), 0)
    events = Boundaries([0, 20, 40], n)
    draws = np.array([[0, 3, 30]] * 4 + [[0, 15, 30]] * 8)
    lost = sum(np.isnan(graph.intra_inter(Boundaries(row, n))) for row in draws)
    assert np.isfinite(graph.intra_inter(events))
    assert lost == 4
    table = pd.DataFrame(GraphMeasures.of(trace, 10, 0).rows(events, draws, events))
    rows = table[(table["measure"] == "intra_inter") & (table["variant"] == "sums")]
    assert rows["note"].str.contains("4 undefined random segmentations left out").all()
    pooled = table[table["variant"] == "sums:pooled"]
    assert pooled["note"].str.contains("ratio of sums over events is not resampled").all()


# --- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ({"seed": 1.5}, "seed=1.5 must be a whole number"),
        ({"seed": 2**70}, "must be a whole number"),
        ({"seed": None}, "seed=None must be a whole number"),
        ({"draws": 20.5}, r"draws=20\.5 must be a whole number of at least 2"),
        ({"draws": "many"}, "draws='many' must be a whole number"),
        ({"bootstrap": None}, "bootstrap=None must be a whole number"),
        ({"min_size": 8.5}, r"min_size=8\.5 must be a whole number"),
        ({"max_size": 100.5}, r"max_size=100\.5 must be a whole number"),
        ({"min_size": 9, "max_size": 8}, "max_size=8 is smaller than min_size=9"),
        ({"gamma": "high"}, "gamma='high' must be a finite number"),
        ({"gamma": float("nan")}, "gamma=nan must be a finite number"),
        ({"layers": 1.5}, r"layers=1\.5 must be a whole number"),
        ({"heads": "a"}, "heads='a' must be a whole number"),
        ({"null": ["uniform", "uniform"]}, "uniform was given more than once"),
        ({"time_rule": "last"}, "time_rule='last' is not known"),
        ({"scope": "all"}, "scope='all' is not known"),
        ({"stories": [None]}, "None is no story"),
        ({"stories": 3}, "3 is no story"),
        ({"methods": {"S", "F"}}, "has no order"),
        ({"model": None}, "model=None: give a name"),
    ],
)
def test_bad_arguments_are_told_by_name_before_any_model_is_loaded(options, message):
    arguments = {"stories": written(), "methods": ["S"], "model": "no such model", **options}
    with pytest.raises(InputError, match=message):
        wb.compare(**arguments)


def test_whole_numbers_of_any_type_and_any_iterable_are_taken(lm, result):
    again = wb.compare(
        (story for story in [written()]),
        np.array(["S", "F"]),
        lm,
        **{**FEW, "draws": 10.0, "bootstrap": np.int64(5)},
        seed=np.int32(0),
    )
    pd.testing.assert_frame_equal(again.table, result.table)


# --- names and folders -----------------------------------------------------------------------


def test_stories_whose_names_become_one_file_name_keep_a_figure_each(lm):
    long = "日本" * 150
    stories = [written(name) for name in ("a b", "a_b", "a/b", long)]
    found = wb.compare(stories, ["F"], lm, **FEW)
    traces = [name for name in found.figures() if name.startswith("trace_")]
    assert len(traces) == 4
    assert all(len(name.encode()) < 220 and "/" not in name for name in traces)


def test_saved_boundaries_keep_strength_and_open_end(result, tmp_path):
    again = wb.load_comparison(result.save(tmp_path / "out", formats=["html"]))
    for key, events in result.events.items():
        loaded = again.events[key]
        assert loaded.open == events.open
        assert loaded.method == events.method
        if events.strength is None:
            assert loaded.strength is None
        else:
            np.testing.assert_array_equal(loaded.strength, events.strength)
    assert any(events.strength is not None for events in result.events.values())
    assert again.settings == result.settings
    json.loads(
        (tmp_path / "out" / "events.json").read_text(encoding="utf-8"),
        parse_constant=lambda name: pytest.fail(f"{name} is no JSON"),
    )


def test_infinite_strength_survives_a_file(lm, tmp_path):
    found = wb.compare(written(), ["S"], lm, match=None, max_size=9, **FEW)
    strength = found.events["written", "tiny", "S"].strength
    assert np.isneginf(strength).any()
    again = wb.load_comparison(found.save(tmp_path / "out", formats=["html"]))
    np.testing.assert_array_equal(again.events["written", "tiny", "S"].strength, strength)


def test_sensitivity_comes_back_as_it_was(lm, tmp_path):
    timed = fake_story(WORDS.split(), name="timed", seconds_per_word=0.5, people=[15.0, 33.0])
    found = wb.compare(timed, ["F"], lm, **FEW)
    again = wb.load_comparison(found.save(tmp_path / "out", formats=["html"]))
    assert len(found.sensitivity) > 0
    pd.testing.assert_frame_equal(again.sensitivity, found.sensitivity, check_dtype=False)
    assert again.sensitivity["note"].notna().all()


@pytest.mark.parametrize("name", ["settings.json", "events.json", "table.parquet"])
def test_a_damaged_file_is_named(result, tmp_path, name):
    folder = result.save(tmp_path / "out", formats=["html"])
    (folder / name).write_text("not this", encoding="utf-8")
    with pytest.raises(DataError, match="run the comparison again"):
        wb.load_comparison(folder)


def test_a_folder_that_cannot_be_made_is_told_first(result, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"because .*file is a file"):
        result.save(tmp_path / "file" / "out")


# --- figures ---------------------------------------------------------------------------------


def test_people_without_a_place_in_the_text_still_make_a_figure(lm):
    untimed = fake_story(WORDS.split(), name="untimed", people=[3.0, 9.0])
    found = wb.compare(untimed, ["S", "F"], lm, **FEW)
    assert found.table.loc[found.table["measure"] == "wasserstein", "value"].isna().all()
    assert set(found.figures()) == {"graph", "human", "trace_untimed"}


def test_long_names_are_cut_in_the_middle_and_stay_apart(lm):
    names = [f"a rather long name of a story that never seems to end, part {i}" for i in range(6)]
    found = wb.compare([written(name) for name in names], ["F"], lm, **FEW)
    for kind in ("graph", "human"):
        shown = [note.text for note in found.figure(kind).layout.annotations]
        titles = [text for text in shown if "…" in text]
        assert len(set(titles)) == 6
        assert all(len(title) < 50 for title in titles)
        if kind == "human":
            assert all("(to the author)" in title for title in titles)


def test_without_an_annotation_no_footnote_speaks_of_one(lm):
    plain = fake_story(WORDS.split(), name="plain")
    alone = wb.compare(plain, ["S", "F"], lm, **FEW).figure("graph").to_json()
    assert "Annotation" not in alone
    assert "as many events as the annotation" not in alone
    both = wb.compare([plain, written()], ["S", "F"], lm, **FEW).figure("graph").to_json()
    assert "Annotation: the author" in both
    assert "as many events as the annotation" in both
