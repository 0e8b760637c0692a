"""Sentences of a text, by the rule-based splitter pysbd."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from workbench.core.story import Story

__all__ = ["lack_of_sentences", "sentence_starts", "sentence_starts_of_text", "splitter"]


LONGEST_MEAN = 100
"""Words per sentence above which a text is taken to have no punctuation to split it by."""


def splitter() -> str:
    """Name and version of the splitter, for tables and traces."""
    return f"pysbd {version('pysbd')}"


def sentence_starts(story: Story) -> NDArray[np.int64]:
    """Word numbers at which a sentence starts, shape (n_sentences,), first 0.

    A text printed without punctuation gives one sentence, or next to none: see `lack_of_sentences`.
    """
    return sentence_starts_of_text(story.text)


def lack_of_sentences(story: Story) -> str:
    """Why the story's sentence gaps mean nothing, in a sentence; "" when they do mean something.

    A text of more than 100 words per sentence is printed without the punctuation that divides
    sentences (the public words of "monkey": 2 sentences in 5,136 words), so that nearly every
    boundary would go to the same gap.
    """
    found = len(sentence_starts(story))
    if story.n_words <= LONGEST_MEAN * found:
        return ""
    return (
        f"the {story.n_words} words of {story.name!r} are printed nearly without punctuation "
        f"({splitter()} finds {found} sentence{'s' if found > 1 else ''}), so there are no "
        "sentence gaps to go by; load it with a punctuated text=, or use rules and "
        "measures on words."
    )


def sentence_starts_of_text(text: str) -> NDArray[np.int64]:
    """Word numbers (maximal runs without whitespace) at which a sentence of the text starts.

    The splitter may change whitespace, so its sentences are found again in the text without any:
    by consuming characters. A sentence that starts inside a word (no space after the full stop)
    starts at the next word.

    Returns
    -------
    Shape (n_sentences,), increasing, first 0; [0] for a text that is one sentence.
    """
    return np.array(_starts(text), dtype=np.int64)


@lru_cache(maxsize=64)
def _starts(text: str) -> tuple[int, ...]:
    words = text.split()
    edges = np.cumsum([0, *map(len, words)])
    letters = "".join(words)
    starts, place = {0}, 0
    for sentence in _sentences(text):
        content = "".join(sentence.split())
        found = letters.find(content, place)
        if not content or found < 0:
            # The splitter changed this sentence's characters; it starts nowhere we could vouch for.
            continue
        word = int(np.searchsorted(edges, found, side="left"))
        if word < len(words):
            starts.add(word)
        place = found + len(content)
    return tuple(sorted(starts))


def _sentences(text: str) -> list[str]:
    import pysbd

    sentences: list[str] = pysbd.Segmenter(language="en", clean=False).segment(text)
    return sentences
