"""Put a finished folder in the place of an older one."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["replace_folder"]


def replace_folder(fresh: Path, target: Path) -> None:
    """Rename `fresh` to `target`; what stood there goes, or comes back if that fails.

    Both must lie on one disk. A process that is stopped between the two renames leaves the older
    folder whole, beside its place, in `.<name>-*/old`.

    Raises
    ------
    OSError : the folder could not be put there; `target` is as it was.
    """
    if not (target.exists() or target.is_symlink()):
        os.replace(fresh, target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    old = aside / "old"
    try:
        os.replace(target, old)
        try:
            os.replace(fresh, target)
        except BaseException:
            os.replace(old, target)
            raise
    finally:
        if target.exists():  # never the only copy
            shutil.rmtree(aside, ignore_errors=True)
