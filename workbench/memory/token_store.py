"""Keys and values of single tokens in one piece, so that every query can look at all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from workbench.memory.store import TokenStore

__all__ = ["KeyStore", "StoreMark"]


class StoreMark(NamedTuple):
    """Where a `KeyStore` was: `restore` comes back to it."""

    keys: Tensor | None
    values: Tensor | None
    begin: int
    n: int
    first: int


class KeyStore(TokenStore):
    """Tokens first ... first + n - 1 of a text, the oldest of which can be let go.

    Keys and values move together: a row of one belongs to the same row of the other at all times.
    A buffer is never moved within itself, so a mark taken earlier stays whole until it is gone
    back to.

    Parameters
    ----------
    device : where they lie; None: where the first keys come from.

    Attributes
    ----------
    first : position of the oldest token held.
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        self._device = device
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._begin = 0
        self.first = 0

    @property
    def keys(self) -> Tensor:
        """(kv_heads, n, dim), as they were given."""
        assert self._keys is not None
        return self._keys[:, self._begin : self._begin + self.n]

    @property
    def values(self) -> Tensor:
        """(kv_heads, n, dim)."""
        assert self._values is not None
        return self._values[:, self._begin : self._begin + self.n]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """See `TokenStore.append`."""
        m = keys.shape[1]
        end = self._begin + self.n
        if self._keys is None or end + m > self._keys.shape[1]:
            self._grow(keys, values, m)
            end = self.n
        assert self._keys is not None
        assert self._values is not None
        self._keys[:, end : end + m] = keys
        self._values[:, end : end + m] = values
        self.n += m

    def _grow(self, keys: Tensor, values: Tensor, m: int) -> None:
        size = self.n + m + max(256, (self.n + m) // 2)
        device = self._device or keys.device

        def grown(like: Tensor) -> Tensor:
            return torch.empty(like.shape[0], size, like.shape[2], dtype=like.dtype, device=device)

        new = grown(keys), grown(values)
        if self._keys is not None:
            new[0][:, : self.n], new[1][:, : self.n] = self.keys, self.values
        self._keys, self._values = new
        self._begin = 0

    def evict(self, count: int) -> None:
        """Let the `count` oldest tokens go."""
        count = max(0, min(count, self.n))
        self._begin += count
        self.first += count
        self.n -= count

    def gather(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `TokenStore.gather`; numbers count from the oldest token held."""
        keys, values = self.keys, self.values
        tokens = tokens.to(keys.device)
        if tokens.dim() == 1:
            return keys[:, tokens], values[:, tokens]
        heads = torch.arange(len(keys), device=keys.device)[:, None]
        return keys[heads, tokens], values[heads, tokens]

    def truncate(self, n: int) -> None:
        """See `TokenStore.truncate`."""
        self.n = min(self.n, n)

    def mark(self) -> StoreMark:
        """What `restore` needs."""
        return StoreMark(self._keys, self._values, self._begin, self.n, self.first)

    def restore(self, mark: StoreMark) -> None:
        """Back to a mark."""
        self._keys, self._values, self._begin, self.n, self.first = mark

    @property
    def resident_bytes(self) -> int:
        """See `TokenStore`."""
        if self._keys is None or self._values is None:
            return 0
        return self._keys.nbytes + self._values.nbytes

    @property
    def file_bytes(self) -> int:
        """See `TokenStore`."""
        return 0
