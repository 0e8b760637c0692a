"""Segmentation methods by code: a proposal (S, F, R, H, ...), then a refinement (none, M, C, O).

    segment(trace, "SM")     surprisal threshold, refined by modularity
    segment(trace, "F:64")   events of 64 tokens
    segment(trace, "SO")     the optimum of modularity with as many events as S
    methods_table()          every part with its source

A new refinement is one row of `REFINEMENTS`, a new proposal one row of `PROPOSALS`; every
combination of the two is then a method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, overload

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.core.trace import Trace
from workbench.events.proposal import Options, Proposal
from workbench.events.proposals import PROPOSALS
from workbench.events.refinements import REFINEMENTS, Moves, Refinement

if TYPE_CHECKING:
    import pandas as pd

    from workbench.core.keygraph import KeyGraph

__all__ = [
    "REFINEMENTS",
    "Method",
    "Refinement",
    "method_codes",
    "methods_table",
    "parse_method",
    "segment",
]


@dataclass(frozen=True)
class Method:
    """A parsed method code.

    Parameters
    ----------
    proposal : key of `PROPOSALS`.
    refinement : key of `REFINEMENTS`, "" for none.
    argument : the number after a colon ("F:64"), or None.
    """

    proposal: str
    refinement: str = ""
    argument: int | None = None

    @property
    def code(self) -> str:
        """The code as it stands in tables: "SM", "F:64"."""
        suffix = "" if self.argument is None else f":{self.argument}"
        return f"{self.proposal}{self.refinement}{suffix}"

    @property
    def description(self) -> str:
        """In words: "surprisal threshold, refined by modularity"."""
        words = PROPOSALS[self.proposal].name
        if self.argument is not None:
            words += f" ({self.argument} tokens)"
        if self.refinement:
            words += f", refined by {REFINEMENTS[self.refinement].name}"
        return words


def parse_method(code: str | Method) -> Method:
    """Read a method code such as "S", "FM", "F:64" or "FC:64" (capitals or not).

    Raises
    ------
    InputError : the code is unknown (the message lists the valid ones), or asks for a contiguity
        buffer, which is part of a memory system and not of a segmentation.
    """
    if isinstance(code, Method):
        return code
    text = str(code).strip().upper()
    if "+" in text:
        raise InputError(
            f"method {code!r}: '+C' adds a contiguity buffer, which belongs to what a memory "
            f"system recalls and does not change where events start; use {text.split('+')[0]!r}."
        )
    letters, colon, number = text.partition(":")
    known = letters[:1] in PROPOSALS and letters[1:] in REFINEMENTS
    if not known:
        raise InputError(f"method {code!r} is not known. Choose one of: {_listed()}.")
    if not colon:
        return Method(letters[0], letters[1:])
    if not PROPOSALS[letters[0]].takes_argument:
        takers = ", ".join(row.code for row in PROPOSALS.values() if row.takes_argument)
        raise InputError(f"method {code!r}: only {takers} takes a number after the colon.")
    if not number.isdecimal() or int(number) < 1:
        raise InputError(
            f"method {code!r}: after the colon stands the number of tokens per event, as in "
            f"'{letters}:64'."
        )
    return Method(letters[0], letters[1:], int(number))


def method_codes() -> list[str]:
    """All codes, without arguments: every proposal with every refinement."""
    return [a + b for a in PROPOSALS for b in REFINEMENTS]


def methods_table() -> pd.DataFrame:
    """Proposals and refinements with what they do and where they come from.

    Columns: part ("proposal" or "refinement"), code, name, description, source.
    """
    import pandas as pd

    rows: list[tuple[str, Proposal | Refinement]] = [
        *(("proposal", row) for row in PROPOSALS.values()),
        *(("refinement", row) for row in REFINEMENTS.values() if row.code),
    ]
    fields = ("code", "name", "description", "source")
    return pd.DataFrame(
        [{"part": part, **{name: getattr(row, name) for name in fields}} for part, row in rows]
    )


@overload
def segment(
    trace: Trace, method: str | Method, *, per: None = None, **options: Any
) -> Boundaries: ...
@overload
def segment(
    trace: Trace, method: str | Method, *, per: Literal["layer"], **options: Any
) -> dict[int, Boundaries]: ...
@overload
def segment(
    trace: Trace, method: str | Method, *, per: Literal["head"], **options: Any
) -> dict[tuple[int, int], Boundaries]: ...
def segment(
    trace: Trace,
    method: str | Method,
    *,
    gamma: float = 1.0,
    n_boundaries: int | None = None,
    window: int | str = 512,
    start: str = "surprising",
    min_size: int = 8,
    max_size: int | None = 128,
    short: str = "merge",
    layers: int | Iterable[int] | None = None,
    heads: int | Iterable[int] | None = None,
    graph: KeyGraph | None = None,
    rule: str = "paper",
    scope: str = "next",
    variant: str | None = None,
    refine_window: int = 512,
    seed: int = 0,
    gap: int = 1,
    source: str | None = None,
    time_rule: str = "next",
    consensus: Mapping[str, Any] | None = None,
    min_values: int = 16,
    chunk: int = 512,
    n_local: int = 4096,
    n_init: int = 128,
    optimum: str = "exactly",
    per: Literal["layer", "head"] | None = None,
    **more: Any,
) -> Boundaries | dict[int, Boundaries] | dict[tuple[int, int], Boundaries]:
    """Cut what a model read into events.

    Proposal, then size limits (or the n_boundaries strongest), then refinement. Matching acts on
    the proposal, and refinement moves boundaries without adding or removing any: a refined
    method has exactly the number of boundaries of its proposal, so that S and SM differ in
    placement only. (Rule "reference" drops boundaries closer than `min_size` to the one before,
    which S never proposes.) Refinement comes after `max_size`, and may leave a longer
    event.

    Refinement O takes only the number of events from its proposal. Its events have at least
    `min_size` tokens (the last as few as the proposal's last) and at most twice `max_size`, or
    twice the proposal's longest event, which is how long M can make them; with n_boundaries, where
    S has no maximum, neither has O. So SO is never below SM.

    Parameters
    ----------
    trace : what the model did; its text is what is cut.
    method : a code, see `methods_table` ("S", "SM", "SC", "F", "FM", "F:64", "R", "H", ...).
    gamma : S, B, E: sds above the mean that the signal must exceed.
    n_boundaries : k boundaries; None: the method's own number. S, B, E: the k strongest flags
        at least `min_size` apart, not merged, not split (if there are fewer, all of them;
        `settings` says so). P: the k most probable. F, R, K, V: k; None: as many as S finds with
        the same arguments. F with a length ("F:64") keeps its length. G: k; None: its own
        choice. T: not followed. H: if people's list has another number, the k most likely
        positions from their presses.
    window, min_values, chunk, n_local, n_init : S, B, E: see `threshold_flags`. With
        window="chunk" a refined method's first chunk is judged by the whole chunk, as in the
        released code.
    start : S, B, E: "surprising" or "before", see `surprise_boundaries`.
    min_size, max_size, short : tokens per event, see `size_events`; max_size None: no limit.
    layers, heads : layers and key-value heads whose keys make the graph, weights added, and the
        patterns that G, V and K cut; None: the last third of the layers, all heads.
    graph : a KeyGraph over the trace's tokens, used to refine instead (weights added if it has
        several).
    rule, scope, variant, refine_window : refinement M and C, see `refine`.
    optimum : refinement O: "exactly" as many events as the proposal, "at most" so many, or
        "free", any number of at most `max_size` tokens (the proposal is then of no consequence).
    seed : R: seed of the draw.
    gap : R: smallest event; 1: uniform over all positions (the paper's baseline).
    source, time_rule, consensus : H: which list ("published", "presses", ...), how a time
        becomes a word, and further options of the consensus recipe.
    per : "layer": refine on each layer's own graph (its heads' weights added), "head": on each
        head's; for methods that use keys.
    more : what only this proposal has (`PROPOSALS[code].options` lists names and defaults); see
        `change_points` (P), `kernel_boundaries` (K), `state_boundaries` (G), `hmm_boundaries` (V).

    Returns
    -------
    Boundaries over tokens, with the method's code, its settings and, where the proposal has
    one, the strength of each boundary. With `per`, a dict of them by layer, or by (layer, head).

    Raises
    ------
    InputError : an unknown code or option.
    MissingDataError : H without people's boundaries or word times; a refinement without keys.

    Warns
    -----
    UserWarning : no token exceeds the surprise threshold.
    """
    parsed = parse_method(method)
    options = Options(
        argument=parsed.argument,
        n_boundaries=n_boundaries,
        gamma=float(gamma),
        window=window,
        min_values=min_values,
        chunk=chunk,
        n_local=n_local,
        n_init=n_init,
        first_chunk="whole" if parsed.refinement else "init",
        start=start,
        min_size=min_size,
        max_size=max_size,
        short=short,
        gap=gap,
        seed=seed,
        time_rule=time_rule,
        source=source,
        consensus=dict(consensus or {}),
        layers=layers,
        heads=heads,
        more=_own_options(parsed, more),
    )
    moves = Moves(
        rule=rule,
        scope=scope,
        variant=variant,
        min_size=min_size,
        max_size=max_size,
        window=refine_window,
        # The released code refines chunk by chunk where it thresholds chunk by chunk.
        chunk=chunk if rule == "reference" and window == "chunk" else None,
        matched=n_boundaries is not None,
        optimum=optimum,
    )
    if per is not None:
        return _segment_each(trace, parsed, options, moves, per, graph)
    return _segment_one(trace, parsed, options, moves, graph)


def _segment_one(
    trace: Trace, parsed: Method, options: Options, moves: Moves, graph: KeyGraph | None
) -> Boundaries:
    proposed = PROPOSALS[parsed.proposal].propose(trace, options)
    return _refined(trace, proposed, parsed, options, moves, graph)


def _refined(
    trace: Trace,
    proposed: Boundaries,
    parsed: Method,
    options: Options,
    moves: Moves,
    graph: KeyGraph | None,
) -> Boundaries:
    settings: dict[str, Any] = {"method": asdict(parsed), **proposed.settings}
    apply = REFINEMENTS[parsed.refinement].refine
    if apply is None:
        return proposed.with_(method=parsed.code, settings=settings)
    graph, made_of = _graph(trace, options.layers, options.heads, graph)
    refined = apply(graph, proposed, moves)
    settings |= {"refinement": refined.settings["refinement"], "graph": made_of}
    return refined.with_(method=parsed.code, settings=settings)


def _segment_each(
    trace: Trace, parsed: Method, options: Options, moves: Moves, per: str, graph: KeyGraph | None
) -> dict[int, Boundaries] | dict[tuple[int, int], Boundaries]:
    """One cut for each layer, or for each layer and head."""
    check_option("per", per, ["layer", "head"])
    if graph is not None:
        raise InputError(f"per={per!r} makes a graph for each {per}; leave out graph=.")
    row = PROPOSALS[parsed.proposal]
    keyed = row.uses_keys(options)
    if not keyed and REFINEMENTS[parsed.refinement].refine is None:
        raise InputError(
            f"per={per!r} cuts the keys of each {per}, and method {parsed.code!r} uses no keys: "
            f"all cuts would be the same. Refine it ({parsed.proposal}M, {parsed.proposal}C, "
            f"{parsed.proposal}O)."
        )
    layers = _numbers(trace.layers.tolist() if options.layers is None else options.layers)
    heads = _numbers(trace.kv_heads.tolist() if options.heads is None else options.heads)
    if not layers:
        trace.keys()  # an error that says how to record them
    shared = None if keyed else row.propose(trace, options)

    def cut(layer: int, chosen: int | list[int]) -> Boundaries:
        here = replace(options, layers=layer, heads=chosen)
        proposed = row.propose(trace, here) if shared is None else shared
        return _refined(trace, proposed, parsed, here, moves, None)

    if per == "layer":
        return {layer: cut(layer, heads) for layer in layers}
    return {(layer, head): cut(layer, head) for layer in layers for head in heads}


def _own_options(parsed: Method, given: Mapping[str, Any]) -> dict[str, Any]:
    """The proposal's own options, those given in the place of the defaults."""
    known = PROPOSALS[parsed.proposal].options
    for name in given:
        if name not in known:
            takes = f"; method {parsed.proposal} has {', '.join(known)}" if known else ""
            others = [row.code for row in PROPOSALS.values() if name in row.options]
            whose = f" It belongs to method {', '.join(others)}." if others else ""
            raise InputError(
                f"method {parsed.code!r} has no argument {name!r} (see segment{takes}).{whose}"
            )
    return {**known, **given}


def _graph(
    trace: Trace,
    layers: int | Iterable[int] | None,
    heads: int | Iterable[int] | None,
    graph: KeyGraph | None,
) -> tuple[KeyGraph, dict[str, Any]]:
    """The one graph to refine on, and what it is made of."""
    if graph is not None:
        if graph.n != trace.n_tokens:
            raise InputError(
                f"graph has {graph.n} tokens and the trace {trace.n_tokens}; build it from the "
                "same trace (trace.key_graph())."
            )
        return graph.summed(), {"given": True}
    if layers is None and "key" in trace.dataset:
        layers = trace.last_third().tolist()
    chosen = _numbers(trace.layers.tolist() if layers is None else layers)
    columns = _numbers(trace.kv_heads.tolist() if heads is None else heads)
    built = trace.key_graph(chosen, columns).summed()
    return built, {"layers": chosen, "heads": columns}


def _numbers(choice: int | Iterable[int]) -> list[int]:
    return [int(number) for number in (choice if isinstance(choice, Iterable) else [choice])]


def _listed() -> str:
    codes = method_codes()
    takers = [row.code for row in PROPOSALS.values() if row.takes_argument]
    return ", ".join(codes + [f"{code}:64" for code in takers])
