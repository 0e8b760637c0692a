"""The command line: output, errors in one line, JSON and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tiny_lm import tiny_lm

from workbench.cli import main
from workbench.comparison.table import COLUMNS

TEXT = "It rained on the town. She said: stay! He left at noon. The town did not mind. " * 6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    lm = tiny_lm()
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def story(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "story.txt"
    path.write_text(TEXT)
    return str(path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


def test_compare_prints_json_rows_and_nothing_else(model, story, capsys):
    status = run(
        *("compare", "--stories", story, "--methods", "S,F", "--model", model),
        *("--draws", "10", "--bootstrap", "10", "--gamma", "0.5", "--json"),
    )
    assert status == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert set(rows[0]) == set(COLUMNS)
    assert {row["method"] for row in rows} == {"S", "F"}


def test_compare_writes_a_folder_and_refuses_to_do_so_twice(model, story, tmp_path, capsys):
    arguments = (
        *("compare", "--stories", story, "--methods", "S", "--model", model, "--draws", "10"),
        *("--bootstrap", "10", "--gamma", "0.5", "--out", str(tmp_path / "out")),
    )
    assert run(*arguments) == 0
    assert "modularity" in capsys.readouterr().out
    assert (tmp_path / "out" / "table.parquet").is_file()
    assert run(*arguments) == 2
    assert "already holds a comparison" in capsys.readouterr().err
    assert run(*arguments, "--overwrite") == 0


def test_record_then_segment_the_recording(model, story, tmp_path, capsys):
    trace = str(tmp_path / "story.zarr")
    assert run("record", story, "--out", trace, "--model", model) == 0
    assert "nats per token" in capsys.readouterr().out
    assert run("segment", trace, "--method", "SM", "--gamma", "0.5", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["token"] == 0
    assert run("segment", story, "--method", "F:20", "--model", model) == 0
    assert "events over" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["stories", "models", "methods"])
def test_listings_print_text_and_json(command, capsys):
    assert run(command) == 0
    assert capsys.readouterr().out.strip()
    assert run(command, "--json") == 0
    assert isinstance(json.loads(capsys.readouterr().out), list)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "--methods", "ZZ"), "'ZZ' is not known"),
        (("compare", "--stories", "nowhere.txt"), "nowhere.txt"),
        (
            (
                "compare",
                "--nope",
            ),
            "No such option: --nope",
        ),
        (("compare", "--draws", "many"), "--draws"),
        (("compare", "--methods", ","), "empty list"),
        (("segment", "nowhere.zarr"), "nowhere.zarr"),
        (("segment", "lift", "--method", "S+C"), "contiguity buffer"),
        (("frobnicate",), "No such command"),
    ],
)
def test_bad_input_ends_with_one_line_and_a_status(arguments, message, capsys):
    assert run(*arguments) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.parametrize(
    "command", ["compare", "record", "segment", "stories", "models", "methods"]
)
def test_help_shows_an_example(command, capsys):
    assert run(command, "--help") == 0
    assert f"Example: workbench {command}" in " ".join(capsys.readouterr().out.split())


def test_no_command_shows_the_help(capsys):
    assert run() == 2
    assert "Commands:" in capsys.readouterr().out


def test_importing_the_package_imports_neither_torch_nor_pandas():
    code = "import sys, workbench; print(any(m in sys.modules for m in ('torch', 'pandas')))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
