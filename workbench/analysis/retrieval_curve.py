"""The lag curve of a memory system in the table in which those of people and heads stand."""

from __future__ import annotations

import pandas as pd

from workbench.analysis.recall.curves import CURVE_COLUMNS
from workbench.analysis.retrieval import RetrievedEvents
from workbench.analysis.retrieval_lag import retrieval_lag_crp
from workbench.core.checks import plural
from workbench.core.errors import InputError

__all__ = ["retrieval_curve"]


def retrieval_curve(
    events: RetrievedEvents,
    label: str | None = None,
    *,
    buffer: str = "similarity",
    order: str = "log",
    max_lag: int = 5,
    over: str = "steps",
    rescale: bool = False,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """The lag-CRP of recalled events, to be set below `lag_curves` of people, heads and CMR.

    `figure_lag` draws the tables together. `lag_curve` takes recalled events, too, with layers in
    the place of people; here the interval is over retrieval steps unless `over` says otherwise.

    Parameters
    ----------
    events, buffer, order, max_lag, over, resamples, confidence, seed : see `retrieval_lag_crp`.
    label : how the figure calls it; None: the system's name.
    rescale : as in `lag_curve`.

    Returns
    -------
    Tidy table with the columns of `lag_curve`: label, source, scale, lag, value, low, high, band,
    provenance.
    """
    found = retrieval_lag_crp(
        events,
        buffer=buffer,
        order=order,
        max_lag=max_lag,
        over=over,
        draws=0,
        resamples=resamples,
        confidence=confidence,
        seed=seed,
    )
    found = found[found["layer"] == "all"].reset_index(drop=True)
    n = len(events.layers) if over == "layers" else int(found["n_steps"].iloc[0])
    drawn = plural(n, "layer" if over == "layers" else "retrieval step")
    known = found["ci_low"].notna().any()
    curve = pd.DataFrame(
        {
            "label": label or events.source,
            "source": events.source,
            "scale": "probability given availability",
            "lag": found["lag"],
            "value": found["prob"].astype(float),
            "low": found["ci_low"].astype(float),
            "high": found["ci_high"].astype(float),
            "band": f"{confidence:.0%} interval over {drawn}" if known else f"none ({drawn})",
            "provenance": f"{events.source}: {plural(len(events.retrievals), 'retrieval')} of "
            f"{plural(len(events.layers), 'layer')}",
        }
    )
    if rescale:
        low, high = curve["value"].min(), curve["value"].max()
        if not high > low:
            raise InputError(f"the curve of {curve['label'][0]} is constant; it has no shape.")
        for column in ("value", "low", "high"):
            curve[column] = (curve[column] - low) / (high - low)
        curve["scale"] = "rescaled " + curve["scale"]
    return curve.loc[:, list(CURVE_COLUMNS)]
