"""Trace: what a language model did while it read a story, as one labelled data set."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError, MissingDataError
from workbench.core.story import Story

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from workbench.core.blockgraph import BlockGraph
    from workbench.core.keygraph import KeyGraph
    from workbench.core.similarities import Weights

__all__ = ["Trace"]


@dataclass(frozen=True, eq=False)
class Trace:
    """Measurements of one model on one story.

    `dataset` has the dimensions token, layer, kv_head, dim, word and

    - `surprisal` (token), nats: -log p of the token given all before it; NaN for a first token
      that no start token precedes; and the other measures of prediction that were recorded
      (`workbench.recording.measures.MEASURES`): `entropy`, `bayesian_surprise`, ...
    - `word_surprisal` (word), nats: sum over the word's tokens; `word_entropy`,
      `word_bayesian_surprise`, ...
    - `key` (layer, kv_head, token, dim), where recorded: keys before rotary encoding
    - `state_drift` (state_layer, token), where recorded: 1 - cosine of successive hidden states;
      `state` (state_layer, token, hidden): the states
    - coordinates `token_id`, `token_str`, `char_start`, `char_end`, `token_word` (the word a
      token belongs to, -1 for none), `context` (tokens of the text that the model saw before the
      token), `word_str`, `word_onset`, `word_offset` (s)

    and, as the JSON attribute `settings`, the model, tokenizer, dtype, versions and rules that
    made it (`trace.settings`).
    """

    dataset: xr.Dataset
    story: Story

    @property
    def settings(self) -> dict[str, Any]:
        """Model, tokenizer, dtype, versions and rules of this recording."""
        settings: dict[str, Any] = json.loads(self.dataset.attrs["settings"])
        return settings

    @property
    def n_tokens(self) -> int:
        """Number of tokens of the text (a start token is not counted)."""
        return int(self.dataset.sizes["token"])

    @property
    def n_words(self) -> int:
        """Number of words of the text."""
        return int(self.dataset.sizes["word"])

    @property
    def surprisal(self) -> NDArray[np.float64]:
        """Surprisal of each token in nats, shape (n_tokens,)."""
        return np.asarray(self.dataset["surprisal"].values, dtype=np.float64)

    @property
    def layers(self) -> NDArray[np.int64]:
        """Numbers of the layers whose keys were recorded, zero-based."""
        if "layer" not in self.dataset.coords:
            return np.zeros(0, dtype=np.int64)
        return np.asarray(self.dataset["layer"].values, dtype=np.int64)

    @property
    def kv_heads(self) -> NDArray[np.int64]:
        """Numbers of the key-value heads recorded, zero-based."""
        if "kv_head" not in self.dataset.coords:
            return np.zeros(0, dtype=np.int64)
        return np.asarray(self.dataset["kv_head"].values, dtype=np.int64)

    def last_third(self) -> NDArray[np.int64]:
        """Recorded layers in the last third of the model (20 ... 29 of 30; at least the last).

        The default graph of refinement; the released EM-LLM code uses layers 20 ... 31 of 32.
        """
        n_layers = int(self.settings["n_layers"])
        chosen = self.layers[self.layers >= n_layers - max(1, n_layers // 3)]
        if len(chosen) == 0:
            raise MissingDataError(
                f"no keys of the last third of the {n_layers} layers were recorded (recorded: "
                f"{self.layers.tolist()}); record them, or name layers= explicitly."
            )
        return chosen

    def keys(
        self,
        layers: int | Iterable[int] | None = None,
        heads: int | Iterable[int] | None = None,
    ) -> NDArray[np.float32]:
        """Keys before rotary encoding, shape (layers, heads, n_tokens, dim), as float32.

        Of a trace that was loaded from a file, only these layers and heads are read.

        Raises
        ------
        MissingDataError : keys, or some of these layers or heads, were not recorded.
        """
        if "key" not in self.dataset:
            raise MissingDataError("this trace holds no keys; record it with keys=True.")
        rows = _places("layer", layers, self.layers)
        columns = _places("head", heads, self.kv_heads)
        chosen = self.dataset["key"].isel(layer=rows, kv_head=columns)
        return np.asarray(chosen.values, dtype=np.float32)

    @overload
    def key_graph(
        self,
        layer: int | Iterable[int] | None = None,
        head: int | Iterable[int] | None = None,
        *,
        diagonal: bool = True,
        similarity: Literal["dot", "cosine"] = "dot",
    ) -> KeyGraph: ...
    @overload
    def key_graph(
        self,
        layer: int | Iterable[int] | None = None,
        head: int | Iterable[int] | None = None,
        *,
        diagonal: bool = True,
        similarity: str | Weights,
        scale: float | None = None,
    ) -> KeyGraph | BlockGraph: ...
    def key_graph(
        self,
        layer: int | Iterable[int] | None = None,
        head: int | Iterable[int] | None = None,
        *,
        diagonal: bool = True,
        similarity: str | Weights = "dot",
        scale: float | None = None,
    ) -> KeyGraph | BlockGraph:
        """Key-similarity graph(s) of layers and key-value heads (EM-LLM section 3.3).

        One layer and one head give one graph; several give one graph per layer and head
        (`.summed()` adds their weights).

        Parameters
        ----------
        layer, head : their numbers; None: all that were recorded.
        diagonal : keep the weights A_ii.
        similarity : "dot" (the papers') or "cosine": a `KeyGraph`; "clipped", "rbf", "exp" or a
            function of two arrays of keys: a `BlockGraph`, which takes O(n²) time to build.
        scale : of "rbf" and "exp", see `BlockGraph`.
        """
        from workbench.core.blockgraph import BlockGraph
        from workbench.core.keygraph import PREFIX_SIMILARITIES, KeyGraph
        from workbench.core.similarities import BLOCK_SIMILARITIES

        if not callable(similarity):
            check_option("similarity", similarity, (*PREFIX_SIMILARITIES, *BLOCK_SIMILARITIES))
        by_prefix = isinstance(similarity, str) and similarity in PREFIX_SIMILARITIES
        if by_prefix and scale is not None:
            raise InputError("scale= belongs to the similarities 'rbf' and 'exp'.")
        options: dict[str, Any] = {"diagonal": diagonal, "similarity": similarity}
        kind: type[KeyGraph] | type[BlockGraph] = KeyGraph
        if not by_prefix:
            kind = BlockGraph
            options["scale"] = scale
        keys = self.keys(layer, head)
        n_layers, n_heads, n, dim = keys.shape
        if _is_one(layer) and _is_one(head):
            return kind(keys[0, 0], **options)
        layer_numbers = self.layers[_places("layer", layer, self.layers)]
        head_numbers = self.kv_heads[_places("head", head, self.kv_heads)]
        index = [(int(a), int(b)) for a in layer_numbers for b in head_numbers]
        return kind(keys.reshape(n_layers * n_heads, n, dim), index=index, **options)

    def words(self) -> pd.DataFrame:
        """One row per word: word, onset, offset (s), surprisal (nats), other word measures."""
        import pandas as pd

        words = self.story.words
        measures = {
            str(name).removeprefix("word_"): np.asarray(variable.values, dtype=np.float64)
            for name, variable in self.dataset.data_vars.items()
            if str(name).startswith("word_") and variable.dims == ("word",)
        }
        return pd.DataFrame(
            {
                "word": words["word"].to_numpy(),
                "onset": words["onset"].to_numpy(dtype=np.float64),
                "offset": words["offset"].to_numpy(dtype=np.float64),
                **measures,
            }
        )

    # --- token ↔ word ----------------------------------------------------------------------

    @property
    def token_word(self) -> NDArray[np.int64]:
        """For each token the word it belongs to, -1 for none, shape (n_tokens,)."""
        return np.asarray(self.dataset["token_word"].values, dtype=np.int64)

    def word_of_token(self) -> NDArray[np.int64]:
        """Like `token_word`, but a token of no word (a line break) takes the next word's number.

        Tokens after the last word get n_words.
        """
        words = self.token_word
        filled = np.where(words < 0, self.n_words, words)
        return np.minimum.accumulate(filled[::-1])[::-1]

    def to_words(self, events: Boundaries) -> Boundaries:
        """Token boundaries as word boundaries: an event starts at the word of its first token."""
        self._check("token", self.n_tokens, events)
        return events.mapped(self.word_of_token(), self.n_words, unit="word")

    def to_tokens(self, events: Boundaries) -> Boundaries:
        """Word boundaries as token boundaries: an event starts at its first word's first token."""
        self._check("word", self.n_words, events)
        first = np.searchsorted(self.word_of_token(), np.arange(self.n_words), side="left")
        return events.mapped(first, self.n_tokens, unit="token")

    def _check(self, unit: str, n: int, events: Boundaries) -> None:
        if events.unit != unit or events.n != n:
            raise InputError(
                f"expected boundaries over {n} {unit}s, got {events.n} {events.unit}s."
            )

    # --- files -----------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write to a zarr folder, whole or not at all; read it again with `load_trace`."""
        from workbench.recording.storage import save_trace

        return save_trace(self, path, overwrite=overwrite)

    def __repr__(self) -> str:
        model = self.settings.get("model", "?")
        return (
            f"Trace({self.story.name!r} by {model}: {self.n_tokens} tokens, {self.n_words} words, "
            f"keys of {len(self.layers)} layers × {len(self.kv_heads)} heads)"
        )


def _is_one(choice: int | Iterable[int] | None) -> bool:
    return isinstance(choice, (int, np.integer))


def _places(
    what: str, choice: int | Iterable[int] | None, recorded: NDArray[np.int64]
) -> NDArray[np.int64]:
    if choice is None:
        return np.arange(len(recorded))
    wanted = np.atleast_1d(np.asarray(choice, dtype=np.int64))
    missing = sorted(set(wanted.tolist()) - set(recorded.tolist()))
    if missing:
        raise MissingDataError(f"{what} {missing} was not recorded; recorded: {recorded.tolist()}.")
    place = {number: row for row, number in enumerate(recorded.tolist())}
    return np.array([place[number] for number in wanted.tolist()], dtype=np.int64)
