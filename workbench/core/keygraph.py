"""KeyGraph: the key-similarity graph of attention heads, never built (EM-LLM section 3.3)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.blocksums import (
    CONDUCTANCE,
    INTRA_INTER,
    MODULARITY,
    BlockSums,
    block_sums,
    conductance_terms,
    intra_inter_terms,
    modularity_terms,
    prefix_sums,
)
from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["KeyGraph", "NegativeShare"]

Measure = float | NDArray[np.float64]

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


class KeyGraph:
    """Graph(s) over n positions with the weights A_ij = k_i·k_j, one graph per head.

    Every sum over a block of A is a dot product of sums of keys, so that each measure costs one
    row of prefix sums per event and the n × n matrix is never built.

    Parameters
    ----------
    keys : shape (n, d): one graph, whose measures are floats; or (heads, n, d): one graph per
        head, whose measures have the shape (heads,). Not copied.
    diagonal : keep the weights A_ii, as EM-LLM's paper and code do.
    index : the (layer, head) of each graph, for labels.

    Attributes
    ----------
    n, n_heads : numbers of positions and of graphs.
    prefix : running sums of the keys, shape (n + 1, heads, d), float64.
    norms : running sums of ‖k‖², shape (n + 1, heads), float64.

    Raises
    ------
    InputError : wrong shape, no positions, or keys that are not finite.
    """

    def __init__(
        self,
        keys: ArrayLike,
        *,
        diagonal: bool = True,
        index: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        values = np.asarray(keys)
        if values.ndim not in (2, 3):
            raise InputError(
                f"keys must have the shape (n, d) or (heads, n, d), not {values.shape}."
            )
        if 0 in values.shape:
            raise InputError(f"keys of shape {values.shape} hold no numbers.")
        if values.dtype.kind in "iub":
            values = values.astype(np.float64)
        if values.dtype.kind != "f":
            raise InputError(f"keys must be real numbers, not {values.dtype}.")
        self.scalar = values.ndim == 2
        stacked = values[None] if self.scalar else values
        self.n_heads, self.n = stacked.shape[:2]
        self.diagonal = diagonal
        self.index = list(index) if index is not None else None
        if self.index is not None and len(self.index) != self.n_heads:
            raise InputError(f"index names {len(self.index)} heads, keys have {self.n_heads}.")
        self._parts = stacked[:, None]  # (heads, keys that are added up, n, d)
        with np.errstate(invalid="ignore", over="ignore"):
            self.prefix, self.norms = prefix_sums(stacked)
        if not (np.isfinite(self.prefix[-1]).all() and np.isfinite(self.norms[-1]).all()):
            _raise_not_finite(stacked, self.scalar)
        self.prefix.flags.writeable = False
        self.norms.flags.writeable = False

    def summed(self) -> KeyGraph:
        """One graph whose weights are the sums over heads; shares memory with this one."""
        graph = object.__new__(KeyGraph)
        heads, parts, n, d = self._parts.shape
        graph.scalar = True
        graph.n_heads, graph.n = 1, self.n
        graph.diagonal = self.diagonal
        graph.index = [(-1, -1)]
        graph.prefix = self.prefix.reshape(n + 1, 1, -1)
        graph.norms = self.norms.sum(axis=1, keepdims=True)
        graph.norms.flags.writeable = False
        graph._parts = self._parts.reshape(1, heads * parts, n, d)
        return graph

    # --- measures --------------------------------------------------------------------------

    def sums(self, events: Boundaries) -> BlockSums:
        """Inner weight, cut and degree sum of each event, shapes (events, heads).

        Raises
        ------
        InputError : the events cut a sequence of another length.
        """
        if events.n != self.n:
            raise InputError(
                f"events cut {events.n} {events.unit}s, but the graph has {self.n} positions; "
                "convert them first (trace.to_tokens or trace.to_words)."
            )
        found = block_sums(self.prefix, self.norms, events.starts, diagonal=self.diagonal)
        empty = np.flatnonzero(np.isnan(found.total))
        if len(empty):
            names = [self.index[i] for i in empty] if self.index else empty.tolist()
            where = "" if self.scalar else f" of heads {names}"
            warnings.warn(
                f"the total weight{where} is at most 1e-9 of the keys' squared lengths; measures "
                "relative to it are NaN.",
                RuntimeWarning,
                stacklevel=3,
            )
        return found

    def modularity(self, events: Boundaries, variant: str = "newman") -> Measure:
        """Modularity of a cut into events.

        Parameters
        ----------
        events : the cut, over the graph's n positions.
        variant : "newman", Σ_c within/W - (degree/W)² with W = Σ_ij A_ij; or "em-llm", half of
            it (EM-LLM Eq. 3).

        Returns
        -------
        float, or shape (heads,); NaN where W is near zero. One event has modularity 0.
        """
        check_option("variant", variant, MODULARITY)
        return self._shaped(modularity_terms(self.sums(events), variant).sum(axis=0))

    def conductance(
        self, events: Boundaries, variant: str = "standard", reduce: str | None = "min"
    ) -> Measure:
        """Conductance of a cut into events: cut / smaller side, per event, then reduced.

        Parameters
        ----------
        variant : which side is meant: "standard" (degree sums), "em-llm-paper" (inner weights of
            the event and of its complement, Eq. 4; measures mostly the event's size) or
            "em-llm-code" (inner weight, and total less inner weight).
        reduce : "min" (Eq. 4) or "mean" over events, or None for one value per event.

        Returns
        -------
        float, or shape (heads,); for reduce=None (events,) or (events, heads). NaN for a single
        event and where the smaller side is not positive; an undefined event makes the reduced
        value NaN.
        """
        check_option("variant", variant, CONDUCTANCE)
        check_option("reduce", reduce, ("min", "mean", None))
        return self._reduced(conductance_terms(self.sums(events), variant), reduce)

    def intra_inter(
        self, events: Boundaries, variant: str = "sums", reduce: str | None = "mean"
    ) -> Measure:
        """Ratio of intra- to inter-event similarity.

        Parameters
        ----------
        variant : "sums", within / cut of each event (EM-LLM Eq. 5); or "means", mean weight
            within / mean weight to the rest, as released.
        reduce : "mean" over events; "pooled" (variant "sums" only), the ratio of both summed
            over events; or None for one value per event.

        Returns
        -------
        As `conductance`; NaN where a cut is not positive, and for a single event.
        """
        check_option("variant", variant, INTRA_INTER)
        check_option("reduce", reduce, ("mean", "pooled", None))
        sums = self.sums(events)
        if reduce != "pooled":
            return self._reduced(intra_inter_terms(sums, variant), reduce)
        if variant != "sums":
            raise InputError('reduce="pooled" is a ratio of sums; use variant="sums".')
        cut = sums.cut.sum(axis=0)
        defined = (cut > 0) & np.isfinite(sums.total)
        ratio = np.where(defined, sums.within.sum(axis=0) / np.where(defined, cut, 1.0), np.nan)
        return self._shaped(ratio)

    def _reduced(self, terms: NDArray[np.float64], reduce: str | None) -> Measure:
        if reduce is None:
            return terms[:, 0] if self.scalar else terms
        return self._shaped(terms.min(axis=0) if reduce == "min" else terms.mean(axis=0))

    def _shaped(self, values: NDArray[np.float64]) -> Measure:
        return float(values[0]) if self.scalar else values

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

    def to_networkx(self) -> nx.Graph:
        """One graph as a weighted `networkx.Graph`, for checks on small graphs.

        Self-loops carry A_ii / 2, since networkx counts them twice in a node's degree; then its
        modularity and conductance equal those here ("newman", "standard").

        Raises
        ------
        InputError : there are several graphs.
        """
        import networkx as nx

        if self.n_heads != 1:
            raise InputError(
                f"there are {self.n_heads} graphs; take one (KeyGraph of its keys) or summed()."
            )
        weights = self.to_dense().reshape(self.n, self.n)
        np.fill_diagonal(weights, np.diag(weights) / 2)
        graph = nx.Graph()
        graph.add_nodes_from(range(self.n))
        rows, columns = np.triu_indices(self.n, k=0 if self.diagonal else 1)
        values = weights[rows, columns].tolist()
        graph.add_weighted_edges_from(zip(rows.tolist(), columns.tolist(), values, strict=True))
        return graph

    def _joined(self, head: int) -> NDArray[np.float64]:
        """Keys of one graph side by side, shape (n, parts·d), float64."""
        parts = self._parts[head]
        return parts.transpose(1, 0, 2).reshape(self.n, -1).astype(np.float64)

    def __repr__(self) -> str:
        width = self.prefix.shape[2]
        kept = "" if self.diagonal else ", no diagonal"
        return f"KeyGraph({self.n_heads} heads over {self.n} positions, {width} dims{kept})"


def _raise_not_finite(keys: NDArray[np.floating], scalar: bool) -> None:
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
