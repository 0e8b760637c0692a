"""The settings of the part of a memory system that attends: what is near, kept and recalled."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.checks import check_option, whole_number
from workbench.core.errors import InputError

__all__ = ["POSITIONS", "QUERIES", "STORES", "Settings"]

POSITIONS = ("fixed", "true", "zero", "none")
QUERIES = ("previous", "token", "chunk")
STORES = ("device", "host", "disk")


@dataclass(frozen=True)
class Settings:
    """What every layer of a memory system goes by.

    Parameters
    ----------
    n_init : first tokens of a text that stay in sight for ever (attention sinks).
    n_local : a token sees the n_local newest tokens at their own places; None: all.
    n_mem : most tokens recalled at once; with `units`, not used.
    top_units : most units recalled at once, instead of `n_mem`; None: go by tokens.
    everything : recall all that is stored (`n_mem` and `top_units` are then not used).
    chunk : tokens read at once.
    r, averaged : representatives of a unit, see `representatives`.
    per_head : recall for each key-value head on its own.
    query : what is looked for when a chunk is read: "previous", the mean query of the tokens
        before the chunk; "token", each token its own; "chunk", the mean of the chunk, as in the
        released code (a token then depends on later ones).
    share, reach : of the contiguity buffer, see `recall_units`.
    every : while generating, retrieve at every so many tokens.
    position : where recalled tokens stand: "fixed", n_local - 1 before the query; "true", their
        own places; "zero", at the start of the window, which moves on now and then (so that the
        result depends a little on the chunk); "none", unturned, for an unturned query.
    store : where stored keys and values lie: "device", "host" or "disk".
    budget : most bytes of stored keys and values; None: no limit.
    ann_above : with more stored units than this, the most similar ones are looked for with FAISS
        (see `ApproximateIndex`); None: exact search always.
    """

    n_init: int = 128
    n_local: int | None = 512
    n_mem: int = 512
    top_units: int | None = None
    everything: bool = False
    chunk: int = 512
    r: int = 4
    averaged: bool = True
    per_head: bool = False
    query: str = "previous"
    share: float = 0.0
    reach: int = 1
    every: int = 1
    position: str = "fixed"
    store: str = "host"
    budget: int | None = None
    ann_above: int | None = None

    def __post_init__(self) -> None:
        check_option("position", self.position, POSITIONS)
        check_option("query", self.query, QUERIES)
        check_option("store", self.store, STORES)
        for name, least in (("n_init", 0), ("n_mem", 0), ("chunk", 1), ("r", 1), ("every", 1)):
            whole_number(name, getattr(self, name), least)
        whole_number("reach", self.reach, 1)
        if self.n_local is not None:
            whole_number("n_local", self.n_local, 1)
        if self.top_units is not None:
            whole_number("top_units", self.top_units, 0)
        if self.budget is not None:
            whole_number("budget", self.budget, 0)
        if not 0 <= self.share < 1:
            raise InputError(
                f"share={self.share} of the budget for the contiguity buffer must be at least 0 "
                "and less than 1: its events are neighbours of those found by similarity."
            )
        if self.ann_above is not None:
            whole_number("ann_above", self.ann_above, 1)
            if self.per_head or not self.averaged:
                raise InputError(
                    "ann_above= looks for one averaged vector per unit; use per_head=False and "
                    "averaged=True with it."
                )
