"""Rows of a run that survive an interruption: one line of JSON each, written at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workbench.core.errors import DataError, InputError

__all__ = ["RunFolder", "differences"]

_ROWS = "rows.jsonl"
_SETTINGS = "settings.json"
_LOCK = "running.lock"


class RunFolder:
    """A folder with the rows that a run has finished, and the settings they were made with.

    A row is one line of `rows.jsonl`, appended and flushed to the disk before the next one is
    begun. What an interruption leaves of a line is dropped when the run goes on, and that row is
    made again. `settings.json` appears whole or not at all.

    Parameters
    ----------
    folder : made when the first row is written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} is a file; name a folder.")
        strange = self.folder.is_dir() and any(self.folder.iterdir())
        if strange and not (self.folder / _SETTINGS).is_file():
            raise InputError(f"{self.folder} holds something else; name a new or an empty folder.")

    def settings(self) -> dict[str, Any] | None:
        """The stored settings; None where there are none yet."""
        path = self.folder / _SETTINGS
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}); delete the folder.") from error
        if not isinstance(found, dict):
            raise DataError(f"{path} holds no settings; delete the folder.")
        return found

    def store_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the stored settings."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{_SETTINGS}.{os.getpid()}.part"
        try:
            with part.open("w", encoding="utf-8") as file:
                json.dump(settings, file, indent=2, ensure_ascii=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.folder / _SETTINGS)
        finally:
            part.unlink(missing_ok=True)

    def rows(self) -> list[dict[str, Any]]:
        """The finished rows, in the order in which they were made.

        Raises
        ------
        DataError : a line before the last is not a row.
        """
        path = self.folder / _ROWS
        if not path.is_file():
            return []
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        found = []
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number} is not a row ({error}); delete that line, and the run "
                    "makes it again."
                ) from error
        return found

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row: on the disk when this returns."""
        line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
        with (self.folder / _ROWS).open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other runs out of the folder, and drop what an interruption left of a row.

        Raises
        ------
        InputError : another run is writing there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK).open("w") as lock:
            _exclude(lock.fileno(), self.folder)
            path = self.folder / _ROWS
            if path.is_file():
                content = path.read_bytes()
                kept = content.rfind(b"\n") + 1
                if kept < len(content):
                    os.truncate(path, kept)
            yield


def differences(stored: Mapping[str, Any], given: Mapping[str, Any], at: str = "") -> list[str]:
    """What is not the same in two nested settings: "systems.emllm-S.n_local: 256, now 512"."""
    found = []
    for name in dict.fromkeys([*stored, *given]):
        place = f"{at}.{name}" if at else str(name)
        old, new = stored.get(name), given.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, place)
        elif old != new:
            found.append(f"{place}: {old!r}, now {new!r}")
    return found


def _exclude(file: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: nothing keeps two runs apart
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(
            f"another run is writing to {folder}; wait for it, or name another folder."
        ) from error
