"""Instruction tuning with memory: prompts and answers, a random part of which lies in memory.

Each example stands in a fixed number of windows, padded at random on the left and on the right,
so that it is cut anywhere: what comes before the last windows is seen through memory layers only
(LongLLaMA's instruction tuning). All windows are rows of one batch, so memory is differentiable.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.core.checks import plural, whole_number
from workbench.core.errors import DataError, InputError, MissingDataError
from workbench.training.rows import IGNORED, Batch

__all__ = ["InstructionLoader", "instruction_method_parts", "read_instructions"]

Example = tuple[NDArray[np.int64], NDArray[np.int64]]


def read_instructions(
    file: Path | str, tokenizer: Any, *, prompt: str = "prompt", answer: str = "answer"
) -> list[Example]:
    """Tokens of prompts and answers of a JSONL file; an end token closes each answer.

    Parameters
    ----------
    prompt, answer : names of the two fields.
    """
    path = Path(file)
    if not path.is_file():
        raise MissingDataError(f"{path} is not there; give a JSONL file of prompts and answers.")
    begin = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    found: list[Example] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                texts = (row[prompt], row[answer])
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise DataError(
                    f"{path}, line {number}: an object with {prompt!r} and {answer!r} is needed "
                    f"({error})."
                ) from error
            first, second = (
                list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts
            )
            if not second:
                raise DataError(f"{path}, line {number}: the answer is empty.")
            found.append(
                (np.array(begin + first, dtype=np.int64), np.array(second + end, dtype=np.int64))
            )
    return found


def instruction_method_parts(windows: int) -> tuple[tuple[int, int], ...]:
    """(positives, negatives) of each window: all earlier ones, no negatives."""
    return tuple((place, 0) for place in range(windows))


@dataclass
class InstructionLoader:
    """Examples at random places of their windows; loss on answers only.

    Parameters
    ----------
    examples : tokens of prompt and answer.
    rows : examples in one micro-batch.
    window : tokens of a window.
    windows : of each example; longer examples are an error unless `longer="cut"`, which takes
        tokens from the beginning of the prompt.
    accumulation : micro-batches of a step.
    seed, rank, world : of the order and the padding; number of this process and of all.
    """

    examples: Sequence[Example]
    rows: int
    window: int
    windows: int = 2
    accumulation: int = 1
    longer: str = "error"
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        for name in ("rows", "window", "windows", "accumulation"):
            whole_number(name, getattr(self, name), 1)
        room = self.window * self.windows
        for number, (prompt, answer) in enumerate(self.examples):
            if len(answer) > room or (self.longer != "cut" and len(prompt) + len(answer) > room):
                raise InputError(
                    f"example {number} has {len(prompt) + len(answer)} tokens, but "
                    f"{plural(self.windows, 'window')} of {self.window} hold {room}; raise them, "
                    "or give longer='cut' to shorten prompts at their beginning."
                )
        if not self.examples:
            raise InputError("there are no examples.")
        self._drawn = 0

    def step(self, suppliers: int = 0, together: int = 1) -> list[Batch]:
        """The micro-batches of the next step; all windows are current rows."""
        if suppliers or together != self.windows:
            raise InputError(
                f"instructions stand in {plural(self.windows, 'window')} of one batch: use "
                f"parts=instruction_method_parts({self.windows})."
            )
        return [self._batch() for _ in range(self.accumulation)]

    def _batch(self) -> Batch:
        room = self.window * self.windows
        ids = np.zeros((self.rows, room), dtype=np.int64)
        valid = np.zeros((self.rows, room), dtype=bool)
        targets = np.full((self.rows, room), IGNORED, dtype=np.int64)
        number = np.zeros(self.rows, dtype=np.int64)
        for row in range(self.rows):
            place = self._drawn * self.world + self.rank
            self._drawn += 1
            epoch, at = divmod(place, len(self.examples))
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.examples))
            prompt, answer = self.examples[int(order[at])]
            prompt = prompt[max(0, len(prompt) + len(answer) - room) :]
            text = np.concatenate((prompt, answer))
            spare = room - len(text)
            left = int(np.random.default_rng((self.seed, epoch, at, 1)).integers(spare + 1))
            ids[row, left : left + len(text)] = text
            valid[row, left : left + len(text)] = True
            begin = left + len(prompt)
            # The token before the answer predicts its first one.
            first = max(begin - 1, left)
            targets[row, first : left + len(text) - 1] = ids[row, first + 1 : left + len(text)]
            number[row] = place
        shape = (self.rows * self.windows, self.window)
        return Batch(
            torch.from_numpy(ids.reshape(shape)),
            torch.from_numpy(valid.reshape(shape)),
            torch.from_numpy(targets.reshape(shape)),
            np.repeat(number, self.windows),
            np.tile(np.arange(self.windows), self.rows),
        )

    def told(self, accuracy: float) -> bool:
        """There is no curriculum."""
        return True

    def state(self) -> dict[str, Any]:
        """How many examples were drawn."""
        return {"drawn": self._drawn}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a kept state."""
        self._drawn = int(state["drawn"])
