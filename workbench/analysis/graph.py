"""Graph measures of many segmentations at once, over all layers and heads of a key graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workbench.core.blockgraph import BlockGraph
from workbench.core.blocksums import (
    CONDUCTANCE,
    INTRA_INTER,
    MODULARITY,
    BlockSums,
    conductance_terms,
    intra_inter_terms,
    modularity_terms,
)
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.eventgraph import EventGraph, pooled_intra_inter

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "EVENT_MEASURES",
    "GRAPH_MEASURES",
    "event_contributions",
    "event_excess",
    "measure_events",
    "measure_segmentations",
]

Measure = tuple[str, str]

GRAPH_MEASURES: tuple[Measure, ...] = (
    *(("modularity", variant) for variant in MODULARITY),
    *(("conductance", f"{variant}:{how}") for variant in CONDUCTANCE for how in ("min", "mean")),
    *(("intra_inter", variant) for variant in INTRA_INTER),
    *(("intra_inter", f"{variant}:min") for variant in INTRA_INTER),
    ("intra_inter", "sums:pooled"),
)
"""(measure, variant) pairs; after the colon stands how events are joined.

Modularity is a sum over events. Intra/inter similarity without a colon is the mean over events;
"pooled" is the ratio of all inner weights to all cuts."""

EVENT_MEASURES: tuple[Measure, ...] = (
    *(("modularity", variant) for variant in MODULARITY),
    *(("conductance", variant) for variant in CONDUCTANCE),
    *(("intra_inter", variant) for variant in INTRA_INTER),
)
"""(measure, variant) pairs of single events."""

_BYTES = 16 << 20  # working memory of one batch of segmentations
_ARRAYS = 10  # arrays (segmentations, events, heads) alive at once while terms are formed


def measure_segmentations(
    graph: EventGraph,
    starts: NDArray[np.int64],
    measures: Sequence[Measure] = GRAPH_MEASURES,
) -> dict[Measure, NDArray[np.float64]]:
    """Measures of many segmentations with the same number of events.

    Parameters
    ----------
    graph : one or several heads over n positions.
    starts : first positions of the events, shape (segmentations, events), each row increasing
        from 0 (`null_starts` makes them).
    measures : (measure, variant) pairs of `GRAPH_MEASURES`.

    Returns
    -------
    For each pair an array (segmentations, heads), the same numbers as `KeyGraph`'s methods give
    one by one; NaN where undefined. Beside it about 16 MB are used, whatever the sizes, as long as
    one segmentation fits into that.
    """
    check_measures(measures)
    rows = np.asarray(starts, dtype=np.int64)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise InputError(f"starts must have the shape (segmentations, events), not {rows.shape}.")
    if (rows[:, 0] != 0).any() or (np.diff(rows) <= 0).any() or (rows[:, -1] >= graph.n).any():
        raise InputError(f"each row of starts must increase from 0 and stay below n={graph.n}.")
    if isinstance(graph, BlockGraph) and graph.n_heads > 1:
        # Head by head, so that each one's weights are formed once for all segmentations.
        one = [measure_segmentations(graph.head(h), rows, measures) for h in range(graph.n_heads)]
        return {pair: np.concatenate([part[pair] for part in one], axis=1) for pair in measures}
    found = {pair: np.empty((len(rows), graph.n_heads)) for pair in measures}
    per_row = 8 * _ARRAYS * rows.shape[1] * graph.n_heads
    step = max(1, _BYTES // per_row)
    for first in range(0, len(rows), step):
        batch = slice(first, first + step)
        sums = _cut_sums(graph, rows[batch])
        for pair, (terms, how) in _terms(sums, measures).items():
            if how == "pooled":
                found[pair][batch] = terms[:, 0]
            elif how == "min":
                found[pair][batch] = terms.min(axis=1)
            else:
                found[pair][batch] = terms.sum(axis=1) if how == "sum" else terms.mean(axis=1)
    return found


def measure_events(
    graph: EventGraph, events: Boundaries, measures: Sequence[Measure] | None = None
) -> pd.DataFrame:
    """Measures of every single event, per head, layer and over all heads.

    Parameters
    ----------
    graph, events : as in `measure_segmentations`, for one segmentation.
    measures : (measure, variant) pairs; the variant without what joins events. Default: all.

    Returns
    -------
    One row per event, level and measure: event (from 0), start, end (exclusive), size, layer, head,
    measure, variant, value. (layer, head) is one head, (layer, NA) the mean over the layer's heads,
    (NA, NA) the mean over all; (-1, -1) a summed graph. A graph without an index has heads of
    layer NA. The value of modularity is the event's contribution; they add up to it.
    """
    import pandas as pd

    if measures is None:
        measures = EVENT_MEASURES
    for pair in measures:
        if tuple(pair) not in EVENT_MEASURES:
            listed = ", ".join(f"{measure}/{variant}" for measure, variant in EVENT_MEASURES)
            raise InputError(f"measure {pair!r} of an event is not known. Choose from: {listed}.")
    sums = graph.sums(events)
    columns = _levels(graph)
    forms = {
        "modularity": modularity_terms,
        "conductance": conductance_terms,
        "intra_inter": intra_inter_terms,
    }
    frames = []
    for measure, variant in measures:
        terms = forms[measure](sums, variant)
        for layer, head, members in columns:
            frames.append(
                pd.DataFrame(
                    {
                        "event": np.arange(events.n_events),
                        "start": events.starts,
                        "end": events.edges[1:],
                        "size": events.lengths,
                        "layer": pd.array([layer] * events.n_events, dtype="Int64"),
                        "head": pd.array([head] * events.n_events, dtype="Int64"),
                        "measure": measure,
                        "variant": variant,
                        "value": terms[:, members].mean(axis=1),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def _levels(graph: EventGraph) -> list[tuple[int | None, int | None, list[int]]]:
    """(layer, head, members) of every level at which values are reported."""
    every = list(range(graph.n_heads))
    if graph.index is None:
        levels: list[tuple[int | None, int | None, list[int]]] = [
            (None, None if graph.scalar else h, [h]) for h in every
        ]
    else:
        levels = [(layer, head, [h]) for h, (layer, head) in enumerate(graph.index)]
        for number in dict.fromkeys(layer for layer, _ in graph.index if layer >= 0):
            members = [h for h, (layer, _) in enumerate(graph.index) if layer == number]
            levels.append((number, None, members))
    if graph.n_heads > 1:
        levels.append((None, None, every))
    return levels


def _cut_sums(graph: EventGraph, starts: NDArray[np.int64]) -> BlockSums:
    """Block sums of segmentations with the same number of events, starts (..., events)."""
    edges = np.concatenate([starts, np.full((*starts.shape[:-1], 1), graph.n)], axis=-1)
    return graph.span_sums(edges[..., :-1], edges[..., 1:])


def event_contributions(
    graph: EventGraph, events: Boundaries, measures: Sequence[Measure] = GRAPH_MEASURES
) -> dict[Measure, NDArray[np.float64]]:
    """What each event contributes to each measure, for a bootstrap over events.

    Parameters
    ----------
    graph, events, measures : as in `measure_segmentations`, for one segmentation.

    Returns
    -------
    For each pair an array (events, heads) whose mean over events is the measure, so that
    `statistics.bootstrap_means` resamples the measure (for a mean over heads, average the columns
    first). Modularity is a sum over events: its terms come multiplied by their number, and
    resampling them leaves the graph's total weight as it is. A minimum over events and a pooled
    ratio have no such terms: their arrays are NaN.
    """
    check_measures(measures)
    sums = _cut_sums(graph, events.starts)
    found = {}
    for pair, (terms, how) in _terms(sums, measures).items():
        if how in ("min", "pooled"):
            found[pair] = np.full((events.n_events, graph.n_heads), np.nan)
        else:
            found[pair] = terms * len(terms) if how == "sum" else terms
    return found


def event_excess(
    graph: EventGraph,
    events: Boundaries,
    measures: Sequence[Measure] = GRAPH_MEASURES,
    places: int = 64,
) -> dict[Measure, NDArray[np.float64]]:
    """What each event contributes beyond events of its length elsewhere in the text.

    Most of what an event contributes to a measure follows from its length. The excess is its
    contribution less the mean over `places` spans of the same length, evenly spread over the
    text; resampling it gives an interval of the measure with the lengths held fixed, which is
    how much the placement of single events matters.

    Parameters
    ----------
    graph, events, measures : as in `event_contributions`.
    places : spans per length (fewer where the text has fewer).

    Returns
    -------
    For each pair an array (events, heads); NaN for minima and pooled ratios, as in
    `event_contributions`.
    """
    contributions = event_contributions(graph, events, measures)
    lengths, which = np.unique(events.lengths, return_inverse=True)
    expected = {pair: np.empty((len(lengths), graph.n_heads)) for pair in measures}
    for row, length in enumerate(lengths.tolist()):
        room = graph.n - length
        first = np.unique(np.linspace(0, room, min(places, room + 1)).round().astype(np.int64))
        sums = graph.span_sums(first, first + length)
        for pair, (terms, how) in _terms(sums, measures).items():
            factor = events.n_events if how == "sum" else 1
            alone = how in ("min", "pooled")
            expected[pair][row] = np.nan if alone else factor * terms.mean(axis=0)
    return {pair: contributions[pair] - expected[pair][which] for pair in measures}


def check_measures(measures: Sequence[Measure]) -> None:
    """Raise `InputError` for a pair that is not one of `GRAPH_MEASURES`."""
    for pair in measures:
        if tuple(pair) not in GRAPH_MEASURES:
            listed = ", ".join(f"{measure}/{variant}" for measure, variant in GRAPH_MEASURES)
            raise InputError(f"graph measure {pair!r} is not known. Choose from: {listed}.")


def _terms(
    sums: BlockSums, measures: Sequence[Measure]
) -> dict[Measure, tuple[NDArray[np.float64], str]]:
    """Terms (..., events, heads) of each pair, and how they are joined over events.

    Of a pooled ratio there is one term, (..., 1, heads).
    """
    found: dict[Measure, tuple[NDArray[np.float64], str]] = {}
    shared: dict[str, NDArray[np.float64]] = {}
    for measure, variant in measures:
        name, _, how = variant.partition(":")
        if measure == "modularity":
            found[measure, variant] = (modularity_terms(sums, name), "sum")
        elif how == "pooled":
            found[measure, variant] = (np.expand_dims(pooled_intra_inter(sums), -2), how)
        else:
            form = conductance_terms if measure == "conductance" else intra_inter_terms
            key = f"{measure} {name}"
            if key not in shared:
                shared[key] = form(sums, name)
            found[measure, variant] = (shared[key], how or "mean")
    return found
