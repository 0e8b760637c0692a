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
# # Temporal contiguity: people, attention heads, and a model of memory
#
# People who recall a list of words tend to go on, from the word just recalled, to one that was
# studied near it, and forward more often than backward. Some attention heads, when a list comes a
# second time, look near the place where the current token stood the first time, and forward more
# than backward. [Ji-An et al. (2024)](https://arxiv.org/abs/2405.14992) fitted both with one model
# of memory, context maintenance and retrieval (CMR);
# [EM-LLM](https://arxiv.org/abs/2407.09450) puts the two curves side by side in its Figure 3.
#
# This notebook draws that figure, and then asks what it takes to believe it: intervals over people
# and over lists, curves of shuffled recall, curves without any meaning, and a second list in random
# order.

# %%
import os

import numpy as np
import pandas as pd
import plotly.io as pio

import workbench as wb
from workbench.analysis.recall.curves import lag_curve, position_curve
from workbench.figures.export import find_browser
from workbench.figures.recall import figure_head_fits, figure_lag, figure_serial

# Pictures beside the interactive figures where a Chrome is found, for readers without JavaScript.
pio.renderers.default = "notebook_connected+png" if find_browser() else "notebook_connected"

# %% [markdown]
# ## People
#
# Three sources, the first that is there: the sample of PEERS that comes with the package `psifr`
# (126 people, lists of 16 words, immediate free recall); behaviour files in the folder that
# `WORKBENCH_DATA` names; or else recall simulated by CMR, which stands in for people here and is
# named so in every figure.

# %%
try:
    from psifr.fr import sample_data

    people = wb.RecallSequences.from_table(sample_data("peers_notask"))
except ImportError:
    if os.environ.get("WORKBENCH_DATA"):
        people = wb.RecallSequences.from_table(
            wb.load_recalls(os.path.join(os.environ["WORKBENCH_DATA"], "peers"))
        )
    else:
        people = wb.simulate_free_recall(n_lists=2000, n_subjects=50, seed=1)
who = "people" if people.source == "people" else "simulated recall"
people

# %% [markdown]
# The lag-CRP: of all the times that an item at this lag *could* have come next (it was in the list,
# and not yet recalled), how often it did. Mean over participants, 95 % interval by resampling
# participants. `null_mean` is the same measure when the recalled items of each list are put in
# random order.

# %%
summary = wb.recall_summary(people, draws=200, seed=0)
columns = ["value", "ci_low", "ci_high", "null_mean", "null_sd", "z", "p", "n_subjects"]
summary[summary["measure"] == "lag_crp"].set_index("lag")[columns].round(4)

# %% [markdown]
# Forward over backward has no single standard measure, so all are given, each by its name. Their null
# turns whole lists around: contiguity stays, direction goes. The temporal factor is the percentile
# rank of the lags that were made (1: always the nearest item; about 0.5 by chance, and exactly what
# shuffling gives).

# %%
wanted = summary["measure"].str.startswith("asymmetry") | (summary["measure"] == "temporal_factor")
summary[wanted].set_index("measure")[["null", *columns]].round(4)

# %% [markdown]
# How wide is contiguity? Exponentials on either side of the lag-CRP, over a constant:

# %%
wb.contiguity_fit(people, resamples=100, seed=0)[["parameter", "value", "ci_low", "ci_high"]].round(
    3
)

# %% [markdown]
# These numbers differ between studies. Asymmetry is strong in lists of unrelated words and absent in
# lists built from categories (Morton et al. 2013), so one curve from one study is not "the" human curve.
# Computed in the same way, with 1,000 draws of the null (lists reversed at random, mean ± SD):

# %%
pd.DataFrame(
    [
        ("PEERS, no task", 126, "0.255", "0.435", "0.260 [0.231, 0.289]", "0.004 ± 0.009", 0.001),
        (
            "categorised lists",
            40,
            "0.192",
            "0.191",
            "−0.002 [−0.062, 0.055]",
            "0.020 ± 0.015",
            0.14,
        ),
    ],
    columns=["sample of psifr", "people", "CRP(−1)", "CRP(+1)", "index [95 %]", "null", "p"],
)

# %% [markdown]
# Recall that starts with the first item and runs on from there also raises lag +1. So serial
# position and the first recall belong beside the lag-CRP:

# %%
figure_serial(
    pd.concat([position_curve(people, who), position_curve(people, who, what="first")])
).show()

# %% [markdown]
# ### A model that recalls as people do
#
# CMR in the form used for people: context has length 1, recall is without replacement, and stops.
# With plain parameters (not fitted to these people) it has contiguity and forward asymmetry:

# %%
simulated = wb.simulate_free_recall(n_lists=2000, n_subjects=50, seed=0)
figure_lag(wb.lag_curves({who: people, "free-recall CMR": simulated})).show()

# %% [markdown]
# Its direction comes from one parameter. What a recalled item puts back is partly its own unit,
# which only *later* items have in their context, and partly the context it was studied in (`γ`), which
# points both ways:

# %%
rows = []
for gamma in (0.0, 0.4, 0.9):
    drawn = wb.simulate_free_recall(
        wb.FreeRecallCMR(gamma_fc=gamma), n_lists=2000, n_subjects=50, seed=0
    )
    found = wb.asymmetry(drawn, draws=100, resamples=200).set_index("measure").loc["index"]
    rows.append({"gamma_fc": gamma, **found[["value", "ci_low", "ci_high", "null_mean", "p"]]})
pd.DataFrame(rows).round(3)

# %% [markdown]
# ## Attention heads
#
# Five lists of 100 different word tokens, each read twice by the embedded model. For each token of the
# second list: where in the first list does a head look? Lag 0 is the token itself, lag +1 the one
# that followed it.

# %%
lm = wb.load_model()
print(lm.provenance)
heads = wb.head_recall(lm, order="exact", seeds=5)
shuffled = wb.head_recall(lm, order="shuffled", seeds=5)
print("nats per token, first and second list, exact   ", heads.surprisal.mean(axis=0).round(2))
print("nats per token, first and second list, shuffled", shuffled.surprisal.mean(axis=0).round(2))

# %% [markdown]
# With an exact repeat the second list can be foreseen, and is; in random order it cannot. The random
# order is the better control: after an exact repeat, a head that looks back a fixed distance looks
# like one that matches tokens.
#
# `matching` is the attention to the token that followed (an even spread over all tokens so far would
# give below 0.01), ± its standard error over lists; `previous` is attention to the token just before.

# %%
table = wb.head_table(heads, "raw", draws=100)
control = wb.head_table(shuffled, "raw", draws=100)
names = ["layer", "head", "matching", "matching_sem", "duplicate", "previous", "copying"]
both = table[names].merge(
    control[["layer", "head", "matching", "matching_sem"]],
    on=["layer", "head"],
    suffixes=("", "_shuffled"),
)
both.nlargest(6, "matching").round(3)

# %% [markdown]
# Below, the head with the highest matching score, on three scales. The scale is a choice that
# papers often leave unsaid. On probabilities this head does one thing: it looks at the successor.
# Only scores (before the softmax) or logarithms show the graded curve that resembles people's.

# %%
best = table.loc[table["matching"].idxmax()]
layer, head = int(best["layer"]), int(best["head"])
scales = ("raw", "log-centred", "probability")
curves = [lag_curve(heads, layer=layer, head=head, scale=scale) for scale in scales]
figure_lag(pd.concat(curves), width=180.0).show()

# %% [markdown]
# ## EM-LLM, Figure 3
#
# A: people. B: one head, on raw scores. The published panel B is GPT-2's head with the highest
# matching score; this one is the embedded model's. Note the units: a probability given availability
# on the left, a score on the right. The right curve has a lag 0, the left one cannot.

# %%
figure_lag(wb.lag_curves({who: people, f"L{layer}H{head}": (heads, layer, head)})).show()

# %% [markdown]
# Both peak at +1 and fall off. But the forward lead differs by more than an order of magnitude. On raw scores,
# the difference between lag +1 and −1 *is* the logarithm of the ratio of attention, so it can be put
# beside the logarithm of the ratio of people's probabilities:

# %%
ratio = summary.set_index("measure").loc["asymmetry_log_ratio"]
pd.DataFrame(
    [
        (who, ratio["value"], ratio["ci_low"], ratio["ci_high"], "95 % over subjects"),
        (
            f"L{layer}H{head}",
            best["difference"],
            best["difference"] - best["difference_sem"],
            best["difference"] + best["difference_sem"],
            "± one standard error over lists",
        ),
    ],
    columns=["source", "ln(forward / backward), nats", "low", "high", "band"],
).round(2)

# %% [markdown]
# ## How CMR-like are heads?
#
# Ji-An et al. compare a head's curve at lags −5 … 5 with CMR's over a grid of 4,620 parameter sets, after
# stretching both to the same range. A distance below 0.5 counts as CMR-like. Here that count stands
# beside what curves *without meaning* reach: random walks over the lags, and each head's own values at
# permuted lags. `list_low` and `list_high` are the shares on single lists.

# %%
counts = pd.concat(
    [
        wb.head_fit_summary(recall, "raw", draws=50).assign(order=order)
        for order, recall in (("exact", heads), ("shuffled", shuffled))
    ]
)
counts.set_index(["order", "threshold"]).drop(columns="scale").round(3)

# %%
figure_head_fits(table.assign(provenance=lm.provenance)).show()

# %% [markdown]
# What CMR-like does and does not mean:
#
# - More heads are below the threshold than of either null, so there is something to explain. But 0.5
#   is loose: about 15 % of random walks pass it. At 0.1 hardly any does.
# - `n_lag0`: heads that look at the *same* token fit CMR whose context does not move (β_rec near 0). That
#   is matching, not contiguity; people have no lag 0 at all. It exists in the model only because the
#   model fitted here recalls with replacement.
# - `n_low_matching`: many CMR-like heads hardly look at the successor. CMR-like is not "induction head".
# - In random order far more heads are CMR-like, more than half of them at lag 0. After an exact repeat a
#   curve also has the slope that distance in the text gives it; in random order that averages out, and
#   even a faint match of tokens decides the shape. How many heads are "CMR-like" is as much a fact about
#   the lists as about the model.
# - Good fit is no evidence for the mechanism. A Gaussian bump (four parameters; CMR has three, and the
#   scale and level that the distance takes out) fits many of the same heads better:

# %%
near = table[table["distance"] < 0.5]
better = int((near["gaussian_distance"] < near["distance"]).sum())
print(
    f"Gaussian nearer than CMR in {better} of the {len(near)} CMR-like heads; the heads that match:"
)
strong = table[table["matching"] > 0.1].sort_values("matching", ascending=False)
strong[
    [
        *(
            "layer",
            "head",
            "matching",
            "distance",
            "gaussian_distance",
            "beta_enc",
            "beta_rec",
            "gamma",
        ),
        *("lag0_peak", "permuted_percentile", "random_walk_percentile"),
    ]
].round(3)

# %% [markdown]
# `permuted_percentile` is the share of the head's own permuted values that come at least as near to CMR as
# the head does (of 100, so 0 means fewer than one in a hundred).
#
# ## People, heads and CMR in one figure
#
# In one panel only shapes can be compared: every curve is stretched to 0 … 1. The two CMR curves are the
# fit to the head (recall with replacement) and the free-recall simulation (without).

# %%
fitted = wb.CMRParameters(best["beta_enc"], best["beta_rec"], best["gamma"])
name = f"L{layer}H{head}"
sources = {
    who: people,
    name: (heads, layer, head),
    f"{name}, shuffled repeat": (shuffled, layer, head),
    f"CMR fitted to {name}": fitted,
    "free-recall CMR": simulated,
}
figure_lag(wb.lag_curves(sources, rescale=True), width="double").show()

# %% [markdown]
# At lag −1 people's curve has half its height, the head's a sixth after an exact repeat, and next to
# nothing after a shuffled one. So what is graded on the backward side in the head needs the list to come in
# the same order again: it may come from the preceding tokens (which a contextual account would predict) or
# from the distance in the text (which it would not). The shuffled list takes both away, and does not tell
# them apart.
#
# The same protocol takes any other sequence of recalled positions: events that people retell
# (`wb.story_recall`), or events that a memory system retrieves. An object only has to say what it recalled:


# %%
class Memory:
    """A made-up memory: from each event it goes to the next, now and then one back."""

    def recall_sequences(self):
        rng = np.random.default_rng(0)
        lists = []
        for _ in range(60):
            at, out = int(rng.integers(1, 20)), []
            while 1 <= at <= 20 and at not in out and len(out) < 8:
                out.append(at)
                at += int(rng.choice([1, 2, -1], p=[0.7, 0.15, 0.15]))
            lists.append(out)
        subject = [n % 6 for n in range(60)]
        return wb.RecallSequences.from_positions(
            lists, 20, subject=subject, source="made-up memory"
        )


found = wb.recall_summary(Memory(), max_lag=2, draws=200)
found[found["measure"] == "lag_crp"].set_index("lag")[columns].round(3)
