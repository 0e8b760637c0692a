"""The measures of a word's predictability: their names, units, and their values per word.

`surprisal` is -log p of what came. `bayesian_surprise` is how far what came moved the prediction
of what comes next. EM-LLM (section 3.2) calls surprisal "Bayesian surprise"; here each has its
own name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.checks import check_option

__all__ = [
    "CORRECTED",
    "DEFAULT_MEASURES",
    "DIVERGENCES",
    "MEASURES",
    "Measure",
    "chosen_measures",
    "corrected_by_word",
    "first_by_word",
    "spans_of_words",
    "sum_by_word",
]


@dataclass(frozen=True)
class Measure:
    """One measure: its unit, what it is, and how a word's value comes from its tokens."""

    name: str
    units: str
    definition: str
    word: str | None
    """Definition of the word's value, None where words have none."""


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            "surprisal",
            "nat",
            "-log p(token | all before it)",
            "sum of the surprisal of a word's tokens",
        ),
        Measure(
            "entropy",
            "nat",
            "entropy of the distribution that predicts the token",
            "entropy of the distribution that predicts the word's first token",
        ),
        Measure(
            "varentropy",
            "nat^2",
            "variance of -log p under the distribution that predicts the token",
            "varentropy of the distribution that predicts the word's first token",
        ),
        Measure(
            "rank",
            "1",
            "1 + number of tokens that were more probable than the token",
            None,
        ),
        Measure(
            "bayesian_surprise",
            "nat",
            "KL(p(. | up to and with the token) || p(. | all before it))",
            "KL(p(. | up to and with the word) || p(. | all before the word))",
        ),
        Measure(
            "bayesian_surprise_old_new",
            "nat",
            "KL(p(. | all before the token) || p(. | up to and with it))",
            "KL(p(. | all before the word) || p(. | up to and with it))",
        ),
        Measure(
            "jensen_shannon",
            "nat",
            "Jensen-Shannon divergence of the predictions before and after the token",
            "Jensen-Shannon divergence of the predictions before and after the word",
        ),
    )
}
"""Every measure of tokens, by name; it is the name of the variable, words' with `word_` before."""

CORRECTED = "surprisal_corrected"
"""Asked for beside `surprisal`: word surprisal corrected for word-initial markers."""

DIVERGENCES: dict[str, str] = {
    "bayesian_surprise": "new_old",
    "bayesian_surprise_old_new": "old_new",
    "jensen_shannon": "jensen_shannon",
}
"""Divergences between the predictions before and after a token, and their direction."""

DEFAULT_MEASURES = (
    "surprisal",
    "entropy",
    "varentropy",
    "rank",
    "bayesian_surprise",
    "bayesian_surprise_old_new",
)
"""What `record` measures unless told: what needs no second pass of exp or log over the vocabulary
and costs a twentieth of reading (benchmarks/recording.py)."""


def chosen_measures(measures: str | Iterable[str] | None) -> tuple[str, ...]:
    """Names in the order of `MEASURES`, with surprisal always among them.

    Parameters
    ----------
    measures : None for the default, "all", one name, or names.

    Raises
    ------
    InputError : an unknown name.
    """
    names = (*MEASURES, CORRECTED)
    if measures is None:
        return DEFAULT_MEASURES
    if isinstance(measures, str):
        measures = names if measures == "all" else (measures,)
    wanted = set(measures)
    for name in sorted(wanted - set(names), key=str):
        check_option("measures", name, ("all", *names))
    return tuple(name for name in names if name in wanted | {"surprisal"})


# --- from tokens to words ------------------------------------------------------------------


def sum_by_word(
    values: NDArray[np.float64], token_word: NDArray[np.int64], n_words: int
) -> NDArray[np.float64]:
    """Sum of token values per word, shape (n_words,); NaN for a word without a token."""
    inside = token_word >= 0
    total = np.zeros(n_words)
    np.add.at(total, token_word[inside], values[inside])
    count = np.bincount(token_word[inside], minlength=n_words)
    return np.where(count > 0, total, np.nan)


def spans_of_words(
    token_word: NDArray[np.int64], n_words: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First token of each word, and one past its last; both -1 for a word without a token."""
    first = np.full(n_words, -1, dtype=np.int64)
    last = np.full(n_words, -1, dtype=np.int64)
    tokens = np.flatnonzero(token_word >= 0)
    words = token_word[tokens]
    last[words] = tokens + 1
    first[words[::-1]] = tokens[::-1]
    return first, last


def first_by_word(values: NDArray[np.float64], first: NDArray[np.int64]) -> NDArray[np.float64]:
    """Value at each word's first token (`spans_of_words`), NaN for a word without a token."""
    return np.where(first >= 0, values[first], np.nan)


def corrected_by_word(
    surprisal: NDArray[np.float64],
    log_ends_before: NDArray[np.float64],
    log_ends_after: NDArray[np.float64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    marked: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Word surprisal of a tokenizer whose tokens carry the space before a word.

    With such tokens the end of a word is known only from the next token: the plain product of
    a word's tokens also counts every longer word that begins with them, and charges the space
    before the word to it. The corrected probability is p(tokens) · B(after) / B(before), where
    B is the mass on tokens that begin a new word or end the text (Pimentel & Meister 2024, arXiv
    2406.14561; Oh & Schuler 2024, arXiv 2406.10851). Over all words it sums to 1.

    Parameters
    ----------
    surprisal : (n_words,), nats, sums over the words' tokens.
    log_ends_before, log_ends_after : (n_tokens,), log B before each token and once it is read.
    first, last : (n_words,), each word's first token and one past its last, -1 for none.
    marked : (n_words,), whether the word's first token carries the marker. Where it does not (at
        the start of the text, after a line break with a token of its own), only B(after) applies.

    Returns
    -------
    (n_words,), nats; NaN where the surprisal is, or where B is not known.
    """
    before = np.where(marked, log_ends_before[first], 0.0)
    return np.where(first >= 0, surprisal - log_ends_after[last - 1] + before, np.nan)
