"""Copying score of attention heads: does attending to a token raise or lower that token?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workbench.recording import adapter

__all__ = ["copying_scores", "eigenvalue_positivity"]

_BLOCK = 8192


@torch.no_grad()
def copying_scores(model: Any, layers: list[int], n_heads: int) -> NDArray[np.float64]:
    """Copying score of each head, shape (layers, n_heads), in -1 ... 1.

    The circuit W_U W_O W_V W_E takes the token attended to to the change of the logits (Elhage et
    al. 2021); its eigenvalues are positive where a token raises itself. Score: sum of their real
    parts over the sum of their magnitudes. They are those of the small product
    (W_V W_E) (W_U W_O), head_dim × head_dim. The weights of the norms before the values and before
    the unembedding are folded in, and a norm that subtracts the mean is honoured, but the norms'
    scaling, which depends on the text, is not.

    NaN in layers whose value or output weights are not laid out in a known way.

    Parameters
    ----------
    model : a transformers causal language model.
    layers : numbers of the layers.
    n_heads : query heads of a layer.
    """
    decoder = model.get_decoder()
    embed = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    result = np.full((len(layers), n_heads), np.nan)
    hidden = model.config.get_text_config(decoder=True).hidden_size
    if head is None or embed.shape[1] != hidden or head.weight.shape[1] != hidden:
        return result
    both = torch.zeros(hidden, hidden, dtype=torch.float64)
    for low in range(0, embed.shape[0], _BLOCK):
        part = slice(low, low + _BLOCK)
        both += (embed[part].float().T @ head.weight[part].float().to(embed.device)).cpu().double()
    final = _norm(decoder, ("norm", "ln_f", "final_layer_norm", "final_layernorm"))
    modules = adapter.attention_modules(model)
    for row, layer in enumerate(layers):
        weights = value_and_output(modules[layer], n_heads, hidden)
        block = _block_of(decoder, modules[layer])
        before = _norm(block, ("input_layernorm", "ln_1", "ln_attn")) if block is not None else None
        if weights is None:
            continue
        value, output = weights
        value = _fold(value, before)  # (heads, dim, hidden)
        # Unembedding rows read the normed state: U · diag(g) · C · W_O.
        out = _fold(output.transpose(1, 2), final, back=True)  # (heads, dim, hidden)
        circuit = value @ both @ out.transpose(1, 2)
        result[row] = eigenvalue_positivity(circuit.numpy())
    return result


def eigenvalue_positivity(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ Re λ / Σ |λ| over the eigenvalues of square matrices (..., d, d); NaN where all are 0."""
    values = np.linalg.eigvals(matrices)
    size = np.abs(values).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(size > 0, values.real.sum(axis=-1) / size, np.nan)


def value_and_output(module: Any, n_heads: int, hidden: int) -> tuple[Tensor, Tensor] | None:
    """Value (heads, dim, hidden) and output (heads, hidden, dim) weights of an attention module.

    Key-value heads are expanded to query heads. None for a layout that is not known: fused
    projections are cut only for the families whose order of columns is known.
    """
    kind = type(module).__name__
    out = next(
        (getattr(module, name) for name in ("o_proj", "c_proj", "dense") if hasattr(module, name)),
        None,
    )
    if out is None:
        return None
    # GPT-2's Conv1D holds its weight as (in, out).
    flat = out.weight.T if type(out).__name__ == "Conv1D" else out.weight
    if flat.dim() != 2 or flat.shape[0] != hidden or flat.shape[1] % n_heads:
        return None
    dim = flat.shape[1] // n_heads
    if hasattr(module, "v_proj"):
        value = module.v_proj.weight
    elif hasattr(module, "qkv_proj") and kind.startswith("Phi3"):
        value = module.qkv_proj.weight[n_heads * dim :]
        value = value[value.shape[0] // 2 :]
    elif hasattr(module, "c_attn") and type(module.c_attn).__name__ == "Conv1D":
        value = module.c_attn.weight[:, -n_heads * dim :].T
    elif hasattr(module, "query_key_value") and kind.startswith("GPTNeoX"):
        value = module.query_key_value.weight.reshape(n_heads, 3, dim, hidden)[:, 2]
        value = value.reshape(n_heads * dim, hidden)
    else:
        return None
    if value.dim() != 2 or value.shape[1] != hidden or value.shape[0] % dim:
        return None
    value = value.reshape(-1, dim, hidden)
    if n_heads % value.shape[0]:
        return None
    value = value.repeat_interleave(n_heads // value.shape[0], dim=0)
    output = flat.reshape(hidden, n_heads, dim).permute(1, 0, 2)
    return value.cpu().double(), output.cpu().double()


def _block_of(decoder: nn.Module, attention: nn.Module) -> nn.Module | None:
    for module in decoder.modules():
        if any(child is attention for child in module.children()):
            return module
    return None


def _norm(parent: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    return next((getattr(parent, name) for name in names if hasattr(parent, name)), None)


def _fold(weights: Tensor, norm: nn.Module | None, *, back: bool = False) -> Tensor:
    """Weights (heads, dim, hidden) with a norm's gain g, and C, the removal of the mean, folded in.

    The norm computes g ⊙ C x up to its scaling. Rows that read x become (row ⊙ g) C; rows of a
    transposed output that a norm reads afterwards (`back`) become (row C) ⊙ g.
    """
    if norm is None:
        return weights
    gain = getattr(norm, "weight", None)
    centres = isinstance(norm, nn.LayerNorm) or "LayerNorm" in type(norm).__name__
    factor = 1.0 if gain is None else _gain(norm, gain)
    result = weights if back else weights * factor
    if centres:
        result = result - result.mean(dim=-1, keepdim=True)
    return result * factor if back else result


def _gain(norm: nn.Module, weight: Tensor) -> Tensor:
    # Gemma's norms multiply by 1 + weight.
    offset = 1.0 if type(norm).__name__.startswith("Gemma") else 0.0
    return weight.cpu().double() + offset
