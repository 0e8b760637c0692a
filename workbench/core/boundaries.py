"""Boundaries: where the events of a sequence start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.errors import InputError

__all__ = ["Boundaries"]


@dataclass(frozen=True, eq=False)
class Boundaries:
    """A cut of n positions (tokens, words or sentences) into contiguous events.

    Event i covers `starts[i] ... starts[i + 1] - 1`; position 0 always starts an event, and is
    added when it is missing. `inner` holds the starts without position 0: what people and papers
    call "the boundaries".

    Parameters
    ----------
    starts : strictly increasing integers in [0, n).
    n : number of positions that are cut, at least 1.
    unit : what a position is: "token", "word" or "sentence".
    strength : one number per entry of `inner`: how strongly the method marked it (any monotone
        scale; used to keep the k strongest). None where the method has no such thing.
    open : True when the last event was still growing when the text ended.
    method : the code of the method that made the cut ("SM"), for tables and figures.
    settings : what the method was run with.

    Raises
    ------
    InputError : starts are not integers, not increasing, or outside [0, n).
    """

    starts: NDArray[np.int64]
    n: int
    unit: str = "token"
    strength: NDArray[np.float64] | None = None
    open: bool = False
    method: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        starts: ArrayLike,
        n: int,
        *,
        unit: str = "token",
        strength: ArrayLike | None = None,
        open: bool = False,
        method: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        positions = _as_positions(starts, int(n))
        values = None
        if strength is not None:
            values = np.array(strength, dtype=np.float64).ravel()
            if len(values) != len(positions) - 1:
                raise InputError(
                    f"strength has {len(values)} values for {len(positions) - 1} boundaries; "
                    "give one for each start except position 0."
                )
            values.flags.writeable = False
        positions.flags.writeable = False
        object.__setattr__(self, "starts", positions)
        object.__setattr__(self, "n", int(n))
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "strength", values)
        object.__setattr__(self, "open", bool(open))
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "settings", dict(settings or {}))

    # --- views -----------------------------------------------------------------------------

    @property
    def inner(self) -> NDArray[np.int64]:
        """Starts without position 0, shape (n_events - 1,)."""
        return self.starts[1:]

    @property
    def edges(self) -> NDArray[np.int64]:
        """Starts followed by n, shape (n_events + 1,)."""
        return np.append(self.starts, self.n)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of positions of each event, shape (n_events,)."""
        return np.diff(self.edges)

    @property
    def n_events(self) -> int:
        """Number of events (one more than the number of boundaries)."""
        return len(self.starts)

    def labels(self) -> NDArray[np.int64]:
        """Event number of every position, shape (n,)."""
        return np.repeat(np.arange(self.n_events), self.lengths)

    def indicator(self) -> NDArray[np.bool_]:
        """True where a new event starts, over the n - 1 gaps between positions (nltk's form)."""
        mask = np.zeros(self.n, dtype=bool)
        mask[self.inner] = True
        return mask[1:]

    # --- conversions -----------------------------------------------------------------------

    @classmethod
    def from_lengths(cls, lengths: ArrayLike, **kwargs: Any) -> Boundaries:
        """From event lengths (segeval's "masses"): 3, 4, 5 → starts 0, 3, 7 and n = 12."""
        sizes = np.asarray(lengths, dtype=np.int64)
        if sizes.ndim != 1 or len(sizes) == 0 or (sizes < 1).any():
            raise InputError("lengths must be a non-empty list of numbers of at least 1.")
        return cls(np.concatenate([[0], np.cumsum(sizes)[:-1]]), n=int(sizes.sum()), **kwargs)

    @classmethod
    def from_labels(cls, labels: Sequence[Any] | NDArray[Any], **kwargs: Any) -> Boundaries:
        """From one label per position; an event starts wherever the label changes."""
        values = np.asarray(labels)
        if values.ndim != 1 or len(values) == 0:
            raise InputError("labels must be a non-empty one-dimensional sequence.")
        changes = np.flatnonzero(values[1:] != values[:-1]) + 1
        return cls(np.concatenate([[0], changes]), n=len(values), **kwargs)

    @classmethod
    def from_ends(cls, ends: ArrayLike, **kwargs: Any) -> Boundaries:
        """From exclusive ends, the last being n (the form of `ruptures`): 3, 7, 12."""
        stops = np.asarray(ends, dtype=np.int64)
        return cls(np.concatenate([[0], stops[:-1]]), n=int(stops[-1]), **kwargs)

    def mapped(self, position: ArrayLike, n: int, *, unit: str) -> Boundaries:
        """The same cut on another axis, e.g. tokens → words.

        Parameters
        ----------
        position : for each of the n positions here, its position on the other axis.
        n : length of the other axis.
        unit : name of the other axis' unit.

        Boundaries that fall on the same new position become one (the strongest is kept), and
        those that fall on position 0 or outside [0, n) are dropped.
        """
        target = np.asarray(position, dtype=np.int64)[self.inner]
        strength = self.strength
        keep = (target > 0) & (target < n)
        target = target[keep]
        places, first = np.unique(target, return_inverse=True)
        merged: NDArray[np.float64] | None = None
        if strength is not None:
            merged = np.full(len(places), -np.inf)
            np.maximum.at(merged, first, strength[keep])
        return Boundaries(
            np.concatenate([[0], places]),
            n=n,
            unit=unit,
            strength=merged,
            open=self.open,
            method=self.method,
            settings=self.settings,
        )

    def with_(self, **changes: Any) -> Boundaries:
        """A copy with some fields replaced."""
        fields = {
            "starts": self.starts,
            "n": self.n,
            "unit": self.unit,
            "strength": self.strength,
            "open": self.open,
            "method": self.method,
            "settings": self.settings,
        }
        return Boundaries(**{**fields, **changes})

    # --- Python protocol -------------------------------------------------------------------

    def __len__(self) -> int:
        return self.n_events

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(start, end) of each event, the end exclusive."""
        edges = self.edges.tolist()
        return pairwise(edges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Boundaries):
            return NotImplemented
        return (
            self.n == other.n
            and self.unit == other.unit
            and np.array_equal(self.starts, other.starts)
        )

    def __hash__(self) -> int:
        return hash((self.n, self.unit, self.starts.tobytes()))

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.starts[:6].tolist()))
        more = ", ..." if self.n_events > 6 else ""
        name = f"{self.method}: " if self.method else ""
        return f"Boundaries({name}{self.n_events} events over {self.n} {self.unit}s: {shown}{more})"


def _as_positions(starts: ArrayLike, n: int) -> NDArray[np.int64]:
    if n < 1:
        raise InputError(f"n={n}: a cut needs at least one position.")
    raw = np.asarray(starts)
    if raw.ndim != 1:
        raise InputError(f"starts must be one-dimensional, not of shape {raw.shape}.")
    whole = raw.dtype.kind in "iu" or (raw.dtype.kind == "f" and np.array_equal(raw, np.floor(raw)))
    if raw.size and not whole:
        raise InputError(f"starts must be whole numbers, not {raw.dtype}.")
    positions = raw.astype(np.int64)
    if positions.size == 0 or positions[0] != 0:
        positions = np.concatenate([[0], positions]).astype(np.int64)
    if (np.diff(positions) <= 0).any():
        row = int(np.flatnonzero(np.diff(positions) <= 0)[0])
        raise InputError(
            f"starts must increase: {positions[row]} is followed by {positions[row + 1]}; sort "
            "them and remove repeats (np.unique)."
        )
    if positions[-1] >= n:
        raise InputError(f"start {positions[-1]} is outside the {n} positions 0 ... {n - 1}.")
    return positions.copy()
