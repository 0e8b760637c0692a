"""The systems of the papers, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.memory.choices import Choices, Index, Select, Units, to_settings, to_tokens
from workbench.memory.system import MemoryModel

if TYPE_CHECKING:
    from workbench.models import LanguageModel

__all__ = [
    "EMLLM",
    "SYSTEMS",
    "FullContext",
    "InfLLM",
    "MemorySystem",
    "SlidingWindow",
    "make_system",
]

CONTIGUITY_SHARE = 0.3
"""Part of the budget that `+C` gives to the contiguity buffer (EM-LLM, Appendix D.1)."""


class MemorySystem(MemoryModel):
    """A memory of one's own choices.

    Parameters
    ----------
    lm : the language model.
    units, index, select, position, join : see `workbench.memory.choices`.
    n_init, n_local, chunk, store, budget, ann_above : see `Settings`.
    gate : logits for each memory layer and head, for join="gate".
    bos, folder, name : see `MemoryModel`.

    Raises
    ------
    InputError : choices that exclude each other, or that are not built yet.
    """

    def __init__(
        self,
        lm: LanguageModel,
        *,
        units: Units,
        index: Index | None = None,
        select: Select | None = None,
        position: str = "fixed",
        join: str = "softmax",
        gate: tuple[tuple[float, ...], ...] | None = None,
        bos: str | int = "auto",
        folder: Any = None,
        name: str = "memory",
        **window: Any,
    ) -> None:
        self.choices = Choices(units, index or Index(), select or Select(), position, join)
        settings, forming = to_settings(self.choices, **window)
        tokens = to_tokens(self.choices, gate)
        super().__init__(lm, settings, forming, tokens=tokens, bos=bos, folder=folder, name=name)


class EMLLM(MemorySystem):
    """EM-LLM (Fountas et al. 2025): events by surprise, recalled by similarity and contiguity.

    Parameters
    ----------
    lm : the language model.
    method : a code of `segment` that can be streamed, with "+C" for the contiguity buffer ("S",
        "SM+C", "F:64", ...), or Boundaries over tokens (people's events as memories).
    gamma : of the surprise threshold.
    n_init, n_local, n_mem, chunk : tokens that stay as sinks, of the local window, recalled at
        most, and read at once.
    share, reach : of the contiguity buffer; share None: 0.3 with "+C", else 0.
    r, averaged, per_head, query, every, position, store, budget, ann_above : see `Settings`.
    per, layers, random_length, seed : see `Forming`; further options of `StreamingSegmenter`.
    """

    def __init__(
        self,
        lm: LanguageModel,
        method: str | Boundaries = "SM+C",
        *,
        gamma: float = 1.0,
        given: Any = None,
        n_init: int = 128,
        n_local: int = 512,
        n_mem: int = 512,
        chunk: int = 512,
        share: float | None = None,
        reach: int = 1,
        r: int = 4,
        averaged: bool = True,
        per_head: bool = False,
        query: str = "previous",
        every: int = 1,
        position: str = "fixed",
        store: str = "host",
        budget: int | None = None,
        ann_above: int | None = None,
        bos: str | int = "auto",
        folder: Any = None,
        name: str | None = None,
        **forming: Any,
    ) -> None:
        label = "H" if isinstance(method, Boundaries) else method
        if isinstance(method, Boundaries):
            if method.unit != "token":
                raise InputError(
                    f"method= are boundaries over {method.unit}s; a memory needs tokens "
                    "(trace.to_tokens(boundaries))."
                )
            given, code, buffer = method.starts, "H", ""
        else:
            code, _, buffer = method.partition("+")
        if buffer not in ("", "C"):
            raise InputError(
                f"method={method!r}: behind + only C (the contiguity buffer) is known."
            )
        if share is None:
            share = CONTIGUITY_SHARE if buffer else 0.0
        options = dict(forming)
        if given is not None:
            options["given"] = tuple(int(start) for start in given)
        if code[:1] in "SBE":
            options["gamma"] = gamma
        super().__init__(
            lm,
            units=Units.event(code, **options),
            index=Index("representatives", r, averaged),
            select=Select("budget", n_mem, per_head, share, reach, query, every),
            position=position,
            n_init=n_init,
            n_local=n_local,
            chunk=chunk,
            store=store,
            budget=budget,
            ann_above=ann_above,
            bos=bos,
            folder=folder,
            name=name or f"emllm-{label}",
        )


class InfLLM(MemorySystem):
    """InfLLM (Xiao et al. 2024): blocks of a fixed length, recalled by similarity.

    Parameters
    ----------
    block : tokens of a block; `n_mem` tokens are recalled: n_mem // block of them.
    """

    def __init__(
        self,
        lm: LanguageModel,
        *,
        block: int = 128,
        n_mem: int = 512,
        r: int = 4,
        averaged: bool = True,
        per_head: bool = False,
        query: str = "previous",
        every: int = 1,
        share: float = 0.0,
        reach: int = 1,
        position: str = "fixed",
        ann_above: int | None = None,
        bos: str | int = "auto",
        folder: Any = None,
        name: str = "infllm",
        **window: Any,
    ) -> None:
        super().__init__(
            lm,
            units=Units.fixed(block),
            index=Index("representatives", r, averaged),
            select=Select("budget", n_mem, per_head, share, reach, query, every),
            position=position,
            ann_above=ann_above,
            bos=bos,
            folder=folder,
            name=name,
            **window,
        )


class SlidingWindow(MemorySystem):
    """A sliding window with attention sinks (StreamingLLM, Xiao et al. 2023): nothing is stored."""

    def __init__(
        self,
        lm: LanguageModel,
        *,
        n_init: int = 128,
        n_local: int = 512,
        chunk: int = 512,
        bos: str | int = "auto",
        name: str = "window",
    ) -> None:
        super().__init__(
            lm,
            units=Units.none(),
            index=Index("none"),
            select=Select("all"),
            n_init=n_init,
            n_local=n_local,
            chunk=chunk,
            bos=bos,
            name=name,
        )


class FullContext(MemorySystem):
    """Everything in sight at its own place: the plain model, in the interface of the others."""

    def __init__(
        self, lm: LanguageModel, *, chunk: int = 512, bos: str | int = "auto", name: str = "full"
    ) -> None:
        super().__init__(
            lm,
            units=Units.none(),
            index=Index("none"),
            select=Select("all"),
            position="true",
            n_init=0,
            n_local=None,
            chunk=chunk,
            bos=bos,
            name=name,
        )


SYSTEMS = ("emllm-S", "emllm-SM+C", "infllm", "window", "full", "fot", "longllama", "mt")
"""Names of systems; after "emllm-" any method of `EMLLM` may stand."""


def make_system(name: str, lm: LanguageModel, **options: Any) -> MemorySystem:
    """A system by its name: "emllm-" and a method, or one of `SYSTEMS`.

    Raises
    ------
    InputError : an unknown name.
    """
    from workbench.memory.focused import FOT, LongLLaMA, MemorizingTransformer

    kinds: dict[str, type[MemorySystem]] = {
        "infllm": InfLLM,
        "window": SlidingWindow,
        "full": FullContext,
        "fot": FOT,
        "longllama": LongLLaMA,
        "mt": MemorizingTransformer,
    }
    if name.startswith("emllm-"):
        return EMLLM(lm, name.removeprefix("emllm-"), **options)
    if name not in kinds:
        check_option("system", name, SYSTEMS)
    return kinds[name](lm, **options)
