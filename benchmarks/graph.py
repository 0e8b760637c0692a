"""Speed of the key graph's measures and of refinement, on one thread: `python benchmarks/graph.py`.

Prints a table of measured times, the bytes that have to move at the least with the time this
machine's memory needs for them, and what each is compared with in the same run.
"""

# ruff: noqa: E402 (threads are set before numpy is imported)
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from workbench.analysis.graph import measure_segmentations
from workbench.analysis.nulls import null_starts
from workbench.core.boundaries import Boundaries
from workbench.core.keygraph import KeyGraph
from workbench.events.reference import drop_close
from workbench.events.refinement import refine

# The released EM-LLM code on the same sizes (random keys of 10 layers × 3 heads × 64 dimensions,
# n = 4,096, mean gap 64, one thread, best of several): measured before, restated here.
RELEASED_CHUNKED = 5.21
RELEASED_AT_ONCE = 13.7


def best(call: Callable[[], Any], repeats: int = 5) -> float:
    """Shortest wall time of some calls, in seconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def peak_bytes(call: Callable[[], Any]) -> int:
    """Most memory that numpy and Python held at once during a call, in bytes."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def bandwidth() -> float:
    """Bytes per second that one thread reads from memory (a sum over 256 MB)."""
    data = np.ones(32 << 20)
    return data.nbytes / best(lambda: data.sum())


def random_events(n: int, mean: int, seed: int = 0) -> Boundaries:
    """A random cut with about `mean` positions per event."""
    rng = np.random.default_rng(seed)
    inner = np.sort(rng.choice(n - 1, n // mean - 1, replace=False)) + 1
    return Boundaries(inner, n)


def line(what: str, seconds: float, moved: float, speed: float, remark: str = "") -> None:
    """Print one row of the table."""
    bound = f"{moved / 1e6:9.1f} MB {1e3 * moved / speed:8.2f} ms"
    print(f"{what:<52}{1e3 * seconds:11.2f} ms {bound}  {remark}", flush=True)


def dense_released(keys: NDArray[np.float32], events: Boundaries, min_size: int = 8) -> list[int]:
    """The released code's search for modularity on the n × n matrix, one candidate at a time."""
    weights = keys.astype(np.float64) @ keys.astype(np.float64).T
    places = events.inner.tolist()
    previous, found = 0, []
    for i in drop_close(places, min_size, 0):
        place = places[i]
        if place - previous > min_size and place > min_size:
            half = (place - previous) // 2
            low, high = max(0, previous - half), min(len(keys), place + half)
            window = weights[low:high, low:high]
            scores = []
            for t in range(previous + min_size - low, place - low):
                total = window.sum()
                inner = window[:t, :t].sum() + window[t:, t:].sum()
                volumes = np.array([window[:t].sum(), window[t:].sum()])
                scores.append((inner - (volumes**2).sum() / total) / (2 * total))
            place = previous + min_size + int(np.argmax(scores))
        found.append(place)
        previous = place
    return found


def refinement(speed: float) -> None:
    """All boundaries at n = 4,096 with 1,920 key dimensions, mean event 64."""
    n, heads, d = 4096, 30, 64
    keys = np.random.default_rng(0).normal(size=(heads, n, d)).astype(np.float32)
    events = random_events(n, 64)
    graph = KeyGraph(keys)
    prefix = graph.prefix.nbytes
    print(f"\nRefinement, n = {n}, {heads * d} dimensions, {events.n_events} events")
    build = best(lambda: KeyGraph(keys))
    line("prefix sums", build, keys.nbytes + prefix, speed)
    for rule, scope, objective in [
        ("paper", "next", "modularity"),
        ("paper", "next", "conductance"),
        ("paper", "rest", "modularity"),
        ("paper", "three", "modularity"),
        ("reference", "next", "modularity"),
        ("reference", "next", "conductance"),
    ]:
        options = {"rule": rule, "scope": scope, "objective": objective}
        seconds = best(lambda options=options: refine(graph, events, **options))  # type: ignore[misc]
        remark = f"{1e3 * (build + seconds):.0f} ms with the prefix sums"
        if rule == "reference" and objective == "modularity":
            in_chunks = best(lambda: refine(graph, events, rule="reference", chunk=512))
            at_once = RELEASED_AT_ONCE / (build + seconds)
            chunked = RELEASED_CHUNKED / (build + in_chunks)
            remark += f"; released code {at_once:,.0f} × at once, {chunked:,.0f} × in chunks"
        label = f"{rule} {scope if rule == 'paper' else ''} {objective}"
        line(f"refine: {label}", seconds, prefix, speed, remark)
    joined = keys.transpose(1, 0, 2).reshape(n, heads * d)
    begin = time.perf_counter()
    expected = dense_released(joined, events)
    seconds = time.perf_counter() - begin
    same = refine(graph, events, rule="reference").inner.tolist() == expected
    line("dense search, one candidate at a time", seconds, 8 * n * n, speed, f"same: {same}")


def against_networkx(speed: float) -> None:
    """Modularity at n = 2,048, d = 64 against networkx on a graph that it already has."""
    n, d = 2048, 64
    keys = np.random.default_rng(1).normal(size=(n, d)) + 0.3
    events = random_events(n, 64)
    print(f"\nModularity, n = {n}, d = {d}, {events.n_events} events")
    ours = best(lambda: KeyGraph(keys).modularity(events), 20)
    graph = KeyGraph(keys)
    moved = keys.nbytes + graph.prefix.nbytes
    line("KeyGraph, prefix sums included", ours, moved, speed)
    again = best(lambda: graph.modularity(events), 20)
    line("KeyGraph, prefix sums there", again, events.n_events * d * 8, speed)
    peer = graph.to_networkx()
    communities = [set(range(a, b)) for a, b in events]
    begin = time.perf_counter()
    expected = nx.community.modularity(peer, communities)
    theirs = time.perf_counter() - begin
    difference = abs(graph.modularity(events) - expected)
    remark = f"{theirs / ours:,.0f} ×; difference {difference:.0e}"
    line("networkx, its graph there", theirs, 8 * n * n / 2, speed, remark)


def scaling(speed: float, largest: int) -> None:
    """Time and memory per token from 4 k tokens on."""
    d = 64
    print(f"\nLength, d = {d}, mean event 64: prefix sums, modularity, conductance, refinement")
    n = 4096
    while n <= largest:
        keys = np.random.default_rng(2).normal(size=(n, d)).astype(np.float32)
        events = random_events(n, 64)

        def work(keys: NDArray[np.float32] = keys, events: Boundaries = events) -> None:
            graph = KeyGraph(keys)
            graph.modularity(events)
            graph.conductance(events)
            refine(graph, events)

        seconds = best(work, 5 if n < 100_000 else 2)
        peak = peak_bytes(work)
        moved = keys.nbytes + 2 * 8 * n * d  # keys read, prefix sums written and read once
        remark = f"{1e6 * seconds / n:.2f} µs and {peak / n:.0f} bytes per token"
        line(f"n = {n:,}", seconds, moved, speed, remark)
        n *= 4


def nulls(speed: float) -> None:
    """All measures of all heads under null segmentations."""
    print("\nAll measures of 90 heads of 64 dimensions")
    for n, n_events, draws, what in [
        (1200, 19, 1000, "1,200 tokens, 1,000 draws of 19 events"),
        (6000, 100, 101, "6,000 tokens, 101 draws of 100 events"),
    ]:
        rng = np.random.default_rng(3)
        keys = rng.normal(size=(90, n, 64)).astype(np.float32) + 1
        graph = KeyGraph(keys)
        events = random_events(n, n // n_events)
        starts = null_starts(events, "lengths", draws, rng)
        seconds = best(lambda g=graph, s=starts: measure_segmentations(g, s), 3)  # type: ignore[misc]
        line(what, seconds, starts.size * 90 * 64 * 8, speed, "one method")


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--largest", type=int, default=1 << 20, help="most tokens (default 1 M)")
    largest = parser.parse_args().largest
    speed = bandwidth()
    print(f"one thread; memory read at {speed / 1e9:.1f} GB/s")
    print(f"{'':<52}{'time':>14} {'least moved':>12} {'at that speed':>10}")
    refinement(speed)
    against_networkx(speed)
    scaling(speed, largest)
    nulls(speed)


if __name__ == "__main__":
    main()
