"""Instruments: watch a model's attention from outside while it reads.

One registered attention function sees each layer's query, key and value and passes them on
unchanged; forward hooks see what enters the rotation. Observers receive both, layer by layer,
and keep what they need: keys (`KeyRecorder`), or statistics of attention reduced in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workbench.core.errors import InputError, ModelError
from workbench.recording import adapter

__all__ = ["AttentionCall", "Instruments", "KeyRecorder", "Observer"]


@dataclass(frozen=True)
class AttentionCall:
    """What one layer's attention was called with.

    Parameters
    ----------
    layer : number of the layer, zero-based.
    query : (batch, heads, n_query, dim), after rotation.
    key, value : (batch, kv_heads, n_key, dim), keys after rotation; n_key exceeds n_query when
        a cache holds earlier tokens.
    mask : what the model passes to its attention, or None for plain causal attention.
    scaling : factor of the scores q·k, None for 1/√dim.
    softcap : scores are capped to c·tanh(score/c); None without a cap.
    keys_before : (batch, kv_heads, n_query, dim), the new keys before rotation; None in layers
        whose keys no observer asked for.
    key_source : where `keys_before` comes from: "projection" (the output of the key projection,
        or of the norm after it, which rotated gives `key`), or "rotated back" (the projection
        is not known; rotation and its scaling undone).
    options : the model's other arguments (sliding window, sinks, ...).
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scaling: float | None
    softcap: float | None
    keys_before: Tensor | None
    key_source: str | None
    options: dict[str, Any] = field(default_factory=dict)


class Observer:
    """Base of what can be attached; override what is needed."""

    def key_layers(self) -> Iterable[int]:
        """Layers whose keys before rotation are wanted."""
        return ()

    def attention(self, call: AttentionCall) -> None:
        """Called once per layer and forward pass, before the attention itself."""

    def after(self, call: AttentionCall, output: Tensor) -> None:
        """Called after it; `output` (batch, n_query, heads, dim) is what the layer made itself."""

    def window(self, origin: int, fresh: int) -> None:
        """Called before a window of a long text is read.

        Positions count from the start token, where there is one: text token t is at skip + t.

        Parameters
        ----------
        origin : position of the first token read (in later windows the start token stands
            there once more).
        fresh : position from which tokens are new; those before it were new in earlier windows.
        """


class KeyRecorder(Observer):
    """Keeps keys before rotary encoding of chosen layers and key-value heads.

    Parameters
    ----------
    layers, heads : which, zero-based.
    n : number of tokens to keep; memory is layers × heads × n × dim × 4 bytes.
    skip : number of tokens read before them that are not kept (a start token).
    dtype : "float32", or "float16" for half the memory: each number is rounded by at most
        2**-11 of itself (2**-25 below 2**-14).
    """

    def __init__(
        self,
        layers: Sequence[int],
        heads: Sequence[int],
        n: int,
        skip: int = 0,
        *,
        dtype: str = "float32",
    ) -> None:
        self.layers = list(layers)
        self.heads = list(heads)
        self.n = n
        self.skip = skip
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.sources: dict[int, str] = {}
        self._row = {layer: row for row, layer in enumerate(self.layers)}
        self._fresh = skip
        self._next = dict.fromkeys(self.layers, 0)  # position of what is read next
        self._keys: Tensor | None = None

    def key_layers(self) -> Iterable[int]:
        """The layers to record."""
        return self.layers

    def window(self, origin: int, fresh: int) -> None:
        """See `Observer.window`."""
        self._fresh = max(fresh, self.skip)
        self._next = dict.fromkeys(self.layers, origin)

    def attention(self, call: AttentionCall) -> None:
        """Store the new keys of a chosen layer."""
        if call.layer not in self._row:
            return
        assert call.keys_before is not None
        assert call.key_source is not None
        if self._keys is None:
            shape = (len(self.layers), len(self.heads), self.n, call.keys_before.shape[-1])
            self._keys = torch.empty(shape, dtype=self.dtype)
        done = self._next[call.layer]
        known = max(0, self._fresh - done)
        new = call.keys_before[0, self.heads, known:]
        start = max(done, self._fresh) - self.skip
        self._keys[self._row[call.layer], :, start : start + new.shape[1]] = new
        self._next[call.layer] = done + call.keys_before.shape[2]
        self.sources[call.layer] = call.key_source

    @property
    def keys(self) -> NDArray[np.floating[Any]]:
        """Keys before rotary encoding, shape (layers, heads, n, dim)."""
        expected = self.n + self.skip
        missing = [layer for layer, count in self._next.items() if count != expected]
        if missing or self._keys is None:
            raise ModelError(f"layers {missing or self.layers} gave no keys while reading.")
        if self.dtype == torch.float16 and bool(self._keys.isinf().any()):
            raise ModelError(
                "some keys are larger than float16 holds (65504); record with keys_dtype='float32'."
            )
        return self._keys.numpy()

    @property
    def source(self) -> str:
        """Where the keys of all recorded layers come from, e.g. "projection"."""
        return ", ".join(sorted(set(self.sources.values())))


class Instruments:
    """Attach observers to a model for the length of a `with` block.

    Parameters
    ----------
    model : a transformers causal language model.
    observers : what receives each layer's attention call.

    `original` is the name of the model's own attention implementation, once entered.

    On leaving the block, also after an exception, the model has its own attention function
    back and no hooks.

    Raises
    ------
    ModelError : the model does not call attention through transformers' registry, has not the
        projections that keys are taken from, or the keys taken, once rotated, are not the keys
        its attention sees.
    """

    def __init__(self, model: Any, observers: Iterable[Observer] = ()) -> None:
        self.model = model
        self.observers = list(observers)
        self.layers = adapter.attention_modules(model)
        wanted = {layer for observer in self.observers for layer in observer.key_layers()}
        unknown = sorted(wanted - set(self.layers))
        if unknown:
            raise InputError(
                f"layers {unknown} have no attention; this model has {sorted(self.layers)}."
            )
        self._taps = {layer: _KeyTap(layer, self.layers[layer]) for layer in sorted(wanted)}
        self._layer_of = {id(module): layer for layer, module in self.layers.items()}
        self._pass_on: dict[int, adapter.AttentionFunction] = {}
        self._stack: ExitStack | None = None
        self.original = ""

    def __enter__(self) -> Instruments:
        with ExitStack() as stack:
            # A bound method is a new object at each access; the registry's name comes from it.
            function = self._attention
            original = stack.enter_context(adapter.registered_attention(self.model, function))
            for layer, module in self.layers.items():
                self._pass_on[layer] = adapter.attention_function(original, module)
            for tap in self._taps.values():
                tap.attach(stack)
            self.original = original
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        layer = self._layer_of[id(module)]
        keys_before, source = None, None
        if layer in self._taps:
            keys_before, source = self._taps[layer].take(key, query.shape[2])
        call = AttentionCall(
            layer=layer,
            query=query,
            key=key,
            value=value,
            mask=attention_mask,
            scaling=options.get("scaling"),
            softcap=options.get("softcap"),
            keys_before=keys_before,
            key_source=source,
            options=options,
        )
        for observer in self.observers:
            observer.attention(call)
        result = self._pass_on[layer](module, query, key, value, attention_mask, **options)
        for observer in self.observers:
            observer.after(call, result[0])
        return result


class _KeyTap:
    """Takes the keys of one layer before rotation, and checks them against those after it."""

    def __init__(self, layer: int, module: nn.Module) -> None:
        self.layer = layer
        self.module = module
        self.tables: tuple[Tensor, Tensor] | None = None
        self.outputs: list[Tensor] = []
        self.fused: Tensor | None = None

    def attach(self, stack: ExitStack) -> None:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.tables = adapter.rotary_tables(args, kwargs)
            self.outputs, self.fused = [], None

        def output(_: nn.Module, args: tuple[Any, ...], result: Tensor) -> None:
            self.outputs.append(result)

        def fused(_: nn.Module, args: tuple[Any, ...], result: Tensor) -> None:
            self.fused = result

        handle = self.module.register_forward_pre_hook(before, with_kwargs=True)
        stack.callback(handle.remove)
        stack.callback(self._forget)
        for names, hook in (
            (adapter.KEY_PROJECTIONS + adapter.KEY_NORMS, output),
            (adapter.FUSED_PROJECTIONS, fused),
        ):
            for name in names:
                part = getattr(self.module, name, None)
                if isinstance(part, nn.Module):
                    stack.callback(part.register_forward_hook(hook).remove)

    def _forget(self) -> None:
        self.tables, self.outputs, self.fused = None, [], None

    def take(self, seen: Tensor, n_new: int) -> tuple[Tensor, str]:
        """Keys before rotation for the `n_new` last keys that attention sees.

        `seen` (batch, kv_heads, n_key, dim) may begin with keys from a cache.
        """
        seen = seen[:, :, seen.shape[2] - n_new :]
        tables, tolerance = self.tables, _tolerance(seen)
        candidates = [c for output in reversed(self.outputs) for c in _as_heads(output, seen.shape)]
        # A layer may be given tables and not use them (every fourth layer of SmolLM3).
        turns: list[Callable[[Tensor], Tensor]] = [lambda keys: keys]
        if tables is not None:
            turns.insert(0, lambda keys: adapter.rotate(self.module, keys, tables))
        if self.fused is not None:
            candidates += self._from_fused(self.fused, seen, tables, tolerance)
        known = bool(self.outputs) or self.fused is not None
        self._forget()

        smallest = float("inf")
        for keys in candidates:
            for turn in turns:
                gap = float((turn(keys) - seen).abs().max())
                if gap <= tolerance:
                    return keys, "projection"
                smallest = min(smallest, gap)
        if not known and tables is not None and tables[0].shape[-1] == seen.shape[-1]:
            return adapter.unrotate(self.module, seen, tables), "rotated back"
        kind = type(self.module).__name__
        if known:
            raise ModelError(
                f"layer {self.layer}: the output of {kind}'s key projection, rotated, is not what "
                f"its attention sees (they differ by {smallest:.2g}, allowed {tolerance:.2g}), so "
                "keys before rotation are not known for this architecture; record it with "
                "keys=False."
            )
        raise ModelError(
            f"layer {self.layer}: {kind} has none of the projections that keys are taken from "
            f"({', '.join(adapter.KEY_PROJECTIONS + adapter.FUSED_PROJECTIONS)}); record it with "
            "keys=False."
        )

    def _from_fused(
        self,
        fused: Tensor,
        seen: Tensor,
        tables: tuple[Tensor, Tensor] | None,
        tolerance: float,
    ) -> list[Tensor]:
        """Keys cut from the output (batch, n, width) of a joint query-key-value projection.

        Families order its columns differently, so the columns are found by rotating the keys of
        the last position back and looking for them; what is cut is then checked like any other.
        """
        batch, _, n, dim = seen.shape
        if fused.shape[-1] % dim:
            return []
        parts = fused.reshape(batch, n, -1, dim)
        last = seen[:1, :, -1:]
        guesses = [last]
        if tables is not None:
            guesses.insert(
                0, adapter.unrotate(self.module, last, (tables[0][:1, -1:], tables[1][:1, -1:]))
            )
        for guess in guesses:
            gaps = (parts[0, -1][None] - guess[0]).abs().amax(dim=-1)
            gap, column = gaps.min(dim=1)
            if float(gap.max()) <= 8 * tolerance:
                return [parts[:, :, column].transpose(1, 2)]
        return []


def _as_heads(output: Tensor, shape: torch.Size) -> list[Tensor]:
    """A projection's or norm's output as (batch, kv_heads, n, dim); both readings if n = heads."""
    batch, heads, n, dim = shape
    readings = []
    if output.shape == shape:
        readings.append(output)
    if output.shape == (batch, n, heads, dim) or output.shape == (batch, n, heads * dim):
        readings.append(output.reshape(batch, n, heads, dim).transpose(1, 2))
    return readings


def _tolerance(seen: Tensor) -> float:
    """Allowed difference after rotation: rounding of the number format at the largest key."""
    return 16 * torch.finfo(seen.dtype).eps * max(1e-3, float(seen.abs().max()))
