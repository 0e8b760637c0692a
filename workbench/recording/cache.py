"""Recorded traces kept by content: what was recorded once is read back."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.errors import DataError
from workbench.core.folders import cache_folder
from workbench.core.story import Story
from workbench.core.trace import Trace
from workbench.models import DEFAULT_MODEL, LanguageModel, default_device, describe, load_model
from workbench.recording.measures import chosen_measures
from workbench.recording.record import as_story, record, text_hash, versions
from workbench.recording.sizes import check_disk, estimate_size
from workbench.recording.storage import load_trace, remove_trace, save_trace

__all__ = ["cached_record", "loaded_model"]


def cached_record(
    story: Story | str | Path,
    model: LanguageModel | str | Path = DEFAULT_MODEL,
    *,
    layers: int | Iterable[int] | None = None,
    heads: int | Iterable[int] | None = None,
    keys: bool = True,
    bos: str | int = "auto",
    measures: str | Iterable[str] | None = None,
    window: int | None = None,
    min_context: int | None = None,
    states: int | Iterable[int] | None = None,
    keep_states: bool = False,
    keys_dtype: str = "float32",
    progress: bool = False,
    cache: bool = True,
) -> Trace:
    """`record`, unless the same recording is already in the cache folder.

    The same means: text and words, weights (by identity), number format, kind of device, start
    token, layers, heads and every other option, and the versions of workbench, torch and
    transformers. So an interrupted comparison goes on where it stopped, and a repeated one loads
    no model. A damaged entry is recorded again. The trace that is returned carries the story as
    given, with its annotations of now. A disk without room for the trace is an error before the
    model reads.

    Parameters
    ----------
    story, model, ..., progress : as in `record`. The model last loaded by name stays in memory
        for the next story.
    cache : False records anew and keeps nothing. The folder is `cache_folder()/traces`; the
        environment variable WORKBENCH_CACHE moves it; it can be deleted at any time.
    """
    story = as_story(story)
    layers, heads = _as_list(layers), _as_list(heads)
    wanted = "all" if measures == "all" else chosen_measures(measures)
    options: dict[str, Any] = {
        "window": window,
        "min_context": min_context,
        "states": _as_list(states),
        "keep_states": keep_states,
        "keys_dtype": keys_dtype,
    }

    def recorded() -> Trace:
        lm = model if isinstance(model, LanguageModel) else loaded_model(str(model))
        return record(
            story,
            lm,
            layers=layers,
            heads=heads,
            keys=keys,
            bos=bos,
            measures=wanted,
            **options,
            progress=progress,
        )

    if not cache:
        return recorded()
    facts = {**_model_facts(model), "keys": keys, "bos": bos, "measures": wanted, **options}
    if keys:
        facts |= {"layers": layers, "heads": heads}
    entry = cache_folder() / "traces" / f"{_entry(facts, story)}.zarr"
    if entry.exists():
        try:
            return Trace(dataset=load_trace(entry, lazy=False).dataset, story=story)
        except DataError as error:
            print(f"Recording again: {error}", file=sys.stderr)
            remove_trace(entry)
    lm = model if isinstance(model, LanguageModel) else loaded_model(str(model))
    sizes = {name: options[name] for name in ("states", "keep_states", "keys_dtype")}
    size = estimate_size(
        story, lm, layers=layers, heads=heads, keys=keys, measures=measures, **sizes
    )
    check_disk(entry.parent, size.total, f"recording {story.name!r}")
    trace = recorded()
    save_trace(trace, entry, overwrite=True)
    return trace


@lru_cache(maxsize=1)
def loaded_model(name: str) -> LanguageModel:
    """A model by name; the last one stays in memory."""
    return load_model(name)


def _model_facts(model: LanguageModel | str | Path) -> dict[str, Any]:
    """What tells recordings of two models apart; by name without loading where possible."""
    if not isinstance(model, LanguageModel):
        known = describe(model)
        if known is not None:
            # What load_model would make of it by default.
            facts: dict[str, Any] = {"name": known.name, "identity": known.identity}
            return {**facts, "dtype": "float32", "device": default_device(), "attention": None}
        model = loaded_model(str(model))
    attention = model.model.config._attn_implementation
    return {
        "name": model.name,
        "identity": model.identity,
        "dtype": model.dtype,
        "device": model.device.type,
        "attention": None if attention == "sdpa" else attention,
    }


def _entry(facts: dict[str, Any], story: Story) -> str:
    words = story.words
    spans = words[["char_start", "char_end"]].to_numpy(np.int64)
    times = words[["onset", "offset"]].to_numpy(np.float64)
    content = {
        **facts,
        "text": text_hash(story.text),
        "spans": hashlib.sha256(spans.tobytes()).hexdigest(),
        "times": hashlib.sha256(times.tobytes()).hexdigest(),
        "versions": versions(),
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=int).encode()).hexdigest()
    return digest[:40]


def _as_list(choice: int | Iterable[int] | None) -> list[int] | None:
    if choice is None:
        return None
    if isinstance(choice, (int, np.integer)):
        return [int(choice)]
    return sorted({int(number) for number in choice})
