"""Similarities of keys that are not a dot product: clipped, Gaussian, exponential, one's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError

__all__ = ["BLOCK_SIMILARITIES", "Weights", "median_distance", "weights_of"]

Weights = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]

BLOCK_SIMILARITIES = ("clipped", "rbf", "exp")
"""Names that `BlockGraph` knows; a function is the fourth choice."""

_SAMPLE = 4096  # pairs of keys whose distances give the default scale


def weights_of(
    similarity: str | Weights,
    keys: NDArray[np.floating],
    scale: float | None,
) -> tuple[list[Weights], list[float | None]]:
    """The function that gives the weights of each head, and the scale it uses.

    Parameters
    ----------
    similarity : a name of `BLOCK_SIMILARITIES`, or a function of two arrays of keys (a, d) and
        (b, d) that returns their similarities (a, b).
    keys : shape (heads, n, d).
    scale : "rbf": σ of exp(-‖k_i - k_j‖² / 2σ²); None: the median distance of pairs of the head's
        keys (Garreau et al. 2017), each head its own. "exp": s of exp(k_i·k_j / s); None: √d, the
        scale of attention. Others have none.

    Returns
    -------
    One function and one scale (None where there is none) per head.

    "exp" leaves out the factor exp(-max‖k‖² / s), the same for all weights and heads: it keeps
    them finite, and no measure depends on it.
    """
    heads, _, d = keys.shape
    if callable(similarity):
        if scale is not None:
            raise InputError("scale= belongs to the similarities 'rbf' and 'exp'.")
        return [_checked(similarity)] * heads, [None] * heads
    check_option("similarity", similarity, BLOCK_SIMILARITIES)
    if scale is not None and not (np.isfinite(scale) and scale > 0):
        raise InputError(f"scale={scale} must be a number above 0.")
    if similarity == "clipped":
        if scale is not None:
            raise InputError("scale= belongs to the similarities 'rbf' and 'exp', not 'clipped'.")
        return [_clipped] * heads, [None] * heads
    if similarity == "exp":
        chosen = float(np.sqrt(d)) if scale is None else float(scale)
        top = max(float(np.einsum("nd,nd->n", k, k, dtype=np.float64).max()) for k in keys)
        return [_exponential(chosen, top)] * heads, [chosen] * heads
    widths = [median_distance(k) if scale is None else float(scale) for k in keys]
    for head, width in enumerate(widths):
        if width == 0:
            raise InputError(
                f"at least half of the keys of head {head} are equal, so that their median "
                "distance is 0; give scale= (the σ of the Gaussian)."
            )
    return [_gaussian(width) for width in widths], list(widths)


def median_distance(keys: NDArray[np.floating], sample: int = _SAMPLE, seed: int = 0) -> float:
    """Median Euclidean distance of pairs of different positions; keys (n, d).

    All pairs where there are at most `sample`, otherwise this many drawn with replacement.
    """
    n = len(keys)
    if n < 2:
        return 1.0
    if n * (n - 1) // 2 <= sample:
        i, j = np.triu_indices(n, k=1)
    else:
        rng = np.random.default_rng(seed)
        i = rng.integers(n, size=sample)
        j = (i + rng.integers(1, n, size=sample)) % n
    apart = keys[i].astype(np.float64) - keys[j]
    return float(np.median(np.sqrt(np.einsum("pd,pd->p", apart, apart))))


def _clipped(rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = rows @ columns.T
    np.maximum(weights, 0.0, out=weights)
    return weights


def _exponential(scale: float, top: float) -> Weights:
    def weights(rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
        values = rows @ columns.T
        values -= top
        values /= scale
        np.exp(values, out=values)
        return values

    return weights


def _gaussian(width: float) -> Weights:
    def weights(rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
        values = rows @ columns.T
        values *= 2
        values -= np.einsum("nd,nd->n", rows, rows)[:, None]
        values -= np.einsum("nd,nd->n", columns, columns)
        np.minimum(values, 0.0, out=values)  # -‖k_i - k_j‖², which rounding may lift above 0
        values /= 2 * width**2
        np.exp(values, out=values)
        return values

    return weights


def _checked(function: Weights) -> Weights:
    """A function of the user's, with errors for what it must not return."""

    def weights(rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
        values = np.asarray(function(rows, columns), dtype=np.float64)
        if values.shape != (len(rows), len(columns)):
            raise InputError(
                f"similarity returned the shape {values.shape} for {len(rows)} and "
                f"{len(columns)} keys; it must return {(len(rows), len(columns))}."
            )
        if not np.isfinite(values).all():
            raise InputError("similarity returned NaN or infinite values.")
        return values.copy()  # what it returned may be its own array, and is written to here

    return weights
