"""Passkey retrieval: a number hidden in filler (Mohtashami & Jaggi 2023), in two forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.tasks.items import Item, Question, check_depths, count_tokens, fitted
from workbench.tasks.scoring import first_integer

__all__ = ["FILLER", "FORMS", "LABELS", "Passkey"]

FORMS = ("fot", "infinitebench")

FILLER = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
"""The sentences that are repeated; the task is defined by them."""

LABELS = (
    *("red", "blue", "green", "yellow", "black", "white", "orange", "purple", "brown", "pink"),
    *("silver", "golden", "Alice", "Bob", "Clara", "David", "Emma", "Frank", "Grace", "Henry"),
)
"""Names of keys when one text holds several."""

# In words of our own, and it matters: one that ended in "you will be asked for it" made the default
# model miss every key right after it (depth 0, form "fot"; 0 of 8), which these do not (8 of 8).
_TASK = {
    "one": "A lot of irrelevant text hides an important piece of information. Find it and memorize "
    "it. You will be quizzed about that information.",
    "labelled": "A lot of irrelevant text hides important pieces of information. Find them and "
    "memorize them. You will be quizzed about that information.",
}


@dataclass(frozen=True)
class Passkey:
    """Passkey retrieval.

    The text is an instruction, filler, and one line with the key. Its length, question included,
    is the length asked for to within one sentence of filler. Keys are drawn evenly from 10000 ...
    99999, so that guessing is right once in 90,000 times. The instruction is in words of our own;
    filler, key line and question are the task's.

    Parameters
    ----------
    form : "fot" (Mohtashami & Jaggi 2023; the Focused Transformer paper): one paragraph of filler
        on either side of the key, the question on one line. "infinitebench" (∞-Bench, Zhang et
        al. 2024): every five sentences on a line, blank lines around the question.
    labelled : put one key for each depth into one text, each with a name of its own ("The pass
        key for red is ..."), so that one reading serves all depths. The other keys then compete
        with the one asked for, so the task is harder than the plain one: a number of its own.

    Depth 0 puts the key before all filler, 1 after all of it, just before the question; between
    them at that share of the filler's sentences (of its lines in the ∞-Bench form).

    An answer is right when the first integer of the output is the key (∞-Bench's rule).
    """

    form: str = "fot"
    labelled: bool = False

    def __post_init__(self) -> None:
        check_option("form", self.form, FORMS)

    @property
    def name(self) -> str:
        """Name in tables: passkey-fot, passkey-infinitebench-labelled, ..."""
        return f"passkey-{self.form}" + ("-labelled" if self.labelled else "")

    @property
    def scoring(self) -> str:
        """Rule of `correct`."""
        return "first integer"

    @property
    def together(self) -> bool:
        """Whether all depths are questions on one text."""
        return self.labelled

    def settings(self) -> dict[str, Any]:
        """What the texts depend on."""
        instruction = _TASK["labelled" if self.labelled else "one"]
        return {
            "task": self.name,
            "form": self.form,
            "labelled": self.labelled,
            "instruction": instruction,
        }

    def score(self, output: str, answer: str) -> bool:
        """Whether the first integer of the output is the key."""
        return first_integer(output, answer)

    def items(self, tokenizer: Any, length: int, depths: Sequence[float], seed: int) -> list[Item]:
        """Texts of one length: one per depth, or a single one with labelled keys.

        Parameters
        ----------
        tokenizer : of the model that will read.
        length : tokens of text and question together.
        depths : places of keys, each from 0 to 1.
        seed : of the keys and of which label stands where.

        Raises
        ------
        InputError : the length is too short, a depth is not allowed, more depths than labels.
        """
        places = check_depths(depths)
        groups = [places] if self.labelled else [[place] for place in places]
        return [self._item(tokenizer, length, group, seed) for group in groups]

    def _item(self, tokenizer: Any, length: int, depths: list[float], seed: int) -> Item:
        if len(depths) > len(LABELS):
            raise InputError(
                f"{len(depths)} depths for {len(LABELS)} labels; ask for fewer depths at once."
            )
        # The depth enters, so that plain texts of one seed do not share their key.
        spread = [round(depth * 1_000_000) for depth in depths]
        rng = np.random.default_rng([seed, length, *spread])
        keys = [str(10_000 + key) for key in rng.choice(90_000, size=len(depths), replace=False)]
        labels = [""] * len(depths)
        if self.labelled:
            labels = [f" for {LABELS[i]}" for i in rng.permutation(len(LABELS))[: len(depths)]]
        lines = [
            f"The pass key{label} is {key}. Remember it. {key} is the pass key{label}."
            for label, key in zip(labels, keys)
        ]
        cycle = count_tokens(tokenizer, " ".join(FILLER * 20)) / (20 * len(FILLER))

        def build(sentences: int) -> Item:
            text, spans = _laid_out(self.form, self.labelled, sentences, depths, lines)
            questions = tuple(
                Question(_question(self.form, label), key, depth, span, label=label[5:])
                for label, key, depth, span in zip(labels, keys, depths, spans)
            )
            return Item(text, questions)

        return fitted(build, tokenizer, length, per_unit=cycle, what=f"a {self.name} text")


def _question(form: str, label: str) -> str:
    if form == "infinitebench":
        return f"\n\nWhat is the pass key{label}?\n\nThe pass key{label} is"
    return f"\nWhat is the pass key{label}? The pass key{label} is"


def _laid_out(
    form: str, labelled: bool, sentences: int, depths: Sequence[float], keys: Sequence[str]
) -> tuple[str, list[tuple[int, int]]]:
    """Text with keys at their depths, and their spans in the order given."""
    filler = [FILLER[i % len(FILLER)] for i in range(sentences)]
    if form == "infinitebench":
        units = [" ".join(filler[i : i + len(FILLER)]) for i in range(0, sentences, len(FILLER))]
        between = "\n"
    else:
        units, between = filler, " "
    text = _TASK["labelled" if labelled else "one"] + ("\n" if form == "fot" else "\n\n")
    spans = [(0, 0)] * len(keys)
    done = 0
    for number in sorted(range(len(keys)), key=lambda i: depths[i]):
        place = round(depths[number] * len(units))
        if place > done:
            text += between.join(units[done:place]) + "\n"
            done = place
        spans[number] = len(text), len(text) + len(keys[number])
        text += keys[number] + "\n"
    text += between.join(units[done:])
    return text.removesuffix("\n"), spans
