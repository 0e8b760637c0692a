"""Crossbatch: memory layers see the windows of other rows of the same batch, differentiably.

A `Memory` answers one question of a layer: what may the current rows see besides their windows?
`Crossbatch` answers with rows of the batch (FOT, section 3.2); the baselines' memories
(`workbench.training.baselines`) answer with what earlier steps left behind. `Layer` joins the
answer with the window, for the small decoder and for any decoder of transformers alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.training.attention import Far, Near, attend, masses, own_share_loss
from workbench.training.rows import Batch, Links, Mixed, Paper

__all__ = ["Crossbatch", "Memory", "Probe", "join"]


@dataclass
class Probe:
    """Attention masses of memory layers, as they are computed.

    `own[layer]` and `all[layer]` are (current rows, heads, n) float32: the mass of each query on
    its own document's previous windows, and on all the windows it sees outside its own.
    """

    own: dict[int, Tensor] = field(default_factory=dict)
    all: dict[int, Tensor] = field(default_factory=dict)

    def add(self, layer: int, near: Near, far: Far) -> None:
        """Keep the masses of one layer."""
        self.own[layer], self.all[layer] = masses(near, far)


class Memory:
    """What the current rows see outside their windows; this one: nothing (standard training).

    Parameters
    ----------
    batch : the rows of this step.
    probe : filled with attention masses where one is given.
    contrast : also collect the InfoNCE of each memory layer's scores in `losses`.
    """

    positions = "window"
    """Where positions count from: each "window", or the "document"."""

    rotated = False
    """Whether far keys are wanted with their positions."""

    def __init__(self, batch: Batch, *, probe: Probe | None = None, contrast: bool = False) -> None:
        self.batch = batch
        self.probe = probe
        self.contrast = contrast
        self.losses: dict[int, Tensor] = {}

    def wanted(self, layer: int, is_memory_layer: bool) -> bool:
        """Whether `far` will answer for this layer."""
        return False

    def far(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Far | None:
        """What the current rows see in a layer.

        Parameters
        ----------
        layer : number of the layer.
        query : (current rows, heads, n, dim).
        key, value : (all rows, kv_heads, n, dim).
        """
        return None

    def joined(self, layer: int, near: Near) -> Tensor | None:
        """Attention computed by the memory itself, (current rows, heads, n, dim).

        For memories too long for `Far`; None, the rule, leaves it to the layer.
        """
        return None


class Crossbatch(Memory):
    """Memory layers see the linked rows of the batch.

    Parameters
    ----------
    form : `Paper` or `Mixed`; who sees whom. Or the links themselves.
    rng : draws random negatives.
    detach : no gradient into keys and values of other rows (ablation; Figure 5).
    top_k : only so many keys of each query and head.
    """

    def __init__(
        self,
        batch: Batch,
        form: Paper | Mixed | Links,
        rng: np.random.Generator,
        *,
        detach: bool = False,
        top_k: int | None = None,
        probe: Probe | None = None,
        contrast: bool = False,
    ) -> None:
        super().__init__(batch, probe=probe, contrast=contrast)
        self.form = form
        self.rng = rng
        self.detach = detach
        self.top_k = top_k
        self.links: Links | None = None
        if isinstance(form, Links):
            self._set(form)
        elif form.negatives != "hardest":
            self._set(form.links(batch, rng))

    def _set(self, links: Links) -> None:
        self.links = links
        device = self.batch.ids.device
        self._rows = torch.from_numpy(links.rows.clip(min=0)).to(device)
        present = torch.from_numpy(links.rows >= 0).to(device)
        current, m = links.rows.shape
        n = self.batch.ids.shape[1]
        allowed = present[:, :, None] & self.batch.valid[self._rows]
        self._allowed = allowed.reshape(current, m * n)
        own = torch.from_numpy(links.own).to(device)
        self._own = own[:, :, None].expand(current, m, n).reshape(current, m * n) & self._allowed

    def wanted(self, layer: int, is_memory_layer: bool) -> bool:
        """Memory layers only."""
        return is_memory_layer

    def far(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Far | None:
        """Keys and values of the linked rows."""
        if self.links is None and not isinstance(
            self.form, Links
        ):  # hardest: chosen in the first memory layer, kept for the others
            self._set(self.form.links(self.batch, self.rng, self._similarity(query, key)))
        assert self.links is not None
        if self.links.rows.shape[1] == 0 or not bool((self.links.rows >= 0).any()):
            return None
        if self.detach:
            key, value = key.detach(), value.detach()
        return Far(self._take(key), self._take(value), self._allowed, self._own, top_k=self.top_k)

    def _take(self, states: Tensor) -> Tensor:
        """(rows, kv_heads, n, dim) → (current rows, kv_heads, m·n, dim)."""
        current, m = self._rows.shape
        _, heads, n, dim = states.shape
        taken = states.index_select(0, self._rows.flatten()).view(current, m, heads, n, dim)
        return taken.transpose(1, 2).reshape(current, heads, m * n, dim)

    def _similarity(self, query: Tensor, key: Tensor) -> NDArray[np.float32]:
        """Mean query of each current row · mean key of each row, summed over heads."""
        with torch.no_grad():
            here = self.batch.valid
            rows = _mean(key, here)
            rows = rows.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
            current = _mean(query, here[self.batch.current])
            return (current.flatten(1) @ rows.flatten(1).T).float().cpu().numpy()


def _mean(states: Tensor, valid: Tensor) -> Tensor:
    weight = valid[:, None, :, None].to(states.dtype)
    return (states * weight).sum(dim=2) / weight.sum(dim=2).clamp(min=1)


def join(memory: Memory, layer: int, near: Near, far: Far | None, gate: Tensor | None) -> Tensor:
    """Attention of the current rows, with what the memory's probe and contrast ask for.

    Returns
    -------
    (current rows, heads, n, dim).
    """
    own = memory.joined(layer, near)
    if own is not None:
        return own
    if far is not None and memory.probe is not None:
        memory.probe.add(layer, near, far)
    if far is not None and memory.contrast:
        loss = own_share_loss(near, far)
        valid = memory.batch.valid[memory.batch.current]
        has_both = (far.own.any(dim=1) & (far.allowed & ~far.own).any(dim=1))[:, None]
        weight = (valid & has_both)[:, None].to(loss.dtype)
        count = (weight.sum() * loss.shape[1]).clamp(min=1)
        memory.losses[layer] = (loss * weight).sum() / count
    return attend(near, far, gate)
