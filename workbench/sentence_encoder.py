"""Sentence encoders at work: texts in, unit vectors out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import InputError, ModelError

if TYPE_CHECKING:
    import torch

__all__ = ["CachedEncoder", "Encoder", "SentenceEncoder"]


@runtime_checkable
class Encoder(Protocol):
    """Whatever turns texts into vectors; sentence-transformers' models do as well."""

    def encode(self, texts: list[str], /) -> Any:
        """Vectors of the texts, shape (len(texts), dimensions)."""
        ...


@dataclass(eq=False)
class SentenceEncoder:
    """A transformer whose last layer is pooled into one unit vector per text.

    Parameters
    ----------
    name : how results call it.
    model, tokenizer : a transformers encoder (BERT, MPNet, ...) and its tokenizer.
    max_pieces : word pieces read at once, the special ones included.
    pooling : "mean" over all pieces, or "cls": the first piece alone.
    identity : what tells these weights from any others.
    provenance : a sentence shown with results.
    """

    name: str
    model: Any
    tokenizer: Any
    max_pieces: int = 256
    pooling: str = "mean"
    identity: str = ""
    provenance: str = ""

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.model.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def encode(self, texts: Iterable[str], batch_size: int = 32) -> NDArray[np.float32]:
        """Encode texts; a text of more than `max_pieces` word pieces as the mean of its parts.

        The parts of a long text are as few as the limit allows and of equal length (to one piece),
        so that each counts alike; the mean of their unit vectors is brought to unit length.

        Parameters
        ----------
        texts : the texts, in any order; none may be empty.
        batch_size : texts read at once; does not change the vectors beyond rounding.

        Returns
        -------
        Shape (n, dimension), rows of unit length: their dot product is the cosine similarity.

        Raises
        ------
        InputError : one string instead of a list, or a text without any word.
        ModelError : a vector is not finite.
        """
        listed = _checked(texts)
        if not listed:
            return np.zeros((0, self.dimension), dtype=np.float32)
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size} must be at least 1.")
        pieces = self.tokenizer(
            listed, add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        before, after = self._special()
        room = self.max_pieces - len(before) - len(after)
        parts: list[list[int]] = []
        owner: list[int] = []
        for number, ids in enumerate(pieces):
            if not ids:
                raise InputError(
                    f"texts[{number}] has no word piece: {listed[number][:40]!r}; leave it out."
                )
            for part in _equal_parts(ids, room):
                parts.append(before + part + after)
                owner.append(number)
        # By length, so that little of a batch is padding.
        order = sorted(range(len(parts)), key=lambda place: len(parts[place]))
        vectors = np.empty((len(parts), self.dimension), dtype=np.float32)
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            vectors[places] = self._pooled([parts[place] for place in places])
        total = np.zeros((len(listed), self.dimension), dtype=np.float32)
        np.add.at(total, np.array(owner), vectors)
        return _unit(total, self.name)

    def _special(self) -> tuple[list[int], list[int]]:
        """Ids that the tokenizer puts before and after a text."""
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = self.tokenizer("a")["input_ids"]
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start], whole[start + len(bare) :]
        raise ModelError(f"the tokenizer of {self.name} changes a text when it marks its ends.")

    def _pooled(self, rows: list[list[int]]) -> NDArray[np.float32]:
        """Unit vectors of pieces that fit the model, (len(rows), dimension)."""
        import torch

        width = max(map(len, rows))
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.full((len(rows), width), pad, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        with torch.inference_mode():
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            if self.pooling == "cls":
                pooled = hidden[:, 0]
            else:
                weight = mask.unsqueeze(-1).float()
                pooled = (hidden * weight).sum(1) / weight.sum(1)
        return _unit(pooled.cpu().numpy(), self.name)

    def __repr__(self) -> str:
        return f"SentenceEncoder({self.name!r}, {self.dimension} dimensions, {self.pooling})"


class CachedEncoder:
    """An encoder that keeps every vector: each text is encoded once.

    Parameters
    ----------
    encoder : anything with an `encode` method; its vectors are brought to unit length.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.name = str(getattr(encoder, "name", type(encoder).__name__))
        self.identity = str(getattr(encoder, "identity", ""))
        self.provenance = str(
            getattr(encoder, "provenance", f"Sentences encoded with {self.name}, the user's own.")
        )
        self._kept: dict[str, NDArray[np.float32]] = {}

    def encode(self, texts: Iterable[str], /) -> NDArray[np.float32]:
        """Unit vectors of the texts, shape (n, dimensions); see `SentenceEncoder.encode`."""
        listed = _checked(texts)
        self.prepare(listed)
        if not listed:
            return np.zeros((0, 0), dtype=np.float32)
        return np.stack([self._kept[text] for text in listed])

    def prepare(self, texts: Iterable[str], *, progress: bool = False, block: int = 256) -> None:
        """Encode those of the texts that are new, a block at a time, and keep their vectors."""
        from tqdm import tqdm

        new = list(dict.fromkeys(text for text in _checked(texts) if text not in self._kept))
        starts = range(0, len(new), block)
        for start in tqdm(starts, desc=f"{self.name} encodes", disable=not progress, leave=False):
            part = new[start : start + block]
            vectors = np.asarray(self.encoder.encode(part), dtype=np.float32)
            if vectors.ndim != 2 or len(vectors) != len(part):
                raise ModelError(
                    f"encoder {self.name} gave an array of shape {vectors.shape} for {len(part)} "
                    "texts; encode must return one vector per text."
                )
            self._kept.update(zip(part, _unit(vectors, self.name)))


# --- small helpers -------------------------------------------------------------------------


def _checked(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise InputError("texts is one string; give a list of texts: [text].")
    listed = list(texts)
    for number, text in enumerate(listed):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"texts[{number}] is {text!r}, not a text with words; leave it out.")
    return listed


def _equal_parts(ids: list[int], room: int) -> list[list[int]]:
    count = -(-len(ids) // room)
    edges = [len(ids) * part // count for part in range(count + 1)]
    return [ids[a:b] for a, b in pairwise(edges)]


def _unit(vectors: NDArray[np.float32], shown: str) -> NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(length).all() or (length == 0).any():
        raise ModelError(f"encoder {shown} gave a vector that is zero or not finite.")
    unit: NDArray[np.float32] = (vectors / length).astype(np.float32)
    return unit
