from __future__ import annotations

import warnings

import numpy as np
import oracles_recall as oracle
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.recall.sequences import RecallSequences
from workbench.analysis.recall.serial import first_recall, serial_position
from workbench.analysis.recall.temporal import lag_rank, temporal_factor
from workbench.core.errors import InputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from psifr import fr

Lists = list[list[int]]


@st.composite
def recall_data(
    draw: st.DrawFn, *, same_length: bool = False
) -> tuple[Lists, list[int], list[str]]:
    """Recalls with repeats and intrusions (0) of lists of a few lengths by a few subjects."""
    n_lists = draw(st.integers(1, 6))
    one = draw(st.integers(2, 8))
    lengths = [one if same_length else draw(st.integers(1, 8)) for _ in range(n_lists)]
    recalled = [draw(st.lists(st.integers(0, n), max_size=10)) for n in lengths]
    subjects = [draw(st.sampled_from("AB")) for _ in range(n_lists)]
    return recalled, lengths, subjects


def merged(recalled: Lists, lengths: list[int], subjects: list[str]) -> pd.DataFrame:
    """The same data as psifr scores it; its items are numbers of list and position."""
    study = [[f"{row}.{i}" for i in range(1, n + 1)] for row, n in enumerate(lengths)]
    recall = [
        [f"{row}.{i}" if i else f"x{row}.{at}" for at, i in enumerate(items)]
        for row, items in enumerate(recalled)
    ]
    order = np.argsort(subjects, kind="stable")  # psifr's helper numbers lists per subject run
    raw = fr.table_from_lists(
        [subjects[i] for i in order], [study[i] for i in order], [recall[i] for i in order]
    )
    return fr.merge_free_recall(raw)


def test_tutorial_example() -> None:
    recalled = RecallSequences.from_positions([[8, 7, 1, 2, 3, 5, 6, 4]], 8)
    curve = lag_crp(recalled).set_index("lag")
    assert curve.loc[-7:-1, "actual"].tolist() == [0, 1, 0, 0, 0, 1, 1]
    assert curve.loc[1:7, "actual"].tolist() == [3, 1, 0, 0, 0, 0, 0]
    # 8 → {1..7}, 7 → {1..6}, 1 → {2..6}, 2 → {3..6}, 3 → {4, 5, 6}, 5 → {4, 6}, 6 → {4}
    assert curve.loc[-7:-1, "possible"].tolist() == [1, 2, 2, 2, 2, 3, 3]
    assert curve.loc[1:7, "possible"].tolist() == [4, 3, 3, 2, 1, 0, 0]
    assert curve.loc[1, "prob"] == 3 / 4
    assert np.isnan(curve.loc[[0, 6, 7], "prob"]).all()


def test_documented_pool_example() -> None:
    recalled = RecallSequences.from_positions([[4, 2, 3, 1]], 4)
    ranks = lag_rank(recalled.outputs, recalled.length)
    np.testing.assert_array_equal(ranks, [0.5, 0.5, np.nan])


def test_repeats_and_intrusions_break_transitions() -> None:
    curve = lag_crp(RecallSequences.from_positions([[1, 0, 2, 2, 3, 4]], 5)).set_index("lag")
    assert curve["actual"].sum() == 1  # 3 → 4 alone
    assert curve.loc[1, ["actual", "possible"]].tolist() == [1, 1]
    assert curve.loc[2, "possible"] == 1  # item 5 from item 3; item 1 is no longer open


@pytest.mark.parametrize("recalled", [[], [3], [0, 0], [3, 3]])
def test_fewer_than_two_recalls_have_no_curve(recalled: list[int]) -> None:
    data = RecallSequences.from_positions([recalled], 4)
    assert lag_crp(data)["prob"].isna().all()
    assert temporal_factor(data)["temporal_factor"].isna().all()


@given(recall_data())
@settings(max_examples=150, deadline=None)
def test_counts_and_ranks_by_definition(data: tuple[Lists, list[int], list[str]]) -> None:
    recalled, lengths, subjects = data
    sequences = RecallSequences.from_positions(recalled, lengths, subject=subjects)
    expected = oracle.lag_counts(recalled, lengths, subjects)
    for row in lag_crp(sequences).itertuples():
        assert [row.actual, row.possible] == expected[row.subject][row.lag]
        if row.possible == 0:
            assert np.isnan(row.prob)
        else:
            assert row.prob == row.actual / row.possible
    np.testing.assert_allclose(
        lag_rank(sequences.outputs, sequences.length), oracle.lag_ranks(recalled, lengths)
    )


@given(recall_data(same_length=True))
@settings(max_examples=25, deadline=None)
def test_same_as_psifr(data: tuple[Lists, list[int], list[str]]) -> None:
    recalled, lengths, subjects = data
    if not any(any(row) for row in recalled):
        return  # psifr knows no list length then
    sequences = RecallSequences.from_positions(recalled, lengths, subject=subjects)
    theirs = merged(recalled, lengths, subjects)
    keys = ["subject", "lag"]
    ours = lag_crp(sequences).sort_values(keys)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        crp = fr.lag_crp(theirs).sort_values(keys)
        rank = fr.lag_rank(theirs).sort_values("subject")
        spc = fr.spc(theirs).sort_values(["subject", "input"])
        pnr = fr.pnr(theirs).sort_values(["subject", "output", "input"])
    columns = ["prob", "actual", "possible"]
    np.testing.assert_array_equal(ours[columns].to_numpy(), crp[columns].to_numpy(dtype=float))
    np.testing.assert_allclose(
        temporal_factor(sequences).sort_values("subject")["temporal_factor"], rank["rank"]
    )
    np.testing.assert_allclose(
        serial_position(sequences).sort_values(["subject", "position"])["prob"], spc["recall"]
    )
    for nth in (1, 2):
        mine = first_recall(sequences, nth=nth).sort_values(["subject", "position"])
        np.testing.assert_array_equal(
            mine[columns].to_numpy(), pnr.query("output == @nth")[columns].to_numpy(dtype=float)
        )


@pytest.mark.parametrize(
    ("name", "backward", "forward", "factor", "counts"),
    [
        ("peers_notask", 0.2555, 0.4350, 0.70123, [4675, 17873, 9486, 20851]),
        ("Morton2013", 0.1918, 0.1911, 0.6247, [2913, 15162, 2605, 13233]),
    ],
)
def test_published_samples(
    name: str, backward: float, forward: float, factor: float, counts: list[int]
) -> None:
    sequences = RecallSequences.from_table(fr.sample_data(name))
    mean = lag_crp(sequences).groupby("lag")["prob"].mean()
    # The reference values have four digits; .25545 was rounded up.
    np.testing.assert_allclose(mean.loc[[-1, 1]], [backward, forward], atol=6e-5)
    pooled = lag_crp(sequences, pooled=True).set_index("lag")
    assert pooled.loc[[-1, 1], ["actual", "possible"]].to_numpy().ravel().tolist() == counts
    assert set(pooled["subject"]) == {"pooled"}
    assert temporal_factor(sequences)["temporal_factor"].mean() == pytest.approx(factor, abs=5e-5)


def test_serial_position_by_hand() -> None:
    data = RecallSequences.from_positions([[3, 1], [3, 0, 3]], 3, subject=["a", "a"])
    assert serial_position(data)["prob"].tolist() == [0.5, 0.0, 1.0]
    assert first_recall(data)["prob"].tolist() == [0.0, 0.0, 1.0]
    second = first_recall(data, nth=2)
    assert second["possible"].tolist() == [1, 1, 0]  # one list has a second recall
    assert second["prob"].tolist()[:2] == [1.0, 0.0]
    pooled = serial_position(data, pooled=True)
    assert pooled["possible"].tolist() == [2, 2, 2]
    with pytest.raises(InputError, match="nth=0"):
        first_recall(data, nth=0)


def test_serial_recall_has_temporal_factor_one_and_its_null_does_not() -> None:
    data = RecallSequences.from_positions(
        [list(range(1, 11))] * 8, 10, subject=["a"] * 4 + ["b"] * 4
    )
    table = temporal_factor(data, draws=99, seed=1).set_index("subject")
    # Neighbours on one side only: the other one has been recalled.
    assert table.loc["mean", "temporal_factor"] == 1.0
    # All items are recalled: a random order makes every available lag equally likely.
    assert table.loc["mean", "null_mean"] == pytest.approx(0.5, abs=0.02)
    assert table.loc["mean", "p"] == pytest.approx(0.01)
    assert list(table.index) == ["a", "b", "mean"]
