"""Generated documents as training data: a fresh batch at every step, with a curriculum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.core.checks import whole_number
from workbench.core.errors import InputError
from workbench.training.dictionary import Dictionary, dictionary_batch
from workbench.training.rows import Batch
from workbench.training.schedules import Staged

__all__ = ["DictionaryData"]


@dataclass
class DictionaryData:
    """Dictionary documents, with few records at first.

    Without the curriculum small models stay at 1 / records; with it they leave it in seconds.

    Parameters
    ----------
    task : the kind of documents.
    documents : in one micro-batch; more while the curriculum has fewer records, so that a step
        always has about as many tokens.
    records : stages of the curriculum; the last must be the task's own number.
    accuracy, least : running mean of the accuracy that ends a stage, and its fewest steps.
    accumulation : micro-batches of a step.
    seed, rank : of the documents.
    """

    task: Dictionary
    documents: int = 16
    records: tuple[int, ...] = (2, 4, 8, 12)
    accuracy: float = 0.95
    least: int = 20
    accumulation: int = 1
    seed: int = 0
    rank: int = 0

    def __post_init__(self) -> None:
        whole_number("documents", self.documents, 1)
        if not self.records or self.records[-1] != self.task.records:
            raise InputError(
                f"records={self.records} must end with the task's own number of records, "
                f"{self.task.records}."
            )
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self._rng = np.random.default_rng((self.seed, self.rank))
        self._stages = Staged(tuple(self.records), self.accuracy, self.least)

    @property
    def rows(self) -> int:
        """Documents in one micro-batch."""
        return self.documents

    @property
    def ready(self) -> bool:
        """Whether the curriculum is at its last stage."""
        return self._stages.stage == len(self.records) - 1

    def step(self, suppliers: int = 0, together: int = 1) -> list[Batch]:
        """Fresh documents; without suppliers definitions and questions stand in one row."""
        if suppliers > 1 or together > 1:
            raise InputError(
                "dictionary documents have one previous window: use windows=1 and the paper's form."
            )
        records = int(self._stages.d(0, self._rng))
        documents = self.documents * self.task.records // records
        return [
            dictionary_batch(self.task, documents, self._rng, records=records, joined=not suppliers)
            for _ in range(self.accumulation)
        ]

    def told(self, accuracy: float) -> bool:
        """Learn how accurate the step was; True when the schedule of d may go on."""
        if self.ready:
            return True
        self._stages.told(accuracy)
        return False

    def state(self) -> dict[str, Any]:
        """Generator and stage, as JSON values."""
        return {"rng": self._rng.bit_generator.state, "stages": self._stages.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a kept state."""
        self._rng.bit_generator.state = state["rng"]
        self._stages.restore(state["stages"])
