"""Record what a language model does while it reads a story."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.checks import check_option
from workbench.core.errors import InputError, TextTooLongError
from workbench.core.story import Story
from workbench.core.trace import Trace
from workbench.models import DEFAULT_MODEL, LanguageModel, load_model
from workbench.recording.measures import chosen_measures

if TYPE_CHECKING:
    from workbench.core.boundaries import Boundaries
    from workbench.recording.instruments import KeyRecorder
    from workbench.recording.reducer import Reducer
    from workbench.recording.windows import Window

__all__ = ["record"]


def record(
    story: Story | str | Path,
    model: LanguageModel | str | Path = DEFAULT_MODEL,
    *,
    layers: int | Iterable[int] | None = None,
    heads: int | Iterable[int] | None = None,
    keys: bool = True,
    bos: str | int = "auto",
    measures: str | Iterable[str] | None = None,
    attention: str | Reducer | Iterable[str | Reducer] | None = None,
    attention_heads: int | Iterable[int] | None = None,
    events: Boundaries | str | None = None,
    spans: Any = None,
    window: int | None = None,
    min_context: int | None = None,
    states: int | Iterable[int] | None = None,
    keep_states: bool = False,
    keys_dtype: str = "float32",
    progress: bool = False,
) -> Trace:
    """Let a model read a story and record how it is predicted, and its keys.

    Parameters
    ----------
    story : a Story, the name of one in the library, or the path of a file.
    model : a LanguageModel, or what `load_model` takes.
    layers, heads : whose keys to record (key-value heads), zero-based; None: all. Negative
        numbers count from the end.
    keys : False records no keys.
    bos : what stands before the text: "auto" (a separator of documents, where the tokenizer has
        one), "none" (the surprisal of the first token is then NaN), a token id, or a token.
    measures : which of `workbench.recording.measures.MEASURES`, "all", or None for
        `DEFAULT_MEASURES`; "surprisal_corrected" corrects word surprisal for word-initial markers.
    attention : statistics of each query head's attention in `layers`, reduced while reading:
        "lag", "entropy", "distance", "first", "sink", "inside", "spans", "top", and any
        `workbench.recording.reducer.Reducer`, also of one's own.
    attention_heads : query heads (not key-value heads), zero-based; None: all.
    events : for "inside": boundaries over tokens or words, or a method code ("SM"; the text is
        then read twice).
    spans : for "spans": (start, stop) token pairs, a mapping from names to them, or Boundaries.
    window : most tokens read at once, with the start token; None: the model's own limit. A text
        that is longer is read in overlapping windows (`workbench.recording.windows.RULE`), so the
        keys of a token come from the window in which it is scored.
    min_context : least number of tokens of the text before a token that is scored, where the
        text is read in windows; None: half a window.
    states : layers whose hidden states are followed: `state_drift`, 1 - cosine of the state
        that a layer hands on at a token and at the token before it.
    keep_states : keep these states, too (`state`).
    keys_dtype : "float32" or "float16" (half the memory and disk; rounded by at most 2**-11 of
        each number). `Trace.keys` gives float32 in either case.
    progress : show a progress bar on standard error.

    Returns
    -------
    Trace
        The measures per token, and per word with `word_` before their name (NaN where a word
        has no token of its own); `key`, keys before rotary encoding. `surprisal`, in nats, is
        always among them; what EM-LLM calls "Bayesian surprise" (section 3.2) is this surprisal,
        `bayesian_surprise` is a divergence. Surprisal, entropy, varentropy and rank belong to
        the distribution that predicts a token; divergences, known once it is read, compare that
        one with the next. At the first token both are NaN unless a start token stood before it.

    Raises
    ------
    TextTooLongError : the window is too small to read anything.
    DataError : the text is empty, or its tokens cannot be traced to its characters.
    InputError : unknown layers, heads or start token.
    ModelError : the model cannot be observed, or gives logits that are not finite.
    """
    import torch

    from workbench.recording import adapter
    from workbench.recording.dataset import Measured, make_dataset
    from workbench.recording.instruments import Instruments, KeyRecorder
    from workbench.recording.start import start_token
    from workbench.recording.states import StateRecorder
    from workbench.recording.tokens import tokenize
    from workbench.recording.windows import plan_windows, window_settings

    check_option("keys_dtype", keys_dtype, ("float32", "float16"))
    story = as_story(story)
    lm = model if isinstance(model, LanguageModel) else load_model(model)
    size = adapter.geometry(lm.model)
    names = chosen_measures(measures)
    tokens = tokenize(lm.tokenizer, story.text, f"story {story.name!r}")
    measured = Measured(story, tokens, lm, names, optional=measures == "all")
    start, reason = start_token(lm.tokenizer, bos)
    n, skip = len(tokens.ids), int(start is not None)
    room = text_window(lm, window, skip)
    windows = plan_windows(n, room or n, min_context, measured.first_tokens)
    check_rotary(lm, windows, skip)

    recorder: KeyRecorder | None = None
    chosen_layers = _numbers("layers", layers, size["n_layers"])
    if keys:
        chosen_heads = _numbers("heads", heads, size["n_kv_heads"])
        recorder = KeyRecorder(chosen_layers, chosen_heads, n, skip, dtype=keys_dtype)

    attended = None
    if attention is not None:
        from workbench.recording.attention_options import attention_observer, events_on_tokens

        attended = attention_observer(
            attention,
            chosen_layers,
            _numbers("attention_heads", attention_heads, size["n_heads"]),
            n,
            skip,
            events=events_on_tokens(
                events,
                measured.token_word,
                story.n_words,
                lambda: record(
                    story, lm, bos=bos, window=window, min_context=min_context, progress=progress
                ),
            ),
            spans=spans,
        )
    elif events is not None or spans is not None or attention_heads is not None:
        raise InputError("events, spans and attention_heads belong to attention=; name statistics.")

    watched: StateRecorder | None = None
    if states is not None:
        chosen_states = _numbers("states", states, size["n_layers"])
        watched = StateRecorder(chosen_states, n, skip, keep=keep_states)
    elif keep_states:
        raise InputError("keep_states needs states=: name the layers whose states to keep.")

    implementation = lm.model.config.get_text_config(decoder=True)._attn_implementation
    observers = [observer for observer in (recorder, attended) if observer is not None]
    before = [] if start is None else [start]
    with torch.inference_mode(), ExitStack() as stack:
        bar = stack.enter_context(_progress(lm, story, windows, progress))
        if observers or progress:
            stack.enter_context(Instruments(lm.model, [*observers, bar]))
        if watched is not None:
            stack.enter_context(watched.watching(lm.model))
        for part in windows:
            for observer in (*observers, *([] if watched is None else [watched])):
                observer.window(part.start, part.first + skip)
            ids = torch.tensor([*before, *tokens.ids[part.start : part.stop].tolist()])
            hidden, last_logits = adapter.hidden_states(lm.model, ids.to(lm.device))
            row_0 = part.start + 1 - skip
            measured.score(hidden, part.first, part.stop, row_0, last_logits, bar.step)

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
        "attention": implementation,
        "attention_statistics": []
        if attended is None
        else [reducer.settings() for reducer in attended.reducers],
        "key_source": None if recorder is None else recorder.source,
        "measures": list(measured.names),
        "window": lm.window,
        "windows": window_settings(windows, room, min_context),
        "keys_dtype": None if recorder is None else keys_dtype,
        "text_sha256": text_hash(story.text),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    dataset = make_dataset(story, tokens, measured, windows, recorder, watched, settings)
    if attended is not None:
        from workbench.recording.attention_options import with_attention

        dataset = with_attention(dataset, attended)
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


def text_window(lm: LanguageModel, window: int | None, skip: int) -> int | None:
    """Most tokens of the text in one reading; None without a limit.

    Raises
    ------
    InputError : `window` is more than the model reads, or no whole number.
    TextTooLongError : there is no room for two tokens of the text.
    """
    if window is not None:
        if isinstance(window, bool) or not isinstance(window, (int, np.integer)):
            raise InputError(f"window={window!r}: give a whole number of tokens.")
        if lm.window is not None and window > lm.window:
            raise InputError(f"window={window}: {lm.name} reads at most {lm.window} tokens.")
        if window - skip < 2:
            raise TextTooLongError(
                f"window={window} leaves room for {max(0, window - skip)} tokens of the text; "
                f"give at least {2 + skip}."
            )
        return int(window) - skip
    return None if lm.window is None else lm.window - skip


def check_rotary(lm: LanguageModel, windows: Iterable[Window], skip: int) -> None:
    """Refuse readings of which some would turn keys by other tables than the rest (LongRoPE).

    Raises
    ------
    InputError : some windows are longer than the length at which the model's tables change.
    """
    from workbench.recording import adapter

    switch = adapter.rotary_switch(lm.model)
    lengths = [window.stop - window.start + skip for window in windows]
    if switch is not None and min(lengths) <= switch < max(lengths):
        raise InputError(
            f"{lm.name} (LongRoPE) turns keys by other tables beyond {switch} tokens, and these "
            f"readings have {min(lengths)} to {max(lengths)}, so they would not be comparable; "
            f"give window={switch} or less."
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
def _progress(lm: LanguageModel, story: Story, windows: list[Window], show: bool) -> Iterator[Any]:
    """An observer with a progress bar on standard error: layers and the head's blocks."""
    from tqdm import tqdm

    from workbench.recording.distributions import n_blocks
    from workbench.recording.instruments import AttentionCall, Observer

    class Bar(Observer):
        def attention(self, call: AttentionCall) -> None:
            bar.update()

        def step(self) -> None:
            bar.update()

    layers = lm.model.config.get_text_config(decoder=True).num_hidden_layers
    label = f"{lm.name} reads {story.name}"
    total = sum(layers + n_blocks(window.stop - window.first) for window in windows)
    with tqdm(total=total, desc=label, disable=not show, leave=False) as bar:
        yield Bar()
