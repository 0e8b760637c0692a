"""Stories × models × methods: the comparison of EM-LLM's Figure 4 and Table 2."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import pandas as pd

from workbench.analysis.nulls import NULLS
from workbench.analysis.reference import MATCHES, has_presses
from workbench.comparison.result import Comparison
from workbench.comparison.table import as_table
from workbench.comparison.task import Outcome, Settings, compare_one
from workbench.core.checks import check_option, whole_number
from workbench.core.errors import InputError, MissingDataError
from workbench.core.story import Story
from workbench.events.methods import parse_method
from workbench.events.refinement import SCOPES
from workbench.events.sizes import check_sizes
from workbench.stories.timing import RULES
from workbench.tasks.systems import SystemSpec, system_specs

if TYPE_CHECKING:
    from workbench.models import LanguageModel

__all__ = ["DEFAULT_METHODS", "compare"]

SystemMaker = Callable[..., Any]
"""A function of a language model that makes a memory system."""

SYSTEMS = ("infllm", "window", "full")
"""Names of systems beside those that begin with "emllm-"."""

DEFAULT_METHODS = ("S", "SM", "SC", "F", "FM", "FC", "R")


def compare(
    stories: str | Path | Story | Sequence[str | Path | Story] | None = None,
    methods: str | SystemMaker | Sequence[str | SystemMaker] | None = None,
    model: str | Path | LanguageModel | Sequence[str | Path | LanguageModel] = "smollm2-135m",
    *,
    gamma: float = 1.0,
    match: str | None = "people",
    null: str | Sequence[str] = "lengths",
    draws: int = 1000,
    bootstrap: int = 500,
    seed: int = 0,
    layers: int | Iterable[int] | None = None,
    heads: int | Iterable[int] | None = None,
    min_size: int = 8,
    max_size: int | None = 128,
    scope: str = "next",
    source: str | None = None,
    time_rule: str = "next",
    condition: str | None = None,
    cache: bool = True,
    systems: Mapping[str, Any] | None = None,
    n_jobs: int | None = None,
    progress: bool = False,
) -> Comparison:
    """Cut stories into events by several methods and compare the cuts with people's.

    For each story and model: the model reads the story once; each method cuts it; each cut gets
    its graph measures (modularity, conductance, intra/inter similarity, per layer and head of the
    model's keys) and its distances to people's boundaries (Wasserstein, and Hamming over sentence
    gaps), each beside its null, the evenly spaced segmentation with as many events, and what
    people reach among themselves (Fountas et al. 2025, Figure 4 and Table 2; Michelmann et al.
    2023). Stories without people are compared with their author, and say so.

    Parameters
    ----------
    stories : names, files or Story objects; default: the bundled stories.
    methods : method codes; default: S, SM, SC, F, FM, FC and R, and H where every story has
        people's boundaries in words. Memory systems may stand among them, by name ("emllm-S",
        "emllm-SM+C", "infllm") or as a function of a language model that makes one: the system
        reads the story, and the events it formed are the cut. Its name (the function's) is the
        method. All of its events count, with match="people", too, and the rows say so.
    model : name(s) as in `load_model`, or loaded model(s).
    gamma : threshold of surprise in standard deviations.
    match : how many boundaries are compared. "people": as many as people (the strongest of each
        method); "method": people's most likely positions, as many as the method's (the paper's
        rule, needs people's presses); None: each side its own number.
    null : one or several of "lengths", "uniform", "min_gap", "shift", see
        `workbench.analysis.nulls`. Where "lengths" is degenerate (evenly spaced events), "shift"
        takes its place, and the row says so.
    draws : random segmentations per null.
    bootstrap : resamples of events (graph measures) and of people (distances) per interval.
    seed : of everything random: same seed, same numbers.
    layers, heads : whose keys are measured; default: all. Refinement uses the last third of the
        layers among them.
    min_size, max_size, scope : see `segment` and `refine`.
    source : people's list, "published" or "presses"; default: published where there is one.
    time_rule : how people's times become words for the Wasserstein distance and for H.
    condition : of people's presses, where they listened under several; default: see
        `workbench.stories.consensus.story_consensus`.
    cache : keep and reuse recordings, see `workbench.recording.cache`.
    systems : options of the systems that are named among the methods (n_local, n_mem, chunk, ...),
        as in `make_system`; a system's gamma is its own, not that above.
    n_jobs : stories and models worked on at once, see `joblib.Parallel`; None: one, or what an
        enclosing `joblib.parallel_config` says (which can also send them to a cluster).
    progress : show bars on standard error.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError : an unknown method, null, rule or story.
    MissingDataError : H for a story without people's boundaries in words.
    """
    from workbench.stories.bundled import bundled_names
    from workbench.stories.library import load_story

    named = bundled_names() if stories is None else _listed(stories)
    loaded = [item if isinstance(item, Story) else load_story(item) for item in named]
    _check_distinct([story.name for story in loaded])
    with_people = all(_has_people_in_words(story) for story in loaded)
    if methods is None:
        methods = [*DEFAULT_METHODS, "H"] if with_people else list(DEFAULT_METHODS)
    given = _listed(methods)
    specs = _systems([method for method in given if _is_system(method)], systems)
    labels = iter([spec.label for spec in specs])
    codes = [next(labels) if _is_system(m) else parse_method(m).code for m in given]
    _check_distinct(codes)
    nulls = tuple(_listed(null))
    for name in nulls:
        check_option("null", name, NULLS)
    check_option("match", match, MATCHES)
    check_option("scope", scope, SCOPES)
    check_option("time_rule", time_rule, RULES)
    _check_distinct(nulls)
    named_systems = {spec.label for spec in specs}
    if any(code.startswith("H") for code in codes if code not in named_systems):
        _refuse_without_people(loaded, match)
    settings = Settings(
        methods=tuple(codes),
        gamma=_finite("gamma", gamma),
        match=match,
        nulls=nulls,
        # a spread needs two
        draws=whole_number("draws", draws, 2),
        bootstrap=whole_number("bootstrap", bootstrap, 2),
        seed=whole_number("seed", seed),
        layers=_numbers("layers", layers),
        heads=_numbers("heads", heads),
        min_size=whole_number("min_size", min_size, 1),
        max_size=None if max_size is None else whole_number("max_size", max_size, 1),
        scope=scope,
        source=source,
        time_rule=time_rule,
        condition=condition,
        cache=cache,
        systems=tuple(specs),
    )
    check_sizes(settings.min_size, settings.max_size)
    models = [str(m) if isinstance(m, Path) else m for m in _listed(model)]
    for lm in models:
        if not (isinstance(lm, str) or hasattr(lm, "tokenizer")):
            raise InputError(f"model={lm!r}: give a name, a path or a loaded model.")
    _check_distinct([m if isinstance(m, str) else m.name for m in models])
    # One task per story and model, each independent of the others.
    outcomes = joblib.Parallel(n_jobs=n_jobs)(
        joblib.delayed(compare_one)(story, lm, settings, progress=progress)
        for lm, story in itertools.product(models, loaded)
    )
    return _joined(outcomes, settings)


def _is_system(method: Any) -> bool:
    """A memory system, and not the code of a method."""
    if callable(method):
        return True
    name = str(method)
    return name.startswith("emllm-") or name in SYSTEMS


def _systems(given: list[Any], options: Mapping[str, Any] | None) -> list[SystemSpec]:
    """The systems among the methods; those that form no events are refused."""
    for name in ("window", "full"):
        if name in given:
            raise InputError(
                f"{name!r} keeps no events, so there is no cut to compare; leave it out."
            )
    if options and not any(isinstance(system, str) for system in given):
        raise InputError(
            f"systems={dict(options)!r} are options of systems named among the methods, and there "
            "is none; name one, e.g. 'emllm-S'."
        )
    return system_specs(given, options) if given else []


def _joined(outcomes: Sequence[Outcome], settings: Settings) -> Comparison:
    from workbench import __version__

    described = {
        # lists, as they come back from a file
        **{k: list(v) if isinstance(v, tuple) else v for k, v in settings.as_dict().items()},
        "recordings": [outcome.recording for outcome in outcomes],
        "notes": list(dict.fromkeys(n for outcome in outcomes for n in outcome.notes)),
        "version": __version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return Comparison(
        table=as_table([row for outcome in outcomes for row in outcome.rows]),
        settings=described,
        words=_stacked([outcome.words for outcome in outcomes]),
        events={key: cut for outcome in outcomes for key, cut in outcome.events.items()},
        references={
            outcome.story: outcome.reference
            for outcome in outcomes
            if outcome.reference is not None
        },
        density=_stacked([o.density for o in outcomes if o.density is not None]).drop_duplicates(),
        sensitivity=_stacked([outcome.sensitivity for outcome in outcomes]),
    )


def _stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return frames[0] if frames else pd.DataFrame({"story": pd.Series(dtype="str")})
    return pd.concat(filled, ignore_index=True)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()] or [value]
    if isinstance(value, (set, frozenset)):
        raise InputError(f"{value!r} has no order, and rows follow the order given; give a list.")
    if not isinstance(value, Iterable):
        return [value]
    items = list(value)
    if not items:
        raise InputError("an empty list was given; leave the argument out for the default.")
    return items


def _numbers(name: str, value: int | Iterable[int] | None) -> tuple[int, ...] | None:
    """Layers or heads as whole numbers; which of them the model has is told when it is known."""
    if value is None:
        return None
    given = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    return tuple(whole_number(name, number, least=None) for number in given)


def _finite(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name}={value!r} must be a finite number.")
    return number


def _check_distinct(names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{', '.join(repeated)} was given more than once.")


def _has_people_in_words(story: Story) -> bool:
    return story.annotation_kind == "people" and story.has_times


def _refuse_without_people(stories: Sequence[Story], match: str | None) -> None:
    reasons = []
    for story in stories:
        if story.annotation_kind != "people":
            has = "only the author's scenes" if story.annotation_kind else "no annotation"
            reasons.append(f"{story.name} has {has}")
        elif not story.has_times:
            reasons.append(f"{story.name} has people's times but no public word times")
        elif match == "method" and not has_presses(story):
            reasons.append(f"{story.name} has no presses to rank people's positions by")
    if reasons:
        raise MissingDataError(
            f"method H cuts at people's boundaries, but {'; '.join(reasons)}. Leave H out, or "
            "choose stories with people (workbench stories)."
        )
