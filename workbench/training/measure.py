"""Tables of what a trained decoder does: r_d by number of documents, accuracy by memory, nats.

Every number stands beside its baseline (1/d for r_d, chance for accuracy) and a 95 % interval over
documents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.analysis.distraction import pooled_ratio, ratio_parts
from workbench.analysis.statistics import percentile_interval
from workbench.core.checks import whole_number
from workbench.core.errors import InputError
from workbench.training.decoder import Decoder
from workbench.training.dictionary import Dictionary
from workbench.training.evaluate import Masses, distraction_masses
from workbench.training.loader import DocumentLoader
from workbench.training.long_memory import look_up
from workbench.training.methods import CrossbatchMethod, MemorizingTransformer, Method, Standard
from workbench.training.rows import IGNORED

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["distraction_table", "lookup_table", "nats_table", "summarise"]

DISTRACTION_D = (1, 2, 4, 8, 16, 32, 64)
QUERIES = ("answers", "all")


def summarise(masses: Masses, *, resamples: int = 1000, seed: int = 0) -> list[dict[str, Any]]:
    """r_d of the answer queries and of all queries, with intervals over documents.

    Returns
    -------
    Two rows: d, queries, r_d (mean of the ratios of queries, layers and heads), low, high (95 %,
    documents resampled), ratio_of_sums, baseline (1/d), accuracy, documents.
    """
    n = len(masses.own)
    rows = []
    for queries in QUERIES:
        chosen = masses.answers[:, None, None, :] if queries == "answers" else None

        def pooled(statistic: str, chosen: Any = chosen) -> list[float]:
            parts = ratio_parts(masses.own, masses.all, chosen, statistic)
            top, bottom = (part.sum(axis=(1, 2)) for part in parts)
            found = pooled_ratio(top, bottom, np.arange(n), draws=resamples, seed=seed)
            return [float(value) for value in found]

        r_d, low, high = pooled("mean of ratios")
        rows.append(
            {
                "d": masses.d,
                "queries": queries,
                "r_d": r_d,
                "low": low,
                "high": high,
                "ratio_of_sums": pooled("ratio of sums")[0],
                "baseline": 1 / masses.d,
                "accuracy": masses.correct.mean(),
                "documents": n,
            }
        )
    return rows


def distraction_table(
    decoder: Decoder,
    task: Dictionary,
    d: Sequence[int] = DISTRACTION_D,
    *,
    documents: int | None = None,
    queries: int = 32,
    seed: int = 1,
) -> pd.DataFrame:
    """r_d for several d (FOT, Figure 3); the columns of `summarise`, two rows per d.

    Parameters
    ----------
    documents : drawn; default as many as the largest d, at least `queries`.
    queries : documents that ask.
    """
    import pandas as pd

    n = max(*d, queries) if documents is None else documents
    rows: list[dict[str, Any]] = []
    for number in d:
        masses = distraction_masses(decoder, task, number, documents=n, queries=queries, seed=seed)
        rows += summarise(masses)
    return pd.DataFrame(rows)


def lookup_table(
    decoder: Decoder,
    task: Dictionary,
    tokens: Sequence[int],
    *,
    top_k: Sequence[int | None] = (None, 32),
    documents: int = 8,
    seed: int = 2,
) -> pd.DataFrame:
    """Accuracy by memory tokens, dense and by top k: tokens, top_k (0 dense), accuracy, low, high.

    `chance` is one letter of the vocabulary.
    """
    import pandas as pd

    rows = [
        {
            "tokens": found.tokens,
            "top_k": found.top_k or 0,
            "accuracy": found.accuracy,
            "low": found.low,
            "high": found.high,
            "chance": 1 / (task.vocabulary - 3),
            "documents": found.documents,
        }
        for size in tokens
        for found in look_up(decoder, task, size, top_k=top_k, documents=documents, seed=seed)
    ]
    return pd.DataFrame(rows)


def nats_table(
    decoder: torch.nn.Module,
    documents: Sequence[NDArray[np.int64]],
    window: int,
    *,
    d: Sequence[int] = (0, 1, 2, 4, 8, 16),
    windows: int = 1,
    capacity: Sequence[int] = (),
    top_k: int | None = None,
    rows: int = 16,
    seed: int = 0,
) -> pd.DataFrame:
    """Nats per token of the same tokens, by what the memory holds.

    First windows of documents are not counted, since they have no past.

    Parameters
    ----------
    documents : at least `rows` of them; they are read side by side, `rows` at a time, each group
        cut to its shortest document.
    d : numbers of documents whose previous `windows` windows are in memory (Figure 8);
        0 is the window alone: short-context perplexity.
    capacity : memory sizes, in tokens, of the document's own past (Figure 9).
    top_k : keys per query and head; None for all.

    Returns
    -------
    Columns memory ("documents" or "own past"), size, nats, low, high (95 %, documents resampled),
    perplexity, tokens, documents. The row of d = 0 is the baseline of all others.
    """
    import pandas as pd

    whole_number("rows", rows, 1)
    if len(documents) < rows or max(d, default=0) > rows:
        raise InputError(
            f"rows={rows} needs as many documents (given: {len(documents)}) and must not be "
            f"smaller than the largest d ({max(d, default=0)})."
        )
    arms: list[tuple[str, int, Method]] = []
    for number in d:
        method: Method = CrossbatchMethod(windows, top_k=top_k) if number else Standard()
        arms.append(("documents", number, method))
    arms += [
        ("own past", size, MemorizingTransformer(capacity=size, top_k=top_k)) for size in capacity
    ]
    found = []
    attached = getattr(decoder, "attached", contextlib.nullcontext)
    for kind, size, method in arms:
        with attached():
            nats = _nats(decoder, documents, window, method, size, rows)
        rng = np.random.default_rng(seed)
        drawn = rng.integers(len(nats), size=(1000, len(nats)))
        means = nats[drawn, 0].sum(axis=1) / nats[drawn, 1].sum(axis=1)
        low, high = percentile_interval(means)
        mean = nats[:, 0].sum() / nats[:, 1].sum()
        found.append(
            {
                "memory": kind,
                "size": size,
                "nats": mean,
                "low": low,
                "high": high,
                "perplexity": np.exp(mean),
                "tokens": int(nats[:, 1].sum()),
                "documents": len(nats),
            }
        )
    return pd.DataFrame(found)


def _nats(
    decoder: torch.nn.Module,
    documents: Sequence[NDArray[np.int64]],
    window: int,
    method: Method,
    d: int,
    rows: int,
) -> NDArray[np.float64]:
    """Sum of nats and number of tokens of each document, (documents, 2)."""
    decoder.eval()
    used = len(documents) // rows * rows
    totals = np.zeros((used, 2))
    for start in range(0, used, rows):
        group = [documents[start + k] for k in range(rows)]
        shortest = min(len(document) for document in group)
        loader = DocumentLoader([g[:shortest] for g in group], rows=rows, window=window, least=2)
        for _ in range((shortest - 2) // window + 1):
            (batch,) = loader.step(method.suppliers)
            memory = method.memory(batch, d, np.random.default_rng(0))
            with torch.no_grad():
                logits = decoder(memory)
            method.end()
            here = batch.targets[batch.current]
            counted = (here != IGNORED) & torch.from_numpy(batch.window[batch.current] > 0)[:, None]
            surprise = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2).double(), here.clamp(min=0), reduction="none"
            )
            numbers = start + batch.document[batch.current]
            np.add.at(totals[:, 0], numbers, (surprise * counted).sum(dim=1).numpy())
            np.add.at(totals[:, 1], numbers, counted.sum(dim=1).numpy())
    return totals
