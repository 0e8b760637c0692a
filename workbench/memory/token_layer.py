"""A memory layer: tokens that left the local window are kept, and looked at by each query."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.checks import check_option, whole_number
from workbench.core.errors import DiskSpaceError, InputError
from workbench.memory.attend import Near, attend
from workbench.memory.kept import LayerShape
from workbench.memory.layer import LayerMemory
from workbench.memory.log import RetrievalLog
from workbench.memory.near import NearTokens
from workbench.memory.rotation import Rotation
from workbench.memory.settings import Settings
from workbench.memory.store import TokenStore
from workbench.memory.token_attend import Look, Stored, attend_tokens
from workbench.memory.token_store import KeyStore

if TYPE_CHECKING:
    from workbench.memory.row import Row

__all__ = [
    "TokenLayer",
    "TokenSettings",
    "begin_document",
    "begin_window",
    "cut_windows",
    "install",
]

TOKEN_POSITIONS = ("zero", "none")


@dataclass(frozen=True)
class TokenSettings:
    """What memory layers go by, beside the `Settings` of the window.

    Parameters
    ----------
    layers : zero-based numbers of the memory layers.
    top_k : keys that each query and head takes from the memory; None: all of them.
    capacity : tokens that a memory holds at most, the oldest go first; None: any number; 0: none.
    per_document : every call of `read` begins a new document, whose memory starts empty.
    temperature : the scores of memory layers, of window and memory alike, are divided by it.
    gate : logits for each memory layer and head; None: one softmax over window and memory.
    last_context : None: the window slides; a number: it begins anew as in LongLLaMA's released
        code, see `cut_windows`.
    narrow, skip, flat : fewer keys, or none, where scores say so; see `Look`.
    """

    layers: tuple[int, ...]
    top_k: int | None = None
    capacity: int | None = None
    per_document: bool = False
    temperature: float = 1.0
    gate: tuple[tuple[float, ...], ...] | None = None
    last_context: int | None = None
    narrow: float | None = None
    skip: float | None = None
    flat: float | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("memory_layers=[] names no layer; a memory needs one at least.")
        for layer in self.layers:
            whole_number("memory_layers", layer, 0)
        if len(set(self.layers)) != len(self.layers):
            raise InputError(f"memory_layers={list(self.layers)} names a layer twice.")
        if self.top_k is not None:
            whole_number("top_k", self.top_k, 1)
        if self.capacity is not None:
            whole_number("capacity", self.capacity, 0)
        if self.last_context is not None:
            whole_number("last_context_length", self.last_context, 1)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise InputError(f"temperature={self.temperature} must be a positive number.")
        for name in ("narrow", "skip", "flat"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise InputError(f"{name}={value} must be a number of nats, at least 0.")

    @classmethod
    def from_json(cls, stated: dict[str, Any]) -> TokenSettings:
        """The reverse of `dataclasses.asdict` by way of JSON."""
        gate = stated["gate"]
        gates = None if gate is None else tuple(tuple(row) for row in gate)
        return cls(**{**stated, "layers": tuple(stated["layers"]), "gate": gates})

    def check_settings(self, settings: Settings) -> None:
        """Whether such a memory goes with the settings of the window.

        Raises
        ------
        InputError : they cannot; with the reason.
        """
        check_option("position", settings.position, TOKEN_POSITIONS)
        if settings.n_local is None:
            raise InputError("n_local=None leaves nothing outside the window to remember.")
        if self.last_context is not None and self.last_context > settings.n_local:
            raise InputError(
                f"last_context_length={self.last_context} is the length of the last window, and "
                f"windows have n_local={settings.n_local} tokens at most."
            )
        if settings.n_init:
            raise InputError(
                f"n_init={settings.n_init}: a memory of tokens keeps the first ones like all "
                "others; use n_init=0."
            )
        if settings.store == "disk":
            raise InputError(
                "store='disk': every query looks at all keys of a memory of tokens, so they would "
                "be read from the disk at every step; use store='host' or 'device'."
            )

    def check_layers(self, shapes: list[LayerShape]) -> None:
        """Whether a model's layers can have such a memory.

        Raises
        ------
        InputError : they cannot; with the reason.
        """
        for layer in self.layers:
            if layer >= len(shapes):
                raise InputError(
                    f"memory_layers={list(self.layers)}: this model has layers "
                    f"0 ... {len(shapes) - 1}."
                )
            if not shapes[layer].recalls:
                raise InputError(
                    f"layer {layer} sees {shapes[layer].own_window} tokens by its own design and "
                    "cannot be a memory layer; choose among "
                    f"{[shape.layer for shape in shapes if shape.recalls]}."
                )
        if self.gate is not None:
            heads = [len(row) for row in self.gate]
            if heads != [shapes[layer].heads for layer in self.layers]:
                raise InputError(
                    f"gate= has {heads} numbers for the memory layers {list(self.layers)}; one "
                    f"for each of the {shapes[0].heads} query heads is needed in each."
                )


def install(row: Row, rotations: list[Rotation], tokens: TokenSettings, settings: Settings) -> None:
    """Put memory layers into a new row."""
    for place, number in enumerate(tokens.layers):
        shape, rotation = row.layers[number].shape, rotations[number]
        gate = None if tokens.gate is None else torch.tensor(tokens.gate[place])
        row.layers[number] = TokenLayer(shape, settings, rotation, row.log, tokens, gate)


def begin_document(row: Row) -> None:
    """Empty the memories of a row."""
    for layer in row.layers:
        if isinstance(layer, TokenLayer):
            layer.begin_document()


def begin_window(row: Row) -> None:
    """Let a new window begin in every layer: memory layers keep the old one, others forget it."""
    for layer in row.layers:
        if isinstance(layer, TokenLayer):
            layer.begin_window()
        else:
            layer.near.restart()


def cut_windows(ids: list[int], n_local: int, last: int) -> list[list[int]]:
    """Windows of a text as LongLLaMA's released code reads it.

    The last window has the `last` newest tokens (its last_context_length), the text before them is
    cut into windows of n_local tokens from its beginning on, the last of these being shorter. A
    window sees nothing of the others but through the memory.
    """
    edge = max(0, len(ids) - last)
    windows = [ids[start : min(start + n_local, edge)] for start in range(0, edge, n_local)]
    return [*windows, ids[edge:]]


class TokenLayer(LayerMemory):
    """A memory layer of one text.

    Tokens that left the window of the newest query lie in the store; those that have left the
    window of some queries of a chunk only are looked at among the near ones.

    Parameters
    ----------
    shape, settings, rotation, log : see `LayerMemory`.
    tokens : of the memory.
    gate : (heads,) logits, or None.
    """

    def __init__(
        self,
        shape: LayerShape,
        settings: Settings,
        rotation: Rotation,
        log: RetrievalLog,
        tokens: TokenSettings,
        gate: Tensor | None,
    ) -> None:
        super().__init__(shape, replace(settings, position="fixed"), rotation, None, log, None)
        self._tokens, self._gate = tokens, gate
        self._turned = settings.position != "none"
        self.memory = KeyStore("cpu" if settings.store == "host" else None)
        self.floor = 0  # tokens before it belong to earlier documents
        self.origin = 0  # where the window began
        self.store = self.memory

    def begin_window(self) -> None:
        """Move the whole window to the memory; the next token is the first of a new one."""
        self._keep(self.near.n)
        self.near.restart()
        self.origin = self.near.first

    def begin_document(self) -> None:
        """Forget the memory; tokens of the window will not enter it either."""
        self.floor = self.near.first + self.near.n
        self.memory.evict(self.memory.n)

    def settle(self) -> None:
        """Before tokens are read: move what left the window to the memory."""
        self._keep(self.near.n - self.window + 1)

    def _keep(self, count: int) -> None:
        near, memory = self.near, self.memory
        if count <= 0:
            return
        skipped = count if self._tokens.capacity == 0 else max(0, self.floor - near.first)
        if skipped < count:
            keys, values = near.keys[:, skipped:count], near.values[:, skipped:count]
            if memory.n == 0:
                memory.first = near.first + skipped
            rows = 2 * keys.nbytes
            held = memory.resident_bytes
            if self._s.budget is not None and held + rows > self._s.budget:
                raise DiskSpaceError(
                    f"layer {self.shape.layer}: storing the tokens at positions "
                    f"{near.first + skipped} ... {near.first + count - 1} needs {rows} bytes more "
                    f"than the budget of {self._s.budget} for this layer allows. Raise budget=, "
                    "or give a capacity=."
                )
            memory.append(keys, values)
        near.drop(count)
        if self._tokens.capacity is not None:
            # The next query sees one token less than what has left its window now.
            memory.evict(memory.n - self._tokens.capacity)

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float,
        *,
        step: int,
        reading: bool,
    ) -> Tensor:
        """Take in the newest tokens and let them attend; see `LayerMemory.attend`."""
        near, memory, m = self.near, self.memory, queries.shape[1]
        near.append(keys, values)
        scale = scale / self._tokens.temperature
        near_query = near.turned(queries) if self._turned else queries
        far_query = self._at_its_place(queries)
        shown = Near(
            keys=near.keys,
            rotated=near.rotated if self._turned else near.keys,
            values=near.values,
            first=near.first,
            window=self.window,
            far_limit=0,
        )
        newest = near.first + near.n - 1
        look = Look(
            self._tokens.top_k,
            self._tokens.capacity,
            self.floor,
            self.origin,
            None if self._gate is None else self._gate.to(queries.device),
            self._tokens.narrow,
            self._tokens.skip,
            self._tokens.flat,
        )
        start, stop = look.seen(newest, self.window)
        used = np.zeros(m)
        if start == stop:
            output, _ = attend(near_query, far_query, shown, None, scale, received=False)
        else:
            stored = None
            if memory.n:
                stored = Stored(memory.keys, memory.values, memory.first)
            output, used = attend_tokens(near_query, far_query, shown, stored, look, scale)
        places = np.arange(newest - m + 1, newest + 1) - self.origin
        self.seen = used + np.minimum(places + 1, self.window)
        return output

    def _at_its_place(self, queries: Tensor) -> Tensor:
        """Queries at their places in the window, for keys that stand as if at its beginning."""
        near, m = self.near, queries.shape[1]
        if not self._turned:
            return queries
        first = near.first + near.n - m - self.origin
        if self.origin == 0 or first >= self.window - 1:
            # Without a beginning of its own, a window is full before anything is in memory.
            return near.far(queries, self.window - 1)
        places = torch.arange(first, first + m).clamp(max=self.window - 1)
        return self._rotation.far_at(queries, places, near.reach)

    # --- going back ------------------------------------------------------------------------

    def copy(self) -> dict[str, Any]:
        """See `LayerMemory.copy`."""
        return {
            "near": self.near.copy() if self.near.n or self.near.first else None,
            "memory": self.memory.mark(),
            "floor": self.floor,
            "origin": self.origin,
            "seen": self.seen,
        }

    def restore(self, copy: dict[str, Any]) -> None:
        """See `LayerMemory.restore`."""
        if copy["near"] is None:
            self.near = NearTokens(self._rotation, self.shape.heads, self.near._reach)
        else:
            self.near.restore(copy["near"])
        self.memory.restore(copy["memory"])
        self.floor, self.origin, self.seen = copy["floor"], copy["origin"], copy["seen"]

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """See `LayerMemory.state`."""
        numbers, tensors = super().state()
        own = {"floor": self.floor, "origin": self.origin, "memory_first": self.memory.first}
        return {**numbers, **own}, tensors

    def restore_state(
        self,
        numbers: dict[str, Any],
        tensors: dict[str, Tensor],
        store: TokenStore | None,
        device: torch.device,
    ) -> None:
        """See `LayerMemory.restore_state`; every query needs all keys, so they are held."""
        super().restore_state(numbers, tensors, None, device)
        self.floor, self.origin = numbers["floor"], numbers["origin"]
        self.memory.first = numbers["memory_first"]
        if store is not None and store.n:
            keys, values = store.gather(torch.arange(store.n))
            place = device if self._s.store == "device" else torch.device("cpu")
            self.memory.append(keys.to(place), values.to(place))
        self.store = self.memory
