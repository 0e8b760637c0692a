"""One theme: fixed styles, sizes on paper, escaping, footnotes."""

from __future__ import annotations

import subprocess
import sys

import plotly.graph_objects as go
import plotly.io as pio
import pytest

from workbench.core.errors import InputError
from workbench.figures.theme import (
    add_footnote,
    column_px,
    describe_methods,
    horizontal_legend,
    method_order,
    method_style,
    mm,
    plain,
    translucent,
    use_theme,
    wrapped,
)

PAPER = ("R", "F", "FM", "FC", "S", "SM", "SC", "H")


def test_importing_the_figures_registers_and_loads_nothing():
    code = (
        "import sys, workbench.figures.theme, workbench.figures.graph, workbench.figures.human, "
        "workbench.figures.trace, workbench.figures.export; "
        "print('plotly' in sys.modules, 'kaleido' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_theme_is_registered_once_and_is_not_the_default(monkeypatch):
    default = pio.templates.default
    name = use_theme()
    first = pio.templates["workbench"]
    assert use_theme() == name == "simple_white+workbench"
    assert pio.templates["workbench"] == first
    assert pio.templates.default == default
    marked = go.layout.Template(first)
    marked.layout.font.size = 99
    monkeypatch.setitem(pio.templates._templates, "workbench", marked)
    use_theme()
    assert pio.templates["workbench"].layout.font.size == 99  # not registered a second time


def test_the_papers_methods_have_distinct_colours():
    colours = {code: method_style(code).colour for code in PAPER}
    assert len(set(colours.values())) == len(PAPER)
    assert colours["H"] == "#000000"
    grey = colours["R"].lstrip("#")
    assert grey[:2] == grey[2:4] == grey[4:]
    okabe_ito = {"#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"}
    assert {colours[code] for code in PAPER[1:-1]} == okabe_ito


@pytest.mark.parametrize("code", ["BM", "SO", "V", "HM", "F:64", "F:128", "XQ", "T", "?"])
def test_any_code_has_a_style_that_never_changes(code):
    style = method_style(code)
    assert style == method_style(code)
    scatter = go.Scatter(
        line={"color": style.colour, "dash": style.dash}, marker={"symbol": style.symbol}
    )
    assert scatter.marker.symbol == style.symbol  # plotly accepts it


def test_refinements_differ_in_dash_and_marker():
    for proposal in "RFSBETPKGVH":
        styles = [method_style(proposal + refinement) for refinement in ("", "M", "C", "O")]
        assert len({style.dash for style in styles}) == 4
        assert len({style.symbol for style in styles}) == 4
    assert method_style("SO").colour == method_style("S").colour


def test_order_is_the_papers():
    assert method_order(reversed(PAPER)) == list(PAPER)
    assert method_order(["H", "X", "V", "SO", "BM", "S", "S", "F:64", "HM"]) == [
        "F:64", "S", "SO", "BM", "V", "X", "H", "HM",
    ]  # fmt: skip


def test_codes_are_explained():
    assert describe_methods(["SM", "F", "H"]) == (
        "F fixed length, S surprisal, H people; M refined by modularity"
    )
    assert describe_methods(["X"]) == ""


def test_sizes_on_paper():
    assert mm(25.4) == pytest.approx(96)
    assert column_px("single") == pytest.approx(90 / 25.4 * 96)
    assert column_px(120) == pytest.approx(120 / 25.4 * 96)
    with pytest.raises(InputError, match=r"width='wide' is not known.*'single'"):
        column_px("wide")
    with pytest.raises(InputError, match="at least 40"):
        column_px(-3)


def test_plain_leaves_no_markup_formula_or_template():
    text = plain('<script>alert("1")</script> & $x$ %{y}')
    assert "<" not in text
    assert ">" not in text
    assert "$" not in text
    assert "%{" not in text
    assert text.startswith("&lt;script&gt;")
    assert '"1"' in text  # plotly does not know &quot;
    assert "&amp;" in text


def test_translucent():
    assert translucent("#0072B2", 0.25) == "rgba(0,114,178,0.25)"


def test_a_legend_that_needs_two_lines_fills_them_evenly():
    names = ["null", *PAPER, "BM"]
    legend, height = horizontal_legend(names, column_px("double"), 80)
    one_line, low = horizontal_legend(names[:4], column_px("double"), 80)
    assert height > low
    room = column_px("double") - 80
    assert 5 * (legend["entrywidth"] + 46) <= room < 6 * (legend["entrywidth"] + 46)
    assert 4 * (one_line["entrywidth"] + 46) <= room


def test_wrapped_lines_fit():
    text = "word " * 200
    lines = wrapped([text], 340, 9.33)
    assert " ".join(lines).split() == text.split()
    assert max(map(len, lines)) * 0.47 * 9.33 <= 340


def figure() -> go.Figure:
    return go.Figure(layout={"width": 400, "height": 300, "margin": {"l": 50, "b": 40}})


def test_footnote_says_provenance_and_whose_boundaries():
    fig = add_footnote(
        figure(),
        provenance=["SmolLM2, 4-bit: not publication", "SmolLM2, 4-bit: not publication", None],
        annotations={"harbour": "author"},
        notes=["Lower is closer."],
    )
    (note,) = fig.layout.annotations
    text = note.text.replace("<br>", " ")
    assert text.count("SmolLM2, 4-bit: not publication.") == 1
    assert "the author's scenes, not people's boundaries" in text
    assert text.startswith("Lower is closer.")
    assert "None" not in text


def test_footnote_names_the_stories_where_kinds_are_mixed():
    fig = add_footnote(figure(), annotations={"a": "people", "b": "author", "c": "author"})
    text = fig.layout.annotations[0].text.replace("<br>", " ")
    assert "Annotation of a: boundaries reported by people." in text
    assert "Annotation of b, c: the author's scenes, not people's boundaries." in text


def test_footnote_adds_its_height_and_escapes():
    fig = add_footnote(figure(), notes=["<b>x</b> " * 60])
    assert fig.layout.height - 300 == pytest.approx(fig.layout.margin.b - 40)
    assert "<b>" not in fig.layout.annotations[0].text
    assert add_footnote(figure()).layout.height == 300


def test_memory_systems_are_told_apart_from_each_other_and_from_methods():
    from workbench.memory.named import SYSTEMS

    codes = [*SYSTEMS, "emllm-SM", "emllm-S+C", "emllm-SC", "emllm-F:64", *PAPER, "F:64"]
    codes = list(dict.fromkeys(codes))
    styles = {code: method_style(code) for code in codes}
    assert len(set(styles.values())) == len(codes)
    assert styles["emllm-SM+C"].colour == styles["SM"].colour
