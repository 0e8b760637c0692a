"""The parts of `StreamingSegmenter`: sources of boundaries, sums of keys, refinement.

A source gives out `Mark`s in order and `known`, the position before which no further mark can
lie. Refiners move marks as soon as all that their new place depends on is known.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.events.objectives import Region, best_candidate, check_objective, split_scores
from workbench.events.reference import refine_chunk
from workbench.events.refinement import RELEASED_VARIANTS, SCOPES, paper_region
from workbench.events.sizes import check_sizes
from workbench.events.threshold import MovingThreshold, check_chunks, chunk_flags

__all__ = [
    "Chunked",
    "GivenStarts",
    "KeySums",
    "Mark",
    "Refiner",
    "Regular",
    "ReleasedRefiner",
    "Sizer",
    "Thresholded",
]

Floats = NDArray[np.float64]


class Mark(NamedTuple):
    """The start of an event, and how strongly it is marked."""

    place: int
    strength: float


# --- sources -------------------------------------------------------------------------------


class Sizer:
    """`size_events`, flag by flag."""

    def __init__(self, start: str, min_size: int, max_size: int | None, short: str) -> None:
        check_option("start", start, ["surprising", "before"])
        check_sizes(min_size, max_size)
        check_option("short", short, ["merge", "drop"])
        self.shift = 1 if start == "before" else 0
        self.min_size, self.max_size, self.drop = min_size, max_size, short == "drop"
        self._last = 0
        self._last_flag = 0

    def sized(self, flags: list[Mark], known: int) -> list[Mark]:
        """Marks that these flagged tokens make, and that sizes alone make before `known`."""
        made: list[Mark] = []
        for token, strength in flags:
            place = token - self.shift
            if place <= 0:
                continue
            near = place - self._last_flag < self.min_size
            self._last_flag = place
            if self.drop and near:
                continue
            self._split(place, made)
            if place - self._last >= self.min_size:
                self._last = place
                made.append(Mark(place, strength))
        self._split(known, made)
        return made

    def _split(self, place: int, made: list[Mark]) -> None:
        # the event goes on to `place` at least
        while self.max_size is not None and place - self._last > self.max_size:
            self._last += self.max_size
            made.append(Mark(self._last, -math.inf))


class Thresholded:
    """Flags of the moving threshold, sized."""

    def __init__(self, gamma: float, window: int, min_values: int, **sizes: Any) -> None:
        self._threshold = MovingThreshold(gamma, window, min_values)
        self._sizer = Sizer(**sizes)
        self._n = 0

    @property
    def known(self) -> int:
        """No further mark lies before this position."""
        return self._n - self._sizer.shift

    def feed(self, values: Floats | None, m: int) -> list[Mark]:
        """Judge m more values."""
        assert values is not None
        flags = []
        for value in values.tolist():
            flag, strength = self._threshold.update(value)
            if flag:
                flags.append(Mark(self._n, strength))
            self._n += 1
        return self._sizer.sized(flags, self.known)

    def finish(self) -> list[Mark]:
        """What the end of the text leaves to mark."""
        return self._sizer.sized([], self._n)


class Chunked:
    """Flags of the released code's threshold, one for each complete chunk of values, sized."""

    def __init__(
        self, gamma: float, chunk: int, n_local: int, n_init: int, *, whole: bool, **sizes: Any
    ) -> None:
        check_chunks(gamma, chunk, n_local, n_init)
        self._gamma, self._chunk, self._n_local, self._n_init = gamma, chunk, n_local, n_init
        self._whole = whole
        self._sizer = Sizer(**sizes)
        self._n = 0
        self._judged = 0  # values judged so far
        self._values: deque[float] = deque()  # the newest ones, those that wait included
        self._waiting: list[int] = []  # the tokens of the values that wait

    @property
    def known(self) -> int:
        """No further mark lies before this position."""
        return (self._waiting[0] if self._waiting else self._n) - self._sizer.shift

    def feed(self, values: Floats | None, m: int) -> list[Mark]:
        """Take m more values; judge every chunk that is complete."""
        assert values is not None
        flags: list[Mark] = []
        for value in values.tolist():
            if not math.isnan(value):
                self._values.append(value)
                self._waiting.append(self._n)
            self._n += 1
            if len(self._waiting) == self._chunk:
                flags += self._judge()
        return self._sizer.sized(flags, self.known)

    def finish(self) -> list[Mark]:
        """Judge the last, incomplete chunk."""
        flags = self._judge() if self._waiting else []
        return self._sizer.sized(flags, self._n)

    def _judge(self) -> list[Mark]:
        begin, end = self._judged, self._judged + len(self._waiting)
        held = np.array(self._values)
        oldest = end - len(held)
        stop = end if self._whole and begin == 0 else min(max(begin, self._n_init), end)
        past = held[max(end - self._n_local, 0) - oldest : stop - oldest]
        flags, strength = chunk_flags(held[begin - oldest :], past, self._gamma)
        marks = [
            Mark(token, float(strength[i])) for i, token in enumerate(self._waiting) if flags[i]
        ]
        self._judged, self._waiting = end, []
        while len(self._values) > self._n_local:
            self._values.popleft()
        return marks


class Regular:
    """A mark every `length` tokens."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.known = 0
        self._next = length

    def feed(self, values: Floats | None, m: int) -> list[Mark]:
        """Take m more tokens."""
        self.known += m
        places = range(self._next, self.known, self.length)
        self._next += len(places) * self.length
        return [Mark(place, math.nan) for place in places]

    def finish(self) -> list[Mark]:
        """Nothing is left."""
        return []


class GivenStarts:
    """Marks that were known beforehand."""

    def __init__(self, starts: ArrayLike) -> None:
        given = np.asarray(starts)
        whole = given.dtype.kind in "iu" or not given.size
        if given.ndim != 1 or not whole or (np.diff(given) <= 0).any() or (given < 0).any():
            raise InputError("given= must be a list of increasing token numbers from 0 on.")
        self._waiting = deque(given[given > 0].tolist())
        self.known = 0

    def feed(self, values: Floats | None, m: int) -> list[Mark]:
        """Take m more tokens."""
        self.known += m
        marks = []
        while self._waiting and self._waiting[0] < self.known:
            marks.append(Mark(int(self._waiting.popleft()), math.nan))
        return marks

    def finish(self) -> list[Mark]:
        """All marks must have been in the text."""
        if self._waiting:
            raise InputError(
                f"given start {self._waiting[0]} lies outside the {self.known} tokens fed."
            )
        return []


# --- keys ----------------------------------------------------------------------------------


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


# --- refinement ----------------------------------------------------------------------------


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
