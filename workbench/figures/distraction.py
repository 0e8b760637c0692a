"""r_d against the number of documents seen (FOT, Figure 3), and by layer, head and d."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.figures.tables import choose, require_columns
from workbench.figures.theme import (
    SMALL_PX,
    add_footnote,
    column_px,
    horizontal_legend,
    mm,
    plain,
    translucent,
    use_theme,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["figure_distraction", "figure_distraction_layers"]

_COLUMNS = (
    *("layer", "head", "d", "statistic", "queries", "value", "low", "high", "baseline"),
    *("n_documents", "model"),
)
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe & Ito
_DASHES = ("solid", "5px,2px", "1.5px,1.5px", "6px,2px,1.5px,2px", "8px,2px", "3px,3px")


def figure_distraction(
    table: pd.DataFrame,
    *,
    by: str | None = None,
    layers: Sequence[int] | None = None,
    statistic: str = "mean of ratios",
    queries: str = "all",
    width: str | float = "single",
) -> go.Figure:
    """r_d against d on a log axis, with the line of a reader that cannot tell documents apart.

    Parameters
    ----------
    table : of `distraction`; those of several models may be put together.
    by : "layer": a line for each layer (heads together) and, where there are several, one for all;
        "model": a line for each model, all layers together. None: "model" where there are several.
    layers : layers to draw; None: all. Up to six have their 95 % bands; of more, lines are
        coloured by depth, and the band is that of all layers together.
    statistic, queries : which rows.
    width : "single", "onehalf", "double" or millimetres.
    """
    import plotly.graph_objects as go

    rows = _rows(table, statistic, queries, "figure_distraction")
    rows = rows[rows["head"] == -1]
    models = list(dict.fromkeys(rows["model"]))
    by = by or ("model" if len(models) > 1 else "layer")
    check_option("by", by, ("layer", "model"))
    if by == "layer" and len(models) > 1:
        raise InputError(f"by='layer' draws one model; the table has {', '.join(models)}.")

    curves: list[tuple[str, pd.DataFrame, dict[str, Any], bool]] = []
    chosen: list[int] = []
    if by == "model":
        for number, name in enumerate(models):
            style: dict[str, Any] = {
                "color": _COLOURS[number % len(_COLOURS)],
                "dash": _DASHES[number % len(_DASHES)],
            }
            one = rows[(rows["model"] == name) & (rows["layer"] == -1)]
            curves.append((plain(name), one, style, True))
    else:
        chosen = _chosen_layers(rows, layers)
        few = len(chosen) <= len(_COLOURS)
        shades = _shades(len(chosen))
        for number, layer in enumerate(chosen):
            style = (
                {"color": _COLOURS[number], "dash": _DASHES[number]}
                if few
                else {"color": shades[number], "width": 0.9}
            )
            curves.append((f"layer {layer}", rows[rows["layer"] == layer], style, few))
        if len(chosen) > 1 and layers is None:
            curves.append(
                ("all layers", rows[rows["layer"] == -1], {"color": "#000000", "width": 2}, True)
            )
    many = len(chosen) > len(_COLOURS)
    named = [name for name, _, _, legend in curves if legend] + ["1/d"]

    width_px, plot_px = column_px(width), mm(62)
    left, right, bottom = 48.0, 62.0 if many else 10.0, 40.0
    legend, legend_px = horizontal_legend(named, width_px, left + right)
    fig = go.Figure()
    for name, curve, style, shown in curves:
        _add_curve(fig, name, curve.sort_values("d"), style, shown)
    line = rows[["d", "baseline"]].drop_duplicates().sort_values("d")
    fig.add_scatter(
        x=line["d"],
        y=line["baseline"],
        mode="lines",
        name="1/d",
        line={"color": "#7F7F7F", "width": 1, "dash": "2px,2px"},
        meta={"what": "baseline"},
        hovertemplate="d = %{x}: %{y:.4f}<extra>baseline</extra>",
    )
    ticks = sorted(int(d) for d in rows["d"].unique())
    powers = [2.0**-k for k in range(24)]
    lowest = np.nanmin(rows[["value", "baseline"]].to_numpy(float))
    fig.update_xaxes(
        type="log", tickvals=ticks, ticktext=[str(d) for d in ticks], title_text="Documents seen, d"
    )
    fig.update_yaxes(
        type="log",
        title_text="Attention on the own document, r<sub>d</sub>",
        tickvals=powers,
        ticktext=[f"{p:g}" if p >= 0.125 else f"1/{round(1 / p)}" for p in powers],
        range=[np.log10(max(lowest, 1e-7) / 1.3), np.log10(1.15)],
    )
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=legend_px + plot_px + bottom,
        margin={"l": left, "r": right, "t": legend_px, "b": bottom},
        legend=legend,
    )
    if many:
        _depth_bar(fig, chosen)
    return add_footnote(
        fig, provenance=_provenance(table), notes=_notes(rows, statistic, queries), below=bottom
    )


def figure_distraction_layers(
    table: pd.DataFrame,
    *,
    d: int | None = None,
    statistic: str = "mean of ratios",
    queries: str = "all",
    width: str | float = "single",
) -> go.Figure:
    """Heat map of r_d over its baseline: layers by d, or layers by heads for one d.

    Parameters
    ----------
    table : of `distraction`, of one model.
    d : None: layers by d, heads together (d = 1 is left out, since there r_1 = 1).
    statistic, queries : which rows.
    width : as in `figure_distraction`.
    """
    import plotly.graph_objects as go

    rows = _rows(table, statistic, queries, "figure_distraction_layers")
    models = list(dict.fromkeys(rows["model"]))
    if len(models) > 1:
        raise InputError(f"a heat map shows one model; the table has {', '.join(models)}.")
    rows = rows[rows["layer"] >= 0]
    if d is None:
        rows, across, title = rows[(rows["head"] == -1) & (rows["d"] > 1)], "d", "Documents seen, d"
        if rows.empty:
            raise InputError("the table has d = 1 only, for which r_1 = 1 in every layer.")
    else:
        rows = choose(rows, "d", d)  # type: ignore[arg-type]
        rows, across, title = rows[rows["head"] >= 0], "head", "Head"
    ratio = rows.assign(ratio=rows["value"] / rows["baseline"])
    cells = ratio.pivot_table("ratio", "layer", across, dropna=False)
    values = cells.to_numpy(float)
    with np.errstate(divide="ignore"):
        shown = np.log2(np.where(values > 0, values, np.nan))
    reach = max(1.0, float(np.nanmax(np.abs(shown), initial=0.0)))
    steps = np.arange(-int(reach), int(reach) + 1)
    width_px = column_px(width)
    plot_px = max(mm(25), len(cells) * 11.0)
    fig = go.Figure(
        go.Heatmap(
            x=[str(x) for x in cells.columns],
            y=[str(y) for y in cells.index],
            z=shown,
            customdata=values,
            text=[[f"{v:.2f}" if np.isfinite(v) else "" for v in line] for line in values],
            texttemplate="%{text}",
            textfont={"size": SMALL_PX * 0.9},
            zmin=-reach,
            zmax=reach,
            colorscale="RdBu",
            reversescale=True,
            xgap=1,
            ygap=1,
            meta={"what": "ratio"},
            hovertemplate=f"layer %{{y}}, {across} %{{x}}: %{{customdata:.3f}} × baseline"
            "<extra></extra>",
            colorbar={
                "title": {"text": "r<sub>d</sub> · d", "font": {"size": SMALL_PX}},
                "thickness": 8,
                "tickvals": steps,
                "ticktext": [f"{2.0**step:g}" for step in steps],
                "tickfont": {"size": SMALL_PX},
                "outlinewidth": 0,
            },
        )
    )
    left, right, top, bottom = 40.0, 62.0, 10.0, 36.0
    fig.update_xaxes(type="category", ticks="", title_text=title)
    fig.update_yaxes(type="category", ticks="", title_text="Layer", autorange="reversed")
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=top + plot_px + bottom,
        margin={"l": left, "r": right, "t": top, "b": bottom},
        plot_bgcolor="#F2F2F2",
    )
    notes = _notes(rows, statistic, queries)
    bounded = rows.dropna(subset=["low", "high"])
    if len(bounded):
        apart = (bounded["low"] > bounded["baseline"]) | (bounded["high"] < bounded["baseline"])
        notes[1] = (
            f"{apart.sum()} of {len(bounded)} cells have a 95 % bootstrap interval over documents "
            "that leaves out 1 (not corrected for their number)."
        )
    notes[0] = "Cells: r_d over its baseline 1/d; 1: documents are not told apart. " + notes[0]
    if d is not None:
        notes[0] = f"d = {d}. {notes[0]}"
    return add_footnote(fig, provenance=_provenance(table), notes=notes, below=bottom)


def _rows(table: pd.DataFrame, statistic: str, queries: str, name: str) -> pd.DataFrame:
    require_columns(table, _COLUMNS, name)
    return choose(choose(table, "statistic", statistic), "queries", queries)


def _chosen_layers(rows: pd.DataFrame, layers: Sequence[int] | None) -> list[int]:
    known = sorted(int(layer) for layer in rows["layer"].unique() if layer >= 0)
    if layers is None:
        return known
    unknown = [layer for layer in layers if layer not in known]
    if unknown or not layers:
        raise InputError(f"layers {unknown or 'none'}: the table has {known}.")
    return [int(layer) for layer in layers]


def _add_curve(
    fig: go.Figure, name: str, curve: pd.DataFrame, style: dict[str, Any], shown: bool
) -> None:
    banded = curve.dropna(subset=["low", "high"])
    if shown and len(banded):
        fig.add_scatter(
            x=[*banded["d"], *banded["d"][::-1]],
            y=[*banded["high"], *banded["low"][::-1]],
            fill="toself",
            fillcolor=translucent(style["color"], 0.18),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            legendgroup=name,
            meta={"what": "band", "name": name},
        )
    fig.add_scatter(
        x=curve["d"],
        y=curve["value"],
        mode="lines+markers" if shown else "lines",
        name=name,
        legendgroup=name,
        showlegend=shown,
        line={"width": 1.5, **style},
        marker={"size": 4},
        customdata=curve[["low", "high"]],
        meta={"what": "r_d", "name": name},
        hovertemplate="d = %{x}: %{y:.4f} (%{customdata[0]:.4f} … %{customdata[1]:.4f})"
        f"<extra>{name}</extra>",
    )


def _shades(count: int) -> list[str]:
    """Colours from the first layer (dark) to the last (bright)."""
    from plotly.colors import sample_colorscale

    places = np.linspace(0, 0.92, count) if count > 1 else [0.0]
    return list(sample_colorscale("Viridis", list(places)))


def _depth_bar(fig: go.Figure, layers: Sequence[int]) -> None:
    """A colour bar that says which layer a line is of."""
    ends = [layers[0], layers[len(layers) // 2], layers[-1]]
    fig.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        showlegend=False,
        hoverinfo="skip",
        marker={
            "color": [layers[0]],
            "cmin": layers[0],
            "cmax": layers[0] + (layers[-1] - layers[0]) / 0.92,
            "colorscale": "Viridis",
            "showscale": True,
            "colorbar": {
                "title": {"text": "layer", "font": {"size": SMALL_PX}},
                "thickness": 8,
                "tickvals": ends,
                "tickfont": {"size": SMALL_PX},
                "outlinewidth": 0,
            },
        },
        meta={"what": "colours"},
    )


def _provenance(table: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(table["provenance"])) if "provenance" in table else []


def _notes(rows: pd.DataFrame, statistic: str, queries: str) -> list[str]:
    n = sorted({int(count) for count in rows["n_documents"]})
    count = str(n[0]) if len(n) == 1 else f"{n[0]} to {n[-1]}"
    asked = "all queries" if queries == "all" else "queries that predict a token of an answer"
    notes = [
        f"{statistic[0].upper()}{statistic[1:]} over {asked}; {count} documents. Attention to the "
        "own window and to a start token is in neither part."
    ]
    if rows["low"].notna().any():
        notes.append("Intervals: 95 % bootstrap over documents.")
    said = [note for note in dict.fromkeys(rows.get("note", ())) if note]
    if said:
        notes.append(said[0] + (" (and other notes in the table)." if len(said) > 1 else "."))
    return notes
