"""How far a method's events are from people's: Wasserstein distance and Hamming over gaps.

Two measures, both distances (smaller is closer), both on a named reference:

- `wasserstein` (EM-LLM, Figure 4B and App. B.1), re-exported from `workbench.analysis.wasserstein`;
- `hamming` over the gaps between sentences (Michelmann, Kumar, Norman and Toneva 2023): the share
  of gaps on which the method and people disagree.

Neither says anything without its nulls, the matched fixed segmentation and the ceiling
(`workbench.analysis.ceiling`). Everything here takes and gives arrays;
`workbench.analysis.reference` applies it to a `Story` and to `Boundaries`.

People's times go to the sentence gap nearest in time (`timing.times_to_words`, rule "sentence"),
a model's or an author's word to the gap nearest in words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import hypergeom

from workbench.analysis.wasserstein import ABSENT, EVEN_SPACING, wasserstein, wasserstein_many
from workbench.core.errors import InputError

__all__ = [
    "ABSENT",
    "EVEN_SPACING",
    "hamming",
    "hamming_many",
    "nearest_gaps",
    "shuffle_p",
    "token_draws_to_words",
    "wasserstein",
    "wasserstein_many",
    "words_to_gaps",
]


# --- the gaps between sentences ------------------------------------------------------------


def nearest_gaps(n_words: int, sentence_starts: ArrayLike) -> NDArray[np.int64]:
    """For every word the number of the sentence gap nearest to its beginning, shape (n_words,).

    Distances are counted in words between the word and the first word after the gap; a tie goes
    to the earlier gap. -1 everywhere when the text is one sentence, which has no gap.
    """
    first = _sentence_starts(sentence_starts, n_words)[1:]
    if len(first) == 0:
        return np.full(n_words, ABSENT, dtype=np.int64)
    words = np.arange(n_words)
    right = np.minimum(np.searchsorted(first, words), len(first) - 1)
    left = np.maximum(right - 1, 0)
    closer = np.abs(words - first[left]) <= np.abs(first[right] - words)
    return np.where(closer, left, right).astype(np.int64)


def words_to_gaps(words: ArrayLike, n_words: int, sentence_starts: ArrayLike) -> NDArray[np.bool_]:
    """Mark the sentence gap nearest, in words, to each word boundary.

    Parameters
    ----------
    words : words at which an event starts (without word 0), shape (k,), or (draws, k) for many
        segmentations at once; negative entries (`ABSENT`) are no boundaries.
    n_words : number of words of the text.
    sentence_starts : word number of each sentence's first word, increasing, first 0.

    Returns
    -------
    One entry per gap, shape (n_sentences - 1,) or (draws, n_sentences - 1). Boundaries nearest
    to the same gap mark it once.
    """
    places = np.asarray(words, dtype=np.int64)
    if places.ndim not in (1, 2):
        raise InputError(f"words must have the shape (k,) or (draws, k), not {places.shape}.")
    if places.size and places.max() >= n_words:
        raise InputError(f"word {places.max()} is outside the {n_words} words of the text.")
    table = nearest_gaps(n_words, sentence_starts)
    rows = np.atleast_2d(places)
    n_gaps = len(_sentence_starts(sentence_starts)) - 1
    # One column more than there are gaps takes the absent entries.
    marks = np.zeros((len(rows), n_gaps + 1), dtype=bool)
    gaps = np.where(rows >= 0, table[np.maximum(rows, 0)], n_gaps) if n_gaps else rows * 0
    marks[np.arange(len(rows))[:, None], gaps] = True
    marks = marks[:, :n_gaps]
    return marks if places.ndim == 2 else marks[0]


def _sentence_starts(starts: ArrayLike, n_words: int | None = None) -> NDArray[np.int64]:
    first = np.asarray(starts, dtype=np.int64).ravel()
    if len(first) == 0 or first[0] != 0 or (np.diff(first) <= 0).any():
        raise InputError("sentence_starts must increase and begin with word 0.")
    if n_words is not None and first[-1] >= n_words:
        raise InputError(
            f"sentence_starts name word {first[-1]}, outside the {n_words} words of the text."
        )
    return first


# --- Hamming distance ----------------------------------------------------------------------


def hamming(first: ArrayLike, second: ArrayLike) -> float:
    """Share of sentence gaps that are a boundary in one vector and none in the other.

    The Hamming distance of Michelmann et al. 2023 (`scipy.spatial.distance.hamming`). Its
    baseline depends on the number of boundaries: with k and m marks on N gaps, vectors that
    share nothing are (k + m)/N apart, and a method that marks nothing is at m/N.

    Parameters
    ----------
    first, second : one entry per gap, shape (n_sentences - 1,).

    Returns
    -------
    The share, 0 ... 1; NaN for a text without a sentence gap.
    """
    left, right = _pair(first, second)
    return float((left != right).mean()) if len(right) else float("nan")


def hamming_many(draws: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """`hamming` of many vectors, shape (draws, n_gaps), against one; shape (draws,)."""
    rows, fixed = np.asarray(draws, dtype=bool), np.asarray(reference, dtype=bool)
    if rows.ndim != 2 or rows.shape[1:] != fixed.shape:
        raise InputError(
            f"draws of shape {rows.shape} do not fit a reference of shape {fixed.shape}: both "
            "need one entry per sentence gap."
        )
    if len(fixed) == 0:
        return np.full(len(rows), np.nan)
    return np.asarray((rows != fixed).mean(axis=1))


def shuffle_p(
    first: ArrayLike,
    second: ArrayLike,
    *,
    draws: int | None = None,
    rng: np.random.Generator | None = None,
) -> float:
    """Share of shuffles of one gap vector that are as close to the other as it is, or closer.

    The p value of Michelmann et al. 2023, who drew 100,000 plain shuffles. Under a shuffle the
    number of shared marks is hypergeometric, so the value that the draws estimate is known
    exactly; it is returned unless draws are asked for. It ignores the order of the gaps, and so
    how regular the events are: it is the weakest of the nulls, and the p of the comparison's
    table comes from the named nulls instead (`workbench.analysis.statistics`).

    Parameters
    ----------
    first, second : one entry per gap, shape (n_sentences - 1,).
    draws : number of shuffles of `first`; None for the exact value.
    rng : random numbers, needed with `draws`.

    Returns
    -------
    The share in (0, 1] (with draws it can be 0, as in the paper); NaN without a gap.
    """
    left, right = _pair(first, second)
    if len(left) == 0:
        return float("nan")
    if draws is None:
        shared = int((left & right).sum())
        return float(hypergeom.sf(shared - 1, len(left), int(right.sum()), int(left.sum())))
    if rng is None:
        raise InputError("shuffles need random numbers: give rng=np.random.default_rng(seed).")
    observed = hamming(left, right)
    hits = 0
    for done in range(0, draws, 10_000):  # blocks bound the memory
        rows = np.repeat(left[None, :], min(10_000, draws - done), axis=0)
        distances = hamming_many(rng.permuted(rows, axis=1), right)
        hits += int((distances <= observed + 1e-12).sum())
    return hits / draws


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    left, right = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if left.ndim != 1 or left.shape != right.shape:
        raise InputError(
            f"gap vectors of shapes {left.shape} and {right.shape} cannot be compared: both need "
            "one entry per sentence gap."
        )
    return left, right


# --- null draws ----------------------------------------------------------------------------


def token_draws_to_words(
    starts: ArrayLike, word_of_token: ArrayLike, n_words: int
) -> NDArray[np.int64]:
    """Null draws over tokens as word boundaries, by the rule of `Boundaries.mapped`.

    Parameters
    ----------
    starts : token at which each event starts, shape (draws, n_events), first column 0, every row
        in order (`workbench.analysis.nulls.null_starts`).
    word_of_token : word of each token, never decreasing, n_words after the last word
        (`Trace.word_of_token`), shape (n_tokens,).
    n_words : number of words of the text.

    Returns
    -------
    Words at which an event starts, without word 0, shape (draws, n_events - 1). Several starts
    in one word count once, and starts in word 0 or after the last word are none, as for the
    method itself; such entries are `ABSENT`.
    """
    draws = np.asarray(starts, dtype=np.int64)
    mapping = np.asarray(word_of_token, dtype=np.int64)
    if draws.ndim != 2 or draws.shape[1] == 0 or (draws[:, 0] != 0).any():
        raise InputError("starts must have the shape (draws, n_events) and begin with token 0.")
    if (np.diff(draws, axis=1) < 0).any() or draws[:, -1].max(initial=0) >= len(mapping):
        raise InputError(
            f"starts must be in order within each row and lie in the {len(mapping)} tokens."
        )
    if (np.diff(mapping) < 0).any():
        raise InputError("word_of_token must never decrease; use Trace.word_of_token().")
    words = mapping[draws]
    repeated = words[:, 1:] == words[:, :-1]
    inner = words[:, 1:]
    return np.where(repeated | (inner <= 0) | (inner >= n_words), ABSENT, inner)
