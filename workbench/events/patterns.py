"""Patterns over words or sentences: what a model's keys look like, position by position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import MissingDataError
from workbench.core.trace import Trace
from workbench.events.proposal import Options

__all__ = ["UNITS", "Patterns", "patterns_of", "unit_starts"]

UNITS = ("token", "word", "sentence")


class Patterns(NamedTuple):
    """One row per unit.

    values : float64 (units, d): mean over the unit's tokens of its keys before rotary encoding,
        layers and heads side by side.
    starts : int64 (units,): each unit's first token; first 0.
    made_of : which unit, layers and heads, for settings.
    """

    values: NDArray[np.float64]
    starts: NDArray[np.int64]
    made_of: dict[str, object]


def unit_starts(trace: Trace, unit: str) -> NDArray[np.int64]:
    """First token of each token, word or sentence; words without a token of their own are left out.

    Raises
    ------
    MissingDataError : "sentence", and the text has no punctuation to divide it.
    """
    check_option("unit", unit, UNITS)
    if unit == "token":
        return np.arange(trace.n_tokens)
    starts: NDArray[np.int64] = np.arange(trace.n_words)
    if unit == "sentence":
        from workbench.stories.sentences import lack_of_sentences

        lack = lack_of_sentences(trace.story)
        if lack:
            raise MissingDataError(lack)
        starts = trace.story.sentence_starts()
    return trace.to_tokens(Boundaries(starts, trace.n_words, unit="word")).starts


def patterns_of(trace: Trace, options: Options, unit: str) -> Patterns:
    """Mean keys of each unit, of the layers and heads that `segment` was given.

    Default: the last third of the layers, all heads, as for refinement.

    Raises
    ------
    MissingDataError : no keys were recorded, or not of these layers and heads.
    """
    layers = options.layers
    if layers is None and "key" in trace.dataset:
        layers = trace.last_third().tolist()
    keys = trace.keys(layers, options.heads)
    starts = unit_starts(trace, unit)
    n_layers, n_heads, n, d = keys.shape
    values = np.empty((len(starts), n_layers, n_heads, d))
    sizes = np.diff(starts, append=n)
    for layer in range(n_layers):
        for head in range(n_heads):
            sums = np.add.reduceat(keys[layer, head].astype(np.float64), starts, axis=0)
            values[:, layer, head] = sums / sizes[:, None]
    chosen = trace.layers.tolist() if layers is None else layers
    made_of: dict[str, object] = {
        "unit": unit,
        "layers": np.atleast_1d(np.asarray(chosen)).tolist(),
        "heads": np.atleast_1d(
            np.asarray(trace.kv_heads.tolist() if options.heads is None else options.heads)
        ).tolist(),
    }
    return Patterns(values.reshape(len(starts), -1), starts, made_of)
