"""Tokens of a text with the characters they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import DataError

__all__ = ["Tokens", "tokenize"]

_PARTIAL = "\ufffd"  # what an unfinished character decodes to
_LONGEST = 16  # tokens that may make up one character (a byte each, and then some)


@dataclass(frozen=True)
class Tokens:
    """Tokens of a text.

    Parameters
    ----------
    ids : (n,) token ids, without a start token.
    strings : what each token decodes to alone (a part of a character shows as U+FFFD).
    char_start, char_end : (n,) span of the text; tokens inside one character share its span.
    rule : how the spans were found: "offsets" (the tokenizer's) or "decoding".
    """

    ids: NDArray[np.int64]
    strings: list[str]
    char_start: NDArray[np.int64]
    char_end: NDArray[np.int64]
    rule: str


def tokenize(tokenizer: Any, text: str, name: str = "text") -> Tokens:
    """Tokenise without special tokens; spans are verified to rebuild the text.

    Parameters
    ----------
    tokenizer : a transformers tokenizer.
    text : what to read.
    name : how error messages call the text.

    Raises
    ------
    DataError : the text is empty, or no spans rebuild it from the tokens.
    """
    if not text.strip():
        raise DataError(f"{name} has no text; there is nothing to record.")
    options: dict[str, Any] = {"add_special_tokens": False, "verbose": False}
    fast = bool(getattr(tokenizer, "is_fast", False))
    if fast:
        options["return_offsets_mapping"] = True
    encoded = tokenizer(text, **options)
    ids = list(encoded["input_ids"])
    strings = [_decode(tokenizer, [token]) for token in ids]
    spans, covers = None, False
    if fast:
        offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        covers = offsets_cover(offsets, text)
        if covers and offsets_agree(offsets, strings, text):
            spans, rule = offsets, "offsets"
    if spans is None:
        spans, rule = spans_by_decoding(tokenizer, ids, text), "decoding"
    if spans is None and covers:
        # A tokenizer that changes the text (lower case, other quotes) never decodes to it.
        spans, rule = offsets, "offsets"
    if spans is None:
        raise DataError(
            f"{name}: neither the tokenizer's offsets nor its decoded tokens give the text back, "
            "so tokens cannot be assigned to words; use another tokenizer, or remove unusual "
            "characters from the text."
        )
    return Tokens(np.array(ids, dtype=np.int64), strings, spans[:, 0], spans[:, 1], rule)


def offsets_cover(offsets: NDArray[np.int64], text: str) -> bool:
    """True when the spans run through the text from end to end, in order, without a gap."""
    if len(offsets) == 0:
        return False
    start, end = offsets[:, 0], offsets[:, 1]
    return bool(
        start[0] == 0
        and end[-1] == len(text)
        and (end > start).all()
        and (np.diff(start) >= 0).all()
        and (np.diff(end) >= 0).all()
        and (start[1:] <= end[:-1]).all()
    )


def offsets_agree(offsets: NDArray[np.int64], strings: list[str], text: str) -> bool:
    """True when every token that is whole in itself decodes to the characters of its span."""
    for (start, end), string in zip(offsets.tolist(), strings, strict=True):
        if _PARTIAL in string:
            continue
        if string.strip() != text[start:end].strip():
            return False
    return True


def spans_by_decoding(tokenizer: Any, ids: list[int], text: str) -> NDArray[np.int64] | None:
    """Spans from decoding more and more tokens; None when they do not decode to the text.

    Tokens are decoded behind the last finished group, because some tokenizers drop a space at
    the start of what they decode.
    """
    spans = np.empty((len(ids), 2), dtype=np.int64)
    position, first = 0, 0
    before: list[int] = []
    while first < len(ids):
        known = _decode(tokenizer, before)
        done = 0
        for last in range(first, min(first + _LONGEST, len(ids))):
            new = _decode(tokenizer, before + ids[first : last + 1])
            if not new.startswith(known):
                return None
            new = new[len(known) :]
            # How many of its characters are finished; the rest is part of the next one.
            whole = len(new)
            while (
                whole and new[whole - 1] == _PARTIAL and not text.startswith(new[:whole], position)
            ):
                whole -= 1
            if not text.startswith(new[:whole], position):
                return None
            partial = whole < len(new)
            spans[last] = position + done, position + whole + partial
            done = whole
            if not partial:
                break
        else:
            return None
        before = ids[first : last + 1]
        position += done
        first = last + 1
    return spans if position == len(text) else None


def _decode(tokenizer: Any, ids: list[int]) -> str:
    if not ids:
        return ""
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
