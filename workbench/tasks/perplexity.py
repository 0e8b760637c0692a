"""Perplexity against context length: how well systems predict a text the further they are in it."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.checks import whole_number
from workbench.core.errors import DataError, InputError
from workbench.models import DEFAULT_MODEL, LanguageModel, load_model
from workbench.tasks.records import RunFolder
from workbench.tasks.run_settings import agreed, limits_of, model_settings
from workbench.tasks.systems import SystemsLike, SystemSpec, system_specs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PerplexityCurve", "curve_table", "perplexity_curve"]


@dataclass(frozen=True, eq=False)
class PerplexityCurve:
    """What systems made of the same texts.

    Parameters
    ----------
    table : see `curve_table`.
    nats : label → one array per text: -log probability of each token in nats; NaN where it has
        none (a first token without a start token before it) or is beyond `max_length`.
    settings : what they were made with.
    """

    table: pd.DataFrame
    nats: dict[str, list[NDArray[np.float64]]]
    settings: dict[str, Any]


def perplexity_curve(
    systems: SystemsLike,
    text: str | Sequence[str],
    lengths: Sequence[int],
    *,
    lm: LanguageModel | str | None = None,
    options: Mapping[str, Any] | None = None,
    max_length: Mapping[str, int] | None = None,
    baseline: str | None = None,
    block: int = 64,
    draws: int = 1000,
    seed: int = 0,
    out: str | Path | None = None,
) -> PerplexityCurve:
    """Nats per token against the tokens read before, systems reading the same texts.

    Each system reads each text once, from its beginning; the tokens are then sorted by how many
    stood before them. Where in a text a token stands also decides how hard it is, so the curve of
    one system says little; the difference of two on the same tokens is what memory makes.

    Parameters
    ----------
    systems, options, max_length : as in `run_grid`.
    text : one or several texts; the part beyond the largest length is left out.
    lengths : ends of the bins of context, in tokens: 512, 1024, 4096 gives tokens with 0 to 511,
        512 to 1,023 and 1,024 to 4,095 tokens before them.
    lm : the model; default: the embedded one.
    baseline : label that the others are compared with; default: the first.
    block, draws, seed : of the bootstrap, see `curve_table`.
    out : folder that keeps what each system made of each text, so that an interrupted run goes on.

    Raises
    ------
    InputError : a value that is not allowed; a text too short for the last bin; a folder made with
        other settings.
    """
    texts = [text] if isinstance(text, str) else list(text)
    edges = [whole_number("length", length, 2) for length in lengths]
    if not edges or sorted(set(edges)) != edges:
        raise InputError(f"lengths={edges} must increase; they are the ends of the bins.")
    specs = system_specs(systems, options)
    labels = [spec.label for spec in specs]
    if baseline is not None and baseline not in labels:
        raise InputError(f"baseline={baseline!r} is not among the systems {labels}.")
    if not isinstance(lm, LanguageModel):
        lm = load_model(lm or DEFAULT_MODEL)
    limits = limits_of(specs, max_length or {}, lm)
    cut = [_cut(lm.tokenizer, part, edges[-1], number) for number, part in enumerate(texts)]
    if max(n for _, n in cut) <= (edges[-2] if len(edges) > 1 else 1):
        raise InputError(
            f"lengths={edges}: the longest text has {max(n for _, n in cut)} tokens, so no token "
            "falls into the last bin; give a longer text or shorter lengths."
        )
    settings = {
        "task": "perplexity",
        "model": model_settings(lm),
        "texts": [hashlib.sha256(part.encode()).hexdigest() for part, _ in cut],
        "systems": {
            spec.label: {**spec.settings(), "max_length": _finite(limits[spec.label])}
            for spec in specs
        },
    }
    folder = None
    if out is not None:
        kept = RunFolder(out)
        settings = agreed(kept, settings)
        kept.store_settings(settings)
        folder = kept.folder
    nats = {
        spec.label: _scored(spec, lm, [p for p, _ in cut], limits[spec.label], folder)
        for spec in specs
    }
    table = curve_table(nats, edges, baseline=baseline, block=block, draws=draws, seed=seed)
    table["model"], table["provenance"] = lm.name, lm.provenance
    return PerplexityCurve(table, nats, settings)


def curve_table(
    nats: Mapping[str, Sequence[NDArray[np.float64]]],
    lengths: Sequence[int],
    *,
    baseline: str | None = None,
    block: int = 64,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """Means of nats per token in bins of context, with bootstrap intervals.

    Parameters
    ----------
    nats : label → one array per text, NaN where a token has no value.
    lengths : ends of the bins, increasing.
    baseline : label the others are compared with; default: the first.
    block : neighbouring tokens are not independent: stretches of so many are resampled together,
        the same ones for all systems.
    draws, seed, level : of the bootstrap; no interval from fewer than 10 stretches.

    Returns
    -------
    One row per system and bin: system, low_context, high_context (tokens before, inclusive),
    n_tokens, n_blocks, nats (mean), ci_low, ci_high, perplexity (exp of the mean); baseline,
    n_paired, difference (mean of system minus baseline over the tokens both have), difference_low,
    difference_high. Tokens without a value for a system are left out for that system.
    """
    import pandas as pd

    from workbench.analysis.statistics import percentile_interval

    if block < 1 or draws < 1:
        raise InputError(f"block={block} and draws={draws} must be at least 1.")
    against = baseline if baseline is not None else next(iter(nats))
    rng = np.random.default_rng(seed)
    rows = []
    starts = [0, *list(lengths)[:-1]]
    for low, high in zip(starts, lengths):
        longest = [len(values) for values in nats[against]]
        blocks = [
            (text, place, min(place + block, high, longest[text]))
            for text in range(len(longest))
            for place in range(low, min(high, longest[text]), block)
        ]
        weights = rng.multinomial(len(blocks), np.full(len(blocks), 1 / len(blocks)), size=draws)
        reference = _block_values(nats[against], blocks)
        for label, values in nats.items():
            own = _block_values(values, blocks)
            paired = [x - y for x, y in zip(own, reference)]
            row: dict[str, Any] = {
                "system": label,
                "low_context": low,
                "high_context": high - 1,
                "n_blocks": len(blocks),
                "baseline": against,
            }
            for parts, names in (
                (own, ("n_tokens", "nats", "ci_low", "ci_high")),
                (paired, ("n_paired", "difference", "difference_low", "difference_high")),
            ):
                count = np.array([np.isfinite(part).sum() for part in parts])
                total = np.array([np.nansum(part) for part in parts])
                with np.errstate(invalid="ignore", divide="ignore"):
                    mean = total.sum() / count.sum()
                    means = (weights @ total) / (weights @ count)
                ends = percentile_interval(means, level) if len(blocks) >= 10 else (np.nan, np.nan)
                row |= dict(zip(names, (int(count.sum()), float(mean), *map(float, ends))))
            row["perplexity"] = float(np.exp(row["nats"]))
            rows.append(row)
    return pd.DataFrame(rows)


def _block_values(
    values: Sequence[NDArray[np.float64]], blocks: Sequence[tuple[int, int, int]]
) -> list[NDArray[np.float64]]:
    return [values[text][first:last] for text, first, last in blocks]


# --- scoring -------------------------------------------------------------------------------


def _scored(
    spec: SystemSpec, lm: LanguageModel, texts: list[str], limit: float, folder: Path | None
) -> list[NDArray[np.float64]]:
    """-log probabilities of one system on every text, read back where they are kept."""
    from workbench.tasks.items import count_tokens

    system, found = None, []
    for number, text in enumerate(texts):
        digest = hashlib.sha256(spec.label.encode()).hexdigest()[:12]
        path = None if folder is None else folder / f"nats_{digest}_{number}.npy"
        if path is not None and path.is_file():
            found.append(_load(path))
            continue
        system = spec.make(lm) if system is None else system
        system.reset()
        n = count_tokens(lm.tokenizer, text)
        part = text if n <= limit else _cut(lm.tokenizer, text, int(limit), number)[0]
        values = np.full(n, np.nan)
        scores = -np.asarray(system.score(part, keep=False), dtype=np.float64)
        if len(scores) > n:
            raise DataError(
                f"{spec.label} returned {len(scores)} scores for the {n} tokens of text {number}."
            )
        values[: len(scores)] = scores
        if path is not None:
            _store(path, values)
        found.append(values)
    return found


def _cut(tokenizer: Any, text: str, length: int, number: int) -> tuple[str, int]:
    """The longest beginning of a text that has at most so many tokens, and their number."""
    from workbench.recording.tokens import tokenize
    from workbench.tasks.items import count_tokens

    tokens = tokenize(tokenizer, text, f"text {number}")
    n, kept = len(tokens.ids), length
    while n > length:
        text = text[: int(tokens.char_end[kept - 1])]
        n = count_tokens(tokenizer, text)  # a cut inside a word can change its tokens
        kept -= 1
    return text, n


def _finite(limit: float) -> int | None:
    return None if np.isinf(limit) else int(limit)


def _store(path: Path, values: NDArray[np.float64]) -> None:
    """Whole or not at all."""
    content = io.BytesIO()
    np.save(content, values, allow_pickle=False)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content.getvalue())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _load(path: Path) -> NDArray[np.float64]:
    try:
        return np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); delete it, and it is made again.") from error
