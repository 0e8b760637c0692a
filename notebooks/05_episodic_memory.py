# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Episodic memory: a model that forms events, keeps them, and recalls them
#
# [EM-LLM](https://arxiv.org/abs/2407.09450) lets a language model read a text that is longer than
# its window. On the way it cuts the text into events where it is surprised, keeps them, and at every
# step recalls a few of them, by similarity and by nearness in time. This notebook reads a story of
# 2,000 tokens with a window of 256, looks at what was formed and recalled, and asks in each case
# what the same would look like by chance.

# %%
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.io as pio

import workbench as wb
from workbench.analysis.retrieval_units import layer_overlap, overlap_summary
from workbench.figures.export import find_browser
from workbench.figures.retrieval import figure_layer_overlap, figure_recency, figure_retrieval_lag

pio.renderers.default = "notebook_connected+png" if find_browser() else "notebook_connected"

lm = wb.load_model("smollm2-135m")
story = wb.load_story("tortoise")
size = {"n_init": 16, "n_local": 256, "chunk": 64}
print(lm.provenance)

# %% [markdown]
# ## Reading
#
# `SM+C`: events by surprise, refined by modularity, with the contiguity buffer. A window without
# memory that sees as many tokens stands beside it, and the plain model with all of the story in
# sight.

# %%
systems = {
    "emllm-SM+C": wb.EMLLM(lm, "SM+C", n_mem=256, **size),
    "emllm-S": wb.EMLLM(lm, "S", n_mem=256, **size),
    "infllm": wb.InfLLM(lm, block=64, n_mem=256, **size),
    "window": wb.SlidingWindow(lm, n_init=16, n_local=512, chunk=64),
    "full": wb.FullContext(lm),
}
for system in systems.values():
    system.read(story)

rows = []
for name, system in systems.items():
    late = system.surprisal[512:]
    rows.append(
        {
            "system": name,
            "tokens": system.n_tokens,
            "keys seen (mean)": round(system.attended),
            "events": system.events.n_events if system.forming else None,
            "nats per token, from token 512": late.mean(),
            "standard error": late.std(ddof=1) / np.sqrt(len(late)),
        }
    )
pd.DataFrame(rows).set_index("system").round(3)

# %% [markdown]
# The systems read the same tokens, so what matters is the difference between two of them token by
# token. Blocks of 64 tokens are resampled, since neighbouring tokens depend on each other.

# %%
rng = np.random.default_rng(0)


def difference(one: str, other: str) -> list[float]:
    """Mean difference in nats per token from token 512 on, with a 95 % interval over blocks."""
    gap = systems[one].surprisal[512:] - systems[other].surprisal[512:]
    blocks = np.array_split(gap, len(gap) // 64)
    means = np.array([block.mean() for block in blocks])
    draws = rng.choice(means, size=(2000, len(means))).mean(axis=1)
    return [gap.mean(), *np.quantile(draws, [0.025, 0.975])]


pairs = [("emllm-SM+C", "window"), ("emllm-S", "window"), ("infllm", "window"), ("full", "window")]
table = {f"{a} - {b}": difference(a, b) for a, b in pairs}
pd.DataFrame(table, index=["nats per token", "low", "high"]).T.round(3)

# %% [markdown]
# ## The events, online and offline
#
# While it reads, the system's surprise comes from its window and what it recalled; `wb.record` sees
# the whole story. What was seen is kept in `memory.trace`: cut offline, it gives the same events.

# %%
memory = systems["emllm-SM+C"]
again = wb.segment(memory.trace, "SM")
assert again.starts.tolist() == memory.events.starts.tolist()

recorded = wb.record(story, lm)
offline = wb.segment(recorded, "SM")


def share_met(one: np.ndarray, other: np.ndarray, within: int = 0) -> float:
    """Share of boundaries that the other cut has, too (at most `within` tokens away)."""
    return float((np.abs(one[:, None] - other[None]).min(axis=1) <= within).mean())


n = memory.n_tokens
inner = memory.events.inner
lengths = np.diff(np.append(memory.events.starts, n))
chance = [share_met(np.cumsum(rng.permutation(lengths))[:-1], offline.inner) for _ in range(500)]
print(f"online {memory.events.n_events} events, offline {offline.n_events}")
print(f"boundaries in both: {share_met(inner, offline.inner):.2f}")
print(
    f"the same lengths in random order: {np.mean(chance):.2f} "
    f"({np.quantile(chance, 0.025):.2f} to {np.quantile(chance, 0.975):.2f})"
)

# %% [markdown]
# ## What was recalled
#
# Every recall of every layer and step is in one tidy table.

# %%
recalled = memory.retrievals
recalled.head()

# %%
recalled_events = wb.RetrievedEvents.of(memory)
overlap_summary(recalled_events).round(3)

# %% [markdown]
# People who recall go on to what came next more often than by chance. Does the memory? The
# **lag-CRP** of what was recalled, of the similarity buffer alone and with the contiguity buffer. The
# buffer is made of neighbours, so its peaks at ±1 (and at -2, from one neighbour to the other) are there
# by construction; the finding, if any, is what similarity does on its own. The null draws as many
# events from those that were stored, each retrieval for itself, while layers and neighbouring steps
# recall alike: p values and intervals are too good.

# %%
curves = pd.concat(
    wb.retrieval_lag_crp(recalled_events, buffer=buffer, order=order, draws=100)
    for buffer, order in (("similarity", "log"), ("both", "woven"))
)
figure_retrieval_lag(curves, provenance=[lm.provenance]).show()

# %% [markdown]
# Which layers recall the same events, and whether what was stored last is recalled more often:

# %%
figure_layer_overlap(layer_overlap(recalled_events)).show()
figure_recency(wb.recency(recalled_events)).show()

# %% [markdown]
# ## Asking
#
# A question is read after the story, and each of its tokens looks for what is like itself. With
# `keep=False` the memory forgets it again. The default model is small: the story is harder for it
# than a key hidden in filler.

# %%
filler = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
hidden = filler * 20 + "The pass key is 71432. Remember it. 71432 is the pass key. " + filler * 60
question = "\nWhat is the pass key? The pass key is"
answers = {}
for name in ("emllm-SM+C", "window"):
    system = systems[name]
    with system.branch():
        system.reset()
        system.read(hidden)
        answers[name] = system.generate(question, max_new_tokens=8), system.n_tokens
pd.DataFrame(answers, index=["answer", "tokens"]).T

# %% [markdown]
# One key is no result: `workbench passkey` asks many, at many lengths and depths, with intervals.
#
# ## People's events as memories
#
# Any boundaries can be the memories: people's, an author's, sentence starts. Here the author's
# scenes, where the story has them, else its sentences.

# %%
sentences = wb.EMLLM(lm, "T", n_mem=256, **size).read(story)
print(
    f"{sentences.events.n_events} sentences; {sentences.surprisal[512:].mean():.3f} nats per token"
)

# %% [markdown]
# ## Keeping
#
# A memory is saved without pickle, and goes on identically after loading; opened read-only, any
# number of processes may recall from it.

# %%
with tempfile.TemporaryDirectory() as folder:
    kept = memory.save(Path(folder) / "tortoise")
    loaded = wb.load_memory(kept, lm, read_only=True)
    prompt = "\nThe tortoise said"
    first, second = (
        system.generate(prompt, max_new_tokens=12, keep=False) for system in (memory, loaded)
    )
print(first)
assert first == second
memory.footprint()
