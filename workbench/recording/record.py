"""Record what a language model does while it reads a story."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import InputError, TextTooLongError
from workbench.core.story import Story
from workbench.core.trace import Trace
from workbench.models import DEFAULT_MODEL, LanguageModel, load_model

if TYPE_CHECKING:
    import xarray as xr

    from workbench.recording.instruments import KeyRecorder
    from workbench.recording.tokens import Tokens

__all__ = ["record"]


def record(
    story: Story | str | Path,
    model: LanguageModel | str | Path = DEFAULT_MODEL,
    *,
    layers: int | Iterable[int] | None = None,
    heads: int | Iterable[int] | None = None,
    keys: bool = True,
    bos: str | int = "auto",
    progress: bool = False,
) -> Trace:
    """Let a model read a story once and record its surprisal and its keys.

    Parameters
    ----------
    story : a Story, the name of one in the library, or the path of a file.
    model : a LanguageModel, or what `load_model` takes.
    layers, heads : whose keys to record (key-value heads), zero-based; None: all. Negative
        numbers count from the end.
    keys : False records surprisal only.
    bos : what stands before the text: "auto" (a separator of documents, where the tokenizer has
        one), "none" (the surprisal of the first token is then NaN), a token id, or a token.
    progress : show a progress bar on standard error.

    Returns
    -------
    Trace
        `surprisal` in nats per token; `word_surprisal`, its sum over the tokens of a word (NaN
        where one is NaN, or where a word has no token of its own); `key`, keys before rotary
        encoding. What EM-LLM calls "Bayesian surprise" (section 3.2) is this surprisal.

    Raises
    ------
    TextTooLongError : the story has more tokens than the model reads at once.
    DataError : the text is empty, or its tokens cannot be traced to its characters.
    InputError : unknown layers, heads or start token.
    ModelError : the model cannot be observed, or gives logits that are not finite.
    """
    import torch

    from workbench.recording import adapter
    from workbench.recording.instruments import Instruments, KeyRecorder
    from workbench.recording.surprise import start_token, surprisal_from_hidden
    from workbench.recording.tokens import tokenize

    story = as_story(story)
    lm = model if isinstance(model, LanguageModel) else load_model(model)
    size = adapter.geometry(lm.model)
    tokens = tokenize(lm.tokenizer, story.text, f"story {story.name!r}")
    start, reason = start_token(lm.tokenizer, bos)
    n = len(tokens.ids)
    _check_window(story, lm, n, start)

    recorder: KeyRecorder | None = None
    if keys:
        chosen_layers = _numbers("layers", layers, size["n_layers"])
        chosen_heads = _numbers("heads", heads, size["n_kv_heads"])
        recorder = KeyRecorder(chosen_layers, chosen_heads, n, skip=int(start is not None))

    ids = torch.from_numpy(tokens.ids)
    if start is not None:
        ids = torch.cat([torch.tensor([start]), ids])
    ids = ids.to(lm.device)
    attention = lm.model.config.get_text_config(decoder=True)._attn_implementation
    with torch.inference_mode(), _progress(lm, story, n, progress) as bar:
        with Instruments(lm.model, [recorder, bar]) if recorder is not None else nullcontext():
            hidden, last_logits = adapter.hidden_states(lm.model, ids)
        values = surprisal_from_hidden(lm.model, hidden, ids[1:], last_logits, step=bar.step)
    surprisal = np.full(n, np.nan)
    surprisal[n - len(values) :] = values

    settings = {
        "model": lm.name,
        "identity": lm.identity,
        "provenance": lm.provenance,
        **size,
        "architecture": type(lm.model).__name__,
        "tokenizer": type(lm.tokenizer).__name__,
        "spans": tokens.rule,
        "dtype": lm.dtype,
        "device": str(lm.device),
        "bos": bos if isinstance(bos, str) else int(bos),
        "bos_id": start,
        "bos_token": None if start is None else lm.tokenizer.convert_ids_to_tokens(start),
        "bos_reason": reason,
        "attention": attention,
        "key_source": None if recorder is None else recorder.source,
        "window": lm.window,
        "text_sha256": text_hash(story.text),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    dataset = _dataset(story, tokens, surprisal, recorder, settings)
    return Trace(dataset=dataset, story=story)


def as_story(story: Story | str | Path) -> Story:
    """A Story as it is, or loaded by name or path."""
    if isinstance(story, Story):
        return story
    from workbench.stories.library import load_story

    return load_story(story)


def text_hash(text: str) -> str:
    """sha256 of a text in UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def versions() -> dict[str, str]:
    """Versions of what makes the numbers."""
    import torch
    import transformers

    import workbench

    return {
        "workbench": workbench.__version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }


# --- parts of `record` ---------------------------------------------------------------------


def _check_window(story: Story, lm: LanguageModel, n: int, start: int | None) -> None:
    window = lm.window
    needed = n + (start is not None)
    if window is not None and needed > window:
        with_start = " (with the start token)" if start is not None else ""
        raise TextTooLongError(
            f"story {story.name!r} has {needed} tokens{with_start}, and {lm.name} reads at most "
            f"{window}; use a model with a longer window, or a shorter text."
        )


def _numbers(name: str, choice: int | Iterable[int] | None, n: int) -> list[int]:
    """Chosen numbers of 0 ... n - 1, in increasing order."""
    if choice is None:
        return list(range(n))
    given = [choice] if isinstance(choice, (int, np.integer)) else list(choice)
    if not given:
        raise InputError(f"{name} is empty; leave it out for all, or use keys=False for none.")
    for number in given:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            raise InputError(f"{name}: {number!r} is not a whole number.")
        if not -n <= number < n:
            raise InputError(f"{name}: {number} is outside this model's 0 ... {n - 1}.")
    return sorted({int(number) % n for number in given})


@contextmanager
def _progress(lm: LanguageModel, story: Story, n: int, show: bool) -> Iterator[Any]:
    """An observer with a progress bar on standard error: the layers, then the head's blocks."""
    from tqdm import tqdm

    from workbench.recording.instruments import AttentionCall, Observer
    from workbench.recording.surprise import n_blocks

    class Bar(Observer):
        def attention(self, call: AttentionCall) -> None:
            bar.update()

        def step(self) -> None:
            bar.update()

    layers = lm.model.config.get_text_config(decoder=True).num_hidden_layers
    label = f"{lm.name} reads {story.name}"
    with tqdm(total=layers + n_blocks(n), desc=label, disable=not show, leave=False) as bar:
        yield Bar()


def _dataset(
    story: Story,
    tokens: Tokens,
    surprisal: NDArray[np.float64],
    recorder: KeyRecorder | None,
    settings: dict[str, Any],
) -> xr.Dataset:
    import xarray as xr

    from workbench.stories.alignment import token_words

    words = story.words
    token_word = np.asarray(token_words(tokens.char_start, tokens.char_end, words), np.int64)
    word_surprisal = sum_by_word(surprisal, token_word, len(words))
    nats = {"units": "nat"}
    seconds = {"units": "s"}
    data: dict[str, Any] = {
        "surprisal": (
            "token",
            surprisal,
            nats | {"long_name": "-log p(token | all before it)"},
        ),
        "word_surprisal": (
            "word",
            word_surprisal,
            nats | {"long_name": "sum of the surprisal of a word's tokens"},
        ),
    }
    coords: dict[str, Any] = {
        "token_id": ("token", tokens.ids),
        "token_str": ("token", np.array(tokens.strings, dtype=str)),
        "char_start": ("token", tokens.char_start),
        "char_end": ("token", tokens.char_end),
        "token_word": ("token", token_word),
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
    attrs = {"settings": json.dumps(settings, ensure_ascii=False)}
    return xr.Dataset(data, coords=coords, attrs=attrs)


def sum_by_word(
    values: NDArray[np.float64], token_word: NDArray[np.int64], n_words: int
) -> NDArray[np.float64]:
    """Sum of token values per word, shape (n_words,); NaN for a word without a token."""
    inside = token_word >= 0
    total = np.zeros(n_words)
    np.add.at(total, token_word[inside], values[inside])
    count = np.bincount(token_word[inside], minlength=n_words)
    return np.where(count > 0, total, np.nan)
