"""Attention statistics written from their definitions, on whole matrices of eager attention."""

from __future__ import annotations

import itertools

import numpy as np
import torch


def eager_attentions(model, ids):
    """(layers, heads, n, n) float64 from the model's own eager attention; NaN-free, checked."""
    with torch.no_grad():
        found = model(ids, output_attentions=True, use_cache=False).attentions
    assert len(found) == model.config.num_hidden_layers, "output_attentions gave nothing"
    return torch.stack([layer[0] for layer in found]).double().numpy()


def entropy(matrix):
    """-Σ p log p over tokens, and over what is left for a learned sink."""
    rest = np.clip(1 - matrix.sum(-1, keepdims=True), 0, None)
    rest = np.where(rest > 1e-5, rest, 0.0)  # without a sink it is rounding
    p = np.concatenate([matrix, rest], axis=-1)
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def distance(matrix):
    n = matrix.shape[-1]
    lag = np.arange(n)[:, None] - np.arange(n)[None, :]
    return (matrix * lag).sum(-1) / matrix.sum(-1)


def lag_means(matrix, edges, part_starts, skip, without_first=0):
    """Mean over the pairs of each part and bin, (..., parts, bins), and their number."""
    text = matrix[..., skip:, skip:]
    n = text.shape[-1]
    query, key = np.arange(n)[:, None], np.arange(n)[None, :]
    means, pairs = [], []
    for start, stop in zip(part_starts, [*part_starts[1:], n]):
        for low, high in itertools.pairwise(edges):
            chosen = (query >= start) & (query < stop) & (key >= without_first)
            chosen &= (query - key >= low) & (query - key < high)
            pairs.append(chosen.sum())
            with np.errstate(invalid="ignore"):
                means.append(text[..., chosen].sum(-1) / chosen.sum())
    shape = (len(part_starts), len(edges) - 1)
    return np.stack(means, axis=-1).reshape(*matrix.shape[:-2], *shape), np.reshape(pairs, shape)


def inside(matrix, starts, skip):
    """Mass of the own event, (..., n) for the tokens of the text."""
    n = matrix.shape[-1] - skip
    out = np.empty((*matrix.shape[:-2], n))
    for i in range(n):
        own = max(s for s in starts if s <= i)
        out[..., i] = matrix[..., i + skip, own + skip : i + skip + 1].sum(-1)
    return out
