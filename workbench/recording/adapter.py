"""The one module that touches moving parts of transformers.

Written against transformers 5.24: the attention registry and its mask functions, the attention
implementation in a model's configurations, how attention modules hold their projections and get
their rotary tables, the language-model head with its scales and caps, and GGUF options.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.errors import ModelError

__all__ = [
    "AttentionFunction",
    "attention_function",
    "attention_modules",
    "cache_argument",
    "geometry",
    "gguf_options",
    "head_logits",
    "hidden_states",
    "key_dim",
    "layer_modules",
    "make_tables",
    "own_window",
    "quiet",
    "registered_attention",
    "rotary_module",
    "rotary_switch",
    "rotary_tables",
    "rotate",
    "turns",
    "unrotate",
]

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]

_QUERY_BLOCK = 256


def gguf_options(file: str) -> dict[str, Any]:
    """Options of `from_pretrained` that make an ordinary model of a GGUF file.

    Without `dequantize=True` the model counts as quantised and refuses `.float()`.
    """
    from transformers import GgufConfig

    return {"gguf_file": file, "quantization_config": GgufConfig(dequantize=True)}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers inside the block."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


# --- attention -----------------------------------------------------------------------------


@contextlib.contextmanager
def registered_attention(
    model: Any, function: AttentionFunction, *, masked: bool = True
) -> Iterator[str]:
    """Let a model call `function` for attention inside the block; yields what it called before.

    The function is registered under a name of its own, with the mask function that belongs to
    the model's own implementation (masked=False: with one that makes no mask), and both names
    are taken away on leaving.

    Raises
    ------
    ModelError : the model does not choose its attention through transformers' registry.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    configs = _configs(model)
    before = [(config, config._attn_implementation) for config in configs]
    text = model.config.get_text_config(decoder=True)
    original = text._attn_implementation or "eager"
    if not getattr(model, "_can_set_attn_implementation", lambda: True)():
        raise ModelError(
            f"{type(model).__name__} does not call attention through transformers' registry, so "
            "its layers cannot be observed; use an architecture that does (Llama, Mistral, "
            "Qwen, Phi-3, Gemma, GPT-NeoX, GPT-2, ...)."
        )
    # The eager function is called in blocks of queries with masks of our own, from what SDPA
    # gets: nothing, or one boolean table for a sliding window.
    mask = sdpa_mask if original == "eager" else ALL_MASK_ATTENTION_FUNCTIONS[original]
    if not masked:
        mask = _no_mask
    name = f"workbench-{id(function):x}"
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, mask)
    try:
        for config in configs:
            config._attn_implementation_internal = name
        yield original
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)


def _no_mask(*_: Any, **__: Any) -> None:
    """For attention functions that know by themselves what each query sees."""


def _configs(model: Any) -> list[Any]:
    """Every configuration object that one of the model's parts reads."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            found[id(config)] = config
    return list(found.values())


def attention_function(original: str, module: nn.Module) -> AttentionFunction:
    """The function a module would have called itself under the implementation `original`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if original != "eager":
        function: AttentionFunction = ALL_ATTENTION_FUNCTIONS[original]
        return function
    home = sys.modules[type(module).__module__]
    eager = getattr(home, "eager_attention_forward", None)
    if eager is None:
        raise ModelError(
            f"{type(module).__name__} brings no eager attention function to pass on to; load "
            "the model with attn_implementation='sdpa'."
        )
    return _in_blocks(eager)


def _in_blocks(eager: AttentionFunction) -> AttentionFunction:
    """Run an eager function on blocks of queries: memory grows with n, not n².

    Rows of attention do not depend on each other, so the result is the same.
    """

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        n_query, n_key = query.shape[2], key.shape[2]
        outputs = []
        for start in range(0, n_query, _QUERY_BLOCK):
            stop = min(start + _QUERY_BLOCK, n_query)
            # Keys after the last query of the block are masked for all of it: leave them out.
            last = n_key - n_query + stop
            if attention_mask is None:
                rows = torch.arange(n_key - n_query + start, last, device=query.device)
                allowed = torch.arange(last, device=query.device)[None, :] <= rows[:, None]
                block = _additive(allowed[None, None], query.dtype)
            elif attention_mask.dtype == torch.bool:
                block = _additive(attention_mask[:, :, start:stop, :last], query.dtype)
            else:
                block = attention_mask[:, :, start:stop, :last]
            rows_of_query = query[:, :, start:stop]
            keys, values = key[:, :, :last], value[:, :, :last]
            outputs.append(eager(module, rows_of_query, keys, values, block, **options)[0])
        return torch.cat(outputs, dim=1), None

    return attention


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)


# --- layers, projections, rotation ---------------------------------------------------------


def attention_modules(model: Any) -> dict[int, nn.Module]:
    """The self-attention module of each layer, by layer number.

    Raises
    ------
    ModelError : the model is no decoder, or its attention modules cannot be told apart.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"{type(model).__name__} is an encoder-decoder; a decoder is needed.")
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    found: dict[int, nn.Module] = {}
    for name, module in decoder.named_modules():
        layer = getattr(module, "layer_idx", None)
        kind = type(module).__name__.lower()
        if isinstance(layer, int) and "attention" in kind and "cross" not in name.lower():
            if layer in found:
                raise ModelError(f"{type(model).__name__} has two attentions in layer {layer}.")
            found[layer] = module
    if not found:
        raise ModelError(
            f"{type(model).__name__} has no attention modules with a layer number, so keys "
            "cannot be recorded from it; use keys=False."
        )
    return dict(sorted(found.items()))


def layer_modules(model: Any) -> dict[int, nn.Module]:
    """The block of each layer, by layer number: what holds its attention module."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    names = {id(module): name for name, module in decoder.named_modules()}
    blocks = {}
    for layer, attention in attention_modules(model).items():
        parent, _, _ = names[id(attention)].rpartition(".")
        blocks[layer] = decoder.get_submodule(parent)
    return blocks


def rotary_switch(model: Any) -> int | None:
    """Length above which a model turns all its keys by other tables; None where it never does.

    LongRoPE (Phi-3) takes one set of factors up to its original length and another beyond it,
    for every token of the text: readings of different lengths are then of two models.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    lengths = [
        int(kind["original_max_position_embeddings"])
        for kind in kinds
        if kind.get("rope_type") == "longrope" and kind.get("original_max_position_embeddings")
    ]
    return min(lengths) if lengths else None


def geometry(model: Any) -> dict[str, int]:
    """Numbers of layers, query heads and key-value heads."""
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "num_attention_heads", None) is None:
        raise ModelError(
            f"{type(model).__name__} has no attention heads (its configuration names none), so "
            "there are no keys to record; choose a transformer."
        )
    heads = int(config.num_attention_heads)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return {
        "n_layers": int(config.num_hidden_layers),
        "n_heads": heads,
        "n_kv_heads": int(kv_heads),
    }


def key_dim(model: Any) -> int:
    """Numbers in a key of one head."""
    config = model.config.get_text_config(decoder=True)
    for field in ("qk_head_dim", "head_dim"):
        dim = getattr(config, field, None)
        if isinstance(dim, int) and dim > 0:
            return dim
    return int(config.hidden_size) // int(config.num_attention_heads)


KEY_PROJECTIONS = ("k_proj", "key")
KEY_NORMS = ("k_norm", "k_layernorm", "key_layernorm")
FUSED_PROJECTIONS = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv")


def rotary_tables(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The (cos, sin) that an attention module is called with, None where it is given none.

    It is each layer's own: Gemma 3 makes two pairs and hands every layer the one of its type.
    """
    for given in (kwargs.get("position_embeddings"), *args):
        if isinstance(given, tuple) and len(given) == 2:
            cos, sin = given
            if isinstance(cos, Tensor) and isinstance(sin, Tensor) and cos.dim() == 3:
                return cos, sin
    return None


def rotary_module(model: Any) -> nn.Module:
    """The module that makes a decoder's rotary tables.

    Raises
    ------
    ModelError : the model has none: its positions are not rotary.
    """
    found = getattr(model.get_decoder(), "rotary_emb", None)
    if not isinstance(found, nn.Module):
        raise ModelError(
            f"{type(model).__name__} does not turn queries and keys by position (no rotary "
            "tables), so remembered tokens cannot be given new places; use a rotary decoder "
            "(Llama, Mistral, Qwen, Phi-3, Gemma 3, ...)."
        )
    return found


def make_tables(
    model: Any, layer: int, positions: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The layer's own (cos, sin) for positions (n,), each (1, n, rotated dimensions).

    Hooks on the rotary module are not run.
    """
    rotary = rotary_module(model)
    like = torch.zeros(1, 1, 1, dtype=dtype, device=positions.device)
    arguments: list[Any] = [like, positions[None]]
    if "layer_type" in inspect.signature(rotary.forward).parameters:
        arguments.append(model.config.get_text_config(decoder=True).layer_types[layer])
    cos, sin = rotary.forward(*arguments)
    return cos, sin


def turns(module: nn.Module) -> bool:
    """Whether a layer's attention turns its queries and keys (SmolLM3 has layers that do not)."""
    return bool(getattr(module, "use_rope", True))


def own_window(model: Any, layer: int, module: nn.Module) -> int | None:
    """Tokens a layer sees by its own design (a sliding window), None for all."""
    config = model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[layer] != "sliding_attention":
        return None
    width = getattr(module, "sliding_window", None) or getattr(config, "sliding_window", None)
    return int(width) if width else None


def cache_argument(model: Any) -> str:
    """What the model calls the argument of its cache: renamed within transformers 5."""
    parameters = inspect.signature(model.get_decoder().forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def rotate(module: nn.Module, keys: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate keys (batch, heads, n, dim) as the module's own code does."""
    own = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    cos, sin = tables
    if own is not None:
        rotated: Tensor = own(keys, keys, cos, sin)[1]
        return rotated
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned, rest = keys[..., : cos.shape[-1]], keys[..., cos.shape[-1] :]
    half = turned.shape[-1] // 2
    swapped = torch.cat((-turned[..., half:], turned[..., :half]), dim=-1)
    return torch.cat((turned * cos + swapped * sin, rest), dim=-1)


def unrotate(module: nn.Module, keys: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Undo `rotate`: turn by the opposite angle, and undo the tables' scaling.

    YaRN and LongRoPE multiply cos and sin by a factor a; turning back with the same tables
    would leave a², so both are divided by cos² + sin² = a².
    """
    cos, sin = tables
    scale = cos.square() + sin.square()
    return rotate(module, keys, (cos / scale, -sin / scale))


# --- reading, and the language-model head ----------------------------------------------------


def hidden_states(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Read a text once: (hidden states (n, hidden), the model's own logits after the last token).

    The logits of the other positions are not computed.
    """
    captured: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        captured.append(output[0])

    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise ModelError(
            f"{type(model).__name__} computes the logits of all positions at once "
            "(it takes no logits_to_keep); use an architecture that ships with transformers."
        )
    handle = model.get_decoder().register_forward_hook(keep)
    try:
        output = model(input_ids=ids[None], use_cache=False, logits_to_keep=1)
    finally:
        handle.remove()
    return captured[-1][0], output.logits[0, -1]


def head_logits(model: Any) -> Callable[..., Tensor]:
    """A function from hidden states (n, hidden) to logits (n, vocabulary), written to `out`.

    It honours the caps and scales that architectures put behind the head: Gemma's
    `final_logit_softcapping`, Cohere's `logit_scale`, Granite's `logits_scaling`. The caller
    checks it against the model's own logits.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(model).__name__} has no language-model head.")
    config = model.config.get_text_config(decoder=True)
    cap = getattr(config, "final_logit_softcapping", None)
    factor = float(getattr(config, "logit_scale", None) or 1.0)
    factor /= float(getattr(config, "logits_scaling", None) or 1.0)
    plain = type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks

    def logits(hidden: Tensor, out: Tensor | None = None) -> Tensor:
        if plain and out is not None:
            torch.mm(hidden, head.weight.t(), out=out)
            scores = out if head.bias is None else out.add_(head.bias)
        else:
            scores = head(hidden)
        if factor != 1.0:
            scores = scores.mul_(factor)
        if cap is not None:
            scores = scores.div_(cap).tanh_().mul_(cap)
        return scores

    return logits
