"""Where the bundled data and the cache are."""

from __future__ import annotations

import os
from pathlib import Path

from workbench.core.errors import MissingDataError

__all__ = ["cache_folder", "data_folder"]

_PACKAGE = Path(__file__).resolve().parent.parent


def cache_folder() -> Path:
    """The folder that keeps downloads: WORKBENCH_CACHE, or the user's cache folder.

    It is not created here; whatever writes into it does that.
    """
    chosen = os.environ.get("WORKBENCH_CACHE", "")
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("workbench"))


def data_folder() -> Path:
    """The folder of the bundled data (stories/, consensus/, sources.tsv).

    A wheel carries it inside the package; in a checkout, and so in an editable install, it
    stands beside the package.

    Raises
    ------
    MissingDataError : neither is there (a broken installation).
    """
    # The package's own folder comes first: beside an installed package lie other projects' files.
    for folder in (_PACKAGE / "data", _PACKAGE.parent / "data"):
        if (folder / "sources.tsv").is_file():
            return folder
    raise MissingDataError(
        f"the bundled data are neither in {_PACKAGE / 'data'} nor beside the package; install the "
        "workbench again from its wheel or from a full checkout."
    )
