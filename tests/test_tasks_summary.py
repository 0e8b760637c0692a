"""Scores, shares with intervals, paired tests: against formulas and scipy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from workbench.core.errors import InputError, MissingDataError
from workbench.tasks.scoring import contains, first_integer
from workbench.tasks.summary import accuracy_table, paired_interval, paired_table, wilson_interval


@pytest.mark.parametrize(
    ("output", "first", "within"),
    [
        (" 71432.", True, True),
        ("71432", True, True),
        (" The pass key is 71432!", True, True),
        (" 714325.", False, False),
        (" 171432", False, False),
        (" 7143", False, False),
        (" 7 1 4 3 2", False, False),
        (" 12345 or 71432", False, True),
        (" 71432 or 12345", True, True),
        ("-71432", True, True),
        (" 71432.0", True, True),
        ("", False, False),
        (" I do not know.", False, False),
        (" key71432", True, False),
        (" ７１４３２", False, False),
    ],
)
def test_scoring_of_passkeys(output, first, within):
    assert first_integer(output, "71432") is first
    assert contains(output, "71432") is within


def test_containment_is_literal_and_of_whole_words():
    assert contains("so Otto.", "Otto")
    assert not contains("so Ottokar.", "Otto")
    assert not contains("so otto.", "Otto")
    assert contains("costs $5.00 (net)", "$5.00")
    assert not contains("abc", "")


@settings(max_examples=60, deadline=None)
@given(asked=st.integers(1, 200), share=st.floats(0, 1))
def test_wilson_is_the_formula(asked, share):
    right = round(share * asked)
    z, p = norm.ppf(0.975), right / asked
    middle = (p + z**2 / (2 * asked)) / (1 + z**2 / asked)
    half = z / (1 + z**2 / asked) * np.sqrt(p * (1 - p) / asked + z**2 / (4 * asked**2))
    low, high = wilson_interval(right, asked)
    assert low == pytest.approx(max(0, middle - half), abs=1e-12)
    assert high == pytest.approx(min(1, middle + half), abs=1e-12)


def run(rng, systems=("b", "a"), lengths=(100, 200), depths=(0.0, 1.0), seeds=6):
    return pd.DataFrame(
        [
            {
                "system": system,
                "length": length,
                "depth": depth,
                "seed": seed,
                "correct": bool(rng.random() < 0.5),
            }
            for system in systems
            for length in lengths
            for depth in depths
            for seed in range(seeds)
        ]
    )


def test_accuracy_counts_each_group():
    table = run(np.random.default_rng(0))
    found = accuracy_table(table)
    assert list(dict.fromkeys(found["system"])) == ["b", "a"]  # as given, not by the alphabet
    assert len(found) == 8
    for row in found.to_dict("records"):
        part = table[
            (table["system"] == row["system"])
            & (table["length"] == row["length"])
            & (table["depth"] == row["depth"])
        ]
        assert (row["right"], row["asked"]) == (part["correct"].sum(), len(part))
        assert row["accuracy"] == part["correct"].mean()
        assert row["low"] <= row["accuracy"] <= row["high"]
    pooled = accuracy_table(table, by=("system", "length"))
    assert pooled["asked"].tolist() == [12] * 4
    assert pooled["right"].sum() == table["correct"].sum()


def test_what_is_not_known_is_not_counted():
    table = run(np.random.default_rng(0), seeds=2, systems=("a",))
    table["key_recalled"] = pd.array([True, None, False, None] * 2, dtype="boolean")
    found = accuracy_table(table, by=("system",), measure="key_recalled")
    assert (found["right"][0], found["asked"][0]) == (2, 4)


def test_accuracy_refuses():
    with pytest.raises(MissingDataError, match="no rows"):
        accuracy_table(pd.DataFrame())
    with pytest.raises(InputError, match="no column 'truth'"):
        accuracy_table(run(np.random.default_rng(0)), measure="truth")


@pytest.mark.parametrize("seed", range(5))
def test_pairs_are_exact_mcnemar_with_holm(seed):
    rng = np.random.default_rng(seed)
    table = run(rng, systems=("a", "b", "c"))
    table = table.sample(frac=1, random_state=seed)  # the order of rows means nothing
    lost = table[(table["system"] == "c") & (table["seed"] == 0)].index
    table = table.drop(lost)  # c has not read these yet
    found = paired_table(table)
    assert len(found) == 6
    cell = ["length", "depth", "seed"]
    for row in found.to_dict("records"):
        one = table[(table["system"] == row["first"]) & (table["length"] == row["length"])]
        two = table[(table["system"] == row["second"]) & (table["length"] == row["length"])]
        both = one.merge(two, on=cell)
        x, y = both["correct_x"].to_numpy(), both["correct_y"].to_numpy()
        assert row["n"] == len(both) == (12 if "c" not in (row["first"], row["second"]) else 10)
        b, c = int((x & ~y).sum()), int((~x & y).sum())
        assert (row["only_first"], row["only_second"]) == (b, c)
        assert row["difference"] == pytest.approx(x.mean() - y.mean())
        expected = binomtest(b, b + c).pvalue if b + c else 1.0
        assert row["p"] == pytest.approx(expected)
    p = found["p"].to_numpy()
    order = np.argsort(p)
    holm = np.empty(6)
    holm[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(6, 0, -1)))
    assert found["p_holm"].to_numpy() == pytest.approx(holm)
    assert len(paired_table(table, per_length=False)) == 3


def test_one_system_has_no_pairs():
    found = paired_table(run(np.random.default_rng(0), systems=("a",)))
    assert len(found) == 0
    assert "p_holm" in found


def test_paired_interval_is_the_formula():
    """36 both right, 12 only the first, 2 only the second: the two go apart, so φ < 0."""
    first = np.repeat([True, True, False, False], [36, 12, 2, 0])
    second = np.repeat([True, False, True, False], [36, 12, 2, 0])
    n = 50
    low1, up1 = (float(v) for v in wilson_interval(48, n))
    low2, up2 = (float(v) for v in wilson_interval(38, n))
    p, q = 48 / n, 38 / n
    # ad - bc = 36·0 - 12·2 < 0, so φ is not reduced
    phi = -24 / np.sqrt(48 * 2 * 38 * 12)
    low = (p - q) - np.sqrt((p - low1) ** 2 - 2 * phi * (p - low1) * (up2 - q) + (up2 - q) ** 2)
    high = (p - q) + np.sqrt((up1 - p) ** 2 - 2 * phi * (up1 - p) * (q - low2) + (q - low2) ** 2)
    assert paired_interval(first, second) == pytest.approx((low, high), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_paired_interval_holds_the_difference_and_turns_with_it(pairs):
    x, y = (np.array(side) for side in zip(*pairs))
    low, high = paired_interval(x, y)
    assert -1 - 1e-9 <= low <= x.mean() - y.mean() <= high <= 1 + 1e-9
    assert paired_interval(y, x) == pytest.approx((-high, -low), abs=1e-9)


def test_paired_interval_covers():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        base = rng.random(40) < 0.6
        x, y = base | (rng.random(40) < 0.3), base & (rng.random(40) < 0.8)
        low, high = paired_interval(x, y)
        hits += low <= (0.6 + 0.4 * 0.3) - 0.6 * 0.8 <= high
    assert hits / 400 > 0.93
