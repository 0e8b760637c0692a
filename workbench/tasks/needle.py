"""A needle in any text: the user's haystack, sentence, question and answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.core.checks import plural
from workbench.core.errors import InputError
from workbench.tasks.items import Item, Question, check_depths, count_tokens, finished, fitted
from workbench.tasks.passkey import FILLER
from workbench.tasks.scoring import contains

__all__ = ["Needle", "extend"]


@dataclass(frozen=True)
class Needle:
    """Retrieval of one sentence from a text of the user's.

    A stretch of whole sentences is cut from the haystack, the needle is put between two of them,
    and the question is asked. The length, question included, is the one asked for to within one
    sentence. Depth 0 puts the needle before the first sentence, 1 after the last, between them at
    that share of the sentences. Each seed takes another stretch; seed 0 takes the beginning.

    Parameters
    ----------
    haystack : the text.
    needle : the sentence to be found, which should not be guessable from the haystack.
    question : given after the text; a line break is put before it.
    answer : what the output must contain, letter by letter, as a word of its own.
    extend : where the haystack is too short, lengthen it with the passkey task's filler around
        the needle (`extend`); False: an error.

    Raises
    ------
    InputError : an empty text; a needle without the answer; a haystack that contains the answer.
    """

    haystack: str = field(repr=False)
    needle: str
    question: str
    answer: str
    extend: bool = False

    def __post_init__(self) -> None:
        for name in ("haystack", "needle", "question", "answer"):
            if not str(getattr(self, name)).strip():
                raise InputError(f"{name} is empty; give its text.")
        if not contains(self.needle, self.answer):
            raise InputError(
                f"the needle {self.needle!r} does not contain the answer {self.answer!r}, so "
                "nothing could be found; repeat it letter by letter."
            )
        if contains(self.haystack, self.answer):
            raise InputError(
                f"the haystack contains the answer {self.answer!r} already; choose a needle that "
                "is not in the text."
            )
        if contains(self.question, self.answer):
            raise InputError(f"the question {self.question!r} contains the answer.")

    @property
    def name(self) -> str:
        """Name in tables."""
        return "needle"

    @property
    def scoring(self) -> str:
        """Rule of `correct`."""
        return "contains"

    @property
    def together(self) -> bool:
        """Whether all depths are questions on one text: no, there is one needle."""
        return False

    def settings(self) -> dict[str, Any]:
        """What the texts depend on; the haystack by its hash."""
        return {
            "task": self.name,
            "haystack": "sha256:" + hashlib.sha256(self.haystack.encode()).hexdigest(),
            "needle": self.needle,
            "question": self.question,
            "answer": self.answer,
            "extend": self.extend,
        }

    def score(self, output: str, answer: str) -> bool:
        """Whether the output contains the answer."""
        return contains(output, answer)

    def items(self, tokenizer: Any, length: int, depths: Sequence[float], seed: int) -> list[Item]:
        """One text per depth, see `Passkey.items`.

        Raises
        ------
        InputError : also: the haystack is too short, or has no room for so many different
            stretches.
        """
        places = check_depths(depths)
        starts = np.append(_sentence_starts(self.haystack), len(self.haystack))
        sizes = _token_counts(tokenizer, self.haystack, starts)
        first = self._first(sizes, length, seed)
        return [self._item(tokenizer, length, depth, starts[first:]) for depth in places]

    def _first(self, sizes: np.ndarray, length: int, seed: int) -> int:
        """Sentence at which the stretch of a seed begins."""
        # A stretch may begin wherever enough is left behind it.
        left = sizes.sum() - np.concatenate([[0], np.cumsum(sizes)[:-1]])
        possible = np.flatnonzero(left >= length)
        if len(possible) == 0:
            if not self.extend:
                raise InputError(
                    f"length={length}: the haystack has about {plural(int(sizes.sum()), 'token')}; "
                    "give a longer text, shorter lengths, or extend=True (--extend)."
                )
            possible = np.array([0])
        if seed == 0:
            return int(possible[0])
        if seed >= len(possible):
            raise InputError(
                f"seed={seed}: the haystack holds {len(possible)} different stretches of {length} "
                "tokens, and each seed takes one; give fewer seeds, shorter lengths or a longer "
                "text."
            )
        order = np.random.default_rng(0).permutation(possible[1:])
        return int(order[seed - 1])

    def _item(self, tokenizer: Any, length: int, depth: float, starts: np.ndarray) -> Item:
        prompt = "\n" + self.question

        def build(count: int) -> Item:
            place = round(depth * count)
            text = self.haystack[starts[0] : starts[place]]
            text = text if not text or text[-1].isspace() else text + " "
            span = len(text), len(text) + len(self.needle)
            text += self.needle + " " + self.haystack[starts[place] : starts[count]]
            return Item(text.rstrip(), (Question(prompt, self.answer, depth, span),))

        most = len(starts) - 1
        per_sentence = count_tokens(tokenizer, build(most).text) / most
        item = fitted(
            build, tokenizer, length, per_unit=per_sentence, what="a needle text", most=most
        )
        if not self.extend:
            return item
        text, span = extend(item.text, item.questions[0].chars, length, tokenizer, question=prompt)
        return finished(tokenizer, Item(text, (Question(prompt, self.answer, depth, span),)))


def extend(
    text: str,
    needle: tuple[int, int],
    length: int,
    tokenizer: Any,
    *,
    question: str = "",
    filler: Sequence[str] = FILLER,
) -> tuple[str, tuple[int, int]]:
    """Lengthen a text with filler around its needle, which keeps its relative place.

    Sentences of filler are put right before and right after the needle, in proportion to what
    stands before and after it already (EM-LLM's way to passkeys of ten million tokens). See
    `workbench.tasks.estimate.estimate_reading` for what reading the result will take.

    Parameters
    ----------
    text : what is lengthened; returned as it is where not one sentence of filler fits.
    needle : its span in characters.
    length : tokens of the result and the question together, met to within one sentence.
    tokenizer : counts them.
    question : what will be asked after it.
    filler : sentences, taken in turn.

    Returns
    -------
    The text, and the needle's span in it.

    Raises
    ------
    InputError : the text is longer already; the span is outside it.
    """
    start, end = needle
    if not 0 <= start < end <= len(text):
        raise InputError(f"needle={needle} must be a span of the text's {len(text)} characters.")
    before = count_tokens(tokenizer, text[:start]) if start else 0
    after = count_tokens(tokenizer, text[end:]) if end < len(text) else 0
    share = before / (before + after) if before + after else 0.5
    sentence = count_tokens(tokenizer, " ".join([*filler] * 20)) / (20 * len(filler))

    def build(count: int) -> Item:
        ahead = round(share * count)
        units = [filler[i % len(filler)] for i in range(count)]
        left = "".join(unit + " " for unit in units[:ahead])
        right = "".join(" " + unit for unit in units[ahead:])
        span = start + len(left), end + len(left)
        whole = text[:start] + left + text[start:end] + right + text[end:]
        return Item(whole, (Question(question, "", share, span),))

    item = fitted(build, tokenizer, length, per_unit=sentence, what="the text")
    return item.text, item.questions[0].chars


def _sentence_starts(text: str) -> np.ndarray:
    """Characters at which a sentence starts, first 0; words in a text without punctuation.

    A rule of thumb that is fast on whole books: after a full stop, question or exclamation mark,
    closing quotes and brackets, and white space. A needle may stand after an abbreviation.
    """
    for pattern in (r"[.!?][\"'”’)\]]*\s+", r"\s+"):
        ends = [found.end() for found in re.finditer(pattern, text) if found.end() < len(text)]
        if ends:
            return np.array([0, *ends])
    return np.array([0])


def _token_counts(tokenizer: Any, text: str, starts: np.ndarray) -> np.ndarray:
    """About how many tokens each sentence has, shape (n_sentences,)."""
    total = count_tokens(tokenizer, text)
    characters = np.diff(starts)
    return characters * (total / characters.sum())
