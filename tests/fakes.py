"""Stories and traces made from arrays, for tests that must not load a model.

trace = fake_trace(surprisal)                      # one token per word, no keys
trace = fake_trace(surprisal, keys)                # keys (n, d), (heads, n, d) or 4-D
story = fake_story(["It", "rained."], people=[0.4], seconds_per_word=0.5)
trace = fake_trace(surprisal, keys, token_word=[0, 0, 1], story=story)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike

from workbench.core.story import Annotation, Story
from workbench.core.trace import Trace

__all__ = ["fake_story", "fake_trace"]


def fake_story(
    words: int | Sequence[str],
    *,
    name: str = "fake",
    seconds_per_word: float | None = None,
    people: ArrayLike | None = None,
    presses: pd.DataFrame | None = None,
    author: ArrayLike | None = None,
    duration: float | None = None,
) -> Story:
    """A story whose words are separated by single spaces.

    Parameters
    ----------
    words : the words, or how many ("w0 w1 w2 ...").
    seconds_per_word : word i sounds from i·s to (i + 0.8)·s; None: no word times.
    people : consensus times in seconds ("people"/"published"), or None.
    presses : table of presses ("people"/"presses"), columns as in `Annotation`, or None.
    author : word numbers at which the author's scenes start ("author"/"scenes"), or None.
    duration : length of the recording in seconds; default: n_words · seconds_per_word.
    """
    listed = [f"w{i}" for i in range(words)] if isinstance(words, int) else list(words)
    sizes = np.array([len(word) for word in listed], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes + 1)[:-1]]) if listed else np.zeros(0, int)
    numbers = np.arange(len(listed), dtype=np.float64)
    step = float("nan") if seconds_per_word is None else seconds_per_word
    table = pd.DataFrame(
        {
            "word": listed,
            "char_start": starts,
            "char_end": starts + sizes,
            "onset": numbers * step,
            "offset": (numbers + 0.8) * step,
            "timed": seconds_per_word is not None,
        }
    )
    if duration is None and seconds_per_word is not None:
        duration = len(listed) * seconds_per_word
    annotations: list[Annotation] = []
    if people is not None:
        times = np.asarray(people, dtype=np.float64)
        annotations.append(Annotation("people", "published", times=times, duration=duration))
    if presses is not None:
        count = int(presses["subject"].nunique())
        annotations.append(
            Annotation("people", "presses", presses=presses, duration=duration, n_people=count)
        )
    if author is not None:
        scenes = np.asarray(author, dtype=np.int64)
        annotations.append(Annotation("author", "scenes", words=scenes))
    return Story(name, " ".join(listed), table, tuple(annotations), title=name.title())


def fake_trace(
    surprisal: ArrayLike,
    keys: ArrayLike | None = None,
    *,
    token_word: ArrayLike | None = None,
    story: Story | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
) -> Trace:
    """A complete Trace over given arrays.

    Parameters
    ----------
    surprisal : shape (n_tokens,), nats; NaN for an unscored first token.
    keys : shape (n, d), (heads, n, d) or (layers, heads, n, d); None: no keys were recorded.
    token_word : the word of each token, non-decreasing but for -1 (no word); default: token i
        is word i.
    story : default: as many words as `token_word` names, without times and annotations.
    layers, heads : their numbers; by default the heads count from 0 and the layers are the last
        of a model with at least three, so that `trace.last_third()` is never empty.
    settings : added to the recording's settings (e.g. n_layers).
    """
    values = np.asarray(surprisal, dtype=np.float64)
    n = len(values)
    owner = np.arange(n) if token_word is None else np.asarray(token_word, dtype=np.int64)
    if len(owner) != n:
        raise ValueError(f"{len(owner)} entries in token_word for {n} tokens")
    if story is None:
        story = fake_story(int(owner.max()) + 1)
    char_start, char_end = _token_spans(owner, story)
    by_word = np.zeros(story.n_words)
    np.add.at(by_word, owner[owner >= 0], values[owner >= 0])

    data: dict[str, Any] = {
        "surprisal": ("token", values, {"units": "nats"}),
        "word_surprisal": ("word", by_word, {"units": "nats"}),
    }
    coords: dict[str, Any] = {
        "token": np.arange(n),
        "token_id": ("token", np.arange(n)),
        "token_str": ("token", [story.text[a:b] for a, b in zip(char_start, char_end)]),
        "char_start": ("token", char_start),
        "char_end": ("token", char_end),
        "token_word": ("token", owner),
        "word": np.arange(story.n_words),
        "word_str": ("word", story.words["word"].astype(str).to_numpy(dtype="U")),
        "word_onset": ("word", story.words["onset"].to_numpy(dtype=np.float64)),
        "word_offset": ("word", story.words["offset"].to_numpy(dtype=np.float64)),
    }
    n_layers = 0
    if keys is not None:
        array = np.asarray(keys, dtype=np.float32)
        array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        n_layers = max(array.shape[0], 3) if layers is None else max(layers) + 1
        if layers is None:
            layers = range(n_layers - array.shape[0], n_layers)
        heads = range(array.shape[1]) if heads is None else heads
        data["key"] = (("layer", "kv_head", "token", "dim"), array)
        coords["layer"] = np.asarray(list(layers), dtype=np.int64)
        coords["kv_head"] = np.asarray(list(heads), dtype=np.int64)
    made_by = {
        "model": "fake",
        "tokenizer": "fake",
        "dtype": "float32",
        "n_layers": n_layers,
        "bos": None,
        "provenance": "made from arrays for a test",
        **(settings or {}),
    }
    return Trace(xr.Dataset(data, coords, {"settings": json.dumps(made_by)}), story)


def _token_spans(owner: np.ndarray, story: Story) -> tuple[np.ndarray, np.ndarray]:
    """Character spans: the tokens of a word share its letters; a token of no word is empty."""
    n = len(owner)
    starts, ends = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    first = story.words["char_start"].to_numpy()
    last = story.words["char_end"].to_numpy()
    for word in np.unique(owner[owner >= 0]):
        tokens = np.flatnonzero(owner == word)
        cuts = np.linspace(first[word], last[word], len(tokens) + 1).astype(np.int64)
        starts[tokens], ends[tokens] = cuts[:-1], cuts[1:]
    for token in np.flatnonzero(owner < 0):
        starts[token] = ends[token] = ends[token - 1] if token else 0
    return starts, ends
