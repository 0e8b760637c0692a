"""r_d of a model that reads everything in one context: windows of several documents in a row."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.analysis.distraction import WindowMasses, distraction_table
from workbench.core.checks import whole_number
from workbench.core.errors import DataError, InputError, TextTooLongError
from workbench.core.story import Story
from workbench.models import DEFAULT_MODEL, LanguageModel, load_model
from workbench.recording import adapter
from workbench.recording.instruments import Instruments
from workbench.recording.start import start_token
from workbench.recording.tokens import tokenize
from workbench.recording.window_observer import WindowObserver
from workbench.tasks.distraction_readings import (
    Reading,
    check_sizes,
    current_windows,
    plan_readings,
)
from workbench.tasks.run_settings import model_settings

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

__all__ = ["Distraction", "distraction"]

Answers = Sequence[Sequence[tuple[int, int]]]


@dataclass(frozen=True, eq=False)
class Distraction:
    """How much of a model's attention to previous windows stays with the own document.

    Parameters
    ----------
    table : see `workbench.analysis.distraction.distraction_table`, with the model's name and
        provenance.
    settings : what it was made with: model, windows, documents left out, places of the own window.
    masses : of each d, what the table is made of.
    """

    table: pd.DataFrame
    settings: dict[str, Any]
    masses: dict[int, WindowMasses]

    def figure(self, kind: str = "curve", **options: Any) -> go.Figure:
        """r_d against d ("curve", FOT Figure 3) or by layer and d ("layers").

        See `workbench.figures.distraction` for the options of each.
        """
        from workbench.core.checks import check_option
        from workbench.figures.distraction import figure_distraction, figure_distraction_layers

        makers: dict[str, Any] = {"curve": figure_distraction, "layers": figure_distraction_layers}
        check_option("kind", kind, makers)
        return makers[kind](self.table, **options)

    def __repr__(self) -> str:
        """Model, d and number of documents."""
        return (
            f"Distraction({self.settings['model']['name']}, d={self.settings['d']}, "
            f"{self.settings['n_documents']} documents)"
        )


def distraction(
    lm: LanguageModel | str | None,
    documents: str | Path | Sequence[str | Story],
    d: Sequence[int] = (1, 2, 4, 8),
    *,
    window: int = 96,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    windows_per_document: int = 1,
    orders: int = 1,
    bar_own: bool = True,
    answers: Answers | None = None,
    draws: int = 1000,
    limit: int | None = None,
    progress: bool = False,
) -> Distraction:
    """r_d of a model that reads d previous windows and then one that asks (FOT, Figure 3).

    Documents are cut into windows of `window` tokens. One that is not a document's first asks
    (C_curr); before it stand the window directly before it in its document and d - 1 windows of
    others, in random order, the own one equally often in each place; before all of them the
    model's start token, where it has one. C_curr's attention on its own document's window, over
    that on all d, is r_d. The same windows ask for every d.

    Parameters
    ----------
    lm : a model, or its name; None: the embedded one.
    documents : texts or stories; or a .jsonl file (field "text"), a .txt file or a folder of these.
        Those of less than two windows are left out, and so is a text that was given before;
        `settings` counts both.
    d : numbers of previous windows; (d + 1) · window tokens and the start token must fit the
        model's window.
    window : tokens of a window.
    layers : numbers of the layers; None: all.
    seed : of all draws.
    windows_per_document : windows of each document that ask, or as many as it has.
    orders : in how many orders each of them is read for each d, the own window elsewhere in each;
        at most d. Most models prefer the nearest window, so that with one order an interval shows
        mainly which document had its own window near; with as many orders as the largest d each
        own window stands once in every place, and that is gone. Costs as many times the reading.
    bar_own : False: further windows of the asking document may stand among the d.
    answers : of each document, (start, end) in characters of its answers; then only windows with
        a query that predicts a token of an answer ask, and the table has rows for these queries.
    draws : of the bootstrap over documents.
    limit : most documents that ask; the others only give windows. None: all.
    progress : show a bar on standard error.

    Raises
    ------
    InputError : a value that is not allowed.
    DataError : no document is long enough, or there are too few windows for d.
    TextTooLongError : the model's window is too small for d.
    """
    if not isinstance(lm, LanguageModel):
        lm = load_model(lm or DEFAULT_MODEL)
    sizes, window = check_sizes(d), whole_number("window", window, 1)
    per_document = whole_number("windows_per_document", windows_per_document, 1)
    orders = whole_number("orders", orders, 1)
    chosen = _layers(lm, layers)
    start, reason = start_token(lm.tokenizer)
    before = [] if start is None else [start]
    _check_window(lm, sizes[-1], window, len(before))

    texts = _texts(documents)
    if answers is not None and len(answers) != len(texts):
        raise InputError(f"answers has {len(answers)} entries for {len(texts)} documents.")
    read = _tokens(lm, texts, window, answers)
    allowed = [_asking(mark, window) for _, mark in read.documents]
    if limit is not None:
        order = np.random.default_rng([seed, 3]).permutation(len(allowed)).tolist()
        keep = [i for i in order if len(allowed[i])][: whole_number("limit", limit, 1)]
        allowed = [one if i in keep else one[:0] for i, one in enumerate(allowed)]
    current = current_windows(allowed, per_document, np.random.default_rng([seed, 0]))
    if not current:
        raise DataError("no window of the documents has a query that predicts an answer's token.")
    plans = plan_readings(
        [len(ids) // window for ids, _ in read.documents],
        current,
        sizes,
        orders=orders,
        bar_own=bar_own,
        seed=seed,
    )
    masses = {}
    with _bar(sum((n + 1) * window * len(plan) for n, plan in plans.items()), progress) as bar:
        for size, plan in plans.items():
            masses[size] = _masses(lm, read.documents, plan, chosen, window, before, bar)
    if answers is None:
        masses = {n: _without_answers(one) for n, one in masses.items()}
    table = distraction_table(list(masses.values()), draws=draws, seed=seed)
    table["model"], table["provenance"] = lm.name, lm.provenance
    settings = {
        "task": "distraction",
        "model": model_settings(lm),
        "d": sizes,
        "window": window,
        "layers": chosen,
        "seed": seed,
        "windows_per_document": per_document,
        "orders": orders,
        "bar_own": bar_own,
        "draws": draws,
        "start_token": start,
        "start_token_reason": reason,
        "n_given": len(texts),
        "n_documents": len({document for document, _ in current}),
        "n_too_short": read.too_short,
        "n_repeated": read.repeated,
        "n_windows": len(current),
        "n_readings": {n: len(plan) for n, plan in plans.items()},
        "places": {n: [reading.place for reading in plan] for n, plan in plans.items()},
    }
    return Distraction(table, settings, masses)


# --- documents -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Documents:
    """Tokens of each usable document and which of them belong to an answer."""

    documents: list[tuple[NDArray[np.int64], NDArray[np.bool_]]]
    too_short: int
    repeated: int


def _texts(documents: str | Path | Sequence[str | Story]) -> list[str]:
    if isinstance(documents, (str, Path)):
        from workbench.training.texts import read_documents

        return list(read_documents(documents))
    texts = []
    for number, one in enumerate(documents):
        if not isinstance(one, (str, Story)):
            raise InputError(
                f"document {number} is of type {type(one).__name__}; give texts or stories, or the "
                "path of a .jsonl file."
            )
        texts.append(one.text if isinstance(one, Story) else one)
    return texts


def _tokens(
    lm: LanguageModel, texts: Sequence[str], window: int, answers: Answers | None
) -> _Documents:
    kept, seen, short, repeated = [], set(), 0, 0
    for number, text in enumerate(texts):
        if text in seen:
            repeated += 1
            continue
        seen.add(text)
        tokens = tokenize(lm.tokenizer, text, f"document {number}") if text.strip() else None
        if tokens is None or len(tokens.ids) < 2 * window:
            short += 1
            continue
        mark = np.ones(len(tokens.ids), bool)
        if answers is not None:
            mark = np.zeros(len(tokens.ids), bool)
            for first, last in answers[number]:
                if not 0 <= first < last <= len(text):
                    raise InputError(
                        f"document {number}: the answer ({first}, {last}) is no span of its "
                        f"{len(text)} characters."
                    )
                mark |= (tokens.char_start < last) & (tokens.char_end > first)
        kept.append((np.asarray(tokens.ids, dtype=np.int64), mark))
    if not kept:
        raise DataError(
            f"none of the {len(texts)} documents has two windows of {window} tokens; give longer "
            "documents or a smaller window."
        )
    return _Documents(kept, short, repeated)


def _predicts(mark: NDArray[np.bool_], number: int, window: int) -> NDArray[np.bool_]:
    """Which queries of a window predict a marked token, (window,)."""
    following = np.append(mark, False)
    return following[number * window + 1 : (number + 1) * window + 1]


def _asking(mark: NDArray[np.bool_], window: int) -> NDArray[np.int64]:
    numbers = range(1, len(mark) // window)
    return np.array([k for k in numbers if _predicts(mark, k, window).any()], dtype=np.int64)


# --- reading -------------------------------------------------------------------------------


def _masses(
    lm: LanguageModel,
    documents: Sequence[tuple[NDArray[np.int64], NDArray[np.bool_]]],
    plan: Sequence[Reading],
    layers: list[int],
    window: int,
    before: list[int],
    bar: Any,
) -> WindowMasses:
    own, previous, windows, answers = [], [], [], []
    notes: dict[int, str] = {}
    d = len(plan[0].previous)
    for reading in plan:
        parts = [
            documents[document][0][number * window : (number + 1) * window]
            for document, number in (*reading.previous, reading.current)
        ]
        ids = torch.from_numpy(np.concatenate([np.array(before, np.int64), *parts])).to(lm.device)
        observer = WindowObserver(layers, len(before), d, window)
        with torch.inference_mode(), Instruments(lm.model, [observer]):
            adapter.hidden_states(lm.model, ids)
        missing = [layer for layer in layers if layer not in observer.masses]
        if missing:
            raise DataError(f"layers {missing} gave no attention while reading.")
        found = np.stack([observer.masses[layer] for layer in layers])
        own.append(found[..., reading.place])
        previous.append(found.sum(-1))
        windows.append(found.mean(2))
        answers.append(_predicts(documents[reading.current[0]][1], reading.current[1], window))
        notes |= {
            layer: f"a token sees the last {observer.reach[layer]} tokens only"
            for layer in layers
            if observer.reach[layer] < len(ids)
        }
        bar.update((d + 1) * window)
    return WindowMasses(
        np.stack(own),
        np.stack(previous),
        np.stack(windows),
        np.array([reading.place for reading in plan]),
        np.array([reading.current[0] for reading in plan]),
        tuple(layers),
        np.stack(answers),
        notes,
    )


def _without_answers(masses: WindowMasses) -> WindowMasses:
    from dataclasses import replace

    return replace(masses, answers=None)


def _layers(lm: LanguageModel, layers: Iterable[int] | None) -> list[int]:
    known = sorted(adapter.attention_modules(lm.model))
    if layers is None:
        return known
    chosen = sorted({whole_number("layer", layer, 0) for layer in layers})
    unknown = [layer for layer in chosen if layer not in known]
    if unknown or not chosen:
        raise InputError(f"layers {unknown or 'none'}: this model has attention in {known}.")
    return chosen


def _check_window(lm: LanguageModel, d: int, window: int, skip: int) -> None:
    needed = (d + 1) * window + skip
    if lm.window is not None and needed > lm.window:
        fits = (lm.window - skip) // window - 1
        raise TextTooLongError(
            f"d={d} with windows of {window} tokens needs {needed} tokens, and {lm.name} reads "
            f"{lm.window}; the largest d that fits is {max(fits, 0)}. Give smaller d or window."
        )


def _bar(total: int, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit="token", unit_scale=True, file=sys.stderr, disable=not shown)
