"""The table of refinements: what moves boundaries once they are proposed.

A new refinement is one function (graph, boundaries, options) → boundaries and one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option

if TYPE_CHECKING:
    from workbench.core.keygraph import KeyGraph

__all__ = ["REFINEMENTS", "Moves", "Refinement"]


@dataclass(frozen=True)
class Moves:
    """What a refinement may use; each field is an argument of `segment`, described there."""

    rule: str = "paper"
    scope: str = "next"
    variant: str | None = None
    min_size: int = 8
    max_size: int | None = 128
    window: int = 512
    chunk: int | None = None
    matched: bool = False
    optimum: str = "exactly"


@dataclass(frozen=True)
class Refinement:
    """One row of `REFINEMENTS`.

    Parameters
    ----------
    code : the letter in a method's code ("" for none).
    name, description, source : for tables, `--help` and the README.
    refine : (graph, proposed boundaries, options) → Boundaries with `settings["refinement"]`, or
        None.
    """

    code: str
    name: str
    description: str
    source: str
    refine: Callable[[KeyGraph, Boundaries, Moves], Boundaries] | None


def _moving(objective: str) -> Callable[[KeyGraph, Boundaries, Moves], Boundaries]:
    def moved(graph: KeyGraph, proposed: Boundaries, moves: Moves) -> Boundaries:
        from workbench.events.refinement import refine

        return refine(
            graph,
            proposed,
            objective=objective,
            rule=moves.rule,
            scope=moves.scope,
            min_size=moves.min_size,
            window=moves.window,
            variant=moves.variant,
            chunk=moves.chunk,
        )

    return moved


def _optimum(graph: KeyGraph, proposed: Boundaries, moves: Moves) -> Boundaries:
    from workbench.events.optimum import optimal_boundaries

    check_option("optimum", moves.optimum, ["exactly", "at most", "free"])
    count = proposed.n_events
    free = moves.optimum == "free"
    # Refinement can stretch an event by the one before it; the optimum must be able to do so
    # too, or it would not bound it.
    longest = moves.max_size
    if longest is not None and not free:
        longest = 2 * max(longest, int(proposed.lengths.max()))
    found = optimal_boundaries(
        graph,
        n_events=count if moves.optimum == "exactly" else None,
        at_most=count if moves.optimum == "at most" else None,
        min_size=moves.min_size,
        max_size=None if moves.matched and not free else longest,
        last_size=min(moves.min_size, int(proposed.lengths[-1])),
    )
    settings = {**proposed.settings, "refinement": {"optimum": moves.optimum, **found.settings}}
    return found.with_(open=proposed.open, settings=settings)


REFINEMENTS: dict[str, Refinement] = {
    row.code: row
    for row in (
        Refinement("", "none", "The proposal as it is.", "", None),
        Refinement(
            "M",
            "modularity",
            "Each boundary moves to where the two events beside it have the highest modularity "
            "in the key-similarity graph.",
            "Fountas et al. 2025 (EM-LLM), section 3.3, Equation 3 and Algorithm 1",
            _moving("modularity"),
        ),
        Refinement(
            "C",
            "conductance",
            "Each boundary moves to where the two events beside it have the lowest conductance "
            "in the key-similarity graph.",
            "Fountas et al. 2025 (EM-LLM), section 3.3, Equation 4 and Algorithm 1",
            _moving("conductance"),
        ),
        Refinement(
            "O",
            "the global optimum of modularity",
            "The cut with the highest modularity of all those with as many events as the "
            "proposal, which gives nothing but that number: how far M is from the best.",
            "Newman 2006 (modularity); dynamic programming as in Jackson et al. 2005",
            _optimum,
        ),
    )
}
