"""Which units are recalled, against slow rules written from the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import InputError
from workbench.memory.select import neighbours, next_queue, recall_units


def slow_neighbours(units, n, reach):
    found = []
    for unit in units:
        for step in range(1, reach + 1):
            for place in (unit + step, unit - step):
                if 0 <= place < n and place not in found:
                    found.append(place)
    return found


def slow_recall(similarity, sizes, tokens, units, share, reach, queue):
    n = len(similarity)
    cost = [1] * n if tokens is None else list(sizes)
    budget = units if tokens is None else tokens
    aside = round(share * budget)
    room = budget if sum(cost) <= budget else budget - aside
    similar = []
    for unit in sorted(range(n), key=lambda u: (-similarity[u], u)):
        if cost[unit] > room:
            break
        room -= cost[unit]
        similar.append(unit)
    contiguous, room = [], aside
    for unit in slow_neighbours(similar, n, reach) + list(queue):
        if unit in similar or unit in contiguous:
            continue
        if cost[unit] > room:
            break
        room -= cost[unit]
        contiguous.append(unit)
    return similar, contiguous


cases = st.integers(0, 25).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            "similarity": st.lists(st.integers(-3, 3), min_size=n, max_size=n),
            "sizes": st.lists(st.integers(1, 9), min_size=n, max_size=n),
            "budget": st.integers(0, 60),
            "by_tokens": st.booleans(),
            "share": st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9]),
            "reach": st.integers(1, 3),
            "queue": st.lists(st.integers(0, max(0, n - 1)), max_size=min(n, 8), unique=True),
        }
    )
)


@settings(max_examples=300, deadline=None)
@given(case=cases, dtype=st.sampled_from([np.float32, np.float64]))
def test_recall_is_the_slow_rule(case, dtype):
    tokens, units = (case["budget"], None) if case["by_tokens"] else (None, case["budget"])
    sizes = np.array(case["sizes"], dtype=np.int64)
    more = {"share": case["share"], "reach": case["reach"], "queue": case["queue"]}
    found = recall_units(
        np.array(case["similarity"], dtype=dtype), sizes, tokens=tokens, units=units, **more
    )
    similar, contiguous = slow_recall(case["similarity"], case["sizes"], tokens, units, **more)
    assert found.similar.tolist() == similar
    assert found.contiguous.tolist() == contiguous
    assert found.in_order.tolist() == sorted(similar + contiguous)
    assert len(set(similar) | set(contiguous)) == len(similar) + len(contiguous)
    used = len(found.in_order) if units is not None else int(sizes[found.in_order].sum())
    assert used <= case["budget"]
    if units is not None:
        assert len(contiguous) <= round(case["share"] * units)


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(0, 12),
    units=st.lists(st.integers(0, 11), max_size=6),
    reach=st.integers(1, 4),
)
def test_neighbours_are_the_slow_rule(n, units, reach):
    units = [unit for unit in units if unit < n]
    assert neighbours(units, n, reach) == slow_neighbours(units, n, reach)


def test_order_of_neighbours():
    assert neighbours([5, 0], 7, 2) == [6, 4, 3, 1, 2]


def test_total_is_the_same_with_and_without_the_contiguity_buffer():
    rng = np.random.default_rng(0)
    sizes = np.full(40, 8)
    queue: list[int] = []
    for _ in range(30):
        similarity = rng.normal(size=40)
        alone = recall_units(similarity, sizes, tokens=80)
        both = recall_units(similarity, sizes, tokens=80, share=0.3, queue=queue)
        queue = both.contiguous.tolist()
        assert len(alone.similar) == len(both.in_order) == 10
        assert len(both.similar) == 7
        assert set(both.similar.tolist()) < set(alone.similar.tolist())


def test_queue_over_time():
    weights = np.ones(20, dtype=np.int64)
    first = next_queue([4, 2], [], np.array([3]), weights, 3)
    assert first.tolist() == [4, 2]
    second = next_queue([11, 9], first.tolist(), np.array([10]), weights, 3)
    assert second.tolist() == [11, 9, 4]  # the oldest, 2, is pushed out
    third = next_queue([10, 8], second.tolist(), np.array([9]), weights, 3)
    assert third.tolist() == [10, 8, 11]  # 9 is in the similarity buffer now


@pytest.mark.parametrize("budget", [{}, {"tokens": 3, "units": 3}])
def test_one_budget(budget):
    with pytest.raises(InputError, match="one of the two"):
        recall_units(np.zeros(2), np.ones(2, dtype=np.int64), **budget)
