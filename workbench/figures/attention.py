"""Attention heads: maps of layers × heads, and attention by lag of clusters of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.core.errors import InputError, MissingDataError
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

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from workbench.analysis.head_clusters import HeadClusters

__all__ = ["figure_head_clusters", "figure_heads"]

_STATISTICS = ("layer", "head", "measure", "unit", "value", "ci_low", "ci_high", "provenance")
_INSIDE = (
    *("layer", "head", "null", "value", "ci_low", "ci_high", "null_mean", "null_sd"),
    *("difference", "z", "p", "p_fdr", "n_events", "method", "provenance"),
)
_TITLES = {
    "entropy": "Entropy (nats)",
    "distance": "Distance (tokens)",
    "first": "First tokens (share)",
    "sink": "Learned sink (share)",
    "inside": "In own event (share)",
}
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
_DASHES = ("solid", "5px,2px", "1.5px,1.5px", "6px,2px,1.5px,2px")


def figure_heads(
    statistics: pd.DataFrame,
    inside: pd.DataFrame | None = None,
    *,
    null: str | None = None,
    width: str | float = "double",
) -> go.Figure:
    """Maps of layers × heads: entropy, distance, first tokens, and attention within events.

    The last panel is the share of attention in the token's own event minus its mean under the
    named null; a dot marks the heads that differ from it (false discovery rate 0.05).

    Parameters
    ----------
    statistics : from `analysis.head_attention.head_statistics`; one story and model.
    inside : from `analysis.head_attention.in_event_mass`, of the same heads; None leaves the
        last panel out.
    null : which null of `inside`; may be left out where there is one.
    width : "single" (90 mm), "onehalf" (140 mm), "double" (180 mm) or millimetres.

    Raises
    ------
    InputError : a column is missing, or several stories, models or nulls compete for a panel.
    MissingDataError : no rows.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    require_columns(statistics, _STATISTICS, "figure_heads")
    if statistics.empty:
        raise MissingDataError("figure_heads: the table has no rows.")
    rows = None if inside is None else _one_null(inside, null)
    measures = [name for name in _TITLES if name in set(statistics["measure"])]
    if rows is not None and "inside" in measures:
        measures.remove("inside")  # shown as a difference from its null instead
    titles = [_TITLES[name] for name in measures]
    if rows is not None:
        titles.append("In own event − null (share)")
    width_px, plot_px = column_px(width), mm(62)
    left, right, top, bottom = 40.0, 46.0, 22.0, 34.0
    gap = 58.0 / (width_px - left - right)
    fig = make_subplots(rows=1, cols=len(titles), horizontal_spacing=gap, subplot_titles=titles)
    fig.update_annotations(font={"size": SMALL_PX})
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=top + plot_px + bottom,
        margin={"l": left, "r": right, "t": top, "b": bottom},
    )
    for column, measure in enumerate(measures, start=1):
        table = statistics[statistics["measure"] == measure]
        values, layers, heads = _grid(table, "value")
        hover = _hover_grid(table, layers, heads, _statistics_hover)
        fig.add_trace(
            go.Heatmap(
                z=values,
                x=heads,
                y=layers,
                customdata=hover,
                hovertemplate="%{customdata}<extra></extra>",
                colorscale="Viridis",
                zmin=0,
                colorbar=_bar(fig, column),
            ),
            row=1,
            col=column,
        )
    notes = ["Means over the tokens of the text."]
    if rows is not None:
        column = len(titles)
        values, layers, heads = _grid(rows, "difference")
        reach = float(np.abs(values).max()) or 1.0
        fig.add_trace(
            go.Heatmap(
                z=values,
                x=heads,
                y=layers,
                customdata=_hover_grid(rows, layers, heads, _inside_hover),
                hovertemplate="%{customdata}<extra></extra>",
                colorscale="RdBu",
                reversescale=True,
                zmin=-reach,
                zmax=reach,
                colorbar=_bar(fig, column),
            ),
            row=1,
            col=column,
        )
        sure = rows[rows["p_fdr"] < 0.05]
        fig.add_trace(
            go.Scatter(
                x=sure["head"].to_numpy(dtype=np.int64),
                y=sure["layer"].to_numpy(dtype=np.int64),
                mode="markers",
                marker={"color": "black", "size": 2.5},
                hoverinfo="skip",
                showlegend=False,
            ),
            row=1,
            col=column,
        )
        first = rows.iloc[0]
        notes += [
            f"Own events: {first['method'] or 'given'}, {first['n_events']} events; null: "
            f"{first['null']}; dots: {len(sure)} of {len(rows)} heads differ from it (p < 0.05, "
            "false discovery rate)."
        ]
    fig.update_xaxes(title_text="Head", tickmode="linear", dtick=_step(fig.data[0].x))
    fig.update_yaxes(tickmode="linear", dtick=5, range=_range(fig.data[0].y))
    fig.update_yaxes(title_text="Layer", row=1, col=1)
    notes += [
        f"Story: {story}." for story in dict.fromkeys(statistics.get("story", pd.Series(dtype=str)))
    ]
    return add_footnote(fig, provenance=statistics["provenance"], notes=notes, below=32)


def figure_head_clusters(clusters: HeadClusters, *, width: str | float = "double") -> go.Figure:
    """Attention by lag of each cluster of heads, and where its heads are.

    Left: share of the attention to text tokens per single lag, on two logarithmic axes; line:
    mean of the cluster's heads, band: the middle 80 % of them. Right: map of layers × heads.

    Parameters
    ----------
    clusters : from `analysis.head_clusters.head_clusters`.
    width : "single" (90 mm), "onehalf" (140 mm), "double" (180 mm) or millimetres.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    curves, table = clusters.curves(), clusters.table
    names = [f"{n} ({len(rows)} heads)" for n, rows in table.groupby("cluster")]
    width_px, plot_px = column_px(width), mm(60)
    left, right, bottom = 56.0, 10.0, 36.0
    legend, legend_px = horizontal_legend(names, width_px, left + right)
    fig = make_subplots(rows=1, cols=2, column_widths=[0.64, 0.36], horizontal_spacing=0.1)
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=legend_px + plot_px + bottom,
        margin={"l": left, "r": right, "t": legend_px, "b": bottom},
        legend=legend,
    )
    for number, name in enumerate(names):
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
        curve = curves[curves["cluster"] == number]
        # Lag 0 has no logarithm: it stands at 0.5, and the axis says so.
        middle = np.sqrt(curve["lag_first"].clip(lower=0.5) * curve["lag_last"].clip(lower=0.5))
        floor = 1e-7
        high, low = curve["high"].clip(lower=floor), curve["low"].clip(lower=floor)
        fig.add_trace(
            go.Scatter(
                x=np.concatenate([middle, middle[::-1]]),
                y=np.concatenate([high, low[::-1]]),
                fill="toself",
                fillcolor=translucent(colour, 0.18),
                line={"width": 0},
                hoverinfo="skip",
                legendgroup=name,
                showlegend=False,
            ),
            row=1,
            col=1,
        )
        fig.add_trace(
            go.Scatter(
                x=middle,
                y=curve["value"].clip(lower=floor),
                mode="lines",
                name=name,
                legendgroup=name,
                line={"color": colour, "dash": dash, "width": 1.5},
                customdata=[f"{a}–{b}" for a, b in zip(curve["lag_first"], curve["lag_last"])],
                hovertemplate="lags %{customdata}: %{y:.2g}<extra></extra>",
            ),
            row=1,
            col=1,
        )
    values, layers, heads = _grid(table, "cluster")
    k = len(names)
    scale = [
        [edge, _COLOURS[number % len(_COLOURS)]]
        for number in range(k)
        for edge in (number / k, (number + 1) / k)
    ]
    fig.add_trace(
        go.Heatmap(
            z=values,
            x=heads,
            y=layers,
            zmin=-0.5,
            zmax=k - 0.5,
            colorscale=scale,
            showscale=False,
            xgap=1,
            ygap=1,
            customdata=_hover_grid(table, layers, heads, _cluster_hover),
            hovertemplate="%{customdata}<extra></extra>",
        ),
        row=1,
        col=2,
    )
    ticks = [0.5, 1, 2, 4, 8, 16, 64, 256, 1024, 4096]
    fig.update_xaxes(
        type="log",
        title_text="Lag (tokens)",
        tickvals=ticks,
        ticktext=["0" if tick < 1 else str(tick) for tick in ticks],
        row=1,
        col=1,
    )
    fig.update_yaxes(
        type="log",
        title_text="Share of attention per lag",
        dtick=1,
        exponentformat="power",
        row=1,
        col=1,
    )
    fig.update_xaxes(title_text="Head", tickmode="linear", dtick=_step(heads), row=1, col=2)
    fig.update_yaxes(
        title_text="Layer", tickmode="linear", dtick=5, range=_range(layers), row=1, col=2
    )
    mean, low_end, high_end = clusters.split_half
    notes = [
        f"{k} clusters by {clusters.settings['method']}: mean silhouette "
        f"{clusters.silhouette:.2f}, p = {clusters.p:.3f} against profiles without groups; "
        f"adjusted Rand between random halves of the text {mean:.2f} (95 % of the splits "
        f"{low_end:.2f} to {high_end:.2f}).",
        "The start token and, where there is one, a learned sink are no lag.",
        *[f"Story: {story}." for story in dict.fromkeys(table["story"])],
    ]
    return add_footnote(fig, provenance=table["provenance"], notes=notes, below=34)


# --- parts -----------------------------------------------------------------------------------


def _one_null(inside: pd.DataFrame, null: str | None) -> pd.DataFrame:
    require_columns(inside, _INSIDE, "figure_heads")
    rows = inside[inside["head"].notna()]
    if null is not None:
        rows = rows[rows["null"] == null]
    kinds = list(dict.fromkeys(rows["null"]))
    if rows.empty:
        raise MissingDataError(f"figure_heads: no rows per head under the null {null!r}.")
    if len(kinds) > 1:
        raise InputError(f"figure_heads: several nulls ({', '.join(kinds)}); choose with null=.")
    return rows


def _grid(
    table: pd.DataFrame, column: str
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Values (layers, heads), and the numbers of both."""
    if table.duplicated(["layer", "head"]).any():
        raise InputError(
            "figure: several rows for one head; give the table of one story and one model."
        )
    wide = table.pivot(index="layer", columns="head", values=column)
    return (
        wide.to_numpy(dtype=np.float64),
        wide.index.to_numpy(dtype=np.int64),
        wide.columns.to_numpy(dtype=np.int64),
    )


def _hover_grid(
    table: pd.DataFrame, layers: NDArray[np.int64], heads: NDArray[np.int64], text: Any
) -> list[list[str]]:
    found = {(int(r["layer"]), int(r["head"])): text(r) for r in table.to_dict("records")}
    return [[found.get((int(la), int(he)), "") for he in heads] for la in layers]


def _statistics_hover(record: dict[Any, Any]) -> str:
    return (
        f"layer {record['layer']}, head {record['head']}<br>{plain(record['measure'])} "
        f"{record['value']:.3g} {plain(record['unit'])}<br>95 % over passages "
        f"{record['ci_low']:.3g} … {record['ci_high']:.3g}"
    )


def _inside_hover(record: dict[Any, Any]) -> str:
    return (
        f"layer {record['layer']}, head {record['head']}<br>in own event {record['value']:.3f} "
        f"(95 % over events {record['ci_low']:.3f} … {record['ci_high']:.3f})<br>null "
        f"{plain(record['null'])} {record['null_mean']:.3f} ± {record['null_sd']:.4f} (sd)<br>"
        f"z {record['z']:.2f}, p {record['p']:.3g}, corrected {record['p_fdr']:.3g}"
    )


def _cluster_hover(record: dict[Any, Any]) -> str:
    return (
        f"layer {record['layer']}, head {record['head']}<br>cluster {record['cluster']}, "
        f"silhouette {record['silhouette']:.2f}, stability {record['stability']:.2f}<br>relative "
        f"entropy {record['entropy']:.2f}, first tokens {record['first']:.2f}, lags up to 4: "
        f"{record['near']:.2f}"
    )


def _bar(fig: go.Figure, column: int) -> dict[str, Any]:
    """A narrow colour bar at the right of a panel."""
    axis = fig.layout["xaxis" if column == 1 else f"xaxis{column}"]
    return {
        "x": axis.domain[1] + 3 / float(fig.layout.width),
        "xanchor": "left",
        "xpad": 0,
        "ypad": 0,
        "thickness": 6,
        "len": 1,
        "outlinewidth": 0,
        "nticks": 5,
        "tickfont": {"size": SMALL_PX * 0.9},
        "title": {"text": "", "font": {"size": FONT_PX}},
    }


def _step(values: Any) -> int:
    return max(1, -(-len(values) // 8))


def _range(layers: Any) -> list[float]:
    """The first layer on top, where reading begins."""
    return [float(max(layers)) + 0.5, float(min(layers)) - 0.5]
