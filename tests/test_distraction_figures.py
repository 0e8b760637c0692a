"""Figures and command of r_d."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from test_distraction_measures import masses
from test_distraction_task import texts
from tiny_lm import tiny_lm

import workbench.models
from workbench.analysis.distraction import distraction_table
from workbench.cli import main
from workbench.core.errors import InputError
from workbench.figures.distraction import figure_distraction, figure_distraction_layers


def table(layers=2, sizes=(1, 2, 4), model="a"):
    made = [masses(d, d=d, layers=layers)[0] for d in sizes]
    return distraction_table(made, draws=20).assign(model=model, provenance="random numbers")


def traces(figure, what):
    return [t for t in figure.data if (t.meta or {}).get("what") == what]


def test_curves_are_the_rows_of_the_table():
    rows = table()
    figure = figure_distraction(rows, queries="answers", statistic="ratio of sums")
    curves = traces(figure, "r_d")
    assert [c.name for c in curves] == ["layer 3", "layer 4", "all layers"]
    chosen = rows[(rows["queries"] == "answers") & (rows["statistic"] == "ratio of sums")]
    for curve, layer in zip(curves, (3, 4, -1), strict=True):
        expected = chosen[(chosen["layer"] == layer) & (chosen["head"] == -1)]
        assert list(curve.y) == list(expected["value"])
        assert list(curve.x) == [1, 2, 4]
    assert len(traces(figure, "band")) == 3
    (line,) = traces(figure, "baseline")
    assert list(line.y) == [1, 0.5, 0.25]
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    low, high = figure.layout.yaxis.range
    assert low < np.log10(0.25)
    assert high > 0
    note = " ".join(figure.layout.annotations[-1].text.replace("<br>", " ").split())
    assert "random numbers" in note
    assert "token of an answer; 6 documents" in note


def test_many_layers_are_coloured_by_depth():
    figure = figure_distraction(table(layers=9))
    curves = traces(figure, "r_d")
    assert len(curves) == 10
    assert len({c.line.color for c in curves}) == 10
    assert len(traces(figure, "band")) == 1
    assert len(traces(figure_distraction(table(layers=9), layers=[3, 5]), "r_d")) == 2


def test_models_have_a_line_each():
    both = pd.concat([table(), table(model="b<i>")])
    assert [c.name for c in traces(figure_distraction(both), "r_d")] == ["a", "b&lt;i&gt;"]
    with pytest.raises(InputError, match="by='layer' draws one model"):
        figure_distraction(both, by="layer")
    with pytest.raises(InputError, match="a heat map shows one model"):
        figure_distraction_layers(both)


def test_heat_maps_show_the_ratio_to_the_baseline():
    rows = table()
    (cells,) = traces(figure_distraction_layers(rows), "ratio")
    assert (list(cells.x), list(cells.y)) == (["2", "4"], ["3", "4"])
    means = rows[(rows["statistic"] == "mean of ratios") & (rows["queries"] == "all")]
    one = means[(means["layer"] == 4) & (means["head"] == -1) & (means["d"] == 4)].iloc[0]
    assert 2 ** cells.z[1][1] == pytest.approx(one["value"] * 4)
    (cells,) = traces(figure_distraction_layers(rows, d=4), "ratio")
    assert list(cells.x) == ["0", "1", "2"]
    with pytest.raises(InputError, match="d=8 is not in the table"):
        figure_distraction_layers(rows, d=8)
    with pytest.raises(InputError, match="d = 1 only"):
        figure_distraction_layers(rows[rows["d"] == 1])
    with pytest.raises(InputError, match=r"layers \[9\]: the table has \[3, 4\]"):
        figure_distraction(rows, layers=[9])
    with pytest.raises(InputError, match="needs the column"):
        figure_distraction(rows.drop(columns="baseline"))


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(workbench.models, "load_model", lambda name: tiny_lm())
    monkeypatch.setattr("workbench.figures.export.find_browser", lambda: None)
    path, out = tmp_path / "docs.jsonl", tmp_path / "out"
    path.write_text("\n".join(json.dumps({"text": t}) for t in texts(5)), encoding="utf-8")
    given = ["distraction", "--documents", str(path), "--d", "1,3", "--window", "20"]
    with pytest.raises(SystemExit) as ended:
        main([*given, "--out", str(out)])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "d=3" in shown
    assert "5 documents ask in 5 windows; left out: 0 too short, 0 repeated." in shown
    assert {p.name for p in out.iterdir()} == {
        *("distraction.csv", "settings.json", "distraction.html", "distraction_layers.html"),
    }
    written = pd.read_csv(out / "distraction.csv")
    assert json.loads((out / "settings.json").read_text(encoding="utf-8"))["d"] == [1, 3]
    with pytest.raises(SystemExit):
        main([*given, "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in rows] == pytest.approx(list(written["value"]))
    with pytest.raises(SystemExit):
        main([*given, "--orders", "3", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert {(row["d"], row["n_readings"]) for row in rows} == {(1, 5), (3, 15)}
    for wrong, message in (
        (["--out", str(out)], f"{out} exists"),
        (["--d", "1,two"], "d: '1,two' is not a list of whole numbers"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*given, *wrong])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
