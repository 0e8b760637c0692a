from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from test_recall_heads import built

from workbench.analysis.recall.cmr import CMRParameters
from workbench.analysis.recall.curves import CURVE_COLUMNS, lag_curve, lag_curves, position_curve
from workbench.analysis.recall.heads import head_table
from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.recall.rho_cmr import simulate_free_recall
from workbench.analysis.recall.sequences import RecallSequences
from workbench.core.errors import InputError
from workbench.figures.recall import figure_head_fits, figure_lag, figure_serial

LAGS = np.arange(-5, 6)


def people() -> RecallSequences:
    data = simulate_free_recall(n_lists=60, n_subjects=6)
    return RecallSequences.from_positions(
        [row[row > 0] for row in data.outputs], 16, subject=data.subject.tolist()
    )


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    sources = {
        "people": people(),
        "L4H0": (built([1.0, 2.0]), 4, 0),
        "CMR": CMRParameters(0.6, 0.75, 0.3),
        "memory": RecallSequences.from_positions([[1, 2, 4], [3, 4]], 16, source="memory"),
    }
    return lag_curves(sources)


def curves_of(fig: object) -> list:
    return [t for t in fig.data if (t.meta or {}).get("what") == "curve"]  # type: ignore[attr-defined]


def test_every_source_gives_the_same_columns(table: pd.DataFrame) -> None:
    assert tuple(table.columns) == CURVE_COLUMNS
    assert table.groupby("label").size().tolist() == [11] * 4
    mean = lag_crp(people()).groupby("lag")["prob"].mean().loc[-5:5]
    own = table[table["label"] == "people"].set_index("lag")
    np.testing.assert_allclose(own["value"], mean)
    defined = own["value"].notna()
    assert (own["low"] <= own["value"])[defined].all()
    assert (own["high"] >= own["value"])[defined].all()
    assert own["band"].iloc[0] == "95% interval over 6 participants"
    head = table[table["label"] == "L4H0"]
    np.testing.assert_allclose(head["value"], 1.5 * np.exp(-np.abs(LAGS - 1.0)))
    np.testing.assert_allclose(head["high"] - head["value"], 0.1 * np.exp(-np.abs(LAGS - 1.0)))
    memory = table[table["label"] == "memory"].set_index("lag")
    assert memory.loc[1, "value"] == pytest.approx(
        2 / 3
    )  # 1 → 2 and 3 → 4; from 2 the next was open
    assert memory["low"].isna().all()
    assert table["provenance"].str.contains("Built by hand").any()


def test_units_never_share_an_axis(table: pd.DataFrame) -> None:
    fig = figure_lag(table)
    axes = {trace.name: trace.yaxis for trace in curves_of(fig)}
    assert axes["people"] == axes["memory"]
    assert len({axes["people"], axes["L4H0"], axes["CMR"]}) == 3
    titles = [fig.layout[name].title.text for name in ("yaxis", "yaxis2", "yaxis3")]
    assert titles == [
        "Probability given availability",
        "Attention score before softmax",
        "Probability with replacement",
    ]
    note = next(a.text for a in fig.layout.annotations if a.name == "footnote")
    assert "standard error over tokens" in note.replace("<br>", " ")


def test_lag_zero_is_a_gap_in_line_and_band(table: pd.DataFrame) -> None:
    fig = figure_lag(table[table["label"] == "people"])
    (line,) = curves_of(fig)
    assert np.isnan(np.array(line.y, dtype=float)[5])
    assert line.connectgaps is False
    bands = [t for t in fig.data if (t.meta or {}).get("what") == "band"]
    assert [sorted(set(band.x)) for band in bands] == [[-5, -4, -3, -2, -1], [1, 2, 3, 4, 5]]


def test_rescaled_curves_share_one_panel() -> None:
    sources = {"people": people(), "CMR": CMRParameters(0.6, 0.75, 0.3)}
    table = lag_curves(sources, rescale=True)
    assert table.groupby("label")["value"].min().tolist() == [0, 0]
    assert table.groupby("label")["value"].max().tolist() == [1, 1]
    fig = figure_lag(table)
    assert {trace.yaxis for trace in curves_of(fig)} == {"y"}
    note = next(a.text for a in fig.layout.annotations if a.name == "footnote")
    assert "compare shapes" in note.replace("<br>", " ")


def test_serial_position_figure() -> None:
    curves = pd.concat(
        [position_curve(people(), "people", what=what) for what in ("recall", "first")],
        ignore_index=True,
    )
    fig = figure_serial(curves)
    first, second = curves_of(fig)
    assert len(first.x) == 16
    assert sum(second.y) == pytest.approx(1)
    assert fig.layout.yaxis2.title.text == "Probability of first recall"


def test_head_fits_figure_separates_lag_zero_heads() -> None:
    table = head_table(built([1.0, 2.0]), draws=20)
    fig = figure_head_fits(table)
    named = {trace.name: trace for trace in fig.data if trace.showlegend}
    assert [named["distance < 0.5"].x[0], named["distance < 0.5, peak at lag 0"].x[0]] == [4, 4]
    note = next(a.text for a in fig.layout.annotations if a.name == "footnote")
    assert "2 of 2 heads have a distance below 0.5" in note.replace("<br>", " ")


def test_markup_of_labels_is_shown_as_text(table: pd.DataFrame) -> None:
    fig = figure_lag(table.assign(label="<b>x</b>"))
    assert "<b>" not in fig.to_json()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recall": built([1.0]), "layer": 0, "head": 0}, "layer=0, head=0 is not there"),
        ({"recall": built([1.0]), "layer": 4, "head": 0, "max_lag": 9}, "max_lag=9 was not"),
        ({"recall": built([1.0]), "layer": 4, "head": 0, "errors": "sd"}, "errors='sd'"),
        ({"recall": built([1.0]), "layer": 4, "head": 0, "scale": "z"}, "scale='z'"),
    ],
)
def test_unusable_curves(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lag_curve(**arguments)


def test_unusable_tables(table: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="nothing to show"):
        lag_curves({})
    with pytest.raises(InputError, match=r"needs the column\(s\) band"):
        figure_lag(table.drop(columns="band"))
    with pytest.raises(InputError, match="what='speed'"):
        figure_serial(position_curve(people()).assign(what="speed"))
    with pytest.raises(InputError, match="what='speed'"):
        position_curve(people(), what="speed")


def test_tables_put_below_each_other_keep_every_curve(table: pd.DataFrame) -> None:
    """`pd.concat` repeats row labels; the curves are the same as with fresh ones."""
    parts = [part.reset_index(drop=True) for _, part in table.groupby("label", sort=False)]
    fresh, repeated = figure_lag(table), figure_lag(pd.concat(parts))
    for one, other in zip(curves_of(fresh), curves_of(repeated), strict=True):
        np.testing.assert_array_equal(one.y, other.y)
    serial = figure_serial(
        pd.concat([position_curve(people()), position_curve(people(), what="first")])
    )
    assert [len(curve.x) for curve in curves_of(serial)] == [16, 16]
