"""Recall: lag curves of people, heads, models and memories; serial position; CMR fits of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.core.errors import InputError
from workbench.figures.tables import require_columns
from workbench.figures.theme import (
    FONT_PX,
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

__all__ = ["figure_head_fits", "figure_lag", "figure_serial"]

_LAG_COLUMNS = ("label", "source", "scale", "lag", "value", "low", "high", "band", "provenance")
_SERIAL_COLUMNS = ("label", "what", "position", "value", "low", "high", "band", "provenance")
_FIT_COLUMNS = (
    *("layer", "head", "matching", "scale", "distance", "beta_enc", "beta_rec", "gamma"),
    *("lag0_peak", "permuted_percentile", "random_walk_percentile", "parametrisation"),
)
# Okabe & Ito, people black as in every figure.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "star")
_DASHES = ("solid", "5px,2px", "1.5px,1.5px", "6px,2px,1.5px,2px")
_GAP_PX = 56.0
_WHAT = {"recall": "Probability of recall", "first": "Probability of first recall"}


def figure_lag(table: pd.DataFrame, *, width: str | float | None = None) -> go.Figure:
    """Lag curves with their bands, one panel per scale (EM-LLM Figure 3: people beside a head).

    Curves of different units never share an axis: a probability given availability, an attention
    score and a probability with replacement each get a panel; rescaled curves share one.

    Parameters
    ----------
    table : from `lag_curve` or `lag_curves`.
    width : "single" (90 mm), "onehalf" (140 mm), "double" (180 mm) or millimetres; None: by the
        number of panels.

    Raises
    ------
    InputError : a column is missing. MissingDataError: no rows.
    """
    require_columns(table, _LAG_COLUMNS, "figure_lag")
    table = table.reset_index(drop=True)  # concatenated tables repeat their row labels
    rescaled = table["scale"].str.startswith("rescaled")
    panel = table["scale"].where(~rescaled, "rescaled to 0 … 1").str.capitalize()
    notes = [
        *_bands(table),
        "Lag: place in study order of an item, minus that of the item recalled before it "
        "(heads: of the token attended to, minus that of the current token).",
    ]
    if rescaled.any():
        notes.append("Curves are shifted and stretched to 0 … 1: compare shapes, not heights.")
    fig = _curves(table, panel, "lag", "Lag", width, notes)
    reach = int(table["lag"].abs().max())
    step = max(1, -(-reach // 5))
    fig.update_xaxes(tickmode="linear", tick0=0, dtick=step, range=[-reach - 0.4, reach + 0.4])
    return fig


def figure_serial(table: pd.DataFrame, *, width: str | float | None = None) -> go.Figure:
    """Serial position curves and probabilities of first recall, one panel each.

    Parameters
    ----------
    table : from `position_curve`; several below each other.
    width : as in `figure_lag`.
    """
    require_columns(table, _SERIAL_COLUMNS, "figure_serial")
    table = table.reset_index(drop=True)
    panel = table["what"].map(_WHAT)
    if panel.isna().any():
        raise InputError(f"figure_serial: what={table['what'][panel.isna()].iloc[0]!r} is unknown.")
    fig = _curves(table, panel, "position", "Study position", width, _bands(table))
    fig.update_yaxes(rangemode="tozero")
    return fig


def figure_head_fits(
    table: pd.DataFrame, *, threshold: float = 0.5, width: str | float = "double"
) -> go.Figure:
    """CMR fits over heads: distance by layer, distance by matching score, fitted drifts.

    Parameters
    ----------
    table : from `head_table`.
    threshold : distance below which a head is called CMR-like (0.5 in Ji-An et al. 2024).
    width : as in `figure_lag`.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    require_columns(table, _FIT_COLUMNS, "figure_head_fits")
    width_px, plot_px = column_px(width), mm(48)
    left, right, bottom = 52.0, 8.0, 36.0
    groups = _head_groups(table, threshold)
    legend, legend_px = horizontal_legend(list(groups), width_px, left + right)
    fig = make_subplots(rows=1, cols=3, horizontal_spacing=_GAP_PX / (width_px - left - right))
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=legend_px + plot_px + bottom,
        margin={"l": left, "r": right, "t": legend_px, "b": bottom},
        legend=legend,
    )
    for number, (name, rows) in enumerate(groups.items()):
        colour = ("#0072B2", "#E69F00", "#B0B0B0")[number]
        symbol = ("circle", "diamond", "circle-open")[number]
        hover = [_head_hover(record) for record in rows.to_dict("records")]
        # Distances of exactly 0 (a head that chains perfectly) have no logarithm.
        distance = rows["distance"].clip(lower=1e-5)
        for column, (x, y) in enumerate(
            [
                (rows["layer"], distance),
                (rows["matching"], distance),
                (rows["beta_enc"], rows["beta_rec"]),
            ],
            start=1,
        ):
            if column == 3 and number == 2:
                continue  # parameters of a fit that does not fit mean nothing
            fig.add_trace(
                go.Scatter(
                    x=x,
                    y=y,
                    mode="markers",
                    name=name,
                    legendgroup=name,
                    showlegend=column == 1,
                    marker={"color": colour, "symbol": symbol, "size": 4.5, "opacity": 0.8},
                    customdata=hover,
                    hovertemplate="%{customdata}<extra></extra>",
                ),
                row=1,
                col=column,
            )
    for column in (1, 2):
        fig.add_hline(y=threshold, line={"width": 0.75, "dash": "2px,2px"}, row=1, col=column)
        fig.update_yaxes(type="log", row=1, col=column, dtick=1)
    fig.update_yaxes(title_text="CMR distance", row=1, col=1)
    fig.update_xaxes(title_text="Layer", row=1, col=1)
    fig.update_xaxes(title_text="Matching score", dtick=0.25, row=1, col=2)
    form = plain(table["parametrisation"].iloc[0])
    fig.update_xaxes(title_text=f"β<sub>enc</sub> ({form})", range=[-0.03, 1.03], row=1, col=3)
    fig.update_yaxes(title_text="β<sub>rec</sub>", range=[-0.03, 1.05], row=1, col=3)
    provenance = table["provenance"] if "provenance" in table.columns else ()
    return add_footnote(fig, provenance=provenance, notes=_fit_notes(table, threshold), below=34)


def _curves(
    table: pd.DataFrame,
    panel: pd.Series[Any],
    x: str,
    x_title: str,
    width: str | float | None,
    notes: list[str],
) -> go.Figure:
    """Lines with bands, one panel per value of `panel`, one colour per label."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels, labels = list(dict.fromkeys(panel)), list(dict.fromkeys(table["label"]))
    if width is None:
        small = "single" if len(labels) <= 2 else "onehalf"
        width = small if len(panels) == 1 else max(140.0, 60.0 * len(panels))
    width_px, plot_px = column_px(width), mm(48)
    left, right, bottom = 52.0, 8.0, 34.0
    legend, legend_px = horizontal_legend([str(label) for label in labels], width_px, left + right)
    fig = make_subplots(
        rows=1,
        cols=len(panels),
        horizontal_spacing=_GAP_PX / (width_px - left - right) if len(panels) > 1 else 0,
    )
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=legend_px + plot_px + bottom,
        margin={"l": left, "r": right, "t": legend_px, "b": bottom},
        legend=legend,
    )
    for number, label in enumerate(labels):
        rows = table[table["label"] == label]
        people = "source" in rows and (rows["source"] == "people").all()
        colour = "#000000" if people and number == 0 else _COLOURS[number % len(_COLOURS)]
        for column, name in enumerate(panels, start=1):
            curve = rows[panel[rows.index] == name].sort_values(x)
            if curve.empty:
                continue
            _band(fig, curve, x, colour, column)
            fig.add_trace(
                go.Scatter(
                    x=curve[x],
                    y=curve["value"],
                    mode="lines+markers",
                    name=plain(label),
                    legendgroup=str(label),
                    showlegend=panel[rows.index[0]] == name,
                    connectgaps=False,
                    line={"color": colour, "width": 1.5, "dash": _DASHES[number % len(_DASHES)]},
                    marker={"symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 4.5},
                    meta={"what": "curve", "label": str(label)},
                    hovertemplate=f"{x} %{{x}}: %{{y:.4g}}<extra>{plain(label)}</extra>",
                ),
                row=1,
                col=column,
            )
    fig.update_yaxes(ticklabeloverflow="allow")  # a number at the very top would be cut in half
    for column, name in enumerate(panels, start=1):
        fig.update_xaxes(title_text=x_title, row=1, col=column)
        fig.update_yaxes(title_text=plain(name), title_font={"size": FONT_PX}, row=1, col=column)
    return add_footnote(fig, provenance=table["provenance"], notes=notes, below=32)


def _band(fig: go.Figure, curve: pd.DataFrame, x: str, colour: str, column: int) -> None:
    """Filled between low and high, in stretches: lag 0, which people have not, leaves a gap."""
    import plotly.graph_objects as go

    known = np.isfinite(curve["low"].to_numpy(float)) & np.isfinite(curve["high"].to_numpy(float))
    for part in _stretches(known):
        at = curve[x].to_numpy(float)[part]
        low, high = curve["low"].to_numpy(float)[part], curve["high"].to_numpy(float)[part]
        fig.add_trace(
            go.Scatter(
                x=np.concatenate([at, at[::-1]]),
                y=np.concatenate([high, low[::-1]]),
                fill="toself",
                fillcolor=translucent(colour, 0.2),
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                showlegend=False,
                legendgroup=str(curve["label"].iloc[0]),
                meta={"what": "band"},
            ),
            row=1,
            col=column,
        )


def _stretches(known: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    places = np.flatnonzero(known)
    return [part for part in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(part)]


def _bands(table: pd.DataFrame) -> list[str]:
    """One sentence that says what each label's band is."""
    said: dict[str, list[str]] = {}
    for label, band in table[["label", "band"]].drop_duplicates().itertuples(index=False):
        said.setdefault(str(band), []).append(str(label))
    return ["Bands: " + "; ".join(f"{', '.join(who)}: {band}" for band, who in said.items()) + "."]


def _head_groups(table: pd.DataFrame, threshold: float) -> dict[str, pd.DataFrame]:
    near = table["distance"] < threshold
    zero = table["lag0_peak"].astype(bool)
    return {
        f"distance < {threshold:g}": table[near & ~zero],
        f"distance < {threshold:g}, peak at lag 0": table[near & zero],
        "other heads": table[~near & table["distance"].notna()],
    }


def _fit_notes(table: pd.DataFrame, threshold: float) -> list[str]:
    fitted = table[table["distance"].notna()]
    near = fitted["distance"] < threshold
    notes = [
        f"Curves: {table['scale'].iloc[0]} scale. {int(near.sum())} of {len(fitted)} heads have a "
        f"distance below {threshold:g}."
    ]
    for column, name in (
        ("permuted_percentile", "their own values at permuted lags"),
        ("random_walk_percentile", "random walks"),
    ):
        if fitted[column].notna().any():
            good = int((near & (fitted[column] <= 0.05)).sum())
            notes.append(f"{good} of these come nearer to CMR than 95 % of {name} do.")
    notes.append(
        "A peak at lag 0 (the token itself) fits CMR without drift; it is no sign of induction."
    )
    return notes


def _head_hover(record: dict[Any, Any]) -> str:
    return (
        f"<b>L{record['layer']}H{record['head']}</b> distance {record['distance']:.3g}<br>"
        f"β_enc {record['beta_enc']:.2f}, β_rec {record['beta_rec']:.2f}, "
        f"γ {record['gamma']:.1f}<br>matching {record['matching']:.3f}"
    )
