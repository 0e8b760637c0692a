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
# # Attention and key graphs, head by head
#
# What each attention head of a model does while it reads a story: how far back it looks, how widely
# it spreads, whether it keeps to events, and which heads do the same.
#
# With the public data at hand (the folder that `WORKBENCH_DATA` names) the story is *Pie Man*, with
# the events of people; without, it is a bundled story with the scenes its author marked.

# %%
import os

import numpy as np
import plotly.io as pio

import workbench as wb

pio.renderers.default = "notebook_connected"

# %% [markdown]
# ## Attention by head
#
# Attention matrices are never kept: at 2,000 tokens those of this small model are 4 GB. While the
# model reads, blocks of softmax rows are reduced to what is asked for. The rows are checked as they
# pass: they sum to 1, they give nothing to later tokens, and rows times values are the layer's own
# output.

# %%
from workbench.analysis.head_attention import head_statistics, in_event_mass, inside_reducers
from workbench.analysis.head_clusters import head_clusters
from workbench.figures.attention import figure_head_clusters, figure_heads

heads_story = wb.load_story("pieman" if os.environ.get("WORKBENCH_DATA") else "lift")
heads_model = wb.load_model()
heads_first = wb.record(heads_story, heads_model, keys=False)
heads_events = heads_first.to_tokens(heads_story.boundaries())
heads_trace = wb.record(
    heads_story,
    heads_model,
    keys=False,
    attention=["lag", "entropy", "distance", "first", *inside_reducers(heads_events, draws=499)],
)
[name for name in heads_trace.dataset if name.startswith("attention")]

# %% [markdown]
# Do heads keep to events? Most attention goes to near tokens, and near tokens are mostly of the same
# event in *any* segmentation: so the share in the token's own event stands beside the same share
# under shuffled event lengths and under shifted boundaries. Rows without a layer are means over all
# heads.

# %%
inside = in_event_mass(heads_trace)
columns = ["null", "value", "ci_low", "ci_high", "null_mean", "null_sd", "z", "p"]
inside[inside["layer"].isna()][columns].round(4)

# %%
figure_heads(head_statistics(heads_trace), inside, null="lengths")

# %% [markdown]
# Heads in groups: a profile is attention by lag, entropy and the share of the first tokens. Any
# clustering gives groups, so the silhouette stands beside that of profiles without groups, and the
# groups beside those of other parts of the text.

# %%
clusters = head_clusters(heads_trace, draws=20, null_draws=20)
clusters

# %%
figure_head_clusters(clusters)

# %% [markdown]
# A statistic of one's own is a class with three methods. This one keeps, for each head, the largest
# attention of any token to the token just before it.

# %%
import xarray as xr

from workbench.recording.reducers import Reducer


class Previous(Reducer):
    """Mean attention to the token before."""

    name = "previous"

    def start(self, reading):
        self.sums = np.zeros((len(reading.layers), len(reading.heads)))
        self.n = reading.n

    def update(self, rows):
        share = rows.probability.diagonal(rows.start - rows.first_key - 1, dim1=1, dim2=2)
        self.sums[rows.place, rows.heads] += share.sum(1).cpu().numpy()

    def finish(self):
        return {"attention_previous": xr.Variable(("layer", "head"), self.sums / self.n)}


own = wb.record(heads_story, heads_model, keys=False, attention=[Previous()])
best = own.dataset["attention_previous"].to_series().sort_values(ascending=False)
best.head()
