"""Which events a memory system recalls: how often, after what surprise, in which layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import hypergeom, rankdata

from workbench.analysis.recall.resampling import bootstrap_weights, interval, permutation_summary
from workbench.analysis.retrieval import LEAST_STEPS, RetrievedEvents, recalled_of
from workbench.core.checks import whole_number
from workbench.core.errors import MissingDataError

__all__ = ["layer_overlap", "overlap_summary", "surprise_effect", "unit_recall"]

_LEAST_UNITS = 10


def unit_recall(events: RetrievedEvents, *, buffer: str = "both") -> pd.DataFrame:
    """How often each event was recalled.

    Returns
    -------
    One row per event that could be recalled: unit, possible (retrievals at which it could, over
    all layers), recalled, rate (recalled / possible), chance (mean of the rate if every retrieval
    had drawn its units at random: older events were there when fewer competed), layers (that
    recalled it at least once), only_layer (the one that did, where it is one; <NA>), surprisal
    (nats, of its first token) and size (tokens), NaN where not known.
    """
    hit = recalled_of(events, buffer)
    available = events.retrievals["available"].to_numpy()
    there = np.arange(hit.shape[1])[None, :] < available[:, None]
    by_chance = there * (hit.sum(axis=1) / available)[:, None]
    layers, layer = np.unique(events.retrievals["layer"], return_inverse=True)
    in_layer = np.zeros((len(layers), hit.shape[1]), dtype=np.int64)
    np.add.at(in_layer, layer, hit)
    count = (in_layer > 0).sum(axis=0)
    only = pd.array(layers[(in_layer > 0).argmax(axis=0)], dtype="Int64")
    only[count != 1] = pd.NA
    units = events.first + np.arange(hit.shape[1])
    possible = there.sum(axis=0)
    return pd.DataFrame(
        {
            "unit": units,
            "possible": possible,
            "recalled": hit.sum(axis=0),
            "rate": hit.sum(axis=0) / possible,
            "chance": by_chance.sum(axis=0) / possible,
            "layers": count,
            "only_layer": only,
            "surprisal": events.surprisal[units] if len(events.surprisal) else np.nan,
            "size": events.size[units].astype(float) if len(events.size) else np.nan,
        }
    )


def surprise_effect(
    events: RetrievedEvents,
    *,
    buffer: str = "similarity",
    draws: int = 1000,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Whether events that began with more surprise are recalled more often.

    Spearman's correlation, over events, of the surprisal of an event's first token with how much
    more often than by chance it was recalled (rate - chance of `unit_recall`, which takes out that
    fewer events compete early in the text). Events differ in size, too, and a budget in tokens
    holds more of the small ones; the partial correlation takes out size and place in the text.

    Parameters
    ----------
    events : with surprisal and size (`RetrievedEvents.of` has them).
    buffer : neighbours in the contiguity buffer come whatever their surprise; hence "similarity".
    draws : permutations of surprisal over events. resamples : of the bootstrap over events.
    confidence, seed : of these.

    Returns
    -------
    Two rows, measure "spearman" and "partial": rho, ci_low, ci_high, null_mean, null_sd, z, p
    (two-sided), n_units, buffer. Events without a surprisal (a first token that nothing predicts)
    are left out; NaN with fewer than 10 events.

    Raises
    ------
    MissingDataError : surprisal or size is not known.
    """
    whole_number("draws", draws, 1)
    whole_number("resamples", resamples)
    if not len(events.surprisal) or not len(events.size):
        raise MissingDataError(
            "surprisal or size of the events is not known; use RetrievedEvents.of(system), or pass "
            "surprisal= and size= to RetrievedEvents.from_table."
        )
    table = unit_recall(events, buffer=buffer)
    table = table[np.isfinite(table["surprisal"])]
    x = table["surprisal"].to_numpy()
    y = (table["rate"] - table["chance"]).to_numpy()
    others = table[["size", "unit"]].to_numpy(dtype=float)
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(x)) for _ in range(draws)]
    samples = [rng.integers(len(x), size=len(x)) for _ in range(resamples)] if len(x) else []
    rows = []
    for measure, given in (("spearman", others[:, :0]), ("partial", others)):
        value, low, high = (np.nan,) * 3
        null = np.zeros(0)
        if len(x) >= _LEAST_UNITS:
            value = _spearman(x, y, given)
            null = np.array([_spearman(x[order], y, given) for order in orders])
            drawn = np.array([_spearman(x[s], y[s], given[s]) for s in samples])
            low, high = interval(drawn, confidence)
        rows.append(
            {
                "measure": measure,
                "rho": value,
                "ci_low": low,
                "ci_high": high,
                **permutation_summary(value, null),
                "n_units": len(x),
                "buffer": buffer,
                "source": events.source,
            }
        )
    return pd.DataFrame(rows)


def layer_overlap(events: RetrievedEvents, *, buffer: str = "both") -> pd.DataFrame:
    """How far two layers recall the same events at the same step.

    Parameters
    ----------
    events : what was recalled. Where heads recall on their own, a layer's events are those of all
        its heads.
    buffer : "similarity", "contiguity" or "both".

    Returns
    -------
    One row per ordered pair of different layers: layer, other, jaccard (events that both recalled
    over events that one of them did, mean over places where either recalled some), chance (its
    expectation if each drew as many events at random from those that could be recalled), n_places,
    buffer, source. Places where both recalled every event are left out: there is nothing to choose.
    """
    places = _Places(events)
    jaccard, chance, use = places.pairs(recalled_of(events, buffer), expected=True)
    count = use.sum(axis=0)
    with np.errstate(invalid="ignore"):
        means = [np.where(use, x, 0.0).sum(axis=0) / count for x in (jaccard, chance)]
    first, second = np.nonzero(~np.eye(len(places.layers), dtype=bool))
    return pd.DataFrame(
        {
            "layer": places.layers[first],
            "other": places.layers[second],
            "jaccard": means[0][first, second],
            "chance": means[1][first, second],
            "n_places": count[first, second],
            "buffer": buffer,
            "source": events.source,
        }
    )


def overlap_summary(
    events: RetrievedEvents,
    *,
    buffer: str = "both",
    draws: int = 200,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Agreement of layers and reach of recall in one number each (EM-LLM, Figure 5).

    Measures, each beside what random recall of as many events would give:

    - "jaccard": mean over pairs of layers and places, see `layer_overlap`;
    - "one_layer": of the events recalled at one place by any layer, the share that a single layer
      recalled, mean over places;
    - "one_layer_ever": of the events recalled at all, the share that the same single layer alone
      recalled throughout the text;
    - "ever": of the events that could be recalled, the share that was, by any layer at any time.

    Parameters
    ----------
    events, buffer : as in `layer_overlap`.
    draws : random recalls, each retrieval drawing as many events as it did from those available.
    resamples, confidence : of the bootstrap over steps, for the first two; the last two are
        properties of the whole reading and have no interval.
    seed : of both.

    Returns
    -------
    One row per measure: measure, value, ci_low, ci_high, null_mean, null_sd, z, p, n (places or
    events), buffer.
    """
    whole_number("draws", draws)
    whole_number("resamples", resamples)
    hit = recalled_of(events, buffer)
    places = _Places(events)
    observed = places.measures(hit)
    rng = np.random.default_rng(seed)
    available = events.retrievals["available"].to_numpy()
    there = np.arange(hit.shape[1])[None, :] < available[:, None]
    number = hit.sum(axis=1)[:, None]
    nulls: dict[str, list[float]] = {name: [] for name in observed}
    for _ in range(draws):
        rank = np.where(there, rng.random(hit.shape), 2.0).argsort(axis=1).argsort(axis=1)
        for name, (values, _) in places.measures(rank < number).items():
            nulls[name].append(_mean(values))
    rows = []
    for name, (values, steps) in observed.items():
        low, high = np.nan, np.nan
        labels, code = np.unique(steps, return_inverse=True)
        if len(labels) >= LEAST_STEPS:
            sums, sizes = np.bincount(code, values), np.bincount(code)
            weights = bootstrap_weights(len(labels), resamples, seed)
            low, high = interval((weights @ sums) / (weights @ sizes), confidence)
        rows.append(
            {
                "measure": name,
                "value": _mean(values),
                "ci_low": low,
                "ci_high": high,
                **permutation_summary(_mean(values), np.array(nulls[name])),
                "n": len(values),
            }
        )
    return pd.DataFrame(rows).assign(buffer=buffer, source=events.source)


class _Places:
    """Retrievals of all layers at one position of the text, beside each other."""

    def __init__(self, events: RetrievedEvents) -> None:
        table = events.retrievals
        self.layers, self._layer = np.unique(table["layer"], return_inverse=True)
        keys = pd.MultiIndex.from_frame(table[["step", "position"]])
        self._place, places = pd.factorize(keys)
        self.step = np.array([step for step, _ in places], dtype=np.int64)
        self.available = np.zeros((len(places), len(self.layers)), dtype=np.int64)
        self.available[self._place, self._layer] = table["available"].to_numpy()

    def sets(self, hit: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(n_places, n_layers, n_units): which events each layer recalled, its heads together."""
        member = np.zeros((*self.available.shape, hit.shape[1]), dtype=bool)
        np.logical_or.at(member, (self._place, self._layer), hit)
        return member

    def pairs(
        self, hit: NDArray[np.bool_], *, expected: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Jaccard, its expectation, and where it says something, each (places, layers, layers)."""
        member = self.sets(hit).astype(np.float32)
        both = member @ member.transpose(0, 2, 1)
        size = member.sum(axis=2)
        union = size[:, :, None] + size[:, None, :] - both
        n = np.minimum(self.available[:, :, None], self.available[:, None, :])
        use = (union > 0) & (n > 0) & (both < n)
        chance = np.zeros(union.shape)
        if expected:
            cases = np.stack(
                [np.broadcast_to(x, n.shape) for x in (size[:, :, None], size[:, None, :], n)], -1
            )[use].astype(np.int64)
            kinds, code = np.unique(cases, axis=0, return_inverse=True)
            values = np.array([_expected_jaccard(*kind) for kind in kinds.tolist()])
            chance[use] = values[code.ravel()] if len(kinds) else 0.0
        return both / np.maximum(union, 1), chance, use

    def measures(self, hit: NDArray[np.bool_]) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """Measure → values whose mean it is, and the step each belongs to (0 where to none)."""
        jaccard, _, use = self.pairs(hit)
        pair = use & np.triu(np.ones(use.shape[1:], dtype=bool), 1)
        n_pairs = pair.sum(axis=(1, 2))
        some = n_pairs > 0
        mean = np.where(pair, jaccard, 0.0).sum(axis=(1, 2))[some] / n_pairs[some]
        member = self.sets(hit)
        count = member.sum(axis=1)
        recalled = (count > 0).sum(axis=1)
        any_ = recalled > 0
        single = (count == 1).sum(axis=1)[any_] / recalled[any_]
        layers = member.any(axis=0).sum(axis=0)
        ever = layers[layers > 0] == 1
        return {
            "jaccard": (mean, self.step[some]),
            "one_layer": (single, self.step[any_]),
            "one_layer_ever": (ever.astype(float), np.zeros(len(ever))),
            "ever": ((layers > 0).astype(float), np.zeros(len(layers))),
        }


def _expected_jaccard(a: int, b: int, n: int) -> float:
    """Mean Jaccard of a and b units, each drawn from the same n without replacement."""
    shared = np.arange(max(0, a + b - n), min(a, b) + 1)
    chances = hypergeom.pmf(shared, n, a, b)
    return float(np.sum(chances * shared / np.maximum(a + b - shared, 1)))


def _mean(values: NDArray[Any]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _spearman(x: NDArray[np.float64], y: NDArray[np.float64], given: NDArray[np.float64]) -> float:
    """Correlation of ranks, those of other variables regressed out of both."""
    ranks = [rankdata(values) for values in (x, y)]
    others = np.column_stack([np.ones(len(x)), *(rankdata(column) for column in given.T)])
    parts = [r - others @ np.linalg.lstsq(others, r, rcond=None)[0] for r in ranks]
    scale = np.sqrt((parts[0] ** 2).sum() * (parts[1] ** 2).sum())
    # What is left of a variable that the others explain is rounding.
    return float(parts[0] @ parts[1] / scale) if scale > 1e-9 * len(x) ** 3 else float("nan")
