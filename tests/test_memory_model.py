"""Memory systems with the default model: exactness on real weights, and a key found again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import workbench as wb
from workbench.recording import adapter
from workbench.tasks.grid import run_grid

pytestmark = pytest.mark.model


def test_inside_the_window_it_is_the_plain_model(lm):
    story = wb.load_story("lift").text[:1500]
    plain = wb.record(wb.EMLLM(lm, "S").read(story).trace.story, lm, keys=False).surprisal
    memory = wb.EMLLM(lm, "S", n_init=16, n_local=1024, n_mem=64, chunk=100).read(story)
    assert memory.n_tokens < 1024
    np.testing.assert_allclose(memory.surprisal, plain, atol=1e-3)


def test_everything_recalled_at_its_place_is_full_attention(lm):
    text = wb.load_story("lift").text[:2500]
    full = wb.FullContext(lm, chunk=128).read(text)
    memory = wb.EMLLM(lm, "SM", n_init=8, n_local=64, n_mem=10_000, chunk=64, position="true").read(
        text
    )
    assert memory.retrievals["unit"].nunique() > 5
    np.testing.assert_allclose(memory.surprisal, full.surprisal, atol=1e-3)


def test_events_online_are_events_offline(lm):
    story = wb.load_story("lift")
    memory = wb.EMLLM(lm, "SC+C", n_init=8, n_local=64, n_mem=64, chunk=64).read(story)
    offline = wb.segment(memory.trace, "SC")
    assert memory.events.starts.tolist() == offline.starts.tolist()
    assert memory.trace.story is story


def test_greedy_generation_is_scoring_step_by_step(lm):
    memory = wb.EMLLM(lm, "S", n_init=8, n_local=64, n_mem=64, chunk=64)
    memory.read(wb.load_story("lift").text[:1500])
    with memory.branch():
        n = memory.n_tokens
        answer = memory.generate(" And then", max_new_tokens=6)
        ids = memory.rows[0].text.ids[n:]
        seen = memory.surprisal[n:]
    with memory.branch(), memory.attached() as session:
        again = []
        for token in ids:
            row = memory.rows[0]
            if row.log_p is not None:
                again.append(-float(row.log_p[token]))
            cache = {adapter.cache_argument(lm.model): session.cache}
            lm.model(input_ids=torch.tensor([[token]]), use_cache=True, **cache)
    assert lm.tokenizer.decode(ids).endswith(answer)
    np.testing.assert_allclose(again, seen[len(seen) - len(again) :], atol=1e-3)


def test_a_key_outside_the_window_is_found_again(lm):
    result = run_grid(
        {"memory": {"system": "emllm-S"}, "window": {"system": "window", "n_local": 256}},
        "passkey",
        [2000],
        [0.25, 0.5],
        1,
        lm=lm,
        options={"n_init": 32, "n_local": 256, "n_mem": 512, "chunk": 256},
    )
    right = result.table.groupby("system")["correct"].sum()
    assert right["memory"] == 2
    assert right["window"] == 0
