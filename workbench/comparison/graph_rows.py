"""Graph measures of one cut as rows of the table: heads, layer means, mean, summed graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.analysis.graph import GRAPH_MEASURES, event_excess, measure_segmentations
from workbench.analysis.statistics import (
    LEAST_BOOTSTRAP,
    bootstrap_means,
    compare_with_null,
    percentile_interval,
)
from workbench.comparison.table import head_levels
from workbench.core.boundaries import Boundaries
from workbench.core.errors import MissingDataError
from workbench.core.keygraph import KeyGraph
from workbench.core.trace import Trace

__all__ = ["GraphMeasures"]

Level = tuple[int | None, int | None, NDArray[np.int64]]
"""(layer, head, members): which heads a row is the mean of, see `head_levels`."""


@dataclass(frozen=True, eq=False)
class GraphMeasures:
    """The key graphs of a trace, ready to measure cuts.

    Parameters
    ----------
    heads : one graph per recorded layer and head.
    refinement : the graph that refinement uses, weights summed over the heads of the last third
        of the layers; None when those layers were not recorded.
    bootstrap : resamples of events per interval.
    seed : of the resampling.
    notes : what holds for the whole story.
    """

    heads: KeyGraph
    refinement: KeyGraph | None
    bootstrap: int
    seed: int
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace, bootstrap: int, seed: int) -> GraphMeasures:
        """Build the graphs of a trace once for all methods."""
        heads = trace.key_graph(trace.layers.tolist(), trace.kv_heads.tolist())
        try:
            refinement = trace.key_graph(trace.last_third(), trace.kv_heads.tolist()).summed()
        except MissingDataError:
            refinement = None
        share = np.atleast_1d(heads.negative_share(sample=20_000, seed=seed).share)
        note = (
            f"{trace.story.name}: {share.mean():.1%} of the key pairs have a negative weight "
            f"(largest share of a head {share.max():.1%}; signs are kept)"
        )
        return cls(heads, refinement, bootstrap, seed, [note])

    def rows(
        self, events: Boundaries, starts: NDArray[np.int64], fixed: Boundaries
    ) -> Iterator[dict[str, Any]]:
        """Rows of one cut under one null.

        Parameters
        ----------
        events : the cut, over tokens.
        starts : null draws, shape (draws, n_events).
        fixed : evenly spaced events, as many.
        """
        index = self.heads.index or []
        yield from self._graph_rows(self.heads, events, starts, fixed, head_levels(index))
        if self.refinement is not None:
            whole = [(-1, -1, np.zeros(1, dtype=np.int64))]
            yield from self._graph_rows(self.refinement, events, starts, fixed, whole)

    def _graph_rows(
        self,
        graph: KeyGraph,
        events: Boundaries,
        starts: NDArray[np.int64],
        fixed: Boundaries,
        levels: Sequence[Level],
    ) -> Iterator[dict[str, Any]]:
        """Rows of one graph, one per measure and level."""
        observed = measure_segmentations(graph, events.starts[None])
        even = measure_segmentations(graph, fixed.starts[None])
        null = measure_segmentations(graph, starts)
        excess = event_excess(graph, events)
        for measure, variant in GRAPH_MEASURES:
            pair = (measure, variant)
            against = compare_with_null(
                _averaged(observed[pair][0], levels), _averaged(null[pair], levels)
            )
            # The same resamples for every measure and method of a story.
            rng = np.random.default_rng([self.seed, 0])
            spread = _averaged(excess[pair], levels)
            resampled = bootstrap_means(spread - spread.mean(axis=0), self.bootstrap, rng)
            low, high = against.value + percentile_interval(resampled)
            fixed_value = _averaged(even[pair][0], levels)
            for i, (layer, head, _) in enumerate(levels):
                undefined = int(against.undefined[i])
                yield {
                    "measure": measure,
                    "variant": variant,
                    "layer": layer,
                    "head": head,
                    "value": against.value[i],
                    "ci_low": low[i],
                    "ci_high": high[i],
                    "null_mean": against.mean[i],
                    "null_sd": against.sd[i],
                    "difference": against.difference[i],
                    "z": against.z[i],
                    "p": against.p[i],
                    "fixed": fixed_value[i],
                    "ceiling_low": np.nan,
                    "ceiling_high": np.nan,
                    "note": _note(events, variant, against.value[i], spread[:, i], undefined),
                }


def _averaged(values: NDArray[np.float64], levels: Sequence[Level]) -> NDArray[np.float64]:
    """Means over the heads of each level, shape (..., levels) from (..., heads).

    A mean is undefined (NaN) where one of its own heads is; what is undefined in other heads
    leaves it alone.
    """
    return np.stack([values[..., members].mean(axis=-1) for _, _, members in levels], axis=-1)


def _note(
    events: Boundaries, variant: str, value: float, excess: NDArray[np.float64], undefined: int
) -> str:
    """What a reader of one row has to know: an undefined value, lost draws, no interval."""
    if events.n_events == 1:
        return "one event: nothing to compare"
    if np.isnan(value):
        return "undefined: an event's weights to the others, or its smaller side, are not positive"
    lost = f"{undefined} undefined random segmentations left out" if undefined else ""
    return "; ".join(part for part in (_no_interval(events, variant, excess), lost) if part)


def _no_interval(events: Boundaries, variant: str, excess: NDArray[np.float64]) -> str:
    if variant.endswith(":min"):
        return "no interval: a minimum over events is not resampled"
    if variant.endswith(":pooled"):
        return "no interval: a ratio of sums over events is not resampled"
    if events.n_events < LEAST_BOOTSTRAP:
        return f"no interval: fewer than {LEAST_BOOTSTRAP} events"
    if np.isnan(excess).any():
        return "no interval where the measure is undefined for spans of an event's length elsewhere"
    return ""
