"""`distraction` on plain models: uniform attention, transformers' own matrices, plans, errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles_attention import eager_attentions
from tiny_lm import tiny_lm
from tiny_models import byte_tokenizer, tiny_model

from workbench.core.errors import DataError, InputError, MissingDataError, TextTooLongError
from workbench.core.story import Story
from workbench.models import LanguageModel
from workbench.recording import adapter
from workbench.recording.instruments import Instruments
from workbench.recording.window_observer import WindowObserver
from workbench.stories.alignment import untimed_words
from workbench.tasks.distraction import distraction
from workbench.tasks.distraction_readings import places_of, plan_readings

SENTENCE = "it rained on the town and did not mind she said stay he left at noon"
WORDS = SENTENCE.split()


def texts(n=6, words=150, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, words)) for _ in range(n)]


@pytest.fixture(scope="module")
def lm():
    return tiny_lm()


# --- values --------------------------------------------------------------------------------


def test_uniform_attention_gives_one_over_d():
    blind = tiny_lm("blind")
    for layer in blind.model.model.layers:
        layer.self_attn.q_proj.weight.data.zero_()
    table = distraction(blind, texts(), d=(1, 2, 3, 5), window=24, draws=50).table
    assert np.abs(table["value"] - 1 / table["d"]).max() < 1e-12
    assert np.abs(table["low"] - 1 / table["d"]).max() < 1e-12
    assert np.abs(table["high"] - 1 / table["d"]).max() < 1e-12
    # Mean over C_curr's queries of d·W keys among those seen: start token, windows, itself.
    for d in (1, 5):
        expected = np.mean([d * 24 / (1 + d * 24 + i) for i in range(1, 25)])
        assert np.allclose(table[table["d"] == d]["previous_mass"], expected)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3", "gpt_oss", "smollm3"])
def test_masses_are_those_of_transformers_own_attention(family):
    """Grouped heads, sliding windows, caps and sinks included."""
    window, d = 13, 3
    ids = torch.from_numpy(np.random.default_rng(1).integers(3, 120, 1 + (d + 1) * window))
    matrices = eager_attentions(tiny_model(family, attention="eager"), ids[None])
    model = tiny_model(family)
    layers = list(range(len(matrices)))
    observer = WindowObserver(layers, 1, d, window)
    with torch.inference_mode(), Instruments(model, [observer]):
        adapter.hidden_states(model, ids)
    for layer in layers:
        for k in range(d):
            expected = matrices[layer, :, -window:, 1 + k * window : 1 + (k + 1) * window].sum(-1)
            assert np.abs(observer.masses[layer][..., k] - expected).max() < 1e-5


def test_the_table_from_whole_matrices(lm):
    """Everything from texts to numbers once more, with loops over eager attention."""
    documents, window = texts(5), 20
    result = distraction(lm, documents, d=(1, 3), window=window, layers=[0, 2], draws=10, seed=4)
    tokens = [lm.tokenizer(t, add_special_tokens=False)["input_ids"] for t in documents]
    eager = tiny_lm()
    eager.model.set_attn_implementation("eager")
    windows = {
        tuple(ids[k * window : (k + 1) * window]): (i, k)
        for i, ids in enumerate(tokens)
        for k in range(len(ids) // window)
    }
    read: list[list[int]] = []
    original = adapter.hidden_states

    def keep(model, ids):
        read.append(ids.tolist())
        return original(model, ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "hidden_states", keep)
        distraction(lm, documents, d=(1, 3), window=window, layers=[0, 2], draws=10, seed=4)
    assert len(read) == 10
    sums: dict[tuple[int, int, int], list[float]] = {}
    for ids in read:
        parts = [tuple(ids[1 + s : 1 + s + window]) for s in range(0, len(ids) - 1, window)]
        asks = windows[parts[-1]]
        where = [windows[part] for part in parts[:-1]]
        own = where.index((asks[0], asks[1] - 1))
        assert sum(document == asks[0] for document, _ in where) == 1
        matrices = eager_attentions(eager.model, torch.tensor([ids]))
        for layer in (0, 2):
            for head in range(4):
                for row in matrices[layer, head, -window:]:
                    mass = row[1 : 1 + len(where) * window].reshape(len(where), window).sum(1)
                    key = (layer, head, len(where))
                    sums.setdefault(key, []).append(mass[own] / mass.sum())
    table = result.table[result.table["statistic"] == "mean of ratios"]
    table = table.set_index(["layer", "head", "d"])["value"]
    assert len(sums) == 16
    for key, ratios in sums.items():
        assert table[key] == pytest.approx(np.mean(ratios), abs=1e-6)


def test_a_model_that_copies_its_document_is_above_the_baseline(lm):
    """Keys and queries that carry the token itself: equal words attract each other."""
    focused = tiny_lm("focused", layers=1)
    layer = focused.model.model.layers[0].self_attn
    eye = torch.eye(32)
    layer.q_proj.weight.data.copy_(eye)
    layer.k_proj.weight.data.copy_(eye[:16])
    layer.q_proj.weight.data *= 6
    focused.model.model.rotary_emb.inv_freq.zero_()  # no positions
    vocabularies = [WORDS[3 * i : 3 * i + 3] for i in range(5)]
    rng = np.random.default_rng(0)
    documents = [" ".join(rng.choice(words, 120)) for words in vocabularies]
    table = distraction(focused, documents, d=(4,), window=24, draws=200).table
    row = table[(table["head"] == 0) & (table["layer"] == 0)].iloc[0]
    assert row["low"] > 0.3 > row["baseline"]


def test_sliding_windows_are_said(lm):
    model = tiny_model("mistral")  # each token sees the last 16
    short = LanguageModel("short", model, byte_tokenizer(), provenance="random weights")
    documents = ["a cab bad bee feed " * 8, "face bed bee cab dad " * 8, "bad feed a bee " * 9]
    table = distraction(short, documents, d=(2,), window=20, draws=10).table
    one = table[table["layer"] == 0]
    assert one["note"].str.startswith("a token sees the last 16 tokens only").all()
    # Only the nearest window is in reach: where it is foreign the ratio is 0, where own 1.
    assert set(one["n_documents"]) == {3}
    assert one["value"].between(0, 1).all()


def test_answers_choose_windows_and_queries(lm):
    documents = texts(4)
    spans = [[(text.index("noon"), text.index("noon") + 4)] for text in documents]
    late = [[(len(text) // 2, len(text) // 2 + 6)] for text in documents]
    result = distraction(lm, documents, d=(1, 2), window=20, answers=late, draws=10)
    for masses in result.masses.values():
        assert masses.answers is not None
        assert (masses.answers.sum(1) >= 1).all()
        assert (masses.answers.sum(1) <= 8).all()
    assert set(result.table["queries"]) == {"all", "answers"}
    with pytest.raises(InputError, match="answers has 1 entries for 4 documents"):
        distraction(lm, documents, d=(1,), window=20, answers=spans[:1])
    with pytest.raises(InputError, match=r"document 0: the answer \(5, 2\) is no span"):
        distraction(lm, documents, d=(1,), window=20, answers=[[(5, 2)]] * 4)
    with pytest.raises(DataError, match="predicts an answer's token"):
        distraction(lm, documents, d=(1,), window=20, answers=[[]] * 4)


def test_an_answer_is_predicted_by_the_token_before_it(lm):
    text = texts(1)[0]
    tokens = lm.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = tokens["offset_mapping"]
    chosen = 47  # token; the query that predicts it is token 46, the 6th of window 2
    result = distraction(lm, [text], d=(1,), window=20, answers=[[tuple(spans[chosen])]], draws=10)
    assert np.flatnonzero(result.masses[1].answers[0]).tolist() == [6]


# --- plans ---------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5), st.integers(0, 10**6))
def test_places_are_balanced(n, d, orders, seed):
    places = places_of(n, d, np.random.default_rng(seed), orders)
    assert places.shape == (n, orders)
    counts = np.bincount(places.ravel(), minlength=d)
    assert len(counts) == d
    assert counts.sum() == n * orders
    assert counts.min() >= n * orders // d
    assert counts.max() <= -(-n * orders // d)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_with_as_many_orders_as_places_each_window_has_every_place(n, d, seed):
    places = places_of(n, d, np.random.default_rng(seed), d)
    assert (np.sort(places, axis=1) == np.arange(d)).all()


def test_each_place_is_as_likely_as_any_other_with_few_readings():
    counts = np.zeros(7)
    for seed in range(2000):
        counts += np.bincount(places_of(3, 7, np.random.default_rng(seed))[:, 0], minlength=7)
    assert np.abs(counts / counts.sum() - 1 / 7).max() < 0.01


@settings(deadline=None)
@given(
    st.lists(st.integers(2, 6), min_size=3, max_size=7),
    st.integers(0, 10**6),
    st.booleans(),
    st.integers(1, 3),
)
def test_plans_keep_their_rules(n_windows, seed, bar_own, orders):
    current = [(i, 1 + seed % (n - 1)) for i, n in enumerate(n_windows)]
    sizes = [1, 2, min(4, sum(n_windows) - max(n_windows) + 1)]
    options = {"orders": orders, "bar_own": bar_own, "seed": seed}
    plans = plan_readings(n_windows, current, sizes, **options)
    before: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for d in sorted(set(sizes)):
        assert len(plans[d]) == len(current) * min(orders, d)
        for reading in plans[d]:
            document, number = reading.current
            assert len(reading.previous) == d == len(set(reading.previous))
            assert reading.previous[reading.place] == (document, number - 1)
            assert reading.current not in reading.previous
            assert all(0 <= k < n_windows[i] for i, k in reading.previous)
            others = [i for i, _ in reading.previous if i != document]
            if bar_own:
                assert len(others) == d - 1
                # A document gives a second window only when each has given one.
                assert len(set(others)) == min(d - 1, len(n_windows) - 1)
            assert before.get(reading.current, set()) <= set(reading.previous)
            before[reading.current] = set(reading.previous)
    assert plans == plan_readings(n_windows, current, sizes, **options)


def test_seeds_and_sizes_are_independent(lm):
    """A d has the same windows that ask, whatever other d are measured; another seed has others."""
    documents = texts()
    both = distraction(lm, documents, d=(2, 4), window=20, draws=10).table
    alone = distraction(lm, documents, d=(4,), window=20, draws=10).settings
    assert alone["n_windows"] == 6
    assert alone["n_readings"] == {4: 6}
    again = distraction(lm, documents, d=(2, 4), window=20, draws=10).table
    assert both.equals(again)
    other = distraction(lm, documents, d=(2, 4), window=20, draws=10, seed=1).table
    assert not np.allclose(both["value"], other["value"])


# --- documents and errors ------------------------------------------------------------------


def test_documents_as_texts_stories_and_files(lm, tmp_path):
    documents = texts(4)
    path = tmp_path / "docs.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}) for t in documents), encoding="utf-8")
    given_ = [
        documents,
        [Story(f"s{i}", t, untimed_words(t)) for i, t in enumerate(documents)],
        path,
        [*documents, documents[1], "too short", " "],
    ]
    results = [distraction(lm, one, d=(2,), window=20, draws=10) for one in given_]
    for other in results[1:]:
        assert np.array_equal(other.table["value"], results[0].table["value"])
    assert results[3].settings["n_repeated"] == 1
    assert results[3].settings["n_too_short"] == 2
    assert results[3].settings["n_given"] == 7
    assert results[3].settings["n_documents"] == 4


def test_every_place_takes_a_preference_for_places_out(lm):
    """A model that only goes by place has 1/d for each document, and no interval around it."""
    near = tiny_lm("near")
    for layer in near.model.model.layers:  # the same query and key whatever the token
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data.zero_()
            projection.bias = torch.nn.Parameter(torch.full((projection.out_features,), 2.0))
    options = {"d": (4,), "window": 20, "draws": 20}
    one = distraction(near, texts(5), **options).table
    all_places = distraction(near, texts(5), orders=4, **options)
    assert all_places.settings["n_readings"] == {4: 20}
    mean = all_places.table[all_places.table["statistic"] == "mean of ratios"]
    assert np.abs(mean[["value", "low", "high"]] - 0.25).max(axis=None) < 1e-6
    assert (one["high"] - one["low"]).max() > 0.05


def test_limit_and_several_windows_per_document(lm):
    result = distraction(lm, texts(), d=(2,), window=20, windows_per_document=3, limit=3, draws=10)
    assert result.settings["n_documents"] == 3
    assert result.settings["n_windows"] == 9
    assert set(result.table["n_readings"]) == {9}
    assert "3 documents" in repr(result)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"d": (1, 200)},
            TextTooLongError,
            r"needs 4021 tokens, and tiny reads 2048; the largest "
            "d that fits is 101",
        ),
        ({"d": (0,)}, InputError, "d=0 must be a whole number of at least 1"),
        ({"d": ()}, InputError, "d is empty"),
        ({"d": (60,)}, DataError, "d=60 needs 59 windows of other documents beside document 0"),
        ({"window": 0}, InputError, "window=0"),
        ({"window": 500}, DataError, "none of the 6 documents has two windows of 500 tokens"),
        ({"layers": [7]}, InputError, r"layers \[7\]: this model has attention in \[0, 1, 2\]"),
        ({"windows_per_document": 0}, InputError, "windows_per_document=0"),
        ({"limit": 0}, InputError, "limit=0"),
        ({"orders": 0}, InputError, "orders=0"),
        ({"draws": 0}, InputError, "draws=0"),
    ],
)
def test_bad_inputs_are_named(lm, options, error, message):
    with pytest.raises(error, match=message):
        distraction(lm, texts(words=80), **{"d": (1, 2), "window": 20, **options})


def test_bad_documents_are_named(lm, tmp_path):
    with pytest.raises(InputError, match="document 1 is of type int"):
        distraction(lm, ["a b", 3], window=20)
    with pytest.raises(MissingDataError, match="is not there"):
        distraction(lm, tmp_path / "none.jsonl", window=20)
