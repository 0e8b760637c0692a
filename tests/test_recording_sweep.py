"""Context sweeps against plain readings of each window; corrected word surprisal sums to one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_recording_measures import log_probabilities, small_tokenizer, story
from tiny_models import tiny_model

import workbench as wb
from workbench.core.errors import InputError
from workbench.models import LanguageModel
from workbench.recording.sweep import context_sweep, sweep_frame


@pytest.fixture(scope="module")
def lm():
    return LanguageModel("tiny", tiny_model("qwen3"), small_tokenizer())


@pytest.fixture(scope="module")
def sweep(lm):
    return context_sweep(story(), lm, (8, 16, "all"), measures="all")


def test_context_lies_between_k_and_2k(sweep):
    n = sweep.sizes["token"]
    context = sweep["context"].values
    np.testing.assert_array_equal(sweep["k"].values, [8, 16, np.inf])
    for row, k in enumerate((8, 16)):
        assert (context[row] >= np.minimum(np.arange(n), k)).all()
        assert (context[row] < 2 * k).all()
        assert context[row].max() > k
    np.testing.assert_array_equal(context[2], np.arange(n))


def test_every_value_is_that_of_its_visible_text_alone(lm, sweep):
    """Each token read anew with exactly as many tokens before it as `context` says."""
    ids = sweep["token_id"].values
    for row in range(3):
        for t in range(3, len(ids), 7):
            start = t - int(sweep["context"].values[row, t])
            log_p = log_probabilities(lm, [lm.tokenizer.bos_token_id, *ids[start : t + 1]])
            before, after = log_p[-2], log_p[-1]
            found = sweep.isel(k=row, token=t)
            assert float(found["surprisal"]) == pytest.approx(-before[ids[t]], abs=1e-5)
            assert float(found["entropy"]) == pytest.approx(
                -(np.exp(before) * before).sum(), abs=1e-5
            )
            assert float(found["bayesian_surprise"]) == pytest.approx(
                (np.exp(after) * (after - before)).sum(), abs=1e-5
            )


def test_all_is_the_trace(lm, sweep):
    trace = wb.record(story(), lm, keys=False, measures="all")
    for name in ("surprisal", "jensen_shannon", "word_bayesian_surprise"):
        np.testing.assert_array_equal(sweep[name].values[2], trace.dataset[name].values)
    settings = json.loads(sweep.attrs["settings"])
    assert settings["windows"]["all"]["starts"] == [0]
    assert settings["windows"]["8"]["size"] == 16
    assert sweep["surprisal"].attrs["units"] == "nat"


def test_frame_is_tidy(sweep):
    frame = sweep_frame(sweep)
    assert list(frame.columns) == ["k", "word", "context", "measure", "value"]
    assert not frame.duplicated(["k", "word", "measure"]).any()
    row = frame[(frame.k == 16) & (frame.word == 9) & (frame.measure == "surprisal")]
    assert float(row["value"].iloc[0]) == float(sweep["word_surprisal"].values[1, 9])
    first = int(np.flatnonzero(sweep["token_word"].values == 9)[0])
    assert float(row["context"].iloc[0]) == sweep["context"].values[1, first]
    tokens = sweep_frame(sweep, "token")
    assert set(tokens["measure"]) >= {"surprisal", "rank", "jensen_shannon"}
    assert "context" not in set(tokens["measure"])
    assert len(tokens) == 3 * sweep.sizes["token"] * tokens["measure"].nunique()


def test_without_a_start_token_later_windows_are_scored_whole(lm):
    sweep = context_sweep(story(), lm, (8,), bos="none")
    assert np.isfinite(sweep["surprisal"].values[:, 1:]).all()
    assert np.isnan(sweep["surprisal"].values[:, 0]).all()


def test_bad_k_by_message(lm):
    for k, message in (
        ([], "k is empty"),
        ([8, 8], "k: 8 is given twice"),
        ([1], "k: 1 is neither a whole number from 2 nor 'all'"),
        (["some"], "k: 'some' is neither"),
        ([8, 400], "window=801: tiny reads at most 512"),
    ):
        with pytest.raises(InputError, match=message):
            context_sweep(story(), lm, k)
    with pytest.raises(InputError, match="unit='line' is not known"):
        sweep_frame(context_sweep(story(), lm, 8), "line")
