"""The consensus recipe on arrays: press time courses, smoothing, peaks, likeliest times.

The published recipe (Michelmann et al. 2021, used again by Kumar et al. 2023): the mean over
people of their press time courses (runs of about a second), smoothed by a moving Gaussian of 2 s,
cut at the 95th percentile, one boundary at the peak of every region above it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.signal import find_peaks, oaconvolve

from workbench.core.errors import InputError

__all__ = [
    "WINDOW",
    "coverage",
    "leave_one_out_correlation",
    "likely_times",
    "merged_runs",
    "n_bins",
    "peaks",
    "press_matrix",
    "smooth",
]

WINDOW = 2.0
"""Length in seconds of the moving Gaussian's window."""

Floats = NDArray[np.float64]


def press_matrix(presses: pd.DataFrame, duration: float, step: float) -> NDArray[np.float32]:
    """Press time courses: the share of each bin that a person's press runs cover.

    Runs of one person that overlap are one run (a bin is never covered twice). With the step of
    the data the values are the recorded 0 and 1; a coarser step gives the exact means of blocks.

    Parameters
    ----------
    presses : columns subject, start, end (s).
    duration : length of the recording in seconds; runs are cut to [0, duration].
    step : width of a bin in seconds.

    Returns
    -------
    Shape (people, bins), people in the order of their first press in the table; bin k covers
    [k·step, (k + 1)·step).
    """
    bins = n_bins(duration, step)
    runs = merged_runs(presses)
    people = runs["person"].to_numpy()
    n_people = int(people.max()) + 1 if len(people) else 0
    matrix = np.empty((n_people, bins), dtype=np.float32)
    for person in range(n_people):
        own = runs[people == person]
        matrix[person] = coverage(own["start"], own["end"], bins, step)
    return matrix


def smooth(series: ArrayLike, step: float, window: float = WINDOW) -> Floats:
    """Moving Gaussian average along the last axis, as MATLAB's smoothdata(x, "gaussian", w).

    The Gaussian has a standard deviation of a fifth of the window, is cut at half a window on
    either side and renormalised where it reaches over an end of the series. (For an even number of
    samples MATLAB's window is half a sample off centre; this one is symmetric.)

    Parameters
    ----------
    series : shape (..., bins).
    step : width of a bin in seconds.
    window : seconds; 0 leaves the series as it is.
    """
    values = np.asarray(series, dtype=np.float64)
    half = round(window / step) // 2
    if half < 1:
        return values.copy()
    sigma = window / step / 5
    kernel = np.exp(-0.5 * (np.arange(-half, half + 1) / sigma) ** 2)
    bins = values.shape[-1]
    shape = (1,) * (values.ndim - 1)
    wide = kernel.reshape(*shape, -1)
    full = oaconvolve(values, wide, mode="full", axes=-1)[..., half : half + bins]
    weight = oaconvolve(np.ones(bins), kernel, mode="full")[half : half + bins]
    smoothed = full / weight
    # Fourier rounding leaves about 1e-17 where there was no press at all.
    smoothed[np.abs(smoothed) <= 1e-12 * np.abs(values).max(initial=0.0)] = 0.0
    return smoothed


def peaks(density: ArrayLike, step: float, percentile: float = 95.0) -> Floats:
    """One time per contiguous region above a percentile of the density: that of its maximum.

    Parameters
    ----------
    density : shape (bins,).
    step : width of a bin in seconds.
    percentile : of the values of `density`; a region is where they are strictly above it.

    Returns
    -------
    Times in seconds, increasing; empty for a flat density. Bin k has the time k·step.
    """
    values = np.asarray(density, dtype=np.float64)
    if not 0 <= percentile <= 100:
        raise InputError(f"percentile={percentile!r} must lie between 0 and 100.")
    if values.size == 0:
        return np.zeros(0)
    above = np.concatenate([[False], values > np.percentile(values, percentile), [False]])
    change = np.flatnonzero(above[1:] != above[:-1])
    regions = zip(change[::2], change[1::2], strict=True)
    return np.array([start + np.argmax(values[start:end]) for start, end in regions]) * step


def likely_times(density: ArrayLike, step: float, k: int, *, gap: float = 1.0) -> Floats:
    """The k most likely times: the strongest local maxima, at least `gap` seconds apart.

    EM-LLM section 4.2 compares as many human positions as a model found events, the likeliest
    ones of the smoothed distribution. When there are no more maxima (people have far fewer events
    than a model can find), the times of highest density that keep the gap follow; so the times for
    k are always the first of those for k + 1.

    Parameters
    ----------
    density : shape (bins,).
    step : width of a bin in seconds.
    k : how many are wanted.
    gap : seconds; a time closer than this to one already chosen does not count. One press is
        stored as about one second, so closer maxima are not two boundaries.

    Returns
    -------
    Times in seconds, the most likely first; fewer than k where no bin with a positive density is
    left that keeps the gap.
    """
    values = np.asarray(density, dtype=np.float64)
    if k < 0:
        raise InputError(f"k={k}: the number of times cannot be negative.")
    near = max(0, int(np.ceil(gap / step - 1e-9)) - 1)
    # A maximum in the first or last bin is one as well; a plateau counts once, at its middle.
    places = find_peaks(np.concatenate([[-np.inf], values, [-np.inf]]))[0] - 1
    maxima = np.zeros_like(values)
    maxima[places] = values[places]
    left = values.copy()
    chosen: list[int] = []
    for candidates in (maxima, left):
        while len(chosen) < k:
            place = int(np.argmax(candidates)) if len(candidates) else 0
            if not len(candidates) or candidates[place] <= 0:
                break
            chosen.append(place)
            for series in (maxima, left):
                series[max(0, place - near) : place + near + 1] = 0.0
    return np.array(chosen, dtype=np.float64) * step


def leave_one_out_correlation(matrix: ArrayLike) -> Floats:
    """Correlation of each person's time course with the mean of the others (point-biserial).

    Parameters
    ----------
    matrix : shape (people, bins), see `press_matrix`.

    Returns
    -------
    Shape (people,); NaN for one who pressed never or always.
    """
    series = np.asarray(matrix)
    people, bins = series.shape
    result = np.full(people, np.nan)
    if people < 2:
        return result
    total = series.sum(axis=0, dtype=np.float64)
    total_sum, total_square = total.sum(), total @ total
    for person, own in enumerate(series):
        x = own.astype(np.float64)
        # The others are total − x (their mean has the same correlation), so sums of products do.
        x_sum, x_square, product = x.sum(), x @ x, x @ total
        y_sum, y_square = total_sum - x_sum, total_square - 2 * product + x_square
        x_spread = x_square - x_sum**2 / bins
        y_spread = y_square - y_sum**2 / bins
        if x_spread > 1e-12 * x_square and y_spread > 1e-12 * y_square:
            shared = product - x_square - x_sum * y_sum / bins
            result[person] = shared / np.sqrt(x_spread * y_spread)
    return result


def n_bins(duration: float, step: float) -> int:
    """Number of bins of `step` seconds that hold `duration` seconds, at least 1."""
    if not (np.isfinite(duration) and duration > 0):
        raise InputError(f"duration={duration!r} must be a positive number of seconds.")
    if not (np.isfinite(step) and step > 0):
        raise InputError(f"step={step!r} must be a positive number of seconds.")
    return max(1, int(np.ceil(duration / step - 1e-6)))


def merged_runs(presses: pd.DataFrame) -> pd.DataFrame:
    """Each person's runs, those that overlap joined: person (0, 1, ...), start, end."""
    person, _ = pd.factorize(presses["subject"])
    start = presses["start"].to_numpy(dtype=np.float64)
    end = presses["end"].to_numpy(dtype=np.float64)
    order = np.lexsort((start, person))
    rows: list[tuple[int, float, float]] = []
    for who, a, b in zip(person[order], start[order], end[order], strict=True):
        if rows and rows[-1][0] == who and a <= rows[-1][2]:
            rows[-1] = (int(who), rows[-1][1], max(rows[-1][2], float(b)))
        else:
            rows.append((int(who), float(a), float(b)))
    return pd.DataFrame(rows, columns=["person", "start", "end"])


def coverage(start: ArrayLike, end: ArrayLike, bins: int, step: float) -> Floats:
    """How much of each bin the intervals cover, summed over intervals, in bins; shape (bins,).

    The covered length up to an edge grows by one per bin inside an interval, so the differences of
    a cumulative sum give every bin at once.
    """
    # Times such as 71.932 are not exact in binary; edges within a millionth of a bin are edges.
    a = np.clip(_snap(np.asarray(start, dtype=np.float64) / step), 0, bins)
    b = np.clip(_snap(np.asarray(end, dtype=np.float64) / step), 0, bins)
    covered = np.zeros(bins + 1)
    slope = np.zeros(bins + 2)
    for edge, sign in ((a, 1.0), (b, -1.0)):
        whole = np.floor(edge).astype(np.int64)
        part = edge - whole
        # From `edge` on, coverage has slope `sign`: the bin of the edge gets the rest of itself.
        np.add.at(covered, whole, sign * (1 - part))
        np.add.at(slope, whole + 1, sign)
    return covered[:bins] + np.cumsum(slope)[:bins]


def _snap(edges: Floats) -> Floats:
    near = np.round(edges)
    return np.where(np.abs(edges - near) < 1e-6, near, edges)
