"""What was recalled when: a log of every retrieval, and its tidy table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "RetrievalLog"]

COLUMNS = (
    "step",
    "position",
    "layer",
    "head",
    "unit",
    "similarity",
    "buffer",
    "rank",
    "lag",
    "available",
)


class _Entry(NamedTuple):
    step: int
    position: int
    layer: int
    head: int
    available: int
    n_similar: int
    units: NDArray[np.int32]
    similarity: NDArray[np.float32]


class RetrievalLog:
    """Retrievals of one text. Grows with their number; `truncate` takes the newest back."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self.entries)

    def add(
        self,
        step: int,
        position: int,
        layer: int,
        head: int,
        available: int,
        similar: NDArray[np.int64],
        contiguous: NDArray[np.int64],
        similarity: NDArray[np.floating],
    ) -> None:
        """One retrieval: of `available` units those in the two buffers.

        `similarity` : (available,), of every unit to the query.
        """
        units = np.concatenate((similar, contiguous)).astype(np.int32)
        values = similarity[units].astype(np.float32)
        self.entries.append(
            _Entry(step, position, layer, head, available, len(similar), units, values)
        )

    def truncate(self, n: int) -> None:
        """Forget all but the first n retrievals."""
        del self.entries[n:]

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """The log as plain arrays, for a file."""
        numbers = [(e.step, e.position, e.layer, e.head, e.available) for e in self.entries]
        return {
            "numbers": np.array(numbers, dtype=np.int64).reshape(-1, 5),
            "n_similar": np.array([e.n_similar for e in self.entries], dtype=np.int64),
            "n_units": np.array([len(e.units) for e in self.entries], dtype=np.int64),
            "units": _joined([e.units for e in self.entries], np.int32),
            "similarity": _joined([e.similarity for e in self.entries], np.float32),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> RetrievalLog:
        """The reverse of `arrays`."""
        log = cls()
        ends = np.cumsum(arrays["n_units"])
        for row, end in enumerate(ends.tolist()):
            part = slice(end - int(arrays["n_units"][row]), end)
            step, position, layer, head, available = arrays["numbers"][row].tolist()
            similar = int(arrays["n_similar"][row])
            units, similarity = arrays["units"][part], arrays["similarity"][part]
            log.entries.append(
                _Entry(step, position, layer, head, available, similar, units, similarity)
            )
        return log

    @property
    def nbytes(self) -> int:
        """Bytes of what was recalled (units and similarities)."""
        return sum(entry.units.nbytes + entry.similarity.nbytes + 48 for entry in self.entries)

    def table(self) -> pd.DataFrame:
        """One row per recalled unit.

        Returns
        -------
        DataFrame with the columns `COLUMNS`: step (number of the retrieval step: a chunk that was
        read, a token that was generated), position (token of the text at which it took place),
        layer, head (a key-value head, -1 where heads are summed), unit (number of the event),
        similarity (of its representatives to the query), buffer ("similarity" or "contiguity"),
        rank (from 0, within the buffer), lag (in units, from the one recalled just before it in
        the same retrieval, similarity buffer first; the first one from the first one of the
        layer's retrieval before; <NA> where there is none), available (units that were stored).
        """
        import pandas as pd

        sizes = np.array([len(entry.units) for entry in self.entries], dtype=np.int64)

        def spread(values: list[int]) -> NDArray[np.int64]:
            return np.repeat(np.array(values, dtype=np.int64), sizes)

        n_similar = spread([entry.n_similar for entry in self.entries])
        begin = np.repeat(np.cumsum(sizes) - sizes, sizes)
        place = np.arange(int(sizes.sum())) - begin
        similar = place < n_similar
        units = _joined([entry.units for entry in self.entries], np.int64)
        return pd.DataFrame(
            {
                "step": spread([entry.step for entry in self.entries]),
                "position": spread([entry.position for entry in self.entries]),
                "layer": spread([entry.layer for entry in self.entries]),
                "head": spread([entry.head for entry in self.entries]),
                "unit": units,
                "similarity": _joined([e.similarity for e in self.entries], np.float64),
                "buffer": np.where(similar, "similarity", "contiguity"),
                "rank": np.where(similar, place, place - n_similar),
                "lag": pd.array(self._lags(units, place), dtype="Int64"),
                "available": spread([entry.available for entry in self.entries]),
            },
            columns=list(COLUMNS),
        )

    def _lags(self, units: NDArray[np.int64], place: NDArray[np.int64]) -> list[int | None]:
        lags: list[int | None] = np.diff(units, prepend=0).tolist()
        before: dict[tuple[int, int], int] = {}
        row = 0
        for entry in self.entries:
            if not len(entry.units):
                continue
            first = before.get((entry.layer, entry.head))
            lags[row] = None if first is None else int(entry.units[0]) - first
            before[entry.layer, entry.head] = int(entry.units[0])
            row += len(entry.units)
        return lags


def _joined(parts: list[NDArray[Any]], kind: type) -> NDArray[Any]:
    return np.concatenate(parts).astype(kind) if parts else np.zeros(0, dtype=kind)
