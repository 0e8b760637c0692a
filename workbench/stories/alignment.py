"""Words of a text, and their times: everything goes by character offsets.

A word is a maximal run of characters that are not whitespace, so punctuation belongs to the word
it touches. Timed words (lower case, no punctuation, now and then one more or fewer) are aligned
to the words of the clean text, since the model reads the clean text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.core.errors import DataError, InputError
from workbench.stories.repairs import fill_times, normalised, repair_times, spread

__all__ = [
    "align_times",
    "timed_words",
    "token_words",
    "untimed_words",
    "word_spans",
]

MIN_MATCHED = 0.5
"""Below this share of matched words, text and timed words are taken for different stories."""

Floats = NDArray[np.float64]


# --- words of a text ---------------------------------------------------------------------------


def word_spans(text: str) -> pd.DataFrame:
    """Words of a text with their character spans.

    Returns
    -------
    One row per word: word (str), char_start, char_end (end exclusive). The spans rebuild the text:
    between them there is only whitespace.

    Raises
    ------
    DataError : the text has no words.
    """
    matches = list(re.finditer(r"\S+", text))
    if not matches:
        raise DataError("the text is empty: it holds no character except whitespace.")
    return pd.DataFrame(
        {
            "word": [match.group() for match in matches],
            "char_start": np.array([match.start() for match in matches], dtype=np.int64),
            "char_end": np.array([match.end() for match in matches], dtype=np.int64),
        }
    )


def untimed_words(text: str) -> pd.DataFrame:
    """`Story.words` of a text without word times: onset and offset NaN, timed False."""
    words = word_spans(text)
    return words.assign(onset=np.nan, offset=np.nan, timed=False)


def token_words(
    char_start: ArrayLike, char_end: ArrayLike, words: pd.DataFrame
) -> NDArray[np.int64]:
    """The word each token belongs to, by character offsets.

    A token belongs to the word in which the first character of its span that is not whitespace
    lies: " hasn" and "'t" both to "hasn't". A token of whitespace only belongs to none. A token
    with an empty span (a byte of a character that another token's span covers) belongs to the
    word at that place, if there is one.

    Parameters
    ----------
    char_start, char_end : the tokens' spans in the text, shape (n_tokens,), end exclusive.
    words : `Story.words` of the same text.

    Returns
    -------
    Word number of each token, -1 for none, shape (n_tokens,).
    """
    start = np.asarray(char_start, dtype=np.int64)
    end = np.asarray(char_end, dtype=np.int64)
    if start.shape != end.shape or start.ndim != 1:
        raise InputError(
            f"char_start and char_end must be two lists of one length, not of shapes "
            f"{start.shape} and {end.shape}."
        )
    if (end < start).any():
        token = int(np.flatnonzero(end < start)[0])
        raise InputError(
            f"token {token} has the span {start[token]} ... {end[token]}, which ends before it "
            "starts; give offsets into the text."
        )
    word_start = words["char_start"].to_numpy(dtype=np.int64)
    word_end = words["char_end"].to_numpy(dtype=np.int64)
    # Words cover every character that is not whitespace, so the first such character of a span
    # lies in the first word that ends after the span's start.
    word = np.searchsorted(word_end, start, side="right")
    # An empty span right after a word still continues that word.
    word = np.where(start == end, np.searchsorted(word_end, start, side="left"), word)
    begins = np.append(word_start, np.iinfo(np.int64).max)[word]
    inside = np.where(start == end, begins <= start, begins < end)
    return np.where(inside, word, -1)


# --- alignment of timed words to a text --------------------------------------------------------


def align_times(
    text_words: Sequence[str],
    table_words: Sequence[str],
    onset: ArrayLike,
    offset: ArrayLike,
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Times for the words of a text from those of a table of nearly the same words.

    Words that are equal after `normalised` are matched in order (`difflib`, without its
    heuristics). Where the same letters are divided differently ("good looking", "goodlooking"),
    times go by letters: a word keeps measured times if it starts and ends where words of the
    table do. Words of the text that stand where the table has other words share the span of those,
    by their lengths, as unmeasured. Words the table does not have at all stay NaN (`fill_times`).

    Parameters
    ----------
    text_words : words of the text, n.
    table_words : timed words, m.
    onset, offset : their times in seconds, shape (m,), NaN where unknown.

    Returns
    -------
    onset, offset : shape (n,), seconds, NaN where the table says nothing.
    timed : shape (n,), True where both times were measured for this very word.
    """
    starts = np.asarray(onset, dtype=np.float64)
    ends = np.asarray(offset, dtype=np.float64)
    a = [normalised(word) for word in text_words]
    b = [normalised(word) for word in table_words]
    new_onset = np.full(len(a), np.nan)
    new_offset = np.full(len(a), np.nan)
    timed = np.zeros(len(a), dtype=bool)
    for tag, i1, i2, j1, j2 in _operations(a, b):
        if tag == "equal":
            new_onset[i1:i2], new_offset[i1:i2] = starts[j1:j2], ends[j1:j2]
            timed[i1:i2] = np.isfinite(starts[j1:j2]) & np.isfinite(ends[j1:j2])
        elif tag == "replace":
            block = _same_letters if "".join(a[i1:i2]) == "".join(b[j1:j2]) else _shared_span
            new_onset[i1:i2], new_offset[i1:i2], timed[i1:i2] = block(
                a[i1:i2], b[j1:j2], starts[j1:j2], ends[j1:j2]
            )
    return new_onset, new_offset, timed


def _operations(a: list[str], b: list[str]) -> list[tuple[str, int, int, int, int]]:
    """Edit operations from a to b; equal heads and tails are split off first, which is fast."""
    shorter = min(len(a), len(b))
    head = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    tail = next((i for i in range(shorter - head) if a[-1 - i] != b[-1 - i]), shorter - head)
    stop_a, stop_b = len(a) - tail, len(b) - tail
    matcher = SequenceMatcher(None, a[head:stop_a], b[head:stop_b], autojunk=False)
    middle = [
        (tag, i1 + head, i2 + head, j1 + head, j2 + head)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
    ]
    return [
        ("equal", 0, head, 0, head),
        *middle,
        ("equal", stop_a, len(a), stop_b, len(b)),
    ]


def _same_letters(
    a: list[str], b: list[str], onset: Floats, offset: Floats
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Times of words that divide the same letters differently."""
    edges_a = np.cumsum([0, *map(len, a)])
    edges_b = np.cumsum([0, *map(len, b)])
    # The word of the table in which a word starts, and the one in which it ends.
    first = np.searchsorted(edges_b, edges_a[:-1], side="right") - 1
    last = np.searchsorted(edges_b, edges_a[1:], side="left") - 1
    sizes = np.diff(edges_b)
    pace = (offset - onset) / sizes
    new_onset = onset[first] + pace[first] * (edges_a[:-1] - edges_b[first])
    new_offset = onset[last] + pace[last] * (edges_a[1:] - edges_b[last])
    exact_start = edges_a[:-1] == edges_b[first]
    exact_end = edges_a[1:] == edges_b[last + 1]
    new_offset = np.where(exact_end, offset[last], new_offset)
    known = np.isfinite(new_onset) & np.isfinite(new_offset)
    new_onset[~known] = new_offset[~known] = np.nan
    return new_onset, new_offset, known & exact_start & exact_end


def _shared_span(
    a: list[str], b: list[str], onset: Floats, offset: Floats
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Other words stand here: share their span by length of word, as unmeasured."""
    times = np.concatenate([onset, offset])
    times = times[np.isfinite(times)]
    if len(times) == 0:
        nothing = np.full(len(a), np.nan)
        return nothing, nothing.copy(), np.zeros(len(a), dtype=bool)
    edges = spread(float(times.min()), float(times.max()), a)
    return edges[:-1], edges[1:], np.zeros(len(a), dtype=bool)


# --- both together ---------------------------------------------------------------------------


def timed_words(
    text: str, table: pd.DataFrame, *, where: str = "the table"
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """`Story.words` of a text from a table of timed words, repaired, aligned and filled.

    Parameters
    ----------
    text : the clean text.
    table : columns word, onset, offset (s; NaN where unknown), in the order of the story.
    where : the file, for messages.

    Returns
    -------
    words : word, char_start, char_end, onset, offset (s), timed.
    notes : what was repaired or interpolated, in sentences.

    Raises
    ------
    DataError : see `repair_times`; or fewer than half of the text's words are in the table.
    """
    words = word_spans(text)
    onset, offset, notes = repair_times(table["onset"], table["offset"], where=where)
    spoken = table["word"].astype(str).tolist()
    printed = words["word"].tolist()
    onset, offset, timed = align_times(printed, spoken, onset, offset)
    found = np.isfinite(onset) & np.isfinite(offset)
    if timed.mean() < MIN_MATCHED:
        raise DataError(
            f"{where}: only {int(timed.sum())} of the text's {len(timed)} words were found with "
            "times in it; are the text and the table of the same story and language?"
        )
    onset, offset = fill_times(printed, np.where(found, onset, np.nan), offset)
    share = (
        f"{int(timed.sum())} of {len(timed)} words ({timed.mean():.1%}) have measured times"
        f"{'.' if timed.all() else '; the others are interpolated.'}"
    )
    if len(spoken) != len(printed):
        share += f" The text has {len(printed)} words, the timed table {len(spoken)}."
    return words.assign(onset=onset, offset=offset, timed=timed), (share, *notes)
