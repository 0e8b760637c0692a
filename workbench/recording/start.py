"""The token that stands before a text."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.core.errors import InputError

__all__ = ["start_token"]

# Tokens that open a turn of a chat; text that follows one is read as a role's name.
_CHAT_MARKERS = ("im_start", "im_end", "start_header", "start_of_turn", "user", "assistant", "eot")
# Tokens that stand between documents in pretraining, by family.
_SEPARATORS = ("<|endoftext|>", "<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>")


def start_token(tokenizer: Any, bos: str | int = "auto") -> tuple[int | None, str]:
    """The token put before the text, and the reason for it.

    Parameters
    ----------
    tokenizer : the model's tokenizer.
    bos : "auto": the tokenizer's own start token, unless that opens a chat turn (SmolLM2's
        `<|im_start|>`), where the separator of documents (`<|endoftext|>`) is preferred;
        "none": no token, the first token's surprisal is NaN; a token id; or a token.

    Raises
    ------
    InputError : the vocabulary has no such token.
    """
    vocabulary = len(tokenizer)
    if isinstance(bos, bool) or not isinstance(bos, (str, int, np.integer)):
        raise InputError(f"bos={bos!r}: give 'auto', 'none', a token id or a token.")
    if not isinstance(bos, str):
        if not 0 <= bos < vocabulary:
            raise InputError(f"bos={bos}: token ids of this model are 0 ... {vocabulary - 1}.")
        return int(bos), "given"
    if bos == "none":
        return None, "none asked for"
    if bos != "auto":
        found = tokenizer.get_vocab().get(bos)
        if found is None:
            raise InputError(f"bos={bos!r} is not a token of this model, nor 'auto' or 'none'.")
        return int(found), "given"
    own = tokenizer.bos_token
    if own is not None and not _is_chat_marker(own):
        return int(tokenizer.bos_token_id), "the tokenizer's start token"
    special = {str(token): place for place, token in tokenizer.added_tokens_decoder.items()}
    special |= {
        token: tokenizer.convert_tokens_to_ids(token) for token in tokenizer.all_special_tokens
    }
    for token in _SEPARATORS:
        if token in special:
            return int(special[token]), "the separator of documents"
    why = f"its start token {own!r} opens a chat turn" if own else "it has no start token"
    return None, f"{why}, and no separator of documents is known"


def _is_chat_marker(token: str) -> bool:
    return any(marker in token for marker in _CHAT_MARKERS)
