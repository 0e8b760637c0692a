"""KeyGraph: the key-similarity graph of attention heads, never built (EM-LLM section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.blocksums import BlockSums, prefix_sums, span_sums
from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.core.eventgraph import EventGraph, Measure

__all__ = ["PREFIX_SIMILARITIES", "KeyGraph", "NegativeShare"]

PREFIX_SIMILARITIES = ("dot", "cosine")
"""Similarities that are dot products, so that sums over blocks are products of prefix sums."""

_DENSE_BYTES = 2**32  # larger dense matrices are refused: the graph is not meant to be built
_PAIR_BLOCK = 1 << 14  # sampled pairs whose keys are gathered at once


class NegativeShare(NamedTuple):
    """Share of the pairs i < j whose weight is negative.

    `share` and `error` (its standard error; 0 where every pair was looked at) are floats for one
    graph, arrays (heads,) for several; `pairs` is the number of pairs looked at per graph.
    """

    share: Measure
    error: Measure
    pairs: int
    exact: bool


class KeyGraph(EventGraph):
    """Graph(s) over n positions with the weights A_ij = k_i·k_j, one graph per head.

    Every sum over a block of A is a dot product of sums of keys, so that each measure costs one
    row of prefix sums per event and the n × n matrix is never built.

    Parameters
    ----------
    keys : shape (n, d): one graph, whose measures are floats; or (heads, n, d): one graph per
        head, whose measures have the shape (heads,). Not copied.
    diagonal : keep the weights A_ii, as EM-LLM's paper and code do.
    index : the (layer, head) of each graph, for labels.
    similarity : "dot", the papers' k_i·k_j; or "cosine", the same of keys scaled to length 1. All
        other similarities are no dot products: see `workbench.core.blockgraph.BlockGraph`.

    Attributes
    ----------
    n, n_heads : numbers of positions and of graphs.
    prefix : running sums of the keys, shape (n + 1, heads, d), float64.
    norms : running sums of ‖k‖², shape (n + 1, heads), float64.

    Raises
    ------
    InputError : wrong shape, no positions, keys that are not finite, or a cosine with a key of
        length 0.
    """

    def __init__(
        self,
        keys: ArrayLike,
        *,
        diagonal: bool = True,
        index: Sequence[tuple[int, int]] | None = None,
        similarity: str = "dot",
    ) -> None:
        check_option("similarity", similarity, PREFIX_SIMILARITIES)
        stacked, self.scalar = check_keys(keys)
        self.n_heads, self.n = stacked.shape[:2]
        self.diagonal = diagonal
        self.similarity = similarity
        self.index = check_index(index, self.n_heads)
        if similarity == "cosine":
            stacked = _unit_keys(stacked, self.scalar)
        self._parts = stacked[:, None]  # (heads, keys that are added up, n, d)
        with np.errstate(invalid="ignore", over="ignore"):
            self.prefix, self.norms = prefix_sums(stacked)
        if not (np.isfinite(self.prefix[-1]).all() and np.isfinite(self.norms[-1]).all()):
            raise_not_finite(stacked, self.scalar)
        self.prefix.flags.writeable = False
        self.norms.flags.writeable = False

    def summed(self) -> KeyGraph:
        """One graph whose weights are the sums over heads; shares memory with this one."""
        graph = object.__new__(KeyGraph)
        heads, parts, n, d = self._parts.shape
        graph.scalar = True
        graph.n_heads, graph.n = 1, self.n
        graph.diagonal = self.diagonal
        graph.similarity = self.similarity
        graph.index = [(-1, -1)]
        graph.prefix = self.prefix.reshape(n + 1, 1, -1)
        graph.norms = self.norms.sum(axis=1, keepdims=True)
        graph.norms.flags.writeable = False
        graph._parts = self._parts.reshape(1, heads * parts, n, d)
        return graph

    def span_sums(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> BlockSums:
        """Inner weight, cut and degree sum of any spans [first, last), shapes (..., heads)."""
        return span_sums(self.prefix, self.norms, first, last, diagonal=self.diagonal)

    def weights(self, rows: slice, columns: slice, head: int = 0) -> NDArray[np.float64]:
        """The weights of a block of one graph, shape (rows, columns), the diagonal as chosen."""
        found = np.zeros((rows.stop - rows.start, columns.stop - columns.start))
        for part in self._parts[head]:
            found += part[rows].astype(np.float64) @ part[columns].astype(np.float64).T
        if not self.diagonal:
            drop_diagonal(found, rows, columns)
        return found

    def reordered(self, order: NDArray[np.int64]) -> KeyGraph:
        """The graph(s) with position i taken from `order[i]`."""
        heads, parts, n, d = self._parts.shape
        keys = self._parts[:, :, check_order(order, n)]
        graph = KeyGraph(
            keys.reshape(heads * parts, n, d), diagonal=self.diagonal, similarity="dot"
        )
        graph.prefix = graph.prefix.reshape(n + 1, heads, parts * d)
        graph.norms = graph.norms.reshape(n + 1, heads, parts).sum(axis=2)
        graph.scalar, graph.n_heads, graph.index = self.scalar, heads, self.index
        graph.similarity, graph._parts = self.similarity, keys
        return graph

    _empty = "1e-9 of the keys' squared lengths"

    # --- signs of the weights --------------------------------------------------------------

    def negative_share(self, sample: int = 2_000_000, seed: int = 0) -> NegativeShare:
        """Share of the pairs of different positions whose weight is negative.

        Parameters
        ----------
        sample : pairs looked at per graph; when there are no more than this, all are, by blocks
            of rows. Otherwise this many are drawn with replacement, the same for all heads.
        seed : of the draw.
        """
        if sample < 1:
            raise InputError(f"sample={sample}: at least one pair is needed.")
        pairs = self.n * (self.n - 1) // 2
        if pairs == 0:
            none = self._shaped(np.full(self.n_heads, np.nan))
            return NegativeShare(none, none, 0, True)
        exact = pairs <= sample
        counts = self._count_negative() if exact else self._sample_negative(sample, seed)
        looked = pairs if exact else sample
        share = counts / looked
        error = np.zeros_like(share) if exact else np.sqrt(share * (1 - share) / looked)
        return NegativeShare(self._shaped(share), self._shaped(error), looked, exact)

    def _count_negative(self) -> NDArray[np.float64]:
        counts = np.zeros(self.n_heads)
        for head in range(self.n_heads):
            keys = self._joined(head)
            for first in range(0, self.n, 512):
                weights = keys[first : first + 512] @ keys[first:].T
                counts[head] += np.triu(weights < 0, k=1).sum()
        return counts

    def _sample_negative(self, sample: int, seed: int) -> NDArray[np.float64]:
        rng = np.random.default_rng(seed)
        counts = np.zeros(self.n_heads)
        for first in range(0, sample, _PAIR_BLOCK):
            size = min(_PAIR_BLOCK, sample - first)
            i = rng.integers(self.n, size=size)
            j = (i + rng.integers(1, self.n, size=size)) % self.n
            for head in range(self.n_heads):
                weights = np.zeros(size)
                for part in self._parts[head]:
                    left = part[i].astype(np.float64, copy=False)
                    weights += np.einsum("pd,pd->p", left, part[j])
                counts[head] += (weights < 0).sum()
        return counts

    # --- small graphs ----------------------------------------------------------------------

    def to_dense(self) -> NDArray[np.float64]:
        """The weights themselves, shape (n, n) or (heads, n, n), float64; for small graphs.

        Raises
        ------
        InputError : they would need more than 4 GB.
        """
        needed = 8 * self.n_heads * self.n**2
        if needed > _DENSE_BYTES:
            raise InputError(
                f"the dense weights of {self.n_heads} graphs over {self.n} positions need "
                f"{needed / 1e9:.1f} GB; the measures of KeyGraph do not need them."
            )
        dense = np.empty((self.n_heads, self.n, self.n))
        for head in range(self.n_heads):
            keys = self._joined(head)
            np.matmul(keys, keys.T, out=dense[head])
            if not self.diagonal:
                np.fill_diagonal(dense[head], 0.0)
        return dense[0] if self.scalar else dense

    def _joined(self, head: int) -> NDArray[np.float64]:
        """Keys of one graph side by side, shape (n, parts·d), float64."""
        parts = self._parts[head]
        return parts.transpose(1, 0, 2).reshape(self.n, -1).astype(np.float64)

    def __repr__(self) -> str:
        width = self.prefix.shape[2]
        kept = "" if self.diagonal else ", no diagonal"
        kind = "" if self.similarity == "dot" else f", {self.similarity}"
        return f"KeyGraph({self.n_heads} heads over {self.n} positions, {width} dims{kind}{kept})"


def check_keys(keys: ArrayLike) -> tuple[NDArray[np.floating], bool]:
    """Keys as floats of shape (heads, n, d), and whether they were those of one graph, (n, d).

    Raises
    ------
    InputError : another shape, no numbers, or numbers that are not real.
    """
    values = np.asarray(keys)
    if values.ndim not in (2, 3):
        raise InputError(f"keys must have the shape (n, d) or (heads, n, d), not {values.shape}.")
    if 0 in values.shape:
        raise InputError(f"keys of shape {values.shape} hold no numbers.")
    if values.dtype.kind in "iub":
        values = values.astype(np.float64)
    if values.dtype.kind != "f":
        raise InputError(f"keys must be real numbers, not {values.dtype}.")
    scalar = values.ndim == 2
    return (values[None] if scalar else values), scalar


def check_order(order: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """The order as an array; an error where it is not one of all n positions."""
    places = np.asarray(order)
    if places.shape != (n,) or not np.array_equal(np.sort(places), np.arange(n)):
        raise InputError(f"order must name each of the {n} positions once.")
    return places


def drop_diagonal(weights: NDArray[np.float64], rows: slice, columns: slice) -> None:
    """Set the weights A_ii that a block holds to 0, in place."""
    shared = np.arange(max(rows.start, columns.start), min(rows.stop, columns.stop))
    weights[shared - rows.start, shared - columns.start] = 0.0


def check_index(
    index: Sequence[tuple[int, int]] | None, n_heads: int
) -> list[tuple[int, int]] | None:
    """The (layer, head) of each graph as a list; an error where their number is wrong."""
    if index is None:
        return None
    if len(index) != n_heads:
        raise InputError(f"index names {len(index)} heads, keys have {n_heads}.")
    return list(index)


def _unit_keys(keys: NDArray[np.floating], scalar: bool) -> NDArray[np.float64]:
    """Keys scaled to length 1, float64."""
    values = keys.astype(np.float64)
    length = np.linalg.norm(values, axis=2, keepdims=True)
    if not np.isfinite(length).all():
        raise_not_finite(keys, scalar)
    if (length == 0).any():
        head, position = (int(i) for i in np.argwhere(length[..., 0] == 0)[0])
        where = f"position {position}" if scalar else f"position {position} of head {head}"
        raise InputError(
            f"the key at {where} has length 0, so it has no cosine with any other; leave the head "
            'out, or use similarity="dot".'
        )
    values /= length
    return values


def raise_not_finite(keys: NDArray[np.floating], scalar: bool) -> None:
    """Raise the error that says which key is not finite."""
    bad = ~np.isfinite(keys).all(axis=2)
    if not bad.any():
        raise InputError("keys are so large that their sums overflow; scale them down.")
    position = int(np.flatnonzero(bad.any(axis=0))[0])
    head = int(np.flatnonzero(bad[:, position])[0])
    where = f"position {position}" if scalar else f"position {position} of head {head}"
    raise InputError(
        f"keys are not finite: first at {where} ({int(bad.sum())} keys in all hold NaN or inf); "
        "record the model in float32."
    )
