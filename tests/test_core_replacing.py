"""A folder takes another's place whole, or not at all."""

from __future__ import annotations

import os

import pytest

from workbench.core.replacing import replace_folder


def folder(path, text):
    path.mkdir()
    (path / "file").write_text(text)
    return path


@pytest.mark.parametrize("there", [False, True])
def test_the_new_folder_stands_alone(tmp_path, there):
    target = tmp_path / "target"
    if there:
        (folder(target, "old") / "more").write_text("old")
    replace_folder(folder(tmp_path / "fresh", "new"), target)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert {path.name: path.read_text() for path in target.iterdir()} == {"file": "new"}


@pytest.mark.parametrize("failing", [1, 2])
def test_what_was_there_comes_back_when_renaming_fails(tmp_path, monkeypatch, failing):
    target = folder(tmp_path / "target", "old")
    fresh = folder(tmp_path / "fresh", "new")
    replace, calls = os.replace, []

    def broken(source, destination):
        calls.append(source)
        if len(calls) == failing:
            raise OSError(28, "No space left on device")
        replace(source, destination)

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="No space left"):
        replace_folder(fresh, target)
    assert (target / "file").read_text() == "old"
    assert (fresh / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "target"]
