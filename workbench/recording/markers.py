"""Which tokens end a word: those that begin a new one, or end the text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["word_ends"]


def word_ends(tokenizer: Any, vocabulary: int) -> NDArray[np.bool_]:
    """Tokens after which it is known that the word before them has ended, shape (vocabulary,).

    They begin with whitespace (words are what whitespace separates, with the punctuation that
    touches them), or are special tokens (the end of the text). All False where no token begins
    with whitespace: then words have no marker at their start.

    Parameters
    ----------
    tokenizer : the model's tokenizer.
    vocabulary : width of the model's logits; columns without a token end no word.
    """
    size = min(len(tokenizer), vocabulary)
    pieces = tokenizer.convert_ids_to_tokens(list(range(size)))
    # Decoded alone, some tokenizers drop a leading space; the piece as it is stored has it.
    spaced = np.zeros(vocabulary, dtype=bool)
    for token, piece in enumerate(pieces):
        spaced[token] = piece is not None and _is_spaced(piece)
    if not spaced.any():
        return spaced
    special = [token for token in tokenizer.all_special_ids if token < vocabulary]
    spaced[special] = True
    return spaced


# How pieces write whitespace: as it is, byte-level (space, line feed, return, tab), SentencePiece
# (space, and line breaks as bytes).
_SPACES = ("Ġ", "Ċ", "č", "ĉ", "▁", "<0x0A>", "<0x0D>", "<0x09>", "<0x20>")


def _is_spaced(piece: str) -> bool:
    return piece.startswith(_SPACES) or piece[:1].isspace()
