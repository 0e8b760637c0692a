"""Small checks that turn bad arguments into clear errors."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType

from workbench.core.errors import InputError, MissingPackageError

__all__ = ["check_option", "import_extra", "plural", "whole_number"]


def check_option(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise `InputError` unless `value` is one of `allowed`.

    Parameters
    ----------
    name : the argument's name, as the caller wrote it.
    value : what was given.
    allowed : the legal values, shown in the message in this order.
    """
    allowed = tuple(allowed)
    if value not in allowed:
        listed = ", ".join(repr(option) for option in allowed)
        raise InputError(f"{name}={value!r} is not known. Choose one of: {listed}.")


def whole_number(name: str, value: object, least: int | None = 0) -> int:
    """A whole number of at least `least`, as an int; nothing is rounded in silence.

    Raises
    ------
    InputError : no number, a broken one, or a smaller one; also one beyond 64 bits.
    """
    try:
        number = int(value)  # type: ignore[call-overload]
        exact = bool(number == value)
    except (TypeError, ValueError, OverflowError):
        number, exact = 0, False
    if not exact or abs(number) >= 2**63 or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise InputError(f"{name}={value!r} must be a whole number{bound}.")
    return number


def import_extra(package: str, purpose: str, extra: str) -> ModuleType:
    """Import an optional package, or say which extra brings it.

    Raises
    ------
    MissingPackageError : the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"{purpose} needs the package {package!r}. Install it with: pip install "
            f'"workbench[{extra}]"'
        ) from error


def plural(count: int, noun: str) -> str:
    """`3, "word"` → `"3 words"`; for messages."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
