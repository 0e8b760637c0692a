"""Communities of the key graph found without knowing the order of the text, against events.

Events are contiguous by definition; communities are not. Where Louvain's communities (Blondel et
al. 2008) of a key graph turn out contiguous and agree with a method's events, the keys carry the
segmentation by themselves.

Two things make such an agreement without any structure, and each has its control here: the graph
is cut to a window along the text, which alone makes communities contiguous (control: the same graph
with the positions in random order, `Contiguity.shuffled`); and any two contiguous cuts with events
of similar length agree more than labels at random (control: the events' lengths in random order, or
the events rotated, as in `workbench.analysis.nulls`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.nulls import NULLS, lengths_degenerate, null_starts
from workbench.analysis.statistics import compare_with_null
from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError
from workbench.core.eventgraph import EventGraph

if TYPE_CHECKING:
    import networkx as nx

__all__ = [
    "NEGATIVE",
    "Communities",
    "Contiguity",
    "communities_against_events",
    "contiguity",
    "find_communities",
    "windowed_graph",
]

NEGATIVE = ("error", "clip", "shift")

_LEVELS = 1 << 20
_BLOCK = 256


@dataclass(frozen=True)
class Contiguity:
    """How contiguous labels are along the text.

    Parameters
    ----------
    communities : their number.
    runs : stretches of equal labels; as many as communities where all are contiguous.
    neighbours : share of the n - 1 neighbouring positions that have the same label.
    whole : share of the communities that are one stretch.
    """

    communities: float
    runs: float
    neighbours: float
    whole: float


@dataclass(frozen=True, eq=False)
class Communities:
    """Communities of one graph under several seeds.

    Parameters
    ----------
    labels : community of every position under each seed, shape (seeds, n), numbered by first
        appearance.
    modularity : of each seed's communities in the windowed graph, shape (seeds,).
    contiguity : means over seeds.
    shuffled : the same for the graph with its positions in random order, a new order for each
        seed: how contiguous the window alone makes communities.
    settings : what they were found with.
    """

    labels: NDArray[np.int64]
    modularity: NDArray[np.float64]
    contiguity: Contiguity
    shuffled: Contiguity
    settings: dict[str, Any] = field(default_factory=dict)


def windowed_graph(
    graph: EventGraph,
    *,
    window: int = 64,
    strongest: int | None = 16,
    negative: str = "error",
) -> nx.Graph:
    """The sparse graph of neighbours along the text that communities are sought in.

    Parameters
    ----------
    graph : one graph (`summed()` where there are several heads).
    window : positions i and j are joined if |i - j| ≤ window; a text's full graph has n² edges.
    strongest : of these edges, those that are among the `strongest` of at least one of their
        ends; None keeps all.
    negative : weights below 0, for which modularity has no agreed meaning: "error"; "clip", which
        drops their edges; or "shift", which subtracts the smallest weight of the window from all.

    No self-loops. Weights are rounded to 2⁻²⁰ of the largest: ties that differ by rounding only can
    keep networkx's Louvain moving for ever.

    Raises
    ------
    InputError : negative weights under "error", several graphs, or sizes below 1.
    """
    import networkx as nx

    check_option("negative", negative, NEGATIVE)
    for name, value in (("window", window), ("strongest", strongest)):
        if value is not None and value < 1:
            raise InputError(f"{name}={value} must be at least 1.")
    if graph.n_heads != 1:
        raise InputError(f"there are {graph.n_heads} graphs; take one, or summed().")
    rows, columns, weights = _band(graph, window)
    below = weights < 0
    if below.any():
        if negative == "error":
            raise InputError(
                f"{below.mean():.1%} of the weights in the window are negative, for which "
                "communities have no agreed meaning; choose negative='clip' or 'shift', or a "
                "similarity without them (clipped, rbf)."
            )
        weights = weights - weights.min() if negative == "shift" else np.maximum(weights, 0.0)
    if strongest is not None:
        kept = _strongest(rows, columns, weights, graph.n, strongest)
        rows, columns, weights = rows[kept], columns[kept], weights[kept]
    top = weights.max(initial=0.0)
    if top > 0:
        weights = np.round(weights / top * _LEVELS) / _LEVELS
    found = nx.Graph()
    found.add_nodes_from(range(graph.n))
    some = weights > 0
    found.add_weighted_edges_from(
        zip(rows[some].tolist(), columns[some].tolist(), weights[some].tolist(), strict=True)
    )
    return found


def find_communities(
    graph: EventGraph,
    *,
    window: int = 64,
    strongest: int | None = 16,
    negative: str = "error",
    resolution: float = 1.0,
    seeds: int = 10,
    seed: int = 0,
) -> Communities:
    """Louvain communities of the windowed graph, with several seeds, and the window's own effect.

    Parameters
    ----------
    graph, window, strongest, negative : see `windowed_graph`.
    resolution : of modularity; above 1 makes communities smaller.
    seeds : runs of Louvain, whose result depends on the order in which nodes are visited.
    seed : of all of them.
    """
    if seeds < 1:
        raise InputError(f"seeds={seeds} must be at least 1.")
    options: dict[str, Any] = {"window": window, "strongest": strongest, "negative": negative}
    sparse = windowed_graph(graph, **options)
    rng = np.random.default_rng(seed)
    labels, modularity, control = [], [], []
    for number in rng.integers(2**31, size=seeds).tolist():
        found, value = _louvain(sparse, resolution, number)
        labels.append(found)
        modularity.append(value)
        shuffled = windowed_graph(graph.reordered(rng.permutation(graph.n)), **options)
        control.append(contiguity(_louvain(shuffled, resolution, number)[0]))
    stacked = np.stack(labels)
    return Communities(
        stacked,
        np.array(modularity),
        _mean([contiguity(row) for row in stacked]),
        _mean(control),
        {
            **options,
            "resolution": resolution,
            "seeds": seeds,
            "seed": seed,
            "similarity": graph.similarity,
        },
    )


def contiguity(labels: NDArray[np.int64]) -> Contiguity:
    """How contiguous the labels of n positions are; see `Contiguity`."""
    values = np.asarray(labels)
    if values.ndim != 1 or len(values) == 0:
        raise InputError("labels must be a non-empty one-dimensional sequence.")
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    first = values[np.concatenate([[0], changes])]  # the label of each run
    runs = np.unique(first, return_counts=True)[1]
    same = 1 - len(changes) / (len(values) - 1) if len(values) > 1 else 1.0
    return Contiguity(float(len(runs)), float(len(first)), same, float((runs == 1).mean()))


def communities_against_events(
    found: Communities,
    events: Mapping[str, Boundaries],
    *,
    nulls: Sequence[str] = ("lengths", "shift"),
    draws: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """How far communities agree with methods' events, beside contiguous cuts at random.

    Parameters
    ----------
    found : communities under several seeds.
    events : method → its events, over the same positions.
    nulls, draws : random cuts that take the events' place; "lengths" becomes "shift" where it is
        degenerate (column `null` says so).
    seed : of the draws.

    Returns
    -------
    One row per method, score and null: method, score ("adjusted_rand": Hubert & Arabie 1985;
    "normalised_mutual_information": arithmetic mean, not corrected for chance, so it is to be read
    beside its null), value (mean over seeds), sd_seeds, null, null_mean, null_sd, difference, z, p,
    n_events, communities.
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    scores = {
        "adjusted_rand": adjusted_rand_score,
        "normalised_mutual_information": normalized_mutual_info_score,
    }
    n = found.labels.shape[1]
    rows = []
    for method, cut in events.items():
        if cut.n != n:
            raise InputError(
                f"{method} cuts {cut.n} {cut.unit}s, but the communities have {n} positions."
            )
        drawn: dict[str, list[NDArray[np.int64]]] = {}
        for asked in nulls:
            check_option("null", asked, NULLS)
            null = "shift" if asked == "lengths" and lengths_degenerate(cut) else asked
            if null not in drawn:
                rng = np.random.default_rng([seed, NULLS.index(null)])
                starts = null_starts(cut, null, draws, rng)
                drawn[null] = [Boundaries(row, n).labels() for row in starts]
        for name, score in scores.items():
            values = np.array([score(row, cut.labels()) for row in found.labels])
            for null, labels in drawn.items():
                random = [np.mean([score(row, r) for row in found.labels]) for r in labels]
                against = compare_with_null(values.mean(), np.array(random))
                rows.append(
                    {
                        "method": method,
                        "score": name,
                        "value": float(values.mean()),
                        "sd_seeds": float(values.std(ddof=1)) if len(values) > 1 else np.nan,
                        "null": null,
                        "null_mean": float(against.mean),
                        "null_sd": float(against.sd),
                        "difference": float(against.difference),
                        "z": float(against.z),
                        "p": float(against.p),
                        "n_events": cut.n_events,
                        "communities": found.contiguity.communities,
                    }
                )
    return pd.DataFrame(rows)


def _band(
    graph: EventGraph, window: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Pairs i < j ≤ i + window and their weights, formed block by block."""
    rows, columns, weights = [], [], []
    for start in range(0, graph.n, _BLOCK):
        stop = min(start + _BLOCK, graph.n)
        end = min(stop + window, graph.n)
        block = graph.weights(slice(start, stop), slice(start, end))
        apart = np.arange(start, end) - np.arange(start, stop)[:, None]
        inside = (apart > 0) & (apart <= window)
        first, second = np.nonzero(inside)
        rows.append(first + start)
        columns.append(second + start)
        weights.append(block[inside])
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(weights)


def _strongest(
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    weights: NDArray[np.float64],
    n: int,
    count: int,
) -> NDArray[np.bool_]:
    """Edges among the `count` strongest of one of their ends (the earlier edge of equal ones)."""
    ends = np.concatenate([rows, columns])
    edge = np.tile(np.arange(len(rows)), 2)
    order = np.lexsort((edge, -np.tile(weights, 2), ends))
    begin = np.searchsorted(ends[order], np.arange(n))
    rank = np.arange(len(order)) - begin[ends[order]]
    kept = np.zeros(len(rows), dtype=bool)
    kept[edge[order[rank < count]]] = True
    return kept


def _louvain(sparse: nx.Graph, resolution: float, seed: int) -> tuple[NDArray[np.int64], float]:
    import networkx as nx

    if sparse.number_of_edges() == 0:
        raise InputError("the windowed graph has no edge with a weight above 0.")
    parts = nx.community.louvain_communities(sparse, resolution=resolution, seed=seed)
    labels = np.empty(sparse.number_of_nodes(), dtype=np.int64)
    for number, part in enumerate(sorted(parts, key=min)):
        labels[list(part)] = number
    return labels, float(nx.community.modularity(sparse, parts, resolution=resolution))


def _mean(found: Sequence[Contiguity]) -> Contiguity:
    rows = np.array([[c.communities, c.runs, c.neighbours, c.whole] for c in found])
    return Contiguity(*rows.mean(axis=0).tolist())
