"""Where the keys and values of stored tokens lie: on the device, in host memory, or in a file.

A store holds, for one layer of one text, the tokens that left the local window, in the order of
the text. It only grows, and can be cut back to an earlier length.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import DiskSpaceError, InputError

__all__ = ["FileStore", "OverlayStore", "TensorStore", "TokenStore"]


class TokenStore(ABC):
    """Keys (before rotation) and values of tokens 0 ... n - 1.

    Attributes
    ----------
    n : tokens stored.
    """

    n: int = 0

    @abstractmethod
    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add tokens: keys and values (kv_heads, m, dim).

        Raises
        ------
        DiskSpaceError : there is no room; the store is as it was.
        """

    @abstractmethod
    def gather(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens, each (kv_heads, m, dim).

        `tokens` : numbers (m,), the same for all heads, or (kv_heads, m).
        """

    @abstractmethod
    def truncate(self, n: int) -> None:
        """Forget the tokens from n on."""

    @property
    @abstractmethod
    def resident_bytes(self) -> int:
        """Bytes held in device or host memory."""

    @property
    @abstractmethod
    def file_bytes(self) -> int:
        """Bytes held in a file."""


def _gathered(array: Tensor, tokens: Tensor) -> Tensor:
    """Rows of (n, 2, kv_heads, dim) as (2, kv_heads, m, dim)."""
    if tokens.dim() == 1:
        return array.index_select(0, tokens).permute(1, 2, 0, 3)
    heads = torch.arange(array.shape[2])[:, None]
    return array[tokens, :, heads].permute(2, 0, 1, 3)


class TensorStore(TokenStore):
    """In memory: one tensor (capacity, 2, kv_heads, dim) that grows by half.

    Parameters
    ----------
    device : where it lies; None: where the first keys come from.
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        self._device = device
        self._array: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> None:
        """See `TokenStore.append`."""
        kv_heads, m, dim = keys.shape
        held = 0 if self._array is None else len(self._array)
        if self.n + m > held:
            size = max(256, self.n + m, held + held // 2)
            place = self._device or keys.device
            grown = torch.empty(size, 2, kv_heads, dim, dtype=keys.dtype, device=place)
            if self._array is not None:
                grown[: self.n] = self._array[: self.n]
            self._array = grown
        assert self._array is not None
        self._array[self.n : self.n + m, 0] = keys.transpose(0, 1)
        self._array[self.n : self.n + m, 1] = values.transpose(0, 1)
        self.n += m

    def gather(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `TokenStore.gather`."""
        assert self._array is not None
        keys, values = _gathered(self._array, tokens.to(self._array.device))
        return keys, values

    def truncate(self, n: int) -> None:
        """See `TokenStore.truncate`."""
        self.n = min(self.n, n)

    @property
    def resident_bytes(self) -> int:
        """See `TokenStore`."""
        return 0 if self._array is None else self._array.nbytes

    @property
    def file_bytes(self) -> int:
        """See `TokenStore`."""
        return 0


class FileStore(TokenStore):
    """In a file of raw numbers, read through a memory map.

    Parameters
    ----------
    path : the file.
    kv_heads, dim, dtype : of its tokens.
    n : tokens that the file already holds.
    read_only : nothing is ever written; `append` refuses.

    Raises
    ------
    InputError : the file is shorter than n tokens.
    """

    def __init__(
        self,
        path: Path,
        kv_heads: int,
        dim: int,
        dtype: torch.dtype,
        *,
        n: int = 0,
        read_only: bool = False,
    ) -> None:
        self.path = Path(path)
        self._shape, self._dtype = (2, kv_heads, dim), dtype
        self._row = 2 * kv_heads * dim * dtype.itemsize
        self._read_only = read_only
        if not read_only:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if n == 0 or not self.path.exists():
                self.path.write_bytes(b"")
        if self.path.stat().st_size < n * self._row:
            raise InputError(
                f"{self.path} holds {self.path.stat().st_size} bytes, {n * self._row} are needed "
                f"for its {n} tokens; the file was cut. Read the text again."
            )
        self.n = n
        self._map: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> None:
        """See `TokenStore.append`."""
        if self._read_only:
            raise InputError(f"{self.path} was opened read-only; nothing can be stored in it.")
        rows = torch.stack((keys.transpose(0, 1), values.transpose(0, 1)), dim=1)
        data = rows.contiguous().cpu().view(torch.uint8).numpy().tobytes()
        try:
            # Not through the map: a full disk would kill the process instead of raising.
            with self.path.open("r+b") as file:
                file.seek(self.n * self._row)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DiskSpaceError(
                f"{self.path}: {keys.shape[1]} tokens could not be stored ({error.strerror}); the "
                f"{self.n} before them are unharmed. Free {len(data)} bytes or more, or store "
                "elsewhere (folder=)."
            ) from error
        self.n += keys.shape[1]
        self._map = None

    def gather(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `TokenStore.gather`."""
        if self._map is None:
            raw = np.memmap(self.path, np.uint8, "c", shape=(self.n * self._row,))
            self._map = torch.from_numpy(raw).view(self._dtype).view(self.n, *self._shape)
        keys, values = _gathered(self._map, tokens.cpu())
        return keys, values

    def truncate(self, n: int) -> None:
        """See `TokenStore.truncate`."""
        if n < self.n:
            self.n = n
            self._map = None

    @property
    def resident_bytes(self) -> int:
        """See `TokenStore`."""
        return 0

    @property
    def file_bytes(self) -> int:
        """See `TokenStore`."""
        return self.n * self._row


class OverlayStore(TokenStore):
    """New tokens in memory behind those of a store that must not change."""

    def __init__(self, base: TokenStore, device: torch.device | str | None = "cpu") -> None:
        self._base, self._new = base, TensorStore(device)
        self.n = base.n

    def append(self, keys: Tensor, values: Tensor) -> None:
        """See `TokenStore.append`."""
        self._new.append(keys, values)
        self.n = self._base.n + self._new.n

    def gather(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `TokenStore.gather`."""
        old = tokens < self._base.n
        if bool(old.all()):
            return self._base.gather(tokens)
        new = (tokens - self._base.n).clamp(min=0)
        if not bool(old.any()):
            return self._new.gather(new)
        first = self._base.gather(tokens.clamp(max=self._base.n - 1))
        second = self._new.gather(new)
        chosen = old[None, :, None] if tokens.dim() == 1 else old[:, :, None]
        keys, values = (
            torch.where(chosen.to(a.device), a, b) for a, b in zip(first, second, strict=True)
        )
        return keys, values

    def truncate(self, n: int) -> None:
        """See `TokenStore.truncate`."""
        if n < self._base.n:
            raise InputError(f"the first {self._base.n} tokens were opened read-only.")
        self._new.truncate(n - self._base.n)
        self.n = self._base.n + self._new.n

    @property
    def resident_bytes(self) -> int:
        """See `TokenStore`."""
        return self._base.resident_bytes + self._new.resident_bytes

    @property
    def file_bytes(self) -> int:
        """See `TokenStore`."""
        return self._base.file_bytes
