"""Tiny randomly initialised models of each family, for tests; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

VOCABULARY = 120
HIDDEN = 48
LAYERS = 4
TEXT = "a cab bad  bee, feed\nface café 🤔 bed e\u0301d."


def _common(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **more,
    }


def _config(family: str) -> Any:
    import transformers as tf

    makers: dict[str, Callable[[], Any]] = {
        "llama": lambda: tf.LlamaConfig(**_common()),
        "llama_yarn": lambda: tf.LlamaConfig(
            **_common(
                rope_parameters={
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                }
            )
        ),
        "mistral": lambda: tf.MistralConfig(**_common(sliding_window=16)),
        "qwen2": lambda: tf.Qwen2Config(**_common()),
        "qwen3": lambda: tf.Qwen3Config(**_common(head_dim=16)),
        "phi3": lambda: tf.Phi3Config(**_common()),
        "gemma2": lambda: tf.Gemma2Config(
            **_common(
                head_dim=16,
                sliding_window=16,
                attn_logit_softcapping=5.0,
                final_logit_softcapping=3.0,
                query_pre_attn_scalar=16,
            )
        ),
        "gemma3": lambda: tf.Gemma3TextConfig(
            **_common(
                head_dim=16,
                sliding_window=16,
                query_pre_attn_scalar=16,
                layer_types=["sliding_attention", "full_attention"] * (LAYERS // 2),
            )
        ),
        "gpt_neox": lambda: tf.GPTNeoXConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=64,
            num_hidden_layers=LAYERS,
            num_attention_heads=3,
            max_position_embeddings=512,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
            },
        ),
        "gpt2": lambda: tf.GPT2Config(
            vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=LAYERS, n_head=3, n_positions=512
        ),
        "cohere": lambda: tf.CohereConfig(**_common(logit_scale=0.25)),
        "granite": lambda: tf.GraniteConfig(**_common(logits_scaling=4.0)),
        "olmo2": lambda: tf.Olmo2Config(**_common()),
        "smollm3": lambda: tf.SmolLM3Config(**_common(no_rope_layer_interval=2)),
        "gpt_oss": lambda: tf.GptOssConfig(
            **_common(head_dim=16, num_local_experts=2, num_experts_per_tok=1, sliding_window=16)
        ),
        "deepseek_v3": lambda: tf.DeepseekV3Config(
            **_common(
                num_key_value_heads=6,
                n_routed_experts=4,
                num_experts_per_tok=1,
                n_group=1,
                topk_group=1,
                moe_intermediate_size=16,
                kv_lora_rank=16,
                q_lora_rank=16,
                qk_rope_head_dim=8,
                qk_nope_head_dim=8,
                v_head_dim=16,
            )
        ),
    }
    return makers[family]()


def tiny_model(family: str, *, seed: int = 0, attention: str | None = None) -> Any:
    """A float32 model of a family with random weights of a size that makes outputs differ."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    options = {} if attention is None else {"attn_implementation": attention}
    model = AutoModelForCausalLM.from_config(_config(family), **options).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Norm weights too: left at their initial 1 or 0 a forgotten norm would not show.
            noise = torch.randn_like(weight)
            weight.add_(noise * (0.2 if "norm" in name or "ln" in name else 0.1))
    return model.requires_grad_(False)


def token_ids(n: int, *, seed: int = 0) -> torch.Tensor:
    """Random token ids, shape (1, n)."""
    ids = np.random.default_rng(seed).integers(3, VOCABULARY, size=(1, n))
    return torch.from_numpy(ids)


def byte_tokenizer(**special: Any) -> Any:
    """A byte-level tokenizer of the bytes in TEXT, small enough for the tiny models."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    cut = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(TEXT)
    letters = sorted({letter for piece, _ in cut for letter in piece})
    vocabulary = {letter: place for place, letter in enumerate(letters)}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    vocabulary["<|im_start|>"] = len(vocabulary)
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=None))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    options = {"bos_token": "<|endoftext|>", **special}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **options)
