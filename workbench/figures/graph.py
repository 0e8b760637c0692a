"""Graph measures over layers, as differences from the null (EM-LLM Figure 4A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.core.errors import MissingDataError
from workbench.figures.tables import (
    annotation_kinds,
    choose,
    describe_nulls,
    match_note,
    measure_variants,
    one_row_each,
    require_columns,
)
from workbench.figures.theme import (
    FONT_PX,
    add_footnote,
    column_px,
    describe_methods,
    horizontal_legend,
    method_order,
    method_style,
    mm,
    panel_title,
    plain,
    translucent,
    use_theme,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["figure_graph"]

# Two-sided 5 % of a normal distribution, in standard deviations of the null.
BAND_SD = 1.96
_INTERVALS = {
    True: " Coloured bands: interval of the value.",
    False: " The intervals of the values are not drawn; they are in the table.",
}
_COLUMNS = (
    *("story", "model", "method", "measure", "variant", "layer", "head"),
    *("value", "ci_low", "ci_high", "null", "null_mean", "null_sd", "difference"),
)
_TITLES = {
    "modularity": "Modularity",
    "conductance": "Conductance",
    "intra_inter": "Intra/inter similarity",
}
# Height of one line of the panels' titles.
_HEAD_PX = 18.0


def figure_graph(
    table: pd.DataFrame,
    measures: Sequence[str] = ("modularity", "conductance", "intra_inter"),
    variants: Mapping[str, str] | Sequence[str] | None = None,
    story: str | None = None,
    model: str | None = None,
    *,
    intervals: bool = True,
    width: str | float | None = None,
) -> go.Figure:
    """Graph measures per layer, as differences from the named null (EM-LLM Figure 4A).

    One panel per measure and variant (rows) × story and model (columns). Lines are means over
    the heads of a layer, minus the mean of the method's null; the band of a line is its
    interval. The grey band around zero is ±1.96 standard deviations of the null, at each layer
    the widest of the methods shown; a marker stands where a method is outside of its own.
    Nothing is computed here beyond these differences: every number is the table's.

    Parameters
    ----------
    table : the tidy table of a comparison. Rows with a layer and no head are drawn.
    measures : measures to show, in order; those that are absent are left out.
    variants : {measure: variant}, or a list that may hold several per measure; None: "newman",
        "standard:mean", "sums".
    story, model : show one only.
    intervals : False leaves the intervals out, which can be much wider than the differences, and
        says so in the footnote.
    width : "single", "onehalf", "double" or millimetres; None: 90 mm for one column of panels,
        else 180 mm, wider from four columns on.

    Raises
    ------
    InputError : a column is missing, a name is not in the table, or several rows (nulls, values
        of γ, ...) compete for one mark.
    MissingDataError : the table has no per-layer rows of these measures.
    """
    from plotly.subplots import make_subplots

    require_columns(table, _COLUMNS, "figure_graph")
    chosen = choose(choose(table, "story", story), "model", model)
    rows = chosen[chosen["layer"].notna() & chosen["head"].isna()]
    if rows.empty:
        raise MissingDataError(
            "figure_graph: the table has no rows per layer (layer given, head missing); compare "
            "with graph measures per layer."
        )
    pairs = measure_variants(rows, measures, variants, "figure_graph")
    drawn = pd.concat([rows[(rows["measure"] == m) & (rows["variant"] == v)] for m, v in pairs])
    one_row_each(drawn, ["story", "model", "method", "measure", "variant", "layer"], "figure_graph")
    panels = list(drawn[["story", "model"]].drop_duplicates().itertuples(index=False, name=None))
    methods = method_order(drawn["method"])

    if width is None:
        width = "single" if len(panels) == 1 else max(180.0, 58.0 * len(panels))
    width_px = column_px(width)
    row_px, gap_px = mm(36), mm(5)
    left, right = 72.0, 8.0
    legend, legend_px = horizontal_legend(["null", *methods], width_px, left + right)
    several_models = len({panel[1] for panel in panels}) > 1
    head_px = _HEAD_PX * (1 + several_models)
    plot_px = len(pairs) * row_px + (len(pairs) - 1) * gap_px
    fig = make_subplots(
        rows=len(pairs),
        cols=len(panels),
        shared_xaxes=True,
        vertical_spacing=gap_px / plot_px if len(pairs) > 1 else 0,
        horizontal_spacing=50 / (width_px - left - right) if len(panels) > 1 else 0,
        column_titles=[
            panel_title(*panel, model_too=several_models, room_px=(width_px - left) / len(panels))
            for panel in panels
        ],
    )
    fig.update_annotations(font={"size": FONT_PX})
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=legend_px + head_px + plot_px + 40,
        margin={"l": left, "r": right, "t": legend_px + head_px, "b": 40},
        legend=legend,
    )
    shown: set[str] = set()
    for i, (measure, variant) in enumerate(pairs, start=1):
        for j, (panel_story, panel_model) in enumerate(panels, start=1):
            panel = drawn[
                (drawn["measure"] == measure)
                & (drawn["variant"] == variant)
                & (drawn["story"] == panel_story)
                & (drawn["model"] == panel_model)
            ].sort_values("layer")
            if panel.empty:
                fig.add_annotation(
                    text="not computed", x=0.5, y=0.5, xref="x domain", yref="y domain",
                    row=i, col=j, showarrow=False,
                )  # fmt: skip
                continue
            # From the back: wide intervals, the null's band, lines that nothing dims.
            lines = {method: panel[panel["method"] == method] for method in methods}
            for method in methods if intervals else ():
                _interval(fig, lines[method], method, min(0.13, 0.5 / len(methods)), i, j)
            _null_band(fig, panel, i, j, first="null" not in shown)
            shown.add("null")
            for method in methods:
                if len(lines[method]):
                    _method_line(fig, lines[method], method, i, j, first=method not in shown)
                    shown.add(method)
        title = f"Δ {_TITLES.get(measure, measure)}<br>({plain(variant)})"
        fig.update_yaxes(title_text=title, row=i, col=1)
    ends = drawn["layer"].min() - 0.5, drawn["layer"].max() + 0.5
    fig.update_xaxes(range=[float(end) for end in ends])
    fig.update_xaxes(title_text="Layer", row=len(pairs))
    has_interval = bool(drawn[["ci_low", "ci_high"]].notna().all(axis=1).any())
    notes = [
        f"Δ: mean over a layer's heads minus the mean of the null. Null: {describe_nulls(drawn)}. "
        f"Grey: ±{BAND_SD} sd of the null around zero (the widest of the methods at each layer); "
        "markers: outside the method's own band."
        + (_INTERVALS[intervals] if has_interval else "")
        + " Better separated events: modularity and intra/inter higher, conductance lower.",
        f"{describe_methods(methods)}.",
    ]
    notes.append(match_note(drawn))
    provenance = drawn.get("provenance", ())
    return add_footnote(
        fig, provenance=provenance, annotations=annotation_kinds(drawn), notes=notes, below=36
    )


def _null_band(fig: go.Figure, panel: pd.DataFrame, row: int, col: int, *, first: bool) -> None:
    """The widest null band of the methods at each layer, and the zero line."""
    import plotly.graph_objects as go

    widest = panel.groupby("layer", sort=True)["null_sd"].max()
    layers = widest.index.to_numpy(dtype=float)
    half = BAND_SD * widest.to_numpy(dtype=float)
    layers, half = layers[np.isfinite(half)], half[np.isfinite(half)]
    fig.add_trace(
        go.Scatter(
            x=np.concatenate([layers, layers[::-1]]),
            y=np.concatenate([half, -half[::-1]]),
            fill="toself",
            fillcolor="rgba(90,90,90,0.22)",
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            name="null",
            legendgroup="null",
            showlegend=first,
            meta={"what": "null band"},
        ),
        row=row,
        col=col,
    )
    fig.add_hline(y=0, line={"width": 0.75, "color": "#555555"}, layer="below", row=row, col=col)


def _interval(
    fig: go.Figure, lines: pd.DataFrame, method: str, opacity: float, row: int, col: int
) -> None:
    """The interval of a method's values, moved by the null's mean like the values."""
    import plotly.graph_objects as go

    layer = lines["layer"].to_numpy(dtype=float)
    shift = (lines["difference"] - lines["value"]).to_numpy(dtype=float)
    low = lines["ci_low"].to_numpy(dtype=float) + shift
    high = lines["ci_high"].to_numpy(dtype=float) + shift
    both = np.isfinite(low) & np.isfinite(high)
    if not both.any():
        return
    fig.add_trace(
        go.Scatter(
            x=np.concatenate([layer[both], layer[both][::-1]]),
            y=np.concatenate([high[both], low[both][::-1]]),
            fill="toself",
            fillcolor=translucent(method_style(method).colour, opacity),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            legendgroup=method,
            showlegend=False,
            meta={"what": "interval", "method": method},
        ),
        row=row,
        col=col,
    )


def _method_line(
    fig: go.Figure, lines: pd.DataFrame, method: str, row: int, col: int, *, first: bool
) -> None:
    """One method's line, with markers outside of its own null band."""
    import plotly.graph_objects as go

    style = method_style(method)
    layer = lines["layer"].to_numpy(dtype=float)
    difference = lines["difference"].to_numpy(dtype=float)
    null_sd = lines["null_sd"].to_numpy(dtype=float)
    outside = np.abs(difference) > BAND_SD * null_sd
    hover = [_hover(record) for record in lines.to_dict("records")]
    fig.add_trace(
        go.Scatter(
            x=layer,
            y=difference,
            mode="lines+markers",
            line={"color": style.colour, "dash": style.dash, "width": 1.25},
            marker={
                "symbol": style.symbol,
                "color": style.colour,
                "opacity": np.where(outside, 1.0, 0.0),
                "size": 4,
                "line": {"width": 1 if style.symbol.endswith("-open") else 0},
            },
            name=plain(method),
            legendgroup=method,
            showlegend=False,
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
            meta={"what": "difference", "method": method},
        ),
        row=row,
        col=col,
    )
    if first:
        # The legend's own entry: a trace whose markers are all opaque.
        fig.add_trace(
            go.Scatter(
                x=[None],
                y=[None],
                mode="lines+markers",
                line={"color": style.colour, "dash": style.dash, "width": 1.25},
                marker={
                    "symbol": style.symbol,
                    "color": style.colour,
                    "size": 4,
                    "line": {"width": 1 if style.symbol.endswith("-open") else 0},
                },
                name=plain(method),
                legendgroup=method,
                showlegend=True,
                meta={"what": "legend", "method": method},
            ),
            row=row,
            col=col,
        )


def _hover(record: dict[Any, Any]) -> str:
    def number(name: str) -> str:
        value = record.get(name)
        return "–" if value is None or pd.isna(value) else f"{float(value):.4g}"

    note = record.get("note")
    lines = [
        f"<b>{plain(record['method'])}</b>, layer {int(record['layer'])}",
        f"difference {number('difference')} (value {number('value')}, "
        f"interval {number('ci_low')} to {number('ci_high')})",
        f"null {plain(record['null'])}: mean {number('null_mean')}, sd {number('null_sd')}",
        f"z {number('z')}, p {number('p')}; matched fixed {number('fixed')}",
    ]
    if isinstance(note, str) and note:
        lines.append(plain(note))
    return "<br>".join(lines)
