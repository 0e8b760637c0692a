"""Regression of recall on what events are like: planted effects, peers, calibration, bad inputs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from workbench.analysis.recall_design import Design, newton, two_way_errors
from workbench.analysis.recall_regression import recall_regression
from workbench.core.errors import DataError, InputError


def simulated(
    *,
    n_subjects: int = 30,
    n_events: tuple[int, ...] = (20, 16, 24),
    effects: dict[str, float] | None = None,
    event_sd: float = 0.0,
    subject_sd: float = 0.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Recall with known effects (log odds per unit) of a, b (events), pressed and condition."""
    rng = np.random.default_rng(seed)
    effects = effects or {}
    rows = []
    ability = rng.normal(0, subject_sd, n_subjects) if subject_sd else np.zeros(n_subjects)
    for story, n in enumerate(n_events):
        a, b = rng.normal(size=n), rng.normal(size=n)
        luck = rng.normal(0, event_sd, n) if event_sd else np.zeros(n)
        for subject in range(n_subjects):
            condition = ("clear", "+2SNR", "-4SNR")[(subject + story) % 3]
            pressed = (rng.random(n) < 0.3).astype(float)
            linear = (
                -0.3
                + 0.2 * story
                + ability[subject]
                + luck
                + effects.get("a", 0) * a
                + effects.get("b", 0) * b
                + effects.get("pressed", 0) * pressed
                + effects.get(condition, 0)
            )
            rows.append(
                pd.DataFrame(
                    {
                        "subject": f"s{subject}",
                        "story": f"story-{story}",
                        "condition": condition,
                        "event": np.arange(1, n + 1),
                        "recalled": (rng.random(n) < 1 / (1 + np.exp(-linear))).astype(int),
                        "a": a,
                        "b": b,
                        "pressed": pressed,
                    }
                )
            )
    return pd.concat(rows, ignore_index=True)


TERMS = ["a", "b", "pressed", "condition"]


def test_planted_effects_are_recovered_and_their_levels_named():
    table = simulated(effects={"a": 0.8, "pressed": 0.6, "-4SNR": -0.7}, n_subjects=60)
    result = recall_regression(table, TERMS, draws=99, folds=5)
    found = result.coefficients.set_index("term")
    assert list(found.index) == ["a", "b", "pressed", "condition: +2SNR", "condition: -4SNR"]
    assert found["level"].tolist() == ["event", "event", "row", "list", "list"]
    assert result.settings["reference"] == {"condition": "clear"}
    # Estimates are per standard deviation of the predictor over the rows.
    planted = {
        "a": 0.8 * table["a"].std(ddof=0),
        "b": 0.0,
        "pressed": 0.6 * table["pressed"].std(ddof=0),
        "condition: +2SNR": 0.0,
        "condition: -4SNR": -0.7,
    }
    for term, value in planted.items():
        assert abs(found.loc[term, "estimate"] - value) < 4 * found.loc[term, "se"], term
        assert found.loc[term, "ci_low"] < found.loc[term, "estimate"] < found.loc[term, "ci_high"]
    assert found.loc[["a", "pressed", "condition: -4SNR"], "p_permutation"].max() <= 0.02
    assert found.loc[["a", "pressed", "condition: -4SNR"], "p"].max() < 0.01
    fit = result.fit.iloc[0]
    assert (fit.n_rows, fit.n_dropped, fit.n_subjects, fit.n_events, fit.n_stories) == (
        60 * 60,
        0,
        60,
        60,
        3,
    )
    assert fit.auc > fit.auc_null_mean + 3 * fit.auc_null_sd


def test_estimates_equal_statsmodels_logit_and_its_clustered_errors():
    import statsmodels.api as sm

    table = simulated(effects={"a": 0.5}, event_sd=0.5, subject_sd=0.5, seed=3)
    result = recall_regression(table, ["a", "b", "pressed"], draws=0, folds=0)
    z = (table[["a", "b", "pressed"]] - table[["a", "b", "pressed"]].mean()) / table[
        ["a", "b", "pressed"]
    ].std(ddof=0)
    X = np.column_stack([pd.get_dummies(table["story"]).to_numpy(float), z])
    groups = np.column_stack(
        [
            table.groupby("subject", sort=False).ngroup(),
            table.groupby(["story", "event"], sort=False).ngroup(),
        ]
    )
    plain = sm.GLM(table["recalled"], X, family=sm.families.Binomial())
    by_people = plain.fit(cov_type="cluster", cov_kwds={"groups": groups[:, 0]})
    both = plain.fit(cov_type="cluster", cov_kwds={"groups": groups, "use_correction": True})
    found = result.coefficients
    np.testing.assert_allclose(found["estimate"], by_people.params[3:], atol=1e-7)
    np.testing.assert_allclose(newton(X, table["recalled"].to_numpy(float)), by_people.params)
    # The correction for few clusters only widens, and by little with 30 of them.
    ratio = found["se"].to_numpy() / by_people.bse.to_numpy()[3:]
    assert (ratio > 0.98).all()
    assert (ratio < 1.1).all()
    np.testing.assert_allclose(found["se_two_way"], both.bse.to_numpy()[3:], rtol=0.02)
    # A predictor of events is less certain over events than over people; one of rows is not.
    wide = (found["se_two_way"] / found["se"]).to_numpy()
    assert wide[0] > 1.5
    assert 0.5 < wide[2] < 1.5


def test_two_way_covariance_is_the_sum_over_pairs_that_share_a_person_or_an_event():
    table = simulated(n_subjects=5, n_events=(6, 5), seed=5)
    design = Design.of(table, ["a", "pressed"], "clear")
    beta = newton(design.X, design.y)
    p = 1 / (1 + np.exp(-design.X @ beta))
    bread = np.linalg.inv(design.X.T @ np.diag(p * (1 - p)) @ design.X)
    score = design.X * (design.y - p)[:, None]
    person = table["subject"].to_numpy()
    event = (table["story"] + table["event"].astype(str)).to_numpy()
    meat = np.zeros_like(bread)
    n_people, n_events, n = 5, 11, len(table)
    for i in range(n):
        for j in range(n):
            weight = n_people / (n_people - 1) * (person[i] == person[j])
            weight += n_events / (n_events - 1) * (event[i] == event[j])
            weight -= n / (n - 1) * (i == j)
            meat += weight * np.outer(score[i], score[j])
    variance = np.diag(bread @ meat @ bread)
    expected = np.where(variance > 0, np.sqrt(np.abs(variance)), np.nan)
    np.testing.assert_allclose(two_way_errors(design, beta), expected)


def test_permutation_of_events_holds_its_level_where_the_interval_over_people_does_not():
    """Events differ in memorability for reasons unknown; `a` has no effect."""
    by_people, by_events = [], []
    for seed in range(30):
        table = simulated(n_subjects=16, n_events=(12, 12), event_sd=1.0, seed=100 + seed)
        found = recall_regression(table, ["a"], draws=59, folds=0, seed=seed).coefficients.iloc[0]
        by_people.append(found["p"] < 0.05)
        by_events.append(found["p_permutation"] <= 0.05)
    assert np.mean(by_people) > 0.3
    assert np.mean(by_events) < 0.15


def test_permutation_keeps_what_other_terms_explain():
    """b causes recall and a only goes along with b: the test of a must stay quiet."""
    table = simulated(effects={"b": 1.0}, seed=8)
    table["a"] = table["b"] + 0.5 * table["a"]
    alone = recall_regression(table, ["a"], draws=99, folds=0).coefficients.iloc[0]
    found = recall_regression(table, ["a", "b"], draws=199, folds=0).coefficients.set_index("term")
    assert alone["p_permutation"] <= 0.02
    assert found.loc["a", "p_permutation"] > 0.05
    assert found.loc["b", "p_permutation"] <= 0.02
    correlation = np.corrcoef(
        *[table[c] - table.groupby("story")[c].transform("mean") for c in ("a", "b")]
    )[0, 1]
    assert found.loc["a", "vif"] == pytest.approx(1 / (1 - correlation**2))


def test_condition_between_people_is_exchanged_among_people():
    table = simulated(effects={"-4SNR": -1.2}, n_events=(25,), n_subjects=45, seed=2)
    found = recall_regression(table, ["condition"], draws=199, folds=0).coefficients
    found = found.set_index("term")
    assert found.loc["condition: -4SNR", "p_permutation"] <= 0.02
    assert abs(found.loc["condition: -4SNR", "null_mean"]) < 0.15
    assert found.loc["condition: -4SNR", "null_sd"] > 0.02


def test_rows_without_a_value_are_left_out_and_counted():
    table = simulated(seed=1)
    table.loc[table["event"] == 1, "a"] = np.nan
    result = recall_regression(table, ["a", "b"], draws=0, folds=0)
    assert result.fit["n_dropped"].item() == 3 * 30
    assert result.fit["n_events"].item() == 57


def test_default_terms_are_those_with_values():
    table = simulated().rename(columns={"a": "boundary", "b": "log_words"})
    table["surprisal"] = np.nan
    result = recall_regression(table, draws=0, folds=0)
    assert result.settings["terms"] == ["boundary", "log_words", "condition"]
    assert result.settings["omitted"] == [
        "surprisal",
        "onset_surprisal",
        "position",
        "position_squared",
    ]


def test_same_seed_same_numbers_and_no_draws_no_null():
    table = simulated(seed=4)
    first = recall_regression(table, TERMS, draws=20, folds=4, seed=3)
    again = recall_regression(table, TERMS, draws=20, folds=4, seed=3)
    pd.testing.assert_frame_equal(first.coefficients, again.coefficients)
    pd.testing.assert_frame_equal(first.fit, again.fit)
    none = recall_regression(table, TERMS, draws=0, folds=0)
    assert none.coefficients["p_permutation"].isna().all()
    assert none.fit["auc"].isna().all()


def test_auc_of_held_out_events_from_its_definition():
    from workbench.analysis.recall_regression import _auc_of

    table = simulated(effects={"a": 1.0}, n_subjects=8, n_events=(10,), seed=6)
    X = np.column_stack([np.ones(len(table)), table["a"]])
    y = table["recalled"].to_numpy(float)
    part = table["event"].to_numpy() % 2
    scores = np.empty(len(y))
    for code in (0, 1):
        scores[part == code] = X[part == code] @ newton(X[part != code], y[part != code])
    pairs = [(i, j) for i in np.flatnonzero(y == 1) for j in np.flatnonzero(y == 0)]
    wins = np.mean([(scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]) for i, j in pairs])
    assert _auc_of(X, y, part) == pytest.approx(wins)


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (lambda t: t.drop(columns="event"), {}, DataError, "no column 'event'"),
        (lambda t: t.assign(recalled=2), {}, DataError, "must hold 0 or 1"),
        (lambda t: t.assign(recalled=1), {}, DataError, "there is no contrast"),
        (lambda t: t, {"terms": ["c"]}, DataError, "no column 'c'"),
        (lambda t: t, {"terms": "a"}, InputError, "list of different columns"),
        (lambda t: t, {"terms": []}, InputError, "at least one"),
        (lambda t: t.assign(c=1.0), {"terms": ["c"]}, DataError, "no two different values"),
        (
            lambda t: t.assign(c=2 * t["a"]),
            {"terms": ["a", "c"]},
            DataError,
            "determine each other",
        ),
        (lambda t: t.assign(c=t["recalled"] - 0.5), {"terms": ["c"]}, DataError, "without fail"),
        (lambda t: t[t["subject"].isin(["s0", "s1"])], {}, DataError, "too few for a regression"),
        (lambda t: t, {"folds": 1}, InputError, "folds from 2"),
        (lambda t: t, {"draws": -1}, InputError, "draws=-1"),
        (lambda t: t, {"confidence": 1.0}, InputError, "between 0 and 1"),
        (lambda t: t.drop(columns="condition"), {"terms": None}, DataError, "no term has values"),
    ],
)
def test_bad_input(change, options, error, message):
    table = simulated(n_subjects=6, n_events=(6, 6), seed=2)
    with pytest.raises(error, match=message):
        recall_regression(change(table), **{"terms": ["a"], "draws": 0, "folds": 0, **options})
