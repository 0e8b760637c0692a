"""Recall of the three EventNoise stories: every number of docs/results.md on it.

    WORKBENCH_DATA=DIR python benchmarks/story_recall.py --out out/story_recall

Prints the tables and writes them as .csv. Most of the time goes into encoding sentences.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

import workbench
from workbench.analysis.event_order import event_contiguity
from workbench.analysis.nulls import null_starts
from workbench.analysis.recall.asymmetry import asymmetry
from workbench.analysis.recall.resampling import permutation_summary
from workbench.analysis.recall.temporal import temporal_factor
from workbench.analysis.recall_agreement import method_agreement
from workbench.analysis.recall_predictors import recall_table
from workbench.analysis.recall_regression import recall_regression
from workbench.analysis.story_recall import (
    NULLS,
    StoryRecall,
    event_texts,
    story_recall,
    transcript_sentences,
)
from workbench.core.boundaries import Boundaries
from workbench.core.story import Story
from workbench.core.trace import Trace
from workbench.encoders import CachedEncoder, load_encoder
from workbench.stories.eventnoise_scores import published_events, published_scores
from workbench.stories.transcripts import load_transcripts

NAMES = ("eventnoise-1", "eventnoise-2", "eventnoise-3")
METHODS = ("S", "SM", "F")
CONDITIONS = ("clear", "+2SNR", "-4SNR")


class Report:
    """Prints tables and keeps them as files."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, name: str, table: pd.DataFrame) -> None:
        """Print a table, and keep it."""
        print(f"\n== {name}\n{table.round(3).to_string(index=False)}", flush=True)
        if self.folder is not None:
            table.to_csv(self.folder / f"{name}.csv", index=False)


def segmentations(
    stories: dict[str, Story], traces: dict[str, Trace], people: dict[str, Boundaries]
) -> dict[str, dict[str, Boundaries]]:
    """Events of people per condition and of methods with as many boundaries as people's."""
    cuts = {"H": people}
    for condition in CONDITIONS[1:]:
        cuts[f"H {condition}"] = {
            name: story.boundaries(condition=condition) for name, story in stories.items()
        }
    for method in METHODS:
        cuts[method] = {
            name: trace.to_words(
                workbench.segment(trace, method, n_boundaries=people[name].n_events - 1)
            )
            for name, trace in traces.items()
        }
    return cuts


def by_segmentation(
    name: str,
    cuts: dict[str, Boundaries],
    stories: dict[str, Story],
    memo: CachedEncoder,
    null: str,
    draws: int,
    seed: int = 0,
) -> pd.DataFrame:
    """How well events are the units of retelling, beside random events of the same lengths.

    The score is what is recalled beyond shuffled transcripts, which have the same events; random
    segmentations are the same events' lengths in another order.
    """
    options = {"stories": stories.values(), "encoder": memo, "null": null}
    rng = np.random.default_rng(seed)
    value = _excess(story_recall("eventnoise", cuts, **options))
    null_values = []
    for _ in range(draws):
        drawn = {
            story: Boundaries(null_starts(cut, "lengths", 1, rng)[0], n=cut.n, unit="word")
            for story, cut in cuts.items()
        }
        null_values.append(_excess(story_recall("eventnoise", drawn, **options)))
    rows = []
    for measure, number in value.items():
        sample = np.array([row[measure] for row in null_values])
        rows.append(
            {
                "events": name,
                "n_events": sum(cut.n_events for cut in cuts.values()),
                "measure": measure,
                "value": number,
                **permutation_summary(number, sample),
                "draws": draws,
            }
        )
    return pd.DataFrame(rows)


def checks(recall: StoryRecall, stories: dict[str, Story], memo: CachedEncoder) -> pd.DataFrame:
    """Which of a story's own sentences pass, and whether the event is theirs."""
    rows = []
    for name, story in stories.items():
        cut, words = recall.boundaries[name], story.text.split()
        labels, edges = cut.labels(), [*story.sentence_starts().tolist(), len(words)]
        whole = [(a, b) for a, b in pairwise(edges) if labels[a] == labels[b - 1]]
        vectors = memo.encode([" ".join(words[a:b]) for a, b in whole])
        similarity = vectors @ memo.encode(event_texts(story, cut)).T
        level = recall.levels.set_index("story").loc[name, "level"]
        passed = similarity.max(axis=1) > level
        right = similarity.argmax(axis=1) == labels[[a for a, _ in whole]]
        rows.append(
            {
                "story": name,
                "null": recall.settings["null"],
                "n_sentences": len(whole),
                "passed": passed.mean(),
                "right_of_passed": right[passed].mean(),
            }
        )
    return pd.DataFrame(rows)


def mapped(stories: dict[str, Story], memo: CachedEncoder) -> pd.DataFrame:
    """How many transcripts are nearest to the story their trial maps them to."""
    names = list(stories)
    vectors = memo.encode([stories[name].text for name in names])
    table = load_transcripts("eventnoise")
    nearest = [
        names[int(np.argmax(vectors @ memo.encode(transcript_sentences(text)).mean(axis=0)))]
        for text in table["text"]
    ]
    return pd.DataFrame([{"n": len(table), "nearest": int((table["story"] == nearest).sum())}])


def _excess(recall: StoryRecall) -> dict[str, float]:
    events = recall.events
    return {
        "recalled": float(events["recalled"].mean()),
        "recalled - shuffled": float((events["recalled"] - events["shuffled"]).mean()),
        "sentences matched": float(recall.sentences["passed"].mean()),
        "similarity of sentences": float(recall.sentences["similarity"].mean()),
    }


def main(memo: CachedEncoder | None = None, arguments: list[str] | None = None) -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="folder for the tables")
    parser.add_argument("--draws", type=int, default=1000, help="permutations of statistics")
    parser.add_argument("--segmentations", type=int, default=19, help="random segmentations")
    options = parser.parse_args(arguments)
    report, draws = Report(options.out), options.draws
    memo = memo or CachedEncoder(load_encoder())
    stories = {name: workbench.load_story(name) for name in NAMES}
    language_model = workbench.load_model()
    traces = {name: workbench.record(story, language_model) for name, story in stories.items()}
    people = {name: story.boundaries() for name, story in stories.items()}

    report("mapped", mapped(stories, memo))
    for null in NULLS:
        recall = story_recall("eventnoise", stories=stories.values(), encoder=memo, null=null)
        report(f"levels_{null}", recall.levels)
        report(f"checks_{null}", checks(recall, stories, memo))
        report(f"recalled_{null}", recall.summary())
        table = recall_table(recall, stories.values(), traces.values())
        fitted = recall_regression(table, draws=draws)
        report(f"regression_{null}", fitted.coefficients)
        report(f"regression_{null}_fit", fitted.fit)
        own = recall_regression(
            table, ["pressed", "boundary", "log_words", "condition"], draws=draws, folds=0
        )
        report(f"regression_{null}_own_presses", own.coefficients)
        report(f"regression_{null}_own_presses_fit", own.fit)
        report(f"order_{null}", event_contiguity(recall, draws=draws))
        report(f"temporal_{null}", temporal_factor(recall, draws=draws).tail(1))
        report(f"asymmetry_{null}", asymmetry(recall, draws=draws))
        for condition in CONDITIONS:
            part = event_contiguity(recall.select(condition=condition), max_lag=2, draws=draws)
            report(f"order_{null}_{condition}", part)

    cuts = segmentations(stories, traces, people)
    for name, cut in cuts.items():
        if name == "H":
            continue
        recall = story_recall("eventnoise", cut, stories=stories.values(), encoder=memo)
        table = recall_table(recall, stories.values(), traces.values())
        fitted = recall_regression(table, draws=draws)
        report(f"events_{name}_levels", recall.levels)
        report(f"events_{name}_regression", fitted.coefficients)
        report(f"events_{name}_fit", fitted.fit)

    published = {name: published_events(story) for name, story in stories.items()}
    recall = story_recall("eventnoise", published, stories=stories.values(), encoder=memo)
    both = recall.events.merge(published_scores(), on=["subject", "story", "condition", "event"])
    report("published_levels", recall.levels)
    report(
        "agreement",
        pd.concat(
            [
                method_agreement(both, name, "recall_events", draws=draws)
                for name in ("similarity", "recalled")
            ]
            + [
                method_agreement(
                    both[both["recalled"] == 1].assign(order=lambda t: t["order"].astype(float)),
                    "order",
                    "recall_index",
                    draws=draws,
                )
            ]
        ),
    )
    if options.segmentations:
        for name in ("H", *METHODS[:2]):
            report(
                f"units_{name}",
                by_segmentation(name, cuts[name], stories, memo, "words", options.segmentations),
            )


if __name__ == "__main__":
    main()
