"""Look-up in memories of any length (FOT, section 4.2).

Memory is attended to exactly, densely or by the top k of each query and head, in blocks with
running sums, so that only one block of scores exists at a time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.core.errors import InputError
from workbench.training.attention import Near
from workbench.training.crossbatch import Memory
from workbench.training.decoder import Decoder
from workbench.training.dictionary import Dictionary
from workbench.training.rows import IGNORED, Batch

__all__ = ["Lookup", "StoredMemory", "look_up", "read_with_memory", "store_memory"]


@dataclass(frozen=True)
class Lookup:
    """Accuracy of looking up in a long memory.

    Parameters
    ----------
    tokens : of memory.
    top_k : keys that took part per query and head; None for all (dense).
    accuracy : share of answer tokens predicted right, mean over documents.
    low, high : 95 % interval over documents: of their mean (normal), cut to 0 ... 1; NaN for one.
    documents : how many.
    """

    tokens: int
    top_k: int | None
    accuracy: float
    low: float
    high: float
    documents: int


def look_up(
    decoder: Decoder,
    task: Dictionary,
    tokens: int,
    *,
    top_k: Sequence[int | None] = (None,),
    documents: int = 8,
    seed: int = 2,
) -> list[Lookup]:
    """Accuracy of questions to memories of about `tokens` tokens.

    `dict` documents are one long definition part, and one window of its entries is asked for
    (the paper's evaluation). `sigdict` documents are as long as in training; the memory is filled
    with the windows of other documents.

    Parameters
    ----------
    tokens : of memory, rounded down to whole windows.
    top_k : numbers of keys per query and head, None for dense.
    documents : question windows, each with a memory of its own.
    """
    windows = max(1, tokens // task.window)
    found: list[list[float]] = [[] for _ in top_k]
    decoder.eval()
    for number in range(documents):
        rng = np.random.default_rng((seed, tokens, number))
        memory, questions = _long_document(task, windows, rng)
        targets = torch.full((1, len(questions)), IGNORED)
        answers = torch.from_numpy(task.answers(task.records))[:-1]
        ids = torch.from_numpy(questions)[None]
        targets[0, :-1] = torch.where(answers, ids[0, 1:], IGNORED)
        predicting = targets != IGNORED
        with torch.no_grad():
            stored = store_memory(decoder, memory)
        for place, k in enumerate(top_k):
            with torch.no_grad():
                logits = read_with_memory(decoder, stored, ids, top_k=k)
            right = (logits.argmax(dim=-1) == targets)[predicting]
            found[place].append(float(right.float().mean()))
    return [_lookup(windows * task.window, k, np.array(values)) for k, values in zip(top_k, found)]


def _lookup(tokens: int, top_k: int | None, values: NDArray[np.float64]) -> Lookup:
    mean, n = float(values.mean()), len(values)
    half = 1.96 * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Lookup(tokens, top_k, mean, max(0.0, mean - half), min(1.0, mean + half), n)


def _long_document(
    task: Dictionary, windows: int, rng: np.random.Generator
) -> tuple[Tensor, NDArray[np.int64]]:
    """Memory (windows, n) and one window of questions (n,)."""
    if task.kind == "dict":
        text, questions = task.document(rng, task.records * windows, task.records)
        return torch.from_numpy(text.reshape(windows, task.window)), questions
    pairs = [task.document(rng, task.records) for _ in range(windows)]
    asked = int(rng.integers(windows))
    return torch.from_numpy(np.stack([pair[0] for pair in pairs])), pairs[asked][1]


def store_memory(decoder: Decoder, memory: Tensor, *, batch: int = 256) -> StoredMemory:
    """Keys and values of the memory layer for windows (n_windows, n), each read by itself.

    Parameters
    ----------
    decoder : with one memory layer, joined by one softmax.
    batch : windows read at once.
    """
    if len(decoder.memory_layers) != 1 or decoder.config.join != "softmax":
        raise InputError("a decoder with one memory layer and join='softmax' is needed.")
    stored = StoredMemory(decoder.memory_layers[0])
    for part in memory.split(batch):
        collect = _Collect(_plain(part))
        decoder.states(collect)
        stored.keys.append(collect.key)
        stored.values.append(collect.value)
    return stored


def read_with_memory(
    decoder: Decoder,
    stored: StoredMemory,
    ids: Tensor,
    *,
    top_k: int | None = None,
    block: int = 8192,
) -> Tensor:
    """Logits of one window that sees a stored memory of any length.

    Parameters
    ----------
    ids : (1, m) tokens of the window that asks.
    top_k : keys per query and head; None for all.
    block : memory tokens whose scores exist at once.

    Returns
    -------
    (1, m, vocabulary).
    """
    return decoder(_Long(_plain(ids), stored, top_k, block))


def _plain(ids: Tensor) -> Batch:
    rows = len(ids)
    return Batch(
        ids,
        torch.ones_like(ids, dtype=torch.bool),
        torch.full_like(ids, IGNORED),
        np.arange(rows),
        np.zeros(rows, dtype=np.int64),
    )


@dataclass
class StoredMemory:
    """Keys and values (heads, tokens, dim) of one layer, in parts."""

    layer: int
    keys: list[Tensor] = dataclasses.field(default_factory=list)
    values: list[Tensor] = dataclasses.field(default_factory=list)

    def blocks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values (heads, tokens, dim), block by block."""
        for key, value in zip(self.keys, self.values):
            yield from zip(key.split(size, dim=1), value.split(size, dim=1))


class _Collect(Memory):
    """Sees nothing, keeps the memory layer's keys and values (heads, tokens, dim)."""

    def wanted(self, layer: int, is_memory_layer: bool) -> bool:
        return is_memory_layer

    def far(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.key = key.transpose(0, 1).flatten(1, 2)
        self.value = value.transpose(0, 1).flatten(1, 2)


class _Long(Memory):
    """One row that sees stored tokens, by blocks."""

    def __init__(self, batch: Batch, stored: StoredMemory, top_k: int | None, block: int) -> None:
        super().__init__(batch)
        self.stored, self.top_k, self.block = stored, top_k, block

    def joined(self, layer: int, near: Near) -> Tensor | None:
        """Attention to window and memory in one softmax."""
        if layer != self.stored.layer:
            return None
        query = near.query[0] * near.scale
        here = (query @ near.key[0].mT).masked_fill(~near.allowed[0], -torch.inf)
        if near.bias is not None:
            here = here + near.bias
        parts = [_part(here, near.value[0])]
        blocks = self.stored.blocks(self.block)
        parts.extend(_top(query, blocks, self.top_k) if self.top_k else _dense(query, blocks))
        return _merged(parts)[None]


def _part(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log of the summed weights of one set of keys."""
    total = scores.logsumexp(dim=-1, keepdim=True)
    return (scores - total).exp() @ values, total


def _dense(
    query: Tensor, blocks: Iterable[tuple[Tensor, Tensor]]
) -> Iterator[tuple[Tensor, Tensor]]:
    for key, value in blocks:
        yield _part(query @ key.mT, value)


def _top(
    query: Tensor, blocks: Iterable[tuple[Tensor, Tensor]], k: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The k best keys over all blocks, of each query and head."""
    best: Tensor | None = None
    chosen: Tensor | None = None
    for key, value in blocks:
        scores, places = (query @ key.mT).topk(min(k, key.shape[1]), dim=-1)
        heads = torch.arange(len(value))[:, None, None]
        values = value[heads, places]
        if best is not None and chosen is not None:
            scores = torch.cat((best, scores), dim=-1)
            values = torch.cat((chosen, values), dim=-2)
            scores, places = scores.topk(min(k, scores.shape[-1]), dim=-1)
            index = places[..., None].expand(*places.shape, values.shape[-1])
            values = values.gather(-2, index)
        best, chosen = scores, values
    if best is not None and chosen is not None:
        total = best.logsumexp(dim=-1, keepdim=True)
        weights = (best - total).exp()
        yield (weights[..., None, :] @ chosen).squeeze(-2), total


def _merged(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """One softmax over all parts, from each part's own."""
    totals = torch.cat([total for _, total in parts], dim=-1)
    shares = totals.softmax(dim=-1)
    output = shares[..., :1] * parts[0][0]
    for place in range(1, len(parts)):
        output = output + shares[..., place : place + 1] * parts[place][0]
    return output
