"""Order of retold events against random order; agreement of two scorings."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from workbench.analysis.event_order import event_contiguity
from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.recall.sequences import RecallSequences
from workbench.analysis.recall_agreement import method_agreement
from workbench.core.errors import DataError, InputError


def retellings(order, n_people: int = 20, length: int = 12) -> RecallSequences:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(n_people):
        chosen = np.sort(rng.choice(np.arange(1, length + 1), size=7, replace=False))
        rows.append(order(chosen, rng))
    return RecallSequences.from_positions(rows, length, subject=[f"s{i}" for i in range(n_people)])


def test_forward_retelling_stands_out_from_random_order():
    forward = event_contiguity(retellings(lambda x, rng: x), draws=200, resamples=200)
    found = forward.set_index("lag")
    assert found.index.tolist() == [-4, -3, -2, -1, 1, 2, 3, 4]
    assert (found.loc[[-3, -2, -1], "prob"] == 0).all()
    # 12 events, 7 recalled: the next event is one of them about half the time, and then it follows.
    assert 0.4 < found.loc[1, "prob"] < 0.7
    assert found.loc[1, "p"] <= 0.01
    assert found.loc[-1, "p"] <= 0.01
    assert found.loc[1, "z"] > 5


def test_random_order_is_not_told_from_random_order():
    mixed = event_contiguity(retellings(lambda x, rng: rng.permutation(x), 60), draws=400)
    assert (mixed["p"] > 0.01).all()
    assert (mixed["z"].abs() < 3).all()
    assert (mixed["ci_low"] <= mixed["prob"]).all()
    assert (mixed["prob"] <= mixed["ci_high"]).all()


def test_values_are_means_over_people_of_the_lag_crp():
    sequences = retellings(lambda x, rng: rng.permutation(x))
    found = event_contiguity(sequences, draws=5, resamples=5).set_index("lag")
    crp = lag_crp(sequences)
    for lag in (-4, -1, 2):
        values = crp.loc[crp["lag"] == lag, "prob"]
        assert found.loc[lag, "prob"] == pytest.approx(values.mean())
        assert found.loc[lag, "n_subjects"] == values.notna().sum()
    with pytest.raises(InputError, match="max_lag=12 must lie between 1 and 11"):
        event_contiguity(sequences, max_lag=12)


def scores(n_people=8, n_events=10, own_noise=0.0, seed=0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frames = []
    for story in ("a", "b"):
        shared = rng.normal(size=n_events)
        for person in range(n_people):
            truth = shared + rng.normal(size=n_events)
            frames.append(
                pd.DataFrame(
                    {
                        "subject": f"s{person}",
                        "story": story,
                        "event": np.arange(1, n_events + 1),
                        "x": truth,
                        "y": truth + own_noise * rng.normal(size=n_events),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def test_agreement_from_its_definition():
    table = scores(own_noise=1.0)
    found = method_agreement(table, "x", "y", draws=300, resamples=300).set_index("baseline")
    per_person, others = [], []
    for subject, own in table.groupby("subject"):
        per_person.append(np.mean([spearmanr(p["x"], p["y"])[0] for _, p in own.groupby("story")]))
        parts = []
        for story, part in own.groupby("story"):
            rest = table[(table["story"] == story) & (table["subject"] != subject)]
            parts.append(spearmanr(part["x"], rest.groupby("event")["y"].mean())[0])
        others.append(np.mean(parts))
    assert found.loc["events", "value"] == pytest.approx(np.mean(per_person))
    assert found.loc["people", "baseline_mean"] == pytest.approx(np.mean(others))
    assert found.loc["people", "difference"] == pytest.approx(np.mean(per_person) - np.mean(others))
    assert abs(found.loc["events", "baseline_mean"]) < 0.05
    assert found.loc["events", "p"] < 0.02
    assert found.loc["events", "ci_low"] < found.loc["events", "value"]
    assert (found["n_lists"] == 16).all()


def test_scores_that_know_the_story_and_not_the_person_do_not_pass_the_second_baseline():
    """y is the same for everybody: it agrees with x, but no better than other people's y does."""
    table = scores()
    table["y"] = table.groupby(["story", "event"])["x"].transform("mean")
    found = method_agreement(table, "x", "y", draws=100, resamples=200).set_index("baseline")
    assert found.loc["events", "p"] < 0.02
    assert found.loc["people", "difference"] == pytest.approx(0)
    same = method_agreement(scores(), "x", "y", draws=100, resamples=200).set_index("baseline")
    assert same.loc["people", "value"] == pytest.approx(1)
    assert same.loc["people", "difference_low"] > 0


def test_retellings_that_nobody_else_has_scores_for_have_no_second_baseline():
    table = scores(own_noise=1.0)
    table.loc[(table["subject"] != "s0") & (table["event"] == 1), "y"] = np.nan
    found = method_agreement(table, "x", "y", draws=20, resamples=20).set_index("baseline")
    assert found.loc["events", "n_lists"] == 16
    assert found.loc["people", "n_lists"] == 14
    assert found.loc["people", "n_subjects"] == 7
    assert found.loc["people"].drop(["own", "other", "baseline_sd", "z", "p"]).notna().all()
    alone = method_agreement(table[table["subject"] == "s0"], "x", "y", draws=20, resamples=20)
    assert alone["baseline"].tolist() == ["events"]


def test_bad_agreement():
    table = scores()
    with pytest.raises(DataError, match="no column 'z'"):
        method_agreement(table, "x", "z")
    with pytest.raises(DataError, match="no retelling has three events"):
        method_agreement(table.assign(y=1.0), "x", "y")
    with pytest.raises(InputError, match="draws=0"):
        method_agreement(table, "x", "y", draws=0)
