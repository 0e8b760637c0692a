"""Large arrays of a stored trace: read chunk by chunk when asked for, each checked by its hash."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xarray import Variable
from xarray.backends import BackendArray
from xarray.core import indexing

from workbench.core.errors import DataError

__all__ = ["LAZY", "CheckedArray", "chunk_hashes", "lazy_variable"]

LAZY = {"key": 2, "state": 1}
"""Variables stored in one chunk per layer (and head), and how many leading dimensions that is."""


def chunk_hashes(values: NDArray[Any], leading: int) -> list[str]:
    """sha256 of values[i] (or values[i, j]), in C order."""
    chunks = values.reshape(-1, *values.shape[leading:])
    return [_hash(chunk) for chunk in chunks]


def lazy_variable(folder: Path, name: str, stored: Variable, hashes: list[str]) -> Variable:
    """The variable `name` of the zarr folder, of which nothing is read yet."""
    array = CheckedArray(folder, name, hashes)
    return Variable(stored.dims, indexing.LazilyIndexedArray(array), attrs=stored.attrs)


class CheckedArray(BackendArray):
    """One array of a zarr folder; what is asked for is read in whole chunks and checked.

    Raises
    ------
    DataError : (when indexed) a chunk is gone, or not as it was written.
    """

    def __init__(self, folder: Path, name: str, hashes: list[str]) -> None:
        stored = self._open(folder, name)
        self.folder = folder
        self.name = name
        self.hashes = hashes
        self.shape = tuple(stored.shape)
        self.dtype = np.dtype(stored.dtype)

    @staticmethod
    def _open(folder: Path, name: str) -> Any:
        import zarr

        return zarr.open_array(folder / name, mode="r", zarr_format=3)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER, self._read
        )

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        """`key` has a number, slice or array of numbers for each dimension (outer indexing)."""
        leading = LAZY[self.name]
        try:
            stored = self._open(self.folder, self.name)
            wanted = [np.arange(n)[k] for n, k in zip(self.shape, key[:leading], strict=False)]
            grid = [np.atleast_1d(numbers) for numbers in wanted]
            result = None
            for place in np.ndindex(*(len(numbers) for numbers in grid)):
                at = tuple(int(numbers[i]) for numbers, i in zip(grid, place, strict=True))
                chunk = self._outer(self._chunk(stored, at), key[leading:])
                if result is None:
                    shape = (*(len(numbers) for numbers in grid), *np.shape(chunk))
                    result = np.empty(shape, dtype=self.dtype)
                result[place] = chunk
        except DataError:
            raise
        except Exception as error:
            raise DataError(
                f"{self.folder} cannot be read any more ({type(error).__name__}: {error}); was it "
                "removed or replaced? Load the trace again, or record it again."
            ) from error
        if result is None:
            rest = self._outer(np.empty(self.shape[leading:], self.dtype), key[leading:])
            result = np.empty((*(len(numbers) for numbers in grid), *rest.shape), self.dtype)
        # A plain number takes its dimension away.
        numbers_only = tuple(i for i, numbers in enumerate(wanted) if np.ndim(numbers) == 0)
        return np.asarray(result.squeeze(axis=numbers_only))

    def _chunk(self, stored: Any, at: tuple[int, ...]) -> NDArray[Any]:
        values = np.asarray(stored[at])
        place = int(np.ravel_multi_index(at, self.shape[: len(at)]))
        if _hash(values) != self.hashes[place]:
            where = ", ".join(map(str, at))
            raise DataError(
                f"{self.folder} is damaged: {self.name}[{where}] not as written; record it again."
            )
        return values

    @staticmethod
    def _outer(values: NDArray[Any], key: tuple[Any, ...]) -> NDArray[Any]:
        for axis in reversed(range(len(key))):
            values = values[(slice(None),) * axis + (key[axis],)]
        return values


def _hash(values: NDArray[Any]) -> str:
    flat = np.ascontiguousarray(values).reshape(-1)
    return hashlib.sha256(flat.view(np.uint8).data).hexdigest()
