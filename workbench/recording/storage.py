"""Traces as zarr folders: written whole or not at all, read back equal, without pickle."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.core.errors import DataError, InputError
from workbench.core.replacing import replace_folder
from workbench.core.story import Annotation, Story
from workbench.core.trace import Trace
from workbench.recording.lazy import LAZY, chunk_hashes, lazy_variable
from workbench.recording.sizes import check_disk

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["load_trace", "remove_trace", "save_trace"]

FORMAT = 2
_READABLE = (1, 2)  # 1 had one hash for all keys, so they are read whole
_MARK = "workbench_trace"

# Text columns are fixed-width in memory; in the file they are JSON, which every reader knows.
_STRINGS = ("token_str", "word_str")


def save_trace(trace: Trace, path: str | Path, overwrite: bool = False) -> Path:
    """Write a trace, with its story, to a zarr folder.

    The folder is built beside its place and renamed into it: a reader sees the whole trace or
    none, also when the process is stopped half-way.

    Parameters
    ----------
    trace : what to write.
    path : the folder, by custom called `name.zarr`; missing parents are made.
    overwrite : replace a trace that is there. Nothing else is ever replaced.

    Returns
    -------
    The path.

    Raises
    ------
    InputError : the place is taken, or holds something that is no trace.
    DiskSpaceError : the disk has too little room.
    """
    target = Path(path).expanduser()
    if target.exists() or target.is_symlink():
        if not _is_trace(target) and not _is_empty_folder(target):
            raise InputError(f"{target} exists and is not a trace; choose another path.")
        if not overwrite and not _is_empty_folder(target):
            raise InputError(f"{target} exists; give overwrite=True to replace that trace.")
    check_disk(target.parent, _nbytes(trace), f"trace of {trace.story.name!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        fresh = Path(scratch) / "trace"
        _write(trace, fresh)
        replace_folder(fresh, target)
    return target


def load_trace(path: str | Path, *, lazy: bool = True) -> Trace:
    """Read a trace that `save_trace` (or `trace.save`) wrote.

    Parameters
    ----------
    path : its folder.
    lazy : leave keys and hidden states on the disk: `trace.keys(layer, head)` reads (and checks)
        those of that layer and head, anew each time. False reads and checks everything now;
        the folder may then go.

    Raises
    ------
    InputError : there is nothing at `path`.
    DataError : it is no trace, of another format version, or damaged. What is read later is
        checked when it is read.
    """
    source = Path(path).expanduser()
    if not source.exists():
        raise InputError(f"no trace at {source}: the folder does not exist.")
    mark = _read_mark(source)
    if mark is None:
        raise DataError(
            f"{source} is not a trace of the workbench; give a folder that trace.save wrote."
        )
    if mark.get("format") not in _READABLE:
        raise DataError(
            f"{source} has trace format {mark.get('format')}, and this version reads formats "
            f"{' and '.join(map(str, _READABLE))}; record it again, or read it with workbench "
            f"{mark.get('workbench')}."
        )
    with _named_errors(source):
        return _read(source, mark, lazy)


# --- writing -------------------------------------------------------------------------------


def _write(trace: Trace, folder: Path) -> None:
    import xarray as xr

    import workbench

    dataset = trace.dataset
    numeric = dataset.drop_vars(_STRINGS)
    tables = {"words": trace.story.words}
    tables |= {
        f"presses_{place}": annotation.presses
        for place, annotation in enumerate(trace.story.annotations)
        if annotation.presses is not None
    }
    # Parquet keeps a table's types; as bytes it lies inside the zarr store like everything else.
    story = xr.Dataset({name: (f"{name}_byte", _parquet(table)) for name, table in tables.items()})
    mark: dict[str, Any] = {
        "format": FORMAT,
        "workbench": workbench.__version__,
        "story": _story_facts(trace.story),
        "strings": {name: dataset[name].values.tolist() for name in _STRINGS},
    }
    encoding = {}
    chunks = {}
    for name, leading in LAZY.items():
        if name in numeric:
            # Read into a copy: a trace that is lazy stays so.
            values = numeric[name].values
            numeric = numeric.assign({name: numeric[name].copy(data=values)})
            encoding[name] = {"chunks": (1,) * leading + values.shape[leading:]}
            chunks[name] = chunk_hashes(values, leading)
    mark["chunks"] = chunks
    mark["sha256"] = _hashes(numeric.drop_vars(list(chunks))) | _hashes(story)
    options: dict[str, Any] = {"zarr_format": 3, "consolidated": False}
    numeric = numeric.assign_attrs({_MARK: json.dumps(mark)})
    numeric.to_zarr(folder, mode="w-", encoding=encoding, **options)
    story.to_zarr(folder, mode="a", group="story", **options)


def _nbytes(trace: Trace) -> int:
    """Bytes of a trace before compression (`nbytes` of what is not read yet reads nothing)."""
    people = sum(len(a.presses) * 64 for a in trace.story.annotations if a.presses is not None)
    return int(trace.dataset.nbytes) + 8 * len(trace.story.text) + people


def _story_facts(story: Story) -> dict[str, Any]:
    return {
        "name": story.name,
        "text": story.text,
        "title": story.title,
        "citation": story.citation,
        "licence": story.licence,
        "notes": list(story.notes),
        "annotations": [
            {
                "kind": annotation.kind,
                "source": annotation.source,
                "times": None if annotation.times is None else list(map(float, annotation.times)),
                "words": None if annotation.words is None else list(map(int, annotation.words)),
                "presses": annotation.presses is not None,
                "duration": annotation.duration,
                "n_people": annotation.n_people,
                "citation": annotation.citation,
            }
            for annotation in story.annotations
        ],
    }


def _parquet(table: pd.DataFrame) -> NDArray[np.uint8]:
    buffer = io.BytesIO()
    table.to_parquet(buffer)
    return np.frombuffer(buffer.getvalue(), dtype=np.uint8)


# --- reading -------------------------------------------------------------------------------


def _read(folder: Path, mark: dict[str, Any], lazy: bool) -> Trace:
    import xarray as xr

    options: dict[str, Any] = {"zarr_format": 3, "consolidated": False, "chunks": None}
    chunks: dict[str, list[str]] = mark.get("chunks", {})
    with xr.open_zarr(folder, **options) as stored:
        dataset = stored.drop_vars(list(chunks)).load()
        large = {
            name: lazy_variable(folder, name, stored[name].variable, hashes)
            for name, hashes in chunks.items()
        }
    with xr.open_zarr(folder, group="story", **options) as stored:
        story = stored.load()
    found = _hashes(dataset) | _hashes(story)
    broken = sorted(name for name, digest in mark["sha256"].items() if found.get(name) != digest)
    if broken:
        raise DataError(
            f"{folder} is damaged: {', '.join(broken)} not as written; record it again."
        )
    tables = {
        str(name): pd.read_parquet(io.BytesIO(table.values.tobytes()))
        for name, table in story.data_vars.items()
    }
    for name, values in mark["strings"].items():
        dataset.coords[name] = (name.removesuffix("_str"), np.array(values, dtype=str))
    attrs = {key: value for key, value in dataset.attrs.items() if key != _MARK}
    dataset = dataset.assign(large)
    if not lazy:
        dataset.load()
    for variable in dataset.variables.values():
        variable.encoding = {}  # chunks of this file are no property of the trace
    dataset.attrs, dataset.encoding = attrs, {}
    return Trace(dataset=dataset, story=_story(mark["story"], tables))


def _story(facts: dict[str, Any], tables: dict[str, pd.DataFrame]) -> Story:
    annotations = []
    for place, stored in enumerate(facts["annotations"]):
        fields = dict(stored)
        fields["presses"] = tables[f"presses_{place}"] if stored["presses"] else None
        if stored["times"] is not None:
            fields["times"] = np.array(stored["times"], dtype=np.float64)
        if stored["words"] is not None:
            fields["words"] = np.array(stored["words"], dtype=np.int64)
        annotations.append(Annotation(**fields))
    fields = {**facts, "annotations": tuple(annotations), "notes": tuple(facts["notes"])}
    return Story(words=tables["words"], **fields)


def _read_mark(folder: Path) -> dict[str, Any] | None:
    """What `_write` noted in the root of the zarr folder; None when it is no trace."""
    try:
        root = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))
        mark = json.loads(root["attributes"][_MARK])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return mark if isinstance(mark, dict) else None


@contextlib.contextmanager
def _named_errors(folder: Path) -> Iterator[None]:
    """Whatever goes wrong below is a damaged folder; the message says which."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{folder} is damaged and cannot be read ({type(error).__name__}: {error}); record it "
            "again."
        ) from error


def _is_trace(path: Path) -> bool:
    return path.is_dir() and _read_mark(path) is not None


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _hashes(dataset: xr.Dataset) -> dict[str, str]:
    """sha256 of each variable's numbers."""
    hashes = {}
    for name, variable in dataset.variables.items():
        values = np.ascontiguousarray(variable.values)
        hashes[str(name)] = hashlib.sha256(values.reshape(-1).view(np.uint8).data).hexdigest()
    return hashes


def remove_trace(path: Path) -> None:
    """Remove a trace's folder, or what is left of one."""
    shutil.rmtree(path, ignore_errors=True)
