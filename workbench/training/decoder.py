"""The small decoder of the paper's analysis (FOT, appendix B.1), built for crossbatch.

Pre-LayerNorm, queries and keys normalised with a learned temperature per head, no positions in
the memory layers. Lower layers know order by a learned bias on clipped offsets (fit for small
models: the heads start out looking one, two, three ... tokens back) or by rotary encoding (the
paper's). Rows that only supply memory stop at the last memory layer's keys and values.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.training.attention import Near, attend
from workbench.training.crossbatch import Memory, join

__all__ = ["Decoder", "DecoderConfig"]


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and choices of a `Decoder`.

    Parameters
    ----------
    vocabulary, layers, dim, heads, head_dim, feed_forward : sizes.
    memory_layers : zero-based numbers of the layers that see memory.
    positions : "bias" (learned, on offsets clipped at `offsets`) or "rope" in the other layers.
    memory_positions : in memory layers: "none" (the paper: neither local nor memory keys), or
        "zero" (local keys as in the other layers, memory keys as if first: LongLLaMA).
    normalise : L2-normalised queries and keys with a learned temperature per head; False is the
        usual 1/√dim.
    inverse_temperature : its first value.
    offsets : number of offsets that have a bias of their own.
    shift : first bias of head h on offset h + 1.
    join : "softmax" (one over window and memory) or "gate" (Memorizing Transformer).
    tied : input and output embeddings are one.
    theta : base of the rotary encoding.
    """

    vocabulary: int
    layers: int = 2
    dim: int = 128
    heads: int = 4
    head_dim: int = 32
    feed_forward: int = 256
    memory_layers: tuple[int, ...] = (1,)
    positions: str = "bias"
    memory_positions: str = "none"
    normalise: bool = True
    inverse_temperature: float = 10.0
    offsets: int = 16
    shift: float = 5.0
    join: str = "softmax"
    tied: bool = False
    theta: float = 10000.0

    def __post_init__(self) -> None:
        check_option("positions", self.positions, ("bias", "rope"))
        check_option("memory_positions", self.memory_positions, ("none", "zero"))
        check_option("join", self.join, ("softmax", "gate"))
        object.__setattr__(self, "memory_layers", tuple(self.memory_layers))
        outside = [layer for layer in self.memory_layers if not 0 <= layer < self.layers]
        if outside:
            raise InputError(
                f"memory_layers={self.memory_layers} name layer {outside[0]}; the decoder has "
                f"layers 0 ... {self.layers - 1}."
            )

    def as_dict(self) -> dict[str, Any]:
        """The fields, for a JSON file."""
        return dataclasses.asdict(self)


class _Attention(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.is_memory = layer in config.memory_layers
        inner = config.heads * config.head_dim
        self.query = nn.Linear(config.dim, inner, bias=False)
        self.key = nn.Linear(config.dim, inner, bias=False)
        self.value = nn.Linear(config.dim, inner, bias=False)
        self.out = nn.Linear(inner, config.dim, bias=False)
        if config.normalise:
            start = math.log(config.inverse_temperature)
            self.log_scale = nn.Parameter(torch.full((config.heads,), start))
        self.positions = config.positions
        if self.is_memory and config.memory_positions == "none":
            self.positions = "none"
        if self.positions == "bias":
            bias = torch.zeros(config.heads, config.offsets)
            for head in range(config.heads):
                bias[head, (head + 1) % config.offsets] = config.shift
            self.bias = nn.Parameter(bias)
        if self.is_memory and config.join == "gate":
            self.gate = nn.Parameter(torch.zeros(config.heads))

    def forward(self, x: Tensor, memory: Memory, current_only: bool) -> Tensor:
        """Attention output of all rows, or of the current ones only."""
        current = memory.batch.current
        asking = x[current] if current_only else x
        query = self._query(asking)
        key, value = self._heads(self.key(x)), self._heads(self.value(x))
        if self.config.normalise:
            key = functional.normalize(key, dim=-1)
        first = _positions(memory)
        plain = key
        if self.positions == "rope":
            query = _rotate(query, first[current] if current_only else first, self.config.theta)
            key = _rotate(key, first, self.config.theta)
        scale = 1.0 if self.config.normalise else self.config.head_dim**-0.5
        valid = memory.batch.valid
        n = x.shape[1]
        offsets = torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)
        allowed = _window_mask(valid, offsets)
        near_bias = self._bias(offsets)

        def near(rows: slice, queries: Tensor) -> Near:
            return Near(queries, key[rows], value[rows], allowed[rows], scale, near_bias)

        mine = query if current_only else query[current]
        far = None
        if memory.wanted(self.layer, self.is_memory):
            far = memory.far(self.layer, mine, key if memory.rotated else plain, value)
            if far is not None and memory.rotated and self.positions == "bias":
                # Far tokens are those just before the window.
                m = far.key.shape[2]
                back = torch.arange(n, device=x.device)[:, None] + m
                far = dataclasses.replace(
                    far, bias=self._bias(back - torch.arange(m, device=x.device))
                )
        gate = getattr(self, "gate", None)
        heads = join(memory, self.layer, near(current, mine), far, gate)
        if not current_only and memory.batch.suppliers:
            before = slice(0, memory.batch.suppliers)
            heads = torch.cat((attend(near(before, query[before]), None), heads))
        return self.out(heads.transpose(1, 2).flatten(2))

    def _query(self, x: Tensor) -> Tensor:
        query = self._heads(self.query(x))
        if not self.config.normalise:
            return query
        return functional.normalize(query, dim=-1) * self.log_scale.exp()[:, None, None]

    def _heads(self, x: Tensor) -> Tensor:
        rows, n, _ = x.shape
        return x.view(rows, n, self.config.heads, self.config.head_dim).transpose(1, 2)

    def _bias(self, offsets: Tensor) -> Tensor | None:
        if self.positions != "bias":
            return None
        return self.bias[:, offsets.clamp(0, self.config.offsets - 1)]


class _Block(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim)
        self.attention = _Attention(config, layer)
        self.norm_after = nn.LayerNorm(config.dim)
        self.up = nn.Linear(config.dim, config.feed_forward)
        self.down = nn.Linear(config.feed_forward, config.dim)

    def forward(self, x: Tensor, memory: Memory, current_only: bool) -> Tensor:
        kept = x[memory.batch.current] if current_only else x
        kept = kept + self.attention(self.norm(x), memory, current_only)
        return kept + self.down(functional.gelu(self.up(self.norm_after(kept))))


class Decoder(nn.Module):
    """A decoder whose memory layers ask a `Memory` what they may see.

    `forward(memory)` reads `memory.batch` and returns the logits of its current rows.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.dim)
        self.blocks = nn.ModuleList(_Block(config, layer) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False)
        nn.init.normal_(self.embed.weight, std=0.5)
        if config.tied:
            self.head.weight = self.embed.weight
        self.checkpointing = False

    @property
    def memory_layers(self) -> tuple[int, ...]:
        """Zero-based numbers of the layers that see memory."""
        return self.config.memory_layers

    @property
    def vocabulary(self) -> int:
        """Number of tokens it knows."""
        return self.config.vocabulary

    def states(self, memory: Memory) -> Tensor:
        """Hidden states before the output, (current rows, n, dim)."""
        batch = memory.batch
        x = self.embed(batch.ids)
        # Above the last memory layer the suppliers are of no use.
        last = max(self.config.memory_layers, default=0) if batch.suppliers else -1
        above = Memory(batch.alone()) if batch.suppliers else memory
        for layer, block in enumerate(self.blocks):
            here = above if layer > last else memory
            if self.checkpointing and self.training:
                x = checkpoint(block, x, here, layer == last, use_reentrant=False)
            else:
                x = block(x, here, layer == last)
        return x

    def forward(self, memory: Memory) -> Tensor:
        """Logits (current rows, n, vocabulary)."""
        logits: Tensor = self.head(self.norm(self.states(memory)))
        return logits


def _window_mask(valid: Tensor, offsets: Tensor) -> Tensor:
    """(rows, 1, n, n): keys before or at the query that are no padding; each query itself."""
    causal = offsets >= 0
    return ((valid[:, None, :] & causal) | (offsets == 0))[:, None]


def _positions(memory: Memory) -> Tensor:
    """Position of each row's first token, (rows,)."""
    batch = memory.batch
    if memory.positions == "window":
        return torch.zeros(len(batch.document), dtype=torch.long, device=batch.ids.device)
    n = batch.ids.shape[1]
    return torch.from_numpy(batch.window * n).to(batch.ids.device)


def _rotate(states: Tensor, first: Tensor, theta: float) -> Tensor:
    """Rotary encoding of (rows, heads, n, dim), whose first tokens stand at `first`."""
    half = states.shape[-1] // 2
    speed = theta ** (-torch.arange(half, device=states.device, dtype=torch.float32) / half)
    places = first[:, None] + torch.arange(states.shape[2], device=states.device)
    angle = places[:, None, :, None] * speed
    cos, sin = angle.cos().to(states.dtype), angle.sin().to(states.dtype)
    left, right = states[..., :half], states[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
