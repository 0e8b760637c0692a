"""The paper's experiments as named settings: what is trained, on what, at three sizes.

`tiny` trains on one processor core in minutes; `small` is laid out for one graphics card and ten
minutes and has not been measured; `paper` spells out the sizes and rates of FOT's tables.
A preset has variants: what its figure compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from workbench.core.checks import check_option
from workbench.training.decoder import DecoderConfig
from workbench.training.dictionary import Dictionary
from workbench.training.invented import Invented
from workbench.training.loop import Settings
from workbench.training.schedules import Rate

__all__ = ["PAPER_DECODERS", "PRESETS", "SIZES", "Preset", "Variant", "preset"]

SIZES = ("tiny", "small", "paper")


@dataclass(frozen=True)
class Variant:
    """One curve of a figure.

    Parameters
    ----------
    d, rule, options : schedule of d (`workbench.training.schedules.schedule`).
    method : "fot", "standard", "xl", "mt" or "fot+mt" (the second from half of the steps on).
    crossbatch : arguments of `CrossbatchMethod`.
    memory : arguments of `MemorizingTransformer` or `TransformerXL`.
    decoder : what differs in the decoder.
    """

    d: int | tuple[int, ...] = 1
    rule: str = "constant"
    options: Mapping[str, Any] = field(default_factory=dict)
    method: str = "fot"
    crossbatch: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    decoder: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preset:
    """An experiment at one size.

    Parameters
    ----------
    about : what it shows, and where in the paper.
    variants : what is compared; the first is the default.
    decoder : the decoder of all variants.
    data : `Dictionary` or `Invented` documents.
    rows : documents in a micro-batch.
    window : tokens of a row (texts; dictionaries have their own).
    settings : how to train.
    """

    about: str
    variants: Mapping[str, Variant]
    decoder: DecoderConfig
    data: Dictionary | Invented
    rows: int
    window: int
    settings: Settings


_STAGED = Variant((1, 2, 4, 8, 16), "accuracy", MappingProxyType({"accuracy": 0.95}))


def _warm(d: int, **crossbatch: Any) -> Variant:
    """D documents once memory is in use: from the first step on small models never look at it."""
    return Variant((1, d), "steps", {"starts": (0, 150)}, crossbatch=crossbatch)


# FOT, Table 9: 12 layers, memory layer 8, rotary positions except there.
_PAPER = DecoderConfig(
    vocabulary=32000,
    layers=12,
    dim=512,
    heads=8,
    head_dim=64,
    feed_forward=2048,
    memory_layers=(8,),
    positions="rope",
    tied=True,
)
PAPER_DECODERS: Mapping[str, DecoderConfig] = MappingProxyType(
    {
        "37M": _PAPER,
        "184M": replace(_PAPER, dim=1024, head_dim=128, feed_forward=4096),
        "600M": replace(
            _PAPER, vocabulary=64000, dim=2048, heads=16, head_dim=128, feed_forward=8192
        ),
        "1.2B": replace(
            _PAPER, vocabulary=64000, dim=2048, heads=32, head_dim=128, feed_forward=16384
        ),
    }
)
"""FOT, Table 9. The names of 37M, 600M and 1.2B count the layers only."""

_TINY = DecoderConfig(vocabulary=64)
_TINY_SETTINGS = Settings(1000, Rate(3e-3, 3e-4))
_SMALL = DecoderConfig(
    vocabulary=64, layers=4, dim=256, heads=8, feed_forward=1024, memory_layers=(2,)
)
_SMALL_SETTINGS = Settings(5000, Rate(2e-3, 2e-4, 200), precision="bf16", log_every=50)


def _paper_settings(peak: float, least: float, steps: int) -> Settings:
    rate = Rate(peak, least, 1000, "inverse-sqrt")
    return Settings(
        steps, rate, optimizer="adafactor", precision="bf16", log_every=100, checkpointing=True
    )


def _sized(
    about: str,
    variants: Mapping[str, Variant],
    data: Dictionary | Invented,
    tiny: DecoderConfig,
    settings: Settings,
    *,
    rows: int = 16,
    window: int = 64,
    small_data: Dictionary | Invented | None = None,
    paper: tuple[str, int, int, Settings],
    paper_variants: Mapping[str, Variant] | None = None,
    paper_data: Dictionary | Invented | None = None,
) -> dict[str, Preset]:
    """The three sizes; paper: (decoder, rows, window, settings)."""
    vocabulary = data.vocabulary
    name, paper_rows, paper_window, paper_settings = paper
    decoder = PAPER_DECODERS[name]
    if isinstance(paper_data or data, Dictionary):
        decoder = replace(decoder, vocabulary=vocabulary)
    return {
        "tiny": Preset(about, variants, tiny, data, rows, window, settings),
        "small": Preset(
            about,
            variants,
            replace(_SMALL, vocabulary=vocabulary),
            small_data or data,
            64,
            4 * window,
            _SMALL_SETTINGS,
        ),
        "paper": Preset(
            about,
            paper_variants or variants,
            decoder,
            paper_data or small_data or data,
            paper_rows,
            paper_window,
            paper_settings,
        ),
    }


_WORDS = Invented()
_TEXT = DecoderConfig(vocabulary=_WORDS.vocabulary)
_TEXT_SETTINGS = Settings(600, Rate(3e-3, 3e-4), log_every=20)
_FULL = _paper_settings(0.01, 0.0005, 500_000)

PRESETS: Mapping[str, Mapping[str, Preset]] = MappingProxyType(
    {
        "dictionary": _sized(
            "dictionary look-up in the paper's format (section 4.2, appendix D)",
            {"staged": _STAGED, "d1": Variant(1)},
            Dictionary.paper(),
            replace(_TINY, layers=3, memory_layers=(2,)),
            replace(_TINY_SETTINGS, steps=600),
            small_data=Dictionary.paper(25),
            paper=("37M", 128, 256, _paper_settings(0.02, 0.01, 5000)),
            paper_variants={
                "staged": Variant((1, 128), "accuracy", {"accuracy": 0.98}),
                "d1": Variant(1),
            },
        ),
        "figure3": _sized(
            "share of attention on the own document against the number of documents (Figure 3), on "
            "documents that share their keys (sigdict, pool of 12)",
            {
                "staged": _STAGED,
                "d2": Variant(2),
                "d1": Variant(1),
                "standard": Variant(0, method="standard"),
                "direct": Variant((1, 16), "accuracy", {"accuracy": 0.95}),
            },
            Dictionary(),
            _TINY,
            _TINY_SETTINGS,
            paper=("184M", 128, 512, _FULL),
        ),
        "figure4": _sized(
            "Memorizing Transformer: a gate, or one softmax over window and memory (Figure 4)",
            {
                "softmax": Variant(method="mt", memory={"capacity": 256}),
                "gate": Variant(method="mt", memory={"capacity": 256}, decoder={"join": "gate"}),
            },
            _WORDS,
            _TEXT,
            _TEXT_SETTINGS,
            paper=("184M", 64, 512, _FULL),
        ),
        "figure5": _sized(
            "differentiable memory or not (Figure 5): crossbatch, the same with detached memory, "
            "and the Memorizing Transformer",
            {
                "fot": Variant(1),
                "detached": Variant(1, crossbatch={"detach": True}),
                "mt": Variant(method="mt", memory={"capacity": 64, "top_k": None}),
                "fot+mt": Variant(method="fot+mt", memory={"capacity": 256}),
            },
            _WORDS,
            _TEXT,
            _TEXT_SETTINGS,
            paper=("184M", 64, 512, _FULL),
        ),
        "figure6": _sized(
            "with negatives and without (Figure 6), and how they are chosen",
            {
                "d2": _warm(2),
                "d1": Variant(1),
                "d8": _warm(8),
                "random": _warm(8, negatives="random"),
                "hardest": _warm(8, negatives="hardest"),
                "contrast": _warm(8, contrast=0.1),
            },
            _WORDS,
            _TEXT,
            _TEXT_SETTINGS,
            paper=("184M", 64, 512, _FULL),
            paper_variants={
                "d2": Variant(2),
                "d1": Variant(1),
                "d4": Variant(4),
                "d8": Variant(8),
            },
        ),
        "figure8": _sized(
            "perplexity when the memory holds other documents too (Figure 8)",
            {
                "staged": Variant((1, 2, 4, 8, 16), "steps", {"starts": (0, 150, 200, 250, 300)}),
                "d1": Variant(1),
                "d2": _warm(2),
                "d8": _warm(8),
            },
            _WORDS,
            _TEXT,
            _TEXT_SETTINGS,
            paper=("184M", 64, 512, _FULL),
            paper_variants={
                "staged": Variant((2, 64), "steps", {"starts": (0, 450_000)}),
                "d1": Variant(1),
                "d2": Variant(2),
                "d8": Variant(8),
            },
        ),
        "figure9": _sized(
            "perplexity of one document when its memory grows beyond training (Figure 9)",
            {
                "w1d2": _warm(2),
                "w1d1": Variant(1),
                "w2d1": Variant(1, crossbatch={"windows": 2}),
                "w2d2": _warm(2, windows=2),
                "xl": Variant(method="xl", memory={"capacity": 64}),
                "mt": Variant(method="mt", memory={"capacity": 256}),
                "standard": Variant(0, method="standard"),
            },
            _WORDS,
            _TEXT,
            _TEXT_SETTINGS,
            paper=("184M", 64, 512, replace(_FULL, steps=100_000)),
        ),
        "positions": _sized(
            "memory keys without positions, or as if first in the window",
            {
                "none": _warm(2),
                "zero": replace(_warm(2), decoder={"memory_positions": "zero"}),
            },
            _WORDS,
            _TEXT,
            _TEXT_SETTINGS,
            paper=("184M", 64, 512, _FULL),
        ),
        "mixed": _sized(
            "parts of the batch with (positives, negatives), or the same d for all, at equal extra "
            "tokens (LongLLaMA, appendix A.2)",
            {
                "mixed": Variant(
                    crossbatch={"parts": ((0, 0), (1, 1), (2, 1), (3, 0))},
                ),
                "uniform": Variant(crossbatch={"parts": ((1, 1), (1, 1), (1, 1), (1, 1))}),
            },
            _WORDS,
            _TEXT,
            _TEXT_SETTINGS,
            paper=("1.2B", 128, 2048, _paper_settings(0.005, 0.0005, 200_000)),
        ),
    }
)


def preset(name: str, size: str = "tiny") -> Preset:
    """A preset by its name and size; an unknown one lists those that there are."""
    check_option("preset", name, PRESETS)
    check_option("size", size, SIZES)
    return PRESETS[name][size]
