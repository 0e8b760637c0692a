"""The grid runner: rows, resuming, what is refused, what of memory is looked at."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
from fake_systems import RETRIEVAL_COLUMNS, Plain, Reader
from tiny_lm import tiny_lm

from workbench.core.boundaries import Boundaries
from workbench.core.errors import DataError, InputError
from workbench.tasks import estimate as estimate_module
from workbench.tasks.estimate import check_memory, estimate_reading, measure_speed
from workbench.tasks.grid import load_result, run_grid
from workbench.tasks.key_value import KeyValue
from workbench.tasks.passkey import Passkey
from workbench.tasks.recalled import key_recall
from workbench.tasks.records import differences
from workbench.tasks.systems import system_specs

LM = tiny_lm()
FORGETFUL = 500  # characters


def everything(lm):
    return Reader(lm)


def forgetful(lm):
    return Reader(lm, FORGETFUL)


def run(systems=(everything, forgetful), task="passkey", lengths=(450, 700), **more):
    more = {"depths": (0.0, 0.5, 1.0), "seeds": 2, "lm": LM, **more}
    return run_grid(systems, task, lengths, **more)


def test_rows_are_what_was_asked_and_answered():
    table = run().table
    assert len(table) == 2 * 2 * 3 * 2
    cells = table[["system", "length", "depth", "seed"]]
    assert not cells.duplicated().any()
    assert table[table["system"] == "everything"]["correct"].all()
    for row in table.to_dict("records"):
        (item,) = Passkey().items(LM.tokenizer, row["length"], [row["depth"]], row["seed"])
        (question,) = item.questions
        assert row["expected"] == question.answer
        seen = row["system"] == "everything" or question.answer in item.text[-FORGETFUL:]
        assert row["correct"] == row["contains"] == seen
        assert row["output"] == (f" {question.answer}." if seen else " I cannot tell.")
        assert row["scoring"] == "first integer"
        assert (row["key_start"], row["key_end"]) == question.tokens
        assert row["n_tokens"] == item.n_tokens
        assert row["n_text"] == row["n_read"] == item.n_text
        assert row["distance"] == item.n_tokens - question.tokens[1]
        assert row["attended"] == 12.5
        assert row["footprint"] == {"resident_kv": 100, "index": 7}
        assert row["n_events"] == -(-item.n_text // 20)
        assert row["tokens_per_second"] == pytest.approx(item.n_text / row["seconds_reading"])
        assert row["peak_memory"] >= row["memory_before"] > 0


def test_labelled_keys_share_one_reading():
    made = []

    def watched(lm):
        made.append(Reader(lm))
        return made[-1]

    table = run(watched, Passkey(labelled=True)).table
    assert table["correct"].all()
    assert len(table) == 12
    assert sum(system.n_reads for system in made) == 4
    assert (table.groupby("reading")["depth"].count() == 3).all()
    assert (table.groupby("reading")["seconds_reading"].nunique() == 1).all()


def test_a_plain_model_can_be_run():
    """Outputs are those of transformers' generate on the whole prompt."""
    table = run(Plain, lengths=(300,), depths=(0.5,), seeds=1).table
    (item,) = Passkey().items(LM.tokenizer, 300, [0.5], 0)
    system = Plain(LM)
    output = system.generate(
        item.text + item.questions[0].prompt,
        max_new_tokens=item.questions[0].max_new_tokens,
        do_sample=False,
    )
    assert table["output"][0] == output


# --- resuming ------------------------------------------------------------------------------


class _StopError(Exception):
    pass


def stopping_after(count):
    """A system that fails at the question after so many."""

    class Stopping(Reader):
        asked = 0

        def generate(self, *args, **options):
            if Stopping.asked == count:
                raise _StopError
            Stopping.asked += 1
            return super().generate(*args, **options)

    return Stopping


def without_times(table):
    times = ["seconds_reading", "seconds_generating", "tokens_per_second", "date"]
    return table.drop(columns=[*times, "peak_memory", "memory_before", "reading"])


@pytest.mark.parametrize("task", [Passkey(), Passkey(labelled=True)])
@pytest.mark.parametrize("count", [0, 1, 4, 11])
def test_an_interrupted_run_goes_on(tmp_path, task, count):
    whole = run({"a": everything}, task)
    interrupted = stopping_after(count)
    with pytest.raises(_StopError):
        run({"a": lambda lm: interrupted(lm)}, task, out=tmp_path / "r")
    kept = load_result(tmp_path / "r").table
    assert len(kept) == count
    settings = json.loads((tmp_path / "r/settings.json").read_text())
    settings["systems"]["a"] = {"made_by": f"{__name__}.everything"}
    (tmp_path / "r/settings.json").write_text(json.dumps(settings))
    resumed = run({"a": everything}, task, out=tmp_path / "r")
    assert len(resumed.table) == 12
    key = ["system", "length", "depth", "seed"]
    pd.testing.assert_frame_equal(
        without_times(resumed.table).sort_values(key, ignore_index=True),
        without_times(whole.table).sort_values(key, ignore_index=True),
    )


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_torn_row_is_made_again(tmp_path, kept):
    first = run(everything, out=tmp_path / "r").table
    path = tmp_path / "r/rows.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:kept])
    assert len(load_result(tmp_path / "r").table) == 5
    made = []
    again = run(everything, out=tmp_path / "r", progress=made.append).table
    assert len(made) == len(lines) - 5
    pd.testing.assert_frame_equal(without_times(again), without_times(first))
    assert len(path.read_bytes().splitlines()) == len(lines)


def test_a_repeated_run_reads_nothing_and_a_folder_grows(tmp_path):
    run(everything, out=tmp_path / "r")
    before = (tmp_path / "r/rows.jsonl").read_bytes()

    def never(lm):
        raise AssertionError("made again")

    never.__qualname__, never.__module__ = "everything", __name__
    again = run({"everything": never}, out=tmp_path / "r")
    assert (tmp_path / "r/rows.jsonl").read_bytes() == before
    assert len(again.table) == 12
    grown = run((everything, forgetful), lengths=(450, 500), seeds=[0, 7], out=tmp_path / "r")
    # 12 of the first run; 500 at both seeds and 450 at seed 7; the other system's own 12.
    assert len(grown.table) == 12 + 3 * 2 + 3 + 12
    assert set(grown.settings["systems"]) == {"everything", "forgetful"}
    assert (tmp_path / "r/rows.jsonl").read_bytes().startswith(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": Passkey("infinitebench")}, "task.form: 'fot', now 'infinitebench'"),
        ({"max_new_tokens": 20}, "max_new_tokens: None, now 20"),
        ({"lm": tiny_lm("other", seed=1)}, "model.name: 'tiny', now 'other'"),
        ({"systems": {"everything": forgetful}}, "systems.everything.made_by: "),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, change, message):
    run(everything, out=tmp_path / "r")
    before = sorted((p.name, p.read_bytes()) for p in (tmp_path / "r").iterdir())
    with pytest.raises(InputError, match=re.escape(message)) as error:
        run(**{"systems": everything, "out": tmp_path / "r", **change})
    assert "use those, or name another folder" in str(error.value)
    assert sorted((p.name, p.read_bytes()) for p in (tmp_path / "r").iterdir()) == before


def test_depths_are_settings_where_they_share_a_text(tmp_path):
    run(everything, Passkey(labelled=True), out=tmp_path / "r")
    with pytest.raises(InputError, match=re.escape("task.depths: [0.0, 0.5, 1.0], now [0.0]")):
        run(everything, Passkey(labelled=True), depths=(0.0,), out=tmp_path / "r")


def test_folders_that_are_refused(tmp_path):
    run(everything, out=tmp_path / "r")
    with pytest.raises(InputError, match="already holds a run; pass resume=True"):
        run(everything, out=tmp_path / "r", resume=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else"):
        run(everything, out=tmp_path / "other")
    with pytest.raises(InputError, match=re.escape("notes.txt is a file; name a folder")):
        run(everything, out=tmp_path / "other/notes.txt")
    with pytest.raises(InputError, match="holds no run"):
        load_result(tmp_path / "nothing")
    lines = (tmp_path / "r/rows.jsonl").read_text().splitlines()
    (tmp_path / "r/rows.jsonl").write_text("\n".join([lines[0], "{broken", *lines[1:]]) + "\n")
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2 is not a row"):
        load_result(tmp_path / "r")
    (tmp_path / "r/settings.json").write_text("{")
    with pytest.raises(DataError, match=r"settings\.json is damaged"):
        load_result(tmp_path / "r")


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    pytest.importorskip("fcntl")

    def nested(row):
        with pytest.raises(InputError, match="another run is writing"):
            run(forgetful, lengths=(300,), out=tmp_path / "r")

    run(everything, lengths=(300,), depths=(0.5,), seeds=1, out=tmp_path / "r", progress=nested)


# --- arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "passkeys"}, "task='passkeys' is not known by name"),
        ({"lengths": ()}, "lengths=[] must name at least one value"),
        ({"lengths": (300, 300)}, "lengths=[300, 300] must name"),
        ({"lengths": (300.5,)}, "length=300.5 must be a whole number"),
        ({"seeds": 0}, "seeds=0 must be a whole number of at least 1"),
        ({"seeds": [1, 1]}, "seeds=[1, 1] must name"),
        ({"depths": (2,)}, "depth=2.0 must lie between"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"systems": ()}, "systems is empty"),
        ({"systems": (everything, everything)}, "names one twice"),
        ({"systems": {"a": {"n_local": 5}}}, "systems['a'] needs the entry 'system'"),
        ({"systems": {"a": 5}}, "systems['a']=5 is neither a name"),
        ({"max_length": {"b": 5}}, "max_length names 'b', but the systems are ['everything'"),
        ({"max_length": {"everything": 0}}, "max_length['everything']=0"),
    ],
)
def test_bad_arguments(change, message):
    with pytest.raises(InputError, match=re.escape(message)):
        run(**change)


def test_long_texts_are_skipped_and_listed():
    result = run(max_length={"forgetful": 500})
    assert result.skipped.to_dict("records") == [
        {
            "system": "forgetful",
            "length": 700,
            "reason": "longer than the 500 tokens it reads",
        }
    ]
    counts = result.table.groupby(["system", "length"]).size()
    assert counts.to_dict() == {
        ("everything", 450): 6,
        ("everything", 700): 6,
        ("forgetful", 450): 6,
    }


def test_options_reach_the_systems_that_take_them():
    options = {"n_init": 4, "n_local": 100, "n_mem": 60, "chunk": 32}
    specs = system_specs(["emllm-S", "window", "full"], options)
    assert [spec.options for spec in specs] == [
        options,
        {"n_init": 4, "n_local": 160, "chunk": 32},  # sees as many as the others
        {"chunk": 32},
    ]
    (own,) = system_specs({"w": {"system": "window", "n_local": 100}}, options)
    assert own.settings() == {"system": "window", "n_init": 4, "n_local": 100, "chunk": 32}


def test_named_systems_are_made_by_the_memory_package(monkeypatch):
    import workbench.memory

    calls = []

    def make_system(name, lm, **options):
        calls.append((name, options))
        return Reader(lm)

    monkeypatch.setattr(workbench.memory, "make_system", make_system, raising=False)
    result = run(["emllm-S", "full"], lengths=(300, 4000), options={"n_local": 64, "n_mem": 32})
    assert calls[0] == ("emllm-S", {"n_local": 64, "n_mem": 32})
    assert calls[1] == ("full", {})
    # `full` reads what the model's window of 2,048 tokens holds.
    assert result.skipped[["system", "length"]].values.tolist() == [["full", 4000]]


# --- what was recalled ---------------------------------------------------------------------


def recalls(units, position=50, layer=0, step=0):
    rows = [{"step": step, "position": position, "layer": layer, "unit": unit} for unit in units]
    return pd.DataFrame(rows, columns=list(RETRIEVAL_COLUMNS))


EVENTS = Boundaries([0, 10, 20, 30, 40], 50)


@pytest.mark.parametrize(
    ("units", "span", "expected"),
    [
        ([1], (10, 20), (True, True)),
        ([0, 2], (10, 20), (False, False)),
        ([1], (12, 15), (True, True)),
        ([1], (15, 21), (True, False)),
        ([2], (15, 21), (True, False)),
        ([1, 2], (15, 21), (True, True)),
        ([0], (19, 20), (False, False)),
        ([1, 3], (5, 35), (True, False)),
    ],
)
def test_the_event_that_holds_the_key(units, span, expected):
    found = key_recall(recalls(units), EVENTS, span, since=50)
    assert (found.any, found.whole) == expected
    assert found.layers == float(expected[0])


def test_recalls_of_the_reading_do_not_count_and_layers_are_counted():
    reading = recalls([1], position=49)
    assert key_recall(reading, EVENTS, (10, 20), since=50) is None
    answering = pd.concat([reading, recalls([3], layer=1), recalls([1], layer=2, position=53)])
    found = key_recall(answering, EVENTS, (10, 20), since=50)
    assert found.layers == 0.5
    # Two halves recalled at different steps were never seen together.
    apart = pd.concat([recalls([1], step=0), recalls([2], step=1)])
    assert not key_recall(apart, EVENTS, (15, 25), since=50).whole


def test_recall_of_the_key_stands_in_the_rows():
    def recalling(lm):
        system = Reader(lm, size=20)
        system.n_local = 100  # the last key and its question
        system.recalls = (5, 6)
        return system

    table = run(recalling, lengths=(300,), depths=(0.0, 0.4, 1.0), seeds=1).table
    asked = len(LM.tokenizer("\nWhat is the pass key? The pass key is")["input_ids"])
    for row in table.to_dict("records"):
        near = row["key_start"] >= row["n_read"] + asked - 100
        assert row["key_in_window"] == near
        if near:
            assert pd.isna(row["key_recalled"])
            continue
        held = range(row["key_start"] // 20, (row["key_end"] - 1) // 20 + 1)
        assert row["key_recalled"] == bool({5, 6} & set(held))
        assert row["key_layers"] == len({5, 6} & set(held)) / 2
    assert table["key_in_window"].tolist() == [False, False, True]
    assert table["key_recalled"].sum() > 0
    assert not table["key_recalled"].all()


def test_a_system_that_has_no_events_is_run():
    class Bare(Reader):
        @property
        def events(self):
            raise InputError("full attention has no events")

    table = run({"bare": lambda lm: Bare(lm)}, lengths=(300,), depths=(0.5,), seeds=1).table
    assert pd.isna(table["n_events"][0])
    assert pd.isna(table["key_recalled"][0])


def test_a_start_token_that_is_counted_moves_the_key():
    class Starting(Reader):
        """Counts one token more than the text has; its first event is that token."""

        @property
        def n_tokens(self):
            return super().n_tokens + 1

        @property
        def events(self):
            return Boundaries(np.append([0], np.arange(1, self.n_tokens, 1)), self.n_tokens)

    (item,) = Passkey().items(LM.tokenizer, 300, [0.5], 0)
    start, end = item.questions[0].tokens
    for unit, expected in ((start, False), (start + 1, True), (end, True), (end + 1, False)):

        def recalling(lm, unit=unit):
            system = Starting(lm)
            system.recalls = (unit,)
            return system

        table = run(recalling, lengths=(300,), depths=(0.5,), seeds=1).table
        assert bool(table["key_recalled"][0]) is expected


# --- time and memory -----------------------------------------------------------------------


def test_peak_memory_is_of_the_work_inside():
    # In a process of its own: one that has freed much before may find room without growing.
    script = """
import json
import numpy as np
from workbench.tasks.meter import measured
with measured() as small:
    bytearray(1000)
with measured() as large:
    block = np.ones(60_000_000 // 8)
    del block
with measured() as after:
    bytearray(1000)
print(json.dumps([[m.of, m.seconds, m.peak, m.before] for m in (small, large, after)]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    small, large, after = json.loads(run.stdout)
    assert small[1] >= 0
    if small[0] == "process":
        assert large[2] - large[3] > 50_000_000
        assert after[2] < large[2] - 30_000_000


def test_estimates():
    # Keys and values: 2 · 3 layers · 2 heads · 8 numbers · 4 bytes = 384 bytes a token.
    scratch = 2048 * 384 + 512 * len(LM.tokenizer) * 4
    full = estimate_reading(LM, 10_000, "full", tokens_per_second=100)
    assert (full.memory, full.disk, full.seconds) == (10_000 * 384 + scratch, 0, 100.0)
    window = estimate_reading(LM, 10_000, "window", options={"n_local": 1000, "n_init": 24})
    assert window.memory == 1024 * 384 + scratch
    assert np.isnan(window.seconds)
    disk = estimate_reading(LM, 10_000, "emllm-S", options={"store": "disk", "n_local": 500})
    assert (disk.memory, disk.disk) == (500 * 384 + scratch, 3_840_000)
    assert "about 100 s" not in str(full)
    assert "about 2 min" in str(full)
    assert "10000 tokens" in str(full)
    with pytest.raises(InputError, match="n_tokens=0"):
        estimate_reading(LM, 0)


def test_speed_is_measured_in_a_branch():
    system = Reader(LM)
    system.read("It rained.")
    before = system.n_tokens
    assert measure_speed(system, "It rained on the town. " * 20) > 0
    assert system.n_tokens == before


def test_readings_beyond_memory_are_refused_first(monkeypatch):
    monkeypatch.setattr(estimate_module, "available_memory", lambda device="cpu": 3_000_000)
    specs = system_specs({"short": everything, "long": everything})
    check_memory(LM, specs, {"short": 1000})
    with pytest.raises(InputError, match=r"long on 100000 tokens needs about .* MiB of memory"):
        check_memory(LM, specs, {"short": 1000, "long": 100_000})
    with pytest.raises(InputError, match="everything on 100000 tokens"):
        run(lengths=(300, 100_000))


def test_differences_are_named_by_their_place():
    old = {"a": 1, "b": {"c": [1, 2], "d": 3}, "gone": 0}
    new = {"a": 1, "b": {"c": [1], "d": 3, "e": "x"}}
    assert differences(old, new) == [
        "b.c: [1, 2], now [1]",
        "b.e: None, now 'x'",
        "gone: 0, now None",
    ]


def test_key_values_are_run_from_one_reading():
    class Looker(Reader):
        def generate(self, prompt, max_new_tokens=8, keep=True, **options):
            key = re.search(r'Key: "([^"]+)"', prompt).group(1)
            return json.loads(self.text[self.text.index("{") :])[key] + '"'

    made = []

    def looker(lm):
        made.append(Looker(lm))
        return made[-1]

    result = run(looker, KeyValue(), lengths=(1200,), seeds=1)
    assert result.table["correct"].all()
    assert result.table["scoring"].eq("contains").all()
    assert made[0].n_reads == 1


def test_each_question_finds_the_memory_as_it_was_read():
    lengths = []

    class Checked(Reader):
        @contextmanager
        def branch(self):
            lengths.append(self.n_tokens)
            with super().branch():
                yield self

    run({"c": lambda lm: Checked(lm)}, Passkey(labelled=True), lengths=(700,), seeds=1)
    assert len(lengths) == 3
    assert len(set(lengths)) == 1
