"""What every proposal is made of: its options, its row in the table, and its counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.trace import Trace

__all__ = ["Options", "Proposal", "check_count", "matched"]


@dataclass(frozen=True)
class Options:
    """What a proposal may use; each field is an argument of `segment`, described there.

    `more` holds the proposal's own options (`Proposal.options`), every one of them.
    """

    argument: int | None = None
    n_boundaries: int | None = None
    gamma: float = 1.0
    window: int | str = 512
    min_values: int = 16
    chunk: int = 512
    n_local: int = 4096
    n_init: int = 128
    first_chunk: str = "init"
    start: str = "surprising"
    min_size: int = 8
    max_size: int | None = 128
    short: str = "merge"
    gap: int = 1
    seed: int = 0
    time_rule: str = "next"
    source: str | None = None
    consensus: Mapping[str, Any] = field(default_factory=dict)
    layers: int | Iterable[int] | None = None
    heads: int | Iterable[int] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Proposal:
    """One row of `PROPOSALS`.

    Parameters
    ----------
    code : the letter in a method's code.
    name, description, source : for tables, `--help` and the README.
    propose : (trace, options) → Boundaries over tokens, with `settings` of its own.
    takes_argument : whether the code may carry a number ("F:64").
    options : further arguments of `segment` that only this proposal has, with their defaults.
    uses_keys : whether, with these options, the cut depends on the keys.
    """

    code: str
    name: str
    description: str
    source: str
    propose: Callable[[Trace, Options], Boundaries]
    takes_argument: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    uses_keys: Callable[[Options], bool] = lambda options: False


def matched(k: int, found: int) -> dict[str, Any]:
    """Settings that say how many boundaries were asked for and found."""
    settings: dict[str, Any] = {"n_boundaries": int(k), "n_found": found}
    if found < k:
        settings["note"] = f"only {found} of the {k} boundaries asked for could be found"
    return settings


def check_count(k: int, n: int, *, zero: bool = False) -> None:
    """Raise `InputError` unless n positions can be cut at k places."""
    if k < (0 if zero else 1) or k != int(k):
        raise InputError(f"n_boundaries={k} must be a whole number of at least 1.")
    if k > n - 1:
        raise InputError(
            f"n_boundaries={k} is more than the {n - 1} places where {n} tokens can be cut."
        )
