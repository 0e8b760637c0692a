"""EM-LLM Figure 4B: distances with their baselines, nothing missing drawn as zero."""

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
from workbench.figures.human import figure_human


def rows_of(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    rows = select(table, **values).set_index("method")
    return rows.loc[[method for method in METHODS if method in rows.index]]


def on(fig, what: str, axis: str, **meta: object) -> list[dict]:
    return [t for t in traces(fig, what, **meta) if t.get("yaxis", "y") == axis]


@pytest.mark.parametrize(("measure", "axis"), [("wasserstein", "y"), ("hamming", "y2")])
def test_marks_are_the_tables_numbers(measure, axis):
    table = make_table()
    fig = figure_human(table.sample(frac=1, random_state=3), story="pieman")
    rows = rows_of(table, story="pieman", measure=measure)
    for x, method in enumerate(METHODS):
        if method == "H":
            assert on(fig, "value", axis, method="H") == []
            continue
        (mark,) = on(fig, "value", axis, method=method)
        row = rows.loc[method]
        assert list(mark["x"]) == [x]
        assert list(mark["y"]) == [row["value"]]
        (interval,) = on(fig, "interval", axis, method=method)
        assert list(interval["x"]) == [x, x]
        assert list(interval["y"]) == [row["ci_low"], row["ci_high"]]
    known = rows.drop(index="H")
    order = np.arange(len(known))
    (null,) = on(fig, "null", axis)
    place = np.argsort(null["x"])
    np.testing.assert_allclose(np.asarray(null["x"])[place] - 0.27, order)
    np.testing.assert_array_equal(np.asarray(null["y"])[place], known["null_mean"])
    np.testing.assert_array_equal(np.asarray(null["error_y"]["array"])[place], known["null_sd"])
    (fixed,) = on(fig, "fixed", axis)
    place = np.argsort(fixed["x"])
    np.testing.assert_allclose(np.asarray(fixed["x"])[place] + 0.27, order)
    np.testing.assert_array_equal(np.asarray(fixed["y"])[place], known["fixed"])


def test_ceiling_is_a_band_where_it_is_known():
    fig = figure_human(make_table(), measures=["wasserstein"])
    (band,) = traces(fig, "ceiling")
    low = np.asarray(band["base"], dtype=float)
    np.testing.assert_allclose(low, 0.07)
    np.testing.assert_allclose(low + band["y"], 0.09)
    assert band.get("xaxis", "x") == "x"  # the author's story has none
    assert "people vs people" in [t.get("name") for t in traces(fig, "legend")]
    alone = figure_human(make_table(), story="harbour")
    assert traces(alone, "ceiling") == []
    assert "people vs people" not in [t.get("name") for t in traces(alone, "legend")]
    assert "How far people are from each other is unknown." in footnote(alone)


def test_methods_stand_in_the_papers_order():
    table = make_table().sort_values("method", ascending=False)
    fig = figure_human(table, measures=["hamming"])
    first, second = (list(axis["ticktext"]) for axis in fig.select_xaxes())
    assert first == list(METHODS)
    assert second == [method for method in METHODS if method != "H"]


def test_a_missing_value_is_absent_with_its_reason():
    table = make_table()
    fig = figure_human(table, story="pieman")
    absent = [a for a in fig.layout.annotations if a.name == "absent"]
    assert [a.x for a in absent] == [METHODS.index("H")] * 2
    assert all(a.text == "– self" and "self" in a.hovertext for a in absent)
    drawn = [y for t in fig.to_dict()["data"] for y in t.get("y", []) if t.get("type") != "bar"]
    assert 0 not in drawn
    long = table.replace({"note": {"self": "no boundary was found in <this> story at all"}})
    (mark, _) = [a for a in figure_human(long, story="pieman").layout.annotations
                 if a.name == "absent"]  # fmt: skip
    assert mark.text == "–"
    assert "no boundary was found in &lt;this&gt; story at all" in mark.hovertext


def test_a_value_without_interval_has_no_bar():
    table = make_table().assign(ci_low=np.nan)
    fig = figure_human(table, story="pieman")
    assert traces(fig, "interval") == []
    assert len(traces(fig, "value")) == 2 * (len(METHODS) - 1)


def test_an_interval_may_lie_beside_the_value():
    table = make_table()
    table["ci_low"], table["ci_high"] = table["value"] + 0.01, table["value"] + 0.02
    fig = figure_human(table, story="pieman", measures=["hamming"])
    value = select(table, story="pieman", measure="hamming", method="S")["value"].item()
    (interval,) = traces(fig, "interval", method="S")
    np.testing.assert_allclose(interval["y"], [value + 0.01, value + 0.02])


def test_titles_say_with_whom():
    fig = figure_human(make_table())
    titles = [a.text for a in fig.layout.annotations]
    assert "<b>pieman (to people)</b>" in titles
    assert "<b>harbour (to the author)</b>" in titles
    text = footnote(fig)
    assert "Annotation of harbour: the author's scenes, not people's boundaries." in text
    assert "rewards even spacing" in text
    assert "Null: lengths (F: shift)." in text
    assert f"{PROVENANCE}." in text
    only_hamming = footnote(figure_human(make_table(), measures=["hamming"]))
    assert "rewards even spacing" not in only_hamming


def test_text_of_the_table_is_escaped():
    table = make_table().replace({"story": {"pieman": "<script>x</script>"}})
    texts = "\n".join(shown_texts(figure_human(table)))
    assert "<script" not in texts
    assert "&lt;script&gt;x&lt;/script&gt; (to people)" in texts


def test_rows_of_layers_are_not_drawn():
    table = make_table()
    with pytest.raises(MissingDataError, match="without layer and head"):
        figure_human(table[table["layer"].notna()])
    with pytest.raises(MissingDataError, match="measures wasserstein, hamming"):
        figure_human(select(table, measure="modularity"))


def test_bad_tables_by_message():
    table = make_table()
    with pytest.raises(InputError, match=r"figure_human needs the column\(s\) ceiling_low"):
        figure_human(table.drop(columns="ceiling_low"))
    with pytest.raises(InputError, match="which differ in match: people, method"):
        figure_human(pd.concat([table, table.assign(match="method")]))


def test_panel_without_any_value_says_why_and_shows_no_scale():
    reason = "the words are printed nearly without punctuation, so the text has no sentences"
    table = make_table()
    gone = (table["measure"] == "hamming") & (table["story"] == "pieman")
    numbers = ["value", "ci_low", "ci_high", "null_mean", "null_sd", "fixed"]
    table.loc[gone, [*numbers, "ceiling_low", "ceiling_high"]] = np.nan
    table.loc[gone, "note"] = reason
    fig = figure_human(table, story="pieman")
    (shown,) = [note for note in fig.layout.annotations if note.name == "empty"]
    assert shown.text.replace("<br>", " ") == reason
    assert fig.layout.yaxis2.showticklabels is False
    assert fig.layout.yaxis.showticklabels is None
