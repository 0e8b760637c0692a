"""Approximate search: against exact search, after going back, and inside a memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from memory_helpers import family_lm, letters

from workbench.core.errors import DataError, InputError
from workbench.memory import EMLLM, InfLLM
from workbench.memory.ann import ApproximateIndex, recall_of_index, synthetic_store
from workbench.memory.select import recall_units

pytest.importorskip("faiss")


def test_all_cells_give_the_exact_answer() -> None:
    units, queries = synthetic_store(300, 10, heads=2, dim=4, topics=5)
    index = ApproximateIndex(50, probed=1.0)
    for query in queries:
        products = (units * query).sum(dim=(1, 2)).numpy()
        exact = np.sort(np.argsort(-products)[:20])
        np.testing.assert_array_equal(index.candidates(units, query, 20), exact)


def test_the_answer_depends_on_the_units_alone() -> None:
    units, queries = synthetic_store(400, 20, heads=2, dim=4, topics=20)
    other, _ = synthetic_store(400, 1, heads=2, dim=4, seed=1)
    fresh = ApproximateIndex(30)
    grown = ApproximateIndex(30)
    for n in (31, 40, 100, 150):
        grown.candidates(units[:n], queries[0], 5)
    for kept in (149, 40, 10):  # within the centres of now, of an earlier size, of none
        branched = torch.cat((units[:kept], other[kept:]))
        grown.candidates(branched, queries[0], 5)
        grown.truncate(kept)
        for query in queries:
            found = grown.candidates(units[:200], query, 15)
            np.testing.assert_array_equal(found, fresh.candidates(units[:200], query, 15))
            assert found.max() < 200


def test_recall_of_all_cells_is_one_and_fewer_cells_find_less() -> None:
    units, queries = synthetic_store(600, 40, heads=2, dim=8, topics=50)
    asked = [(i // 2, query, units) for i, query in enumerate(queries)]
    whole = recall_of_index(asked, k=10, above=100, probed=1.0)
    assert (whole.mean, whole.low, whole.high) == (1.0, 1.0, 1.0)
    assert (whole.n_queries, whole.n_groups, whole.n_units) == (40, 20, 600)
    assert whole.chance == pytest.approx(10 / 600)
    few = recall_of_index(asked, k=10, above=100, probed=0.05)
    assert few.chance < few.low <= few.mean <= few.high < 1


def test_recall_needs_more_units_than_are_searched_exactly() -> None:
    units, queries = synthetic_store(50, 1, heads=2, dim=4)
    with pytest.raises(DataError, match="more than 256 units"):
        recall_of_index([(0, queries[0], units)], k=5)
    with pytest.raises(InputError, match=r"probed=0"):
        ApproximateIndex(10, probed=0)


def test_units_that_are_no_candidates_are_not_recalled_by_similarity() -> None:
    row = np.array([-np.inf, 3.0, -np.inf, 1.0, -np.inf, -np.inf])
    found = recall_units(row, np.full(6, 2, dtype=np.int64), units=5)
    assert found.similar.tolist() == [1, 3]


@pytest.mark.parametrize("kind", ["emllm", "infllm"])
def test_a_memory_searches_above_a_size_and_logs_true_similarities(kind: str) -> None:
    lm = family_lm("llama")
    size = {"n_init": 2, "n_local": 16, "n_mem": 12, "chunk": 16}

    def made(above: int | None):  # type: ignore[no-untyped-def]
        if kind == "infllm":
            return InfLLM(lm, block=4, ann_above=above, share=0.3, **size)
        return EMLLM(lm, "F:4+C", ann_above=above, **size)

    text = letters(300)
    exact, found = made(None).read(text), made(20).read(text)
    few, rows = found.retrievals, exact.retrievals
    early = few["available"] <= 20
    assert early.any()
    assert (~early).any()
    same = rows[rows["available"] <= 20].reset_index(drop=True)
    assert few[early].reset_index(drop=True).equals(same)
    assert np.isfinite(few["similarity"]).all()
    # Layer 0's keys and queries do not depend on what was recalled: its similarities are exact.
    first = rows[rows["layer"] == 0].set_index(["step", "unit"])["similarity"]
    ours = few[few["layer"] == 0].set_index(["step", "unit"])["similarity"]
    both = first.index.intersection(ours.index)
    assert len(both) > 20
    np.testing.assert_allclose(ours[both], first[both], rtol=1e-4, atol=1e-5)
    assert found.footprint()["index"] > exact.footprint()["index"]


def test_a_branch_leaves_the_search_as_it_was() -> None:
    lm = family_lm("llama")
    memory = EMLLM(lm, "F:4+C", n_init=2, n_local=16, n_mem=12, chunk=16, ann_above=20)
    plain = EMLLM(lm, "F:4+C", n_init=2, n_local=16, n_mem=12, chunk=16, ann_above=20)
    memory.read(letters(150))
    plain.read(letters(150))
    with memory.branch():
        memory.read(letters(120, seed=1))
    memory.read(letters(100, seed=2))
    plain.read(letters(100, seed=2))
    assert memory.retrievals.equals(plain.retrievals)
    np.testing.assert_array_equal(memory.surprisal, plain.surprisal)
