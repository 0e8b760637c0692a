"""Approximate search among very many units: FAISS, and how much of the exact answer it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.core.checks import import_extra, whole_number
from workbench.core.errors import DataError, InputError
from workbench.memory.representatives import similarities

__all__ = ["ApproximateIndex", "IndexRecall", "recall_of_index", "synthetic_store"]

_PROBED = 0.25
"""Share of the cells of the index that a query looks into."""

_BLOCK = 4096  # units turned to float32 at once


class ApproximateIndex:
    """Which units may be most similar to a query: an inverted file (FAISS, IVF Flat).

    Units fall into cells around centres found by spherical k-means, and a query looks only into
    the cells nearest to it. Vectors are centred first: a query's dot product with the mean is the
    same for all units, so their order stays, and keys, which share a large mean, spread out. What
    the index answers depends on the units alone, not on how it came to hold them: the centres are
    those of the first above · 2^k units, with the largest k of which there are as many. A memory
    that was cut back (`branch`) or loaded answers as one that was never longer, or never left.

    Parameters
    ----------
    above : units from which on the index is used; the first centres are found among so many.
    probed : share of the cells that a query looks into.

    Attributes
    ----------
    n : units held.

    Raises
    ------
    MissingPackageError : FAISS is not installed.
    """

    def __init__(self, above: int, *, probed: float = _PROBED) -> None:
        self._faiss = import_extra(
            "faiss", "Approximate search of the memory (ann_above=)", "faiss"
        )
        self.above = whole_number("above", above, 1)
        if not 0 < probed <= 1:
            raise InputError(f"probed={probed} must be a share of the cells above 0, at most 1.")
        self._probed = probed
        self.n = 0
        self._trained = 0  # units that the centres come from
        self._index: Any = None
        self._mean = np.zeros(0, dtype=np.float32)

    def truncate(self, n: int) -> None:
        """Forget the units from n on."""
        if n >= self.n:
            return
        if n < self._trained or self._index is None:
            self.n, self._trained, self._index = 0, 0, None
            return
        self._index.remove_ids(self._faiss.IDSelectorRange(n, self.n))
        self.n = n

    def candidates(self, units: Tensor, query: Tensor, count: int) -> NDArray[np.int64]:
        """Units that are likely to be the most similar ones, in the order of the text.

        Parameters
        ----------
        units : (n_units, heads, dim), all that are stored; those held already are not read again.
        query : (heads, dim).
        count : most candidates; there are fewer where the cells looked into hold fewer.
        """
        self._update(units)
        row = _flat(query[None])
        _, found = self._index.search(row, min(count, self.n))
        return np.sort(found[0][found[0] >= 0]).astype(np.int64)

    def _update(self, units: Tensor) -> None:
        n = len(units)
        self.truncate(n)
        wanted = self.above
        while wanted * 2 <= n:
            wanted *= 2
        wanted = min(wanted, n)
        if wanted != self._trained:
            self._train(units[:wanted])
        for start in range(self.n, n, _BLOCK):
            rows = _flat(units[start : min(start + _BLOCK, n)]) - self._mean
            self._index.add(rows)
        self.n = n

    def _train(self, units: Tensor) -> None:
        rows = _flat(units)
        self._mean = rows.mean(axis=0)
        rows = rows - self._mean
        cells = max(1, round(len(rows) ** 0.5))
        faiss = self._faiss
        coarse = faiss.IndexFlatIP(rows.shape[1])
        index = faiss.IndexIVFFlat(coarse, rows.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1  # few units are no reason to warn
        index.train(rows)
        index.nprobe = max(1, round(self._probed * cells))
        self._index, self._coarse = index, coarse  # FAISS does not keep the coarse one alive
        self._trained, self.n = len(rows), 0

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors, their numbers and the centres."""
        if self._index is None:
            return 0
        return int(self.n * (self._index.d * 4 + 8) + self._index.nlist * self._index.d * 4)


def _flat(rows: Tensor) -> NDArray[np.float32]:
    flat = rows.reshape(len(rows), -1).to("cpu", torch.float32)
    return np.ascontiguousarray(flat.numpy(), dtype=np.float32)


# --- how much of the exact answer is found ------------------------------------------------


@dataclass(frozen=True)
class IndexRecall:
    """Share of the exact k most similar units that the approximate index finds.

    k : of recall@k.
    mean : over queries.
    low, high : bounds of the 95 % percentile interval, bootstrapped over groups of queries.
    n_queries, n_groups : queries, and groups that are drawn together (steps of a reading: the
        layers of one step ask about the same words).
    n_units : most units that a query was answered from.
    chance : recall@k of as many units as there are candidates, drawn at random: the baseline.
    """

    k: int
    mean: float
    low: float
    high: float
    n_queries: int
    n_groups: int
    n_units: int
    chance: float


def recall_of_index(
    asked: Sequence[tuple[int, Tensor, Tensor]],
    *,
    k: int = 16,
    above: int = 256,
    probed: float = _PROBED,
    draws: int = 2000,
    seed: int = 0,
) -> IndexRecall:
    """Compare the approximate index with exact search.

    Parameters
    ----------
    asked : (group, query (heads, dim), units (n_units, heads, dim)): queries that come from the
        same place of a text share a group.
    k : how many of the most similar units are compared.
    above, probed : see `ApproximateIndex`; queries of at most `above` units are left out: they
        are answered exactly.
    draws, seed : of the bootstrap.

    Raises
    ------
    DataError : no query had more than `above` (and k) units to be answered from.
    """
    k = whole_number("k", k, 1)
    shares: dict[int, list[float]] = {}
    chances: list[float] = []
    held: dict[int, ApproximateIndex] = {}
    most = 0
    for group, query, units in asked:
        n = len(units)
        if n <= max(above, k):
            continue
        most = max(most, n)
        # Units of one store are views of one tensor; each store has an index of its own.
        index = held.setdefault(units.data_ptr(), ApproximateIndex(above, probed=probed))
        exact = torch.topk(similarities(query.to(units.dtype), units), k).indices.cpu().numpy()
        found = index.candidates(units, query, k)
        shares.setdefault(group, []).append(len(np.intersect1d(exact, found)) / k)
        chances.append(len(found) / n)
    if not shares:
        raise DataError(
            f"no query had more than {max(above, k)} units to be answered from; give a longer "
            "text, a smaller k=, or a smaller above=."
        )
    sums = np.array([sum(values) for values in shares.values()])
    counts = np.array([len(values) for values in shares.values()])
    low = high = float("nan")
    if len(sums) > 1:
        rng = np.random.default_rng(seed)
        weights = rng.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=draws)
        low, high = np.quantile(weights @ sums / (weights @ counts), [0.025, 0.975])
    return IndexRecall(
        k=k,
        mean=float(sums.sum() / counts.sum()),
        low=float(low),
        high=float(high),
        n_queries=int(counts.sum()),
        n_groups=len(sums),
        n_units=most,
        chance=float(np.mean(chances)),
    )


def synthetic_store(
    n_units: int, n_queries: int, *, heads: int = 9, dim: int = 64, topics: int = 200, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Units and queries of no text: noise around topics, which come one after the other.

    Returns
    -------
    units (n_units, heads, dim) and queries (n_queries, heads, dim), float32.
    """
    rng = np.random.default_rng(seed)
    size = heads * dim
    centres = rng.standard_normal((topics, size), dtype=np.float32)
    mean = 3 * rng.standard_normal(size, dtype=np.float32)

    def drawn(topic: NDArray[np.int64]) -> Tensor:
        noise = rng.standard_normal((len(topic), size), dtype=np.float32)
        return torch.from_numpy(mean + centres[topic] + noise).view(len(topic), heads, dim)

    length = max(1, n_units // (4 * topics))  # each topic comes back about four times
    told = np.repeat(rng.integers(topics, size=-(-n_units // length)), length)[:n_units]
    return drawn(told), drawn(rng.integers(topics, size=n_queries))
