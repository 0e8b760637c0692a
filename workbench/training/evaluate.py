"""Attention masses of a trained decoder: what r_d is made of (FOT, Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.core.checks import whole_number
from workbench.core.errors import InputError
from workbench.training.crossbatch import Crossbatch, Probe
from workbench.training.decoder import Decoder
from workbench.training.dictionary import Dictionary, dictionary_batch
from workbench.training.rows import IGNORED, Batch, Links

__all__ = ["Masses", "distraction_masses"]

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
