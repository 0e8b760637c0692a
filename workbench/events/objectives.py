"""What refinement maximises: the score of every candidate boundary of a region, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.blocksums import (
    CONDUCTANCE,
    INTRA_INTER,
    MODULARITY,
    BlockSums,
    conductance_terms,
    intra_inter_terms,
    total_weight,
    without_noise,
)
from workbench.core.checks import check_option

__all__ = ["OBJECTIVES", "Region", "best_candidate", "check_objective", "split_scores"]

OBJECTIVES: dict[str, tuple[str, ...]] = {
    "modularity": MODULARITY,
    "conductance": CONDUCTANCE,
    "intra_inter": INTRA_INTER,
}

_TIE = 1e-12  # scores closer than this share of the best one count as equal
_TIE_ABSOLUTE = 1e-15


def check_objective(objective: str, variant: str | None) -> str:
    """The variant to use; the first one of the objective where none is named.

    Raises
    ------
    InputError : unknown objective, or a variant that it does not have.
    """
    check_option("objective", objective, OBJECTIVES)
    if variant is None:
        return OBJECTIVES[objective][0]
    check_option("variant", variant, OBJECTIVES[objective])
    return variant


@dataclass(frozen=True)
class Region:
    """The part [low, high) of the graph in which one boundary is judged.

    The event under judgement starts at `event` ≥ low and ends at a candidate. With `separate`,
    [low, event) is a community of its own; otherwise all of the region that is not the event is
    one community.
    """

    low: int
    high: int
    event: int
    separate: bool = False


def split_scores(
    prefix: NDArray[np.float64],
    norms: NDArray[np.float64],
    region: Region,
    candidates: range,
    objective: str,
    variant: str,
    *,
    diagonal: bool = True,
    zero: float | None = None,
) -> NDArray[np.float64]:
    """Score of ending the event at each candidate; larger is better, NaN is not defined.

    Parameters
    ----------
    prefix : running sums of the keys, shape (n + 1, d); norms : of ‖k‖², shape (n + 1,).
    candidates : consecutive positions, all in (region.event, region.high).
    objective, variant : see `OBJECTIVES`; conductance is returned negated.
    diagonal : whether the weights A_ii count.
    zero : as in `conductance_terms`.

    All sums are differences from the region's own start, so that nothing grows with the position
    in the text. Modularity is formed from the keys' parts perpendicular to their sum T, in which
    a component that all keys share drops out before anything is squared: for an event with the
    sum S, within - degree²/‖T‖² = ‖S - (S·T/‖T‖²) T‖².
    """
    rows = prefix[candidates.start : candidates.stop] - prefix[region.event]
    whole = prefix[region.high] - prefix[region.low]
    norm = float(norms[region.high] - norms[region.low])
    total = float(total_weight(whole, norm, diagonal))
    if np.isnan(total):
        return np.full(len(candidates), np.nan)
    before = None
    if region.separate and region.event > region.low:
        before = prefix[region.event] - prefix[region.low]
    raw = float(whole @ whole)
    own = _own_weights(norms, region, candidates, before is not None)
    if objective == "modularity":
        energy, volume = _perpendicular(rows, whole, raw, before)
        if diagonal:
            scores = energy.sum(axis=0) / raw
        else:
            # Σ_c in_c/W - (vol_c/W)² with every in, vol and W less its own diagonal weights,
            # multiplied out so that the large terms cancel on paper and not in float64
            numerator = energy * total - norm * volume**2 / raw - own * total
            numerator += 2 * volume * own - own**2
            scores = numerator.sum(axis=0) / total**2
        return scores if variant == "newman" else scores / 2
    sums = _communities(rows, whole, raw, before, own, total, region, candidates, diagonal)
    if objective == "conductance":
        return -conductance_terms(sums, variant, zero)[..., 0].min(axis=1)
    return intra_inter_terms(sums, variant)[..., 0].mean(axis=1)


def best_candidate(
    scores: NDArray[np.float64], candidates: range, *, prefer: str = "last"
) -> int | None:
    """The candidate with the largest score; None where no score is defined.

    Parameters
    ----------
    prefer : which of several equal ones (to 1e-12 of the best) is taken: "last" or "first".
    """
    if np.isnan(scores).all():
        return None
    best = np.nanmax(scores)
    near = np.flatnonzero(scores >= best - _TIE * abs(best) - _TIE_ABSOLUTE)
    return candidates[int(near[-1] if prefer == "last" else near[0])]


def _own_weights(
    norms: NDArray[np.float64], region: Region, candidates: range, separate: bool
) -> NDArray[np.float64]:
    """Σ‖k‖² of each community, shape (communities, candidates)."""
    event = norms[candidates.start : candidates.stop] - norms[region.event]
    before = norms[region.event] - norms[region.low]
    whole = norms[region.high] - norms[region.low]
    if separate:
        return np.stack([event, np.full_like(event, before), whole - before - event])
    return np.stack([event, whole - event])


def _perpendicular(
    rows: NDArray[np.float64],
    whole: NDArray[np.float64],
    raw: float,
    before: NDArray[np.float64] | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """‖part of S perpendicular to T‖² and S·T per community; overwrites `rows`."""
    event = rows @ whole
    rows -= np.multiply.outer(event / raw, whole)
    energy = np.einsum("cd,cd->c", rows, rows)
    if before is None:  # the perpendicular parts of the two communities are each other's negative
        return np.stack([energy, energy]), np.stack([event, raw - event])
    first = float(before @ whole)
    aside = before - (first / raw) * whole
    kept = float(aside @ aside)
    rest = kept + energy + 2 * (rows @ aside)
    constant = np.ones_like(energy)
    return (
        np.stack([energy, kept * constant, rest]),
        np.stack([event, first * constant, raw - first - event]),
    )


def _communities(
    rows: NDArray[np.float64],
    whole: NDArray[np.float64],
    raw: float,
    before: NDArray[np.float64] | None,
    own: NDArray[np.float64],
    total: float,
    region: Region,
    candidates: range,
    diagonal: bool,
) -> BlockSums:
    """Block sums of the communities of every candidate, arrays (candidates, communities, 1)."""
    volume = [rows @ whole]
    within = [np.einsum("cd,cd->c", rows, rows)]
    sizes = [np.arange(candidates.start, candidates.stop) - region.event]
    if before is None:
        within.append(raw - 2 * volume[0] + within[0])
    else:
        constant = np.ones_like(volume[0])
        volume.append(float(before @ whole) * constant)
        within.append(float(before @ before) * constant)
        sizes.append(np.full_like(sizes[0], region.event - region.low))
        joined = within[0] + within[1] + 2 * (rows @ before)  # event and what is before it
        within.append(raw - 2 * (volume[0] + volume[1]) + joined)
    volume.append(raw - np.sum(volume, axis=0))
    sizes.append(region.high - region.low - np.sum(sizes, axis=0))
    inner, degree = np.stack(within, axis=1), np.stack(volume, axis=1)
    cut = without_noise(degree - inner, np.abs(degree) + np.abs(inner))
    if not diagonal:
        inner = without_noise(inner - own.T, np.abs(inner) + own.T)
        degree = inner + cut
    return BlockSums(
        within=inner[..., None],
        cut=cut[..., None],
        degree=degree[..., None],
        sizes=np.stack(sizes, axis=1),
        total=np.array([total]),
        n=region.high - region.low,
        diagonal=diagonal,
    )
