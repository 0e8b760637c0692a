"""Story: a text, its words in time, and what people (or an author, or a model) marked in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.core.errors import MissingDataError

if TYPE_CHECKING:
    from workbench.core.boundaries import Boundaries

__all__ = ["Annotation", "Kind", "Story"]

Kind = Literal["people", "author", "model"]


@dataclass(frozen=True, eq=False)
class Annotation:
    """Event boundaries of one origin. People's, an author's and a model's are never mixed.

    Parameters
    ----------
    kind : who marked the boundaries: "people", "author" or "model".
    source : which list or experiment this is: "published", "presses", "scenes", ...
    times : consensus boundary times in seconds, shape (k,), or None.
    words : word numbers at which an event starts, shape (k,), without 0, or None (a story
        without sound has no times).
    presses : one row per press: subject, time (s, the middle of the run), start, end (s, of the
        run in which the press is stored), merged (bool), condition (str); or None.
    duration : length of the recording in seconds, needed to rebuild press time courses.
    n_people : number of people who took part (also those who never pressed), or None.
    citation : where the annotation comes from.
    """

    kind: Kind
    source: str
    times: NDArray[np.float64] | None = None
    words: NDArray[np.int64] | None = None
    presses: pd.DataFrame | None = None
    duration: float | None = None
    n_people: int | None = None
    citation: str = ""


@dataclass(frozen=True, eq=False)
class Story:
    """A text with its words and annotations.

    Parameters
    ----------
    name : short name, unique in a comparison.
    text : the text a model reads (clean and punctuated where there is a choice).
    words : one row per word of `text`, in order: word (str), char_start, char_end (int, a span
        of `text`), onset, offset (s, NaN where unknown), timed (bool: the times were measured;
        False: interpolated or unknown).
    annotations : all annotations, in order of preference.
    title, citation, licence : shown by `workbench stories`.
    notes : what was repaired or is missing, in sentences; shown with results.
    """

    name: str
    text: str
    words: pd.DataFrame
    annotations: tuple[Annotation, ...] = ()
    title: str = ""
    citation: str = ""
    licence: str = ""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def n_words(self) -> int:
        """Number of words of the text."""
        return len(self.words)

    @property
    def has_times(self) -> bool:
        """True when every word has an onset and an offset (measured or interpolated)."""
        return bool(self.n_words) and bool(self.words[["onset", "offset"]].notna().all(axis=None))

    @property
    def share_timed(self) -> float:
        """Share of words whose times were measured rather than interpolated."""
        return float(self.words["timed"].mean()) if self.n_words else float("nan")

    def require_times(self, purpose: str) -> None:
        """Raise `MissingDataError` when the words have no times.

        Parameters
        ----------
        purpose : what needs the times, for the message.
        """
        if not self.has_times:
            raise MissingDataError(
                f"{purpose} needs word times, and story {self.name!r} has none. Load it from a "
                "word table with the columns word, onset and offset."
            )

    def annotation(self, kind: Kind = "people", source: str | None = None) -> Annotation:
        """The first annotation of a kind (and source).

        Raises
        ------
        MissingDataError : there is none; the message says which there are.
        """
        for candidate in self.annotations:
            if candidate.kind == kind and source in (None, candidate.source):
                return candidate
        have = ", ".join(f"{a.kind}/{a.source}" for a in self.annotations) or "none"
        wanted = kind if source is None else f"{kind}/{source}"
        raise MissingDataError(
            f"story {self.name!r} has no annotation {wanted!r} (it has: {have})."
        )

    @property
    def annotation_kind(self) -> Kind | None:
        """The kind results are compared with: people before author; a model's is never chosen."""
        kinds = [annotation.kind for annotation in self.annotations]
        return "people" if "people" in kinds else "author" if "author" in kinds else None

    @property
    def presses(self) -> pd.DataFrame:
        """People's presses: subject, time, start, end (s), merged, condition.

        Raises
        ------
        MissingDataError : no per-person data are public for this story.
        """
        for candidate in self.annotations:
            if candidate.kind == "people" and candidate.presses is not None:
                return candidate.presses
        raise MissingDataError(
            f"story {self.name!r} has no per-person presses; only consensus times or none exist."
        )

    def consensus(self, source: str | None = None, **options: Any) -> NDArray[np.float64]:
        """People's consensus boundaries in seconds; see `workbench.stories.consensus`.

        Parameters
        ----------
        source : "published" (the printed list), "presses" (computed from people's presses by
            the published recipe), or None: published where it exists.
        options : condition, percentile, ... of the recipe.
        """
        from workbench.stories.consensus import story_consensus

        return story_consensus(self, source=source, **options)

    def boundaries(
        self,
        kind: Kind | None = None,
        source: str | None = None,
        rule: str = "next",
        **options: Any,
    ) -> Boundaries:
        """Annotated boundaries over words; see `workbench.stories.timing.annotated_boundaries`.

        Parameters
        ----------
        kind : "people", "author" or "model"; None: people where there are, else the author.
        source : as in `consensus`.
        rule : how a time becomes a word: "next", "previous", "nearest" word onset, or
            "sentence" (nearest sentence gap).
        """
        from workbench.stories.timing import annotated_boundaries

        return annotated_boundaries(self, kind=kind, source=source, rule=rule, **options)

    def sentence_starts(self) -> NDArray[np.int64]:
        """Word numbers at which a sentence starts, shape (n_sentences,), first 0."""
        from workbench.stories.sentences import sentence_starts

        return sentence_starts(self)

    def __repr__(self) -> str:
        marks = ", ".join(f"{a.kind}/{a.source}" for a in self.annotations) or "no annotations"
        times = "timed" if self.has_times else "no word times"
        return f"Story({self.name!r}: {self.n_words} words, {times}; {marks})"
