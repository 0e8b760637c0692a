"""Perplexity against context: scores, bins, bootstrap, resuming."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from fake_systems import Plain, Reader
from tiny_lm import tiny_lm

from workbench.core.errors import DataError, InputError
from workbench.tasks.perplexity import curve_table, perplexity_curve

LM = tiny_lm()
TEXT = " ".join(f"It rained {i} days on the town." for i in range(60))


class Short(Plain):
    """Sees only the last 20 tokens before each."""

    def score(self, text, keep=False):
        values = super().score(text)
        ids = self._ids(text)
        for place in range(20, len(ids)):
            with torch.no_grad():
                window = torch.tensor([ids[place - 20 : place]])
                scores = LM.model(window).logits[0, -1].double().log_softmax(dim=-1)
            values[place] = scores[ids[place]]
        return values


def plain(lm):
    return Plain(lm)


def short(lm):
    return Short(lm)


def test_a_curve_is_means_of_the_scores(tmp_path):
    edges = [50, 100, 200]
    found = perplexity_curve((plain, short), TEXT, edges, lm=LM, draws=50)
    ids = LM.tokenizer(TEXT, add_special_tokens=False)["input_ids"][:200]
    with torch.no_grad():
        logits = LM.model(torch.tensor([[0, *ids]])).logits[0, :-1].double()
    expected = -logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].numpy()
    np.testing.assert_allclose(found.nats["plain"][0], expected, atol=1e-5)
    rows = found.table[found.table["system"] == "plain"]
    for row, (low, high) in zip(rows.to_dict("records"), [(0, 50), (50, 100), (100, 200)]):
        assert (row["low_context"], row["high_context"]) == (low, high - 1)
        assert row["n_tokens"] == high - low
        assert row["nats"] == pytest.approx(expected[low:high].mean(), abs=1e-5)
        assert row["perplexity"] == pytest.approx(np.exp(row["nats"]))
        assert row["difference"] == 0
    other = found.table[found.table["system"] == "short"]
    by_hand = found.nats["short"][0] - found.nats["plain"][0]
    assert other["difference"].tolist() == pytest.approx(
        [by_hand[:50].mean(), by_hand[50:100].mean(), by_hand[100:].mean()]
    )
    assert (found.table["baseline"] == "plain").all()


def test_several_texts_are_pooled_and_cut():
    texts = [TEXT, "The town did not mind. " * 12]
    found = perplexity_curve(plain, texts, [40, 160], lm=LM, draws=20)
    first, second = found.nats["plain"]
    assert len(first) == 160
    assert len(second) < 160
    last = found.table.iloc[-1]
    assert last["n_tokens"] == 120 + len(second) - 40
    assert last["nats"] == pytest.approx(np.concatenate([first[40:], second[40:]]).mean())


def test_what_a_system_does_not_read_is_missing_for_it_alone():
    found = perplexity_curve((plain, short), TEXT, [50, 200], lm=LM, max_length={"short": 80})
    values = found.nats["short"][0]
    assert np.isfinite(values[:75]).all()
    assert np.isnan(values[80:]).all()
    rows = found.table.set_index(["system", "low_context"])
    assert rows.loc[("plain", 50), "n_tokens"] == 150
    paired = rows.loc[("short", 50)]
    assert paired["n_paired"] == paired["n_tokens"] == np.isfinite(values[50:]).sum()
    both = values - found.nats["plain"][0]
    assert paired["difference"] == pytest.approx(np.nanmean(both[50:]))


def test_curves_go_on_where_they_stopped(tmp_path):
    texts = [TEXT, "The town did not mind. " * 12]
    whole = perplexity_curve((plain, short), texts, [40, 120], lm=LM, draws=20)
    count = 0

    class Failing(Short):
        def score(self, text, keep=False):
            nonlocal count
            count += 1
            if count == 2:
                raise RuntimeError("power")
            return super().score(text)

    def failing(lm):
        return Failing(lm)

    failing.__qualname__ = "short"
    given = {"lm": LM, "draws": 20, "out": tmp_path / "p"}
    with pytest.raises(RuntimeError, match="power"):
        perplexity_curve({"plain": plain, "short": failing}, texts, [40, 120], **given)
    again = perplexity_curve({"plain": plain, "short": failing}, texts, [40, 120], **given)
    assert count == 3  # the first text of the second system was not read again
    for label in ("plain", "short"):
        for one, two in zip(again.nats[label], whole.nats[label], strict=True):
            np.testing.assert_array_equal(one, two)
    with pytest.raises(InputError, match=r"other settings \(texts: "):
        perplexity_curve(plain, TEXT + " More.", [40, 1000], **given)
    for path in (tmp_path / "p").glob("nats_*_1.npy"):
        path.write_bytes(b"broken")
    with pytest.raises(DataError, match="is damaged"):
        perplexity_curve((plain, short), texts, [40, 120], **given)


@pytest.mark.parametrize(
    ("lengths", "change", "message"),
    [
        ([], {}, "lengths=[] must increase"),
        ([100, 50], {}, "lengths=[100, 50] must increase"),
        ([1], {}, "length=1 must be a whole number of at least 2"),
        ([50, 100_000], {"text": "It rained."}, "so no token falls into the last bin"),
        ([50], {"baseline": "full"}, "baseline='full' is not among the systems ['plain']"),
        ([50], {"draws": 0}, "draws=0 must be at least 1"),
    ],
)
def test_bad_arguments(lengths, change, message):
    with pytest.raises(InputError, match=re.escape(message)):
        perplexity_curve(**{"systems": plain, "text": TEXT, "lengths": lengths, "lm": LM} | change)


def test_too_many_scores_are_an_error():
    class Wrong(Reader):
        def score(self, text, keep=False):
            return np.zeros(1000)

    with pytest.raises(DataError, match="wrong returned 1000 scores for the 50 tokens of text 0"):
        perplexity_curve({"wrong": lambda lm: Wrong(lm)}, TEXT, [50], lm=LM)


def test_intervals_cover_means_of_dependent_values():
    """Blocks as long as the dependence: the 95 % interval holds the true mean 0 nearly so often."""
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(150):
        noise = np.repeat(rng.normal(size=64), 32)  # every 32 tokens are alike
        row = curve_table({"a": [noise]}, [2048], block=32, draws=200, seed=seed).iloc[0]
        hits += row["ci_low"] <= 0 <= row["ci_high"]
    assert 0.88 <= hits / 150 <= 0.99


def test_paired_intervals_are_those_of_the_differences():
    rng = np.random.default_rng(1)
    base = rng.normal(3, 2, size=1000)
    gain = rng.normal(0.3, 0.1, size=1000)
    nats = {"window": [base], "memory": [base - gain]}
    table = curve_table(nats, [1000], block=20, draws=500)
    memory = table[table["system"] == "memory"].iloc[0]
    assert memory["difference"] == pytest.approx(-gain.mean())
    assert memory["difference_low"] < memory["difference"] < memory["difference_high"] < 0
    # The text's own spread is no part of it.
    width = memory["difference_high"] - memory["difference_low"]
    assert width < 0.1 * (memory["ci_high"] - memory["ci_low"])
    alone = curve_table({"d": [-gain]}, [1000], block=20, draws=500).iloc[0]
    assert (memory["difference_low"], memory["difference_high"]) == pytest.approx(
        (alone["ci_low"], alone["ci_high"])
    )


def test_few_stretches_have_no_interval():
    table = curve_table({"a": [np.ones(100)]}, [50, 100], block=10)
    assert table["n_blocks"].tolist() == [5, 5]
    assert table["ci_low"].isna().all()
