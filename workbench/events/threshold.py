"""Which values stand out from those before them: the threshold of EM-LLM, Equation 1.

A value is flagged where it exceeds mean + gamma · sd of a window of earlier values. Two windows:

- a number τ (the paper's reading): the τ scored values before t, t excluded;
- "chunk" (the released code's): one window, hence one threshold, for all values of a chunk.

Values that are NaN (a first token that nothing precedes) are not values: they are never flagged,
fill no window and hold no place in a chunk.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.events.stream_state import State, numbers

__all__ = ["Flags", "MovingThreshold", "check_chunks", "chunk_flags", "threshold_flags"]


class Flags(NamedTuple):
    """What a threshold says of each value.

    flags : bool (n,), where the value exceeds its threshold.
    strength : float64 (n,), (value − mean) / sd of its window: infinite where the window is
        constant and the value differs, 0 where it does not, NaN where there is no threshold.
    """

    flags: NDArray[np.bool_]
    strength: NDArray[np.float64]


# Number, mean and summed squared deviations of some values.
_Moments = tuple[int, float, float]
_NOTHING: _Moments = (0, 0.0, 0.0)


def _with_value(moments: _Moments, value: float) -> _Moments:
    # Welford (1962).
    count, mean, squares = moments
    count += 1
    delta = value - mean
    mean += delta / count
    return count, mean, squares + delta * (value - mean)


def _joined(one: _Moments, other: _Moments) -> _Moments:
    # Chan, Golub & LeVeque (1983). Nothing is ever subtracted from a sum, so that a window that
    # has become constant has exactly sd 0, whatever it held before.
    if not one[0] or not other[0]:
        return one if one[0] else other
    count = one[0] + other[0]
    delta = other[1] - one[1]
    part = delta * other[0] / count
    return count, one[1] + part, one[2] + other[2] + delta * part * one[0]


def _as_moments(rows: NDArray[np.float64]) -> list[_Moments]:
    return [(int(count), mean, squares) for count, mean, squares in rows.tolist()]


@dataclass
class MovingThreshold:
    """The moving threshold, fed one value at a time (as a reader does).

    Parameters
    ----------
    gamma : sds above the mean that a value must exceed (EM-LLM's γ).
    window : number of earlier values, τ; fewer are used until there are τ.
    min_values : no threshold before this many values.

    The window is kept as the newest values of the last full block of τ, whose moments of every
    suffix are known, and the values since: constant time per value on average, O(τ) memory, and
    no cancellation.

    Raises
    ------
    InputError : gamma is not finite, or window < min_values, or min_values < 2.
    """

    gamma: float = 1.0
    window: int = 512
    min_values: int = 16
    _block: list[float] = field(default_factory=list, init=False, repr=False)
    _newest: _Moments = field(default=_NOTHING, init=False, repr=False)
    _suffixes: list[_Moments] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)
        if self.min_values < 2:
            raise InputError(f"min_values={self.min_values}: an sd needs at least 2 values.")
        if self.window < self.min_values:
            raise InputError(
                f"window={self.window} never holds the min_values={self.min_values} values that "
                "a threshold needs; choose a longer window."
            )

    def update(self, value: float) -> tuple[bool, float]:
        """Judge a value by those before it, then add it to the window.

        Returns
        -------
        flag, strength : as in `Flags`; (False, NaN) for NaN and before `min_values` values.

        Raises
        ------
        InputError : the value is infinite.
        """
        if math.isnan(value):
            return False, math.nan
        if math.isinf(value):
            raise InputError("a value is infinite; the model gave some token probability 0.")
        flag, strength = False, math.nan
        past = self._newest
        if self._suffixes:
            past = _joined(self._suffixes[len(self._block)], past)
        count, mean, squares = past
        if count >= self.min_values:
            sd = math.sqrt(squares / (count - 1))
            flag = value > mean + self.gamma * sd
            strength = _standardised(value - mean, sd)
        self._push(value)
        return flag, strength

    def state(self) -> State:
        """Where it is, for `restore`: the newest values, and moments as rows of (count, mean, Σ²).

        block (k,), newest (1, 3) and suffixes (window, 3) or, before a block was full, (0, 3).
        """
        return {
            "block": np.array(self._block, dtype=np.float64),
            "newest": np.array([self._newest], dtype=np.float64),
            "suffixes": np.array(self._suffixes, dtype=np.float64).reshape(-1, 3),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` of a threshold with the same settings said.

        Raises
        ------
        InputError : the state is not whole, or that of another window.
        """
        block = numbers("block", state, np.float64)
        newest = numbers("newest", state, np.float64, (1, 3))
        suffixes = numbers("suffixes", state, np.float64, (-1, 3))
        if len(block) >= self.window or len(suffixes) not in (0, self.window):
            raise InputError(
                f"the state holds {len(block)} values and {len(suffixes)} moments, which a "
                f"threshold with window={self.window} never does; give it the window it had."
            )
        self._block = block.tolist()
        (self._newest,) = _as_moments(newest)
        self._suffixes = _as_moments(suffixes)

    def copy(self) -> MovingThreshold:
        """Another one at the same place."""
        twin = copy.copy(self)
        twin._block = self._block.copy()  # moments are replaced, never changed
        return twin

    def _push(self, value: float) -> None:
        self._block.append(value)
        self._newest = _with_value(self._newest, value)
        if len(self._block) == self.window:
            suffix, suffixes = _NOTHING, []
            for old in reversed(self._block):
                suffix = _with_value(suffix, old)
                suffixes.append(suffix)
            self._suffixes = suffixes[::-1]
            self._block, self._newest = [], _NOTHING


def threshold_flags(
    values: ArrayLike,
    gamma: float = 1.0,
    *,
    window: int | str = 512,
    min_values: int = 16,
    chunk: int = 512,
    n_local: int = 4096,
    n_init: int = 128,
    first_chunk: Literal["init", "whole"] = "init",
) -> Flags:
    """Flag the values that exceed mean + gamma · sd of a window before them, strictly.

    EM-LLM, Equation 1 (Fountas et al. 2025); sd with n − 1. Linear time.

    Parameters
    ----------
    values : shape (n,), e.g. surprisal in nats; NaN for what was not scored.
    gamma : EM-LLM's γ.
    window : τ, the number of scored values before t (the paper names no number), expanding until
        there are τ; or "chunk", as in the released code: for a chunk [E − L, E) of scored values
        the window is [max(E − n_local, 0), max(E − L, n_init)).
    min_values : for a number τ: no threshold before this many values.
    chunk, n_local, n_init : for "chunk": tokens per chunk, of local attention and of attention
        sinks. Evicting tokens from the local context does not move the window, because at least
        n_local tokens always stay.
    first_chunk : for "chunk", where the window of the first chunk looks ahead: "init" takes the
        chunk's first n_init values (released code without refinement), "whole" all of the chunk
        (with refinement).

    Raises
    ------
    InputError : a value is infinite, or an argument is not allowed.
    """
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1:
        raise InputError(f"values must be one-dimensional, not of shape {series.shape}.")
    if np.isinf(series).any():
        place = int(np.flatnonzero(np.isinf(series))[0])
        raise InputError(
            f"the value at position {place} is infinite; the model gave that token probability "
            "0. Record it in float32, or check the model's logits."
        )
    _check_gamma(gamma)
    flags = np.zeros(len(series), dtype=bool)
    strength = np.full(len(series), np.nan)
    scored = np.flatnonzero(~np.isnan(series))
    if isinstance(window, str):
        if window != "chunk":
            raise InputError(f"window={window!r} is not known. Give a number of values or 'chunk'.")
        check_option("first_chunk", first_chunk, ["init", "whole"])
        flags[scored], strength[scored] = _by_chunk(
            series[scored], gamma, chunk, n_local, n_init, first_chunk == "whole"
        )
        return Flags(flags, strength)
    moving = MovingThreshold(gamma, int(window), min_values)
    for place, value in zip(scored.tolist(), series[scored].tolist(), strict=True):
        flags[place], strength[place] = moving.update(value)
    return Flags(flags, strength)


def _by_chunk(
    series: NDArray[np.float64], gamma: float, chunk: int, n_local: int, n_init: int, whole: bool
) -> Flags:
    check_chunks(gamma, chunk, n_local, n_init)
    flags = np.zeros(len(series), dtype=bool)
    strength = np.full(len(series), np.nan)
    for begin in range(0, len(series), chunk):
        end = min(begin + chunk, len(series))
        # Where nothing, or less than n_init values, was read before, the chunk is its own past.
        stop = end if whole and begin == 0 else min(max(begin, n_init), end)
        past = series[max(end - n_local, 0) : stop]
        flags[begin:end], strength[begin:end] = chunk_flags(series[begin:end], past, gamma)
    return Flags(flags, strength)


def chunk_flags(values: NDArray[np.float64], past: NDArray[np.float64], gamma: float) -> Flags:
    """Flags of one chunk's values, all with the threshold of the window `past`; without NaN."""
    if len(past) < 2:
        return Flags(np.zeros(len(values), dtype=bool), np.full(len(values), np.nan))
    # Centred on a value of the window, so that a constant window has exactly sd 0.
    mean = past[0] + (past - past[0]).mean()
    sd = float((past - past[0]).std(ddof=1))
    strength = [_standardised(value, sd) for value in (values - mean).tolist()]
    return Flags(values > mean + gamma * sd, np.array(strength, dtype=np.float64))


def check_chunks(gamma: float, chunk: int, n_local: int, n_init: int) -> None:
    """Raise `InputError` unless the chunks' settings are possible."""
    _check_gamma(gamma)
    if not 1 <= chunk <= n_local:
        raise InputError(f"chunk={chunk} must lie between 1 and n_local={n_local}.")
    if n_init < 2:
        raise InputError(f"n_init={n_init}: an sd needs at least 2 values.")


def _standardised(deviation: float, sd: float) -> float:
    if sd > 0:
        return deviation / sd
    return math.copysign(math.inf, deviation) if deviation else 0.0


def _check_gamma(gamma: float) -> None:
    if not math.isfinite(gamma):
        raise InputError(f"gamma={gamma} must be a finite number.")
