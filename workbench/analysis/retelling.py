"""A scored set of retellings: who recalled which events of which story, in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.recall.resampling import bootstrap_weights, interval
from workbench.analysis.recall.sequences import RecallSequences
from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError

__all__ = ["StoryRecall"]


@dataclass(frozen=True, eq=False)
class StoryRecall:
    """Events recalled from stories; goes into every measure of recall order as it is.

    Parameters
    ----------
    events : one row per person, story and event: subject, story, condition, event (from 1), start
        (first word), n_words, recalled (0 or 1), similarity (of the most similar sentence),
        order (place of the first mention, from 1; <NA> where not recalled), n_sentences (that
        belong to it), shuffled (share of shuffled transcripts that "recall" the event).
    sequences : the same as a free-recall table: subject, story, condition, list (the story),
        position, trial_type ("study", "recall"), item (number of the event).
    sentences : one row per sentence said: subject, story, condition, sentence (from 1), n_words,
        event (that it resembles most), similarity, passed.
    levels : one row per story: n_events, n_subjects, n_sentences, level, rate, null, n_null
        (sentences), null_passed (share of them above the level), passed (share of what was said),
        recalled (mean share of events), baseline (the same for shuffled transcripts).
    boundaries : the events of each story, over its words.
    settings : encoder, splitter, null, rate, seed.
    """

    events: pd.DataFrame
    sequences: pd.DataFrame
    sentences: pd.DataFrame
    levels: pd.DataFrame
    boundaries: dict[str, Boundaries]
    settings: dict[str, Any] = field(default_factory=dict)

    def recall_sequences(self) -> RecallSequences:
        """Recalled events in order: one list per person and story, without repeats."""
        return RecallSequences.from_table(self.sequences, source="retelling")

    def select(self, *, story: str | None = None, condition: str | None = None) -> StoryRecall:
        """The part of one story or condition; levels stay those of the whole story.

        Raises
        ------
        InputError : there is no such story or condition.
        """
        kept = {}
        wanted = {"story": story, "condition": condition}
        for name, choice in wanted.items():
            if choice is not None:
                check_option(name, choice, sorted(self.events[name].unique()))
        for part in ("events", "sequences", "sentences"):
            frame: pd.DataFrame = getattr(self, part)
            for name, choice in wanted.items():
                if choice is not None:
                    frame = frame[frame[name] == choice]
            kept[part] = frame.reset_index(drop=True)
        if kept["events"].empty:
            raise InputError(f"nobody recalled story {story!r} in condition {condition!r}.")
        stories = set(kept["events"]["story"])
        levels = self.levels[self.levels["story"].isin(stories)].reset_index(drop=True)
        boundaries = {name: cut for name, cut in self.boundaries.items() if name in stories}
        return StoryRecall(**kept, levels=levels, boundaries=boundaries, settings=self.settings)

    def summary(self, *, resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
        """Share of the events recalled, per story and condition, beside shuffled transcripts.

        Returns
        -------
        story ("all" over stories), condition ("all" over conditions), n_subjects, n_events,
        recalled (mean over people of the share of events), ci_low, ci_high (95 %, bootstrap over
        people), baseline (the same share in shuffled transcripts), difference.
        """
        rows = []
        for story in _with_all(self.boundaries):
            own = self.events if story == "all" else self.events[self.events["story"] == story]
            for condition in _with_all(own["condition"]):
                part = own if condition == "all" else own[own["condition"] == condition]
                shares = part.groupby("subject")["recalled"].mean().to_numpy(dtype=np.float64)
                baseline = float(part.groupby("subject")["shuffled"].mean().mean())
                weights = bootstrap_weights(len(shares), resamples, seed)
                low, high = interval(weights @ shares / len(shares))
                if len(shares) < 2:
                    low = high = float("nan")
                rows.append(
                    {
                        "story": story,
                        "condition": condition,
                        "n_subjects": len(shares),
                        "n_events": len(part[["story", "event"]].drop_duplicates()),
                        "recalled": float(shares.mean()),
                        "ci_low": low,
                        "ci_high": high,
                        "baseline": baseline,
                        "difference": float(shares.mean()) - baseline,
                    }
                )
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        shares = self.levels["recalled"].mean()
        return (
            f"StoryRecall({self.events['subject'].nunique()} people, {len(self.boundaries)} "
            f"stories, {self.levels['n_events'].sum()} events; {shares:.0%} recalled)"
        )


def _with_all(names: Iterable[str]) -> list[str]:
    """The names, sorted, and "all" where there is more than one."""
    known = sorted(set(names))
    return [*known, "all"] if len(known) > 1 else known
