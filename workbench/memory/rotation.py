"""Rotary places of near and far tokens, with the model's own tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from workbench.recording import adapter

__all__ = ["Rotation"]

_GROW = 1024


class Rotation:
    """Turns queries and keys of one layer to places of our choosing.

    Parameters
    ----------
    model : the transformers model.
    layer : its number.
    module : its attention module.
    """

    def __init__(self, model: Any, layer: int, module: nn.Module) -> None:
        self._model, self._layer, self._module = model, layer, module
        self._turns = adapter.turns(module)
        self._switch = adapter.rotary_switch(model)
        # LongRoPE turns by other tables when the text is long: one table each.
        self._tables: dict[bool, tuple[Tensor, Tensor]] = {}
        self._far: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}

    def beyond(self, reach: int) -> bool:
        """Whether a reading of `reach` tokens is turned by the tables for long texts."""
        return self._switch is not None and reach > self._switch

    def near(self, states: Tensor, first: int, reach: int) -> Tensor:
        """States (heads, n, dim) turned to the places first ... first + n - 1.

        `reach` : length of what is read, which decides the table (LongRoPE).
        """
        if not self._turns:
            return states
        n = states.shape[1]
        cos, sin = self._table(first + n, states, self.beyond(reach))
        tables = cos[:, first : first + n], sin[:, first : first + n]
        return adapter.rotate(self._module, states[None], tables)[0]

    def at(self, states: Tensor, places: Tensor, reach: int) -> Tensor:
        """States (heads, n, dim) turned to the given places (n,)."""
        if not self._turns or not len(places):
            return states
        cos, sin = self._table(int(places.max()) + 1, states, self.beyond(reach))
        tables = cos[:, places.to(cos.device)], sin[:, places.to(sin.device)]
        return adapter.rotate(self._module, states[None], tables)[0]

    def far(self, queries: Tensor, distance: int, reach: int) -> Tensor:
        """Queries (heads, n, dim) for keys that stand unturned, `distance` before them."""
        if not self._turns:
            return queries
        beyond = self.beyond(reach)
        key = distance, beyond
        if key not in self._far:
            cos, sin = self._table(distance + 1, queries, beyond)
            place = cos[:, distance : distance + 1], sin[:, distance : distance + 1]
            # YaRN and LongRoPE scale turned keys, too; unturned ones have not had their share.
            scale = place[0].square() + place[1].square()
            root = scale.sqrt()
            self._far[key] = place[0] * root, place[1] * root
        return adapter.rotate(self._module, queries[None], self._far[key])[0]

    def _table(self, length: int, like: Tensor, beyond: bool) -> tuple[Tensor, Tensor]:
        held = self._tables.get(beyond)
        if held is None or held[0].shape[1] < length:
            size = -(-length // _GROW) * _GROW
            if self._switch is not None:
                # The tables' own length decides which they are.
                size = max(size, self._switch + 1) if beyond else self._switch
            positions = torch.arange(size, device=like.device)
            held = adapter.make_tables(self._model, self._layer, positions, like.dtype)
            self._tables[beyond] = held
        return held
