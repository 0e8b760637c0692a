"""What holds for a memory system whatever its settings, on tiny random models of each family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import byte_tokenizer, tiny_model

from workbench.core.errors import (
    DataError,
    DiskSpaceError,
    InputError,
    MissingDataError,
    ModelError,
)
from workbench.events.methods import segment
from workbench.memory import EMLLM, FullContext, InfLLM, MemorySystem, SlidingWindow, make_system
from workbench.memory.attend import Far, Near, attend
from workbench.memory.choices import Index, Select, Units
from workbench.memory.saving import load_memory
from workbench.models import LanguageModel
from workbench.recording import adapter

FAMILIES = ["llama", "mistral", "qwen3", "phi3", "gemma3"]
LETTERS = "a cab bad  bee, feed face"
SMALL = {"n_init": 3, "n_local": 12, "n_mem": 24, "chunk": 9}
FORMING = {"min_size": 3, "min_values": 4, "max_size": 12, "gamma": 0.3}

_MODELS: dict[str, LanguageModel] = {}


def language_model(family: str = "llama") -> LanguageModel:
    if family not in _MODELS:
        _MODELS[family] = LanguageModel(family, tiny_model(family), byte_tokenizer())
    return _MODELS[family]


def text_of(n: int, seed: int = 0) -> str:
    letters = np.random.default_rng(seed).choice(list(LETTERS), size=n)
    return "".join(letters)


def emllm(lm: LanguageModel, method: str = "S", **options: Any) -> EMLLM:
    forming = dict(FORMING)
    if method[0] not in "SBE":
        forming = {"min_size": 3} if method[0] == "F" else {}
        options.pop("gamma", None)
    return EMLLM(lm, method, **{**SMALL, **forming, **options})


def plain(lm: LanguageModel, text: str) -> np.ndarray:
    """Surprisal of a text by the model itself, behind its start token."""
    start = lm.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    ids = torch.tensor([[start, *lm.tokenizer(text, add_special_tokens=False)["input_ids"]]])
    with torch.no_grad():
        log_p = lm.model(ids).logits[0].double().log_softmax(-1)
    return -log_p[torch.arange(ids.shape[1] - 1), ids[0, 1:]].numpy()


# --- attention against its definition ------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_attend_is_one_softmax_over_each_pair_at_its_place(data: Any) -> None:
    kv, groups, dim = data.draw(st.sampled_from([1, 2])), data.draw(st.integers(1, 3)), 4
    m = data.draw(st.integers(1, 9))
    n = m + data.draw(st.integers(0, 12))
    window = data.draw(st.integers(1, 25))
    first = data.draw(st.integers(0, 5))
    limit = data.draw(st.sampled_from([0, first + 2, first + 7, 10**9]))
    n_far = data.draw(st.integers(0, 6))
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    near = Near(draw(kv, n, dim), draw(kv, n, dim), draw(kv, n, dim), first, window, limit)
    allowed = None
    if n_far and data.draw(st.booleans()):
        allowed = torch.rand(kv, n_far, generator=rng) > 0.4
    far = Far(draw(kv, n_far, dim), draw(kv, n_far, dim), allowed) if n_far else None
    near_query, far_query = draw(kv * groups, m, dim), draw(kv * groups, m, dim)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "workbench.memory.attend._SCORES", data.draw(st.sampled_from([1, 900, 10**7]))
        )
        got, received = attend(near_query, far_query, near, far, 0.7)

    for head in range(kv * groups):
        of = head // groups
        seen_total = np.zeros(n)
        for i in range(m):
            place = first + n - m + i
            scores, values, owner = [], [], []
            for j in range(n_far):
                if allowed is None or bool(allowed[of, j]):
                    scores.append(float(far_query[head, i] @ far.keys[of, j]) * 0.7)
                    values.append(far.values[of, j])
                    owner.append(-1)
            for j in range(n):
                distance = place - (first + j)
                if 0 <= distance < window:
                    scores.append(float(near_query[head, i] @ near.rotated[of, j]) * 0.7)
                    owner.append(j)
                elif distance >= window and first + j < limit:
                    scores.append(float(far_query[head, i] @ near.keys[of, j]) * 0.7)
                    owner.append(-1)
                else:
                    continue
                values.append(near.values[of, j])
            weight = torch.tensor(scores, dtype=torch.float64).softmax(0)
            expected = sum(w * v for w, v in zip(weight, values, strict=True))
            torch.testing.assert_close(got[i, head], expected)
            for j, w in zip(owner, weight.tolist(), strict=True):
                if j >= 0:
                    seen_total[j] += w
        np.testing.assert_allclose(received[head].numpy(), seen_total, atol=1e-12)


# --- equality with the plain model ---------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_inside_the_local_window_it_is_the_plain_model(family: str) -> None:
    lm = language_model(family)
    text = text_of(14)  # the window of Mistral's own design is 16
    for system in (
        emllm(lm, "S", n_local=16),
        InfLLM(lm, block=4, n_init=2, n_local=16, n_mem=8, chunk=5),
        SlidingWindow(lm, n_init=2, n_local=16, chunk=5),
    ):
        system.read(text)
        np.testing.assert_allclose(system.surprisal, plain(lm, text), atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_full_context_is_the_plain_model(family: str) -> None:
    lm = language_model(family)
    text = text_of(70)
    system = FullContext(lm, chunk=11).read(text)
    np.testing.assert_allclose(system.surprisal, plain(lm, text), atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "llama_yarn", "qwen3", "phi3", "gemma3", "smollm3"])
@pytest.mark.parametrize("method", ["S", "F:5"])
def test_everything_recalled_at_its_place_is_full_attention(family: str, method: str) -> None:
    lm = language_model(family)
    text = text_of(80)
    system = emllm(lm, method, n_mem=1000, position="true").read(text)
    assert len(system.retrievals)
    np.testing.assert_allclose(system.surprisal, plain(lm, text), atol=1e-4)


def test_a_window_does_not_depend_on_the_chunk() -> None:
    lm, text = language_model(), text_of(70)
    found = [
        SlidingWindow(lm, n_init=4, n_local=12, chunk=chunk).read(text).surprisal
        for chunk in (1, 7, 30, 100)
    ]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-4)
    # It is not the plain model's: the text is longer than the window.
    assert np.abs(found[0] - plain(lm, text))[20:].max() > 1e-2


# --- what follows ---------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["previous", "token"])
@pytest.mark.parametrize("method", ["S", "SM+C", "F:5"])
def test_what_follows_changes_nothing_before(query: str, method: str) -> None:
    lm = language_model()
    text = text_of(60)
    for cut in (1, 9, 26, 27, 28, 36, 45):
        one = emllm(lm, method, query=query).read(text).surprisal[:cut]
        other = emllm(lm, method, query=query).read(text[:cut] + text_of(7, seed=9)).surprisal[:cut]
        short = emllm(lm, method, query=query).read(text[:cut]).surprisal
        np.testing.assert_allclose(one, other, atol=1e-5)
        np.testing.assert_allclose(one, short, atol=1e-5)


def test_the_chunk_query_looks_ahead_and_is_not_scored() -> None:
    lm, text = language_model(), text_of(60)
    system = emllm(lm, "F:3", query="chunk", n_mem=6)
    with pytest.raises(InputError, match="query='chunk' lets later tokens choose"):
        system.score(text)
    assert len(system.score(text, force=True)) == len(text)


# --- stores, batches, branches -------------------------------------------------------------


@pytest.mark.parametrize("per_head", [False, True])
def test_device_host_and_disk_give_the_same(tmp_path: Any, per_head: bool) -> None:
    lm, text = language_model(), text_of(90)
    found = []
    for store in ("device", "host", "disk"):
        folder = tmp_path / store if store == "disk" else None
        system = emllm(lm, "S", store=store, folder=folder, per_head=per_head).read(text)
        found.append((system.surprisal, system.generate("a cab", max_new_tokens=6)))
        size = system.footprint()
        assert (size["stored_in_files"] > 0) == (store == "disk")
        assert (size["stored_in_memory"] > 0) == (store != "disk")
    for surprisal, answer in found[1:]:
        np.testing.assert_array_equal(surprisal, found[0][0])
        assert answer == found[0][1]


@pytest.mark.parametrize("method", ["S", "SM+C"])
def test_a_batch_is_its_texts_one_by_one(method: str) -> None:
    lm = language_model()
    texts = [text_of(61, 1), text_of(20, 2), text_of(44, 3)]
    prompts = ["bad", "a cab face", "bee"]
    together = emllm(lm, method).read(texts)
    # Units of the same letters are equally similar in the first layer: the order of those is a
    # matter of rounding, so recalls are compared while reading, and answers by their text.
    read = [together.retrievals_of(row) for row in range(len(texts))]
    answers = together.generate(prompts, max_new_tokens=5, eos_token_id=None)
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        alone = emllm(lm, method).read(text)
        ours, theirs = read[row], alone.retrievals
        assert ours[["position", "layer", "unit"]].equals(theirs[["position", "layer", "unit"]])
        n = len(alone.surprisal)
        measured = together.rows[row].text.measures["surprisal"][:n]
        np.testing.assert_allclose(measured, alone.surprisal, atol=1e-4)
        answer = alone.generate(prompt, max_new_tokens=5, eos_token_id=None)
        assert answer == answers[row]
        assert together.rows[row].text.ids == alone.rows[0].text.ids


def test_a_branch_leaves_nothing_behind() -> None:
    lm = language_model()
    system = emllm(lm, "SM+C").read(text_of(60))
    before = system.surprisal, system.events.starts, system.retrievals
    first = system.generate("face", max_new_tokens=5, keep=False)
    with pytest.raises(DataError, match="no text"), system.branch():
        system.read(text_of(40, 5)).read(" ")
    with system.branch():
        system.reset()
        system.read("a cab")
    np.testing.assert_array_equal(system.surprisal, before[0])
    np.testing.assert_array_equal(system.events.starts, before[1])
    assert system.retrievals.equals(before[2])
    assert system.generate("face", max_new_tokens=5, keep=False) == first
    alone = emllm(lm, "SM+C").read(text_of(60))
    np.testing.assert_allclose(system.score("bee"), alone.score("bee"), atol=1e-6)


@pytest.mark.parametrize("method", ["S", "B", "SM", "SC", "F:7", "FM:7", "T", "R"])
def test_events_online_are_events_offline(method: str) -> None:
    lm = language_model()
    code, _, length = method.partition(":")
    options = {"random_length": 6} if method == "R" else {}
    chosen = f"{code}:{length}" if length else code
    system = emllm(lm, chosen, **options).read(text_of(90).replace(",", ". "))
    events = system.events
    assert events.n == system.n_tokens
    assert events.n_events > 3
    if method in ("T", "R"):
        return
    kept = {k: v for k, v in FORMING.items() if method[0] in "SBE" or k == "min_size"}
    offline = segment(system.trace, chosen, **kept)
    assert offline.starts.tolist() == events.starts.tolist()


def test_given_boundaries_are_the_memories() -> None:
    lm, text = language_model(), text_of(60)
    starts = [0, 7, 19, 33, 50]
    system = emllm(lm, "H", given=starts).read(text)
    assert system.events.starts.tolist() == starts
    with pytest.raises(InputError, match="'H' forms people's events"):
        emllm(lm, "H")


def test_each_layer_may_have_its_own_events() -> None:
    lm, text = language_model(), text_of(90)
    system = emllm(lm, "SM", per="layer").read(text)
    cuts = [system.events_of(layer=layer).starts.tolist() for layer in range(4)]
    assert any(cut != cuts[0] for cut in cuts[1:])


@pytest.mark.parametrize("method", ["S", "SM+C", "R"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_saved_memory_goes_on_identically(tmp_path: Any, method: str, read_only: bool) -> None:
    lm = language_model()
    system = emllm(lm, method).read(text_of(70))
    system.generate("bad", max_new_tokens=3)
    folder = system.save(tmp_path / "memory")
    with pytest.raises(InputError, match="exists"):
        system.save(folder)
    loaded = load_memory(folder, lm, read_only=read_only)
    assert loaded.retrievals.equals(system.retrievals)
    for one in (system, loaded):
        one.read(text_of(40, 7))
    np.testing.assert_allclose(loaded.surprisal, system.surprisal, atol=1e-6)
    assert loaded.events.starts.tolist() == system.events.starts.tolist()
    assert loaded.generate("a", max_new_tokens=5) == system.generate("a", max_new_tokens=5)
    other = LanguageModel("other", tiny_model("llama", seed=3), byte_tokenizer())
    with pytest.raises(InputError, match="keys of one model mean nothing to another"):
        load_memory(folder, other)


def test_transformers_generate_takes_the_cache() -> None:
    lm = language_model()
    system = emllm(lm).read(text_of(50))
    ids = torch.tensor([lm.tokenizer("face", add_special_tokens=False)["input_ids"]])
    with system.branch():
        ours = system.generate("face", max_new_tokens=5, eos_token_id=None)
    with system.branch(), system.attached() as session:
        output = lm.model.generate(
            ids,
            max_new_tokens=5,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **{adapter.cache_argument(lm.model): session.cache},
        )
    assert lm.tokenizer.decode(output[0, ids.shape[1] :]) == ours


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_reads_and_generates(dtype: torch.dtype) -> None:
    model = tiny_model("llama").to(dtype)
    lm = LanguageModel("half", model, byte_tokenizer())
    system = emllm(lm, "SM+C").read(text_of(60))
    assert np.isfinite(system.surprisal).all()
    assert isinstance(system.generate("a", max_new_tokens=3), str)


@pytest.mark.parametrize("position", ["zero", "none", "fixed"])
def test_positions_and_stale_indexes_run(position: str) -> None:
    lm = language_model()
    system = emllm(lm, position=position, every=3, averaged=False, r=2).read(text_of(60))
    assert np.isfinite(system.surprisal).all()
    system.generate("a cab", max_new_tokens=4)


# --- bad input -----------------------------------------------------------------------------


def test_what_cannot_be_is_refused_by_name() -> None:
    lm = language_model()
    with pytest.raises(InputError, match="system='rnn' is not known"):
        make_system("rnn", lm)
    with pytest.raises(InputError, match="only C"):
        EMLLM(lm, "S+D")
    with pytest.raises(InputError, match="not built yet"):
        MemorySystem(lm, units=Units("chunk"), index=Index("embedding"), select=Select("exact"))
    with pytest.raises(InputError, match="has nothing"):
        MemorySystem(lm, units=Units.fixed(4), index=Index("none"))
    with pytest.raises(InputError, match="n_local=1000"):
        EMLLM(lm, "S", n_local=1000)
    with pytest.raises(InputError, match="needs folder="):
        EMLLM(lm, "S", store="disk", n_local=16)
    system = emllm(lm)
    with pytest.raises(MissingDataError, match="nothing was read"):
        _ = system.events
    system.read("a cab")
    with pytest.raises(InputError, match="holds 1 text"):
        system.read(["a", "b"])
    with pytest.raises(InputError, match="one continuation of each text"):
        system.generate("a", num_beams=2)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "gpt2"])
def test_models_a_memory_cannot_change_are_refused(family: str) -> None:
    lm = language_model(family)
    with pytest.raises(ModelError):
        emllm(lm).read(text_of(20))


def test_the_budget_is_kept() -> None:
    lm = language_model()
    with pytest.raises(DiskSpaceError, match="budget of 2000"):
        emllm(lm, budget=2000).read(text_of(90))


def test_sliding_layers_do_not_refine_and_are_not_saved(tmp_path: Any) -> None:
    lm = language_model("gemma3")  # layers 1 and 3 see everything
    system = emllm(lm, "SM").read(text_of(70))
    assert system.refining_layers == [3]
    offline = segment(system.trace, "SM", **FORMING)
    assert offline.starts.tolist() == system.events.starts.tolist()
    loaded = load_memory(system.save(tmp_path / "memory"), lm)
    assert loaded.generate("a", max_new_tokens=3) == system.generate("a", max_new_tokens=3)
    with pytest.raises(InputError, match=r"layers \[0, 2\] slide"):
        emllm(lm, "SM", per="layer").read(text_of(40)).save(tmp_path / "other")
