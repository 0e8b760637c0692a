"""Surprisal over the words of a story, with the boundaries of methods and of people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError, MissingDataError
from workbench.figures.tables import require_columns
from workbench.figures.theme import (
    add_footnote,
    column_px,
    describe_methods,
    method_order,
    method_style,
    mm,
    plain,
    use_theme,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["figure_trace"]

_AXES = ("auto", "words", "seconds")
_WHOSE = {"people": "People", "author": "Author", "model": "Model"}
_GAP_PX = 8.0
# What the range slider needs below the axis, on the screen only, and how much of it plotly adds
# to the bottom margin by itself (the slider and the tick labels above it).
_SLIDER_PX = 58.0
_SLIDER_MARGIN_PX = 46.0
_CONTEXT = 6


def figure_trace(
    words: pd.DataFrame,
    boundaries: Mapping[str, Boundaries | ArrayLike] | None = None,
    people: Boundaries | ArrayLike | None = None,
    density: pd.DataFrame | None = None,
    *,
    kind: str = "people",
    axis: str = "auto",
    smooth: int = 25,
    title: str = "",
    provenance: str | Iterable[str] = (),
    notes: Iterable[str] = (),
    width: str | float = "double",
) -> go.Figure:
    """Surprisal of every word, people's boundaries above, those of methods below.

    Parameters
    ----------
    words : one row per word, in order, with the columns word, surprisal (nats, NaN where
        unknown) and, where there are times, onset (s, NaN where unknown).
    boundaries : method code → the words at which its events start (word 0 is no boundary), as
        `Boundaries` over words or as word numbers.
    people : the words at which the annotated events start; vertical lines through all panels.
    density : people's presses over time, columns time (s) and density (share of people);
        needs word times.
    kind : who made `people`: "people", "author" or "model"; said in the figure.
    axis : "seconds", "words", or "auto": seconds where every word has an onset.
    smooth : words in the running mean drawn over the single words; 1 leaves it out. Words
        without surprisal are not counted.
    title : the story's title or name.
    provenance, notes : sentences for the footnote.
    width : "single", "onehalf", "double" or millimetres.

    Story text is escaped wherever it is shown.

    Raises
    ------
    InputError : a column is missing, a boundary is no word of the story, onsets go backwards.
    MissingDataError : seconds or a density are asked for, and some words have no onset.
    """
    import plotly.graph_objects as go

    require_columns(words, ["word", "surprisal"], "figure_trace")
    check_option("axis", axis, _AXES)
    check_option("kind", kind, _WHOSE)
    if smooth < 1:
        raise InputError(f"smooth={smooth} must be at least 1 word.")
    n = len(words)
    cuts = {code: _positions(events, n, code) for code, events in (boundaries or {}).items()}
    marks = None if people is None else _positions(people, n, kind)
    x, seconds = _axis(words, axis)
    methods = method_order(cuts)

    # Panels from the top, all on one x axis, so that one slider moves them all.
    heights = {"density": mm(16) if density is not None else 0.0, "surprisal": mm(46)}
    heights["methods"] = 12.0 * len(methods) + 6 if methods else 0.0
    heights = {name: height for name, height in heights.items() if height}
    plot_px = sum(heights.values()) + _GAP_PX * (len(heights) - 1)
    width_px = column_px(width)
    left, right, top = 54.0, 10.0, 26.0 if title else 10.0
    fig = go.Figure()
    fig.update_layout(
        template=use_theme(),
        # The lines' panel lies over the others and must not hide them.
        plot_bgcolor="rgba(0,0,0,0)",
        width=width_px,
        height=top + plot_px + 40 + _SLIDER_PX,
        margin={"l": left, "r": right, "t": top, "b": 40 + _SLIDER_PX},
        showlegend=False,
        meta={"slider_px": _SLIDER_PX, "slider_margin_px": _SLIDER_MARGIN_PX},
    )
    if title:
        fig.update_layout(
            title={
                "text": f"<b>{plain(title)}</b>",
                "x": left / width_px,
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "pad": {"t": 6},
            }
        )
    axes = _panels(fig, heights, plot_px)
    if density is not None:
        _density(fig, density, words, x, seconds, axes["density"])
    _surprisal(fig, words, x, smooth, axes["surprisal"])
    for place, code in enumerate(methods):
        _ticks(fig, words, cuts[code], x, code, float(place), axes["methods"])
    if methods:
        fig.update_layout(
            {
                _key(axes["methods"]): {
                    "tickmode": "array",
                    "tickvals": list(range(len(methods))),
                    "ticktext": [plain(code) for code in methods],
                    "range": [len(methods) - 0.4, -0.6],
                    "ticks": "",
                    "showline": False,
                    "fixedrange": True,
                }
            }
        )
    if marks is not None and len(marks):
        _people(fig, words, marks, x, kind, axes["lines"])
    ends = [float(x[0]), float(x[-1])]
    # Every trace but the surprisal is on a second, hidden x axis that follows the first: the
    # slider draws what is on its own axis.
    bottom = axes[list(heights)[-1]]
    if bottom != axes["surprisal"]:
        # plotly.js draws no slider under a panel in which its x axis has no trace at all.
        fig.add_trace(
            go.Scatter(x=[x[0]], y=[None], yaxis=bottom, hoverinfo="skip", meta={"what": "empty"})
        )
    fig.update_layout(
        xaxis={
            "title": {"text": "Time (s)" if seconds else "Word"},
            "range": ends,
            "anchor": bottom,
            "rangeslider": {"visible": True, "range": ends, "thickness": 28 / plot_px},
        },
        xaxis2={"matches": "x", "range": ends, "anchor": bottom, "visible": False},
    )
    said = []
    if smooth > 1:
        said.append(f"Grey: single words; line: running mean of {smooth} words.")
    if density is not None:
        said.append("Presses: share of people at a time.")
    if marks is not None:
        said.append("Vertical lines: annotated boundaries.")
    if methods:
        said.append(f"Ticks: starts of events; {describe_methods(methods)}.")
    unknown = int(words["surprisal"].isna().sum())
    if unknown:
        said.append(f"Words without surprisal: {unknown}.")
    sentences = [provenance] if isinstance(provenance, str) else provenance
    annotated = marks is not None or density is not None
    add_footnote(
        fig,
        provenance=sentences,
        annotations={title: kind} if annotated else None,
        notes=[*said, *notes],
        below=34 + _SLIDER_PX,
    )
    fig.update_layout(margin={"b": fig.layout.margin.b - _SLIDER_MARGIN_PX})
    return fig


def _key(axis: str) -> str:
    """Name of an axis in the layout: "y2" → "yaxis2"."""
    return f"{axis[0]}axis{axis[1:]}"


def _panels(fig: go.Figure, heights: Mapping[str, float], plot_px: float) -> dict[str, str]:
    """Lay the panels out from the top; returns panel → y axis ("lines": one over all panels)."""
    titles = {"density": "Presses", "surprisal": "Surprisal (nats)"}
    axes: dict[str, str] = {}
    top = plot_px
    # The surprisal has the first axis: plotly hangs the slider's own axis on it.
    names = sorted(heights, key=lambda name: name != "surprisal")
    for number, name in enumerate([*names, "lines"], start=1):
        axes[name] = "y" if number == 1 else f"y{number}"
    for name, height in heights.items():
        domain = [max(0.0, (top - height) / plot_px), top / plot_px]
        settings: dict[str, Any] = {"domain": domain, "anchor": "x"}
        if name in titles:
            settings |= {"title": {"text": titles[name]}, "rangemode": "tozero"}
        if name == "density":
            settings["nticks"] = 3
        fig.update_layout({_key(axes[name]): settings})
        top -= height + _GAP_PX
    fig.update_layout(
        {
            _key(axes["lines"]): {
                "domain": [0, 1],
                "anchor": "x",
                "range": [0, 1],
                "visible": False,
                "fixedrange": True,
            }
        }
    )
    return axes


def _positions(events: Boundaries | ArrayLike, n: int, name: str) -> NDArray[np.int64]:
    """Word numbers of the boundaries, without word 0."""
    if isinstance(events, Boundaries):
        if events.unit != "word" or events.n != n:
            raise InputError(
                f"boundaries of {name!r} are over {events.n} {events.unit}s, the story has {n} "
                "words; convert them with trace.to_words(events)."
            )
        return events.inner
    given = np.sort(np.asarray(events, dtype=np.int64).ravel())
    if len(given) and (given[0] < 0 or given[-1] >= n):
        wrong = given[0] if given[0] < 0 else given[-1]
        raise InputError(f"boundaries of {name!r}: {wrong} is not one of the words 0 ... {n - 1}.")
    return given[given > 0]


def _axis(words: pd.DataFrame, axis: str) -> tuple[NDArray[np.float64], bool]:
    """Place of every word on the x axis, and whether that is seconds."""
    number = np.arange(len(words), dtype=np.float64)
    if axis == "words":
        return number, False
    onset = _onsets(words)
    if onset is None:
        if axis == "seconds":
            raise MissingDataError(
                'axis="seconds" needs an onset for every word; use axis="words", or interpolate '
                "the missing onsets."
            )
        return number, False
    return onset, True


def _onsets(words: pd.DataFrame) -> NDArray[np.float64] | None:
    """Onsets in seconds, or None where a word has none."""
    if "onset" not in words or bool(words["onset"].isna().any()):
        return None
    onset = words["onset"].to_numpy(dtype=np.float64)
    back = np.flatnonzero(np.diff(onset) < 0)
    if len(back):
        raise InputError(
            f"onsets go backwards at word {back[0] + 1} ({onset[back[0]]:g} s, then "
            f"{onset[back[0] + 1]:g} s); sort the words or mend the times."
        )
    return onset


def _contexts(words: Sequence[object], positions: Iterable[int]) -> list[str]:
    """Each word in bold between its neighbours, escaped."""
    shown = [plain(word) for word in words]
    contexts = []
    for i in positions:
        before = " ".join(shown[max(0, i - _CONTEXT) : i])
        after = " ".join(shown[i + 1 : i + 1 + _CONTEXT])
        contexts.append(f"{before} <b>{shown[i]}</b> {after}".strip())
    return contexts


def _surprisal(
    fig: go.Figure, words: pd.DataFrame, x: NDArray[np.float64], smooth: int, axis: str
) -> None:
    import plotly.graph_objects as go

    surprisal = words["surprisal"].astype(float)
    fig.add_trace(
        go.Scatter(
            yaxis=axis,
            x=x,
            y=surprisal.to_numpy(),
            mode="lines",
            line={"color": "#B5B5B5", "width": 0.5},
            customdata=np.column_stack(
                [np.arange(len(words)).astype(str), _contexts(list(words["word"]), range(len(x)))]
            ),
            hovertemplate="%{customdata[1]}<br>word %{customdata[0]}, %{y:.2f} nats<extra></extra>",
            name="surprisal",
            meta={"what": "surprisal"},
        ),
    )
    if smooth > 1:
        mean = surprisal.rolling(smooth, center=True, min_periods=1).mean()
        fig.add_trace(
            go.Scatter(
                yaxis=axis,
                x=x,
                y=mean.to_numpy(),
                mode="lines",
                line={"color": "#0072B2", "width": 1.25},
                hoverinfo="skip",
                name=f"running mean of {smooth} words",
                meta={"what": "running mean"},
            ),
        )


def _density(
    fig: go.Figure,
    density: pd.DataFrame,
    words: pd.DataFrame,
    x: NDArray[np.float64],
    seconds: bool,
    axis: str,
) -> None:
    import plotly.graph_objects as go

    require_columns(density, ["time", "density"], "figure_trace(density=...)")
    time = density["time"].to_numpy(dtype=np.float64)
    share = density["density"].to_numpy(dtype=np.float64)
    if not seconds:
        onset = _onsets(words)
        if onset is None:
            raise MissingDataError(
                "density over time needs an onset for every word; give people= (word numbers) "
                "instead."
            )
        heard = (time >= onset[0]) & (time <= onset[-1])
        time, share = np.interp(time[heard], onset, x), share[heard]
    fig.add_trace(
        go.Scatter(
            xaxis="x2",
            yaxis=axis,
            x=time,
            y=share,
            mode="lines",
            line={"color": "#444444", "width": 0.75},
            fill="tozeroy",
            fillcolor="#D0D0D0",
            hovertemplate="%{y:.3f} of people<extra></extra>",
            name="presses",
            meta={"what": "density"},
        ),
    )


def _ticks(
    fig: go.Figure,
    words: pd.DataFrame,
    positions: NDArray[np.int64],
    x: NDArray[np.float64],
    code: str,
    place: float,
    axis: str,
) -> None:
    import plotly.graph_objects as go

    fig.add_trace(
        go.Scatter(
            xaxis="x2",
            yaxis=axis,
            x=x[positions],
            y=np.full(len(positions), place),
            mode="markers",
            marker={
                "symbol": "line-ns",
                "size": 9,
                "line": {"width": 1, "color": method_style(code).colour},
            },
            customdata=np.column_stack(
                [positions.astype(str), _contexts(list(words["word"]), positions)]
            ),
            hovertemplate=f"{plain(code)}: word %{{customdata[0]}}<br>%{{customdata[1]}}"
            "<extra></extra>",
            name=plain(code),
            meta={"what": "boundaries", "method": code},
        ),
    )


def _people(
    fig: go.Figure,
    words: pd.DataFrame,
    marks: NDArray[np.int64],
    x: NDArray[np.float64],
    kind: str,
    axis: str,
) -> None:
    """Vertical lines through all panels; the hover names the word."""
    import plotly.graph_objects as go

    fig.add_trace(
        go.Scatter(
            xaxis="x2",
            yaxis=axis,
            x=np.repeat(x[marks], 3),
            y=np.tile([0.0, 1.0, np.nan], len(marks)),
            mode="lines",
            line={"color": "rgba(0,0,0,0.45)", "width": 0.6, "dash": "2px,2px"},
            customdata=np.repeat(_contexts(list(words["word"]), marks), 3),
            hovertemplate=f"{_WHOSE[kind]}: %{{customdata}}<extra></extra>",
            name=_WHOSE[kind],
            meta={"what": "annotation"},
        )
    )
