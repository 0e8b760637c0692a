"""Models and the state of a training as safetensors and JSON; no pickle is written or read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from workbench.core.errors import DataError, MissingDataError
from workbench.core.folders import data_folder
from workbench.training.decoder import Decoder, DecoderConfig

__all__ = [
    "load_decoder",
    "optimizer_tensors",
    "restore_optimizer",
    "save_decoder",
    "shipped",
    "shipped_names",
]


def save_decoder(
    file: Path, decoder: Decoder, *, dtype: torch.dtype | None = None, **about: Any
) -> None:
    """Write a small decoder: `file` (.safetensors) and, beside it, a JSON file with its sizes.

    Parameters
    ----------
    dtype : of the stored numbers; None keeps the model's own.
    about : further JSON values, e.g. how it was trained and what it reached.
    """
    tensors = {
        name: (value if dtype is None else value.to(dtype)).detach().cpu().contiguous()
        for name, value in decoder.state_dict().items()
        if not (decoder.config.tied and name == "head.weight")
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    save_file(tensors, part)
    os.replace(part, file)
    text = json.dumps({"decoder": decoder.config.as_dict(), **about}, indent=1)
    part.write_text(text + "\n", encoding="utf-8")
    os.replace(part, file.with_suffix(".json"))


def load_decoder(file: Path | str) -> tuple[Decoder, dict[str, Any]]:
    """A small decoder in float32 and what its JSON file says besides its sizes.

    Raises
    ------
    MissingDataError : one of the two files is not there.
    DataError : they do not belong together.
    """
    file = Path(file)
    about_file = file.with_suffix(".json")
    for wanted in (file, about_file):
        if not wanted.is_file():
            raise MissingDataError(f"{wanted} is not there; a decoder is two files, both needed.")
    about = json.loads(about_file.read_text(encoding="utf-8"))
    try:
        decoder = Decoder(DecoderConfig(**about.pop("decoder")))
        tensors = load_file(file)
        if decoder.config.tied:
            tensors["head.weight"] = tensors["embed.weight"]
        decoder.load_state_dict({name: value.float() for name, value in tensors.items()})
    except (KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{file} and {about_file.name} do not fit together: {error}") from error
    return decoder, about


def shipped_names() -> list[str]:
    """Names of the decoders that come with the workbench."""
    return sorted(file.stem for file in (data_folder() / "checkpoints").glob("*.safetensors"))


def shipped(name: str) -> tuple[Decoder, dict[str, Any]]:
    """One of the decoders that come with the workbench, by its name.

    Raises
    ------
    MissingDataError : there is none of that name; the message lists them.
    """
    if name not in shipped_names():
        listed = ", ".join(shipped_names()) or "none"
        raise MissingDataError(
            f"no decoder {name!r} comes with the workbench; there are: {listed}."
        )
    return load_decoder(data_folder() / "checkpoints" / f"{name}.safetensors")


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[Any, str]
) -> dict[str, Tensor]:
    """The state of an optimizer as tensors named `parameter|quantity`."""
    found = {}
    for parameter, state in optimizer.state.items():
        for quantity, value in state.items():
            if value is None:
                continue
            tensor = value if isinstance(value, Tensor) else torch.tensor(float(value))
            found[f"{names[parameter]}|{quantity}"] = tensor.detach().cpu().clone().contiguous()
    return found


def restore_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[Any, str], tensors: dict[str, Tensor]
) -> None:
    """Give an optimizer the state that `optimizer_tensors` wrote."""
    by_name = {name: parameter for parameter, name in names.items()}
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, quantity = key.rpartition("|")
        if name not in by_name:
            raise DataError(f"the kept optimizer knows a parameter {name!r}, the model does not.")
        parameter = by_name[name]
        # Counts of steps stay on the CPU, as optimizers of torch keep them.
        here = value if quantity == "step" else value.to(parameter.device)
        optimizer.state[parameter][quantity] = here
