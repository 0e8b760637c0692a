"""How long a reading takes and how much memory it needs, before it is begun."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.core.errors import InputError
from workbench.recording import adapter
from workbench.recording.sizes import shown
from workbench.tasks.meter import available_memory, measured
from workbench.tasks.systems import SystemSpec

__all__ = ["Estimate", "check_memory", "estimate_reading", "measure_speed"]

_LEAST_SEEN = 2048  # tokens of scratch: a chunk, its logits and scores, generously
_ON_DISK = ("disk", "mmap")


@dataclass(frozen=True)
class Estimate:
    """What reading a text will take.

    Parameters
    ----------
    n_tokens : length of the text.
    seconds : at the speed measured; NaN where none was.
    memory : bytes of keys and values in memory, and of the current chunk.
    disk : bytes of keys and values in files.
    text : bytes of the text itself.
    """

    n_tokens: int
    seconds: float
    memory: int
    disk: int
    text: int

    def __str__(self) -> str:
        import math

        parts = [f"{self.n_tokens} tokens ({shown(self.text)} of text)"]
        if not math.isnan(self.seconds):
            parts.append(f"about {_duration(self.seconds)}")
        parts.append(f"{shown(self.memory)} of memory")
        if self.disk:
            parts.append(f"{shown(self.disk)} on disk")
        return ", ".join(parts)


def estimate_reading(
    lm: Any,
    n_tokens: int,
    system: str = "emllm-S",
    *,
    options: Mapping[str, Any] | None = None,
    tokens_per_second: float = float("nan"),
    characters_per_token: float = 3.6,
) -> Estimate:
    """Time and bytes of reading a text of so many tokens.

    Keys and values of the whole text are counted for every system but `window`, which keeps its
    window; with a store on disk only the local window stays in memory. Activations of a chunk are
    counted as keys and values of some 2,000 tokens and the logits of a chunk.

    Parameters
    ----------
    lm : the language model.
    n_tokens : length of the text.
    system : name of a system ("" for one's own: counted as one that keeps everything).
    options : the system's.
    tokens_per_second : from `measure_speed` or an earlier run.
    characters_per_token : of the text.
    """
    if n_tokens < 1:
        raise InputError(f"n_tokens={n_tokens} must be at least 1.")
    options = options or {}
    size = adapter.geometry(lm.model)
    width = adapter.key_dim(lm.model)
    number = 8 if lm.dtype == "float64" else 4 if lm.dtype == "float32" else 2
    per_token = 2 * size["n_layers"] * size["n_kv_heads"] * width * number
    window = sum(int(options.get(name, 0)) for name in ("n_init", "n_local", "n_mem", "chunk"))
    window = window or _LEAST_SEEN
    chunk = int(options.get("chunk", 512))
    scratch = min(n_tokens, _LEAST_SEEN) * per_token + chunk * len(lm.tokenizer) * max(4, number)
    on_disk = str(options.get("store", "")) in _ON_DISK
    kept = min(n_tokens, window) if system == "window" or on_disk else n_tokens
    return Estimate(
        n_tokens=n_tokens,
        seconds=n_tokens / tokens_per_second,
        memory=kept * per_token + scratch,
        disk=n_tokens * per_token if on_disk else 0,
        text=round(n_tokens * characters_per_token),
    )


def measure_speed(system: Any, text: str) -> float:
    """Tokens a second of a system that reads a short text, which is then forgotten.

    The text must be longer than the system's window for the number to hold for long ones.
    """
    before = system.n_tokens
    with system.branch(), measured() as took:
        system.read(text)
        read = system.n_tokens - before
    return float(read / took.seconds)


def check_memory(lm: Any, specs: Iterable[SystemSpec], lengths: Mapping[str, int]) -> None:
    """Refuse readings that cannot fit into the memory there is, before hours of work.

    Parameters
    ----------
    specs : the systems.
    lengths : label → longest text it is going to read.

    Raises
    ------
    InputError : the estimate exceeds what is available.
    """
    for spec in specs:
        length = lengths.get(spec.label, 0)
        if not length:
            continue
        # Only full attention keeps everything on the device; memories go to the host.
        place = lm.device.type if spec.name in ("full", "window") else "cpu"
        needed = estimate_reading(lm, length, spec.name, options=spec.options)
        free = available_memory("cuda" if place == "cuda" else "cpu")
        if needed.memory > free:
            raise InputError(
                f"{spec.label} on {length} tokens needs about {shown(needed.memory)} of memory and "
                f"{shown(free)} are free; leave out that length for it (max_length), use a "
                "narrower number format, or a store on disk."
            )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
