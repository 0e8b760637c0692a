"""Kumar's claim on every story with people: `python benchmarks/surprise.py` (WORKBENCH_DATA set).

Bayesian surprise, surprisal and entropy at people's boundaries against other sentence starts
(labels permuted) and against all words; one Markdown row per story and measure. Traces are
cached, so a second run takes seconds.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

import workbench as wb
from workbench.analysis.peri_boundary import peri_boundary
from workbench.recording.cache import cached_record

STORIES = ["pieman", "eventnoise-1", "eventnoise-2", "eventnoise-3"]  # timed and punctuated
MEASURES = ["surprisal", "entropy", "bayesian_surprise", "bayesian_surprise_old_new"]


def rows(name: str, draws: int) -> list[dict[str, object]]:
    """Rows of one story: at the first word, over all offsets, and for the sentence's mean."""
    story = wb.load_story(name)
    trace = cached_record(story, keys=False)
    sentences = story.sentence_starts()
    starts = story.boundaries("people", rule="sentence").inner
    pool = sentences[sentences > 0]
    found = []
    for measure in MEASURES:
        values = trace.dataset[f"word_{measure}"].values
        matched = peri_boundary(values, starts, pool, draws=draws)
        naive = peri_boundary(values, starts, np.arange(1, story.n_words), draws=draws)
        means = np.array([np.nanmean(part) for part in np.split(values, sentences[1:])])
        where = np.flatnonzero(np.isin(sentences, starts))
        whole = peri_boundary(
            means, where, np.arange(1, len(sentences)), before=0, after=0, draws=draws
        ).iloc[0]
        first = matched[matched.offset == 0].iloc[0]
        other = naive[naive.offset == 0].iloc[0]
        found.append(
            {
                "story": name,
                "boundaries": len(starts),
                "sentences": len(sentences),
                "measure": measure,
                "first word": f"{first['mean']:.2f} [{first['low']:.2f}, {first['high']:.2f}]",
                "other sentence starts": f"{first['null_mean']:.2f} [{first['null_low']:.2f}, "
                f"{first['null_high']:.2f}]",
                "p": f"{first['p']:.3f}",
                "p, any offset": f"{first['p_any']:.3f}",
                "all words": f"{other['null_mean']:.2f}",
                "p, all words": f"{other['p']:.4f}",
                "sentence mean, difference": f"{whole['difference']:+.2f}",
                "p, sentence mean": f"{whole['p']:.3f}",
            }
        )
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("stories", nargs="*", default=STORIES)
    options = parser.parse_args()
    table = pd.DataFrame([row for name in options.stories for row in rows(name, options.draws)])
    print("| " + " | ".join(table.columns) + " |")
    print("|" + "---|" * len(table.columns))
    for row in table.itertuples(index=False):
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
