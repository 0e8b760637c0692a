"""r_d from attention masses of any origin: memory layers, recalled events, chunks.

`workbench.analysis.distraction` is made for windows of equal length that are all seen. What a
memory recalls differs from query to query in how many tokens of which document it holds, and
sometimes holds none; here masses come with the tokens they are on, and the baseline follows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.distraction import STATISTICS, pooled_ratio, ratio_parts
from workbench.analysis.statistics import LEAST_BOOTSTRAP
from workbench.core.checks import whole_number
from workbench.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["distraction_from_masses"]

_ROUNDING = 1e-5  # by how much, relative to it, a part may exceed its whole (float32 sums)


def distraction_from_masses(
    own: ArrayLike,
    total: ArrayLike,
    document: ArrayLike,
    d: int,
    *,
    own_tokens: ArrayLike | None = None,
    all_tokens: ArrayLike | None = None,
    layers: ArrayLike | None = None,
    answers: ArrayLike | None = None,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """r_d of attention to what a memory holds of d documents (FOT, section 3.3).

    Parameters
    ----------
    own, total : (readings, layers, heads, queries), a query's attention to what it sees of its own
        document's past, and of the past of all d; its local window is in neither. A query that
        sees nothing has 0 and 0.
    document : (readings,) number of the document that asks; those of one are drawn together.
    d : documents in memory.
    own_tokens, all_tokens : how many tokens these masses are on, anything that broadcasts to their
        shape; None: 1 and d, as for windows of equal length.
    layers : (layers,) their numbers; None: 0, 1, ...
    answers : (readings, queries) bool, the queries that predict a token of an answer.
    draws, seed, level : of the bootstrap over documents, see `pooled_ratio`.

    Returns
    -------
    One row per layer, head (-1: all layers, all heads), statistic and choice of queries. The
    columns of `distraction_table` but for place_baseline, and n_queries, the ratios of queries,
    heads and layers that the value is made of. The baseline is what attention would give that
    spreads evenly over the tokens each query sees: the mean of own tokens / all tokens over the
    same queries; for "ratio of sums" weighted by their mass. 1/d for windows of equal length.

    Raises
    ------
    InputError : shapes that do not fit, masses or tokens that are negative, not finite or larger
        than the whole, or mass where there are no tokens.
    """
    import pandas as pd

    masses = _checked(own, total, document, d, own_tokens, all_tokens, layers)
    choices: list[tuple[str, NDArray[np.bool_]]] = [
        ("all", np.ones((masses.own.shape[0], masses.own.shape[3]), dtype=bool))
    ]
    if answers is not None:
        asked = np.asarray(answers, dtype=bool)
        if asked.shape != choices[0][1].shape:
            raise InputError(
                f"answers has shape {asked.shape} instead of (readings, queries), here "
                f"{choices[0][1].shape}."
            )
        choices.append(("answers", asked))
    fair = np.divide(
        masses.own_tokens,
        masses.all_tokens,
        out=np.zeros(masses.own.shape),
        where=masses.all_tokens > 0,
    )
    rows = []
    for queries, chosen in choices:
        readings = chosen.any(axis=1)
        n = len(np.unique(masses.document[readings]))
        back = masses.total * chosen[:, None, None]
        for statistic in STATISTICS:
            kept = chosen[:, None, None]
            top, bottom = ratio_parts(masses.own, masses.total, kept, statistic)
            # An even spread over the same queries: fair shares of 1, or of each query's mass.
            even, _ = ratio_parts(masses.total * fair, masses.total, kept, statistic)
            used = np.broadcast_to(kept, masses.own.shape) & (masses.total > 0)
            for layer, head, cut in _cells(masses.layers, masses.own.shape[2]):
                count = int(used[cut].sum())
                value, low, high = pooled_ratio(
                    top[readings][cut].sum(axis=(1, 2)),
                    bottom[readings][cut].sum(axis=(1, 2)),
                    masses.document[readings],
                    draws=draws,
                    seed=seed,
                    level=level,
                )
                baseline = even[cut].sum() / bottom[cut].sum() if count else np.nan
                asking = chosen.sum() * back[cut].shape[1] * back[cut].shape[2]
                rows.append(
                    {
                        "layer": layer,
                        "head": head,
                        "d": masses.d,
                        "statistic": statistic,
                        "queries": queries,
                        "value": float(value),
                        "low": float(low),
                        "high": float(high),
                        "baseline": float(baseline),
                        "previous_mass": float(back[cut].sum() / asking) if asking else np.nan,
                        "n_documents": n,
                        "n_readings": int(readings.sum()),
                        "n_queries": count,
                        "note": _note(count, n),
                    }
                )
    return pd.DataFrame(rows)


@dataclass(frozen=True, eq=False)
class _Masses:
    own: NDArray[np.float64]
    total: NDArray[np.float64]
    own_tokens: NDArray[np.float64]
    all_tokens: NDArray[np.float64]
    document: NDArray[Any]
    layers: list[int]
    d: int


def _cells(layers: list[int], n_heads: int) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
    """Layer and head of each row, and which part of (readings, layers, heads) it sums."""
    every = slice(None)
    for at, layer in enumerate(layers):
        for head in range(n_heads):
            yield layer, head, (every, slice(at, at + 1), slice(head, head + 1))
        yield layer, -1, (every, slice(at, at + 1), every)
    yield -1, -1, (every, every, every)


def _note(count: int, n_documents: int) -> str:
    if count == 0:
        return "no query gives anything it remembers attention"
    if n_documents < LEAST_BOOTSTRAP:
        return f"no interval from fewer than {LEAST_BOOTSTRAP} documents"
    return ""


def _checked(
    own: ArrayLike,
    total: ArrayLike,
    document: ArrayLike,
    d: int,
    own_tokens: ArrayLike | None,
    all_tokens: ArrayLike | None,
    layers: ArrayLike | None,
) -> _Masses:
    d = whole_number("d", d, 1)
    mine, everything = np.asarray(own, np.float64), np.asarray(total, np.float64)
    shape = mine.shape
    if len(shape) != 4 or 0 in shape or everything.shape != shape:
        raise InputError(
            f"own {shape} and total {everything.shape} must have one shape, (readings, layers, "
            "heads, queries), and no side of 0."
        )
    if (own_tokens is None) != (all_tokens is None):
        raise InputError("give both own_tokens and all_tokens, or neither.")
    names = np.asarray(document)
    numbers = np.arange(shape[1]) if layers is None else np.asarray(layers)
    for name, value, size in (("document", names, shape[0]), ("layers", numbers, shape[1])):
        if value.shape != (size,):
            raise InputError(f"{name} has shape {value.shape} instead of ({size},).")
    try:
        few = np.broadcast_to(np.asarray(1 if own_tokens is None else own_tokens, float), shape)
        many = np.broadcast_to(np.asarray(d if all_tokens is None else all_tokens, float), shape)
    except ValueError as error:
        raise InputError(f"own_tokens and all_tokens must broadcast to {shape}: {error}") from None
    for what, part, whole in (("mass", mine, everything), ("tokens", few, many)):
        wrong = ~(np.isfinite(whole) & (part >= 0) & (part <= whole * (1 + _ROUNDING)))
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            raise InputError(
                f"{what} of the own document {part[at]:g}, of all {whole[at]:g} at reading {at[0]}"
                f", layer {numbers[at[1]]}, head {at[2]}, query {at[3]}: the first must lie "
                "between 0 and the second."
            )
    orphan = ((everything > 0) & (many == 0)) | ((mine > 0) & (few == 0))
    if orphan.any():
        at = tuple(np.argwhere(orphan)[0])
        raise InputError(
            f"reading {at[0]}, layer {numbers[at[1]]}, head {at[2]}, query {at[3]} gives mass to "
            "0 tokens."
        )
    return _Masses(mine, everything, few, many, names, [int(n) for n in numbers], d)
