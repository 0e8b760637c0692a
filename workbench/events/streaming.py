"""Events while the text is still coming in, the same ones as from the whole text.

    segmenter = StreamingSegmenter("SM", gamma=1.0)
    for surprisal, keys in chunks:
        for event in segmenter.feed(surprisal, keys):
            ...                              # final: later chunks do not change it
    rest = segmenter.finish()                # the last events; the last of all is open

What comes out, for any division into chunks, equals `segment` (or `surprise_boundaries` and
`refine`) on the whole. Methods that need what follows are refused by name.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError, MissingDataError
from workbench.events.methods import Method, parse_method
from workbench.events.stream_refinement import KeySums, Refiner, ReleasedRefiner
from workbench.events.stream_sources import Chunked, GivenStarts, Mark, Regular, Thresholded

__all__ = ["Event", "StreamingSegmenter"]

_OBJECTIVES = {"M": "modularity", "C": "conductance"}
_NEEDS_ALL = {
    "R": "draws its boundaries from all places of the whole text",
    "P": "may find an event's start long after it; cut the whole text with segment",
    "K": "looks for all change points of the whole text at once",
    "G": "searches the states of the whole text",
    "V": "fits its events to the whole text",
}


class Event(NamedTuple):
    """A finished event: tokens start ... end - 1.

    strength : how strongly its start is marked, as in `Boundaries.strength`; NaN for the first
        event, which nothing marks, and for methods without strengths.
    open : the text ended, the event may not have.
    """

    start: int
    end: int
    strength: float = float("nan")
    open: bool = False


class StreamingSegmenter:
    """Cuts a text into events chunk by chunk.

    Parameters
    ----------
    method : S, B or E (fed with their signal), F with a length ("F:64"), or H and T with `given`;
        each with M or C if wanted (then keys are fed too).
    given : H, T: the tokens at which their events start, known beforehand.
    gamma, window, min_values, chunk, n_local, n_init, start, min_size, max_size, short :
        as in `segment`. With window="chunk" a token is judged when its chunk is complete.
    rule, scope, variant, refine_window : as in `segment`. rule="reference" refines whole chunks, so
        it goes with window="chunk".
    diagonal : whether a token's product with itself counts, as in `KeyGraph`.

    Attributes
    ----------
    n : tokens fed so far.
    delay : in words, how long after its end an event is given out.

    Raises
    ------
    InputError : a method or option that needs what follows (the message says what), or bad options.

    Notes
    -----
    An event is given out once no later token can change it. For S, B, E it ends when the next one
    starts: at once, except that `start="before"` waits one token more, and window="chunk" for the
    end of the chunk. Refinement (scope "next") moves an event's end while the next original
    boundary is not known: the event is final one boundary later, and at most refine_window // 2
    tokens after its unrefined end; scopes "rest" and "three" always wait for these tokens.
    rule="reference" is final with its chunk.

    Held: the last `window` signal values, twice at most (window="chunk": the last n_local), and
    the sums of the keys from at most `refine_window` tokens before the oldest boundary that is not
    final. None of it grows with the text.
    """

    def __init__(
        self,
        method: str | Method = "S",
        *,
        given: ArrayLike | None = None,
        n_boundaries: int | None = None,
        gamma: float = 1.0,
        window: int | str = 512,
        min_values: int = 16,
        chunk: int = 512,
        n_local: int = 4096,
        n_init: int = 128,
        start: str = "surprising",
        min_size: int = 8,
        max_size: int | None = 128,
        short: str = "merge",
        rule: str = "paper",
        scope: str = "next",
        variant: str | None = None,
        refine_window: int = 512,
        diagonal: bool = True,
    ) -> None:
        self.method = parse_method(method)
        _check_causal(self.method, given, n_boundaries, rule, window)
        self.n = 0
        self._finished = False
        self._open = Mark(0, float("nan"))
        self._needs_keys = bool(self.method.refinement)
        self._has_signal = self.method.proposal in "SBE"
        self._source: Thresholded | Chunked | Regular | GivenStarts
        if self.method.proposal == "F":
            assert self.method.argument is not None
            self._source = Regular(self.method.argument)
        elif self.method.proposal in "HT":
            self._source = GivenStarts(given if given is not None else [])
        else:
            sizes = {"start": start, "min_size": min_size, "max_size": max_size, "short": short}
            if window == "chunk":
                whole = bool(self.method.refinement)
                self._source = Chunked(gamma, chunk, n_local, n_init, whole=whole, **sizes)
            elif isinstance(window, str):
                raise InputError(
                    f"window={window!r} is not known. Give a number of values or 'chunk'."
                )
            else:
                self._source = Thresholded(gamma, int(window), min_values, **sizes)
        self._keys: KeySums | None = None
        self._refiner: Refiner | ReleasedRefiner | None = None
        if self._needs_keys:
            self._keys = KeySums()
            objective = _OBJECTIVES[self.method.refinement]
            if rule == "reference":
                self._refiner = ReleasedRefiner(
                    self._keys, objective, variant, min_size, chunk, diagonal
                )
            else:
                self._refiner = Refiner(
                    self._keys, objective, variant, scope, min_size, refine_window, diagonal
                )
        self.delay = self._describe_delay(start, window, rule, scope, refine_window)

    def feed(
        self,
        values: ArrayLike | None = None,
        keys: ArrayLike | None = None,
        *,
        n: int | None = None,
    ) -> list[Event]:
        """Take in the next tokens; the events that became final.

        Parameters
        ----------
        values : the method's signal, shape (m,): surprisal for S, Bayesian surprise for B, entropy
            for E (nats; NaN where there is none). Not used by F, H, T.
        keys : for a refined method, shape (m, d), or (heads, m, d) with weights added over heads.
        n : number of tokens, where neither values nor keys say it.

        Raises
        ------
        InputError : values and keys of different lengths, values that are infinite, keys that are
            not finite or of another width than before; or the text was finished.
        MissingDataError : the method's signal, or keys, are missing.
        """
        if self._finished:
            raise InputError("the text was finished; make a new StreamingSegmenter.")
        series = None if values is None else np.asarray(values, dtype=np.float64)
        stacked = None if keys is None else _stacked(keys)
        m = _agreed(series, stacked, n)
        if self._has_signal and series is None:
            raise MissingDataError(f"method {self.method.code} needs the values of its signal.")
        if self._has_signal and series is not None and np.isinf(series).any():
            place = self.n + int(np.flatnonzero(np.isinf(series))[0])
            raise InputError(
                f"the value at position {place} is infinite; the model gave that token "
                "probability 0. Record it in float32, or check the model's logits."
            )
        if self._keys is not None:
            if stacked is None:
                raise MissingDataError(f"method {self.method.code} needs the keys of the tokens.")
            self._keys.add(stacked)
        self.n += m
        marks = self._source.feed(series if self._has_signal else None, m)
        return self._given_out(marks, self._source.known)

    def finish(self) -> list[Event]:
        """The text is over: the remaining events, the last of them open (unless F ends in step).

        Raises
        ------
        InputError : nothing was fed, or the text was finished before.
        """
        if self._finished:
            raise InputError("the text was finished before.")
        if self.n == 0:
            raise InputError("nothing was fed; a text has at least one token.")
        self._finished = True
        events = self._given_out(self._source.finish(), None)
        is_open = self._has_signal
        if isinstance(self._source, Regular):
            is_open = self.n % self._source.length != 0
        return [*events, Event(self._open.place, self.n, self._open.strength, is_open)]

    def more_given(self, starts: ArrayLike) -> None:
        """H, T: further tokens at which events start, beyond what was given and fed so far.

        Raises
        ------
        InputError : another method, or starts that do not follow.
        """
        if not isinstance(self._source, GivenStarts):
            raise InputError(f"starts are given to methods H and T, not to {self.method.code!r}.")
        self._source.more(starts)

    def preview(self) -> list[Event]:
        """The events that `finish` would give out if the text ended here; nothing changes.

        Given starts that lie beyond what was fed are left out.
        """
        ahead = copy.deepcopy(self)
        if isinstance(ahead._source, GivenStarts):
            ahead._source.forget_ahead()
        return ahead.finish()

    def _given_out(self, marks: list[Mark], known: int | None) -> list[Event]:
        """Events that end at marks; `known`: no further mark lies before it (None: none at all)."""
        if self._refiner is not None:
            marks = self._refiner.feed(marks, known, self.n)
        events = []
        for mark in marks:
            events.append(Event(self._open.place, mark.place, self._open.strength))
            self._open = mark
        return events

    def _describe_delay(
        self, start: str, window: int | str, rule: str, scope: str, refine_window: int
    ) -> str:
        parts = []
        if self._has_signal and window == "chunk":
            parts.append("until its chunk is complete")
        if self._has_signal and start == "before":
            parts.append("one token")
        if self._needs_keys and rule == "reference":
            parts.append("until its chunk is refined")
        elif self._needs_keys:
            wait = f"{refine_window // 2} tokens after its unrefined end"
            parts.append(f"until the next boundary, at most {wait}" if scope == "next" else wait)
        return "; ".join(parts) or "none"

    def __repr__(self) -> str:
        return f"StreamingSegmenter({self.method.code!r}: {self.n} tokens fed, delay: {self.delay})"


def _check_causal(
    method: Method, given: ArrayLike | None, n_boundaries: int | None, rule: str, window: int | str
) -> None:
    code, proposal = method.code, method.proposal
    check_option("rule", rule, ("paper", "reference"))
    if proposal in _NEEDS_ALL:
        raise InputError(f"method {code!r} cannot be streamed: {proposal} {_NEEDS_ALL[proposal]}.")
    if method.refinement == "O":
        raise InputError(
            f"method {code!r} cannot be streamed: O is the optimum over the whole text; use "
            f"{proposal}M."
        )
    if proposal == "F" and method.argument is None:
        raise InputError(
            f"method {code!r} cannot be streamed: without a length its events depend on the length "
            "of the text and on S; give one ('F:64')."
        )
    if proposal in "HT" and given is None:
        raise InputError(
            f"method {code!r} cannot be streamed: its boundaries come from the whole text; give "
            "the tokens at which its events start as given=."
        )
    if proposal not in "HT" and given is not None:
        raise InputError(f"given= belongs to methods H and T, not to {code!r}.")
    if n_boundaries is not None:
        raise InputError(
            f"n_boundaries={n_boundaries} cannot be streamed: which boundaries are the strongest "
            "is only known at the end."
        )
    if method.refinement and rule == "reference" and window != "chunk":
        raise InputError(
            "rule='reference' cannot be streamed without chunks: it refines each as a whole; use "
            "window='chunk'."
        )


def _stacked(keys: ArrayLike) -> NDArray[np.floating[Any]]:
    values = np.asarray(keys)
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3:
        raise InputError(f"keys must have the shape (m, d) or (heads, m, d), not {values.shape}.")
    return values.astype(np.float64) if values.dtype.kind in "iub" else values


def _agreed(values: NDArray[np.float64] | None, keys: NDArray[Any] | None, n: int | None) -> int:
    if values is not None and values.ndim != 1:
        raise InputError(f"values must be one-dimensional, not of shape {values.shape}.")
    counts = {
        "values": None if values is None else len(values),
        "keys": None if keys is None else keys.shape[1],
        "n": n,
    }
    said = {name: count for name, count in counts.items() if count is not None}
    if not said:
        raise InputError("nothing was fed: give values, keys, or the number of tokens n.")
    if len(set(said.values())) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in said.items())
        raise InputError(f"what was fed is not of one length ({listed} tokens).")
    count = next(iter(said.values()))
    if count < 0:
        raise InputError(f"n={count} tokens cannot be fed.")
    return count
