"""Proposals: where a method first puts boundaries, before any refinement.

`PROPOSALS` has one row per code. A new proposal is one function (trace, options) → Boundaries
over tokens, and one row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option, plural
from workbench.core.errors import InputError, MissingDataError
from workbench.core.trace import Trace
from workbench.events.sizes import Cut, check_sizes, size_events, thin
from workbench.events.threshold import threshold_flags

__all__ = [
    "PROPOSALS",
    "Options",
    "Proposal",
    "even_starts",
    "random_starts",
    "surprise_boundaries",
]


@dataclass(frozen=True)
class Options:
    """What a proposal may use; each field is an argument of `segment`, described there."""

    argument: int | None = None
    n_boundaries: int | None = None
    gamma: float = 1.0
    window: int | str = 512
    min_values: int = 16
    chunk: int = 512
    n_local: int = 4096
    n_init: int = 128
    first_chunk: str = "init"
    start: str = "surprising"
    min_size: int = 8
    max_size: int | None = 128
    short: str = "merge"
    gap: int = 1
    seed: int = 0
    time_rule: str = "next"
    source: str | None = None
    consensus: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Proposal:
    """One row of `PROPOSALS`.

    Parameters
    ----------
    code : the letter in a method's code.
    name, description, source : for tables, `--help` and the README.
    propose : (trace, options) → Boundaries over tokens, with `settings` of its own.
    takes_argument : whether the code may carry a number ("F:64").
    """

    code: str
    name: str
    description: str
    source: str
    propose: Callable[[Trace, Options], Boundaries]
    takes_argument: bool = False


def surprise_boundaries(
    surprisal: ArrayLike,
    *,
    gamma: float = 1.0,
    n_boundaries: int | None = None,
    window: int | str = 512,
    start: str = "surprising",
    min_size: int = 8,
    max_size: int | None = 128,
    short: str = "merge",
    min_values: int = 16,
    chunk: int = 512,
    n_local: int = 4096,
    n_init: int = 128,
    first_chunk: str = "init",
) -> Boundaries:
    """Events of a series of surprisal values: proposal `S` without a Trace.

    EM-LLM, Equation 1 (Fountas et al. 2025): a token whose surprisal exceeds mean + gamma · sd
    of those before it starts an event. Works for any series (entropy, ratings).

    Parameters
    ----------
    surprisal : shape (n,), nats; NaN where a token was not scored.
    n_boundaries : None: every flag, short events merged or dropped and long ones split; k: the
        k strongest flags at least `min_size` apart (fewer where there are fewer), never split.
    start : "surprising": an event starts at the surprising token; "before": one token earlier,
        as in the released code.
    gamma, window, min_values, chunk, n_local, n_init, first_chunk : see `threshold_flags`.
    min_size, max_size, short : see `size_events`.

    Returns
    -------
    Boundaries over tokens; `strength` is (surprisal − mean) / sd, −inf where only `max_size` cut.
    The last event is open: the text ended, the event did not.

    Warns
    -----
    UserWarning : no token exceeds the threshold.
    """
    check_option("start", start, ["surprising", "before"])
    check_sizes(min_size, max_size)
    check_option("short", short, ["merge", "drop"])
    check_option("first_chunk", first_chunk, ["init", "whole"])
    series = np.asarray(surprisal, dtype=np.float64)
    flags, z = threshold_flags(
        series,
        gamma,
        window=window,
        min_values=min_values,
        chunk=chunk,
        n_local=n_local,
        n_init=n_init,
        first_chunk="whole" if first_chunk == "whole" else "init",
    )
    n = len(series)
    tokens = np.flatnonzero(flags)
    places = tokens - 1 if start == "before" else tokens
    inside = places > 0
    places, strength = places[inside], z[tokens[inside]]
    if n_boundaries is None:
        cut = size_events(places, strength, n, min_size=min_size, max_size=max_size, short=short)
    else:
        _check_count(n_boundaries, n)
        cut = thin(places, strength, n_boundaries, min_size)
    if not len(places):
        _warn_no_flag(series, gamma, min_values)
    settings: dict[str, Any] = {
        "gamma": gamma,
        "window": window,
        "start": start,
        "min_size": min_size,
        "n_flags": len(places),
    }
    if window == "chunk":
        settings |= {"chunk": chunk, "n_local": n_local, "n_init": n_init}
        settings |= {"first_chunk": first_chunk}
    else:
        settings |= {"min_values": min_values}
    if n_boundaries is None:
        settings |= {"max_size": max_size, "short": short}
    else:
        settings |= _matched(n_boundaries, cut)
    return Boundaries(
        cut.starts, n, strength=cut.strength, open=True, method="S", settings=settings
    )


def even_starts(n: int, k: int) -> NDArray[np.int64]:
    """Inner starts at i·n / (k + 1) for i = 1 ... k, rounded (halves up), shape (k,).

    Raises
    ------
    InputError : k events more than there are positions.
    """
    _check_count(k, n, zero=True)
    rows = np.arange(1, k + 1, dtype=np.int64)
    return (2 * rows * n + k + 1) // (2 * (k + 1))


def random_starts(n: int, k: int, rng: np.random.Generator, gap: int = 1) -> NDArray[np.int64]:
    """Draw k inner starts, every cut with events of at least `gap` positions equally likely.

    With gap 1: k of the n − 1 inner positions, drawn without replacement.

    Raises
    ------
    InputError : k + 1 events of `gap` positions do not fit into n.
    """
    _check_count(k, n, zero=True)
    if gap < 1:
        raise InputError(f"gap={gap} must be at least 1.")
    slack = n - (k + 1) * gap
    if slack < 0:
        raise InputError(
            f"{plural(k + 1, 'event')} of at least gap={gap} tokens do not fit into {n}; lower "
            "gap or n_boundaries."
        )
    # Removing gap − 1 positions from every event but the last leaves a choice without a minimum.
    chosen = np.sort(rng.choice(slack + k, size=k, replace=False)).astype(np.int64)
    return chosen + gap + np.arange(k, dtype=np.int64) * (gap - 1)


# --- the rows ------------------------------------------------------------------------------


def _surprise(trace: Trace, options: Options) -> Boundaries:
    return surprise_boundaries(
        trace.surprisal,
        gamma=options.gamma,
        n_boundaries=options.n_boundaries,
        window=options.window,
        start=options.start,
        min_size=options.min_size,
        max_size=options.max_size,
        short=options.short,
        min_values=options.min_values,
        chunk=options.chunk,
        n_local=options.n_local,
        n_init=options.n_init,
        first_chunk=options.first_chunk,
    )


def _fixed(trace: Trace, options: Options) -> Boundaries:
    n = trace.n_tokens
    if options.argument is not None:
        length = options.argument
        # A length says how many events there are: n_boundaries is not followed.
        return Boundaries(
            np.arange(0, n, length), n, open=n % length != 0, settings={"length": length}
        )
    count, rule = _count(trace, options)
    return Boundaries(even_starts(n, count), n, settings={"n_boundaries": count, "count": rule})


def _random(trace: Trace, options: Options) -> Boundaries:
    count, rule = _count(trace, options)
    rng = np.random.default_rng(options.seed)
    starts = random_starts(trace.n_tokens, count, rng, options.gap)
    settings = {"n_boundaries": count, "count": rule, "gap": options.gap, "seed": int(options.seed)}
    return Boundaries(starts, trace.n_tokens, settings=settings)


def _people(trace: Trace, options: Options) -> Boundaries:
    story, k = trace.story, options.n_boundaries
    first = story.annotation("people")  # without people: an error that says what there is
    if first.words is None:
        story.require_times("method H (people's boundaries)")
    chosen: dict[str, Any] = {
        "kind": "people",
        "rule": options.time_rule,
        "source": options.source,
        **options.consensus,
    }
    words = story.boundaries(**chosen)
    if k is not None and k != words.n_events - 1:
        _check_count(k, trace.n_tokens)
        if not any(a.kind == "people" and a.presses is not None for a in story.annotations):
            raise MissingDataError(
                f"people's list for {story.name!r} has {words.n_events - 1} boundaries, not {k}; "
                f"the {k} most likely positions need each person's presses, which this story "
                "does not have. Use n_boundaries=None or match='people'."
            )
        words = story.boundaries(**chosen, n_boundaries=k)
    tokens = trace.to_tokens(words)
    settings: dict[str, Any] = {**words.settings, "time_rule": options.time_rule}
    settings.pop("rule", None)  # the same under the name that `segment` gives it
    if k is not None:
        settings |= _matched(k, Cut(tokens.inner, np.zeros(0)))
    return tokens.with_(settings=settings)


PROPOSALS: dict[str, Proposal] = {
    row.code: row
    for row in (
        Proposal(
            "R",
            "random",
            "Boundaries drawn uniformly without replacement, as many as n_boundaries or, "
            "without it, as S finds; gap= sets a smallest event.",
            "Fountas et al. 2025 (EM-LLM), section 4.3: the baseline of Table 2",
            _random,
        ),
        Proposal(
            "F",
            "fixed length",
            "Events of equal length, as many as n_boundaries or, without it, as S finds; F:64 "
            "makes them 64 tokens long whatever n_boundaries is.",
            "Fountas et al. 2025 (EM-LLM), section 4.3; Xiao et al. 2024 (InfLLM)",
            _fixed,
            takes_argument=True,
        ),
        Proposal(
            "S",
            "surprisal threshold",
            "An event starts at a token whose surprisal exceeds mean + gamma · sd of those "
            "before it.",
            "Fountas et al. 2025 (EM-LLM), section 3.2, Equation 1",
            _surprise,
        ),
        Proposal(
            "H",
            "people",
            "The boundaries that people marked while listening, moved to the tokens that start "
            "the words.",
            "Kumar et al. 2023; Michelmann et al. 2021 and 2023; the story's own citation",
            _people,
        ),
    )
}


# --- helpers -------------------------------------------------------------------------------


def _count(trace: Trace, options: Options) -> tuple[int, str]:
    """How many boundaries F and R get, and why."""
    if options.n_boundaries is not None:
        _check_count(options.n_boundaries, trace.n_tokens)
        return int(options.n_boundaries), "n_boundaries"
    return _surprise(trace, options).n_events - 1, "as S"


def _matched(k: int, cut: Cut) -> dict[str, Any]:
    found = len(cut.starts)
    settings: dict[str, Any] = {"n_boundaries": int(k), "n_found": found}
    if found < k:
        settings["note"] = f"only {found} of the {k} boundaries asked for could be found"
    return settings


def _check_count(k: int, n: int, *, zero: bool = False) -> None:
    if k < (0 if zero else 1) or k != int(k):
        raise InputError(f"n_boundaries={k} must be a whole number of at least 1.")
    if k > n - 1:
        raise InputError(
            f"n_boundaries={k} is more than the {n - 1} places where {n} tokens can be cut."
        )


def _warn_no_flag(series: NDArray[np.float64], gamma: float, min_values: int) -> None:
    scored = int(np.isfinite(series).sum())
    if scored <= min_values:
        mend = f"the text has only {scored} scored tokens and the threshold needs {min_values}"
    else:
        mend = "lower gamma (a smaller gamma flags more tokens), or record a longer text"
    warnings.warn(
        f"no token exceeds the surprise threshold at gamma={gamma}, so surprise gives no "
        f"boundary; {mend}.",
        UserWarning,
        stacklevel=3,
    )
