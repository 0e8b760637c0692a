"""A tiny random Llama with a real byte-level tokenizer; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch

from workbench.models import LanguageModel

__all__ = ["tiny_lm", "tiny_tokenizer"]

_TEXT = "It rained on the town, and the town did not mind. She said: stay! He left at noon."


def tiny_tokenizer(size: int = 300) -> Any:
    """A byte-level BPE tokenizer; reads any text, `<|endoftext|>` is its only special token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def tiny_lm(name: str = "tiny", *, layers: int = 3, seed: int = 0) -> LanguageModel:
    """A random Llama: `layers` layers, 4 query and 2 key-value heads of 8 dimensions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return LanguageModel(name, model.requires_grad_(False), tokenizer, provenance="random weights")
