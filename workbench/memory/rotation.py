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

    def near(self, states: Tensor, first: int, reach: int, *, alone: bool = False) -> Tensor:
        """States (heads, n, dim) turned to the places first ... first + n - 1.

        Parameters
        ----------
        reach : length of what is read, which decides the table (LongRoPE).
        alone : queries for keys that are not turned (they stand at place 0).
        """
        if not self._turns:
            return states
        n = states.shape[1]
        cos, sin = self._table(first + n, states, self.beyond(reach))
        tables = cos[:, first : first + n], sin[:, first : first + n]
        if alone:
            tables = _for_both(*tables)
        return adapter.rotate(self._module, states[None], tables)[0]

    def at(self, states: Tensor, places: Tensor, reach: int) -> Tensor:
        """States (heads, n, dim) turned to the given places, (n,) or each head's own (heads, n)."""
        if not self._turns or not places.numel():
            return states
        cos, sin = self._table(int(places.max()) + 1, states, self.beyond(reach))
        if places.dim() == 2:  # one head is one text of a batch here
            tables = cos[0, places.to(cos.device)], sin[0, places.to(sin.device)]
            return adapter.rotate(self._module, states[:, None], tables)[:, 0]
        tables = cos[:, places.to(cos.device)], sin[:, places.to(sin.device)]
        return adapter.rotate(self._module, states[None], tables)[0]

    def far(self, queries: Tensor, distance: int, reach: int) -> Tensor:
        """Queries (heads, n, dim) for keys that stand unturned, `distance` before them."""
        if not self._turns:
            return queries
        # Nothing stands that far before a shorter reading, so no key is turned by another table.
        beyond = self.beyond(max(reach, distance + 1))
        key = distance, beyond
        if key not in self._far:
            cos, sin = self._table(distance + 1, queries, beyond)
            place = slice(distance, distance + 1)
            self._far[key] = _for_both(cos[:, place], sin[:, place])
        return adapter.rotate(self._module, queries[None], self._far[key])[0]

    def far_at(self, queries: Tensor, places: Tensor, reach: int) -> Tensor:
        """Queries (heads, n, dim), each at a place of its own, for keys that stand unturned."""
        if not self._turns:
            return queries
        tables = self._table(int(places.max()) + 1, queries, self.beyond(reach))
        cos, sin = (table[:, places.to(table.device)] for table in tables)
        root = (cos.square() + sin.square()).sqrt()
        return adapter.rotate(self._module, queries[None], (cos * root, sin * root))[0]

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


def _for_both(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """YaRN and LongRoPE scale turned keys, too; unturned ones have not had their share."""
    root = (cos.square() + sin.square()).sqrt()
    return cos * root, sin * root
