"""Pictures of a small stretch of a key graph: its weights, and the search for one boundary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.eventgraph import EventGraph
from workbench.figures.theme import (
    SMALL_PX,
    add_footnote,
    column_px,
    method_style,
    plain,
    use_theme,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["MOST_POSITIONS", "figure_candidates", "figure_similarity"]

MOST_POSITIONS = 400
"""Longest stretch that is drawn: a picture of n² cells."""


def figure_similarity(
    graph: EventGraph,
    events: Mapping[str, Boundaries],
    start: int,
    stop: int,
    *,
    provenance: str = "",
    width: str | float = "double",
) -> go.Figure:
    """Weights of one graph over a stretch of the text, and what of them modularity counts.

    Left A_ij; right (A_ij - d_i d_j / W) / mean A, the part that the degrees do not account for, on
    a scale centred at 0. Events of each method stand along the diagonal as squares.

    Parameters
    ----------
    graph : one graph over all positions.
    events : method → its events.
    start, stop : the stretch, at most 400 positions.
    provenance : sentence on the model, for the footnote.
    width : "single", "onehalf", "double" or millimetres.
    """
    from plotly.subplots import make_subplots

    if graph.n_heads != 1:
        raise InputError(f"figure_similarity: there are {graph.n_heads} graphs; take one.")
    if not 0 <= start < stop <= graph.n or stop - start > MOST_POSITIONS:
        raise InputError(
            f"figure_similarity: {start} ... {stop} must be a stretch of 1 to {MOST_POSITIONS} of "
            f"the {graph.n} positions."
        )
    part = slice(start, stop)
    weights = graph.weights(part, part)
    every = np.arange(graph.n)
    sums = graph.span_sums(every, every + 1)
    degrees, total = sums.degree[:, 0], float(sums.total[0])
    expected = np.outer(degrees[part], degrees[part]) / total
    excess = (weights - expected) / (total / graph.n**2)
    pixels = column_px(width)
    fig = make_subplots(
        rows=1,
        cols=2,
        subplot_titles=["Weights", "Beyond the degrees, in mean weights"],
        horizontal_spacing=0.16,
    )
    off = excess[~np.eye(len(excess), dtype=bool)] if len(excess) > 1 else excess
    reach = float(np.quantile(np.abs(off), 0.99)) or 1.0
    for column, (values, scale) in enumerate([(weights, "Viridis"), (excess, "RdBu_r")], 1):
        limits = {"zmin": -reach, "zmax": reach} if column == 2 else {}
        fig.add_heatmap(
            z=values,
            x0=start,
            dx=1,
            y0=start,
            dy=1,
            colorbar={"len": 0.8, "thickness": 8, "x": 0.42 if column == 1 else 1.0},
            meta={"what": "weights" if column == 1 else "excess"},
            row=1,
            col=column,
            colorscale=scale,
            **limits,
        )
        for method, cut in events.items():
            fig.add_scatter(
                **_squares(cut, start, stop),
                mode="lines",
                line={"color": method_style(method).colour, "width": 1.2},
                name=plain(method),
                legendgroup=method,
                showlegend=column == 1,
                meta={"what": "events", "method": method},
                row=1,
                col=column,
            )
    fig.update_xaxes(title_text="Token", range=[start - 0.5, stop - 0.5])
    fig.update_yaxes(range=[stop - 0.5, start - 0.5])
    fig.update_yaxes(title_text="Token", col=1)
    fig.update_annotations(font_size=SMALL_PX)
    fig.update_layout(
        template=use_theme(),
        width=pixels,
        height=0.5 * pixels,
        margin={"l": 48, "r": 16, "t": 44, "b": 40},
        legend={"orientation": "h", "y": 1.1, "yanchor": "bottom", "x": 0},
    )
    note = f"Similarity {graph.similarity}; squares are events. Colours end at the 99 % quantile."
    return add_footnote(fig, provenance=[provenance], notes=[note])


def figure_candidates(
    positions: ArrayLike,
    scores: ArrayLike,
    original: int,
    chosen: int,
    *,
    random: ArrayLike | None = None,
    title: str = "Modularity of the split",
    provenance: str = "",
    width: str | float = "single",
) -> go.Figure:
    """Score of every candidate for one boundary, the original and the chosen one marked.

    Parameters
    ----------
    positions, scores : the candidates and their scores, shape (candidates,).
    original, chosen : the boundary before and after refinement.
    random : scores of the same candidates when the region's keys are shuffled, shape
        (draws, candidates): the band is their central 95 %.
    """
    import plotly.graph_objects as go

    places, values = np.asarray(positions), np.asarray(scores, dtype=np.float64)
    if places.shape != values.shape or places.ndim != 1 or len(places) == 0:
        raise InputError("figure_candidates: positions and scores must be equally long lists.")
    pixels = column_px(width)
    fig = go.Figure()
    notes = []
    if random is not None:
        low, high = np.quantile(np.asarray(random, dtype=np.float64), [0.025, 0.975], axis=0)
        fig.add_scatter(
            x=np.concatenate([places, places[::-1]]),
            y=np.concatenate([low, high[::-1]]),
            fill="toself",
            fillcolor="rgba(127,127,127,0.25)",
            line={"width": 0},
            name="shuffled",
            meta={"what": "random"},
        )
        notes.append(f"Band: central 95 % of {len(np.asarray(random))} shuffles of the keys.")
    fig.add_scatter(x=places, y=values, mode="lines", name="score", meta={"what": "score"})
    for name, place, symbol in (("original", original, "circle-open"), ("chosen", chosen, "star")):
        here = np.flatnonzero(places == place)
        if len(here):
            fig.add_scatter(
                x=[place],
                y=[values[here[0]]],
                mode="markers",
                marker={"symbol": symbol, "size": 8},
                name=name,
                meta={"what": name},
            )
    fig.update_xaxes(title_text="Candidate (token)")
    fig.update_yaxes(title_text=plain(title))
    fig.update_layout(
        template=use_theme(),
        width=pixels,
        height=0.7 * pixels,
        margin={"l": 64, "r": 8, "t": 28, "b": 40},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )
    return add_footnote(fig, provenance=[provenance], notes=notes)


def _squares(cut: Boundaries, start: int, stop: int) -> dict[str, list[float | None]]:
    """Outlines of the events within a stretch, as one broken line."""
    x: list[float | None] = []
    y: list[float | None] = []
    for first, last in cut:
        if last <= start or first >= stop:
            continue
        a, b = max(first, start) - 0.5, min(last, stop) - 0.5
        x += [a, b, b, a, a, None]
        y += [a, a, b, b, a, None]
    return {"x": x, "y": y}
