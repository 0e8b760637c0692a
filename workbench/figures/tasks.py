"""Tasks of memory systems: right answers over depth and length, perplexity over context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.figures.tables import require_columns
from workbench.figures.theme import (
    FONT_PX,
    SMALL_PX,
    add_footnote,
    column_px,
    horizontal_legend,
    mm,
    plain,
    translucent,
    use_theme,
)
from workbench.tasks.summary import accuracy_table

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["figure_depth_length", "figure_perplexity", "tokens_short"]

_CURVE = (
    *("system", "low_context", "high_context", "nats", "ci_low", "ci_high", "baseline"),
    *("difference", "difference_low", "difference_high", "n_blocks"),
)
# Okabe & Ito, in the order in which systems are given; the first, often the baseline, is grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("solid", "5px,2px", "1.5px,1.5px", "6px,2px,1.5px,2px")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "star")
_MEASURES = {
    "correct": "right answers",
    "contains": "outputs that contain the answer",
    "key_recalled": "answers for which the event with the key was recalled",
}


def tokens_short(count: int) -> str:
    """A number of tokens as short as it can be said exactly: 4000 → "4k", 1024 → "1,024"."""
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if count >= size and count % (size // 10) == 0:
            return f"{count / size:g}{letter}"
    return f"{count:,}"


def figure_depth_length(
    table: pd.DataFrame,
    *,
    measure: str = "correct",
    provenance: Sequence[str] = (),
    width: str | float | None = None,
) -> go.Figure:
    """Heat map of depth by length, one panel per system; each cell says right/asked.

    Parameters
    ----------
    table : rows of `run_grid`.
    measure : "correct", "contains" or "key_recalled".
    provenance : sentences on the model, for the footnote.
    width : "single", "onehalf", "double" or millimetres; None: by the number of panels.
    """
    from plotly.subplots import make_subplots

    require_columns(table, ("system", "task", "length", "depth", "seed", measure), "figure_tasks")
    cells = accuracy_table(table, measure=measure)
    systems = list(dict.fromkeys(table["system"]))
    lengths, depths = sorted(table["length"].unique()), sorted(table["depth"].unique())
    columns = min(len(systems), 3)
    rows = -(-len(systems) // columns)
    if width is None:
        width = "single" if len(systems) == 1 else "onehalf" if len(systems) == 2 else "double"
    width_px = column_px(width)
    left, right, top, bottom, gap = 44.0, 58.0, 22.0, 34.0, 14.0
    panel_px = max(mm(22), len(depths) * mm(6.5))
    between = 44.0
    plot_px = rows * panel_px + (rows - 1) * between
    fig = make_subplots(
        rows=rows,
        cols=columns,
        shared_yaxes=True,
        subplot_titles=[f"<b>{plain(system)}</b>" for system in systems],
        horizontal_spacing=gap / (width_px - left - right),
        vertical_spacing=between / plot_px if rows > 1 else 0,
    )
    for number, system in enumerate(systems):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        fig.add_heatmap(
            **_cells(cells[cells["system"] == system], lengths, depths),
            coloraxis="coloraxis",
            texttemplate="%{text}",
            xgap=1,
            ygap=1,
            meta={"what": "cells", "system": str(system)},
            hovertemplate="%{customdata}<extra></extra>",
            **place,
        )
        last_row = number + columns >= len(systems)
        title = "Tokens" if last_row else ""
        fig.update_xaxes(type="category", ticks="", title_text=title, **place)
        fig.update_yaxes(type="category", ticks="", autorange="reversed", **place)
        if place["col"] == 1:
            fig.update_yaxes(title_text="Depth of the key", **place)
    fig.update_annotations(font_size=FONT_PX)
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=top + plot_px + bottom,
        margin={"l": left, "r": right, "t": top, "b": bottom},
        plot_bgcolor="#F2F2F2",
        coloraxis={
            "cmin": 0,
            "cmax": 1,
            "colorscale": "Cividis",
            "colorbar": {
                "title": {"text": "share", "font": {"size": SMALL_PX}},
                "thickness": 8,
                "len": 1.0 if rows == 1 else 0.6,
                "tickvals": [0, 0.5, 1],
                "tickfont": {"size": SMALL_PX},
                "outlinewidth": 0,
            },
        },
    )
    return add_footnote(
        fig, provenance=provenance, notes=_grid_notes(table, cells, measure), below=34
    )


def _cells(cells: pd.DataFrame, lengths: list[int], depths: list[float]) -> dict[str, Any]:
    """Colour, text and hover text of a panel's cells; empty where nothing was asked."""
    shape = (len(depths), len(lengths))
    share = np.full(shape, np.nan)
    text = np.full(shape, "", dtype=object)
    hover = np.full(shape, "not run", dtype=object)
    for cell in cells.to_dict("records"):
        place = depths.index(cell["depth"]), lengths.index(cell["length"])
        share[place] = cell["accuracy"]
        text[place] = f"{cell['right']}/{cell['asked']}"
        hover[place] = (
            f"{plain(cell['system'])}, {cell['length']:,} tokens, depth {cell['depth']:g}<br>"
            f"{cell['right']} of {cell['asked']}: {cell['accuracy']:.0%} "
            f"({cell['low']:.0%} … {cell['high']:.0%})"
        )
    return {
        "x": [tokens_short(int(length)) for length in lengths],
        "y": [f"{depth:g}" for depth in depths],
        "z": share,
        "text": text,
        "customdata": hover,
    }


def _grid_notes(table: pd.DataFrame, cells: pd.DataFrame, measure: str) -> list[str]:
    tasks = ", ".join(dict.fromkeys(table["task"]))
    what = _MEASURES.get(measure, measure)
    notes = [f"Task {tasks}: share of {what}; cells say right/asked. Grey: not run."]
    if measure == "correct" and "scoring" in table:
        rules = ", ".join(dict.fromkeys(table["scoring"]))
        notes.append(f"Right by the rule: {rules}.")
    widest = cells.assign(width=cells["high"] - cells["low"]).nlargest(1, "width").iloc[0]
    notes.append(
        f"A single cell says little: {widest['right']} of {widest['asked']} has a 95 % Wilson "
        f"interval of {widest['low']:.0%} to {widest['high']:.0%}."
    )
    if table["task"].str.endswith("-labelled").any():
        notes.append("Keys of one seed stand in one text, so answers are not independent.")
    return notes


def figure_perplexity(table: pd.DataFrame, *, width: str | float | None = None) -> go.Figure:
    """Nats per token against context, and each system's difference from the baseline.

    Parameters
    ----------
    table : from `perplexity_curve`.
    width : as in `figure_depth_length`.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    require_columns(table, _CURVE, "figure_perplexity")
    systems = list(dict.fromkeys(table["system"]))
    baseline = str(table["baseline"].iloc[0])
    compared = len(systems) > 1
    if width is None:
        width = "onehalf" if compared else "single"
    width_px, plot_px = column_px(width), mm(48)
    left, right, bottom, gap = 48.0, 10.0, 72.0, 58.0
    legend, legend_px = horizontal_legend([str(s) for s in systems], width_px, left + right)
    fig = make_subplots(
        rows=1,
        cols=2 if compared else 1,
        horizontal_spacing=gap / (width_px - left - right) if compared else 0,
    )
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=legend_px + plot_px + bottom,
        margin={"l": left, "r": right, "t": legend_px, "b": bottom},
        legend=legend,
    )
    panels = [("nats", "ci_low", "ci_high", "Nats per token")]
    if compared:
        panels.append(
            ("difference", "difference_low", "difference_high", f"Difference from {baseline}")
        )
    for number, system in enumerate(systems):
        curve = table[table["system"] == system].sort_values("low_context")
        x = [_bin(low, high) for low, high in zip(curve["low_context"], curve["high_context"])]
        colour = _COLOURS[number % len(_COLOURS)]
        for column, (value, low, high, title) in enumerate(panels, start=1):
            if column == 2 and system == baseline:
                continue
            y = curve[value].to_numpy(float)
            fig.add_trace(
                go.Scatter(
                    x=x,
                    y=y,
                    error_y={
                        "array": curve[high].to_numpy(float) - y,
                        "arrayminus": y - curve[low].to_numpy(float),
                        "width": 2,
                        "thickness": 1,
                        "color": translucent(colour, 0.7),
                    },
                    mode="lines+markers",
                    name=plain(system),
                    legendgroup=str(system),
                    showlegend=column == 1,
                    line={"color": colour, "width": 1.5, "dash": _DASHES[number % len(_DASHES)]},
                    marker={"symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 4.5},
                    meta={"what": value, "system": str(system)},
                    hovertemplate=f"%{{x}}: %{{y:.4f}}<extra>{plain(system)}</extra>",
                ),
                row=1,
                col=column,
            )
            fig.update_yaxes(title_text=plain(title), row=1, col=column)
    if compared:
        fig.add_hline(y=0, line={"width": 0.75, "dash": "2px,2px"}, row=1, col=2)
    fig.update_xaxes(type="category", title_text="Tokens read before", tickangle=-30)
    few = table["n_blocks"].min()
    notes = [
        "Bars: 95 % bootstrap over stretches of neighbouring tokens, the same for all systems"
        + (f"; none where there are fewer than 10 (least: {few})." if few < 10 else "."),
        "Bins hold different words of the text, so only differences between systems show what "
        "context is worth; below 0 a system predicts better than the baseline.",
    ]
    return add_footnote(fig, provenance=table.get("provenance", ()), notes=notes, below=bottom)


def _bin(low: int, high: int) -> str:
    return f"{tokens_short(int(low))}–{tokens_short(int(high) + 1)}"
