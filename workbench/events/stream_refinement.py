"""Refinement of streamed boundaries: each as soon as all that its place depends on is known."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.events.objectives import Region, best_candidate, check_objective, split_scores
from workbench.events.reference import refine_chunk
from workbench.events.refinement import RELEASED_VARIANTS, SCOPES, paper_region
from workbench.events.stream_state import Mark, State, as_marks, from_marks, numbers, whole

__all__ = ["KeySums", "Refiner", "ReleasedRefiner"]

Floats = NDArray[np.float64]


class KeySums:
    """Running sums of keys, as `prefix_sums` forms them, without those no longer needed.

    `rows` and `norms` hold the sums of the first `base`, base + 1, ... n keys and of their
    squared lengths (shapes (n − base + 1, heads·d) and (n − base + 1,)).
    """

    def __init__(self) -> None:
        self.base = 0
        self.n = 0
        self._shape: tuple[int, int] | None = None
        self._buffer: Floats = np.zeros((0, 0))
        self._squares: Floats = np.zeros((0, 0))  # per head
        self._first = 0

    @property
    def rows(self) -> Floats:
        """Sums of keys from `base` on."""
        return self._buffer[self._first : self._first + self.n - self.base + 1]

    @property
    def norms(self) -> Floats:
        """Sums of squared lengths from `base` on."""
        return self._squares[self._first : self._first + self.n - self.base + 1].sum(axis=1)

    def add(self, keys: NDArray[np.floating[Any]]) -> None:
        """Take in keys (heads, m, d).

        Raises
        ------
        InputError : another number of heads or dimensions than before, or keys not finite.
        """
        heads, m, d = keys.shape
        if self._shape is None:
            if not heads * d:
                raise InputError(f"keys of shape {keys.shape} hold no numbers.")
            self._shape = heads, d
            self._buffer, self._squares = np.zeros((1, heads * d)), np.zeros((1, heads))
        if self._shape != (heads, d):
            raise InputError(
                f"keys have {heads} heads of {d} dimensions, those before had {self._shape[0]} of "
                f"{self._shape[1]}."
            )
        if not np.isfinite(keys).all():
            place = self.n + int(np.flatnonzero(~np.isfinite(keys).all(axis=(0, 2)))[0])
            raise InputError(
                f"the keys at position {place} are not finite; record the model in float32."
            )
        self._make_room(m)
        start = self._first + self.n - self.base + 1
        rows = self._buffer[start : start + m]
        parts = rows.reshape(m, heads, d)
        parts[...] = keys.transpose(1, 0, 2)
        squares = self._squares[start : start + m]
        np.einsum("thd,thd->th", parts, parts, out=squares)
        previous, square = self._buffer[start - 1], self._squares[start - 1]
        for row, here in zip(rows, squares, strict=True):
            row += previous
            here += square
            previous, square = row, here
        self.n += m

    def forget(self, position: int) -> None:
        """Sums before this position are not needed any more."""
        position = min(position, self.n)
        if position > self.base:
            self._first += position - self.base
            self.base = position

    def state(self) -> State:
        """Where it is, for `restore`: `rows`, and `squares` (n − base + 1, heads)."""
        heads, d = self._shape or (0, 0)
        held = slice(self._first, self._first + self.n - self.base + 1)
        return {
            "base": self.base,
            "n": self.n,
            "heads": heads,
            "d": d,
            "rows": self._buffer[held].copy(),
            "squares": self._squares[held].copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` said."""
        base, n, heads, d = (whole(name, state) for name in ("base", "n", "heads", "d"))
        held = max(n - base + 1, 0) if heads else 0
        self._buffer = numbers("rows", state, np.float64, (held, heads * d))
        self._squares = numbers("squares", state, np.float64, (held, heads))
        self._shape = (heads, d) if heads else None
        self.base, self.n, self._first = base, n, 0

    def copy(self) -> KeySums:
        """Another one at the same place; a sum never changes, so both read the same ones."""
        twin = copy.copy(self)
        # Without room behind its sums the copy adds to a buffer of its own.
        stop = self._first + self.n - self.base + 1
        twin._buffer, twin._squares = self._buffer[:stop], self._squares[:stop]
        return twin

    def _make_room(self, m: int) -> None:
        held = self.n - self.base + 1
        if self._first + held + m <= len(self._buffer):
            return
        kept = slice(self._first, self._first + held)
        size = max(2 * (held + m), 64)
        for name in ("_buffer", "_squares"):
            old = getattr(self, name)
            new = np.zeros((size, old.shape[1]))
            new[:held] = old[kept]
            setattr(self, name, new)
        self._first = 0


class Refiner:
    """Rule "paper" of `refine`, boundary by boundary."""

    def __init__(
        self,
        keys: KeySums,
        objective: str,
        variant: str | None,
        scope: str,
        min_size: int,
        window: int,
        diagonal: bool,
    ) -> None:
        check_option("scope", scope, SCOPES)
        for name, value, least in (("min_size", min_size, 1), ("refine_window", window, 2)):
            if value < least:
                raise InputError(f"{name}={value} must be at least {least}.")
        self._keys, self._objective = keys, objective
        self._variant = check_objective(objective, variant)
        self._scope, self._min_size = scope, min_size
        self._window, self._diagonal = window, diagonal
        self._alpha = 0
        self._waiting: deque[Mark] = deque()

    def feed(self, marks: list[Mark], known: int | None, n: int) -> list[Mark]:
        """Marks that are final; `known` None: the text is over."""
        self._waiting.extend(marks)
        final = []
        while self._waiting:
            beta = self._waiting[0].place
            reach = beta + self._window // 2
            following = self._waiting[1].place if len(self._waiting) > 1 else None
            if known is None:
                following = n if following is None else following
            elif self._scope == "next":
                if following is None and known >= reach:
                    following = reach
            else:
                following = reach if n >= reach else None
            if following is None:
                break
            self._alpha = self._judged(beta, following, n)
            final.append(Mark(self._alpha, self._waiting.popleft().strength))
        oldest = self._waiting[0].place if self._waiting else (n if known is None else known)
        needed = max(oldest + 1 - self._window, 0)
        self._keys.forget(max(needed, self._alpha) if self._scope == "next" else needed)
        return final

    def state(self) -> State:
        """Where it is, for `restore`, without the keys."""
        return {"alpha": self._alpha, **from_marks("waiting", self._waiting)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` said."""
        self._alpha = whole("alpha", state)
        self._waiting = deque(as_marks("waiting", state))

    def copy(self, keys: KeySums) -> Refiner:
        """Another one at the same place, of the keys given (a copy of its own)."""
        twin = copy.copy(self)
        twin._keys, twin._waiting = keys, self._waiting.copy()
        return twin

    def _judged(self, beta: int, following: int, n: int) -> int:
        region = paper_region(self._alpha, beta, following, n, self._scope, self._window)
        candidates = range(max(self._alpha + self._min_size, region.event + 1), beta + 1)
        if len(candidates) < 2:
            return beta
        base = self._keys.base
        shifted = range(candidates.start - base, candidates.stop - base)
        scores = split_scores(
            self._keys.rows,
            self._keys.norms,
            Region(region.low - base, region.high - base, region.event - base, region.separate),
            shifted,
            self._objective,
            self._variant,
            diagonal=self._diagonal,
        )
        found = best_candidate(scores, shifted)
        return beta if found is None else found + base


class ReleasedRefiner:
    """Rule "reference" of `refine`, chunk by chunk."""

    def __init__(
        self,
        keys: KeySums,
        objective: str,
        variant: str | None,
        min_size: int,
        chunk: int,
        diagonal: bool,
    ) -> None:
        self._keys, self._objective = keys, objective
        self._variant = check_objective(objective, variant or RELEASED_VARIANTS[objective])
        self._min_size, self._chunk, self._diagonal = min_size, chunk, diagonal
        self._start = 0
        self._moved: int | None = None
        self._waiting: list[Mark] = []

    def feed(self, marks: list[Mark], known: int | None, n: int) -> list[Mark]:
        """Marks of the chunks that are complete; `known` None: the text is over."""
        self._waiting += marks
        final: list[Mark] = []
        while self._start < n:
            end = self._start + self._chunk
            if known is None:
                end = min(end, n)
            elif known < end:
                break
            final += self._refined(end)
            self._start = end
        self._keys.forget(self._start - self._chunk)
        return final

    def state(self) -> State:
        """Where it is, for `restore`, without the keys; moved −1: nothing was."""
        return {
            "start": self._start,
            "moved": -1 if self._moved is None else self._moved,
            **from_marks("waiting", self._waiting),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` said."""
        self._start, moved = whole("start", state), whole("moved", state, least=-1)
        self._moved = None if moved < 0 else moved
        self._waiting = as_marks("waiting", state)

    def copy(self, keys: KeySums) -> ReleasedRefiner:
        """Another one at the same place, of the keys given (a copy of its own)."""
        twin = copy.copy(self)
        twin._keys, twin._waiting = keys, self._waiting.copy()
        return twin

    def _refined(self, end: int) -> list[Mark]:
        start, length = self._start, end - self._start
        here = [mark for mark in self._waiting if mark.place < end]
        self._waiting = self._waiting[len(here) :]
        edge = start
        # (a chunk that anything was moved before has at least its own length before it)
        if self._moved is not None and self._moved >= start - length:
            edge = self._moved
        base = self._keys.base
        moved, kept = refine_chunk(
            self._keys.rows,
            self._keys.norms,
            [mark.place - base for mark in here],
            edge - base,
            start - edge,
            end - base,
            objective=self._objective,
            variant=self._variant,
            min_size=self._min_size,
            diagonal=self._diagonal,
        )
        if moved:
            self._moved = moved[-1] + base
        return [Mark(place + base, here[i].strength) for place, i in zip(moved, kept, strict=True)]
