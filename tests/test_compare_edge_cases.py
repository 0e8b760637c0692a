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
