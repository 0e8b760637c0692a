"""One table for every source of recall: its numbers are those of the single measures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from test_recall_heads import built

from workbench.analysis.recall.asymmetry import asymmetry
from workbench.analysis.recall.cmr_fit import cmr_distance, fit_cmr
from workbench.analysis.recall.contiguity_fit import contiguity_fit
from workbench.analysis.recall.curves import lag_curve
from workbench.analysis.recall.heads import head_fit_summary
from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.recall.rho_cmr import simulate_free_recall
from workbench.analysis.recall.sequences import RecallSequences
from workbench.analysis.recall.serial import first_recall, serial_position
from workbench.analysis.recall.summary import SUMMARY_COLUMNS, recall_summary
from workbench.analysis.recall.temporal import temporal_factor
from workbench.core.errors import DataError, InputError


def table(n_lists: int = 40, n_subjects: int = 8) -> pd.DataFrame:
    """Simulated recalls; each list has a condition, which only its study rows name."""
    frame = simulate_free_recall(n_lists=n_lists, n_subjects=n_subjects, length=8).to_table()
    frame["condition"] = np.where(frame["list"] % 2 == 1, "odd", "even")
    return frame.assign(
        condition=frame["condition"].where(frame["trial_type"] == "study", None), place="here"
    )


def test_values_are_those_of_the_single_measures() -> None:
    data = table()
    found = recall_summary(data, draws=20, resamples=50)
    assert tuple(found.columns) == SUMMARY_COLUMNS
    mean = lag_crp(data).groupby("lag")["prob"].mean()
    own = found[found["measure"] == "lag_crp"].set_index("lag")["value"]
    assert own.index.tolist() == [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(own, mean.loc[own.index])
    for measure, function in (("serial_position", serial_position), ("first_recall", first_recall)):
        expected = function(data).groupby("position")["prob"].mean()
        own = found[found["measure"] == measure].set_index("position")["value"]
        np.testing.assert_allclose(own, expected.loc[own.index])
    by_name = found.set_index("measure")
    factor = temporal_factor(data)["temporal_factor"].mean()
    assert by_name.loc["temporal_factor", "value"] == pytest.approx(factor)
    index = asymmetry(data, draws=0, resamples=0).set_index("measure").loc["index", "value"]
    assert by_name.loc["asymmetry_index", "value"] == pytest.approx(index)
    assert (found["ci_low"] <= found["value"] + 1e-12).all()
    assert (found["ci_high"] >= found["value"] - 1e-12).all()
    assert (found["n_subjects"] == 8).all()


def test_null_of_positions_is_chance_where_chance_is_known() -> None:
    """Of 4 items 2 are recalled from every list: each position with 1/2, as the first with 1/4."""
    data = RecallSequences.from_positions(
        [[1, 2]] * 400, 4, subject=[f"s{n % 4}" for n in range(400)]
    )
    found = recall_summary(data, draws=200, resamples=50).set_index(["measure", "position"])
    serial, first = found.loc["serial_position"], found.loc["first_recall"]
    np.testing.assert_allclose(serial["null_mean"], 0.5, atol=0.01)
    np.testing.assert_allclose(first["null_mean"], 0.25, atol=0.01)
    np.testing.assert_allclose(serial["null_sd"], 0.5 / np.sqrt(400), rtol=0.2)
    assert serial["value"].tolist() == [1, 1, 0, 0]
    np.testing.assert_allclose(serial["p"], 1 / 201)


def test_groups_are_the_lists_of_each_condition() -> None:
    data = table()
    found = recall_summary(data, by="condition", draws=10, resamples=10)
    assert found["group"].drop_duplicates().tolist() == ["odd", "even"]
    part = data[data["list"] % 2 == 1]
    own = found[(found["group"] == "odd") & (found["measure"] == "lag_crp")].set_index("lag")
    expected = lag_crp(part).groupby("lag")["prob"].mean()
    np.testing.assert_allclose(own["value"], expected.loc[own.index])
    together = recall_summary(data, draws=10, resamples=10)
    assert found.groupby("group")["n_lists"].first().sum() == together["n_lists"].iloc[0]


def test_anything_with_recall_sequences_takes_the_same_way() -> None:
    class Memory:
        def recall_sequences(self) -> RecallSequences:
            return RecallSequences.from_positions([[4, 5, 6], [1, 3]], 10, source="memory")

    found = recall_summary(Memory(), draws=10, resamples=10)
    assert found.query("measure == 'lag_crp' and lag == 1")["value"].item() == pytest.approx(2 / 3)
    assert found["ci_low"].isna().all()  # one subject has no interval


def test_subjects_without_a_curve_are_no_sample_of_one() -> None:
    """One item a list, as in a session of immediate repetition: nothing to choose from."""
    some = [[1, 2, 3, 5], [2, 1, 4], [5, 4, 1], [3, 4, 5]]
    with_silent = RecallSequences.from_positions(
        [*some, [1], [2]], 6, subject=["a", "b", "a", "b", "silent", "silent"]
    )
    without = RecallSequences.from_positions(some, 6, subject=["a", "b", "a", "b"])
    for function in (asymmetry, contiguity_fit):
        options = {"max_lag": 3} if function is contiguity_fit else {"draws": 0}
        more, less = function(with_silent, **options), function(without, **options)
        assert (more["n_subjects"] == 2).all()
        pd.testing.assert_frame_equal(
            more.drop(columns="n_lists", errors="ignore"),
            less.drop(columns="n_lists", errors="ignore"),
        )
    more, less = lag_curve(with_silent), lag_curve(without)
    assert more["band"].iloc[0] == "95% interval over 2 participants"
    np.testing.assert_allclose(more["low"], less["low"])


def test_one_subject_at_a_lag_has_no_interval_there() -> None:
    data = RecallSequences.from_positions([[1, 2], [1, 2, 4]], [2, 6], subject=["a", "b"])
    curve = lag_curve(data, max_lag=3).set_index("lag")
    assert np.isfinite(curve.loc[1, "low"])
    assert np.isfinite(curve.loc[2, "value"])
    assert np.isnan(curve.loc[2, "low"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"by": "where"}, InputError, "by='where' is no column"),
        ({"by": "item"}, DataError, "has 8 values of 'item'"),
        ({"by": "empty"}, DataError, "subject 1, list 1 has no value of 'empty'"),
        ({"max_lag": 9}, InputError, "max_lag=9"),
    ],
)
def test_unusable_arguments(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        recall_summary(table().assign(empty=None), draws=2, resamples=2, **arguments)


def test_other_unusable_input() -> None:
    single = RecallSequences.from_positions([[1]], 1)
    with pytest.raises(InputError, match="one item each"):
        recall_summary(single)
    with pytest.raises(InputError, match="needs a table"):
        recall_summary(single, by="condition")


def test_heads_near_cmr_are_counted_beside_curves_without_meaning() -> None:
    recall = built([1.0, 2.0])
    found = head_fit_summary(recall, draws=50).set_index("threshold")
    keep = np.abs(recall.lags) <= 5
    curves = recall.curves("raw").reshape(-1, len(recall.lags))[:, keep]
    distance = fit_cmr(curves, draws=0)["distance"].to_numpy()
    for threshold in (0.5, 0.1):
        row = found.loc[threshold]
        assert row["n_heads"] == np.isfinite(distance).sum()
        assert row["n_below"] == (distance < threshold).sum()
        assert row["list_low"] <= row["list_high"]
    assert 0.1 < found.loc[0.5, "random_walk"] < 0.21
    assert found.loc[0.1, "random_walk"] < 0.03
    # The same permutations, each against every curve of the grid.
    from workbench.analysis.recall.cmr import cmr_grid

    rng = np.random.default_rng(0)
    sample = rng.permuted(np.tile(curves[0], (50, 1)), axis=1)
    share = (cmr_distance(sample, cmr_grid()[1][:, 3:14]).min(axis=1) < 0.5).mean()
    assert found.loc[0.5, "permuted"] == pytest.approx(share, abs=0.03)
