"""Events while the text is read: the methods of `workbench.events`, fed by the reading itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.events.methods import Method, parse_method
from workbench.events.streaming import StreamingSegmenter
from workbench.memory.units import Units

__all__ = ["EventFormer", "Forming"]

SIGNALS = {"S": "surprisal", "B": "bayesian_surprise", "E": "entropy"}


@dataclass(frozen=True)
class Forming:
    """How the units of a memory are formed.

    Parameters
    ----------
    method : a code of `segment` that can be streamed ("S", "SM", "FC", "F:64", ...); "T" and "R"
        find their boundaries in each text as it is given; "H" needs `given`.
    given : tokens of the text at which events start: people's, an author's, any.
    per : "all" layers share one segmentation, or each "layer" has its own (of its own keys).
    layers : whose keys refine boundaries, where they share one; None: the last third.
    random_length : "R": mean length of its events in tokens.
    seed : of "R".
    options : further options of `StreamingSegmenter` (gamma, min_size, rule, ...).
    """

    method: str
    given: tuple[int, ...] | None = None
    per: str = "all"
    layers: tuple[int, ...] | None = None
    random_length: int = 64
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_option("per", self.per, ("all", "layer"))
        parsed = self.parsed
        if parsed.proposal == "H" and self.given is None:
            raise InputError(
                "method 'H' forms people's events, which are not in the text itself; give the "
                "tokens at which they start as given=, or their Boundaries as method=."
            )
        self.segmenter()  # options that cannot be are refused now, not while reading

    @property
    def parsed(self) -> Method:
        """The method, parsed."""
        return parse_method(self.method)

    @property
    def signal(self) -> str:
        """The measure that the method looks at ("surprisal" where it looks at none)."""
        return SIGNALS.get(self.parsed.proposal, "surprisal")

    @property
    def refined(self) -> bool:
        """Whether keys are needed."""
        return bool(self.parsed.refinement)

    @property
    def needs_text(self) -> bool:
        """Whether boundaries come from each text before it is read."""
        return self.parsed.proposal in "TR"

    def segmenter(self) -> StreamingSegmenter:
        """A segmenter at the start of a text."""
        parsed = self.parsed
        given: list[int] | None = None
        if parsed.proposal in "HTR":
            given = [] if self.given is None else list(self.given)
        return StreamingSegmenter(self.method, given=given, **self.options)


class EventFormer:
    """Feeds one segmenter, or one for each layer, and fills the units they cut.

    Parameters
    ----------
    forming : how.
    n_segmenters : 1, or the number of layers.
    skip : tokens read before the text (a start token): they belong to the first event.
    """

    def __init__(self, forming: Forming, n_segmenters: int, skip: int) -> None:
        self.forming = forming
        self._skip = skip
        self._segmenters = [forming.segmenter() for _ in range(n_segmenters)]
        self.given: list[int] = list(forming.given or ())
        self.units = [Units() for _ in range(n_segmenters)]
        self._strengths: list[list[float]] = [[] for _ in range(n_segmenters)]

    @property
    def n(self) -> int:
        """Tokens of the text fed."""
        return self._segmenters[0].n

    def expect(self, starts: Iterable[int]) -> None:
        """Further starts, in tokens of the text, that were found in what will be read next."""
        found = [int(start) for start in starts]
        self.given += found
        for segmenter in self._segmenters if found else ():
            segmenter.more_given(found)

    def feed(
        self, values: NDArray[np.float64], keys: list[NDArray[np.floating[Any]]] | None
    ) -> None:
        """Take in the next tokens: the signal (m,) and each segmenter's keys (heads, m, d)."""
        for row, segmenter in enumerate(self._segmenters):
            events = segmenter.feed(values, None if keys is None else keys[row], n=len(values))
            for event in events:
                self.units[row].add(event.end + self._skip)
                self._strengths[row].append(event.strength)

    def events(self, row: int = 0) -> Boundaries:
        """The events so far, as `segment` would cut what was read so far."""
        segmenter = self._segmenters[row]
        tail = segmenter.preview()
        edges = self.units[row].edges()
        starts = [0, *(int(edge) - self._skip for edge in edges[1:])]
        strengths = list(self._strengths[row])
        starts = starts[: len(strengths)]
        starts += [event.start for event in tail]
        strengths += [event.strength for event in tail]
        marked = self.forming.parsed.proposal in "SBE"
        return Boundaries(
            np.array(starts, dtype=np.int64),
            segmenter.n,
            unit="token",
            strength=strengths[1:] if marked else None,
            open=tail[-1].open,
            method=self.forming.method,
            settings={"online": True, "per": self.forming.per, **self.forming.options},
        )

    def copy(self) -> dict[str, Any]:
        """What `restore` needs to come back to now."""
        return {
            "segmenters": [segmenter.copy() for segmenter in self._segmenters],
            "counts": [units.n for units in self.units],
            "given": len(self.given),
        }

    def restore(self, copied: dict[str, Any]) -> None:
        """Back to a copy made earlier."""
        self._segmenters = [segmenter.copy() for segmenter in copied["segmenters"]]
        del self.given[copied["given"] :]
        for row, count in enumerate(copied["counts"]):
            self.units[row].truncate(count)
            del self._strengths[row][count:]
