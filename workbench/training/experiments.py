"""Presets at work: a trainer of a variant, its data, and the tables it ends with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from workbench.core.checks import check_option
from workbench.training.decoder import Decoder
from workbench.training.dictionary import Dictionary
from workbench.training.generated import DictionaryData
from workbench.training.invented import invented_documents
from workbench.training.loader import DocumentLoader
from workbench.training.loop import Data, Trainer
from workbench.training.measure import distraction_table, lookup_table, nats_table
from workbench.training.methods import (
    METHODS,
    CrossbatchMethod,
    MemorizingTransformer,
    Method,
    Standard,
    Switch,
    TransformerXL,
)
from workbench.training.presets import Preset, Variant, preset
from workbench.training.schedules import ContextSchedule, schedule

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["build", "data_of", "method_of", "report"]


def method_of(variant: Variant, steps: int) -> Method:
    """The method of a variant."""
    crossbatch, memory = dict(variant.crossbatch), dict(variant.memory)
    check_option("method", variant.method, METHODS)
    if variant.method == "standard":
        return Standard()
    if variant.method == "fot":
        return CrossbatchMethod(**crossbatch)
    if variant.method == "xl":
        return TransformerXL(**memory)
    if variant.method == "mt":
        return MemorizingTransformer(**memory)
    later = MemorizingTransformer(**memory)
    return Switch(CrossbatchMethod(**crossbatch), later, max(1, steps // 2))


def data_of(chosen: Preset, seed: int, *, rank: int = 0, world: int = 1) -> Data:
    """Training data of a preset."""
    if isinstance(chosen.data, Dictionary):
        stages = tuple(n for n in (2, 4, 8, 16) if n < chosen.data.records)
        return DictionaryData(
            chosen.data,
            chosen.rows,
            records=(*stages, chosen.data.records),
            seed=seed,
            rank=rank,
        )
    return DocumentLoader(
        invented_documents(chosen.data, seed=seed),
        rows=chosen.rows,
        window=chosen.window,
        seed=seed,
        rank=rank,
        world=world,
    )


def build(
    name: str,
    variant: str | None = None,
    *,
    size: str = "tiny",
    seed: int = 0,
    steps: int | None = None,
    out: Path | str | None = None,
    log: str = "auto",
    cpu: bool = False,
    data: Data | None = None,
) -> Trainer:
    """A trainer of one variant of a preset, ready to `train()`.

    Parameters
    ----------
    variant : name of what is trained; None for the preset's first.
    seed : of weights, data and links.
    steps : fewer (or more) than the preset's own; the rates are laid out over them.
    data : rows to train on instead of the preset's own.
    """
    from accelerate import PartialState

    chosen = preset(name, size)
    variant = next(iter(chosen.variants)) if variant is None else variant
    check_option("variant", variant, chosen.variants)
    arm = chosen.variants[variant]
    settings = replace(chosen.settings, seed=seed, steps=steps or chosen.settings.steps)
    place = PartialState(cpu=cpu)
    torch.manual_seed(seed)
    decoder = Decoder(replace(chosen.decoder, **arm.decoder))
    d: ContextSchedule = schedule(arm.d, arm.rule, **arm.options)
    rows = data_of(chosen, seed, rank=place.process_index, world=place.num_processes)
    return Trainer(
        decoder,
        rows if data is None else data,
        method_of(arm, settings.steps),
        d,
        settings,
        out=out,
        log=log,
        cpu=cpu,
    )


def report(
    decoder: Decoder, chosen: Preset, variant: Variant, *, seed: int = 1
) -> dict[str, pd.DataFrame]:
    """What a trained decoder of a preset reaches, as tables by title.

    Dictionaries: r_d and accuracy by number of documents, accuracy by memory tokens. Texts: nats
    on fresh documents by what the memory holds.
    """
    if isinstance(chosen.data, Dictionary):
        window = chosen.data.window
        return {
            "distraction": distraction_table(decoder, chosen.data, seed=seed),
            "look-up": lookup_table(
                decoder, chosen.data, [window * 4**power for power in range(5)], seed=seed
            ),
        }
    fresh = invented_documents(chosen.data, documents=4 * chosen.rows, seed=seed + 1000)
    sizes = [chosen.window * 2**power for power in range(4)]
    d = [0, *(2**power for power in range(5) if 2**power <= chosen.rows)]
    windows = int(variant.crossbatch.get("windows", 1))
    return {
        "nats": nats_table(
            decoder, fresh, chosen.window, d=d, windows=windows, capacity=sizes, rows=chosen.rows
        )
    }
