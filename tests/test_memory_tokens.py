"""Memory layers against a slow oracle: one query, one key at a time, from the definition."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import ids_of, letters, plain_scores
from tiny_models import byte_tokenizer, tiny_model

from workbench.core.errors import DiskSpaceError, InputError, MissingDataError, ModelError
from workbench.memory import (
    FOT,
    LongLLaMA,
    MemorizingTransformer,
    MemorySystem,
    SlidingWindow,
    load_memory,
    make_system,
)
from workbench.memory import token_attend as module
from workbench.memory.choices import Index, Select, Units
from workbench.memory.longllama import load_longllama
from workbench.memory.token_store import KeyStore
from workbench.models import LanguageModel
from workbench.recording.adapter import attention_modules, registered_attention, rotary_module

LAYERS = [1, 2]
N_LOCAL = 12
GATE = {1: [0.5, -1.0, 0.2, 2.0, -0.3, 0.0], 2: [1.5, 0.1, -2.0, 0.4, 0.3, -0.6]}
_LMS: dict[str, LanguageModel] = {}


def double_lm(family: str) -> LanguageModel:
    """In float64, so that the best keys are the same for all who look for them."""
    if family not in _LMS:
        model = tiny_model(family).double()
        _LMS[family] = LanguageModel(family, model, byte_tokenizer(), provenance="random weights")
    return _LMS[family]


def oracle(
    lm: LanguageModel,
    ids: list[int],
    *,
    n_local: int = N_LOCAL,
    top_k: int | None = None,
    capacity: int | None = None,
    documents: tuple[int, ...] = (0,),
    windows: tuple[int, ...] = (0,),
    gate: dict[int, list[float]] | None = None,
    position: str = "zero",
    temperature: float = 1.0,
    narrow: float | None = None,
    skip: float | None = None,
    flat: float | None = None,
) -> np.ndarray:
    """Log-probabilities of ids[1:], every query by itself.

    The model is given position 0 everywhere, which turns nothing; places are made here.
    """
    model = lm.model
    modules = {id(found): layer for layer, found in attention_modules(model).items()}
    rotary = rotary_module(model)

    def turned(owner: Any, states: torch.Tensor, places: list[int]) -> torch.Tensor:
        cos, sin = rotary(states[None], torch.tensor([places]))
        apply = sys.modules[type(owner).__module__].apply_rotary_pos_emb
        return apply(states[None], states[None], cos, sin)[0][0]

    def attention(owner, query, key, value, _mask, scaling=None, **_):
        layer = modules[id(owner)]
        groups = query.shape[1] // key.shape[1]
        memory_layer = layer in LAYERS
        places_off = memory_layer and position == "none"
        heads, n, dim = query.shape[1:]
        output = torch.zeros(1, n, heads, dim, dtype=query.dtype)
        for t in range(n):
            first = max(*(start for start in (0, *windows) if start <= t), t - n_local + 1)
            window = list(range(first, t + 1))
            floor = max(start for start in documents if start <= t)
            low = floor if capacity is None else max(floor, first - capacity)
            memory = list(range(low, first)) if memory_layer else []
            scale = scaling / temperature if memory_layer else scaling
            q, k = query[0, :, t : t + 1], key[0][:, window]
            if not places_off:
                q = turned(owner, q, [t - first])
                k = turned(owner, k, [j - first for j in window])
            for head in range(heads):
                kv = head // groups
                near = [float(q[head, 0] @ k[kv, i]) * scale for i in range(len(window))]
                far = [float(q[head, 0] @ key[0, kv, j]) * scale for j in memory]
                order = sorted(range(len(memory)), key=lambda i: -far[i])[:top_k]
                if order and narrow is not None:
                    order = [i for i in order if far[i] >= far[order[0]] - narrow]
                if order and skip is not None and far[order[0]] < max(near) - skip:
                    order = []
                if order and flat is not None and far[order[0]] - far[order[-1]] < flat:
                    order = []
                v_near = value[0, kv][window]
                v_far = value[0, kv][[memory[i] for i in order]]
                s_near = torch.tensor(near, dtype=query.dtype)
                s_far = torch.tensor([far[i] for i in order], dtype=query.dtype)
                if gate is None or not order or not memory_layer:
                    weights = torch.cat((s_near, s_far)).softmax(0)
                    output[0, t, head] = weights @ torch.cat((v_near, v_far))
                else:
                    share = torch.sigmoid(torch.tensor(gate[layer][head], dtype=query.dtype))
                    output[0, t, head] = share * (s_far.softmax(0) @ v_far)
                    output[0, t, head] += (1 - share) * (s_near.softmax(0) @ v_near)
        return output, None

    given = torch.tensor([ids])
    with torch.no_grad(), registered_attention(model, attention, masked=False):
        logits = model(given, position_ids=torch.zeros_like(given), use_cache=False).logits
    found = logits[0, :-1].log_softmax(-1).gather(1, given[0, 1:, None])[:, 0]
    return found.double().numpy()


def with_start(lm: LanguageModel, text: str) -> list[int]:
    start = SlidingWindow(lm, n_init=0, n_local=4).start
    assert start is not None
    return [start, *ids_of(lm, text)]


VARIANTS: dict[str, tuple[type[MemorySystem], dict[str, Any], dict[str, Any]]] = {
    "fot": (FOT, {"top_k": 3}, {"top_k": 3}),
    "long": (LongLLaMA, {}, {}),
    "mt": (
        MemorizingTransformer,
        {"gate": GATE, "top_k": 3, "capacity": 9},
        {"gate": GATE, "top_k": 3, "capacity": 9},
    ),
    "full-memory": (LongLLaMA, {"capacity": 7}, {"capacity": 7}),
    "no-positions": (FOT, {"top_k": 4, "position": "none"}, {"top_k": 4, "position": "none"}),
    "temperature": (LongLLaMA, {"temperature": 2.5}, {"temperature": 2.5}),
    "narrow": (FOT, {"top_k": 6, "narrow": 0.7}, {"top_k": 6, "narrow": 0.7}),
    "skip": (FOT, {"top_k": 3, "skip": 0.2}, {"top_k": 3, "skip": 0.2}),
    "flat": (FOT, {"top_k": 5, "flat": 0.9}, {"top_k": 5, "flat": 0.9}),
}


@pytest.mark.parametrize(
    ("family", "variant"),
    [("llama", name) for name in VARIANTS]
    + [("qwen3", "fot"), ("qwen3", "no-positions"), ("mistral", "mt"), ("phi3", "long")],
)
def test_every_query_sees_what_the_definition_says(family: str, variant: str) -> None:
    lm = double_lm(family)
    kind, options, meant = VARIANTS[variant]
    text = letters(44, seed=3)
    wanted = oracle(lm, with_start(lm, text), **meant)
    alone = oracle(lm, with_start(lm, text), capacity=0)
    assert np.abs(wanted - alone).max() > 1e-3  # the memory matters
    for chunk in (1, 5, 64):
        system = kind(lm, LAYERS, n_local=N_LOCAL, chunk=chunk, **options)
        np.testing.assert_allclose(system.score(text), wanted, atol=2e-6)
    halves = kind(lm, LAYERS, n_local=N_LOCAL, chunk=9, **{**options, "per_document": False})
    halves.read(text[:17])
    np.testing.assert_allclose(halves.score(text[17:]), wanted[17:], atol=2e-6)


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lm, text = double_lm("llama"), letters(50, seed=1)
    systems = [
        FOT(lm, LAYERS, n_local=N_LOCAL, top_k=3, capacity=11),
        MemorizingTransformer(lm, LAYERS, n_local=N_LOCAL, gate=0.4, capacity=11),
    ]
    whole = [system.score(text) for system in systems]
    monkeypatch.setattr(module, "_SCORES", 1)
    for system, wanted in zip(systems, whole, strict=True):
        np.testing.assert_allclose(system.score(text), wanted, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_without_memory_it_is_the_window_bit_for_bit_and_within_it_the_plain_model(
    family: str,
) -> None:
    lm, text = double_lm(family), letters(40)
    layers = [1, 3]
    window = SlidingWindow(lm, n_init=0, n_local=N_LOCAL, chunk=8).score(text)
    off = FOT(lm, layers, n_local=N_LOCAL, chunk=8, capacity=0).score(text)
    np.testing.assert_array_equal(off, window)
    wide = LongLLaMA(lm, layers, n_local=64).score(text)
    plain = plain_scores(lm, ids_of(lm, text), with_start(lm, text)[0])
    np.testing.assert_allclose(wide, plain, atol=2e-6)


def test_enough_nearest_keys_are_all_of_them() -> None:
    lm, text = double_lm("llama"), letters(40)
    dense = LongLLaMA(lm, LAYERS, n_local=N_LOCAL).score(text)
    enough = FOT(lm, LAYERS, n_local=N_LOCAL, top_k=29).score(text)
    few = FOT(lm, LAYERS, n_local=N_LOCAL, top_k=2).score(text)
    np.testing.assert_allclose(enough, dense, atol=1e-9)
    assert np.abs(few - dense).max() > 1e-4


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 900), st.integers(0, 99), st.booleans())
def test_the_largest_scores_are_found(k: int, n: int, seed: int, equal: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 3, n, generator=generator)
    scores = scores.round() if equal else scores
    scores[0, 0, : n // 2] = -torch.inf
    k = min(k, n)
    values, columns = module._largest(scores, k)
    torch.testing.assert_close(values, scores.sort(dim=2, descending=True).values[..., :k])
    torch.testing.assert_close(scores.gather(2, columns), values)
    assert all(len(set(row.tolist())) == k for row in columns.flatten(0, 1))


def test_gates_shut_and_open() -> None:
    lm, text = double_lm("llama"), letters(40)
    shut = MemorizingTransformer(lm, LAYERS, n_local=N_LOCAL, gate=-800.0).score(text)
    window = SlidingWindow(lm, n_init=0, n_local=N_LOCAL).score(text)
    np.testing.assert_allclose(shut, window, atol=1e-9)
    opened = MemorizingTransformer(lm, LAYERS, n_local=N_LOCAL, gate=800.0).score(text)
    assert np.abs(opened - window).max() > 1e-3


@pytest.mark.parametrize("variant", ["fot", "long", "mt", "full-memory"])
def test_later_text_changes_nothing_before_it(variant: str) -> None:
    lm = double_lm("llama")
    kind, options, _ = VARIANTS[variant]
    text = letters(45, seed=5)
    other = text[:30] + letters(15, seed=6)
    first, second = (
        kind(lm, LAYERS, n_local=N_LOCAL, chunk=16, **options).score(given)
        for given in (text, other)
    )
    np.testing.assert_allclose(first[:30], second[:30], atol=1e-9)
    assert np.abs(first[31:] - second[31:]).max() > 1e-3


def test_a_document_of_its_own_sees_no_other() -> None:
    lm = double_lm("llama")
    first, second, third = letters(30, seed=1), letters(33, seed=2), letters(20, seed=3)
    system = FOT(lm, LAYERS, n_local=N_LOCAL, top_k=None, chunk=8, per_document=True)
    found = np.concatenate((system.read(first).score(second), [0.0]))
    # A scored text goes on with the document; one that is read begins another.
    together = LongLLaMA(lm, LAYERS, n_local=N_LOCAL).score(first + second)[30:]
    np.testing.assert_allclose(found[:-1], together, atol=2e-6)
    system.read(second)
    wanted = oracle(lm, with_start(lm, first + second + third), documents=(0, 31))
    np.testing.assert_allclose(-system.surprisal[30:], wanted[30:63], atol=2e-6)
    np.testing.assert_allclose(system.score(third), wanted[63:], atol=2e-6)
    system.reset()
    np.testing.assert_allclose(
        system.score(third), LongLLaMA(lm, LAYERS, n_local=N_LOCAL).score(third), atol=1e-9
    )


@pytest.mark.parametrize("variant", ["fot", "mt"])
def test_texts_of_different_lengths_do_not_touch_each_other(variant: str) -> None:
    lm = double_lm("llama")
    kind, options, _ = VARIANTS[variant]
    texts = [letters(50, seed=1), letters(7, seed=2), letters(26, seed=3)]
    system = kind(lm, LAYERS, n_local=N_LOCAL, chunk=8, **options)
    for text, found in zip(texts, system.score(texts), strict=True):
        alone = kind(lm, LAYERS, n_local=N_LOCAL, chunk=8, **options).score(text)
        np.testing.assert_allclose(found, alone, atol=1e-9)
    system.read(texts)
    system.read([".", ".", "."])
    held = [row.layers[1].store.n for row in system.rows]
    most = options.get("capacity", 1000)
    # With a start token and ".": all but the n_local newest; of short texts nothing, no padding.
    counts = [max(0, min(most, len(text) + 1 - N_LOCAL + 1)) for text in texts]
    if system.tokens is not None and system.tokens.per_document:
        counts = [0, 0, 0]
    assert held == counts
    answers = system.generate(["bee", "a", "cab"], max_new_tokens=4)
    for text, answer, prompt in zip(texts, answers, ["bee", "a", "cab"], strict=True):
        one = kind(lm, LAYERS, n_local=N_LOCAL, chunk=8, **options)
        one.read(text)
        one.read(".")
        assert one.generate(prompt, max_new_tokens=4) == answer


@pytest.mark.parametrize("variant", ["fot", "full-memory"])
def test_generated_tokens_see_what_read_ones_do(variant: str) -> None:
    lm = double_lm("llama")
    kind, options, meant = VARIANTS[variant]
    system = kind(lm, LAYERS, n_local=N_LOCAL, chunk=8, **options)
    system.read(letters(20, seed=4))
    system.generate("fade ", max_new_tokens=25, eos_token_id=-1)
    ids = [with_start(lm, "")[0], *system.rows[0].text.ids]
    assert len(ids) == 51
    np.testing.assert_allclose(-system.surprisal, oracle(lm, ids, **meant), atol=2e-6)


@pytest.mark.parametrize("variant", ["fot", "mt", "full-memory"])
@pytest.mark.parametrize("read_only", [False, True])
def test_saved_and_loaded_it_goes_on_as_before(
    variant: str, read_only: bool, tmp_path: Path
) -> None:
    lm = double_lm("llama")
    kind, options, _ = VARIANTS[variant]
    system = kind(lm, LAYERS, n_local=N_LOCAL, chunk=8, **options)
    system.read([letters(40, seed=7), letters(9, seed=8)])
    system.save(tmp_path / "memory")
    loaded = load_memory(tmp_path / "memory", lm, read_only=read_only)
    more = [letters(21, seed=9), letters(30, seed=10)]
    for wanted, found in zip(system.score(more), loaded.score(more), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert loaded.tokens == system.tokens
    assert loaded.attended == pytest.approx(system.attended)
    assert loaded.generate(["a", "b"], max_new_tokens=5) == system.generate(
        ["a", "b"], max_new_tokens=5
    )


def test_a_branch_comes_back_even_where_it_pushed_tokens_out() -> None:
    lm = double_lm("llama")
    system = FOT(lm, LAYERS, n_local=N_LOCAL, chunk=8, top_k=3, capacity=10)
    system.read(letters(30, seed=1))
    before = system.score(letters(20, seed=2))
    with system.branch():
        system.read(letters(300, seed=3))
        with system.branch():
            system.reset()
            system.read("bed")
    with system.branch():
        system.generate("a", max_new_tokens=20)
    np.testing.assert_array_equal(system.score(letters(20, seed=2)), before)
    assert system.n_tokens == 30


def test_keys_that_a_token_saw_are_counted() -> None:
    lm, text = double_lm("llama"), letters(40)
    places = np.arange(1, 41)  # behind the start token
    near = np.minimum(places + 1, N_LOCAL)
    far = np.minimum(np.maximum(places + 1 - N_LOCAL, 0), 3)
    system = FOT(lm, LAYERS, n_local=N_LOCAL, chunk=7, top_k=3).read(text)
    # Two of four layers have memory.
    np.testing.assert_allclose(system.rows[0].text.seen, near + far / 2)
    assert len(system.retrievals) == 0
    footprint = system.footprint()
    assert footprint["stored_kv"] > 0
    assert footprint["index"] == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("aem"), st.integers(1, 400)), max_size=12))
def test_keys_and_values_stay_together(steps: list[tuple[str, int]]) -> None:
    store = KeyStore()
    held: list[int] = []
    count = 0
    marks: list[tuple[Any, list[int]]] = []
    for what, size in steps:
        if what == "a":
            new = torch.arange(count, count + size, dtype=torch.float64)
            store.append(new.view(1, -1, 1).expand(2, -1, 3), -new.view(1, -1, 1).expand(2, -1, 3))
            held += range(count, count + size)
            count += size
        elif what == "e":
            store.evict(size)
            held = held[size:]
        elif store.n:
            marks.append((store.mark(), list(held)))
        if store.n:
            assert store.keys[0, :, 0].tolist() == held
            assert store.values[1, :, 2].tolist() == [-token for token in held]
            keys, values = store.gather(torch.tensor([0, store.n - 1]))
            assert keys[0, :, 0].tolist() == [held[0], held[-1]]
            assert values[0, :, 0].tolist() == [-held[0], -held[-1]]
        assert store.n == len(held)
    for mark, wanted in reversed(marks):
        store.restore(mark)
        assert store.keys[0, :, 0].tolist() == wanted


def test_systems_by_name_and_by_choices() -> None:
    lm, text = double_lm("llama"), letters(40)
    own = MemorySystem(
        lm,
        units=Units.token(LAYERS),
        index=Index("keys"),
        select=Select("topk", 3),
        position="zero",
        n_init=0,
        n_local=N_LOCAL,
    )
    named = make_system("fot", lm, memory_layers=LAYERS, top_k=3, n_local=N_LOCAL)
    np.testing.assert_allclose(own.score(text), named.score(text), atol=1e-9)
    assert make_system("longllama", lm, n_local=16).tokens.layers == (1, 2, 3)
    assert make_system("mt", lm, gate=0.0, n_local=16).tokens.gate == ((0.0,) * 6,) * 3


def test_a_trained_model_brings_its_layers_and_gates(tmp_path: Path) -> None:
    from workbench.training.finetune import save_pretrained
    from workbench.training.pretrained import PretrainedDecoder

    lm, text = double_lm("llama"), letters(40)
    decoder = PretrainedDecoder(lm.model, LAYERS, memory_positions="none", join="gate")
    with torch.no_grad():
        for layer, values in GATE.items():
            decoder.gates[str(layer)].copy_(torch.tensor(values))
    save_pretrained(decoder, lm.tokenizer, tmp_path)
    system = MemorizingTransformer(lm, trained=tmp_path, n_local=N_LOCAL, top_k=3)
    wanted = oracle(lm, with_start(lm, text), gate=GATE, position="none", top_k=3)
    np.testing.assert_allclose(system.score(text), wanted, atol=2e-6)
    with pytest.raises(MissingDataError, match="not trained with memory"):
        FOT(lm, trained=tmp_path / "none")


def test_what_cannot_be_is_refused_with_its_reason() -> None:
    lm = double_lm("llama")
    cases: list[tuple[str, dict[str, Any]]] = [
        ("layers 0 ... 3", {"memory_layers": [9]}),
        ("names no layer", {"memory_layers": []}),
        ("twice", {"memory_layers": [1, 1]}),
        ("top_k", {"top_k": 0}),
        ("capacity", {"capacity": -1}),
        ("temperature", {"temperature": 0.0}),
        ("narrow", {"narrow": -1.0}),
        ("read from the disk", {"store": "disk"}),
        ("stand as if first", {"position": "true"}),
        ("only go together", {"join": "gate"}),
        ("only go together", {"gate": 0.1}),
        ("one for each of the 6", {"gate": [0.1], "join": "gate"}),
        ("no numbers for the memory layers", {"gate": {0: [0.1] * 6}, "join": "gate"}),
    ]
    for message, options in cases:
        with pytest.raises(InputError, match=message):
            FOT(lm, **{"memory_layers": LAYERS, "n_local": 16, **options})
    with pytest.raises(InputError, match="learned values"):
        MemorizingTransformer(lm, LAYERS)
    with pytest.raises(InputError, match="use FOT"):
        LongLLaMA(lm, LAYERS, top_k=3)
    with pytest.raises(InputError, match=r"by its own design.*\[1, 3\]"):
        FOT(double_lm("gemma3"), [0], n_local=16)
    own: dict[str, Any] = {"units": Units.token(LAYERS), "position": "zero", "n_init": 0}
    for message, choices in [
        ("found by its own key", {}),
        ("best tokens or all", {"index": Index("keys")}),
        ("use n_init=0", {"index": Index("keys"), "select": Select("all"), "n_init": 4}),
        ("nothing outside", {"index": Index("keys"), "select": Select("all"), "n_local": None}),
        ("are of memory layers", {"units": Units.fixed(4), "index": Index("keys")}),
    ]:
        with pytest.raises(InputError, match=message):
            MemorySystem(lm, **{**own, **choices})
    with pytest.raises(DiskSpaceError, match="capacity="):
        LongLLaMA(lm, LAYERS, n_local=16, chunk=8, budget=100).read(letters(60))


def write_longllama(folder: Path, lm: LanguageModel, **more: Any) -> None:
    """A tiny checkpoint as the released ones are: their configuration, LLaMA's names of weights."""
    from safetensors.torch import save_file

    config = lm.model.config
    tensors = {name: value.contiguous() for name, value in lm.model.state_dict().items()}
    for layer in range(config.num_hidden_layers):  # transformers 4 kept these
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    about = {name: getattr(config, name) for name in (*names, "num_attention_heads")}
    about |= {"model_type": "longllama", "architectures": ["LongLlamaForCausalLM"]}
    about |= {"mem_layers": LAYERS, "mem_dtype": "bfloat16", "mem_positionals": True}
    about |= {"max_position_embeddings": 16, "rope_theta": 500.0, "last_context_length": 8}
    about |= {"rms_norm_eps": config.rms_norm_eps, "bos_token_id": 1, "eos_token_id": 2}
    about |= {"auto_map": {"AutoConfig": "configuration_longllama.LongLlamaConfig"}, **more}
    (folder / "config.json").write_text(json.dumps(about))


def test_checkpoints_in_the_layout_of_longllama(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=120,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=6,
        max_position_embeddings=16,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    model = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    lm = LanguageModel("tiny", model, byte_tokenizer(), provenance="random weights")
    write_longllama(tmp_path, lm)
    system = load_longllama(
        tmp_path, tokenizer=lm.tokenizer, dtype="float64", device="cpu", chunk=8
    )
    assert (system.tokens.layers, system.n_local) == ((1, 2), 16)
    text = letters(40)
    wanted = oracle(lm, with_start(lm, text), n_local=16)
    np.testing.assert_allclose(system.score(text), wanted, atol=2e-6)
    for message, more in [
        ("load it with load_model", {"model_type": "llama"}),
        ("mem_layers= is empty", {"mem_layers": []}),
        ("rope_scaling", {"rope_scaling": {"type": "linear"}}),
        ("missing", {"num_hidden_layers": 5}),
        ("fit its config.json", {"intermediate_size": 32}),
    ]:
        write_longllama(tmp_path, lm, **more)
        with pytest.raises(ModelError, match=message):
            load_longllama(tmp_path, tokenizer=lm.tokenizer, device="cpu")
    with pytest.raises(MissingDataError, match=r"config\.json"):
        load_longllama(tmp_path / "none")


@pytest.mark.parametrize("variant", ["long", "mt", "full-memory", "no-positions"])
def test_windows_of_longllama(variant: str) -> None:
    """19 tokens before the last 5: windows of 12 and 7, the last one; then it slides."""
    lm = double_lm("llama")
    kind, options, meant = VARIANTS[variant]
    options = {**options, "per_document": False, "last_context_length": 5}
    text, more = letters(23, seed=3), letters(8, seed=4)
    wanted = oracle(lm, with_start(lm, text), windows=(12, 19), **meant)
    for chunk in (3, 64):
        system = kind(lm, LAYERS, n_local=N_LOCAL, chunk=chunk, **options)
        np.testing.assert_allclose(system.score(text), wanted, atol=2e-6)
    short = letters(4, seed=6)
    for found, alone in zip(
        system.score([short, text]), [system.score(short), wanted], strict=True
    ):
        np.testing.assert_allclose(found, alone, atol=2e-6)
    system.reset()
    system.read(text)
    system.generate(more, max_new_tokens=20, eos_token_id=-1)
    ids = [with_start(lm, "")[0], *system.rows[0].text.ids]
    # What was read before moves on as a whole only for a prompt that is read at one go.
    slid = oracle(lm, ids, windows=(12, 19), **meant)
    np.testing.assert_allclose(-system.surprisal, slid, atol=2e-6)


def test_a_long_prompt_is_cut_where_a_text_is() -> None:
    lm, text = double_lm("llama"), letters(150, seed=3)
    options: dict[str, Any] = {"n_local": 80, "last_context_length": 70}
    system = LongLLaMA(lm, LAYERS, **options)
    system.generate(text, max_new_tokens=3, eos_token_id=-1)
    wanted = oracle(lm, with_start(lm, text), n_local=80, windows=(80, 81))
    np.testing.assert_allclose(-system.surprisal[:150], wanted, atol=2e-6)
    np.testing.assert_allclose(LongLLaMA(lm, LAYERS, **options).score(text), wanted, atol=2e-6)
    # A short prompt goes on in its window, beside a long one, too.
    texts = [letters(30, seed=1), letters(40, seed=2)]
    both = LongLLaMA(lm, LAYERS, **options).read(texts)
    both.generate([text, "a cab"], max_new_tokens=3, eos_token_id=-1)
    one = LongLLaMA(lm, LAYERS, **options).read(texts[1])
    one.generate("a cab", max_new_tokens=3, eos_token_id=-1)
    measured = [row.text.measures["surprisal"] for row in (both.rows[1], one.rows[0])]
    np.testing.assert_allclose(*measured, atol=1e-9)
    with pytest.raises(InputError, match="last_context_length=90"):
        LongLLaMA(lm, LAYERS, n_local=80, last_context_length=90)
