"""Distances between methods' and people's boundaries, with baselines (EM-LLM Figure 4B)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
    SMALL_PX,
    add_footnote,
    column_px,
    describe_methods,
    horizontal_legend,
    method_order,
    method_style,
    mm,
    panel_title,
    plain,
    use_theme,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["figure_human"]

_COLUMNS = (
    *("story", "annotation", "model", "method", "measure", "variant", "layer", "head"),
    *("value", "ci_low", "ci_high", "null", "null_mean", "null_sd", "fixed"),
    *("ceiling_low", "ceiling_high", "note"),
)
_TITLES = {
    "wasserstein": "Wasserstein distance",
    "hamming": "Hamming distance",
}
_UNITS = {
    "wasserstein": "Wasserstein distance in shares of the text",
    "hamming": "Hamming distance in shares of the sentence gaps",
}
_WHOM = {"people": "to people", "author": "to the author", "model": "to a model"}
# Where the marks of one method stand beside each other, in units of the distance of two methods.
_AT = {"fixed": -0.27, "value": 0.0, "null": 0.27}
_GREY = "#8C8C8C"
_CEILING = "#D5E8D4"
_HEAD_PX = 18.0


def figure_human(
    table: pd.DataFrame,
    measures: Sequence[str] = ("wasserstein", "hamming"),
    variants: Mapping[str, str] | Sequence[str] | None = None,
    story: str | None = None,
    model: str | None = None,
    *,
    width: str | float | None = None,
) -> go.Figure:
    """Distance of each method's boundaries to people's, or to the author's (EM-LLM Figure 4B).

    One panel per measure (rows) × story and model (columns), methods in the paper's order. For
    each method: its distance with its interval, the mean ± sd of its null, the fixed
    segmentation of the same number of events, and the band that people reach among themselves
    (the ceiling). A distance that is missing is marked as absent, with its reason; it is never
    drawn as zero. No statistics are computed here.

    Parameters
    ----------
    table : the tidy table of a comparison. Rows with neither layer nor head are drawn.
    measures, variants, story, model, width : as in `workbench.figures.graph.figure_graph`.

    Raises
    ------
    InputError : a column is missing, a name is not in the table, or several rows (nulls, values
        of γ, ...) compete for one mark.
    MissingDataError : the table has no rows of these measures.
    """
    from plotly.subplots import make_subplots

    require_columns(table, _COLUMNS, "figure_human")
    chosen = choose(choose(table, "story", story), "model", model)
    rows = chosen[chosen["layer"].isna() & chosen["head"].isna()]
    if rows.empty:
        raise MissingDataError(
            "figure_human: the table has no rows without layer and head; compare with "
            "human measures."
        )
    pairs = measure_variants(rows, measures, variants, "figure_human")
    drawn = pd.concat([rows[(rows["measure"] == m) & (rows["variant"] == v)] for m, v in pairs])
    one_row_each(drawn, ["story", "model", "method", "measure", "variant"], "figure_human")
    panels = list(drawn[["story", "model"]].drop_duplicates().itertuples(index=False, name=None))
    methods = method_order(drawn["method"])
    # An author's story has no H: each column of panels shows the methods it has.
    columns = [
        method_order(drawn.loc[(drawn["story"] == s) & (drawn["model"] == m), "method"])
        for s, m in panels
    ]
    kinds = annotation_kinds(drawn)

    if width is None:
        width = "single" if len(panels) == 1 else max(180.0, 60.0 * len(panels))
    width_px = column_px(width)
    row_px, gap_px = mm(38), mm(9)
    names = _legend_names(drawn)
    left, right = 64.0, 8.0
    legend, legend_px = horizontal_legend(list(names.values()), width_px, left + right)
    several_models = len({panel[1] for panel in panels}) > 1
    head_px = _HEAD_PX * (1 + several_models)
    plot_px = len(pairs) * row_px + (len(pairs) - 1) * gap_px
    fig = make_subplots(
        rows=len(pairs),
        cols=len(panels),
        vertical_spacing=gap_px / plot_px if len(pairs) > 1 else 0,
        horizontal_spacing=36 / (width_px - left - right) if len(panels) > 1 else 0,
        column_titles=[
            panel_title(
                name,
                which,
                model_too=several_models,
                room_px=(width_px - left) / len(panels),
                ending=f" ({_WHOM.get(kinds.get(name, ''), '?')})",
            )
            for name, which in panels
        ],
    )
    fig.update_annotations(font={"size": FONT_PX})
    fig.update_layout(
        template=use_theme(),
        width=width_px,
        height=legend_px + head_px + plot_px + 30,
        margin={"l": left, "r": right, "t": legend_px + head_px, "b": 30},
        legend=legend,
        barmode="overlay",
        bargap=0,
    )
    for i, (measure, variant) in enumerate(pairs, start=1):
        for j, (panel_story, panel_model) in enumerate(panels, start=1):
            panel = drawn[
                (drawn["measure"] == measure)
                & (drawn["variant"] == variant)
                & (drawn["story"] == panel_story)
                & (drawn["model"] == panel_model)
            ]
            _panel(fig, panel, columns[j - 1], i, j)
        title = _TITLES.get(measure, plain(measure))
        fig.update_yaxes(title_text=f"{title}<br>({plain(variant)})", row=i, col=1)
    _legend_entries(fig, names)
    for j, here in enumerate(columns, start=1):
        fig.update_xaxes(
            range=[-0.6, len(here) - 0.4],
            tickmode="array",
            tickvals=list(range(len(here))),
            ticktext=[plain(method) for method in here],
            tickangle=0,
            ticks="",
            col=j,
        )
    fig.update_yaxes(rangemode="tozero")
    provenance = drawn.get("provenance", ())
    return add_footnote(
        fig, provenance=provenance, annotations=kinds, notes=_notes(drawn, methods), below=24
    )


def _notes(drawn: pd.DataFrame, methods: Sequence[str]) -> list[str]:
    units = [text for measure, text in _UNITS.items() if (drawn["measure"] == measure).any()]
    notes = ["; ".join([*units, "lower is closer"]) + f". Null: {describe_nulls(drawn)}."]
    if (drawn["measure"] == "wasserstein").any():
        notes.append(
            "The Wasserstein distance rewards even spacing: compare a method with the fixed "
            "segmentation of as many events (matched fixed), not with zero."
        )
    ceiling = drawn[["ceiling_low", "ceiling_high"]].notna().all(axis=1)
    if not ceiling.any():
        notes.append("How far people are from each other is unknown.")
    elif not ceiling.all():
        notes.append("Green: people against each other; where it is missing, that is unknown.")
    if drawn["value"].isna().any():
        notes.append("– marks a missing value, with its reason.")
    notes += [f"{describe_methods(methods)}.", match_note(drawn)]
    return notes


def _legend_names(drawn: pd.DataFrame) -> dict[str, str]:
    """Marks that occur → what the legend calls them."""
    names = {
        "value": "method, interval",
        "null": "null, mean ± sd",
        "fixed": "matched fixed",
        "ceiling": "people vs people",
    }
    column = {"value": "value", "null": "null_mean", "fixed": "fixed", "ceiling": "ceiling_low"}
    return {mark: name for mark, name in names.items() if drawn[column[mark]].notna().any()}


def _numbers(panel: pd.DataFrame, column: str) -> NDArray[np.float64]:
    return panel[column].to_numpy(dtype=float)


def _panel(
    fig: go.Figure,
    panel: pd.DataFrame,
    methods: Sequence[str],
    row: int,
    col: int,
) -> None:
    """All marks of one measure, story and model."""
    import plotly.graph_objects as go

    def add(trace: Any) -> None:
        fig.add_trace(trace, row=row, col=col)

    place = {method: x for x, method in enumerate(methods)}
    at = panel["method"].map(place).to_numpy(dtype=float)
    hover = [_hover(record) for record in panel.to_dict("records")]
    common: dict[str, Any] = {
        "showlegend": False,
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    low, high = _numbers(panel, "ceiling_low"), _numbers(panel, "ceiling_high")
    known = np.isfinite(low) & np.isfinite(high)
    if known.any():
        add(
            go.Bar(
                x=at[known],
                base=low[known],
                y=(high - low)[known],
                width=1.0,
                marker={"color": _CEILING, "line": {"width": 0}},
                hoverinfo="skip",
                showlegend=False,
                legendgroup="ceiling",
                meta={"what": "ceiling"},
            )
        )
    mean, sd = _numbers(panel, "null_mean"), _numbers(panel, "null_sd")
    known = np.isfinite(mean)
    add(
        go.Scatter(
            x=at[known] + _AT["null"],
            y=mean[known],
            error_y={"array": sd[known], "color": _GREY, "thickness": 1, "width": 2},
            mode="markers",
            marker=_marker("null"),
            legendgroup="null",
            meta={"what": "null"},
            **(common | {"customdata": [h for h, k in zip(hover, known, strict=True) if k]}),
        )
    )
    fixed = _numbers(panel, "fixed")
    known = np.isfinite(fixed)
    add(
        go.Scatter(
            x=at[known] + _AT["fixed"],
            y=fixed[known],
            mode="markers",
            marker=_marker("fixed"),
            legendgroup="fixed",
            meta={"what": "fixed"},
            **(common | {"customdata": [h for h, k in zip(hover, known, strict=True) if k]}),
        )
    )
    for x, text, record in zip(at, hover, panel.to_dict("records"), strict=True):
        value, method = float(record["value"]), record["method"]
        style = method_style(method)
        ends = [float(record["ci_low"]), float(record["ci_high"])]
        if np.isfinite(ends).all():
            # A line of its own: a bootstrap interval need not hold the value.
            add(
                go.Scatter(
                    x=[x, x],
                    y=ends,
                    mode="lines",
                    line={"color": style.colour, "width": 1.25},
                    hoverinfo="skip",
                    showlegend=False,
                    legendgroup="value",
                    meta={"what": "interval", "method": method},
                )
            )
        if np.isfinite(value):
            add(
                go.Scatter(
                    x=[x],
                    y=[value],
                    mode="markers",
                    marker={
                        "symbol": style.symbol,
                        "color": style.colour,
                        "size": 7,
                        "line": {"width": 1.5 if style.symbol.endswith("-open") else 0},
                    },
                    name=plain(method),
                    legendgroup="value",
                    meta={"what": "value", "method": method},
                    **(common | {"customdata": [text]}),
                )
            )
        else:
            _absent(fig, float(x), str(record["note"] or ""), text, row, col)
    if panel["value"].isna().all():
        _empty(fig, panel, row, col)


def _empty(fig: go.Figure, panel: pd.DataFrame, row: int, col: int) -> None:
    """A panel without any value: the reason in its middle, and no axis that means nothing."""
    reasons = [note for note in dict.fromkeys(panel["note"].astype(str)) if len(note) > 22]
    reason = reasons[0] if reasons else "no values"
    fig.update_yaxes(showticklabels=False, ticks="", row=row, col=col)
    fig.add_annotation(
        name="empty",
        x=0.5,
        y=0.55,
        xref="x domain",
        yref="y domain",
        text="<br>".join(plain(line) for line in textwrap.wrap(reason, 28)),
        font={"size": SMALL_PX, "color": "#555555"},
        showarrow=False,
        row=row,
        col=col,
    )


def _absent(fig: go.Figure, x: float, note: str, hover: str, row: int, col: int) -> None:
    """A method without a value: a dash, its reason beside it where it is short."""
    reason = "– " + (note if 0 < len(note) <= 22 else "")
    fig.add_annotation(
        name="absent",
        x=x,
        y=0,
        yref="y domain",
        yanchor="bottom",
        textangle=-90,
        text=plain(reason.strip()),
        font={"size": SMALL_PX, "color": "#555555"},
        showarrow=False,
        hovertext=hover,
        captureevents=True,
        row=row,
        col=col,
    )


def _marker(mark: str) -> dict[str, Any]:
    if mark == "ceiling":
        return {"symbol": "square", "color": _CEILING, "size": 11}
    if mark == "value":
        return {"symbol": "circle", "color": "#000000", "size": 7}
    if mark == "null":
        return {"symbol": "line-ew", "size": 7, "line": {"width": 1.5, "color": _GREY}}
    return {"symbol": "diamond-open", "color": "#555555", "size": 6, "line": {"width": 1}}


def _legend_entries(fig: go.Figure, names: Mapping[str, str]) -> None:
    """One entry per kind of mark; a click hides that kind in every panel."""
    import plotly.graph_objects as go

    for mark, name in names.items():
        fig.add_trace(
            go.Scatter(
                x=[None],
                y=[None],
                mode="markers",
                marker=_marker(mark),
                name=name,
                legendgroup=mark,
                meta={"what": "legend"},
            )
        )


def _hover(record: Mapping[Any, Any]) -> str:
    def number(column: str) -> str:
        value = record.get(column)
        return "–" if value is None or pd.isna(value) else f"{float(value):.4g}"

    note = record.get("note")
    lines = [
        f"<b>{plain(record['method'])}</b>: {number('value')} "
        f"(interval {number('ci_low')} to {number('ci_high')})",
        f"null {plain(record['null'])}: {number('null_mean')} ± {number('null_sd')}, "
        f"p {number('p')}",
        f"matched fixed: {number('fixed')}",
        f"people vs people: {number('ceiling_low')} to {number('ceiling_high')}",
        f"events: {number('n_events')}",
    ]
    if isinstance(note, str) and note:
        lines.append(plain(note))
    return "<br>".join(lines)
