"""What a run was made with: stored beside its rows, and compared when it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.core.checks import whole_number
from workbench.core.errors import InputError
from workbench.models import LanguageModel
from workbench.tasks.items import Task
from workbench.tasks.records import RunFolder, differences
from workbench.tasks.systems import SystemSpec

__all__ = ["agreed", "grid_settings", "limits_of", "model_settings"]

_FORMAT = 1
_ROOM = 64  # tokens of the window left for a start token and the answer


def limits_of(
    specs: Sequence[SystemSpec], given: Mapping[str, int], lm: LanguageModel
) -> dict[str, float]:
    """Longest text of each system by its label, infinity where there is no limit.

    `full` reads what the model's window holds, less room for a start token and the answer.
    """
    labels = [spec.label for spec in specs]
    for label, limit in given.items():
        if label not in labels:
            raise InputError(f"max_length names {label!r}, but the systems are {labels}.")
        whole_number(f"max_length[{label!r}]", limit, 1)
    window = float("inf") if lm.window is None else float(lm.window - _ROOM)
    own = {spec.label: window if spec.name == "full" else float("inf") for spec in specs}
    return {**own, **{label: float(limit) for label, limit in given.items()}}


def grid_settings(
    specs: Sequence[SystemSpec],
    task: Task,
    lm: LanguageModel,
    max_new_tokens: int | None,
    depths: list[float],
) -> dict[str, Any]:
    """Everything the rows of a grid depend on but the cell, as JSON.

    Depths are part of it where all of them stand in one text.
    """
    return {
        "format": _FORMAT,
        "task": task.settings() | ({"depths": depths} if task.together else {}),
        "model": model_settings(lm),
        "max_new_tokens": max_new_tokens,
        "systems": {spec.label: spec.settings() for spec in specs},
    }


def model_settings(lm: LanguageModel) -> dict[str, str]:
    """What tells the model's numbers from another's, as JSON."""
    return {
        "name": lm.name,
        "identity": lm.identity,
        "dtype": lm.dtype,
        "device": lm.device.type,
        "provenance": lm.provenance,
    }


def agreed(folder: RunFolder, settings: dict[str, Any], resume: bool = True) -> dict[str, Any]:
    """The folder's settings with new systems added, or an error that names what differs."""
    stored = folder.settings()
    if stored is None:
        return settings
    if not resume:
        raise InputError(
            f"{folder.folder} already holds a run; pass resume=True to go on, or name another."
        )
    old_systems, new_systems = stored.get("systems", {}), settings["systems"]
    both = [label for label in new_systems if label in old_systems]
    changed = differences(
        {**stored, "systems": {label: old_systems[label] for label in both}},
        {**settings, "systems": {label: new_systems[label] for label in both}},
    )
    if changed:
        raise InputError(
            f"{folder.folder} was made with other settings ({'; '.join(changed)}); use those, or "
            "name another folder."
        )
    return {**stored, "systems": {**old_systems, **new_systems}}
