from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.recall.sequences import RecallSequences, as_sequences
from workbench.core.errors import DataError, InputError


def table(**changes: object) -> pd.DataFrame:
    """Two lists of one subject: recall b (repeated) a x, and nothing."""
    rows = [
        ("s", 1, 1, "study", "a"),
        ("s", 1, 2, "study", "b"),
        ("s", 1, 3, "study", "c"),
        ("s", 1, 3, "recall", "b"),
        ("s", 1, 2, "recall", "x"),
        ("s", 1, 1, "recall", "b"),
        ("s", 1, 4, "recall", "a"),
        ("s", 2, 1, "study", "d"),
        ("s", 2, 2, "study", "e"),
    ]
    frame = pd.DataFrame(rows, columns=["subject", "list", "position", "trial_type", "item"])
    return frame.assign(**changes)


def test_recalls_are_put_in_output_order_and_matched_to_positions() -> None:
    found = RecallSequences.from_table(table())
    assert found.outputs.tolist() == [[2, 0, 0, 1], [-1, -1, -1, -1]]
    assert found.n_intrusions.tolist() == [1, 0]
    assert found.n_repeats.tolist() == [1, 0]
    assert found.length.tolist() == [3, 2]
    assert found.lists.tolist() == [1, 2]


def test_row_order_of_the_table_does_not_matter() -> None:
    shuffled = table().sample(frac=1, random_state=3)
    a, b = lag_crp(table()), lag_crp(shuffled)
    pd.testing.assert_frame_equal(a, b)


def test_a_missing_recalled_item_is_an_intrusion() -> None:
    frame = table()
    frame.loc[3, "item"] = None
    found = RecallSequences.from_table(frame)
    assert found.outputs[0].tolist() == [2, 0, 0, 1]
    assert found.n_intrusions[0] == 2


def test_items_of_other_lists_are_intrusions() -> None:
    frame = table()
    frame.loc[6, "item"] = "d"
    assert RecallSequences.from_table(frame).n_intrusions[0] == 2


def test_positions_give_the_same_as_the_table() -> None:
    direct = RecallSequences.from_positions([[2, 0, 2, 1], []], [3, 2], subject=["s", "s"])
    read = RecallSequences.from_table(table())
    assert (direct.outputs == read.outputs).all()
    assert direct.lists.tolist() == [1, 2]
    pd.testing.assert_frame_equal(lag_crp(direct), lag_crp(read))


def test_to_table_comes_back() -> None:
    original = RecallSequences.from_positions([[3, 0, 1], [2]], 4, subject=["p", "q"])
    again = RecallSequences.from_table(original.to_table())
    assert (again.outputs == original.outputs).all()
    assert again.subject.tolist() == ["p", "q"]


def test_anything_that_can_say_what_it_recalled_joins() -> None:
    class Memory:
        """A memory system: retrieved the events 4 5 6 of 10."""

        def recall_sequences(self) -> RecallSequences:
            return RecallSequences.from_positions([[4, 5, 6]], 10, source="memory")

    curve = lag_crp(Memory()).set_index("lag")
    assert curve.loc[1, "actual"] == 2
    assert as_sequences(Memory()).source == "memory"


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (table().drop(columns="item"), r"lacks the column\(s\) item"),
        (pd.concat([table(), table()[["item"]]], axis=1), r"column\(s\) item more than once"),
        (table().iloc[:0], "has no rows"),
        (table().replace({"trial_type": {"study": "WORD"}}), "row 0 .* trial_type 'WORD'"),
        (table().replace({"item": {"c": "a"}}), "list 1 .* studies the item 'a' twice"),
        (table().assign(subject=[None] * 9), "row 0 .* has no subject"),
        (table().assign(position=["?"] + [1] * 8), "row 0 .* no numeric position"),
        (table().assign(position=[0, 1, 2, 1, 2, 3, 4, 1, 2]), "must be 1 ... 3"),
        (table().assign(position=[1, 1, 3, 1, 2, 3, 4, 1, 2]), "must be 1 ... 3, each once"),
        (table().assign(position=[1, 2, 3, 1, 1, 3, 4, 1, 2]), "two recalls with the position 1"),
        (table().query("trial_type == 'recall'"), "has recalls and no study rows"),
        (table().replace({"item": {"c": np.nan}}), "has no studied item"),
    ],
)
def test_unusable_tables_say_where(frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(DataError, match=message):
        lag_crp(frame)


def test_unusable_sequences_say_where() -> None:
    with pytest.raises(DataError, match="list 2 has the recalled position 5"):
        RecallSequences.from_positions([[1], [5]], 4)
    with pytest.raises(DataError, match="at least one list"):
        RecallSequences.from_positions([], 4)
    with pytest.raises(DataError, match="length of at least 1"):
        RecallSequences.from_positions([[1]], 0)
    with pytest.raises(DataError, match="subject has 1 labels for 2 lists"):
        RecallSequences.from_positions([[1], [2]], 4, subject=["a"])
    with pytest.raises(InputError, match="recalls is a list"):
        lag_crp([[1, 2]])  # type: ignore[arg-type]
