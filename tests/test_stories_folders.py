"""One look-up finds the bundled data: in a checkout, an editable install and a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from workbench.core import folders
from workbench.core.errors import MissingDataError
from workbench.core.folders import cache_folder, data_folder

ROOT = Path(__file__).parents[1]
PROBE = (
    "from workbench.core.folders import data_folder;"
    "from workbench.stories.library import load_story;"
    "from workbench.stories.bundled import bundled_names;"
    "from workbench.stories.named import published_times;"
    "print(data_folder());"
    "print(load_story(bundled_names()[0]).n_words, len(published_times('monkey', 'raw')))"
)


def probe(folder: Path, path: Path) -> list[str]:
    """What the package found under `path` says, run from another folder."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    result = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_checkout() -> None:
    assert data_folder() == ROOT / "data"


def test_editable_install_and_a_wheel(tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    # An editable install puts the checkout on the path.
    place, numbers = probe(away, ROOT)
    assert Path(place) == ROOT / "data"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    unpacked = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    place, in_wheel = probe(away, unpacked)
    assert Path(place) == unpacked / "workbench" / "data"
    assert in_wheel == numbers


def test_no_data_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_PACKAGE", tmp_path / "workbench")
    with pytest.raises(MissingDataError, match="bundled data are neither in"):
        data_folder()


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("WORKBENCH_CACHE", "~/cache")
    assert cache_folder() == Path.home() / "cache"
    monkeypatch.delenv("WORKBENCH_CACHE")
    assert cache_folder().name == "workbench"
