"""How far the distances to people depend on choices that the papers leave open.

Two choices come before any distance: the word on which a boundary in time falls, and the
percentile above which the consensus of few people has its peaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from workbench.analysis.human import words_to_gaps
from workbench.analysis.reference import distances, has_presses, reference
from workbench.core.boundaries import Boundaries
from workbench.core.story import Story
from workbench.stories.consensus import FEW_PEOPLE, percentile_sensitivity
from workbench.stories.timing import RULES

__all__ = ["percentile_distances", "rule_sensitivity"]

_RULE_COLUMNS = ("method", "rule", "measure", "value", "n_people_boundaries", "note")
_PERCENTILE_COLUMNS = (
    "method",
    "condition",
    "n_people",
    "few_people",
    "percentile",
    "measure",
    "value",
    "n_people_boundaries",
    "share_near_default",
    "note",
)


def rule_sensitivity(
    story: Story,
    methods: Mapping[str, Boundaries],
    *,
    rules: Sequence[str] = RULES,
    match: str | None = "people",
    sigma: float = 0.0,
    **options: Any,
) -> pd.DataFrame:
    """Distances to people under every rule that turns their times into words.

    People press before a new event begins when they know the story and after it when they do
    not, so no rule is right for every story.

    Parameters
    ----------
    story : with people's boundaries.
    methods : each method's events over the story's words, by the name shown in the table.
    rules : see `timing.times_to_words`. Here the rule holds for the Hamming distance, too: the
        word it gives goes to the sentence gap nearest in words ("sentence": the gap nearest in
        time, as everywhere else).
    match, sigma : as in `reference.reference` and `reference.distances`.
    options : source, condition, percentile of `reference.reference`.

    Returns
    -------
    One row per method, rule and measure: method, rule, measure, value, n_people_boundaries,
    note. No rows where the story has no boundaries of people: an author's are words already.
    """
    rows: list[dict[str, Any]] = []
    if story.annotation_kind != "people":
        return pd.DataFrame(rows, columns=list(_RULE_COLUMNS))
    for method, events in methods.items():
        for rule in rules:
            ref = reference(
                story,
                kind="people",
                match=match,
                n_boundaries=len(events.inner),
                rule=rule,
                **options,
            )
            if ref.words is not None and not ref.gap_note:
                ref = replace(ref, gaps=words_to_gaps(ref.words, ref.n_words, ref.sentence_starts))
            for measure, distance in distances(events, ref, sigma=sigma).items():
                rows.append(
                    {
                        "method": method,
                        "rule": rule,
                        "measure": measure,
                        "value": distance.value,
                        "n_people_boundaries": ref.count,
                        "note": distance.note,
                    }
                )
    return pd.DataFrame(rows, columns=list(_RULE_COLUMNS))


def percentile_distances(
    story: Story,
    methods: Mapping[str, Boundaries],
    *,
    percentiles: Sequence[float] = (90, 92.5, 95, 97.5, 99),
    condition: str | None = None,
    rule: str = "next",
    sigma: float = 0.0,
) -> pd.DataFrame:
    """Distances to the consensus from presses under several percentiles.

    To be shown wherever fewer than 30 people pressed: their density has few different values
    near its top, and the number of boundaries hangs on the percentile.

    Parameters
    ----------
    story : with presses of single people and word times.
    methods : each method's events over the story's words, by the name shown in the table. They
        stay as they are, whatever number of boundaries a percentile leaves.
    percentiles : of the density.
    condition : of the presses, see `consensus.people_presses`.
    rule, sigma : as in `reference.reference` and `reference.distances`.

    Returns
    -------
    One row per method, percentile and measure: method, condition, n_people, few_people (fewer
    than 30), percentile, measure, value, n_people_boundaries (over words), share_near_default
    (share of the boundary times within 1 s of one at the 95th percentile), note. No rows where
    no presses of single people are known.
    """
    rows: list[dict[str, Any]] = []
    if not has_presses(story):
        return pd.DataFrame(rows, columns=list(_PERCENTILE_COLUMNS))
    table = percentile_sensitivity(story, percentiles, condition=condition)
    for line in table.to_dict("records"):
        ref = reference(
            story,
            kind="people",
            source="presses",
            match=None,
            rule=rule,
            condition=condition,
            percentile=line["percentile"],
        )
        for method, events in methods.items():
            for measure, distance in distances(events, ref, sigma=sigma).items():
                rows.append(
                    {
                        "method": method,
                        "condition": line["condition"],
                        "n_people": line["n_people"],
                        "few_people": line["n_people"] < FEW_PEOPLE,
                        "percentile": line["percentile"],
                        "measure": measure,
                        "value": distance.value,
                        "n_people_boundaries": ref.count,
                        "share_near_default": line["share_near_default"],
                        "note": distance.note,
                    }
                )
    return pd.DataFrame(rows, columns=list(_PERCENTILE_COLUMNS))
