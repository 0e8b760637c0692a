"""Recall by memory systems: every measure against slow loops over the retrieval table."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from tiny_lm import tiny_lm

from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.retrieval import RetrievedEvents
from workbench.analysis.retrieval_lag import retrieval_asymmetry, retrieval_lag_crp
from workbench.analysis.retrieval_recency import recency
from workbench.analysis.retrieval_units import (
    layer_overlap,
    overlap_summary,
    surprise_effect,
    unit_recall,
)
from workbench.core.errors import DataError, InputError, MissingDataError
from workbench.memory import make_system

KEY = ["step", "position", "layer", "head"]


def retrievals(
    seed: int, n_steps: int = 8, n_layers: int = 3, first: int = 2
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Random retrievals, some of which recall nothing: the table, and all retrievals."""
    rng = np.random.default_rng(seed)
    rows, known = [], []
    for step in range(n_steps):
        available = int(rng.integers(1, 3 + 2 * step))
        for layer in range(n_layers):
            known.append((step, 10 * step, layer, -1, available))
            units = first + rng.permutation(available)[: rng.integers(0, available + 1)]
            n_similar = int(rng.integers(0, len(units) + 1))
            for place, unit in enumerate(units.tolist()):
                similar = place < n_similar
                rank = place if similar else place - n_similar
                buffer = "similarity" if similar else "contiguity"
                rows.append(
                    (step, 10 * step, layer, -1, unit, rng.normal(), buffer, rank, available)
                )
    rng.shuffle(rows)  # the order of rows must not matter
    columns = [*KEY, "unit", "similarity", "buffer", "rank", "available"]
    table = pd.DataFrame(rows, columns=columns)
    return table, pd.DataFrame(known, columns=[*KEY, "available"])


def retrieved(seed: int, **options: int) -> RetrievedEvents:
    first = options.pop("first", 2)
    table, known = retrievals(seed, first=first, **options)
    rng = np.random.default_rng(seed)
    n = first + int(known["available"].max())
    return RetrievedEvents.from_table(
        table,
        first=first,
        retrievals=known,
        surprisal=rng.exponential(size=n),
        size=rng.integers(1, 40, n),
    )


def units_of(events: RetrievedEvents, key: tuple[int, ...], buffer: str) -> list[int]:
    rows = [
        row
        for row in events.table.to_dict("records")
        if tuple(row[name] for name in KEY) == key and (buffer == "both" or row["buffer"] == buffer)
    ]
    rows.sort(key=lambda row: (row["buffer"] == "contiguity", row["rank"]))
    return [row["unit"] for row in rows]


def lists_of(events: RetrievedEvents, buffer: str) -> list[tuple[int, int, int, list[int]]]:
    """(step, layer, available, units) of every retrieval."""
    return [
        (row["step"], row["layer"], row["available"], units_of(events, tuple(row[KEY]), buffer))
        for _, row in events.retrievals.iterrows()
    ]


seeds = st.integers(0, 10_000)
buffers = st.sampled_from(["similarity", "contiguity", "both"])


@settings(max_examples=15, deadline=None)
@given(seeds, buffers, st.integers(1, 2))
def test_asymmetry_is_of_the_mean_curve(seed, buffer, lag):
    events = retrieved(seed)
    curve = retrieval_lag_crp(events, buffer=buffer, max_lag=lag, draws=0, resamples=0)
    mean = curve[curve["layer"] == "all"].set_index("lag")["prob"]
    found = retrieval_asymmetry(events, buffer=buffer, lag=lag, draws=30, resamples=50)
    forward, backward = mean[lag], mean[-lag]
    np.testing.assert_allclose([found["forward"], found["backward"]], [forward, backward])
    expected = (forward - backward) / (forward + backward) if forward + backward > 0 else np.nan
    np.testing.assert_allclose(found["asymmetry"], expected)
    if np.isfinite(found["asymmetry_low"]):
        assert found["asymmetry_low"] <= found["asymmetry_high"]
    assert found["n_steps"] == events.retrievals["step"].nunique()


def test_asymmetry_tells_forward_recall_from_random():
    units = [
        (step, layer, 2 + step % 16 + place)
        for step in range(40)
        for layer in range(3)
        for place in range(4)
    ]
    table = pd.DataFrame(
        {
            "step": [step for step, _, _ in units],
            "position": [10 * step for step, _, _ in units],
            "layer": [layer for _, layer, _ in units],
            "head": -1,
            "unit": [unit for _, _, unit in units],
            "buffer": "similarity",
            "rank": [k % 4 for k in range(len(units))],
            "available": 20,
        }
    )
    events = RetrievedEvents.from_table(table, first=2)
    found = retrieval_asymmetry(events, draws=99, resamples=50)
    assert (found["forward"], found["backward"], found["asymmetry"]) == (1.0, 0.0, 1.0)
    assert found["p"] == pytest.approx(1 / 100)  # the least there is with 99 draws


@settings(max_examples=25, deadline=None)
@given(seeds, buffers)
def test_lag_crp_is_the_loop(seed, buffer):
    events = retrieved(seed)
    found = retrieval_lag_crp(events, buffer=buffer, max_lag=4, draws=0, resamples=0)
    lists = lists_of(events, buffer)
    curves = []
    for layer in events.layers:
        actual, possible = dict.fromkeys(range(-4, 5), 0), dict.fromkeys(range(-4, 5), 0)
        for _, at, available, units in lists:
            if at != layer:
                continue
            for place in range(len(units) - 1):
                gone = set(units[: place + 1])
                for lag in possible:
                    there = units[place] + lag
                    if events.first <= there < events.first + available and there not in gone:
                        possible[lag] += 1
                        actual[lag] += units[place + 1] == there
        own = found[found["layer"] == layer].set_index("lag")
        assert own["possible"].to_dict() == possible
        assert own["actual"].to_dict() == actual
        curves.append([actual[g] / possible[g] if possible[g] else np.nan for g in possible])
    known = [[v for v in column if np.isfinite(v)] for column in np.array(curves).T]
    mean = [np.mean(values) if values else np.nan for values in known]
    np.testing.assert_allclose(found.loc[found["layer"] == "all", "prob"].astype(float), mean)


@settings(max_examples=25, deadline=None)
@given(seeds, buffers)
def test_recency_is_the_loop(seed, buffer):
    events = retrieved(seed)
    found = recency(events, buffer=buffer, resamples=0)
    lists = lists_of(events, buffer)
    for layer in [*events.layers, "all"]:
        own = found[found["layer"] == layer].set_index("age")
        for age, row in own.iterrows():
            possible, recalled, chance = 0, 0, 0.0
            for _, at, available, units in lists:
                unit = events.first + available - age
                if layer in ("all", at) and unit >= events.first:
                    possible += 1
                    recalled += unit in units
                    chance += len(units) / available
            assert (row["possible"], row["recalled"]) == (possible, recalled)
            if possible:
                np.testing.assert_allclose(
                    [row["prob"], row["chance"]], [recalled / possible, chance / possible]
                )
            else:
                assert np.isnan(row["prob"])


@settings(max_examples=25, deadline=None)
@given(seeds, buffers)
def test_unit_recall_is_the_loop(seed, buffer):
    events = retrieved(seed)
    lists = lists_of(events, buffer)
    for row in unit_recall(events, buffer=buffer).to_dict("records"):
        there = [entry for entry in lists if row["unit"] < events.first + entry[2]]
        hits = [entry for entry in there if row["unit"] in entry[3]]
        assert (row["possible"], row["recalled"]) == (len(there), len(hits))
        assert row["chance"] == pytest.approx(np.mean([len(e[3]) / e[2] for e in there]))
        layers = {entry[1] for entry in hits}
        assert row["layers"] == len(layers)
        assert (row["only_layer"] in layers) if len(layers) == 1 else pd.isna(row["only_layer"])
        assert row["surprisal"] == events.surprisal[row["unit"]]


@settings(max_examples=25, deadline=None)
@given(seeds, buffers)
def test_overlap_is_the_loop(seed, buffer):
    events = retrieved(seed)
    lists = lists_of(events, buffer)
    steps = sorted({entry[0] for entry in lists})
    sets = {(step, layer): (set(units), n) for step, layer, n, units in lists}
    pairs: dict[tuple[int, int], list[float]] = {}
    means, singles = [], []
    for step in steps:
        here = []
        for pair in combinations(events.layers, 2):
            (a, n), (b, _) = (sets[step, layer] for layer in pair)
            if a | b and len(a & b) < n:
                here.append(len(a & b) / len(a | b))
                pairs.setdefault(pair, []).append(here[-1])
        if here:
            means.append(np.mean(here))
        union = set().union(*(sets[step, layer][0] for layer in events.layers))
        if union:
            count = [sum(u in sets[step, layer][0] for layer in events.layers) for u in union]
            singles.append(np.mean(np.array(count) == 1))
    table = layer_overlap(events, buffer=buffer).set_index(["layer", "other"])
    for (i, j), values in pairs.items():
        for pair in ((i, j), (j, i)):
            assert table.loc[pair, "jaccard"] == pytest.approx(np.mean(values))
            assert table.loc[pair, "n_places"] == len(values)
    summary = overlap_summary(events, buffer=buffer, draws=0, resamples=0).set_index("measure")
    for name, values in (("jaccard", means), ("one_layer", singles)):
        expected = np.mean(values) if values else np.nan
        assert summary.loc[name, "value"] == pytest.approx(expected, nan_ok=True)
    ever: dict[int, set[int]] = {}
    for _, layer, _, units in lists:
        for unit in units:
            ever.setdefault(unit, set()).add(layer)
    assert summary.loc["ever", "value"] == pytest.approx(
        len(ever) / int(events.retrievals["available"].max())
    )
    if ever:
        alone = np.mean([len(layers) == 1 for layers in ever.values()])
        assert summary.loc["one_layer_ever", "value"] == pytest.approx(alone)


def test_chance_of_overlap_is_the_mean_of_random_sets():
    table, known = retrievals(3, n_steps=1, n_layers=2)
    known["available"] = 9
    rows = [
        (0, 0, layer, -1, 2 + unit, 0.0, "similarity", rank, 9)
        for layer, units in ((0, (0, 1, 2, 3)), (1, (3, 4, 5)))
        for rank, unit in enumerate(units)
    ]
    table = pd.DataFrame(rows, columns=table.columns)
    events = RetrievedEvents.from_table(table, first=2, retrievals=known)
    every = [
        len({*a} & {*b}) / len({*a} | {*b})
        for a in combinations(range(9), 4)
        for b in combinations(range(9), 3)
    ]
    found = layer_overlap(events).iloc[0]
    assert found["jaccard"] == pytest.approx(1 / 6)
    assert found["chance"] == pytest.approx(np.mean(every))
    summary = overlap_summary(events, draws=500, resamples=0).set_index("measure")
    assert summary.loc["jaccard", "null_mean"] == pytest.approx(np.mean(every), abs=0.02)


def test_uniform_null_is_flat_and_is_not_beaten_by_random_recall():
    """Random recall: the null's mean is its expectation, and p is spread over 0 ... 1."""
    ps, differences = [], []
    for seed in range(30):
        events = retrieved(seed, n_steps=12)
        table = retrieval_lag_crp(events, buffer="both", draws=60, resamples=0, seed=seed)
        row = table[(table["layer"] == "all") & (table["lag"] == 1)].iloc[0]
        ps.append(row["p"])
        differences.append(row["prob"] - row["null_mean"])
    assert np.mean(np.array(ps) < 0.1) < 0.3
    assert abs(np.mean(differences)) < 3 * np.std(differences) / np.sqrt(30)


def test_serial_recall_stands_out_from_both_nulls():
    rows = [
        (step, step, layer, -1, unit, 0.0, "similarity", unit - 1, 20)
        for step in range(8)
        for layer in range(2)
        for unit in range(1, 11)
    ]
    table = pd.DataFrame(rows, columns=[*KEY, "unit", "similarity", "buffer", "rank", "available"])
    events = RetrievedEvents.from_table(table)
    for null, expected in (("uniform", 1 / 15), ("shuffle", 1 / 6)):
        found = retrieval_lag_crp(events, null=null, draws=100, resamples=100)
        row = found[(found["layer"] == "all") & (found["lag"] == 1)].iloc[0]
        assert (row["prob"], row["ci_low"], row["ci_high"]) == (1, 1, 1)
        assert row["null_mean"] < 2 * expected
        assert row["p"] == pytest.approx(1 / 101)


def test_the_free_recall_code_gives_the_same_curve():
    events = retrieved(5)
    mine = retrieval_lag_crp(events, buffer="both", max_lag=3, draws=0, resamples=0)
    theirs = lag_crp(events.recall_sequences("both"))
    for layer in events.layers:
        a = mine[mine["layer"] == layer].set_index("lag")["prob"].astype(float)
        b = theirs[theirs["subject"] == layer].set_index("lag")["prob"].reindex(a.index)
        np.testing.assert_allclose(a, b)


def test_woven_neighbours_stand_behind_their_unit():
    buffers = [("similarity", (7, 3)), ("contiguity", (8, 6, 4, 0))]
    rows = [
        (0, 0, 0, -1, unit, 0.0, name, rank, 10)
        for name, units in buffers
        for rank, unit in enumerate(units)
    ]
    table = pd.DataFrame(rows, columns=[*KEY, "unit", "similarity", "buffer", "rank", "available"])
    events = RetrievedEvents.from_table(table)
    outputs = {
        order: (events.recall_sequences("both", order).outputs[0] - 1).tolist()
        for order in ("log", "woven")
    }
    assert outputs == {"log": [7, 3, 8, 6, 4, 0], "woven": [7, 8, 6, 3, 4, 0]}
    assert (events.recall_sequences("both", "woven", reach=3).outputs[0] - 1).tolist() == [
        *(7, 8, 6, 4, 3, 0)
    ]


def test_intervals_need_five_steps_and_cover_the_value():
    few = retrieval_lag_crp(retrieved(1, n_steps=4), draws=0, resamples=50)
    assert few["ci_low"].isna().all()
    many = retrieved(2, n_steps=30)
    for over in ("steps", "layers"):
        found = retrieval_lag_crp(many, buffer="both", over=over, draws=0, resamples=300)
        known = found[found["ci_low"].notna()]
        if over == "steps":
            assert {0, 1, 2, "all"} <= set(known["layer"])
            assert (known["ci_low"] <= known["prob"]).mean() > 0.95
            assert (known["ci_high"] >= known["prob"]).mean() > 0.95
        else:
            assert known.empty  # three layers
    wide = retrieval_lag_crp(retrieved(3, n_layers=8), buffer="both", over="layers", draws=0)
    assert set(wide.loc[wide["ci_low"].notna(), "layer"]) == {"all"}
    ages = recency(many, resamples=200)
    thin = ages[(ages["layer"] == 0) & (ages["possible"] < 5)]
    assert len(thin)
    assert thin["ci_low"].isna().all()
    assert ages.loc[(ages["layer"] == "all") & (ages["age"] == 1), "ci_low"].notna().all()


def test_surprise_effect_is_spearman_of_what_exceeds_chance():
    events = retrieved(11, n_steps=12)
    found = surprise_effect(events, buffer="both", draws=20, resamples=20).set_index("measure")
    units = unit_recall(events, buffer="both")
    excess = units["rate"] - units["chance"]
    assert found.loc["spearman", "rho"] == pytest.approx(
        spearmanr(units["surprisal"], excess).statistic
    )
    ranks = pd.DataFrame(
        {"x": units["surprisal"], "y": excess, "s": units["size"], "u": units["unit"]}
    ).rank()
    precision = np.linalg.inv(np.corrcoef(ranks.to_numpy().T))
    partial = -precision[0, 1] / np.sqrt(precision[0, 0] * precision[1, 1])
    assert found.loc["partial", "rho"] == pytest.approx(partial)


def test_surprise_effect_finds_a_real_one():
    n, rng = 40, np.random.default_rng(0)
    surprisal = rng.exponential(size=n)
    rows = []
    for step in range(20):
        chosen = np.argsort(-surprisal + 0.3 * rng.normal(size=n))[:10]
        rows += [
            (step, step, 0, -1, unit, 0.0, "similarity", rank, n)
            for rank, unit in enumerate(chosen.tolist())
        ]
    table = pd.DataFrame(rows, columns=[*KEY, "unit", "similarity", "buffer", "rank", "available"])
    events = RetrievedEvents.from_table(table, surprisal=surprisal, size=rng.integers(1, 9, n))
    found = surprise_effect(events, draws=200, resamples=200)
    assert (found["rho"] > 0.6).all()
    assert (found["p"] < 0.01).all()
    assert (found["ci_low"] > 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="rank"), "lacks the column.*rank"),
        (lambda t: t.iloc[:0], "nothing was recalled"),
        (lambda t: pd.concat([t, t.iloc[:1]]), "comes twice"),
        (lambda t: t.assign(unit=t["unit"] + 50), "were there; check first="),
    ],
)
def test_unusable_tables(change, message):
    table, _ = retrievals(0)
    with pytest.raises((DataError, MissingDataError), match=message):
        RetrievedEvents.from_table(change(table), first=2)


def test_unusable_options():
    table, _ = retrievals(0)
    events = RetrievedEvents.from_table(table, first=2)
    with pytest.raises(MissingDataError, match="surprisal or size"):
        surprise_effect(events)
    with pytest.raises(DataError, match="size has 1 values"):
        RetrievedEvents.from_table(table, first=2, size=[3])
    for call, message in (
        (lambda: retrieval_lag_crp(events, buffer="all"), "buffer"),
        (lambda: retrieval_lag_crp(events, null="lengths"), "null"),
        (lambda: retrieval_lag_crp(events, over="units"), "over"),
        (lambda: recency(events, over="units"), "over"),
        (lambda: events.recall_sequences(order="age"), "order"),
        (lambda: retrieval_lag_crp(events, max_lag=0), "max_lag"),
    ):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("name", ["emllm-S+C", "infllm"])
def test_from_a_system(name):
    lm = tiny_lm()
    options = {"block": 8} if name == "infllm" else {}
    system = make_system(name, lm, n_init=9, n_local=24, n_mem=24, chunk=12, **options)
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(["the town", "rained", "stayed", "He left", "noon."], 60))
    system.read(text)
    events = RetrievedEvents.of(system)
    layer = system.rows[0].layers[0]
    assert events.first == layer.first_recalled
    assert events.first < events.n_units <= layer.n_indexed <= system.events.n_events
    assert events.source == system.name
    np.testing.assert_array_equal(events.surprisal, system.surprisal[system.events.starts])
    assert len(events.retrievals) == len(system.rows[0].log.entries)
    assert (events.recall_sequences().outputs > 0).sum() == len(system.retrievals)
    with pytest.raises(MissingDataError, match="nothing was read"):
        RetrievedEvents.of(make_system(name, lm, n_local=24, n_mem=24))


def test_layers_with_their_own_events_are_refused():
    system = make_system("emllm-S", tiny_lm(), n_local=24, n_mem=24, per="layer")
    system.read("a cab bad bee feed")
    with pytest.raises(InputError, match="each layer"):
        RetrievedEvents.of(system)
