"""What a `StreamingSegmenter` is made of, from its settings (its arguments by name)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from workbench.core.errors import InputError
from workbench.events.methods import Method
from workbench.events.stream_checks import GIVEN
from workbench.events.stream_refinement import KeySums, Refiner, ReleasedRefiner
from workbench.events.stream_sources import Chunked, GivenStarts, Regular, Thresholded

__all__ = ["AnyRefiner", "Source", "describe_delay", "make_refiner", "make_source"]

Source = Thresholded | Chunked | Regular | GivenStarts
AnyRefiner = Refiner | ReleasedRefiner

_OBJECTIVES = {"M": "modularity", "C": "conductance"}


def make_source(method: Method, given: ArrayLike | None, settings: Mapping[str, Any]) -> Source:
    """What a method's boundaries come from, at the start of a text."""
    if method.proposal == "F":
        assert method.argument is not None
        return Regular(method.argument)
    if method.proposal in GIVEN:
        return GivenStarts(given if given is not None else [])
    sizes = {name: settings[name] for name in ("start", "min_size", "max_size", "short")}
    gamma, window = settings["gamma"], settings["window"]
    if window == "chunk":
        chunks = (settings[name] for name in ("chunk", "n_local", "n_init"))
        return Chunked(gamma, *chunks, whole=bool(method.refinement), **sizes)
    if isinstance(window, str):
        raise InputError(f"window={window!r} is not known. Give a number of values or 'chunk'.")
    return Thresholded(gamma, int(window), settings["min_values"], **sizes)


def make_refiner(method: Method, keys: KeySums, settings: Mapping[str, Any]) -> AnyRefiner:
    """What moves a refined method's boundaries, at the start of a text."""
    objective, variant = _OBJECTIVES[method.refinement], settings["variant"]
    min_size, diagonal = settings["min_size"], settings["diagonal"]
    if settings["rule"] == "reference":
        return ReleasedRefiner(keys, objective, variant, min_size, settings["chunk"], diagonal)
    scope, window = settings["scope"], settings["refine_window"]
    return Refiner(keys, objective, variant, scope, min_size, window, diagonal)


def describe_delay(method: Method, settings: Mapping[str, Any]) -> str:
    """In words, how long after its end an event is given out."""
    parts = []
    has_signal = method.proposal in "SBE"
    if has_signal and settings["window"] == "chunk":
        parts.append("until its chunk is complete")
    if has_signal and settings["start"] == "before":
        parts.append("one token")
    if method.refinement and settings["rule"] == "reference":
        parts.append("until its chunk is refined")
    elif method.refinement:
        wait = f"{settings['refine_window'] // 2} tokens after its unrefined end"
        following = f"until the next boundary, at most {wait}"
        parts.append(following if settings["scope"] == "next" else wait)
    return "; ".join(parts) or "none"
