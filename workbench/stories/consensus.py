"""Consensus of people's presses: where enough people saw an event end.

The arithmetic of the published recipe is in `recipe` and importable from here; this file applies
it to stories: which presses, which condition, which list.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError, MissingDataError
from workbench.core.story import Annotation, Story
from workbench.stories.recipe import (
    WINDOW,
    coverage,
    leave_one_out_correlation,
    likely_times,
    merged_runs,
    n_bins,
    peaks,
    press_matrix,
    smooth,
)

__all__ = [
    "FEW_PEOPLE",
    "conditions",
    "leave_one_out_correlation",
    "likely_times",
    "peaks",
    "people_presses",
    "percentile_sensitivity",
    "press_density",
    "press_matrix",
    "smooth",
    "story_consensus",
]

SOURCES = ("published", "presses")
DEFAULT_CONDITION = "clear"
FEW_PEOPLE = 30
"""Below this number of people the consensus depends on the percentile: show its sensitivity."""

Floats = NDArray[np.float64]


def conditions(presses: pd.DataFrame) -> list[str]:
    """Conditions of a table of presses, sorted; empty where there is only one unnamed."""
    names = sorted(set(presses["condition"].astype(str)))
    return [] if names == [""] else names


def people_presses(
    story: Story, condition: str | None = None
) -> tuple[pd.DataFrame, float, int, str]:
    """Presses of one condition, the duration (s), the number of people and the condition used.

    Parameters
    ----------
    story : with presses.
    condition : one of the story's conditions; "all" pools them; None: "clear" where there is such
        a condition, else all.
    """
    annotation = _pressed(story)
    presses = story.presses
    names = conditions(presses)
    if condition is None:
        condition = DEFAULT_CONDITION if DEFAULT_CONDITION in names else "all"
    check_option("condition", condition, (*names, "all"))
    if condition != "all":
        presses = presses[presses["condition"] == condition].reset_index(drop=True)
    n_people = presses["subject"].nunique()
    if condition == "all" and annotation.n_people is not None:
        n_people = annotation.n_people
    duration = annotation.duration
    if duration is None:
        duration = float(presses["end"].max())
    return presses, float(duration), int(n_people), condition


def press_density(
    story: Story,
    *,
    condition: str | None = None,
    step: float = 0.01,
    window: float = WINDOW,
) -> tuple[Floats, Floats]:
    """Smoothed share of people who press, over time.

    Returns
    -------
    times : seconds, shape (bins,), times[k] = k·step.
    density : share of people, shape (bins,).
    """
    presses, duration, n_people, _ = people_presses(story, condition)
    bins = n_bins(duration, step)
    runs = merged_runs(presses)
    mean = coverage(runs["start"], runs["end"], bins, step) / max(1, n_people)
    times: Floats = np.arange(bins, dtype=np.float64) * step
    return times, smooth(mean, step, window)


def story_consensus(
    story: Story,
    source: str | None = None,
    *,
    condition: str | None = None,
    percentile: float = 95.0,
    step: float = 0.001,
    window: float = WINDOW,
) -> Floats:
    """People's consensus boundaries of a story, in seconds.

    Parameters
    ----------
    story : with people's annotations.
    source : "published" (the printed list), "presses" (computed here), or None: published where
        there is a list.
    condition : of the presses; None: "clear" where there is such a condition, else all; "all"
        pools the conditions. A published list has none.
    percentile, step, window : of the recipe; they do not touch a published list.

    Raises
    ------
    MissingDataError : the story has neither, or not the wanted one.
    InputError : unknown source or condition; recipe options for a published list.
    """
    if source is not None:
        check_option("source", source, SOURCES)
    else:
        source = "published" if _published(story) is not None else "presses"
    if source == "published":
        annotation = _published(story) or story.annotation("people", "published")
        if condition is not None:
            raise InputError(
                f"condition={condition!r} belongs to presses; the published list of "
                f"{story.name!r} has none. Pass source='presses'."
            )
        assert annotation.times is not None
        return annotation.times.copy()
    _, density = press_density(story, condition=condition, step=step, window=window)
    return peaks(density, step, percentile)


def percentile_sensitivity(
    story: Story,
    percentiles: Sequence[float] = (90, 92.5, 95, 97.5, 99),
    *,
    condition: str | None = None,
    step: float = 0.001,
) -> pd.DataFrame:
    """How the consensus from presses depends on the percentile; shown below 30 people.

    Parameters
    ----------
    condition : as in `story_consensus`, or "each": every condition in turn.

    Returns
    -------
    One row per condition and percentile: condition, n_people, percentile, n_boundaries,
    share_near_default (share of the boundaries within 1 s of one at the 95th percentile).
    """
    names = conditions(story.presses) if condition == "each" else [condition]
    rows = []
    for name in names or [None]:
        _, _, n_people, used = people_presses(story, name)
        _, density = press_density(story, condition=name, step=step)
        usual = peaks(density, step)
        for percentile in percentiles:
            times = peaks(density, step, percentile)
            near = [np.abs(usual - time).min() <= 1.0 if len(usual) else False for time in times]
            rows.append(
                {
                    "condition": used,
                    "n_people": n_people,
                    "percentile": float(percentile),
                    "n_boundaries": len(times),
                    "share_near_default": float(np.mean(near)) if near else np.nan,
                }
            )
    return pd.DataFrame(rows)


def _published(story: Story) -> Annotation | None:
    for annotation in story.annotations:
        if annotation.kind == "people" and annotation.times is not None:
            return annotation
    return None


def _pressed(story: Story) -> Annotation:
    for annotation in story.annotations:
        if annotation.kind == "people" and annotation.presses is not None:
            return annotation
    raise MissingDataError(
        f"story {story.name!r} has no per-person presses; only consensus times or none exist."
    )
