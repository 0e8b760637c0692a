"""Every error the workbench raises on purpose.

Each names the input, the place and the mend, and each is also the built-in error a caller would
expect (`ValueError`, `LookupError`, ...), so that ordinary `except` clauses work.
"""

from __future__ import annotations

__all__ = [
    "DataError",
    "DiskSpaceError",
    "DownloadError",
    "ExportError",
    "InputError",
    "MissingDataError",
    "MissingPackageError",
    "ModelError",
    "TextTooLongError",
    "WorkbenchError",
]


class WorkbenchError(Exception):
    """Base of all errors raised on purpose by the workbench."""


class InputError(WorkbenchError, ValueError):
    """An argument has a value that is not allowed; the message lists what is."""


class DataError(WorkbenchError, ValueError):
    """The content of a file or table is unusable; the message names file, row and mend."""


class MissingDataError(WorkbenchError, LookupError):
    """What was asked for needs data that the story does not have (word times, people, ...)."""


class ModelError(WorkbenchError, RuntimeError):
    """A model cannot be instrumented, or returned values that are not finite."""


class TextTooLongError(ModelError):
    """The text has more tokens than the model's window."""


class DiskSpaceError(WorkbenchError, OSError):
    """The disk has no room for what is about to be recorded or written."""


class DownloadError(WorkbenchError, OSError):
    """A file could not be fetched, or does not have the expected hash."""


class ExportError(WorkbenchError, RuntimeError):
    """A figure could not be written in the wanted format."""


class MissingPackageError(WorkbenchError, ImportError):
    """An optional package is needed; the message says which extra installs it."""
