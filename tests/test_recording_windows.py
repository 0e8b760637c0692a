"""Texts longer than the window: each token once, with its least context; drift of states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from test_recording_measures import FAMILIES, log_probabilities, small_tokenizer, story
from tiny_models import LAYERS, tiny_model

import workbench as wb
from workbench.core.errors import InputError, TextTooLongError
from workbench.models import LanguageModel
from workbench.recording import adapter
from workbench.recording.instruments import Instruments, KeyRecorder
from workbench.recording.states import drift
from workbench.recording.windows import Window, context_of, plan_windows


@pytest.fixture(scope="module")
def lm():
    return LanguageModel("tiny", tiny_model("llama"), small_tokenizer())


# --- the plan ------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_token_is_new_once_with_its_context(data):
    n = data.draw(st.integers(1, 300))
    size = data.draw(st.integers(2, 80))
    least = data.draw(st.integers(1, size - 1))
    words = data.draw(st.one_of(st.none(), st.sets(st.integers(0, n - 1))))
    starts = None if words is None else np.array(sorted(words), dtype=np.int64)
    windows = plan_windows(n, size, least, starts)
    new = np.concatenate([np.arange(w.first, w.stop) for w in windows])
    np.testing.assert_array_equal(new, np.arange(n))
    context = context_of(windows, n)
    assert (context >= np.minimum(np.arange(n), least)).all()
    assert (context < size).all()
    for window in windows:
        assert 0 <= window.start <= window.first < window.stop <= n
        assert window.stop - window.start <= size
    assert windows[-1].stop - windows[-1].start == min(n, size)
    if n <= size:
        assert len(windows) == 1


@settings(max_examples=100, deadline=None)
@given(st.integers(20, 300), st.integers(10, 80), st.integers(0, 2**32 - 1))
def test_windows_end_before_words(n, size, seed):
    starts = np.unique(np.concatenate([[0], np.random.default_rng(seed).integers(0, n, n // 3)]))
    for window in plan_windows(n, size, None, starts)[:-1]:
        allowed = starts[(starts > window.first) & (starts <= window.start + size)]
        assert window.stop == (allowed.max() if len(allowed) else window.start + size)


def test_least_context_must_fit():
    with pytest.raises(InputError, match=r"min_context=10: give 1 ... 9, less than the 10 tokens"):
        plan_windows(50, 10, 10)
    assert len(plan_windows(10, 10, 10)) == 1  # not needed where the text fits


# --- recording in windows ------------------------------------------------------------------


def keep(trace):
    return trace.dataset.drop_attrs()


@pytest.mark.parametrize("bos", ["auto", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_window_is_a_reading_of_its_own(family, bos):
    """Every value is that of plain transformers on the window's tokens alone."""
    lm = LanguageModel(family, tiny_model(family), small_tokenizer())
    options = {"bos": bos, "measures": "all", "states": [0, 2], "keep_states": True}
    trace = wb.record(story(), lm, window=40, min_context=15, **options)
    plan = trace.settings["windows"]
    assert len(plan["starts"]) > 2
    assert "windows end before a word" in plan["rule"]
    ids = trace.dataset["token_id"].values
    n, skip = len(ids), int(bos == "auto")
    begin = [lm.tokenizer.bos_token_id] * skip
    stops = [*plan["firsts"][1:], n]
    for start, first, stop in zip(plan["starts"], plan["firsts"], stops, strict=True):
        log_p = log_probabilities(lm, [*begin, *ids[start:stop]])
        states = block_states(lm, [*begin, *ids[start:stop]])
        for t in range(max(first, 1), stop):
            row = t - start - 1 + skip
            value = trace.dataset["surprisal"].values[t]
            assert value == pytest.approx(-log_p[row, ids[t]], abs=1e-5)
            new, old = log_p[row + 1], log_p[row]
            value = trace.dataset["bayesian_surprise"].values[t]
            assert value == pytest.approx((np.exp(new) * (new - old)).sum(), abs=1e-5)
            for place, layer in enumerate([0, 2]):
                a, b = states[layer][row], states[layer][row + 1]
                cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
                value = trace.dataset["state_drift"].values[place, t]
                assert value == pytest.approx(1 - cosine, abs=1e-6)
                found = trace.dataset["state"].values[place, t]
                np.testing.assert_allclose(found, b, atol=1e-4, rtol=1e-4)
    assert np.isnan(trace.dataset["state_drift"].values[:, 0]).all()
    assert np.isnan(trace.surprisal[0]) == (bos == "none")
    np.testing.assert_array_equal(trace.dataset["context"].values, context_of(plan_of(trace), n))
    one_word = np.flatnonzero(trace.token_word == 3)
    assert np.isfinite(trace.dataset["word_bayesian_surprise"].values[1:]).all()
    assert trace.dataset["word_surprisal"].values[3] == pytest.approx(
        trace.surprisal[one_word].sum()
    )


def plan_of(trace):
    plan = trace.settings["windows"]
    stops = [*plan["firsts"][1:], trace.n_tokens]
    return [Window(*part) for part in zip(plan["starts"], plan["firsts"], stops, strict=True)]


def block_states(lm, ids):
    """What each layer hands on, from plain transformers' own list of hidden states."""
    with torch.no_grad():
        output = lm.model(torch.as_tensor(ids)[None], use_cache=False, output_hidden_states=True)
    return [state[0].double().numpy() for state in output.hidden_states[1:]]


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_come_from_the_window_of_their_token(family):
    lm = LanguageModel(family, tiny_model(family), small_tokenizer())
    trace = wb.record(story(), lm, window=40, min_context=15)
    for window in plan_of(trace):
        size = adapter.geometry(lm.model)
        length = window.stop - window.start
        alone = KeyRecorder(range(size["n_layers"]), range(size["n_kv_heads"]), length, 1)
        ids = [
            lm.tokenizer.bos_token_id,
            *trace.dataset["token_id"].values[window.start : window.stop],
        ]
        with torch.no_grad(), Instruments(lm.model, [alone]):
            lm.model(torch.tensor(ids)[None], use_cache=False)
        new = slice(window.first - window.start, None)
        found = trace.keys()[:, :, window.first : window.stop]
        np.testing.assert_allclose(found, alone.keys[:, :, new], atol=1e-6)


def test_windows_of_a_text_that_fits_are_one_pass(lm):
    plain = wb.record(story(), lm, measures="all")
    capped = wb.record(story(), lm, measures="all", window=plain.n_tokens + 1, min_context=3)
    xr.testing.assert_identical(keep(capped), keep(plain))
    assert capped.settings["windows"]["starts"] == [0]


def test_windows_that_start_at_the_beginning_agree_with_one_pass(lm):
    """Up to the end of the first window nothing can differ; after it, context does matter."""
    plain = wb.record(story(), lm)
    parts = wb.record(story(), lm, window=60)
    end = parts.settings["windows"]["firsts"][1]
    np.testing.assert_allclose(parts.surprisal[:end], plain.surprisal[:end], atol=1e-5)
    assert np.abs(parts.surprisal[end:] - plain.surprisal[end:]).max() > 1e-3
    assert parts.dataset["context"].values[end:].min() >= 29


def test_model_that_reads_less_than_the_text_is_read_in_windows():
    model = tiny_model("gpt2")
    model.config.n_positions = 32
    trace = wb.record(story(), LanguageModel("short", model, small_tokenizer()))
    assert trace.settings["windows"]["size"] == 31
    assert np.isfinite(trace.surprisal).all()


def test_bad_windows_by_message(lm):
    with pytest.raises(InputError, match="window=1000: tiny reads at most 512 tokens"):
        wb.record(story(), lm, window=1000)
    with pytest.raises(InputError, match="window='x': give a whole number"):
        wb.record(story(), lm, window="x")
    with pytest.raises(TextTooLongError, match="window=2 leaves room for 1 tokens"):
        wb.record(story(), lm, window=2)
    with pytest.raises(InputError, match=r"min_context=39: give 1 ... 38"):
        wb.record(story(), lm, window=40, min_context=39)
    with pytest.raises(InputError, match=r"states: 4 is outside this model's 0 ... 3"):
        wb.record(story(), lm, states=LAYERS)
    with pytest.raises(InputError, match="keep_states needs states="):
        wb.record(story(), lm, keep_states=True)


def test_longrope_is_not_read_with_two_tables():
    from transformers import Phi3Config, Phi3ForCausalLM

    half = [1.0] * 4
    config = Phi3Config(
        vocab_size=120,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": half,
            "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 64,
        },
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    lm = LanguageModel("phi", Phi3ForCausalLM(config).eval(), small_tokenizer())
    assert adapter.rotary_switch(lm.model) == 64
    assert adapter.rotary_switch(tiny_model("gemma3")) is None
    with pytest.raises(InputError, match=r"LongRoPE.*beyond 64 tokens.*give window=64 or less"):
        wb.record(story(), lm, window=66)
    parts = wb.record(story(), lm, window=64)
    whole = wb.record(story(), lm)  # all with the long factors
    assert len(parts.settings["windows"]["starts"]) > 1
    assert np.abs(parts.surprisal[:30] - whole.surprisal[:30]).max() > 1e-4


# --- drift ---------------------------------------------------------------------------------


def test_drift_of_known_states():
    states = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, -1.0]])
    np.testing.assert_allclose(drift(states), [0.0, 1.0, 2.0], atol=1e-12)
    many = torch.randn(1300, 5, generator=torch.Generator().manual_seed(0))
    cosine = torch.nn.functional.cosine_similarity(many[1:].double(), many[:-1].double())
    np.testing.assert_allclose(drift(many), 1 - cosine.numpy(), atol=1e-12)
