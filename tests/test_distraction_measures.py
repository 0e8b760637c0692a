"""r_d from masses: against loops written from the definition, known values, random inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.distraction import (
    STATISTICS,
    WindowMasses,
    distraction_table,
    place_baseline,
    pooled_ratio,
    ratio_parts,
)
from workbench.core.errors import InputError
from workbench.training.evaluate import Masses
from workbench.training.measure import summarise


def masses(seed=0, *, n=6, layers=2, heads=3, queries=5, d=4, answers=True, documents=None):
    """Random masses: windows of each query, reduced as the readings do it."""
    rng = np.random.default_rng(seed)
    full = rng.gamma(0.5, size=(n, layers, heads, queries, d)) + 1e-9
    full /= full.sum(-1, keepdims=True) * rng.uniform(1.1, 3, size=(n, layers, heads, queries, 1))
    place = rng.permutation(np.arange(n) % d)
    own = np.stack([full[i, ..., place[i]] for i in range(n)])
    asked = rng.random((n, queries)) < 0.5
    asked[:, 0] = True
    made = WindowMasses(
        own,
        full.sum(-1),
        full.mean(3),
        place,
        np.arange(n) if documents is None else np.asarray(documents),
        tuple(range(3, 3 + layers)),
        asked if answers else None,
    )
    return made, full


def by_hand(made, layer, head, statistic, queries):
    """The definition in loops."""
    ratios, own, everything = [], 0.0, 0.0
    n, layers, heads, width = made.own.shape
    for i in range(n):
        for a in range(layers) if layer == -1 else [made.layers.index(layer)]:
            for h in range(heads) if head == -1 else [head]:
                for q in range(width):
                    if queries == "answers" and not made.answers[i, q]:
                        continue
                    ratios.append(made.own[i, a, h, q] / made.previous[i, a, h, q])
                    own += made.own[i, a, h, q]
                    everything += made.previous[i, a, h, q]
    return np.mean(ratios) if statistic == "mean of ratios" else own / everything


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 7))
def test_values_are_those_of_the_definition(seed, d, n):
    made, _ = masses(seed, n=n, d=d)
    table = distraction_table([made], draws=20)
    assert len(table) == 3 * 4 * 2 * 2  # layers and all, heads and all, statistics, queries
    for row in table.to_dict("records"):
        expected = by_hand(made, row["layer"], row["head"], row["statistic"], row["queries"])
        assert row["value"] == pytest.approx(expected, rel=1e-12)
        assert row["baseline"] == 1 / d
        assert 0 <= row["value"] <= 1 + 1e-12
    assert set(table["n_documents"]) == {n}
    assert table["low"].isna().all() == (n < 3)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(STATISTICS))
def test_places_of_windows_and_scale_do_not_matter(seed, statistic):
    made, _ = masses(seed)
    top, bottom = ratio_parts(made.own, made.previous, None, statistic)
    more_top, more_bottom = ratio_parts(made.own * 0.5, made.previous * 0.5, None, statistic)
    value = pooled_ratio(top, bottom, made.document, draws=10)[0]
    assert pooled_ratio(more_top, more_bottom, made.document, draws=10)[0] == pytest.approx(value)


def test_the_two_statistics_differ_where_queries_look_back_differently():
    own, previous = np.array([[0.1, 0.0]]), np.array([[0.1, 0.9]])
    top, bottom = ratio_parts(own, previous, None, "mean of ratios")
    assert top / bottom == pytest.approx(0.5)  # 1 and 0
    top, bottom = ratio_parts(own, previous, None, "ratio of sums")
    assert top / bottom == pytest.approx(0.1)


def test_queries_that_do_not_look_back_have_no_ratio():
    top, bottom = ratio_parts([[0.0, 0.2]], [[0.0, 0.4]], None, "mean of ratios")
    assert (top, bottom) == (0.5, 1)
    made, _ = masses()
    blind = WindowMasses(
        made.own * 0, made.previous * 0, made.windows * 0, made.place, made.document, made.layers
    )
    table = distraction_table([blind], draws=10)
    assert table["value"].isna().all()
    assert set(table["note"]) == {"no query gives the previous windows any attention"}


def test_intervals_draw_documents_and_not_readings():
    """Readings of one document copied ten times must not make the interval narrower."""
    made, _ = masses(n=8, answers=False)
    top, bottom = ratio_parts(made.own, made.previous, None, "ratio of sums")
    once = pooled_ratio(top, bottom, np.arange(8), seed=3)
    copied = pooled_ratio(
        np.repeat(top, 10, 0), np.repeat(bottom, 10, 0), np.repeat(np.arange(8), 10), seed=3
    )
    for one, other in zip(once, copied, strict=True):
        assert other == pytest.approx(one)
    apart = pooled_ratio(np.repeat(top, 10, 0), np.repeat(bottom, 10, 0), np.arange(80), seed=3)
    assert ((apart[2] - apart[1]) < (once[2] - once[1])).all()


def test_intervals_hold_the_true_ratio():
    """95 % of the intervals of repeated samples, less what 25 documents cost."""
    rng, hits = np.random.default_rng(0), 0
    for run in range(200):
        bottom = rng.gamma(4, size=(25, 1))
        share = rng.beta(2, 6, size=(25, 1))  # mean 1/4, independent of the denominator
        _, low, high = pooled_ratio(bottom * share, bottom, np.arange(25), draws=300, seed=run)
        hits += bool(low[0] <= 0.25 <= high[0])
    assert 0.86 <= hits / 200 <= 0.99


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_place_baseline_of_a_reader_that_prefers_places(seed, d):
    """Mass that depends on the place alone: r_d is the place baseline, balanced or not."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2 * d, 4 * d))
    place = rng.permutation(np.concatenate([np.arange(d), rng.integers(d, size=n - d)]))
    preference = rng.dirichlet(np.ones(d), size=(2, 3))  # layers, heads
    windows = np.broadcast_to(preference, (n, 2, 3, d)) * 0.3
    own = np.stack([windows[i, ..., place[i]] for i in range(n)])
    found = place_baseline(windows, place)
    assert found == pytest.approx((own / windows.sum(-1)).mean(0))


def test_place_baseline_without_preference_or_evidence():
    windows = np.ones((8, 1, 1, 4))
    assert place_baseline(windows, np.arange(8) % 4) == pytest.approx(0.25)
    assert place_baseline(windows[..., :1], np.zeros(8, int)) == 1
    assert np.isnan(place_baseline(windows, np.zeros(8, int))).all()  # place 0 never foreign
    # Focus on the own window is no preference for its place.
    focused = windows.copy()
    for i in range(8):
        focused[i, ..., i % 4] = 50.0
    assert place_baseline(focused, np.arange(8) % 4) == pytest.approx(0.25)


def test_agrees_with_the_table_of_trained_decoders():
    """The measure of training, written for tensors of memory layers, gives the same numbers."""
    made, _ = masses(4, n=12)
    theirs = summarise(
        Masses(made.own, made.previous, made.answers, made.layers, np.ones(12), made.d)
    )
    table = distraction_table([made], draws=10)
    table = table[(table["layer"] == -1) & (table["head"] == -1)]
    for row in theirs:
        ours = table[table["queries"] == row["queries"]].set_index("statistic")["value"]
        assert ours["mean of ratios"] == pytest.approx(row["r_d"])
        assert ours["ratio of sums"] == pytest.approx(row["ratio_of_sums"])


def test_bad_inputs_are_named():
    made, _ = masses()
    with pytest.raises(InputError, match="statistic='median' is not known"):
        ratio_parts(made.own, made.previous, None, "median")
    with pytest.raises(InputError, match="must have one shape"):
        WindowMasses(
            made.own[:2], made.previous, made.windows, made.place, made.document, made.layers
        )
    with pytest.raises(InputError, match="place has shape"):
        WindowMasses(
            made.own, made.previous, made.windows, made.place[:2], made.document, made.layers
        )
    with pytest.raises(InputError, match="no masses were given"):
        distraction_table([])
    with pytest.raises(InputError, match="draws=0"):
        pooled_ratio(np.ones((3, 1)), np.ones((3, 1)), np.arange(3), draws=0)
