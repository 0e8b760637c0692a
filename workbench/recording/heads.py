"""Attention heads as recall: what a repeated list makes each head attend to, by lag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.core.checks import check_option
from workbench.core.errors import InputError, TextTooLongError
from workbench.models import DEFAULT_MODEL, LanguageModel, load_model

__all__ = ["ORDERS", "SCALES", "HeadRecall", "head_recall", "word_tokens"]

ORDERS = ("exact", "shuffled")
SCALES = ("raw", "log-centred", "probability")


@dataclass(frozen=True, eq=False)
class HeadRecall:
    """Lag curves and scores of attention heads on a list of tokens that comes twice.

    Lag = place in the first list of the token attended to, minus place there of the current token
    of the second list: 0 the token itself, +1 the one that followed it (Ji-An et al. 2024).

    Parameters
    ----------
    lags : (n_lags,).
    seed_curves : scale → (seeds, layers, heads, n_lags), mean over the tokens of one list.
    token_sem : scale → (layers, heads, n_lags), standard error over all tokens of all lists.
    counts : (n_lags,) tokens per curve point, all seeds together.
    scores : one row per head: layer, head, matching, duplicate, previous, copying, and
        matching_sem (standard error over seeds).
    surprisal : (seeds, 2), mean nats per token of the first and of the second list.
    settings : model, identity, provenance, n_items, order, seeds, bos, ...
    """

    lags: NDArray[np.int64]
    seed_curves: dict[str, NDArray[np.float64]]
    token_sem: dict[str, NDArray[np.float64]]
    counts: NDArray[np.int64]
    scores: pd.DataFrame
    surprisal: NDArray[np.float64]
    settings: dict[str, Any]

    @property
    def layers(self) -> NDArray[np.int64]:
        """Numbers of the layers, zero-based."""
        return np.unique(self.scores["layer"].to_numpy(dtype=np.int64))

    def curves(self, scale: str = "log-centred") -> NDArray[np.float64]:
        """Mean over lists and tokens, shape (layers, heads, n_lags)."""
        check_option("scale", scale, SCALES)
        return self.seed_curves[scale].mean(axis=0)

    def seed_sem(self, scale: str = "log-centred") -> NDArray[np.float64]:
        """Standard error over lists (seeds), (layers, heads, n_lags); NaN with one list."""
        check_option("scale", scale, SCALES)
        curves = self.seed_curves[scale]
        if len(curves) < 2:
            return np.full(curves.shape[1:], np.nan)
        return curves.std(axis=0, ddof=1) / np.sqrt(len(curves))

    def table(self, scale: str = "log-centred") -> pd.DataFrame:
        """Tidy curves: layer, head, lag, value, sem_tokens, sem_seeds, n_tokens, scale."""
        values = self.curves(scale)
        n_layers, n_heads, n_lags = values.shape
        return pd.DataFrame(
            {
                "layer": np.repeat(self.layers, n_heads * n_lags),
                "head": np.tile(np.repeat(np.arange(n_heads), n_lags), n_layers),
                "lag": np.tile(self.lags, n_layers * n_heads),
                "value": values.ravel(),
                "sem_tokens": self.token_sem[scale].ravel(),
                "sem_seeds": self.seed_sem(scale).ravel(),
                "n_tokens": np.tile(self.counts, n_layers * n_heads),
                "scale": scale,
            }
        )

    def __repr__(self) -> str:
        return (
            f"HeadRecall({self.settings.get('model', '?')}: {len(self.scores)} heads, "
            f"{len(self.surprisal)} lists of {self.settings.get('n_items', '?')} items, "
            f"{self.settings.get('order', '?')} repeat)"
        )


def head_recall(
    model: LanguageModel | str = DEFAULT_MODEL,
    *,
    n_items: int = 100,
    order: str = "exact",
    seeds: int | Sequence[int] = 5,
    max_lag: int = 8,
    tokens: str = "available",
    pool: Sequence[int] | Sequence[str] | None = None,
    bos: str | int = "tokenizer",
) -> HeadRecall:
    """Let a model read lists of distinct tokens twice, and measure each head's attention by lag.

    Parameters
    ----------
    model : a LanguageModel, or what `load_model` takes.
    n_items : tokens of a list.
    order : of the second list: "exact" (the induction test; a head that looks back a fixed
        distance cannot be told from one that matches tokens) or "shuffled" (it can: no position
        helps to find the token or its successor).
    seeds : number of lists (seeds 0, 1, ...), or the seeds themselves.
    max_lag : curves cover -max_lag ... max_lag.
    tokens : over which tokens of the second list a curve is averaged: "available", at each lag
        those that have it (as in the paper), or "complete", at every lag those that have all of
        them. With an exact repeat "available" compares earlier tokens at positive lags with later
        ones at negative lags, which tilts even uniform attention a little (probabilities are lower
        for later tokens); "complete" does not.
    pool : token ids, or words that are one token each, from which lists are drawn; None: the
        10,000 most frequent word tokens (see `word_tokens`).
    bos : start token: "tokenizer" (the tokenizer's own, none where it has none), or as in
        `record`. It matters: on the default model its strongest induction head has a matching
        score of .89 after the tokenizer's `<|im_start|>`, .86 without a start token, and .43
        after the `<|endoftext|>` that "auto" takes before stories.

    Returns
    -------
    HeadRecall
        Curves on three scales: "raw" (scores before the softmax, scaled and capped as the model
        does; what Ji-An et al. plot), "log-centred" (log-probability minus its mean over the
        first list for that token; the raw score less a constant per token) and "probability"
        (after the softmax over all tokens, start token included). Scores, all mean
        probabilities over the tokens of the second list: `matching` attention to the token that
        followed (N - 1 tokens), `duplicate` to the token itself, `previous` to the token just
        before; `copying` from the weights alone (`workbench.recording.copying`).

    Raises
    ------
    TextTooLongError : start token and both lists exceed the model's window, or a layer's sliding
        window.
    InputError : fewer tokens in the pool than items, an item that is not one token, n_items not
        above max_lag.
    """
    check_option("order", order, ORDERS)
    check_option("tokens", tokens, ("available", "complete"))
    if tokens == "complete" and n_items <= 2 * max_lag:
        raise InputError(
            f"no token of a list of {n_items} has all lags up to ±{max_lag}; give more than "
            f"{2 * max_lag} items, or tokens='available'."
        )
    if max_lag < 1 or n_items <= max_lag:
        raise InputError(
            f"n_items={n_items} and max_lag={max_lag}: a list must have more items than the "
            "largest lag, and the largest lag must be at least 1."
        )
    numbers = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    if not numbers:
        raise InputError("seeds is empty; give at least one list.")
    lm = model if isinstance(model, LanguageModel) else load_model(model)

    from workbench.recording import adapter
    from workbench.recording.copying import copying_scores
    from workbench.recording.start import start_token

    if bos == "tokenizer":
        own = lm.tokenizer.bos_token_id
        start, reason = own, "the tokenizer's own" if own is not None else "the tokenizer has none"
    else:
        start, reason = start_token(lm.tokenizer, bos)
    total = 2 * n_items + (start is not None)
    if lm.window is not None and total > lm.window:
        raise TextTooLongError(
            f"two lists of {n_items} items are {total} tokens with the start token; "
            f"{lm.name} reads {lm.window} at once. Give fewer items (n_items)."
        )
    items = _pool(lm.tokenizer, pool, n_items)
    lags = np.arange(-max_lag, max_lag + 1)
    complete = tokens == "complete"
    runs = [_read(lm, items, n_items, order, seed, start, lags, complete) for seed in numbers]

    layers = sorted(runs[0].observer.sums)
    n_heads = len(runs[0].observer.previous[layers[0]])
    counts = runs[0].observer.counts
    seed_curves, token_sem = {}, {}
    for scale in SCALES:
        sums = np.array([[run.observer.sums[layer][scale] for layer in layers] for run in runs])
        squares = np.array(
            [[run.observer.squares[layer][scale] for layer in layers] for run in runs]
        )
        seed_curves[scale] = sums / counts
        n_tokens = counts * len(runs)
        mean = sums.sum(axis=0) / n_tokens
        spread = np.maximum(squares.sum(axis=0) / n_tokens - mean**2, 0.0)
        token_sem[scale] = np.sqrt(spread / np.maximum(n_tokens - 1, 1))
    matching, duplicate, previous = (
        np.array([[getattr(run.observer, name)[layer] for layer in layers] for run in runs])
        for name in ("matching", "duplicate", "previous")
    )
    copying = copying_scores(lm.model, layers, n_heads)
    several = len(runs) > 1
    sem = matching.std(axis=0, ddof=1) / np.sqrt(len(runs)) if several else matching[0] * np.nan
    scores = pd.DataFrame(
        {
            "layer": np.repeat(layers, n_heads),
            "head": np.tile(np.arange(n_heads), len(layers)),
            "matching": matching.mean(axis=0).ravel(),
            "matching_sem": sem.ravel(),
            "duplicate": duplicate.mean(axis=0).ravel(),
            "previous": previous.mean(axis=0).ravel(),
            "copying": copying.ravel(),
        }
    )
    settings = {
        "model": lm.name,
        "identity": lm.identity,
        "provenance": lm.provenance,
        **adapter.geometry(lm.model),
        "n_items": n_items,
        "order": order,
        "tokens": tokens,
        "seeds": numbers,
        "pool": "word tokens" if pool is None else "given",
        "pool_size": len(items),
        "bos_id": start,
        "bos_reason": reason,
        "dtype": lm.dtype,
    }
    return HeadRecall(
        lags=lags,
        seed_curves=seed_curves,
        token_sem=token_sem,
        counts=counts * len(runs),
        scores=scores,
        surprisal=np.array([run.surprisal for run in runs]),
        settings=settings,
    )


def word_tokens(tokenizer: Any, most: int = 10_000) -> NDArray[np.int64]:
    """Ids of tokens that are a space and a lower-case word of three or more letters (a to z).

    Of these the `most` lowest ids: vocabularies made by merging number tokens by frequency, and
    rare tokens have hardly been trained.

    Raises
    ------
    InputError : the tokenizer marks no word beginnings; a pool must be given.
    """
    special = set(tokenizer.all_special_ids)
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    found = [
        number
        for number, name in enumerate(names)
        if isinstance(name, str)
        and name[:1] in ("Ġ", "▁")  # how byte-level and sentence-piece vocabularies write a space
        and len(name) >= 4
        and name[1:].isascii()
        and name[1:].isalpha()
        and name[1:].islower()
        and number not in special
    ]
    if not found:
        raise InputError(
            "this tokenizer has no tokens that are a space and a word; name the tokens to draw "
            "lists from with pool=."
        )
    return np.array(found[:most], dtype=np.int64)


@dataclass(frozen=True)
class _Run:
    observer: Any  # LagObserver; its module needs torch
    surprisal: tuple[float, float]


def _read(
    lm: LanguageModel,
    pool: NDArray[np.int64],
    n_items: int,
    order: str,
    seed: int,
    start: int | None,
    lags: NDArray[np.int64],
    complete: bool,
) -> _Run:
    """One list, read twice."""
    import torch

    from workbench.recording import adapter
    from workbench.recording.distributions import surprisal_from_hidden
    from workbench.recording.instruments import Instruments
    from workbench.recording.lag_observer import LagObserver

    rng = np.random.default_rng(seed)
    first = rng.choice(pool, n_items, replace=False)
    sources = np.arange(n_items) if order == "exact" else rng.permutation(n_items)
    before = [] if start is None else [start]
    ids = torch.from_numpy(np.concatenate([before, first, first[sources]]).astype(np.int64))
    ids = ids.to(lm.device)
    observer = LagObserver(sources, len(before), lags, complete=complete)
    with torch.inference_mode():
        with Instruments(lm.model, [observer]):
            hidden, last = adapter.hidden_states(lm.model, ids)
        values = surprisal_from_hidden(lm.model, hidden, ids[1:], last)
    first_list, second = values[: len(values) - n_items], values[-n_items:]
    return _Run(observer, (float(first_list.mean()), float(second.mean())))


def _pool(
    tokenizer: Any, pool: Sequence[int] | Sequence[str] | None, n_items: int
) -> NDArray[np.int64]:
    if pool is None:
        ids = word_tokens(tokenizer)
    else:
        given = [_one_token(tokenizer, item) if isinstance(item, str) else item for item in pool]
        ids = np.unique(np.array(given, dtype=np.int64))
        if len(ids) and (ids[0] < 0 or ids[-1] >= len(tokenizer)):
            raise InputError(f"pool: token ids of this model are 0 ... {len(tokenizer) - 1}.")
    if len(ids) < n_items:
        raise InputError(
            f"the pool has {len(ids)} different tokens for lists of {n_items}; give more, or fewer "
            "items (n_items)."
        )
    return ids


def _one_token(tokenizer: Any, word: str) -> int:
    for text in (word if word.startswith(" ") else f" {word}", word):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) == 1:
            return int(ids[0])
    raise InputError(
        f"pool: {word!r} is {len(ids)} tokens of this model; items are one token each."
    )
