"""`workbench recall` and `workbench heads`: tables, JSON and nothing else, errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_cli import run
from tiny_lm import tiny_lm

from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.recall.rho_cmr import simulate_free_recall

FAST = ("--draws", "10", "--bootstrap", "10")


@pytest.fixture
def recalls(tmp_path: Path) -> str:
    table = simulate_free_recall(n_lists=12, n_subjects=3, length=8).to_table()
    path = tmp_path / "recalls.csv"
    table.assign(condition=np.where(table["list"] < 3, "quiet", "noisy")).to_csv(path, index=False)
    return str(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    lm = tiny_lm()
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return str(folder)


def test_recall_prints_every_measure_beside_its_null(recalls: str, capsys) -> None:
    assert run("recall", recalls, *FAST) == 0
    out = capsys.readouterr().out
    for title in ("lag-CRP", "asymmetry", "temporal factor", "serial position", "first recall"):
        assert title in out
    for word in ("null_mean", "ci_low", "null: shuffle", "null: reverse", "null: items"):
        assert word in out
    assert "Few subjects" in out


def test_recall_json_is_rows_and_nothing_else(recalls: str, capsys) -> None:
    assert run("recall", recalls, *FAST, "--by", "condition", "--max-lag", "2", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["group"] for row in rows} == {"quiet", "noisy"}
    assert {row["lag"] for row in rows if row["measure"] == "lag_crp"} == {-2, -1, 1, 2}
    assert run("recall", recalls, *FAST, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    one = next(row for row in rows if row["measure"] == "lag_crp" and row["lag"] == 1)
    data = simulate_free_recall(n_lists=12, n_subjects=3, length=8)
    expected = lag_crp(data).query("lag == 1")["prob"].mean()
    assert one["value"] == pytest.approx(expected, abs=1e-12)


def test_columns_may_have_other_names_and_lists_be_studied_by_all(tmp_path: Path, capsys) -> None:
    (tmp_path / "said.csv").write_text("who,list,item\nann,1,b\nann,1,c\nbob,1,a\nbob,1,c\n")
    (tmp_path / "studied.csv").write_text("list,item\n1,a\n1,b\n1,c\n")
    status = run(
        *("recall", str(tmp_path / "said.csv"), "--study", str(tmp_path / "studied.csv")),
        *("--column", "subject=who", *FAST, "--json"),
    )
    captured = capsys.readouterr()
    assert status == 0, captured.err
    rows = json.loads(captured.out)
    found = {row["lag"]: row["value"] for row in rows if row["measure"] == "lag_crp"}
    assert found[1] == pytest.approx(0.5)  # ann went b to c; bob could have gone a to b


def test_heads_prints_scores_fits_and_nulls(model: str, capsys) -> None:
    arguments = ("heads", "--model", model, "--items", "12", "--lists", "2", "--draws", "10")
    assert run(*arguments, "--order", "shuffled", "--top", "3") == 0
    out = capsys.readouterr().out
    for word in ("matching", "P_perm", "P_walk", "of random walks", "shuffled repeat", "D < 0.5"):
        assert word in out
    assert run(*arguments, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    lm = tiny_lm()
    n_heads = lm.model.config.num_hidden_layers * lm.model.config.num_attention_heads
    assert len(rows) == n_heads
    assert {"distance", "permuted_percentile", "order", "matching"} <= set(rows[0])
    assert rows[0]["order"] == "exact"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recall", "nowhere.csv"), "nowhere.csv does not exist"),
        (("recall", "nowhere.csv", "--column", "subject"), "is not role=name"),
        (("recall", "nowhere.csv", "--draws", "0"), "draws=0"),
        (("recall",), "Missing argument"),
        (("heads", "--order", "backwards"), "order='backwards'"),
        (("heads", "--scale", "cubic"), "scale='cubic'"),
        (("heads", "--lists", "0"), "lists=0"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str, capsys) -> None:
    assert run(*arguments) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.parametrize("command", ["recall", "heads"])
def test_help_shows_an_example(command: str, capsys) -> None:
    assert run(command, "--help") == 0
    assert f"Example: workbench {command}" in " ".join(capsys.readouterr().out.split())
