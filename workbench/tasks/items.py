"""What every task is made of: a text to read, and questions on places in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from workbench.core.checks import plural
from workbench.core.errors import InputError

__all__ = [
    "Item",
    "Question",
    "Task",
    "check_depths",
    "count_tokens",
    "finished",
    "fitted",
    "token_span",
]


@dataclass(frozen=True)
class Question:
    """A question on something that stands at one place of a text.

    Parameters
    ----------
    prompt : what is given to the system after the text.
    answer : what its output is scored against.
    depth : the place that was asked for, from 0 (start of the text) to 1 (its end).
    chars : span of what holds the answer, in characters of the text.
    tokens : the same in tokens of the text (no start token counted); filled in by `finished`.
    max_new_tokens : length of the output.
    label : tells questions on one text apart.
    """

    prompt: str
    answer: str
    depth: float
    chars: tuple[int, int]
    tokens: tuple[int, int] = (-1, -1)
    max_new_tokens: int = 8
    label: str = ""


@dataclass(frozen=True)
class Item:
    """A text that is read once, and the questions that are then asked, each on its own.

    Parameters
    ----------
    text : what is read.
    questions : at least one.
    n_tokens : tokens of the text and of the longest question together, without a start token and
        without the answer.
    n_text : tokens of the text alone.
    """

    text: str
    questions: tuple[Question, ...]
    n_tokens: int = 0
    n_text: int = 0


class Task(Protocol):
    """A task: how its texts are made and how answers are scored."""

    @property
    def name(self) -> str:
        """How tables call it."""

    @property
    def scoring(self) -> str:
        """The rule of `correct`, named in every row."""

    @property
    def together(self) -> bool:
        """Whether all depths are questions on one text."""

    def settings(self) -> dict[str, Any]:
        """Everything that the texts and scores depend on, as JSON."""

    def items(self, tokenizer: Any, length: int, depths: Sequence[float], seed: int) -> list[Item]:
        """Texts of at most `length` tokens with their questions, one question per depth."""

    def score(self, output: str, answer: str) -> bool:
        """Whether an output is right."""


def count_tokens(tokenizer: Any, text: str) -> int:
    """Number of tokens of a text, special tokens not added."""
    return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def token_span(tokenizer: Any, text: str, chars: tuple[int, int]) -> tuple[int, int]:
    """First token and one past the last that share characters with a span of the text."""
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(
            text, add_special_tokens=False, verbose=False, return_offsets_mapping=True
        )
        offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        start, end = offsets[:, 0], offsets[:, 1]
    else:
        from workbench.recording.tokens import tokenize

        tokens = tokenize(tokenizer, text)
        start, end = tokens.char_start, tokens.char_end
    inside = np.flatnonzero((start < chars[1]) & (end > chars[0]))
    return int(inside[0]), int(inside[-1]) + 1


def finished(tokenizer: Any, item: Item, *, room: int = 2, least: int = 8) -> Item:
    """The item with token counts, spans of the answers and room for them in the output.

    Parameters
    ----------
    room : tokens an output may have beyond those of the answer.
    least : shortest output.
    """
    questions = tuple(
        Question(
            prompt=question.prompt,
            answer=question.answer,
            depth=question.depth,
            chars=question.chars,
            tokens=token_span(tokenizer, item.text, question.chars),
            max_new_tokens=max(least, count_tokens(tokenizer, " " + question.answer) + room),
            label=question.label,
        )
        for question in item.questions
    )
    n_text = count_tokens(tokenizer, item.text)
    return Item(item.text, questions, n_text + _longest_question(tokenizer, item), n_text)


def fitted(
    build: Callable[[int], Item],
    tokenizer: Any,
    length: int,
    *,
    per_unit: float,
    what: str,
    most: int | None = None,
    room: int = 2,
) -> Item:
    """The longest item of at most `length` tokens.

    Parameters
    ----------
    build : number of units (sentences of filler, pairs) → item; longer for more units.
    length : tokens of the text and its longest question together.
    per_unit : about how many tokens a unit has; only the number of trials depends on it.
    what : names the task in the error.
    most : number of units there are.
    room : see `finished`.

    Raises
    ------
    InputError : not even the item without units fits.
    """

    def size(units: int) -> int:
        item = build(units)
        return count_tokens(tokenizer, item.text) + _longest_question(tokenizer, item)

    low, least = 0, size(0)
    if least > length:
        raise InputError(
            f"length={length}: {what} needs at least {plural(least, 'token')} with this tokenizer."
        )
    n_low, high = least, None if most is None else most + 1
    while high is None or high - low > 1:
        guess = max(low + 1, low + round((length - n_low) / per_unit))
        if high is not None:
            guess = min(guess, high - 1)
        n = size(guess)
        per_unit = max(1e-3, (n - least) / guess)
        if n <= length:
            low, n_low = guess, n
        else:
            high = guess
    return finished(tokenizer, build(low), room=room)


def check_depths(depths: Sequence[float]) -> list[float]:
    """Depths as numbers from 0 to 1.

    Raises
    ------
    InputError : none, one outside 0 ... 1, or one twice.
    """
    found = [float(depth) for depth in depths]
    if not found:
        raise InputError("depths is empty; give numbers from 0 (start) to 1 (just before the end).")
    for depth in found:
        if not (math.isfinite(depth) and 0 <= depth <= 1):
            raise InputError(f"depth={depth!r} must lie between 0 (start) and 1 (end of the text).")
    if len(set(found)) < len(found):
        raise InputError(f"depths={found} names a depth twice.")
    return found


def _longest_question(tokenizer: Any, item: Item) -> int:
    return max(count_tokens(tokenizer, question.prompt) for question in item.questions)
