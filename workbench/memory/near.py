"""The newest tokens of one layer: the local window, and what left it but is not stored yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.memory.rotation import Rotation

__all__ = ["NearTokens"]


@dataclass
class _Copy:
    first: int
    n: int
    anchor: int
    beyond: bool
    tensors: tuple[Tensor, ...]


class NearTokens:
    """Keys, values and received attention of the tokens first ... first + n - 1.

    Rotated keys are kept beside the plain ones. Places are counted from `anchor`: what matters
    is only how far a query is from a key, so a new anchor is taken only where the places would
    leave the range the model knows.

    Parameters
    ----------
    rotation : of the layer.
    heads : query heads, for the received attention.
    reach : places are counted up to here before the anchor moves; None: it never moves.
    """

    def __init__(self, rotation: Rotation, heads: int, reach: int | None) -> None:
        self.first = 0
        self.n = 0
        self._rotation, self._heads, self._reach = rotation, heads, reach
        self._start = 0  # row of the first token in the buffers
        self._anchor = 0
        self._beyond = False
        self._keys: Tensor | None = None
        self._rotated: Tensor | None = None
        self._values: Tensor | None = None
        self._received: Tensor | None = None

    @property
    def _span(self) -> slice:
        return slice(self._start, self._start + self.n)

    @property
    def keys(self) -> Tensor:
        """Before rotation, (kv_heads, n, dim)."""
        assert self._keys is not None
        return self._keys[:, self._span]

    @property
    def rotated(self) -> Tensor:
        """Turned to their places, (kv_heads, n, dim)."""
        assert self._rotated is not None
        return self._rotated[:, self._span]

    @property
    def values(self) -> Tensor:
        """(kv_heads, n, dim)."""
        assert self._values is not None
        return self._values[:, self._span]

    @property
    def received(self) -> Tensor:
        """Attention received so far from queries they are near to, (heads, n) float32."""
        assert self._received is not None
        return self._received[:, self._span]

    @property
    def reach(self) -> int:
        """Length of what is read, counted from the anchor."""
        return self.first + self.n - self._anchor

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Take in the newest tokens, keys before rotation and values (kv_heads, m, dim)."""
        m = keys.shape[1]
        self._make_room(keys, m)
        assert self._keys is not None
        assert self._rotated is not None
        assert self._values is not None
        assert self._received is not None
        end = self._start + self.n
        self._keys[:, end : end + m] = keys
        self._values[:, end : end + m] = values
        self._received[:, end : end + m] = 0
        last = self.first + self.n + m
        if self._reach is not None and last - self._anchor > self._reach:
            self._anchor = self.first
            self._turn(self._start, end + m)
        elif self._rotation.beyond(last - self._anchor) != self._beyond:
            self._turn(self._start, end + m)
        else:
            self._turn(end, end + m)
        self.n += m

    def _turn(self, begin: int, end: int) -> None:
        assert self._keys is not None
        assert self._rotated is not None
        place = self.first - self._anchor - self._start
        reach = place + end
        self._beyond = self._rotation.beyond(reach)
        keys = self._keys[:, begin:end]
        self._rotated[:, begin:end] = self._rotation.near(keys, begin + place, reach)

    def turned(self, queries: Tensor, *, alone: bool = False) -> Tensor:
        """Queries (heads, m, dim) of the m newest tokens, turned to their places.

        `alone` : for keys that are not turned.
        """
        reach = self.first + self.n - self._anchor
        return self._rotation.near(queries, reach - queries.shape[1], reach, alone=alone)

    def far(self, queries: Tensor, distance: int) -> Tensor:
        """Queries (heads, m, dim) for unturned keys that stand `distance` before them."""
        return self._rotation.far(queries, distance, self.first + self.n - self._anchor)

    def drop(self, count: int) -> None:
        """Let the first `count` tokens go."""
        self.first += count
        self._start += count
        self.n -= count

    def restart(self) -> None:
        """Let all tokens go, and count places from the next one."""
        self.drop(self.n)
        self._anchor = self.first

    def copy(self) -> _Copy:
        """What `restore` needs to come back to now."""
        assert self._keys is not None
        tensors = (self.keys, self.rotated, self.values, self.received)
        clones = tuple(tensor.clone() for tensor in tensors)
        return _Copy(self.first, self.n, self._anchor, self._beyond, clones)

    def restore(self, copy: _Copy) -> None:
        """Back to a copy."""
        self.first, self.n = copy.first, copy.n
        self._anchor, self._beyond, self._start = copy.anchor, copy.beyond, 0
        keys, rotated, values, received = (tensor.clone() for tensor in copy.tensors)
        self._keys, self._rotated, self._values, self._received = keys, rotated, values, received

    def numbers(self) -> dict[str, Any]:
        """Where the tokens and their places are, for a file."""
        return {"first": self.first, "n": self.n, "anchor": self._anchor, "beyond": self._beyond}

    def set(self, numbers: dict[str, Any], tensors: tuple[Tensor, ...] | None) -> None:
        """Back to what was saved: `numbers`, and keys, rotated, values and received."""
        if tensors is not None:
            self.restore(
                _Copy(numbers["first"], numbers["n"], numbers["anchor"], numbers["beyond"], tensors)
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        held = (self._keys, self._rotated, self._values, self._received)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def _make_room(self, like: Tensor, m: int) -> None:
        kv_heads, _, dim = like.shape
        capacity = 0 if self._keys is None else self._keys.shape[1]
        if self._start + self.n + m <= capacity:
            return
        size = self.n + m + max(256, (self.n + m) // 2)
        kept = self._span

        def moved(old: Tensor | None, heads: int, dtype: torch.dtype, *rest: int) -> Tensor:
            new = torch.empty(heads, size, *rest, dtype=dtype, device=like.device)
            if old is not None:
                new[:, : self.n] = old[:, kept]
            return new

        self._keys = moved(self._keys, kv_heads, like.dtype, dim)
        self._rotated = moved(self._rotated, kv_heads, like.dtype, dim)
        self._values = moved(self._values, kv_heads, like.dtype, dim)
        wide = torch.float64 if like.dtype == torch.float64 else torch.float32
        self._received = moved(self._received, self._heads, wide)
        self._start = 0
