"""Graph measures of many segmentations at once, over all layers and heads of a key graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workbench.core.blocksums import (
    CONDUCTANCE,
    INTRA_INTER,
    MODULARITY,
    BlockSums,
    block_sums,
    conductance_terms,
    intra_inter_terms,
    modularity_terms,
    span_sums,
)
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph

__all__ = ["GRAPH_MEASURES", "event_contributions", "event_excess", "measure_segmentations"]

Measure = tuple[str, str]

GRAPH_MEASURES: tuple[Measure, ...] = (
    *(("modularity", variant) for variant in MODULARITY),
    *(("conductance", f"{variant}:{how}") for variant in CONDUCTANCE for how in ("min", "mean")),
    *(("intra_inter", variant) for variant in INTRA_INTER),
)
"""(measure, variant) pairs; a conductance's variant says after the colon how events are joined."""

_BYTES = 16 << 20  # working memory of one batch of segmentations
_ARRAYS = 10  # arrays (segmentations, events, heads) alive at once while terms are formed


def measure_segmentations(
    graph: KeyGraph,
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
    found = {pair: np.empty((len(rows), graph.n_heads)) for pair in measures}
    per_row = 8 * _ARRAYS * rows.shape[1] * graph.n_heads
    step = max(1, _BYTES // per_row)
    for first in range(0, len(rows), step):
        batch = slice(first, first + step)
        sums = block_sums(graph.prefix, graph.norms, rows[batch], diagonal=graph.diagonal)
        for pair, (terms, how) in _terms(sums, measures).items():
            if how == "min":
                found[pair][batch] = terms.min(axis=1)
            else:
                found[pair][batch] = terms.sum(axis=1) if how == "sum" else terms.mean(axis=1)
    return found


def event_contributions(
    graph: KeyGraph, events: Boundaries, measures: Sequence[Measure] = GRAPH_MEASURES
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
    resampling them leaves the graph's total weight as it is. A minimum over events has no such
    terms: its array is NaN.
    """
    check_measures(measures)
    sums = block_sums(graph.prefix, graph.norms, events.starts, diagonal=graph.diagonal)
    found = {}
    for pair, (terms, how) in _terms(sums, measures).items():
        if how == "min":
            found[pair] = np.full_like(terms, np.nan)
        else:
            found[pair] = terms * len(terms) if how == "sum" else terms
    return found


def event_excess(
    graph: KeyGraph,
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
    For each pair an array (events, heads); NaN for minima, as in `event_contributions`.
    """
    contributions = event_contributions(graph, events, measures)
    lengths, which = np.unique(events.lengths, return_inverse=True)
    expected = {pair: np.empty((len(lengths), graph.n_heads)) for pair in measures}
    for row, length in enumerate(lengths.tolist()):
        room = graph.n - length
        first = np.unique(np.linspace(0, room, min(places, room + 1)).round().astype(np.int64))
        sums = span_sums(graph.prefix, graph.norms, first, first + length, diagonal=graph.diagonal)
        for pair, (terms, how) in _terms(sums, measures).items():
            factor = events.n_events if how == "sum" else 1
            expected[pair][row] = np.nan if how == "min" else factor * terms.mean(axis=0)
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
    """Terms (..., events, heads) of each pair, and how they are joined over events."""
    found: dict[Measure, tuple[NDArray[np.float64], str]] = {}
    shared: dict[str, NDArray[np.float64]] = {}
    for measure, variant in measures:
        if measure == "modularity":
            found[measure, variant] = (modularity_terms(sums, variant), "sum")
        elif measure == "intra_inter":
            found[measure, variant] = (intra_inter_terms(sums, variant), "mean")
        else:
            name, _, how = variant.partition(":")
            if name not in shared:
                shared[name] = conductance_terms(sums, name)
            found[measure, variant] = (shared[name], how)
    return found
