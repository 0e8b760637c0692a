"""Attention of a last stretch of tokens, reduced to what it gives to each window before it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.recording.attention_rows import RowMask
from workbench.recording.instruments import AttentionCall, Observer

__all__ = ["WindowObserver"]

_SCORES = 2**22  # scores that exist at once


class WindowObserver(Observer):
    """Softmax masses that the last tokens' queries give to each previous window.

    Parameters
    ----------
    layers : numbers of the layers to observe.
    skip : tokens before the first window (a start token).
    n_windows : previous windows.
    size : tokens of each of them, and of the last stretch, whose queries are observed.

    Attributes
    ----------
    masses : layer → (heads, queries, n_windows) float64.
    reach : layer → tokens that its last query sees, itself included.
    """

    def __init__(self, layers: list[int], skip: int, n_windows: int, size: int) -> None:
        self.layers = set(layers)
        self.skip, self.n_windows, self.size = skip, n_windows, size
        self.masses: dict[int, NDArray[np.float64]] = {}
        self.reach: dict[int, int] = {}
        self._expected: Tensor | None = None
        self._tolerance = 0.0

    def attention(self, call: AttentionCall) -> None:
        """Reduce one layer, a block of queries after the other."""
        if call.layer not in self.layers:
            return
        total = self.skip + (self.n_windows + 1) * self.size
        if call.query.shape[2] != total or call.query.shape[0] != 1:
            raise ModelError(
                f"layer {call.layer} was given {call.query.shape[2]} tokens instead of {total}."
            )
        mask = RowMask(call, 0, 0)
        heads = call.query.shape[1]
        rows = max(1, _SCORES // (heads * total))
        kept = np.empty((heads, self.size, self.n_windows))
        for start in range(total - self.size, total, rows):
            stop = min(start + rows, total)
            weights, first = _softmax(call, mask, start, stop)
            before = total - self.size - self.skip  # tokens of all previous windows
            whole = weights.new_zeros(heads, stop - start, before)
            # Masked keys before `first` get nothing; a start token is no part of any window.
            seen = weights[..., max(self.skip - first, 0) : total - self.size - first]
            if seen.shape[-1]:
                whole[..., before - seen.shape[-1] :] = seen
            sums = whole.reshape(heads, stop - start, self.n_windows, self.size).sum(-1)
            at = start - (total - self.size)
            kept[:, at : at + stop - start] = sums.double().cpu().numpy()
        self.masses[call.layer] = kept
        self.reach[call.layer] = total - mask.block(total - 1, total, weights.dtype)[0]
        self._expect(call, weights[:, -1], first)

    def after(self, call: AttentionCall, output: Tensor) -> None:
        """Compare the last row times the values with what the layer itself made of it."""
        if self._expected is None:
            return
        expected, self._expected = self._expected, None
        gap = float((output[0, -1].to(expected.dtype) - expected).abs().max())
        if not gap <= self._tolerance:
            raise ModelError(
                f"layer {call.layer}: attention as computed here, times the values, is not the "
                f"layer's own output at the last token (they differ by {gap:.2g}, allowed "
                f"{self._tolerance:.2g}). This architecture does more to its scores than is known "
                "here, so its masses cannot be measured."
            )

    def _expect(self, call: AttentionCall, row: Tensor, first: int) -> None:
        value = call.value[0, :, first:].to(row.dtype)
        value = value.repeat_interleave(row.shape[0] // value.shape[0], dim=0)
        self._expected = torch.einsum("hk,hkd->hd", row, value)
        self._tolerance = float(value.abs().max()) * (1e-4 + 64 * torch.finfo(call.query.dtype).eps)


def _softmax(call: AttentionCall, mask: RowMask, start: int, stop: int) -> tuple[Tensor, int]:
    """Attention (heads, rows, keys) of queries start ... stop - 1, and the first key's position."""
    # Metal devices have no float64.
    wide = torch.float32 if call.query.device.type == "mps" else torch.float64
    first, bias = mask.block(start, stop, wide)
    query = call.query[0, :, start:stop].to(wide)
    key = call.key[0, :, first:stop].to(wide)
    groups = query.shape[0] // key.shape[0]
    scaling = call.scaling if call.scaling is not None else query.shape[-1] ** -0.5
    scores = (
        query.unflatten(0, (key.shape[0], groups)) @ key[:, None].transpose(-1, -2) * scaling
    ).flatten(0, 1)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores[..., scores.shape[-1] - bias.shape[1] :] += bias
    sink = call.options.get("s_aux")
    if sink is None:
        return scores.softmax(-1), first
    # A learned score that takes part in the softmax and belongs to no token (gpt-oss).
    learned = sink.detach().to(wide).reshape(-1, 1, 1).expand(*scores.shape[:2], 1)
    return torch.cat([scores, learned], dim=-1).softmax(-1)[..., :-1], first
