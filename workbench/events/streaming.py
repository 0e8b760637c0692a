"""Events while the text is still coming in, the same ones as from the whole text.

    segmenter = StreamingSegmenter("SM", gamma=1.0)
    for surprisal, keys in chunks:
        for event in segmenter.feed(surprisal, keys):
            ...                              # final: later chunks do not change it
    segmenter.preview()                      # what finish() would give now; nothing changes
    state = segmenter.state()                # numbers, strings, arrays: np.savez(path, **state)
    rest = segmenter.finish()                # the last events; the last of all is open

What comes out, for any division into chunks, equals `segment` (or `surprise_boundaries` and
`refine`) on the whole. Methods that need what follows are refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from workbench.core.errors import InputError, MissingDataError
from workbench.events.methods import Method, parse_method
from workbench.events.stream_checks import agreed, check_causal, stacked
from workbench.events.stream_parts import AnyRefiner, describe_delay, make_refiner, make_source
from workbench.events.stream_refinement import KeySums
from workbench.events.stream_sources import GivenStarts, Regular
from workbench.events.stream_state import (
    FORMAT,
    Mark,
    State,
    as_marks,
    check_settings,
    from_marks,
    part,
    prefixed,
    settings_text,
    whole,
)

__all__ = ["Event", "StreamingSegmenter"]


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
    method : S, B or E (fed with their signal), F with a length ("F:64"), or H, T and R with
        `given`; each with M or C if wanted (then keys are fed too).
    given : H, T, R: the tokens at which their events start, known (or drawn) beforehand;
        `more_given` adds those of what is read later.
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

    `state` and `restore` carry a segmenter to another process; `copy` keeps a place to come back to
    in this one, and shares with it all that neither can change.
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
        check_causal(self.method, given, n_boundaries, rule, window)
        settings = {
            "method": self.method.code,
            "gamma": gamma,
            "window": window,
            "min_values": min_values,
            "chunk": chunk,
            "n_local": n_local,
            "n_init": n_init,
            "start": start,
            "min_size": min_size,
            "max_size": max_size,
            "short": short,
            "rule": rule,
            "scope": scope,
            "variant": variant,
            "refine_window": refine_window,
            "diagonal": diagonal,
        }
        self.n = 0
        self.delay = describe_delay(self.method, settings)
        self._finished = False
        self._open = Mark(0, float("nan"))
        self._has_signal = self.method.proposal in "SBE"
        self._source = make_source(self.method, given, settings)
        self._keys: KeySums | None = None
        self._refiner: AnyRefiner | None = None
        if self.method.refinement:
            self._keys = KeySums()
            self._refiner = make_refiner(self.method, self._keys, settings)
        self._settings = settings_text(settings)

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
            for E (nats; NaN where there is none). Not used by F, H, T, R.
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
        vectors = None if keys is None else stacked(keys)
        m = agreed(series, vectors, n)
        if self._has_signal and series is None:
            raise MissingDataError(f"method {self.method.code} needs the values of its signal.")
        if self._has_signal and series is not None and np.isinf(series).any():
            place = self.n + int(np.flatnonzero(np.isinf(series))[0])
            raise InputError(
                f"the value at position {place} is infinite; the model gave that token "
                "probability 0. Record it in float32, or check the model's logits."
            )
        if self._keys is not None:
            if vectors is None:
                raise MissingDataError(f"method {self.method.code} needs the keys of the tokens.")
            self._keys.add(vectors)
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
        """H, T, R: further tokens at which events start, beyond what was given and fed so far.

        Raises
        ------
        InputError : another method, starts that do not follow, or the text was finished.
        """
        if self._finished:
            raise InputError("the text was finished; make a new StreamingSegmenter.")
        if not isinstance(self._source, GivenStarts):
            raise InputError(
                f"starts are given to methods H, T and R, not to {self.method.code!r}."
            )
        self._source.more(starts)

    def preview(self) -> list[Event]:
        """The events that `finish` would give out if the text ended here; nothing changes.

        Given starts that lie beyond what was fed are left out.

        Raises
        ------
        InputError : nothing was fed, or the text was finished.
        """
        ahead = self.copy()
        if isinstance(ahead._source, GivenStarts):
            ahead._source.forget_ahead()
        return ahead.finish()

    def copy(self) -> StreamingSegmenter:
        """Another segmenter at the same place; what is fed to one does not change the other.

        Sums of keys are shared and not copied, so that it costs O(window) at most, whatever the
        width of the keys.
        """
        twin = copy.copy(self)
        twin._source = self._source.copy()
        if self._keys is not None and self._refiner is not None:
            twin._keys = self._keys.copy()
            twin._refiner = self._refiner.copy(twin._keys)
        return twin

    def state(self) -> State:
        """Where the segmenter is, for `restore`: a flat dictionary.

        Its values are arrays of int64 and float64, whole numbers, and one string (the settings, as
        JSON); what may be NaN or infinite stands in arrays. It shares nothing with the segmenter.
        """
        state: State = {
            "format": FORMAT,
            "settings": self._settings,
            "n": self.n,
            "finished": int(self._finished),
            **from_marks("open", [self._open]),
            **prefixed("source", self._source.state()),
        }
        if self._keys is not None and self._refiner is not None:
            state |= prefixed("keys", self._keys.state())
            state |= prefixed("refiner", self._refiner.state())
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a segmenter that was made with the same arguments.

        All arguments must be the same, except `given`: which starts are still to come is part of
        the state, and takes the place of what this segmenter was given.

        Parameters
        ----------
        state : what `state` gave, also after a way through JSON (arrays as lists) or .npz (numbers
            and strings as arrays of shape ()).

        Raises
        ------
        InputError : the state of a segmenter with other settings (the message names the first that
            differs), or one that is not whole; then the segmenter stays as it was.
        """
        check_settings(state, self._settings)
        twin = self.copy()
        twin.n, twin._finished = whole("n", state), bool(whole("finished", state))
        opened = as_marks("open", state)
        if len(opened) != 1:
            raise InputError("the state's 'open' must be one mark; it was changed. Save it again.")
        twin._open = opened[0]
        twin._source.restore(part("source", state))
        if twin._keys is not None and twin._refiner is not None:
            twin._keys.restore(part("keys", state))
            twin._refiner.restore(part("refiner", state))
        self.__dict__ = twin.__dict__

    def _given_out(self, marks: list[Mark], known: int | None) -> list[Event]:
        """Events that end at marks; `known`: no further mark lies before it (None: none at all)."""
        if self._refiner is not None:
            marks = self._refiner.feed(marks, known, self.n)
        events = []
        for mark in marks:
            events.append(Event(self._open.place, mark.place, self._open.strength))
            self._open = mark
        return events

    def __repr__(self) -> str:
        return f"StreamingSegmenter({self.method.code!r}: {self.n} tokens fed, delay: {self.delay})"
