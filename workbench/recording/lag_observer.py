"""Attention of a repeated list, reduced per head to sums over the lag while the model reads."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.core.errors import ModelError, TextTooLongError
from workbench.recording.instruments import AttentionCall, Observer

__all__ = ["LagObserver", "attention_scores"]


class LagObserver(Observer):
    """Sums, over the tokens of the second list, of each head's attention by lag.

    One layer's queries of the second list times all keys exist at a time; what stays is a number
    per layer, head, lag and score. Grouped key-value heads are expanded to query heads.

    Parameters
    ----------
    sources : (n_items,) place in the first list (from 0) of each token of the second.
    skip : tokens before the first list (a start token).
    lags : (n_lags,) lags wanted; a lag beyond an end of the list is not counted for that token.
    complete : True: only tokens that have all of the lags are counted, for every lag.

    Attributes
    ----------
    sums, squares : (layers seen) → score → (heads, n_lags), sums of the value and its square.
    counts : (n_lags,) tokens that have each lag.
    matching, duplicate, previous : layer → (heads,) mean probability of the token that followed
        the current one in the first list (where there is one), of the current one itself, and of
        the token just before the query.
    """

    def __init__(
        self,
        sources: NDArray[np.int64],
        skip: int,
        lags: NDArray[np.int64],
        *,
        complete: bool = False,
    ) -> None:
        self.n = len(sources)
        self.skip = skip
        self.lags = lags
        target = sources[:, None] + lags[None, :]
        inside = (target >= 0) & (target < self.n)
        self._target = torch.from_numpy(np.where(inside, target, 0))
        self._inside = torch.from_numpy(
            inside & inside.all(axis=1, keepdims=True) if complete else inside
        )
        self._sources = torch.from_numpy(np.array(sources))
        self.counts = self._inside.sum(dim=0).numpy()
        self.sums: dict[int, dict[str, NDArray[np.float64]]] = {}
        self.squares: dict[int, dict[str, NDArray[np.float64]]] = {}
        self.matching: dict[int, NDArray[np.float64]] = {}
        self.duplicate: dict[int, NDArray[np.float64]] = {}
        self.previous: dict[int, NDArray[np.float64]] = {}

    def attention(self, call: AttentionCall) -> None:
        """Reduce one layer."""
        first, total = self.skip + self.n, self.skip + 2 * self.n
        if call.query.shape[2] != total or call.query.shape[0] != 1:
            raise ModelError(
                f"layer {call.layer} was given {call.query.shape[2]} tokens instead of the {total} "
                "of the repeated list."
            )
        self._check_reach(call, total)
        scores = attention_scores(call, first)  # (heads, n, total)
        rows = torch.arange(self.n, device=scores.device)
        future = torch.arange(total, device=scores.device)[None, :] > (first + rows)[:, None]
        visible = scores.masked_fill(future, float("-inf"))
        weight = torch.logsumexp(visible, dim=-1, keepdim=True)
        sink = call.options.get("s_aux")
        if sink is not None:  # a learned score that takes part in the softmax (gpt-oss)
            weight = torch.logaddexp(weight, sink.detach().to(weight).reshape(-1, 1, 1))
        probability = (visible - weight).exp()
        own = self._sources.to(scores.device)
        followed = rows[own < self.n - 1]
        for kept, at, key in (
            (self.previous, rows, first + rows - 1),
            (self.duplicate, rows, self.skip + own),
            (self.matching, followed, self.skip + own[followed] + 1),
        ):
            kept[call.layer] = probability[:, at, key].mean(dim=1).cpu().numpy()

        listed = scores[:, :, self.skip : first]
        target = self._target.to(scores.device).expand(scores.shape[0], -1, -1)
        inside = self._inside.to(scores.device)
        picked = {
            "raw": listed.gather(2, target),
            "log-centred": (listed - listed.mean(dim=2, keepdim=True)).gather(2, target),
            "probability": probability[:, :, self.skip : first].gather(2, target),
        }
        counted = {name: value.masked_fill(~inside, 0.0) for name, value in picked.items()}
        self.sums[call.layer] = {k: v.sum(dim=1).cpu().numpy() for k, v in counted.items()}
        self.squares[call.layer] = {k: (v**2).sum(dim=1).cpu().numpy() for k, v in counted.items()}

    def _check_reach(self, call: AttentionCall, total: int) -> None:
        """Every token must see every token before it, or lags are cut off by the mask."""
        window = call.options.get("sliding_window")
        hidden = isinstance(window, int) and window < total
        if call.mask is not None and not hidden:
            rows = call.mask[0, 0, :total, :total]
            allowed = rows if rows.dtype == torch.bool else rows > torch.finfo(rows.dtype).min / 2
            causal = torch.ones_like(allowed).tril()
            hidden = bool((causal & ~allowed).any())
        if hidden:
            width = f" (a sliding window of {window} tokens)" if isinstance(window, int) else ""
            raise TextTooLongError(
                f"layer {call.layer} does not see the whole repeated list of {total} tokens"
                f"{width}; give fewer items (n_items)."
            )


def attention_scores(call: AttentionCall, first: int) -> Tensor:
    """Scores q·k before the softmax, scaled and capped, of the queries from `first` on.

    Float64 (where the device has it), shape (heads, n_query - first, n_key).
    """
    # Metal devices have no float64.
    wide = torch.float32 if call.query.device.type == "mps" else torch.float64
    query = call.query[0, :, first:].to(wide)
    key = call.key[0].to(wide)
    groups = query.shape[0] // key.shape[0]
    key = key.repeat_interleave(groups, dim=0)
    scaling = call.scaling if call.scaling is not None else query.shape[-1] ** -0.5
    scores = query @ key.transpose(1, 2) * scaling
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    return scores
