"""The commands of the tasks, on a tiny model and a system made for the test."""

from __future__ import annotations

import json

import pytest
import typer
from fake_systems import Plain, Reader
from tiny_lm import tiny_lm

import workbench.cli_tasks as commands
from workbench.core.errors import InputError

LM = tiny_lm()


@pytest.fixture
def made(monkeypatch):
    """Names and options with which systems were made."""
    import workbench.figures.export
    import workbench.memory
    import workbench.models

    calls = []

    def make_system(name, lm, **options):
        calls.append((name, options))
        return Plain(lm) if name == "full" else Reader(lm, 500 if name == "window" else None)

    monkeypatch.setattr(workbench.memory, "make_system", make_system, raising=False)
    monkeypatch.setattr(workbench.models, "load_model", lambda name: LM)
    monkeypatch.setattr(workbench.figures.export, "find_browser", lambda: None)
    return calls


@pytest.fixture
def invoke():
    def call(*arguments: str) -> None:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command()(commands.passkey)
        app.command()(commands.key_value)
        app.command()(commands.needle)
        app(args=list(arguments), standalone_mode=False)

    return call


def test_passkey_prints_shares_with_intervals_and_writes(made, invoke, capsys, tmp_path):
    arguments = [
        *("passkey", "--system", "emllm-S", "--system", "window", "--lengths", "0.45k,700"),
        *("--depths", "0,1", "--seeds", "2", "--n-local", "64", "--n-mem", "32"),
        *("--out", str(tmp_path / "r")),
    ]
    invoke(*arguments)
    shown = capsys.readouterr()
    assert made[0] == ("emllm-S", {"n_local": 64, "n_mem": 32})
    assert ("window", {"n_local": 96}) in made
    assert "95 % Wilson" in shown.out
    assert "exact McNemar" in shown.out
    assert "random weights" in shown.out
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["emllm-S", "450", "all", "4", "4", "1.000", "0.510", "1.000"] in lines
    assert ["window", "700", "0.000", "0", "2", "0.000", "0.000", "0.658"] in lines
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert {"rows.jsonl", "settings.json", "accuracy.csv", "paired.csv"} <= names
    assert "depth_length.html" in names
    count = len(made)
    invoke(*arguments, "--json")  # again: nothing is read
    assert len(made) == count
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 16
    assert {row["system"] for row in rows} == {"emllm-S", "window"}


def test_an_estimate_comes_first_and_alone_where_asked(made, invoke, capsys):
    invoke("passkey", "--system", "emllm-S", "--lengths", "450", "--extend", "1M", "--estimate")
    shown = capsys.readouterr()
    assert "1000000 tokens" in shown.err
    assert "tokens a second" in shown.err
    assert "15 times" in shown.err  # five depths of three seeds
    assert shown.out == ""


def test_full_is_skipped_where_it_cannot_read(made, invoke, capsys):
    invoke(
        *("passkey", "--system", "full", "--lengths", "450,700", "--depths", "0.5"),
        *("--seeds", "1", "--full-to", "500"),
    )
    shown = capsys.readouterr()
    assert "not run: full on 700 tokens" in shown.err


def test_needle_and_its_errors(made, invoke, capsys, tmp_path):
    text = tmp_path / "book.txt"
    text.write_text(" ".join(f"Sentence {i} tells of rain." for i in range(80)), encoding="utf-8")
    given = [
        *("--needle", "What is the pass key? The pass key is 12345.", "--depths", "0.5"),
        *("--question", "What is the pass key?", "--answer", "12345", "--system", "emllm-S"),
    ]
    invoke("needle", str(text), *given, "--lengths", "400")
    assert "rule: contains" in capsys.readouterr().out
    with pytest.raises(InputError, match="the haystack has about"):
        invoke("needle", str(text), *given, "--lengths", "9k")
    with pytest.raises(InputError, match="is not a file"):
        invoke("needle", str(tmp_path / "none.txt"), *given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lengths", "many"), "length 'many' is not a number of tokens"),
        (("--lengths", "1.5"), "length '1.5' is not a number of tokens"),
        (("--lengths", ","), "lengths: an empty list"),
        (("--depths", "a"), "depths: 'a' is not a list of numbers"),
        (("--depths", "3"), "depth=3.0 must lie between"),
        (("--form", "other"), "form='other' is not known"),
    ],
)
def test_bad_arguments_are_told_before_a_model_is_loaded(invoke, monkeypatch, arguments, message):
    import workbench.models

    def never(name):
        raise AssertionError("loaded")

    monkeypatch.setattr(workbench.models, "load_model", never)
    with pytest.raises(InputError, match=message):
        invoke("passkey", *arguments)


def test_lengths():
    assert commands._lengths("1k, 1.5k,200,1M") == [1000, 1500, 200, 1_000_000]
