"""EventGraph: what key-similarity graphs of every kind offer, from the sums over their blocks."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workbench.core.blocksums import (
    CONDUCTANCE,
    INTRA_INTER,
    MODULARITY,
    BlockSums,
    conductance_terms,
    intra_inter_terms,
    modularity_terms,
)
from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["EventGraph", "Measure"]

Measure = float | NDArray[np.float64]


class EventGraph(ABC):
    """Weighted graph(s) over n positions, one per head, whose cuts into events are measured.

    `KeyGraph` (dot products, cosines) and `BlockGraph` (all other similarities) are the two kinds;
    they differ in how the sums over a block of weights come about.

    Attributes
    ----------
    n, n_heads : numbers of positions and of graphs.
    scalar : True for one graph, whose measures are floats; else they have the shape (heads,).
    diagonal : whether the weights A_ii are part of the graph.
    index : the (layer, head) of each graph, or None.
    similarity : what the weights are, for labels: "dot", "cosine", "clipped", "rbf", ...
    """

    n: int
    n_heads: int
    scalar: bool
    diagonal: bool
    index: list[tuple[int, int]] | None
    similarity: str

    @abstractmethod
    def span_sums(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> BlockSums:
        """Inner weight, cut and degree sum of any spans [first, last), shapes (..., heads)."""

    @abstractmethod
    def summed(self) -> EventGraph:
        """One graph whose weights are the sums over heads."""

    @abstractmethod
    def to_dense(self) -> NDArray[np.float64]:
        """The weights themselves, shape (n, n) or (heads, n, n), float64; for small graphs."""

    @abstractmethod
    def weights(self, rows: slice, columns: slice, head: int = 0) -> NDArray[np.float64]:
        """The weights of a block of one graph, shape (rows, columns), the diagonal as chosen."""

    @abstractmethod
    def reordered(self, order: NDArray[np.int64]) -> EventGraph:
        """The graph(s) with position i taken from `order[i]`: the same weights in another order."""

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
        edges = events.edges
        found = self.span_sums(edges[:-1], edges[1:])
        empty = np.flatnonzero(np.isnan(found.total))
        if len(empty):
            names = [self.index[i] for i in empty] if self.index else empty.tolist()
            where = "" if self.scalar else f" of heads {names}"
            warnings.warn(
                f"the total weight{where} is at most {self._empty}; measures relative to it are "
                "NaN.",
                RuntimeWarning,
                stacklevel=3,
            )
        return found

    _empty = "1e-9 of the weights' absolute sum"

    def modularity(
        self, events: Boundaries, variant: str = "newman", reduce: str | None = "sum"
    ) -> Measure:
        """Modularity of a cut into events.

        Parameters
        ----------
        events : the cut, over the graph's n positions.
        variant : "newman", Σ_c within/W - (degree/W)² with W = Σ_ij A_ij; or "em-llm", half of
            it (EM-LLM Eq. 3).
        reduce : "sum" over events, which is the modularity; or None for each event's
            contribution to it.

        Returns
        -------
        float, or shape (heads,); for reduce=None (events,) or (events, heads). NaN where W is
        near zero. One event has modularity 0.
        """
        check_option("variant", variant, MODULARITY)
        check_option("reduce", reduce, ("sum", None))
        return self._reduced(modularity_terms(self.sums(events), variant), reduce)

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
        reduce : "mean" or "min" over events; "pooled" (variant "sums" only), the ratio of both
            summed over events; or None for one value per event.

        Returns
        -------
        As `conductance`; NaN where a cut is not positive, and for a single event.
        """
        check_option("variant", variant, INTRA_INTER)
        check_option("reduce", reduce, ("mean", "min", "pooled", None))
        sums = self.sums(events)
        if reduce != "pooled":
            return self._reduced(intra_inter_terms(sums, variant), reduce)
        if variant != "sums":
            raise InputError('reduce="pooled" is a ratio of sums; use variant="sums".')
        return self._shaped(pooled_intra_inter(sums))

    def _reduced(self, terms: NDArray[np.float64], reduce: str | None) -> Measure:
        if reduce is None:
            return terms[:, 0] if self.scalar else terms
        if reduce == "sum":
            return self._shaped(terms.sum(axis=0))
        return self._shaped(terms.min(axis=0) if reduce == "min" else terms.mean(axis=0))

    def _shaped(self, values: NDArray[np.float64]) -> Measure:
        return float(values[0]) if self.scalar else values

    # --- small graphs ----------------------------------------------------------------------

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
                f"there are {self.n_heads} graphs; take one (a graph of its keys) or summed()."
            )
        weights = self.to_dense().reshape(self.n, self.n)
        np.fill_diagonal(weights, np.diag(weights) / 2)
        graph = nx.Graph()
        graph.add_nodes_from(range(self.n))
        rows, columns = np.triu_indices(self.n, k=0 if self.diagonal else 1)
        values = weights[rows, columns].tolist()
        graph.add_weighted_edges_from(zip(rows.tolist(), columns.tolist(), values, strict=True))
        return graph


def pooled_intra_inter(sums: BlockSums) -> NDArray[np.float64]:
    """Inner weights of all events over all their cuts, shape (..., heads); NaN where ≤ 0."""
    cut = sums.cut.sum(axis=-2)
    defined = (cut > 0) & np.isfinite(sums.total)
    return np.where(defined, sums.within.sum(axis=-2) / np.where(defined, cut, 1.0), np.nan)
