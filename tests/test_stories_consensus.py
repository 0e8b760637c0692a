"""Consensus of presses: the published recipe against slow oracles and known values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import InputError, MissingDataError
from workbench.core.story import Annotation, Story
from workbench.stories.alignment import untimed_words
from workbench.stories.consensus import (
    leave_one_out_correlation,
    likely_times,
    peaks,
    percentile_sensitivity,
    press_density,
    press_matrix,
    smooth,
    story_consensus,
)
from workbench.stories.library import load_story
from workbench.stories.named import published_times
from workbench.stories.presses import presses_from_matrix, presses_from_times

press_lists = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-300, 10_300)), min_size=1, max_size=12
)


def story_of(presses: pd.DataFrame, duration: float = 10.0, times: object = None) -> Story:
    annotations = [Annotation("people", "presses", presses=presses, duration=duration)]
    if times is not None:
        annotations.insert(0, Annotation("people", "published", times=np.asarray(times, float)))
    return Story("test", "a b", untimed_words("a b"), tuple(annotations))


# --- press_matrix ------------------------------------------------------------------------------


@given(press_lists)
@settings(max_examples=40, deadline=None)
def test_matrix_on_the_millisecond_grid_is_the_union_of_runs(
    presses: list[tuple[int, int]],
) -> None:
    people = [who for who, _ in presses]
    order = list(dict.fromkeys(people))
    expected = np.zeros((len(order), 10_000), dtype=bool)
    table = pd.DataFrame({"subject": [str(who) for who in people]})
    table["start"] = [start / 1000 for _, start in presses]
    table["end"] = [(start + 999) / 1000 for _, start in presses]
    for who, start in presses:
        expected[order.index(who), max(0, start) : max(0, start + 999)] = True
    np.testing.assert_array_equal(press_matrix(table, 10.0, 0.001), expected)


@given(press_lists, st.sampled_from([0.01, 0.1, 0.25]))
@settings(max_examples=30, deadline=None)
def test_coarser_bins_hold_the_means_of_fine_ones(
    presses: list[tuple[int, int]], step: float
) -> None:
    table = presses_from_times([who for who, _ in presses], [t / 1000 for _, t in presses])
    # The published width is odd in milliseconds, so half of it needs a grid of half milliseconds.
    fine = press_matrix(table, 10.0, 0.0005).astype(float)
    coarse = press_matrix(table, 10.0, step)
    size = round(step / 0.0005)
    expected = fine.reshape(len(fine), -1, size).mean(axis=2)
    np.testing.assert_allclose(coarse, expected, atol=1e-6)
    assert coarse.max() <= 1 + 1e-6


@pytest.mark.parametrize(("duration", "step"), [(0.0, 0.1), (float("nan"), 0.1), (5.0, 0.0)])
def test_bad_grids_are_errors(duration: float, step: float) -> None:
    with pytest.raises(InputError, match="must be a positive number of seconds"):
        press_matrix(presses_from_times([1], [1.0]), duration, step)


# --- smooth ------------------------------------------------------------------------------------


def slow_smooth(series: np.ndarray, step: float, window: float) -> np.ndarray:
    """Gaussian of sigma = window / 5 over half a window on both sides, renormalised."""
    result = np.empty(len(series))
    for i in range(len(series)):
        total = weight = 0.0
        for j in range(len(series)):
            if abs(i - j) <= round(window / step) // 2:
                w = np.exp(-((i - j) ** 2) / (2 * (window / 5 / step) ** 2))
                total, weight = total + w * series[j], weight + w
        result[i] = total / weight
    return result


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=40),
    st.sampled_from([0.05, 0.1, 0.25]),
    st.sampled_from([0.5, 2.0, 20.0]),
)
@settings(max_examples=60, deadline=None)
def test_smoothing_follows_the_definition(series: list[float], step: float, window: float) -> None:
    values = np.array(series)
    np.testing.assert_allclose(
        smooth(values, step, window), slow_smooth(values, step, window), atol=1e-9
    )


def test_smoothing_keeps_a_constant_and_works_on_rows() -> None:
    np.testing.assert_allclose(smooth(np.full(300, 0.3), 0.01), 0.3)
    rows = np.random.default_rng(0).random((3, 200))
    np.testing.assert_allclose(smooth(rows, 0.05)[1], smooth(rows[1], 0.05))
    np.testing.assert_array_equal(smooth(rows, 0.05, window=0.0), rows)


def test_smoothing_leaves_silence_exactly_zero() -> None:
    series = np.zeros(5000)
    series[2500:2600] = 1
    smoothed = smooth(series, 0.01)
    assert (smoothed[:2400] == 0).all()
    assert (smoothed[2700:] == 0).all()
    assert smoothed[2550] > 0.5


# --- peaks and likely times --------------------------------------------------------------------


def slow_peaks(density: list[int], step: float, percentile: float) -> list[float]:
    threshold = np.percentile(density, percentile)
    times: list[float] = []
    best = None
    for k, value in enumerate([*density, -1]):
        if value > threshold:
            if best is None or value > density[best]:
                best = k
        elif best is not None:
            times.append(best * step)
            best = None
    return times


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.sampled_from([0, 50, 90, 95, 100]))
def test_peaks_follow_the_definition(density: list[int], percentile: float) -> None:
    found = peaks(density, 0.5, percentile)
    assert found.tolist() == slow_peaks(density, 0.5, percentile)


def test_peaks_of_nothing() -> None:
    assert peaks(np.zeros(100), 0.1).tolist() == []
    assert peaks([], 0.1).tolist() == []
    with pytest.raises(InputError, match="percentile=101 must lie between 0 and 100"):
        peaks([0.0, 1.0], 0.1, 101)


def test_likely_times_by_hand() -> None:
    #          0  1  2  3  4  5  6  7  8  9
    density = [5, 0, 0, 4, 3, 6, 0, 2, 0, 3]
    assert likely_times(density, 1.0, 4, gap=1.0).tolist() == [5, 0, 3, 9]
    # Two seconds apart: 3 still counts (5 - 3 = 2); three apart it does not.
    assert likely_times(density, 1.0, 4, gap=2.0).tolist() == [5, 0, 3, 9]
    assert likely_times(density, 1.0, 4, gap=3.0).tolist() == [5, 0, 9]
    # When the maxima (0, 3, 5, 7, 9) are used up, the densest places that keep the gap follow.
    assert likely_times(density, 1.0, 6, gap=1.0).tolist() == [5, 0, 3, 9, 7, 4]
    assert likely_times(density, 1.0, 99, gap=1.0).tolist() == [5, 0, 3, 9, 7, 4]
    assert likely_times(np.zeros(5), 1.0, 3).tolist() == []
    with pytest.raises(InputError, match="k=-1"):
        likely_times(density, 1.0, -1)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=50),
    st.integers(0, 20),
    st.sampled_from([0.0, 0.3, 1.0, 2.5]),
)
def test_likely_times_keep_the_gap_and_are_nested(density: list[int], k: int, gap: float) -> None:
    step = 0.5
    found = likely_times(density, step, k, gap=gap)
    assert len(found) <= k
    assert len(set(found.tolist())) == len(found)
    if len(found) > 1:
        assert np.diff(np.sort(found)).min() >= gap - 1e-9
    np.testing.assert_array_equal(found, likely_times(density, step, k + 1, gap=gap)[: len(found)])
    places = np.round(found / step).astype(int)
    assert all(density[place] > 0 for place in places)
    if len(found) < k:
        # No place with a positive density is left that keeps the gap.
        left = [p for p, value in enumerate(density) if value > 0 and p not in set(places)]
        assert all((np.abs(places - p) * step < max(gap, step) - 1e-9).any() for p in left)


# --- leave one out -----------------------------------------------------------------------------


def test_leave_one_out_is_the_correlation_with_the_others() -> None:
    matrix = np.random.default_rng(1).random((5, 300)) < 0.2
    found = leave_one_out_correlation(matrix)
    for person in range(5):
        others = np.delete(matrix, person, axis=0).mean(axis=0)
        assert found[person] == pytest.approx(np.corrcoef(matrix[person], others)[0, 1])
    assert np.isnan(leave_one_out_correlation(np.array([[0, 0, 0], [0, 1, 0]]))).all()
    assert np.isnan(leave_one_out_correlation(np.array([[0, 1, 0]]))).all()


# --- stories -----------------------------------------------------------------------------------


def presses_with_conditions() -> pd.DataFrame:
    clear = presses_from_times([1, 2, 3], [2.0, 2.1, 2.0], condition="clear")
    noisy = presses_from_times([4, 5], [7.0, 7.1], condition="noisy")
    return pd.concat([clear, noisy], ignore_index=True)


def test_clear_speech_is_the_default_and_conditions_are_never_pooled_unasked() -> None:
    story = story_of(presses_with_conditions())
    assert story_consensus(story) == pytest.approx([2.033], abs=0.05)
    assert story_consensus(story, condition="noisy") == pytest.approx([7.05], abs=0.05)
    pooled = story_consensus(story, condition="all", percentile=70)
    assert pooled == pytest.approx([2.033, 7.05], abs=0.05)
    with pytest.raises(InputError, match=r"condition='loud' is not known.*'clear', 'noisy', 'all'"):
        story_consensus(story, condition="loud")


def test_density_counts_the_people_of_the_condition() -> None:
    story = story_of(presses_with_conditions())
    times, density = press_density(story, window=0.0)
    assert len(times) == len(density) == 1000
    assert density.max() == pytest.approx(1.0)
    _, pooled = press_density(story, condition="all", window=0.0)
    assert pooled.max() == pytest.approx(3 / 5)


def test_the_published_list_comes_first_and_has_no_options() -> None:
    story = story_of(presses_with_conditions(), times=[4.0, 5.0])
    assert story_consensus(story).tolist() == [4.0, 5.0]
    assert story_consensus(story, "presses") == pytest.approx([2.033], abs=0.05)
    with pytest.raises(InputError, match="condition='clear' belongs to presses"):
        story_consensus(story, condition="clear")
    with pytest.raises(InputError, match="source='printed' is not known"):
        story_consensus(story, "printed")
    # The list that is returned is the caller's own.
    story_consensus(story)[0] = 99
    assert story_consensus(story)[0] == 4.0


def test_stories_without_people_are_an_error() -> None:
    story = Story("bare", "a b", untimed_words("a b"))
    with pytest.raises(MissingDataError, match="'bare' has no per-person presses"):
        story_consensus(story)
    with pytest.raises(MissingDataError, match="'bare' has no annotation 'people/published'"):
        story_consensus(story, "published")


def test_sensitivity_to_the_percentile() -> None:
    table = percentile_sensitivity(
        story_of(presses_with_conditions()), (90, 95), condition="each", step=0.01
    )
    assert table["condition"].tolist() == ["clear", "clear", "noisy", "noisy"]
    assert table["n_people"].tolist() == [3, 3, 2, 2]
    assert table["n_boundaries"].tolist() == [1, 1, 1, 1]
    assert table["share_near_default"].tolist() == [1.0, 1.0, 1.0, 1.0]


# --- known values ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pieman(data_folder: Path) -> Story:
    return load_story("pieman")


def test_pie_man_presses(pieman: Story, data_folder: Path) -> None:
    presses = pieman.presses
    assert len(presses) == 4641
    assert presses["subject"].nunique() == 205
    width = np.round((presses["end"] - presses["start"]) * 1000)
    assert (width == 999).sum() == 4601
    np.testing.assert_array_equal(presses["merged"], width > 999)
    per_person = presses.groupby("subject").size()
    assert (per_person.min(), per_person.max(), per_person.median()) == (3, 95, 18)
    listed = pd.read_csv(data_folder / "michelmann2021_pieman/button_presses_run2_long.csv")
    np.testing.assert_allclose(presses["time"] * 1000, listed["press_ms_estimate"], atol=1e-6)
    np.testing.assert_array_equal(presses["merged"], listed["merged"].astype(bool))


def test_pie_man_consensus_reproduces_the_published_list(pieman: Story) -> None:
    found = pieman.consensus("presses")
    raw = published_times("pieman", "raw")
    assert len(found) == 19
    assert np.abs(found - raw)[:18].max() <= 0.020
    assert np.abs(found - raw)[18] == pytest.approx(0.477, abs=0.001)
    np.testing.assert_array_equal(pieman.consensus(), published_times("pieman", "filtered"))


def test_pie_man_ceiling_and_matrix(pieman: Story, data_folder: Path) -> None:
    from scipy.io import loadmat

    matrix = press_matrix(pieman.presses, 450.0, 0.001)
    raw = loadmat(data_folder / "michelmann2021_pieman/alldata_run2.mat")["alldata_run2"]
    assert matrix.shape == raw.shape
    for start in range(0, raw.shape[1], 5000):
        block = slice(start, start + 5000)
        np.testing.assert_array_equal(matrix[:, block], raw[:, block])
    pd.testing.assert_frame_equal(presses_from_matrix(raw), pieman.presses)
    ceiling = leave_one_out_correlation(matrix)
    assert ceiling.mean() == pytest.approx(0.246, abs=0.001)
    assert ceiling.std() == pytest.approx(0.146, abs=0.001)


def test_a_coarser_grid_gives_nearly_the_same(pieman: Story) -> None:
    fine = pieman.consensus("presses")
    coarse = pieman.consensus("presses", step=0.01)
    assert len(coarse) == len(fine)
    assert np.abs(fine - coarse).max() <= 0.02
