"""The event HMM against every path there is, and against brainiak where it is installed."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from fakes import fake_story, fake_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import InputError, MissingDataError
from workbench.events.hmm import (
    LIMIT,
    fit_events,
    forward_backward,
    held_out_likelihood,
    hmm_boundaries,
    most_probable_starts,
)
from workbench.events.methods import segment


def planted(lengths, d=12, noise=0.7, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.normal(size=(len(lengths), d)), lengths, axis=0)
    return rows + noise * rng.normal(size=rows.shape)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 8), st.data(), st.integers(0, 999), st.sampled_from([1.0, 40.0]))
def test_posteriors_sum_over_every_path(n, data, seed, spread):
    k = data.draw(st.integers(1, n))
    scores = spread * np.random.default_rng(seed).normal(size=(n, k))
    go = (k - 1) / n
    paths = {}
    for inner in combinations(range(1, n), k - 1):
        labels = np.zeros(n, dtype=int)
        labels[list(inner)] = 1
        labels = labels.cumsum()
        weight = (k - 1) * np.log(go) if k > 1 else 0.0
        weight += (n - k) * np.log1p(-go)
        paths[inner] = weight + scores[np.arange(n), labels].sum()
    total = np.logaddexp.reduce(list(paths.values()))
    events, starts = np.zeros((n, k)), np.zeros((n, k))
    for inner, weight in paths.items():
        for event, (a, b) in enumerate(zip([0, *inner], [*inner, n])):
            events[a:b, event] += np.exp(weight - total)
            starts[a, event] += np.exp(weight - total)
    found = forward_backward(scores)
    assert found.log_likelihood == pytest.approx(total, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(found.events, events, atol=1e-12)
    np.testing.assert_allclose(found.starts, starts, atol=1e-12)
    best = max(paths, key=paths.get)
    assert most_probable_starts(scores).tolist() == [0, *best]


def test_brainiak_fits_the_same():
    event = pytest.importorskip(
        "brainiak.eventseg.event", reason="brainiak is not installed", exc_type=ImportError
    )
    for lengths, k in (([14, 30, 9, 22], 4), ([14, 30, 9, 22], 7), ([20, 20], 2)):
        rows = planted(lengths)
        theirs = event.EventSegment(k).fit(rows)
        ours = fit_events(rows, k)
        np.testing.assert_allclose(ours.posterior.events, theirs.segments_[0], atol=1e-9)
        # its first step correlates with the rounding of a pattern that is 0
        np.testing.assert_allclose(ours.likelihoods[1:], theirs.ll_[1:, 0], rtol=1e-9)
        assert ours.variance == pytest.approx(theirs.event_var_)


def test_steps_follow_the_definition():
    # One step by hand: mean patterns from the first posteriors, correlations from scipy's formula.
    rows = planted([10, 14, 8], seed=4)
    z = (rows - rows.mean(axis=0)) / rows.std(axis=0, ddof=1)
    n, d = z.shape

    def scores(posterior, variance):
        patterns = (posterior / posterior.sum(axis=0)).T @ z

        def unit(x):
            return (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, ddof=1, keepdims=True)

        squares = ((unit(z)[:, None] - unit(patterns)[None]) ** 2).sum(axis=2)
        return (-0.5 * d * np.log(2 * np.pi * variance) - 0.5 * squares / variance) / d

    # the mean of all standardised rows is 0: in the first step every correlation is 0
    flat = -0.5 * np.log(2 * np.pi * 4.0) - (d - 1) / d / 4.0
    first = forward_backward(np.full((n, 3), flat))
    second = forward_backward(scores(first.events, 4.0 * 0.98))
    found = fit_events(rows, 3, most_steps=2)
    np.testing.assert_allclose(
        found.likelihoods, [first.log_likelihood, second.log_likelihood], rtol=1e-12
    )
    np.testing.assert_allclose(found.posterior.events, second.events, atol=1e-10)
    assert (np.diff(fit_events(rows, 3).likelihoods) >= 0).all()


def test_planted_events_are_found():
    lengths = [30, 18, 41, 25]
    found = hmm_boundaries(planted(lengths, noise=0.4), n_events=4)
    assert found.lengths.tolist() == lengths
    assert found.strength.shape == (3,)
    assert (found.strength > 0.2).all()
    assert (found.strength <= 1).all()
    chosen = hmm_boundaries(planted(lengths, noise=0.4), candidates=[2, 3, 4, 8, 16])
    assert chosen == found
    tried = chosen.settings["held_out"]
    assert list(tried) == ["2", "3", "4", "8", "16"]
    assert max(tried, key=tried.get) == "4"
    assert tried["3"] == held_out_likelihood(planted(lengths, noise=0.4), 3)
    edge = hmm_boundaries(planted(lengths, noise=0.4), candidates=[2, 3])
    assert "greatest at the most" in edge.settings["note"]


def test_every_event_is_visited_whatever_the_number():
    rows = planted([12], noise=1.0)
    for k in (1, 5, 12):
        found = hmm_boundaries(rows, n_events=k)
        assert found.n_events == k


def keyed(n_words=90, per_word=2, seed=0):
    lengths = [30, 25, 35]
    rows = np.repeat(planted(lengths, d=8, noise=0.3, seed=seed), per_word, axis=0)
    keys = np.stack([rows[:, :4], rows[:, 4:]])[None]
    rng = np.random.default_rng(seed)
    words = [f"w{i}." if i % 10 == 9 else ("W" if i % 10 == 0 else "w") + str(i) for i in range(90)]
    return fake_trace(
        rng.gamma(1.5, 2.0, n_words * per_word),
        keys,
        token_word=np.repeat(np.arange(n_words), per_word),
        story=fake_story(words),
    )


def test_it_is_a_method_on_words_and_sentences():
    trace = keyed()
    found = segment(trace, "V", n_boundaries=2)
    assert found.inner.tolist() == [60, 110]
    assert found.method == "V"
    assert found.unit == "token"
    assert found.settings["unit"] == "word"
    assert json.loads(json.dumps(found.settings)) == found.settings
    assert segment(trace, "V", n_events=3) == found
    as_surprise = segment(trace, "V")
    assert as_surprise.n_events == segment(trace, "S").n_events
    assert as_surprise.settings["count"] == "as S"
    chosen = segment(trace, "V", n_events="held-out", candidates=[2, 3])
    assert chosen == found
    assert set(chosen.settings["held_out"]) == {"2", "3"}
    sentences = segment(trace, "V", unit="sentence", n_boundaries=2)
    assert set(sentences.inner) <= {20 * i for i in range(9)}
    few = segment(trace, "V", unit="sentence", n_boundaries=50)
    assert few.n_events == 9
    assert few.settings["note"] == "only 8 of the 50 boundaries asked for could be found"
    one = segment(trace, "V", n_boundaries=2, layers=2, heads=1)
    assert one.settings["heads"] == [1]
    with pytest.raises(MissingDataError, match="holds no keys"):
        segment(fake_trace(np.ones(40)), "V", n_boundaries=3)


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (np.ones((5, 3)), {"n_events": 2}, "at least 2 columns that vary"),
        (np.full((5, 3), np.nan), {"n_events": 2}, "pattern 0 is not finite"),
        (np.ones(5), {"n_events": 2}, "patterns must have the shape"),
        (planted([9]), {"n_events": 10}, "n_events=10: 9 positions have 1 to 9"),
        (planted([9]), {"n_events": 0}, "n_events=0"),
        (planted([9]), {"n_events": "best"}, "n_events='best'"),
        (planted([9]), {"candidates": [7]}, "no candidate number of events lies between 1 and 4"),
        (planted([9]), {"n_events": 2, "most_steps": 0}, "most_steps=0"),
        (np.zeros((LIMIT + 1, 2)), {"n_events": 2}, "at most 8,192"),
    ],
)
def test_bad_input_is_named(rows, options, words):
    with pytest.raises(InputError, match=words):
        hmm_boundaries(rows, **options)
