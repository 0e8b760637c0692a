"""From times to words: where on the text an annotated boundary lies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError, MissingDataError
from workbench.core.story import Annotation, Kind, Story
from workbench.stories.consensus import likely_times, press_density, story_consensus
from workbench.stories.sentences import lack_of_sentences, sentence_starts

__all__ = ["RULES", "annotated_boundaries", "gap_times", "times_to_words", "words_of_times"]

RULES = ("next", "previous", "nearest", "sentence")

KINDS = ("people", "author", "model")
_METHOD = {"people": "H", "author": "author", "model": "model"}

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def gap_times(onsets: ArrayLike, offsets: ArrayLike, sentence_starts: ArrayLike) -> Floats:
    """Times of the gaps between sentences (Michelmann et al. 2023).

    A gap lies halfway between the offset of a sentence's last word and the onset of the next
    one's first word; shape (n_sentences - 1,), seconds.
    """
    starts = _inner(sentence_starts)
    onset = np.asarray(onsets, dtype=np.float64)
    offset = np.asarray(offsets, dtype=np.float64)
    return (offset[starts - 1] + onset[starts]) / 2


def times_to_words(
    times: ArrayLike,
    onsets: ArrayLike,
    offsets: ArrayLike,
    rule: str = "next",
    sentence_starts: ArrayLike | None = None,
) -> Ints:
    """Words that start an event when the events end at certain times.

    The rule matters: on a second hearing people press in the pause before the new event, on a
    first hearing after it has begun.

    Parameters
    ----------
    times : seconds.
    onsets, offsets : of the words, seconds, shape (n,), onsets not decreasing.
    rule : "next": the first word that starts at or after the time; "previous": the last that
        starts at or before it; "nearest": the word whose onset is nearest; "sentence": the first
        word after the nearest gap between sentences. Of two as near, the earlier.
    sentence_starts : word numbers, for the rule "sentence".

    Returns
    -------
    Word numbers, increasing, each once. Word 0 always starts an event and is left out. So is,
    under every rule, a time before the first onset or after the last offset (people also press
    when the story is over), and under "next" one after the last onset.

    Raises
    ------
    InputError : unknown rule, NaN or decreasing onsets, no sentence starts for "sentence".
    """
    words = words_of_times(times, onsets, offsets, rule, sentence_starts)
    n = np.asarray(onsets).shape[0]
    return np.unique(words[(words > 0) & (words < n)])


def words_of_times(
    times: ArrayLike,
    onsets: ArrayLike,
    offsets: ArrayLike,
    rule: str,
    sentence_starts: ArrayLike | None,
) -> Ints:
    """As `times_to_words`, one word per time: repeats, 0, and n (after the last word) included."""
    check_option("rule", rule, RULES)
    t = np.asarray(times, dtype=np.float64).ravel()
    onset = np.asarray(onsets, dtype=np.float64)
    if not np.isfinite(t).all():
        raise InputError("times must be finite numbers of seconds.")
    if not np.isfinite(onset).all() or (np.diff(onset) < 0).any():
        raise InputError("onsets must be finite and must not decrease; see repair_times.")
    words = _words_by_rule(t, onset, offsets, rule, sentence_starts)
    if len(onset) == 0:
        return words
    # Before the first word and after the last one there is no text that a boundary could cut.
    words[t < onset[0]] = 0
    words[t > np.nanmax([onset[-1], *np.asarray(offsets, dtype=np.float64)[-1:]])] = len(onset)
    return words


def _words_by_rule(
    t: Floats, onset: Floats, offsets: ArrayLike, rule: str, sentence_starts: ArrayLike | None
) -> Ints:
    if rule == "next":
        return np.searchsorted(onset, t, side="left").astype(np.int64)
    if rule == "previous":
        return np.maximum(np.searchsorted(onset, t, side="right") - 1, 0).astype(np.int64)
    if rule == "nearest":
        return _nearest(onset, t)
    if sentence_starts is None:
        raise InputError("rule='sentence' needs sentence_starts.")
    starts = _inner(sentence_starts)
    if len(starts) == 0:
        return np.zeros(len(t), dtype=np.int64)
    return starts[_nearest(gap_times(onset, offsets, starts), t)]


def _nearest(places: Floats, times: Floats) -> Ints:
    """Index of the nearest place for each time; of two as near, the first."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    right = np.clip(np.searchsorted(ordered, times, side="left"), 1, max(1, len(places) - 1))
    if len(places) == 1:
        return np.zeros(len(times), dtype=np.int64)
    left = right - 1
    nearer = np.where(ordered[right] - times < times - ordered[left], right, left)
    # Equal places: the first of them.
    return order[np.searchsorted(ordered, ordered[nearer], side="left")].astype(np.int64)


def _inner(sentence_starts: ArrayLike) -> Ints:
    starts = np.asarray(sentence_starts, dtype=np.int64)
    return starts[starts > 0]


# --- stories ------------------------------------------------------------------------------------


def annotated_boundaries(
    story: Story,
    kind: Kind | None = None,
    source: str | None = None,
    rule: str = "next",
    n_boundaries: int | None = None,
    **options: Any,
) -> Boundaries:
    """Annotated boundaries of a story over its words.

    Parameters
    ----------
    story : with annotations (and word times, unless the annotation names words).
    kind : "people", "author" or "model"; None: people where there are, else the author.
    source : "published" or "presses" for people; else the name of an annotation.
    rule : how a time becomes a word, see `times_to_words`.
    n_boundaries : keep the k most likely human positions (EM-LLM section 4.2): the strongest
        maxima of the press density that fall on k different words. Needs presses.
    options : condition, percentile, step, window of `story_consensus`.

    Returns
    -------
    Boundaries over words, method "H" for people, "author" or "model" else. With presses,
    `strength` is the share of people (smoothed) at the boundary. `settings` holds kind, source,
    rule, options and how many times there were and were dropped (`n_times`, `n_outside`,
    `n_merged`).

    Raises
    ------
    MissingDataError : no annotation, no word times, or not k positions.
    """
    if kind is None:
        kind = story.annotation_kind
        if kind is None:
            raise MissingDataError(
                f"story {story.name!r} has no boundaries by people or an author."
            )
    check_option("kind", kind, KINDS)
    check_option("rule", rule, RULES)
    settings = {"kind": kind, "source": source, "rule": rule, **options}
    if kind == "people":
        return _people(story, source, rule, n_boundaries, options, settings)
    if options or n_boundaries is not None:
        name = next(iter(options), "n_boundaries")
        raise InputError(f"{name}= belongs to people's presses, not to kind={kind!r}.")
    annotation = story.annotation(kind, source)
    settings["source"] = annotation.source
    words = _annotated_words(story, annotation, rule)
    return Boundaries(
        np.concatenate([[0], words]),
        n=story.n_words,
        unit="word",
        method=_METHOD[kind],
        settings=settings,
    )


def _annotated_words(story: Story, annotation: Annotation, rule: str) -> Ints:
    if annotation.words is not None:
        return annotation.words
    if annotation.times is None:
        raise MissingDataError(
            f"the annotation {annotation.source!r} of {story.name!r} has neither words nor times."
        )
    return times_to_words(annotation.times, *_times_of(story, rule))


def _times_of(story: Story, rule: str) -> tuple[Floats, Floats, str, Ints | None]:
    story.require_times("placing boundaries in time on words")
    onsets = story.words["onset"].to_numpy(dtype=np.float64)
    offsets = story.words["offset"].to_numpy(dtype=np.float64)
    if rule != "sentence":
        return onsets, offsets, rule, None
    lack = lack_of_sentences(story)
    if lack:
        raise MissingDataError(f"rule='sentence' cannot be used: {lack}")
    return onsets, offsets, rule, sentence_starts(story)


def _people(
    story: Story,
    source: str | None,
    rule: str,
    k: int | None,
    options: dict[str, Any],
    settings: dict[str, Any],
) -> Boundaries:
    places = _times_of(story, rule)
    pressed = any(a.kind == "people" and a.presses is not None for a in story.annotations)
    if source is None:
        listed = any(a.kind == "people" and a.times is not None for a in story.annotations)
        source = "published" if listed and k is None else "presses"
    settings["source"] = source
    density_options = {key: options[key] for key in options if key != "percentile"}
    if k is None:
        times = story_consensus(story, source, **options)
    else:
        if source != "presses" or not pressed:
            raise MissingDataError(
                f"the {k} most likely human positions of {story.name!r} need people's presses, "
                "which are not public; use match='people', which keeps as many of the method's "
                "boundaries as people have."
            )
        step = float(options.get("step", 0.001))
        _, density = press_density(story, **{"step": step, **density_options})
        times = likely_times(density, step, len(density))
    words = words_of_times(times, *places)
    inside = (words > 0) & (words < story.n_words)
    if k is not None:
        _, first = np.unique(words[inside], return_index=True)
        keep = np.flatnonzero(inside)[np.sort(first)][:k]
        if len(keep) < k:
            raise MissingDataError(
                f"people's presses of {story.name!r} give {len(keep)} positions a second apart on "
                f"different words, and {k} were asked for."
            )
        inside = np.isin(np.arange(len(words)), keep)
    settings |= {
        "n_times": len(times) if k is None else int(inside.sum()),
        "n_outside": int((~inside).sum()) if k is None else 0,
        "n_merged": int(inside.sum() - len(np.unique(words[inside]))),
    }
    starts, place = np.unique(words[inside], return_inverse=True)
    strength = None
    if source == "presses":
        step = float(options.get("step", 0.001))
        _, density = press_density(story, **{"step": step, **density_options})
        at = density[np.clip(np.round(times[inside] / step).astype(int), 0, len(density) - 1)]
        strength = np.full(len(starts), -np.inf)
        np.maximum.at(strength, place, at)
    return Boundaries(
        np.concatenate([[0], starts]),
        n=story.n_words,
        unit="word",
        strength=strength,
        method="H",
        settings=settings,
    )
