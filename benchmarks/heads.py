"""Heads of a model on stories: `python benchmarks/heads.py [--stories pieman,lift] [--out DIR]`.

Per story one reading: attention within people's (or the author's) events beside two nulls, and
clusters of heads by their attention profile; then whether the stories agree. Prints tables in
Markdown; with --out also writes them as csv and the two figures as HTML (and PNG with a Chrome).
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

STATISTICS = ("lag", "entropy", "distance", "first")


def main() -> None:
    """Record, test, cluster, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stories", default="pieman,lift")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draws", type=int, default=999, help="segmentations per null")
    parser.add_argument("--no-clusters", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for tables and figures")
    options = parser.parse_args()

    import workbench as wb
    from workbench.analysis.head_attention import head_statistics, in_event_mass, inside_reducers
    from workbench.analysis.head_clusters import cluster_agreement, head_clusters
    from workbench.figures.attention import figure_head_clusters, figure_heads
    from workbench.stories.sentences import sentence_starts

    lm = wb.load_model(options.model)
    clusters = {}
    for name in options.stories.split(","):
        story = wb.load_story(name)
        first = wb.record(story, lm, keys=False)
        events = first.to_tokens(story.boundaries())
        sentences = wb.Boundaries(sentence_starts(story), n=story.n_words, unit="word")
        at_sentences = np.isin(events.inner, first.to_tokens(sentences).starts).mean()
        reducers = inside_reducers(
            events,
            draws=options.draws,
            seed=options.seed,
            among=first.to_tokens(sentences).starts,
        )
        trace = wb.record(story, lm, keys=False, attention=[*STATISTICS, *reducers])
        statistics = head_statistics(trace, seed=options.seed)
        inside = in_event_mass(trace, seed=options.seed)
        print(f"\n## {name}: {trace.n_tokens} tokens, {events.n_events} events ", end="")
        print(f"({story.annotation_kind}), {trace.dataset.sizes['layer']} layers; ", end="")
        print(f"{at_sentences:.0%} of the boundaries are sentence starts\n")
        print(_inside(inside))
        print(_best(inside), flush=True)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            statistics.to_csv(options.out / f"{name}_statistics.csv", index=False)
            inside.to_csv(options.out / f"{name}_inside.csv", index=False)
        if options.no_clusters:
            continue
        found = head_clusters(trace, draws=50, seed=options.seed)
        clusters[name] = found
        print(_markdown(found.choice.round(3)))
        print(_clusters(found))
        if options.out is not None:
            found.table.to_csv(options.out / f"{name}_clusters.csv", index=False)
            figures = {
                "heads": figure_heads(statistics, inside, null="lengths"),
                "clusters": figure_head_clusters(found),
            }
            from workbench.figures.export import find_browser, save_figure

            for kind, figure in figures.items():
                for form in ["html"] + (["png"] if find_browser() else []):
                    save_figure(figure, options.out / f"{name}_{kind}.{form}")
    names = list(clusters)
    for one, other in pairwise(names):
        agreement = cluster_agreement(clusters[one], clusters[other], seed=options.seed)
        print(f"{one} and {other}: ", {k: round(v, 3) for k, v in agreement.items()})


def _markdown(table: pd.DataFrame) -> str:
    rows = [table.columns, ["---"] * len(table.columns), *table.astype(str).to_numpy()]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows) + "\n"


def _inside(table: pd.DataFrame) -> str:
    """The mean over all heads, and how many heads differ, per null."""
    rows = []
    for null, part in table.groupby("null", sort=False):
        whole = part[part["layer"].isna()].iloc[0]
        heads = part[part["head"].notna()]
        sure = heads[heads["p_fdr"] < 0.05]
        rows.append(
            {
                "null": null,
                "share in own event": f"{whole['value']:.4f}",
                "95 % (events)": f"{whole['ci_low']:.4f} to {whole['ci_high']:.4f}",
                "null mean ± sd": f"{whole['null_mean']:.4f} ± {whole['null_sd']:.4f}",
                "z": f"{whole['z']:.2f}",
                "p": f"{whole['p']:.3f}",
                "heads above (FDR 0.05)": int((sure["difference"] > 0).sum()),
                "heads below (FDR 0.05)": int((sure["difference"] < 0).sum()),
                "uncorrected above": int(((heads["p"] < 0.05) & (heads["difference"] > 0)).sum()),
                "uncorrected below": int(((heads["p"] < 0.05) & (heads["difference"] < 0)).sum()),
            }
        )
    return _markdown(pd.DataFrame(rows))


def _best(table: pd.DataFrame, most: int = 5) -> str:
    heads = table[table["head"].notna() & (table["null"] == table["null"].iloc[0])]
    best = heads.sort_values("z", ascending=False).head(most)
    shown = ["layer", "head", "value", "ci_low", "ci_high", "null_mean", "null_sd", "z", "p"]
    return _markdown(best[[*shown, "p_fdr"]].round(4))


def _clusters(found: Any) -> str:
    table = found.table
    grouped = table.groupby("cluster").agg(
        heads=("head", "size"),
        layers=("layer", lambda x: f"{np.percentile(x, 25):.0f}–{np.percentile(x, 75):.0f}"),
        entropy=("entropy", "mean"),
        first=("first", "mean"),
        near=("near", "mean"),
        silhouette=("silhouette", "mean"),
        stability=("stability", "mean"),
    )
    split, boot = found.split_half, found.bootstrap
    said = (
        f"k = {found.k}, silhouette {found.silhouette:.3f}, p {found.p:.3f}; "
        f"split halves {split[0]:.2f} ({split[1]:.2f} to {split[2]:.2f}), "
        f"resampled texts {boot[0]:.2f} ({boot[1]:.2f} to {boot[2]:.2f})"
    )
    return f"{_markdown(grouped.round(3).reset_index())}\n\n{said}\n"


if __name__ == "__main__":
    main()
