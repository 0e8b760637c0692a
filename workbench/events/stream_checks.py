"""What can be streamed, and what can be fed; see `StreamingSegmenter`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.events.methods import Method

__all__ = ["GIVEN", "agreed", "check_causal", "stacked"]

GIVEN = "HTR"  # proposals whose starts are known beforehand
_NEEDS_ALL = {
    "R": "draws its boundaries from all places of the whole text; draw them beforehand and give "
    "the tokens at which its events start as given=",
    "P": "may find an event's start long after it; cut the whole text with segment",
    "K": "looks for all change points of the whole text at once",
    "G": "searches the states of the whole text",
    "V": "fits its events to the whole text",
}


def check_causal(
    method: Method, given: ArrayLike | None, n_boundaries: int | None, rule: str, window: int | str
) -> None:
    """Raise `InputError` for a method or an option that needs what follows."""
    code, proposal = method.code, method.proposal
    check_option("rule", rule, ("paper", "reference"))
    if proposal in _NEEDS_ALL and not (proposal in GIVEN and given is not None):
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
    if proposal in GIVEN and given is None:
        raise InputError(
            f"method {code!r} cannot be streamed: its boundaries come from the whole text; give "
            "the tokens at which its events start as given=."
        )
    if proposal not in GIVEN and given is not None:
        raise InputError(
            f"given= belongs to methods H and T, not to {code!r}; R takes it too (starts drawn "
            "beforehand)."
        )
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


def stacked(keys: ArrayLike) -> NDArray[np.floating[Any]]:
    """Keys (heads, m, d), floating, from those or from (m, d)."""
    values = np.asarray(keys)
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3:
        raise InputError(f"keys must have the shape (m, d) or (heads, m, d), not {values.shape}.")
    return values.astype(np.float64) if values.dtype.kind in "iub" else values


def agreed(values: NDArray[np.float64] | None, keys: NDArray[Any] | None, n: int | None) -> int:
    """The number of tokens that all that was fed agrees on."""
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
