"""Proposal `G`: greedy state boundary search (GSBS), by the library statesegmentation.

Built for brain activity: states within which patterns correlate, found by adding one boundary (or
two) after the other and choosing their number by the t-distance. Its cost grows with the square of
the number of patterns times the number of states, so it runs on sentences, never on tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import import_extra
from workbench.core.errors import InputError
from workbench.core.trace import Trace
from workbench.events.patterns import patterns_of
from workbench.events.proposal import Options, Proposal, check_count, matched

__all__ = ["LIMIT", "STATES", "state_boundaries"]

LIMIT = 500
"""Most patterns that are searched; 400 with 20 states take about half a minute."""


def state_boundaries(
    patterns: ArrayLike, *, n_boundaries: int | None = None, most_states: int | None = None
) -> Boundaries:
    """State boundaries of a series of patterns, over sentences.

    Parameters
    ----------
    patterns : shape (n, d), d ≥ 2, finite, none of them constant; 4 ≤ n ≤ 500.
    n_boundaries : None: the number with the greatest t-distance, by the statewise search (one or
        two boundaries per step; Geerligs et al. 2022). k: exactly k, by the search that adds one
        boundary per step (2021), since the statewise one can miss a number.
    most_states : largest number of states tried; None: n // 2, as its authors advise.

    Returns
    -------
    Boundaries (unit "sentence"); `strength` is one less the correlation of the mean patterns of the
    two states beside a boundary.

    Raises
    ------
    InputError : patterns that cannot be correlated, too few or too many of them.
    MissingPackageError : statesegmentation is not installed (pip install "workbench[segment]").
    """
    rows = np.asarray(patterns, dtype=np.float64)
    n = len(rows)
    most = n // 2 if most_states is None else most_states
    if n_boundaries is not None:
        check_count(n_boundaries, n)
        most = n_boundaries + 1
    _check(rows, most)
    library = import_extra("statesegmentation", "method G (greedy state search)", "segment")
    statewise = n_boundaries is None
    search = library.GSBS(kmax=int(most), x=_same_correlations(rows), statewise_detection=statewise)
    search.fit(showProgressBar=False)
    states = None if statewise else int(most)
    starts = np.flatnonzero(search.get_deltas(states))
    strength = search.get_strengths(states)[starts]
    settings: dict[str, Any] = {"search": "statewise" if statewise else "one by one"}
    settings |= {"most_states": int(most)}
    if n_boundaries is not None:
        settings |= matched(n_boundaries, len(starts))
    return Boundaries(starts, n, unit="sentence", strength=strength, method="G", settings=settings)


def _same_correlations(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows with the same correlations, and the same for all their weighted sums, in n columns.

    A correlation is the cosine of rows less their own means; cosines do not depend on the axes,
    and axes can be chosen along which every row has mean 0 again.
    """
    n, d = rows.shape
    if d <= n + 1:
        return rows
    centred = rows - rows.mean(axis=1, keepdims=True)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    coordinates = left * sizes  # (n, n)
    # columns of this (n, n + 1) matrix's transpose: an orthonormal basis of what sums to 0
    basis = np.linalg.svd(np.ones((1, n + 1)))[2][1:]
    return coordinates @ basis


def _check(rows: NDArray[np.float64], most: int) -> None:
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise InputError(f"patterns must have the shape (n, d) with d ≥ 2, not {rows.shape}.")
    n = len(rows)
    if not 4 <= n <= LIMIT:
        raise InputError(
            f"greedy state search takes 4 to {LIMIT} patterns (its cost grows with n²·k), not {n}; "
            "use method V or K for more."
        )
    if not 2 <= most <= n:
        raise InputError(f"the number of states must lie between 2 and {n}, not {most}.")
    if not np.isfinite(rows).all():
        first = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise InputError(f"pattern {first} is not finite.")
    if not np.ptp(rows, axis=1).all():
        first = int(np.flatnonzero(np.ptp(rows, axis=1) == 0)[0])
        raise InputError(f"pattern {first} is constant and correlates with nothing.")


def _propose(trace: Trace, options: Options) -> Boundaries:
    rows, starts, made_of = patterns_of(trace, options, "sentence")
    count = options.n_boundaries
    wanted = count if count is None else min(count, len(rows) - 1)
    found = state_boundaries(rows, n_boundaries=wanted, **options.more)
    settings = {**found.settings, **made_of}
    if count is not None:
        settings |= matched(count, found.n_events - 1)
    return Boundaries(
        starts[found.inner], trace.n_tokens, strength=found.strength, settings=settings
    )


STATES = Proposal(
    "G",
    "greedy state search",
    "Sentences whose keys correlate form a state; their number is the one with the greatest "
    "t-distance, or n_boundaries + 1. It sees the whole text. Extra package: segment.",
    "Geerligs et al. 2021 and 2022 (GSBS; statesegmentation)",
    _propose,
    options={"most_states": None},
    uses_keys=lambda options: True,
)
