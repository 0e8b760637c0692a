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
# # Distraction, and the training that cures it
#
# A model with a long memory that holds many documents has to find the one it is reading. The
# [Focused Transformer](https://arxiv.org/abs/2307.03170) measures this by **r_d**: of the attention
# on the previous windows of d documents, how much goes to the own one. A model that cannot tell
# documents apart gives 1/d. Its cure is *crossbatch* training, in which windows of other documents
# stand in the memory from the start.
#
# The workbench brings tiny decoders that were trained so, with three seeds each, and measures r_d on
# any model.

# %%
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio

import workbench as wb
from workbench.figures.export import find_browser
from workbench.figures.theme import use_theme
from workbench.training.checkpoints import shipped
from workbench.training.measure import distraction_table
from workbench.training.presets import preset

pio.renderers.default = "notebook_connected+png" if find_browser() else "notebook_connected"

# %% [markdown]
# ## Figure 3, where distraction cannot be avoided
#
# The documents are dictionaries that all share the same twelve keys, so that only a document's own
# signature tells its entries from the others'. Four ways of training: `standard` (no memory),
# `d1` (memory of the own document only), `d2` (one other document beside it), `staged` (d from 1 to
# 16). All numbers are computed here, from the stored weights.

# %%
task = preset("figure3").data
tables = []
for variant in ("standard", "d1", "d2", "staged"):
    for seed in range(3):
        decoder, about = shipped(f"figure3-{variant}-seed{seed}")
        table = distraction_table(decoder, task, (1, 2, 4, 8, 16, 32, 64))
        tables.append(table.assign(variant=variant, seed=seed, seconds=about["cpu_seconds"]))
found = pd.concat(tables, ignore_index=True)
answers = found[found["queries"] == "answers"]
answers.pivot_table(index=["variant", "seed"], columns="d", values="r_d").round(3)

# %%
colours = {"standard": "#7F7F7F", "d1": "#D55E00", "d2": "#E69F00", "staged": "#0072B2"}
fig = go.Figure()
for (variant, seed), rows in answers.groupby(["variant", "seed"], sort=False):
    fig.add_scatter(
        x=rows["d"],
        y=rows["r_d"],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": rows["high"] - rows["r_d"],
            "arrayminus": rows["r_d"] - rows["low"],
            "thickness": 1,
            "width": 0,
        },
        name=variant,
        legendgroup=variant,
        showlegend=seed == 0,
        line={"color": colours[variant], "width": 1},
        marker={"size": 4},
    )
fig.add_scatter(
    x=answers["d"].unique(),
    y=1 / answers["d"].unique(),
    name="1/d",
    mode="lines",
    line={"color": "#000000", "dash": "dot", "width": 1},
)
fig.update_layout(
    template=use_theme(),
    width=520,
    height=380,
    margin={"l": 60, "r": 120, "t": 20, "b": 50},
    xaxis={"type": "log", "tickvals": [1, 2, 4, 8, 16, 32, 64], "title": "Documents in memory, d"},
    yaxis={
        "type": "log",
        "tickvals": [0.02, 0.1, 0.5, 1],
        "title": "r<sub>d</sub>, answering queries",
    },
)
fig.show()

# %% [markdown]
# Each line is one seed, bars are 95 % intervals over documents. Trained alone or with its own past
# only, a decoder is at 1/d; with negatives it is far above, and more so the more of them it saw.
#
# What all queries do, not only those that answer, is another number, and beside it how often the
# answer is right. Which queries are meant has to be said with every r_d.

# %%
at = found[found["d"] == 64].groupby(["variant", "queries"], sort=False)
summary = at[["r_d", "accuracy"]].agg(["min", "max"]).round(3)
summary["1/d", ""] = round(1 / 64, 4)
summary

# %% [markdown]
# ## A plain model
#
# The same number on the default model: d windows of 96 tokens in random order, the own one among
# them, then the window that asks. With `orders=3` each window is read with its own one at each of up
# to three places, since models prefer what stands near, whatever it is.

# %%
lm = wb.load_model("smollm2-135m")
print(lm.provenance)
stories = [wb.load_story(name) for name in ("lift", "reservoir", "tortoise")]
measured = wb.distraction(lm, stories, d=[1, 2, 3], window=96, windows_per_document=3, orders=3)
shown = measured.table.query("layer == -1 and head == -1 and queries == 'all'")
shown[["d", "statistic", "value", "low", "high", "baseline", "place_baseline", "note"]].round(3)

# %%
measured.figure("layers").show()

# %% [markdown]
# Three stories are few, and the intervals are over documents: this is how it is done, not a finding.
# The run over nine stories is in docs/results.md, section 11.
#
# ## Memory layers at inference
#
# Any model can be given memory layers. The default model was not trained for them, so this shows the
# interface and not what the paper claims.

# %%
text = stories[2]
window = wb.FOT(lm, [8, 16, 24], top_k=64, n_local=256, capacity=0).read(text)
memory = wb.FOT(lm, [8, 16, 24], top_k=64, n_local=256).read(text)
gap = memory.surprisal[256:] - window.surprisal[256:]
print(f"window alone:   {window.surprisal[256:].mean():.3f} nats per token from token 256 on")
print(f"memory, top 64: {memory.surprisal[256:].mean():.3f}")
blocks = pd.Series(gap).groupby(pd.RangeIndex(len(gap)) // 64).mean()
error = blocks.std(ddof=1) / len(blocks) ** 0.5
print(f"difference {gap.mean():+.3f}, standard error over {len(blocks)} blocks of 64: {error:.3f}")
