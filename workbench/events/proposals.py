"""Proposals: where a method first puts boundaries, before any refinement.

`PROPOSALS` has one row per code. A new proposal is one function (trace, options) → Boundaries
over tokens, in a file of its own, and one row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import plural
from workbench.core.errors import InputError, MissingDataError
from workbench.core.trace import Trace
from workbench.events.changepoint import CHANGE_POINTS
from workbench.events.hmm import EVENT_HMM
from workbench.events.kernels import KERNEL
from workbench.events.proposal import Options, Proposal, check_count, matched
from workbench.events.signals import BAYESIAN, ENTROPY, SURPRISAL, boundary_count
from workbench.events.states import STATES

__all__ = ["PROPOSALS", "even_starts", "random_starts"]


def even_starts(n: int, k: int) -> NDArray[np.int64]:
    """Inner starts at i·n / (k + 1) for i = 1 ... k, rounded (halves up), shape (k,).

    Raises
    ------
    InputError : k events more than there are positions.
    """
    check_count(k, n, zero=True)
    rows = np.arange(1, k + 1, dtype=np.int64)
    return (2 * rows * n + k + 1) // (2 * (k + 1))


def random_starts(n: int, k: int, rng: np.random.Generator, gap: int = 1) -> NDArray[np.int64]:
    """Draw k inner starts, every cut with events of at least `gap` positions equally likely.

    With gap 1: k of the n − 1 inner positions, drawn without replacement.

    Raises
    ------
    InputError : k + 1 events of `gap` positions do not fit into n.
    """
    check_count(k, n, zero=True)
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


def _fixed(trace: Trace, options: Options) -> Boundaries:
    n = trace.n_tokens
    if options.argument is not None:
        length = options.argument
        # A length says how many events there are: n_boundaries is not followed.
        return Boundaries(
            np.arange(0, n, length), n, open=n % length != 0, settings={"length": length}
        )
    count, rule = boundary_count(trace, options)
    return Boundaries(even_starts(n, count), n, settings={"n_boundaries": count, "count": rule})


def _random(trace: Trace, options: Options) -> Boundaries:
    count, rule = boundary_count(trace, options)
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
        check_count(k, trace.n_tokens)
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
        settings |= matched(k, len(tokens.inner))
    return tokens.with_(settings=settings)


def _sentences(trace: Trace, options: Options) -> Boundaries:
    from workbench.stories.sentences import lack_of_sentences, splitter

    lack = lack_of_sentences(trace.story)
    if lack:
        raise MissingDataError(lack)
    words = Boundaries(trace.story.sentence_starts(), trace.n_words, unit="word")
    tokens = trace.to_tokens(words)
    found = tokens.n_events - 1
    settings: dict[str, Any] = {"splitter": splitter()}
    if options.n_boundaries is not None:
        check_count(options.n_boundaries, trace.n_tokens)
        settings |= {"n_boundaries": int(options.n_boundaries), "n_found": found}
        if found != options.n_boundaries:
            settings["note"] = (
                f"sentence starts have no strength to choose by: all {found} are kept, not "
                f"{options.n_boundaries}"
            )
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
        SURPRISAL,
        BAYESIAN,
        ENTROPY,
        Proposal(
            "T",
            "sentence starts",
            "An event is a sentence, as the rule-based splitter pysbd finds them; no size limit, "
            "and n_boundaries is not followed: sentences have no strength.",
            "Sadvilkar & Neumann 2020 (pysbd); the sentence baseline of EM-LLM's released code",
            _sentences,
        ),
        CHANGE_POINTS,
        KERNEL,
        STATES,
        EVENT_HMM,
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
