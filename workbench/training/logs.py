"""Where a training writes its progress: a CSV file, and TensorBoard's format where installed."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Any

from workbench.core.checks import check_option, import_extra

__all__ = ["COLUMNS", "Log"]

COLUMNS = ("step", "loss", "accuracy", "d", "r_d", "r_d_all", "rate", "tokens", "seconds")


class Log:
    """Rows of numbers, one per logged step.

    Parameters
    ----------
    folder : where `metrics.csv` (and TensorBoard's files) go; None writes nothing.
    kind : "csv", "tensorboard" (both; an error where it is not installed), or "auto" (both where
        it is installed).
    upto : when a training is resumed, rows from this step on are dropped from an earlier file.
    """

    def __init__(self, folder: Path | None, kind: str = "auto", *, upto: int = 0) -> None:
        check_option("log", kind, ("auto", "csv", "tensorboard"))
        if kind == "tensorboard":
            import_extra("tensorboard", "Logging for TensorBoard", "train")
        self._board: Any = None
        self._file: Path | None = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "metrics.csv"
        kept = []
        if upto and self._file.is_file():
            with self._file.open(encoding="utf-8", newline="") as lines:
                kept = [row for row in csv.DictReader(lines) if int(row["step"]) < upto]
        with self._file.open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        if kind != "csv" and importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder), purge_step=upto or None)

    def write(self, row: dict[str, Any]) -> None:
        """Add one row."""
        if self._file is None:
            return
        with self._file.open("a", encoding="utf-8", newline="") as lines:
            csv.DictWriter(lines, COLUMNS).writerow({name: row[name] for name in COLUMNS})
        if self._board is not None:
            for name in COLUMNS[1:]:
                self._board.add_scalar(name, row[name], row["step"])

    def close(self) -> None:
        """Finish the files."""
        if self._board is not None:
            self._board.close()
