"""Files of the public data sets: from a folder of the user's, or from their repositories.

The data are not the workbench's to give away, so a story's files are looked up in the folder that
WORKBENCH_DATA names, else fetched once, from a fixed commit, into the cache folder. Either way
they are used only if their sha256 is the one in data/sources.tsv.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from workbench.core.errors import DataError, DownloadError, InputError
from workbench.core.folders import cache_folder, data_folder

__all__ = [
    "RAW_HOST",
    "Source",
    "available",
    "fetch",
    "human_data_folder",
    "source_file",
    "sources",
]

RAW_HOST = "https://raw.githubusercontent.com"

TIMEOUT = 60
"""Seconds without a byte after which a download is given up."""


@dataclass(frozen=True)
class Source:
    """One file of a public repository at a fixed commit."""

    file: str
    repository: str
    commit: str
    path: str
    sha256: str

    def url(self, host: str = RAW_HOST) -> str:
        """Where the file is fetched from."""
        return f"{host}/{self.repository}/{self.commit}/{self.path}"


@lru_cache(maxsize=1)
def sources() -> dict[str, Source]:
    """The rows of data/sources.tsv by the file's name here."""
    lines = (data_folder() / "sources.tsv").read_text(encoding="utf-8").splitlines()
    rows = [Source(*line.split("\t")) for line in lines[1:]]
    return {row.file: row for row in rows}


def human_data_folder() -> Path | None:
    """The folder that WORKBENCH_DATA names, or None.

    Raises
    ------
    InputError : it names no folder.
    """
    named = os.environ.get("WORKBENCH_DATA", "")
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise InputError(
            f"WORKBENCH_DATA names {folder}, which is not a folder; name the one that holds the "
            "data sets, or unset it to download them."
        )
    return folder


def source_file(name: str) -> Path:
    """The path of one of the files in data/sources.tsv, downloaded if need be.

    Raises
    ------
    DataError : the file in the user's folder is not the expected version.
    DownloadError : it could not be fetched, or what came has another hash.
    """
    source = sources()[name]
    folder = human_data_folder()
    if folder is not None and (folder / name).is_file():
        path = folder / name
        if _sha256(path, path.stat().st_mtime_ns) != source.sha256:
            raise DataError(
                f"{path} is not the version the workbench knows (commit {source.commit[:12]} of "
                f"{source.repository}); replace it, or remove it to have it downloaded."
            )
        return path
    return fetch(source)


def available(name: str) -> str:
    """Where a file would come from now: "data folder", "cache" or "download"."""
    folder = human_data_folder()
    if folder is not None and (folder / name).is_file():
        return "data folder"
    return "cache" if _cached(sources()[name]).is_file() else "download"


def fetch(source: Source, *, host: str | None = None) -> Path:
    """Download a file into the cache folder unless it is there, and check its hash.

    The file appears under its name only when whole and checked.

    Raises
    ------
    DownloadError : no connection, an HTTP error, an interrupted transfer, or another hash.
    """
    import pooch

    target = _cached(source)
    url = source.url(host or RAW_HOST)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(
            url,
            known_hash=f"sha256:{source.sha256}",
            path=target.parent,
            fname=target.name,
            downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
        )
    except ValueError as error:
        raise DownloadError(
            f"{url} was fetched, but its sha256 is not {source.sha256}; the file was not kept. "
            "Try again; if it stays so, a proxy may be changing it."
        ) from error
    except OSError as error:  # requests' errors are OSErrors
        raise DownloadError(
            f"{url} could not be fetched ({_reason(error)}). Check the connection and try again, "
            f"or put the file as {source.file} into a folder and name that folder in "
            "WORKBENCH_DATA."
        ) from error
    return target


def _cached(source: Source) -> Path:
    return cache_folder() / "stories" / source.commit[:12] / source.file


def _reason(error: OSError) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP status {response.status_code}"
    # The text of a failed connection repeats the address with every layer that passed it on.
    text = str(error)
    return (
        type(error).__name__
        if "Max retries exceeded" in text
        else f"{type(error).__name__}: {text}"
    )


@lru_cache(maxsize=64)
def _sha256(path: Path, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
