"""attend() against a slow oracle, pair by pair in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.memory import attend as module
from workbench.memory.attend import Far, Near, attend


def oracle(near_query, far_query, near, far, scale):
    heads, m, dim = near_query.shape
    kv_heads, n, _ = near.rotated.shape
    output = torch.zeros(m, heads, dim, dtype=torch.float64)
    received = torch.zeros(heads, n, dtype=torch.float64)
    for head in range(heads):
        kv = head // (heads // kv_heads)
        for i in range(m):
            position = near.first + n - m + i
            scores, values, own = [], [], []
            for j in range(0 if far is None else far.keys.shape[1]):
                if far.allowed is None or far.allowed[kv, j]:
                    scores.append(far_query[head, i].double() @ far.keys[kv, j].double() * scale)
                    values.append(far.values[kv, j].double())
                    own.append(None)
            for j in range(n):
                token = near.first + j
                if token > position:
                    continue
                if token > position - near.window:
                    query, key = near_query[head, i], near.rotated[kv, j]
                    own.append(j)
                elif token < near.far_limit:
                    query, key = far_query[head, i], near.keys[kv, j]
                    own.append(None)
                else:
                    continue
                scores.append(query.double() @ key.double() * scale)
                values.append(near.values[kv, j].double())
            shares = torch.stack(scores).softmax(dim=0)
            output[i, head] = shares @ torch.stack(values)
            for share, j in zip(shares.tolist(), own, strict=True):
                if j is not None:
                    received[head, j] += share
    return output, received


def random_case(seed, m, extra, n_far, window, first, far_limit, kv_heads, groups, uneven, dtype):
    torch.manual_seed(seed)
    n, dim, heads = m + extra, 4, kv_heads * groups

    def some(*shape):
        return torch.randn(*shape).to(dtype)

    near = Near(
        some(kv_heads, n, dim), some(kv_heads, n, dim), some(kv_heads, n, dim), first, window,
        far_limit,
    )  # fmt: skip
    far = None
    if n_far:
        allowed = torch.rand(kv_heads, n_far) < 0.6 if uneven else None
        far = Far(some(kv_heads, n_far, dim), some(kv_heads, n_far, dim), allowed)
    return some(heads, m, dim), some(heads, m, dim), near, far


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    m=st.integers(1, 12),
    extra=st.integers(0, 14),
    n_far=st.sampled_from([0, 1, 5]),
    window=st.one_of(st.integers(1, 14), st.just(2**62)),
    first=st.integers(0, 9),
    limit=st.one_of(st.integers(0, 20), st.just(2**62)),
    kv_heads=st.integers(1, 2),
    groups=st.integers(1, 3),
    uneven=st.booleans(),
    columns=st.integers(1, 40),
)
def test_every_pair_at_its_own_place(
    seed, m, extra, n_far, window, first, limit, kv_heads, groups, uneven, columns
):
    case = random_case(
        seed, m, extra, n_far, window, first, limit, kv_heads, groups, uneven, torch.float32
    )
    with pytest.MonkeyPatch.context() as patch:
        # Blocks of one query up to all of them.
        patch.setattr(module, "_SCORES", 4 * kv_heads * groups * columns * 4)
        output, received = attend(*case, 0.7)
    expected, expected_received = oracle(*case, 0.7)
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(received.double(), expected_received, atol=1e-5, rtol=1e-5)
    assert attend(*case, 0.7, received=False)[1] is None


@pytest.mark.parametrize("size", [16, 32, 48])
def test_blocks_of_many_queries(size):
    case = random_case(3, 50, 30, 6, 20, 7, 2**62, 2, 2, True, torch.float32)
    columns = 6 + 20 + 50
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SCORES", 4 * 4 * columns * size)
        found = attend(*case, 0.5)
    for one, other in zip(found, oracle(*case, 0.5), strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)


def test_double_precision_is_kept():
    case = random_case(5, 6, 9, 4, 5, 0, 3, 2, 2, False, torch.float64)
    found = attend(*case, 0.5)
    assert found[0].dtype == found[1].dtype == torch.float64
    for one, other in zip(found, oracle(*case, 0.5), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close_and_sums_are_wide(dtype):
    case = random_case(6, 8, 20, 5, 9, 2, 2**62, 2, 2, True, dtype)
    output, received = attend(*case, 0.5)
    expected, expected_received = oracle(*case, 0.5)
    assert output.dtype == dtype
    assert received.dtype == torch.float32
    tolerance = 0.02 if dtype == torch.float16 else 0.1
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(received.double(), expected_received, atol=0.1, rtol=0.1)


def test_many_large_values_do_not_overflow_half_precision():
    n = 3000
    still = torch.zeros(1, n, 4, dtype=torch.float16)
    values = torch.full_like(still, 60.0)
    near = Near(still, still, values, 0, 2**62, 0)
    query = torch.zeros(1, 1, 4, dtype=torch.float16)
    output, _ = attend(query, query, near, Far(still, values), 1.0)
    torch.testing.assert_close(output, torch.full_like(output, 60.0), atol=0.1, rtol=0.01)


def test_extreme_scores_stay_finite():
    case = random_case(7, 4, 6, 3, 4, 0, 2**62, 1, 1, False, torch.float32)
    output, received = attend(*case, 1e4)
    assert output.isfinite().all()
    assert math.isclose(float(attend(*case, 0.0)[1].sum()), float(oracle(*case, 0.0)[1].sum()),
                        abs_tol=1e-4)  # fmt: skip
    assert received.isfinite().all()
