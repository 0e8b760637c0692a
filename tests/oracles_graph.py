"""Graph measures and refinements written straight from their definitions: dense weights, loops.

Slow on purpose, and sharing no code with the package.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

NAN = math.nan


def weights(keys, diagonal=True):
    """A_ij = k_i·k_j of one graph: keys (n, d), or (heads, n, d) whose weights are added."""
    stacked = np.asarray(keys, dtype=np.float64)
    if stacked.ndim == 2:
        stacked = stacked[None]
    n = stacked.shape[1]
    dense = np.zeros((n, n))
    for head in stacked:
        for i in range(n):
            for j in range(n):
                if i != j or diagonal:
                    dense[i, j] += float(np.dot(head[i], head[j]))
    return dense


def block(dense, rows, columns):
    """Σ_{i ∈ rows} Σ_{j ∈ columns} A_ij."""
    return math.fsum(dense[i, j] for i in rows for j in columns)


def nearly_no_weight(dense, own):
    """The decided rule: a total of at most 1e-9 Σ‖k‖² counts as no weight at all."""
    everything = range(len(dense))
    return block(dense, everything, everything) <= 1e-9 * own


def modularity(dense, communities, own):
    """Newman: Σ_ij [A_ij - d_i d_j / W] [same community] / W."""
    if nearly_no_weight(dense, own):
        return NAN
    n = len(dense)
    degree = [math.fsum(dense[i]) for i in range(n)]
    total = math.fsum(degree)
    terms = [dense[i, j] - degree[i] * degree[j] / total for c in communities for i in c for j in c]
    return math.fsum(terms) / total


def conductances(dense, communities, variant, own, zero=None):
    """Conductance of each community: cut / smaller side; NaN where the side is not positive."""
    n = len(dense)
    everything = range(n)
    total = block(dense, everything, everything)
    values = []
    for c in communities:
        rest = [i for i in everything if i not in set(c)]
        cut = block(dense, c, rest)
        if variant == "standard":
            side = min(block(dense, c, everything), block(dense, rest, everything))
        elif variant == "em-llm-paper":
            side = min(block(dense, c, c), block(dense, rest, rest))
        else:
            side = min(block(dense, c, c), total - block(dense, c, c))
        if zero is not None:
            values.append(cut / (side if side != 0 else zero))
        elif side <= 0 or not rest or nearly_no_weight(dense, own):
            values.append(NAN)
        else:
            values.append(cut / side)
    return values


def intra_inters(dense, communities, variant, own, diagonal=True):
    """Intra/inter similarity of each community; NaN where the cut is not positive."""
    n = len(dense)
    values = []
    for c in communities:
        rest = [i for i in range(n) if i not in set(c)]
        cut = block(dense, c, rest)
        if cut <= 0 or nearly_no_weight(dense, own):
            values.append(NAN)
        elif variant == "sums":
            values.append(block(dense, c, c) / cut)
        else:
            pairs = len(c) ** 2 if diagonal else len(c) * (len(c) - 1)
            inner = block(dense, c, c) / pairs if pairs else NAN
            values.append(inner / (cut / (len(c) * len(rest))))
    return values


def events_of(starts, n):
    edges = [*starts, n]
    return [list(range(a, b)) for a, b in pairwise(edges)]


def score(dense, communities, objective, variant, own, diagonal=True, zero=None):
    """The objective of refinement, larger is better."""
    if objective == "modularity":
        value = modularity(dense, communities, own)
        return value / 2 if variant == "em-llm" else value
    if objective == "conductance":
        found = conductances(dense, communities, variant, own, zero)
        return NAN if any(map(math.isnan, found)) else -min(found)
    found = intra_inters(dense, communities, variant, own, diagonal)
    return NAN if any(map(math.isnan, found)) else math.fsum(found) / len(found)


def choose(scores, candidates, last):
    """Best candidate, equal scores (to 1e-11 of the best) to the last or the first."""
    defined = [s for s in scores if not math.isnan(s)]
    if not defined:
        return None
    best = max(defined)
    near = [
        c for c, s in zip(candidates, scores, strict=True) if s >= best - 1e-11 * abs(best) - 1e-14
    ]
    return near[-1] if last else near[0]


def refine_paper(keys, starts, objective, variant, scope, min_size, window, diagonal=True):
    """Algorithm 1 in the decided readings; returns the inner boundaries."""
    stacked = np.asarray(keys, dtype=np.float64)
    stacked = stacked[None] if stacked.ndim == 2 else stacked
    n = stacked.shape[1]
    dense = weights(stacked, diagonal)
    originals = [s for s in starts if s > 0]
    refined = []
    for i, beta in enumerate(originals):
        alpha = refined[-1] if refined else 0
        following = originals[i + 1] if i + 1 < len(originals) else n
        left, right = (alpha, following) if scope == "next" else (0, n)
        high = min(right, beta + window // 2)
        low = max(left, high - window)
        own = float((stacked[:, low:high] ** 2).sum())
        sub = dense[low:high, low:high]
        begin = max(alpha, low)
        candidates, scores = [], []
        for candidate in range(alpha + min_size, beta + 1):
            if candidate <= begin:
                continue
            event = list(range(begin - low, candidate - low))
            before = list(range(begin - low))
            after = list(range(candidate - low, high - low))
            communities = [event, before + after]
            if scope == "three":
                communities = [c for c in (before, event, after) if c]
            candidates.append(candidate)
            scores.append(score(sub, communities, objective, variant, own, diagonal))
        chosen = choose(scores, candidates, last=True)
        refined.append(beta if chosen is None else chosen)
    return refined


def refine_released_chunk(dense, own, places, n, objective, variant, m, offset):
    """The released code's search, from the facts: places and result in the stretch's own axis."""
    kept = []
    for i, place in enumerate(places):
        if i == 0:
            if place >= m or offset == 0:
                kept.append(place)
        elif place - places[i - 1] >= m:
            kept.append(place)
    previous = 0
    refined = []
    for e in kept:
        new = e
        if e - previous > m and e - offset > m:
            half = (e - previous) // 2
            a, b = max(0, previous - half), min(n, e + half)
            candidates = list(range(max(offset, previous) + m, e))
            scores = [
                score(
                    dense[a:b, a:b],
                    [list(range(t - a)), list(range(t - a, b - a))],
                    objective,
                    variant,
                    float(own[a:b].sum()),
                    zero=1e-15,
                )
                for t in candidates
            ]
            found = choose(scores, candidates, last=False)
            new = e if found is None else found
        refined.append(new)
        previous = new
    return refined


def refine_released(keys, starts, objective, variant, m, chunk=None):
    """All chunks, with the look-back to the last boundary; returns the inner boundaries."""
    keys = np.asarray(keys, dtype=np.float64)
    n = len(keys)
    flags = [s for s in starts if s > 0]
    size = chunk or n
    refined = []
    begin = 0
    while begin < n:
        end = min(begin + size, n)
        length = end - begin
        offset = 0
        if end >= 2 * length:
            behind = [f for f in refined if begin - length <= f < begin]
            if behind:
                offset = begin - behind[-1]
        edge = begin - offset
        part = keys[edge:end]
        places = [f - edge for f in flags if begin <= f < end]
        found = refine_released_chunk(
            weights(part), (part**2).sum(axis=1), places, end - edge, objective, variant, m, offset
        )
        refined += [edge + t for t in found]
        begin = end
    return refined
