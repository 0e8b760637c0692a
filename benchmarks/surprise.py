"""Kumar's claim on every story with people: `python benchmarks/surprise.py` (WORKBENCH_DATA set).

Surprisal, entropy and Bayesian surprise at people's boundaries (the nearest sentence gap) against
other sentence starts (which of them are boundaries is permuted) and against all words; one
Markdown row per story and measure, and the stories together, permuted within each. Traces are
cached, so a second run takes seconds.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import workbench as wb
from workbench.analysis.peri_boundary import peri_boundary
from workbench.recording.cache import cached_record

STORIES = ["pieman", "eventnoise-1", "eventnoise-2", "eventnoise-3"]  # timed and punctuated
MEASURES = ["surprisal", "entropy", "bayesian_surprise", "bayesian_surprise_old_new"]
SIDE = 8


@dataclass
class Words:
    """One or several stories as one row of words, with NaN between them."""

    values: dict[str, NDArray[np.float64]]
    groups: NDArray[np.int64]
    sentences: NDArray[np.int64]
    starts: NDArray[np.int64]


def one(name: str) -> Words:
    """A story read by the embedded model."""
    story = wb.load_story(name)
    trace = cached_record(story, keys=False)
    values = {measure: trace.dataset[f"word_{measure}"].values for measure in MEASURES}
    starts = story.boundaries("people", rule="sentence").inner
    return Words(values, np.zeros(story.n_words, np.int64), story.sentence_starts(), starts)


def together(parts: list[Words]) -> Words:
    """Stories one after the other, `SIDE` NaN behind each."""
    gap = np.full(SIDE, np.nan)
    values = {
        measure: np.concatenate([x for part in parts for x in (part.values[measure], gap)])
        for measure in MEASURES
    }
    sizes = np.array([len(part.groups) + SIDE for part in parts])
    shifts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return Words(
        values,
        np.repeat(np.arange(len(parts)), sizes),
        np.concatenate([part.sentences + shift for part, shift in zip(parts, shifts)]),
        np.concatenate([part.starts + shift for part, shift in zip(parts, shifts)]),
    )


def rows(name: str, words: Words, draws: int) -> list[dict[str, object]]:
    """Rows of one story: at the first word, over all offsets, and for the sentence's mean."""
    firsts = np.flatnonzero(np.diff(words.groups, prepend=-1))  # a story's own start is no boundary
    pool = np.setdiff1d(words.sentences, firsts)
    of_sentence = words.groups[words.sentences]
    where = np.flatnonzero(np.isin(words.sentences, words.starts))
    found = []
    for measure, values in words.values.items():
        options = {"before": SIDE, "after": SIDE, "draws": draws}
        matched = peri_boundary(values, words.starts, pool, groups=words.groups, **options)
        every = np.setdiff1d(np.flatnonzero(np.isfinite(values)), firsts)
        options = {"before": 0, "after": 0, "draws": min(draws, 5000)}
        naive = peri_boundary(values, words.starts, every, groups=words.groups, **options).iloc[0]
        means = np.array([np.nanmean(part) for part in np.split(values, words.sentences[1:])])
        inner = np.flatnonzero(np.isin(words.sentences, pool))
        options = {"before": 0, "after": 0, "draws": draws}
        whole = peri_boundary(means, where, inner, groups=of_sentence, **options).iloc[0]
        first = matched[matched.offset == 0].iloc[0]
        found.append(
            {
                "story": name,
                "boundaries": len(words.starts),
                "sentence starts": len(pool),
                "measure": measure,
                "first word": f"{first['mean']:.2f} [{first['low']:.2f}, {first['high']:.2f}]",
                "null": f"{first['null_mean']:.2f} [{first['null_low']:.2f}, "
                f"{first['null_high']:.2f}]",
                "p": shown(first["p"]),
                "p, any offset": shown(first["p_any"]),
                "all words": f"{naive['null_mean']:.2f}",
                "p, all words": shown(naive["p"]),
                "sentence's mean": f"{whole['difference']:+.2f}",
                "p, sentence's mean": shown(whole["p"]),
            }
        )
    return found


def shown(p: float) -> str:
    """A p value with three digits behind the point."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("stories", nargs="*", default=STORIES)
    options = parser.parse_args()
    stories = {name: one(name) for name in options.stories}
    table = [row for name, words in stories.items() for row in rows(name, words, options.draws)]
    if len(stories) > 1:
        table += rows("together", together(list(stories.values())), options.draws)
    print("| " + " | ".join(table[0]) + " |")
    print("|" + "---|" * len(table[0]))
    for row in pd.DataFrame(table).itertuples(index=False):
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
