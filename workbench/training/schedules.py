"""What changes while training: the learning rate, and how many documents a row sees.

FOT, appendix C: d constant for small d; 2 and then 64; 1 until the task is solved and then 128;
drawn from {2, 128} at each step. A schedule of d is asked at every step, is told how accurate the
step was, and says what has to be kept for a training to be resumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from workbench.core.checks import check_option, whole_number
from workbench.core.errors import InputError

__all__ = ["Constant", "ContextSchedule", "Rate", "Sampled", "Staged", "StagedByStep", "schedule"]

SHAPES = ("linear", "cosine", "inverse-sqrt", "constant")


@dataclass(frozen=True)
class Rate:
    """Learning rate by step.

    Parameters
    ----------
    peak : highest rate, reached after `warmup` steps.
    least : lowest rate (FOT's tables give a least one), reached at the last step by "linear" and
        "cosine", a floor of "inverse-sqrt".
    shape : "linear", "cosine", "inverse-sqrt" (peak·√(warmup/step)) or "constant".
    """

    peak: float
    least: float
    warmup: int = 50
    shape: str = "linear"

    def __post_init__(self) -> None:
        check_option("shape", self.shape, SHAPES)
        whole_number("warmup", self.warmup, 0)
        if not 0 <= self.least <= self.peak:
            raise InputError(f"least={self.least} must lie between 0 and peak={self.peak}.")

    def at(self, step: int, steps: int) -> float:
        """Rate of step `step` (from 0) of `steps`."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        if self.shape == "linear":
            return self.peak + (self.least - self.peak) * done
        if self.shape == "cosine":
            return self.least + (self.peak - self.least) * (1 + math.cos(math.pi * done)) / 2
        if self.shape == "inverse-sqrt":
            return max(self.least, self.peak * math.sqrt(max(1, self.warmup) / (step + 1)))
        return self.peak


class ContextSchedule(Protocol):
    """How many documents a current row sees (d), step by step."""

    def d(self, step: int, rng: np.random.Generator) -> int:
        """Number of documents of this step."""

    def told(self, accuracy: float) -> bool:
        """Learn how accurate the step was; True when the next step begins a new stage."""

    def state(self) -> dict[str, Any]:
        """What has to be kept, as JSON values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a kept state."""

    @property
    def largest(self) -> int:
        """The largest d it can give."""


@dataclass
class Constant:
    """The same d at every step."""

    value: int

    def d(self, step: int, rng: np.random.Generator) -> int:
        """`value`."""
        return self.value

    def told(self, accuracy: float) -> bool:
        """Nothing changes."""
        return False

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing."""

    @property
    def largest(self) -> int:
        """`value`."""
        return self.value


@dataclass
class Sampled(Constant):
    """d drawn anew at each step, all of `values` equally likely."""

    value: int = 0
    values: tuple[int, ...] = (2, 64)

    def d(self, step: int, rng: np.random.Generator) -> int:
        """One of `values`."""
        return int(self.values[int(rng.integers(len(self.values)))])

    @property
    def largest(self) -> int:
        """The largest of `values`."""
        return max(self.values)


@dataclass
class StagedByStep(Constant):
    """d by stages that begin at given steps: `starts[i]` is the first step of `values[i]`."""

    value: int = 0
    values: tuple[int, ...] = (2, 64)
    starts: tuple[int, ...] = (0, 1000)

    def __post_init__(self) -> None:
        if len(self.values) != len(self.starts) or self.starts[0] != 0:
            raise InputError(
                f"starts={self.starts} must begin with 0, one for each of {self.values}."
            )
        if list(self.starts) != sorted(set(self.starts)):
            raise InputError(f"starts={self.starts} must increase.")

    def d(self, step: int, rng: np.random.Generator) -> int:
        """The last stage that has begun."""
        return self.values[int(np.searchsorted(self.starts, step, side="right")) - 1]

    @property
    def largest(self) -> int:
        """The largest of `values`."""
        return max(self.values)


@dataclass
class Staged:
    """d by stages, the next one when the running mean of the accuracy passes `accuracy`.

    Parameters
    ----------
    values : the stages.
    accuracy : running mean (each step weighs 0.1) that ends a stage.
    least : fewest steps of a stage.
    """

    values: tuple[int, ...] = (1, 2, 4, 8, 16)
    accuracy: float = 0.95
    least: int = 20
    stage: int = 0
    steps: int = 0
    mean: float = 0.0

    def d(self, step: int, rng: np.random.Generator) -> int:
        """The d of the present stage."""
        return self.values[self.stage]

    def told(self, accuracy: float) -> bool:
        """Count the step; go on when the stage is mastered."""
        self.mean = accuracy if self.steps == 0 else 0.9 * self.mean + 0.1 * accuracy
        self.steps += 1
        if self.mean <= self.accuracy or self.steps < self.least:
            return False
        if self.stage == len(self.values) - 1:
            return False
        self.stage, self.steps = self.stage + 1, 0
        return True

    def state(self) -> dict[str, Any]:
        """Stage, its steps so far and the running mean."""
        return {"stage": self.stage, "steps": self.steps, "mean": self.mean}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a kept state."""
        self.stage, self.steps = int(state["stage"]), int(state["steps"])
        self.mean = float(state["mean"])

    @property
    def largest(self) -> int:
        """The largest of `values`."""
        return max(self.values)


def schedule(
    values: int | Sequence[int], rule: str = "constant", **options: Any
) -> ContextSchedule:
    """A schedule of d by the name of its rule.

    Parameters
    ----------
    values : one d, or the ds of the stages or draws.
    rule : "constant" (one d), "sampled", "accuracy" (`accuracy=`, `least=`) or "steps"
        (`starts=`).
    """
    check_option("rule", rule, ("constant", "sampled", "accuracy", "steps"))
    ds = (values,) if isinstance(values, int) else tuple(values)
    ds = tuple(whole_number("d", value, 0) for value in ds)
    if not ds:
        raise InputError("d is empty; give at least one number.")
    if rule == "constant":
        if len(ds) != 1:
            raise InputError(
                f"d={ds}: a constant d is one number; give rule='sampled', 'accuracy' or 'steps'."
            )
        return Constant(ds[0])
    if rule == "sampled":
        return Sampled(values=ds)
    if rule == "accuracy":
        return Staged(values=ds, **options)
    return StagedByStep(values=ds, **options)
