"""Attention by lag, in bins, for successive parts of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.core.errors import InputError
from workbench.recording.reducer import Reducer

if TYPE_CHECKING:
    import xarray as xr

    from workbench.recording.attention_rows import AttentionRows, Reading

__all__ = ["Lag", "lag_edges"]


def lag_edges(n: int, exact: int = 16, per_doubling: int = 2) -> NDArray[np.int64]:
    """First lags of the bins, and the lag after the last.

    Lags 0 ... exact have a bin each; after them there are `per_doubling` bins for each doubling,
    up to the largest lag, n - 1.
    """
    if exact < 0 or per_doubling < 1:
        raise InputError(
            f"lag bins: exact={exact} must be at least 0, and per_doubling={per_doubling} at "
            "least 1."
        )
    small = np.arange(min(exact + 1, n) + 1)
    doublings = max(0.0, np.log2(n / (exact + 1)))
    steps = np.arange(1, int(np.ceil(doublings * per_doubling)) + 1)
    large = np.rint((exact + 1) * 2.0 ** (steps / per_doubling)).astype(np.int64)
    return np.unique(np.concatenate([small, np.minimum(large, n)]))


class Lag(Reducer):
    """Attention by lag: mean attention of a token to a token `lag` before it.

    The mean is over all pairs of tokens of the text with a lag of the bin, for successive parts
    of the text, so that what differs between parts can be seen. Times the number of pairs it is
    the mass. The start token is no text and does not count as a key (its share is in `First`).

    Parameters
    ----------
    exact, per_doubling : see `lag_edges`.
    parts : number of parts of the text (as equal as can be).
    without_first : text tokens at the beginning that do not count as keys either. Attention that
        a head does not need elsewhere goes to the first tokens and would, as far as it goes to
        them, rise with the lag; without a start token leave out the first.
    """

    name = "lag"

    def __init__(
        self,
        *,
        exact: int = 16,
        per_doubling: int = 2,
        parts: int = 10,
        without_first: int = 0,
    ) -> None:
        if parts < 1 or without_first < 0:
            raise InputError(
                f"Lag: parts={parts} must be at least 1, and without_first={without_first} at "
                "least 0."
            )
        lag_edges(1, exact, per_doubling)
        self.exact, self.per_doubling = exact, per_doubling
        self.parts, self.without_first = parts, without_first

    def start(self, reading: Reading) -> None:
        """Make room for a number per layer, head, part and bin."""
        n = reading.n
        self.parts = min(self.parts, n)
        self.edges = lag_edges(n, self.exact, self.per_doubling)
        self.part_starts = np.linspace(0, n, self.parts + 1).astype(np.int64)
        self._n = n
        shape = (len(reading.layers), len(reading.heads), self.parts)
        self.sums = np.zeros((*shape, len(self.edges) - 1))
        self.pairs = np.zeros((self.parts, n + 1), dtype=np.int64)  # differences over lags
        self._counted: tuple[int, int] = (-1, -1)
        self._layer: NDArray[np.float64] | None = None
        self._open = -1

    def update(self, rows: AttentionRows) -> None:
        """Add one block to the sums over exact lags of the layer at hand."""
        if rows.place != self._open:
            self._close()
            self._open = rows.place
            self._layer = np.zeros((self.sums.shape[1], self.parts, self._n))
        assert self._layer is not None
        tokens = np.arange(rows.tokens.start, rows.tokens.stop)
        part = np.searchsorted(self.part_starts, tokens, side="right") - 1
        first, last = int(part[0]), int(part[-1])
        wanted = np.arange(first, last + 1)[:, None] == part[None, :]
        selected = torch.from_numpy(wanted).to(rows.total) / rows.total[:, None, :]
        from_key = rows.text_start + self.without_first
        sums = rows.lag_sums(selected, from_key)[..., : self._n]
        found = sums.double().cpu().numpy()
        self._layer[rows.heads, first : last + 1, : found.shape[-1]] += found
        if rows.place == 0 and rows.heads.start == 0:
            # A token has the lags 0 ... to the first key that counts.
            longest = tokens + rows.skip - from_key
            possible = longest >= 0
            into, longest = part[possible], longest[possible]
            np.add.at(self.pairs, (into, np.zeros_like(into)), 1)
            np.add.at(self.pairs, (into, longest + 1), -1)

    def _close(self) -> None:
        if self._layer is not None:
            binned = np.add.reduceat(self._layer, self.edges[:-1], axis=-1)
            self.sums[self._open] += binned
        self._layer, self._open = None, -1

    def finish(self) -> dict[str, xr.Variable]:
        """`attention_lag` (layer, head, part, lag_bin), its pairs, and the bins' lags."""
        import xarray as xr

        self._close()
        counts = np.add.reduceat(np.cumsum(self.pairs, axis=1)[:, :-1], self.edges[:-1], axis=1)
        mean = np.where(counts > 0, self.sums / np.maximum(counts, 1), np.nan)
        tokens = {"units": "token"}
        return {
            "attention_lag": xr.Variable(
                ("layer", "head", "part", "lag_bin"),
                mean.astype(np.float32),
                {"units": "1", "long_name": "mean attention to a token this far back"},
            ),
            "attention_lag_pairs": xr.Variable(
                ("part", "lag_bin"), counts, {"units": "1", "long_name": "pairs of tokens"}
            ),
            "lag_first": xr.Variable(("lag_bin",), self.edges[:-1], tokens),
            "lag_last": xr.Variable(("lag_bin",), self.edges[1:] - 1, tokens),
            "part_first": xr.Variable(("part",), self.part_starts[:-1], tokens),
        }

    def settings(self) -> dict[str, Any]:
        """Name, bins, parts and what is left out."""
        return {
            "name": self.name,
            "exact": self.exact,
            "per_doubling": self.per_doubling,
            "parts": self.parts,
            "without_first": self.without_first,
        }
