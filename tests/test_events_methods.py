"""Method codes, proposals and `segment`, on traces made from arrays."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from fakes import fake_story, fake_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from workbench.core.errors import InputError, MissingDataError
from workbench.core.keygraph import KeyGraph
from workbench.events.methods import (
    REFINEMENTS,
    Method,
    method_codes,
    methods_table,
    parse_method,
    segment,
)
from workbench.events.proposals import PROPOSALS, even_starts, random_starts
from workbench.events.refinement import refine
from workbench.events.signals import surprise_boundaries
from workbench.events.sizes import limit_sizes, thin
from workbench.events.threshold import threshold_flags


def noise(n, seed=0):
    return np.random.default_rng(seed).gamma(1.5, 2.0, n)


def planted(n, places, seed=0):
    """Quiet surprisal with a surprise at each place, growing along the text."""
    values = np.random.default_rng(seed).uniform(1.0, 2.0, n)
    values[list(places)] = 20.0 + np.arange(len(places))
    return values


def keyed_trace(n=400, seed=0, **options):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(2, 2, n, 5)) + rng.normal(size=(2, 2, 1, 5))
    return fake_trace(noise(n, seed), keys, **options)


# --- codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "method"),
    [
        ("S", Method("S")),
        ("SM", Method("S", "M")),
        (" fc ", Method("F", "C")),
        ("F:64", Method("F", "", 64)),
        ("FM:64", Method("F", "M", 64)),
        (Method("H"), Method("H")),
    ],
)
def test_codes_are_read(code, method):
    assert parse_method(code) == method
    assert parse_method(parse_method(code).code) == method


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "X",
            r"method 'X' is not known. Choose one of: R, RM, RC, RO, F, FM, FC, FO, S, SM,",
        ),
        ("", "method '' is not known"),
        ("SX", "method 'SX' is not known"),
        ("SMM", "method 'SMM' is not known"),
        ("MS", "method 'MS' is not known"),
        ("SM+C", r"method 'SM\+C': '\+C' adds a contiguity buffer.*memory system.*use 'SM'"),
        ("S:64", "method 'S:64': only F takes a number"),
        ("F:", "method 'F:': after the colon stands the number of tokens.*'F:64'"),
        ("F:0", "method 'F:0': after the colon"),
        ("F:-3", "method 'F:-3': after the colon"),
        ("FM:x", "method 'FM:x': after the colon.*'FM:64'"),
    ],
)
def test_bad_codes_say_what_is_valid(code, words):
    with pytest.raises(InputError, match=words):
        parse_method(code)


def test_every_code_is_a_proposal_and_a_refinement():
    assert len(method_codes()) == len(PROPOSALS) * len(REFINEMENTS)
    assert all(parse_method(code).code == code for code in method_codes())
    assert parse_method("FM:64").description == "fixed length (64 tokens), refined by modularity"


def test_the_table_names_every_source():
    table = methods_table()
    assert list(table.columns) == ["part", "code", "name", "description", "source"]
    assert table["code"].tolist() == [*PROPOSALS, *(code for code in REFINEMENTS if code)]
    assert (table != "").all(axis=None)
    for key, row in {**PROPOSALS, **REFINEMENTS}.items():
        assert key == row.code


# --- S -----------------------------------------------------------------------------------------


def test_planted_surprises_are_found_where_they_are():
    places = [60, 100, 177, 200, 290]
    events = segment(fake_trace(planted(320, places)), "S", gamma=4, max_size=None)
    assert events.inner.tolist() == places
    assert events.unit == "token"
    assert events.method == "S"
    assert events.open
    earlier = segment(fake_trace(planted(320, places)), "S", gamma=4, max_size=None, start="before")
    assert earlier.inner.tolist() == [place - 1 for place in places]
    np.testing.assert_array_equal(earlier.strength, events.strength)


def test_the_strongest_are_kept_and_nothing_is_split():
    trace = fake_trace(noise(2000))
    events = segment(trace, "S", n_boundaries=7)
    flags, z = threshold_flags(trace.surprisal)
    places = np.flatnonzero(flags)
    expected = thin(places, z[places], 7, 8)
    assert events.inner.tolist() == expected.starts.tolist()
    np.testing.assert_array_equal(events.strength, expected.strength)
    assert events.n_events == 8
    assert events.lengths.max() > 128
    assert events.settings["n_boundaries"] == events.settings["n_found"] == 7


def test_matching_works_on_raw_flags_not_on_merged_ones():
    # 103 is merged into the event at 100 but is the stronger of the two.
    values = planted(200, [100, 103])
    assert segment(fake_trace(values), "S", gamma=2, max_size=None).inner.tolist() == [100]
    values[100], values[103] = 8.0, 1000.0
    assert segment(fake_trace(values), "S", gamma=2, max_size=None).inner.tolist() == [100]
    assert segment(fake_trace(values), "S", gamma=2, n_boundaries=1).inner.tolist() == [103]


def test_too_few_flags_are_all_taken_and_said():
    events = segment(fake_trace(planted(320, [60, 177])), "S", gamma=4, n_boundaries=5)
    assert events.inner.tolist() == [60, 177]
    assert events.settings["n_boundaries"] == 5
    assert events.settings["n_found"] == 2
    assert events.settings["note"] == "only 2 of the 5 boundaries asked for could be found"


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 600), st.integers(0, 99), st.sampled_from([0.0, 1.0]))
def test_sizes_hold(n, seed, gamma):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        events = surprise_boundaries(noise(n, seed), gamma=gamma, max_size=40)
    assert (events.lengths[:-1] >= 8).all()
    assert (events.lengths <= 40).all()
    flagged = np.flatnonzero(threshold_flags(noise(n, seed), gamma).flags)
    assert events.inner.tolist() == limit_sizes(flagged, n, 8, 40).tolist()
    made = np.isneginf(events.strength)
    assert set(events.inner[~made]) <= set(flagged)


def test_hard_cuts_are_the_weakest():
    events = surprise_boundaries(planted(320, [60]), gamma=4)
    assert events.inner.tolist() == [60, 188, 316]
    assert np.isfinite(events.strength[0])
    assert np.isneginf(events.strength[1:]).all()


def test_no_boundary_is_one_event_and_a_warning():
    trace = fake_trace(np.full(100, 2.0))
    with pytest.warns(UserWarning, match=r"gamma=1\.0.*lower gamma"):
        events = segment(trace, "S")
    assert events.starts.tolist() == [0]
    with pytest.warns(UserWarning, match="only 10 scored tokens and the threshold needs 16"):
        assert segment(fake_trace(noise(10)), "S").n_events == 1


def test_released_windows_and_drops_reach_the_threshold():
    values = noise(1500)
    flags, _ = threshold_flags(values, window="chunk")
    events = segment(fake_trace(values), "S", window="chunk", start="before", short="drop")
    places = np.flatnonzero(flags) - 1
    places = places[places > 0]
    kept = places[np.diff(places, prepend=0) >= 8]
    assert events.inner.tolist() == limit_sizes(kept, 1500, 8, 128).tolist()
    assert events.settings["chunk"] == 512
    assert events.settings["first_chunk"] == "init"


def test_an_unscored_first_token_changes_nothing_else():
    values = noise(500)
    values[0] = np.nan
    trace = fake_trace(values)
    shifted = surprise_boundaries(values[1:], max_size=None, min_size=1)
    assert segment(trace, "S", max_size=None, min_size=1).inner.tolist() == [
        place + 1 for place in shifted.inner.tolist()
    ]


# --- F and R -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 300), st.data())
def test_fixed_starts_are_the_rounded_fractions(n, data):
    k = data.draw(st.integers(0, n - 1))
    starts = even_starts(n, k).tolist()
    assert starts == [int(np.floor(i * n / (k + 1) + 0.5 + 1e-12)) for i in range(1, k + 1)]
    lengths = np.diff([0, *starts, n])
    assert lengths.min() >= 1
    assert lengths.max() - lengths.min() <= 1


def test_fixed_follows_the_count_of_surprise():
    trace = fake_trace(noise(800))
    surprise, fixed, drawn = (segment(trace, code) for code in "SFR")
    assert fixed.n_events == drawn.n_events == surprise.n_events
    assert fixed.settings["count"] == "as S"
    assert segment(trace, "F", n_boundaries=3).inner.tolist() == [200, 400, 600]
    assert not fixed.open
    coarse = segment(trace, "F", gamma=3)
    assert coarse.n_events == segment(trace, "S", gamma=3).n_events < fixed.n_events


def test_fixed_length_is_kept_whatever_the_count():
    events = segment(fake_trace(noise(200)), "F:64", n_boundaries=7)
    assert events.starts.tolist() == [0, 64, 128, 192]
    assert events.method == "F:64"
    assert events.open  # 8 of 64 tokens
    assert not segment(fake_trace(noise(128)), "F:64").open
    assert segment(fake_trace(noise(20)), "F:64").starts.tolist() == [0]


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(0, 6), st.integers(0, 20), st.integers(0, 9))
def test_random_starts_keep_the_gap(gap, k, slack, seed):
    n = (k + 1) * gap + slack
    starts = random_starts(n, k, np.random.default_rng(seed), gap)
    assert len(starts) == k
    assert np.diff([0, *starts, n]).min() >= gap


def test_events_that_do_not_fit_are_refused():
    assert random_starts(12, 3, np.random.default_rng(0), 3).tolist() == [3, 6, 9]
    with pytest.raises(InputError, match="4 events of at least gap=3 tokens do not fit into 11"):
        random_starts(11, 3, np.random.default_rng(0), 3)
    with pytest.raises(InputError, match="n_boundaries=11 is more than the 10 places"):
        random_starts(11, 11, np.random.default_rng(0))


@pytest.mark.parametrize(("n", "k", "gap"), [(7, 2, 1), (10, 2, 2)])
def test_random_cuts_are_all_equally_likely(n, k, gap):
    rng = np.random.default_rng(0)
    draws = [tuple(random_starts(n, k, rng, gap).tolist()) for _ in range(6000)]
    cuts = [(a, b) for a in range(1, n) for b in range(a + 1, n) if min(a, b - a, n - b) >= gap]
    counts = pd.Series(draws).value_counts()
    assert set(counts.index) == set(cuts)
    assert chisquare([counts[cut] for cut in cuts]).pvalue > 0.001


def test_random_is_seeded():
    trace = fake_trace(noise(800))
    one = segment(trace, "R", n_boundaries=20, seed=3)
    assert one == segment(trace, "R", n_boundaries=20, seed=3)
    assert one != segment(trace, "R", n_boundaries=20, seed=4)
    assert one.settings["seed"] == 3
    assert one.settings["gap"] == 1
    assert segment(trace, "R", n_boundaries=20, gap=30).lengths.min() >= 30


@pytest.mark.parametrize("code", ["S", "F", "R"])
@pytest.mark.parametrize("count", [0, -1, 2.5, 100])
def test_impossible_counts_are_refused(code, count):
    with pytest.raises(InputError, match=f"n_boundaries={count} "):
        segment(fake_trace(noise(100)), code, n_boundaries=count)


# --- H -----------------------------------------------------------------------------------------


def test_people_reach_the_tokens_of_the_next_word():
    # Words start every 0.5 s and have two tokens each.
    story = fake_story(40, seconds_per_word=0.5, people=[4.9, 12.1])
    trace = fake_trace(noise(80), token_word=np.repeat(np.arange(40), 2), story=story)
    events = segment(trace, "H")
    assert events.inner.tolist() == [20, 50]  # words 10 (5.0 s) and 25 (12.5 s)
    assert events.method == "H"
    assert events.unit == "token"
    assert not events.open
    assert events.settings["time_rule"] == "next"
    assert segment(trace, "H", time_rule="previous").inner.tolist() == [18, 48]
    assert segment(trace, "H", n_boundaries=2) == events
    with pytest.raises(MissingDataError, match="has 2 boundaries, not 5; the 5 most likely"):
        segment(trace, "H", n_boundaries=5)


def test_people_from_presses_match_a_count():
    rng = np.random.default_rng(0)
    rows = [
        {"subject": subject, "time": time, "start": time - 0.5, "end": time + 0.5}
        for subject in range(12)
        for time in np.sort(np.array([20, 50, 90, 130, 170]) + rng.normal(0, 0.3, 5))
    ]
    presses = pd.DataFrame(rows).assign(merged=False, condition="")
    story = fake_story(400, seconds_per_word=0.5, presses=presses)
    trace = fake_trace(noise(400), story=story)
    events = segment(trace, "H", n_boundaries=5)
    assert events.n_events == 6
    np.testing.assert_allclose(events.inner, np.array([20, 50, 90, 130, 170]) * 2, atol=3)


def test_people_are_refused_where_there_are_none():
    with pytest.raises(MissingDataError, match=r"no annotation 'people' \(it has: author/scenes\)"):
        segment(fake_trace(noise(40), story=fake_story(40, author=[10])), "H")
    untimed = fake_story(40, people=[3.0])
    with pytest.raises(MissingDataError, match=r"method H .* needs word times, and story 'fake'"):
        segment(fake_trace(noise(40), story=untimed), "H")


# --- refinement --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "objective"), [("SM", "modularity"), ("SC", "conductance"), ("FM", "modularity")]
)
def test_a_refined_method_is_its_proposal_refined(code, objective):
    trace = keyed_trace()
    for k in (None, 6):
        proposed = segment(trace, code[0], n_boundaries=k)
        refined = segment(trace, code, n_boundaries=k)
        keys = trace.keys(trace.last_third())
        graph = KeyGraph(keys.reshape(-1, *keys.shape[2:])).summed()
        expected = refine(graph, proposed, objective=objective)
        assert refined == expected
        assert refined.n_events == proposed.n_events
        assert refined.method == code
        assert refined.open == proposed.open
        if proposed.strength is not None:
            np.testing.assert_array_equal(refined.strength, proposed.strength)
    assert refined != proposed


def test_the_graph_can_be_chosen():
    trace = keyed_trace()
    layer = int(trace.layers[0])
    one = segment(trace, "SM", layers=layer, heads=1)
    assert one == segment(trace, "SM", graph=trace.key_graph(layer, 1))
    assert one.settings["graph"] == {"layers": [layer], "heads": [1]}
    assert segment(trace, "SM", layers=trace.layers) == segment(
        trace, "SM", graph=trace.key_graph()
    )
    assert segment(trace, "SM").settings["graph"] == {
        "layers": trace.last_third().tolist(),
        "heads": [0, 1],
    }
    assert segment(trace, "SM", layers=layer) != segment(trace, "SM", layers=int(trace.layers[1]))


def test_reference_refinement_runs_by_chunks_like_its_threshold():
    trace = keyed_trace(1200)
    options = {"window": "chunk", "short": "drop", "start": "before"}
    refined = segment(trace, "SM", rule="reference", **options)
    proposed = surprise_boundaries(trace.surprisal, first_chunk="whole", **options)
    graph = trace.key_graph(trace.last_third()).summed()
    assert refined == refine(graph, proposed, rule="reference", chunk=512)
    assert refined.settings["refinement"]["rule"] == "reference"
    assert refined.settings["first_chunk"] == "whole"


def test_settings_are_plain():
    trace = keyed_trace()
    for code in ("S", "SM", "F", "FC", "F:64", "R"):
        for k in (None, np.int64(5)):
            found = segment(trace, code, n_boundaries=k, seed=1)
            assert json.loads(json.dumps(found.settings)) == found.settings


def test_refinement_needs_keys_of_this_trace():
    with pytest.raises(MissingDataError, match="holds no keys; record it with keys=True"):
        segment(fake_trace(noise(100)), "SM")
    with pytest.raises(InputError, match="graph has 50 tokens and the trace 400"):
        segment(keyed_trace(), "SM", graph=KeyGraph(np.ones((50, 3))))
    with pytest.raises(MissingDataError, match=r"layer \[9\] was not recorded"):
        segment(keyed_trace(), "SM", layers=9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"start": "after"}, "start='after' is not known. Choose one of: 'surprising', 'before'"),
        ({"short": "keep"}, "short='keep' is not known"),
        ({"min_size": 0}, "min_size=0"),
        ({"max_size": 4}, "max_size=4 is smaller than min_size=8"),
        ({"window": "frozen"}, "window='frozen' is not known"),
        ({"gamma": float("inf")}, "gamma=inf"),
        ({"method": "R", "gap": 0}, "gap=0"),
    ],
)
def test_bad_options_are_named(arguments, words):
    with pytest.raises(InputError, match=words):
        segment(fake_trace(noise(100)), **{"method": "S", **arguments})
