"""Spans of tokens on awkward text, by offsets and by decoding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from workbench.core.errors import DataError
from workbench.recording.tokens import offsets_agree, offsets_cover, spans_by_decoding, tokenize

AWKWARD = st.text(
    alphabet=st.sampled_from(list("ab 'é\u2019\n\t.,🤔👩‍💻🇩🇪e\u0301ñ漢\ufffd\u00a0\u200d")),
    min_size=1,
    max_size=40,
).filter(lambda text: text.strip())


def byte_level(*, trim=False, lower=False):
    """A byte-level BPE with some merges, some of them inside characters."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=trim)
    inner.decoder = decoders.ByteLevel()
    if lower:
        inner.normalizer = normalizers.Lowercase()
    if trim:
        from tokenizers import processors

        inner.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator(["a b ab 🤔 é it's 漢 ab"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner)


PLAIN, TRIMMED, LOWER = byte_level(), byte_level(trim=True), byte_level(lower=True)


def check(tokens, text):
    """The definition: spans run through the text in order, and whole tokens are their span."""
    covered = set()
    for start, end, string in zip(tokens.char_start, tokens.char_end, tokens.strings, strict=True):
        assert 0 <= start < end <= len(text)
        covered |= set(range(start, end))
        if "\ufffd" not in string:
            assert string == text[start:end]
    assert covered == set(range(len(text)))
    assert (np.diff(tokens.char_start) >= 0).all()
    assert (np.diff(tokens.char_end) >= 0).all()


@settings(max_examples=150, deadline=None)
@given(AWKWARD)
def test_spans_rebuild_awkward_text(text):
    tokens = tokenize(PLAIN, text)
    check(tokens, text)
    decoded = spans_by_decoding(PLAIN, tokens.ids.tolist(), text)
    if decoded is None:  # only a text that itself holds U+FFFD can be ambiguous
        assert "\ufffd" in text
    elif "\ufffd" not in text:
        np.testing.assert_array_equal(decoded[:, 0], tokens.char_start)
        np.testing.assert_array_equal(decoded[:, 1], tokens.char_end)


@settings(max_examples=60, deadline=None)
@given(AWKWARD.filter(lambda text: "\ufffd" not in text))
def test_trimmed_offsets_are_replaced_by_decoding(text):
    tokens = tokenize(TRIMMED, text)
    check(tokens, text)


def test_trimmed_offsets_leave_gaps():
    tokens = tokenize(TRIMMED, "a bee it's")
    assert tokens.rule == "decoding"
    check(tokens, "a bee it's")


def test_tokens_inside_one_character_share_its_span():
    tokens = tokenize(PLAIN, "x漢字")
    spans = list(zip(tokens.char_start.tolist(), tokens.char_end.tolist(), strict=True))
    assert spans.count((2, 3)) == 3  # 字 was not in the training text: three bytes
    assert spans[0] == (0, 1)


def test_a_tokenizer_that_changes_case_keeps_its_offsets():
    tokens = tokenize(LOWER, "Ab bA")
    assert tokens.rule == "offsets"
    assert tokens.char_start[0] == 0
    assert tokens.char_end[-1] == 5


def test_offsets_are_not_believed():
    good = np.array([[0, 2], [2, 4]])
    assert offsets_cover(good, "abcd")
    assert not offsets_cover(np.array([[0, 0], [2, 4]]), "abcd")  # empty spans
    assert not offsets_cover(np.array([[0, 1], [2, 4]]), "abcd")  # a gap
    assert not offsets_cover(good, "abcde")  # the end is missing
    assert not offsets_cover(np.zeros((0, 2), dtype=int), "abcd")
    assert offsets_agree(good, ["ab", "cd"], "abcd")
    assert not offsets_agree(np.array([[0, 1], [1, 4]]), ["ab", "cd"], "abcd")  # shifted


def test_wrong_offsets_are_replaced(monkeypatch):
    class Shifted:
        is_fast = True

        def __call__(self, text, **options):
            encoded = dict(PLAIN(text, **options))
            encoded["offset_mapping"] = [(a, a) for a, _ in encoded["offset_mapping"]]
            return encoded

        def decode(self, ids, **options):
            return PLAIN.decode(ids, **options)

    text = "it's a 🤔 b"
    tokens = tokenize(Shifted(), text)
    assert tokens.rule == "decoding"
    check(tokens, text)


def test_a_text_that_cannot_be_rebuilt_is_an_error():
    class Lossy:
        is_fast = False

        def __call__(self, text, **options):
            return {"input_ids": [1, 2]}

        def decode(self, ids, **options):
            return "?" * len(ids)

    with pytest.raises(DataError, match="story 'x': neither the tokenizer's offsets nor"):
        tokenize(Lossy(), "abc", "story 'x'")
    with pytest.raises(DataError, match="has no text"):
        tokenize(PLAIN, " \n ")
