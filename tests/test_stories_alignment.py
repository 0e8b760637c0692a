"""Words, alignment of timed words to a text, and repair of times."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.errors import DataError, InputError
from workbench.stories.alignment import align_times, timed_words, token_words, word_spans
from workbench.stories.repairs import fill_times, normalised, repair_times

AWKWARD = [
    "He'd said: \u201cdon\u2019t\u201d \u2014 and left.",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 inside",
    "e\u0301galite\u0301 na\u00efve",
    "two  spaces   three\t\ttabs\n\nlines\r\nends",
    "a\u00a0non\u00a0breaking space",
    "\ufb01ne \ufb02oor of\ufb01ce",
    "  outer spaces  ",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u4f60\u597d",
    "zero\u200bwidth",
]

text_strategy = st.text(
    alphabet=st.one_of(
        st.characters(codec="utf-8"), st.sampled_from(" \t\n\u00a0\u2003'\u2019\u0301\u200d.")
    ),
    max_size=60,
)


# --- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", AWKWARD)
def test_spans_rebuild_awkward_text(text: str) -> None:
    check_rebuilds(text)


@given(text_strategy)
def test_spans_rebuild_any_text(text: str) -> None:
    if text.strip():
        check_rebuilds(text)
    else:
        with pytest.raises(DataError, match="text is empty"):
            word_spans(text)


def check_rebuilds(text: str) -> None:
    words = word_spans(text)
    rebuilt, place = "", 0
    for word, start, end in words.itertuples(index=False):
        assert text[place:start].strip() == ""
        rebuilt += text[place:start] + word
        assert text[start:end] == word
        place = end
    assert rebuilt + text[place:] == text
    assert text[place:].strip() == ""
    assert words["word"].tolist() == text.split()


# --- tokens to words ---------------------------------------------------------------------------


def slow_token_word(text: str, start: int, end: int, words: pd.DataFrame) -> int:
    """Straight from the definition, character by character."""
    for place in range(start, end):
        if not text[place].isspace():
            for number, row in enumerate(words.itertuples()):
                if row.char_start <= place < row.char_end:
                    return number
    return -1


@given(text_strategy.filter(lambda text: text.strip() != ""), st.randoms(use_true_random=False))
def test_token_words_follow_the_definition(text: str, random: object) -> None:
    cuts = sorted({0, len(text), *(random.randrange(len(text) + 1) for _ in range(8))})
    starts, ends = np.array(cuts[:-1]), np.array(cuts[1:])
    words = word_spans(text)
    expected = [slow_token_word(text, a, b, words) for a, b in zip(starts, ends, strict=True)]
    assert token_words(starts, ends, words).tolist() == expected


def test_token_words_by_hand() -> None:
    text = 'She hasn\'t  "gone".\n'
    words = word_spans(text)
    pieces = ["She", " hasn", "'t", " ", ' "', "gone", '".', "\n"]
    ends = np.cumsum([len(piece) for piece in pieces])
    starts = ends - [len(piece) for piece in pieces]
    assert token_words(starts, ends, words).tolist() == [0, 1, 1, -1, 2, 2, 2, -1]


def test_empty_spans_belong_to_the_word_they_touch() -> None:
    words = word_spans("ab \U0001f600 cd")
    # The bytes of the emoji: one span covers it, the others are empty, before or after.
    assert token_words([3, 3, 4], [4, 3, 4], words).tolist() == [1, 1, 1]
    assert token_words([0, 2, 7], [0, 2, 7], words).tolist() == [0, 0, 2]
    wide = word_spans("ab   cd")
    assert token_words([3, 4], [3, 4], wide).tolist() == [-1, -1]


def test_token_words_refuse_spans_that_run_backwards() -> None:
    words = word_spans("one two")
    with pytest.raises(InputError, match=r"token 1 has the span 7 ... 4"):
        token_words([0, 7], [3, 4], words)
    with pytest.raises(InputError, match="two lists of one length"):
        token_words([0, 4], [3], words)


# --- normalisation and alignment ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "spoken"),
    [
        ("He\u2019d", "hed"),
        ("\u201cFordham\u2019s,\u201d", "fordhams"),
        ("\ufb01ne", "fine"),
        ("E\u0301galit\u00e9", "\u00e9galite\u0301"),
        ("STRASSE", "stra\u00dfe"),
        ("well-known", "wellknown"),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_spellings_that_are_one_word(printed: str, spoken: str) -> None:
    assert normalised(printed) == normalised(spoken)


@pytest.mark.parametrize(
    ("one", "other"), [("say", "says"), ("\u0928\u093f", "\u0928\u0940"), ("\u2014", "a")]
)
def test_spellings_that_are_two_words(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


@given(st.lists(st.sampled_from(["the", "a", "cat", "sat", "on", "mat"]), min_size=1, max_size=30))
def test_equal_words_keep_their_times_exactly(words: list[str]) -> None:
    onset = np.arange(len(words)) * 0.37
    offset = onset + 0.2
    printed = [word.capitalize() + "," for word in words]
    new_onset, new_offset, timed = align_times(printed, words, onset, offset)
    np.testing.assert_array_equal(new_onset, onset)
    np.testing.assert_array_equal(new_offset, offset)
    assert timed.all()


def test_one_word_more_and_one_fewer() -> None:
    printed = ["I", "really", "saw", "the", "old", "cat."]
    spoken = ["i", "saw", "uh", "the", "cat"]
    onset = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    new_onset, new_offset, timed = align_times(printed, spoken, onset, onset + 0.5)
    np.testing.assert_array_equal(new_onset, [0.0, np.nan, 1.0, 3.0, np.nan, 4.0])
    np.testing.assert_array_equal(new_offset, [0.5, np.nan, 1.5, 3.5, np.nan, 4.5])
    assert timed.tolist() == [True, False, True, True, False, True]


def test_letters_divided_differently() -> None:
    # "goodlooking" said as one word of 1.1 s: ten hundredths a letter.
    printed = ["so", "good", "looking", "thinghe", "did"]
    spoken = ["so", "goodlooking", "thing", "he", "did"]
    onset = np.array([0.0, 1.0, 3.0, 4.0, 5.0])
    offset = np.array([0.5, 2.1, 3.5, 4.5, 5.5])
    new_onset, new_offset, timed = align_times(printed, spoken, onset, offset)
    np.testing.assert_allclose(new_onset, [0.0, 1.0, 1.4, 3.0, 5.0])
    np.testing.assert_allclose(new_offset, [0.5, 1.4, 2.1, 4.5, 5.5])
    assert timed.tolist() == [True, False, False, True, True]


def test_another_word_shares_the_span_of_what_was_said() -> None:
    printed, spoken = ["he", "says", "so"], ["he", "say", "so"]
    onset = np.array([0.0, 2.0, 5.0])
    new_onset, new_offset, timed = align_times(printed, spoken, onset, onset + 1)
    assert (new_onset[1], new_offset[1]) == (2.0, 3.0)
    assert timed.tolist() == [True, False, True]


words_strategy = st.lists(
    st.sampled_from(["a", "b", "ab", "ba", "aba", ".", "c"]), min_size=1, max_size=14
)


@given(words_strategy, words_strategy, st.randoms(use_true_random=False))
def test_any_two_word_lists_give_ordered_times(
    printed: list[str], spoken: list[str], random: object
) -> None:
    edges = np.sort([random.uniform(0, 50) for _ in range(2 * len(spoken))])
    onset, offset = edges[::2], edges[1::2]
    new_onset, new_offset, timed = align_times(printed, spoken, onset, offset)
    found = np.isfinite(new_onset) & np.isfinite(new_offset)
    assert not (timed & ~found).any()
    # A time counts as measured only if the table has it.
    assert np.isin(new_onset[timed], onset).all()
    assert np.isin(new_offset[timed], offset).all()
    filled_onset, filled_offset = fill_times(printed, new_onset, new_offset)
    if found.any():
        flat = np.stack([filled_onset, filled_offset], axis=1).ravel()
        assert (np.diff(flat) >= -1e-9).all()
        assert flat.min() >= edges[0] - 1e-9
        assert flat.max() <= edges[-1] + 1e-9
    else:
        assert np.isnan(filled_onset).all()


# --- filling and repair ------------------------------------------------------------------------


def test_unknown_words_share_the_pause_by_length() -> None:
    words = ["first", "ab", "abcd", "last", "end"]
    onset = np.array([1.0, np.nan, np.nan, 5.0, np.nan])
    offset = np.array([2.0, np.nan, np.nan, 6.0, np.nan])
    new_onset, new_offset = fill_times(words, onset, offset)
    np.testing.assert_allclose(new_onset, [1.0, 2.0, 3.0, 5.0, 6.0])
    np.testing.assert_allclose(new_offset, [2.0, 3.0, 5.0, 6.0, 6.0])
    new_onset, new_offset = fill_times(words[1:], onset[1:], offset[1:])
    np.testing.assert_allclose(new_onset, [5.0, 5.0, 5.0, 6.0])
    np.testing.assert_allclose(new_offset, [5.0, 5.0, 6.0, 6.0])


def slow_longest_rise(values: list[float]) -> int:
    for size in range(len(values), 0, -1):
        for chosen in itertools.combinations(values, size):
            if all(a <= b for a, b in itertools.pairwise(chosen)):
                return size
    return 0


@given(st.lists(st.integers(0, 6), min_size=1, max_size=9))
def test_the_fewest_onsets_are_repaired(tenths: list[int]) -> None:
    values = [float(value) for value in tenths]
    # Enough ordered words before them that the share going backwards stays small.
    onset = np.concatenate([np.full(400, -1.0), values])
    new_onset, new_offset, notes = repair_times(onset, onset)
    lost = int(np.isnan(new_onset).sum())
    assert lost == len(values) - slow_longest_rise(values)
    kept = new_onset[np.isfinite(new_onset)]
    assert (np.diff(kept) >= 0).all()
    assert bool(lost) == any("backwards" in note for note in notes)
    np.testing.assert_array_equal(np.isnan(new_onset), np.isnan(new_offset))


def test_overlaps_are_cut_and_counted() -> None:
    onset, offset, notes = repair_times([0.0, 1.0, np.nan, 2.0], [1.5, 2.5, np.nan, 3.0])
    np.testing.assert_array_equal(onset, [0.0, 1.0, np.nan, 2.0])
    np.testing.assert_array_equal(offset, [1.0, 2.0, np.nan, 3.0])
    assert notes == ("2 offsets after the next word's onset were cut to it.",)


def test_nothing_is_said_when_nothing_is_repaired() -> None:
    assert repair_times([0.0, 1.0], [1.0, 1.5])[2] == ()


def test_a_word_that_ends_before_it_starts_is_an_error() -> None:
    with pytest.raises(
        DataError, match=r"words\.csv, row 2: the word ends at 1 s before it starts"
    ):
        repair_times([0.0, 2.0], [0.5, 1.0], where="words.csv")


def test_an_unsorted_table_is_an_error() -> None:
    onset = np.array([5.0, 6.0, 7.0, 1.0, 2.0, 3.0, 4.0])
    with pytest.raises(
        DataError, match=r"w\.csv, row 4: time goes backwards, from 7 s to 1 s, and 3"
    ):
        repair_times(onset, onset + 0.1, where="w.csv")


def test_words_of_another_story_are_an_error() -> None:
    table = pd.DataFrame({"word": ["x", "y", "z"], "onset": [0.0, 1, 2], "offset": [0.5, 1.5, 2.5]})
    with pytest.raises(DataError, match="only 1 of the text's 4 words"):
        timed_words("one two x four", table)


def test_notes_state_the_share_and_the_repairs() -> None:
    table = pd.DataFrame(
        {
            "word": ["one", "two", "three", "four"],
            "onset": [0.0, 1.0, 2.0, 3.0],
            "offset": [0.5, 2.1, 2.5, 3.5],
        }
    )
    words, notes = timed_words("One, two, three and four.", table)
    assert words["timed"].tolist() == [True, True, True, False, True]
    assert words["offset"].tolist() == [0.5, 2.0, 2.5, 3.0, 3.5]
    assert notes[0].startswith("4 of 5 words (80.0%) have measured times; the others are interpol")
    assert "The text has 5 words, the timed table 4." in notes[0]
    assert notes[1] == "1 offset after the next word's onset was cut to it."
