"""r_d: how much attention to previous windows goes to the own document (FOT, Figure 3).

d previous windows stand before a window that asks, C_curr; one of them is of the same document.
r_d is the attention of C_curr's queries on that one over their attention on all d; what goes
elsewhere (to C_curr itself, to a start token) is in neither. A reader that does not tell documents
apart gives 1/d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.statistics import LEAST_BOOTSTRAP, percentile_interval
from workbench.core.checks import check_option, whole_number
from workbench.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "STATISTICS",
    "WindowMasses",
    "distraction_table",
    "place_baseline",
    "pooled_ratio",
    "ratio_parts",
]

STATISTICS = ("mean of ratios", "ratio of sums")


@dataclass(frozen=True, eq=False)
class WindowMasses:
    """Attention masses of readings, each with d previous windows of equal length.

    Parameters
    ----------
    own, previous : (readings, layers, heads, queries), a query's softmax mass on the own
        document's previous window and on all d previous windows.
    windows : (readings, layers, heads, d), mass on each previous window in the order in which
        they were read, mean over the queries.
    place : (readings,) place of the own window in that order, from 0.
    document : (readings,) number of the document that asks.
    layers : number of each layer.
    answers : (readings, queries) bool, the queries that predict a token of an answer; None where
        no answers are known.
    notes : layer → what has to be said of it.
    """

    own: NDArray[np.floating[Any]]
    previous: NDArray[np.floating[Any]]
    windows: NDArray[np.floating[Any]]
    place: NDArray[np.int64]
    document: NDArray[np.int64]
    layers: tuple[int, ...]
    answers: NDArray[np.bool_] | None = None
    notes: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = np.shape(self.own)
        if len(shape) != 4 or np.shape(self.previous) != shape:
            raise InputError(
                f"own {shape} and previous {np.shape(self.previous)} must have one shape: "
                "(readings, layers, heads, queries)."
            )
        n, layers, heads, queries = shape
        for name, value, expected in (
            ("windows", self.windows, (n, layers, heads, self.d)),
            ("place", self.place, (n,)),
            ("document", self.document, (n,)),
            ("layers", self.layers, (layers,)),
            ("answers", self.answers, (n, queries)),
        ):
            if value is not None and np.shape(value) != expected:
                raise InputError(f"{name} has shape {np.shape(value)} instead of {expected}.")

    @property
    def d(self) -> int:
        """Number of previous windows."""
        return int(np.shape(self.windows)[-1])


def ratio_parts(
    own: ArrayLike, previous: ArrayLike, chosen: ArrayLike | None, statistic: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Numerators and denominators whose sums over readings and heads give r_d.

    Parameters
    ----------
    own, previous : (..., queries), masses as in `WindowMasses`.
    chosen : bool, queries that count, broadcast to the masses; None for all.
    statistic : "mean of ratios": the ratio of each query weighs the same (a query without any
        mass on previous windows has none and is left out); "ratio of sums": the masses are added
        first, so that queries weigh by how much they look back.

    Returns
    -------
    Two arrays of shape (...).
    """
    check_option("statistic", statistic, STATISTICS)
    mine, everything = np.asarray(own, np.float64), np.asarray(previous, np.float64)
    kept = np.ones(mine.shape, bool) if chosen is None else np.broadcast_to(chosen, mine.shape)
    if statistic == "ratio of sums":
        return (mine * kept).sum(-1), (everything * kept).sum(-1)
    kept = kept & (everything > 0)
    ratio = np.divide(mine, everything, out=np.zeros_like(mine), where=kept)
    return ratio.sum(-1), kept.sum(-1).astype(np.float64)


def pooled_ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    document: ArrayLike,
    *,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Sum of numerators over sum of denominators, with a bootstrap interval over documents.

    Parameters
    ----------
    numerator, denominator : (readings, ...).
    document : (readings,) the document of each; those of one document are drawn together.
    draws, seed, level : of the percentile bootstrap.

    Returns
    -------
    Value, low, high of shape (...); NaN where there is nothing to divide by, and no interval from
    fewer than three documents.
    """
    top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    names, group = np.unique(np.asarray(document), return_inverse=True)
    n, shape = len(names), top.shape[1:]
    sums = np.zeros((2, n, int(np.prod(shape))))
    np.add.at(sums[0], group, top.reshape(len(top), -1))
    np.add.at(sums[1], group, bottom.reshape(len(bottom), -1))
    value = _divided(*sums.sum(axis=1))
    if n < LEAST_BOOTSTRAP:
        low = high = np.full_like(value, np.nan)
    else:
        rng = np.random.default_rng(seed)
        drawn = rng.multinomial(n, np.full(n, 1 / n), size=whole_number("draws", draws, 1))
        low, high = percentile_interval(_divided(drawn @ sums[0], drawn @ sums[1]), level)
    return value.reshape(shape), low.reshape(shape), high.reshape(shape)


def place_baseline(windows: ArrayLike, place: ArrayLike) -> NDArray[np.float64]:
    """What a reader that prefers places, whatever stands there, would give the own windows.

    How much each place gets is taken from the readings in which another document stands there.
    Where every place held the own window equally often this is 1/d; it differs when there are
    fewer readings than places, or where their number is no multiple of d.

    Parameters
    ----------
    windows, place : as in `WindowMasses`.

    Returns
    -------
    (layers, heads); NaN where some place never held another document, and for layers that do not
    look back. 1 for d = 1.
    """
    mass, at = np.asarray(windows, np.float64), np.asarray(place)
    d = mass.shape[-1]
    if d == 1:
        return np.ones(mass.shape[1:3])
    foreign = np.arange(d) != at[:, None]
    kept = mass * foreign[:, None, None, :]
    preference = _divided(kept.sum(0), np.broadcast_to(foreign.sum(0), mass.shape[1:]))
    preference = _divided(preference, preference.sum(-1, keepdims=True))
    return np.asarray(preference[..., at].mean(-1))


def distraction_table(
    masses: Sequence[WindowMasses],
    *,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """r_d of every layer and head, for each d.

    Parameters
    ----------
    masses : one per d.
    draws, seed, level : of the bootstrap, see `pooled_ratio`.

    Returns
    -------
    One row per layer, head, d, statistic and choice of queries: layer (-1: all layers together),
    head (-1: all heads together), d, statistic (see `ratio_parts`), queries ("all", or "answers"
    where answers are known), value (r_d), low, high, baseline (own tokens / all tokens of the
    previous windows, 1/d), place_baseline (see `place_baseline`), previous_mass (mean share of a
    query's attention that the d windows get together; all queries), n_documents, n_readings, note.
    """
    import pandas as pd

    parts = []
    for one in masses:
        choices: list[tuple[str, NDArray[np.bool_] | None]] = [("all", None)]
        if one.answers is not None:
            choices.append(("answers", one.answers[:, None, None, :]))
        labels = _labels(one)
        places = _with_means(place_baseline(one.windows, one.place))
        back = _with_means(np.asarray(one.windows, np.float64).sum(-1).mean(0))
        for queries, chosen in choices:
            asked = np.ones(len(one.document), bool) if chosen is None else chosen.any((1, 2, 3))
            n = len(np.unique(one.document[asked]))
            for statistic in STATISTICS:
                top, bottom = ratio_parts(one.own, one.previous, chosen, statistic)
                value, low, high = pooled_ratio(
                    _with_sums(top)[asked],
                    _with_sums(bottom)[asked],
                    one.document[asked],
                    draws=draws,
                    seed=seed,
                    level=level,
                )
                rows = labels.assign(
                    statistic=statistic,
                    queries=queries,
                    value=value.ravel(),
                    low=low.ravel(),
                    high=high.ravel(),
                    baseline=1 / one.d,
                    place_baseline=places.ravel(),
                    previous_mass=back.ravel(),
                    n_documents=n,
                    n_readings=int(asked.sum()),
                )
                rows["note"] = [
                    _note(one, layer, number, n)
                    for layer, number in zip(rows["layer"], rows["value"], strict=True)
                ]
                parts.append(rows)
    if not parts:
        raise InputError("no masses were given; give those of at least one d.")
    return pd.concat(parts, ignore_index=True)


def _note(masses: WindowMasses, layer: int, value: float, n: int) -> str:
    known = [masses.notes[layer]] if layer in masses.notes else []
    if layer == -1 and masses.notes:
        known = [f"layer {number}: {text}" for number, text in sorted(masses.notes.items())]
    if np.isnan(value):
        known.append("no query gives the previous windows any attention")
    elif n < LEAST_BOOTSTRAP:
        known.append(f"no interval from fewer than {LEAST_BOOTSTRAP} documents")
    return "; ".join(known)


def _labels(masses: WindowMasses) -> pd.DataFrame:
    import pandas as pd

    heads = [*range(masses.own.shape[2]), -1]
    layers = [*masses.layers, -1]
    return pd.DataFrame(
        {
            "layer": np.repeat(layers, len(heads)),
            "head": np.tile(heads, len(layers)),
            "d": masses.d,
        }
    )


def _with_sums(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """(readings, layers, heads) with the sum over heads as one head more, over layers likewise."""
    heads = np.concatenate([parts, parts.sum(2, keepdims=True)], axis=2)
    return np.concatenate([heads, heads.sum(1, keepdims=True)], axis=1)


def _with_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(layers, heads) with means over heads and layers; what is undefined is left out of them."""
    defined = ~np.isnan(values)
    sums, counts = _with_sums(np.where(defined, values, 0.0)[None]), _with_sums(defined[None] * 1.0)
    return _divided(sums, counts)[0]


def _divided(top: NDArray[Any], bottom: NDArray[Any]) -> NDArray[np.float64]:
    """NaN where the divisor is 0."""
    out = np.full(np.broadcast_shapes(np.shape(top), np.shape(bottom)), np.nan)
    return np.divide(top, bottom, out=out, where=np.asarray(bottom) != 0)
