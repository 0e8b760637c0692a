"""Surprisal: -log p of each token given all before it, from hidden states, in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.core.errors import InputError, ModelError
from workbench.recording import adapter

__all__ = ["start_token", "surprisal_from_hidden"]

_BLOCK = 128

# Tokens that open a turn of a chat; text that follows one is read as a role's name.
_CHAT_MARKERS = ("im_start", "im_end", "start_header", "start_of_turn", "user", "assistant", "eot")
# Tokens that stand between documents in pretraining, by family.
_SEPARATORS = ("<|endoftext|>", "<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>")


def surprisal_from_hidden(
    model: Any,
    hidden: Tensor,
    targets: Tensor,
    last_logits: Tensor | None = None,
    *,
    step: Callable[[], None] = lambda: None,
) -> NDArray[np.float64]:
    """Surprisal in nats of `targets[i]` as predicted by `hidden[i]`, shape (n,).

    The logits of a block of positions exist at a time, never tokens × vocabulary.

    Parameters
    ----------
    model : whose language-model head is used.
    hidden : (n or more, hidden_size), final hidden states (after the last norm).
    targets : (n,), token ids.
    last_logits : (vocabulary,), the model's own logits after the very last of `hidden`, which
        our reading of its head must give too.
    step : called after each block, for a progress bar.

    Raises
    ------
    ModelError : the head's logits are not the model's own, or are not finite.
    """
    logits_of = adapter.head_logits(model)
    if last_logits is not None:
        _check_head(model, logits_of(hidden[-1:])[0], last_logits)
    result = np.empty(len(targets), dtype=np.float64)
    out: Tensor | None = None
    for start in range(0, len(targets), _BLOCK):
        stop = min(start + _BLOCK, len(targets))
        logits = logits_of(hidden[start:stop], None if out is None else out[: stop - start])
        out = logits if out is None else out
        logits = logits.float()
        chosen = logits.gather(1, targets[start:stop, None].to(logits.device))[:, 0]
        values = (torch.logsumexp(logits, dim=1) - chosen).cpu().numpy()
        if not np.isfinite(values).all():
            place = start + int(np.flatnonzero(~np.isfinite(values))[0])
            raise ModelError(_not_finite(hidden, place))
        result[start:stop] = values
        step()
    return result


def n_blocks(n: int) -> int:
    """Number of blocks in which `surprisal_from_hidden` scores n targets (at most)."""
    return -(-n // _BLOCK)


def _check_head(model: Any, ours: Tensor, theirs: Tensor) -> None:
    ours, theirs = ours.float(), theirs.float()
    gap = float((ours - theirs).abs().max())
    size = float(theirs.abs().max())
    if not np.isfinite(gap):
        return  # the block that holds it names the position
    eps = torch.finfo(model.dtype).eps
    if gap > 256 * eps * max(size, 1.0):
        raise ModelError(
            f"{type(model).__name__} does more to its logits than is known here (they differ by "
            f"{gap:.2g}); its surprisal would be wrong, so it is not computed."
        )


def _not_finite(hidden: Tensor, place: int) -> str:
    where = "in the hidden states" if not hidden[place].isfinite().all() else "in the head"
    return (
        f"the logits at position {place} are NaN or infinite ({where}); load the model with "
        "dtype='float32', and check its weights."
    )


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
