"""Refinement: moving boundaries to where the key graph splits best (EM-LLM section 3.3, Alg. 1)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from workbench.core.blockgraph import BlockGraph
from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.core.eventgraph import EventGraph
from workbench.core.keygraph import KeyGraph
from workbench.events.dense_objectives import block_split_scores
from workbench.events.objectives import Region, best_candidate, check_objective, split_scores
from workbench.events.reference import refine_released

__all__ = ["RELEASED_VARIANTS", "RULES", "SCOPES", "paper_region", "refine"]

RULES = ("paper", "reference")
SCOPES = ("next", "rest", "three")
LETTERS = {"modularity": "M", "conductance": "C", "intra_inter": "I"}
RELEASED_VARIANTS = {"modularity": "em-llm", "conductance": "em-llm-code", "intra_inter": "means"}


def refine(
    graph: EventGraph,
    events: Boundaries,
    *,
    objective: str = "modularity",
    rule: str = "paper",
    scope: str = "next",
    min_size: int = 8,
    window: int = 512,
    variant: str | None = None,
    chunk: int | None = None,
) -> Boundaries:
    """Move each boundary to the candidate at which the graph splits best.

    Parameters
    ----------
    graph : key-similarity graph over the positions that `events` cuts. Of several heads the
        weights are added, as in the released code. With similarities that are no dot product
        (`BlockGraph`), rule "paper" takes O(region²) time per boundary, and rule "reference" is
        refused.
    events : the boundaries to refine.
    objective : "modularity", "conductance" (least is best) or "intra_inter".
    rule : "paper" or "reference".

        "paper" (Algorithm 1) takes one boundary β after the other. α is the refined boundary
        before it, and the candidates are α + min_size ... β, the original among them. Boundaries
        only move left, their number is kept, and one without a legal candidate (it follows α by
        less than `min_size`, or no score is defined) stays. Equal scores (to 1e-12) go to the
        candidate nearest to β.

        "reference" does what the released code does: boundaries too close to the one before are
        dropped in chains, candidates end at β - 1, equal scores go to the first, and a
        two-way split is judged from half an event before α to half an event after β. `scope` and
        `window` have no meaning there.
    scope : for rule "paper", the reading of f(A, {α, β̂}) in Algorithm 1: "next", the split in two
        at β̂ of the region from α to the next original boundary; "rest", the event [α, β̂) against
        all else of the region; "three", what is before α, [α, β̂) and what is after.
    min_size : least length of the event that a moved boundary ends.
    window : the region has at most this many positions: it ends at
        min(end, β + window // 2) and starts at max(start, that end - window), where [start, end)
        is [α, next original boundary) for scope "next" and the whole text otherwise. Where it
        starts after α, the event is judged from there on.
    variant : of the objective, see `KeyGraph`; None: "newman", "standard", "sums" for rule
        "paper", the released code's formulas for rule "reference". Of conductance the minimum
        over the communities counts (Eq. 4), of intra/inter similarity their mean (Eq. 5).
    chunk : for rule "reference", positions per chunk (512 as released, with the look-back to the
        last boundary before the chunk); None takes the text as one chunk.

    Returns
    -------
    Boundaries with the strength of the originals, `method` with M, C or I behind its letter
    ("S" → "SM"), and what was used under `settings["refinement"]`.

    Raises
    ------
    InputError : unknown option, sizes below 1 or another number of positions than the graph's.
    """
    check_option("rule", rule, RULES)
    check_option("scope", scope, SCOPES)
    if variant is None and rule == "reference":
        check_objective(objective, None)
        variant = RELEASED_VARIANTS[objective]
    variant = check_objective(objective, variant)
    for name, value, least in (("min_size", min_size, 1), ("window", window, 2)):
        if value < least:
            raise InputError(f"{name}={value} must be at least {least}.")
    if chunk is not None and chunk < 1:
        raise InputError(f"chunk={chunk} must be at least 1, or None for the text as one chunk.")
    if events.n != graph.n:
        raise InputError(
            f"events cut {events.n} {events.unit}s, but the graph has {graph.n} positions; "
            "convert them first (trace.to_tokens or trace.to_words)."
        )
    if isinstance(graph, BlockGraph) and rule == "reference":
        raise InputError(
            f"rule='reference' restates the released code, whose weights are dot products; the "
            f"graph's similarity is {graph.similarity!r}. Use rule='paper'."
        )
    settings: dict[str, object] = {
        "rule": rule,
        "objective": objective,
        "variant": variant,
        "min_size": min_size,
    }
    if graph.similarity != "dot":
        settings["similarity"] = graph.similarity
    if rule == "reference":
        prefix, norms = _joined(graph)
        moved, kept = refine_released(
            prefix,
            norms,
            events.inner,
            objective=objective,
            variant=variant,
            min_size=min_size,
            chunk=chunk,
            diagonal=graph.diagonal,
        )
        settings["chunk"] = chunk
    else:
        scores = _scorer(graph, objective, variant)
        moved = _refine_paper(scores, events.edges, scope, min_size, window)
        kept = list(range(len(moved)))
        settings.update(scope=scope, window=window)
    strength = None if events.strength is None else events.strength[kept]
    return events.with_(
        starts=np.array([0, *moved], dtype=np.int64),
        strength=strength,
        method=_refined_name(events.method, LETTERS[objective]),
        settings={**events.settings, "refinement": settings},
    )


def paper_region(alpha: int, beta: int, following: int, n: int, scope: str, window: int) -> Region:
    """The region in which boundary `beta` is judged by rule "paper"; see `refine`."""
    start, end = (alpha, following) if scope == "next" else (0, n)
    high = min(end, beta + window // 2)
    low = max(start, high - window)
    return Region(low, high, max(alpha, low), separate=scope == "three")


Scores = Callable[[Region, range], NDArray[np.float64]]


def _scorer(graph: EventGraph, objective: str, variant: str) -> Scores:
    """(region, candidates) → scores, on the graph whose weights are summed over heads."""
    if isinstance(graph, BlockGraph):
        one = graph.summed()
        return lambda region, candidates: block_split_scores(
            one, region, candidates, objective, variant
        )
    prefix, norms = _joined(graph)
    return lambda region, candidates: split_scores(
        prefix, norms, region, candidates, objective, variant, diagonal=graph.diagonal
    )


def _joined(graph: EventGraph) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Prefix sums of all heads side by side, and of ‖k‖²: those of the summed graph."""
    assert isinstance(graph, KeyGraph)
    return graph.prefix.reshape(graph.n + 1, -1), graph.norms.sum(axis=1)


def _refine_paper(
    scores_of: Scores, edges: NDArray[np.int64], scope: str, min_size: int, window: int
) -> list[int]:
    n = int(edges[-1])
    originals = edges[1:].tolist()
    moved: list[int] = []
    alpha = 0
    for beta, following in pairwise(originals):
        region = paper_region(alpha, beta, following, n, scope, window)
        candidates = range(max(alpha + min_size, region.event + 1), beta + 1)
        found = None
        if len(candidates) > 1:
            found = best_candidate(scores_of(region, candidates), candidates)
        alpha = beta if found is None else found
        moved.append(alpha)
    return moved


def _refined_name(method: str | None, letter: str) -> str | None:
    if method is None:
        return None
    code, colon, argument = method.partition(":")
    return f"{code}{letter}{colon}{argument}"
