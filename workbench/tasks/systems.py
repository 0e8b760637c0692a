"""The systems of a run: names with options, or one's own, each under a label."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.core.errors import InputError

__all__ = ["SystemSpec", "SystemsLike", "system_specs"]

SystemsLike = str | Callable[..., Any] | Iterable[str | Callable[..., Any]] | Mapping[str, object]

# What the simpler systems do without; everything is passed to the others.
_TAKES = {
    "full": {"chunk", "device", "dtype"},
    "window": {"n_init", "n_local", "chunk", "device", "dtype"},
}


@dataclass(frozen=True)
class SystemSpec:
    """How to make one system.

    Parameters
    ----------
    label : how tables call it.
    name : of `make_system`; "" where the user makes it.
    options : passed to `make_system`.
    maker : the user's function of a language model; None where there is a name.
    """

    label: str
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    maker: Callable[..., Any] | None = None

    def make(self, lm: Any) -> Any:
        """The system itself, with nothing read."""
        if self.maker is not None:
            return self.maker(lm)
        from workbench.memory import make_system

        return make_system(self.name, lm, **self.options)

    def settings(self) -> dict[str, Any]:
        """What tells it from another under the same label, as JSON."""
        if self.maker is not None:
            module = getattr(self.maker, "__module__", "")
            name = getattr(self.maker, "__qualname__", type(self.maker).__qualname__)
            return {"made_by": f"{module}.{name}"}
        plain = (str, int, float, bool, type(None))
        return {
            "system": self.name,
            **{k: v if isinstance(v, plain) else repr(v) for k, v in self.options.items()},
        }


def system_specs(
    systems: SystemsLike, options: Mapping[str, Any] | None = None
) -> list[SystemSpec]:
    """Systems as a user writes them → one specification each.

    Parameters
    ----------
    systems : a name ("emllm-S"), a function of a language model that makes a system, a list of
        these, or a mapping label → name, function, or {"system": name, its own options}.
    options : for every named system. `full` takes none of the budgets. `window` has no memory:
        it gets n_local + n_mem as its window, so that it sees as many tokens as the others.
        A system's own options come before these.

    Raises
    ------
    InputError : no system, a label twice, or something that is none of these.
    """
    if isinstance(systems, str) or callable(systems):
        systems = [systems]
    if not isinstance(systems, Mapping):
        named = [(_label(system), system) for system in systems]
        labels = [label for label, _ in named]
        if len(set(labels)) < len(labels):
            raise InputError(
                f"systems={labels} names one twice; give a mapping with a label for each."
            )
        systems = dict(named)
    if not systems:
        raise InputError("systems is empty; give at least one, e.g. 'emllm-S'.")
    return [_spec(str(label), system, options or {}) for label, system in systems.items()]


def _label(system: object) -> str:
    if isinstance(system, str):
        return system
    return str(getattr(system, "__name__", type(system).__name__))


def _spec(label: str, system: object, common: Mapping[str, Any]) -> SystemSpec:
    if isinstance(system, Mapping):
        own = dict(system)
        name = own.pop("system", None)
        if not isinstance(name, str):
            raise InputError(f"systems[{label!r}] needs the entry 'system', e.g. 'emllm-S'.")
        return SystemSpec(label, name, {**_shared(name, common), **own})
    if isinstance(system, str):
        return SystemSpec(label, system, _shared(system, common))
    if callable(system):
        return SystemSpec(label, maker=system)
    raise InputError(
        f"systems[{label!r}]={system!r} is neither a name, nor {{'system': name, ...}}, nor a "
        "function that makes a system."
    )


def _shared(name: str, common: Mapping[str, Any]) -> dict[str, Any]:
    takes = _TAKES.get(name)
    if takes is None:
        return dict(common)
    kept = {option: value for option, value in common.items() if option in takes}
    if name == "window" and "n_local" in common and "n_mem" in common:
        kept["n_local"] = common["n_local"] + common["n_mem"]
    return kept
