"""Generated texts whose words are invented anew for each document.

A document is a chain of names out of its own small vocabulary, each name some letters followed by
a space. What follows a name's first letter can be known from the document's earlier windows, and
from no other document: perplexity falls where memory reaches the own document, and rises where
other documents' names get in the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.checks import whole_number
from workbench.core.errors import InputError

__all__ = ["Invented", "invented_documents"]


@dataclass(frozen=True)
class Invented:
    """A kind of document.

    Parameters
    ----------
    names : different names of a document.
    letters : different letters.
    least, most : letters of a name.
    tokens : of a document.
    documents : how many are made for training.
    """

    names: int = 6
    letters: int = 20
    least: int = 3
    most: int = 4
    tokens: int = 513
    documents: int = 2000

    def __post_init__(self) -> None:
        for name in ("names", "letters", "least", "tokens", "documents"):
            whole_number(name, getattr(self, name), 1)
        if self.most < self.least:
            raise InputError(f"most={self.most} is smaller than least={self.least}.")

    @property
    def vocabulary(self) -> int:
        """Number of tokens: the space and the letters."""
        return self.letters + 1


def invented_documents(
    kind: Invented, *, documents: int | None = None, seed: int = 0
) -> list[NDArray[np.int64]]:
    """Documents (tokens,) of a kind; token 0 is the space."""
    rng = np.random.default_rng((seed, 7))
    found = []
    for _ in range(kind.documents if documents is None else documents):
        lengths = rng.integers(kind.least, kind.most + 1, size=kind.names)
        names = [rng.integers(1, kind.letters + 1, size=n) for n in lengths]
        words = [np.append(name, 0) for name in names]
        n_words = kind.tokens // (kind.least + 1) + 1
        chosen = rng.integers(kind.names, size=n_words)
        found.append(np.concatenate([words[k] for k in chosen])[: kind.tokens].astype(np.int64))
    return found
