"""People's presses: who pressed when.

A table of presses has the columns subject (str), time (s, the middle of the run), start, end (s:
the run of ones in which a press is stored, end exclusive), merged (bool: a run longer than one
press) and condition (str, "" where there is none). A press counts for about a second: published
time courses widen each press to a run of 999 ms, and consensus is computed from the runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from workbench.core.errors import DataError
from workbench.stories.tables import column_of, numbers, read_table

__all__ = ["PRESS_WIDTH", "presses_from_matrix", "presses_from_times", "read_mat", "read_presses"]

PRESS_WIDTH = 0.999
"""Width in seconds of the run that stands for one press in the published data."""


def presses_from_matrix(
    matrix: ArrayLike, step: float = 0.001, *, condition: str = ""
) -> pd.DataFrame:
    """Presses from time courses of zeros and ones: one run of ones is one press at its middle.

    Parameters
    ----------
    matrix : shape (people, bins).
    step : width of a bin in seconds.
    condition : goes into the table as it is.

    Returns
    -------
    The table described above; subject is the row's number as text, `merged` marks runs longer than
    999 ms (two presses close together).

    Raises
    ------
    DataError : values other than 0 and 1, or not two-dimensional.
    """
    series = np.asarray(matrix)
    if series.ndim != 2 or not series.size:
        raise DataError(f"presses must be a people × bins array, not of shape {series.shape}.")
    pressed = series == 1
    if np.count_nonzero(pressed) + np.count_nonzero(series == 0) != series.size:
        raise DataError(
            "presses must be 0 or 1 in every bin; an average over people cannot be taken apart."
        )
    # MATLAB stores the bins of one moment together, so the comparison runs over moments.
    moments = pressed.T
    change = np.flatnonzero((moments[1:] != moments[:-1]).ravel())
    before, people = np.divmod(change, len(series))
    at_start, at_end = np.flatnonzero(moments[0]), np.flatnonzero(moments[-1])
    edge = np.concatenate([0 * at_start, before + 1, 0 * at_end + series.shape[1]])
    person = np.concatenate([at_start, people, at_end])
    order = np.lexsort((edge, person))
    # Each person's edges alternate: a run's first bin, the bin after its last.
    person, first, last = person[order][::2], edge[order][::2], edge[order][1::2]
    width = round(PRESS_WIDTH / step)
    return pd.DataFrame(
        {
            "subject": person.astype(str),
            "time": (first + last) / 2 * step,
            "start": first * step,
            "end": last * step,
            "merged": (last - first) > width,
            "condition": condition,
        }
    )


def presses_from_times(
    subject: ArrayLike,
    time: ArrayLike,
    *,
    condition: ArrayLike = "",
    width: float = PRESS_WIDTH,
) -> pd.DataFrame:
    """Presses from times, each widened to a run centred on it, as in the published time courses.

    Parameters
    ----------
    subject : one name or number per press.
    time : seconds.
    condition : one per press, or one for all.
    width : of a run, in seconds.
    """
    times = np.asarray(time, dtype=np.float64)
    return pd.DataFrame(
        {
            "subject": np.asarray(subject).astype(str),
            "time": times,
            "start": times - width / 2,
            "end": times + width / 2,
            "merged": False,
            "condition": np.broadcast_to(np.asarray(condition).astype(str), times.shape),
        }
    )


def read_mat(path: str | Path, variable: str | None = None, step: float = 0.001) -> pd.DataFrame:
    """Presses from a MATLAB file of time courses, people × bins.

    Parameters
    ----------
    path : a .mat file (version 7 or older).
    variable : its name in the file; None: the only one there is.
    step : width of a bin in seconds.

    Raises
    ------
    DataError : no such variable, or not a MATLAB file.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path)
    except (MatReadError, NotImplementedError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is not a MATLAB file of version 7 or older ({error}); save it with -v7."
        ) from error
    names = [name for name in content if not name.startswith("__")]
    if variable is None and len(names) == 1:
        variable = names[0]
    if variable not in names:
        raise DataError(f"{path}: name one of its variables: {', '.join(names) or 'none'}.")
    return presses_from_matrix(content[variable], step)


def read_presses(
    path: str | Path | pd.DataFrame,
    *,
    columns: dict[str, str] | None = None,
    time_unit: str = "s",
    **options: Any,
) -> pd.DataFrame:
    """Presses from a table with a row per press, or from a .mat file of time courses.

    Parameters
    ----------
    path : .csv or .tsv with the columns subject and time, and condition where there are
        conditions; or .mat; or a DataFrame.
    columns : other names of these columns, e.g. {"subject": "id", "time": "rt"}.
    time_unit : "s" or "ms".
    options : encoding, separator of `tables.read_table`; variable, step of `read_mat`.
    """
    if not isinstance(path, pd.DataFrame) and Path(path).suffix.lower() == ".mat":
        return read_mat(path, **options)
    table, where = read_table(path, **options)
    subject = column_of(table, "subject", columns, where)
    time = column_of(table, "time", columns, where)
    condition = column_of(table, "condition", columns, where, needed=False)
    if len(table) == 0:
        raise DataError(f"{where} has no rows; it needs one for each press.")
    return presses_from_times(
        table[subject].astype(str),
        numbers(table, time, where, unit=time_unit),
        condition="" if condition is None else table[condition].astype(str),
    )
