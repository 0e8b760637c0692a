"""Speed of the optimum of modularity, on one thread: `python benchmarks/optimum.py`.

One line per size: the optimum with a free number of events and with as many as surprise would
give, beside one pass of EM-LLM's refinement over the same graph in the same run, and how much
modularity each of them reaches.
"""

# ruff: noqa: E402 (threads are set before numpy is imported)
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import time
from collections.abc import Callable

import numpy as np

from workbench.core.boundaries import Boundaries
from workbench.core.keygraph import KeyGraph
from workbench.events.optimum import optimal_boundaries
from workbench.events.proposals import even_starts
from workbench.events.refinement import refine

SIZES = ((2048, 64), (8192, 64), (8192, 1920))
MEAN_EVENT = 40
TARGET = 5.0  # seconds, free number of events, n = 8,192 and d = 64


def timed(call: Callable[[], Boundaries], repeats: int) -> tuple[float, Boundaries]:
    """Shortest wall time of some calls in seconds, and what they give."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        found = call()
        times.append(time.perf_counter() - begin)
    return min(times), found


def keys_of(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Keys with a common part and slowly changing topics, as a model's are."""
    topics = np.repeat(rng.normal(size=(-(-n // 64), d)), 64, axis=0)[:n]
    return (rng.normal(size=(n, d)) + 0.5 * topics + 2 * rng.normal(size=d)).astype(np.float32)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    print(f"{'n':>6} {'d':>5}  {'method':<34} {'seconds':>8} {'events':>7} {'modularity':>11}")
    for n, d in SIZES:
        graph = KeyGraph(keys_of(n, d, rng))
        k = n // MEAN_EVENT
        even = Boundaries(even_starts(n, k - 1), n)
        runs: dict[str, Callable[[], Boundaries]] = {
            "fixed length, refined (M)": lambda g=graph, e=even: refine(g, e),
            "optimum, any number, 8 ... 128": lambda g=graph: optimal_boundaries(g),
            f"optimum, exactly {k}, 8 ... 128": lambda g=graph, k=k: optimal_boundaries(
                g, n_events=k
            ),
            "optimum, exactly 18, no maximum": lambda g=graph: optimal_boundaries(
                g, n_events=18, max_size=None
            ),
        }
        for name, call in runs.items():
            seconds, found = timed(call, repeats)
            quality = graph.modularity(found)
            print(f"{n:>6} {d:>5}  {name:<34} {seconds:>8.3f} {found.n_events:>7} {quality:>11.6f}")
    print(f"\ntarget: any number at n = 8192, d = 64 in under {TARGET:g} s")


if __name__ == "__main__":
    main()
