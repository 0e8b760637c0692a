"""Key-value retrieval: one pair of a long JSON object (Liu et al. 2023; ∞-Bench)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.tasks.items import Item, Question, check_depths, count_tokens, fitted
from workbench.tasks.scoring import contains

__all__ = ["KeyValue"]

_TASK = "Below is a JSON object. Give the value that belongs to the key that is named after it."


@dataclass(frozen=True)
class KeyValue:
    """Key-value retrieval.

    The text is an instruction and a JSON object whose keys and values are random UUIDs; the
    question names one key. Its length, question included, is the length asked for to within one
    pair (about 50 to 110 tokens). Depth 0 asks for the first pair, 1 for the last. Nothing but
    copying the right value of many like it is right, and guessing never is.

    An answer is right when the output contains the value (∞-Bench's rule).
    """

    @property
    def name(self) -> str:
        """Name in tables."""
        return "key-value"

    @property
    def scoring(self) -> str:
        """Rule of `correct`."""
        return "contains"

    @property
    def together(self) -> bool:
        """Whether all depths are questions on one text: yes, its pairs are all alike."""
        return True

    def settings(self) -> dict[str, Any]:
        """What the texts depend on."""
        return {"task": self.name, "instruction": _TASK}

    def score(self, output: str, answer: str) -> bool:
        """Whether the output contains the value."""
        return contains(output, answer)

    def items(self, tokenizer: Any, length: int, depths: Sequence[float], seed: int) -> list[Item]:
        """One text with a question for each depth, see `Passkey.items`."""
        places = check_depths(depths)
        rng = np.random.default_rng([seed, length])
        pairs: list[tuple[str, str]] = []

        def build(count: int) -> Item:
            while len(pairs) < count + 1:
                pairs.append((_random_uuid(rng), _random_uuid(rng)))
            # One pair more than units, so that a text without units holds something to ask for.
            return _item(pairs[: count + 1], places)

        one = '"' + _random_uuid(np.random.default_rng(0)) + '", "'
        per_pair = 2.0 * count_tokens(tokenizer, one)
        return [
            fitted(build, tokenizer, length, per_unit=per_pair, what="a key-value text", room=6)
        ]


def _item(pairs: Sequence[tuple[str, str]], depths: Sequence[float]) -> Item:
    text = _TASK + "\n\n{"
    spans = []
    for key, value in pairs:
        pair = f"{json.dumps(key)}: {json.dumps(value)}"
        spans.append((len(text), len(text) + len(pair)))
        text += pair + ", "
    text = text.removesuffix(", ") + "}"
    questions = []
    for depth in depths:
        place = round(depth * (len(pairs) - 1))
        key, value = pairs[place]
        prompt = f'\n\nKey: "{key}"\nThe value that belongs to this key is "'
        questions.append(Question(prompt, value, depth, spans[place], label=key))
    return Item(text, tuple(questions))


def _random_uuid(rng: np.random.Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))
