"""EM-LLM Figure 4A: what is drawn is what the table says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from test_figures_table import (
    METHODS,
    PROVENANCE,
    footnote,
    make_table,
    select,
    shown_texts,
    traces,
)

from workbench.core.errors import InputError, MissingDataError
from workbench.figures.graph import figure_graph
from workbench.figures.theme import mm

PREFERRED = {"modularity": "newman", "conductance": "standard:mean", "intra_inter": "sums"}


def per_layer(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["layer"].notna() & table["head"].isna()]


def panel_of(trace: dict) -> tuple[str, str]:
    return trace.get("xaxis", "x"), trace.get("yaxis", "y")


def test_every_line_is_the_tables_difference_over_layers():
    table = make_table()
    shuffled = table.sample(frac=1, random_state=1)
    fig = figure_graph(shuffled, story="pieman")
    for number, (measure, variant) in enumerate(PREFERRED.items(), start=1):
        axis = "y" if number == 1 else f"y{number}"
        for method in METHODS:
            rows = select(
                per_layer(table), story="pieman", measure=measure, variant=variant, method=method
            ).sort_values("layer")
            (line,) = [
                t for t in traces(fig, "difference", method=method) if t.get("yaxis", "y") == axis
            ]
            np.testing.assert_array_equal(line["x"], rows["layer"].to_numpy(dtype=float))
            np.testing.assert_array_equal(line["y"], rows["difference"])
            np.testing.assert_array_equal(
                np.asarray(line["marker"]["opacity"]) == 1,
                rows["difference"].abs() > 1.96 * rows["null_sd"],
            )


def test_intervals_are_moved_by_the_null():
    table = make_table()
    fig = figure_graph(table, measures=["modularity"], story="pieman")
    rows = select(
        per_layer(table), story="pieman", measure="modularity", variant="newman", method="SM"
    )
    (band,) = traces(fig, "interval", method="SM")
    n = len(rows)
    np.testing.assert_allclose(band["y"][:n], rows["ci_high"] - rows["null_mean"], atol=1e-12)
    np.testing.assert_allclose(band["y"][n:][::-1], rows["ci_low"] - rows["null_mean"], atol=1e-12)
    np.testing.assert_array_equal(band["x"][:n], band["x"][n:][::-1])


def test_null_band_is_the_widest_around_zero():
    table = make_table()
    fig = figure_graph(table, measures=["conductance"], story="harbour")
    rows = select(per_layer(table), story="harbour", measure="conductance", variant="standard:mean")
    (band,) = traces(fig, "null band")
    half = 1.96 * rows.groupby("layer")["null_sd"].max().to_numpy(dtype=float)
    np.testing.assert_allclose(band["y"], np.concatenate([half, -half[::-1]]))


def test_one_methods_band_is_its_own():
    table = select(make_table(), method="SM")
    fig = figure_graph(table, measures=["modularity"], story="pieman")
    rows = select(per_layer(table), story="pieman", measure="modularity", variant="newman")
    (band,) = traces(fig, "null band")
    np.testing.assert_allclose(band["y"][: len(rows)], 1.96 * rows["null_sd"])


def test_panels_are_measures_by_stories_and_the_legend_stands_once():
    fig = figure_graph(make_table())
    assert len({panel_of(t) for t in traces(fig, "null band")}) == 6
    names = [t["name"] for t in fig.to_dict()["data"] if t.get("showlegend")]
    assert sorted(names) == sorted(["null", *METHODS])
    titles = [a.text for a in fig.layout.annotations]
    assert "<b>pieman</b>" in titles
    assert "<b>harbour</b>" in titles
    # The author's story has no people.
    assert len(traces(fig, "difference", method="H")) == 3


def test_axes_and_footnote_name_measure_variant_null_and_draws():
    table = make_table().assign(draws=1000)
    fig = figure_graph(table, variants={"conductance": "standard:min"})
    titles = [axis["title"]["text"] for axis in fig.select_yaxes() if axis["title"]["text"]]
    assert titles == [
        "Δ Modularity<br>(newman)",
        "Δ Conductance<br>(standard:min)",
        "Δ Intra/inter similarity<br>(sums)",
    ]
    text = footnote(fig)
    assert "Null: lengths (F: shift), 1,000 draws." in text
    assert f"{PROVENANCE}." in text
    assert "Annotation of harbour: the author's scenes, not people's boundaries." in text
    assert "match: people" in text


def test_two_variants_of_one_measure_are_two_rows():
    fig = figure_graph(
        make_table(), measures=["conductance"], variants=["standard:min", "standard:mean"],
        story="pieman",
    )  # fmt: skip
    titles = [axis["title"]["text"] for axis in fig.select_yaxes()]
    assert titles == ["Δ Conductance<br>(standard:min)", "Δ Conductance<br>(standard:mean)"]


def test_undefined_values_stay_gaps():
    table = make_table()
    where = (
        (table["method"] == "S") & (table["layer"] == 2) & (table["measure"] == "modularity")
    ).fillna(False)
    table.loc[where, ["value", "difference", "ci_low", "ci_high", "null_sd"]] = np.nan
    fig = figure_graph(table, measures=["modularity"], story="pieman")
    (line,) = traces(fig, "difference", method="S")
    assert np.isnan(line["y"][2])
    assert line["marker"]["opacity"][2] == 0
    (band,) = traces(fig, "interval", method="S")
    assert 2 not in band["x"]


def test_no_interval_no_band():
    table = make_table().assign(ci_low=np.nan, ci_high=np.nan)
    fig = figure_graph(table, story="pieman")
    assert traces(fig, "interval") == []
    assert "intervals of the values" not in footnote(fig)
    assert "Coloured bands" not in footnote(fig)


def test_intervals_left_out_are_said_to_be():
    fig = figure_graph(make_table(), measures=["modularity"], story="pieman", intervals=False)
    assert traces(fig, "interval") == []
    assert "The intervals of the values are not drawn; they are in the table." in footnote(fig)


def test_lines_stand_before_the_bands():
    fig = figure_graph(make_table(), measures=["modularity"], story="pieman")
    order = [trace.meta["what"] for trace in fig.data if trace.meta["what"] != "legend"]
    ranks = [["interval", "null band", "difference"].index(what) for what in order]
    assert ranks == sorted(ranks)


def test_width_follows_the_number_of_stories():
    table = make_table()
    assert figure_graph(table, story="pieman").layout.width == pytest.approx(mm(90))
    assert figure_graph(table).layout.width == pytest.approx(mm(180))
    assert figure_graph(table, width=120).layout.width == pytest.approx(mm(120))


def test_several_models_are_columns():
    table = make_table()
    both = pd.concat([table, table.assign(model="other")])
    fig = figure_graph(select(both, story="pieman"), measures=["modularity"])
    assert len(traces(fig, "null band")) == 2
    assert "<b>pieman</b><br>other" in [a.text for a in fig.layout.annotations]
    assert len(traces(figure_graph(both, story="pieman", model="other"), "null band")) == 3


def test_text_of_the_table_is_escaped():
    table = make_table().replace({"story": {"pieman": "<script>x</script>"}})
    table["note"] = "<img src=x>"
    texts = "\n".join(shown_texts(figure_graph(table, measures=["modularity"])))
    assert "<script" not in texts
    assert "<img" not in texts
    assert "&lt;script&gt;x&lt;/script&gt;" in texts
    assert "&lt;img src=x&gt;" in texts


def test_bad_tables_by_message():
    table = make_table()
    with pytest.raises(InputError, match=r"figure_graph needs the column\(s\) null_sd"):
        figure_graph(table.drop(columns="null_sd"))
    with pytest.raises(MissingDataError, match="no rows per layer"):
        figure_graph(select(table, measure="wasserstein"))
    with pytest.raises(InputError, match="story='moth' is not in the table"):
        figure_graph(table, story="moth")
    with pytest.raises(InputError, match="which differ in null: lengths, uniform"):
        figure_graph(pd.concat([table, table.assign(null="uniform")]))
    with pytest.raises(MissingDataError, match="measures speed"):
        figure_graph(table, measures=["speed"])


def test_the_table_is_left_as_it_was():
    table = make_table()
    before = table.copy()
    figure_graph(table)
    pd.testing.assert_frame_equal(table, before)
