"""Generating with a memory: against scoring, in batches, and what goes wrong on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from memory_helpers import FAMILIES, family_lm, ids_of, letters, words
from tiny_lm import tiny_lm

from workbench.core.errors import DataError, InputError, ModelError
from workbench.memory import EMLLM, FullContext, make_system
from workbench.recording import adapter

SMALL = {"n_init": 4, "n_local": 16, "chunk": 8}
EVENTS = {"min_values": 4, "min_size": 2, "max_size": 12}
NEW = 9


@pytest.fixture(scope="module")
def tiny():
    lm = tiny_lm(layers=2)
    lm.model.generation_config.eos_token_id = None
    return lm


def new_ids(system, n, row=0):
    return system.rows[row].text.ids[-n:]


@pytest.mark.parametrize("family", FAMILIES)
def test_full_context_generates_what_the_model_does(family):
    lm = family_lm(family)
    lm.model.generation_config.eos_token_id = None
    text, prompt = letters(40), letters(80, seed=1)
    system = FullContext(lm, chunk=16).read(text)
    system.generate(prompt, max_new_tokens=NEW)
    start = [] if system.start is None else [system.start]
    given = torch.tensor([start + ids_of(lm, text) + ids_of(lm, prompt)])
    expected = lm.model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=NEW, do_sample=False,
        pad_token_id=0,
    )  # fmt: skip
    assert new_ids(system, NEW) == expected[0, given.shape[1] :].tolist()


@pytest.mark.parametrize("method", ["S", "SM+C", "F:5"])
@pytest.mark.parametrize("per_head", [False, True])
def test_greedy_generation_is_scoring_token_by_token(tiny, method, per_head):
    """With chunks of one token, each its own query, reading and generating are the same."""
    more = EVENTS if method[0] == "S" else {}
    system, reader = (
        EMLLM(
            tiny, method, n_mem=10, n_init=4, n_local=12, chunk=1, query="token",
            per_head=per_head, **more,
        ).read(words(30))
        for _ in range(2)
    )  # fmt: skip
    prompt = words(5, seed=1)
    system.generate(prompt, max_new_tokens=NEW)
    ids = new_ids(system, NEW)
    with reader.branch():  # the greedy choice at each step, from reading alone
        reader.read(prompt)
        for token in ids:
            hidden = reader.rows[0].hidden
            assert int(tiny.model.lm_head(hidden).argmax()) == token
            reader._read_ids([[token]])
        np.testing.assert_allclose(reader.surprisal, system.surprisal, atol=1e-4)
        assert reader.events.starts.tolist() == system.events.starts.tolist()
        columns = ["position", "layer", "head", "unit", "rank"]
        assert reader.retrievals[columns].equals(system.retrievals[columns])


def test_default_generation_is_step_by_step(tiny):
    system, other = (EMLLM(tiny, "SM+C", n_mem=10, **SMALL, **EVENTS).read(words(40)) for _ in "ab")
    prompt = words(4, seed=1)
    system.generate(prompt, max_new_tokens=NEW)
    tokens = ids_of(tiny, prompt)
    other._pieces[0].append((other.n_tokens, prompt))
    with other.attached() as session:
        for place in range(len(tokens) + NEW):
            logits = tiny.model(
                torch.tensor([[tokens[place]]]),
                use_cache=True,
                **{adapter.cache_argument(tiny.model): session.cache},
            ).logits
            if place >= len(ids_of(tiny, prompt)) - 1:
                tokens.append(int(logits[0, -1].argmax()))
    assert new_ids(system, NEW) == tokens[-NEW - 1 : -1]
    np.testing.assert_allclose(other.surprisal, system.surprisal, atol=1e-5)


@pytest.mark.parametrize("method", ["S+C", "SM"])
def test_a_batch_generates_as_each_alone(tiny, method):
    texts = [words(n, seed=n) for n in (40, 12, 25)]
    prompts = [words(n, seed=n + 1) for n in (3, 50, 9)]
    batch = EMLLM(tiny, method, n_mem=10, **SMALL, **EVENTS).read(texts)
    answers = batch.generate(prompts, max_new_tokens=NEW)
    again = batch.generate(prompts[::-1], max_new_tokens=NEW)
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        alone = EMLLM(tiny, method, n_mem=10, **SMALL, **EVENTS).read(text)
        assert alone.generate(prompt, max_new_tokens=NEW) == answers[row]
        assert alone.generate(prompts[::-1][row], max_new_tokens=NEW) == again[row]
        np.testing.assert_allclose(
            batch.rows[row].text.measures["surprisal"], alone.surprisal, atol=1e-4
        )
        assert batch.events_of(row).starts.tolist() == alone.events.starts.tolist()


def test_a_text_that_ends_first_waits_for_the_others(tiny):
    texts = [words(20, seed=n) for n in range(3)]
    free = EMLLM(tiny, "S", n_mem=10, **SMALL, **EVENTS).read(texts)
    free.generate(["It", "He", "She"], max_new_tokens=NEW)
    end = new_ids(free, NEW, 0)[2]
    batch = EMLLM(tiny, "S", n_mem=10, **SMALL, **EVENTS).read(texts)
    batch.generate(["It", "He", "She"], max_new_tokens=NEW, eos_token_id=end)
    for row in range(3):
        new = new_ids(free, NEW, row)
        stop = new.index(end) + 1 if end in new else NEW
        ids = batch.rows[row].text.ids
        assert ids == free.rows[row].text.ids[: len(free.rows[row].text.ids) - NEW + stop]
        assert batch.rows[row].closed is False
    before = [len(row.text.ids) for row in batch.rows]
    batch.read(["He left"] * 3)
    assert [len(row.text.ids) for row in batch.rows] == [
        n + len(ids_of(tiny, "He left")) for n in before
    ]


def test_padding_after_a_stop_string_is_not_remembered(tiny):
    texts = [words(20, seed=n) for n in range(3)]
    free = small(tiny).read(texts)
    free.generate(["It", "He", "She"], max_new_tokens=NEW)
    new = [new_ids(free, NEW, row) for row in range(3)]
    word = tiny.tokenizer.decode([new[0][2]])
    used = {token for row in free.rows for token in row.text.ids}
    pad = max(set(range(2, len(tiny.tokenizer))) - used)
    batch = small(tiny).read(texts)
    before = [len(row.text.ids) for row in batch.rows]
    tiny.tokenizer.pad_token_id, kept = pad, tiny.tokenizer.pad_token_id
    try:
        options = {"stop_strings": [word], "tokenizer": tiny.tokenizer}
        # An end that never comes: transformers fills up ended texts only where there is one.
        batch.generate(["It", "He", "She"], max_new_tokens=NEW, eos_token_id=pad - 1, **options)
    finally:
        tiny.tokenizer.pad_token_id = kept
    lengths = []
    for row in range(3):
        ids = batch.rows[row].text.ids
        assert pad not in ids
        assert ids == free.rows[row].text.ids[: len(ids)]
        lengths.append(len(ids) - before[row])
    assert min(lengths) < max(lengths)  # some text was stopped before another


def test_an_interrupted_generation_closes_nothing(tiny):
    from transformers import StoppingCriteria, StoppingCriteriaList

    closed = []

    class Interrupt(StoppingCriteria):
        def __call__(self, ids, scores, **_):
            if ids.shape[1] > 6:
                closed[:] = [row.closed for row in system.rows]
                raise KeyboardInterrupt
            return torch.zeros(len(ids), dtype=torch.bool)

    texts = [words(20), words(20, seed=1)]
    free = small(tiny).read(texts)
    free.generate(["It", "He"], max_new_tokens=NEW)
    end = new_ids(free, NEW)[0]
    system = small(tiny).read(texts)
    before = [len(row.text.ids) for row in system.rows]
    events = [system.events_of(row).starts.tolist() for row in range(2)]
    with pytest.raises(KeyboardInterrupt):
        system.generate(
            ["It", "He"],
            max_new_tokens=NEW,
            eos_token_id=end,
            stopping_criteria=StoppingCriteriaList([Interrupt()]),
        )
    assert not any(row.closed for row in system.rows)
    assert closed == [True, False]  # the first had ended when it was interrupted
    assert [len(row.text.ids) for row in system.rows] == before
    assert [system.events_of(row).starts.tolist() for row in range(2)] == events
    system.read(["He left"] * 2)
    more = len(ids_of(tiny, "He left"))
    assert [len(row.text.ids) for row in system.rows] == [n + more for n in before]
    # The plain model is itself again.
    given = torch.tensor([[5, 6, 7]])
    assert tiny.model(given).logits.isfinite().all()


def test_stopping_sampling_and_streaming_are_transformers_own(tiny):
    from transformers import TextStreamer

    system = EMLLM(tiny, "S", n_mem=10, **SMALL, **EVENTS).read(words(30))
    torch.manual_seed(1)
    sampled = system.generate("It", max_new_tokens=NEW, do_sample=True, keep=False)
    torch.manual_seed(1)
    assert system.generate("It", max_new_tokens=NEW, do_sample=True, keep=False) == sampled
    streamed = []

    class Streamer(TextStreamer):
        def on_finalized_text(self, text, stream_end=False):
            streamed.append(text)

    answer = system.generate(
        "It", max_new_tokens=NEW, streamer=Streamer(tiny.tokenizer, skip_prompt=True)
    )
    assert "".join(streamed) == answer


# --- bad input -------------------------------------------------------------------------------


def small(lm, method="S", **more):
    return EMLLM(lm, method, n_mem=10, **{**SMALL, **EVENTS, **more})


@pytest.mark.parametrize(
    "options", [{"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}]
)
def test_beams_are_refused_and_nothing_is_changed(tiny, options):
    system = small(tiny).read(words(20))
    n, pieces = system.n_tokens, system.pieces()
    with pytest.raises(InputError, match="one continuation"):
        system.generate("It", max_new_tokens=3, **options)
    assert (system.n_tokens, system.pieces()) == (n, pieces)


def test_a_batch_with_an_empty_text_is_not_half_read(tiny):
    system = small(tiny)
    with pytest.raises(DataError, match="no text"):
        system.read(["It rained", ""])
    system.read("It rained")  # the size of a batch that was never read binds nobody
    n, pieces = system.n_tokens, system.pieces()
    with pytest.raises(DataError, match="no text"):
        system.read("")
    with pytest.raises(DataError, match="no text"):
        system.generate("")
    assert (system.n_tokens, system.pieces()) == (n, pieces)
    with pytest.raises(DataError, match="list is empty"):
        system.read([])
    with pytest.raises(InputError, match=r"holds 1 text\(s\), and 2 were given"):
        system.read(["a", "b"])


def test_a_released_query_is_not_scored_unless_asked_for(tiny):
    system = small(tiny, query="chunk").read(words(30))
    with pytest.raises(InputError, match="later tokens choose what earlier ones see"):
        system.score("He left")
    assert np.isfinite(system.score("He left", force=True)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda lm: make_system("emlm", lm), "system"),
        (lambda lm: make_system("emllm-Q", lm), "Q"),
        (lambda lm: make_system("emllm-S+D", lm), "only C"),
        (lambda lm: small(lm, store="disk"), "folder="),
        (lambda lm: small(lm, store="cloud"), "store"),
        (lambda lm: small(lm, query="next"), "query"),
        (lambda lm: small(lm, position="first"), "position"),
        (lambda lm: small(lm, n_local=4096), "at most 2048"),
        (lambda lm: small(lm, n_local=0), "n_local"),
        (lambda lm: small(lm, share=1.0), "contiguity"),
        (lambda lm: small(lm, "H"), "given"),
        (lambda lm: small(lm, "SM", layers=(7,)), "layers 0"),
        (lambda lm: small(family_lm("mistral"), n_local=17), "sees 16 tokens"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(tiny, make, message):
    with pytest.raises(InputError, match=message):
        make(tiny)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "gpt2"])
def test_models_that_cannot_be_are_refused(family):
    with pytest.raises(ModelError):
        EMLLM(family_lm(family), "S", **SMALL).read(letters(5))
