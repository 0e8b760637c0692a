"""What memory systems recall: lag curves by buffer, recency, overlap of layers, capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

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

__all__ = [
    "figure_capacity",
    "figure_layer_overlap",
    "figure_recency",
    "figure_retrieval_lag",
]

_LAG = (
    *("layer", "lag", "prob", "ci_low", "ci_high", "null_mean", "null_sd"),
    *("buffer", "order", "null", "over", "n_steps"),
)
_RECENCY = ("layer", "age", "prob", "ci_low", "ci_high", "chance", "buffer", "over")
_OVERLAP = ("layer", "other", "jaccard", "chance", "n_places", "buffer")
_CAPACITY = (
    *("label", "factor", "value", "system", "n_local", "n_mem", "n_tokens", "chunk"),
    *("difference", "difference_low", "difference_high", "ever"),
    *("asymmetry", "asymmetry_low", "asymmetry_high"),
)
# Okabe & Ito.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "star")
_DASHES = ("solid", "5px,2px", "1.5px,1.5px", "6px,2px,1.5px,2px")
_GREY = "#7F7F7F"
_GAP_PX = 50.0
_BUFFERS = {
    "similarity": "Recalled by similarity",
    "contiguity": "Contiguity buffer",
    "both": "Both buffers",
}
_FACTORS = {
    "n_mem": "Tokens recalled (n<sub>mem</sub>)",
    "share": "Share of the contiguity buffer",
    "gamma": "Threshold γ",
    "n_local": "Local window (n<sub>local</sub>)",
}


def figure_retrieval_lag(
    table: pd.DataFrame,
    *,
    by: str = "source",
    provenance: Sequence[str] = (),
    width: str | float | None = None,
) -> go.Figure:
    """Lag curves of recalled events, one panel per buffer, beside their null.

    Parameters
    ----------
    table : from `retrieval_lag_crp`, several below each other; layer "all" is drawn.
    by : column that names the curves (system, share, ...).
    provenance : sentences on the model, for the footnote.
    width : "single" (90 mm), "onehalf" (140 mm), "double" (180 mm) or millimetres; None: by the
        number of panels.

    Raises
    ------
    InputError : a column is missing, or two rows would share a mark.
    """
    require_columns(table, (*_LAG[1:], by), "figure_retrieval_lag")
    rows = _all_layers(table, "figure_retrieval_lag")
    _one_each(rows, [by, "buffer", "order", "lag"], "figure_retrieval_lag")
    panels = list(dict.fromkeys(zip(rows["buffer"], rows["order"], strict=True)))
    labels = list(dict.fromkeys(rows[by]))
    if width is None:
        width = "single" if len(panels) == 1 else "onehalf" if len(panels) == 2 else "double"
    fig = _panels(len(panels), [*map(str, labels), "null"], width, shared=True)
    for column, (buffer, order) in enumerate(panels, start=1):
        here = rows[(rows["buffer"] == buffer) & (rows["order"] == order)]
        for number, label in enumerate(labels):
            curve = here[here[by] == label].sort_values("lag")
            if len(curve):
                _null(fig, curve, "lag", "null_mean", column, first=column + number == 1)
                _curve(fig, curve, "lag", str(label), number, column, first=column == 1)
        title = _BUFFERS[buffer] + (", woven" if order == "woven" else "")
        fig.update_xaxes(title_text=f"Lag (events)<br>{title}", row=1, col=column)
    fig.update_yaxes(title_text="Probability given availability", row=1, col=1)
    fig.update_yaxes(rangemode="tozero")
    notes = [
        "Lag: place in the text of a recalled event, minus that of the one recalled before it in "
        f"the same retrieval; mean over layers. {_interval(rows)} Dotted: mean of the null "
        f"({_listed(rows['null'])})."
    ]
    if "woven" in set(rows["order"]):
        notes.append(
            "Woven: neighbours of the contiguity buffer stand behind the event they adjoin, which "
            "makes lags of ±1 by construction."
        )
    if set(rows["buffer"]) - {"similarity"} and "log" in set(
        rows.loc[rows["buffer"] != "similarity", "order"]
    ):
        notes.append(
            "The contiguity buffer holds +1 and -1 of an event next to each other, which makes "
            "lags of -2 by construction."
        )
    return add_footnote(fig, provenance=_said(rows, provenance), notes=notes, below=46)


def figure_recency(
    table: pd.DataFrame,
    *,
    by: str = "source",
    provenance: Sequence[str] = (),
    width: str | float = "single",
) -> go.Figure:
    """Probability that an event is recalled against its age, beside chance.

    Parameters
    ----------
    table : from `recency`; layer "all" is drawn.
    by, provenance, width : as in `figure_retrieval_lag`.
    """
    require_columns(table, (*_RECENCY[1:], by), "figure_recency")
    rows = _all_layers(table, "figure_recency")
    _one_each(rows, [by, "age"], "figure_recency")
    labels = list(dict.fromkeys(rows[by]))
    fig = _panels(1, [*map(str, labels), "chance"], width)
    for number, label in enumerate(labels):
        curve = rows[rows[by] == label].sort_values("age")
        _null(fig, curve, "age", "chance", 1, first=number == 0, name="chance")
        _curve(fig, curve, "age", str(label), number, 1, first=True, markers=False)
    fig.update_xaxes(title_text="Age (events stored since)", row=1, col=1)
    fig.update_yaxes(title_text="Probability of recall", rangemode="tozero", row=1, col=1)
    notes = [
        f"Buffer: {_listed(rows['buffer'])}; all layers. Only retrievals at which an event of that "
        f"age was stored count. {_interval(rows)} Dotted: the same number of events at random."
    ]
    return add_footnote(fig, provenance=_said(rows, provenance), notes=notes, below=32)


def figure_layer_overlap(
    table: pd.DataFrame, *, provenance: Sequence[str] = (), width: str | float = "single"
) -> go.Figure:
    """How far layers recall the same events: a heat map, layer by layer.

    Parameters
    ----------
    table : from `layer_overlap`, of one system.
    provenance, width : as in `figure_retrieval_lag`.
    """
    import plotly.graph_objects as go

    require_columns(table, _OVERLAP, "figure_layer_overlap")
    _one_each(table, ["layer", "other"], "figure_layer_overlap")
    layers = sorted(set(table["layer"]))
    wide = table.pivot_table(index="layer", columns="other", values="jaccard", dropna=False)
    wide = wide.reindex(index=layers, columns=layers)
    known = table[table["jaccard"].notna()]
    if known.empty:
        raise MissingDataError(
            "figure_layer_overlap: no place where layers chose differently; every event was "
            "recalled by all of them."
        )
    width_px = column_px(width)
    left, right, top, bottom = 44.0, 62.0, 8.0, 34.0
    plot_px = width_px - left - right
    fig = go.Figure(
        go.Heatmap(
            z=wide.to_numpy(float),
            x=layers,
            y=layers,
            zmin=0,
            zmax=1,
            colorscale="Cividis",
            hoverongaps=False,
            hovertemplate="layers %{y} and %{x}: %{z:.3f}<extra></extra>",
            colorbar={
                "title": {"text": "Jaccard", "font": {"size": SMALL_PX}},
                "thickness": 8,
                "tickvals": [0, 0.5, 1],
                "tickfont": {"size": SMALL_PX},
                "outlinewidth": 0,
            },
            meta={"what": "overlap"},
        )
    )
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=top + plot_px + bottom,
        margin={"l": left, "r": right, "t": top, "b": bottom},
        plot_bgcolor="#F2F2F2",
    )
    fig.update_xaxes(title_text="Layer")
    fig.update_yaxes(title_text="Layer", autorange="reversed")
    notes = [
        f"Events that both layers recalled at one place in the text, over those that one of them "
        f"did ({_listed(table['buffer'])}); mean over up to {int(table['n_places'].max())} places. "
        f"Mean over pairs {known['jaccard'].mean():.2f}; as many events at random: "
        f"{known['chance'].mean():.2f}."
    ]
    return add_footnote(fig, provenance=_said(table, provenance), notes=notes, below=32)


def figure_capacity(
    table: pd.DataFrame, *, provenance: Sequence[str] = (), width: str | float | None = None
) -> go.Figure:
    """Surprisal, reach of recall and its direction against the settings of a memory.

    One column of panels per factor; rows: difference of mean surprisal from the base setting
    (lower is better), share of stored events that were ever recalled, forward asymmetry.

    Parameters
    ----------
    table : of `capacity_sweep`.
    provenance, width : as in `figure_retrieval_lag`.
    """
    from plotly.subplots import make_subplots

    require_columns(table, _CAPACITY, "figure_capacity")
    rows = table[table["factor"] != "base"]
    if rows.empty:
        raise MissingDataError("figure_capacity: the table has the base setting only.")
    _one_each(rows, ["factor", "value"], "figure_capacity")
    factors = [factor for factor in _FACTORS if factor in set(rows["factor"])]
    measures = (
        ("difference", "difference_low", "difference_high", "Δ surprisal (nats)"),
        ("ever", None, None, "Ever recalled"),
        ("asymmetry", "asymmetry_low", "asymmetry_high", "Asymmetry"),
    )
    if width is None:
        width = ("single", "onehalf", "double", "double")[len(factors) - 1]
    width_px, panel_px, between = column_px(width), mm(28), 12.0
    left, right, top, bottom = 56.0, 10.0, 8.0, 50.0
    plot_px = 3 * panel_px + 2 * between
    gap = 24.0 / (width_px - left - right) if len(factors) > 1 else 0
    fig = make_subplots(
        rows=3,
        cols=len(factors),
        shared_yaxes=True,
        shared_xaxes=True,
        horizontal_spacing=gap,
        vertical_spacing=between / plot_px,
    )
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=top + plot_px + bottom,
        margin={"l": left, "r": right, "t": top, "b": bottom},
        showlegend=False,
    )
    for column, factor in enumerate(factors, start=1):
        part = rows[rows["factor"] == factor].sort_values("value")
        for line, (value, low, high, _) in enumerate(measures, start=1):
            fig.add_scatter(
                x=part["value"],
                y=part[value],
                mode="lines+markers",
                line={"color": _COLOURS[0], "width": 1.5},
                marker={"size": 4.5},
                error_y=_bars(part, value, low, high),
                customdata=part["label"],
                meta={"what": value, "factor": factor},
                hovertemplate="%{customdata}: %{y:.4g}<extra></extra>",
                row=line,
                col=column,
            )
            if value != "ever":
                fig.add_hline(y=0, line={"width": 0.75, "dash": "2px,2px"}, row=line, col=column)
        fig.update_xaxes(title_text=_FACTORS[factor], row=3, col=column)
        if factor in ("n_mem", "n_local"):
            fig.update_xaxes(tickvals=part["value"], tickangle=-60, col=column)
        if factor == "n_local":
            fig.update_xaxes(type="log", col=column)
    for line, (_, _, _, title) in enumerate(measures, start=1):
        fig.update_yaxes(title_text=title, title_font={"size": FONT_PX}, row=line, col=1)
    fig.update_yaxes(range=[0, 1.05], row=2)
    ends = rows[["asymmetry", "asymmetry_low", "asymmetry_high"]].abs().max().max()
    reach = 1.1 * max(0.2, 0.0 if pd.isna(ends) else float(ends))
    fig.update_yaxes(range=[-reach, reach], row=3)
    notes = [_capacity_note(table, rows)]
    return add_footnote(fig, provenance=_said(table, provenance), notes=notes, below=48)


def _capacity_note(table: pd.DataFrame, rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    base = table[table["factor"] == "base"]
    said = f"{first['system']} on the same {int(first['n_tokens']):,} tokens, read in chunks of "
    said += f"{int(first['chunk'])}"
    if len(base):
        values = base.iloc[0]
        said += f"; base: n_local {int(values['n_local'])}, n_mem {int(values['n_mem'])}"
    said += (
        ". Δ: mean surprisal minus that at the base, bars 95 % bootstrap over blocks of tokens. "
        "Ever recalled: of the stored events, by any layer. Asymmetry: (f - b) / (f + b) of the "
        "lag-CRP of events recalled by similarity at +1 and -1, bars 95 % over retrieval steps."
    )
    local = rows[rows["factor"] == "n_local"]
    if len(local):
        sums = sorted({int(n) for n in local["n_local"] + local["n_mem"]})
        said += f" Local windows at n_local + n_mem = {', '.join(map(str, sums))}."
    return said


def _bars(part: pd.DataFrame, value: str, low: str | None, high: str | None) -> dict[str, Any]:
    if low is None or high is None:
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": part[high] - part[value],
        "arrayminus": part[value] - part[low],
        "thickness": 0.75,
        "width": 2,
    }


# --- parts ---------------------------------------------------------------------------------


def _panels(n: int, names: list[str], width: str | float, *, shared: bool = False) -> go.Figure:
    from plotly.subplots import make_subplots

    width_px, plot_px = column_px(width), mm(48)
    left, right, bottom = 52.0, 8.0, 34.0 if n == 1 and not shared else 48.0
    # Capitals are wider than the legend's estimate of a character.
    legend, legend_px = horizontal_legend([f"{name}  " for name in names], width_px, left + right)
    gap = (16.0 if shared else _GAP_PX) / (width_px - left - right) if n > 1 else 0
    fig = make_subplots(rows=1, cols=n, shared_yaxes=shared, horizontal_spacing=gap)
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=legend_px + plot_px + bottom,
        margin={"l": left, "r": right, "t": legend_px, "b": bottom},
        legend=legend,
    )
    return fig


def _curve(
    fig: go.Figure,
    curve: pd.DataFrame,
    x: str,
    label: str,
    number: int,
    column: int,
    *,
    first: bool,
    markers: bool = True,
) -> None:
    """A line with its interval; undefined places (lag 0) leave a gap."""
    colour = _COLOURS[number % len(_COLOURS)]
    known = curve["ci_low"].notna() & curve["ci_high"].notna()
    for _, part in curve[known].groupby((~known).cumsum()[known]):
        fig.add_scatter(
            x=[*part[x], *part[x][::-1]],
            y=[*part["ci_high"], *part["ci_low"][::-1]],
            fill="toself",
            fillcolor=translucent(colour, 0.18),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            legendgroup=label,
            meta={"what": "band", "label": label},
            row=1,
            col=column,
        )
    fig.add_scatter(
        x=curve[x],
        y=curve["prob"],
        mode="lines+markers" if markers else "lines",
        name=plain(label),
        legendgroup=label,
        showlegend=first,
        connectgaps=False,
        line={"color": colour, "width": 1.5, "dash": _DASHES[number % len(_DASHES)]},
        marker={"symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 4.5},
        meta={"what": "curve", "label": label},
        hovertemplate=f"{x} %{{x}}: %{{y:.4g}}<extra>{plain(label)}</extra>",
        row=1,
        col=column,
    )


def _null(
    fig: go.Figure,
    curve: pd.DataFrame,
    x: str,
    y: str,
    column: int,
    *,
    first: bool,
    name: str = "null",
) -> None:
    fig.add_scatter(
        x=curve[x],
        y=curve[y],
        mode="lines",
        name=name,
        legendgroup=name,
        showlegend=first,
        connectgaps=False,
        line={"color": _GREY, "width": 1, "dash": "1.5px,1.5px"},
        meta={"what": "null"},
        hoverinfo="skip",
        row=1,
        col=column,
    )


def _all_layers(table: pd.DataFrame, figure: str) -> pd.DataFrame:
    """Rows of all layers together; a table without the column has no others."""
    rows = table if "layer" not in table else table[table["layer"] == "all"]
    if rows.empty:
        raise MissingDataError(f"{figure}: the table has no rows of layer 'all'.")
    return rows.reset_index(drop=True)


def _one_each(rows: pd.DataFrame, keys: list[str], figure: str) -> None:
    repeated = rows[rows.duplicated(keys)]
    if len(repeated):
        place = ", ".join(f"{key} {repeated.iloc[0][key]}" for key in keys)
        raise InputError(
            f"{figure}: several rows for {place}; keep one of each, or name the column that tells "
            "them apart."
        )


def _interval(rows: pd.DataFrame) -> str:
    if rows["ci_low"].isna().all():
        return "No intervals: too few retrieval steps."
    over = {"steps": "retrieval steps", "layers": "layers"}
    named = " or ".join(over[name] for name in dict.fromkeys(rows["over"]))
    return f"Bands: bootstrap intervals over {named}."


def _listed(values: pd.Series[Any]) -> str:
    return ", ".join(dict.fromkeys(values.astype(str)))


def _said(table: pd.DataFrame, provenance: Sequence[str]) -> list[str]:
    found = list(provenance)
    if "provenance" in table:
        found += [str(text) for text in table["provenance"].dropna()]
    return found
