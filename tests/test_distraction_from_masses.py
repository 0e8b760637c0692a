"""r_d from masses of any origin: the definition in loops, even attention, the table of windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.distraction import STATISTICS, WindowMasses, distraction_table
from workbench.analysis.distraction_masses import distraction_from_masses
from workbench.core.errors import InputError

SHAPE = (5, 2, 3, 4)  # readings, layers, heads, queries


def memory(seed, *, even=False):
    """Attention to 0 to 6 tokens of the own and of other documents, different for each query."""
    rng = np.random.default_rng(seed)
    own_tokens = rng.integers(0, 7, size=SHAPE)
    all_tokens = own_tokens + rng.integers(0, 7, size=SHAPE)
    all_tokens[:, :, :, 0] = own_tokens[:, :, :, 0] + 1  # some query of each sees something
    total = np.where(all_tokens > 0, rng.uniform(0.01, 0.9, size=SHAPE), 0.0)
    fair = own_tokens / np.maximum(all_tokens, 1)
    share = fair if even else np.where(own_tokens < all_tokens, fair ** rng.uniform(0.2, 3), fair)
    return total * share, total, own_tokens, all_tokens


def by_hand(arrays, asked, layer, head, statistic):
    """(r_d, baseline, number of queries) from loops."""
    own, total, own_tokens, all_tokens = arrays
    ratios, even, weights = [], [], []
    for i in range(SHAPE[0]):
        for a in range(SHAPE[1]) if layer == -1 else [layer]:
            for h in range(SHAPE[2]) if head == -1 else [head]:
                for q in range(SHAPE[3]):
                    at = i, a, h, q
                    if not asked[i, q] or total[at] == 0:
                        continue
                    ratios.append(own[at] / total[at])
                    even.append(own_tokens[at] / all_tokens[at])
                    weights.append(1.0 if statistic == "mean of ratios" else total[at])
    return np.average(ratios, weights=weights), np.average(even, weights=weights), len(ratios)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_values_and_baselines_are_those_of_the_definition(seed):
    own, total, own_tokens, all_tokens = arrays = memory(seed)
    answers = np.random.default_rng(seed).random((SHAPE[0], SHAPE[3])) < 0.4
    answers[:, 0] = True
    table = distraction_from_masses(
        own,
        total,
        np.arange(5),
        3,
        own_tokens=own_tokens,
        all_tokens=all_tokens,
        answers=answers,
        draws=5,
    )
    assert len(table) == (2 * 4 + 1) * 2 * 2
    for row in table.to_dict("records"):
        asked = answers if row["queries"] == "answers" else np.ones_like(answers)
        value, baseline, count = by_hand(arrays, asked, row["layer"], row["head"], row["statistic"])
        assert row["value"] == pytest.approx(value)
        assert row["baseline"] == pytest.approx(baseline)
        assert row["n_queries"] == count


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_even_attention_is_its_baseline(seed):
    """Whatever each query sees, and however much it looks back."""
    own, total, own_tokens, all_tokens = memory(seed, even=True)
    table = distraction_from_masses(
        own, total, np.arange(5), 4, own_tokens=own_tokens, all_tokens=all_tokens, draws=5
    )
    assert np.allclose(table["value"], table["baseline"], rtol=1e-12)


@pytest.mark.parametrize("d", [1, 4])
def test_equal_windows_give_the_table_of_windows(d):
    rng = np.random.default_rng(d)
    windows = rng.dirichlet(np.ones(d + 1), size=SHAPE)[..., :d]
    place = np.arange(5) % d
    own = np.stack([windows[i, ..., place[i]] for i in range(5)])
    document = np.array([0, 1, 1, 2, 3])
    asked = rng.random((5, 4)) < 0.6
    asked[:, 1] = True
    made = WindowMasses(
        own, windows.sum(-1), windows.mean(3), place, document, (7, 9), answers=asked
    )
    theirs = distraction_table([made], draws=60, seed=3)
    ours = distraction_from_masses(
        own, windows.sum(-1), document, d, layers=[7, 9], answers=asked, draws=60, seed=3
    )
    keys = ["layer", "head", "d", "statistic", "queries"]
    both = ours.merge(theirs, on=keys, suffixes=("", "_there"), validate="one_to_one")
    assert len(both) == len(ours)
    for column in ("value", "low", "high", "baseline", "n_documents", "n_readings"):
        assert np.allclose(both[column], both[f"{column}_there"], rtol=1e-12), column
    every = both[both["queries"] == "all"]
    assert np.allclose(every["previous_mass"], every["previous_mass_there"])


def test_a_memory_that_recalled_nothing_has_no_value():
    nothing = np.zeros(SHAPE)
    table = distraction_from_masses(
        nothing, nothing, np.arange(5), 2, own_tokens=nothing, all_tokens=nothing, draws=5
    )
    assert table[["value", "low", "high", "baseline"]].isna().all(axis=None)
    assert (table["n_queries"] == 0).all()
    assert set(table["note"]) == {"no query gives anything it remembers attention"}
    assert set(table["statistic"]) == set(STATISTICS)


def test_two_documents_have_no_interval():
    own, total, few, many = memory(0)
    table = distraction_from_masses(
        own, total, [0, 0, 1, 1, 1], 2, own_tokens=few, all_tokens=many, draws=5
    )
    assert table["low"].isna().all()
    assert set(table["note"]) == {"no interval from fewer than 3 documents"}


def test_bad_inputs_are_named():
    own, total = np.full(SHAPE, 0.1), np.full(SHAPE, 0.4)
    documents = np.arange(5)

    def refused(message, *given, **options):
        with pytest.raises(InputError, match=message):
            distraction_from_masses(*given, **options)

    refused("must have one shape", own[0], total[0], documents, 2)
    refused("must have one shape", own, total[:2], documents, 2)
    refused("d=0", own, total, documents, 0)
    refused(r"document has shape \(2,\) instead of \(5,\)", own, total, [0, 1], 2)
    refused(r"layers has shape \(1,\)", own, total, documents, 2, layers=[3])
    refused(r"answers has shape \(5,\)", own, total, documents, 2, answers=np.ones(5, bool))
    refused("both own_tokens and all_tokens", own, total, documents, 2, own_tokens=3)
    refused("broadcast", own, total, documents, 2, own_tokens=np.ones(3), all_tokens=9)
    refused("mass of the own document 0.4, of all 0.1 at reading 0", total, own, documents, 2)
    broken = total.copy()
    broken[2, 1, 0, 3] = np.nan
    refused("at reading 2, layer 1, head 0, query 3", own, broken, documents, 2)
    refused("tokens of the own", own, total, documents, 2, own_tokens=5, all_tokens=4)
    refused("mass to 0 tokens", own, total, documents, 2, own_tokens=0, all_tokens=4)
    refused("draws=0", own, total, documents, 2, draws=0)
