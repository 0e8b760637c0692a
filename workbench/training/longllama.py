"""LongLLaMA's continued pre-training (FOT, appendix A.2), spelt out for whoever has the machines.

    workbench train fot --model openlm-research/open_llama_3b --memory-layers 6,12,18
        --parts 0:0,1:1,2:1,3:0 --window 2048 --rows 32 --rate 2e-5 --data ... --share ...

Nothing here has been trained by this workbench.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["LONGLLAMA", "MIXTURE", "ContinuedTraining"]

MIXTURE: Mapping[str, tuple[float, int]] = MappingProxyType(
    {
        "arxiv": (0.25, 0),
        "python (The Stack)": (0.25, 4096),
        "book": (0.10, 0),
        "common_crawl": (0.29, 0),
        "c4": (0.05, 1024),
        "github": (0.02, 2048),
        "stackexchange": (0.02, 1024),
        "wikipedia": (0.02, 1024),
    }
)
"""Share of the tokens and shortest document, in tokens (0: none stated), of each source."""


@dataclass(frozen=True)
class ContinuedTraining:
    """Settings of one model.

    Parameters
    ----------
    model : what it began from.
    layers, hidden, heads : its size.
    memory_layers : zero-based.
    window : tokens of the local context; four consecutive windows of a document in a batch.
    parts : (positives, negatives) of each of the four.
    batch_tokens : tokens of a step.
    tokens : of the whole training.
    rate, weight_decay : constant learning rate, and weight decay.
    """

    model: str
    layers: int
    hidden: int
    heads: int
    memory_layers: tuple[int, ...]
    window: int
    parts: tuple[tuple[int, int], ...]
    batch_tokens: int = 256 * 1024
    tokens: float = 10e9
    rate: float = 2e-5
    weight_decay: float = 0.01


LONGLLAMA: Mapping[str, ContinuedTraining] = MappingProxyType(
    {
        "3B": ContinuedTraining(
            "OpenLLaMA 3B", 26, 3200, 32, (6, 12, 18), 2048, ((0, 0), (1, 1), (2, 1), (3, 0))
        ),
        "7B": ContinuedTraining(
            "OpenLLaMA 7B",
            32,
            4096,
            32,
            (8, 16, 24),
            2048,
            ((0, 0), (1, 2), (2, 5), (3, 4)),
            tokens=3e9,
        ),
    }
)
"""FOT, appendix A.2: 3B with ten, 7B with three thousand million tokens."""
