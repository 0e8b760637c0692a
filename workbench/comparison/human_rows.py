"""Distances of one cut to people (or the author) as rows of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.bootstrap import Resamples, bootstrap_consensus, bootstrap_interval
from workbench.analysis.ceiling import Ceiling, ceilings
from workbench.analysis.human import token_draws_to_words
from workbench.analysis.people import People, people_on_words
from workbench.analysis.reference import (
    SELF,
    Reference,
    distances,
    distances_many,
    has_presses,
    reference,
)
from workbench.analysis.sensitivity import rule_sensitivity
from workbench.analysis.statistics import compare_with_null
from workbench.core.boundaries import Boundaries
from workbench.core.story import Story
from workbench.core.trace import Trace
from workbench.stories.consensus import FEW_PEOPLE, percentile_sensitivity, press_density

if TYPE_CHECKING:
    from workbench.comparison.task import Settings

__all__ = ["HumanMeasures"]

VARIANTS = {"wasserstein": "sigma=0", "hamming": "sentence-gaps"}


@dataclass(frozen=True, eq=False)
class HumanMeasures:
    """A story's people, ready to be compared with cuts.

    Parameters
    ----------
    trace : the recording; its story holds the annotations.
    settings : of the comparison.
    matched : people's (or the author's) boundaries for match "people" and None.
    people : presses of single people on words, or None.
    notes : what holds for the whole story.
    """

    trace: Trace
    settings: Settings
    matched: Reference
    people: People | None
    notes: list[str] = field(default_factory=list)
    _by_count: dict[int | None, _Resampled] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, settings: Settings) -> HumanMeasures:
        """Prepare a story's people once for all methods."""
        story = trace.story
        match = None if settings.match == "method" else settings.match
        matched = reference(
            story,
            match=match,
            source=settings.source,
            rule=settings.time_rule,
            condition=_condition(story, settings),
        )
        people = None
        if has_presses(story) and story.has_times:
            people = people_on_words(story, rule=settings.time_rule, condition=settings.condition)
            people = people if len(people.subjects) > 1 else None
        return cls(trace, settings, matched, people, _notes(story, matched, settings))

    @property
    def count(self) -> int | None:
        """Number of people's (or the author's) boundaries; None without an annotation."""
        return self.matched.count

    def boundaries(self) -> Boundaries | None:
        """The annotated boundaries over words, for figures; None where they have no place."""
        if self.matched.words is None:
            return None
        return Boundaries(
            np.concatenate([[0], self.matched.words]),
            n=self.matched.n_words,
            unit="word",
            method="H" if self.matched.kind == "people" else self.matched.kind,
            settings={"source": self.matched.source},
        )

    def density(self) -> pd.DataFrame | None:
        """People's smoothed presses on a grid of a tenth of a second: story, time, density."""
        story = self.trace.story
        if not has_presses(story):
            return None
        times, values = press_density(story, condition=self.settings.condition, step=0.1)
        return pd.DataFrame({"story": story.name, "time": times, "density": values})

    def sensitivity(
        self, model: str, cuts: Mapping[tuple[str, str, str], Boundaries]
    ) -> pd.DataFrame:
        """The distances under each rule that turns people's times into words."""
        story = self.trace.story
        if self.matched.kind != "people" or not story.has_times:
            return pd.DataFrame()
        table = rule_sensitivity(
            story,
            {code: cut for (_, _, code), cut in cuts.items() if code != "H"},
            match=self.settings.match,
            source=self.settings.source,
            condition=_condition(story, self.settings),
        )
        table.insert(0, "model", model)
        table.insert(0, "story", story.name)
        return table

    def rows(
        self, events: Boundaries, starts: NDArray[np.int64], fixed: Boundaries
    ) -> Iterator[dict[str, Any]]:
        """Rows of one cut under one null; nothing for a story without an annotation.

        Parameters
        ----------
        events : the cut, over tokens.
        starts : null draws, shape (draws, n_events).
        fixed : evenly spaced events, as many.
        """
        if self.matched.kind is None:
            return
        in_words = self.trace.to_words(events)
        count = len(in_words.inner) if self.settings.match == "method" else None
        target = self.matched if count is None else self._target(count)
        observed = distances(in_words, target)
        even = distances(self.trace.to_words(fixed).with_(method="F"), target)
        draws = token_draws_to_words(starts, self.trace.word_of_token(), self.trace.n_words)
        null = distances_many(draws, target)
        resampled = self._resampled(count)
        interval = (
            bootstrap_interval(in_words, resampled.consensus) if resampled.consensus else None
        )
        for measure, variant in VARIANTS.items():
            value = observed[measure]
            against = compare_with_null(value.value, null[measure])
            known = np.isfinite(value.value)
            low, high = interval[measure] if interval and known else (np.nan, np.nan)
            ceiling = resampled.ceiling[measure]
            itself = value.note == SELF
            note = [value.note]
            if not interval and known:
                note.append("no interval: no presses of single people")
            elif interval:
                note.append(interval[measure].remark(value.value))
            yield {
                "measure": measure,
                "variant": variant,
                "layer": None,
                "head": None,
                "value": value.value,
                "ci_low": low,
                "ci_high": high,
                "null_mean": np.nan if itself else float(against.mean),
                "null_sd": np.nan if itself else float(against.sd),
                "difference": float(against.difference),
                "z": float(against.z),
                "p": float(against.p),
                "fixed": np.nan if itself else even[measure].value,
                "ceiling_low": ceiling.low,
                "ceiling_high": ceiling.high,
                "note": "; ".join(part for part in note if part),
            }

    def _target(self, count: int) -> Reference:
        return reference(
            self.trace.story,
            match="method",
            n_boundaries=count,
            rule=self.settings.time_rule,
            condition=self.settings.condition,
        )

    def _resampled(self, count: int | None) -> _Resampled:
        """Ceilings and resampled consensuses, made once per number of boundaries."""
        if count not in self._by_count:
            given = self.people if self.people is not None else self.trace.story
            self._by_count[count] = _Resampled(
                ceilings(given, n_boundaries=count, seed=self.settings.seed),
                bootstrap_consensus(
                    self.people,
                    draws=self.settings.bootstrap,
                    n_boundaries=count,
                    seed=self.settings.seed,
                )
                if self.people is not None
                else None,
            )
        return self._by_count[count]


@dataclass(frozen=True, eq=False)
class _Resampled:
    ceiling: dict[str, Ceiling]
    consensus: Resamples | None


def _condition(story: Story, settings: Settings) -> str | None:
    """The condition for a consensus from presses; a published list has none."""
    published = any(a.kind == "people" and a.times is not None for a in story.annotations)
    return None if published and settings.source != "presses" else settings.condition


def _notes(story: Story, matched: Reference, settings: Settings) -> list[str]:
    notes = []
    if matched.note:
        notes.append(f"{story.name}: {matched.note}")
    if matched.kind == "author":
        notes.append(
            f"{story.name}: boundaries are the author's scenes, not people's; no ceiling exists"
        )
    if matched.kind == "people" and not has_presses(story):
        notes.append(
            f"{story.name}: only consensus times are public, so neither a ceiling nor an interval "
            "over people can be given"
        )
    if matched.source == "presses":
        table = percentile_sensitivity(story, condition=settings.condition, step=0.01)
        people = int(table["n_people"].iloc[0])
        if people < FEW_PEOPLE:
            counts = ", ".join(
                f"{row.n_boundaries} at the {row.percentile:g}th percentile"
                for row in table.itertuples()
            )
            notes.append(f"{story.name}: consensus of only {people} people: {counts}")
    return notes
