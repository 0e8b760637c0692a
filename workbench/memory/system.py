"""A language model with a memory: read, recall, generate, and look at what was remembered."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.errors import MissingDataError
from workbench.core.story import Story
from workbench.memory.generating import Generator
from workbench.memory.row import Row

if TYPE_CHECKING:
    import pandas as pd

    from workbench.core.trace import Trace

__all__ = ["MemoryModel"]

Floats = NDArray[np.float64]


class MemoryModel(Generator):
    """A language model that reads with a memory; what it remembers can be looked at.

    Made by `MemorySystem` and the named systems; its parameters are those of `MemoryState`.
    """

    def describe(self) -> dict[str, Any]:
        """Settings of the system, as JSON."""
        forming = None
        if self.forming is not None:
            forming = dataclasses.asdict(self.forming)
            if self.forming.given is not None:
                forming["given"] = list(self.forming.given)
        about = {"settings": dataclasses.asdict(self.settings), "forming": forming}
        if self.tokens is not None:
            about["tokens"] = dataclasses.asdict(self.tokens)
        return about

    def pieces(self, row: int = 0) -> list[tuple[int, str]]:
        """What was read and generated: (first token, text) of each piece."""
        return list(self._pieces[row])

    def stories(self, row: int = 0) -> list[Story]:
        """The stories among what was read."""
        return list(self._stories[row])

    def restore_pieces(self, pieces: list[list[tuple[int, str]]]) -> None:
        """Empty rows for texts that are about to be loaded; see `load_memory`."""
        self.reset()
        self._ready(len(pieces))
        self._pieces = pieces

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the memory to a folder; see `save_memory` and `load_memory`."""
        from workbench.memory.saving import save_memory

        return save_memory(self, folder, overwrite=overwrite)

    # --- what was remembered ---------------------------------------------------------------

    def _row(self, number: int) -> Row:
        if not self.rows or not self.rows[number].text.ids:
            raise MissingDataError("nothing was read yet; call read(text) first.")
        return self.rows[number]

    @property
    def n_tokens(self) -> int:
        """Tokens of the (first) text read so far; a start token is not counted."""
        return len(self.rows[0].text.ids) if self.rows else 0

    @property
    def n_local(self) -> int | None:
        """Tokens seen at their own places; None: all."""
        return self.settings.n_local

    @property
    def events(self) -> Boundaries:
        """Events of the (first) text, formed while it was read."""
        return self.events_of()

    def events_of(self, row: int = 0, layer: int = 0) -> Boundaries:
        """Events of one text of a batch; of one layer, where each has its own.

        Raises
        ------
        MissingDataError : nothing was read, or the system forms no events.
        """
        found = self._row(row)
        if found.former is None:
            raise MissingDataError(f"{self.name} keeps no events: {type(self).__name__}.")
        return found.former.events(layer if len(found.former.units) > 1 else 0)

    @property
    def surprisal(self) -> Floats:
        """Surprisal seen while reading the (first) text, nats, (n_tokens,)."""
        return np.array(self._row(0).text.measures["surprisal"], dtype=np.float64)

    @property
    def trace(self) -> Trace:
        """What was seen while reading the (first) text; see `trace_of`."""
        return self.trace_of()

    def trace_of(self, row: int = 0) -> Trace:
        """What was seen while reading: surprisal and keys, as `record` would give them."""
        from workbench.memory.traced import memory_trace

        self._row(row)
        return memory_trace(self, row)

    @property
    def retrievals(self) -> pd.DataFrame:
        """Everything recalled for the (first) text; see `retrievals_of`."""
        return self.retrievals_of()

    def retrievals_of(self, row: int = 0) -> pd.DataFrame:
        """A tidy table of what was recalled, see `RetrievalLog.table`; positions of the text."""
        if not self.rows:
            raise MissingDataError("nothing was read yet; call read(text) first.")
        table = self.rows[row].log.table()
        table["position"] -= self.rows[row].skip
        return table

    @property
    def attended(self) -> float:
        """Keys that a token of the (first) text saw, on average over tokens and layers."""
        seen = self._row(0).text.seen
        return float(np.nanmean(seen))

    def footprint(self) -> dict[str, int]:
        """Bytes: resident_kv, stored_kv (stored_in_memory + stored_in_files), index, log."""
        total: dict[str, int] = {}
        for row in self.rows:
            for layer in row.layers:
                for name, size in layer.footprint().items():
                    total[name] = total.get(name, 0) + size
            total["log"] = total.get("log", 0) + row.log.nbytes
        total["stored_kv"] = total.get("stored_in_memory", 0) + total.get("stored_in_files", 0)
        return total

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lm.name!r}: {self.n_tokens} tokens read)"
