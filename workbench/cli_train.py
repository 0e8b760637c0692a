"""The command `workbench train fot`: crossbatch training and its baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.core.errors import InputError

__all__ = ["fot"]

FOT_EPILOG = "Example: workbench train fot --preset dictionary --out runs/fot"
