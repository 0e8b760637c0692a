"""The trace of a reading with a memory: what was seen while reading, as `record` would keep it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.core.errors import DataError
from workbench.core.story import Story
from workbench.core.trace import Trace
from workbench.recording import adapter
from workbench.recording.tokens import Tokens, spans_by_decoding, tokenize
from workbench.recording.windows import Window

if TYPE_CHECKING:
    from workbench.memory.layer import LayerMemory
    from workbench.memory.row import Row
    from workbench.memory.system import MemoryModel

__all__ = ["keys_of", "memory_trace"]


@dataclass(frozen=True)
class _Keys:
    """Keys of some layers, as a `KeyRecorder` gives them."""

    layers: list[int]
    heads: list[int]
    keys: NDArray[np.float32]
    source: str = "memory"


def memory_trace(system: MemoryModel, number: int = 0) -> Trace:
    """Trace of a text that a memory system read.

    Surprisal is what the system saw (its window and what it recalled), not that of the whole
    context; keys, of the layers that refine boundaries, come from the memory, and are left out
    where the system has forgotten some of them.
    """
    from workbench.recording.dataset import Measured, make_dataset
    from workbench.recording.measures import MEASURES
    from workbench.recording.record import text_hash, versions

    row = system.rows[number]
    lm = system.lm
    story, tokens = _story(system, number)
    names = [
        name
        for name in MEASURES
        if name in row.text.measures and not np.isnan(row.text.measures[name]).all()
    ]
    measured = Measured(story, tokens, lm, names or ["surprisal"])
    for name in measured.names:
        measured.values[name][:] = row.text.measures[name]
    size = adapter.geometry(lm.model)
    count = size["n_layers"]
    chosen = system.refining_layers or list(range(count - max(1, count // 3), count))
    keys = _keys(row, chosen)
    recorder = None if keys is None else _Keys(chosen, list(range(size["n_kv_heads"])), keys)
    n = len(tokens.ids)
    settings: dict[str, Any] = {
        "model": lm.name,
        "identity": lm.identity,
        "provenance": lm.provenance,
        **size,
        "architecture": type(lm.model).__name__,
        "tokenizer": type(lm.tokenizer).__name__,
        "spans": tokens.rule,
        "dtype": lm.dtype,
        "device": str(lm.device),
        "bos": system.bos,
        "bos_id": system.start,
        "bos_reason": system.start_reason,
        "measures": measured.names,
        "key_source": None if recorder is None else recorder.source,
        "window": lm.window,
        "windows": {"rule": "a memory: the local window and what was recalled"},
        "memory": {"system": system.name, **system.describe()},
        "text_sha256": text_hash(story.text),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    windows = [Window(0, 0, n)]
    recorded: Any = recorder
    dataset = make_dataset(story, tokens, measured, windows, recorded, None, settings)
    about = {"units": "1", "long_name": "keys that the token saw, mean over layers"}
    dataset["attended"] = ("token", np.array(row.text.seen, dtype=np.float64), about)
    return Trace(dataset=dataset, story=story)


def _keys(row: Row, layers: list[int]) -> NDArray[np.float32] | None:
    parts = [keys_of(row.layers[layer], row.skip, row.n) for layer in layers]
    if any(part is None for part in parts):
        return None
    return np.stack([part for part in parts if part is not None])


def keys_of(layer: LayerMemory, skip: int, n: int) -> NDArray[np.float32] | None:
    """Keys of every token of the text, (kv_heads, n_tokens, dim); None where some are gone."""
    held = []
    if layer.sinks is not None:
        held.append(layer.sinks[0])
    if layer.store is not None and layer.store.n:
        keys, _ = layer.store.gather(torch.arange(layer.store.n))
        held.append(keys)
    if layer.near.n:
        held.append(layer.near.keys)
    if sum(part.shape[1] for part in held) != n:
        return None
    joined = torch.cat([part.to("cpu", torch.float32) for part in held], dim=1)
    return np.asarray(joined[:, skip:].numpy(), dtype=np.float32)


def _story(system: MemoryModel, number: int) -> tuple[Story, Tokens]:
    """The text that was read, as one story, with the spans of its tokens."""
    from workbench.stories.alignment import untimed_words

    row = system.rows[number]
    pieces = system.pieces(number)
    ids = row.text.ids
    starts = [start for start, _ in pieces]
    spans: list[NDArray[np.int64]] = []
    rules: list[str] = []
    strings: list[str] = []
    offset = 0
    for (start, text), stop in zip(pieces, [*starts[1:], len(ids)], strict=True):
        part = ids[start:stop]
        if not part:
            continue
        found = _spans(system.lm.tokenizer, part, text)
        spans.append(found[0] + offset)
        rules.append(found[1])
        strings += [system.lm.tokenizer.decode([token]) for token in part]
        offset += len(text)
    joined = "".join(text for _, text in pieces)
    told = system.stories(number)
    if len(pieces) == 1 and len(told) == 1:
        story = told[0]
    else:
        story = Story(name="memory", text=joined, words=untimed_words(joined))
    span = np.concatenate(spans)
    rule = rules[0] if len(set(rules)) == 1 else "mixed"
    tokens = Tokens(np.array(ids, dtype=np.int64), strings, span[:, 0], span[:, 1], rule)
    return story, tokens


def _spans(tokenizer: Any, ids: list[int], text: str) -> tuple[NDArray[np.int64], str]:
    if text.strip():
        found = tokenize(tokenizer, text)
        if found.ids.tolist() == ids:
            return np.stack((found.char_start, found.char_end), axis=1), found.rule
    spans = spans_by_decoding(tokenizer, ids, text)
    if spans is None:
        raise DataError(
            "generated tokens do not decode to the text they make up together, so they cannot be "
            "assigned to words; look at events, surprisal and retrievals instead of the trace."
        )
    return spans, "decoding"
