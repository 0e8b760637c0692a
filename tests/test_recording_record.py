"""Surprisal against plain log-softmax, start tokens, windows, words, storage, cache."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from tiny_models import TEXT, VOCABULARY, byte_tokenizer, tiny_model

import workbench as wb
from workbench.core.errors import DataError, InputError, ModelError
from workbench.core.story import Annotation, Story
from workbench.models import LanguageModel
from workbench.recording import cache as cache_module
from workbench.recording import distributions
from workbench.recording.cache import cached_record
from workbench.recording.distributions import surprisal_from_hidden
from workbench.recording.start import start_token
from workbench.stories.alignment import untimed_words


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def lm(tokenizer):
    return LanguageModel("tiny", tiny_model("llama"), tokenizer)


@pytest.fixture
def story():
    words = untimed_words(TEXT)
    words["onset"] = np.arange(len(words), dtype=float)
    words["offset"] = words["onset"] + 0.5
    presses = pd.DataFrame(
        {
            "subject": ["s1", "s2"],
            "time": [1.5, 2.25],
            "start": [1.0, 2.0],
            "end": [2.0, 2.5],
            "merged": [True, False],
            "condition": ["clear", ""],
        }
    )
    people = Annotation(
        "people", "presses", times=np.array([1.5, 4.1]), presses=presses, duration=9.0, n_people=7
    )
    author = Annotation("author", "scenes", words=np.array([3, 6]), citation="us")
    return Story("s", TEXT, words, (people, author), "Title", "cite", "CC0", ("one note",))


def plain_surprisal(lm, bos):
    ids = lm.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    full = torch.tensor([([] if bos is None else [bos]) + ids])
    with torch.no_grad():
        logits = lm.model(full).logits[0].double()
    given = -torch.log_softmax(logits, -1)[:-1].gather(1, full[0, 1:, None])[:, 0].numpy()
    return given if bos is not None else np.concatenate([[np.nan], given])


# --- surprisal -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", ["llama", "gemma2", "gemma3", "cohere", "granite", "gpt2", "gpt_neox", "phi3"]
)
def test_surprisal_equals_log_softmax_of_all_logits(family, tokenizer, story, monkeypatch):
    monkeypatch.setattr(distributions, "_BLOCK", 16)  # several blocks, the last one shorter
    lm = LanguageModel(family, tiny_model(family), tokenizer)
    trace = wb.record(story, lm)
    bos = tokenizer.bos_token_id
    np.testing.assert_allclose(trace.surprisal, plain_surprisal(lm, bos), atol=1e-5)
    without = wb.record(story, lm, bos="none", keys=False)
    expected = plain_surprisal(lm, None)
    assert np.isnan(without.surprisal[0])
    np.testing.assert_allclose(without.surprisal, expected, atol=1e-5)
    assert without.settings["bos_reason"] == "none asked for"


def test_words_sum_their_tokens(lm, story):
    trace = wb.record(story, lm)
    words = story.words
    for number, (start, end) in enumerate(zip(words["char_start"], words["char_end"], strict=True)):
        inside = [
            row
            for row, (a, b) in enumerate(
                zip(
                    trace.dataset["char_start"].values.tolist(),
                    trace.dataset["char_end"].values.tolist(),
                    strict=True,
                )
            )
            if a < end and b > start
        ]
        total = trace.surprisal[inside].sum()
        assert trace.dataset["word_surprisal"].values[number] == pytest.approx(total)
    assert (trace.token_word == -1).sum() == sum(c.isspace() for c in TEXT)


def test_words_with_an_undefined_token_are_undefined(lm, story):
    trace = wb.record(story, lm, bos="none")
    assert np.isnan(trace.dataset["word_surprisal"].values).tolist() == [True] + [False] * (
        story.n_words - 1
    )


def test_keys_do_not_hold_the_start_token(lm, story):
    """Keys before rotation of the first layer depend on the token alone."""
    with_start = wb.record(story, lm)
    without = wb.record(story, lm, bos="none")
    assert with_start.keys().shape == (4, 2, with_start.n_tokens, 8)
    np.testing.assert_allclose(with_start.keys(0), without.keys(0), atol=1e-6)
    assert np.abs(with_start.keys(3) - without.keys(3)).max() > 1e-3
    chosen = wb.record(story, lm, layers=[-1, 1], heads=1)
    assert chosen.layers.tolist() == [1, 3]
    np.testing.assert_array_equal(chosen.keys(), with_start.keys([1, 3], 1))


def test_dataset_says_what_it_holds(lm, story):
    trace = wb.record(story, lm)
    data = trace.dataset
    assert data["surprisal"].attrs["units"] == "nat"
    assert data["word_onset"].attrs["units"] == "s"
    settings = trace.settings
    assert settings["n_layers"] == 4
    assert settings["n_heads"] == 6
    assert settings["n_kv_heads"] == 2
    assert settings["bos_token"] == "<|endoftext|>"
    assert settings["attention"] == "sdpa"
    assert settings["identity"].startswith("weights:")
    assert set(settings["versions"]) == {"workbench", "torch", "transformers"}
    assert "key" not in wb.record(story, lm, keys=False).dataset


def test_progress_goes_to_standard_error(lm, story, capsys):
    wb.record(story, lm, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "tiny reads s" in err


def test_unknown_head_is_an_error(story, tokenizer):
    """A scale that is not known here changes every surprisal; it is found, not ignored."""
    model = tiny_model("granite")
    model.config.logits_scaling = 1.0
    with torch.no_grad():
        hidden = model.model(torch.tensor([[1, 2, 3]])).last_hidden_state[0]
        logits = model.lm_head(hidden[-1]) / 4.0
    with pytest.raises(ModelError, match="does more to its logits than is known"):
        surprisal_from_hidden(model, hidden, torch.tensor([2, 3]), logits)


def test_not_finite_logits_name_the_position(story, tokenizer):
    model = tiny_model("llama")
    model.model.layers[2].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match=r"position 0 are NaN or infinite \(in the hidden states"):
        wb.record(story, LanguageModel("broken", model, tokenizer), keys=False)
    model = tiny_model("gpt2")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    model.lm_head.weight.data[5] = float("inf")
    with pytest.raises(ModelError, match=r"NaN or infinite \(in the head"):
        wb.record(story, LanguageModel("broken", model, tokenizer), keys=False)


# --- start tokens --------------------------------------------------------------------------


def test_start_token_prefers_a_separator_over_a_chat_marker():
    assert start_token(byte_tokenizer())[1] == "the tokenizer's start token"
    chat = byte_tokenizer(bos_token="<|im_start|>", unk_token="<|endoftext|>")
    place, reason = start_token(chat)
    assert (chat.convert_ids_to_tokens(place), reason) == (
        "<|endoftext|>",
        "the separator of documents",
    )
    only_chat = byte_tokenizer(bos_token="<|im_start|>")
    assert start_token(only_chat) == (
        None,
        "its start token '<|im_start|>' opens a chat turn, and no separator of documents is known",
    )
    none = byte_tokenizer(bos_token=None)
    assert start_token(none)[0] is None
    assert "it has no start token" in start_token(none)[1]
    assert start_token(none, 3) == (3, "given")
    assert start_token(none, "<|endoftext|>")[1] == "given"


@pytest.mark.parametrize(
    ("bos", "message"),
    [(9999, "token ids of this model are 0"), ("<x>", "is not a token"), (1.5, "give 'auto'")],
)
def test_bad_start_token(lm, story, bos, message):
    with pytest.raises(InputError, match=message):
        wb.record(story, lm, bos=bos)


# --- bad input -----------------------------------------------------------------------------


def test_bad_input_by_message(lm, story, tokenizer):
    with pytest.raises(InputError, match=r"layers: 4 is outside this model's 0 ... 3"):
        wb.record(story, lm, layers=[0, 4])
    with pytest.raises(InputError, match="heads: 'x' is not a whole number"):
        wb.record(story, lm, heads=["x"])
    with pytest.raises(InputError, match="layers is empty"):
        wb.record(story, lm, layers=[])
    with pytest.raises(DataError, match="story 'e' has no text"):
        wb.record(Story("e", " \n", story.words[:0]), lm)


# --- storage -------------------------------------------------------------------------------


def assert_same(a, b):
    xr.testing.assert_identical(a.dataset, b.dataset)
    for name in ("name", "text", "title", "citation", "licence", "notes"):
        assert getattr(a.story, name) == getattr(b.story, name)
    pd.testing.assert_frame_equal(a.story.words, b.story.words)
    assert len(a.story.annotations) == len(b.story.annotations)
    for one, two in zip(a.story.annotations, b.story.annotations, strict=True):
        for name in ("kind", "source", "duration", "n_people", "citation"):
            assert getattr(one, name) == getattr(two, name)
        np.testing.assert_array_equal(one.times, two.times)
        np.testing.assert_array_equal(one.words, two.words)
        if one.presses is None:
            assert two.presses is None
        else:
            pd.testing.assert_frame_equal(one.presses, two.presses)


def test_saved_trace_is_the_same_trace(lm, story, tmp_path):
    for name, trace in (("a", wb.record(story, lm)), ("b", wb.record(story, lm, keys=False))):
        path = trace.save(tmp_path / "deep" / f"{name}.zarr")
        assert_same(wb.load_trace(path), trace)
        assert [p.name for p in path.parent.iterdir() if p.name[0] == "."] == []
        opened = xr.open_zarr(path, consolidated=False)  # any reader of zarr reads it
        np.testing.assert_array_equal(opened["surprisal"].values, trace.surprisal)


def test_storage_refuses_and_explains(lm, story, tmp_path):
    trace = wb.record(story, lm, keys=False)
    path = trace.save(tmp_path / "t.zarr")
    with pytest.raises(InputError, match="give overwrite=True"):
        trace.save(path)
    trace.save(path, overwrite=True)
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("precious")
    with pytest.raises(InputError, match="is not a trace; choose another"):
        trace.save(foreign, overwrite=True)
    assert (foreign / "notes.txt").read_text() == "precious"
    with pytest.raises(InputError, match="does not exist"):
        wb.load_trace(tmp_path / "nothing")
    with pytest.raises(DataError, match="is not a trace of the workbench"):
        wb.load_trace(foreign)

    root = json.loads((path / "zarr.json").read_text())
    mark = json.loads(root["attributes"]["workbench_trace"])
    mark["format"] = 99
    root["attributes"]["workbench_trace"] = json.dumps(mark)
    other = tmp_path / "other.zarr"
    shutil.copytree(path, other)
    (other / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(DataError, match="has trace format 99, and this version reads"):
        wb.load_trace(other)

    shutil.rmtree(path / "surprisal" / "c")  # zarr fills missing chunks without a word
    with pytest.raises(DataError, match="is damaged: surprisal not as written"):
        wb.load_trace(path)


def test_failed_write_leaves_what_was_there(lm, story, tmp_path, monkeypatch):
    trace = wb.record(story, lm, keys=False)
    path = trace.save(tmp_path / "t.zarr")
    broken = replace(trace, story=replace(story, words=None))
    with pytest.raises(AttributeError):
        broken.save(path, overwrite=True)
    assert_same(wb.load_trace(path), trace)
    assert [p.name for p in tmp_path.iterdir()] == ["t.zarr"]


# --- cache ---------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """Cache in a folder of its own; the list grows with each recording."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    calls = []
    record = cache_module.record

    def counting(*args, **options):
        calls.append(options)
        return record(*args, **options)

    monkeypatch.setattr(cache_module, "record", counting)
    return calls


def test_cache_records_once_and_again_when_something_changes(lm, story, counted, tmp_path):
    first = cached_record(story, lm)
    again = cached_record(replace(story, annotations=()), lm)
    assert len(counted) == 1
    xr.testing.assert_equal(first.dataset, again.dataset)
    assert again.story.annotations == ()  # the story of now
    cached_record(story, lm, layers=[1])
    cached_record(story, lm, layers=1)
    assert len(counted) == 2
    cached_record(story, lm, bos="none")
    cached_record(replace(story, text=TEXT.replace("bed", "fed")), lm)
    other = LanguageModel("tiny", tiny_model("llama", seed=1), lm.tokenizer)
    cached_record(story, other)
    assert len(counted) == 5
    cached_record(story, lm, cache=False)
    assert len(counted) == 6
    assert len(list((tmp_path / "cache" / "traces").iterdir())) == 5


def test_damaged_entry_is_recorded_again(lm, story, counted, tmp_path, capsys):
    first = cached_record(story, lm)
    (entry,) = (tmp_path / "cache" / "traces").iterdir()
    shutil.rmtree(entry / "key" / "c")
    again = cached_record(story, lm)
    assert len(counted) == 2
    assert "Recording again" in capsys.readouterr().err
    xr.testing.assert_equal(first.dataset, again.dataset)
    cached_record(story, lm)
    assert len(counted) == 2


def test_vocabulary_of_the_fixture_fits_the_models(tokenizer):
    assert len(tokenizer) <= VOCABULARY
