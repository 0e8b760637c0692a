"""Any decoder of transformers with memory layers for training, through its attention registry.

The model's own code runs unchanged: a registered attention function answers for the memory layers
and passes all other layers on. Keys are turned back to before their rotation to stand in memory as
if at position 0 (LongLLaMA), where rotation changes nothing; or memory layers go without positions
altogether, which only a model trained so understands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.checks import check_option
from workbench.core.errors import InputError, ModelError
from workbench.recording.adapter import (
    attention_function,
    attention_modules,
    geometry,
    registered_attention,
    rotary_switch,
    rotary_tables,
    rotate,
)
from workbench.training.attention import Near, attend
from workbench.training.crossbatch import Memory, join

__all__ = ["PretrainedDecoder"]


class PretrainedDecoder(nn.Module):
    """A decoder of transformers that reads the rows of a `Memory`.

    Parameters
    ----------
    model : a causal language model of transformers.
    memory_layers : zero-based numbers of the layers that see memory.
    memory_positions : "zero" (local positions kept, memory keys as if first) or "none" (no
        positions in memory layers).
    join : "softmax", or "gate" with a learned number per head, 0 at first.

    Raises
    ------
    ModelError : memory layers that are capped, sliding or have sinks, or without rotary positions.
    """

    def __init__(
        self,
        model: Any,
        memory_layers: Sequence[int],
        *,
        memory_positions: str = "zero",
        join: str = "softmax",
    ) -> None:
        super().__init__()
        check_option("memory_positions", memory_positions, ("zero", "none"))
        check_option("join", join, ("softmax", "gate"))
        self.model = model
        modules = attention_modules(model)
        self.memory_layers = tuple(memory_layers)
        outside = [layer for layer in self.memory_layers if layer not in modules]
        if outside or not self.memory_layers:
            raise InputError(
                f"memory_layers={list(memory_layers)} must name layers of the model: "
                f"{min(modules)} ... {max(modules)}."
            )
        self.memory_positions = memory_positions
        self.gates = nn.ParameterDict()
        if join == "gate":
            heads = geometry(model)["n_heads"]
            self.gates = nn.ParameterDict(
                {str(layer): nn.Parameter(torch.zeros(heads)) for layer in self.memory_layers}
            )
        self._modules_of = {id(module): layer for layer, module in modules.items()}
        self._tables: dict[int, tuple[Tensor, Tensor] | None] = {}
        self._memory: Memory | None = None
        self._original: str | None = None
        self.checkpointing = False

    @property
    def vocabulary(self) -> int:
        """Number of tokens it knows."""
        return int(self.model.get_input_embeddings().num_embeddings)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """The attention function is registered inside the block: forward and backward passes."""
        handles = [
            module.register_forward_pre_hook(self._keep_tables, with_kwargs=True)
            for module in attention_modules(self.model).values()
        ]
        if self.checkpointing:
            self.model.activation_checkpointing_enable({"use_reentrant": False})
        try:
            with registered_attention(self.model, self._attention) as original:
                self._original = original
                yield
        finally:
            self._original = self._memory = None
            self._tables.clear()
            for handle in handles:
                handle.remove()
            if self.checkpointing:
                self.model.activation_checkpointing_disable()

    def forward(self, memory: Memory) -> Tensor:
        """Logits of the current rows, (current rows, n, vocabulary)."""
        if self._original is None:
            raise ModelError("call the decoder inside `with decoder.attached():`.")
        batch = memory.batch
        n = batch.ids.shape[1]
        if memory.positions == "document" and rotary_switch(self.model) is not None:
            raise ModelError(
                "this model changes its rotary tables with length, so a cached window cannot keep "
                "its positions; train it with crossbatch instead of Transformer-XL."
            )
        first = torch.zeros(len(batch.document), dtype=torch.long)
        if memory.positions == "document":
            first = torch.from_numpy(batch.window * n)
        places = first.to(batch.ids.device)[:, None] + torch.arange(n, device=batch.ids.device)
        # A row of padding alone attends to itself, so that no number is undefined.
        valid = batch.valid | ~batch.valid.any(dim=1, keepdim=True)
        self._memory = memory
        output = self.model(
            input_ids=batch.ids,
            attention_mask=None if bool(valid.all()) else valid.long(),
            position_ids=places,
            use_cache=False,
        )
        logits: Tensor = output.logits[batch.current]
        return logits

    def _keep_tables(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._tables[self._modules_of[id(module)]] = rotary_tables(args, kwargs)

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        memory, original = self._memory, self._original
        assert memory is not None
        assert original is not None
        layer = self._modules_of.get(id(module), -1)
        is_memory = layer in self.memory_layers
        if not is_memory and not memory.wanted(layer, False):
            function = attention_function(original, module)
            output, _ = function(
                module, query, key, value, attention_mask, scaling=scaling, **options
            )
            return output, None
        self._check(layer, module, query.shape[2], options)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        plain = key
        if not memory.rotated:
            tables = self._tables.get(layer)
            if tables is None or not getattr(module, "use_rope", True):
                raise ModelError(
                    f"layer {layer} of {type(self.model).__name__} has no rotary positions to take "
                    "from its keys; choose memory layers that have."
                )
            if is_memory:
                plain = _as_first(module, key, tables)
                if self.memory_positions == "none":
                    query, key = _as_first(module, query, tables), plain
        n = query.shape[2]
        offsets = torch.arange(n, device=query.device)
        causal = offsets[:, None] >= offsets
        allowed = (memory.batch.valid[:, None, None, :] & causal) | (offsets[:, None] == offsets)
        current = memory.batch.current

        def near(rows: slice) -> Near:
            return Near(query[rows], key[rows], value[rows], allowed[rows], scale)

        far = None
        if memory.wanted(layer, is_memory):
            stored = key if memory.rotated else plain
            far = memory.far(layer, query[current], stored, value)
        gate = self.gates.get(str(layer))
        heads = join(memory, layer, near(current), far, gate)
        if memory.batch.suppliers:
            before = slice(0, memory.batch.suppliers)
            heads = torch.cat((attend(near(before), None), heads))
        return heads.transpose(1, 2).contiguous(), None

    def _check(self, layer: int, module: nn.Module, n: int, options: dict[str, Any]) -> None:
        """Refuse what this attention does not compute."""
        sliding = int(options.get("sliding_window") or getattr(module, "sliding_window", 0) or 0)
        for reason, present in (
            ("caps its scores", options.get("softcap") is not None),
            ("has attention sinks", options.get("s_aux") is not None),
            (f"sees only a sliding window of {sliding} tokens", 0 < sliding < n),
            ("has dropout", module.training and bool(options.get("dropout"))),
        ):
            if present:
                raise ModelError(
                    f"layer {layer} of {type(self.model).__name__} {reason}, which memory layers "
                    "do not; choose other memory layers or another model."
                )


def _as_first(module: nn.Module, keys: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotated keys as if they stood at position 0: turned back, the tables' scaling kept.

    YaRN and LongRoPE multiply cos and sin by a factor, at position 0 too.
    """
    cos, sin = tables
    factor = (cos.square() + sin.square()).sqrt()
    return rotate(module, keys, (cos / factor, -sin / factor))
