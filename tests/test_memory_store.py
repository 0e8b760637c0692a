"""Stores against a plain list of tokens, whatever is added, taken back and looked up."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import InputError
from workbench.memory.store import FileStore, OverlayStore, TensorStore

HEADS, DIM = 2, 3


def tokens_of(n, rng, dtype):
    return torch.from_numpy(rng.normal(size=(HEADS, n, DIM))).to(dtype)


def check(store, keys, values, rng):
    assert store.n == keys.shape[1]
    if not store.n:
        return
    for shape in [(4,), (HEADS, 5)]:
        places = torch.from_numpy(rng.integers(0, store.n, shape))
        found = store.gather(places)
        for array, whole in zip(found, (keys, values), strict=True):
            for head in range(HEADS):
                own = places if places.dim() == 1 else places[head]
                assert torch.equal(array[head], whole[head, own])


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["memory", "file", "overlay"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "cut"]), st.integers(1, 300)), min_size=1, max_size=6
    ),
    seed=st.integers(0, 10**6),
)
def test_a_store_is_a_list_of_tokens(kind, dtype, steps, seed):
    rng = np.random.default_rng(seed)
    keys = values = tokens_of(0, rng, dtype)
    floor = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.kv"
        store = TensorStore()
        if kind != "memory":
            store = FileStore(path, HEADS, DIM, dtype)
        if kind == "overlay":
            floor = 7
            keys, values = tokens_of(floor, rng, dtype), tokens_of(floor, rng, dtype)
            store.append(keys, values)
            before = path.read_bytes()
            read_only = FileStore(path, HEADS, DIM, dtype, n=floor, read_only=True)
            with pytest.raises(InputError, match="read-only"):
                read_only.append(keys, values)
            store = OverlayStore(read_only)
        for what, n in steps:
            if what == "add":
                new = tokens_of(n, rng, dtype), tokens_of(n, rng, dtype)
                store.append(*new)
                keys = torch.cat((keys, new[0]), dim=1)
                values = torch.cat((values, new[1]), dim=1)
            else:
                left = max(floor, keys.shape[1] - n)
                store.truncate(left)
                keys, values = keys[:, :left], values[:, :left]
            check(store, keys, values, rng)
        row = 2 * HEADS * DIM * dtype.itemsize
        if kind == "file":
            assert (store.file_bytes, store.resident_bytes) == (row * store.n, 0)
            again = FileStore(path, HEADS, DIM, dtype, n=store.n)
            check(again, keys, values, rng)
        elif kind == "overlay":
            assert path.read_bytes() == before
            assert store.file_bytes == floor * row
            with pytest.raises(InputError, match="first 7 tokens"):
                store.truncate(6)
        else:
            assert store.resident_bytes >= row * store.n
