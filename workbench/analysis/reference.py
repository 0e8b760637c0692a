"""What a method's events are compared with: people's (or the author's) boundaries, matched.

`reference` turns a story's annotation into boundaries over words and marks on sentence gaps,
with as many boundaries as the matching rule asks for; `distances` measures a method's cut
against it, `distances_many` null draws of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.human import (
    hamming,
    hamming_many,
    wasserstein,
    wasserstein_many,
    words_to_gaps,
)
from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.core.story import Kind, Story
from workbench.stories.consensus import likely_times, press_density, story_consensus
from workbench.stories.sentences import lack_of_sentences, sentence_starts
from workbench.stories.timing import times_to_words, words_of_times

__all__ = [
    "MATCHES",
    "SELF",
    "Distance",
    "Reference",
    "distances",
    "distances_many",
    "has_presses",
    "likely_times_on_words",
    "reference",
]

MATCHES = ("people", "method", None)

SELF = "self"
"""Note of a comparison of people with themselves."""

_NO_WORD_TIMES = (
    "the words of this story have no public times, so people's boundaries cannot be placed on them"
)
_NO_PRESSES = (
    "match='method' takes the most likely positions of people's presses, and for this story only "
    "consensus times are public"
)
_AUTHOR_RANKS = "match='method' ranks positions by people's presses, and an author gives no ranks"
_ONE_SENTENCE = "the text is one sentence and has no gap"


@dataclass(frozen=True, eq=False)
class Reference:
    """Boundaries that methods are compared with.

    Parameters
    ----------
    kind : who made them: "people" or "author"; None when the story has neither.
    source : which list or experiment ("published", "presses", "scenes"); "" when there is none.
    match : the rule by which the number of boundaries was chosen: "people", "method" or None.
    n_words : number of words of the text.
    sentence_starts : word number of each sentence's first word.
    words : words at which an event starts, without word 0, shape (k,); None where the boundaries
        cannot be placed on words.
    gaps : one entry per sentence gap, True where a boundary is nearest to it, shape
        (n_sentences - 1,); None where they cannot be placed, or the text has no sentences.
    n_times : number of boundary times, where there are any (also without word times).
    note : why there are no boundaries; "" when there are.
    gap_note : why there are no marks on sentence gaps although there are boundaries.
    """

    kind: Kind | None
    source: str
    match: str | None
    n_words: int
    sentence_starts: NDArray[np.int64]
    words: NDArray[np.int64] | None = None
    gaps: NDArray[np.bool_] | None = None
    n_times: int | None = None
    note: str = ""
    gap_note: str = ""

    @property
    def count(self) -> int | None:
        """Number of boundaries, the k of match="people"; None where unknown.

        Counted over words, where two times may meet in one; without word times, the times.
        """
        return self.n_times if self.words is None else len(self.words)


@dataclass(frozen=True)
class Distance:
    """A distance to a reference; NaN where undefined. `note`: why, or what else to know."""

    value: float
    note: str = ""


# --- the reference -------------------------------------------------------------------------


def reference(
    story: Story,
    *,
    match: str | None = "people",
    n_boundaries: int | None = None,
    kind: Kind | None = None,
    source: str | None = None,
    rule: str = "next",
    condition: str | None = None,
    percentile: float = 95.0,
) -> Reference:
    """The boundaries that a method's events are compared with.

    Parameters
    ----------
    story : the story; its annotation is chosen by `kind` and `source`.
    match : which numbers of boundaries are compared.

        - "people": people's boundaries as they are; the method is cut to as many
          (`Reference.count`) when it is run.
        - "method": people's `n_boundaries` most likely positions (EM-LLM, section 4.2), on as
          many different words. Needs people's presses.
        - None: each side keeps its own number.
    n_boundaries : the method's number of boundaries (not events), needed for match="method".
    kind : "people" or "author"; None: people where there are any, else the author.
    source : "published" or "presses"; None: published where it exists.
    rule : how people's times become words, for the Wasserstein distance: "next", "previous" or
        "nearest" word onset, or "sentence". Marks on sentence gaps always take the gap nearest
        in time.
    condition, percentile : of the consensus from presses, see `story_consensus`.

    Returns
    -------
    Reference. Where there are no boundaries, `words` and `gaps` are None and `note` says why;
    that is no error, so that a comparison over many stories can go on.

    Raises
    ------
    InputError : an unknown match, or match="method" without n_boundaries.
    MissingDataError : a kind or source that was named and that the story does not have.
    """
    check_option("match", match, MATCHES)
    if match == "method" and n_boundaries is None:
        raise InputError("match='method' needs n_boundaries, the method's number of boundaries.")
    kind = story.annotation_kind if kind is None else kind
    starts = sentence_starts(story)
    lack = lack_of_sentences(story)
    result = Reference(kind, source or "", match, story.n_words, starts, gap_note=lack)
    if kind is None:
        return replace(
            result, note=f"story {story.name!r} has no boundaries of people or an author"
        )
    check_option("kind", kind, ("people", "author"))
    if kind == "author":
        annotation = story.annotation("author", source)
        result = replace(result, source=annotation.source)
        if match == "method":
            return replace(result, note=_AUTHOR_RANKS)
        words = story.boundaries(kind="author", source=source).inner
        gaps = None if lack else words_to_gaps(words, story.n_words, starts)
        return replace(result, words=words, gaps=gaps)
    if match == "method":
        source = "presses"
    elif source is None:
        published = any(a.kind == "people" and a.times is not None for a in story.annotations)
        source = "published" if published else "presses"
    result = replace(result, source=source)
    if match == "method" and not has_presses(story):
        return replace(result, note=_NO_PRESSES)
    if match != "method":
        times = story_consensus(story, source, condition=condition, percentile=percentile)
        result = replace(result, n_times=len(times))
    if not story.has_times:
        return replace(result, note=_NO_WORD_TIMES)
    if rule == "sentence" and lack:
        return replace(result, note=lack)
    onsets = story.words["onset"].to_numpy(dtype=np.float64)
    offsets = story.words["offset"].to_numpy(dtype=np.float64)
    if match == "method":
        assert n_boundaries is not None
        step = 0.001
        _, density = press_density(story, condition=condition, step=step)

        def place(times: NDArray[np.float64]) -> NDArray[np.int64]:
            return words_of_times(times, onsets, offsets, rule, starts)

        times = likely_times_on_words(density, step, n_boundaries, place, story.n_words)
        if len(times) < n_boundaries:
            return replace(
                result,
                note=f"people's presses have {len(times)} likely positions on different words, "
                f"and the method has {n_boundaries} boundaries",
            )
        result = replace(result, n_times=len(times))
    gaps = None
    if not lack:
        gap_words = times_to_words(times, onsets, offsets, "sentence", starts)
        gaps = words_to_gaps(gap_words, story.n_words, starts)
    return replace(result, words=times_to_words(times, onsets, offsets, rule, starts), gaps=gaps)


def has_presses(story: Story) -> bool:
    """True when presses of single people are known for the story."""
    return any(a.kind == "people" and a.presses is not None for a in story.annotations)


def likely_times_on_words(
    density: NDArray[np.float64],
    step: float,
    k: int,
    place: Callable[[NDArray[np.float64]], NDArray[np.int64]],
    n_words: int,
) -> NDArray[np.float64]:
    """The k most likely times that fall on different words, the most likely first.

    Parameters
    ----------
    density : smoothed share of people who press, shape (bins,).
    step : width of a bin in seconds.
    k : how many are wanted.
    place : the word at which an event starts that is marked at each time.
    n_words : number of words; times at word 0 or past the last word are no boundaries.

    Returns
    -------
    Times in seconds; fewer than k where people's presses have no more.
    """
    # The times for k are the first of those for k + 1: a few more than k are nearly always enough.
    for wanted in (2 * k + 20, len(density)):
        times = likely_times(density, step, wanted)
        words = place(times)
        inside = np.flatnonzero((words > 0) & (words < n_words))
        _, first = np.unique(words[inside], return_index=True)
        chosen = inside[np.sort(first)][:k]
        if len(chosen) == k or len(times) < wanted:
            break
    return times[chosen]


# --- distances to it -----------------------------------------------------------------------


def distances(events: Boundaries, ref: Reference, *, sigma: float = 0.0) -> dict[str, Distance]:
    """Distance of one cut to the reference, in both measures.

    Parameters
    ----------
    events : the method's events over the story's words (unit "word"; `Trace.to_words`).
    ref : see `reference`.
    sigma : width in words of the Gaussians of `wasserstein`.

    Returns
    -------
    {"wasserstein": ..., "hamming": ...}. People against themselves (method "H") are NaN with
    the note "self". W1 alone rewards even spacing (`human.EVEN_SPACING`).
    """
    _check_words(events, ref)
    reason = SELF if events.method == "H" and ref.kind == "people" else ref.note
    if reason or ref.words is None:
        return {name: Distance(float("nan"), reason) for name in ("wasserstein", "hamming")}
    inner = events.inner
    unmatched = ""
    if ref.match is not None and len(inner) != len(ref.words):
        unmatched = f"counts are not matched: {len(inner)} boundaries against {len(ref.words)}"
    moved = wasserstein(inner, ref.words, ref.n_words, sigma=sigma)
    empty = "" if len(inner) and len(ref.words) else "one side has no boundary to move"
    result = {"wasserstein": Distance(moved, _joined(empty, unmatched))}
    if ref.gaps is None or len(ref.gaps) == 0:
        result["hamming"] = Distance(float("nan"), ref.gap_note or _ONE_SENTENCE)
        return result
    marks = words_to_gaps(inner, ref.n_words, ref.sentence_starts)
    shared = len(inner) - int(marks.sum())
    once = f"{shared} of {len(inner)} boundaries share a sentence gap and count once"
    result["hamming"] = Distance(
        hamming(marks, ref.gaps), _joined(unmatched, once if shared else "")
    )
    return result


def distances_many(
    words: ArrayLike, ref: Reference, *, sigma: float = 0.0
) -> dict[str, NDArray[np.float64]]:
    """Distances of many cuts (null draws) to the reference, in both measures.

    Parameters
    ----------
    words : words at which an event starts, shape (draws, k), `ABSENT` where a draw has fewer
        (`human.token_draws_to_words`).
    ref, sigma : as in `distances`.

    Returns
    -------
    {"wasserstein": ..., "hamming": ...}, each of shape (draws,), NaN where undefined.
    """
    draws = np.asarray(words, dtype=np.int64)
    nothing = np.full(len(draws), np.nan)
    result = {"wasserstein": nothing, "hamming": nothing.copy()}
    if ref.words is not None:
        result["wasserstein"] = wasserstein_many(draws, ref.words, ref.n_words, sigma=sigma)
    if ref.gaps is not None:
        marks = words_to_gaps(draws, ref.n_words, ref.sentence_starts)
        result["hamming"] = hamming_many(marks, ref.gaps)
    return result


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _check_words(events: Boundaries, ref: Reference) -> None:
    if events.unit != "word" or events.n != ref.n_words:
        raise InputError(
            f"expected boundaries over the story's {ref.n_words} words, got {events.n} "
            f"{events.unit}s; convert them with trace.to_words(events)."
        )
