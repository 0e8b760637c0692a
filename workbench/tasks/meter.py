"""Time and peak memory of a piece of work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Measured", "available_memory", "measured"]


@dataclass
class Measured:
    """What a piece of work took; filled in when it ends.

    Parameters
    ----------
    seconds : wall-clock time, the device's work finished.
    peak : highest memory in bytes: allocated on the device where there is one, else resident in
        this process, with the model and everything else in it.
    before : the same when the work began.
    of : "cuda", "process", or "process since its start" where the system keeps no other peak
        (then an earlier piece of work may have set it).
    """

    seconds: float = 0.0
    peak: int = 0
    before: int = 0
    of: str = "process"


@contextmanager
def measured(device: str = "cpu") -> Iterator[Measured]:
    """Measure what is done inside.

    Parameters
    ----------
    device : kind of device that computes, "cpu" or "cuda".
    """
    found = Measured()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        found.of, found.before = "cuda", torch.cuda.memory_allocated()
    else:
        found.of = "process" if _forget_peak() else "process since its start"
        found.before = _resident()
    start = time.perf_counter()
    try:
        yield found
    finally:
        if device == "cuda":
            torch.cuda.synchronize()
            found.peak = torch.cuda.max_memory_allocated()
        else:
            found.peak = _peak()
        found.seconds = time.perf_counter() - start


def available_memory(device: str = "cpu") -> int:
    """Bytes that can still be taken on a device, or in the host's memory."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    return int(_psutil().virtual_memory().available)


def _forget_peak() -> bool:
    """Let the kernel count this process's peak anew (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _resident() -> int:
    return int(_psutil().Process().memory_info().rss)


def _peak() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return int(_psutil().Process().memory_info().peak_wset)
    import sys

    # kilobytes, but bytes on a Mac
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _psutil() -> Any:
    import psutil  # type: ignore[import-untyped]

    return psutil
