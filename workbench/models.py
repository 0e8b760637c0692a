"""Language models: a hub id, a local folder, a GGUF file, or the embedded default."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import DownloadError, InputError, ModelError

if TYPE_CHECKING:
    import pandas as pd
    import torch

__all__ = ["DEFAULT_MODEL", "LanguageModel", "list_models", "load_model"]

DEFAULT_MODEL = "smollm2-135m"
"""The embedded model: small, taken once from the package index."""

DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(eq=False)
class LanguageModel:
    """A causal language model with its tokenizer, and what identifies it.

    Usually made by `load_model`; a model that is already in memory is wrapped directly:
    `LanguageModel("mine", model, tokenizer)`.

    Parameters
    ----------
    name : how results call it.
    model : a transformers causal language model; put into evaluation mode.
    tokenizer : its tokenizer.
    identity : what tells these weights from any others (a hash or a hub revision). Left out, a
        hash of the weights as they are now, which reads all of them once.
    provenance : a sentence about the model that is shown with every result.
    """

    name: str
    model: Any
    tokenizer: Any
    identity: str = ""
    provenance: str = ""

    def __post_init__(self) -> None:
        self.model.eval()
        if not self.identity:
            self.identity = _hash_of_weights(self.model)
        if not self.provenance:
            self.provenance = f"{self.name}, a model given by the user."

    @property
    def device(self) -> torch.device:
        """Where the input embedding lives, and so where token ids must be."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def dtype(self) -> str:
        """Name of the weights' number format, e.g. "float32"."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def window(self) -> int | None:
        """Most tokens the model reads at once; None where its configuration sets no limit."""
        config = self.model.config.get_text_config(decoder=True)
        for field in ("max_position_embeddings", "n_positions", "max_seq_len"):
            length = getattr(config, field, None)
            if isinstance(length, int) and length > 0:
                return length
        return None

    def __repr__(self) -> str:
        return f"LanguageModel({self.name!r}, {type(self.model).__name__}, {self.dtype})"


def load_model(
    name: str | Path = DEFAULT_MODEL,
    *,
    dtype: str = "float32",
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> LanguageModel:
    """Load a causal language model for recording.

    Parameters
    ----------
    name : "smollm2-135m" (the embedded default), a local folder in transformers' format, a
        `.gguf` file (its weights are dequantised), or the id of a model on the hub
        ("EleutherAI/pythia-160m").
    dtype : number format of the weights and the computation: "float32", "float64", "bfloat16"
        or "float16". Surprisal in bfloat16 differs by about 0.04 nats a token.
    device : "cpu", "cuda", "cuda:1", "mps", or "auto" (spread over all devices by accelerate);
        None takes a CUDA device where there is one.
    revision : branch, tag or commit of a model on the hub.
    trust_remote_code : run code that comes with the model. Off: only turn it on for a source
        you trust.

    Raises
    ------
    InputError : `name` is none of these, or dtype or device is unknown.
    DownloadError : the hub or the package index could not be reached.
    ModelError : the files are there but do not make a causal language model.
    """
    from workbench.core.checks import check_option

    check_option("dtype", dtype, DTYPES)
    place = Path(name).expanduser()
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    with _quietly():
        if str(name) == DEFAULT_MODEL:
            return _load_embedded(dtype, device)
        if place.suffix.lower() == ".gguf":
            return _load_gguf(place, dtype, device)
        if place.is_dir():
            return _load_folder(place, dtype, device, options)
        if isinstance(name, Path) or place.exists() or not _looks_like_hub_id(name):
            raise InputError(_unknown(name))
        if revision is not None:
            options["revision"] = revision
        return _load_hub(str(name), dtype, device, options)


@dataclass(frozen=True)
class Description:
    """What is known of a model before it is loaded; the fields are `LanguageModel`'s."""

    name: str
    identity: str
    provenance: str


def describe(name: str | Path) -> Description | None:
    """Name, identity and provenance of a model without loading it; None for a hub id.

    Raises
    ------
    InputError, ModelError : as `load_model`, for a file or folder that is not a model.
    """
    place = Path(name).expanduser()
    if str(name) == DEFAULT_MODEL:
        return _describe_embedded()
    if place.suffix.lower() == ".gguf":
        return _describe_gguf(place)
    return _describe_folder(place) if place.is_dir() else None


def list_models() -> pd.DataFrame:
    """The models known by name: name, description, cached, size_mb, provenance."""
    import pandas as pd

    from workbench import embedded

    return pd.DataFrame(
        [
            {
                "name": DEFAULT_MODEL,
                "description": embedded.DESCRIPTION,
                "cached": embedded.is_cached(),
                "size_mb": embedded.SIZE_MB,
                "provenance": embedded.PROVENANCE,
            }
        ]
    )


# --- one loader per kind of source ---------------------------------------------------------


def _load_embedded(dtype: str, device: str | None) -> LanguageModel:
    from workbench import embedded

    folder = embedded.ensure()
    model, tokenizer = _from_pretrained(folder, dtype, device, {}, shown=DEFAULT_MODEL)
    embedded.check_tokenizer(tokenizer)
    known = _describe_embedded()
    return LanguageModel(known.name, model, tokenizer, known.identity, known.provenance)


def _load_gguf(path: Path, dtype: str, device: str | None) -> LanguageModel:
    known = _describe_gguf(path)
    from workbench.recording.adapter import gguf_options

    options = gguf_options(path.name)
    model, tokenizer = _from_pretrained(path.parent, dtype, device, options, shown=str(path))
    return LanguageModel(known.name, model, tokenizer, known.identity, known.provenance)


def _load_folder(
    folder: Path, dtype: str, device: str | None, options: dict[str, Any]
) -> LanguageModel:
    known = _describe_folder(folder)
    model, tokenizer = _from_pretrained(folder, dtype, device, options, shown=str(folder))
    return LanguageModel(known.name, model, tokenizer, known.identity, known.provenance)


def _load_hub(name: str, dtype: str, device: str | None, options: dict[str, Any]) -> LanguageModel:
    model, tokenizer = _from_pretrained(name, dtype, device, options, shown=name)
    commit = getattr(model.config, "_commit_hash", None)
    identity = f"hub:{name}@{commit}" if commit else ""
    where = f" at revision {commit[:12]}" if commit else ""
    return LanguageModel(name, model, tokenizer, identity, f"{name} from the hub{where}.")


def _describe_embedded() -> Description:
    from workbench import embedded

    return Description(DEFAULT_MODEL, embedded.IDENTITY, embedded.PROVENANCE)


def _describe_gguf(path: Path) -> Description:
    if not path.is_file():
        raise InputError(f"GGUF file {path} does not exist; check the path.")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file (it does not begin with 'GGUF').")
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    provenance = f"{path.name}, a GGUF file whose quantised weights were expanded."
    return Description(path.stem, f"gguf-sha256:{digest}", provenance)


def _describe_folder(folder: Path) -> Description:
    if not (folder / "config.json").is_file():
        raise InputError(
            f"folder {folder} has no config.json, so it is not a model in transformers' format; "
            "give the folder that `model.save_pretrained` wrote, or a .gguf file."
        )
    name = folder.resolve().name
    return Description(name, f"sha256:{_hash_of_folder(folder)}", f"{name}, a local folder.")


def _from_pretrained(
    source: str | Path, dtype: str, device: str | None, options: dict[str, Any], *, shown: str
) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = _device(device)
    tokenizer_options = {k: v for k, v in options.items() if k != "quantization_config"}
    model_options = dict(options)
    if place == "auto":
        model_options["device_map"] = "auto"
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **tokenizer_options)
        model: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, dtype), **model_options
        )
    except OSError as error:
        if isinstance(source, Path):
            raise ModelError(f"model {shown} cannot be read: {_first_line(error)}") from error
        raise DownloadError(
            f"model {shown!r} is neither in the local hub cache nor could it be fetched "
            f"({_first_line(error)}). Check the spelling and the network, or give a local "
            f"folder; {DEFAULT_MODEL!r} needs no hub."
        ) from error
    except (ValueError, KeyError, ImportError) as error:
        raise ModelError(
            f"model {shown} cannot be loaded as a causal language model: {_first_line(error)}"
        ) from error
    model.requires_grad_(False)
    if place != "auto":
        # A GGUF model keeps the dtype it was written in until it is asked to change.
        model = model.to(device=place, dtype=getattr(torch, dtype))
    return model.eval(), tokenizer


# --- small helpers -------------------------------------------------------------------------


@contextmanager
def _quietly() -> Iterator[None]:
    """No bars over weights, which take a second or two, and no warning of a plain-text bar."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        from transformers.utils import logging

        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if shown:
                logging.enable_progress_bar()


def default_device() -> str:
    """The device a model goes to when none is named: CUDA where there is one, else the CPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _device(device: str | None) -> str:
    import torch

    if device is None:
        return default_device()
    if device == "auto":
        return device
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"device={device!r} cannot be used here ({_first_line(error)}). Choose 'cpu', or "
            "leave it out."
        ) from error
    return device


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _looks_like_hub_id(name: str | Path) -> bool:
    """`owner/name`; a bare word is far more often a misspelt name than an old hub id."""
    import re

    return re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)) is not None and str(name)[0] not in "./~"


def _unknown(name: str | Path) -> str:
    return (
        f"model {str(name)!r} is not known. Choose {DEFAULT_MODEL!r} (the embedded default), or "
        "give a hub id like 'EleutherAI/pythia-160m', a local folder with a config.json, or a "
        ".gguf file."
    )


def _hash_of_weights(model: Any) -> str:
    import torch

    digest = hashlib.sha256(repr(sorted(model.config.to_dict().items(), key=str)).encode())
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return f"weights:{digest.hexdigest()}"


def _hash_of_folder(folder: Path) -> str:
    """Hash of every file at the top of a model folder: weights, configuration, tokenizer."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.name[0] != "."):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
