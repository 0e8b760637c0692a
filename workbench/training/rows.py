"""Batches of windows, and who sees whom: the rows of a crossbatch step.

A batch has rows of equal length. Each row is one window of one document. The first rows only
supply keys and values ("suppliers": C_prev of the paper); the rest are read and predicted
("current": C_curr). `Links` name, for each current row, the rows whose keys and values its memory
layers see.

Rules. A row sees of its own document only windows before its own, so nothing leaks from later
ones; of other documents any row that the form offers. A document that occurs twice in a batch is
one document: its later windows are never taken as negatives. Padding is never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.core.checks import check_option, whole_number
from workbench.core.errors import InputError

__all__ = ["IGNORED", "NEGATIVES", "Batch", "Links", "Mixed", "Paper"]

IGNORED = -100
"""Target of a position that is not predicted."""

NEGATIVES = ("next", "random", "hardest")


@dataclass(frozen=True)
class Batch:
    """Windows of documents; suppliers first.

    Parameters
    ----------
    ids : (rows, n) int64 tokens.
    valid : (rows, n) bool, False for padding.
    targets : (rows, n) int64, the token after each position, `IGNORED` where it is not predicted.
    document : (rows,) int64, number of the row's document.
    window : (rows,) int64, place of the row's window in its document, 0 for the first.
    suppliers : the first so many rows only supply keys and values.
    """

    ids: Tensor
    valid: Tensor
    targets: Tensor
    document: NDArray[np.int64]
    window: NDArray[np.int64]
    suppliers: int = 0

    @property
    def current(self) -> slice:
        """The rows that are read and predicted."""
        return slice(self.suppliers, len(self.document))

    @property
    def n_current(self) -> int:
        """How many rows are read and predicted."""
        return len(self.document) - self.suppliers

    @property
    def n_targets(self) -> int:
        """How many tokens of the current rows are predicted."""
        return int((self.targets[self.current] != IGNORED).sum())

    def alone(self) -> Batch:
        """The current rows without their suppliers."""
        here = self.current
        return Batch(
            self.ids[here],
            self.valid[here],
            self.targets[here],
            self.document[here],
            self.window[here],
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""
        return replace(
            self,
            ids=self.ids.to(device),
            valid=self.valid.to(device),
            targets=self.targets.to(device),
        )


@dataclass(frozen=True)
class Links:
    """Which rows each current row sees in memory layers.

    Parameters
    ----------
    rows : (current, m) int64 row numbers of the batch, -1 where there is none.
    own : (current, m) bool, rows of the same document (positives).
    """

    rows: NDArray[np.int64]
    own: NDArray[np.bool_]

    @property
    def contexts(self) -> NDArray[np.int64]:
        """How many rows each current row sees."""
        return (self.rows >= 0).sum(axis=1)


@dataclass(frozen=True)
class Paper:
    """Crossbatch of the paper (section 3.2): the previous windows of d documents.

    The current row of document i sees the `windows` previous windows of documents i ... i + d - 1,
    modulo the batch; d counts the document itself, so d = 1 is without negatives.

    Parameters
    ----------
    d : number of documents seen; 0 for no memory.
    windows : previous windows per document (w).
    negatives : "next" rows (the paper), "random" ones, or the "hardest": those whose mean key is
        most similar to the row's mean query in the memory layer.
    """

    d: int
    windows: int = 1
    negatives: str = "next"

    def __post_init__(self) -> None:
        whole_number("d", self.d, 0)
        whole_number("windows", self.windows, 1)
        check_option("negatives", self.negatives, NEGATIVES)

    def links(
        self,
        batch: Batch,
        rng: np.random.Generator,
        similarity: NDArray[np.floating] | None = None,
    ) -> Links:
        """Who sees whom; `similarity` (current, rows) is needed for the hardest negatives."""
        n = batch.n_current
        wants = [(self.windows, self.d - 1)] * n if self.d else [(0, 0)] * n
        return _links(batch, wants, self.windows, self.negatives, rng, similarity)


@dataclass(frozen=True)
class Mixed:
    """LongLLaMA's form (appendix A.2): parts of the batch differ in (positives, negatives).

    Every row is current; the batch holds consecutive windows of each document. The j-th window
    of a document in the batch belongs to part j modulo the number of parts, so that (0, 0),
    (1, 1), (2, 1), (3, 0) over four windows per document are the 3B model's setting.

    Parameters
    ----------
    parts : (number of own earlier windows, number of windows of other documents) of each part.
    negatives : as for `Paper`; the other documents' last windows come first.
    """

    parts: tuple[tuple[int, int], ...] = ((0, 0), (1, 1), (2, 1), (3, 0))
    negatives: str = "next"

    def __post_init__(self) -> None:
        check_option("negatives", self.negatives, NEGATIVES)
        if not self.parts or any(len(part) != 2 or min(part) < 0 for part in self.parts):
            raise InputError(
                f"parts={self.parts!r} must be pairs (positives, negatives) of numbers from 0 on, "
                "e.g. ((0, 0), (1, 1), (2, 1), (3, 0))."
            )

    def links(
        self,
        batch: Batch,
        rng: np.random.Generator,
        similarity: NDArray[np.floating] | None = None,
    ) -> Links:
        """Who sees whom."""
        here = batch.window[batch.current]
        documents = batch.document[batch.current]
        place = np.array([(here[documents == doc] < at).sum() for doc, at in zip(documents, here)])
        wants = [self.parts[int(j) % len(self.parts)] for j in place]
        return _links(batch, wants, 1, self.negatives, rng, similarity)


def _links(
    batch: Batch,
    wants: Sequence[tuple[int, int]],
    group: int,
    negatives: str,
    rng: np.random.Generator,
    similarity: NDArray[np.floating] | None,
) -> Links:
    """Links of each current row: its own latest windows, then those of other documents.

    wants : (own windows, other documents) of each current row; every other document gives its
        `group` latest windows that the batch offers (suppliers where there are any, else all).
    """
    usable = batch.valid.any(dim=1).cpu().numpy()
    offered = np.arange(batch.suppliers if batch.suppliers else len(batch.document))
    offered = offered[usable[offered]]
    # The latest windows of a document first.
    offered = offered[np.argsort(-batch.window[offered], kind="stable")]
    order = list(dict.fromkeys(batch.document[batch.current].tolist()))
    by_document: dict[int, list[int]] = {doc: [] for doc in order}
    for row in offered.tolist():
        by_document.setdefault(int(batch.document[row]), []).append(row)
    rows: list[list[int]] = []
    own: list[int] = []
    for place, (n_own, n_other) in enumerate(wants):
        row = batch.suppliers + place
        document, window = int(batch.document[row]), int(batch.window[row])
        mine = [r for r in by_document[document] if batch.window[r] < window][:n_own]
        at = order.index(document)
        others = order[at + 1 :] + order[:at]
        if negatives == "random":
            others = [others[k] for k in rng.permutation(len(others))]
        groups = [by_document[doc] for doc in others]
        if negatives == "hardest" and n_other:
            if similarity is None:
                raise InputError("negatives='hardest' needs the similarity of rows.")
            near = similarity[place]
            groups.sort(key=lambda g: -max((near[r] for r in g[:group]), default=-np.inf))
        # One group per document, and a second round (older windows) when documents run out.
        rest: list[int] = []
        depth = max((len(g) for g in groups), default=0)
        for start in range(0, depth, group):
            for g in groups:
                if len(rest) < n_other * group:
                    rest.extend(g[start : start + group])
        rows.append(mine + rest[: n_other * group])
        own.append(len(mine))
    width = max((len(r) for r in rows), default=0)
    table = np.full((len(rows), width), -1, dtype=np.int64)
    marks = np.zeros((len(rows), width), dtype=bool)
    for place, (seen, n_mine) in enumerate(zip(rows, own)):
        table[place, : len(seen)] = seen
        marks[place, :n_mine] = True
    return Links(table, marks)
