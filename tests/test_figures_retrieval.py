"""Figures of recall by memory systems: what they draw and what they say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from workbench.analysis.recall.curves import lag_curves
from workbench.analysis.recall.sequences import RecallSequences
from workbench.analysis.retrieval import RetrievedEvents
from workbench.analysis.retrieval_curve import retrieval_curve
from workbench.analysis.retrieval_lag import retrieval_lag_crp
from workbench.analysis.retrieval_recency import recency
from workbench.analysis.retrieval_units import layer_overlap
from workbench.core.errors import InputError, MissingDataError
from workbench.figures.recall import figure_lag
from workbench.figures.retrieval import (
    figure_capacity,
    figure_layer_overlap,
    figure_recency,
    figure_retrieval_lag,
)

COLUMNS = ["step", "position", "layer", "head", "unit", "buffer", "rank", "available"]


@pytest.fixture(scope="module")
def events():
    rng = np.random.default_rng(0)
    rows = []
    for step in range(8):
        n = 6 + step
        for layer in range(3):
            units = rng.permutation(n)[:5].tolist()
            for place, unit in enumerate(units):
                buffer = "similarity" if place < 3 else "contiguity"
                rows.append((step, step, layer, -1, unit, buffer, place % 3, n))
    return RetrievedEvents.from_table(pd.DataFrame(rows, columns=COLUMNS), source="emllm-S")


def drawn(fig, what):
    return [trace for trace in fig.data if (trace.meta or {}).get("what") == what]


def footnote(fig):
    return " ".join(
        note.text.replace("<br>", " ") for note in fig.layout.annotations if note.name == "footnote"
    )


def test_lag_curves_of_both_buffers_beside_their_null(events):
    table = pd.concat(
        retrieval_lag_crp(events, buffer=b, order=o, draws=20, resamples=50)
        for b, o in (("similarity", "log"), ("both", "woven"))
    )
    fig = figure_retrieval_lag(table, provenance=["A model."])
    curves, nulls = drawn(fig, "curve"), drawn(fig, "null")
    assert len(curves) == len(nulls) == 2
    for curve, null, buffer in zip(curves, nulls, ("similarity", "both"), strict=True):
        rows = table[(table["layer"] == "all") & (table["buffer"] == buffer)]
        np.testing.assert_allclose(np.array(curve.y, float), rows["prob"].astype(float))
        np.testing.assert_allclose(np.array(null.y, float), rows["null_mean"].astype(float))
    assert len(drawn(fig, "band")) == 4  # lag 0 leaves a gap
    said = footnote(fig)
    assert "±1 by construction" in said
    assert "bootstrap intervals over retrieval steps" in said
    assert "A model." in said


def test_the_order_of_the_log_is_said_to_make_lags_of_its_own(events):
    table = retrieval_lag_crp(events, buffer="both", draws=5, resamples=0)
    said = footnote(figure_retrieval_lag(table))
    assert "-2 by construction" in said
    assert "No intervals" in said


def test_rows_that_cannot_be_told_apart_are_refused(events):
    table = retrieval_lag_crp(events, draws=0, resamples=0)
    with pytest.raises(InputError, match="name the column that tells them apart"):
        figure_retrieval_lag(pd.concat([table, table]))
    two = pd.concat([table.assign(share=0.0), table.assign(share=0.3)])
    assert len(drawn(figure_retrieval_lag(two, by="share"), "curve")) == 2
    with pytest.raises(MissingDataError, match="no rows of layer 'all'"):
        figure_retrieval_lag(table[table["layer"] != "all"])


def test_recency_beside_chance(events):
    table = recency(events, resamples=50)
    fig = figure_recency(table)
    rows = table[table["layer"] == "all"]
    (curve,), (chance,) = drawn(fig, "curve"), drawn(fig, "null")
    np.testing.assert_allclose(np.array(curve.y, float), rows["prob"])
    np.testing.assert_allclose(np.array(chance.y, float), rows["chance"])


def test_overlap_is_a_symmetric_map_without_a_diagonal(events):
    table = layer_overlap(events)
    fig = figure_layer_overlap(table)
    (cells,) = drawn(fig, "overlap")
    z = np.array(cells.z, dtype=float)
    assert np.isnan(np.diag(z)).all()
    np.testing.assert_allclose(z, z.T)
    row = table[(table["layer"] == 0) & (table["other"] == 2)].iloc[0]
    assert z[0, 2] == row["jaccard"]
    assert f"at random: {table['chance'].mean():.2f}" in footnote(fig)
    with pytest.raises(MissingDataError, match="recalled by all"):
        figure_layer_overlap(table.assign(jaccard=np.nan))


def capacity_rows():
    rows = []
    for factor, values in (("base", [np.nan]), ("n_mem", [0, 64]), ("n_local", [64, 128])):
        for value in values:
            n_local = value if factor == "n_local" else 96
            rows.append(
                {
                    "label": factor if factor == "base" else f"{factor}={value}",
                    "factor": factor,
                    "value": value,
                    "system": "emllm-S",
                    "n_local": n_local,
                    "n_mem": 192 - n_local,
                    "n_tokens": 1000,
                    "chunk": 32,
                    "difference": 0.1,
                    "difference_low": 0.0,
                    "difference_high": 0.3,
                    "ever": 0.5,
                    "asymmetry": np.nan,
                    "asymmetry_low": np.nan,
                    "asymmetry_high": np.nan,
                }
            )
    return pd.DataFrame(rows)


def test_capacity_has_a_column_per_factor():
    fig = figure_capacity(capacity_rows())
    shown = drawn(fig, "difference")
    assert [trace.meta["factor"] for trace in shown] == ["n_mem", "n_local"]
    np.testing.assert_allclose(np.array(shown[0].error_y.array, float), 0.2)
    np.testing.assert_allclose(np.array(shown[0].error_y.arrayminus, float), 0.1)
    assert len(drawn(fig, "ever")) == len(drawn(fig, "asymmetry")) == 2
    assert "n_local + n_mem = 192" in footnote(fig)
    with pytest.raises(MissingDataError, match="base setting only"):
        figure_capacity(capacity_rows().iloc[:1])


def test_systems_stand_beside_people_in_one_figure(events):
    people = RecallSequences.from_positions(
        [[3, 4, 5, 1], [2, 3, 1], [5, 4, 3]], 6, subject=["a", "b", "c"]
    )
    curve = retrieval_curve(events, max_lag=3, resamples=50)
    table = pd.concat([lag_curves({"people": people}, max_lag=3, resamples=50), curve])
    fig = figure_lag(table)
    assert [trace.name for trace in drawn(fig, "curve")] == ["people", "emllm-S"]
    assert "95% interval over 8 retrieval steps" in footnote(fig)
    crp = retrieval_lag_crp(events, max_lag=3, draws=0, resamples=0)
    np.testing.assert_allclose(curve["value"], crp.loc[crp["layer"] == "all", "prob"].astype(float))
    shape = retrieval_curve(events, rescale=True, resamples=0)
    assert (shape["value"].min(), shape["value"].max()) == (0, 1)
    assert shape["band"].iloc[0] == "none (8 retrieval steps)"
