"""Measures of prediction against their definitions, from the full logits of plain transformers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tiny_lm import tiny_lm, tiny_tokenizer
from tiny_models import VOCABULARY, tiny_model
from transformers import PreTrainedTokenizerFast

import workbench as wb
from workbench.core.errors import InputError, ModelError
from workbench.core.story import Story
from workbench.models import LanguageModel
from workbench.recording import dataset, distributions
from workbench.recording.markers import word_ends
from workbench.recording.measures import (
    CORRECTED,
    DEFAULT_MEASURES,
    MEASURES,
    chosen_measures,
    corrected_by_word,
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


# --- choosing, and values per word ---------------------------------------------------------


def test_default_is_documented_and_surprisal_is_always_there():
    lm = tiny_lm()
    found = wb.record(story(), lm, keys=False).dataset
    assert [name for name in MEASURES if name in found] == list(DEFAULT_MEASURES)
    only = wb.record(story(), lm, keys=False, measures="entropy")
    assert only.settings["measures"] == ["surprisal", "entropy"]
    np.testing.assert_array_equal(only.dataset["entropy"].values, found["entropy"].values)
    assert chosen_measures(["rank", "surprisal"]) == ("surprisal", "rank")
    assert chosen_measures("all") == (*MEASURES, CORRECTED)
    with pytest.raises(InputError, match=r"measures='surprise' is not known. Choose one of: 'all'"):
        wb.record(story(), lm, measures=["surprise"])


def test_word_bayesian_surprise_is_no_sum():
    trace = wb.record(story(), tiny_lm(), keys=False)
    tokens = trace.dataset["bayesian_surprise"].values
    words = trace.dataset["word_bayesian_surprise"].values
    first, last = spans_of_words(trace.token_word, trace.n_words)
    one = last - first == 1
    assert one.any()
    np.testing.assert_array_equal(words[one], tokens[first[one]])
    sums = np.array([tokens[a:b].sum() for a, b in zip(first, last)])
    assert (np.abs(sums - words)[~one] > 1e-3).all()
    table = trace.words()
    np.testing.assert_array_equal(table["bayesian_surprise"], words)
    assert {"surprisal", "entropy", "varentropy"} <= set(table.columns)


def test_relations_between_measures():
    """JS lies under log 2 and half of either divergence's mean; varentropy is not negative."""
    data = wb.record(story(), tiny_lm(), keys=False, measures="all").dataset
    both = data["bayesian_surprise"] + data["bayesian_surprise_old_new"]
    assert (data["jensen_shannon"] <= np.minimum(np.log(2), both / 4) + 1e-6).all()
    for name in ("entropy", "varentropy", "bayesian_surprise", "jensen_shannon"):
        assert (data[name] >= 0).all()
    assert (data["entropy"] <= np.log(len(tiny_tokenizer())) + 1e-6).all()
    assert (data["rank"] >= 1).all()


# --- correction for word-initial markers ---------------------------------------------------


def test_word_ends_are_spaces_and_specials():
    tokenizer = small_tokenizer()
    ends = word_ends(tokenizer, VOCABULARY + 3)
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    found = {piece for piece, end in zip(pieces, ends) if end}
    assert found == {"<s>", "</s>", "Ġ", "Ċ", "Ġt", "Ġto", "Ġth"}
    assert not ends[len(tokenizer) :].any()


def test_corrected_word_probabilities_sum_to_one():
    """A made-up language: every word over " a", " b", "a", "b", end, to a length, and the rest."""
    rng = np.random.default_rng(0)
    marked, plain = [0, 1], [2, 3]  # " a", " b"; "a", "b"; 4 ends the text
    ends = np.array([True, True, False, False, True])
    given: dict[tuple[int, ...], np.ndarray] = {}

    def p(before):
        return given.setdefault(before, rng.dirichlet(np.ones(5)))

    context = (0, 2)  # a word was read; what comes next begins a new word
    longest = 5
    total, open_mass = 0.0, 0.0
    begins = p(context)[ends].sum()
    total += p(context)[4] / begins  # the text ends instead
    for length in range(1, longest + 1):
        for first in marked:
            for rest in itertools.product(plain, repeat=length - 1):
                word = (first, *rest)
                probabilities = [p(context + word[:i])[word[i]] for i in range(length)]
                surprisal = np.array([-np.log(probabilities).sum()])
                before = np.log([p(context + word[:i])[ends].sum() for i in range(length)])
                after = np.log([p(context + word[: i + 1])[ends].sum() for i in range(length)])
                value = corrected_by_word(
                    surprisal, before, after, np.array([0]), np.array([length]), np.array([True])
                )
                total += np.exp(-value[0])
                if length == longest:
                    goes_on = 1 - p(context + word)[ends].sum()
                    open_mass += np.exp(-surprisal[0]) * goes_on / begins
    assert total + open_mass == pytest.approx(1, abs=1e-12)
    assert open_mass < 0.2


def test_correction_telescopes_over_a_text():
    """Between two words one's B(after) is the next one's B(before): only the ends remain."""
    text = "It rained on the town and the town did not mind"
    data = wb.record(story(text), tiny_lm(), keys=False, measures="all")
    plain, corrected = data.dataset["word_surprisal"], data.dataset["word_surprisal_corrected"]
    lm = tiny_lm()
    log_p = log_probabilities(lm, [0, *data.dataset["token_id"].values])
    ends = word_ends(lm.tokenizer, log_p.shape[1])
    after = np.log(np.exp(log_p[-1])[ends].sum())
    assert float(corrected.sum()) == pytest.approx(float(plain.sum()) - after, abs=1e-4)
    assert (np.abs(corrected - plain) > 1e-3).all()


def test_tokenizer_without_markers(monkeypatch):
    from tokenizers import Tokenizer, models

    vocabulary = {piece: place for place, piece in enumerate(["[X]", "It", "rained"])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[X]"))
    assert not word_ends(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="It"), 3).any()

    monkeypatch.setattr(dataset, "word_ends", lambda _, size: np.zeros(size, dtype=bool))
    everything = wb.record(story(), tiny_lm(), measures="all")
    assert everything.settings["measures"] == list(MEASURES)
    with pytest.raises(ModelError, match=r"begins with a space.*leave out 'surprisal_corrected'"):
        wb.record(story(), tiny_lm(), measures=[CORRECTED])


# --- half precision ------------------------------------------------------------------------

# Three times the largest deviation over the dense families here (surprisal: 0.029 and 0.0042 nats).
BOUNDS = {"bfloat16": 0.09, "float16": 0.013}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_models_stay_within_bounds(family, dtype):
    tokenizer = small_tokenizer()
    exact = wb.record(story(), LanguageModel("a", tiny_model(family), tokenizer), measures="all")
    half = LanguageModel("b", tiny_model(family).to(getattr(torch, dtype)), tokenizer)
    found = wb.record(story(), half, measures="all")
    assert found.settings["dtype"] == dtype
    for name in ("surprisal", "entropy", "bayesian_surprise", "jensen_shannon"):
        gaps = np.abs(found.dataset[name].values - exact.dataset[name].values)
        # Rounding can send a token to another expert, and then nothing bounds its difference.
        gap = np.median(gaps) if family == "gpt_oss" else gaps.max()
        assert 0 < gap < BOUNDS[dtype], (name, gap)


def test_log_softmax_of_half_precision_logits_is_float32():
    """Given the half-precision logits, nothing more is lost."""
    model = tiny_model("llama").to(torch.bfloat16)
    lm = LanguageModel("half", model, small_tokenizer())
    trace = wb.record(story(), lm, measures="all")
    tokens, _ = oracle(lm, trace, lm.tokenizer.bos_token_id)
    for name, expected in tokens.items():
        np.testing.assert_allclose(
            trace.dataset[name].values, expected, atol=2e-5, rtol=1e-5, err_msg=name
        )
