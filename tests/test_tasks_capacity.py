"""The sweep of a memory's settings: settings, table against slow loops, resuming, the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_lm import tiny_lm

from workbench.core.errors import InputError
from workbench.memory import make_system
from workbench.tasks import capacity
from workbench.tasks.capacity import capacity_sweep, capacity_table, sweep_settings

BASE = {"n_init": 4, "n_local": 32, "n_mem": 32, "chunk": 16, "min_size": 4}
SWEEP = {"n_mem": [0, 16], "share": [0.5], "gamma": [0.5], "n_local": [16, 64], "total": 64}
TEXT = "It rained on the town, and the town did not mind. She said: stay! He left at noon. " * 4


@pytest.fixture(scope="module")
def lm():
    return tiny_lm()


@pytest.fixture(scope="module")
def found(lm):
    return capacity_sweep(TEXT, **SWEEP, base=BASE, lm=lm, block=8, draws=200)


def test_one_setting_is_changed_at_a_time():
    made = sweep_settings(**SWEEP, base=BASE)
    labels = [setting.label for setting in made]
    assert labels == [
        *("base", "n_mem=0", "n_mem=16", "share=0.5", "gamma=0.5", "n_local=16", "n_local=64")
    ]
    for setting in made[1:5]:
        changed = {k for k, v in setting.options.items() if BASE.get(k) != v}
        assert changed == {setting.factor}
    windows = [(s.options["n_local"], s.options["n_mem"]) for s in made[5:]]
    assert windows == [(16, 48), (64, 0)]
    assert sweep_settings(n_local=[24], base=BASE)[1].options["n_mem"] == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing is swept"),
        ({"n_local": [65], "base": BASE}, "n_local=65 is more than the budget .* 64"),
        ({"share": [0.3, 0.3]}, r"share=0\.3 was given more than once"),
    ],
)
def test_settings_that_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        sweep_settings(**options)


def test_numbers_are_those_of_a_reading(found, lm):
    system = make_system("emllm-SM+C", lm, **{**BASE, "share": 0.5}).read(TEXT)
    row = found.table.set_index("label").loc["share=0.5"]
    assert row["nats"] == pytest.approx(np.nanmean(system.surprisal))
    assert row["n_tokens"] == system.n_tokens
    assert row["n_events"] == system.events.n_events
    assert row["attended"] == pytest.approx(system.attended)
    table = system.retrievals
    first = system.rows[0].layers[0].first_recalled
    stored = first + int(table["available"].max())
    assert row["n_stored"] == stored - first
    assert row["ever"] == pytest.approx(table["unit"].nunique() / (stored - first))
    base = np.nanmean(make_system("emllm-SM+C", lm, **BASE).read(TEXT).surprisal)
    assert row["difference"] == pytest.approx(row["nats"] - base)
    assert row["difference_low"] <= row["difference"] <= row["difference_high"]


def test_what_recalls_nothing_has_no_recall(found):
    row = found.table.set_index("label").loc["n_mem=0"]
    assert row[["n_stored", "ever", "forward", "asymmetry"]].isna().all()
    assert np.isfinite(row["nats"])
    assert "n_mem=0" not in set(found.lags["label"])
    assert set(found.lags["buffer"]) == {"similarity", "both"}


def test_the_base_differs_from_itself_by_nothing(found):
    base = found.table.iloc[0]
    assert base["label"] == "base"
    assert (base[["difference", "difference_low", "difference_high"]] == 0).all()


def test_intervals_are_a_bootstrap_over_blocks():
    rng = np.random.default_rng(0)
    blocks = {name: rng.normal(10, 2, 20) for name in ("base", "n_mem=8")}
    columns = ["factor", "value", "system", "n_local", "n_mem", "share", "gamma", "chunk"]
    columns += ["n_tokens", "n_events", "tokens_per_event", "n_stored", "ever", "forward"]
    columns += ["backward", "asymmetry", "asymmetry_low", "asymmetry_high", "attended", "seconds"]
    rows = [
        {"label": n, **dict.fromkeys(columns), "block_nats": b.tolist(), "block_tokens": [5] * 20}
        for n, b in blocks.items()
    ]
    table = capacity_table(rows, draws=4000).set_index("label")
    for column, values in (
        ("ci", blocks["n_mem=8"]),
        ("difference", -np.subtract(*blocks.values())),
    ):
        means = [values[rng.integers(20, size=20)].mean() / 5 for _ in range(4000)]
        low, high = np.quantile(means, [0.025, 0.975])
        row = table.loc["n_mem=8"]
        assert row[f"{column}_low"] == pytest.approx(low, abs=0.03)
        assert row[f"{column}_high"] == pytest.approx(high, abs=0.03)
    few = capacity_table(
        [{**r, "block_nats": r["block_nats"][:9], "block_tokens": [5] * 9} for r in rows]
    )
    assert few["ci_low"].isna().all()


def test_an_interrupted_sweep_goes_on(lm, found, tmp_path, monkeypatch):
    options = {"base": BASE, "lm": lm, "block": 8, "draws": 200, "out": tmp_path / "run"}
    read, done = capacity._read, []

    def stop(spec, setting, *rest):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(setting.label)
        return read(spec, setting, *rest)

    monkeypatch.setattr(capacity, "_read", stop)
    with pytest.raises(KeyboardInterrupt):
        capacity_sweep(TEXT, **SWEEP, **options)
    monkeypatch.setattr(
        capacity, "_read", lambda s, g, *rest: (done.append(g.label), read(s, g, *rest))[1]
    )
    again = capacity_sweep(TEXT, **SWEEP, **options)
    assert done == found.table["label"].tolist()
    drop = ["seconds"]
    left, right = (t.drop(columns=drop) for t in (again.table, found.table))
    assert left.equals(right) or np.allclose(
        left.select_dtypes("number"), right.select_dtypes("number"), equal_nan=True
    )
    with pytest.raises(InputError, match="made with other settings"):
        capacity_sweep(TEXT + " More.", **SWEEP, **options)


def test_gamma_is_of_surprise(lm):
    with pytest.raises(InputError, match="infllm forms its units without it"):
        capacity_sweep(TEXT, gamma=[1.0], system="infllm", lm=lm)


def test_command(lm, tmp_path, monkeypatch, capsys):
    import typer
    from typer.testing import CliRunner

    from workbench.cli_sweep import sweep

    monkeypatch.setattr("workbench.tasks.capacity.load_model", lambda _: lm)
    monkeypatch.setattr("workbench.figures.export.find_browser", lambda: None)
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    app = typer.Typer()
    app.command()(sweep)
    call = [
        *(str(path), "--share", "0,0.5", "--n-local", "16", "--base-n-local", "32"),
        *("--base-n-mem", "32", "--n-init", "4", "--chunk", "16", "--out", str(tmp_path / "out")),
    ]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    assert "share=0.5" in done.output
    assert {"capacity.csv", "capacity.html", "lag_crp.csv", "lag_crp.html"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }
    as_json = CliRunner().invoke(app, [*call, "--json"])
    rows = json.loads(as_json.stdout[as_json.stdout.index("[") :])
    assert [row["label"] for row in rows] == ["base", "share=0", "share=0.5", "n_local=16"]
    wrong = CliRunner().invoke(app, [str(path), "--n-mem", "12.5"])
    assert isinstance(wrong.exception, InputError)
    assert "not a list of whole numbers" in str(wrong.exception)
