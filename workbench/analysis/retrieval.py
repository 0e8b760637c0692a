"""What a memory system recalled, as recall: sequences for lag curves, lag-CRP, and recency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.recall.asymmetry import asymmetry_of_curve
from workbench.analysis.recall.lag import LagCounter, crp
from workbench.analysis.recall.resampling import (
    bootstrap_weights,
    interval,
    permutation_summary,
    permuted_outputs,
)
from workbench.analysis.recall.sequences import RecallSequences
from workbench.core.checks import check_option, whole_number
from workbench.core.errors import DataError, InputError, MissingDataError

__all__ = [
    "BUFFERS",
    "LEAST_STEPS",
    "NULLS",
    "ORDERS",
    "OVER",
    "RetrievedEvents",
    "recalled_of",
    "recency",
    "retrieval_asymmetry",
    "retrieval_lag_crp",
]

BUFFERS = ("similarity", "contiguity", "both")
ORDERS = ("log", "woven")
NULLS = ("uniform", "shuffle")
OVER = ("steps", "layers")
LEAST_STEPS = 5
"""Steps (or layers) below which no interval is given: it would be far too narrow."""

_NEEDED = ("step", "position", "layer", "head", "unit", "buffer", "rank", "available")
_RETRIEVAL = ["step", "position", "layer", "head"]


@dataclass(frozen=True, eq=False)
class RetrievedEvents:
    """Everything that was recalled for one text, and the events it was recalled from.

    A *retrieval* is one look into the memory: of one layer (and head, where heads recall on their
    own) at one position of the text. Units are numbered as the events of the text are. Units that
    stand among the attention sinks are always in sight and cannot be recalled: at every retrieval
    the units `first` ... `first + available - 1` were there to be recalled.

    Parameters
    ----------
    table : of the units recalled, as `system.retrievals` gives it.
    retrievals : one row per retrieval: step, position, layer, head, available. Retrievals that
        recalled nothing (no unit fitted into the budget) are there, too.
    first : number of the first unit that can be recalled.
    surprisal : (n_units,), of the first token of each unit, nats; empty where not known.
    size : (n_units,), tokens of each unit; empty where not known.
    source : who recalled, for tables and figures.
    """

    table: pd.DataFrame
    retrievals: pd.DataFrame
    first: int
    surprisal: NDArray[np.float64]
    size: NDArray[np.int64]
    source: str = "memory"

    @classmethod
    def from_table(
        cls,
        table: pd.DataFrame,
        *,
        first: int = 0,
        surprisal: ArrayLike = (),
        size: ArrayLike = (),
        retrievals: pd.DataFrame | None = None,
        source: str = "memory",
    ) -> RetrievedEvents:
        """From a retrieval table alone.

        Parameters
        ----------
        retrievals : None: those in the table. Retrievals that recalled nothing have no row in the
            table, so recall rates are then too high where there were any; `of` knows them.

        Raises
        ------
        MissingDataError : nothing was recalled. DataError : a column is missing, a unit comes
            twice in a retrieval, or one was recalled that could not be.
        """
        missing = [name for name in _NEEDED if name not in table.columns]
        if missing:
            raise DataError(
                f"the retrieval table lacks the column(s) {', '.join(missing)}; give "
                "system.retrievals as it is."
            )
        if table.empty:
            raise MissingDataError(
                "nothing was recalled: the text is within the local window, or the system stores "
                "nothing. Read a longer text, or use a smaller n_local."
            )
        twice = table.duplicated([*_RETRIEVAL, "unit"])
        if twice.any():
            row = table[twice].iloc[0]
            raise DataError(
                f"unit {row['unit']} comes twice in the retrieval of step {row['step']}, layer "
                f"{row['layer']}; a unit is recalled once."
            )
        outside = (table["unit"] < first) | (table["unit"] >= first + table["available"])
        if outside.any():
            row = table[outside].iloc[0]
            raise DataError(
                f"unit {row['unit']} was recalled at step {row['step']}, layer {row['layer']}, but "
                f"only {first} ... {first + row['available'] - 1} were there; check first={first}."
            )
        if retrievals is None:
            retrievals = table[[*_RETRIEVAL, "available"]].drop_duplicates()
        known = retrievals[retrievals["available"] > 0].reset_index(drop=True)
        n_units = first + int(known["available"].max())
        start = np.asarray(surprisal, dtype=np.float64)
        tokens = np.asarray(size, dtype=np.int64)
        for name, given in (("surprisal", start), ("size", tokens)):
            if len(given) and len(given) < n_units:
                raise DataError(f"{name} has {len(given)} values for {n_units} stored units.")
        return cls(table.reset_index(drop=True), known, first, start, tokens, source)

    @classmethod
    def of(cls, system: Any, row: int = 0) -> RetrievedEvents:
        """What a memory system recalled.

        Parameters
        ----------
        system : has read a text. Its events must be the same for all layers.
        row : of a batch.
        """
        text = system.rows[row] if system.rows else None
        if text is None:
            raise MissingDataError("nothing was read yet; call read(text) first.")
        if text.former is not None and len(text.former.units) > 1:
            raise InputError(
                "each layer of this system has events of its own, so their numbers mean different "
                "events; use per='model', or RetrievedEvents.from_table for one layer at a time."
            )
        numbers = text.log.arrays()["numbers"]
        retrievals = pd.DataFrame(numbers, columns=[*_RETRIEVAL, "available"])
        retrievals["position"] -= text.skip
        events = system.events_of(row)
        surprisal = np.array(text.text.measures["surprisal"], dtype=np.float64)[events.starts]
        # A unit is recallable once some of it lies behind the sinks, which count a start token.
        first = int(np.sum(events.starts + events.lengths + text.skip <= system.settings.n_init))
        return cls.from_table(
            system.retrievals_of(row),
            first=first,
            surprisal=surprisal,
            size=events.lengths,
            retrievals=retrievals,
            source=system.name,
        )

    @property
    def layers(self) -> list[int]:
        """Layers that recalled."""
        return sorted(self.retrievals["layer"].unique().tolist())

    @property
    def n_units(self) -> int:
        """Events up to the last one that was ever stored, those among the sinks included."""
        return self.first + int(self.retrievals["available"].max())

    def recalled(self, buffer: str = "both") -> pd.DataFrame:
        """Rows of the table of one buffer, or of both, in the order in which they were recalled."""
        check_option("buffer", buffer, BUFFERS)
        table = self.table.assign(_behind=self.table["buffer"] == "contiguity")
        if buffer != "both":
            table = table[table["buffer"] == buffer]
        return table.sort_values([*_RETRIEVAL, "_behind", "rank"]).drop(columns="_behind")

    def recall_sequences(
        self, buffer: str = "both", order: str = "log", reach: int = 1
    ) -> RecallSequences:
        """One list per retrieval: the units recalled, for the lag curves of free recall.

        Position 1 of a list is the oldest unit that could be recalled, its length the number of
        units that could; the subject is the layer.

        Parameters
        ----------
        buffer : "similarity", "contiguity", or "both".
        order : of "both". "log": the similarity buffer, most similar first, and then the
            contiguity buffer, newest first. "woven": behind each unit of the similarity buffer
            those of its neighbours, +1 before -1, +2, -2, ..., that the contiguity buffer holds;
            what is left of that buffer last. Woven sequences have short lags by construction.
        reach : how far in time a neighbour is looked for, with "woven".
        """
        check_option("order", order, ORDERS)
        recalled = self.recalled(buffer)
        groups = dict(iter(recalled.groupby(_RETRIEVAL, sort=False)))
        outputs, lists, subjects, lengths = [], [], [], []
        for step, position, layer, head, available in self._each():
            part = groups.get((step, position, layer, head))
            units = np.zeros(0, dtype=np.int64)
            if part is not None:
                units = part["unit"].to_numpy(dtype=np.int64)
                if buffer == "both" and order == "woven":
                    similar = (part["buffer"] == "similarity").to_numpy(dtype=bool)
                    units = _woven(units[similar], units[~similar], reach)
            outputs.append(units - self.first + 1)
            lists.append((step, position, head))
            subjects.append(layer)
            lengths.append(available)
        return RecallSequences.from_positions(
            outputs, lengths, subject=subjects, lists=lists, source=self.source
        )

    def _each(self) -> Iterator[tuple[int, int, int, int, int]]:
        columns = [*_RETRIEVAL, "available"]
        yield from zip(*(self.retrievals[name].tolist() for name in columns), strict=True)


def retrieval_lag_crp(
    events: RetrievedEvents,
    *,
    buffer: str = "similarity",
    order: str = "log",
    max_lag: int = 5,
    null: str = "uniform",
    draws: int = 200,
    over: str = "steps",
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Probability of each lag between units recalled one after the other, given it was possible.

    The lag-CRP of free recall (Kahana 1996; see `workbench.analysis.recall.lag.lag_crp`) with a
    retrieval as a list: units that were stored and not yet recalled in it are possible. Counts of
    a layer are summed over its retrievals; layer "all" is the mean over layers, as the curve of a
    group is the mean over people.

    Parameters
    ----------
    events : what was recalled.
    buffer, order : see `RetrievedEvents.recall_sequences`.
    max_lag : -max_lag ... max_lag, in units.
    null : "uniform": as many units as were recalled, drawn from those that could be; "shuffle":
        the units that were recalled, in random order (which units are recalled together is kept).
        Draws of different retrievals are independent.
    draws : of the null; 0: no null.
    over : what the bootstrap draws. "steps": retrieval steps, all layers of a step together (how
        much the curve depends on this text; neighbouring steps are treated as independent);
        "layers": layers, as if they were people, which gives layer "all" an interval only.
    resamples, confidence : of the bootstrap.
    seed : of null and bootstrap.

    Returns
    -------
    Tidy table: layer (a number, or "all"), lag, prob, ci_low, ci_high, null_mean, null_sd, z, p
    (two-sided, not corrected), actual, possible, n_steps, buffer, order, null. NaN at lag 0 and
    wherever a lag was never possible; no interval where it was possible at fewer than `LEAST_STEPS`
    steps (or layers).
    """
    check_option("null", null, NULLS)
    check_option("over", over, OVER)
    whole_number("max_lag", max_lag, 1)
    whole_number("draws", draws)
    whole_number("resamples", resamples)
    sequences = events.recall_sequences(buffer, order)
    counter = _LayerCounter(events, sequences, max_lag)
    actual, possible = counter()
    once = np.ones((1, counter.n_steps), dtype=np.int64)
    value = _curves(actual, possible, once)[:, 0]
    sample, enough = _sample(actual, possible, over, resamples, seed)
    nulls = np.array(
        [
            _curves(*counter(outputs), once)[:, 0]
            for outputs in (_null_outputs(sequences, null, draws, seed) if draws else ())
        ]
    ).reshape(draws, *value.shape)
    totals = [
        np.concatenate((n, n.sum(0, keepdims=True))) for n in (actual.sum(1), possible.sum(1))
    ]
    rows = []
    for place, layer in enumerate([*counter.layers, "all"]):
        for column, lag in enumerate(counter.lags.tolist()):
            known = enough[place, column]
            low, high = interval(sample[place, :, column], confidence) if known else (np.nan,) * 2
            rows.append(
                {
                    "layer": layer,
                    "lag": lag,
                    "prob": value[place, column],
                    "ci_low": low,
                    "ci_high": high,
                    **permutation_summary(value[place, column], nulls[:, place, column]),
                    "actual": int(totals[0][place, column]),
                    "possible": int(totals[1][place, column]),
                }
            )
    return pd.DataFrame(rows).assign(
        n_steps=counter.n_steps,
        buffer=buffer,
        order=order if buffer == "both" else "log",
        null=null,
        over=over,
        source=events.source,
    )


def retrieval_asymmetry(
    events: RetrievedEvents,
    *,
    buffer: str = "similarity",
    order: str = "log",
    lag: int = 1,
    draws: int = 200,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, float]:
    """Whether recall goes forward: (f - b) / (f + b) of the lag-CRP at +lag and -lag.

    Parameters
    ----------
    events, buffer, order, draws, resamples, confidence, seed : as in `retrieval_lag_crp`; the
        curve is the mean over layers, the null "uniform", the bootstrap over steps.
    lag : which.

    Returns
    -------
    forward, backward, asymmetry (0 symmetric, 1 purely forward), asymmetry_low, asymmetry_high,
    null_mean, null_sd, z, p, n_steps.
    """
    whole_number("lag", lag, 1)
    whole_number("draws", draws)
    whole_number("resamples", resamples)
    sequences = events.recall_sequences(buffer, order)
    counter = _LayerCounter(events, sequences, lag)
    actual, possible = counter()
    once = np.ones((1, counter.n_steps), dtype=np.int64)
    sample, enough = _sample(actual, possible, "steps", resamples, seed)

    def index(curves: NDArray[np.float64]) -> NDArray[np.float64]:
        return asymmetry_of_curve(counter.lags, curves, lag=lag)["index"]

    curve = _curves(actual, possible, once)[-1, 0]
    nulls = [
        index(_curves(*counter(outputs), once)[-1, 0])
        for outputs in (_null_outputs(sequences, "uniform", draws, seed) if draws else ())
    ]
    low, high = np.nan, np.nan
    if enough[-1, [0, -1]].all():
        low, high = interval(index(sample[-1]), confidence)
    value = float(index(curve))
    return {
        "forward": float(curve[-1]),
        "backward": float(curve[0]),
        "asymmetry": value,
        "asymmetry_low": low,
        "asymmetry_high": high,
        **permutation_summary(value, np.array(nulls)),
        "n_steps": counter.n_steps,
    }


class _LayerCounter:
    """Actual and possible transitions, each (n_layers, n_steps, n_lags)."""

    def __init__(self, events: RetrievedEvents, sequences: RecallSequences, max_lag: int) -> None:
        # Every list is its own subject here, so that the counter keeps retrievals apart.
        apart = replace(sequences, subject=np.arange(sequences.n_lists).astype(object))
        self._count = LagCounter(apart, np.arange(-max_lag, max_lag + 1))
        self.lags = self._count.lags
        layers, self._layer = np.unique(events.retrievals["layer"], return_inverse=True)
        steps, self._step = np.unique(events.retrievals["step"], return_inverse=True)
        self.layers, self.n_steps = layers.tolist(), len(steps)

    def __call__(
        self, outputs: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        shape = (len(self.layers), self.n_steps, len(self.lags))
        counts = np.zeros((2, *shape), dtype=np.int64)
        for total, single in zip(counts, self._count(outputs), strict=True):
            np.add.at(total, (self._layer, self._step), single)
        return counts[0], counts[1]


def _curves(
    actual: NDArray[np.int64], possible: NDArray[np.int64], weights: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Curves of each layer and last their mean, for weights of steps; (layers + 1, n, lags)."""
    curves = crp(weights @ actual, weights @ possible)
    known = np.isfinite(curves)
    count = known.sum(axis=0)
    total = np.where(known, curves, 0.0).sum(axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return np.concatenate((curves, mean[None]))


def _sample(
    actual: NDArray[np.int64], possible: NDArray[np.int64], over: str, resamples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Resampled curves (layers + 1, resamples, lags), and where they make an interval."""
    n_layers, n_steps, n_lags = actual.shape
    if over == "steps":
        there = possible > 0
        there = np.concatenate((there, there.any(axis=0, keepdims=True))).sum(axis=1)
        weights = bootstrap_weights(n_steps, resamples, seed)
        return _curves(actual, possible, weights), there >= LEAST_STEPS
    curves = crp(actual.sum(axis=1), possible.sum(axis=1))
    known = np.isfinite(curves)
    weights = bootstrap_weights(n_layers, resamples, seed)
    sample = np.full((n_layers + 1, resamples, n_lags), np.nan)
    with np.errstate(invalid="ignore"):
        sample[-1] = (weights @ np.where(known, curves, 0.0)) / (weights @ known)
    enough = np.zeros((n_layers + 1, n_lags), dtype=bool)
    enough[-1] = known.sum(axis=0) >= LEAST_STEPS
    return sample, enough


def _null_outputs(
    sequences: RecallSequences, null: str, draws: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    if null == "shuffle":
        yield from permuted_outputs(sequences, "shuffle", draws, seed)
        return
    rng = np.random.default_rng([seed, 1])
    for _ in range(draws):
        yield _uniform(sequences, rng)


def recency(
    events: RetrievedEvents,
    *,
    buffer: str = "both",
    max_age: int | None = None,
    over: str = "steps",
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Probability of recall against age, given that a unit of that age could be recalled.

    Parameters
    ----------
    events : what was recalled.
    buffer : "similarity", "contiguity" or "both".
    max_age : oldest age; None: all.
    over, resamples, confidence, seed : of the bootstrap, see `retrieval_lag_crp`.

    Returns
    -------
    Tidy table: layer (a number, or "all": opportunities of all layers together), age (units, 1 is
    the newest one stored), prob, ci_low, ci_high, chance (the same if each retrieval had drawn its
    units at random), recalled, possible (retrievals at which there was a unit of that age),
    buffer.
    """
    check_option("over", over, OVER)
    whole_number("resamples", resamples)
    retrievals = events.retrievals
    longest = int(retrievals["available"].max())
    reach = longest if max_age is None else min(whole_number("max_age", max_age, 1), longest)
    layers, layer = np.unique(retrievals["layer"], return_inverse=True)
    steps, step = np.unique(retrievals["step"], return_inverse=True)
    hit = recalled_of(events, buffer)  # (n_retrievals, n_units that could be recalled)
    available = retrievals["available"].to_numpy()
    age = np.arange(1, reach + 1)
    there = age[None, :] <= available[:, None]
    unit = np.where(there, available[:, None] - age[None, :], 0)
    recalled = np.take_along_axis(hit, unit, axis=1) & there
    chance = there * (hit.sum(axis=1) / available)[:, None]
    shape = (len(layers), len(steps), reach)
    parts = [np.zeros(shape) for _ in range(3)]  # (layers, steps, ages) each
    for part, values in zip(parts, (recalled, there, chance), strict=True):
        np.add.at(part, (layer, step), values)
    tables = []
    for place, label in enumerate([*layers.tolist(), "all"]):
        # (what is drawn, ages): steps, of one layer or of all together, or layers
        others = 1 if over == "layers" else 0
        drawn = [part.sum(axis=others) if label == "all" else part[place] for part in parts]
        own, possible, random = drawn
        weights = bootstrap_weights(len(own), resamples, seed)
        with np.errstate(invalid="ignore", divide="ignore"):
            sample = (weights @ own) / (weights @ possible)
            prob, by_chance = (x.sum(axis=0) / possible.sum(axis=0) for x in (own, random))
        ends = np.full((reach, 2), np.nan)
        enough = (possible > 0).sum(axis=0) >= LEAST_STEPS
        if over == "steps" or label == "all":
            for column in np.flatnonzero(enough):
                ends[column] = interval(sample[:, column], confidence)
        tables.append(
            pd.DataFrame(
                {
                    "layer": label,
                    "age": age,
                    "prob": prob,
                    "ci_low": ends[:, 0],
                    "ci_high": ends[:, 1],
                    "chance": by_chance,
                    "recalled": own.sum(axis=0).astype(np.int64),
                    "possible": possible.sum(axis=0).astype(np.int64),
                }
            )
        )
    return pd.concat(tables, ignore_index=True).assign(
        buffer=buffer, over=over, source=events.source
    )


def recalled_of(events: RetrievedEvents, buffer: str) -> NDArray[np.bool_]:
    """Which of the units that can be recalled each retrieval recalled, (n_retrievals, n)."""
    retrievals = events.retrievals
    hit = np.zeros((len(retrievals), int(retrievals["available"].max())), dtype=bool)
    recalled = events.recalled(buffer)
    row = pd.MultiIndex.from_frame(retrievals[_RETRIEVAL]).get_indexer(
        pd.MultiIndex.from_frame(recalled[_RETRIEVAL])
    )
    hit[row, recalled["unit"].to_numpy() - events.first] = True
    return hit


def _uniform(sequences: RecallSequences, rng: np.random.Generator) -> NDArray[np.int64]:
    """As many positions of each list as were recalled, drawn without replacement."""
    width = sequences.max_length
    there = np.arange(width)[None, :] < sequences.length[:, None]
    order = np.where(there, rng.random(there.shape), 2.0).argsort(axis=1)
    drawn = order[:, : sequences.outputs.shape[1]] + 1
    # A list can be shorter than the longest sequence of another one.
    room = sequences.outputs.shape[1] - drawn.shape[1]
    drawn = np.pad(drawn, ((0, 0), (0, max(0, room))), constant_values=-1)
    return np.where(sequences.outputs > 0, drawn, -1)


def _woven(
    similar: NDArray[np.int64], contiguous: NDArray[np.int64], reach: int
) -> NDArray[np.int64]:
    """Behind each similar unit its neighbours among the contiguous ones; the rest last."""
    left = dict.fromkeys(contiguous.tolist())
    order: list[int] = []
    for unit in similar.tolist():
        order.append(unit)
        for distance in range(1, reach + 1):
            for place in (unit + distance, unit - distance):
                if place in left:
                    order.append(place)
                    del left[place]
    return np.array([*order, *left], dtype=np.int64)
