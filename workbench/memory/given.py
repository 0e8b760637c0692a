"""Starts that are found in a text before it is read: sentences, and places drawn at random."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from workbench.memory.forming import Forming

__all__ = ["starts_in"]


def starts_in(forming: Forming, tokenizer: Any, text: str, n: int, done: int) -> list[int]:
    """Tokens of a text, after the first, at which events start.

    Parameters
    ----------
    n : its tokens.
    done : tokens read before it: where there are any, its first token starts an event, too.
    """
    first = [0] if done else []
    if forming.parsed.proposal == "T":
        return [*first, *_sentences(tokenizer, text)]
    from workbench.events.proposals import random_starts

    count = max(0, round(n / forming.random_length) - 1)
    rng = np.random.default_rng([forming.seed, done])
    return [*first, *random_starts(n, count, rng).tolist()]


def _sentences(tokenizer: Any, text: str) -> list[int]:
    from workbench.recording.tokens import tokenize
    from workbench.stories.sentences import sentence_starts_of_text

    words = [match.end() for match in re.finditer(r"\S+", text)]
    before = [words[word - 1] for word in sentence_starts_of_text(text).tolist() if word > 0]
    ends = tokenize(tokenizer, text).char_end
    # The first token behind the word before: a space of its own belongs to what follows it.
    found = np.searchsorted(ends, before, side="right")
    return sorted({int(token) for token in found if 0 < token < len(ends)})
