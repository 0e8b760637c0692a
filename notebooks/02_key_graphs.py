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
# EM-LLM reads a text's events off a *key graph*: every token is a node, and two tokens are joined by
# how alike their attention keys are. This notebook builds that graph for single heads of a small
# model, measures cuts of a story in it, refines a boundary step by step, tries other similarities,
# and asks whether the graph's communities are events at all. Then it looks at what each attention
# head does while the model reads: how far back it looks, how widely it spreads, whether it keeps to
# events, and which heads do the same.
#
# With the public data at hand (the folder that `WORKBENCH_DATA` names) the story is *Pie Man*, with
# the events of people; without, it is a bundled story with the scenes its author marked. The embedded
# model is small and stored in 4 bits per weight: everything here demonstrates, nothing is for
# publication.

# %%
import os

import numpy as np
import pandas as pd
import plotly.io as pio

import workbench as wb

pio.renderers.default = "notebook_connected"

# %% [markdown]
# ## From keys to a graph
#
# `record` keeps, for each layer and key-value head, the key of every token before the rotary position
# encoding. `key_graph` makes graphs of them, one per head, with the weights $A_{ij} = k_i \cdot k_j$.
# A graph of 2,000 tokens has 4 million weights, and there is one per head: none of them is formed.
# Since $A = KK^\top$, every sum over a block of weights is a dot product of sums of keys.

# %%
from workbench.recording.cache import cached_record

graph_story = wb.load_story("pieman" if os.environ.get("WORKBENCH_DATA") else "lift")
graph_trace = cached_record(graph_story)
graphs = graph_trace.key_graph()
events = {code: wb.segment(graph_trace, code, gamma=1.0) for code in ("S", "SM", "SC", "F")}
print(graphs)
print(*events.values(), sep="\n")

# %% [markdown]
# One head over 120 tokens, where the weights *can* be drawn. On the left the weights themselves: most
# of what is seen are tokens whose keys are long, as bands. Modularity compares each weight with what
# the degrees of its two tokens would give by themselves; what is left is on the right. Squares along
# the diagonal are the events of the surprise threshold (S) and after refinement (SM).

# %%
from workbench.figures.similarity import figure_candidates, figure_similarity

layer = int(graph_trace.layers[-1])
one = graph_trace.key_graph(layer, 0)
figure_similarity(
    one,
    {code: events[code] for code in ("S", "SM")},
    200,
    320,
    provenance=graph_trace.settings["provenance"],
)

# %% [markdown]
# ## A cut, measured
#
# - **Modularity**: weight within events beyond what the degrees give. Higher is better.
# - **Conductance** of an event: weight that leaves it ÷ weight at its smaller side. Lower is better.
# - **Intra/inter similarity**: weight within an event ÷ weight that leaves it.
#
# Each exists in several variants (EM-LLM's formulas differ from the field's and from its released
# code); all have names. None of the numbers means anything alone: shorter events have a larger cut
# whatever the text says. So each cut is compared with random cuts that have the *same
# event lengths in another order*, and with uniformly random boundaries, the papers' baseline.

# %%
from workbench.analysis.graph import measure_segmentations
from workbench.analysis.nulls import lengths_degenerate, null_starts
from workbench.analysis.statistics import compare_with_null

shown = [("modularity", "newman"), ("conductance", "standard:mean"), ("intra_inter", "sums")]
rows, per_layer = [], []
for code, cut in events.items():
    observed = measure_segmentations(graphs, cut.starts[None], shown)
    for asked in ("lengths", "uniform"):
        # events of equal length have only one order: rotate their boundaries instead
        null = "shift" if asked == "lengths" and lengths_degenerate(cut) else asked
        starts = null_starts(cut, null, 300, np.random.default_rng(0))
        random = measure_segmentations(graphs, starts, shown)
        for pair in shown:
            found = compare_with_null(observed[pair][0].mean(), random[pair].mean(axis=1))
            rows.append(
                {
                    "method": code,
                    "measure": pair[0],
                    "null": null,
                    "value": float(found.value),
                    "null_mean": float(found.mean),
                    "null_sd": float(found.sd),
                    "z": float(found.z),
                    "p": float(found.p),
                }
            )
            if asked == "lengths":
                layers = np.array([layer for layer, _ in graphs.index])
                for number in graph_trace.layers:
                    members = layers == number
                    here = compare_with_null(
                        observed[pair][0][members].mean(), random[pair][:, members].mean(axis=1)
                    )
                    per_layer.append(
                        {"method": code, "measure": pair[0], "layer": number, "z": float(here.z)}
                    )
pd.DataFrame(rows).round({"value": 6, "null_mean": 6, "null_sd": 6, "z": 2, "p": 3})

# %% [markdown]
# Compare the two nulls. Against uniform boundaries a cut may look *worse* than random although it only
# has no very long events; against its own lengths the question is where the boundaries stand. Values
# are means over all heads, and so are those of each random cut, so that *z* and *p* allow for heads
# that agree. Refined cuts were moved to raise modularity on the last third of the layers: that they
# beat chance there is by construction, and only the other measures and layers are news.

# %%
pd.DataFrame(per_layer).query("measure == 'modularity'").pivot(
    index="layer", columns="method", values="z"
)[list(events)].iloc[::5].round(1)

# %% [markdown]
# Single events, too: the least separated ones of SM, by conductance, as a mean over heads.

# %%
from workbench.analysis.graph import measure_events

single = measure_events(graphs, events["SM"], [("conductance", "standard")])
single = single[single["layer"].isna() & single["head"].isna()]
single.sort_values("value").tail(3)[["event", "start", "end", "size", "value"]]

# %% [markdown]
# (Nearly all of the weight of a short event in a long text leaves it, so these are close to 1; what
# differs between methods is in the later decimals.)
#
# ## One refinement step
#
# Refinement takes a boundary, and every place from the event's start (plus a minimum of 8 tokens) to
# the boundary itself as candidates, and keeps the one at which the two events beside it split best.
# Here is the boundary of the longest event. A maximum always exists: the band shows how high the same
# search goes when the region's keys are in random order. (That control has no neighbours that are
# alike, as tokens of any text are, so that passing it says little about events; the null of shuffled
# lengths above is the one that does.)

# %%
from workbench.events.objectives import Region, split_scores

refinery = graph_trace.key_graph(graph_trace.last_third()).summed()
surprised, refined = events["S"], events["SM"]
which = int(np.argmax(np.diff(surprised.starts)[:-1])) + 1
alpha, beta = int(refined.starts[which - 1]), int(surprised.starts[which])
following = int(surprised.edges[which + 1])
candidates = range(alpha + 8, beta + 1)


def scores_of(keys):
    graph = wb.KeyGraph(keys)
    region = Region(0, following - alpha, 0)
    local = range(8, beta - alpha + 1)
    flat = graph.prefix.reshape(graph.n + 1, -1)
    return split_scores(flat, graph.norms.sum(axis=1), region, local, "modularity", "newman")


region_keys = graph_trace.keys(graph_trace.last_third())[:, :, alpha:following]
region_keys = region_keys.reshape(-1, *region_keys.shape[2:])
rng = np.random.default_rng(1)
shuffled = [scores_of(region_keys[:, rng.permutation(following - alpha)]) for _ in range(200)]
scores = scores_of(region_keys)
best = compare_with_null(scores.max(), np.max(shuffled, axis=1))
print(f"boundary {beta} moves to {refined.starts[which]}; its modularity {best.value:.5f} against")
print(f"{best.mean:.5f} ± {best.sd:.5f} for the best candidate of shuffled keys, p = {best.p:.3f}")
figure_candidates(
    candidates,
    scores,
    beta,
    int(refined.starts[which]),
    random=np.array(shuffled),
    provenance=graph_trace.settings["provenance"],
)

# %% [markdown]
# ## Other similarities
#
# Dot products mix how long keys are with where they point. Cosines keep the direction only, and are
# dot products of scaled keys, so that nothing gets slower. Clipped weights, a Gaussian of the distance
# or an exponential (attention without its softmax) are no dot products: their sums are formed in
# blocks, in O(n²) time and linear memory, with the same measures. One layer's three heads:

# %%
rows = []
for similarity in ("dot", "cosine", "clipped", "rbf", "exp"):
    other = graph_trace.key_graph(layer, [0, 1, 2], similarity=similarity)
    for code in ("S", "SM", "F"):
        cut = events[code]
        null = "shift" if lengths_degenerate(cut) else "lengths"
        starts = null_starts(cut, null, 100, np.random.default_rng(0))
        pair = ("modularity", "newman")
        observed = measure_segmentations(other, cut.starts[None], [pair])[pair][0].mean()
        random = measure_segmentations(other, starts, [pair])[pair].mean(axis=1)
        found = compare_with_null(observed, random)
        rows.append(
            {"similarity": similarity, "method": code, "null": null, "value": float(found.value)}
            | {"null_mean": float(found.mean), "z": float(found.z), "p": float(found.p)}
        )
pd.DataFrame(rows).round({"value": 5, "null_mean": 5, "z": 2, "p": 3})

# %% [markdown]
# Values cannot be compared between similarities (each has its own scale of what is large); their
# distances from the null, *z*, can.
#
# ## Are communities events?
#
# Events are contiguous because we cut them so. Louvain's method knows nothing of the text's order:
# if the communities it finds are contiguous, the keys carry events by themselves. A full graph is too
# large, so tokens are joined up to 64 tokens apart, and that window alone already makes communities
# contiguous. The control shuffles the tokens and keeps the window.

# %%
from workbench.analysis.communities import communities_against_events, find_communities

communities = find_communities(refinery, window=64, strongest=16, negative="clip", seeds=3)
pd.DataFrame({"story": vars(communities.contiguity), "shuffled": vars(communities.shuffled)}).round(
    3
)

# %% [markdown]
# Agreement with events (adjusted Rand index: 1 the same, 0 as labels at random). Two contiguous cuts
# agree far beyond 0 whatever they cut, so the number to look at is the difference from other cuts with
# the same lengths, as many events as there are communities.

# %%
count = round(communities.contiguity.communities) - 1
cuts = {code: wb.segment(graph_trace, code, n_boundaries=count) for code in ("S", "SM", "F")}
cuts["annotated"] = graph_trace.to_tokens(graph_story.boundaries())
communities_against_events(communities, cuts, draws=100).round(3)

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

from workbench.recording.reducer import Reducer


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
