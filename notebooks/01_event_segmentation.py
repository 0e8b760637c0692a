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
# # Event segmentation: a story, a model, people
#
# People who listen to a story agree, more or less, on where one event ends and the next begins. A
# language model that reads the same story is surprised at some words and not at others.
# [EM-LLM](https://arxiv.org/abs/2407.09450) cuts a text where the model is surprised, and moves the
# cuts to where the attention keys separate best. This notebook does so step by step, and asks what
# the comparison with people says once every number stands beside its baseline.
#
# With the public data at hand (the folder that `WORKBENCH_DATA` names, or a connection to fetch
# them) the story is *Pie Man*, with the presses of 205 people. Without, it is one of the bundled
# stories, whose scenes were marked by their author: one person, and not a listener.

# %%
import os

import numpy as np
import plotly.io as pio

import workbench as wb
from workbench.figures.export import find_browser

# Pictures beside the interactive figures where a Chrome is found, for readers without JavaScript.
pio.renderers.default = "notebook_connected+png" if find_browser() else "notebook_connected"
name = "pieman" if os.environ.get("WORKBENCH_DATA") else "lift"
story = wb.load_story(name)
story

# %% [markdown]
# A `Story` holds the text, its words (with times where they are known) and annotations, each with
# the kind of who made it. Whatever was repaired on the way is said in `notes`.

# %%
print(*story.notes, sep="\n")
story.words.head()

# %% [markdown]
# People's boundaries are consensus times: peaks of the smoothed share of people who press. The
# published list and the one computed here from the single presses should agree.

# %%
if story.annotation_kind == "people":
    print("published   ", story.consensus()[:6].round(1), "... s")
    print("from presses", story.consensus(source="presses")[:6].round(1), "... s")
    display(story.presses.head())
else:
    print("scenes start at words", story.boundaries().inner)

# %% [markdown]
# ## A model reads the story
#
# The embedded model has 135 million parameters, is tuned to follow instructions and stored in 4 bits
# per weight: good for a demonstration, not for publication. `record` keeps the surprisal of each
# token and, for each layer and key-value head, the keys before rotary position encoding.

# %%
lm = wb.load_model()
print(lm.provenance)
trace = wb.record(story, lm)
print(f"{np.nanmean(trace.surprisal):.2f} nats per token after {trace.settings['bos_token']!r}")
trace.dataset

# %% [markdown]
# ## Cutting
#
# `S` starts an event where surprisal exceeds the mean of the last 512 tokens by γ standard
# deviations. How many events that gives depends entirely on γ, and at the paper's γ = 1 it is many
# more than people's.

# %%
for gamma in (1.0, 2.0, 3.0):
    print(f"γ = {gamma}:", wb.segment(trace, "S", gamma=gamma))
print("annotated:", story.boundaries())

# %% [markdown]
# Refinement (`SM`) moves each boundary to where the two events beside it have the highest modularity
# in the graph of key similarities. The graph is never built: all sums over its blocks are dot
# products of prefix sums of the keys.

# %%
k = len(story.boundaries().inner)
surprised = wb.segment(trace, "S", n_boundaries=k)
refined = wb.segment(trace, "SM", n_boundaries=k)
graph = trace.key_graph(trace.last_third()).summed()
for events in (surprised, refined):
    print(f"{events.method:>2}: modularity {graph.modularity(events):.6f}", events.inner[:8], "...")

# %% [markdown]
# `refined` is above `surprised` by construction. Whether it is above *chance* is another question.
#
# ## Comparing
#
# `compare` does all of this for several methods at once and puts each number beside the null that is
# named, the evenly spaced segmentation with as many events (`fixed`) and what people reach among
# themselves (`ceiling_low`, `ceiling_high`). Two nulls here: the papers' uniformly random boundaries,
# and the method's own event lengths in random order. A method whose events are merely regular
# differs from the first and not from the second.

# %%
result = wb.compare(
    stories=[story],
    model=lm,
    methods=["S", "SM", "SC", "F", "FM", "FC", "R"]
    + (["H"] if story.annotation_kind == "people" else []),
    null=["lengths", "uniform"],
    draws=500,
    seed=0,
)
columns = ["method", "null", "value", "ci_low", "ci_high", "null_mean", "z", "p", "fixed"]
summary = result.summary()
summary[summary["measure"] == "modularity"][columns].round(6)

# %%
summary[summary["measure"].isin(["wasserstein", "hamming"])][
    ["measure", *columns, "ceiling_low", "ceiling_high"]
].round(3)

# %% [markdown]
# The same as figures. First the graph measures per layer, as differences from the null (EM-LLM,
# Figure 4A): grey is where random segmentations fall.

# %%
result.figure("graph", null="lengths", width="double")

# %% [markdown]
# Then the distances to people (EM-LLM, Figure 4B). The open diamonds are evenly spaced boundaries, as
# many as the method's: the Wasserstein distance alone rewards even spacing, so a method has to beat
# its diamond, not only its null.

# %%
result.figure("human", null="lengths", width="double")

# %% [markdown]
# And surprise over the words, with people above and the methods below.

# %%
result.figure("trace")

# %% [markdown]
# ## How far the answer depends on choices
#
# People's times have to become words, and there are several rules: the next word's onset, the
# previous, the nearest, or the nearest sentence gap. In Pie Man people knew the story and pressed in
# the pause *before* the new event's first word; in stories heard once they press after it.

# %%
if len(result.sensitivity):
    table = result.sensitivity.pivot_table(
        index=["measure", "method"], columns="rule", values="value", sort=False
    )
    display(table.round(3))

# %% [markdown]
# ## Keeping the result

# %%
import tempfile

with tempfile.TemporaryDirectory() as folder:
    path = result.save(f"{folder}/comparison", formats=["html"])
    print(*sorted(p.name for p in path.rglob("*") if p.is_file()), sep="\n")
    again = wb.load_comparison(path)
again

# %% [markdown]
# The table has one row per number, for pandas, R or a statistics package of your choice:

# %%
result.table.groupby(["measure", "variant"]).size().to_frame("rows")
