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
_BUFFER_BYTES = 1 << 19  # rows worked on at once: half a level-2 cache, twice


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
    whole = prefix[region.high] - prefix[region.low]
    norm = float(norms[region.high] - norms[region.low])
    total = float(total_weight(whole, norm, diagonal))
    if np.isnan(total):
        return np.full(len(candidates), np.nan)
    before = None
    if region.separate and region.event > region.low:
        before = prefix[region.event] - prefix[region.low]
    raw = float(whole @ whole)
    rows = _Rows(prefix, region.event, candidates)
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


class _Rows:
    """Sums of the event's keys for each candidate, a few at a time so that they stay in cache."""

    def __init__(self, prefix: NDArray[np.float64], event: int, candidates: range) -> None:
        self.prefix, self.event, self.candidates = prefix, event, candidates
        self.step = max(8, _BUFFER_BYTES // (8 * prefix.shape[1]))

    def products(
        self,
        whole: NDArray[np.float64],
        other: NDArray[np.float64] | None,
        removed: float | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """S·whole, S·S and S·other for the event's sum S at each candidate, shapes (candidates,).

        With `removed` (‖whole‖²) the last two are of S without its part along `whole`.
        """
        volume, square = np.empty((2, len(self.candidates)))
        cross = np.zeros(len(self.candidates))
        for first in range(0, len(self.candidates), self.step):
            part = slice(first, first + self.step)
            places = self.candidates[part]
            rows = self.prefix[places.start : places.stop] - self.prefix[self.event]
            np.matmul(rows, whole, out=volume[part])
            if removed is not None:
                rows -= np.multiply.outer(volume[part] / removed, whole)
            np.einsum("cd,cd->c", rows, rows, out=square[part])
            if other is not None:
                np.matmul(rows, other, out=cross[part])
        return volume, square, cross


def _perpendicular(
    rows: _Rows,
    whole: NDArray[np.float64],
    raw: float,
    before: NDArray[np.float64] | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """‖part of S perpendicular to T‖² and S·T, shape (communities, candidates)."""
    if before is None:  # the perpendicular parts of the two communities are each other's negative
        event, energy, _ = rows.products(whole, None, raw)
        return np.stack([energy, energy]), np.stack([event, raw - event])
    first = float(before @ whole)
    aside = before - (first / raw) * whole
    event, energy, cross = rows.products(whole, aside, raw)
    kept = float(aside @ aside)
    constant = np.ones_like(energy)
    return (
        np.stack([energy, kept * constant, kept + energy + 2 * cross]),
        np.stack([event, first * constant, raw - first - event]),
    )


def _communities(
    rows: _Rows,
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
    event, square, cross = rows.products(whole, before)
    size = np.arange(candidates.start, candidates.stop) - region.event
    if before is None:
        within = np.stack([square, raw - 2 * event + square], axis=1)
        degree = np.stack([event, raw - event], axis=1)
        sizes = np.stack([size, region.high - region.low - size], axis=1)
    else:
        constant = np.ones_like(event)
        first, kept = float(before @ whole), float(before @ before)
        joined = square + kept + 2 * cross  # inner weight of the event with what is before it
        rest = raw - 2 * (event + first) + joined
        within = np.stack([square, kept * constant, rest], axis=1)
        degree = np.stack([event, first * constant, raw - first - event], axis=1)
        ahead = np.full_like(size, region.event - region.low)
        sizes = np.stack([size, ahead, region.high - region.event - size], axis=1)
    cut = without_noise(degree - within, np.abs(degree) + np.abs(within))
    if not diagonal:
        within = without_noise(within - own.T, np.abs(within) + own.T)
        degree = within + cut
    return BlockSums(
        within=within[..., None],
        cut=cut[..., None],
        degree=degree[..., None],
        sizes=sizes,
        total=np.array([total]),
        n=region.high - region.low,
        diagonal=diagonal,
    )
