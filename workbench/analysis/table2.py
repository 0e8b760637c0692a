"""EM-LLM's Table 2 on any texts: methods against random segmentation, under each null.

Fountas et al. 2025, Table 2 reports, on PG-19 with γ = 1e-3, the modularity, conductance and
intra/inter similarity of six segmentations in the key graphs of every layer and head, less those
of random segmentation, as mean ± sd. What the paper leaves open is an argument here:

- chunks: `chunk` tokens, each a graph of its own; 512 is the released code's chunk;
- small events: γ = 1e-3 flags 40 % of the tokens, so a minimum size must have applied: `min_size`;
- counts: F and the random cuts get as many events as S, chunk by chunk;
- random: "uniform" positions are the natural reading; the other nulls stand beside it;
- conductance: minimum or mean over events, and which formula: all variants;
- which graph refines: `refine_on`;
- ± : the sd over chunk × layer × head, which exceeds most means. So the sd of chunk means and of
  layer means, an interval that resamples texts, and paired tests of each head stand beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.graph import Measure, check_measures
from workbench.analysis.nulls import NULLS
from workbench.analysis.table2_chunks import ChunkValues, chunk_spans, cut_chunk, measure_chunk
from workbench.analysis.table2_published import METHODS, PUBLISHED
from workbench.analysis.table2_summary import (
    PAIR_COLUMNS,
    Differences,
    order_rows,
    pair_rows,
    summary_rows,
)
from workbench.core.checks import check_option
from workbench.core.errors import DataError, InputError
from workbench.core.keygraph import KeyGraph
from workbench.core.story import Story
from workbench.core.trace import Trace
from workbench.events.threshold import threshold_flags

if TYPE_CHECKING:
    from workbench.models import LanguageModel

__all__ = ["MEASURES", "Table2", "table2", "table2_of_traces"]

MEASURES: tuple[Measure, ...] = (
    ("modularity", "em-llm"),
    ("conductance", "em-llm-paper:mean"),
    ("conductance", "em-llm-paper:min"),
    ("conductance", "em-llm-code:mean"),
    ("conductance", "em-llm-code:min"),
    ("conductance", "standard:mean"),
    ("conductance", "standard:min"),
    ("intra_inter", "sums"),
    ("intra_inter", "means"),
)
"""What is measured. EM-LLM's modularity is half of Newman's (Eq. 3), so it is the one compared."""


def scale_of(measure: str, variant: str) -> float:
    """Factor of a printed number: the paper's for modularity (1e5) and intra/inter (1e3).

    It does not state that of conductance. The em-llm forms are of order 10 as they are; the
    standard one moves in the fifth decimal and is printed × 1e5.
    """
    if measure == "modularity" or variant.startswith("standard"):
        return 1e5
    return 1e3 if measure == "intra_inter" else 1.0


HEADLINE: tuple[Measure, ...] = (
    ("modularity", "em-llm"),
    ("conductance", "em-llm-paper:min"),
    ("conductance", "em-llm-paper:mean"),
    ("conductance", "standard:mean"),
    ("intra_inter", "sums"),
)
"""Columns of the printed table; Equation 4 takes the minimum over events."""

REFINE_ON = ("summed", "head")


@dataclass(frozen=True, eq=False)
class Table2:
    """Table 2 of one or several models.

    Attributes
    ----------
    table : one row per model, method, measure, variant and null: `value` and `null_mean` (means
        over chunk × layer × head), `difference`, its `sd` over all of them, `sd_chunks` and
        `sd_layers` of the means, `ci_low`, `ci_high` (95 %, `resampled` says whether texts or
        chunks), `z` and `p` against random draws of the mean, `heads_up`, `heads_down`: heads whose
        difference is above or below 0 over chunks (Wilcoxon, Benjamini–Hochberg at 0.05; `_sign`
        the same by the sign test), `undefined` the share of values left out.
    pairs : the same for pairs of methods, head by head.
    orders : agreement of the order of methods with each published one: Kendall's tau with its
        interval and p, and the two orders, best first.
    settings : arguments, texts, tokens that were left out, versions of the recordings.
    """

    table: pd.DataFrame
    pairs: pd.DataFrame
    orders: pd.DataFrame
    settings: dict[str, Any]

    def report(self, nulls: Sequence[str] | None = None) -> str:
        """The table as text, in the paper's units, then the agreement of orders."""
        from workbench.analysis.table2_report import report

        return report(self, nulls)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write table, pairs and orders (csv), settings (JSON) and the report into a folder."""
        target = Path(folder)
        parts = {
            "table.csv": self.table.to_csv(index=False),
            "pairs.csv": self.pairs.to_csv(index=False),
            "orders.csv": self.orders.to_csv(index=False),
            "settings.json": json.dumps(self.settings, indent=1, ensure_ascii=False),
            "report.md": self.report(),
        }
        check_table2_target(target, overwrite)
        target.mkdir(parents=True, exist_ok=True)
        for name, text in parts.items():
            part = target / f".{name}.part"
            part.write_text(text, encoding="utf-8")
            os.replace(part, target / name)
        return target


def check_table2_target(folder: Path, overwrite: bool) -> None:
    """Raise unless a result can be written there."""
    if folder.is_file():
        raise InputError(f"{folder} is a file; name a folder.")
    if (folder / "table.csv").exists() and not overwrite:
        raise InputError(f"{folder} holds an earlier result; name another or use overwrite.")


def table2(
    texts: str | Path | Sequence[str | Path | Story],
    model: str | LanguageModel | Sequence[str | LanguageModel] = "smollm2-135m",
    *,
    gamma: float = 1e-3,
    chunk: int = 512,
    methods: Sequence[str] = METHODS,
    nulls: Sequence[str] = ("uniform", "lengths", "min_gap", "shift"),
    measures: Sequence[Measure] = MEASURES,
    draws: int = 100,
    min_size: int = 8,
    max_size: int | None = 128,
    window: int = 512,
    refine_on: str = "summed",
    scope: str = "next",
    layers: int | Iterable[int] | None = None,
    heads: int | Iterable[int] | None = None,
    resamples: int = 1000,
    seed: int = 0,
    cache: bool = True,
    progress: bool = False,
) -> Table2:
    """Record texts and measure six segmentations of every chunk on every layer and head.

    Parameters
    ----------
    texts : a folder of texts (.txt, in the order of their names), one text, or a list of texts,
        names of stories and Story objects.
    model : name(s) as in `load_model`, or loaded model(s).
    gamma : threshold of surprise (the paper's 1e-3: about the mean).
    chunk : tokens of a chunk; whole chunks only.
    methods, nulls, measures, draws : what is measured and against how many random cuts.
    min_size, max_size : tokens per event.
    window : values before a token that make its threshold, over the whole text.
    refine_on : the graph on which M and C refine: "summed", one per chunk with the weights of the
        last third of the layers added (as the released code does); or "head", each head's own, so
        that every head has its own SM, SC, FM and FC (Algorithm 1 read literally).
    scope : of refinement, see `refine`.
    layers, heads : whose keys are measured; default: all.
    resamples : of texts (or chunks, below three texts) for intervals.
    seed : of everything random.
    cache, progress : as in `workbench.compare`.

    Raises
    ------
    InputError : unknown options, or no text as long as a chunk.
    DataError : a folder without texts.
    """
    from workbench.recording.cache import cached_record
    from workbench.stories.library import load_story

    stories = [t if isinstance(t, Story) else load_story(t) for t in _texts(texts)]
    repeated = sorted({s.name for s in stories if [t.name for t in stories].count(s.name) > 1})
    if repeated:
        raise InputError(f"{', '.join(repeated)} was given more than once.")
    several = isinstance(model, Sequence) and not isinstance(model, str)
    models: Sequence[str | LanguageModel] = list(model) if several else [model]  # type: ignore
    found = []
    for name in models:
        traces = (
            cached_record(
                story,
                name,
                layers=layers,
                heads=heads,
                cache=cache,
                progress=progress,
            )
            for story in stories
        )
        found.append(
            table2_of_traces(
                traces,
                gamma=gamma,
                chunk=chunk,
                methods=methods,
                nulls=nulls,
                measures=measures,
                draws=draws,
                min_size=min_size,
                max_size=max_size,
                window=window,
                refine_on=refine_on,
                scope=scope,
                resamples=resamples,
                seed=seed,
                progress=progress,
            )
        )
    if len(found) == 1:
        return found[0]
    first = found[0].settings
    return Table2(
        pd.concat([part.table for part in found], ignore_index=True),
        pd.concat([part.pairs for part in found], ignore_index=True),
        pd.concat([part.orders for part in found], ignore_index=True),
        {**first, "models": [m for part in found for m in part.settings["models"]]},
    )


def table2_of_traces(
    traces: Iterable[Trace],
    *,
    gamma: float = 1e-3,
    chunk: int = 512,
    methods: Sequence[str] = METHODS,
    nulls: Sequence[str] = ("uniform", "lengths", "min_gap", "shift"),
    measures: Sequence[Measure] = MEASURES,
    draws: int = 100,
    min_size: int = 8,
    max_size: int | None = 128,
    window: int = 512,
    refine_on: str = "summed",
    scope: str = "next",
    resamples: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> Table2:
    """Table 2 of recordings by one model; arguments as in `table2`, traces taken one at a time."""
    from tqdm import tqdm

    for method in methods:
        check_option("method", method, METHODS)
    for null in nulls:
        check_option("null", null, NULLS)
    check_measures(measures)
    check_option("refine_on", refine_on, REFINE_ON)
    if chunk < 2 * min_size:
        raise InputError(f"chunk={chunk} must hold at least two events of min_size={min_size}.")
    chunks: list[ChunkValues] = []
    names: list[str] = []
    described: list[dict[str, Any]] = []
    index: list[tuple[int, int]] = []
    name = provenance = ""
    for trace in traces:
        spans = chunk_spans(trace.n_tokens, chunk)
        name, provenance = trace.settings["model"], trace.settings["provenance"]
        described.append(
            {
                "text": trace.story.name,
                "tokens": trace.n_tokens,
                "chunks": len(spans),
                "left_out": trace.n_tokens - chunk * len(spans),
                "text_hash": trace.settings.get("text_hash", ""),
            }
        )
        if not spans:
            continue
        here = [(int(a), int(b)) for a in trace.layers for b in trace.kv_heads]
        if index and here != index:
            raise InputError(f"{trace.story.name} was recorded with other layers or heads.")
        index = here
        keys = trace.keys()
        keys = keys.reshape(-1, *keys.shape[2:])
        last = np.isin([layer for layer, _ in index], trace.last_third())
        flags = threshold_flags(trace.surprisal, gamma, window=window).flags
        for number, (a, b) in enumerate(
            tqdm(spans, desc=f"{trace.story.name}: chunks", disable=not progress, leave=False)
        ):
            chunks.append(
                _chunk(
                    keys[:, a:b],
                    last,
                    flags[a:b],
                    methods,
                    measures,
                    nulls,
                    refine_on=refine_on,
                    cut={"min_size": min_size, "max_size": max_size, "scope": scope},
                    draws=draws,
                    seed=[seed, len(described), number],
                )
            )
            names.append(trace.story.name)
    if not described:
        raise InputError("there is no text; name at least one.")
    if not chunks:
        longest = max(row["tokens"] for row in described)
        raise InputError(
            f"no text has chunk={chunk} tokens (the longest has {longest}); choose shorter chunks."
        )
    found = _gathered(chunks, name, names, np.array([layer for layer, _ in index]))
    options = {"resamples": resamples, "seed": seed}
    return Table2(
        pd.DataFrame(summary_rows(found, methods, measures, nulls, **options)),
        pd.DataFrame(
            pair_rows(found, methods, measures, nulls, **options), columns=list(PAIR_COLUMNS)
        ),
        pd.DataFrame(order_rows(found, methods, measures, nulls, **options)),
        {
            "models": [name],
            "provenance": provenance,
            "texts": described,
            "gamma": gamma,
            "chunk": chunk,
            "methods": list(methods),
            "nulls": list(nulls),
            "draws": draws,
            "min_size": min_size,
            "max_size": max_size,
            "window": window,
            "refine_on": refine_on,
            "scope": scope,
            "resamples": resamples,
            "seed": seed,
            "layers": sorted({layer for layer, _ in index}),
            "heads": sorted({head for _, head in index}),
            "published": list(PUBLISHED),
        },
    )


def _chunk(
    keys: NDArray[np.float32],
    last: NDArray[np.bool_],
    flags: NDArray[np.bool_],
    methods: Sequence[str],
    measures: Sequence[Measure],
    nulls: Sequence[str],
    *,
    refine_on: str,
    cut: dict[str, Any],
    draws: int,
    seed: Sequence[int],
) -> ChunkValues:
    """Measures of one chunk; keys (heads, n, d), `last` the heads that refine together."""
    options: dict[str, Any] = {"draws": draws, "seed": seed, "min_size": cut["min_size"]}
    if refine_on == "summed":
        guide = KeyGraph(keys[last]).summed()
        cuts = cut_chunk(flags, methods, guide, **cut)
        return measure_chunk(KeyGraph(keys), cuts, measures, nulls, **options)
    parts = []
    for head in range(len(keys)):
        graph = KeyGraph(keys[head : head + 1])
        cuts = cut_chunk(flags, methods, graph, **cut)
        parts.append(measure_chunk(graph, cuts, measures, nulls, **options))
    first = parts[0]
    used = {key: "+".join(dict.fromkeys(part.used[key] for part in parts)) for key in first.used}
    return ChunkValues(
        value={key: np.concatenate([p.value[key] for p in parts]) for key in first.value},
        null_mean={
            key: np.concatenate([p.null_mean[key] for p in parts]) for key in first.null_mean
        },
        null_draws={key: _mean_of([p.null_draws[key] for p in parts]) for key in first.null_draws},
        used=used,
        n_events=first.n_events,
    )


def _mean_of(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    stacked = np.stack(rows)
    defined = np.isfinite(stacked)
    count = defined.sum(axis=0)
    total = np.where(defined, stacked, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _gathered(
    chunks: Sequence[ChunkValues], model: str, texts: list[str], layers: NDArray[np.int64]
) -> Differences:
    first = chunks[0]
    return Differences(
        model=model,
        texts=texts,
        layers=layers,
        value={key: np.stack([c.value[key] for c in chunks]) for key in first.value},
        null_mean={key: np.stack([c.null_mean[key] for c in chunks]) for key in first.null_mean},
        null_draws={key: np.stack([c.null_draws[key] for c in chunks]) for key in first.null_draws},
        used={key: "+".join(dict.fromkeys(c.used[key] for c in chunks)) for key in first.used},
        events={
            m: np.array([c.n_events[m] for c in chunks], dtype=np.int64) for m in first.n_events
        },
    )


def _texts(texts: str | Path | Sequence[str | Path | Story]) -> list[str | Path | Story]:
    if isinstance(texts, (str, Path)):
        folder = Path(texts)
        if not folder.is_dir():
            return [texts]
        files = sorted(p for p in folder.glob("*.txt") if p.is_file())
        if not files:
            raise DataError(f"{folder} holds no text (*.txt); name another folder, or stories.")
        return list(files)
    if len(texts) == 0:
        raise InputError("an empty list was given; name at least one text.")
    return list(texts)
