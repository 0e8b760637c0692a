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
# # Surprisal, entropy, Bayesian surprise
#
# A language model that reads a story has, before each word, a distribution over what comes next.
# Three different questions can be put to it:
#
# - **surprisal**: how improbable was what came? −log p(token | all before it);
# - **entropy**: how open was it, before anything came?
# - **Bayesian surprise**: how far did what came move the prediction of what comes *next*?
#   KL(p(·|x≤t) ‖ p(·|x<t)).
#
# They are often confused. [EM-LLM](https://arxiv.org/abs/2407.09450) calls surprisal "Bayesian
# surprise". Kumar et al. (2023, *Cognitive Science* 47, e13343) found that Bayesian surprise goes
# with people's event boundaries, and surprisal does not. This notebook measures all three on one
# story, puts them beside people's boundaries, and asks what is left of that once boundaries are
# compared with other sentence starts.
#
# With the public data at hand (the folder that `WORKBENCH_DATA` names) the story is *Pie Man*,
# with the boundaries of 205 people; without, a bundled story, whose scenes its author marked.

# %%
import os

import numpy as np
import plotly.io as pio
from plotly.subplots import make_subplots

import workbench as wb
from workbench.analysis.peri_boundary import peri_boundary
from workbench.figures.export import find_browser
from workbench.figures.theme import use_theme
from workbench.recording.measures import MEASURES
from workbench.recording.sweep import context_sweep, sweep_frame

pio.renderers.default = "notebook_connected+png" if find_browser() else "notebook_connected"
theme = use_theme()
name = "pieman" if os.environ.get("WORKBENCH_DATA") else "lift"
story = wb.load_story(name)
lm = wb.load_model()
trace = wb.record(story, lm, measures="all", keys=False)
print(lm.provenance)
trace

# %% [markdown]
# ## What is measured
#
# Every value streams past once: logits exist for a block of positions at a time, and one pass of
# exp gives them all. The word's value follows from its tokens by a rule of its own: surprisal
# adds up; entropy is that before the first token; Bayesian surprise compares the predictions
# before the first and after the last token, which is not the sum over tokens.

# %%
for measure in MEASURES.values():
    print(f"{measure.name:26} {measure.units:6} {measure.definition}")

# %%
words = trace.words()
words.drop(columns=["onset", "offset"]).iloc[5:20].round(2)

# %% [markdown]
# The corrected surprisal takes into account that the tokens of this model carry the space
# *before* a word, so that where a word ends is known only from the token after it (Pimentel &
# Meister 2024; Oh & Schuler 2024). How much does it change?

# %%
change = words["surprisal_corrected"] - words["surprisal"]
print(f"corrected − plain: mean {change.mean():+.3f} nats, standard deviation {change.std():.3f}")
words[["surprisal", "surprisal_corrected", "entropy", "bayesian_surprise", "jensen_shannon"]].corr(
    "spearman"
).round(2)

# %% [markdown]
# ## The story, word by word

# %%
kind = story.annotation_kind
sentences = story.sentence_starts()
rule = "sentence" if kind == "people" else "next"
boundaries = story.boundaries(rule=rule).inner
boundaries = boundaries[np.isin(boundaries, sentences)]  # an author's scene starts a sentence
shown = ["surprisal", "entropy", "bayesian_surprise"]
labels = dict(zip(shown, ["Surprisal", "Entropy", "Bayesian surprise"], strict=True))

fig = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.05)
for row, measure in enumerate(shown, start=1):
    smooth = words[measure].rolling(9, center=True, min_periods=1).mean()
    fig.add_scatter(x=words.index, y=smooth, row=row, col=1, name=labels[measure], line_width=1)
    fig.update_yaxes(title_text=f"{labels[measure]}<br>(nats)", row=row, col=1)
    for start in boundaries:
        fig.add_vline(x=start, line_width=0.6, line_color="black", opacity=0.5, row=row, col=1)
fig.update_xaxes(title_text="Word", row=3, col=1)
fig.update_layout(
    template=theme,
    width=900,
    height=460,
    showlegend=False,
    title=f"{story.title}: running mean of 9 words; lines: boundaries of {kind}",
)
fig.show()

# %% [markdown]
# ## Around boundaries
#
# The average of each measure from eight words before an event's first word to eight after.
# People put boundaries between sentences, and the first word of any sentence is harder to predict
# than most words. So the honest comparison is with *other sentence starts*: the grey band holds 95 %
# of the averages when the same number of boundaries is dealt out among all sentence starts at
# random. The coloured band is the bootstrap over boundaries.

# %%
pool = sentences[sentences > 0]
tables = {m: peri_boundary(words[m], boundaries, pool) for m in shown}
fig = make_subplots(rows=1, cols=3, subplot_titles=[labels[m] for m in shown])
for column, table in enumerate(tables.values(), start=1):
    for low, high, colour in (
        ("null_low", "null_high", "rgba(120,120,120,0.30)"),
        ("low", "high", "rgba(0,114,178,0.25)"),
    ):
        x = [*table.offset, *table.offset[::-1]]
        y = [*table[high], *table[low][::-1]]
        fig.add_scatter(
            x=x,
            y=y,
            fill="toself",
            fillcolor=colour,
            line_width=0,
            mode="lines",
            hoverinfo="skip",
            row=1,
            col=column,
        )
    fig.add_scatter(x=table.offset, y=table["mean"], line_color="rgb(0,114,178)", row=1, col=column)
    fig.add_vline(x=0, line_dash="dot", row=1, col=column)
    fig.update_xaxes(title_text="Words from boundary", row=1, col=column)
fig.update_yaxes(title_text="Nats", row=1, col=1)
fig.update_layout(template=theme, width=900, height=340, showlegend=False)
fig.show()

# %%
naive = {m: peri_boundary(words[m], boundaries, np.arange(1, story.n_words)) for m in shown}
print(
    f"{len(boundaries)} boundaries ({kind}) of {len(pool)} sentence starts; first word of an event"
)
for measure, table in tables.items():
    at = table[table.offset == 0].iloc[0]
    plain = naive[measure].query("offset == 0").iloc[0]
    print(
        f"{labels[measure]:18} {at['mean']:5.2f} [{at.low:.2f}, {at.high:.2f}]   "
        f"all words {plain.null_mean:.2f} (p = {plain.p:.4f})   "
        f"sentence starts {at.null_mean:.2f} [{at.null_low:.2f}, {at.null_high:.2f}] "
        f"(p = {at.p:.3f}; any offset, p = {at.p_any:.3f})"
    )

# %% [markdown]
# The p values are for one story, a small model, and as many boundaries as are printed there; only
# "any offset" is corrected for looking at all offsets, and none for looking at three measures.
#
# ## How much context does it take?
#
# The same measures when the model sees only the last k to 2k tokens. If a measure marks events
# because the model knows the story so far, it should need more than the last sentence.

# %%
sweep = context_sweep(story, lm, (16, 64, 256, "all"))
frame = sweep_frame(sweep)
# The same words for every k: those that have 256 tokens before them.
from_word = frame[(frame.k == 256) & (frame.context >= 256)].word.min()
late = frame[frame.word >= from_word]
means = late[late.measure.isin(shown)].groupby(["measure", "k"]).value.mean().unstack()
means.round(3)

# %%
names = ["all" if np.isinf(k) else f"{k:.0f}" for k in means.columns]
fig = make_subplots(rows=1, cols=3, subplot_titles=[labels[m] for m in shown])
for column, measure in enumerate(shown, start=1):
    by_word = late[late.measure == measure].pivot(index="word", columns="k", values="value")
    fig.add_scatter(
        x=names,
        y=by_word.mean(),
        # 95 % for the mean over words, as if words were independent
        error_y_array=1.96 * by_word.sem(),
        line_color="rgb(0,114,178)",
        row=1,
        col=column,
    )
    fig.update_xaxes(title_text="Least context k (tokens)", type="category", row=1, col=column)
fig.update_yaxes(title_text="Mean over words (nats)", row=1, col=1)
fig.update_layout(template=theme, width=900, height=340, showlegend=False)
fig.show()

# %%
print("difference at an event's first word from other sentence starts (nats), p")
for measure in shown:
    line = []
    for place, k in enumerate(sweep.k.values):
        values = sweep[f"word_{measure}"].values[place]
        at = peri_boundary(values, boundaries, pool, before=0, after=0).iloc[0]
        line.append(f"k = {'all' if np.isinf(k) else int(k):>3}: {at.difference:+.2f} ({at.p:.3f})")
    print(f"{labels[measure]:18}", "   ".join(line))

# %% [markdown]
# ## Drift of hidden states
#
# Another measure of change that needs no vocabulary: how far each token turns the hidden state of
# a layer, 1 − cosine of successive states.

# %%
drift = wb.record(story, lm, keys=False, measures="surprisal", states=[5, 15, 25])
drift.dataset["state_drift"].mean("token").to_series().round(3)
