"""Whether the event that holds an answer was recalled while it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.core.boundaries import Boundaries

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KeyRecall", "key_recall"]


@dataclass(frozen=True)
class KeyRecall:
    """Recalls of what holds the answer, between the end of the text and the end of the output.

    Parameters
    ----------
    any : at least one layer recalled at least one of its events at least once.
    layers : share of the layers that recall at all which did so.
    whole : some layer recalled all events over which the answer is spread, in one step.
    """

    any: bool
    layers: float
    whole: bool


def key_recall(
    retrievals: pd.DataFrame, events: Boundaries, span: tuple[int, int], since: int
) -> KeyRecall | None:
    """Look up the events that overlap a span of tokens among the recalls of an answer.

    Parameters
    ----------
    retrievals : a system's table; `position` (of the query) and `layer`, `step`, `unit` are used.
    events : the system's events; unit i is the i-th.
    span : first token that holds the answer, and one past the last.
    since : tokens read before the question; earlier recalls do not count.

    Returns
    -------
    None where nothing was recalled at all: the system has no memory, or all of it is in sight.
    """
    asked = retrievals[retrievals["position"] >= since]
    if len(asked) == 0:
        return None
    first, last = np.searchsorted(events.starts, [span[0], span[1] - 1], side="right") - 1
    hits = asked[asked["unit"].between(int(first), int(last))]
    per_step = hits.groupby(["layer", "step"])["unit"].nunique()
    return KeyRecall(
        any=len(hits) > 0,
        layers=hits["layer"].nunique() / asked["layer"].nunique(),
        whole=bool((per_step == last - first + 1).any()),
    )
