"""The one protocol of recall: studied positions in the order in which they came out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workbench.core.errors import DataError, InputError

__all__ = ["TABLE_COLUMNS", "RecallSequences", "Recalls", "SupportsRecall", "as_sequences"]

TABLE_COLUMNS = ("subject", "list", "position", "trial_type", "item")
"""Columns of a free-recall table; `trial_type` is "study" or "recall"."""


@dataclass(frozen=True, eq=False)
class RecallSequences:
    """Lists that were studied and the positions recalled from each, in output order.

    Positions are numbered from 1, as in the free-recall literature. Only the *first* recall of a
    position counts as a recall of it; repeats and intrusions keep their place in the sequence
    (they break transitions) and are 0.

    Parameters
    ----------
    subject : (n_lists,) who recalled; any label. What is averaged over: a participant, a layer of
        a memory system, a simulated participant.
    lists : (n_lists,) label of the list within the subject.
    length : (n_lists,) number of studied positions of each list.
    outputs : (n_lists, n_outputs) int: position recalled at each output place, 0 for a repeat or
        an intrusion, -1 after the last output.
    n_repeats, n_intrusions : (n_lists,) how many of the zeros were which.
    source : who these are, for tables and figures ("people", "CMR", ...).
    """

    subject: NDArray[np.object_]
    lists: NDArray[np.object_]
    length: NDArray[np.int64]
    outputs: NDArray[np.int64]
    n_repeats: NDArray[np.int64]
    n_intrusions: NDArray[np.int64]
    source: str = "people"

    # --- making ----------------------------------------------------------------------------

    @classmethod
    def from_positions(
        cls,
        recalled: Iterable[ArrayLike],
        length: int | Sequence[int],
        *,
        subject: Sequence[Hashable] | None = None,
        lists: Sequence[Hashable] | None = None,
        source: str = "people",
    ) -> RecallSequences:
        """From sequences of recalled positions.

        The way in for events a person retells (event numbers + 1) and for events a memory system
        retrieves.

        Parameters
        ----------
        recalled : one sequence of positions (1 ... length) per list, in output order; 0 marks an
            intrusion. An item may come twice: the second time is a repeat.
        length : number of positions of each list, or one number for all.
        subject : one label per list; None: all the same, "all".
        lists : one label per list; None: 1, 2, ... within the subject.
        source : label for tables and figures.

        Raises
        ------
        DataError : no list, a position outside 0 ... length, or labels that do not fit.
        """
        rows = [np.asarray(row, dtype=np.int64).ravel() for row in recalled]
        if not rows:
            raise DataError("there is no recall sequence; give at least one list.")
        lengths = np.broadcast_to(np.asarray(length, dtype=np.int64), (len(rows),)).copy()
        if (lengths < 1).any():
            raise DataError("every list needs a length of at least 1.")
        for number, (row, n) in enumerate(zip(rows, lengths)):
            wrong = row[(row < 0) | (row > n)]
            if len(wrong):
                raise DataError(
                    f"list {number + 1} has the recalled position {wrong[0]}, outside 1 ... {n} "
                    "(0 marks an intrusion). Number positions from 1."
                )
        raw = np.full((len(rows), max(1, *(len(row) for row in rows))), -1, dtype=np.int64)
        for number, row in enumerate(rows):
            raw[number, : len(row)] = row
        subjects = _labels("subject", subject, len(rows), "all")
        if lists is None:
            numbers = pd.Series(subjects).groupby(subjects, sort=False).cumcount() + 1
            names = numbers.to_numpy().astype(object)
        else:
            names = _labels("lists", lists, len(rows), None)
        return cls._from_raw(subjects, names, lengths, raw, source)

    @classmethod
    def from_table(cls, table: pd.DataFrame, *, source: str = "people") -> RecallSequences:
        """From a free-recall table with the columns `TABLE_COLUMNS`, one row per study or recall.

        A recalled item that was not studied in the same list, or is missing, is an intrusion.

        Raises
        ------
        DataError : a column is missing or there twice, the table is empty, a trial type is
            unknown, study positions are not 1 ... n, an item is studied twice in a list, two
            recalls share a place, or a list has recalls and no study rows.
        """
        _check_columns(table)
        frame = table.loc[:, list(TABLE_COLUMNS)].reset_index(drop=True)
        if frame.empty:
            raise DataError("the recall table has no rows.")
        known = frame["trial_type"].isin(["study", "recall"])
        if not known.all():
            row = int(np.flatnonzero(~known)[0])
            raise DataError(
                f"row {row} of the recall table has trial_type {frame['trial_type'][row]!r}; "
                "only 'study' and 'recall' are allowed. Drop or rename the others."
            )
        for column in ("subject", "list"):
            if frame[column].isna().any():
                row = int(np.flatnonzero(frame[column].isna())[0])
                raise DataError(f"row {row} of the recall table has no {column}.")
        position = pd.to_numeric(frame["position"], errors="coerce").to_numpy(dtype=np.float64)
        if not np.isfinite(position).all():
            row = int(np.flatnonzero(~np.isfinite(position))[0])
            raise DataError(f"row {row} of the recall table has no numeric position.")
        group = frame.groupby(["subject", "list"], sort=False).ngroup().to_numpy().astype(np.int64)
        is_study = (frame["trial_type"] == "study").to_numpy(dtype=bool)
        lengths = _check_study(frame, group, position, is_study)
        raw = _match_recalls(frame, group, position, is_study, len(lengths))
        first = pd.Series(np.arange(len(frame))).groupby(group).first().to_numpy()
        return cls._from_raw(
            frame["subject"].to_numpy(dtype=object)[first],
            frame["list"].to_numpy(dtype=object)[first],
            lengths,
            raw,
            source,
        )

    @classmethod
    def _from_raw(
        cls,
        subject: NDArray[np.object_],
        lists: NDArray[np.object_],
        length: NDArray[np.int64],
        raw: NDArray[np.int64],
        source: str,
    ) -> RecallSequences:
        """`raw` still holds repeats as positions; they become 0 here."""
        repeat = np.zeros(raw.shape, dtype=bool)
        seen = np.zeros((len(raw), int(length.max()) + 1), dtype=bool)
        rows = np.arange(len(raw))
        for place in range(raw.shape[1]):
            position = np.maximum(raw[:, place], 0)
            repeat[:, place] = seen[rows, position] & (position > 0)
            seen[rows, position] = True
        return cls(
            subject=subject,
            lists=lists,
            length=length,
            outputs=np.where(repeat, 0, raw),
            n_repeats=repeat.sum(axis=1),
            n_intrusions=(raw == 0).sum(axis=1),
            source=source,
        )

    # --- views -----------------------------------------------------------------------------

    @property
    def n_lists(self) -> int:
        """Number of lists of all subjects."""
        return len(self.length)

    @property
    def subjects(self) -> list[Any]:
        """Labels of the subjects, in order of first appearance."""
        return list(dict.fromkeys(self.subject.tolist()))

    @property
    def subject_code(self) -> NDArray[np.int64]:
        """Number of each list's subject in `subjects`, shape (n_lists,)."""
        place = {label: code for code, label in enumerate(self.subjects)}
        return np.array([place[label] for label in self.subject.tolist()], dtype=np.int64)

    @property
    def max_length(self) -> int:
        """Length of the longest list."""
        return int(self.length.max())

    def recall_sequences(self) -> RecallSequences:
        """Itself: the method by which any other type joins the protocol."""
        return self

    def to_table(self) -> pd.DataFrame:
        """As a free-recall table; items are named by position, intrusions 0, repeats left out."""
        frames = []
        for row in range(self.n_lists):
            studied = np.arange(1, self.length[row] + 1)
            output = self.outputs[row][self.outputs[row] >= 0]
            frames.append(
                pd.DataFrame(
                    {
                        "subject": self.subject[row],
                        "list": self.lists[row],
                        "position": np.concatenate([studied, np.arange(1, len(output) + 1)]),
                        "trial_type": ["study"] * len(studied) + ["recall"] * len(output),
                        "item": np.concatenate([studied, output]),
                    }
                )
            )
        return pd.concat(frames, ignore_index=True)

    def __repr__(self) -> str:
        return (
            f"RecallSequences({self.source}: {len(self.subjects)} subjects, {self.n_lists} lists, "
            f"{int((self.outputs > 0).sum())} recalls, {int(self.n_repeats.sum())} repeats, "
            f"{int(self.n_intrusions.sum())} intrusions)"
        )


@runtime_checkable
class SupportsRecall(Protocol):
    """Anything that can say what it recalled: the door for memory systems and retellings."""

    def recall_sequences(self) -> RecallSequences:
        """What was recalled, in order."""
        ...


Recalls = pd.DataFrame | RecallSequences | SupportsRecall


def as_sequences(recalls: Recalls) -> RecallSequences:
    """Recall sequences from a free-recall table or from anything with `recall_sequences()`.

    Raises
    ------
    DataError : see `RecallSequences.from_table`.
    InputError : the argument is neither.
    """
    if isinstance(recalls, pd.DataFrame):
        return RecallSequences.from_table(recalls)
    if isinstance(recalls, SupportsRecall):
        return recalls.recall_sequences()
    raise InputError(
        f"recalls is a {type(recalls).__name__}; give a table with the columns "
        f"{', '.join(TABLE_COLUMNS)}, or RecallSequences.from_positions(...)."
    )


def _labels(
    name: str, labels: Sequence[Hashable] | None, n: int, default: str | None
) -> NDArray[np.object_]:
    values = [default] * n if labels is None else list(labels)
    if len(values) != n:
        raise DataError(f"{name} has {len(values)} labels for {n} lists; give one per list.")
    array = np.empty(n, dtype=object)
    array[:] = values
    return array


def _check_columns(table: pd.DataFrame) -> None:
    columns = list(table.columns)
    missing = [name for name in TABLE_COLUMNS if name not in columns]
    if missing:
        raise DataError(
            f"the recall table lacks the column(s) {', '.join(missing)}; it has: "
            f"{', '.join(map(str, columns))}. Rename yours to {', '.join(TABLE_COLUMNS)}."
        )
    twice = [name for name in TABLE_COLUMNS if columns.count(name) > 1]
    if twice:
        raise DataError(f"the recall table has the column(s) {', '.join(twice)} more than once.")


def _where(frame: pd.DataFrame, row: int) -> str:
    return f"subject {frame['subject'][row]}, list {frame['list'][row]} (row {row})"


def _check_study(
    frame: pd.DataFrame,
    group: NDArray[np.int64],
    position: NDArray[np.float64],
    is_study: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Length of every list; every study row is checked."""
    n_groups = int(group.max()) + 1
    lengths = np.bincount(group[is_study], minlength=n_groups)
    if (lengths == 0).any():
        row = int(np.flatnonzero(group == np.flatnonzero(lengths == 0)[0])[0])
        raise DataError(
            f"{_where(frame, row)} has recalls and no study rows; the studied list is needed to "
            "know which transitions were possible."
        )
    study = frame.loc[is_study, ["item"]].assign(group=group[is_study])
    missing = study["item"].isna()
    if missing.any():
        raise DataError(f"{_where(frame, int(study.index[missing][0]))} has no studied item.")
    repeated = study.duplicated()
    if repeated.any():
        row = int(study.index[repeated][0])
        raise DataError(
            f"{_where(frame, row)} studies the item {frame['item'][row]!r} twice, so that a recall "
            "of it has no one position. Give the occurrences different names, or, when several "
            "sessions share list numbers, make the list labels unique."
        )
    places = pd.DataFrame({"group": group[is_study], "position": position[is_study]})
    bad = (
        places.duplicated()
        | (places["position"] < 1)
        | (places["position"] > lengths[places["group"]])
        | (places["position"] % 1 != 0)
    )
    if bad.any():
        row = int(study.index[bad.to_numpy()][0])
        raise DataError(
            f"{_where(frame, row)} has the study position {position[row]:g}; the positions of a "
            f"list of {lengths[group[row]]} items must be 1 ... {lengths[group[row]]}, each once."
        )
    return lengths.astype(np.int64)


def _match_recalls(
    frame: pd.DataFrame,
    group: NDArray[np.int64],
    position: NDArray[np.float64],
    is_study: NDArray[np.bool_],
    n_groups: int,
) -> NDArray[np.int64]:
    """Positions recalled by each list in output order (n_groups, outputs); 0 intrusion, -1 end."""
    recall = pd.DataFrame(
        {"group": group[~is_study], "place": position[~is_study], "item": frame["item"][~is_study]}
    )
    clash = recall.duplicated(["group", "place"])
    if clash.any():
        row = int(recall.index[clash][0])
        raise DataError(
            f"{_where(frame, row)} has two recalls with the position {position[row]:g}."
        )
    study = pd.DataFrame(
        {
            "group": group[is_study],
            "item": frame["item"][is_study],
            "studied": position[is_study].astype(np.int64),
        }
    )
    matched = recall.merge(study, on=["group", "item"], how="left").sort_values(
        ["group", "place"], kind="stable"
    )
    order = matched.groupby("group").cumcount().to_numpy()
    raw = np.full((n_groups, int(order.max()) + 1 if len(order) else 1), -1, dtype=np.int64)
    raw[matched["group"].to_numpy(), order] = matched["studied"].fillna(0).to_numpy(np.int64)
    return raw
