"""Speed of whole comparisons on key graphs, on one thread: `python benchmarks/table2.py`.

Random keys of 30 layers × 3 heads × 64 dimensions. Prints wall and processor time: on a machine
that others use at the same time, the second is the one to read.
"""

# ruff: noqa: E402 (threads are set before numpy is imported)
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.analysis.communities import find_communities
from workbench.analysis.graph import GRAPH_MEASURES, measure_segmentations
from workbench.analysis.nulls import null_starts
from workbench.analysis.table2 import MEASURES
from workbench.analysis.table2_chunks import cut_chunk, measure_chunk
from workbench.core.blockgraph import BlockGraph
from workbench.core.boundaries import Boundaries
from workbench.core.keygraph import KeyGraph
from workbench.events.refinement import refine

HEADS, DIM = 90, 64


def timed(what: str, call: Callable[[], Any], limit: str = "") -> None:
    """Print one row: what it is, wall and processor seconds, the limit it is to keep."""
    wall, own = time.perf_counter(), time.process_time()
    call()
    wall, own = time.perf_counter() - wall, time.process_time() - own
    print(f"{what:<74}{wall:9.2f} s wall {own:9.2f} s processor  {limit}", flush=True)


def random_keys(n: int, heads: int = HEADS) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Keys with a common part, so that most weights are positive, as in a model."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(heads, n, DIM)).astype(np.float32) + 1


def story(n: int = 6000, mean: int = 60, draws: int = 100, methods: int = 8) -> None:
    """All graph measures of a story: prefix sums, eight cuts, their refinement, 100 nulls each."""
    keys = random_keys(n)
    rng = np.random.default_rng(1)

    def work() -> None:
        graph = KeyGraph(keys)
        guide = KeyGraph(keys[60:]).summed()
        for number in range(methods):
            inner = np.sort(rng.choice(n - 1, n // mean - 1, replace=False)) + 1
            events = Boundaries(inner, n)
            if number % 2:
                events = refine(guide, events)
            starts = null_starts(events, "lengths", draws, rng)
            measure_segmentations(graph, np.concatenate([events.starts[None], starts]))

    what = f"{n:,} tokens, {HEADS} heads, {methods} methods, {draws} nulls, "
    timed(what + f"{len(GRAPH_MEASURES)} measures", work, "limit 20 s")


def chunk(
    draws: int = 100, nulls: Sequence[str] = ("uniform", "lengths", "min_gap", "shift")
) -> None:
    """One chunk of Table 2: six methods, four nulls."""
    keys = random_keys(512)
    flags = np.random.default_rng(2).random(512) < 0.4

    def work() -> None:
        guide = KeyGraph(keys[60:]).summed()
        cuts = cut_chunk(flags, ("F", "FM", "FC", "S", "SM", "SC"), guide)
        measure_chunk(KeyGraph(keys), cuts, MEASURES, nulls, draws=draws, seed=[0])

    timed(f"table2: one chunk of 512 tokens, 6 methods, 4 nulls of {draws} cuts", work)


def similarities(n: int = 2000, heads: int = 3, draws: int = 100) -> None:
    """Graphs that are not dot products beside the one that is."""
    keys = random_keys(n, heads)
    rng = np.random.default_rng(3)
    events = Boundaries(np.arange(0, n, 40), n)
    starts = null_starts(events, "uniform", draws, rng)
    timed(
        f"dot: {heads} heads, {n:,} tokens, {draws} nulls",
        lambda: measure_segmentations(KeyGraph(keys), starts),
    )
    for name in ("clipped", "rbf", "exp"):
        graph = BlockGraph(keys[:1], name)
        timed(
            f"{name}: the same, weights formed in blocks",
            lambda name=name: measure_segmentations(BlockGraph(keys, name), starts),  # type: ignore[misc]
        )
        timed(
            f"{name}: {events.n_events - 1} boundaries refined on one head",
            lambda graph=graph: refine(graph, events),  # type: ignore[misc]
        )


def communities(n: int = 2000) -> None:
    """Louvain on the windowed graph, one seed and its control."""
    graph = KeyGraph(np.abs(random_keys(n, 1)[0]))
    timed(
        f"communities: {n:,} tokens, one seed and its control",
        lambda: find_communities(graph, seeds=1),
    )


if __name__ == "__main__":
    story()
    chunk()
    similarities()
    communities()
