"""Operations of a crossbatch step against those of a plain step, by formula.

Counted are the multiplications and additions of matrix products in the forward pass (two per
weight and token, two per score and dimension, as many for values); the backward pass takes twice
as many of each, so ratios are the same. Softmax, norms and the optimizer are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.core.checks import whole_number
from workbench.training.decoder import DecoderConfig

__all__ = ["Shape", "Step", "step_cost"]


@dataclass(frozen=True)
class Shape:
    """What a decoder's operations depend on.

    Parameters
    ----------
    layers, dim, vocabulary : sizes.
    inner, kv_inner : heads · head dimension, of queries and of keys.
    feed_forward : weights of one feed-forward block.
    memory_layers : their numbers.
    stops : rows that only supply memory stop at the last memory layer's keys and values (the
        small decoder); otherwise they go through all layers and the output (pretrained models).
    """

    layers: int
    dim: int
    vocabulary: int
    inner: int
    kv_inner: int
    feed_forward: int
    memory_layers: tuple[int, ...]
    stops: bool

    @classmethod
    def of_decoder(cls, config: DecoderConfig) -> Shape:
        """Of the small decoder."""
        inner = config.heads * config.head_dim
        return cls(
            config.layers,
            config.dim,
            config.vocabulary,
            inner,
            inner,
            2 * config.dim * config.feed_forward,
            config.memory_layers,
            True,
        )

    @classmethod
    def of_pretrained(cls, model: Any, memory_layers: tuple[int, ...]) -> Shape:
        """Of a decoder of transformers with a gated feed-forward block (Llama and its kin)."""
        from workbench.recording.adapter import geometry, key_dim

        config = model.config.get_text_config(decoder=True)
        sizes, width = geometry(model), key_dim(model)
        return cls(
            sizes["n_layers"],
            int(config.hidden_size),
            int(config.vocab_size),
            sizes["n_heads"] * width,
            sizes["n_kv_heads"] * width,
            3 * int(config.hidden_size) * int(config.intermediate_size),
            memory_layers,
            False,
        )


@dataclass(frozen=True)
class Step:
    """Forward operations of a step.

    Parameters
    ----------
    plain : of the current rows alone, without memory.
    suppliers : of the rows that only supply keys and values.
    memory : of the attention of current rows to the windows of d documents.
    """

    plain: int
    suppliers: int
    memory: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.plain + self.suppliers + self.memory

    @property
    def ratio(self) -> float:
        """Crossbatch step ÷ plain step."""
        return self.total / self.plain


def step_cost(shape: Shape, *, rows: int, window: int, d: int, windows: int = 1) -> Step:
    """Operations of a step of the paper's form.

    With r rows of n tokens, L layers of W weights, inner width h and M memory layers:
    plain = r·(L·(2nW + 4n²h) + output); suppliers = w·r times the same up to the last memory layer;
    memory = M·r·4·n·(d·w·n)·h.

    Parameters
    ----------
    rows : documents of the batch.
    window : tokens of a row.
    d, windows : documents seen, and previous windows of each; d = 0 is the plain step.
    """
    for name, value, least in (("rows", rows, 1), ("window", window, 1), ("d", d, 0)):
        whole_number(name, value, least)
    whole_number("windows", windows, 1)
    keys = 2 * shape.dim * shape.kv_inner
    layer_weights = 2 * shape.dim * shape.inner + keys + shape.feed_forward
    layer = 2 * window * layer_weights + 4 * window**2 * shape.inner
    output = 2 * window * shape.dim * shape.vocabulary
    plain = rows * (shape.layers * layer + output)
    if d == 0:
        return Step(plain, 0, 0)
    if shape.stops:
        last = max(shape.memory_layers)
        one = last * layer + 2 * window * keys
    else:
        one = shape.layers * layer + output
    seen = 4 * window * (d * windows * window) * shape.inner
    return Step(plain, windows * rows * one, len(shape.memory_layers) * rows * seen)
