"""Recall measures written straight from their definitions, list by list, in plain loops."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np


def clean(recalled: list[int]) -> list[int]:
    """Positions with repeats and intrusions (0) as None-like 0."""
    seen: set[int] = set()
    result = []
    for position in recalled:
        result.append(0 if position in seen else position)
        if position:
            seen.add(position)
    return result


def lag_counts(
    recalled: list[list[int]], lengths: list[int], subjects: list[str]
) -> dict[str, dict[int, list[int]]]:
    """subject → lag → [actual, possible]."""
    longest = max(lengths)
    table: dict[str, dict[int, list[int]]] = {
        s: {lag: [0, 0] for lag in range(-longest + 1, longest)} for s in subjects
    }
    for row, n, subject in zip(recalled, lengths, subjects):
        row = clean(row)
        left = set(range(1, n + 1))
        for previous, current in itertools.pairwise(row):
            left.discard(previous)
            if previous and current:
                for item in left:
                    table[subject][item - previous][1] += 1
                table[subject][current - previous][0] += 1
    return table


def lag_ranks(recalled: list[list[int]], lengths: list[int]) -> list[float]:
    ranks = []
    for row, n in zip(recalled, lengths):
        row = clean(row)
        left = set(range(1, n + 1))
        for previous, current in itertools.pairwise(row):
            left.discard(previous)
            if previous and current:
                others = [abs(item - previous) for item in left if item != current]
                lag = abs(current - previous)
                score = sum(1.0 if o > lag else 0.5 if o == lag else 0.0 for o in others)
                ranks.append(score / len(others) if others else np.nan)
    return ranks


def simulate_with_replacement(
    beta_enc: float,
    beta_rec: float,
    gamma: float,
    *,
    items: int = 100,
    runs: int = 100,
    starts: int = 20,
    recalls: int = 100,
    seed: int = 0,
) -> np.ndarray:
    """CMR as recall with replacement, by drawing: lag distribution over -8 ... 8.

    `items` one-hot items and an absorbing end; context is a vector that is normalised after every
    step, items are drawn by Luce's rule, and a run ends at the end state.
    """
    rng = np.random.default_rng(seed)
    n = items + 1
    ahead = np.arange(n)[None, :] - np.arange(n)[:, None]
    study = np.where(ahead > 0, (1 - beta_enc) ** np.maximum(ahead - 1, 0).astype(float), 0.0)
    given = (1 - gamma) * np.eye(n) + gamma * study.T
    lengths = np.linalg.norm(given, axis=1, keepdims=True)
    given = given / np.where(lengths > 0, lengths, 1)
    last = np.repeat(np.arange(starts), runs)
    context = np.eye(n)[last]
    counts: dict[int, int] = defaultdict(int)
    for _ in range(recalls):
        match = (context @ study).cumsum(axis=1)
        item = (match <= rng.random((len(match), 1)) * match[:, -1:]).sum(axis=1)
        going = item < items
        context, item, last = context[going], item[going], last[going]
        if not going.any():
            break
        for lag, count in zip(*np.unique(item - last, return_counts=True)):
            counts[int(lag)] += int(count)
        last = item
        context = (1 - beta_rec) * context + beta_rec * given[item]
        context /= np.linalg.norm(context, axis=1, keepdims=True)
    curve = np.array([counts[lag] for lag in range(-8, 9)], dtype=float)
    return curve / curve.sum()
