"""The kernel alone, on made-up queries and keys: any shape, mask, cap, sink and block size."""

from __future__ import annotations

import numpy as np
import oracles_attention as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import ModelError
from workbench.recording.attention import AttentionObserver
from workbench.recording.attention_rows import check_rows
from workbench.recording.instruments import AttentionCall
from workbench.recording.reducers import Distance, Entropy, First, FullRows, Lag


def call_of(query, key, **more):
    fields = {"mask": None, "scaling": None, "softcap": None, "options": {}, **more}
    return AttentionCall(
        layer=0,
        query=query[None],
        key=key[None],
        value=key[None],
        keys_before=None,
        key_source=None,
        **fields,
    )


def softmax_matrix(query, key, scaling, cap, window, sinks):
    """(heads, n, n) straight from the definition, in float64."""
    query, key = query.double().numpy(), key.double().numpy()
    n = query.shape[1]
    key = np.repeat(key, len(query) // len(key), axis=0)
    scores = np.einsum("hid,hjd->hij", query, key) * scaling
    if cap is not None:
        scores = cap * np.tanh(scores / cap)
    lag = np.arange(n)[:, None] - np.arange(n)[None, :]
    visible = lag >= 0
    if window is not None:
        visible &= lag < window
    scores = np.where(visible, scores, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(sinks.double().numpy()[:, None, None], (len(query), n, 1))
        scores = np.concatenate([scores, column], axis=2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True))[:, :, :n]


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    kv=st.integers(1, 3),
    group=st.integers(1, 4),
    rows=st.integers(1, 45),
    skip=st.integers(0, 1),
    window=st.none() | st.integers(1, 50),
    as_mask=st.sampled_from(["none", "bool", "additive"]),
    cap=st.none() | st.floats(0.5, 30),
    sink=st.booleans(),
    size=st.floats(0.01, 6),
    seed=st.integers(0, 1000),
)
def test_any_attention_is_its_definition(
    n, kv, group, rows, skip, window, as_mask, cap, sink, size, seed
):
    generator = torch.Generator().manual_seed(seed)
    total = n + skip
    query = torch.randn(kv * group, total, 6, generator=generator) * size
    key = torch.randn(kv, total, 6, generator=generator) * size
    sinks = torch.randn(kv * group, generator=generator) if sink else None
    options = {"s_aux": sinks} if sink else {}
    lag = torch.arange(total)[:, None] - torch.arange(total)[None, :]
    allowed = (lag >= 0) & (lag < (window or total))
    mask = None
    if as_mask == "none":
        options["sliding_window"] = window
    elif as_mask == "bool":
        mask = allowed[None, None]
    else:
        mask = torch.zeros(1, 1, total, total).masked_fill(~allowed, torch.finfo(torch.float32).min)
    observer = AttentionObserver(
        [Entropy(), Distance(), First(2), FullRows(range(n)), Lag(parts=2, exact=2)],
        [0],
        range(kv * group),
        n,
        skip,
        rows=rows,
    )
    observer.attention(call_of(query, key, scaling=0.7, softcap=cap, mask=mask, options=options))
    found = {name: variable.values for name, variable in observer.results().items()}
    matrix = softmax_matrix(query, key, 0.7, cap, window, sinks)
    text = matrix[:, skip:]
    np.testing.assert_allclose(found["attention_rows"][0], text, atol=2e-5)
    rest = np.clip(1 - text.sum(-1), 1e-300, None) if sink else np.ones(text.shape[:2])
    expected = -(text * np.log(np.where(text > 0, text, 1))).sum(-1) - rest * np.log(rest)
    np.testing.assert_allclose(found["attention_entropy"][0], expected, atol=1e-4)
    enough = text.sum(-1) > 1e-3
    np.testing.assert_allclose(
        found["attention_distance"][0][enough],
        oracle.distance(matrix)[:, skip:][enough],
        atol=1e-3,
    )
    np.testing.assert_allclose(found["attention_first"][0], text[..., :2].sum(-1), atol=2e-5)
    edges = np.append(found["lag_first"], found["lag_last"][-1] + 1)
    lag, pairs = oracle.lag_means(matrix, edges, found["part_first"], skip)
    np.testing.assert_array_equal(found["attention_lag_pairs"], pairs)
    np.testing.assert_allclose(found["attention_lag"][0], lag, atol=2e-5)


def test_even_attention_has_its_known_values():
    n = 30
    observer = AttentionObserver([Entropy(), Distance(), Lag(parts=1, exact=40)], [0], [0], n)
    observer.attention(call_of(torch.zeros(1, n, 4), torch.zeros(1, n, 4)))
    found = {name: variable.values for name, variable in observer.results().items()}
    i = np.arange(n)
    np.testing.assert_allclose(found["attention_entropy"][0, 0], np.log(i + 1), atol=1e-6)
    np.testing.assert_allclose(found["attention_distance"][0, 0], i / 2, atol=1e-5)
    expected = [np.mean(1 / (i[lag:] + 1)) for lag in i]
    np.testing.assert_allclose(found["attention_lag"][0, 0, 0], expected, rtol=1e-5)


def test_large_scores_stay_exact():
    """Scores of a thousand: no overflow, and all attention on the largest."""
    n = 20
    key = torch.zeros(1, n, 2)
    key[0, 3, 0] = 1000.0
    query = torch.zeros(1, n, 2)
    query[..., 0] = 3.0
    observer = AttentionObserver([Entropy(), Distance()], [0], [0], n, rows=6)
    observer.attention(call_of(query, key, scaling=1.0))
    found = {name: variable.values for name, variable in observer.results().items()}
    np.testing.assert_allclose(found["attention_entropy"][0, 0, 3:], 0, atol=1e-6)
    np.testing.assert_allclose(found["attention_distance"][0, 0, 3:], np.arange(n - 3), atol=1e-4)


def test_rows_that_are_no_distribution_are_errors():
    good, nothing = torch.tensor([[0.25, 0.75]]), torch.zeros(1, 3)
    check_rows(good, nothing, layer=1, token=5)
    check_rows(good, torch.zeros(1, 0), layer=1, token=5)
    with pytest.raises(ModelError, match=r"layer 1: the attention of token 5 sums to 0.9 instead"):
        check_rows(good * 0.9, nothing, layer=1, token=5)
    with pytest.raises(ModelError, match=r"token 5 or one shortly before .* upper triangle"):
        check_rows(good, nothing + 1e-3, layer=1, token=5)
    with pytest.raises(ModelError, match="sums to nan"):
        check_rows(good * float("nan"), nothing, layer=1, token=5)


def test_masks_per_head_are_refused():
    mask = torch.ones(1, 2, 4, 4, dtype=torch.bool).tril()
    observer = AttentionObserver([Entropy()], [0], [0, 1], 4)
    with pytest.raises(ModelError, match=r"a mask of shape \(1, 2, 4, 4\) is not known here"):
        observer.attention(call_of(torch.zeros(2, 4, 3), torch.zeros(2, 4, 3), mask=mask))


def test_a_query_that_sees_nothing_is_an_error():
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2] = False
    observer = AttentionObserver([Entropy()], [0], [0], 4)
    with pytest.raises(ModelError, match="the attention of token 2 has no finite sum"):
        observer.attention(
            call_of(torch.zeros(1, 4, 3), torch.zeros(1, 4, 3), mask=mask[None, None])
        )
