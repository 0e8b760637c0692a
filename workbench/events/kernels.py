"""Proposal `K`: kernel change-point detection, by the library ruptures (extra `segment`).

All change points at once: the cut whose events are most homogeneous in the kernel's space. It
looks at the whole text, so unlike a threshold it says nothing of how a reader segments online.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option, import_extra
from workbench.core.errors import InputError
from workbench.core.trace import Trace
from workbench.events.patterns import UNITS, patterns_of, unit_starts
from workbench.events.proposal import Options, Proposal
from workbench.events.signals import boundary_count, signal_of

__all__ = ["KERNEL", "KERNELS", "LIMIT", "kernel_boundaries", "median_gamma"]

KERNELS = ("linear", "rbf", "cosine")
LIMIT = 20_000
"""Most rows that are cut: time grows with their square (times the number of boundaries)."""

_SAMPLE = 1000


def kernel_boundaries(
    values: ArrayLike,
    *,
    n_boundaries: int | None = None,
    penalty: float | None = None,
    kernel: str = "rbf",
    bandwidth: float | None = None,
    min_size: int = 8,
) -> Boundaries:
    """The cut with the least Σ_events Σ_i ‖φ(x_i) − mean φ of its event‖², by dynamic programming.

    Harchaoui & Cappé 2007; Arlot, Celisse & Harchaoui 2019. Every position is a candidate
    (ruptures' `jump` is 1), and `min_size` holds for every event, the last one too.

    Parameters
    ----------
    values : shape (n,) or (n, d), finite.
    n_boundaries : exactly so many boundaries; or
    penalty : the cost of one more boundary (PELT finds their number), in units of the kernel.
    kernel : "rbf", exp(−bandwidth·‖x − y‖²); "cosine", of the angle; "linear", x·y.
    bandwidth : for "rbf"; None: one over the median squared distance (`median_gamma`).
    min_size : positions per event.

    Returns
    -------
    Boundaries over tokens, without strengths. They have no largest event.

    Raises
    ------
    InputError : values that are not finite, too many or zero for "cosine"; sizes that do not fit.
    MissingPackageError : ruptures is not installed (pip install "workbench[segment]").
    """
    check_option("kernel", kernel, KERNELS)
    rows = np.asarray(values, dtype=np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    _check(rows, kernel, n_boundaries, penalty, bandwidth, min_size)
    ruptures = import_extra("ruptures", "method K (kernel change-point detection)", "segment")
    settings: dict[str, Any] = {"kernel": kernel, "min_size": min_size}
    parameters = None
    if kernel == "rbf":
        gamma = median_gamma(rows) if bandwidth is None else float(bandwidth)
        parameters = {"gamma": gamma}
        settings["bandwidth"] = gamma
    if n_boundaries == 0:
        ends = [len(rows)]
    else:
        search = ruptures.KernelCPD(kernel=kernel, params=parameters)
        search.min_size = min_size  # what the constructor is told is not always kept
        search.fit(rows)
        ends = search.predict(n_bkps=n_boundaries, pen=penalty)
    if penalty is None:
        settings["n_boundaries"] = int(n_boundaries or 0)
    else:
        settings["penalty"] = float(penalty)
    return Boundaries.from_ends(ends, method="K", settings=settings)


def median_gamma(rows: NDArray[np.float64]) -> float:
    """One over the median squared distance between rows (of at most 1,000, evenly spread); 1 if 0.

    The usual bandwidth of a Gaussian kernel (Garreau, Jitkrittum & Kanagawa 2017).
    """
    from scipy.spatial.distance import pdist

    chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLE)).astype(np.int64)]
    if len(chosen) < 2:
        return 1.0
    median = float(np.median(pdist(chosen, "sqeuclidean")))
    return 1 / median if median > 0 else 1.0


def _check(
    rows: NDArray[np.float64],
    kernel: str,
    n_boundaries: int | None,
    penalty: float | None,
    bandwidth: float | None,
    min_size: int,
) -> None:
    n = len(rows)
    if rows.ndim != 2 or n == 0:
        raise InputError(f"values must have the shape (n,) or (n, d), not {rows.shape}.")
    if not np.isfinite(rows).all():
        first = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise InputError(f"the value at position {first} is not finite; leave it out.")
    if n > LIMIT:
        raise InputError(
            f"{n} positions: kernel change points take time with their square, and are found for "
            f"at most {LIMIT:,}. Cut the text in parts, or use unit='word' or 'sentence'."
        )
    if kernel == "cosine" and not np.einsum("nd,nd->n", rows, rows).all():
        raise InputError("kernel='cosine': a row of zeros has no direction; use 'rbf'.")
    if (n_boundaries is None) == (penalty is None):
        raise InputError("give either n_boundaries or penalty.")
    if penalty is not None and not penalty > 0:
        raise InputError(f"penalty={penalty} must be more than 0.")
    if bandwidth is not None and not bandwidth > 0:
        raise InputError(f"bandwidth={bandwidth} must be more than 0.")
    if min_size < 1:
        raise InputError(f"min_size={min_size} must be at least 1.")
    count = 1 if n_boundaries is None else n_boundaries
    if count < 0 or (count + 1) * min_size > n:
        raise InputError(
            f"{count + 1} events of at least min_size={min_size} do not fit into {n} positions; "
            "lower n_boundaries or min_size."
        )


def _propose(trace: Trace, options: Options) -> Boundaries:
    chosen = dict(options.more)
    signal, unit, penalty = chosen.pop("signal"), chosen.pop("unit"), chosen["penalty"]
    check_option("unit", unit, UNITS)
    made_of: dict[str, object] = {"unit": unit}
    if signal == "keys":
        rows, starts, made_of = patterns_of(trace, options, unit)
    else:
        starts = unit_starts(trace, unit)
        values = signal_of(trace, signal)
        known = ~np.isnan(values)
        counts = np.add.reduceat(known, starts, dtype=np.int64)
        sums = np.add.reduceat(np.where(known, values, 0.0), starts)
        rows, starts = (sums[counts > 0] / counts[counts > 0])[:, None], starts[counts > 0]
    kernel = chosen.pop("kernel") or ("cosine" if signal == "keys" else "rbf")
    count, why = (None, "penalty") if penalty is not None else boundary_count(trace, options)
    # Sizes are counted in tokens; a word or a sentence is an event of its own if need be.
    least = options.min_size if unit == "token" else 1
    most = len(rows) // least - 1
    wanted = None if count is None else max(min(count, most), 0)
    found = kernel_boundaries(rows, n_boundaries=wanted, kernel=kernel, min_size=least, **chosen)
    settings: dict[str, Any] = {**found.settings, "signal": signal, "count": why, **made_of}
    if count is not None and wanted != count:
        settings["note"] = f"only {wanted} of the {count} boundaries asked for fit"
    return Boundaries(starts[found.inner], trace.n_tokens, settings=settings)


KERNEL = Proposal(
    "K",
    "kernel change-point",
    "The cut whose events are most homogeneous: surprisal with a Gaussian kernel, or "
    "(signal='keys') keys by their cosine; as many boundaries as n_boundaries or, without it, as S "
    "finds; or by penalty=. It sees the whole text. Extra package: segment.",
    "Arlot, Celisse & Harchaoui 2019; Truong, Oudre & Vayatis 2020 (ruptures)",
    _propose,
    options={
        "signal": "surprisal",
        "unit": "token",
        "kernel": None,
        "bandwidth": None,
        "penalty": None,
    },
    uses_keys=lambda options: options.more["signal"] == "keys",
)
