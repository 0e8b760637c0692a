from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_models import VOCABULARY, tiny_model

from workbench.analysis.recall.heads import half_width, head_table
from workbench.core.errors import InputError, ModelError, TextTooLongError
from workbench.models import LanguageModel
from workbench.recording.copying import copying_scores, eigenvalue_positivity
from workbench.recording.heads import SCALES, HeadRecall, head_recall
from workbench.recording.instruments import AttentionCall
from workbench.recording.lag_observer import LagObserver

N = 30
LAGS = np.arange(-4, 5)


class Letters:
    """A tokenizer of numbers, with what `head_recall` asks of one."""

    bos_token: str | None = None
    bos_token_id: int | None = None
    all_special_ids: tuple[int, ...] = ()

    def __len__(self) -> int:
        return VOCABULARY

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [str(i) for i in ids]

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(VOCABULARY)}


def language_model(family: str, **options: Any) -> LanguageModel:
    return LanguageModel(family, tiny_model(family, **options), Letters())


def call(query: torch.Tensor, key: torch.Tensor, **options: Any) -> AttentionCall:
    """One layer's attention call from (heads, n, dim) queries and keys, scaling 1."""
    softcap = options.pop("softcap", None)
    return AttentionCall(
        layer=options.pop("layer", 0),
        query=query[None],
        key=key[None],
        value=key[None],
        mask=options.pop("mask", None),
        scaling=1.0,
        softcap=softcap,
        keys_before=None,
        key_source=None,
        options=options,
    )


def induction_call(sources: np.ndarray, strength: float, **options: Any) -> AttentionCall:
    """A perfect induction head: each key holds the token before it, each query its own token."""
    tokens = np.concatenate([[N], np.arange(N), sources])  # a start token first
    own = np.eye(N + 2)[tokens]
    before = np.eye(N + 2)[np.concatenate([[N + 1], tokens[:-1]])]
    return call(torch.tensor(strength * own)[None], torch.tensor(before)[None], **options)


def curves(observer: LagObserver, layer: int = 0) -> dict[str, np.ndarray]:
    return {scale: observer.sums[layer][scale] / observer.counts for scale in SCALES}


def shuffled() -> np.ndarray:
    return np.random.default_rng(5).permutation(N)


# --- heads built by hand -------------------------------------------------------------------


@pytest.mark.parametrize("order", ["exact", "shuffled"])
def test_hand_built_induction_head(order: str) -> None:
    sources = np.arange(N) if order == "exact" else shuffled()
    observer = LagObserver(sources, 1, LAGS)
    strength = 3.0
    observer.attention(induction_call(sources, strength))
    found = {scale: curve[0] for scale, curve in curves(observer).items()}
    peak = (LAGS == 1).astype(float)
    np.testing.assert_allclose(found["raw"], strength * peak, atol=1e-12)
    # The row mean is strength / N: one key of the list matches, except for the last item.
    centred = found["log-centred"]
    assert centred[LAGS == 1] == pytest.approx(strength - strength / N)
    inside = (LAGS >= -3) & (LAGS <= 0)
    assert (np.abs(centred[inside]) <= strength / N + 1e-12).all()
    # Softmax over 1 + N + i + 1 keys, of which those that follow the current token match: the one
    # in the first list and, in the second, the one after an earlier copy of it (there is none),
    # or the first of the second list after the last item.
    probability = []
    for row, source in enumerate(sources):
        tokens = np.concatenate([[N], np.arange(N), sources[: row + 1]])
        before = np.concatenate([[N + 1], tokens[:-1]])
        weight = np.exp(strength * (before == source))
        if source < N - 1:
            probability.append(weight[1 + source + 1] / weight.sum())
    assert found["probability"][LAGS == 1] == pytest.approx(np.mean(probability))
    assert observer.matching[0] == pytest.approx(np.mean(probability))
    assert observer.matching[0] > 0.2
    assert observer.duplicate[0] < 0.05


def test_a_head_that_looks_back_a_fixed_distance_passes_only_the_exact_test() -> None:
    """Positions N - 1 back: induction when the list repeats exactly, nothing when shuffled."""
    n = 2 * N + 1
    place, query = np.eye(n), np.eye(n, k=-(N - 1))  # query t matches key t - (N - 1)
    for sources, strong in ((np.arange(N), True), (shuffled(), False)):
        observer = LagObserver(sources, 1, LAGS)
        observer.attention(call(torch.tensor(9.0 * query)[None], torch.tensor(place)[None]))
        assert (observer.matching[0][0] > 0.9) == strong


def test_uniform_attention_is_flat() -> None:
    zeros = torch.zeros(3, 2 * N + 1, 8)
    for complete in (False, True):
        observer = LagObserver(shuffled() if complete else np.arange(N), 1, LAGS, complete=complete)
        observer.attention(call(zeros, zeros))
        found = curves(observer)
        np.testing.assert_array_equal(found["raw"], 0)
        np.testing.assert_array_equal(found["log-centred"], 0)
        assert np.ptp(found["probability"]) < (1e-15 if complete else 0.0025)
    # Over the same tokens for every lag: the mean of 1 / visible keys, at each lag.
    observer = LagObserver(np.arange(N), 1, LAGS, complete=True)
    observer.attention(call(zeros, zeros))
    expected = np.mean(1 / (N + 2 + np.arange(4, N - 4)))
    np.testing.assert_allclose(curves(observer)["probability"], expected)


def test_previous_token_head() -> None:
    n = 2 * N + 1
    observer = LagObserver(np.arange(N), 1, LAGS)
    observer.attention(
        call(torch.tensor(30.0 * np.eye(n, k=-1))[None], torch.tensor(np.eye(n))[None])
    )
    assert observer.previous[0] == pytest.approx(1.0)
    assert observer.matching[0] == pytest.approx(0.0, abs=1e-9)


def test_grouped_heads_caps_and_sinks() -> None:
    rng = np.random.default_rng(0)
    n = 2 * N
    query, key = torch.tensor(rng.normal(size=(4, n, 6))), torch.tensor(rng.normal(size=(2, n, 6)))
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0])
    observer = LagObserver(np.arange(N), 0, LAGS)
    observer.attention(call(query, key, softcap=2.0, s_aux=sink))
    score = 2 * np.tanh(np.einsum("hid,hjd->hij", query, key.repeat_interleave(2, 0)) / 2)
    score[:, np.triu_indices(n, 1)[0], np.triu_indices(n, 1)[1]] = -np.inf
    weight = np.exp(score)
    probability = weight / (weight.sum(axis=2) + np.exp(sink.numpy())[:, None])[..., None]
    expected = [[probability[h, N + i, i + 1] for i in range(N - 1)] for h in range(4)]
    np.testing.assert_allclose(observer.matching[0], np.mean(expected, axis=1))
    raw = [[score[h, N + i, i - 2] for i in range(2, N)] for h in range(4)]
    np.testing.assert_allclose(curves(observer)["raw"][:, LAGS == -2][:, 0], np.mean(raw, axis=1))


def test_what_cannot_see_the_list_is_an_error() -> None:
    zeros = torch.zeros(1, 2 * N, 4)
    observer = LagObserver(np.arange(N), 0, LAGS)
    with pytest.raises(TextTooLongError, match=r"layer 3 .* sliding window of 16 tokens"):
        observer.attention(call(zeros, zeros, layer=3, sliding_window=16))
    observer.attention(call(zeros, zeros, layer=3, sliding_window=4096))
    mask = torch.ones(2 * N, 2 * N, dtype=torch.bool).tril().triu(-20)[None, None]
    with pytest.raises(TextTooLongError, match="does not see the whole repeated list"):
        observer.attention(call(zeros, zeros, mask=mask))
    with pytest.raises(ModelError, match="was given 60 tokens instead of the 61"):
        LagObserver(np.arange(N), 1, LAGS).attention(call(zeros, zeros))


# --- whole models --------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gpt_neox", "phi3", "smollm3"])
@pytest.mark.parametrize("order", ["exact", "shuffled"])
def test_curves_are_those_of_the_models_own_attention(family: str, order: str) -> None:
    lm = language_model(family)
    found = head_recall(lm, n_items=20, order=order, seeds=[7], max_lag=4, pool=range(3, 100))
    rng = np.random.default_rng(7)
    first = rng.choice(np.arange(3, 100), 20, replace=False)
    sources = np.arange(20) if order == "exact" else rng.permutation(20)
    ids = torch.tensor(np.concatenate([first, first[sources]]))[None]
    eager = tiny_model(family, attention="eager")
    with torch.inference_mode():
        attentions = torch.stack(eager(ids, output_attentions=True).attentions)[:, 0].numpy()
    value = found.curves("probability")
    assert value.shape[:2] == attentions.shape[:2]
    for column, lag in enumerate(found.lags):
        rows = [(20 + i, s + lag) for i, s in enumerate(sources) if 0 <= s + lag < 20]
        expected = np.mean([attentions[:, :, q, k] for q, k in rows], axis=0)
        np.testing.assert_allclose(value[:, :, column], expected, atol=1e-5)
        assert found.counts[column] == len(rows)
    np.testing.assert_allclose(
        found.scores["previous"],
        np.mean([attentions[:, :, 20 + i, 19 + i] for i in range(20)], axis=0).ravel(),
        atol=1e-5,
    )
    # Row-centred log-probabilities are row-centred scores: the softmax adds a constant per row.
    log = np.log(attentions[:, :, 20:, :20])
    log -= log.mean(axis=-1, keepdims=True)
    centred = np.mean([log[:, :, i, s] for i, s in enumerate(sources)], axis=0)
    np.testing.assert_allclose(found.curves("log-centred")[:, :, 4], centred, atol=2e-4)


def test_standard_errors_over_tokens_and_seeds() -> None:
    lm = language_model("llama")
    options: dict[str, Any] = {"n_items": 20, "max_lag": 4, "pool": range(3, 100)}
    both = head_recall(lm, seeds=[1, 2], **options)
    alone = [head_recall(lm, seeds=[seed], **options) for seed in (1, 2)]
    means = np.array([one.curves("raw") for one in alone])
    np.testing.assert_allclose(both.curves("raw"), means.mean(axis=0))
    np.testing.assert_allclose(
        both.seed_sem("raw"), means.std(axis=0, ddof=1) / np.sqrt(2), atol=1e-12
    )
    assert np.isnan(alone[0].seed_sem("raw")).all()
    assert alone[0].scores["matching_sem"].isna().all()
    # The variance of a mean shrinks with the tokens: two lists against one.
    ratio = both.token_sem["raw"] / alone[0].token_sem["raw"]
    assert 0.5 < np.median(ratio) < 0.95
    table = both.table("raw")
    assert len(table) == 4 * 6 * 9
    row = table.query("layer == 2 and head == 3 and lag == -4").iloc[0]
    assert row["value"] == pytest.approx(both.curves("raw")[2, 3, 0])
    assert row["n_tokens"] == 2 * 16


def test_start_token_and_pool_of_words() -> None:
    lm = language_model("llama")
    plain = head_recall(lm, n_items=12, max_lag=2, seeds=1, pool=range(3, 40))
    assert plain.settings["bos_id"] is None
    started = head_recall(lm, n_items=12, max_lag=2, seeds=1, pool=range(3, 40), bos=1)
    assert started.settings["bos_id"] == 1
    assert not np.allclose(plain.curves("raw"), started.curves("raw"))
    assert plain.surprisal.shape == (1, 2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_items": 300}, TextTooLongError, "two lists of 300 items are 600 tokens .* reads 512"),
        ({"n_items": 8}, InputError, "more items than the largest lag"),
        ({"n_items": 16, "tokens": "complete"}, InputError, "has all lags up to ±8"),
        ({"n_items": 60}, InputError, "the pool has 57 different tokens for lists of 60"),
        ({"order": "random"}, InputError, "order='random'"),
        ({"seeds": []}, InputError, "seeds is empty"),
        ({"pool": [1, 500]}, InputError, "token ids of this model are 0 ... 119"),
        ({"pool": None}, InputError, "no tokens that are a space and a word"),
    ],
)
def test_unusable_settings(options: dict, error: type, message: str) -> None:
    arguments = {"n_items": 20, "pool": range(3, 60), "seeds": 1} | options
    with pytest.raises(error, match=message):
        head_recall(language_model("llama"), **arguments)


def test_sliding_windows_are_refused_by_layer() -> None:
    with pytest.raises(TextTooLongError, match="sliding window of 16"):
        head_recall(language_model("mistral"), n_items=20, pool=range(3, 60), seeds=1)
    short = head_recall(language_model("mistral"), n_items=8, max_lag=2, pool=range(3, 60), seeds=1)
    assert len(short.scores) == 24


# --- copying -------------------------------------------------------------------------------


def test_eigenvalue_positivity() -> None:
    assert eigenvalue_positivity(np.eye(3)) == pytest.approx(1)
    assert eigenvalue_positivity(-2 * np.eye(3)) == pytest.approx(-1)
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    assert eigenvalue_positivity(turn) == pytest.approx(0)
    assert np.isnan(eigenvalue_positivity(np.zeros((2, 2))))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "phi3", "gemma2", "qwen2"])
def test_copying_is_that_of_the_whole_circuit(family: str) -> None:
    """The small product has the eigenvalues of the vocabulary × vocabulary one, by plain weights.

    The circuit is taken by running the model's own modules on every token's embedding: input norm
    (its gain and mean only), value projection, output projection, final norm, unembedding.
    """
    model = tiny_model(family)
    decoder = model.get_decoder()
    heads = {"gpt2": 3, "gpt_neox": 3}.get(family, 6)
    found = copying_scores(model, [0, 1], heads)
    layer = (decoder.h if family == "gpt2" else decoder.layers)[1]
    embed = model.get_input_embeddings().weight.double()

    def normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
        gain = norm.weight.double() + (1 if family == "gemma2" else 0)
        if family.startswith("gpt"):
            x = x - x.mean(dim=-1, keepdim=True)
        return x * gain

    before = layer.ln_1 if family == "gpt2" else layer.input_layernorm
    final = {"gpt2": "ln_f", "gpt_neox": "final_layer_norm"}.get(family, "norm")
    x = normed(embed, before)
    hidden = embed.shape[1]
    attention = {"gpt2": "attn", "gpt_neox": "attention"}.get(family, "self_attn")
    module = getattr(layer, attention)
    if family == "gpt2":
        values = x @ module.c_attn.weight.double()[:, -hidden:]
        out = module.c_proj.weight.double()
    elif family == "gpt_neox":
        joint = x @ module.query_key_value.weight.double().T
        values = joint.reshape(len(x), heads, 3, -1)[:, :, 2].reshape(len(x), -1)
        out = module.dense.weight.double().T
    else:
        if family == "phi3":
            width = module.o_proj.weight.shape[1]
            joint = x @ module.qkv_proj.weight.double().T
            values = joint[:, width:].chunk(2, dim=1)[1]
        else:
            values = x @ module.v_proj.weight.double().T
        dim = module.o_proj.weight.shape[1] // heads
        values = values.reshape(len(x), -1, dim).repeat_interleave(3, dim=1).reshape(len(x), -1)
        out = module.o_proj.weight.double().T
    dim = out.shape[0] // heads
    unembed = model.get_output_embeddings().weight.double()
    for head in range(heads):
        part = slice(head * dim, (head + 1) * dim)
        written = normed(values[:, part] @ out[part], getattr(decoder, final))
        circuit = (written @ unembed.T).numpy()
        assert found[1, head] == pytest.approx(eigenvalue_positivity(circuit), abs=1e-6)


def test_copying_is_missing_where_the_weights_are_not_known() -> None:
    model = tiny_model("deepseek_v3")
    assert np.isnan(copying_scores(model, [0], 6)).all()


def test_models_that_are_being_trained_can_be_measured() -> None:
    model = tiny_model("llama").requires_grad_(True)
    assert np.isfinite(copying_scores(model, [3], 6)).all()


# --- tables --------------------------------------------------------------------------------


def test_half_width_by_hand() -> None:
    lags = np.arange(-3, 4)
    curve = np.array([0.0, 0, 2, 5, 8, 6, 1])
    assert half_width(lags, curve, 1)[0] == pytest.approx(1 + 2 / 5)
    assert half_width(lags, curve, -1)[0] == pytest.approx(0.5)
    assert np.isnan(half_width(lags, np.array([5.0, 4, 3, 2, 1, 2, 3]), 1)[0])
    assert np.isnan(half_width(lags, np.array([5.0, 4, 3, 2, 3, 4, 5]), -1)[0])


def built(strengths: list[float]) -> HeadRecall:
    """A result with two heads: induction and same-token, curves known."""
    lags = np.arange(-8, 9)
    shape = np.stack([np.exp(-np.abs(lags - 1.0)), np.exp(-3 * np.abs(lags * 1.0))])
    curves = np.array([[s * shape] for s in strengths])
    scores = pd.DataFrame(
        {
            "layer": [4, 4],
            "head": [0, 1],
            "matching": [0.9, 0.0],
            "matching_sem": [0.0, 0.0],
            "duplicate": [0.0, 0.9],
            "previous": [0.0, 0.0],
            "copying": [1.0, -1.0],
        }
    )
    return HeadRecall(
        lags=lags,
        seed_curves=dict.fromkeys(SCALES, curves),
        token_sem=dict.fromkeys(SCALES, curves[0] * 0.1),
        counts=np.full(17, 50),
        scores=scores,
        surprisal=np.ones((len(strengths), 2)),
        settings={"model": "built", "provenance": "Built by hand."},
    )


def test_head_table() -> None:
    table = head_table(built([1.0, 3.0]), draws=50)
    first, second = table.iloc[0], table.iloc[1]
    assert first["forward"] == pytest.approx(2.0)
    assert first["difference"] == pytest.approx(2 * (1 - np.exp(-2)))
    assert first["difference_sem"] == pytest.approx(1 - np.exp(-2))
    assert first["index"] == pytest.approx(np.tanh(first["difference"] / 2))
    assert (first["peak_lag"], second["peak_lag"]) == (1, 0)
    assert (first["lag0_peak"], second["lag0_peak"]) == (False, True)
    assert second["distance"] < 0.05
    assert second["difference"] == pytest.approx(0, abs=1e-12)
    on_probability = head_table(built([1.0]), "probability", draws=0).iloc[0]
    assert on_probability["index"] == pytest.approx((1 - np.exp(-2)) / (1 + np.exp(-2)))
    assert np.isnan(on_probability["difference_sem"])
    with pytest.raises(InputError, match="scale='logit'"):
        head_table(built([1.0]), "logit")
    with pytest.raises(InputError, match="fit_lag=9 was not measured"):
        head_table(built([1.0]), fit_lag=9)


@pytest.mark.model
def test_known_heads_of_the_embedded_model(lm: LanguageModel) -> None:
    found = head_recall(lm, seeds=3)
    matching = found.scores.set_index(["layer", "head"])["matching"]
    assert matching.idxmax() == (18, 6)
    assert matching[18, 6] == pytest.approx(0.88, abs=0.04)
    assert matching[17, 3] == pytest.approx(0.75, abs=0.08)
    assert matching[17, 4] == pytest.approx(0.62, abs=0.08)
    # The list is learned in context: the second time it is far less surprising.
    assert found.surprisal[:, 0].mean() > 10
    assert found.surprisal[:, 1].mean() < 5
    table = head_table(found, "probability", draws=0).set_index(["layer", "head"])
    # On probabilities the strongest induction head is pure chaining ...
    fitted = table.loc[(18, 6), ["beta_enc", "beta_rec", "gamma"]].to_numpy(dtype=float)
    np.testing.assert_allclose(fitted, [1, 1, 0])
    assert 0.25 < (table["distance"] < 0.5).mean() < 0.4
    # ... and graded on scores.
    graded = head_table(found, "log-centred", draws=0).set_index(["layer", "head"])
    assert graded.loc[(18, 6), "beta_enc"] < 0.9
    assert graded.loc[(18, 6), "distance"] < 0.01
    assert graded.loc[(18, 6), "difference"] > 8
