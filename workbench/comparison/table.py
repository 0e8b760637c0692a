"""The tidy table of a comparison: its columns, and rows from arrays of values and null draws.

One row is one number: a measure of one method's events in one story under one model, beside its
null, the matched fixed segmentation and what people reach among themselves.

Rows are told apart by `layer` and `head`: a layer and a head name one attention head; a layer
alone is the mean over its heads; neither is the mean over all layers and heads, or a measure that
has none (the distances to people); -1 and -1 are the one graph whose weights are summed over
the heads that guide refinement. A summed graph is not the mean of its heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["COLUMNS", "HEADLINE", "LOWER_IS_BETTER", "MEASURES", "as_table", "head_levels"]

COLUMNS = (
    "story",
    "annotation",
    "model",
    "method",
    "gamma",
    "variant",
    "measure",
    "layer",
    "head",
    "value",
    "ci_low",
    "ci_high",
    "null",
    "null_mean",
    "null_sd",
    "difference",
    "z",
    "p",
    "fixed",
    "ceiling_low",
    "ceiling_high",
    "match",
    "n_events",
    "seed",
    "provenance",
    "note",
)

MEASURES = ("modularity", "conductance", "intra_inter", "wasserstein", "hamming")

# The variant that a summary shows for each measure; the table holds them all.
HEADLINE = {
    "modularity": "newman",
    "conductance": "standard:mean",
    "intra_inter": "sums",
    "wasserstein": "sigma=0",
    "hamming": "sentence-gaps",
}

LOWER_IS_BETTER = {
    "modularity": False,
    "conductance": True,
    "intra_inter": False,
    "wasserstein": True,
    "hamming": True,
}

_NUMBERS = (
    "gamma",
    "value",
    "ci_low",
    "ci_high",
    "null_mean",
    "null_sd",
    "difference",
    "z",
    "p",
    "fixed",
    "ceiling_low",
    "ceiling_high",
)
_WHOLE = ("layer", "head", "n_events", "seed")
_WORDS = tuple(c for c in COLUMNS if c not in _NUMBERS and c not in _WHOLE)


def as_table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a data frame with exactly `COLUMNS`, their types fixed (also when empty)."""
    frame = pd.DataFrame(list(rows), columns=list(COLUMNS))
    for column in _NUMBERS:
        frame[column] = pd.to_numeric(frame[column], errors="coerce").astype("float64")
    for column in _WHOLE:
        frame[column] = frame[column].astype("Int64")
    for column in _WORDS:
        frame[column] = frame[column].fillna("").astype("str")
    return frame


def head_levels(
    index: Sequence[tuple[int, int]],
) -> list[tuple[int | None, int | None, NDArray[np.int64]]]:
    """The levels at which per-head values are reported: heads, layer means, the mean over all.

    Parameters
    ----------
    index : (layer, head) of each of the graph's heads, length H.

    Returns
    -------
    list of (layer, head, members), members being the rows of `index` whose mean is reported.
    """
    layers = np.array([layer for layer, _ in index], dtype=np.int64)
    every = np.arange(len(index))
    levels: list[tuple[int | None, int | None, NDArray[np.int64]]] = [
        (layer, head, every[i : i + 1]) for i, (layer, head) in enumerate(index)
    ]
    levels += [(int(layer), None, every[layers == layer]) for layer in np.unique(layers)]
    levels.append((None, None, every))
    return levels
