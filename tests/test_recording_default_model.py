"""Known relations between measures on the embedded model, and its half-precision deviation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import workbench as wb
from workbench.core.story import Story
from workbench.recording import adapter
from workbench.recording.distributions import score
from workbench.recording.measures import CORRECTED, MEASURES
from workbench.stories.alignment import untimed_words

pytestmark = pytest.mark.model

SENTENCE = "The old lighthouse keeper climbed the narrow stairs and lit the lamp before the storm. "


def read(lm, text, **options):
    story = Story("s", text, untimed_words(text))
    return wb.record(story, lm, keys=False, measures="all", **options)


@pytest.fixture(scope="module")
def repeated(lm):
    return read(lm, SENTENCE * 3)


def test_what_was_read_before_is_expected(repeated):
    """A sentence read twice before is all but certain, in every measure."""
    words = repeated.words()
    third = len(words) // 3
    first, last = words.iloc[:third], words.iloc[2 * third :]
    assert last["surprisal"].mean() < 0.2 * first["surprisal"].mean()
    assert last["entropy"].mean() < 0.4 * first["entropy"].mean()
    ranks = repeated.dataset["rank"].values
    assert np.median(ranks[-len(ranks) // 3 :]) == 1


def test_surprisal_is_entropy_on_average_over_the_models_own_text(lm):
    """Of tokens drawn from the model, surprisal averages to entropy, within its own variance."""
    torch.manual_seed(0)
    ids = lm.model.generate(
        torch.tensor([[0]]),
        do_sample=True,
        top_k=0,
        top_p=1.0,
        temperature=1.0,
        max_new_tokens=150,
        min_new_tokens=150,
        repetition_penalty=1.0,
    )[0, 1:]
    with torch.inference_mode():
        hidden, last = adapter.hidden_states(lm.model, torch.cat([torch.tensor([0]), ids]))
        found = score(lm.model, hidden, ids, measures=tuple(MEASURES), last_logits=last)
    error = np.sqrt(found["varentropy"].sum()) / len(ids)
    assert abs(found["surprisal"].mean() - found["entropy"].mean()) < 4 * error


def test_measures_agree_with_the_whole_table_of_logits(lm, repeated):
    ids = torch.tensor([0, *repeated.dataset["token_id"].values.tolist()])
    with torch.no_grad():
        log_p = torch.log_softmax(lm.model(ids[None]).logits[0].double(), dim=-1)
    p = log_p.exp()
    expected = {
        "surprisal": -log_p[:-1].gather(1, ids[1:, None])[:, 0],
        "entropy": -(p * log_p).sum(1)[:-1],
        "bayesian_surprise": (p[1:] * (log_p[1:] - log_p[:-1])).sum(1),
        "bayesian_surprise_old_new": (p[:-1] * (log_p[:-1] - log_p[1:])).sum(1),
    }
    for name, values in expected.items():
        found = repeated.dataset[name].values
        np.testing.assert_allclose(found, values.numpy(), atol=1e-4, err_msg=name)


def test_correction_is_small_and_not_nothing(repeated):
    words = repeated.words()
    change = (words[CORRECTED] - words["surprisal"]).abs()
    assert 0.01 < change.mean() < 1


def test_bfloat16_stays_within_its_bound(lm):
    """The deviation that `load_model` states."""
    story = wb.load_story("lift")
    text = " ".join(story.words["word"][:150])
    exact = read(lm, text)
    half = read(wb.load_model(dtype="bfloat16"), text)
    # Measured: means 0.039, 0.039 and 0.043, largest 0.34 nats; 1.07 at the very first token,
    # whose states are far larger than all others.
    for name in ("surprisal", "entropy", "bayesian_surprise"):
        gap = np.abs(half.dataset[name].values - exact.dataset[name].values)
        assert 0 < gap.mean() < 0.08
        assert gap[1:].max() < 0.8
        assert gap[0] < 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: not measured")
def test_cuda_agrees_with_the_processor(lm, repeated):
    on_gpu = read(wb.load_model(device="cuda"), SENTENCE * 3)
    for name in MEASURES:
        np.testing.assert_allclose(
            on_gpu.dataset[name].values, repeated.dataset[name].values, atol=1e-2, err_msg=name
        )
