"""The training loop: resumption, accumulation, processes, logs; loaders and their rules."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_lm import tiny_lm, tiny_tokenizer

from workbench.core.errors import DataError, InputError, MissingDataError, MissingPackageError
from workbench.training.decoder import Decoder, DecoderConfig
from workbench.training.dictionary import Dictionary, dictionary_batch
from workbench.training.generated import DictionaryData
from workbench.training.instruction import (
    InstructionLoader,
    instruction_method_parts,
    read_instructions,
)
from workbench.training.invented import Invented, invented_documents
from workbench.training.loader import DocumentLoader, mixture_weights, pack
from workbench.training.logs import Log
from workbench.training.loop import Settings, Trainer
from workbench.training.losses import token_loss
from workbench.training.methods import (
    CrossbatchMethod,
    MemorizingTransformer,
    Standard,
    Switch,
    TransformerXL,
)
from workbench.training.pretrained import PretrainedDecoder
from workbench.training.rows import IGNORED
from workbench.training.schedules import Rate, Sampled, schedule
from workbench.training.texts import document_tokens, read_documents

RATE = Rate(1e-3, 1e-4, warmup=2)
TASK = Dictionary(records=3, pool=3)
WORDS = Invented(names=4, letters=9, tokens=50, documents=30)


def small(vocabulary: int = 64, **more) -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderConfig(vocabulary, dim=16, heads=2, head_dim=8, feed_forward=16, **more))


def words(**more) -> DocumentLoader:
    options = {"rows": 4, "window": 10, "least": 10, **more}
    return DocumentLoader(invented_documents(WORDS), **options)


def curve(trainer: Trainer) -> list[tuple]:
    return [(row["step"], row["loss"], row["accuracy"], row["d"]) for row in trainer.rows]


METHODS = {
    "fot": lambda: CrossbatchMethod(negatives="random"),
    "mixed": lambda: CrossbatchMethod(parts=((0, 0), (1, 1))),
    "xl": lambda: TransformerXL(capacity=10),
    "mt": lambda: MemorizingTransformer(capacity=15, top_k=4),
    "fot+mt": lambda: Switch(CrossbatchMethod(), MemorizingTransformer(capacity=15), 3),
}


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_training_goes_on_as_if_it_had_not_been(method, optimizer, tmp_path):
    """Loss curve and weights are the same numbers, not nearly so."""
    if optimizer == "adafactor" and method != "mt":
        pytest.skip("one method is enough for the second optimizer")

    def trainer(out=None):
        config = Settings(8, RATE, log_every=1, seed=3, optimizer=optimizer)
        return Trainer(
            small(WORDS.vocabulary), words(accumulation=2), METHODS[method](),
            schedule((1, 2, 3), "sampled"), config, out=out, log="csv", cpu=True,
        )  # fmt: skip

    whole = trainer()
    whole.train()
    first = trainer(tmp_path)
    first.train(until=5)
    first.save()
    second = trainer(tmp_path)
    assert second.resume() == 5
    second.train()
    assert curve(first) + curve(second) == curve(whole)
    for one, other in zip(second.decoder.parameters(), whole.decoder.parameters(), strict=True):
        assert torch.equal(one, other)
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [str(k) for k in range(8)]


def test_a_curriculum_and_a_staged_d_are_resumed(tmp_path):
    def trainer(out=None):
        data = DictionaryData(TASK, 4, records=(1, 2, 3), accuracy=-1.0, least=2)
        d = schedule((1, 2, 4), "accuracy", accuracy=-1.0, least=2)
        config = Settings(12, RATE, log_every=1)
        return Trainer(small(), data, CrossbatchMethod(), d, config, out=out, log="csv", cpu=True)

    whole = trainer()
    whole.train()
    assert [row["d"] for row in whole.rows] == [1] * 6 + [2] * 2 + [4] * 4
    for stop in (3, 7):
        first = trainer(tmp_path)
        first.train(until=stop)
        first.save()
        second = trainer(tmp_path)
        second.resume()
        second.train()
        assert curve(first) + curve(second) == curve(whole)


def test_accumulation_is_one_batch_without_negatives():
    """Micro-batches keep a document's rows together and weigh every token the same."""
    found = []
    for rows, accumulation in ((4, 1), (2, 2)):
        trainer = Trainer(
            small(WORDS.vocabulary), words(rows=rows, accumulation=accumulation),
            CrossbatchMethod(), schedule(1), Settings(3, RATE, log_every=1), cpu=True,
        )  # fmt: skip
        trainer.train()
        found.append([row["loss"] for row in trainer.rows])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_settings_that_differ_are_refused_on_resumption(tmp_path):
    def trainer(steps):
        return Trainer(
            small(), DictionaryData(TASK, 2, records=(3,)), CrossbatchMethod(), schedule(1),
            Settings(steps, RATE), out=tmp_path, log="csv", cpu=True,
        )  # fmt: skip

    with pytest.raises(MissingDataError, match="no training to resume"):
        trainer(2).resume()
    trainer(2).train()
    with pytest.raises(InputError, match=r"other settings \(steps\)"):
        trainer(3).resume()


def test_more_documents_than_rows_are_refused():
    with pytest.raises(InputError, match="d=8 needs 8 documents in a micro-batch, but there are 4"):
        Trainer(
            small(), words(), CrossbatchMethod(), schedule((1, 8), "sampled"), Settings(1, RATE),
            cpu=True,
        )  # fmt: skip


@pytest.mark.parametrize("method", [*METHODS, "standard", "contrast"])
def test_every_method_lowers_its_loss(method):
    makers = {
        **METHODS,
        "standard": Standard,
        "contrast": lambda: CrossbatchMethod(contrast=0.1),
    }
    config = Settings(40, Rate(1e-2, 1e-2, 5), log_every=39)
    trainer = Trainer(
        small(WORDS.vocabulary), words(rows=8), makers[method](), schedule(2), config, cpu=True
    )
    first, *_, last = trainer.train()
    assert last["loss"] < 0.9 * first["loss"]
    share = last["r_d"]
    assert np.isnan(share) if method == "standard" else 0 < share <= 1


def test_a_pretrained_model_is_trained_and_the_rest_of_it_untouched():
    lm = tiny_lm()
    decoder = PretrainedDecoder(lm.model, [1], join="gate")
    decoder.requires_grad_(True)
    documents = document_tokens(["a rainy town " * 20, "stay at noon " * 20], lm.tokenizer)
    data = DocumentLoader(documents, rows=2, window=16)
    config = Settings(3, RATE, log_every=1, checkpointing=True)
    before = {name: p.clone() for name, p in decoder.named_parameters()}
    trainer = Trainer(decoder, data, CrossbatchMethod(), schedule(2), config, cpu=True)
    rows = trainer.train()
    assert np.isfinite([row["loss"] for row in rows]).all()
    assert all(not torch.equal(before[name], p) for name, p in decoder.named_parameters())
    assert lm.model.config._attn_implementation == "sdpa"


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    """Two CPU processes of accelerate with two documents each equal one with four (d = 1)."""
    code = """
import json, sys
import torch
from accelerate import PartialState
from workbench.training.decoder import Decoder, DecoderConfig
from workbench.training.invented import Invented, invented_documents
from workbench.training.loader import DocumentLoader
from workbench.training.loop import Settings, Trainer
from workbench.training.methods import CrossbatchMethod
from workbench.training.schedules import Rate, schedule
place = PartialState(cpu=True)
torch.set_num_threads(1)
torch.manual_seed(0)
kind = Invented(names=4, letters=9, tokens=50, documents=30)
decoder = Decoder(DecoderConfig(kind.vocabulary, dim=16, heads=2, head_dim=8, feed_forward=16))
data = DocumentLoader(
    invented_documents(kind), rows=4 // place.num_processes, window=10, least=10,
    rank=place.process_index, world=place.num_processes,
)
config = Settings(4, Rate(1e-3, 1e-4, 2), log_every=1)
trainer = Trainer(
    decoder, data, CrossbatchMethod(), schedule(1), config, out=sys.argv[1], log="csv", cpu=True
)
rows = trainer.train()
if place.is_main_process:
    print(json.dumps([row["loss"] for row in rows]))
"""
    script = tmp_path / "train.py"
    script.write_text(code)
    found = []
    for processes in (1, 2):
        done = subprocess.run(
            [
                sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}",
                "--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
                str(script), str(tmp_path / str(processes)),
            ],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    kept = sorted(file.name for file in (tmp_path / "2" / "state").iterdir())
    assert [name for name in kept if name.startswith("rank")] == [
        "rank0.json", "rank0.safetensors", "rank1.json", "rank1.safetensors",
    ]  # fmt: skip


# --- loaders ----------------------------------------------------------------------------------


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(2, 9),
    st.integers(0, 2),
    st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_a_row_holds_one_document_in_its_order(lengths, rows, window, suppliers, seed):
    """Every token is read once per visit of its document, at its place, beside its past."""
    # Token k of document j is 1000·j + k: a row tells where it comes from.
    documents = [1000 * j + np.arange(n) for j, n in enumerate(lengths)]
    loader = DocumentLoader(documents, rows=rows, window=window, least=2, seed=seed)
    read: dict[int, list[int]] = {j: [] for j in range(len(lengths))}
    for _ in range(12):
        (batch,) = loader.step(suppliers)
        assert batch.suppliers == suppliers * rows
        for row in range(len(batch.document)):
            tokens = batch.ids[row][batch.valid[row]].numpy()
            at = int(batch.window[row]) * window
            expected = 1000 * batch.document[row] + at + np.arange(len(tokens))
            assert (tokens == expected).all()
            assert len(tokens) > 0 or batch.window[row] < 0
            if row >= batch.suppliers:
                ahead = batch.targets[row].numpy()
                known = ahead != IGNORED
                assert (ahead[known] == batch.ids[row].numpy()[known] + 1).all()
                read[int(batch.document[row])].extend(ahead[known])
            else:
                assert (batch.targets[row] == IGNORED).all()
                below = batch.suppliers + row % rows
                assert batch.document[row] == batch.document[below]
                assert batch.window[row] == batch.window[below] - 1 - row // rows
    for j, n in enumerate(lengths):
        counts = np.bincount(np.array(read[j], dtype=int) - 1000 * j, minlength=n)[:n]
        # Slots may be in the middle of a document: visits differ by as many as there are slots.
        assert counts[0] == 0
        assert counts[1:].max() - counts[1:].min() <= rows


def test_the_first_window_is_alone_or_skipped():
    documents = [np.arange(30)]
    alone = DocumentLoader(documents, rows=1, window=10)
    (batch,) = alone.step(1)
    assert batch.window.tolist() == [-1, 0]
    assert not batch.valid[0].any()
    skip = DocumentLoader(documents, rows=1, window=10, first="skip")
    (batch,) = skip.step(1)
    assert batch.window.tolist() == [0, 1]
    assert batch.ids[0].tolist() == list(range(10))


def test_short_documents_are_counted_or_packed():
    documents = [np.arange(5), np.arange(30), np.arange(6), np.arange(12)]
    assert DocumentLoader(documents, rows=1, window=10).dropped == 3
    joined = DocumentLoader(documents, rows=1, window=10, short="pack")
    assert [len(d) for d in joined.documents] == [35]
    assert [len(d) for d in pack(documents, 11)] == [35, 18]
    with pytest.raises(InputError, match="none of 4 documents has 200 tokens"):
        DocumentLoader(documents, rows=1, window=100)


def test_a_mixture_has_the_wanted_shares_of_tokens():
    lengths = [100, 300, 50, 50, 50]
    source = [0, 0, 1, 1, 1]
    weights = mixture_weights(lengths, source, [0.25, 0.75])
    tokens = weights * lengths
    np.testing.assert_allclose(tokens[:2].sum() / tokens.sum(), 0.25)
    np.testing.assert_allclose(weights.sum(), 1.0)
    with pytest.raises(InputError, match="source 1 of the mixture has no document"):
        mixture_weights([10], [0], [0.5, 0.5])
    documents = [np.full(n, j) for j, n in enumerate(lengths)]
    loader = DocumentLoader(documents, rows=50, window=25, least=2, weights=weights, seed=1)
    ids = torch.cat([loader.step()[0].ids for _ in range(60)])
    assert abs(float((ids < 2).double().mean()) - 0.25) < 0.06


def test_processes_read_different_documents():
    documents = [np.full(20, j) for j in range(8)]
    seen = []
    for rank in range(2):
        loader = DocumentLoader(documents, rows=4, window=20, least=2, rank=rank, world=2)
        seen.append(set(loader.step()[0].document.tolist()))
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == set(range(8))


def test_a_loader_of_other_size_refuses_the_state():
    with pytest.raises(InputError, match="the kept state has 4 slots, the loader 2"):
        words(rows=2).restore(words().state())


# --- generated documents ----------------------------------------------------------------------


def test_sigdict_documents_share_keys_and_nothing_else():
    rng = np.random.default_rng(0)
    task = Dictionary()
    assert (task.record, task.window) == (6, 72)
    first, asked = task.document(rng, 12)
    records, questions = first.reshape(12, 6), asked.reshape(12, 6)
    assert (records[:, 0] == 0).all()
    assert (questions[:, 0] == 2).all()
    assert len({tuple(row[1:3]) for row in np.concatenate((records, questions))}) == 1
    assert sorted(records[:, 3]) == list(range(3, 15))
    assert {tuple(row[1:]) for row in records} == {tuple(row[1:]) for row in questions}
    batch = dictionary_batch(task, 2, rng)
    targets = batch.targets[2]
    place = np.flatnonzero(targets.numpy() != IGNORED)
    assert (batch.ids[2][place] == 1).all()  # predicted from <v>
    assert (targets[place] == batch.ids[2][place + 1]).all()
    assert (batch.targets[:2] == IGNORED).all()


def test_the_papers_format_asks_for_four_tokens():
    rng = np.random.default_rng(0)
    task = Dictionary.paper(25)
    assert (task.record, task.window) == (10, 250)
    first, asked = task.document(rng, 25)
    keys = {tuple(row[1:5]) for row in first.reshape(25, 10)}
    assert len(keys) == 25
    assert keys == {tuple(row[1:5]) for row in asked.reshape(25, 10)}
    batch = dictionary_batch(task, 1, rng, joined=True)
    assert batch.ids.shape == (1, 500)
    assert batch.suppliers == 0
    assert batch.n_targets == 100
    long, some = task.document(rng, 1000, 3)
    assert (len(long), len(some)) == (10_000, 30)


def test_dictionaries_say_what_is_wrong():
    with pytest.raises(InputError, match="must hold at least records=12 keys"):
        Dictionary(pool=5)
    with pytest.raises(InputError, match="'dict' has none"):
        Dictionary("dict", pool=None)
    with pytest.raises(InputError, match="200 different keys are wanted, but only 61 exist"):
        Dictionary("dict", key=1, signature=0, pool=None).document(np.random.default_rng(0), 200)
    with pytest.raises(InputError, match="must end with the task's own number of records"):
        DictionaryData(TASK, 2, records=(1, 2))
    with pytest.raises(InputError, match="one previous window"):
        DictionaryData(TASK, 2, records=(3,)).step(2)


def test_invented_documents_repeat_their_own_names():
    documents = invented_documents(WORDS, documents=3)
    assert [len(d) for d in documents] == [50, 50, 50]
    names = [set("".join(chr(65 + t) for t in d).split("A")[:-1]) for d in documents]
    assert all(2 <= len(found) <= 4 for found in names)
    assert not names[0] & names[1]


# --- instructions -----------------------------------------------------------------------------


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_examples_stand_anywhere_with_the_loss_on_their_answers(seed):
    examples = [(np.arange(1, 8), np.arange(20, 24)), (np.arange(1, 3), np.arange(30, 33))]
    loader = InstructionLoader(examples, rows=2, window=6, windows=3, seed=seed)
    (batch,) = loader.step(0, 3)
    assert batch.ids.shape == (6, 6)
    assert batch.window.tolist() == [0, 1, 2, 0, 1, 2]
    for row in range(2):
        flat = slice(3 * row, 3 * row + 3)
        ids, valid = batch.ids[flat].flatten(), batch.valid[flat].flatten()
        targets = batch.targets[flat].flatten()
        text = ids[valid].tolist()
        prompt, answer = next(e for e in examples if len(e[0]) + len(e[1]) == len(text))
        assert text == [*prompt, *answer]
        place = np.flatnonzero(valid)
        assert (np.diff(place) == 1).all()  # padding left and right only
        assert targets[targets != IGNORED].tolist() == list(answer)
        known = np.flatnonzero(targets != IGNORED)
        assert (targets[known] == ids[known + 1]).all()


def test_instructions_train_with_all_earlier_windows_in_memory():
    examples = [(np.arange(1, 8), np.arange(20, 24))] * 4
    loader = InstructionLoader(examples, rows=2, window=6, windows=3)
    method = CrossbatchMethod(parts=instruction_method_parts(3))
    decoder = small(40)
    trainer = Trainer(
        decoder, loader, method, schedule(1), Settings(30, Rate(1e-2, 1e-2, 2), log_every=29),
        cpu=True,
    )  # fmt: skip
    first, last = trainer.train()
    assert last["loss"] < first["loss"]
    links = method.form(1).links(InstructionLoader(examples, 2, 6, 3).step(0, 3)[0], None)
    assert (links.own == (links.rows >= 0)).all()
    with pytest.raises(InputError, match="example 0 has 11 tokens, but 1 window of 6 hold 6"):
        InstructionLoader(examples, rows=1, window=6, windows=1)
    cut = InstructionLoader(examples, rows=1, window=6, windows=1, longer="cut")
    assert cut.step(0, 1)[0].ids.tolist() == [[6, 7, 20, 21, 22, 23]]


def test_instruction_files(tmp_path):
    tokenizer = tiny_tokenizer()
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "rain?", "answer": "yes"}\n\n{"prompt": "sun?", "answer": "no"}\n')
    found = read_instructions(file, tokenizer)
    assert [tokenizer.decode(prompt) for prompt, _ in found] == ["rain?", "sun?"]
    assert [tokenizer.decode(answer) for _, answer in found] == [
        "yes<|endoftext|>",
        "no<|endoftext|>",
    ]
    file.write_text('{"prompt": "rain?"}\n')
    with pytest.raises(DataError, match="line 1: an object with 'prompt' and 'answer'"):
        read_instructions(file, tokenizer)
    with pytest.raises(MissingDataError, match="is not there"):
        read_instructions(tmp_path / "b.jsonl", tokenizer)


# --- texts, logs, schedules, losses -----------------------------------------------------------


def test_documents_are_read_from_files(tmp_path):
    (tmp_path / "a.txt").write_text("one text")
    (tmp_path / "b.jsonl").write_text('{"text": "first"}\n{"text": "second"}\n')
    assert list(read_documents(tmp_path)) == ["one text", "first", "second"]
    (found,) = document_tokens(["rain"], tiny_tokenizer())
    assert tiny_tokenizer().decode(found) == "rain<|endoftext|>"
    assert len(document_tokens(["a", "b", "c"], tiny_tokenizer(), limit=2)) == 2
    bad = tmp_path / "bad.jsonl"
    for text, reason in (
        ('{"text": "x"}\n{"body": "x"}\n', r"document 2: no text in field 'text' \(fields: 'body'"),
        ("[1]\n", "line 1: an object is needed"),
        ("{\n", "line 1: no JSON"),
    ):
        bad.write_text(text)
        with pytest.raises(DataError, match=reason):
            list(read_documents(bad))
    bad.write_bytes(b'{"text": "caf\xe9"}')
    with pytest.raises(DataError, match="is not UTF-8"):
        list(read_documents(bad))
    with pytest.raises(MissingDataError, match="is not there"):
        list(read_documents(tmp_path / "c.jsonl"))


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackageError, match=r"workbench\[train\]"):
        Log(tmp_path, "tensorboard")
    with pytest.raises(MissingPackageError, match=r"workbench\[train\]"):
        list(read_documents("datasets:pg19"))


def test_learning_rates():
    linear = Rate(1.0, 0.1, warmup=10)
    assert [linear.at(step, 110) for step in (0, 9, 10, 60, 110)] == pytest.approx(
        [0.1, 1.0, 1.0, 0.55, 0.1]
    )
    assert Rate(1.0, 0.0, 10, "cosine").at(60, 110) == pytest.approx(0.5)
    inverse = Rate(1.0, 0.3, 100, "inverse-sqrt")
    assert inverse.at(399, 10_000) == pytest.approx(0.5)
    assert inverse.at(9_999, 10_000) == 0.3
    assert Rate(1.0, 0.0, 0, "constant").at(5, 10) == 1.0
    with pytest.raises(InputError, match="must lie between 0 and peak"):
        Rate(1.0, 2.0)


def test_schedules_of_d():
    rng = np.random.default_rng(0)
    assert schedule(4).d(0, rng) == 4
    drawn = Sampled(values=(2, 64))
    assert {drawn.d(step, rng) for step in range(50)} == {2, 64}
    steps = schedule((2, 64), "steps", starts=(0, 450))
    assert [steps.d(step, rng) for step in (0, 449, 450)] == [2, 2, 64]
    staged = schedule((1, 16), "accuracy", accuracy=0.9, least=3)
    assert [staged.told(1.0) for _ in range(4)] == [False, False, True, False]
    assert (staged.d(0, rng), staged.largest) == (16, 16)
    again = schedule((1, 16), "accuracy", accuracy=0.9, least=3)
    again.restore(json.loads(json.dumps(staged.state())))
    assert again == staged
    with pytest.raises(InputError, match="a constant d is one number"):
        schedule((1, 2))
    with pytest.raises(InputError, match="must begin with 0, one for each"):
        schedule((1, 2), "steps", starts=(0,))
    with pytest.raises(InputError, match="must increase"):
        schedule((1, 2), "steps", starts=(0, 0))
    with pytest.raises(InputError, match="must be a whole number"):
        schedule((1, -2), "sampled")


def test_the_loss_is_the_sum_of_surprisals():
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, IGNORED, 4], [IGNORED, IGNORED, 0]])
    loss = token_loss(logits, targets)
    expected = -sum(
        logits[r, t].log_softmax(-1)[targets[r, t]] for r, t in ((0, 0), (0, 2), (1, 2))
    )
    assert float(loss.total) == pytest.approx(float(expected), rel=1e-6)
    assert loss.tokens == 3
    assert token_loss(logits, torch.full_like(targets, IGNORED)).tokens == 0
    with pytest.raises(InputError, match="not finite"):
        token_loss(logits * torch.nan, targets)


def test_batches_without_their_suppliers():
    batch = dictionary_batch(TASK, 2, np.random.default_rng(0))
    alone = batch.alone()
    assert alone.suppliers == 0
    assert torch.equal(alone.ids, batch.ids[2:])
    assert replace(alone).n_targets == batch.n_targets == 6
