"""How large a recording becomes, before anything is read."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from workbench.core.errors import DiskSpaceError, InputError
from workbench.core.story import Story
from workbench.models import DEFAULT_MODEL, LanguageModel, load_model
from workbench.recording.measures import chosen_measures

__all__ = ["TraceSize", "check_disk", "estimate_size"]

_NUMBER = 8  # bytes of a float64 or int64
_COLUMNS = 5  # token_id, char_start, char_end, token_word, context
_TEXT = 64  # bytes a token for its string, its word's row and the text; generous
_SLACK = 1 << 20  # zarr's metadata, and presses of people


@dataclass(frozen=True)
class TraceSize:
    """Bytes of a recording's parts, uncompressed; on disk it is at most `total`.

    `keys` and `states` are held in memory while the story is read, beside what the model itself
    needs.
    """

    n_tokens: int
    keys: int
    states: int
    measures: int

    @property
    def total(self) -> int:
        """All parts together."""
        return self.keys + self.states + self.measures

    def __str__(self) -> str:
        return (
            f"{self.n_tokens} tokens: at most {shown(self.total)} (keys {shown(self.keys)}, "
            f"states {shown(self.states)}, measures and text {shown(self.measures)})"
        )


def estimate_size(
    story: Story | str | Path | int,
    model: LanguageModel | str | Path = DEFAULT_MODEL,
    *,
    layers: int | Iterable[int] | None = None,
    heads: int | Iterable[int] | None = None,
    keys: bool = True,
    measures: str | Iterable[str] | None = None,
    states: int | Iterable[int] | None = None,
    keep_states: bool = False,
    keys_dtype: str = "float32",
) -> TraceSize:
    """Size of `record(story, model, ...)` with these options, without reading the story.

    Parameters
    ----------
    story : as in `record`, or a number of tokens.
    model, ... : as in `record`. Statistics of attention are not counted.
    """
    from workbench.recording import adapter
    from workbench.recording.record import _numbers, as_story
    from workbench.recording.tokens import tokenize

    lm = model if isinstance(model, LanguageModel) else load_model(model)
    if isinstance(story, bool) or (isinstance(story, int) and story < 1):
        raise InputError(f"story={story!r}: give a story, or its number of tokens.")
    if isinstance(story, int):
        n = n_words = story
    else:
        read = as_story(story)
        n = len(tokenize(lm.tokenizer, read.text, f"story {read.name!r}").ids)
        n_words = read.n_words
    size = adapter.geometry(lm.model)
    key_bytes = state_bytes = 0
    if keys:
        rows = len(_numbers("layers", layers, size["n_layers"]))
        rows *= len(_numbers("heads", heads, size["n_kv_heads"]))
        key_bytes = rows * n * adapter.key_dim(lm.model) * (2 if keys_dtype == "float16" else 4)
    columns = len(chosen_measures(measures))
    if states is not None:
        followed = len(_numbers("states", states, size["n_layers"]))
        columns += followed
        if keep_states:
            width = int(lm.model.config.get_text_config(decoder=True).hidden_size)
            state_bytes = followed * n * width * 4
    numbers = _NUMBER * (columns * (n + n_words) + _COLUMNS * n)
    return TraceSize(n, key_bytes, state_bytes, numbers + _TEXT * n + _SLACK)


def check_disk(folder: Path, needed: int, what: str) -> None:
    """Raise when the disk of a folder (which need not exist yet) has less than `needed` bytes.

    Raises
    ------
    DiskSpaceError : names both sizes, and what makes a trace smaller.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise DiskSpaceError(
            f"{what} needs up to {shown(needed)}, and the disk of {folder} has {shown(free)} free; "
            "make room, choose another folder, or record fewer layers= or heads=, or with "
            "keys_dtype='float16'."
        )


def shown(size: float) -> str:
    """A number of bytes for people: "1.5 GiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
