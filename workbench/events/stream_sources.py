"""Where streamed boundaries come from: thresholds, lengths, lists; see `StreamingSegmenter`.

A source gives out `Mark`s in order and `known`, the position before which no further mark lies.
Its `state` is what changes while it is fed, without its settings.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.events.sizes import check_sizes
from workbench.events.stream_state import Mark, State, numbers, part, prefixed, whole
from workbench.events.threshold import MovingThreshold, check_chunks, chunk_flags

__all__ = ["Chunked", "GivenStarts", "Regular", "Sizer", "Thresholded"]

Floats = NDArray[np.float64]


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

    def state(self) -> State:
        """Where it is, for `restore`."""
        return {"last": self._last, "last_flag": self._last_flag}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` said."""
        self._last, self._last_flag = whole("last", state), whole("last_flag", state)

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

    def state(self) -> State:
        """Where it is, for `restore`."""
        return {
            "n": self._n,
            **prefixed("threshold", self._threshold.state()),
            **prefixed("sizer", self._sizer.state()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` said."""
        self._n = whole("n", state)
        self._threshold.restore(part("threshold", state))
        self._sizer.restore(part("sizer", state))

    def copy(self) -> Thresholded:
        """Another one at the same place."""
        twin = copy.copy(self)
        twin._threshold = self._threshold.copy()
        twin._sizer = copy.copy(self._sizer)
        return twin


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

    def state(self) -> State:
        """Where it is, for `restore`."""
        return {
            "n": self._n,
            "judged": self._judged,
            "values": np.array(self._values, dtype=np.float64),
            "waiting": np.array(self._waiting, dtype=np.int64),
            **prefixed("sizer", self._sizer.state()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` said."""
        self._n, self._judged = whole("n", state), whole("judged", state)
        self._values = deque(numbers("values", state, np.float64).tolist())
        self._waiting = numbers("waiting", state, np.int64).tolist()
        self._sizer.restore(part("sizer", state))

    def copy(self) -> Chunked:
        """Another one at the same place."""
        twin = copy.copy(self)
        twin._values, twin._waiting = self._values.copy(), self._waiting.copy()
        twin._sizer = copy.copy(self._sizer)
        return twin

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

    def state(self) -> State:
        """Where it is, for `restore`."""
        return {"known": self.known, "next": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` said."""
        self.known, self._next = whole("known", state), whole("next", state)

    def copy(self) -> Regular:
        """Another one at the same place."""
        return copy.copy(self)


class GivenStarts:
    """Marks that were known beforehand."""

    def __init__(self, starts: ArrayLike) -> None:
        self._waiting: deque[int] = deque()
        self.known = 0
        self._last = 0
        self.more(starts)

    def more(self, starts: ArrayLike) -> None:
        """Further starts, behind the last one that was given and not before what was fed."""
        given = np.asarray(starts)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise InputError("given= must be a list of increasing token numbers from 0 on.")
        given = given.astype(np.int64)
        if (np.diff(given) <= 0).any() or (given < 0).any():
            raise InputError("given= must be a list of increasing token numbers from 0 on.")
        if given.size and (given[0] < self.known or 0 < given[0] <= self._last):
            raise InputError(
                f"given start {given[0]} does not follow: {self.known} tokens were fed, and the "
                f"last start given was {self._last}. Give only starts beyond both."
            )
        given = given[given > 0]  # the first event needs no mark
        if given.size:
            self._last = int(given[-1])
        self._waiting.extend(given.tolist())

    def forget_ahead(self) -> None:
        """Leave out the starts of tokens that were not fed yet."""
        while self._waiting and self._waiting[-1] >= self.known:
            self._waiting.pop()

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

    def state(self) -> State:
        """Where it is, for `restore`."""
        return {
            "known": self.known,
            "last": self._last,
            "waiting": np.array(self._waiting, dtype=np.int64),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` said."""
        self.known, self._last = whole("known", state), whole("last", state)
        self._waiting = deque(numbers("waiting", state, np.int64).tolist())

    def copy(self) -> GivenStarts:
        """Another one at the same place."""
        twin = copy.copy(self)
        twin._waiting = self._waiting.copy()
        return twin
