"""BlockGraph: graphs whose weights are not dot products, summed block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.blocksums import BlockSums, without_noise
from workbench.core.errors import InputError
from workbench.core.eventgraph import EventGraph, Measure
from workbench.core.keygraph import (
    check_index,
    check_keys,
    check_order,
    drop_diagonal,
    raise_not_finite,
)
from workbench.core.similarities import Weights, weights_of

__all__ = ["BlockGraph"]

_DENSE_BYTES = 2**32
_EMPTY = 1e-9  # a total below this share of Σ|A_ij| counts as zero, as in KeyGraph
_LONGEST = 512  # longest span that is read from the table of all short spans
_SYMMETRY = 1e-9


class BlockGraph(EventGraph):
    """Graph(s) over n positions with any symmetric similarity of keys as weights.

    The counterpart of `KeyGraph` where A_ij is not a dot product, so that no prefix sums exist: the
    weights are formed in blocks, added up and forgotten. Building it costs O(n²·d) time once (for
    the degrees), each cut O(Σ length²·d) more; memory is O(n·block).

    Parameters
    ----------
    keys : shape (n, d) or (heads, n, d), as in `KeyGraph`.
    similarity : "clipped", max(0, k_i·k_j); "rbf", exp(-‖k_i - k_j‖² / 2σ²); "exp",
        exp(k_i·k_j / s); or a symmetric function of keys (a, d) and (b, d) that returns (a, b).
    scale : σ or s, see `workbench.core.similarities.weights_of`.
    diagonal : keep the weights A_ii.
    index : the (layer, head) of each graph, for labels.
    block : rows and columns of weights that exist at once.

    Attributes
    ----------
    degrees : Σ_j A_ij as running sums over i, shape (n + 1, heads).
    own : A_ii as running sums, shape (n + 1, heads); zeros without the diagonal.
    negative : share of the pairs i < j with a negative weight, shape (heads,).
    scales : the scale of each head, None where the similarity has none.

    Raises
    ------
    InputError : keys as in `KeyGraph`; a similarity that is unknown, not symmetric, not finite
        or of the wrong shape.
    """

    def __init__(
        self,
        keys: ArrayLike,
        similarity: str | Weights = "clipped",
        *,
        scale: float | None = None,
        diagonal: bool = True,
        index: Sequence[tuple[int, int]] | None = None,
        block: int = 512,
    ) -> None:
        stacked, self.scalar = check_keys(keys)
        if not np.isfinite(stacked).all():
            raise_not_finite(stacked, self.scalar)
        if block < 1:
            raise InputError(f"block={block} must be at least 1.")
        self.n_heads, self.n = stacked.shape[:2]
        self.index = check_index(index, self.n_heads)
        self.diagonal = diagonal
        self.block = block
        if callable(similarity):
            self.similarity = str(getattr(similarity, "__name__", "function"))
        else:
            self.similarity = similarity
        functions, self.scales = weights_of(similarity, stacked, scale)
        # The members of a graph: keys and functions whose weights are added up.
        self._members = [[(stacked[h], functions[h])] for h in range(self.n_heads)]
        sums = [self._degrees(h) for h in range(self.n_heads)]
        self._set(
            np.stack([degree for degree, *_ in sums], axis=1),
            np.stack([own for _, own, *_ in sums], axis=1),
            np.array([absolute for *_, absolute, _ in sums]),
            np.array([negative for *_, negative in sums]),
        )

    def _set(
        self,
        degrees: NDArray[np.float64],
        own: NDArray[np.float64],
        absolute: NDArray[np.float64],
        negative: NDArray[np.float64],
    ) -> None:
        self._absolute, self.negative = absolute, negative
        self.degrees, self.own = np.zeros((2, self.n + 1, self.n_heads))
        np.cumsum(degrees, axis=0, out=self.degrees[1:])
        np.cumsum(own, axis=0, out=self.own[1:])
        self.degrees.flags.writeable = self.own.flags.writeable = False
        total = self.degrees[-1]
        self.total = np.where(total > _EMPTY * absolute, total, np.nan)

    def head(self, number: int) -> BlockGraph:
        """One of the graphs, sharing memory and sums with this one."""
        label = None if self.index is None else [self.index[number]]
        return self._selected([self._members[number]], slice(number, number + 1), label)

    def summed(self) -> BlockGraph:
        """One graph whose weights are the sums over heads; nothing is computed anew.

        `negative` is then NaN: the signs of sums do not follow from those of the heads.
        """
        members = [member for head in self._members for member in head]
        if self.n_heads == 1:
            return self._selected([members], slice(None), [(-1, -1)])
        return self._selected([members], None, [(-1, -1)])

    def _selected(
        self,
        members: list[list[tuple[NDArray[np.floating], Weights]]],
        chosen: slice | None,
        index: list[tuple[int, int]] | None,
    ) -> BlockGraph:
        graph = object.__new__(BlockGraph)
        graph.scalar, graph.n_heads, graph.n = True, 1, self.n
        graph.diagonal, graph.similarity, graph.block = self.diagonal, self.similarity, self.block
        graph.index, graph._members = index, members
        degrees, own = np.diff(self.degrees, axis=0), np.diff(self.own, axis=0)
        if chosen is None:
            graph.scales = [None]
            graph._set(
                degrees.sum(axis=1, keepdims=True),
                own.sum(axis=1, keepdims=True),
                self._absolute.sum(keepdims=True),
                np.array([np.nan]),
            )
        else:
            graph.scales = self.scales[chosen]
            graph._set(
                degrees[:, chosen], own[:, chosen], self._absolute[chosen], self.negative[chosen]
            )
        return graph

    def reordered(self, order: NDArray[np.int64]) -> BlockGraph:
        """The graph(s) with position i taken from `order[i]`; the degrees go with them."""
        places = check_order(order, self.n)
        graph = object.__new__(BlockGraph)
        graph.__dict__.update(self.__dict__)
        graph._members = [[(keys[places], f) for keys, f in head] for head in self._members]
        graph._set(
            np.diff(self.degrees, axis=0)[places],
            np.diff(self.own, axis=0)[places],
            self._absolute,
            self.negative,
        )
        return graph

    # --- sums over blocks ------------------------------------------------------------------

    def weights(self, rows: slice, columns: slice, head: int = 0) -> NDArray[np.float64]:
        """The weights of a block of one graph, shape (rows, columns), the diagonal as chosen."""
        found: NDArray[np.float64] | None = None
        for keys, function in self._members[head]:
            left = keys[rows].astype(np.float64)
            right = keys[columns].astype(np.float64)
            part = function(left, right)
            found = part if found is None else found + part
        assert found is not None
        if not self.diagonal:
            drop_diagonal(found, rows, columns)
        return found

    def _degrees(self, head: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float, float]:
        """Degrees, own weights, Σ|A_ij| and the share of negative pairs of one graph."""
        degree, own = np.zeros((2, self.n))
        absolute = negative = 0.0
        for a, b in self._tiles(0, self.n):
            tile = self.weights(a, b, head)
            degree[a] += tile.sum(axis=1)
            magnitude = float(np.abs(tile).sum())
            below = tile < 0
            if a == b:
                if not np.allclose(tile, tile.T, rtol=_SYMMETRY, atol=0):
                    raise InputError(
                        f"similarity {self.similarity!r} is not symmetric: f(x, y) and f(y, x)ᵀ "
                        "differ; a graph's weights must not depend on the direction."
                    )
                own[a] = np.diagonal(tile)
                absolute += magnitude
                negative += np.triu(below, k=1).sum()
            else:
                degree[b] += tile.sum(axis=0)
                absolute += 2 * magnitude
                negative += below.sum()
        pairs = self.n * (self.n - 1) / 2
        return degree, own, absolute, negative / pairs if pairs else np.nan

    def _tiles(self, first: int, last: int) -> Iterator[tuple[slice, slice]]:
        """Blocks of rows and columns that cover the upper triangle of [first, last)²."""
        edges = list(range(first, last, self.block))
        for i, a in enumerate(edges):
            for b in edges[i:]:
                yield (
                    slice(a, min(a + self.block, last)),
                    slice(b, min(b + self.block, last)),
                )

    def span_sums(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> BlockSums:
        """Inner weight, cut and degree sum of any spans [first, last), shapes (..., heads).

        Each different span is summed once. Where that is less work than summing spans one by one,
        the inner weights of all spans of at most 512 positions are formed in one pass.
        """
        shape = (*first.shape, self.n_heads)
        code, where = np.unique(
            first.ravel().astype(np.int64) * (self.n + 1) + last.ravel(), return_inverse=True
        )
        begin, end = np.divmod(code, self.n + 1)
        within = np.empty((len(code), self.n_heads))
        for head in range(self.n_heads):
            within[:, head] = self._inner(begin, end, head)
        degree = self.degrees[end] - self.degrees[begin]
        cut = without_noise(degree - within, np.abs(degree) + np.abs(within))
        return BlockSums(
            within=within[where].reshape(shape),
            cut=cut[where].reshape(shape),
            degree=degree[where].reshape(shape),
            sizes=last - first,
            total=self.total,
            n=self.n,
            diagonal=self.diagonal,
        )

    def _inner(
        self, begin: NDArray[np.int64], end: NDArray[np.int64], head: int
    ) -> NDArray[np.float64]:
        """Σ of the weights within each span of one graph."""
        found = np.empty(len(begin))
        sizes = end - begin
        short = sizes <= min(_LONGEST, self.n)
        longest = int(sizes[short].max(initial=0))
        if (sizes[short].astype(np.float64) ** 2).sum() > 2 * self.n * longest:
            table = self._short_spans(longest, head)
            found[short] = table[end[short] - 1, sizes[short] - 1]
            one_by_one = np.flatnonzero(~short)
        else:
            one_by_one = np.arange(len(begin))
        for i in one_by_one.tolist():
            found[i] = sum(
                float(self.weights(a, b, head).sum()) * (1 if a == b else 2)
                for a, b in self._tiles(int(begin[i]), int(end[i]))
            )
        return found

    def _short_spans(self, longest: int, head: int) -> NDArray[np.float64]:
        """Inner weights of all short spans: row e, column s the span of s + 1 positions up to e.

        Only weights at most `longest` - 1 off the diagonal are needed. With V_es the sum of the
        s weights of e with the positions before it, the table is
        W_es = W_(e-1)(s-1) + 2 V_es + A_ee.
        """
        table = np.zeros((self.n, longest))
        ahead = longest - 1
        for start in range(0, self.n, self.block):
            stop = min(start + self.block, self.n)
            low = max(0, start - ahead)
            tile = np.zeros((stop - start, ahead + stop - start))
            tile[:, low - (start - ahead) :] = self.weights(
                slice(start, stop), slice(low, stop), head
            )
            # row r of the band: the weights of position start + r with the `longest` up to it
            row, column = tile.strides
            band = np.lib.stride_tricks.as_strided(
                tile, (stop - start, longest), (row + column, column), writeable=False
            )[:, ::-1]
            part = table[start:stop]
            part[:, 0] = band[:, 0]
            np.cumsum(band[:, 1:], axis=1, out=part[:, 1:])
            part[:, 1:] *= 2
            part[:, 1:] += band[:, :1]
        for end in range(1, self.n):
            table[end, 1:] += table[end - 1, :-1]
        return table

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
                f"{needed / 1e9:.1f} GB; the measures of BlockGraph do not need them."
            )
        everything = slice(0, self.n)
        dense = np.stack(
            [self.weights(everything, everything, head) for head in range(self.n_heads)]
        )
        return dense[0] if self.scalar else dense

    def negative_share(self) -> Measure:
        """Share of the pairs of different positions whose weight is negative, all looked at."""
        return self._shaped(self.negative)

    def _no_prefix(self) -> NoReturn:
        raise InputError(
            f"the similarity {self.similarity!r} is not a dot product, so this graph has no prefix "
            "sums, which the optimum (O), rule='reference' and streaming need; use "
            "similarity='dot' or 'cosine', or refine by rule='paper'."
        )

    @property
    def prefix(self) -> NDArray[np.float64]:
        """There are none: an error that says why."""
        self._no_prefix()

    @property
    def norms(self) -> NDArray[np.float64]:
        """There are none: an error that says why."""
        self._no_prefix()

    def __repr__(self) -> str:
        kept = "" if self.diagonal else ", no diagonal"
        return f"BlockGraph({self.n_heads} heads over {self.n} positions, {self.similarity}{kept})"
