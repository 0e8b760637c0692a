"""Proposals `S`, `B` and `E`: events start where a signal of the model stands out.

Surprisal says that this token was improbable; entropy, before the token, that anything could
come; Bayesian surprise, after it, that it changed what the model expects next. The threshold is
the same for all three (EM-LLM, Equation 1), and knows only what came before.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import MissingDataError
from workbench.core.trace import Trace
from workbench.events.proposal import Options, Proposal, check_count, matched
from workbench.events.sizes import check_sizes, size_events, thin
from workbench.events.threshold import threshold_flags

__all__ = [
    "BAYESIAN",
    "ENTROPY",
    "SURPRISAL",
    "boundary_count",
    "signal_of",
    "surprise",
    "surprise_boundaries",
]


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
    name: str = "surprise",
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
    name : what the values are, for the warning.

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
        check_count(n_boundaries, n)
        cut = thin(places, strength, n_boundaries, min_size)
    if not len(places):
        _warn_no_flag(series, gamma, min_values, name)
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
        settings |= matched(n_boundaries, len(cut.starts))
    return Boundaries(
        cut.starts, n, strength=cut.strength, open=True, method="S", settings=settings
    )


def signal_of(trace: Trace, name: str) -> NDArray[np.float64]:
    """A per-token signal of a trace in nats, shape (n_tokens,): "surprisal", "entropy", ...

    Raises
    ------
    MissingDataError : it was not recorded.
    """
    if name not in trace.dataset or trace.dataset[name].dims != ("token",):
        have = [str(key) for key, found in trace.dataset.items() if found.dims == ("token",)]
        raise MissingDataError(
            f"this trace of {trace.story.name!r} holds no {name} per token (it holds: "
            f"{', '.join(have)}); record the story again with it among the measures: "
            f"record(story, model, measures={[name]!r})."
        )
    return np.asarray(trace.dataset[name].values, dtype=np.float64)


def surprise(trace: Trace, options: Options) -> Boundaries:
    """Proposal `S`; also what `F`, `R` and others take their number of events from."""
    return _thresholded(trace.surprisal, options, "surprise")


def boundary_count(trace: Trace, options: Options) -> tuple[int, str]:
    """How many boundaries a method gets that must be told, and why: as asked for, or as S."""
    if options.n_boundaries is not None:
        check_count(options.n_boundaries, trace.n_tokens)
        return int(options.n_boundaries), "n_boundaries"
    return surprise(trace, options).n_events - 1, "as S"


def _bayesian(trace: Trace, options: Options) -> Boundaries:
    values = signal_of(trace, "bayesian_surprise")
    return _thresholded(values, options, "Bayesian-surprise").with_(method="B")


def _entropy(trace: Trace, options: Options) -> Boundaries:
    return _thresholded(signal_of(trace, "entropy"), options, "entropy").with_(method="E")


def _thresholded(values: NDArray[np.float64], options: Options, name: str) -> Boundaries:
    return surprise_boundaries(
        values,
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
        name=name,
    )


SURPRISAL = Proposal(
    "S",
    "surprisal threshold",
    "An event starts at a token whose surprisal exceeds mean + gamma · sd of those before it.",
    "Fountas et al. 2025 (EM-LLM), section 3.2, Equation 1",
    surprise,
)
BAYESIAN = Proposal(
    "B",
    "Bayesian-surprise threshold",
    "An event starts at a token that changes what the model expects next: whose Bayesian surprise "
    "(KL divergence of the next-token distribution after it from the one before it) exceeds "
    "mean + gamma · sd of those before it.",
    "Itti & Baldi 2009 (the measure); Kumar et al. 2023 (at event boundaries); threshold: Fountas "
    "et al. 2025, Equation 1",
    _bayesian,
)
ENTROPY = Proposal(
    "E",
    "entropy threshold",
    "An event starts at a token before which the model was uncertain: the entropy of the "
    "distribution that predicts it exceeds mean + gamma · sd of those before it.",
    "Nguyen et al. 2024 (uncertainty-driven segmentation); threshold: Fountas et al. 2025, "
    "Equation 1",
    _entropy,
)


def _warn_no_flag(series: NDArray[np.float64], gamma: float, min_values: int, name: str) -> None:
    scored = int(np.isfinite(series).sum())
    if scored <= min_values:
        mend = f"the text has only {scored} scored tokens and the threshold needs {min_values}"
    else:
        mend = "lower gamma (a smaller gamma flags more tokens), or record a longer text"
    warnings.warn(
        f"no token exceeds the {name} threshold at gamma={gamma}, so {name} gives no "
        f"boundary; {mend}.",
        UserWarning,
        stacklevel=3,
    )
