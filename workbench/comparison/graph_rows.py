"""Graph measures of one cut as rows of the table: heads, layer means, mean, summed graph."""

from __future__ import annotations

from collections.abc import Iterator
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
        levels = head_levels(index)
        weights = np.zeros((len(index), len(levels)))
        for column, (_, _, members) in enumerate(levels):
            weights[members, column] = 1 / len(members)
        yield from self._graph_rows(
            self.heads, events, starts, fixed, weights, [(a, b) for a, b, _ in levels]
        )
        if self.refinement is not None:
            yield from self._graph_rows(
                self.refinement, events, starts, fixed, np.ones((1, 1)), [(-1, -1)]
            )

    def _graph_rows(
        self,
        graph: KeyGraph,
        events: Boundaries,
        starts: NDArray[np.int64],
        fixed: Boundaries,
        weights: NDArray[np.float64],
        levels: list[tuple[int | None, int | None]],
    ) -> Iterator[dict[str, Any]]:
        """Rows of one graph; `weights` (heads, levels) averages heads into each level."""
        observed = measure_segmentations(graph, events.starts[None])
        even = measure_segmentations(graph, fixed.starts[None])
        null = measure_segmentations(graph, starts)
        excess = event_excess(graph, events)
        for measure, variant in GRAPH_MEASURES:
            pair = (measure, variant)
            against = compare_with_null(observed[pair][0] @ weights, null[pair] @ weights)
            # The same resamples for every measure and method of a story.
            rng = np.random.default_rng([self.seed, 0])
            spread = excess[pair] @ weights
            resampled = bootstrap_means(spread - spread.mean(axis=0), self.bootstrap, rng)
            low, high = against.value + percentile_interval(resampled)
            fixed_value = even[pair][0] @ weights
            note = _note(events, variant, excess[pair])
            for i, (layer, head) in enumerate(levels):
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
                    "note": note,
                }


def _note(events: Boundaries, variant: str, excess: NDArray[np.float64]) -> str:
    if events.n_events == 1:
        return "one event: nothing to compare"
    if variant.endswith(":min"):
        return "no interval: a minimum over events is not resampled"
    if events.n_events < LEAST_BOOTSTRAP:
        return f"no interval: fewer than {LEAST_BOOTSTRAP} events"
    if np.isnan(excess).any():
        return "no interval where the measure is undefined for spans of an event's length elsewhere"
    return ""
