"""One story under one model: record, cut by each method, measure, and fill the table's rows."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.analysis.nulls import lengths_degenerate, null_note, null_starts
from workbench.comparison.graph_rows import GraphMeasures
from workbench.comparison.human_rows import HumanMeasures
from workbench.core.boundaries import Boundaries
from workbench.core.errors import DataError
from workbench.core.story import Story
from workbench.core.trace import Trace
from workbench.events.methods import parse_method, segment
from workbench.events.proposals import even_starts
from workbench.tasks.systems import SystemSpec

if TYPE_CHECKING:
    from workbench.core.keygraph import KeyGraph
    from workbench.models import LanguageModel

__all__ = ["Outcome", "Settings", "compare_one"]


@dataclass(frozen=True)
class Settings:
    """The arguments of `compare`, checked; see there."""

    methods: tuple[str, ...]
    gamma: float
    match: str | None
    nulls: tuple[str, ...]
    draws: int
    bootstrap: int
    seed: int
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    min_size: int
    max_size: int | None
    scope: str
    source: str | None
    time_rule: str
    condition: str | None
    cache: bool
    systems: tuple[SystemSpec, ...] = ()
    """The memory systems among the methods; their labels stand in `methods`, too."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for files."""
        plain = asdict(replace(self, systems=()))
        return plain | {"systems": {spec.label: spec.settings() for spec in self.systems}}


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one story under one model contributes to a `Comparison`."""

    story: str
    rows: list[dict[str, Any]]
    words: pd.DataFrame
    events: dict[tuple[str, str, str], Boundaries]
    reference: Boundaries | None
    density: pd.DataFrame | None
    sensitivity: pd.DataFrame
    recording: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def compare_one(
    story: Story, model: LanguageModel | str, settings: Settings, *, progress: bool = False
) -> Outcome:
    """Record one story, cut it by every method and measure every cut.

    Parameters
    ----------
    story, model, settings : what to read, with what (loaded, or by name: a recording that is
        in the cache then needs no model), and how to compare.
    progress : show bars on standard error.
    """
    from tqdm import tqdm

    from workbench.recording.cache import cached_record

    trace = cached_record(
        story,
        model,
        layers=settings.layers,
        heads=settings.heads,
        progress=progress,
        cache=settings.cache,
    )
    name, provenance = trace.settings["model"], trace.settings["provenance"]
    graphs = GraphMeasures.of(trace, settings.bootstrap, settings.seed)
    human = HumanMeasures.of(trace, settings)
    rows: list[dict[str, Any]] = []
    cuts: dict[tuple[str, str, str], Boundaries] = {}
    systems = {spec.label: spec for spec in settings.systems}
    bar = tqdm(settings.methods, desc=f"{story.name}: methods", disable=not progress, leave=False)
    for code in bar:
        if code in systems:
            events, notes = _read(trace, systems[code], model, settings.match)
            gamma = events.settings.get("gamma", np.nan)
            match = "none" if settings.match == "people" else settings.match
        else:
            events, notes = _cut(trace, code, settings, human.count, graphs.refinement)
            gamma = settings.gamma if parse_method(code).proposal in THRESHOLDS else np.nan
            match = settings.match
        fixed = Boundaries(even_starts(events.n, events.n_events - 1), events.n, method="F")
        events_in_words = trace.to_words(events)
        cuts[story.name, name, code] = events_in_words
        common = {
            "story": story.name,
            "annotation": story.annotation_kind or "",
            "model": name,
            "method": code,
            "gamma": gamma,
            "match": match or "none",
            "n_events": events.n_events,
            "seed": settings.seed,
            "provenance": provenance,
        }
        for null, note, starts in _null_draws(events, settings):
            said = _sentences([*notes, note])
            measured = itertools.chain(
                graphs.rows(events, starts, fixed), human.rows(events, starts, fixed)
            )
            rows += [
                {**common, "null": null, **row, "note": _sentences([said, row["note"]])}
                for row in measured
            ]
    words = trace.words()[["word", "onset", "surprisal"]]
    words.insert(0, "model", name)
    words.insert(0, "story", story.name)
    return Outcome(
        story=story.name,
        rows=rows,
        words=words,
        events=cuts,
        reference=human.boundaries(),
        density=human.density(),
        sensitivity=human.sensitivity(name, cuts),
        recording={"story": story.name, **trace.settings},
        notes=[*(f"{story.name}: {note}" for note in story.notes), *graphs.notes, *human.notes],
    )


def _read(
    trace: Trace, spec: SystemSpec, model: LanguageModel | str, match: str | None
) -> tuple[Boundaries, list[str]]:
    """The events that a memory system forms while it reads the story.

    They are what its memory consists of, so all of them count, whatever the matching rule.
    """
    from workbench.recording.cache import loaded_model

    lm = loaded_model(model) if isinstance(model, str) else model
    system = spec.make(lm)
    system.reset()
    events: Boundaries = system.read(trace.story).events
    if events.n != trace.n_tokens:
        raise DataError(
            f"{spec.label} read {events.n} tokens of {trace.story.name}, and its recording has "
            f"{trace.n_tokens}; a system must read the story as it is, with its own model."
        )
    notes = [f"events formed while reading ({_window(system)})"]
    if match == "people":
        notes.append("a memory keeps all of its events, so their number is not matched to people's")
    return events, notes


def _window(system: Any) -> str:
    settings = system.settings
    return f"n_local {settings.n_local}, n_mem {settings.n_mem}, chunk {settings.chunk}"


def _cut(
    trace: Trace, code: str, settings: Settings, count: int | None, graph: KeyGraph | None
) -> tuple[Boundaries, list[str]]:
    """A method's events with the number of boundaries that the matching rule asks for."""
    method = parse_method(code)
    options: dict[str, Any] = {
        "gamma": settings.gamma,
        "min_size": settings.min_size,
        "max_size": settings.max_size,
        "scope": settings.scope,
        "seed": settings.seed,
        "source": settings.source,
        "time_rule": settings.time_rule,
        "consensus": {} if settings.condition is None else {"condition": settings.condition},
        "graph": graph,
    }
    wanted: int | None = None
    if settings.match == "people" and method.argument is None:
        wanted = count
    notes = []
    if settings.match == "people" and count is None:
        notes.append("no boundaries to match the count to, so the method keeps its own")
    if method.proposal == "H":
        wanted = None
        if settings.match == "method":
            # The paper's rule: as many of people's positions as the surprise method found.
            wanted = segment(trace, "S", **options).n_events - 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        events = segment(trace, code, n_boundaries=wanted, **options)
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            notes.append(str(warning.message))
    if "note" in events.settings:
        notes.append(str(events.settings["note"]))
    return events, notes


def _null_draws(
    events: Boundaries, settings: Settings
) -> Iterator[tuple[str, str, np.ndarray[Any, np.dtype[np.int64]]]]:
    """(name, note, draws) of each null asked for; `shift` where `lengths` says nothing."""
    done = set()
    for asked in settings.nulls:
        null, note = asked, ""
        if asked == "lengths" and lengths_degenerate(events):
            null, note = "shift", "null shift, since the events' lengths are all alike"
        if null in done:
            continue
        done.add(null)
        rng = np.random.default_rng([settings.seed, _NULL_STREAM[null]])
        starts = null_starts(events, null, settings.draws, rng, settings.min_size)
        yield null, note or null_note(events, null, settings.min_size), starts


# Proposals that threshold a signal by gamma.
THRESHOLDS = ("S", "B", "E")

# Every null has its own stream of random numbers, so that adding one changes no other.
_NULL_STREAM = {"lengths": 1, "uniform": 2, "min_gap": 3, "shift": 4}


def _sentences(parts: list[str]) -> str:
    return "; ".join(dict.fromkeys(part for part in parts if part))
