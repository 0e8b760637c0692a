"""How the parts of a `StreamingSegmenter` write down where they are, and come back to it.

A state is a flat dictionary. Its scalars are whole numbers and strings, and everything that may be
NaN or infinite is in a float64 array: so it goes through .npz, .safetensors or strict JSON beside
an .npz without pickle and without loss. Keys are dotted: "source.threshold.block".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from workbench.core.errors import InputError

__all__ = [
    "FORMAT",
    "Mark",
    "State",
    "as_marks",
    "check_settings",
    "from_marks",
    "numbers",
    "part",
    "prefixed",
    "settings_text",
    "whole",
]

FORMAT = 1

State = dict[str, NDArray[Any] | int | str]


class Mark(NamedTuple):
    """The start of an event, and how strongly it is marked."""

    place: int
    strength: float


def prefixed(name: str, state: State) -> State:
    """A part's state under its name, `{"n": 3}` → `{"sizer.n": 3}`."""
    return {f"{name}.{key}": value for key, value in state.items()}


class _Part(dict[str, Any]):
    """A part of a state, and what its keys begin with in the whole (for messages)."""

    prefix = ""


def part(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a state that `prefixed` put under this name."""
    start = f"{name}."
    found = _Part((key[len(start) :], state[key]) for key in state if key.startswith(start))
    found.prefix = _in_whole(start, state)
    return found


def _in_whole(name: str, state: Mapping[str, Any]) -> str:
    return state.prefix + name if isinstance(state, _Part) else name


def from_marks(name: str, marks: Iterable[Mark]) -> State:
    """Marks as two arrays of shape (k,): places and strengths."""
    held = list(marks)
    return {
        f"{name}.place": np.array([mark.place for mark in held], dtype=np.int64),
        f"{name}.strength": np.array([mark.strength for mark in held], dtype=np.float64),
    }


def as_marks(name: str, state: Mapping[str, Any]) -> list[Mark]:
    """The marks that `from_marks` wrote down."""
    places = numbers(f"{name}.place", state, np.int64)
    strengths = numbers(f"{name}.strength", state, np.float64, (len(places),))
    return [Mark(*pair) for pair in zip(places.tolist(), strengths.tolist(), strict=True)]


def whole(name: str, state: Mapping[str, Any], least: int = 0) -> int:
    """A whole number of a state, which may have become an array of shape () on disk.

    Raises
    ------
    InputError : it is missing, no whole number, or smaller than `least`.
    """
    value = int(numbers(name, state, np.int64, ()))
    if value < least:
        raise InputError(
            f"the state's {_in_whole(name, state)!r} is {value}, at least {least} is possible; it "
            "was changed. Save it again."
        )
    return value


def numbers(
    name: str, state: Mapping[str, Any], dtype: DTypeLike, shape: tuple[int, ...] = (-1,)
) -> NDArray[Any]:
    """An array of a state (or the lists that JSON made of it), copied; −1 for any length.

    Raises
    ------
    InputError : it is missing, of another shape, or holds something else.
    """
    if name not in state:
        raise InputError(
            f"the state has no {_in_whole(name, state)!r}; it is not whole. Save it again."
        )
    try:
        found = np.array(state[name])
    except ValueError:  # rows of different lengths
        found = np.array(None)
    least = tuple(max(length, 0) for length in shape)
    if not found.size and 0 in least:
        found = np.zeros(least, dtype)  # lists without rows do not say how wide they would be
    kinds = "iu" if np.dtype(dtype).kind == "i" else "iuf"
    lengths_fit = len(found.shape) == len(shape) and all(
        want in (-1, have) for want, have in zip(shape, found.shape, strict=True)
    )
    if found.dtype.kind not in kinds or not lengths_fit:
        listed = ", ".join("any" if length < 0 else str(length) for length in shape)
        raise InputError(
            f"the state's {_in_whole(name, state)!r} must hold {np.dtype(dtype)} of shape "
            f"({listed}), not {found.dtype} of shape {found.shape}; it was changed. Save it again."
        )
    return found.astype(dtype)


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings as JSON, which gives every finite number back exactly."""
    return json.dumps(settings, default=lambda value: value.item())


def check_settings(state: Mapping[str, Any], settings: str) -> None:
    """Raise `InputError` unless a state was written by a segmenter with these settings."""
    if "settings" not in state or whole("format", state) != FORMAT:
        raise InputError(
            f"this is no state that StreamingSegmenter.state() of this version (format {FORMAT}) "
            "wrote; feed the text again."
        )
    try:
        theirs, ours = json.loads(str(state["settings"])), json.loads(settings)
    except ValueError:
        theirs, ours = None, {}
    if not isinstance(theirs, dict):
        raise InputError("the state's 'settings' are not JSON; it was changed. Save it again.")
    for name in ours | theirs:
        if name not in theirs or name not in ours or theirs[name] != ours[name]:
            raise InputError(
                f"the state is that of a segmenter with {name}={theirs.get(name)!r}, this one has "
                f"{name}={ours.get(name)!r}; make it with the same arguments."
            )
