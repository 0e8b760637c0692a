"""Measures of prediction against their definitions, from the full logits of plain transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import VOCABULARY, tiny_model
from transformers import PreTrainedTokenizerFast

import workbench as wb
from workbench.core.story import Story
from workbench.models import LanguageModel
from workbench.recording import distributions
from workbench.recording.markers import word_ends
from workbench.recording.measures import (
    CORRECTED,
    MEASURES,
    spans_of_words,
)
from workbench.stories.alignment import untimed_words

TEXT = (
    "It rained on the town, and the town did not mind.\n\nShe said: stay! He left at noon, "
    "unbelievably quietly; nobody saw him go."
)
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
    "granite",
    "olmo2",
    "smollm3",
    "gpt_oss",
]


def story(text=TEXT):
    return Story("s", text, untimed_words(text))


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Characters of printable ASCII as tokens, of few enough kinds for the tiny families."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["<s>", "</s>", "<unk>", *(chr(c) for c in range(33, 127)), "Ġ", "Ċ", "Ġt", "Ġto"]
    pieces += ["Ġth", "he", "ow", "in"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    assert len(vocabulary) <= VOCABULARY
    merges = [("Ġ", "t"), ("Ġt", "o"), ("Ġt", "h"), ("h", "e"), ("o", "w"), ("i", "n")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def log_probabilities(lm, ids):
    with torch.no_grad():
        logits = lm.model(torch.as_tensor(ids)[None], use_cache=False).logits[0]
    return torch.log_softmax(logits.double(), dim=-1).numpy()


def kl(new, old):
    return float((np.exp(new) * (new - old)).sum())


def oracle(lm, trace, bos):
    """All measures of all tokens and words from log p (positions, vocabulary)."""
    ids = trace.dataset["token_id"].values
    n, n_words = len(ids), trace.n_words
    read = ids if bos is None else np.concatenate([[bos], ids])
    log_p = log_probabilities(lm, read)
    if bos is None:
        log_p = np.concatenate([np.full((1, log_p.shape[1]), np.nan), log_p])
    token = {name: np.full(n, np.nan) for name in MEASURES}
    for t in range(n):
        before, after = log_p[t], log_p[t + 1]
        p = np.exp(before)
        token["surprisal"][t] = -before[ids[t]]
        token["entropy"][t] = -(p * before).sum()
        token["varentropy"][t] = (p * (-before - token["entropy"][t]) ** 2).sum()
        if np.isfinite(before[0]):
            token["rank"][t] = 1 + (before > before[ids[t]]).sum()
        token.update()
        for name, value in divergences(before, after).items():
            token[name][t] = value
    word = {name: np.full(n_words, np.nan) for name in [*MEASURES, CORRECTED]}
    spaced = word_ends(lm.tokenizer, log_p.shape[1])
    for w in range(n_words):
        members = np.flatnonzero(trace.token_word == w)
        if not len(members):
            continue
        first, last = members[0], members[-1] + 1
        word["surprisal"][w] = token["surprisal"][members].sum()
        word["entropy"][w] = token["entropy"][first]
        word["varentropy"][w] = token["varentropy"][first]
        for name, value in divergences(log_p[first], log_p[last]).items():
            word[name][w] = value
        corrected = word["surprisal"][w] - np.log(np.exp(log_p[last])[spaced].sum())
        if spaced[ids[first]]:
            corrected += np.log(np.exp(log_p[first])[spaced].sum())
        word[CORRECTED][w] = corrected
    del word["rank"]
    return token, word


def divergences(before, after):
    mixed = np.log((np.exp(before) + np.exp(after)) / 2)
    return {
        "bayesian_surprise": kl(after, before),
        "bayesian_surprise_old_new": kl(before, after),
        "jensen_shannon": (kl(after, mixed) + kl(before, mixed)) / 2,
    }


@pytest.mark.parametrize("bos", ["auto", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_measure_is_its_definition(family, bos, monkeypatch):
    monkeypatch.setattr(distributions, "_BLOCK", 7)  # blocks and rows end within words
    monkeypatch.setattr(distributions, "_ROWS", 3)
    lm = LanguageModel(family, tiny_model(family), small_tokenizer())
    trace = wb.record(story(), lm, keys=False, measures="all", bos=bos)
    tokens, words = oracle(lm, trace, lm.tokenizer.bos_token_id if bos == "auto" else None)
    assert (np.diff(spans_of_words(trace.token_word, trace.n_words), axis=0) > 1).any()
    for name, expected in tokens.items():
        np.testing.assert_allclose(
            trace.dataset[name].values, expected, atol=1e-5, rtol=1e-5, err_msg=name
        )
        assert trace.dataset[name].attrs["units"] == MEASURES[name].units
    for name, expected in words.items():
        found = trace.dataset[f"word_{name}"].values
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-5, err_msg=name)
    assert np.isnan(trace.dataset["bayesian_surprise"].values[0]) == (bos == "none")
    assert np.isfinite(trace.dataset["bayesian_surprise"].values[1:]).all()
    assert "word_rank" not in trace.dataset
