"""The rows of memory of a language model: made, forgotten, branched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch

from workbench.core.errors import InputError, ModelError
from workbench.core.story import Story
from workbench.memory.forming import Forming
from workbench.memory.kept import LayerShape
from workbench.memory.rotation import Rotation
from workbench.memory.row import Row
from workbench.memory.session import Session
from workbench.memory.settings import Settings
from workbench.memory.token_layer import TokenSettings, install
from workbench.recording import adapter
from workbench.recording.start import start_token

if TYPE_CHECKING:
    from workbench.models import LanguageModel

__all__ = ["MemoryState"]


class MemoryState:
    """The rows of memory behind a language model, and how to come back to an earlier state.

    Parameters
    ----------
    lm : the language model.
    settings : what is near, kept and recalled.
    forming : how units are formed; None: no units are.
    tokens : memory layers that keep single tokens; None: there are none.
    bos : what stands before the text, as in `record`.
    folder : of the files, for store="disk".
    name : how tables call it.
    """

    def __init__(
        self,
        lm: LanguageModel,
        settings: Settings,
        forming: Forming | None,
        *,
        tokens: TokenSettings | None = None,
        bos: str | int = "auto",
        folder: str | Path | None = None,
        name: str = "memory",
    ) -> None:
        self.lm, self.settings, self.forming, self.name = lm, settings, forming, name
        self.tokens = tokens
        if tokens is not None:
            tokens.check_settings(settings)
        self.start, self.start_reason = start_token(lm.tokenizer, bos)
        self.bos = bos
        self._folder = None if folder is None else Path(folder)
        if settings.store == "disk" and folder is None:
            raise InputError("store='disk' needs folder=: where the files of the memory go.")
        modules = adapter.attention_modules(lm.model)
        size = adapter.geometry(lm.model)
        if len(modules) != size["n_layers"]:
            raise ModelError(
                f"{type(lm.model).__name__} has attention in {len(modules)} of its "
                f"{size['n_layers']} layers; a memory needs all of them."
            )
        adapter.rotary_module(lm.model)
        own = [adapter.own_window(lm.model, layer, module) for layer, module in modules.items()]
        mixed = any(window is None for window in own)
        # Where only some layers see all of a text, the others are not meant to look back further;
        # nor are any, where nothing is to be changed at all.
        plain = settings.n_local is None
        self._shapes = [
            LayerShape(
                layer,
                size["n_heads"],
                size["n_kv_heads"],
                window,
                recalls=not (window and (mixed or plain)),
            )
            for layer, window in zip(modules, own, strict=True)
        ]
        self._check_windows([window for window in own if window], mixed)
        if tokens is not None:
            tokens.check_layers(self._shapes)
        self._rotations = [Rotation(lm.model, layer, m) for layer, m in modules.items()]
        self.refining_layers: list[int] = self._refining_layers(size["n_layers"])
        self.rows: list[Row] = []
        self._depth = 0  # branches that are open
        self._stories: list[list[Story]] = []
        self._pieces: list[list[tuple[int, str]]] = []
        self.reset()

    def _check_windows(self, own: list[int], mixed: bool) -> None:
        n_local, window = self.settings.n_local, self.lm.window
        if own and not mixed and n_local is not None and n_local > min(own):
            raise InputError(
                f"n_local={n_local}: every layer of {self.lm.name} sees {min(own)} tokens by its "
                f"own design; give n_local={min(own)} or less."
            )
        if n_local is not None and window is not None and n_local > window:
            raise InputError(f"n_local={n_local}: {self.lm.name} reads at most {window} tokens.")

    def _refining_layers(self, n_layers: int) -> list[int]:
        if self.forming is None or not self.forming.refined:
            return []
        if self.forming.per == "layer":
            return list(range(n_layers))
        if self.forming.layers is None:
            # A sliding layer forgets its keys, so that nobody could check its events later.
            kept = [shape.layer for shape in self._shapes if shape.recalls]
            last = [layer for layer in kept if layer >= n_layers - max(1, n_layers // 3)]
            return last or kept[-1:]
        chosen = sorted(set(self.forming.layers))
        if not chosen or not 0 <= chosen[0] <= chosen[-1] < n_layers:
            raise InputError(f"layers={chosen}: this model has layers 0 ... {n_layers - 1}.")
        return chosen

    def reset(self) -> None:
        """Forget everything.

        Raises
        ------
        InputError : within `branch`, where the memory lies in files that would be overwritten.
        """
        if self._depth and self.settings.store == "disk":
            raise InputError(
                "reset() inside branch() would overwrite the files of a memory that is to come "
                "back; use another system, or store='host'."
            )
        self.rows = []
        self._pieces = []
        self._stories = []

    def _ready(self, n: int) -> None:
        if not self.rows:
            for number in range(n):
                folder = None
                if self._folder is not None:
                    folder = self._folder / f"text-{number}"
                self.rows.append(
                    Row(
                        self._shapes,
                        self._rotations,
                        self.settings,
                        self.forming,
                        int(self.start is not None),
                        folder,
                        refining=self.refining_layers,
                    )
                )
                if self.tokens is not None:
                    install(self.rows[-1], self._rotations, self.tokens, self.settings)
            self._pieces = [[] for _ in range(n)]
            self._stories = [[] for _ in range(n)]
        if len(self.rows) != n:
            raise InputError(
                f"this memory holds {len(self.rows)} text(s), and {n} were given; give one for "
                "each, or reset() first."
            )

    @contextmanager
    def attached(self) -> Iterator[Session]:
        """The model with this memory as its attention, for transformers' own `generate`.

        Pass the session's `cache` to the model: `past_key_values=session.cache`.
        """
        with torch.inference_mode(), Session(self.lm, self.rows, self.refining_layers) as session:
            yield session

    @contextmanager
    def branch(self) -> Iterator[Self]:
        """Whatever is read or generated inside the block is forgotten on leaving it."""
        back = self._way_back()
        self._depth += 1
        try:
            yield self
        finally:
            self._depth -= 1
            back()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A call that fails half-way (a full disk, an interruption) leaves the last good state.

        Otherwise some layers would have stored what others have not.
        """
        back = self._way_back()
        try:
            yield
        except BaseException:
            back()
            raise

    def _way_back(self) -> Callable[[], None]:
        """A function that brings the memory back to what it is now."""
        rows = list(self.rows)
        copies = [row.copy() for row in rows]
        pieces = [list(row) for row in self._pieces]
        stories = [list(row) for row in self._stories]

        def back() -> None:
            # A reset in between has made rows of its own.
            self.rows, self._pieces, self._stories = rows, pieces, stories
            for row, copy in zip(rows, copies, strict=True):
                row.restore(copy)

        return back
