"""Clusters of heads and attention within events, on traces whose answer is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

import workbench as wb
from workbench.analysis.head_attention import head_statistics, in_event_mass, inside_reducers
from workbench.analysis.head_clusters import (
    cluster_agreement,
    cluster_profiles,
    head_clusters,
    head_profiles,
)
from workbench.analysis.nulls import null_starts
from workbench.core.errors import InputError, MissingDataError
from workbench.core.story import Story
from workbench.core.trace import Trace
from workbench.figures.attention import figure_head_clusters, figure_heads
from workbench.recording.reducers import lag_edges
from workbench.stories.alignment import untimed_words

N, PARTS, LAYERS, HEADS = 200, 10, 4, 6


def made_trace(kinds, *, noise=0.02, seed=0, n=N, bos=True):
    """A trace of heads whose attention by lag is exp(-lag / scale), times 1 - first.

    kinds : (layers, heads) of (scale, first).
    """
    rng = np.random.default_rng(seed)
    text = "word " * n
    edges = lag_edges(n)
    starts = np.linspace(0, n, PARTS + 1).astype(int)
    lags = np.arange(n)[:, None] - np.arange(n)[None, :]
    layers, heads = len(kinds), len(kinds[0])
    lag = np.full((layers, heads, PARTS, len(edges) - 1), np.nan)
    pairs = np.zeros((PARTS, len(edges) - 1), int)
    entropy, first = np.zeros((layers, heads, n)), np.zeros((layers, heads, n))
    for la in range(layers):
        for he in range(heads):
            scale, share = kinds[la][he]
            weight = np.where(lags >= 0, np.exp(-np.maximum(lags, 0) / scale), 0.0)
            weight *= np.exp(noise * rng.standard_normal(weight.shape))
            p = (1 - share) * weight / weight.sum(1, keepdims=True)
            first[la, he] = share
            q = np.column_stack([p, np.full(n, share)])
            entropy[la, he] = -(q * np.log(np.where(q > 0, q, 1))).sum(1)
            for part in range(PARTS):
                for b in range(len(edges) - 1):
                    rows = slice(starts[part], starts[part + 1])
                    chosen = (lags[rows] >= edges[b]) & (lags[rows] < edges[b + 1])
                    pairs[part, b] = chosen.sum()
                    if chosen.any():
                        lag[la, he, part, b] = p[rows][chosen].mean()
    settings = {"model": "made", "provenance": "made up", "bos_id": 0 if bos else None}
    data = xr.Dataset(
        {
            "surprisal": ("token", np.ones(n)),
            "attention_lag": (("layer", "head", "part", "lag_bin"), lag),
            "attention_lag_pairs": (("part", "lag_bin"), pairs),
            "lag_first": ("lag_bin", edges[:-1]),
            "lag_last": ("lag_bin", edges[1:] - 1),
            "part_first": ("part", starts[:-1]),
            "attention_entropy": (("layer", "head", "token"), entropy),
            "attention_first": (("layer", "head", "token"), first),
        },
        coords={"layer": np.arange(layers), "head": np.arange(heads)},
        attrs={"settings": json.dumps(settings)},
    )
    return Trace(data, Story("made", text, untimed_words(text)))


THREE = [(2.0, 0.05), (30.0, 0.05), (5.0, 0.9)]


@pytest.fixture(scope="module")
def three():
    rng = np.random.default_rng(3)
    truth = rng.integers(3, size=(LAYERS, HEADS))
    jitter = np.random.default_rng(4)
    kinds = [[(THREE[k][0] * jitter.uniform(0.9, 1.1), THREE[k][1]) for k in row] for row in truth]
    return made_trace(kinds), truth.ravel()


def test_profiles_are_shares(three):
    trace, truth = three
    profiles = head_profiles(trace)
    np.testing.assert_allclose(profiles.lag.sum(1), 1)
    np.testing.assert_allclose(profiles.first, np.array([THREE[k][1] for k in truth]))
    assert (profiles.entropy > 0).all()
    assert (profiles.entropy < 1).all()
    # Uniform attention has the entropy of an even spread: 1 by definition.
    even = made_trace([[(1e9, 0.0), (1e9, 0.0)]], noise=0, bos=False)
    np.testing.assert_allclose(head_profiles(even).entropy, 1, atol=1e-6)


def test_parts_weigh_as_often_as_they_are_named(three):
    trace, _ = three
    every, twice = head_profiles(trace), head_profiles(trace, list(range(PARTS)) * 2)
    np.testing.assert_allclose(every.features(), twice.features(), atol=1e-9)
    one = head_profiles(trace, [9])
    lag = np.nan_to_num(trace.dataset["attention_lag"].values[:, :, 9])
    mass = lag * trace.dataset["attention_lag_pairs"].values[9]
    mass = mass.reshape(LAYERS * HEADS, -1)
    np.testing.assert_allclose(one.lag, mass / mass.sum(1, keepdims=True))
    np.testing.assert_allclose(
        one.entropy,
        (trace.dataset["attention_entropy"].values[..., 180:] / np.log(np.arange(182, 202)))
        .mean(-1)
        .ravel(),
    )


def test_features_give_each_of_the_three_the_same_weight(three):
    features = head_profiles(three[0]).features()
    total = (features**2).sum(0)
    np.testing.assert_allclose([total[:-2].sum(), total[-2], total[-1]], len(features), rtol=1e-9)


@pytest.mark.parametrize("method", ["kmeans", "agglomerative"])
def test_planted_clusters_are_found_and_stable(three, method):
    from sklearn.metrics import adjusted_rand_score

    trace, truth = three
    found = head_clusters(trace, method=method, k=[2, 3, 4], draws=5, null_draws=9)
    assert found.k == 3
    assert adjusted_rand_score(found.table["cluster"], truth) == 1
    assert found.p == 1 / 10
    assert found.split_half[0] > 0.95
    assert (found.table["stability"] > 0.95).all()
    sizes = found.table["cluster"].value_counts().sort_index().tolist()
    assert sizes == sorted(sizes, reverse=True)
    curves = found.curves()
    assert set(curves["cluster"]) == {0, 1, 2}
    width = curves["lag_last"] - curves["lag_first"] + 1
    np.testing.assert_allclose((curves["value"] * width).groupby(curves["cluster"]).sum(), 1)
    assert "3 clusters" in repr(found)


def test_heads_without_groups_are_not_significant():
    """One smooth family: silhouettes no better than those of a normal cloud."""
    rng = np.random.default_rng(5)
    kinds = [
        [
            (np.exp(rng.normal(2, 0.15)), float(np.clip(rng.normal(0.3, 0.05), 0, 1)))
            for _ in range(HEADS)
        ]
        for _ in range(LAYERS)
    ]
    found = head_clusters(made_trace(kinds), k=[2, 3, 4], draws=2, null_draws=9)
    assert found.p > 0.1


def test_agreement_between_stories(three):
    trace, truth = three
    kinds = [[THREE[k] for k in row] for row in truth.reshape(LAYERS, HEADS)]
    other = made_trace(kinds, seed=9, noise=0.05)
    a, b = (head_clusters(t, k=3, draws=2, null_draws=0) for t in (trace, other))
    same = cluster_agreement(a, b, draws=99)
    assert same["adjusted_rand"] == 1
    assert same["p"] == 0.01
    assert np.isnan(a.p)
    shuffled = np.random.default_rng(1).permutation(np.ravel(truth))
    kinds = [[THREE[k] for k in row] for row in shuffled.reshape(LAYERS, HEADS)]
    c = head_clusters(made_trace(kinds), k=3, draws=2, null_draws=0)
    chance = cluster_agreement(a, c, draws=199)
    assert abs(chance["null_mean"]) < 0.05
    assert chance["adjusted_rand"] < 0.3


def test_clusters_are_reproducible(three):
    first, second = (
        head_clusters(three[0], k=[2, 3], draws=3, null_draws=3, seed=7) for _ in range(2)
    )
    assert first.table.equals(second.table)
    assert first.split_half == second.split_half


def test_bad_input_by_message(three):
    trace, _ = three
    with pytest.raises(InputError, match="method='ward' is not known"):
        head_clusters(trace, method="ward")
    with pytest.raises(InputError, match="24 heads can be put in 2 to 23"):
        head_clusters(trace, k=24)
    with pytest.raises(InputError, match="24 heads can be put in 2 to 23"):
        cluster_profiles(head_profiles(trace).features(), 1)
    with pytest.raises(InputError, match=r"parts must be some of 0 ... 9"):
        head_profiles(trace, [10])
    bare = Trace(trace.dataset.drop_vars("attention_entropy"), trace.story)
    with pytest.raises(MissingDataError, match="holds no attention_entropy"):
        head_profiles(bare)
    bare = Trace(trace.dataset[["surprisal"]], trace.story)
    with pytest.raises(MissingDataError, match="no attention per token"):
        head_statistics(bare)
    with pytest.raises(MissingDataError, match="no attention within events"):
        in_event_mass(trace)
    few = head_clusters(
        made_trace([[(3.0, 0.1)] * 4, [(9.0, 0.1)] * 4]), k=2, draws=1, null_draws=0
    )
    with pytest.raises(InputError, match="not of the same layers and heads"):
        cluster_agreement(few, head_clusters(trace, k=2, draws=1, null_draws=0))


# --- attention within events -------------------------------------------------------------------


def event_trace(events, n=240, layers=2, heads=2, draws=40, seed=0):
    """Head (0, 0) attends to its own event only; the others to near tokens whatever they are."""
    lags = np.arange(n)[:, None] - np.arange(n)[None, :]
    labels = events.labels()
    same = labels[:, None] == labels[None, :]
    rng = np.random.default_rng(seed)
    inside = np.zeros((layers, heads, n))
    drawn = {null: null_starts(events, null, draws, rng) for null in ("lengths", "shift")}
    chance = {null: np.zeros((layers, heads, draws)) for null in drawn}
    for la in range(layers):
        for he in range(heads):
            weight = np.where(lags >= 0, np.exp(-np.maximum(lags, 0) / 12.0), 0.0)
            if la == he == 0:
                weight = weight * np.where(same, 1, 1e-3)
            p = weight / weight.sum(1, keepdims=True)
            inside[la, he] = (p * same).sum(1)
            for null, starts in drawn.items():
                for d, s in enumerate(starts):
                    other = wb.Boundaries(s, n=n).labels()
                    chance[null][la, he, d] = (p * (other[:, None] == other[None])).sum(1).mean()
    settings = {
        "model": "made",
        "provenance": "made up",
        "attention_statistics": [
            {"name": "inside", "method": "H", "starts": events.starts.tolist()}
        ],
    }
    data = xr.Dataset(
        {
            "surprisal": ("token", np.ones(n)),
            "attention_inside": (("layer", "head", "token"), inside),
            **{
                f"attention_inside_{null}": (("layer", "head", "draw"), values)
                for null, values in chance.items()
            },
        },
        coords={"layer": np.arange(layers), "head": np.arange(heads)},
        attrs={"settings": json.dumps(settings)},
    )
    text = "word " * n
    return Trace(data, Story("made", text, untimed_words(text)))


@pytest.fixture(scope="module")
def eventful():
    lengths = [20, 9, 31, 14, 25, 40, 8, 18, 33, 42]
    return event_trace(wb.Boundaries.from_lengths(lengths, method="H"))


def test_a_head_of_events_stands_out_and_near_heads_do_not(eventful):
    table = in_event_mass(eventful, draws=200)
    assert len(table) == 2 * (4 + 2 + 1)
    heads = table[table["head"].notna()].set_index(["null", "layer", "head"])
    inside = eventful.dataset["attention_inside"].values
    for null in ("lengths", "shift"):
        own, near = heads.loc[(null, 0, 0)], heads.loc[(null, 1, 1)]
        assert own["value"] == pytest.approx(inside[0, 0].mean())
        assert own["p_fdr"] < 0.2
        assert own["difference"] > 0.1
        assert own["z"] > 3
        assert near["p"] > 0.1
        assert abs(near["difference"]) < 0.03
        assert near["value"] > 0.5  # large, and says nothing: its null is as large
        for row in (own, near):
            assert row["ci_low"] < row["value"] < row["ci_high"]
    whole = table[table["layer"].isna()].set_index("null")
    assert whole.loc["shift", "value"] == pytest.approx(inside.mean())
    layer = table[(table["layer"] == 1) & table["head"].isna()].set_index("null")
    assert layer.loc["lengths", "value"] == pytest.approx(inside[1].mean())
    assert layer["p_fdr"].isna().all()
    assert (table["n_events"] == 10).all()


def test_reducers_for_events_give_what_the_table_needs():
    from tiny_lm import tiny_lm

    lm = tiny_lm()
    text = "It rained on the town, and the town did not mind. She said: stay! He left. " * 3
    story = Story("rain", text, untimed_words(text))
    n = wb.record(story, lm, keys=False).n_tokens
    events = wb.Boundaries([0, 15, 40, 55], n=n, method="author")
    trace = wb.record(
        story,
        lm,
        keys=False,
        attention=[*inside_reducers(events, draws=12, among=[0, 15, 40, 55]), "entropy"],
    )
    table = in_event_mass(trace)
    assert set(table["null"]) == {"lengths", "shift", "sentences"}
    # Only one choice of three from three sentence starts: the null is the value.
    forced = table[table["null"] == "sentences"]
    np.testing.assert_allclose(forced["null_mean"], forced["value"], atol=1e-6)
    with pytest.raises(InputError, match="2 sentence starts for 3 boundaries"):
        inside_reducers(events, among=[0, 15, 40])
    assert (table["method"] == "author").all()
    # The own segmentation among the draws gives the value itself.
    from workbench.recording.reducers import InsideDraws

    again = wb.record(story, lm, keys=False, attention=[InsideDraws(events.starts), "entropy"])
    np.testing.assert_allclose(
        again.dataset["attention_inside_draws"].values[..., 0],
        trace.dataset["attention_inside"].values.mean(-1),
        atol=1e-6,
    )
    statistics = head_statistics(trace, draws=50)
    assert set(statistics["measure"]) == {"entropy", "inside"}
    one = statistics[(statistics["layer"] == 2) & (statistics["head"] == 3)].set_index("measure")
    expected = trace.dataset["attention_entropy"].values[2, 3].mean()
    assert one.loc["entropy", "value"] == pytest.approx(expected)
    assert one.loc["entropy", "ci_low"] < expected < one.loc["entropy", "ci_high"]


# --- figures -------------------------------------------------------------------------------------


def test_maps_show_the_table(eventful, three):
    statistics = head_statistics(eventful, draws=20)
    inside = in_event_mass(eventful, draws=20)
    with pytest.raises(InputError, match=r"several nulls \(lengths, shift\)"):
        figure_heads(statistics, inside)
    with pytest.raises(MissingDataError, match="under the null 'uniform'"):
        figure_heads(statistics, inside, null="uniform")
    fig = figure_heads(statistics, inside, null="lengths")
    rows = inside[(inside["null"] == "lengths") & inside["head"].notna()]
    np.testing.assert_allclose(np.ravel(fig.data[0].z), rows["difference"].to_numpy(dtype=float))
    assert len(fig.data[1].x) == (rows["p_fdr"] < 0.05).sum()
    assert "in own event" in fig.data[0].customdata[0][0]
    maps = figure_heads(head_statistics(three[0], draws=20))
    assert [a.text for a in maps.layout.annotations[:2]] == [
        "Entropy (nats)",
        "First tokens (share)",
    ]
    doubled = head_statistics(three[0], draws=20)
    with pytest.raises(InputError, match="several rows for one head"):
        figure_heads(doubled.loc[np.repeat(doubled.index, 2)])


def test_cluster_figure_shows_curves_and_heads(three):
    found = head_clusters(three[0], k=3, draws=3, null_draws=5)
    fig = figure_head_clusters(found)
    lines = [trace for trace in fig.data if trace.type == "scatter" and trace.name]
    assert [line.name.split()[0] for line in lines] == ["0", "1", "2"]
    curves = found.curves()
    np.testing.assert_allclose(lines[0].y, curves[curves["cluster"] == 0]["value"].clip(lower=1e-7))
    assert np.ravel(fig.data[-1].z).tolist() == found.table["cluster"].tolist()
    footnote = fig.layout.annotations[-1].text.replace("<br>", " ")
    assert "adjusted Rand between random halves" in footnote
    assert "made up" in footnote
