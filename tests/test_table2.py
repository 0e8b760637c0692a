"""Table 2: chunks, counts, spreads and tests against slow versions of their definitions."""

import functools
import json

import numpy as np
import pytest
from scipy.stats import binomtest, false_discovery_control, wilcoxon
from typer.testing import CliRunner

from tests.fakes import fake_story, fake_trace
from workbench.analysis.nulls import null_starts
from workbench.analysis.table2 import (
    MEASURES,
    _texts,
    check_table2_target,
    table2,
    table2_of_traces,
)
from workbench.analysis.table2_chunks import NULL_STREAM, chunk_spans, cut_chunk, measure_chunk
from workbench.analysis.table2_published import (
    METHODS,
    PUBLISHED,
    agreement,
    published_order,
)
from workbench.analysis.table2_summary import nested_spread, per_head_tests
from workbench.core.boundaries import Boundaries
from workbench.core.errors import DataError, InputError
from workbench.core.keygraph import KeyGraph
from workbench.events.refinement import refine
from workbench.events.threshold import threshold_flags


def make_trace(seed=0, n=300, layers=3, heads=2, d=4, name="story"):
    rng = np.random.default_rng(seed)
    scenes = np.repeat(rng.normal(size=(n // 15 + 1, d)), 15, axis=0)[:n]
    keys = scenes + rng.normal(size=(layers, heads, n, d)) + 1
    return fake_trace(rng.exponential(size=n), keys, story=fake_story(n, name=name))


def run(traces=None, **options):
    chosen = traces or [make_trace(0, name="a"), make_trace(1, n=250, name="b")]
    return table2_of_traces(chosen, **{"chunk": 100, "draws": 20, "resamples": 50, **options})


@functools.cache
def plain_run():
    """All methods, nulls and measures on two short texts."""
    return run()


def row_of(found, **wanted):
    table = found.table
    for column, value in wanted.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_only_whole_chunks_are_used_and_the_rest_is_counted():
    assert chunk_spans(300, 100) == [(0, 100), (100, 200), (200, 300)]
    assert chunk_spans(299, 100) == [(0, 100), (100, 200)]
    assert chunk_spans(99, 100) == []
    texts = plain_run().settings["texts"]
    assert [(t["text"], t["chunks"], t["left_out"]) for t in texts] == [("a", 3, 0), ("b", 2, 50)]


def test_every_method_has_as_many_events_as_s_and_none_is_too_short():
    rng = np.random.default_rng(2)
    graph = KeyGraph(rng.normal(size=(200, 4)) + 1)
    for _ in range(30):
        flags = rng.random(200) < rng.uniform(0.02, 0.6)
        cuts = cut_chunk(flags, METHODS, graph, min_size=8, max_size=64)
        assert {cut.n_events for cut in cuts.values()} == {cuts["S"].n_events}
        assert all(cut.lengths.min() >= 8 for cut in cuts.values())
        # S is the flags, merged forward: every start but those that max_size made is a flag
        assert cuts["S"].lengths.max() <= 64 + 8
        assert np.ptp(cuts["F"].lengths) <= 1
        assert cuts["SM"] == refine(graph, cuts["S"])
        assert cuts["FC"] == refine(graph, cuts["F"], objective="conductance")


def test_values_and_differences_are_those_of_the_definition():
    trace = make_trace(3, n=220)
    found = run([trace], chunk=100, methods=["S", "SM"], nulls=["uniform"], draws=7)
    keys = trace.keys().reshape(6, 220, 4)
    flags = threshold_flags(trace.surprisal, 1e-3).flags
    last = np.repeat(np.isin(trace.layers, trace.last_third()), 2)
    values, differences = [], []
    for number, (a, b) in enumerate([(0, 100), (100, 200)]):
        guide = KeyGraph(keys[last, a:b]).summed()
        cut = cut_chunk(flags[a:b], ["SM"], guide)["SM"]
        rng = np.random.default_rng([0, 1, number, NULL_STREAM["uniform"]])
        starts = null_starts(cut, "uniform", 7, rng)
        for head in range(6):
            graph = KeyGraph(keys[head, a:b])
            value = graph.conductance(cut, "em-llm-code", "mean")
            random = [graph.conductance(Boundaries(s, 100), "em-llm-code", "mean") for s in starts]
            values.append(value)
            differences.append(value - np.mean(random))
    row = row_of(found, method="SM", variant="em-llm-code:mean", null="uniform")
    assert row["value"] == pytest.approx(np.mean(values))
    assert row["difference"] == pytest.approx(np.mean(differences))
    assert row["null_mean"] == pytest.approx(np.mean(values) - np.mean(differences))
    assert row["sd"] == pytest.approx(np.std(differences, ddof=1))
    by_chunk = np.reshape(differences, (2, 6))
    assert row["sd_chunks"] == pytest.approx(np.std(by_chunk.mean(axis=1), ddof=1))
    by_layer = by_chunk.reshape(2, 3, 2).mean(axis=(0, 2))
    assert row["sd_layers"] == pytest.approx(np.std(by_layer, ddof=1))


def test_refinement_on_each_head_gives_every_head_its_own_cut():
    trace = make_trace(4, n=120)
    found = run([trace], chunk=120, methods=["SM"], nulls=["uniform"], refine_on="head")
    keys = trace.keys().reshape(6, 120, 4)
    flags = threshold_flags(trace.surprisal, 1e-3).flags
    expected = []
    for head in range(6):
        graph = KeyGraph(keys[head])
        expected.append(graph.modularity(cut_chunk(flags, ["SM"], graph)["SM"], "em-llm"))
    row = row_of(found, measure="modularity", null="uniform")
    assert row["value"] == pytest.approx(np.mean(expected))
    summed = row_of(
        run([trace], chunk=120, methods=["SM"], nulls=["uniform"]), measure="modularity"
    )
    assert row["value"] != pytest.approx(summed["value"], rel=1e-6)


def test_methods_with_equal_counts_meet_the_same_uniform_draws():
    found = run(methods=["F", "S", "SM"], nulls=["uniform", "lengths"])
    nulls = [
        row_of(found, method=m, variant="em-llm", null="uniform")["null_mean"]
        for m in ("F", "S", "SM")
    ]
    assert nulls == pytest.approx([nulls[0]] * 3, rel=1e-12)
    used = found.table.drop_duplicates(["method", "null"]).set_index(["method", "null"])[
        "null_used"
    ]
    assert used["F", "lengths"] == "shift"  # the order of equal lengths says nothing
    assert used["S", "lengths"] == "lengths"


def test_draws_of_min_gap_depend_on_the_least_size():
    rng = np.random.default_rng(5)
    graph = KeyGraph(rng.normal(size=(1, 60, 3)) + 1)
    cuts = {"a": Boundaries([20, 40], 60), "b": Boundaries([3, 40], 60)}
    found = measure_chunk(graph, cuts, MEASURES[:1], ["min_gap"], draws=50, seed=[0])
    a, b = (found.null_mean[m, "min_gap", MEASURES[0]] for m in ("a", "b"))
    assert a != b


def test_planted_scenes_are_told_from_random_under_every_null():
    rng = np.random.default_rng(6)
    traces = []
    for number in range(4):
        n = 240
        surprisal = rng.uniform(0, 1, n)
        surprisal[12::12] = 9
        centres = np.repeat(rng.normal(size=(20, 6)), 12, axis=0) * 2
        keys = centres + rng.normal(size=(3, 2, n, 6)) + 1
        story = fake_story(n, name=f"t{number}")
        traces.append(fake_trace(surprisal, keys, story=story))
    found = run(traces, chunk=120, draws=60, methods=["S", "F"], gamma=2.0)
    for null in ("uniform", "min_gap"):
        row = row_of(found, method="S", measure="modularity", null=null)
        assert row["difference"] > 0
        assert row["p"] < 0.05
        assert row["ci_low"] > 0
        assert row["heads_up"] == 6
        assert row["heads_down"] == 0
        assert row["resampled"] == "texts"


def test_per_head_tests_are_scipys_corrected_over_heads():
    rng = np.random.default_rng(7)
    values = rng.normal(size=(12, 9)) + np.linspace(-1.5, 1.5, 9)
    values[3, 2] = np.nan
    values[4, 5] = 0.0
    found = per_head_tests(values)
    signed, sign = [], []
    for column in values.T:
        kept = column[np.isfinite(column) & (column != 0)]
        signed.append(wilcoxon(kept).pvalue)
        sign.append(binomtest(int((kept > 0).sum()), len(kept)).pvalue)
    np.testing.assert_allclose(found.wilcoxon, false_discovery_control(signed))
    np.testing.assert_allclose(found.sign, false_discovery_control(sign), rtol=1e-9)
    passed = np.array(false_discovery_control(signed)) <= 0.05
    above = np.nanmedian(values, axis=0) > 0
    counts = found.significant()
    assert counts[:2] == ((passed & above).sum(), (passed & ~above).sum())
    assert min(counts[:2]) >= 1  # the example has heads on both sides


def test_rounding_is_no_difference():
    found = per_head_tests(np.array([[1.0, 1e-17], [2.0, -1e-17], [1.5, 1e-16]]))
    assert np.isnan(found.wilcoxon[1])
    assert np.isnan(found.sign[1])
    assert found.significant() == (0, 0, 0, 0)


def test_undefined_values_are_left_out_and_counted():
    layers = np.array([0, 0, 1])
    values = np.array([[1.0, 2, np.nan], [3, np.nan, np.nan]])
    found = nested_spread(values, layers)
    assert found.mean == 2
    assert found.undefined == 0.5
    assert found.sd == pytest.approx(1)
    assert found.chunks == pytest.approx(np.std([1.5, 3], ddof=1))
    assert np.isnan(found.layers)  # one layer left
    assert nested_spread(np.full((2, 3), np.nan), layers).undefined == 1


def test_the_published_orders():
    assert published_order("Mistral-7B", "modularity") == ["SM", "SC", "FM", "S", "FC", "F"]
    assert published_order("Mistral-7B", "conductance") == ["SC", "SM", "S", "FM", "FC", "F"]
    assert published_order("LLaMA3-8B", "intra_inter") == ["SM", "FM", "SC", "S", "FC", "F"]
    for model, columns in PUBLISHED.items():
        for measure, column in columns.items():
            assert len(column) == 6
            means = {m: mean for m, (mean, _) in zip(METHODS, column, strict=True)}
            tau, p, agree, pairs = agreement(means, model, measure)
            assert tau == pytest.approx(1)
            assert (agree, pairs) == (15, 15)
            assert p == pytest.approx(2 / 720)
            reverse = {m: -mean for m, mean in means.items()}
            assert agreement(reverse, model, measure)[0] == pytest.approx(-1)


def test_agreement_on_fewer_methods():
    tau, _, agree, pairs = agreement({"S": 1.0, "F": 0.0, "SM": np.nan}, "LLaMA2-7B", "modularity")
    assert np.isnan(tau)
    assert (agree, pairs) == (1, 1)
    tau, *_ = agreement({"S": 1.0, "F": 0.0, "SM": 0.5}, "LLaMA2-7B", "modularity")
    assert tau == pytest.approx(1 / 3)
    with pytest.raises(InputError, match="model='GPT' is not known"):
        agreement({}, "GPT", "modularity")


def test_orders_pairs_report_and_files(tmp_path):
    found = plain_run()
    orders = found.orders
    assert len(orders) == len(MEASURES) * 4 * 3
    assert orders["tau"].between(-1, 1).all()
    assert (orders["tau_low"] <= orders["tau_high"]).all()
    pairs = found.pairs
    chosen = (pairs["variant"] == "em-llm") & (pairs["null"] == "uniform")
    gap = pairs[chosen & (pairs["method"] == "SM") & (pairs["against"] == "S")].iloc[0]
    sm, s = (
        row_of(found, method=m, variant="em-llm", null="uniform")["difference"] for m in ("SM", "S")
    )
    assert gap["difference"] == pytest.approx(sm - s)
    text = found.report(["uniform"])
    assert "null uniform" in text
    assert "null lengths" not in text
    assert "5 chunks of 100 tokens (50 tokens at the ends left out)" in text
    assert "made from arrays for a test" in text
    with pytest.raises(InputError, match="null='random'"):
        found.report(["random"])
    folder = found.save(tmp_path / "out")
    assert sorted(p.name for p in folder.iterdir()) == [
        "orders.csv",
        "pairs.csv",
        "report.md",
        "settings.json",
        "table.csv",
    ]
    assert json.loads((folder / "settings.json").read_text())["gamma"] == 1e-3
    with pytest.raises(InputError, match="earlier result"):
        found.save(folder)
    found.save(folder, overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        check_table2_target(tmp_path / "file", False)


def test_one_method_alone_has_no_pairs_and_no_order():
    found = run(methods=["S"], nulls=["uniform"])
    assert found.pairs.empty
    assert list(found.pairs.columns) == list(plain_run().pairs.columns)
    assert found.orders["tau"].isna().all()
    assert "Pairs of methods" not in found.report()


def test_the_same_seed_gives_the_same_table():
    first, second = plain_run(), run()
    assert first.table.equals(second.table)
    other = run(seed=1, nulls=["uniform"], methods=["S"])
    wanted = {"method": "S", "variant": "em-llm", "null": "uniform"}
    assert row_of(other, **wanted)["null_mean"] != row_of(first, **wanted)["null_mean"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["H"]}, "method='H' is not known"),
        ({"nulls": ["none"]}, "null='none' is not known"),
        ({"refine_on": "layer"}, "refine_on='layer' is not known"),
        ({"measures": [("modularity", "x")]}, "is not known"),
        ({"chunk": 12}, "at least two events"),
        ({"chunk": 1000}, "the longest has 300"),
        ({"draws": 1}, "draws=1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        run(**options)


def test_folders_and_lists_of_texts(tmp_path):
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "c.csv").write_text("three")
    assert [p.name for p in _texts(tmp_path)] == ["a.txt", "b.txt"]
    assert _texts("pieman") == ["pieman"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="holds no text"):
        _texts(empty)
    with pytest.raises(InputError, match="empty list"):
        _texts([])
    with pytest.raises(InputError, match="more than once"):
        table2([fake_story(3), fake_story(3)])
    with pytest.raises(InputError, match="there is no text"):
        table2_of_traces([])


def test_the_command_hands_its_options_on(monkeypatch, tmp_path):
    import typer

    import workbench.analysis.table2 as module
    from workbench.cli_table2 import table2 as command

    seen = {}

    def pretend(texts, models, **options):
        seen.update(texts=texts, models=models, **options)
        return run(nulls=options["nulls"], methods=["S"])

    monkeypatch.setattr(module, "table2", pretend)
    app = typer.Typer()
    app.command()(command)
    out = tmp_path / "out"
    arguments = ["texts/", "--chunk", "256", "--null", "uniform,shift", "--out", str(out), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert seen["texts"] == "texts/"
    assert seen["models"] == ["smollm2-135m"]
    assert (seen["chunk"], seen["nulls"]) == (256, ["uniform", "shift"])
    assert (out / "table.csv").exists()
    rows = json.loads(result.stdout)
    assert {row["null"] for row in rows} == {"uniform", "shift"}
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, InputError)
