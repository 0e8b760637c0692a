"""Segmentation methods by code: a proposal (S, F, R, H), then a refinement (none, M, C).

    segment(trace, "SM")     surprisal threshold, refined by modularity
    segment(trace, "F:64")   events of 64 tokens
    methods_table()          every part with its source

A new refinement is one row of `REFINEMENTS`, a new proposal one row of `PROPOSALS`; every
combination of the two is then a method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.trace import Trace
from workbench.events.proposals import PROPOSALS, Options, Proposal

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
class Refinement:
    """One row of `REFINEMENTS`.

    Parameters
    ----------
    code : the letter in a method's code ("" for none).
    name, description, source : for tables, `--help` and the README.
    objective : what `refine` optimises, or None.
    """

    code: str
    name: str
    description: str
    source: str
    objective: str | None


REFINEMENTS: dict[str, Refinement] = {
    row.code: row
    for row in (
        Refinement("", "none", "The proposal as it is.", "", None),
        Refinement(
            "M",
            "modularity",
            "Each boundary moves to where the two events beside it have the highest modularity "
            "in the key-similarity graph.",
            "Fountas et al. 2025 (EM-LLM), section 3.3, Equation 3 and Algorithm 1",
            "modularity",
        ),
        Refinement(
            "C",
            "conductance",
            "Each boundary moves to where the two events beside it have the lowest conductance "
            "in the key-similarity graph.",
            "Fountas et al. 2025 (EM-LLM), section 3.3, Equation 4 and Algorithm 1",
            "conductance",
        ),
    )
}


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
) -> Boundaries:
    """Cut what a model read into events.

    Proposal, then size limits (or the n_boundaries strongest), then refinement. Matching acts on
    the proposal, and refinement moves boundaries without adding or removing any: a refined
    method has exactly the number of boundaries of its proposal, so that S and SM differ in
    placement only. (Rule "reference" drops boundaries closer than `min_size` to the one before,
    which S never proposes.) Refinement comes after `max_size`, and may leave a longer
    event.

    Parameters
    ----------
    trace : what the model did; its text is what is cut.
    method : a code, see `methods_table` ("S", "SM", "SC", "F", "FM", "F:64", "R", "H", ...).
    gamma : S: sds above the mean that surprisal must exceed.
    n_boundaries : S: the k strongest flags at least `min_size` apart, not merged, not split (if
        there are fewer, all of them; `settings` says so). F, R: k boundaries; None: as many as S
        finds with the same arguments. F with a length ("F:64") keeps its length. H: if people's
        list has another number, the k most likely positions from their presses.
    window, min_values, chunk, n_local, n_init : S: see `threshold_flags`. With window="chunk" a
        refined method's first chunk is judged by the whole chunk, as in the released code.
    start : S: "surprising" or "before", see `surprise_boundaries`.
    min_size, max_size, short : tokens per event, see `size_events`; max_size None: no limit.
    layers, heads : layers and key-value heads whose keys make the graph, weights added; None:
        the last third of the layers, all heads.
    graph : a KeyGraph over the trace's tokens, used instead (weights added if it has several).
    rule, scope, variant, refine_window : refinement, see `refine`.
    seed : R: seed of the draw.
    gap : R: smallest event; 1: uniform over all positions (the paper's baseline).
    source, time_rule, consensus : H: which list ("published", "presses", ...), how a time
        becomes a word, and further options of the consensus recipe.

    Returns
    -------
    Boundaries over tokens, with the method's code, its settings and, where the proposal has
    one, the strength of each boundary.

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
    )
    proposed = PROPOSALS[parsed.proposal].propose(trace, options)
    settings: dict[str, Any] = {"method": asdict(parsed), **proposed.settings}
    objective = REFINEMENTS[parsed.refinement].objective
    if objective is None:
        return proposed.with_(method=parsed.code, settings=settings)

    from workbench.events.refinement import refine

    graph, made_of = _graph(trace, layers, heads, graph)
    # The released code refines chunk by chunk where it thresholds chunk by chunk.
    in_chunks = rule == "reference" and window == "chunk"
    refined = refine(
        graph,
        proposed,
        objective=objective,
        rule=rule,
        scope=scope,
        min_size=min_size,
        window=refine_window,
        variant=variant,
        chunk=chunk if in_chunks else None,
    )
    settings |= {"refinement": refined.settings["refinement"], "graph": made_of}
    return refined.with_(method=parsed.code, settings=settings)


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
