"""Memory systems among the methods of a comparison, on a tiny random model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fakes import fake_story
from tiny_lm import tiny_lm

import workbench as wb
from workbench.comparison.report import report
from workbench.comparison.result import load_comparison
from workbench.core.errors import DataError, InputError
from workbench.memory import make_system

WORDS = (
    "It rained on the town . She stayed in bed . He left at noon . "
    "The town did not mind . Nobody said a word . The bus came late . "
) * 3
SIZES = {"n_init": 4, "n_local": 32, "n_mem": 32, "chunk": 16, "min_size": 4}
OPTIONS = {"draws": 20, "bootstrap": 10, "cache": False, "min_size": 4}


@pytest.fixture(scope="module")
def lm():
    return tiny_lm()


@pytest.fixture(scope="module")
def story():
    return fake_story(WORDS.split(), name="timed", seconds_per_word=0.5, people=[8.0, 20.0, 31.0])


def blocks(lm):
    return make_system("infllm", lm, block=10, n_local=32, n_mem=32, n_init=4, chunk=16)


@pytest.fixture(scope="module")
def result(lm, story):
    return wb.compare(
        story, ["S", "emllm-S", "emllm-SM+C", blocks, "H"], lm, systems=SIZES, **OPTIONS
    )


def test_a_systems_events_are_the_cut(result, lm, story):
    assert result.methods == ["S", "emllm-S", "emllm-SM+C", "blocks", "H"]
    trace = wb.record(story, lm)
    for name in ("emllm-S", "emllm-SM+C"):
        events = make_system(name, lm, **SIZES).read(story).events
        assert result.events["timed", lm.name, name] == trace.to_words(events)
        rows = result.table[result.table["method"] == name]
        assert set(rows["n_events"]) == {events.n_events}
    assert result.events["timed", lm.name, "blocks"].n_events > 5


def test_a_system_has_every_measure_that_a_method_has(result):
    keys = ["measure", "variant", "layer", "head"]
    of = {
        name: set(rows[keys].fillna(-9).itertuples(index=False, name=None))
        for name, rows in result.table.groupby("method")
    }
    assert of["emllm-S"] == of["S"] == of["blocks"]


def test_measures_are_those_of_the_same_cut_given_as_boundaries(result, lm, story):
    """Modularity from its own function, on the events the system formed."""
    from workbench.analysis.graph import measure_segmentations

    events = make_system("emllm-S", lm, **SIZES).read(story).events
    trace = wb.record(story, lm)
    graph = trace.key_graph(trace.layers.tolist(), trace.kv_heads.tolist())
    found = measure_segmentations(graph, events.starts[None])
    rows = result.summary()
    value = rows.loc[
        (rows["method"] == "emllm-S") & (rows["measure"] == "modularity"), "value"
    ].item()
    expected = np.mean(found["modularity", "newman"])
    assert value == pytest.approx(expected)


def test_rows_say_that_the_number_of_events_is_the_systems_own(result):
    for name in ("emllm-S", "blocks"):
        rows = result.table[result.table["method"] == name]
        assert rows["note"].str.contains("number is not matched").all()
        assert rows["note"].str.contains("n_local 32, n_mem 32, chunk 16").all()
        assert set(rows["match"]) == {"none"}
    assert set(result.table.loc[result.table["method"] == "S", "match"]) == {"people"}
    gammas = result.table.groupby("method")["gamma"].agg(lambda g: g.iloc[0])
    assert gammas["emllm-S"] == 1.0
    assert np.isnan(gammas["blocks"])


def test_files_figures_and_report(result, tmp_path):
    result.save(tmp_path / "out")
    again = load_comparison(tmp_path / "out")
    assert again.methods == result.methods
    assert again.events == result.events
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    systems = settings["settings"]["systems"] if "settings" in settings else settings["systems"]
    assert systems["emllm-S"] == {"system": "emllm-S", **SIZES}
    assert systems["blocks"] == {"made_by": f"{__name__}.blocks"}
    assert "emllm-SM+C" in report(result)
    for kind in ("human", "graph"):
        names = {trace.name for trace in result.figure(kind).data}
        assert names


def test_gamma_is_the_systems_own(lm, story):
    found = wb.compare(
        story, "S,emllm-S", lm, gamma=2.0, systems={**SIZES, "gamma": 0.5}, match=None, **OPTIONS
    )
    rows = found.summary().drop_duplicates("method").set_index("method")
    assert rows["gamma"].to_dict() == {"S": 2.0, "emllm-S": 0.5}
    assert rows.loc["emllm-S", "n_events"] > rows.loc["S", "n_events"]
    assert not rows["note"].str.contains("not matched").any()


@pytest.mark.parametrize(
    ("methods", "systems", "message"),
    [
        (["S", "window"], None, "'window' keeps no events"),
        (["full"], None, "'full' keeps no events"),
        (["S"], {"n_local": 32}, "options of systems named among the methods"),
        (["emllm-S", "emllm-S"], None, "twice"),
        (["emllm-Q"], SIZES, "Q"),
        (["infllm"], {"n_memory": 3}, "n_memory"),
    ],
)
def test_what_is_refused(lm, story, methods, systems, message):
    with pytest.raises((InputError, TypeError), match=message):
        wb.compare(story, methods, lm, systems=systems, **OPTIONS)


def test_a_system_that_read_another_text_is_refused(lm, story):
    class Other:
        settings = None

        def reset(self):
            pass

        def read(self, _):
            self.events = make_system("emllm-S", lm, **SIZES).read("It rained.").events
            return self

    with pytest.raises(DataError, match=r"read \d+ tokens of timed"):
        wb.compare(story, ["S", lambda _: Other()], lm, **OPTIONS)
