"""What a trained decoder does: r_d (FOT, Figure 3), and look-up in memories of any length.

Memory of any length is attended to exactly, densely or by the top k of each query and head, in
blocks with running sums, so that only one block of scores exists at a time.
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

from workbench.core.checks import whole_number
from workbench.core.errors import InputError
from workbench.training.attention import Near
from workbench.training.crossbatch import Crossbatch, Memory, Probe
from workbench.training.decoder import Decoder
from workbench.training.dictionary import Dictionary, dictionary_batch
from workbench.training.rows import IGNORED, Batch, Links

__all__ = [
    "Lookup",
    "Masses",
    "StoredMemory",
    "distraction_masses",
    "look_up",
    "read_with_memory",
    "store_memory",
]

_SCORES = 2**22  # scores that exist at once


@dataclass(frozen=True, eq=False)
class Masses:
    """Attention masses of query documents that see d documents.

    Parameters
    ----------
    own, all : (documents, layers, heads, queries) float32, mass on the own previous window and on
        all previous windows; their ratio is r_d.
    answers : (documents, queries) bool, queries that predict a token.
    layers : numbers of the memory layers.
    correct : (documents,) share of the predicted tokens that the model got right.
    d : documents seen.
    """

    own: NDArray[np.float32]
    all: NDArray[np.float32]
    answers: NDArray[np.bool_]
    layers: tuple[int, ...]
    correct: NDArray[np.float64]
    d: int


def distraction_masses(
    decoder: Decoder,
    task: Dictionary,
    d: int,
    *,
    documents: int = 64,
    queries: int = 32,
    seed: int = 1,
) -> Masses:
    """Masses of fresh documents, each among the windows of d documents.

    The memory layers give far keys no order, so the place of the own window among the d is of no
    consequence.

    Parameters
    ----------
    documents : drawn; at least d.
    queries : how many of them ask.
    """
    if not 1 <= d <= documents:
        raise InputError(f"d={d} must lie between 1 and documents={documents}.")
    batch = dictionary_batch(task, documents, np.random.default_rng(seed))
    queries = min(whole_number("queries", queries, 1), documents)
    layers = decoder.memory_layers
    logits, own, everything = [], [], []
    decoder.eval()
    size = max(1, _SCORES // (decoder.config.heads * task.window**2 * d))
    for start in range(0, queries, size):
        asking = np.arange(start, min(start + size, queries))
        seen = (asking[:, None] + np.arange(d)) % documents
        links = Links(seen, np.arange(d) == np.zeros((len(asking), 1)))
        probe = Probe()
        part = _rows(batch, [*range(documents), *(documents + asking)], suppliers=documents)
        with torch.no_grad():
            logits.append(decoder(Crossbatch(part, links, np.random.default_rng(0), probe=probe)))
        own.append(torch.stack([probe.own[layer] for layer in layers], dim=1))
        everything.append(torch.stack([probe.all[layer] for layer in layers], dim=1))
    targets = batch.targets[documents : documents + queries]
    predicting = targets != IGNORED
    right = (torch.cat(logits).argmax(dim=-1) == targets) & predicting
    return Masses(
        torch.cat(own).numpy(),
        torch.cat(everything).numpy(),
        predicting.numpy(),
        layers,
        (right.sum(dim=1) / predicting.sum(dim=1)).double().numpy(),
        d,
    )


def _rows(batch: Batch, rows: Sequence[int], suppliers: int) -> Batch:
    at = torch.tensor(rows)
    return Batch(
        batch.ids[at],
        batch.valid[at],
        batch.targets[at],
        batch.document[rows],
        batch.window[rows],
        suppliers,
    )


# --- memories of any length ------------------------------------------------------------------


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
