"""Presets, their sizes and costs, the shipped decoders, and the command."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from tiny_lm import tiny_lm
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from workbench.cli_train import train
from workbench.core.errors import DataError, InputError, MissingDataError
from workbench.core.folders import data_folder
from workbench.models import load_model
from workbench.training.checkpoints import load_decoder, save_decoder, shipped, shipped_names
from workbench.training.cost import Shape, step_cost
from workbench.training.crossbatch import Crossbatch, Memory
from workbench.training.decoder import Decoder, DecoderConfig
from workbench.training.dictionary import Dictionary, dictionary_batch
from workbench.training.evaluate import distraction_masses
from workbench.training.experiments import build, data_of, method_of
from workbench.training.finetune import fine_tune, load_memory_settings
from workbench.training.invented import Invented, invented_documents
from workbench.training.long_memory import look_up
from workbench.training.longllama import LONGLLAMA, MIXTURE
from workbench.training.loop import Settings
from workbench.training.measure import distraction_table, lookup_table, nats_table, summarise
from workbench.training.presets import PAPER_DECODERS, PRESETS, preset
from workbench.training.pretrained import PretrainedDecoder
from workbench.training.rows import Batch, Mixed, Paper
from workbench.training.schedules import Rate, schedule

TASK = Dictionary(records=3, pool=3)
# The counter does not know the fused attention of processors; it sees the products of this one.
EXPLICIT = partial(sdpa_kernel, SDPBackend.MATH)


def small(**more) -> Decoder:
    torch.manual_seed(0)
    options = {"dim": 16, "heads": 2, "head_dim": 8, "feed_forward": 16, **more}
    return Decoder(DecoderConfig(64, **options)).eval()


@pytest.mark.parametrize(
    ("name", "layers", "everything"),
    [
        ("37M", 37.8e6, 54.2e6),
        ("184M", 151e6, 184e6),
        ("600M", 604e6, 735e6),
        ("1.2B", 1208e6, 1339e6),
    ],
)
def test_paper_sizes_are_built_without_memory(name, layers, everything):
    """FOT, Table 9. 184M counts its embeddings, the other names count the layers only."""
    with torch.device("meta"):
        decoder = Decoder(PAPER_DECODERS[name])
    counted = sum(p.numel() for p in decoder.blocks.parameters())
    assert counted == pytest.approx(layers, rel=0.005)
    assert sum(p.numel() for p in decoder.parameters()) == pytest.approx(everything, rel=0.005)
    assert decoder.memory_layers == (8,)
    assert decoder.config.layers == 12


@pytest.mark.parametrize("size", ["tiny", "small", "paper"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_built(name, size):
    chosen = preset(name, size)
    for variant in chosen.variants.values():
        with torch.device("meta"):
            Decoder(DecoderConfig(**{**chosen.decoder.as_dict(), **variant.decoder}))
        d = schedule(variant.d, variant.rule, **variant.options)
        assert d.largest <= chosen.rows
        method_of(variant, chosen.settings.steps)
        assert chosen.decoder.vocabulary >= chosen.data.vocabulary
    assert chosen.about


@pytest.mark.parametrize(
    ("name", "variant"),
    [(name, variant) for name, sizes in PRESETS.items() for variant in sizes["tiny"].variants],
)
def test_every_tiny_variant_takes_a_step(name, variant):
    if isinstance(preset(name).data, Invented):
        kind = Invented(documents=40, tokens=200)
        data = data_of(preset(name).__class__(**{**preset(name).__dict__, "data": kind}), seed=0)
    else:
        data = None
    trainer = build(name, variant, steps=2, cpu=True, log="csv", data=data)
    rows = trainer.train()
    assert np.isfinite([row["loss"] for row in rows]).all()


def test_unknown_presets_are_listed():
    with pytest.raises(InputError, match="preset='fig3' is not known"):
        preset("fig3")
    with pytest.raises(InputError, match="size='large'"):
        preset("figure3", "large")
    with pytest.raises(InputError, match="variant='d3' is not known"):
        build("figure3", "d3")


# --- cost -------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [0, 1, 3, 5])
@pytest.mark.parametrize("layers", [(1,), (1, 2)])
def test_the_formula_counts_what_torch_counts(d, layers):
    config = DecoderConfig(
        64, layers=4, dim=16, heads=2, head_dim=8, feed_forward=24, memory_layers=layers
    )
    decoder = Decoder(config)
    decoder.eval()
    batch = dictionary_batch(TASK, 5, np.random.default_rng(0))
    memory = Crossbatch(batch, Paper(d), np.random.default_rng(0)) if d else Memory(batch.alone())
    with EXPLICIT(), FlopCounterMode(display=False) as counter, torch.no_grad():
        decoder(memory)
    shape = Shape.of_decoder(config)
    expected = step_cost(shape, rows=5, window=batch.ids.shape[1], d=d)
    assert counter.get_total_flops() == expected.total
    assert (expected.ratio == 1) == (d == 0)


def test_the_formula_of_a_pretrained_model():
    from tiny_models import tiny_model

    model = tiny_model("llama")
    batch = dictionary_batch(Dictionary(records=3, pool=3), 4, np.random.default_rng(0))
    decoder = PretrainedDecoder(model, (2,))
    counting = FlopCounterMode(display=False)
    with decoder.attached(), torch.no_grad(), EXPLICIT(), counting as counter:
        decoder(Crossbatch(batch, Paper(3), np.random.default_rng(0)))
    shape = Shape.of_pretrained(model, (2,))
    expected = step_cost(shape, rows=4, window=batch.ids.shape[1], d=3)
    # The rotary tables are a small product of their own.
    assert counter.get_total_flops() == pytest.approx(expected.total, rel=0.01)


# --- measures ---------------------------------------------------------------------------------


def test_r_d_of_uniform_attention_is_its_baseline():
    decoder = small()
    with torch.no_grad():
        decoder.blocks[1].attention.query.weight.zero_()
    table = distraction_table(decoder, TASK, (1, 2, 8), queries=4)
    np.testing.assert_allclose(table["r_d"], table["baseline"], atol=1e-6)
    np.testing.assert_allclose(table["ratio_of_sums"], table["baseline"], atol=1e-6)
    assert table["documents"].unique().tolist() == [4]


def test_r_d_is_the_mean_of_its_queries_ratios():
    masses = distraction_masses(small(), TASK, 3, documents=5, queries=4)
    assert masses.own.shape == (4, 1, 2, 18)
    answers, everything = summarise(masses, resamples=50)
    ratios = [
        masses.own[i, 0, h, t] / masses.all[i, 0, h, t]
        for i in range(4) for h in range(2) for t in range(18) if masses.answers[i, t]
    ]  # fmt: skip
    assert answers["r_d"] == pytest.approx(np.mean(ratios), rel=1e-6)
    assert answers["low"] <= answers["r_d"] <= answers["high"]
    assert everything["r_d"] == pytest.approx((masses.own / masses.all).mean(), rel=1e-6)
    assert (masses.own <= masses.all).all()
    with pytest.raises(InputError, match="d=9 must lie between 1 and documents=5"):
        distraction_masses(small(), TASK, 9, documents=5)


def test_a_memory_of_one_window_is_crossbatch_with_itself():
    decoder = small()
    (found,) = look_up(decoder, TASK, TASK.window, documents=6)
    assert found.tokens == TASK.window
    batch_accuracy = []
    for number in range(6):
        rng = np.random.default_rng((2, TASK.window, number))
        batch = dictionary_batch(TASK, 1, rng)
        logits = decoder(Crossbatch(batch, Paper(1), rng))
        targets = batch.targets[1:]
        right = (logits.argmax(-1) == targets)[targets != -100]
        batch_accuracy.append(float(right.float().mean()))
    assert found.accuracy == pytest.approx(np.mean(batch_accuracy))
    table = lookup_table(decoder, Dictionary.paper(3), [30, 95], documents=2)
    assert table["tokens"].tolist() == [30, 30, 90, 90]
    assert table["top_k"].tolist() == [0, 32, 0, 32]


def test_nats_count_the_same_tokens_whatever_is_in_memory():
    kind = Invented(names=4, letters=9, tokens=45, documents=8)
    documents = invented_documents(kind)
    decoder = Decoder(DecoderConfig(kind.vocabulary, dim=16, heads=2, head_dim=8))
    table = nats_table(decoder, documents, 10, d=(0, 1, 4), capacity=(10, 1000), rows=4)
    assert table["tokens"].unique().tolist() == [8 * (44 - 10)]
    assert (table["low"] <= table["nats"]).all()
    assert (table["nats"] <= table["high"]).all()
    # The previous window only: the same memory by two ways.
    one = table.query("memory == 'documents' and size == 1")["nats"].item()
    other = table.query("memory == 'own past' and size == 10")["nats"].item()
    assert one == pytest.approx(other, rel=1e-6)
    with pytest.raises(InputError, match="rows=20 needs as many documents"):
        nats_table(decoder, documents, 10, rows=20)


# --- checkpoints ------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_a_saved_decoder_is_the_same(tied, tmp_path):
    decoder = small(tied=tied, positions="rope", join="gate")
    file = tmp_path / "a.safetensors"
    save_decoder(file, decoder, training={"steps": 3})
    again, about = load_decoder(file)
    assert about == {"training": {"steps": 3}}
    assert again.config == decoder.config
    for one, other in zip(again.parameters(), decoder.parameters(), strict=True):
        assert torch.equal(one, other)
    text = json.loads(file.with_suffix(".json").read_text())
    text["decoder"]["dim"] = 32
    file.with_suffix(".json").write_text(json.dumps(text))
    with pytest.raises(DataError, match="do not fit together"):
        load_decoder(file)
    file.with_suffix(".json").unlink()
    with pytest.raises(MissingDataError, match="both needed"):
        load_decoder(file)


def test_shipped_decoders_are_small_and_listed():
    files = list((data_folder() / "checkpoints").glob("*.safetensors"))
    assert len(files) == len(shipped_names()) >= 12
    assert all(file.stat().st_size <= 2_000_000 for file in files)
    with pytest.raises(MissingDataError, match="no decoder 'x' comes with the workbench"):
        shipped("x")


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_decoders_reach_what_is_recorded(name):
    """r_d and accuracy are computed anew from the stored weights."""
    decoder, about = shipped(name)
    chosen = preset(about["training"]["preset"])
    recorded = {(row["d"], row["queries"]): row for row in about["reached"]["distraction"]}
    table = distraction_table(decoder, chosen.data, (1, 16), documents=64)
    for row in table.to_dict("records"):
        known = recorded[row["d"], row["queries"]]
        # The same documents; what other processors round differently may turn an answer or two.
        assert row["r_d"] == pytest.approx(known["r_d"], abs=1e-3)
        assert row["accuracy"] == pytest.approx(known["accuracy"], abs=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_figure_3_of_the_shipped_decoders(seed):
    """Answer queries: 1/d without negatives, far above it with crossbatch (recorded)."""
    reached = {}
    for variant in ("standard", "d1", "d2", "staged"):
        _, about = shipped(f"figure3-{variant}-seed{seed}")
        reached[variant] = {
            row["d"]: row for row in about["reached"]["distraction"] if row["queries"] == "answers"
        }
    for d in (1, 2, 4, 8, 16, 32, 64):
        for variant in ("standard", "d1"):
            assert reached[variant][d]["r_d"] == pytest.approx(1 / d, abs=0.01)
    assert reached["staged"][64]["r_d"] > 0.3
    assert reached["staged"][64]["accuracy"] > 0.9
    assert 1 / 64 < reached["d2"][64]["r_d"] < reached["staged"][64]["r_d"]


@pytest.mark.slow
def test_the_shipped_command_trains_such_a_decoder():
    """A shortened training (500 steps) leaves 1/d far behind, as the full one does."""
    trainer = build("figure3", "staged", steps=500, cpu=True, log="csv", seed=0)
    trainer.train()
    table = distraction_table(trainer.decoder, Dictionary(), (4, 16), queries=16)
    answers = table[table["queries"] == "answers"].set_index("d")
    assert answers.loc[4, "r_d"] > 0.6
    assert answers.loc[16, "r_d"] > 0.25
    assert answers.loc[4, "accuracy"] > 0.8


# --- fine-tuning and the command --------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str, BaseException | None]:
    app = typer.Typer()
    app.add_typer(train, name="train")
    done = CliRunner().invoke(app, ["train", *arguments])
    return done.exit_code, done.stdout, done.exception


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    lm = tiny_lm()
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "docs.jsonl"
    lines = [json.dumps({"text": f"It rained on town {k}. " * 20}) for k in range(6)]
    file.write_text("\n".join(lines))
    return file


FAST = ("--steps", "3", "--window", "16", "--memory-layers", "1", "--cpu", "--log", "csv")


def test_a_model_is_fine_tuned_by_the_command_and_loads_again(model, texts, tmp_path):
    out = tmp_path / "run"
    status, stdout, error = run(
        *("fot", "--model", str(model), "--data", str(texts), "--d", "2,4", "--out", str(out)),
        *(*FAST, "--join", "gate", "--json"),
    )
    assert status == 0, error
    (row,) = json.loads(stdout)["training"]
    assert row["step"] == 2
    lm = load_model(out / "model")
    decoder = load_memory_settings(lm, out / "model")
    assert decoder.memory_layers == (1,)
    assert set(decoder.gates) == {"1"}
    assert (out / "metrics.csv").is_file()
    status, stdout, error = run(
        "fot", "--model", str(model), "--data", str(texts), "--out", str(out)
    )
    assert status != 0
    assert "is not empty" in str(error)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--method", "standard"),
        ("--method", "xl"),
        ("--method", "fot+mt", "--d", "1"),
        ("--parts", "0:0,1:1"),
        ("--negatives", "hardest", "--contrast", "0.1", "--rows", "2", "--accumulation", "2"),
    ],
)
def test_the_commands_methods(arguments, model, texts, tmp_path):
    status, stdout, error = run(
        *("fot", "--model", str(model), "--data", str(texts), "--out", str(tmp_path / "run")),
        *(*FAST, *arguments),
    )
    assert status == 0, error
    assert "training" in stdout


def test_instructions_by_the_command(model, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "Did it rain?", "answer": "It rained."}\n' * 4)
    status, _, error = run(
        *("fot", "--model", str(model), "--instructions", str(file)),
        *("--out", str(tmp_path / "run"), *FAST),
    )
    assert status == 0, error


def test_a_preset_by_the_command(tmp_path, monkeypatch):
    def short(decoder, task, tokens, **options):
        return lookup_table(decoder, task, tokens[:2], documents=2, **options)

    monkeypatch.setattr("workbench.training.experiments.lookup_table", short)
    out = tmp_path / "run"
    status, stdout, error = run(
        *("fot", "--preset", "figure3", "--variant", "d1", "--steps", "3", "--half"),
        *("--out", str(out), "--cpu", "--log", "csv", "--json"),
    )
    assert status == 0, error
    found = json.loads(stdout)
    assert {row["d"] for row in found["distraction"]} == {1, 2, 4, 8, 16, 32, 64}
    decoder, about = load_decoder(out / "decoder.safetensors")
    assert about["training"] == {
        "preset": "figure3", "variant": "d1", "size": "tiny", "seed": 0, "steps": 3,
    }  # fmt: skip
    assert about["reached"]["distraction"] == found["distraction"]
    table = distraction_table(decoder, Dictionary(), (16,), documents=64)
    known = [row for row in found["distraction"] if row["d"] == 16]
    np.testing.assert_allclose(table["r_d"], [row["r_d"] for row in known], rtol=1e-5)
    status, stdout, _ = run("presets")
    assert status == 0
    assert "figure3: share of attention" in stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --preset or --model, one of the two"),
        (("--preset", "figure3"), "give --out"),
        (("--model", "M", "--out", "O"), "give --data or --instructions"),
        (("--model", "M", "--out", "O", "--data", "D", "--d", "two"), "must be whole numbers"),
        (("--model", "M", "--out", "O", "--data", "D", "--parts", "1"), "positives:negatives"),
        (
            ("--model", "M", "--out", "O", "--data", "D", "--share", "1", "--share", "2"),
            "2 --share",
        ),
    ],
)  # fmt: skip
def test_bad_input_by_the_command(arguments, message, model, texts, tmp_path):
    known = {"M": str(model), "D": str(texts), "O": str(tmp_path / "run")}
    status, _, error = run("fot", *(known.get(part, part) for part in arguments))
    assert status != 0
    assert message in str(error)


def test_fine_tuning_takes_documents_or_instructions():
    lm = tiny_lm()
    with pytest.raises(InputError, match="documents or instructions, one of the two"):
        fine_tune(lm, None, Settings(1, Rate(1e-3, 1e-3)), schedule(1))
    with pytest.raises(MissingDataError, match="was not trained with memory"):
        load_memory_settings(lm, Path("nowhere"))


def test_longllamas_settings_are_forms_that_can_be_trained():
    assert sum(share for share, _ in MIXTURE.values()) == pytest.approx(1)
    for setting in LONGLLAMA.values():
        assert max(setting.memory_layers) < setting.layers
        assert setting.batch_tokens % (4 * setting.window) == 0
        ids = torch.ones(32, 4, dtype=torch.long)
        batch = Batch(ids, ids.bool(), ids, np.repeat(np.arange(8), 4), np.tile(np.arange(4), 8))
        links = Mixed(setting.parts).links(batch, np.random.default_rng(0))
        assert links.contexts[:4].tolist() == [sum(part) for part in setting.parts]
        assert links.own.sum(axis=1)[:4].tolist() == [part[0] for part in setting.parts]
