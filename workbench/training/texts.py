"""Token arrays of documents from JSONL files, plain text, folders, or the datasets library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.checks import import_extra
from workbench.core.errors import DataError, MissingDataError

__all__ = ["document_tokens", "read_documents"]


def read_documents(source: str | Path, *, field: str = "text") -> Iterator[str]:
    """Texts of documents, one after the other.

    Parameters
    ----------
    source : a .jsonl file (one object per line), a .txt file (one document), a folder of these
        (in the order of their names), or `datasets:NAME[:CONFIGURATION][@SPLIT]` (by default the
        training split) for the datasets library, read as a stream.
    field : of an object that holds the text.

    Raises
    ------
    MissingDataError : there is no such file.
    DataError : a line is no JSON object or lacks the field; file and line are named.
    """
    if isinstance(source, str) and source.startswith("datasets:"):
        name, _, split = source.removeprefix("datasets:").partition("@")
        datasets = import_extra("datasets", f"Reading {source}", "train")
        path, _, configuration = name.partition(":")
        rows = datasets.load_dataset(
            path, configuration or None, split=split or "train", streaming=True
        )
        yield from _field(rows, field, source)
        return
    place = Path(source)
    if place.is_dir():
        files = sorted(f for f in place.iterdir() if f.suffix in (".jsonl", ".txt"))
        if not files:
            raise MissingDataError(f"{place} holds no .jsonl or .txt file.")
        for file in files:
            yield from read_documents(file, field=field)
        return
    if not place.is_file():
        raise MissingDataError(
            f"{place} is not there; give a .jsonl or .txt file, a folder, or datasets:NAME."
        )
    try:
        if place.suffix == ".txt":
            yield place.read_text(encoding="utf-8")
        else:
            with place.open(encoding="utf-8") as lines:
                yield from _field(_objects(lines, place), field, str(place))
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not UTF-8 ({error.reason} at byte {error.start}).") from error


def _objects(lines: Iterable[str], path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: no JSON ({error.msg}).") from error
        if not isinstance(found, dict):
            raise DataError(f'{path}, line {number}: an object is needed, e.g. {{"text": ...}}.')
        yield found


def _field(rows: Iterable[dict[str, Any]], field: str, source: str) -> Iterator[str]:
    for number, row in enumerate(rows, start=1):
        text = row.get(field)
        if not isinstance(text, str):
            listed = ", ".join(map(repr, row)) or "none"
            raise DataError(
                f"{source}, document {number}: no text in field {field!r} (fields: {listed})."
            )
        yield text


def document_tokens(
    texts: Iterable[str], tokenizer: Any, *, limit: int | None = None
) -> list[NDArray[np.int64]]:
    """Tokens of each document, between the tokenizer's own start and end tokens where it has them.

    Parameters
    ----------
    limit : stop after so many documents.
    """
    begin = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    found: list[NDArray[np.int64]] = []
    for text in texts:
        if limit is not None and len(found) >= limit:
            break
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        found.append(np.array(begin + list(ids) + end, dtype=np.int64))
    return found
