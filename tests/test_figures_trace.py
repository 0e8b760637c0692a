"""Surprisal over words: places, boundaries, escaping, times."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from test_figures_table import footnote, shown_texts, traces

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError, MissingDataError
from workbench.figures.trace import figure_trace


def make_words(n: int = 60, times: bool = True) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = pd.DataFrame({"word": [f"w{i}" for i in range(n)], "surprisal": rng.gamma(2, 2, n)})
    words["onset"] = np.cumsum(rng.uniform(0.1, 0.5, n)) if times else np.nan
    return words


def one(fig, what: str, **meta: object) -> dict:
    (trace,) = traces(fig, what, **meta)
    return trace


def test_surprisal_over_seconds_where_every_word_has_a_time():
    words = make_words()
    fig = figure_trace(words)
    line = one(fig, "surprisal")
    np.testing.assert_array_equal(line["x"], words["onset"])
    np.testing.assert_array_equal(line["y"], words["surprisal"])
    assert fig.layout.xaxis.title.text == "Time (s)"
    words.loc[7, "onset"] = np.nan
    fig = figure_trace(words)
    np.testing.assert_array_equal(one(fig, "surprisal")["x"], np.arange(60))
    assert fig.layout.xaxis.title.text == "Word"
    with pytest.raises(MissingDataError, match=r'axis="seconds" needs an onset for every word'):
        figure_trace(words, axis="seconds")


def test_no_onset_column_is_words():
    fig = figure_trace(make_words().drop(columns="onset"))
    assert fig.layout.xaxis.title.text == "Word"


def test_boundaries_are_ticks_at_the_words_onsets_in_the_papers_order():
    words = make_words()
    cuts = {"S": [10, 30], "F": Boundaries([0, 20, 40], n=60, unit="word"), "R": [0, 5]}
    fig = figure_trace(words, cuts)
    ticks = {code: one(fig, "boundaries", method=code) for code in cuts}
    np.testing.assert_array_equal(ticks["S"]["x"], words["onset"][[10, 30]])
    np.testing.assert_array_equal(ticks["F"]["x"], words["onset"][[20, 40]])
    np.testing.assert_array_equal(ticks["R"]["x"], words["onset"][[5]])  # word 0 is no boundary
    assert [ticks[code]["y"][0] for code in ("R", "F", "S")] == [0, 1, 2]
    (labels,) = [axis.ticktext for axis in fig.select_yaxes() if axis.ticktext]
    assert list(labels) == ["R", "F", "S"]


def test_people_are_lines_through_all_panels():
    words = make_words()
    fig = figure_trace(words, {"S": [10]}, people=[12, 33])
    lines = one(fig, "annotation")
    np.testing.assert_array_equal(lines["x"], np.repeat(words["onset"][[12, 33]], 3))
    np.testing.assert_array_equal(lines["y"], [0, 1, np.nan, 0, 1, np.nan])
    axis = fig.layout["yaxis" + lines["yaxis"][1:]]
    assert list(axis.domain) == [0, 1]
    assert "Annotation: boundaries reported by people." in footnote(fig)


def test_an_authors_boundaries_are_called_so():
    fig = figure_trace(make_words(), people=[9], kind="author")
    assert "the author's scenes, not people's boundaries" in footnote(fig)
    assert one(fig, "annotation")["hovertemplate"].startswith("Author")
    assert "Annotation" not in footnote(figure_trace(make_words()))


def test_density_in_seconds_and_over_words():
    words = make_words()
    time = np.array([0.0, *words["onset"][[3, 10]], 1e4])
    density = pd.DataFrame({"time": time, "density": [0.1, 0.2, 0.5, 0.3]})
    band = one(figure_trace(words, density=density), "density")
    np.testing.assert_array_equal(band["x"], time)
    np.testing.assert_array_equal(band["y"], density["density"])
    band = one(figure_trace(words, density=density, axis="words"), "density")
    np.testing.assert_allclose(band["x"], [3, 10])  # what lies outside of the words has no place
    np.testing.assert_array_equal(band["y"], [0.2, 0.5])
    with pytest.raises(MissingDataError, match="density over time needs an onset"):
        figure_trace(make_words(times=False), density=density)
    with pytest.raises(InputError, match=r"density=.* needs the column\(s\) density"):
        figure_trace(words, density=density.rename(columns={"density": "share"}))


def test_running_mean_leaves_out_unknown_words():
    words = make_words(9)
    words["surprisal"] = [np.nan, 1, 2, 3, 4, 5, 6, 7, 8]
    fig = figure_trace(words, smooth=3)
    np.testing.assert_allclose(one(fig, "running mean")["y"], [1, 1.5, 2, 3, 4, 5, 6, 7, 7.5])
    assert np.isnan(one(fig, "surprisal")["y"][0])
    assert "Words without surprisal: 1." in footnote(fig)
    assert traces(figure_trace(words, smooth=1), "running mean") == []


def test_hover_shows_the_word_in_its_context():
    fig = figure_trace(make_words(), {"S": [30]})
    wanted = " ".join([*(f"w{i}" for i in range(24, 30)), "<b>w30</b>",
                       *(f"w{i}" for i in range(31, 37))])  # fmt: skip
    assert one(fig, "surprisal")["customdata"][30][1] == wanted
    assert one(fig, "boundaries")["customdata"][0][1] == wanted
    assert one(fig, "surprisal")["customdata"][0][1].startswith("<b>w0</b> w1")


def test_story_text_is_escaped_everywhere():
    words = make_words()
    words.loc[20, "word"] = "<script>alert(1)</script>"
    words.loc[21, "word"] = "<a href='javascript:x'>%{y}$5$</a>"
    fig = figure_trace(
        words,
        {"<i>S": [20]},
        people=[20],
        title="<script>t</script>",
        notes=["<script>n</script>"],
        provenance="<script>p</script>",
    )
    texts = "\n".join(shown_texts(fig))
    assert "<script" not in texts
    assert "<a href" not in texts
    assert "<i>" not in texts
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in texts
    page = fig.to_html(include_plotlyjs=False)
    assert "alert(1)</script>" not in page


def test_the_slider_sees_only_the_surprisal():
    fig = figure_trace(make_words(), {"S": [5]}, people=[9])
    assert fig.layout.xaxis.rangeslider.visible
    assert fig.layout.xaxis2.matches == "x"
    on_first = [t["meta"]["what"] for t in fig.to_dict()["data"] if t.get("xaxis", "x") == "x"]
    assert sorted(on_first) == ["empty", "running mean", "surprisal"]


def test_bad_input_by_message():
    words = make_words()
    with pytest.raises(InputError, match=r"needs the column\(s\) surprisal"):
        figure_trace(words.drop(columns="surprisal"))
    with pytest.raises(InputError, match=r"'S': 60 is not one of the words 0 \.\.\. 59"):
        figure_trace(words, {"S": [3, 60]})
    with pytest.raises(InputError, match=r"'S': -1 is not one"):
        figure_trace(words, {"S": [-1]})
    with pytest.raises(InputError, match=r"over 90 tokens, the story has 60 words.*to_words"):
        figure_trace(words, {"S": Boundaries([0, 4], n=90)})
    with pytest.raises(InputError, match="axis='time' is not known"):
        figure_trace(words, axis="time")
    with pytest.raises(InputError, match="kind='crowd' is not known"):
        figure_trace(words, kind="crowd")
    with pytest.raises(InputError, match="smooth=0"):
        figure_trace(words, smooth=0)
    words.loc[5, "onset"] = 0.0
    with pytest.raises(InputError, match=r"onsets go backwards at word 5 \("):
        figure_trace(words)
