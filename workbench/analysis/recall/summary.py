"""One protocol for every source of recall: the same measures, intervals and nulls in one table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.event_order import event_contiguity
from workbench.analysis.recall.asymmetry import asymmetry
from workbench.analysis.recall.curves import position_curve
from workbench.analysis.recall.resampling import bootstrap_weights, interval, permutation_summary
from workbench.analysis.recall.sequences import Recalls, RecallSequences, as_sequences
from workbench.analysis.recall.serial import first_recall, serial_position
from workbench.analysis.recall.temporal import temporal_factor
from workbench.core.errors import DataError, InputError

__all__ = ["SUMMARY_COLUMNS", "recall_summary"]

SUMMARY_COLUMNS = (
    *("group", "measure", "lag", "position", "value", "ci_low", "ci_high"),
    *("null", "null_mean", "null_sd", "z", "p", "n_subjects", "n_lists", "seed"),
)


def recall_summary(
    recalls: Recalls,
    *,
    by: str | None = None,
    max_lag: int | None = None,
    draws: int = 500,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Lag-CRP, asymmetry, temporal factor, serial position and first recall, each beside its null.

    Everything is a mean over subjects, with a 95 % interval from a bootstrap over the subjects for
    whom it is defined. The nulls, and what each keeps:

    - lag_crp, temporal_factor: "shuffle", the recalled items of each list in random order;
    - asymmetry_*: "reverse", each list's order backwards with probability 1/2;
    - serial_position, first_recall: "items", as many items of each list as were recalled, drawn
      at random.

    Parameters
    ----------
    recalls : as in `lag_crp`: people's lists, retold events, simulated recall, retrieved events.
    by : column of the table (a condition, a session, "subject") by which lists are grouped.
    max_lag : lags -max_lag ... max_lag; None: 5, or fewer when lists are shorter.
    draws : of each null. resamples : of the bootstrap. seed : of both.

    Returns
    -------
    Table with the columns `SUMMARY_COLUMNS`. group is "all" without `by`; lag or position is NA
    where it does not apply; p is two-sided and not corrected for the number of rows.

    Raises
    ------
    InputError : `by` without a table, or no such column; lists of fewer than two items; a lag
        beyond the longest list.
    DataError : a list has several values of `by`, or none.
    """
    tables = []
    for group, sequences in _groups(recalls, by):
        longest = sequences.max_length
        if longest < 2:
            raise InputError(
                f"{'the lists' if by is None else f'{by} {group}: the lists'} have one item each, "
                "and transitions need at least two."
            )
        reach = min(5, longest - 1) if max_lag is None else max_lag
        options = {"draws": draws, "resamples": resamples, "seed": seed}
        lags = event_contiguity(sequences, max_lag=reach, **options).rename(
            columns={"prob": "value"}
        )
        parts = [
            lags.assign(measure="lag_crp", null="shuffle"),
            _asymmetry(sequences, options),
            _temporal(sequences, draws, resamples, seed),
            *_positions(sequences, draws, resamples, seed),
        ]
        table = pd.concat([part.astype(object) for part in parts], ignore_index=True)
        tables.append(table.assign(group=group, n_lists=sequences.n_lists, seed=seed))
    found = pd.concat(tables, ignore_index=True)
    numbers = ("value", "ci_low", "ci_high", "null_mean", "null_sd", "z", "p")
    found = found.astype(dict.fromkeys(numbers, np.float64))
    counts = ("lag", "position", "n_subjects", "n_lists", "seed")
    return found.astype(dict.fromkeys(counts, "Int64")).loc[:, list(SUMMARY_COLUMNS)]


def _groups(recalls: Recalls, by: str | None) -> Iterator[tuple[Any, RecallSequences]]:
    if by is None:
        yield "all", as_sequences(recalls)
        return
    if not isinstance(recalls, pd.DataFrame):
        raise InputError(f"by={by!r} needs a table of recalls, in which it is a column.")
    if by not in recalls.columns:
        raise InputError(
            f"by={by!r} is no column of the recall table; it has: "
            f"{', '.join(map(str, recalls.columns))}."
        )
    as_sequences(recalls)  # an unusable table is told as such, before it is cut up
    study = recalls[recalls["trial_type"] == "study"]
    # Recall rows often leave a list's condition empty, so that of the study rows counts.
    values = study.assign(_value=study[by]).groupby(["subject", "list"], sort=False)["_value"]
    different = values.nunique(dropna=False)
    if (different > 1).any():
        subject, label = different.index[int((different > 1).to_numpy().argmax())]
        raise DataError(
            f"subject {subject}, list {label} has {int(different.max())} values of {by!r}; lists "
            "are grouped as wholes."
        )
    value = values.first()
    if value.isna().any():
        subject, label = value.index[int(value.isna().to_numpy().argmax())]
        raise DataError(f"subject {subject}, list {label} has no value of {by!r}.")
    own = pd.MultiIndex.from_frame(recalls[["subject", "list"]])
    group = value.reindex(own).to_numpy()
    for label in pd.unique(value):
        yield label, as_sequences(recalls[group == label])


def _asymmetry(sequences: RecallSequences, options: dict[str, int]) -> pd.DataFrame:
    found = asymmetry(sequences, **options)  # type: ignore[arg-type]
    found["measure"] = "asymmetry_" + found["measure"]
    return found.drop(columns=["average", "n_lists", "seed"])


def _temporal(sequences: RecallSequences, draws: int, resamples: int, seed: int) -> pd.DataFrame:
    found = temporal_factor(sequences, draws=draws, seed=seed)
    people = found[found["subject"].isin(sequences.subjects)] if not draws else found.iloc[:-1]
    values = people["temporal_factor"].to_numpy(dtype=np.float64)
    values = values[np.isfinite(values)]
    row: dict[str, Any] = {
        "measure": "temporal_factor",
        "value": values.mean() if len(values) else np.nan,
        "ci_low": np.nan,
        "ci_high": np.nan,
        "null": "shuffle",
        "n_subjects": len(values),
    }
    if resamples and len(values) > 1:
        sample = bootstrap_weights(len(values), resamples, seed) @ values / len(values)
        row["ci_low"], row["ci_high"] = interval(sample)
    if draws:
        row |= {name: found[name].iloc[-1] for name in ("null_mean", "null_sd", "z", "p")}
    return pd.DataFrame([row])


def _positions(
    sequences: RecallSequences, draws: int, resamples: int, seed: int
) -> Iterator[pd.DataFrame]:
    nulls = _random_items(sequences, draws, seed)
    for what, measure in (("recall", "serial_position"), ("first", "first_recall")):
        curve = position_curve(sequences, what=what, resamples=resamples, seed=seed)
        of = serial_position(sequences) if what == "recall" else first_recall(sequences)
        rows = []
        for column, point in enumerate(curve.to_dict("records")):
            rows.append(
                {
                    "measure": measure,
                    "position": point["position"],
                    "value": point["value"],
                    "ci_low": point["low"],
                    "ci_high": point["high"],
                    "null": "items",
                    **permutation_summary(float(point["value"]), nulls[what][:, column]),
                    "n_subjects": int(
                        of.loc[of["position"] == point["position"], "prob"].notna().sum()
                    ),
                }
            )
        yield pd.DataFrame(rows)


def _random_items(
    sequences: RecallSequences, draws: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Mean over subjects when as many items as were recalled are drawn, (draws, max_length)."""
    rng = np.random.default_rng(seed)
    width, n_subjects = sequences.max_length, len(sequences.subjects)
    there = np.arange(1, width + 1)[None, :] <= sequences.length[:, None]
    wanted = (sequences.outputs > 0).sum(axis=1)[:, None]
    member = np.zeros((n_subjects, sequences.n_lists))
    member[sequences.subject_code, np.arange(sequences.n_lists)] = 1.0
    possible = {"recall": member @ there, "first": member @ (there & (wanted > 0))}
    found = {what: np.full((draws, width), np.nan) for what in possible}
    for draw in range(draws):
        keys = np.where(there, rng.random(there.shape), 2.0)
        rank = keys.argsort(axis=1).argsort(axis=1)
        drawn = {"recall": rank < wanted, "first": (rank == 0) & (wanted > 0)}
        for what, which in drawn.items():
            number = possible[what]
            share = np.where(number > 0, member @ which / np.maximum(number, 1), 0.0)
            people = (number > 0).sum(axis=0)
            found[what][draw] = np.where(
                people > 0, share.sum(axis=0) / np.maximum(people, 1), np.nan
            )
    return found
