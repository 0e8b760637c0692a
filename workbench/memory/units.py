"""Where the units of a text lie: finished events, in order, each until the next one starts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Units"]


class Units:
    """Starts of finished units, and the end of the last one.

    Positions count all tokens read, with a start token where there is one.

    Attributes
    ----------
    n : finished units.
    """

    def __init__(self) -> None:
        self._edges: list[int] = [0]

    @property
    def n(self) -> int:
        """Finished units."""
        return len(self._edges) - 1

    @property
    def end(self) -> int:
        """Position after the last finished unit."""
        return self._edges[-1]

    def add(self, end: int) -> None:
        """A unit that begins where the last one ended is finished."""
        assert end > self._edges[-1]
        self._edges.append(end)

    def truncate(self, n: int) -> None:
        """Forget all but the first n."""
        del self._edges[n + 1 :]

    def span(self, unit: int) -> tuple[int, int]:
        """First position of a unit, and the one after its last."""
        return self._edges[unit], self._edges[unit + 1]

    def edges(self) -> NDArray[np.int64]:
        """Starts of all finished units and the end of the last, (n + 1,)."""
        return np.array(self._edges, dtype=np.int64)
