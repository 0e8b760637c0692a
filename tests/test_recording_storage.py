"""Partial reading of traces, half-precision keys, sizes before recording, older formats."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections import namedtuple

import numpy as np
import pytest
import xarray as xr
from test_recording_measures import small_tokenizer, story
from tiny_models import LAYERS, tiny_model

import workbench as wb
from workbench.core.boundaries import Boundaries
from workbench.core.errors import DataError, DiskSpaceError, InputError
from workbench.models import LanguageModel
from workbench.recording import lazy, sizes
from workbench.recording.cache import cached_record
from workbench.recording.sizes import check_disk, estimate_size


@pytest.fixture(scope="module")
def lm():
    return LanguageModel("tiny", tiny_model("llama"), small_tokenizer())


@pytest.fixture(scope="module")
def trace(lm):
    return wb.record(story(), lm, states=[1, 3], keep_states=True)


@pytest.fixture
def path(trace, tmp_path):
    return trace.save(tmp_path / "t.zarr")


# --- one layer or head at a time -----------------------------------------------------------


@pytest.fixture
def read_chunks(monkeypatch):
    """Which chunks are read from the disk, in order."""
    calls = []
    original = lazy.CheckedArray._chunk

    def watching(self, stored, at):
        calls.append((self.name, *at))
        return original(self, stored, at)

    monkeypatch.setattr(lazy.CheckedArray, "_chunk", watching)
    return calls


def test_only_what_is_asked_for_is_read(trace, path, read_chunks):
    loaded = wb.load_trace(path)
    assert loaded.dataset["key"].shape == trace.dataset["key"].shape
    assert repr(loaded) == repr(trace)
    assert read_chunks == []
    np.testing.assert_array_equal(loaded.keys(2, 1), trace.keys(2, 1))
    assert read_chunks == [("key", 2, 1)]
    read_chunks.clear()
    np.testing.assert_array_equal(loaded.keys([3, 0], 1), trace.keys([3, 0], 1))
    assert sorted(read_chunks) == [("key", 0, 1), ("key", 3, 1)]
    read_chunks.clear()
    events = Boundaries([0, 20, 45, 70], trace.n_tokens)
    assert loaded.key_graph(1, 0).modularity(events) == trace.key_graph(1, 0).modularity(events)
    assert read_chunks == [("key", 1, 0)]
    np.testing.assert_array_equal(loaded.keys(), trace.keys())
    xr.testing.assert_identical(loaded.dataset, trace.dataset)


def test_chunks_lie_in_files_of_their_own(trace, path):
    files = [p for p in (path / "key" / "c").rglob("*") if p.is_file()]
    assert len(files) == LAYERS * 2
    files = [p for p in (path / "state" / "c").rglob("*") if p.is_file()]
    assert len(files) == 2


@pytest.mark.parametrize(
    "key",
    [
        (0, 1),
        (slice(1, 3), slice(None), 5),
        (np.array([2, 0]), 0, slice(3, 30, 4), np.array([1, 1, 4])),
        (slice(0, 0),),
        (-1, slice(None), -1, -1),
        (slice(None, None, -1), np.array([1])),
    ],
)
def test_lazy_indexing_is_numpys(trace, path, key):
    names = ("layer", "kv_head", "token", "dim")
    where = dict(zip(names, key, strict=False))
    found = wb.load_trace(path).dataset["key"].isel(where)
    expected = trace.dataset["key"].isel(where)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.values, expected.values)


def test_lazy_traces_travel_and_are_saved_again(trace, path, tmp_path, read_chunks):
    loaded = wb.load_trace(path)
    copy = pickle.loads(pickle.dumps(loaded))  # as joblib sends it to other processes
    assert read_chunks == []
    np.testing.assert_array_equal(copy.keys(0, 0), trace.keys(0, 0))
    again = loaded.save(tmp_path / "again.zarr")
    read_chunks.clear()
    loaded.keys(1, 1)
    assert read_chunks == [("key", 1, 1)]  # saving did not load it
    xr.testing.assert_identical(wb.load_trace(again).dataset, trace.dataset)
    loaded.save(path, overwrite=True)
    xr.testing.assert_identical(wb.load_trace(path).dataset, trace.dataset)


def test_a_damaged_chunk_is_found_when_it_is_read(trace, path):
    chunk = next(p for p in (path / "key" / "c" / "2" / "1").rglob("*") if p.is_file())
    chunk.unlink()  # zarr fills missing chunks without a word
    loaded = wb.load_trace(path)
    np.testing.assert_array_equal(loaded.keys(2, 0), trace.keys(2, 0))
    with pytest.raises(DataError, match=r"is damaged: key\[2, 1\] not as written; record it again"):
        loaded.keys(2, 1)
    with pytest.raises(DataError, match=r"key\[2, 1\] not as written"):
        wb.load_trace(path, lazy=False)
    shutil.rmtree(path)
    with pytest.raises(DataError, match="cannot be read any more"):
        loaded.keys(2, 0)


def test_eager_loading_needs_the_folder_no_more(trace, path):
    loaded = wb.load_trace(path, lazy=False)
    shutil.rmtree(path)
    xr.testing.assert_identical(loaded.dataset, trace.dataset)


def test_format_1_still_loads(trace, path):
    """Format 1 had one hash of all keys instead of one per layer and head."""
    root = json.loads((path / "zarr.json").read_text())
    mark = json.loads(root["attributes"]["workbench_trace"])
    mark["format"] = 1
    del mark["chunks"]
    for name in ("key", "state"):
        values = np.ascontiguousarray(trace.dataset[name].values)
        mark["sha256"][name] = hashlib.sha256(values.tobytes()).hexdigest()
    root["attributes"]["workbench_trace"] = json.dumps(mark)
    (path / "zarr.json").write_text(json.dumps(root))
    xr.testing.assert_identical(wb.load_trace(path).dataset, trace.dataset)
    shutil.rmtree(path / "key" / "c" / "0")
    with pytest.raises(DataError, match="is damaged: key not as written"):
        wb.load_trace(path)


# --- half precision ------------------------------------------------------------------------


def test_half_precision_keys_within_their_bound(lm, trace, tmp_path):
    half = wb.record(story(), lm, keys_dtype="float16")
    assert half.dataset["key"].dtype == np.float16
    assert half.settings["keys_dtype"] == "float16"
    assert half.dataset["key"].nbytes * 2 == trace.dataset["key"].nbytes
    exact, rounded = trace.keys(), half.keys()
    assert rounded.dtype == np.float32
    bound = np.maximum(2.0**-11 * np.abs(exact), 2.0**-25)
    assert (np.abs(rounded - exact) <= bound).all()
    assert (rounded != exact).any()
    loaded = wb.load_trace(half.save(tmp_path / "half.zarr"))
    assert loaded.dataset["key"].dtype == np.float16
    assert loaded.keys(0, 0).dtype == np.float32
    np.testing.assert_array_equal(loaded.keys(), rounded)
    events = Boundaries([0, 20, 45, 70], trace.n_tokens)
    of_half = half.key_graph(1, 0).modularity(events)
    assert of_half == pytest.approx(trace.key_graph(1, 0).modularity(events), abs=1e-5)


def test_keys_too_large_for_half_precision_are_an_error():
    model = tiny_model("llama")
    model.model.layers[1].self_attn.k_proj.weight.mul_(1e6)
    with pytest.raises(wb.WorkbenchError, match="larger than float16 holds"):
        wb.record(story(), LanguageModel("big", model, small_tokenizer()), keys_dtype="float16")


def test_unknown_key_dtype(lm):
    with pytest.raises(InputError, match=r"keys_dtype='int8' is not known"):
        wb.record(story(), lm, keys_dtype="int8")


# --- size before recording -----------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keys": False},
        {"layers": [0, 3], "heads": 1, "keys_dtype": "float16", "measures": "all"},
        {"states": [0, 2], "keep_states": True, "measures": "surprisal"},
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "phi3"])
def test_estimate_is_a_close_upper_bound(family, options, tmp_path):
    lm = LanguageModel(family, tiny_model(family), small_tokenizer())
    recorded = wb.record(story(), lm, **options)
    if family == "gpt2" and "heads" in options:
        assert recorded.dataset["key"].shape[1] == 1
    size = estimate_size(story(), lm, **options)
    assert size.n_tokens == recorded.n_tokens
    for name, found in (("key", size.keys), ("state", size.states)):
        stored = recorded.dataset[name].nbytes if name in recorded.dataset else 0
        assert found == stored
    path = recorded.save(tmp_path / "t.zarr")
    on_disk = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    assert on_disk <= size.total
    assert recorded.dataset.nbytes <= size.total
    assert estimate_size(recorded.n_tokens, lm, **options).keys == size.keys
    assert "tokens: at most" in str(size)


def test_a_disk_without_room_is_an_error_before_reading(lm, trace, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(sizes.shutil, "disk_usage", lambda place: usage(10, 9, 1000))
    with pytest.raises(DiskSpaceError, match=r"trace of 's' needs up to .*has 1000 bytes free"):
        trace.save(tmp_path / "new" / "t.zarr")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("workbench.recording.cache.record", lambda *a, **k: pytest.fail("read"))
    with pytest.raises(DiskSpaceError, match=r"recording 's' needs up to .*keys_dtype='float16'"):
        cached_record(story(), lm)
    check_disk(tmp_path / "not" / "there", 999, "x")


def test_bad_sizes(lm):
    with pytest.raises(InputError, match="story=0: give a story, or its number of tokens"):
        estimate_size(0, lm)
