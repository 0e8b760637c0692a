"""Documents to rows: every slot of a batch reads one document to its end, window by window.

Rules. A row never holds two documents, unless `short="pack"` joins short ones into one. The first
window of a document has no previous one: it is read without memory ("alone"), or serves only as
memory of the second ("skip"). A last window that is not full is padded; padding is neither
predicted nor seen. Documents shorter than `least` tokens are left out, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.core.checks import check_option, plural, whole_number
from workbench.core.errors import InputError
from workbench.training.rows import IGNORED, Batch

__all__ = ["DocumentLoader", "mixture_weights", "pack"]


def pack(documents: Sequence[NDArray[np.int64]], least: int) -> list[NDArray[np.int64]]:
    """Join documents in their order until each has at least `least` tokens; the rest is dropped."""
    packed: list[NDArray[np.int64]] = []
    waiting: list[NDArray[np.int64]] = []
    for document in documents:
        waiting.append(document)
        if sum(map(len, waiting)) >= least:
            packed.append(np.concatenate(waiting))
            waiting = []
    return packed


def mixture_weights(
    lengths: Sequence[int], source: Sequence[int], shares: Sequence[float]
) -> NDArray[np.float64]:
    """How likely each document is drawn, so that the sources' shares are shares of tokens.

    Parameters
    ----------
    lengths : tokens of each document.
    source : number of each document's source.
    shares : wanted share of tokens of each source (made to sum to 1).
    """
    size, origin = np.asarray(lengths, dtype=float), np.asarray(source)
    weights = np.zeros(len(size))
    for number, share in enumerate(shares):
        inside = origin == number
        if not inside.any():
            raise InputError(f"source {number} of the mixture has no document that can be used.")
        # Drawn documents bring tokens in proportion to their mean length.
        weights[inside] = share / size[inside].sum()
    return weights / weights.sum()


class DocumentLoader:
    """Windows of documents, step after step, the same after a resumption.

    Parameters
    ----------
    documents : token arrays (n,), one per document.
    rows : documents side by side in one micro-batch.
    window : tokens of a row.
    accumulation : micro-batches of a step; a document's rows stay in one of them.
    least : shortest document, in tokens; default two windows for crossbatch's sake.
    short : "drop" documents shorter than `least`, or "pack" them into longer ones.
    first : what to do with a document's first window: "alone" or "skip".
    weights : how likely each document is drawn next; None reads all once in random order.
    seed : of the order.
    rank, world : number of this process and of all: each reads its own part.
    """

    def __init__(
        self,
        documents: Sequence[NDArray[np.int64]],
        *,
        rows: int,
        window: int,
        accumulation: int = 1,
        least: int | None = None,
        short: str = "drop",
        first: str = "alone",
        weights: NDArray[np.float64] | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        check_option("short", short, ("drop", "pack"))
        check_option("first", first, ("alone", "skip"))
        self.rows = whole_number("rows", rows, 1)
        self.window = whole_number("window", window, 2)
        self.accumulation = whole_number("accumulation", accumulation, 1)
        least = 2 * window if least is None else whole_number("least", least, 2)
        arrays = [np.asarray(document, dtype=np.int64) for document in documents]
        if short == "pack":
            if weights is not None:
                raise InputError("short='pack' and weights exclude each other; pack beforehand.")
            arrays = pack(arrays, least)
        kept = [k for k, document in enumerate(arrays) if len(document) >= least]
        self.dropped = len(arrays) - len(kept)
        if not kept:
            raise InputError(
                f"none of {plural(len(arrays), 'document')} has {least} tokens; give longer "
                "documents, a smaller window or least, or short='pack'."
            )
        self.documents = [arrays[k] for k in kept]
        self.weights = None
        if weights is not None:
            chosen = np.asarray(weights, dtype=float)[kept]
            self.weights = chosen / chosen.sum()
        self.first = first
        self.seed = seed
        self.rank, self.world = rank, world
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self._drawn = 0
        self._orders: dict[int, NDArray[np.int64]] = {}
        self._slots = [self._next() for _ in range(self.rows * self.accumulation)]

    def _next(self) -> tuple[int, int]:
        """Number of the next document of this process, and its first window."""
        place = self._drawn * self.world + self.rank
        self._drawn += 1
        size = len(self.documents)
        epoch, at = divmod(place, size)
        if epoch not in self._orders:
            # Drawn from (seed, epoch) alone, so that no state but the count has to be kept.
            rng = np.random.default_rng((self.seed, epoch))
            order = (
                rng.permutation(size)
                if self.weights is None
                else rng.choice(size, size=size, p=self.weights)
            )
            self._orders = {epoch: order}
        return int(self._orders[epoch][at]), 0

    def _windows(self, document: int) -> int:
        # The last token predicts nothing: it needs no window of its own.
        return max(1, math.ceil((len(self.documents[document]) - 1) / self.window))

    def step(self, suppliers: int = 0, together: int = 1) -> list[Batch]:
        """The micro-batches of the next step.

        Parameters
        ----------
        suppliers : previous windows of each document that stand before the current rows.
        together : consecutive windows of a document in one batch, all of them current.
        """
        batches = []
        for micro in range(self.accumulation):
            slots = range(micro * self.rows, (micro + 1) * self.rows)
            before: list[tuple[int, int]] = []
            now: list[tuple[int, int]] = []
            for slot in slots:
                document, window = self._slots[slot]
                if self.first == "skip" and suppliers:
                    window = max(window, min(suppliers, self._windows(document) - 1))
                now += [(document, window + ahead) for ahead in range(together)]
                after = window + together
                self._slots[slot] = (
                    (document, after) if after < self._windows(document) else self._next()
                )
            for back in range(1, suppliers + 1):
                before += [(document, window - back) for document, window in now]
            batches.append(self._batch(before, now))
        return batches

    def _batch(self, before: list[tuple[int, int]], now: list[tuple[int, int]]) -> Batch:
        places = before + now
        ids = np.zeros((len(places), self.window), dtype=np.int64)
        valid = np.zeros_like(ids, dtype=bool)
        targets = np.full_like(ids, IGNORED)
        for row, (document, window) in enumerate(places):
            text = self.documents[document]
            start = window * self.window
            if window < 0 or start >= len(text) - 1:
                continue
            piece = text[start : start + self.window]
            ids[row, : len(piece)] = piece
            valid[row, : len(piece)] = True
            if row >= len(before):
                ahead = text[start + 1 : start + 1 + self.window]
                targets[row, : len(ahead)] = ahead
        document_of, window_of = (np.array(part) for part in zip(*places))
        return Batch(
            torch.from_numpy(ids),
            torch.from_numpy(valid),
            torch.from_numpy(targets),
            document_of,
            window_of,
            suppliers=len(before),
        )

    def told(self, accuracy: float) -> bool:
        """Documents have no curriculum of their own: the schedule of d may go on."""
        return True

    def state(self) -> dict[str, Any]:
        """Where every slot stands, as JSON values."""
        return {"drawn": self._drawn, "slots": [list(slot) for slot in self._slots]}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a kept state of the same documents and settings."""
        if len(state["slots"]) != len(self._slots):
            raise InputError(
                f"the kept state has {plural(len(state['slots']), 'slot')}, the loader "
                f"{len(self._slots)}: resume with the same rows and accumulation."
            )
        self._drawn = int(state["drawn"])
        self._slots = [(int(document), int(window)) for document, window in state["slots"]]
