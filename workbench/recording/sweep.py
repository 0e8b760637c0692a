"""The same measures when the model sees only so much of what came before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.core.story import Story
from workbench.models import DEFAULT_MODEL, LanguageModel, load_model
from workbench.recording.record import as_story, record
from workbench.recording.start import start_token

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = ["CONTEXTS", "context_sweep", "sweep_frame"]

CONTEXTS: tuple[int | str, ...] = (16, 32, 64, 128, 256, 512, "all")


def context_sweep(
    story: Story | str | Path,
    model: LanguageModel | str | Path = DEFAULT_MODEL,
    k: Iterable[int | str] = CONTEXTS,
    *,
    measures: str | Iterable[str] | None = None,
    bos: str | int = "auto",
    progress: bool = False,
) -> xr.Dataset:
    """Measure a story with between k and 2k tokens of context, for several k.

    Each k is a reading in overlapping windows of 2k tokens of the text of which the last k are
    new, so a token has k ... 2k - 1 tokens before it (fewer only near the beginning of the text),
    on average about 1.5 k, at the cost of reading the text twice. The start token stands before
    every window. Divergences compare two predictions with the same beginning of context; what
    falls out of sight from token to token does not enter them.

    Parameters
    ----------
    story, model, measures, bos, progress : as in `record`.
    k : least context in tokens, whole numbers from 2; "all": everything before a token (where
        the text exceeds the model's window, half of that window at least).

    Returns
    -------
    Data set with the dimensions `k` (coordinate: the numbers, infinity for "all"), token and
    word: the measures of a trace, and `context` (k, token), the tokens of the text before each.
    `sweep_frame` makes a tidy table of it.

    Raises
    ------
    InputError : a k that is no whole number from 2, is given twice, or is more than the model
        reads; a model that turns keys by other tables in long readings (LongRoPE), where some k
        lie on either side of that length.
    """
    import xarray as xr

    from workbench.recording import adapter

    story = as_story(story)
    lm = model if isinstance(model, LanguageModel) else load_model(model)
    wanted = list(_checked(k))
    skip = int(start_token(lm.tokenizer, bos)[0] is not None)
    traces = []
    for least in wanted:
        options: dict[str, Any] = {"measures": measures, "bos": bos, "progress": progress}
        if least != "all":
            assert isinstance(least, int)
            options |= {"window": 2 * least + skip, "min_context": least}
        traces.append(record(story, lm, keys=False, **options))

    switch = adapter.rotary_switch(lm.model)
    if switch is not None:
        lengths = {part: _longest(trace) for part, trace in zip(wanted, traces, strict=True)}
        if min(lengths.values()) <= switch < max(lengths.values()):
            raise InputError(
                f"{lm.name} (LongRoPE) turns keys by other tables in readings of more than "
                f"{switch} tokens, and the readings of these k have up to "
                f"{', '.join(f'{part}: {n}' for part, n in lengths.items())}; give only k on one "
                "side of it."
            )
    numbers = [np.inf if least == "all" else float(least) for least in wanted]
    parts = [trace.dataset.reset_coords("context") for trace in traces]
    joined = xr.concat(
        parts, dim="k", coords="minimal", compat="override", join="exact", combine_attrs="drop"
    )
    for name, variable in parts[0].data_vars.items():
        joined[name].attrs = variable.attrs
    joined = joined.assign_coords(k=("k", numbers, {"units": "1", "long_name": "least context"}))
    shared = {
        name: value
        for name, value in traces[0].settings.items()
        if name not in ("windows", "date", "keys_dtype", "key_source", "attention_statistics")
    }
    windows = {str(least): trace.settings["windows"] for least, trace in zip(wanted, traces)}
    joined.attrs["settings"] = json.dumps({**shared, "windows": windows}, ensure_ascii=False)
    return joined


def sweep_frame(sweep: xr.Dataset, unit: str = "word") -> pd.DataFrame:
    """A sweep as a tidy table: one row per k, word (or token) and measure.

    Columns: k, word (or token), context (tokens of the text before it; before a word's first
    token), measure, value.
    """
    import pandas as pd

    check_option("unit", unit, ("word", "token"))
    prefix = "word_" if unit == "word" else ""
    context = sweep["context"].values
    if unit == "word":
        owner = sweep["token_word"].values
        words = np.arange(sweep.sizes["word"])
        tokens = np.flatnonzero(owner >= 0)
        present, first = np.unique(owner[tokens], return_index=True)
        by_word = np.full((len(context), len(words)), np.nan)
        by_word[:, present] = context[:, tokens[first]]
        context = by_word
    frames = []
    for name, variable in sweep.data_vars.items():
        if variable.dims != ("k", unit) or not str(name).startswith(prefix) or name == "context":
            continue
        numbers = np.arange(sweep.sizes[unit])
        for place, k in enumerate(sweep["k"].values):
            frames.append(
                pd.DataFrame(
                    {
                        "k": k,
                        unit: numbers,
                        "context": context[place],
                        "measure": str(name).removeprefix(prefix),
                        "value": variable.values[place],
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def _checked(k: Iterable[int | str]) -> Iterator[int | str]:
    seen: set[int | str] = set()
    for least in [k] if isinstance(k, (int, str)) else k:
        if least != "all":
            whole = isinstance(least, (int, np.integer)) and not isinstance(least, bool)
            if not whole or int(least) < 2:
                raise InputError(f"k: {least!r} is neither a whole number from 2 nor 'all'.")
            least = int(least)
        if least in seen:
            raise InputError(f"k: {least!r} is given twice.")
        seen.add(least)
        yield least
    if not seen:
        raise InputError("k is empty; give lengths of context in tokens, or 'all'.")


def _longest(trace: Any) -> int:
    plan, skip = trace.settings["windows"], int(trace.settings["bos_id"] is not None)
    stops = [*plan["firsts"][1:], trace.n_tokens]
    return max(stop - start for start, stop in zip(plan["starts"], stops, strict=True)) + skip
