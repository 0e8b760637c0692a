"""All reducers of attention, by name and as classes; one's own: `workbench.recording.reducer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.recording.reducer import Reducer
from workbench.recording.reducers_lag import Lag, lag_edges
from workbench.recording.reducers_places import FullRows, Spans, Top
from workbench.recording.reducers_token import (
    Distance,
    Entropy,
    First,
    Inside,
    InsideDraws,
    Sink,
)

__all__ = [
    "REDUCERS",
    "Distance",
    "Entropy",
    "First",
    "FullRows",
    "Inside",
    "InsideDraws",
    "Lag",
    "Reducer",
    "Sink",
    "Spans",
    "Top",
    "lag_edges",
    "make_reducers",
]

REDUCERS = ("lag", "entropy", "distance", "first", "sink", "inside", "spans", "top")
"""Names that `record(attention=...)` knows."""


def make_reducers(
    attention: str | Reducer | Iterable[str | Reducer],
    *,
    events: Boundaries | None = None,
    spans: Any = None,
) -> list[Reducer]:
    """Reducers from names, each with its defaults, and from Reducers as they are.

    Parameters
    ----------
    attention : names of `REDUCERS`, and Reducers.
    events : what "inside" needs.
    spans : what "spans" needs.

    Raises
    ------
    InputError : an unknown name, one that needs what was not given, or two of one name.
    """
    given = [attention] if isinstance(attention, (str, Reducer)) else list(attention)
    simple = {"lag": Lag, "entropy": Entropy, "distance": Distance, "first": First, "sink": Sink}
    made: list[Reducer] = []
    for item in given:
        if isinstance(item, Reducer):
            made.append(item)
            continue
        check_option("attention", item, REDUCERS)
        if item == "inside":
            if events is None:
                raise InputError('attention "inside" needs events= (Boundaries or a method code).')
            made.append(Inside(events))
        elif item == "spans":
            if spans is None:
                raise InputError('attention "spans" needs spans= (token pairs or Boundaries).')
            made.append(Spans(spans))
        elif item == "top":
            made.append(Top())
        else:
            made.append(simple[item]())
    names = [reducer.name for reducer in made if reducer.name != Reducer.name]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"attention: {twice[0]!r} is there twice; give each statistic once.")
    if not made:
        raise InputError("attention is empty; leave it out for none.")
    return made
