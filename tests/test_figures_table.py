"""Choosing the rows of a figure; the synthetic table that the other figure tests draw."""

from __future__ import annotations

import base64
import json

import numpy as np
import pandas as pd
import pytest

from workbench.comparison.table import HEADLINE
from workbench.core.errors import InputError, MissingDataError
from workbench.figures.tables import (
    PREFERRED_VARIANTS,
    annotation_kinds,
    choose,
    describe_nulls,
    match_note,
    measure_variants,
    one_row_each,
    require_columns,
)

PROVENANCE = "A small model: for demonstration and tests, not publication"
METHODS = ("R", "F", "FM", "S", "SM", "SC", "H")
VARIANTS = {
    "modularity": ("newman", "em-llm"),
    "conductance": ("standard:min", "standard:mean"),
    "intra_inter": ("sums", "means"),
}


def make_table(n_layers: int = 5, heads: int = 2, seed: int = 0) -> pd.DataFrame:
    """Two stories (people's and an author's) × methods, all rows of a comparison's table."""
    rng = np.random.default_rng(seed)
    rows = []
    for story, kind in (("pieman", "people"), ("harbour", "author")):
        for method in METHODS:
            if method == "H" and kind == "author":
                continue
            base = {
                "story": story,
                "annotation": kind,
                "model": "tiny",
                "method": method,
                "gamma": 1.0,
                "null": "shift" if method == "F" else "lengths",
                "match": "people",
                "n_events": 19,
                "seed": 0,
                "provenance": PROVENANCE,
                "note": "",
            }
            for measure, variants in VARIANTS.items():
                for variant in variants:
                    places = [(la, h) for la in range(n_layers) for h in [*range(heads), pd.NA]]
                    for layer, head in [*places, (pd.NA, pd.NA), (-1, -1)]:
                        value, null_mean, sd = [*rng.normal(size=2).tolist(), rng.uniform(0.1, 2)]
                        rows.append(
                            base
                            | {
                                "measure": measure,
                                "variant": variant,
                                "layer": layer,
                                "head": head,
                                "value": value,
                                "ci_low": value - 0.3,
                                "ci_high": value + 0.2,
                                "null_mean": null_mean,
                                "null_sd": sd,
                                "difference": value - null_mean,
                                "z": (value - null_mean) / sd,
                                "p": 0.2,
                                "fixed": 0.1,
                                "ceiling_low": np.nan,
                                "ceiling_high": np.nan,
                            }
                        )
            for measure, variant in (("wasserstein", "sigma=0"), ("hamming", "sentence-gaps")):
                itself = method == "H"
                value, null_mean = rng.uniform(0.05, 0.2, size=2)
                value = np.nan if itself else value
                rows.append(
                    base
                    | {
                        "measure": measure,
                        "variant": variant,
                        "layer": pd.NA,
                        "head": pd.NA,
                        "value": value,
                        "ci_low": value - 0.01,
                        "ci_high": value + 0.03,
                        "null_mean": np.nan if itself else null_mean,
                        "null_sd": np.nan if itself else 0.02,
                        "difference": value - null_mean,
                        "z": 1.0,
                        "p": 0.3,
                        "fixed": np.nan if itself else rng.uniform(0.04, 0.06),
                        "ceiling_low": 0.07 if kind == "people" else np.nan,
                        "ceiling_high": 0.09 if kind == "people" else np.nan,
                        "note": "self" if itself else "",
                    }
                )
    table = pd.DataFrame(rows)
    table["layer"] = table["layer"].astype("Int64")
    table["head"] = table["head"].astype("Int64")
    return table


def select(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    for column, value in values.items():
        table = table[table[column] == value]
    return table


def decoded(value):
    """Plotly writes arrays as base64: back to arrays."""
    if isinstance(value, dict) and "bdata" in value:
        array = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
        shape = value.get("shape")
        return array if shape is None else array.reshape([int(k) for k in shape.split(",")])
    if isinstance(value, dict):
        return {key: decoded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [decoded(inner) for inner in value]
    return value


def traces(fig, what: str, **meta: object) -> list[dict]:
    """Traces of one kind, as they are written to a file."""
    wanted = {"what": what, **meta}
    drawn = [t for t in fig.to_dict()["data"] if wanted.items() <= (t.get("meta") or {}).items()]
    return decoded(drawn)


def shown_texts(fig) -> list[str]:
    """Every string of a figure that a reader (or a browser) could be shown."""
    found = []

    def walk(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                if key not in ("meta", "legendgroup", "bdata"):
                    walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)
        elif isinstance(value, str):
            found.append(value)

    walk(json.loads(fig.to_json()))
    return found


def footnote(fig) -> str:
    notes = [a for a in fig.layout.annotations if a.name == "footnote"]
    assert len(notes) == 1
    return notes[0].text.replace("<br>", " ")


def test_missing_columns_are_named_with_those_there():
    table = pd.DataFrame({"story": ["a"], "value": [1.0]})
    with pytest.raises(InputError, match=r"figure_x needs the column\(s\) method, layer.*story"):
        require_columns(table, ["story", "method", "layer"], "figure_x")


def test_an_empty_table_is_an_error():
    with pytest.raises(MissingDataError, match="no rows"):
        require_columns(pd.DataFrame({"story": []}), ["story"], "figure_x")


def test_choose_lists_what_there_is():
    table = make_table()
    assert set(choose(table, "story", "pieman")["story"]) == {"pieman"}
    assert choose(table, "story", None) is table
    with pytest.raises(InputError, match=r"story='moth' is not in the table.*'pieman', 'harbour'"):
        choose(table, "story", "moth")


def test_the_usual_variant_is_chosen_else_the_first():
    table = make_table()
    pairs = measure_variants(table, ["modularity", "conductance"], None, "f")
    assert pairs == [("modularity", "newman"), ("conductance", "standard:mean")]
    other = table[table["variant"] != "standard:mean"]
    assert measure_variants(other, ["conductance"], None, "f") == [("conductance", "standard:min")]


def test_figures_and_summaries_prefer_the_same_variants():
    assert PREFERRED_VARIANTS == HEADLINE


def test_variants_by_mapping_and_by_list():
    table = make_table()
    measures = ["modularity", "conductance"]
    assert measure_variants(table, measures, {"modularity": "em-llm"}, "f") == [
        ("modularity", "em-llm"),
        ("conductance", "standard:mean"),
    ]
    assert measure_variants(table, measures, ["standard:min", "standard:mean"], "f") == [
        ("conductance", "standard:min"),
        ("conductance", "standard:mean"),
    ]
    with pytest.raises(InputError, match=r"variant 'x' of modularity .*'newman', 'em-llm'"):
        measure_variants(table, measures, {"modularity": "x"}, "f")
    with pytest.raises(MissingDataError, match=r"f: the table has no rows to draw.*wasserstein"):
        measure_variants(table, ["speed"], None, "f")


def test_competing_rows_are_named_by_what_differs():
    table = make_table()
    rows = select(table, measure="hamming", story="pieman")
    twice = pd.concat([rows, rows.assign(null="uniform", gamma=2.0)])
    with pytest.raises(InputError, match=r"2 rows for method R, which differ in null: lengths, un"):
        one_row_each(twice, ["method"], "f")
    with pytest.raises(InputError, match=r"Keep one, e\.g\. table\[table\['gamma'\] == 1\.0\]"):
        one_row_each(pd.concat([rows, rows.assign(gamma=2.0)]), ["method"], "f")
    with pytest.raises(InputError, match="repeated rows"):
        one_row_each(pd.concat([rows, rows]), ["method"], "f")
    assert one_row_each(rows, ["method"], "f") is rows


def test_nulls_name_the_exception_and_the_draws():
    rows = select(make_table(), measure="hamming")
    assert describe_nulls(rows) == "lengths (F: shift)"
    assert describe_nulls(rows.assign(draws=1000)) == "lengths (F: shift), 1,000 draws"
    rows.attrs["draws"] = 200
    assert describe_nulls(rows) == "lengths (F: shift), 200 draws"
    mixed = rows.copy()
    mixed.loc[(mixed["method"] == "S") & (mixed["story"] == "pieman"), "null"] = "shift"
    assert describe_nulls(mixed) == "lengths (F: shift, S: shift or lengths), 200 draws"
    assert describe_nulls(rows.assign(null=None)) == "none"


def test_kinds_and_matching():
    table = make_table()
    assert annotation_kinds(table) == {"pieman": "people", "harbour": "author"}
    assert annotation_kinds(table.drop(columns="annotation")) == {}
    assert match_note(table) == "Each method has as many events as the annotation (match: people)."
    assert match_note(table.assign(match=None)) == ""
