"""Sums over blocks of key-similarity graphs, and the measures made of them, as pure functions.

The graph of one head has the weights A_ij = k_i·k_j. Because A = K Kᵀ, every sum over a block of
A is a dot product of sums of keys: with P_t the sum of the first t keys and S = P_b - P_a for an
event [a, b), its inner weight is S·S and the sum of its degrees S·P_n. Nothing of size n × n is
ever built.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.checks import check_option

__all__ = [
    "CONDUCTANCE",
    "INTRA_INTER",
    "MODULARITY",
    "BlockSums",
    "conductance_terms",
    "intra_inter_terms",
    "modularity_terms",
    "prefix_sums",
    "span_sums",
    "total_weight",
    "without_noise",
]

MODULARITY = ("newman", "em-llm")
CONDUCTANCE = ("standard", "em-llm-paper", "em-llm-code")
INTRA_INTER = ("sums", "means")

_BUFFER_BYTES = 1 << 20  # rows worked on at once: about a level-2 cache
_LONG_ROW_BYTES = 1 << 13  # above this, one subtraction per event beats copying rows first
_NOISE = 1e-12  # what is smaller than this share of the terms it is the difference of is rounding
_EMPTY = 1e-9  # a total weight below this share of Σ‖k‖² counts as zero (decided for all measures)


def prefix_sums(keys: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Running sums of keys and of their squared lengths.

    Parameters
    ----------
    keys : shape (heads, n, d), any float type.

    Returns
    -------
    prefix : shape (n + 1, heads, d), float64; row t is the sum of the first t keys.
    norms : shape (n + 1, heads), float64; row t is the sum of the first t values of ‖k‖².
    """
    heads, n, d = keys.shape
    prefix = np.empty((n + 1, heads, d))
    norms = np.empty((n + 1, heads))
    prefix[0] = 0.0
    norms[0] = 0.0
    step = max(1, _BUFFER_BYTES // max(1, 8 * heads * d))
    for first in range(0, n, step):
        last = min(n, first + step)
        rows = prefix[first + 1 : last + 1]
        rows[...] = keys[:, first:last].transpose(1, 0, 2)
        np.einsum("thd,thd->th", rows, rows, out=norms[first + 1 : last + 1])
        # one addition per row: numpy's cumsum along the first axis is several times slower
        previous = prefix[first]
        for row in rows:
            row += previous
            previous = row
    np.cumsum(norms, axis=0, out=norms)
    return prefix, norms


@dataclass(frozen=True)
class BlockSums:
    """Weights of the events of one or many segmentations of the same graph(s).

    Parameters
    ----------
    within : Σ_{i,j ∈ event} A_ij, shape (..., events, heads).
    cut : Σ_{i ∈ event, j ∉ event} A_ij, same shape.
    degree : Σ_{i ∈ event} Σ_j A_ij = within + cut, same shape.
    sizes : positions of each event, shape (..., events).
    total : Σ_ij A_ij, shape (heads,); NaN where it is too near zero to divide by.
    n : number of positions.
    diagonal : whether the weights A_ii are part of the graph.
    """

    within: NDArray[np.float64]
    cut: NDArray[np.float64]
    degree: NDArray[np.float64]
    sizes: NDArray[np.int64]
    total: NDArray[np.float64]
    n: int
    diagonal: bool = True


def total_weight(
    vector: NDArray[np.float64], norm: NDArray[np.float64] | float, diagonal: bool
) -> NDArray[np.float64]:
    """Σ_ij A_ij from the sum of all keys; NaN where it is at most 1e-9 of Σ‖k‖².

    Parameters
    ----------
    vector : sum of the keys, shape (..., d).
    norm : Σ‖k‖², shape (...).
    diagonal : whether the weights A_ii count.
    """
    total = np.einsum("...d,...d->...", vector, vector)
    if not diagonal:
        total = total - norm
    return np.where(total > _EMPTY * np.asarray(norm), total, np.nan)


def without_noise(
    difference: NDArray[np.float64], scale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A difference, with what is only rounding of its terms set to exactly 0."""
    return np.where(np.abs(difference) <= _NOISE * scale, 0.0, difference)


def span_sums(
    prefix: NDArray[np.float64],
    norms: NDArray[np.float64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    *,
    diagonal: bool = True,
) -> BlockSums:
    """Block sums of any spans of positions, which may overlap or leave gaps.

    Parameters
    ----------
    prefix : shape (n + 1, heads, d); norms : shape (n + 1, heads): see `prefix_sums`.
    first, last : first position of each span, and the one after its last; shape (..., events).
    diagonal : whether the weights A_ii count.

    Beside the result, which has three numbers per event and head, about 1 MB is used. The least
    that has to move is one row of `prefix` (8·heads·d bytes) per event.
    """
    heads, d = prefix.shape[1:]
    shape = (*first.shape, heads)
    sizes = last - first
    first, last = first.ravel(), last.ravel()
    squared = np.empty((len(first), heads))
    degree = np.empty((len(first), heads))
    vector = prefix[-1]
    row_bytes = max(1, 8 * heads * d)
    step = max(1, _BUFFER_BYTES // row_bytes)
    buffer = np.empty((min(step, len(first)), heads, d))
    for begin in range(0, len(first), step):
        rows = slice(begin, begin + step)
        a, b = first[rows], last[rows]
        part = buffer[: len(a)]
        if row_bytes >= _LONG_ROW_BYTES:
            for i, (start, stop) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
                np.subtract(prefix[stop], prefix[start], out=part[i])
        else:
            np.subtract(prefix[b], prefix[a], out=part)
        np.einsum("ehd,ehd->eh", part, part, out=squared[rows])
        np.einsum("ehd,hd->eh", part, vector, out=degree[rows])
    cut = without_noise(degree - squared, np.abs(degree) + squared)
    within = squared
    if not diagonal:
        own = norms[last] - norms[first]
        within = without_noise(squared - own, squared + own)
        degree = within + cut
    return BlockSums(
        within=within.reshape(shape),
        cut=cut.reshape(shape),
        degree=degree.reshape(shape),
        sizes=sizes,
        total=total_weight(vector, norms[-1], diagonal),
        n=len(prefix) - 1,
        diagonal=diagonal,
    )


def modularity_terms(sums: BlockSums, variant: str = "newman") -> NDArray[np.float64]:
    """Contribution of each event to modularity, shape (..., events, heads); their sum is Q.

    "newman": within/W - (degree/W)² with W = Σ_ij A_ij (Newman 2006). "em-llm": half of that
    (EM-LLM Eq. 3, whose m is W/2 and whose factor is 1/4m; the released code agrees).
    """
    check_option("variant", variant, MODULARITY)
    terms = sums.within / sums.total - (sums.degree / sums.total) ** 2
    return terms if variant == "newman" else terms / 2


def conductance_terms(
    sums: BlockSums, variant: str = "standard", zero: float | None = None
) -> NDArray[np.float64]:
    """Conductance of each event, shape (..., events, heads): cut / smaller side.

    The smaller side is, with W = Σ_ij A_ij,

    - "standard": min(degree, W - degree), the volumes of the field (Yang & Leskovec 2015);
    - "em-llm-paper": min(within, within of the complement) (EM-LLM Eq. 4);
    - "em-llm-code": min(within, W - within), as released.

    Parameters
    ----------
    zero : value that replaces a side of exactly 0 (the released code's 1e-15); None gives NaN
        wherever a side is not positive, and nothing is defined for a single event.
    """
    check_option("variant", variant, CONDUCTANCE)
    if variant == "standard":
        side = np.minimum(sums.degree, sums.total - sums.degree)
    elif variant == "em-llm-paper":
        other = without_noise(
            sums.total - sums.degree - sums.cut, np.abs(sums.total) + np.abs(sums.degree)
        )
        side = np.minimum(sums.within, other)
    else:
        side = np.minimum(sums.within, sums.total - sums.within)
    if zero is not None:
        return sums.cut / np.where(side == 0, zero, side)
    defined = (side > 0) & (sums.sizes < sums.n)[..., None] & np.isfinite(sums.total)
    return np.where(defined, sums.cut / np.where(defined, side, 1.0), np.nan)


def intra_inter_terms(sums: BlockSums, variant: str = "sums") -> NDArray[np.float64]:
    """Intra/inter similarity of each event, shape (..., events, heads); NaN where cut ≤ 0.

    "sums": within / cut (EM-LLM Eq. 5). "means": mean weight within / mean weight to the rest,
    as released. Without the diagonal the mean within is over the pairs of different positions.
    """
    check_option("variant", variant, INTRA_INTER)
    defined = (sums.cut > 0) & np.isfinite(sums.total)
    ratio = np.where(defined, sums.within / np.where(defined, sums.cut, 1.0), np.nan)
    if variant == "sums":
        return ratio
    sizes = sums.sizes.astype(np.float64)
    pairs = sizes if sums.diagonal else np.where(sizes > 1, sizes - 1, np.nan)
    # (within / (s·pairs)) / (cut / (s·(n - s)))
    return ratio * ((sums.n - sizes) / pairs)[..., None]
