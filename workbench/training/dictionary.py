"""Generated documents: dictionaries whose entries are asked for one window later.

`dict` is the paper's format (FOT, appendix D; F in version 2): records <k> key <v> value, then
questions <q> key <v> value, loss on the values of questions only. `sigdict` makes distraction
unavoidable: every document has a signature of its own, which stands in each record and question,
and all documents share one pool of keys, so that every other document offers a wrong value for
the same key. It was made for this workbench; what it shows is the mechanism, not natural text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.core.checks import check_option, whole_number
from workbench.core.errors import InputError
from workbench.training.rows import IGNORED, Batch

__all__ = ["Dictionary", "dictionary_batch"]

_KEY, _VALUE, _QUESTION = 0, 1, 2
_SPECIALS = 3


@dataclass(frozen=True)
class Dictionary:
    """A kind of dictionary document.

    Parameters
    ----------
    kind : "sigdict" or "dict".
    records : in one window; questions ask for each of them once, in random order.
    vocabulary : number of tokens, the three markers included.
    key, value, signature : tokens of each; `dict` has no signature.
    pool : number of different keys that all documents share; None for keys drawn anew.
    """

    kind: str = "sigdict"
    records: int = 12
    vocabulary: int = 64
    key: int = 1
    value: int = 1
    signature: int = 2
    pool: int | None = 12

    def __post_init__(self) -> None:
        check_option("kind", self.kind, ("sigdict", "dict"))
        for name in ("records", "key", "value"):
            whole_number(name, getattr(self, name), 1)
        if self.kind == "dict" and self.signature:
            raise InputError(f"signature={self.signature}: 'dict' has none; give 0.")
        letters = self.vocabulary - _SPECIALS
        if self.pool is not None and not self.records <= self.pool <= letters**self.key:
            raise InputError(
                f"pool={self.pool} must hold at least records={self.records} keys and at most "
                f"the {letters**self.key} that exist."
            )

    @classmethod
    def paper(cls, records: int = 12) -> Dictionary:
        """Keys and values of four tokens, vocabulary 64; the paper's window has 25 records."""
        return cls("dict", records, key=4, value=4, signature=0, pool=None)

    @property
    def record(self) -> int:
        """Tokens of a record, and of a question."""
        return 2 + self.signature + self.key + self.value

    @property
    def window(self) -> int:
        """Tokens of a window."""
        return self.records * self.record

    def document(
        self, rng: np.random.Generator, records: int, questions: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Definitions (records · record,) and questions (questions · record,) of one document.

        questions : how many of the records are asked for; None for all of them.
        """
        letters = self.vocabulary - _SPECIALS
        if self.pool is not None:
            # The pool is the first tokens in the order of the numbers: the same for everyone.
            chosen = rng.choice(self.pool, size=records, replace=False)
        else:
            chosen = _different(rng, letters**self.key, records)
        keys = _digits(chosen, letters, self.key) + _SPECIALS
        values = rng.integers(_SPECIALS, self.vocabulary, size=(records, self.value))
        mark = rng.integers(_SPECIALS, self.vocabulary, size=self.signature)
        asked = rng.permutation(records)[:questions]
        return (
            self._written(_KEY, mark, keys, values),
            self._written(_QUESTION, mark, keys[asked], values[asked]),
        )

    def _written(
        self,
        marker: int,
        mark: NDArray[np.int64],
        keys: NDArray[np.int64],
        values: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        n = len(keys)
        column = np.full((n, 1), 1)
        parts = (column * marker, np.tile(mark, (n, 1)), keys, column * _VALUE, values)
        return np.concatenate(parts, axis=1).astype(np.int64).ravel()

    def answers(self, n_questions: int) -> NDArray[np.bool_]:
        """Which positions of a window of questions predict a token of the answer, (n,)."""
        one = np.zeros(self.record, dtype=bool)
        one[self.record - self.value - 1 : self.record - 1] = True
        return np.tile(one, n_questions)


def _different(rng: np.random.Generator, count: int, n: int) -> NDArray[np.int64]:
    """`n` different whole numbers below `count`, in random order."""
    if n > count:
        raise InputError(f"{n} different keys are wanted, but only {count} exist; use longer keys.")
    if count <= 4 * n:
        return rng.permutation(count)[:n]
    found = np.unique(rng.integers(0, count, size=n + n // 2 + 8))
    while len(found) < n:
        found = np.union1d(found, rng.integers(0, count, size=n))
    return rng.permutation(found)[:n]


def _digits(numbers: NDArray[np.int64], base: int, n: int) -> NDArray[np.int64]:
    return numbers[:, None] // base ** np.arange(n) % base


def dictionary_batch(
    task: Dictionary,
    documents: int,
    rng: np.random.Generator,
    *,
    records: int | None = None,
    joined: bool = False,
) -> Batch:
    """Fresh documents: definitions as suppliers, questions as current rows.

    Parameters
    ----------
    records : fewer records than the task's own (a curriculum).
    joined : definitions and questions in one row of twice the length, for training without
        memory.
    """
    n_records = task.records if records is None else records
    pairs = [task.document(rng, n_records) for _ in range(documents)]
    first = torch.from_numpy(np.stack([pair[0] for pair in pairs]))
    second = torch.from_numpy(np.stack([pair[1] for pair in pairs]))
    answers = torch.from_numpy(task.answers(n_records)).expand(documents, -1)
    targets = torch.full_like(second, IGNORED)
    targets[:, :-1] = torch.where(answers[:, :-1], second[:, 1:], IGNORED)
    nothing = torch.full_like(first, IGNORED)
    number = np.arange(documents)
    if joined:
        ids = torch.cat((first, second), dim=1)
        return Batch(
            ids,
            torch.ones_like(ids, dtype=torch.bool),
            torch.cat((nothing, targets), dim=1),
            number,
            np.zeros(documents, dtype=np.int64),
        )
    ids = torch.cat((first, second))
    return Batch(
        ids,
        torch.ones_like(ids, dtype=torch.bool),
        torch.cat((nothing, targets)),
        np.concatenate((number, number)),
        np.repeat(np.array([0, 1]), documents),
        suppliers=documents,
    )
