"""The five choices that make a memory system: unit, index, selection, position, join.

Every system of the papers is one row of the table in docs/definitions.md: what is stored, by what
it is found, how much is chosen, where it stands, and how it joins what is near. `MemorySystem`
takes the five as values of this module; `to_settings` says which go together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.memory.forming import Forming
from workbench.memory.settings import Settings
from workbench.memory.token_layer import TOKEN_POSITIONS, TokenSettings

__all__ = ["Choices", "Index", "Select", "Units", "to_settings", "to_tokens"]

JOINS = ("softmax", "gate", "weighted_values", "prompt")
POSITIONS = ("true", "fixed", "zero", "none", "ordered", "prompt")


@dataclass(frozen=True)
class Units:
    """What is stored as one.

    kind : "event" (cut by a method), "fixed" (blocks of a length), "none" (nothing is stored),
        "token" (of chosen layers), "chunk", "text".
    forming : of events and blocks.
    options : of tokens, see `TokenSettings`.
    """

    kind: str
    forming: Forming | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def event(cls, method: str = "S", **options: Any) -> Units:
        """Events of a method; options of `Forming` and of `StreamingSegmenter`."""
        names = ("given", "per", "layers", "random_length", "seed")
        own = {name: options.pop(name) for name in names if name in options}
        return cls("event", Forming(method, options=options, **own))

    @classmethod
    def fixed(cls, length: int = 128) -> Units:
        """Blocks of a length."""
        return cls("fixed", Forming(f"F:{length}"))

    @classmethod
    def token(cls, layers: Sequence[int], **options: Any) -> Units:
        """Single tokens of memory layers; options of `TokenSettings` but for top_k and gate."""
        return cls("token", options={"layers": tuple(layers), **options})

    @classmethod
    def none(cls) -> Units:
        """Nothing is stored."""
        return cls("none")


@dataclass(frozen=True)
class Index:
    """By what a unit is found: "representatives" (r of its keys), "none", "keys", "embedding"."""

    kind: str = "representatives"
    r: int = 4
    averaged: bool = True


@dataclass(frozen=True)
class Select:
    """How much is recalled.

    kind : "budget" (units up to so many tokens), "topk" (so many units), "all", and the rules of
        EpMAN "exact", "narrow", "broad".
    amount : tokens or units.
    per_head : each key-value head recalls for itself.
    share, reach : of the contiguity buffer.
    query, every : see `Settings`.
    """

    kind: str = "budget"
    amount: int = 512
    per_head: bool = False
    share: float = 0.0
    reach: int = 1
    query: str = "previous"
    every: int = 1


@dataclass(frozen=True)
class Choices:
    """A system by its five choices, and the size of its window."""

    units: Units
    index: Index = field(default_factory=Index)
    select: Select = field(default_factory=Select)
    position: str = "fixed"
    join: str = "softmax"


_UNIT_KINDS = ("event", "fixed", "none", "token", "chunk", "text")
_INDEX_KINDS = ("representatives", "none", "keys", "embedding")
_SELECT_KINDS = ("budget", "topk", "all", "exact", "narrow", "broad")
_LATER = {
    "units": ("chunk", "text"),
    "index": ("embedding",),
    "select": ("exact", "narrow", "broad"),
    "position": ("ordered", "prompt"),
    "join": ("weighted_values", "prompt"),
}


def to_settings(choices: Choices, **window: Any) -> tuple[Settings, Forming | None]:
    """Settings of the part that attends, and how units are formed.

    Parameters
    ----------
    window : n_init, n_local, chunk, store, budget of `Settings`.

    Raises
    ------
    InputError : a value that is not known, two that exclude each other (with the reason), or one
        that is not built yet (by name).
    """
    given = {
        "units": choices.units.kind,
        "index": choices.index.kind,
        "select": choices.select.kind,
        "position": choices.position,
        "join": choices.join,
    }
    known = {
        "units": _UNIT_KINDS,
        "index": _INDEX_KINDS,
        "select": _SELECT_KINDS,
        "position": POSITIONS,
        "join": JOINS,
    }
    for name, value in given.items():
        check_option(name, value, known[name])
    _check_pairs(given)
    for name, value in given.items():
        if value in _LATER[name]:
            raise InputError(
                f"{name}={value!r} is a legal choice that is not built yet; built are: "
                f"{', '.join(repr(v) for v in known[name] if v not in _LATER[name])}."
            )
    select = choices.select
    settings = Settings(
        r=choices.index.r,
        averaged=choices.index.averaged,
        per_head=select.per_head,
        query=select.query,
        share=select.share,
        reach=select.reach,
        every=select.every,
        position=choices.position,
        everything=select.kind == "all",
        n_mem=select.amount if select.kind == "budget" else 0,
        top_units=select.amount if select.kind == "topk" else None,
        **window,
    )
    return settings, choices.units.forming


def to_tokens(
    choices: Choices, gate: tuple[tuple[float, ...], ...] | None = None
) -> TokenSettings | None:
    """Settings of memory layers; None where units are not tokens.

    Parameters
    ----------
    choices : that `to_settings` took.
    gate : logits for each memory layer and head, for join="gate".

    Raises
    ------
    InputError : join="gate" without a gate, or a gate without it.
    """
    if (choices.join == "gate") != (gate is not None):
        raise InputError(
            "join='gate' and gate= only go together: how much a head takes from memory is learned "
            "or given, there is no value to assume."
        )
    if choices.units.kind != "token":
        return None
    top_k = choices.select.amount if choices.select.kind == "topk" else None
    return TokenSettings(top_k=top_k, gate=gate, **choices.units.options)


def _check_pairs(given: dict[str, str]) -> None:
    """Forbidden pairs, with the reason."""
    stored = given["units"] in ("event", "fixed", "token")
    if given["units"] == "text" and given["join"] != "prompt":
        raise InputError(
            "units='text' keeps words, not keys and values; they can only be put into the prompt "
            "(join='prompt', position='prompt')."
        )
    if given["join"] == "prompt" and given["units"] not in ("text", "event", "chunk", "fixed"):
        raise InputError("join='prompt' needs units of text to put there: text, chunk or event.")
    if given["join"] in ("gate", "weighted_values") and given["units"] == "none":
        raise InputError(
            f"join={given['join']!r} needs stored keys and values, and units='none' stores none."
        )
    if (given["position"] == "prompt") != (given["join"] == "prompt"):
        raise InputError("position='prompt' and join='prompt' only go together.")
    if given["units"] == "token":
        _check_tokens(given)
    elif given["index"] == "keys" or given["join"] == "gate":
        raise InputError(
            f"units={given['units']!r}: index='keys' and join='gate' are of memory layers, which "
            "keep single tokens; use units='token'."
        )
    if stored and given["index"] == "none" and given["select"] != "all":
        raise InputError(
            f"select={given['select']!r} needs something to look for, and index='none' has "
            "nothing; use index='representatives', or select='all'."
        )


def _check_tokens(given: dict[str, str]) -> None:
    if given["index"] not in ("keys", "none"):
        raise InputError(
            f"index={given['index']!r}: a token is found by its own key; use index='keys'."
        )
    if given["select"] not in ("topk", "all"):
        raise InputError(
            f"select={given['select']!r}: each query and head takes its best tokens or all; use "
            "select='topk' or 'all'."
        )
    if given["position"] not in TOKEN_POSITIONS:
        raise InputError(
            f"position={given['position']!r}: keys of memory layers stand as if first ('zero'), or "
            "their layers go without positions ('none')."
        )
