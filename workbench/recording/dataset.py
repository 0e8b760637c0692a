"""From what was measured while reading to the labelled data set of a trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.core.story import Story
from workbench.models import LanguageModel
from workbench.recording.distributions import LOG_ENDS, score
from workbench.recording.markers import word_ends
from workbench.recording.measures import (
    CORRECTED,
    DIVERGENCES,
    MEASURES,
    corrected_by_word,
    first_by_word,
    spans_of_words,
    sum_by_word,
)
from workbench.recording.tokens import Tokens
from workbench.recording.windows import Window, context_of
from workbench.stories.alignment import token_words

if TYPE_CHECKING:
    import xarray as xr

    from workbench.recording.instruments import KeyRecorder
    from workbench.recording.states import StateRecorder

__all__ = ["Measured", "make_dataset"]

Floats = NDArray[np.float64]


class Measured:
    """Collects the measures of a text, span by span.

    Parameters
    ----------
    story, tokens : the text.
    lm : the model that reads it.
    names : the measures, from `chosen_measures`.
    optional : leave out `surprisal_corrected`, rather than raise, where words have no marker.

    Attributes
    ----------
    names : what is measured.
    values : token measures by name, each (n_tokens,).
    token_word : the word of each token, -1 for none.
    first, last : each word's first token and one past its last, -1 for none.
    first_tokens : tokens that begin a word.
    """

    def __init__(
        self,
        story: Story,
        tokens: Tokens,
        lm: LanguageModel,
        names: Iterable[str],
        *,
        optional: bool = False,
    ) -> None:
        self.names = list(names)
        self.tokens = tokens
        self.model = lm.model
        self.n_words = story.n_words
        self.token_word = np.asarray(
            token_words(tokens.char_start, tokens.char_end, story.words), np.int64
        )
        self.first, self.last = spans_of_words(self.token_word, self.n_words)
        self.first_tokens = self.first[self.first >= 0]
        self._ends: Tensor | None = None
        if CORRECTED in self.names:
            vocabulary = int(lm.model.get_output_embeddings().weight.shape[0])
            ends = word_ends(lm.tokenizer, vocabulary)
            if ends.any():
                self._ends = torch.from_numpy(ends)
            elif optional:
                self.names.remove(CORRECTED)
            else:
                raise ModelError(
                    f"no token of {type(lm.tokenizer).__name__} begins with a space, so words "
                    "have no marker to correct their surprisal for; leave out 'surprisal_corrected'"
                    " from measures."
                )
        n = len(tokens.ids)
        self.values = {name: np.full(n, np.nan) for name in self.names if name != CORRECTED}
        # Words of several tokens; those of one have their token's divergence.
        self._by_word = {
            name: np.full(self.n_words, np.nan) for name in self.names if name in DIVERGENCES
        }
        self._ends_before = np.full(n, np.nan)
        self._ends_after = np.full(n, np.nan)

    def score(
        self,
        hidden: Tensor,
        start: int,
        stop: int,
        first_row: int,
        last_logits: Tensor | None = None,
        step: Callable[[], None] = lambda: None,
    ) -> None:
        """Measure tokens start ... stop - 1 from the hidden states of one reading.

        Parameters
        ----------
        hidden : (rows, hidden_size); row r is the state before token r + first_row.
        last_logits : the model's own logits after the last row.
        step : called after each block.
        """
        start = max(start, first_row)  # nothing predicts a first token without a start token
        stop = max(start, stop)
        here = (self.first >= start) & (self.last <= stop) & (self.last - self.first > 1)
        words = np.flatnonzero(here)
        found = score(
            self.model,
            hidden[start - first_row : stop - first_row + 1],
            torch.from_numpy(self.tokens.ids[start:stop]),
            measures=[name for name in self.names if name in MEASURES],
            pairs=np.stack([self.first[words], self.last[words]], axis=1) - start,
            ends=self._ends,
            last_logits=last_logits,
            step=step,
        )
        for name, values in self.values.items():
            values[start:stop] = found[name]
        for name, of_words in self._by_word.items():
            of_words[words] = found[f"pair:{name}"]
        if self._ends is not None:
            self._ends_before[start:stop] = found[LOG_ENDS][:-1]
            self._ends_after[start:stop] = found[LOG_ENDS][1:]

    def by_word(self) -> dict[str, Floats]:
        """Word measures by name, each (n_words,)."""
        result = {}
        surprisal = sum_by_word(self.values["surprisal"], self.token_word, self.n_words)
        for name in self.names:
            if name == "surprisal":
                result[name] = surprisal
            elif name in DIVERGENCES:
                single = self.last - self.first == 1
                alone = first_by_word(self.values[name], self.first)
                result[name] = np.where(single, alone, self._by_word[name])
            elif name == CORRECTED:
                assert self._ends is not None
                marked = self._ends.numpy()[self.tokens.ids[self.first]]
                result[name] = corrected_by_word(
                    surprisal, self._ends_before, self._ends_after, self.first, self.last, marked
                )
            elif MEASURES[name].word is not None:
                result[name] = first_by_word(self.values[name], self.first)
        return result


def make_dataset(
    story: Story,
    tokens: Tokens,
    measured: Measured,
    windows: list[Window],
    recorder: KeyRecorder | None,
    watched: StateRecorder | None,
    settings: dict[str, Any],
) -> xr.Dataset:
    """The data set of a trace (see `workbench.core.trace.Trace`)."""
    import xarray as xr

    words = story.words
    data: dict[str, Any] = {}
    for name, values in measured.values.items():
        about = MEASURES[name]
        data[name] = ("token", values, {"units": about.units, "long_name": about.definition})
    for name, values in measured.by_word().items():
        units, definition = _about_word(name)
        data[f"word_{name}"] = ("word", values, {"units": units, "long_name": definition})
    seconds = {"units": "s"}
    coords: dict[str, Any] = {
        "token_id": ("token", tokens.ids),
        "token_str": ("token", np.array(tokens.strings, dtype=str)),
        "char_start": ("token", tokens.char_start),
        "char_end": ("token", tokens.char_end),
        "token_word": ("token", measured.token_word),
        "context": (
            "token",
            context_of(windows, len(tokens.ids)),
            {"units": "1", "long_name": "tokens of the text before the token when it was scored"},
        ),
        "word_str": ("word", np.array(words["word"].tolist(), dtype=str)),
        "word_onset": ("word", words["onset"].to_numpy(np.float64), seconds),
        "word_offset": ("word", words["offset"].to_numpy(np.float64), seconds),
    }
    if recorder is not None:
        data["key"] = (
            ("layer", "kv_head", "token", "dim"),
            recorder.keys,
            {"units": "1", "long_name": "key before rotary encoding"},
        )
        coords["layer"] = ("layer", np.array(recorder.layers, dtype=np.int64))
        coords["kv_head"] = ("kv_head", np.array(recorder.heads, dtype=np.int64))
    if watched is not None:
        about_states = {
            "units": "1",
            "long_name": "1 - cosine of a layer's successive hidden states",
        }
        data["state_drift"] = (("state_layer", "token"), watched.drift, about_states)
        if watched.states is not None:
            about_states = {"units": "1", "long_name": "hidden state that a layer hands on"}
            data["state"] = (("state_layer", "token", "hidden"), watched.states, about_states)
        coords["state_layer"] = ("state_layer", np.array(watched.layers, dtype=np.int64))
    attrs = {"settings": json.dumps(settings, ensure_ascii=False)}
    return xr.Dataset(data, coords=coords, attrs=attrs)


def _about_word(name: str) -> tuple[str, str]:
    if name == CORRECTED:
        return "nat", "surprisal of a word, corrected for word-initial markers"
    about = MEASURES[name]
    assert about.word is not None
    return about.units, about.word
