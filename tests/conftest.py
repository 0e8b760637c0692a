"""Fixtures that several test files share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from workbench.models import LanguageModel


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of the public human data; without it the tests that need them are skipped."""
    named = os.environ.get("WORKBENCH_DATA", "")
    if not named:
        pytest.skip("WORKBENCH_DATA names no folder with the public human data")
    folder = Path(named)
    if not folder.is_dir():
        pytest.fail(f"WORKBENCH_DATA names {folder}, which is not a folder")
    return folder


@pytest.fixture(scope="session")
def lm() -> LanguageModel:
    """The embedded language model, loaded once; mark the tests that use it `model`."""
    import workbench

    return workbench.load_model()
