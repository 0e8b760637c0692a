"""EM-LLM's Table 2 as published, and how far an order of methods agrees with it.

Fountas et al. 2025, Table 2: PG-19 texts, γ = 1e-3, differences from random segmentation, means
± standard deviations over chunks, layers and heads. Modularity × 1e5, intra/inter × 1e3; the unit
of conductance is not stated.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workbench.core.checks import check_option

__all__ = ["HIGHER_IS_BETTER", "METHODS", "PUBLISHED", "agreement", "published_order"]

METHODS = ("F", "FM", "FC", "S", "SM", "SC")

HIGHER_IS_BETTER = {"modularity": True, "conductance": False, "intra_inter": True}

# (mean, standard deviation) of F, FM, FC, S, SM, SC
PUBLISHED: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "Mistral-7B": {
        "modularity": (
            (-2.3, 4.1),
            (29.2, 44.0),
            (6.7, 25.9),
            (18.6, 29.6),
            (39.9, 55.5),
            (29.5, 42.7),
        ),
        "conductance": (
            (9.1, 8.7),
            (-16.9, 6.7),
            (-12.5, 9.6),
            (-23.6, 9.4),
            (-24.6, 9.3),
            (-27.6, 9.8),
        ),
        "intra_inter": (
            (-4.3, 4.0),
            (31.2, 21.4),
            (3.7, 14.9),
            (17.9, 17.0),
            (35.3, 27.7),
            (21.6, 22.4),
        ),
    },
    "LLaMA2-7B": {
        "modularity": (
            (-1.1, 4.3),
            (13.4, 19.5),
            (0.6, 7.3),
            (8.7, 16.0),
            (18.7, 26.4),
            (11.5, 19.4),
        ),
        "conductance": (
            (11.9, 9.8),
            (-18.8, 7.4),
            (-13.7, 10.9),
            (-29.5, 10.2),
            (-29.7, 10.1),
            (-33.3, 10.3),
        ),
        "intra_inter": (
            (-3.8, 3.7),
            (20.7, 184.7),
            (-1.1, 6.8),
            (15.0, 880.0),
            (25.0, 19.9),
            (16.5, 15.4),
        ),
    },
    "LLaMA3-8B": {
        "modularity": (
            (-1.6, 3.6),
            (18.9, 25.6),
            (0.9, 11.8),
            (13.1, 21.5),
            (27.0, 35.6),
            (18.3, 28.5),
        ),
        "conductance": (
            (11.3, 9.5),
            (-20.3, 6.9),
            (-14.6, 11.4),
            (-29.7, 9.2),
            (-30.6, 9.2),
            (-33.9, 9.6),
        ),
        "intra_inter": (
            (-3.8, 3.1),
            (24.5, 13.9),
            (-1.1, 5.8),
            (15.7, 11.0),
            (28.1, 16.1),
            (16.4, 12.2),
        ),
    },
}


def published_order(model: str, measure: str) -> list[str]:
    """The methods of Table 2, best first, by their published mean."""
    check_option("model", model, PUBLISHED)
    check_option("measure", measure, HIGHER_IS_BETTER)
    values = dict(zip(METHODS, PUBLISHED[model][measure], strict=True))
    return sorted(METHODS, key=lambda m: values[m][0], reverse=HIGHER_IS_BETTER[measure])


def agreement(
    values: Mapping[str, float], model: str, measure: str
) -> tuple[float, float, int, int]:
    """Kendall's τ between an order of methods and the published one.

    Parameters
    ----------
    values : our mean of each method; methods that Table 2 does not have are left out, and NaN.
    model, measure : which published column.

    Returns
    -------
    tau : Kendall's τ-b; NaN for fewer than three methods or all values alike.
    p : two-sided, exact where no values are tied (with six methods no p is below 1/360).
    agree, pairs : pairs of methods in the published order, and all pairs.
    """
    from scipy.stats import kendalltau

    published_order(model, measure)  # checks the names
    theirs = dict(zip(METHODS, PUBLISHED[model][measure], strict=True))
    shared = [m for m in METHODS if m in values and np.isfinite(values[m])]
    ours = np.array([values[m] for m in shared])
    paper = np.array([theirs[m][0] for m in shared])
    pairs = len(shared) * (len(shared) - 1) // 2
    upper = np.triu_indices(len(shared), k=1)
    same = np.sign(np.subtract.outer(ours, ours)) == np.sign(np.subtract.outer(paper, paper))
    agree = int(same[upper].sum())
    if len(shared) < 3 or np.ptp(ours) == 0:
        return float("nan"), float("nan"), agree, pairs
    found = kendalltau(ours, paper)
    return float(found.statistic), float(found.pvalue), agree, pairs
