"""What `record(attention=...)` means: reducers, events on tokens, and variables of the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.trace import Trace
from workbench.recording.attention import AttentionObserver
from workbench.recording.reducer import Reducer
from workbench.recording.reducers import make_reducers

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["attention_observer", "events_on_tokens", "with_attention"]


def events_on_tokens(
    events: Boundaries | str | None,
    token_word: NDArray[np.int64],
    n_words: int,
    first_reading: Callable[[], Trace],
) -> Boundaries | None:
    """Events as boundaries over tokens.

    Parameters
    ----------
    events : boundaries over tokens or words, or a method code, for which the text is read once
        before.
    token_word : the word of each token, -1 for none.
    n_words : words of the text.
    first_reading : gives a trace with what methods need.

    Raises
    ------
    InputError : the boundaries are of another text or unit.
    """
    if events is None:
        return None
    n = len(token_word)
    if isinstance(events, str):
        # A convenience that points from recording to events, so it is imported here.
        from workbench.events.methods import segment

        return segment(first_reading(), events)
    if not isinstance(events, Boundaries) or events.unit not in ("token", "word"):
        raise InputError("events must be Boundaries over tokens or words, or a method code.")
    expected = n if events.unit == "token" else n_words
    if events.n != expected:
        raise InputError(
            f"events cut {events.n} {events.unit}s, and the text has {expected} in this model."
        )
    if events.unit == "token":
        return events
    filled = np.where(token_word < 0, n_words, token_word)
    following = np.minimum.accumulate(filled[::-1])[::-1]
    first = np.searchsorted(following, np.arange(n_words), side="left")
    return events.mapped(first, n, unit="token")


def attention_observer(
    attention: str | Reducer | Iterable[str | Reducer],
    layers: list[int],
    heads: list[int],
    n: int,
    skip: int,
    *,
    events: Boundaries | None,
    spans: Any,
) -> AttentionObserver:
    """The observer of chosen statistics; parameters as in `record`."""
    reducers = make_reducers(attention, events=events, spans=spans)
    return AttentionObserver(reducers, layers, heads, n, skip)


def with_attention(dataset: xr.Dataset, observer: AttentionObserver) -> xr.Dataset:
    """The data set with the observer's variables; those that are one of its dimensions label it."""
    found = observer.results()
    taken = sorted(set(found) & set(dataset.variables))
    if taken:
        raise InputError(f"attention: {taken[0]!r} is a variable of the trace; name it otherwise.")
    lengths = dict(dataset.sizes)
    for name, variable in found.items():
        for dim, size in zip(variable.dims, variable.shape, strict=True):
            if lengths.setdefault(str(dim), size) != size:
                raise InputError(
                    f"attention: dimension {dim!r} of {name!r} has {size} entries, and "
                    f"{lengths[str(dim)]} elsewhere; two statistics must not share it."
                )
            if dim in dataset.data_vars:
                raise InputError(
                    f"attention: dimension {dim!r} of {name!r} is a measure of the trace; name it "
                    "otherwise."
                )
    labels = {name: variable for name, variable in found.items() if variable.dims == (name,)}
    rest = {name: variable for name, variable in found.items() if name not in labels}
    numbers = {
        "layer": ("layer", np.array(observer.reading.layers, dtype=np.int64)),
        "head": ("head", np.array(observer.reading.heads, dtype=np.int64)),
    }
    return dataset.assign(rest).assign_coords(numbers | labels)
