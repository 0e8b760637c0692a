"""Keys before rotation and untouched logits, family by family, against the model's own parts."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from tiny_models import LAYERS, tiny_model, token_ids

from workbench.core.errors import InputError, ModelError
from workbench.recording import adapter
from workbench.recording.instruments import AttentionCall, Instruments, KeyRecorder, Observer

FAMILIES = [
    "llama",
    "llama_yarn",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "gemma2",
    "gemma3",
    "gpt_neox",
    "gpt2",
    "cohere",
    "olmo2",
    "smollm3",
    "gpt_oss",
]
N = 40


def read(model, observers, ids):
    with torch.no_grad(), Instruments(model, observers):
        return model(ids, use_cache=False).logits


def recorder_for(model, n=N, skip=0):
    size = adapter.geometry(model)
    return KeyRecorder(range(size["n_layers"]), range(size["n_kv_heads"]), n, skip)


def oracle_keys(model, ids):
    """Keys before rotation written out from each family's definition, from attention's input."""
    entering: dict[int, torch.Tensor] = {}
    handles = []
    for layer, module in adapter.attention_modules(model).items():

        def keep(_, args, kwargs, layer=layer):
            entering[layer] = kwargs.get("hidden_states", args[0] if args else None)

        handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    with torch.no_grad():
        model(ids, use_cache=False)
    for handle in handles:
        handle.remove()

    layers = []
    for layer, module in adapter.attention_modules(model).items():
        x = entering[layer][0]
        size = adapter.geometry(model)
        heads = size["n_kv_heads"]
        kind = model.config.model_type
        if kind == "gpt2":
            width = x.shape[1]
            weight, bias = module.c_attn.weight, module.c_attn.bias
            keys = (x @ weight[:, width : 2 * width] + bias[width : 2 * width]).view(N, heads, -1)
        elif kind == "gpt_neox":
            # Columns run head by head: its query, its key, its value.
            dim = x.shape[1] // heads
            joint = x @ module.query_key_value.weight.T + module.query_key_value.bias
            keys = joint.view(N, heads, 3, dim)[:, :, 1]
        elif kind == "phi3":
            dim = module.head_dim
            start = size["n_heads"] * dim
            keys = (x @ module.qkv_proj.weight[start : start + heads * dim].T).view(N, heads, dim)
        else:
            keys = x @ module.k_proj.weight.T
            if module.k_proj.bias is not None:
                keys = keys + module.k_proj.bias
            if kind == "olmo2":  # normalised before the heads are separated
                keys = module.k_norm(keys)
            keys = keys.view(N, heads, -1)
            if kind in ("qwen3", "gemma3_text"):
                keys = module.k_norm(keys)
        layers.append(keys.transpose(0, 1))
    return torch.stack(layers).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_are_the_modules_own_and_logits_unchanged(family):
    model = tiny_model(family)
    ids = token_ids(N)
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
    recorder = recorder_for(model)
    watched = read(model, [recorder], ids)
    assert float((watched - plain).abs().max()) <= 1e-6
    expected = oracle_keys(model, ids)
    assert expected.std() > 0.05
    np.testing.assert_allclose(recorder.keys, expected, atol=2e-6)
    assert recorder.source == "projection"


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt_neox", "llama_yarn"])
def test_rotating_back_undoes_the_models_rotation(family):
    model = tiny_model(family)
    seen: dict[int, torch.Tensor] = {}

    class Look(Observer):
        def attention(self, call: AttentionCall) -> None:
            seen[call.layer] = call.key

    tables = {}
    handles = []
    for layer, module in adapter.attention_modules(model).items():

        def keep(_, args, kwargs, layer=layer):
            tables[layer] = adapter.rotary_tables(args, kwargs)

        handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    recorder = recorder_for(model)
    read(model, [recorder, Look()], token_ids(N))
    for handle in handles:
        handle.remove()
    for layer, module in adapter.attention_modules(model).items():
        back = adapter.unrotate(module, seen[layer], tables[layer])
        np.testing.assert_allclose(back[0].numpy(), recorder.keys[layer], atol=5e-6)
    if family == "gemma3":  # local and global layers have tables of their own
        assert not torch.allclose(tables[0][0], tables[1][0])
    if family == "llama_yarn":  # scaled tables: turning back alone would leave the factor
        assert float((tables[0][0] ** 2 + tables[0][1] ** 2).mean()) > 1.05


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_eager_attention_in_blocks_is_the_models_eager(family, monkeypatch):
    """Soft cap, sinks and sliding windows, with blocks of 7 queries."""
    monkeypatch.setattr(adapter, "_QUERY_BLOCK", 7)
    model = tiny_model(family, attention="eager")
    ids = token_ids(N)
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
    caps = []

    class Look(Observer):
        def attention(self, call: AttentionCall) -> None:
            caps.append(call.softcap)

    watched = read(model, [Look()], ids)
    assert float((watched - plain).abs().max()) <= 5e-6  # sums of other lengths round differently
    if family == "gemma2":
        assert caps == [5.0] * LAYERS
        model.config.attn_logit_softcapping = None
        for module in adapter.attention_modules(model).values():
            module.attn_logit_softcapping = None
        with torch.no_grad():  # the cap matters in this model
            assert float((model(ids, use_cache=False).logits - plain).abs().max()) > 1e-4


def test_blocks_continue_after_a_cache(monkeypatch):
    """Reading in two chunks: observers get the new keys only, attention sees all."""
    from transformers import DynamicCache

    monkeypatch.setattr(adapter, "_QUERY_BLOCK", 5)
    for family in ("llama", "gemma2"):
        model = tiny_model(family)
        ids = token_ids(N)
        whole, parts = recorder_for(model), recorder_for(model, n=N - 3, skip=3)
        plain = read(model, [whole], ids)
        cache = DynamicCache(config=model.config)
        with torch.no_grad(), Instruments(model, [parts]):
            chunks = [model(chunk, cache=cache).logits for chunk in ids.split(23, 1)]
        assert float((torch.cat(chunks, 1) - plain).abs().max()) <= 2e-6
        np.testing.assert_allclose(parts.keys, whole.keys[:, :, 3:], atol=2e-6)


def hooks_of(model):
    return [
        (name, len(module._forward_hooks), len(module._forward_pre_hooks))
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize("family", ["llama", "gemma2", "phi3", "gpt2"])
def test_everything_is_restored_also_after_an_exception(family):
    from transformers import AttentionInterface, AttentionMaskInterface

    model = tiny_model(family)
    own = model.config._attn_implementation
    hooks = hooks_of(model)
    names = set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping)

    class Fails(Observer):
        def attention(self, call: AttentionCall) -> None:
            if call.layer == 1:
                raise KeyError("observer")

    with pytest.raises(KeyError, match="observer"):
        read(model, [recorder_for(model), Fails()], token_ids(N))
    read(model, [recorder_for(model)], token_ids(N))
    assert model.config._attn_implementation == own
    assert hooks_of(model) == hooks
    assert names == (
        set(AttentionInterface._global_mapping),
        set(AttentionMaskInterface._global_mapping),
    )


def test_instruments_of_two_models_nest():
    first, second = tiny_model("llama"), tiny_model("qwen3", seed=1)
    ids = token_ids(N)
    a, b = recorder_for(first), recorder_for(second)
    with torch.no_grad(), Instruments(first, [a]), Instruments(second, [b]):
        first(ids, use_cache=False)
        second(ids, use_cache=False)
    np.testing.assert_allclose(a.keys, oracle_keys(first, ids), atol=2e-6)
    np.testing.assert_allclose(b.keys, oracle_keys(second, ids), atol=2e-6)


def test_nothing_is_kept_between_readings():
    model = tiny_model("llama")
    for _ in range(2):
        read(model, [recorder_for(model)], token_ids(N))
    gc.collect()
    before = sum(isinstance(x, torch.Tensor) for x in gc.get_objects())
    for _ in range(5):
        read(model, [recorder_for(model)], token_ids(N))
    gc.collect()
    assert sum(isinstance(x, torch.Tensor) for x in gc.get_objects()) <= before


def test_chosen_layers_and_heads():
    model = tiny_model("llama")
    recorder = KeyRecorder([1, 3], [1], N - 1, skip=1)
    read(model, [recorder], token_ids(N))
    assert recorder.keys.shape == (2, 1, N - 1, 8)
    np.testing.assert_allclose(
        recorder.keys, oracle_keys(model, token_ids(N))[[1, 3]][:, [1], 1:], atol=2e-6
    )


def test_heads_equal_tokens_is_not_ambiguous():
    """With as many tokens as key-value heads a norm's output fits both ways."""
    for family in ("qwen3", "gemma3"):
        model = tiny_model(family)
        recorder = recorder_for(model, n=2)
        read(model, [recorder], token_ids(2))
        longer = recorder_for(model)
        read(model, [longer], torch.cat([token_ids(2), token_ids(N - 2, seed=1)], 1))
        np.testing.assert_allclose(recorder.keys, longer.keys[:, :, :2], atol=2e-6)


def test_changed_keys_are_an_error():
    """A model that does something unknown to its keys after the projection is not recorded."""
    model = tiny_model("llama")
    module = adapter.attention_modules(model)[2]
    # Later hooks change what the rotation gets, as an unknown step of an architecture would.
    recorder = recorder_for(model)
    with torch.no_grad(), Instruments(model, [recorder]):
        handle = module.k_proj.register_forward_hook(lambda m, a, output: output * 1.5)
        try:
            with pytest.raises(ModelError, match=r"layer 2: the output of LlamaAttention's key"):
                model(token_ids(N), use_cache=False)
        finally:
            handle.remove()


def test_latent_attention_is_refused_for_keys():
    model = tiny_model("deepseek_v3")
    with pytest.raises(ModelError, match=r"DeepseekV3Attention has none of the projections"):
        read(model, [recorder_for(model)], token_ids(N))


def test_unknown_projection_is_rotated_back():
    model = tiny_model("llama")
    expected = oracle_keys(model, token_ids(N))
    names = adapter.KEY_PROJECTIONS
    adapter.KEY_PROJECTIONS = ()
    try:
        recorder = recorder_for(model)
        read(model, [recorder], token_ids(N))
    finally:
        adapter.KEY_PROJECTIONS = names
    assert recorder.source == "rotated back"
    np.testing.assert_allclose(recorder.keys, expected, atol=5e-6)


def test_bad_input_by_message():
    import transformers as tf

    model = tiny_model("llama")
    with pytest.raises(InputError, match=r"layers \[9\] have no attention"):
        Instruments(model, [KeyRecorder([9], [0], 3)])
    t5 = tf.T5ForConditionalGeneration(
        tf.T5Config(vocab_size=20, d_model=8, d_ff=8, num_layers=1, num_heads=2, d_kv=4)
    )
    with pytest.raises(ModelError, match="encoder-decoder"):
        Instruments(t5)
    with pytest.raises(ModelError, match="gave no keys"):
        _ = KeyRecorder([0], [0], 3).keys


def test_bfloat16_keys_pass_the_check():
    model = tiny_model("llama").to(torch.bfloat16)
    recorder = recorder_for(model)
    read(model, [recorder], token_ids(N))
    assert recorder.keys.dtype == np.float32


def test_model_without_attention_is_refused_by_name():
    from types import SimpleNamespace

    from transformers import MambaConfig

    from workbench.recording.adapter import geometry

    with pytest.raises(ModelError, match="has no attention heads"):
        geometry(SimpleNamespace(config=MambaConfig()))
