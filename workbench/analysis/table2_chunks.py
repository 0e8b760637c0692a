"""Table 2 chunk by chunk: how a chunk is cut, and its measures beside those of random cuts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.analysis.graph import Measure, measure_segmentations
from workbench.analysis.nulls import lengths_degenerate, null_min_size, null_starts
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph
from workbench.events.proposals import even_starts
from workbench.events.refinement import refine
from workbench.events.sizes import limit_sizes

__all__ = ["ChunkValues", "chunk_spans", "cut_chunk", "measure_chunk"]

NULL_STREAM = {"lengths": 1, "uniform": 2, "min_gap": 3, "shift": 4}
_OBJECTIVES = {"M": "modularity", "C": "conductance"}


@dataclass(frozen=True, eq=False)
class ChunkValues:
    """Measures of one chunk's cuts, by method and measure.

    Parameters
    ----------
    value : (method, measure) → shape (heads,).
    null_mean : (method, null, measure) → mean over the draws, shape (heads,).
    null_draws : (method, null, measure) → mean over the heads of each draw, shape (draws,).
    used : (method, null) → the null that was drawn ("shift" where "lengths" is degenerate).
    n_events : events of each method.
    """

    value: dict[tuple[str, Measure], NDArray[np.float64]]
    null_mean: dict[tuple[str, str, Measure], NDArray[np.float64]]
    null_draws: dict[tuple[str, str, Measure], NDArray[np.float64]]
    used: dict[tuple[str, str], str]
    n_events: dict[str, int]


def chunk_spans(n: int, chunk: int) -> list[tuple[int, int]]:
    """Whole chunks of a text, (first, last) positions; what is left at the end is not used."""
    return [(first, first + chunk) for first in range(0, n - chunk + 1, chunk)]


def cut_chunk(
    flags: NDArray[np.bool_],
    methods: Sequence[str],
    graph: KeyGraph,
    *,
    min_size: int = 8,
    max_size: int | None = 128,
    scope: str = "next",
) -> dict[str, Boundaries]:
    """Cut one chunk by the methods of Table 2, all with as many events as S.

    Parameters
    ----------
    flags : tokens of the chunk whose surprisal exceeds the threshold, shape (n,).
    methods : of "F", "FM", "FC", "S", "SM", "SC".
    graph : the graph that refinement uses (weights summed over its heads).
    min_size, max_size : tokens per event. Short events merge forward, long ones are split, and a
        last event shorter than `min_size` is merged into the one before it: every event of F and S
        has at least `min_size` tokens, so that the null "min_gap" can draw it.
    scope : of refinement, see `refine`.
    """
    n = len(flags)
    starts = limit_sizes(np.flatnonzero(flags), n, min_size, max_size)
    if len(starts) and n - starts[-1] < min_size:
        starts = starts[:-1]
    proposals = {
        "S": Boundaries(starts, n, method="S"),
        "F": Boundaries(even_starts(n, len(starts)), n, method="F"),
    }
    cuts = {}
    for code in methods:
        proposed = proposals[code[0]]
        cuts[code] = proposed
        if code[1:]:
            cuts[code] = refine(
                graph, proposed, objective=_OBJECTIVES[code[1:]], scope=scope, min_size=min_size
            )
    return cuts


def measure_chunk(
    graph: KeyGraph,
    cuts: Mapping[str, Boundaries],
    measures: Sequence[Measure],
    nulls: Sequence[str],
    *,
    draws: int,
    seed: Sequence[int],
    min_size: int = 8,
) -> ChunkValues:
    """Measures of a chunk's cuts on every head, and those of random cuts.

    Parameters
    ----------
    graph : one graph per head over the chunk's tokens.
    cuts : method → its cut.
    nulls, draws, min_size : random cuts, see `workbench.analysis.nulls`. Methods with equally many
        events are compared with the same draws of "uniform" and "min_gap".
    seed : numbers that name the chunk; every null has a stream of its own.
    """
    if draws < 2:
        raise InputError(f"draws={draws}: at least 2 are needed for a spread.")
    value: dict[tuple[str, Measure], NDArray[np.float64]] = {}
    means: dict[tuple[str, str, Measure], NDArray[np.float64]] = {}
    spread: dict[tuple[str, str, Measure], NDArray[np.float64]] = {}
    used: dict[tuple[str, str], str] = {}
    kept: dict[tuple[str, bytes], dict[Measure, tuple[NDArray[np.float64], ...]]] = {}
    for code, events in cuts.items():
        for pair, found in measure_segmentations(graph, events.starts[None], measures).items():
            value[code, pair] = found[0]
        for null in nulls:
            drawn, key = _null_of(events, null, min_size)
            used[code, null] = drawn
            if (drawn, key) not in kept:
                rng = np.random.default_rng([*seed, NULL_STREAM[drawn]])
                starts = null_starts(events, drawn, draws, rng, min_size)
                kept[drawn, key] = {
                    pair: (_mean(found, 0), _mean(found, 1))
                    for pair, found in _measured(graph, starts, measures)
                }
            for pair, (over_draws, over_heads) in kept[drawn, key].items():
                means[code, null, pair] = over_draws
                spread[code, null, pair] = over_heads
    sizes = {code: events.n_events for code, events in cuts.items()}
    return ChunkValues(value, means, spread, used, sizes)


def _measured(
    graph: KeyGraph, starts: NDArray[np.int64], measures: Sequence[Measure]
) -> Iterator[tuple[Measure, NDArray[np.float64]]]:
    """Measures of random cuts, equal ones (rotations repeat) measured once."""
    rows, where = np.unique(starts, axis=0, return_inverse=True)
    for pair, found in measure_segmentations(graph, rows, measures).items():
        yield pair, found[where.ravel()]


def _null_of(events: Boundaries, null: str, min_size: int) -> tuple[str, bytes]:
    """The null to draw, and what of the cut its draws depend on."""
    if null == "lengths" and lengths_degenerate(events):
        null = "shift"
    if null == "uniform":
        return null, str(events.n_events).encode()
    if null == "min_gap":
        least = null_min_size(events, min_size)
        return null, f"{events.n_events} {least}".encode()
    if null == "lengths":
        return null, np.sort(events.lengths).tobytes()
    return null, events.starts.tobytes()


def _mean(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Mean of what is defined; NaN where nothing is."""
    defined = np.isfinite(values)
    count = defined.sum(axis=axis)
    total = np.where(defined, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
