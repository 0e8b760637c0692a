"""Each notebook and its plain-text twin say the same, and outputs name no machine."""

from __future__ import annotations

from pathlib import Path

import jupytext
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_and_script_have_the_same_cells(path):
    twin = path.with_suffix(".py")
    assert twin.is_file(), f"{path.name} has no {twin.name}; make it with jupytext --to py:percent"
    pages = [
        [(cell.cell_type, cell.source) for cell in jupytext.read(file).cells]
        for file in (path, twin)
    ]
    assert pages[0] == pages[1], f"run: jupytext --to ipynb --update notebooks/{twin.name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_hold_no_error_and_no_path_of_a_machine(path):
    notebook = jupytext.read(path)
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert outputs, "the notebook is committed with its outputs; execute it"
    assert not [out for out in outputs if out["output_type"] == "error"]
    text = str(outputs)
    assert "site-packages" not in text
    assert str(Path.home()) + "/" not in text
