"""Figures to files: offline pages, atomic writes, static pictures with and without a browser."""

from __future__ import annotations

import json
import os
import re
import struct

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from workbench.core.errors import ExportError, InputError
from workbench.figures import export
from workbench.figures.export import find_browser, save_figure, save_figures
from workbench.figures.theme import mm, use_theme
from workbench.figures.trace import figure_trace


@pytest.fixture
def fig() -> go.Figure:
    figure = go.Figure(go.Scatter(x=[0, 1], y=np.array([2.0, 3.0])))
    figure.update_layout(template=use_theme(), width=mm(90), height=mm(60), title="Readable title")
    return figure


@pytest.fixture
def no_browser(monkeypatch, tmp_path):
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(export, "_installed_by_kaleido", lambda: None)


def test_html_needs_no_network_and_is_the_same_every_time(fig, tmp_path):
    first = save_figure(fig, tmp_path / "new" / "a.html")
    second = save_figure(fig, str(tmp_path / "b.HTML"))
    page = first.read_text(encoding="utf-8")
    assert first.read_bytes() == second.read_bytes()
    assert "plotly.js v" in page[:100_000]
    assert not re.search(r"<script[^>]+src=", page)
    assert re.search(r'<div id="workbench-[0-9a-f]{16}"', page)
    fig.update_layout(title="Another")
    other = save_figure(fig, tmp_path / "c.html").read_text(encoding="utf-8")
    ids = [re.search(r'id="(workbench-\w+)"', text) for text in (page, other)]
    assert ids[0]
    assert ids[1]
    assert ids[0][1] != ids[1][1]


def test_json_reads_back(fig, tmp_path):
    path = save_figure(fig, tmp_path / "a.json")
    assert pio.from_json(path.read_text()).to_dict() == pio.from_json(fig.to_json()).to_dict()
    assert json.loads(path.read_text())["layout"]["title"]["text"] == "Readable title"


def test_html_and_json_need_no_browser(fig, tmp_path, no_browser):
    assert find_browser() is None
    paths = save_figures({"a": fig, "b": fig}, tmp_path / "out", ["html", ".json"])
    assert [path.name for path in paths] == ["a.html", "a.json", "b.html", "b.json"]
    assert all(path.stat().st_size for path in paths)


@pytest.mark.parametrize("suffix", ["pdf", "svg", "png"])
def test_without_a_browser_the_error_names_three_remedies(fig, tmp_path, no_browser, suffix):
    with pytest.raises(ExportError) as caught:
        save_figure(fig, tmp_path / f"a.{suffix}")
    message = str(caught.value)
    assert message.startswith(f"Writing {suffix} needs a Chrome or Chromium, and none was found.")
    assert "(1)" in message
    assert "apt-get install chromium" in message
    assert "(2)" in message
    assert "plotly_get_chrome" in message
    assert "(3)" in message
    assert "BROWSER_PATH" in message
    assert ".html" in message
    assert [path.name for path in tmp_path.iterdir()] == []


def test_html_is_written_before_the_missing_browser_stops_the_rest(fig, tmp_path, no_browser):
    with pytest.raises(ExportError, match="Writing pdf, png needs"):
        save_figures({"a": fig}, tmp_path, ["png", "html", "pdf"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_a_wrong_browser_path_is_named(fig, tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nothing"))
    with pytest.raises(ExportError, match=r"BROWSER_PATH='.*nothing' is not an executable"):
        save_figure(fig, tmp_path / "a.png")


def test_browser_path_comes_first_then_the_path(tmp_path, monkeypatch, no_browser):
    chosen, on_path = tmp_path / "mine", tmp_path / "google-chrome"
    for program in (chosen, on_path):
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    assert find_browser() == str(on_path)
    monkeypatch.setenv("BROWSER_PATH", str(chosen))
    assert find_browser() == str(chosen)


def test_a_browser_that_fails_is_an_export_error(fig, tmp_path, monkeypatch):
    async def fail(*_):
        raise RuntimeError("crashed")

    monkeypatch.setattr(export, "find_browser", lambda: "/opt/chrome")
    monkeypatch.setattr(export, "_render", fail)
    with pytest.raises(ExportError, match=r"/opt/chrome could not draw.*RuntimeError: crashed"):
        save_figure(fig, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_the_browser_is_started_once_for_all_pictures(fig, tmp_path, monkeypatch):
    calls = []

    async def render(jobs, browser, dpi):
        calls.append([name for _, name in jobs])
        return [name.encode() for _, name in jobs]

    monkeypatch.setattr(export, "find_browser", lambda: "/opt/chrome")
    monkeypatch.setattr(export, "_render", render)
    paths = save_figures({"a": fig, "b": fig}, tmp_path, ["svg", "html", "png"])
    assert calls == [["svg", "png", "svg", "png"]]
    assert [path.name for path in paths] == [
        "a.svg", "a.html", "a.png", "b.svg", "b.html", "b.png",
    ]  # fmt: skip
    assert (tmp_path / "b.png").read_bytes() == b"png"


def test_a_failed_write_leaves_the_old_file(fig, tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_figure(fig, path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_bad_names_by_message(fig, tmp_path):
    with pytest.raises(InputError, match=r"'a\.jpg': a figure is written as one of \.html"):
        save_figure(fig, tmp_path / "a.jpg")
    with pytest.raises(InputError, match=r"one of \.html"):
        save_figure(fig, tmp_path / "a")
    with pytest.raises(InputError, match=r"figure name '\.\./a' must be a file name"):
        save_figures({"../a": fig}, tmp_path)
    with pytest.raises(InputError, match="dpi=0"):
        save_figure(fig, tmp_path / "a.html", dpi=0)


def test_print_leaves_the_slider_and_its_room_out():
    words = pd.DataFrame({"word": ["a", "b", "c"], "surprisal": [1.0, 2.0, 3.0]})
    figure = figure_trace(words, {"S": [1]})
    spec = export._for_print(figure)
    meta = figure.layout.meta
    assert "rangeslider" not in spec["layout"]["xaxis"]
    assert figure.layout.xaxis.rangeslider.visible  # the figure itself is left as it was
    assert spec["layout"]["height"] == pytest.approx(figure.layout.height - meta["slider_px"])
    (before,) = [a for a in figure.layout.annotations if a.name == "footnote"]
    (after,) = [a for a in spec["layout"]["annotations"] if a["name"] == "footnote"]
    assert after["yshift"] == pytest.approx(before.yshift + meta["slider_px"])
    layout = spec["layout"]
    axes = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
    # 8 px between the panels of 46 mm and 18 px: printed at the size that was designed.
    assert axes == pytest.approx(mm(46) + 8 + 18)


@pytest.mark.browser
def test_one_real_picture_per_format(fig, tmp_path):
    if find_browser() is None:
        pytest.skip("no Chrome or Chromium here")
    svg, png, pdf = save_figures({"a": fig}, tmp_path, ["svg", "png", "pdf"], dpi=192)
    text = svg.read_text(encoding="utf-8")
    assert re.search(r"<text[^>]*>Readable title</text>", text)  # text, not outlines
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert (width, height) == pytest.approx((2 * mm(90), 2 * mm(60)), abs=2)
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF")
    box = re.search(rb"/MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", content)
    assert box is not None
    # 90 × 60 mm in points, and a font that text can be edited with.
    assert float(box[1]) == pytest.approx(90 / 25.4 * 72, abs=1)
    assert float(box[2]) == pytest.approx(60 / 25.4 * 72, abs=1)
    assert re.search(rb"/BaseFont ?/\S+", content)
