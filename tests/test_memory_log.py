"""The log of retrievals and its table, against a slow loop."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import words
from tiny_lm import tiny_lm

from workbench.memory import EMLLM
from workbench.memory.log import COLUMNS, RetrievalLog


def random_log(seed, n):
    rng = np.random.default_rng(seed)
    log, entries = RetrievalLog(), []
    for step in range(n):
        available = int(rng.integers(1, 12))
        units = rng.permutation(available)[: int(rng.integers(0, available + 1))]
        cut = int(rng.integers(0, len(units) + 1))
        similarity = rng.normal(size=available).astype(np.float32)
        entry = (
            step, 5 * step, int(rng.integers(2)), int(rng.integers(-1, 2)), available,
            units[:cut], units[cut:], similarity,
        )  # fmt: skip
        log.add(*entry)
        entries.append(entry)
    return log, entries


def slow_table(entries):
    rows, before = [], {}
    for step, position, layer, head, available, similar, contiguous, similarity in entries:
        last = before.get((layer, head))
        first = None
        for name, units in (("similarity", similar), ("contiguity", contiguous)):
            for rank, unit in enumerate(units.tolist()):
                lag = None if last is None else unit - last
                about = (step, position, layer, head, unit, similarity[unit], name, rank)
                rows.append((*about, lag, available))
                last = unit
                first = unit if first is None else first
        if first is not None:
            before[layer, head] = first
    return rows


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(0, 12), kept=st.integers(0, 12))
def test_table_is_the_slow_loop(seed, n, kept):
    log, entries = random_log(seed, n)
    log.truncate(kept)
    for one in (log, RetrievalLog.from_arrays(log.arrays())):
        table = one.table()
        assert tuple(table.columns) == COLUMNS
        found = [
            tuple(None if value is pd.NA else value for value in row)
            for row in table.itertuples(index=False)
        ]
        assert found == slow_table(entries[:kept])
        assert len(one) == min(n, kept)
        assert (one.nbytes > 0) == (min(n, kept) > 0)


def test_what_a_reading_writes_down():
    lm = tiny_lm(layers=2)
    system = EMLLM(
        lm, "F:4+C", share=0.5, n_mem=16, n_init=4, n_local=12, chunk=8, per_head=True
    ).read(words(50))
    table = system.retrievals
    skip = system.rows[0].skip
    for (step, _, _), part in table.groupby(["step", "layer", "head"]):
        assert part["position"].nunique() == 1
        position = int(part["position"].iloc[0])
        # A chunk's retrieval stands at its first token, counted without the start token.
        assert position == 8 * step - skip
        # Units recalled were over before the window of the chunk's first token began.
        assert (4 * (part["unit"] + 1) + 12 - 1 <= position + skip + 4).all()
        assert len(part) <= 4
        similar = part[part["buffer"] == "similarity"]
        assert len(similar) <= max(2, int(part["available"].iloc[0]))
        assert (np.diff(similar["similarity"]) <= 0).all()
        assert part["unit"].is_unique
        assert similar["rank"].tolist() == list(range(len(similar)))
    assert {"similarity", "contiguity"} == set(table["buffer"])
    assert set(table["layer"]) == {0, 1}
    with system.branch():
        n = system.n_tokens
        system.generate("It", max_new_tokens=2)
        assert system.retrievals.iloc[len(table) :]["position"].unique().tolist() == list(
            range(n, system.n_tokens)
        )
    assert system.retrievals.equals(table)
