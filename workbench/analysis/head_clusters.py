"""Groups of attention heads that attend alike: clusters of profiles, and how far to trust them.

A profile is what a head does on a text: its attention by lag, the entropy of its attention and
the share that goes to the first tokens. Any clustering gives groups; so the best silhouette stands
beside that of profiles without groups, and the groups beside those of other parts of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.analysis.statistics import percentile_interval
from workbench.core.checks import check_option
from workbench.core.errors import InputError, MissingDataError
from workbench.core.trace import Trace

__all__ = [
    "METHODS",
    "HeadClusters",
    "Profiles",
    "cluster_agreement",
    "cluster_profiles",
    "head_clusters",
    "head_profiles",
]

METHODS = ("kmeans", "agglomerative")


@dataclass(frozen=True, eq=False)
class Profiles:
    """Profiles of heads.

    Parameters
    ----------
    layer, head : (heads,).
    lag : (heads, bins), share of the attention to text tokens by bin of lags; rows sum to 1.
    lag_first, lag_last : (bins,), lags of the bins in tokens.
    entropy : (heads,), entropy over that of an even spread, mean over tokens; 0 ... 1.
    first : (heads,), share of the attention that goes to the first tokens.
    """

    layer: NDArray[np.int64]
    head: NDArray[np.int64]
    lag: NDArray[np.float64]
    lag_first: NDArray[np.int64]
    lag_last: NDArray[np.int64]
    entropy: NDArray[np.float64]
    first: NDArray[np.float64]

    def features(self) -> NDArray[np.float64]:
        """What is clustered, (heads, bins + 2).

        Square roots of the lag shares (their Euclidean distance is Hellinger's), entropy and
        first share; each of the three is scaled to a total variance of 1, so that the many lag
        bins do not outvote the others.
        """
        blocks = [np.sqrt(self.lag), self.entropy[:, None], self.first[:, None]]
        scaled = []
        for block in blocks:
            centred = block - block.mean(axis=0)
            spread = np.sqrt((centred**2).sum(axis=1).mean())
            scaled.append(centred / spread if spread > 1e-12 else centred * 0.0)
        return np.concatenate(scaled, axis=1)


@dataclass(frozen=True, eq=False)
class HeadClusters:
    """Clusters of heads with their stability.

    Parameters
    ----------
    table : one row per head: story, model, layer, head, cluster (0 the largest), silhouette,
        stability (mean Jaccard similarity of the head's cluster to its most similar one in
        resampled texts; Hennig 2007: below 0.6 not to be trusted), entropy, first, near (share
        of the attention to the text that goes to lags up to 4), provenance.
    choice : one row per number of clusters: k, silhouette, null_mean, null_high (95th
        percentile of profiles without groups), p.
    k : the number chosen.
    silhouette, p : the mean silhouette at k, and how often profiles without groups exceed their
        mean as much at any k.
    split_half : adjusted Rand index of clusters of random halves of the text, (mean, low, high).
    bootstrap : adjusted Rand index of the clusters and those of resampled texts, same form.
    profiles : what was clustered.
    settings : method, parts, draws, seed.
    """

    table: pd.DataFrame
    choice: pd.DataFrame
    k: int
    silhouette: float
    p: float
    split_half: tuple[float, float, float]
    bootstrap: tuple[float, float, float]
    profiles: Profiles
    settings: dict[str, Any]

    def curves(self) -> pd.DataFrame:
        """Attention by lag of each cluster: cluster, lag_first, lag_last, value, low, high.

        Share per single lag (share of the bin over its number of lags): mean over the cluster's
        heads, and the middle 80 % of them.
        """
        width = self.profiles.lag_last - self.profiles.lag_first + 1
        density = self.profiles.lag / width
        tables = []
        for cluster in range(self.k):
            rows = density[self.table["cluster"].to_numpy() == cluster]
            low, high = np.quantile(rows, [0.1, 0.9], axis=0)
            tables.append(
                pd.DataFrame(
                    {
                        "cluster": cluster,
                        "heads": len(rows),
                        "lag_first": self.profiles.lag_first,
                        "lag_last": self.profiles.lag_last,
                        "value": rows.mean(axis=0),
                        "low": low,
                        "high": high,
                    }
                )
            )
        return pd.concat(tables, ignore_index=True)

    def __repr__(self) -> str:
        return (
            f"HeadClusters({len(self.table)} heads in {self.k} clusters: silhouette "
            f"{self.silhouette:.2f} (p {self.p:.3f}), split halves {self.split_half[0]:.2f})"
        )


def head_profiles(trace: Trace, parts: ArrayLike | None = None) -> Profiles:
    """Profiles of a trace's heads.

    Parameters
    ----------
    trace : recorded with attention=("lag", "entropy", "first").
    parts : numbers of the parts of the text to use, repeats counted again; None: all. The parts
        are those of `workbench.recording.reducers.Lag`.

    Raises
    ------
    MissingDataError : one of the three was not recorded.
    """
    dataset = trace.dataset
    missing = [x for x in ("lag", "entropy", "first") if f"attention_{x}" not in dataset]
    if missing:
        raise MissingDataError(
            f"this trace holds no attention_{missing[0]}; record it with "
            'attention=("lag", "entropy", "first").'
        )
    n_parts = dataset.sizes["part"]
    chosen = np.arange(n_parts) if parts is None else np.asarray(parts, dtype=np.int64)
    if not len(chosen) or chosen.min() < 0 or chosen.max() >= n_parts:
        raise InputError(f"parts must be some of 0 ... {n_parts - 1}.")
    weight = np.bincount(chosen, minlength=n_parts).astype(np.float64)

    pairs = np.asarray(dataset["attention_lag_pairs"].values, dtype=np.float64)
    mean = np.nan_to_num(np.asarray(dataset["attention_lag"].values, dtype=np.float64))
    first = np.asarray(dataset["lag_first"].values, dtype=np.int64)
    last = np.asarray(dataset["lag_last"].values, dtype=np.int64)
    mass = np.einsum("lhpb,pb,p->lhb", mean, pairs, weight)
    mass = mass.reshape(-1, mass.shape[-1])
    total = mass.sum(axis=1, keepdims=True)

    starts = np.append(dataset["part_first"].values, trace.n_tokens)
    of_token = np.repeat(weight, np.diff(starts))
    before = int(trace.settings["bos_id"] is not None)
    visible = np.arange(trace.n_tokens) + 1 + before
    possible = visible > 1  # a token that sees only itself has no entropy
    entropy = np.asarray(dataset["attention_entropy"].values, dtype=np.float64)
    relative = entropy[..., possible] / np.log(visible[possible])
    share = np.asarray(dataset["attention_first"].values, dtype=np.float64)
    layers, heads = dataset["layer"].values, dataset["head"].values
    return Profiles(
        layer=np.repeat(layers, len(heads)).astype(np.int64),
        head=np.tile(heads, len(layers)).astype(np.int64),
        lag=mass / np.where(total > 0, total, 1.0),
        lag_first=first,
        lag_last=last,
        entropy=np.average(relative, axis=-1, weights=of_token[possible]).ravel(),
        first=np.average(share, axis=-1, weights=of_token).ravel(),
    )


def cluster_profiles(
    features: NDArray[np.float64], k: int, method: str = "kmeans", seed: int = 0
) -> NDArray[np.int64]:
    """Clusters of rows, (rows,), numbered from the largest.

    Parameters
    ----------
    features : (rows, columns).
    k : number of clusters.
    method : "kmeans" (10 starts) or "agglomerative" (Ward).
    seed : of the starts.
    """
    from sklearn.cluster import AgglomerativeClustering, KMeans

    check_option("method", method, METHODS)
    if not 2 <= k < len(features):
        raise InputError(f"k={k}: {len(features)} heads can be put in 2 to {len(features) - 1}.")
    if method == "kmeans":
        found = KMeans(k, n_init=10, random_state=seed).fit_predict(features)
    else:
        found = AgglomerativeClustering(k).fit_predict(features)
    order = np.argsort(-np.bincount(found, minlength=k), kind="stable")
    rank = np.empty(k, dtype=np.int64)
    rank[order] = np.arange(k)
    return rank[found]


def head_clusters(
    trace: Trace,
    *,
    k: int | Sequence[int] = (2, 3, 4, 5, 6, 7, 8),
    method: str = "kmeans",
    draws: int = 100,
    null_draws: int = 50,
    seed: int = 0,
) -> HeadClusters:
    """Cluster a trace's heads by their attention profile.

    Parameters
    ----------
    trace : recorded with attention=("lag", "entropy", "first").
    k : number of clusters, or numbers from which is chosen the one whose mean silhouette exceeds
        most that of profiles without groups (silhouettes fall with k in any data, so the largest
        one favours few clusters; without `null_draws` the largest is taken).
    method : "kmeans" or "agglomerative".
    draws : resampled texts (successive parts of the text, drawn with replacement), and as many
        random splits of the parts in halves.
    null_draws : sets of profiles without groups: normal with the mean and covariance of the
        profiles' features.
    seed : of everything random.

    Raises
    ------
    MissingDataError : the trace holds no profiles. InputError : too few heads or parts.
    """
    from sklearn.metrics import adjusted_rand_score, silhouette_samples, silhouette_score

    check_option("method", method, METHODS)
    numbers = [k] if isinstance(k, int) else sorted({int(number) for number in k})
    n_parts = int(trace.dataset.sizes.get("part", 0))
    profiles = head_profiles(trace)
    features = profiles.features()
    if n_parts < 2:
        raise InputError("stability needs at least 2 parts of the text; record Lag(parts=10).")
    if not numbers or numbers[0] < 2 or numbers[-1] >= len(features):
        raise InputError(f"k={k}: {len(features)} heads can be put in 2 to {len(features) - 1}.")
    rng = np.random.default_rng(seed)

    labels = {number: cluster_profiles(features, number, method, seed) for number in numbers}
    scores = np.array([silhouette_score(features, labels[number]) for number in numbers])
    # Principal axes without noise: a normal cloud of the same shape has no groups.
    _, size, axes = np.linalg.svd(features - features.mean(axis=0), full_matrices=False)
    shape = size[:, None] * axes / np.sqrt(len(features))
    null = np.empty((null_draws, len(numbers)))
    for row in null:
        cloud = rng.standard_normal((len(features), len(size))) @ shape
        row[:] = [
            silhouette_score(cloud, cluster_profiles(cloud, number, method, seed))
            for number in numbers
        ]
    # Fewer clusters have higher silhouettes whatever the data: what counts is the excess.
    usual = null.mean(axis=0) if null_draws else np.zeros(len(numbers))
    best = int(np.argmax(scores - usual))
    chosen = numbers[best]
    mine = labels[chosen]
    choice = pd.DataFrame(
        {
            "k": numbers,
            "silhouette": scores,
            "null_mean": usual if null_draws else np.nan,
            "null_high": np.quantile(null, 0.95, axis=0) if null_draws else np.nan,
            "p": (1 + (null >= scores).sum(axis=0)) / (1 + null_draws) if null_draws else np.nan,
        }
    )
    excess = (null - usual).max(axis=1) if null_draws else np.zeros(0)
    reached = (excess >= scores[best] - usual[best]).sum()
    p = (1 + int(reached)) / (1 + null_draws) if null_draws else float("nan")

    def again(parts: NDArray[np.int64]) -> NDArray[np.int64]:
        return cluster_profiles(head_profiles(trace, parts).features(), chosen, method, seed)

    halves, resampled = np.empty(draws), np.empty(draws)
    jaccard = np.zeros(chosen)
    for draw in range(draws):
        order = rng.permutation(n_parts)
        left, right = order[: n_parts // 2], order[n_parts // 2 :]
        halves[draw] = adjusted_rand_score(again(left), again(right))
        other = again(rng.integers(n_parts, size=n_parts))
        resampled[draw] = adjusted_rand_score(mine, other)
        jaccard += _jaccard(mine, other, chosen) / draws

    table = pd.DataFrame(
        {
            "story": trace.story.name,
            "model": trace.settings["model"],
            "layer": profiles.layer,
            "head": profiles.head,
            "cluster": mine,
            "silhouette": silhouette_samples(features, mine),
            "stability": jaccard[mine],
            "entropy": profiles.entropy,
            "first": profiles.first,
            "near": profiles.lag[:, profiles.lag_last <= 4].sum(axis=1),
            "provenance": trace.settings["provenance"],
        }
    )
    return HeadClusters(
        table=table,
        choice=choice,
        k=chosen,
        silhouette=float(scores[best]),
        p=float(p),
        split_half=_mean_interval(halves),
        bootstrap=_mean_interval(resampled),
        profiles=profiles,
        settings={
            "method": method,
            "parts": n_parts,
            "draws": draws,
            "null_draws": null_draws,
            "seed": seed,
        },
    )


def cluster_agreement(
    first: HeadClusters, second: HeadClusters, *, draws: int = 999, seed: int = 0
) -> dict[str, float]:
    """Whether two stories, or two models of one shape, put the same heads together.

    Parameters
    ----------
    first, second : clusters of the same heads.
    draws, seed : permutations of the heads for the p value.

    Returns
    -------
    dict
        adjusted_rand (0 by chance, 1 for the same groups), null_mean, null_high (95th
        percentile), p.

    Raises
    ------
    InputError : they are not of the same heads.
    """
    from sklearn.metrics import adjusted_rand_score

    one, other = (part.table[["layer", "head"]].to_numpy(np.int64) for part in (first, second))
    if not np.array_equal(one, other):
        raise InputError("the two clusterings are not of the same layers and heads.")
    a, b = (part.table["cluster"].to_numpy() for part in (first, second))
    value = float(adjusted_rand_score(a, b))
    rng = np.random.default_rng(seed)
    null = np.array([adjusted_rand_score(a, rng.permutation(b)) for _ in range(draws)])
    return {
        "adjusted_rand": value,
        "null_mean": float(null.mean()),
        "null_high": float(np.quantile(null, 0.95)),
        "p": float((1 + (null >= value - 1e-12).sum()) / (1 + draws)),
    }


def _jaccard(labels: NDArray[np.int64], other: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Similarity of each cluster to the most similar of another clustering, (k,)."""
    both = np.zeros((k, k))
    np.add.at(both, (labels, other), 1)
    union = both.sum(axis=1, keepdims=True) + both.sum(axis=0, keepdims=True) - both
    best: NDArray[np.float64] = (both / union).max(axis=1)
    return best


def _mean_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    low, high = percentile_interval(values)
    return float(values.mean()), float(low), float(high)
