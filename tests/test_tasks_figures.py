"""Figures of the tasks show the numbers of their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import InputError, MissingDataError
from workbench.figures.tasks import figure_depth_length, figure_perplexity, tokens_short
from workbench.tasks.perplexity import curve_table


def rows(systems=("window", "emllm-<b>S</b>"), lengths=(1000, 4000), seeds=3, task="passkey-fot"):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {
                "system": system,
                "task": task,
                "length": length,
                "depth": depth,
                "seed": seed,
                "correct": bool(rng.random() < 0.5),
                "scoring": "first integer",
            }
            for system in systems
            for length in lengths
            for depth in (0.0, 0.5, 1.0)
            for seed in range(seeds)
            if (system, length, depth) != ("window", 4000, 0.5)
        ]
    )


def test_cells_say_right_of_asked():
    table = rows()
    fig = figure_depth_length(table, provenance=["a model"])
    assert len(fig.data) == 2
    for trace, system in zip(fig.data, ("window", "emllm-<b>S</b>")):
        assert trace.meta["system"] == system
        assert list(trace.x) == ["1k", "4k"]
        assert list(trace.y) == ["0", "0.5", "1"]
        for i, depth in enumerate((0.0, 0.5, 1.0)):
            for j, length in enumerate((1000, 4000)):
                part = table[
                    (table["system"] == system)
                    & (table["length"] == length)
                    & (table["depth"] == depth)
                ]["correct"]
                if part.empty:
                    assert np.isnan(trace.z[i][j])
                    assert trace.text[i][j] == ""
                    assert trace.customdata[i][j] == "not run"
                else:
                    assert trace.z[i][j] == part.mean()
                    assert trace.text[i][j] == f"{part.sum()}/{len(part)}"
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == (0, 1)
    assert fig.layout.yaxis.autorange == "reversed"  # the beginning of the text is at the top
    titles = [a.text for a in fig.layout.annotations]
    assert "<b>emllm-&lt;b&gt;S&lt;/b&gt;</b>" in titles
    (note,) = [a.text for a in fig.layout.annotations if a.name == "footnote"]
    words = note.replace("<br>", " ")
    assert "Task passkey-fot: share of right answers" in words
    assert "rule: first integer" in words
    assert "Wilson" in words
    assert "a model." in words
    assert "not independent" not in words


def test_labelled_keys_are_said_not_to_be_independent():
    fig = figure_depth_length(rows(task="passkey-fot-labelled"))
    (note,) = [a.text for a in fig.layout.annotations if a.name == "footnote"]
    assert "not independent" in note.replace("<br>", " ")


@pytest.mark.parametrize(("count", "n_rows"), [(1, 1), (3, 1), (5, 2)])
def test_panels_are_laid_out(count, n_rows):
    systems = tuple(f"system {i}" for i in range(count))
    fig = figure_depth_length(rows(systems))
    domains = {tuple(fig.layout[f"yaxis{i or ''}"].domain) for i in (None, *range(2, count + 1))}
    assert len(domains) == n_rows


def test_the_measure_is_named():
    table = rows().assign(key_recalled=pd.array([True] * len(rows()), dtype="boolean"))
    fig = figure_depth_length(table, measure="key_recalled")
    (note,) = [a.text for a in fig.layout.annotations if a.name == "footnote"]
    assert "for which the event with the key was recalled" in note.replace("<br>", " ")
    assert np.nanmin(np.array(fig.data[0].z, dtype=float)) == 1


@pytest.mark.parametrize(
    ("count", "text"),
    [(500, "500"), (1000, "1k"), (1500, "1.5k"), (1024, "1,024"), (2_500_000, "2.5M")],
)
def test_numbers_of_tokens(count, text):
    assert tokens_short(count) == text


def test_perplexity_panels():
    rng = np.random.default_rng(0)
    base = rng.normal(3, 1, size=1000)
    nats = {"window": [base], "memory": [base - 0.2]}
    table = curve_table(nats, [500, 1000], block=20, draws=50)
    fig = figure_perplexity(table.assign(provenance="a model"))
    drawn = {(t.meta["what"], t.meta["system"]): t for t in fig.data}
    assert set(drawn) == {("nats", "window"), ("nats", "memory"), ("difference", "memory")}
    assert list(drawn["nats", "window"].x) == ["0–500", "500–1k"]
    assert list(drawn["difference", "memory"].y) == pytest.approx([-0.2, -0.2])
    one = table[table["system"] == "window"]
    bars = drawn["nats", "window"].error_y
    assert list(bars.array) == pytest.approx((one["ci_high"] - one["nats"]).tolist())
    assert list(bars.arrayminus) == pytest.approx((one["nats"] - one["ci_low"]).tolist())
    alone = figure_perplexity(one)
    assert len(alone.data) == 1


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match="needs the column"):
        figure_depth_length(rows().drop(columns="depth"))
    with pytest.raises(MissingDataError):
        figure_depth_length(rows().iloc[:0])
    with pytest.raises(InputError, match="needs the column"):
        figure_perplexity(rows())
