"""Overlapping windows over a text that is longer than what a model reads at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import InputError, TextTooLongError

__all__ = ["RULE", "Window", "context_of", "plan_windows", "window_settings"]

RULE = (
    "one pass where the text fits; else overlapping windows, each read from position 0 behind the "
    "start token: every token is scored, and its keys are taken, once, in the window in which it "
    "is new; windows end before a word; the last one reaches as far back as it may"
)
"""What `plan_windows` does, as stored in a trace's settings."""


@dataclass(frozen=True)
class Window:
    """One reading: tokens start ... stop - 1 are read, of which first ... stop - 1 are new."""

    start: int
    first: int
    stop: int


def plan_windows(
    n: int,
    size: int,
    min_context: int | None = None,
    word_starts: NDArray[np.int64] | None = None,
) -> list[Window]:
    """Windows in which every token of a text is new exactly once.

    A token that is new in a window has at least `min_context` tokens before it there, unless
    the text itself begins less far back, and at most size - 1. Windows end where a word starts,
    so that a word is measured within one window; only a word longer than size - min_context
    tokens is cut. The last window is drawn back to full length: its tokens have more context.

    Parameters
    ----------
    n : number of tokens of the text.
    size : most tokens of the text in a window (a start token not counted).
    min_context : least number of tokens before a new one; None: half of `size`.
    word_starts : tokens at which a window may begin to be new, increasing; None: any.

    Raises
    ------
    InputError : min_context is not in 1 ... size - 1 (where more than one window is needed).
    """
    if n <= size:
        return [Window(0, 0, n)]
    if size < 2:
        raise TextTooLongError(f"a window of {size} tokens cannot read a text of {n} tokens.")
    context = size // 2 if min_context is None else min_context
    if not 1 <= context < size:
        raise InputError(
            f"min_context={context}: give 1 ... {size - 1}, less than the {size} tokens of the "
            "text that a window holds."
        )
    allowed = np.arange(1, n) if word_starts is None else np.asarray(word_starts)
    windows: list[Window] = []
    first = 0
    while first < n:
        start = max(0, first - context)
        stop = min(start + size, n)
        if stop < n:
            last = int(np.searchsorted(allowed, stop, side="right")) - 1
            if last >= 0 and allowed[last] > first:
                stop = int(allowed[last])
        else:
            start = n - size
        windows.append(Window(start, first, stop))
        first = stop
    return windows


def context_of(windows: list[Window], n: int) -> NDArray[np.int64]:
    """Number of tokens of the text before each token in the window in which it is new, (n,)."""
    context = np.empty(n, dtype=np.int64)
    for window in windows:
        new = np.arange(window.first, window.stop)
        context[new] = new - window.start
    return context


def window_settings(windows: list[Window], size: int | None, min_context: int | None) -> Any:
    """What a trace's settings say about the windows of a reading."""
    return {
        "rule": RULE,
        "size": size,
        "min_context": min_context if len(windows) > 1 else None,
        "starts": [window.start for window in windows],
        "firsts": [window.first for window in windows],
    }
