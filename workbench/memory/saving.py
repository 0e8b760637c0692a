"""A memory on disk: saved whole or not at all, loaded, reopened by other processes to read.

    memory.json            the system, the model it belongs to, and what was read
    text-0/state.safetensors   what is near, the index, the log, what was seen while reading
    text-0/layer-000.kv    keys and values of the stored tokens, raw

No pickle is written or read. The segmenter is not saved: fed again with what was seen while
reading, it is where it was.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.core.errors import DataError, DiskSpaceError, InputError
from workbench.core.replacing import replace_folder
from workbench.memory.forming import Forming
from workbench.memory.log import RetrievalLog
from workbench.memory.row import Row
from workbench.memory.settings import Settings
from workbench.memory.store import FileStore, OverlayStore, TensorStore, TokenStore
from workbench.memory.token_layer import TokenSettings
from workbench.memory.traced import keys_of

if TYPE_CHECKING:
    from workbench.memory.system import MemoryModel
    from workbench.models import LanguageModel

__all__ = ["load_memory", "save_memory"]

FORMAT = 1
_BLOCK = 4096  # tokens copied at once


def save_memory(system: MemoryModel, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write a memory to a folder.

    Raises
    ------
    InputError : the folder exists and overwrite is False, or nothing was read.
    DiskSpaceError : the disk is full; what stood in the folder is unharmed.
    """
    place = Path(folder).expanduser().absolute()
    if not system.rows:
        raise InputError("nothing was read yet, so there is nothing to save.")
    if place.exists() and not overwrite:
        raise InputError(f"{place} exists; give another folder, or overwrite=True.")
    gone = [
        layer.shape.layer
        for layer in system.rows[0].layers
        if layer.shape.layer in system.refining_layers and not layer.shape.recalls
    ]
    if gone:
        raise InputError(
            f"layers {gone} slide and have forgotten the keys that refined their events, so the "
            "memory could not go on from a file; refine by other layers (layers=, per='all')."
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        about = []
        for number, row in enumerate(system.rows):
            part = draft / f"text-{number}"
            part.mkdir()
            about.append(_save_row(row, part))
        manifest = {
            "format": FORMAT,
            "kind": type(system).__name__,
            "name": system.name,
            "bos": system.bos,
            "identity": system.lm.identity,
            "model": system.lm.name,
            **system.describe(),
            "pieces": [system.pieces(number) for number in range(len(system.rows))],
            "rows": about,
        }
        text = json.dumps(manifest, ensure_ascii=False)
        (draft / "memory.json").write_text(text, encoding="utf-8")
        replace_folder(draft, place)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise DiskSpaceError(
            f"the memory could not be written to {place} ({error.strerror or error}); what stood "
            "there before is unharmed. Free some room, or give another folder."
        ) from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return place


def load_memory(folder: str | Path, lm: LanguageModel, *, read_only: bool = False) -> MemoryModel:
    """A memory as it was saved, ready to go on.

    Parameters
    ----------
    folder : what `save` wrote.
    lm : the same language model.
    read_only : nothing in the folder is ever changed: stored tokens are read from its files as
        they are needed, and new ones stay in memory. Any number of processes may do so at once.

    Returns
    -------
    A `MemoryModel`. With store="disk" (and not read_only) it goes on in the folder's own files.

    Raises
    ------
    DataError : the folder holds no memory, or a damaged one.
    InputError : the memory belongs to another model.
    """
    from workbench.memory.system import MemoryModel

    place = Path(folder).expanduser().absolute()
    try:
        manifest = json.loads((place / "memory.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{place} holds no memory that can be read ({error}).") from None
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{place} was written in format {manifest.get('format')}, this version reads {FORMAT}."
        )
    if manifest["identity"] != lm.identity:
        raise InputError(
            f"{place} is a memory of {manifest['model']} ({manifest['identity'][:12]}), and "
            f"{lm.name} ({lm.identity[:12]}) was given: keys of one model mean nothing to another."
        )
    forming = None
    if manifest["forming"] is not None:
        stated = dict(manifest["forming"])
        for name in ("given", "layers"):
            stated[name] = None if stated[name] is None else tuple(stated[name])
        forming = Forming(**stated)
    settings = Settings(**manifest["settings"])
    tokens = None
    if manifest.get("tokens") is not None:
        tokens = TokenSettings.from_json(manifest["tokens"])
    system = MemoryModel(
        lm,
        settings,
        forming,
        tokens=tokens,
        bos=manifest["bos"],
        folder=place if settings.store == "disk" else None,
        name=manifest["name"],
    )
    system.restore_pieces([[(int(a), str(b)) for a, b in row] for row in manifest["pieces"]])
    for number, (row, about) in enumerate(zip(system.rows, manifest["rows"], strict=True)):
        _load_row(row, place / f"text-{number}", about, settings, lm, read_only)
    return system


# --- one text ------------------------------------------------------------------------------


def _save_row(row: Row, folder: Path) -> dict[str, Any]:
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {
        "ids": torch.tensor(row.text.ids, dtype=torch.int64),
        "seen": torch.tensor(row.text.seen, dtype=torch.float64),
    }
    for name, values in row.text.measures.items():
        tensors[f"measure.{name}"] = torch.tensor(values, dtype=torch.float64)
    for name, array in row.log.arrays().items():
        tensors[f"log.{name}"] = torch.from_numpy(array)
    if row.hidden is not None:
        tensors["hidden"] = row.hidden.detach().cpu().clone()
    if row.log_p is not None:
        tensors["log_p"] = row.log_p.detach().cpu().clone()
    layers = []
    for layer in row.layers:
        name = f"layer.{layer.shape.layer}"
        state, held = layer.state()
        tensors |= {f"{name}.{key}": value.detach().cpu().clone() for key, value in held.items()}
        layers.append(state)
        if layer.store is not None:
            _copy_store(layer.store, folder / f"layer-{layer.shape.layer:03d}.kv")
    contiguous = {key: value.contiguous() for key, value in tensors.items()}
    save_file(contiguous, str(folder / "state.safetensors"))
    return {
        "n": row.n,
        "step": row.step,
        "layers": layers,
        "given": [] if row.former is None else row.former.given,
        "edges": [] if row.former is None else [u.edges().tolist() for u in row.former.units],
    }


def _copy_store(store: TokenStore, path: Path) -> None:
    copied: FileStore | None = None
    for begin in range(0, store.n, _BLOCK):
        keys, values = store.gather(torch.arange(begin, min(begin + _BLOCK, store.n)))
        if copied is None:
            copied = FileStore(path, keys.shape[0], keys.shape[2], keys.dtype)
        copied.append(keys, values)


def _load_row(
    row: Row,
    folder: Path,
    about: dict[str, Any],
    settings: Settings,
    lm: LanguageModel,
    read_only: bool,
) -> None:
    from safetensors.torch import load_file

    try:
        tensors = load_file(str(folder / "state.safetensors"))
    except Exception as error:
        raise DataError(f"{folder / 'state.safetensors'} cannot be read: {error}") from None
    row.n, row.step = about["n"], about["step"]
    row.text.ids = tensors["ids"].tolist()
    row.text.seen = tensors["seen"].tolist()
    row.text.measures = {
        key.removeprefix("measure."): value.tolist()
        for key, value in tensors.items()
        if key.startswith("measure.")
    }
    arrays = {
        key.removeprefix("log."): value.numpy()
        for key, value in tensors.items()
        if key.startswith("log.")
    }
    row.log.entries[:] = RetrievalLog.from_arrays(arrays).entries
    row.hidden = _moved(tensors.get("hidden"), lm.device)
    row.log_p = _moved(tensors.get("log_p"), lm.device)
    for layer, state in zip(row.layers, about["layers"], strict=True):
        name = f"layer.{layer.shape.layer}."
        held = {
            key.removeprefix(name): value for key, value in tensors.items() if key.startswith(name)
        }
        path = folder / f"layer-{layer.shape.layer:03d}.kv"
        layer.restore_state(state, held, _opened(path, state, settings, lm, read_only), lm.device)
    if row.former is not None:
        _replay(row, about)


def _moved(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


def _opened(
    path: Path, state: dict[str, Any], settings: Settings, lm: LanguageModel, read_only: bool
) -> TokenStore | None:
    if not state["stored"]:
        return None
    kv_heads, dim = state["shape"]
    dtype = getattr(torch, state["dtype"])
    keep = read_only or settings.store != "disk"
    try:
        file = FileStore(path, kv_heads, dim, dtype, n=state["stored"], read_only=keep)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    if read_only:
        return OverlayStore(file)
    if settings.store == "disk":
        return file
    store = TensorStore("cpu" if settings.store == "host" else lm.device)
    for begin in range(0, file.n, _BLOCK):
        store.append(*file.gather(torch.arange(begin, min(begin + _BLOCK, file.n))))
    return store


def _replay(row: Row, about: dict[str, Any]) -> None:
    """Feed the segmenters once more with what was seen while reading."""
    former = row.former
    assert former is not None
    known = len(former.forming.given or ())
    former.expect(about["given"][known:])
    keys: list[NDArray[Any]] | None = None
    if former.forming.refined:
        found = [keys_of(row.layers[layer], row.skip, row.n) for layer in row.refining]
        held = [part for part in found if part is not None]
        keys = held if former.forming.per == "layer" else [np.concatenate(held)]
    values = np.array(row.text.measures[former.forming.signal], dtype=np.float64)
    if len(values):
        former.feed(values, keys)
    if [units.edges().tolist() for units in former.units] != about["edges"]:
        raise DataError(
            "the events of the saved memory are not those that its own surprisal and keys make; "
            "the files were changed. Read the text again."
        )
