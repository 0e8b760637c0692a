"""Attention statistics of every family against the model's own eager attention matrices."""

from __future__ import annotations

import numpy as np
import oracles_attention as oracle
import pytest
import torch
from tiny_models import LAYERS, tiny_model, token_ids

from workbench.core.boundaries import Boundaries
from workbench.core.errors import ModelError
from workbench.recording import adapter
from workbench.recording import reducers as r
from workbench.recording.attention import AttentionObserver
from workbench.recording.instruments import Instruments

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
    "deepseek_v3",
]
N = 61
STARTS = [0, 3, 17, 18, 40]


def all_reducers(n):
    rng = np.random.default_rng(0)
    draws = np.stack([np.sort(rng.choice(n - 1, 3, replace=False) + 1) for _ in range(5)])
    return [
        r.Lag(exact=4, per_doubling=2, parts=3),
        r.Entropy(),
        r.Distance(),
        r.First(3),
        r.Sink(),
        r.Inside(Boundaries(STARTS, n=n)),
        r.InsideDraws(np.concatenate([np.zeros((5, 1), int), draws], axis=1)),
        r.Spans({"opening": (0, 7), "middle": (20, 45), "both": (5, 30)}),
        r.Top(4, tokens=[0, 2, 30, n - 1]),
        r.FullRows([0, 13, n - 1], layers=[1, 3], heads=[0, 2]),
    ]


def observe(model, ids, reducers, *, skip=0, rows=None, heads=None, layers=None):
    size = adapter.geometry(model)
    observer = AttentionObserver(
        reducers,
        range(size["n_layers"]) if layers is None else layers,
        range(size["n_heads"]) if heads is None else heads,
        ids.shape[1] - skip,
        skip,
        rows=rows,
    )
    with torch.no_grad(), Instruments(model, [observer]):
        logits = model(ids, use_cache=False).logits
    return {k: v.values for k, v in observer.results().items()}, logits


def compare(found, matrix, reducers, skip, atol):
    text = matrix[:, :, skip:]
    check = {"atol": atol, "rtol": atol}
    np.testing.assert_allclose(found["attention_entropy"], oracle.entropy(text), **check)
    np.testing.assert_allclose(
        found["attention_distance"], oracle.distance(matrix)[:, :, skip:], **check
    )
    np.testing.assert_allclose(found["attention_first"], text[..., :3].sum(-1), **check)
    np.testing.assert_allclose(found["attention_sink"], 1 - text.sum(-1), **check)
    np.testing.assert_allclose(
        found["attention_inside"], oracle.inside(matrix, STARTS, skip), **check
    )
    draws = reducers[6].starts
    means = np.stack([oracle.inside(matrix, d.tolist(), skip).mean(-1) for d in draws], axis=-1)
    np.testing.assert_allclose(found["attention_inside_draws"], means, **check)
    edges = np.append(found["lag_first"], found["lag_last"][-1] + 1)
    lag, pairs = oracle.lag_means(matrix, edges, found["part_first"], skip)
    np.testing.assert_array_equal(found["attention_lag_pairs"], pairs)
    np.testing.assert_allclose(found["attention_lag"], lag, **check)
    spans = [(0, 7), (20, 45), (5, 30)]
    mass = np.stack([text[..., a + skip : b + skip].sum(-1) for a, b in spans], axis=-1)
    means = np.stack([mass[:, :, a:b].mean(2) for a, b in spans], axis=2)
    np.testing.assert_allclose(found["attention_spans"], means, **check)
    tokens = [0, 2, 30, text.shape[2] - 1]
    for number, token in enumerate(tokens):
        best = -np.sort(-text[:, :, token], axis=-1)[..., :4]
        mass = np.nan_to_num(found["attention_top"][:, :, number])
        np.testing.assert_allclose(mass, best, **check)
        where = found["attention_top_token"][:, :, number]
        picked = np.take_along_axis(text[:, :, token], np.maximum(where + skip, 0), axis=-1)
        np.testing.assert_allclose(mass, np.where(where >= -skip, picked, 0), **check)
    rows = text[[1, 3]][:, [0, 2]][:, :, [0, 13, text.shape[2] - 1]]
    np.testing.assert_allclose(found["attention_rows"], rows, **check)


@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_equal_those_of_eager_attention(family):
    ids = token_ids(N)
    eager, model = tiny_model(family, attention="eager"), tiny_model(family)
    matrix = oracle.eager_attentions(eager, ids)
    # The oracle is not trivial: rows differ between heads, and windows, where there are, mask.
    assert matrix[:, :, -1].std(axis=1).max() > 1e-3
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
    for skip, rows in ((0, None), (1, 7)):
        reducers = all_reducers(N - skip)
        found, logits = observe(model, ids, reducers, skip=skip, rows=rows)
        assert float((logits - plain).abs().max()) <= 1e-6
        compare(found, matrix, reducers, skip, 1e-5)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "mistral", "gpt2"])
def test_models_that_run_eagerly_are_observed_too(family):
    ids = token_ids(N)
    model = tiny_model(family, attention="eager")
    matrix = oracle.eager_attentions(model, ids)
    reducers = all_reducers(N)
    found, _ = observe(model, ids, reducers, rows=16)
    compare(found, matrix, reducers, 0, 1e-5)


def test_windows_caps_and_sinks_are_there_to_be_seen():
    """What the families above are chosen for changes the numbers."""
    ids = token_ids(N)
    local = oracle.eager_attentions(tiny_model("mistral", attention="eager"), ids)
    assert (local[:, :, 40, :24] == 0).all()
    assert (local[:, :, 40, 25:41] > 0).all()
    sinks = oracle.eager_attentions(tiny_model("gpt_oss", attention="eager"), ids)
    assert (1 - sinks.sum(-1)).max() > 0.05


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.05), ("float16", 0.01)])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_half_precision_within_bounds(family, dtype, bound):
    """Against float32: entropy relative to log n, shares absolute."""
    ids = token_ids(N)
    full, _ = observe(tiny_model(family), ids, [r.Entropy(), r.First(3)])
    half_model = tiny_model(family).to(getattr(torch, dtype))
    half, _ = observe(half_model, ids, [r.Entropy(), r.First(3)])
    gap = np.abs(half["attention_entropy"] - full["attention_entropy"]).mean() / np.log(N)
    assert gap < bound
    assert np.abs(half["attention_first"] - full["attention_first"]).mean() < bound


def test_chosen_layers_and_heads():
    ids, model = token_ids(N), tiny_model("llama")
    everything, _ = observe(model, ids, [r.Entropy(), r.Lag()])
    some, _ = observe(model, ids, [r.Entropy(), r.Lag()], layers=[0, 3], heads=[1, 2, 5])
    for name in ("attention_entropy", "attention_lag"):
        np.testing.assert_allclose(
            some[name], everything[name][[0, 3]][:, [1, 2, 5]], atol=1e-6, rtol=1e-5
        )


def test_reading_in_chunks_with_a_cache_is_reading_at_once():
    from transformers import DynamicCache

    for family in ("llama", "mistral", "gemma2"):
        model, ids = tiny_model(family), token_ids(N)
        whole, _ = observe(model, ids, [r.Entropy(), r.Lag(parts=2), r.Distance()])
        size = adapter.geometry(model)
        observer = AttentionObserver(
            [r.Entropy(), r.Lag(parts=2), r.Distance()], range(LAYERS), range(size["n_heads"]), N
        )
        cache = DynamicCache(config=model.config)
        with torch.no_grad(), Instruments(model, [observer]):
            for chunk in ids.split(23, 1):
                model(chunk, cache=cache)
        for name, variable in observer.results().items():
            np.testing.assert_allclose(variable.values, whole[name], atol=1e-5, rtol=1e-4)


def test_an_architecture_that_does_more_to_its_scores_is_an_error():
    model = tiny_model("llama")
    module = adapter.attention_modules(model)[2]
    own = module.scaling

    class Hidden(AttentionObserver):
        def attention(self, call):
            if call.layer == 2:  # as if the model did not tell its scale
                call = type(call)(**{**call.__dict__, "scaling": own * 3})
            super().attention(call)

    observer = Hidden([r.Entropy()], range(LAYERS), range(6), N)
    with (
        torch.no_grad(),
        Instruments(model, [observer]),
        pytest.raises(ModelError, match=r"layer 2, head \d: attention as computed here, times"),
    ):
        model(token_ids(N), use_cache=False)


def test_a_mask_that_shows_the_future_is_an_error():
    model, ids = tiny_model("llama"), token_ids(N)
    mask = torch.ones(1, 1, N, N, dtype=torch.bool)
    observer = AttentionObserver([r.Entropy()], range(LAYERS), range(6), N)
    with (
        torch.no_grad(),
        Instruments(model, [observer]),
        pytest.raises(ModelError, match="layer 0: the model's mask lets one of the tokens"),
    ):
        model(ids, attention_mask=mask, use_cache=False)


def test_scores_that_are_not_finite_are_an_error():
    model, ids = tiny_model("llama"), token_ids(N)
    adapter.attention_modules(model)[1].q_proj.weight[0] = float("nan")
    observer = AttentionObserver([r.Entropy()], range(LAYERS), range(6), N)
    with (
        torch.no_grad(),
        Instruments(model, [observer]),
        pytest.raises(ModelError, match="layer 1: the attention of token 0 has no finite sum"),
    ):
        model(ids, use_cache=False)


def test_batches_and_unread_layers_are_errors():
    model = tiny_model("llama")
    observer = AttentionObserver([r.Entropy()], range(LAYERS), range(6), N)
    with (
        torch.no_grad(),
        Instruments(model, [observer]),
        pytest.raises(ModelError, match="batch of 2 texts"),
    ):
        model(token_ids(N).expand(2, -1), use_cache=False)
    with pytest.raises(ModelError, match=r"layers \[0, 1, 2, 3\] gave no attention"):
        observer.results()
