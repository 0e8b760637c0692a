"""What a memory system recalled, as recall: sequences of units for the measures of free recall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.recall.sequences import RecallSequences
from workbench.core.checks import check_option
from workbench.core.errors import DataError, InputError, MissingDataError

__all__ = ["BUFFERS", "LEAST_STEPS", "ORDERS", "OVER", "RetrievedEvents", "recalled_of"]

BUFFERS = ("similarity", "contiguity", "both")
ORDERS = ("log", "woven")
OVER = ("steps", "layers")
LEAST_STEPS = 5
"""Steps (or layers) below which no interval is given: it would be far too narrow."""

_NEEDED = ("step", "position", "layer", "head", "unit", "buffer", "rank", "available")
_RETRIEVAL = ["step", "position", "layer", "head"]


@dataclass(frozen=True, eq=False)
class RetrievedEvents:
    """Everything that was recalled for one text, and the events it was recalled from.

    A *retrieval* is one look into the memory: of one layer (and head, where heads recall on their
    own) at one position of the text. Units are numbered as the events of the text are. Units that
    stand among the attention sinks are always in sight and cannot be recalled: at every retrieval
    the units `first` ... `first + available - 1` were there to be recalled.

    Parameters
    ----------
    table : of the units recalled, as `system.retrievals` gives it.
    retrievals : one row per retrieval: step, position, layer, head, available. Retrievals that
        recalled nothing (no unit fitted into the budget) are there, too.
    first : number of the first unit that can be recalled.
    surprisal : (n_units,), of the first token of each unit, nats; empty where not known.
    size : (n_units,), tokens of each unit; empty where not known.
    source : who recalled, for tables and figures.
    """

    table: pd.DataFrame
    retrievals: pd.DataFrame
    first: int
    surprisal: NDArray[np.float64]
    size: NDArray[np.int64]
    source: str = "memory"

    @classmethod
    def from_table(
        cls,
        table: pd.DataFrame,
        *,
        first: int = 0,
        surprisal: ArrayLike = (),
        size: ArrayLike = (),
        retrievals: pd.DataFrame | None = None,
        source: str = "memory",
    ) -> RetrievedEvents:
        """From a retrieval table alone.

        Parameters
        ----------
        retrievals : None: those in the table. Retrievals that recalled nothing have no row in the
            table, so recall rates are then too high where there were any; `of` knows them.

        Raises
        ------
        MissingDataError : nothing was recalled. DataError : a column is missing, a unit comes
            twice in a retrieval, or one was recalled that could not be.
        """
        missing = [name for name in _NEEDED if name not in table.columns]
        if missing:
            raise DataError(
                f"the retrieval table lacks the column(s) {', '.join(missing)}; give "
                "system.retrievals as it is."
            )
        if table.empty:
            raise MissingDataError(
                "nothing was recalled: the text is within the local window, or the system stores "
                "nothing. Read a longer text, or use a smaller n_local."
            )
        twice = table.duplicated([*_RETRIEVAL, "unit"])
        if twice.any():
            row = table[twice].iloc[0]
            raise DataError(
                f"unit {row['unit']} comes twice in the retrieval of step {row['step']}, layer "
                f"{row['layer']}; a unit is recalled once."
            )
        outside = (table["unit"] < first) | (table["unit"] >= first + table["available"])
        if outside.any():
            row = table[outside].iloc[0]
            raise DataError(
                f"unit {row['unit']} was recalled at step {row['step']}, layer {row['layer']}, but "
                f"only {first} ... {first + row['available'] - 1} were there; check first={first}."
            )
        if retrievals is None:
            retrievals = table[[*_RETRIEVAL, "available"]].drop_duplicates()
        known = retrievals[retrievals["available"] > 0].reset_index(drop=True)
        n_units = first + int(known["available"].max())
        start = np.asarray(surprisal, dtype=np.float64)
        tokens = np.asarray(size, dtype=np.int64)
        for name, given in (("surprisal", start), ("size", tokens)):
            if len(given) and len(given) < n_units:
                raise DataError(f"{name} has {len(given)} values for {n_units} stored units.")
        return cls(table.reset_index(drop=True), known, first, start, tokens, source)

    @classmethod
    def of(cls, system: Any, row: int = 0) -> RetrievedEvents:
        """What a memory system recalled.

        Parameters
        ----------
        system : has read a text. Its events must be the same for all layers.
        row : of a batch.
        """
        text = system.rows[row] if system.rows else None
        if text is None:
            raise MissingDataError("nothing was read yet; call read(text) first.")
        if text.former is not None and len(text.former.units) > 1:
            raise InputError(
                "each layer of this system has events of its own, so their numbers mean different "
                "events; use per='model', or RetrievedEvents.from_table for one layer at a time."
            )
        numbers = text.log.arrays()["numbers"]
        retrievals = pd.DataFrame(numbers, columns=[*_RETRIEVAL, "available"])
        retrievals["position"] -= text.skip
        events = system.events_of(row)
        surprisal = np.array(text.text.measures["surprisal"], dtype=np.float64)[events.starts]
        # A unit is recallable once some of it lies behind the sinks, which count a start token.
        first = int(np.sum(events.starts + events.lengths + text.skip <= system.settings.n_init))
        return cls.from_table(
            system.retrievals_of(row),
            first=first,
            surprisal=surprisal,
            size=events.lengths,
            retrievals=retrievals,
            source=system.name,
        )

    @property
    def layers(self) -> list[int]:
        """Layers that recalled."""
        return sorted(self.retrievals["layer"].unique().tolist())

    @property
    def n_units(self) -> int:
        """Events up to the last one that was ever stored, those among the sinks included."""
        return self.first + int(self.retrievals["available"].max())

    def recalled(self, buffer: str = "both") -> pd.DataFrame:
        """Rows of the table of one buffer, or of both, in the order in which they were recalled."""
        check_option("buffer", buffer, BUFFERS)
        table = self.table.assign(_behind=self.table["buffer"] == "contiguity")
        if buffer != "both":
            table = table[table["buffer"] == buffer]
        return table.sort_values([*_RETRIEVAL, "_behind", "rank"]).drop(columns="_behind")

    def recall_sequences(
        self, buffer: str = "both", order: str = "log", reach: int = 1
    ) -> RecallSequences:
        """One list per retrieval: the units recalled, for the lag curves of free recall.

        Position 1 of a list is the oldest unit that could be recalled, its length the number of
        units that could; the subject is the layer.

        Parameters
        ----------
        buffer : "similarity", "contiguity", or "both".
        order : of "both". "log": the similarity buffer, most similar first, and then the
            contiguity buffer, newest first. "woven": behind each unit of the similarity buffer
            those of its neighbours, +1 before -1, +2, -2, ..., that the contiguity buffer holds;
            what is left of that buffer last. Woven sequences have short lags by construction.
        reach : how far in time a neighbour is looked for, with "woven".
        """
        check_option("order", order, ORDERS)
        recalled = self.recalled(buffer)
        groups = dict(iter(recalled.groupby(_RETRIEVAL, sort=False)))
        outputs, lists, subjects, lengths = [], [], [], []
        for step, position, layer, head, available in self._each():
            part = groups.get((step, position, layer, head))
            units = np.zeros(0, dtype=np.int64)
            if part is not None:
                units = part["unit"].to_numpy(dtype=np.int64)
                if buffer == "both" and order == "woven":
                    similar = (part["buffer"] == "similarity").to_numpy(dtype=bool)
                    units = _woven(units[similar], units[~similar], reach)
            outputs.append(units - self.first + 1)
            lists.append((step, position, head))
            subjects.append(layer)
            lengths.append(available)
        return RecallSequences.from_positions(
            outputs, lengths, subject=subjects, lists=lists, source=self.source
        )

    def _each(self) -> Iterator[tuple[int, int, int, int, int]]:
        columns = [*_RETRIEVAL, "available"]
        yield from zip(*(self.retrievals[name].tolist() for name in columns), strict=True)


def recalled_of(events: RetrievedEvents, buffer: str) -> NDArray[np.bool_]:
    """Which of the units that can be recalled each retrieval recalled, (n_retrievals, n)."""
    retrievals = events.retrievals
    hit = np.zeros((len(retrievals), int(retrievals["available"].max())), dtype=bool)
    recalled = events.recalled(buffer)
    row = pd.MultiIndex.from_frame(retrievals[_RETRIEVAL]).get_indexer(
        pd.MultiIndex.from_frame(recalled[_RETRIEVAL])
    )
    hit[row, recalled["unit"].to_numpy() - events.first] = True
    return hit


def _woven(
    similar: NDArray[np.int64], contiguous: NDArray[np.int64], reach: int
) -> NDArray[np.int64]:
    """Behind each similar unit its neighbours among the contiguous ones; the rest last."""
    left = dict.fromkeys(contiguous.tolist())
    order: list[int] = []
    for unit in similar.tolist():
        order.append(unit)
        for distance in range(1, reach + 1):
            for place in (unit + distance, unit - distance):
                if place in left:
                    order.append(place)
                    del left[place]
    return np.array([*order, *left], dtype=np.int64)
