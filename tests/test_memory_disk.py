"""Stored tokens in files: a full disk, an interrupted write, read-only, and stores as peers."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import family_lm, letters

from workbench.core.errors import DiskSpaceError, InputError
from workbench.memory import EMLLM
from workbench.memory.store import FileStore, OverlayStore, TensorStore

KV_HEADS, DIM = 2, 3


def tokens(m: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of m tokens."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, KV_HEADS, m, DIM, generator=generator)
    return keys, values


def file_store(path: Path, **options: Any) -> FileStore:
    return FileStore(path, KV_HEADS, DIM, torch.float32, **options)


def holds(store: Any, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether a store holds these tokens, and no others."""
    assert store.n == keys.shape[1]
    found = store.gather(torch.arange(store.n))
    return bool(torch.equal(found[0], keys) and torch.equal(found[1], values))


class FullDisk:
    """A file of which only so many bytes can be written."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        self._file.write(data[: self._room])
        raise OSError(errno.ENOSPC, "No space left on device")


def fill_disk(monkeypatch: pytest.MonkeyPatch, room: int = 0) -> None:
    opened = Path.open

    def limited(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        file = opened(self, mode, *args, **options)
        return FullDisk(file, room) if "+" in mode or "w" in mode else file

    monkeypatch.setattr(Path, "open", limited)


@pytest.mark.parametrize("room", [0, 5, 30])
def test_a_full_disk_leaves_the_store_at_its_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    store = file_store(tmp_path / "a.kv")
    keys, values = tokens(4, 0)
    store.append(keys, values)
    more = tokens(3, 1)
    with monkeypatch.context() as patched:
        fill_disk(patched, room)
        with pytest.raises(DiskSpaceError, match=r"3 tokens could not be stored .*the 4 before"):
            store.append(*more)
    assert holds(store, keys, values)
    # What the write left behind is written over.
    store.append(*more)
    both = [torch.cat(pair, dim=1) for pair in zip((keys, values), more, strict=True)]
    assert holds(store, *both)
    assert holds(file_store(tmp_path / "a.kv", n=7, read_only=True), *both)


def test_bytes_of_an_interrupted_write_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    keys, values = tokens(5, 0)
    file_store(path).append(keys, values)
    with path.open("ab") as file:
        file.write(b"\xff" * 31)
    again = file_store(path, n=5)
    assert holds(again, keys, values)
    more = tokens(2, 1)
    again.append(*more)
    assert holds(again, *[torch.cat(p, dim=1) for p in zip((keys, values), more, strict=True)])


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    file_store(path).append(*tokens(5, 0))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="holds 239 bytes, 240 are needed for its 5 tokens"):
        file_store(path, n=5)


def test_read_only_files_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    keys, values = tokens(5, 0)
    file_store(path).append(keys, values)
    before = path.read_bytes()
    store = file_store(path, n=5, read_only=True)
    with pytest.raises(InputError, match="opened read-only"):
        store.append(*tokens(1, 1))
    overlay = OverlayStore(store)
    overlay.append(*tokens(2, 1))
    with pytest.raises(InputError, match="first 5 tokens were opened read-only"):
        overlay.truncate(4)
    assert path.read_bytes() == before
    assert overlay.file_bytes == len(before)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 7)),
        st.tuples(st.just("truncate"), st.integers(0, 20)),
        st.tuples(st.just("gather"), st.integers(0, 2**31)),
    ),
    max_size=12,
)


@given(base=st.integers(1, 6), steps=STEPS)
def test_all_stores_answer_alike(
    tmp_path_factory: pytest.TempPathFactory, base: int, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("stores")
    first = tokens(base, 99)
    under = file_store(folder / "under.kv")
    under.append(*first)
    stores = [TensorStore(), file_store(folder / "file.kv")]
    for store in stores:
        store.append(*first)
    peers = [*stores, OverlayStore(file_store(folder / "under.kv", n=base, read_only=True))]
    keys, values = first  # the plain definition: two tensors that are joined and cut
    for number, (name, amount) in enumerate(steps):
        if name == "append":
            new = tokens(amount, number)
            keys = torch.cat((keys, new[0]), dim=1)
            values = torch.cat((values, new[1]), dim=1)
            for peer in peers:
                peer.append(*new)
        elif name == "truncate":
            n = max(base, amount)
            keys, values = keys[:, :n], values[:, :n]
            for peer in peers:
                peer.truncate(n)
        else:
            generator = torch.Generator().manual_seed(amount)
            alike = torch.randint(keys.shape[1], (5,), generator=generator)
            own = torch.randint(keys.shape[1], (KV_HEADS, 5), generator=generator)
            for peer in peers:
                found = peer.gather(alike)
                assert torch.equal(found[0], keys[:, alike])
                assert torch.equal(found[1], values[:, alike])
                found = peer.gather(own)
                for head in range(KV_HEADS):
                    assert torch.equal(found[0][head], keys[head, own[head]])
                    assert torch.equal(found[1][head], values[head, own[head]])
        assert all(holds(peer, keys, values) for peer in peers)


def test_a_budget_that_is_used_up_is_an_error_that_names_it() -> None:
    lm = family_lm("llama")
    memory = EMLLM(lm, "F:8", n_init=2, n_local=16, n_mem=16, chunk=16, budget=1000)
    with pytest.raises(DiskSpaceError, match=r"layer 0: .*budget of 1000 .*Raise budget="):
        memory.read(letters(120))
    assert memory.rows == []
    assert memory.n_tokens == 0


@pytest.mark.parametrize("call", ["read", "generate", "score"])
def test_a_disk_that_fills_up_while_reading_leaves_the_memory_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    lm = family_lm("llama")
    options: dict[str, Any] = {"n_init": 2, "n_local": 16, "n_mem": 16, "chunk": 16}
    memory = EMLLM(lm, "FM:8", min_size=3, store="disk", folder=tmp_path, **options)
    memory.read(letters(60))
    before = memory.trace.dataset["key"].values, memory.events.starts, memory.retrievals
    pieces, more = memory.pieces(), letters(80, seed=1)
    append, calls = FileStore.append, []

    def failing(self: FileStore, *given: Any) -> None:
        calls.append(self)
        if len(calls) == 7:  # in the second layer of four, after some have stored more than others
            raise DiskSpaceError("no space left")
        append(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "append", failing)
        with pytest.raises(DiskSpaceError, match="no space left"):
            {
                "read": lambda: memory.read(more),
                "generate": lambda: memory.generate(more, max_new_tokens=3),
                "score": lambda: memory.score(more, keep=True),
            }[call]()
    assert len({id(store) for store in calls}) > 1
    assert memory.pieces() == pieces
    assert (memory.trace.dataset["key"].values == before[0]).all()
    assert memory.events.starts.tolist() == before[1].tolist()
    assert memory.retrievals.equals(before[2])
    other = EMLLM(lm, "FM:8", min_size=3, **options).read(letters(60)).read(more)
    memory.read(more)
    assert memory.surprisal == pytest.approx(other.surprisal, abs=1e-6, nan_ok=True)
    assert memory.events.starts.tolist() == other.events.starts.tolist()
