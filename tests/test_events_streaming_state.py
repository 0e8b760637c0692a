"""A segmenter saved, restored, copied or previewed goes on as one that nothing happened to."""

from __future__ import annotations

import copy
import json
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fakes import fake_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import InputError
from workbench.core.keygraph import KeyGraph
from workbench.events.methods import segment
from workbench.events.streaming import StreamingSegmenter
from workbench.events.threshold import MovingThreshold

RELEASED = {"window": "chunk", "rule": "reference", "n_local": 64, "n_init": 10}
CASES = [
    ("S", {"window": 20, "min_values": 4}),
    ("S", {"start": "before", "short": "drop", "min_size": 3, "max_size": 20}),
    ("S", {"window": "chunk", "chunk": 20, "n_local": 50, "n_init": 10}),
    ("B", {"window": 64, "min_values": 2, "min_size": 1}),
    ("F:64", {}),
    ("F:7", {}),
    ("H", {}),
    ("R", {}),
    ("SM", {"window": 20, "min_values": 4, "refine_window": 40}),
    ("SM", {"window": "chunk", "chunk": 20, "n_local": 50, "n_init": 10}),
    ("SC", {"window": 64, "scope": "three", "refine_window": 30, "diagonal": False}),
    ("FM:7", {"min_size": 2, "refine_window": 16}),
    ("FC:20", {"min_size": 2}),
    ("HM", {"min_size": 2, "scope": "rest", "refine_window": 20}),
    ("RC", {"min_size": 2, "refine_window": 50}),
    ("SM", {**RELEASED, "chunk": 20, "gamma": 0.5, "min_size": 3}),
    ("SC", {**RELEASED, "chunk": 33, "gamma": 0.0, "min_size": 1, "max_size": 20}),
]
cases = st.sampled_from(CASES)


def text(n, seed):
    """A signal with a quiet stretch (strengths become infinite) and gaps, keys, given starts."""
    rng = np.random.default_rng(seed)
    values = rng.gamma(1.5, 2.0, n)
    quiet = rng.integers(n)
    values[quiet : quiet + n // 3] = 1.0
    values[0] = np.nan
    values[rng.integers(n, size=n // 40)] = np.nan
    keys = rng.normal(size=(2, n, 3)) + 2 * rng.normal(size=(2, 1, 3))
    starts = np.flatnonzero(rng.random(n) < 0.1)
    return values, keys.astype(np.float32), starts


def made(method, options, starts):
    return StreamingSegmenter(method, given=starts if method[0] in "HR" else None, **options)


def fed(segmenter, values, keys, cuts):
    events = []
    for a, b in pairwise(cuts):
        part = keys[:, a:b] if segmenter.method.refinement else None
        events += segmenter.feed(values[a:b], part)
    return events


def plain(events):
    """Events comparable with ==, NaN and all."""
    return [(event.start, event.end, repr(event.strength), event.open) for event in events]


def split(data, n, least=0):
    """A random division of n tokens, and a random place to stop at."""
    cuts = data.draw(st.lists(st.integers(0, n), max_size=6))
    stop = data.draw(st.integers(least, n))
    before = [0, *sorted(cut for cut in cuts if cut <= stop), stop]
    return stop, before, [stop, *sorted(cut for cut in cuts if cut >= stop), n]


def through_both(state):
    """Arrays through .npz, everything else through strict JSON."""
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in state.items() if name not in arrays}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "a.npz"), **arrays)
        Path(folder, "a.json").write_text(json.dumps(rest, allow_nan=False), encoding="utf-8")
        with np.load(Path(folder, "a.npz"), allow_pickle=False) as loaded:
            found = {name: loaded[name] for name in loaded.files}
        return found | json.loads(Path(folder, "a.json").read_text(encoding="utf-8"))


def through_npz(state):
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "a.npz"), **state)
        with np.load(Path(folder, "a.npz"), allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}


def through_json(state):
    lists = {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in state.items()}
    return json.loads(json.dumps(lists))


@settings(deadline=None, max_examples=300)
@given(
    st.data(),
    cases,
    st.integers(1, 200),
    st.integers(0, 9999),
    st.sampled_from([through_both, through_npz, through_json]),
)
def test_saved_and_restored_it_goes_on_identically(data, case, n, seed, through):
    values, keys, starts = text(n, seed)
    method, options = case
    whole = made(method, options, starts)
    expected = plain(fed(whole, values, keys, [0, n]) + whole.finish())

    stop, before, after = split(data, n)
    first = made(method, options, starts)
    events = fed(first, values, keys, before)
    saved = through(first.state())
    second = made(method, options, [])  # the starts to come are part of the state
    second.restore(saved)
    assert second.n == stop
    assert_same_state(second.state(), first.state())
    events += fed(second, values, keys, after)
    assert plain(events + second.finish()) == expected


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
        assert np.asarray(value).dtype == np.asarray(other[name]).dtype, name


@settings(deadline=None, max_examples=200)
@given(st.data(), cases, st.integers(1, 200), st.integers(0, 9999))
def test_a_copy_and_its_origin_do_not_see_each_other(data, case, n, seed):
    values, keys, starts = text(n, seed)
    other_values, other_keys, _ = text(n, seed + 1)
    method, options = case
    whole = made(method, options, starts)
    expected = plain(fed(whole, values, keys, [0, n]) + whole.finish())

    _, before, after = split(data, n)
    origin = made(method, options, starts)
    events = fed(origin, values, keys, before)
    state, n_before = origin.state(), len(events)
    trial, back = origin.copy(), origin.copy()
    for here in pairwise(after):  # in turn, so that either could write over the other
        events += fed(origin, values, keys, here)
        fed(trial, other_values, other_keys, here)
    ahead = origin.copy()
    trial.finish()
    assert plain(events + ahead.finish()) == expected
    assert plain(events + origin.finish()) == expected
    events = events[:n_before]
    assert_same_state(back.state(), state)
    again = back.copy()
    assert plain(events + fed(again, values, keys, after) + again.finish()) == expected
    again = copy.deepcopy(back)
    assert plain(events + fed(again, values, keys, after) + again.finish()) == expected


@settings(deadline=None, max_examples=200)
@given(st.data(), cases, st.integers(1, 200), st.integers(0, 9999))
def test_a_preview_is_what_finishing_would_give(data, case, n, seed):
    values, keys, starts = text(n, seed)
    method, options = case
    stop, before, after = split(data, n, least=1)
    segmenter = made(method, options, starts)
    events = fed(segmenter, values, keys, before)
    state = segmenter.state()
    seen = segmenter.preview()
    assert_same_state(segmenter.state(), state)
    ended = made(method, options, starts[starts < stop])
    assert plain(events + seen) == plain(fed(ended, values, keys, [0, stop]) + ended.finish())

    events += fed(segmenter, values, keys, after)
    whole = made(method, options, starts)
    expected = plain(fed(whole, values, keys, [0, n]) + whole.finish())
    assert plain(events + segmenter.preview()) == expected
    assert plain(events + segmenter.finish()) == expected


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from(["H", "TM", "R", "RM", "HC"]), st.integers(0, 999))
def test_starts_given_later_are_as_good_as_given_at_once(data, method, seed):
    n = 150
    values, keys, starts = text(n, seed)
    options = {"min_size": 2, "refine_window": 30}
    at_once = StreamingSegmenter(method, given=starts, **options)
    expected = plain(fed(at_once, values, keys, [0, n]) + at_once.finish())

    stop, before, after = split(data, n)
    ahead = data.draw(st.integers(stop, n))  # some starts are known before their tokens come
    later = StreamingSegmenter(method, given=starts[starts < ahead], **options)
    events = fed(later, values, keys, before)
    later.more_given([])
    for some in (starts[starts >= ahead][:2], starts[starts >= ahead][2:]):
        later.more_given(some)
    events += fed(later, values, keys, after)
    assert plain(events + later.finish()) == expected


@pytest.mark.parametrize("method", ["R", "RM", "RC"])
def test_random_boundaries_drawn_beforehand_equal_the_offline_ones(method):
    values, keys, _ = text(300, 3)
    trace = fake_trace(values)
    drawn = segment(trace, "R", n_boundaries=12, seed=5)
    options = {"n_boundaries": 12, "seed": 5, "graph": KeyGraph(keys)}
    whole = segment(trace, method, **options)
    segmenter = StreamingSegmenter(method, given=drawn.starts)
    events = fed(segmenter, values, keys, [0, 10, 11, 150, 300]) + segmenter.finish()
    assert [(event.start, event.end) for event in events] == list(whole)
    assert not events[-1].open
    assert len(events) == 13


def test_a_copy_shares_the_keys_and_a_state_nothing():
    values, keys, _ = text(200, 0)
    segmenter = StreamingSegmenter("SM", refine_window=40)
    segmenter.feed(values, keys)
    twin = segmenter.copy()
    assert np.shares_memory(twin._keys.rows, segmenter._keys.rows)
    state = segmenter.state()
    before = through_json(state)
    for value in state.values():
        if isinstance(value, np.ndarray):
            value[...] = 0
    restored = StreamingSegmenter("SM", refine_window=40)
    saved = {n: np.array(v) if isinstance(v, list) else v for n, v in before.items()}
    restored.restore(saved)
    for value in saved.values():
        if isinstance(value, np.ndarray):
            value[...] = 0
    for other in (segmenter, twin, restored):
        assert_same_state(through_json(other.state()), before)


def test_a_finished_text_stays_finished():
    segmenter = StreamingSegmenter("T", given=[3])
    segmenter.feed(n=5)
    segmenter.finish()
    restored = StreamingSegmenter("T", given=[])
    restored.restore(through_both(segmenter.state()))
    for call in (restored.finish, restored.preview, lambda: restored.more_given([9])):
        with pytest.raises(InputError, match="the text was finished"):
            call()


def test_a_moving_threshold_alone():
    values = np.random.default_rng(0).gamma(1.5, 2.0, 90)
    whole = MovingThreshold(window=20, min_values=4)
    expected = [whole.update(value) for value in values]
    for stop in (0, 3, 20, 21, 59, 90):
        first = MovingThreshold(window=20, min_values=4)
        found = [first.update(value) for value in values[:stop]]
        second = MovingThreshold(window=20, min_values=4)
        second.restore(through_json(first.state()))
        assert second == first.copy() == first
        found += [second.update(value) for value in values[stop:]]
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(InputError, match="with window=19 never does; give it the window it had"):
        MovingThreshold(window=19, min_values=4).restore(whole.state())


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("SC", {}, "with method='SM', this one has method='SC'; make it with the same arg"),
        ("SM", {"gamma": 1.5}, "with gamma=1.0, this one has gamma=1.5"),
        ("SM", {"window": 500}, "with window=512, this one has window=500"),
        ("SM", {"window": "chunk"}, "with window=512, this one has window='chunk'"),
        ("SM", {"min_values": 3}, "this one has min_values=3"),
        ("SM", {"start": "before"}, "with start='surprising', this one has start='before'"),
        ("SM", {"min_size": 2}, "this one has min_size=2"),
        ("SM", {"max_size": None}, "with max_size=128, this one has max_size=None"),
        ("SM", {"short": "drop"}, "this one has short='drop'"),
        ("SM", {"scope": "rest"}, "with scope='next', this one has scope='rest'"),
        ("SM", {"refine_window": 30}, "this one has refine_window=30"),
        ("SM", {"diagonal": False}, "with diagonal=True, this one has diagonal=False"),
        ("SM", {"window": "chunk", "rule": "reference"}, "this one has window='chunk'"),
        ("SM", {"variant": "em-llm"}, "with variant=None, this one has variant='em-llm'"),
    ],
)
def test_a_state_from_other_settings_is_refused_by_name(method, options, words):
    saved = through_both(StreamingSegmenter("SM").state())
    with pytest.raises(InputError, match=words):
        StreamingSegmenter(method, **options).restore(saved)


def test_numpy_settings_are_the_same_settings():
    segmenter = StreamingSegmenter("S", gamma=np.float64(0.1), min_size=np.int64(3), window=512.0)
    values, _, _ = text(120, 3)
    segmenter.feed(values[:70])
    plain = StreamingSegmenter("S", gamma=0.1, min_size=3)
    plain.restore(through_npz(segmenter.state()))
    assert plain.n == 70
    assert plain.feed(values[70:]) == segmenter.feed(values[70:])
    assert str(plain.finish()) == str(segmenter.finish())


def test_a_damaged_state_is_refused_and_changes_nothing():
    values, keys, _ = text(120, 2)
    origin = StreamingSegmenter("SM", refine_window=40)
    origin.feed(values, keys)
    good = origin.state()
    segmenter = StreamingSegmenter("SM", refine_window=40)
    segmenter.feed(values[:50], keys[:, :50])
    before = segmenter.state()

    def refused(words, **changes):
        state = {name: value for name, value in (good | changes).items() if value is not None}
        with pytest.raises(InputError, match=words):
            segmenter.restore(state)
        assert_same_state(segmenter.state(), before)

    for name in good:
        if name not in ("settings", "format"):
            refused(f"the state has no '{name}'; it is not whole. Save it again", **{name: None})
    refused("no state that StreamingSegmenter.state.. of this version", settings=None)
    refused(r"of this version \(format 1\) wrote; feed the text again", format=7)
    refused("the state's 'settings' are not JSON", settings="{")
    refused("the state's 'settings' are not JSON", settings="3")
    rows = good["keys.rows"]
    refused(r"'keys.rows' must hold float64 of shape \(.*, 6\), not", **{"keys.rows": rows[1:]})
    refused("'keys.rows' must hold float64", **{"keys.rows": rows.astype(str)})
    refused("'keys.rows' must hold float64", **{"keys.rows": [[1.0], [1.0, 2.0]]})
    refused("the state's 'keys.base' is -1, at least 0 is possible", **{"keys.base": -1})
    refused("'keys.rows' must hold float64", **{"keys.base": 500})
    refused("the state's 'refiner.alpha' must hold int64", **{"refiner.alpha": 2.5})
    refused("'open.strength' must hold float64", **{"open.strength": np.zeros(2)})
    two = {"open.place": np.array([0, 3]), "open.strength": np.zeros(2)}
    refused("the state's 'open' must be one mark", **two)
    segmenter.restore(good)
    assert_same_state(segmenter.state(), good)


def test_given_starts_that_do_not_follow_are_refused():
    segmenter = StreamingSegmenter("H", given=[0, 10, 30])
    segmenter.feed(n=20)
    for starts in ([0], [15], [19, 40], [30], [25]):
        with pytest.raises(
            InputError, match=r"given start \d+ does not follow: 20 tokens were fed"
        ):
            segmenter.more_given(starts)
    with pytest.raises(InputError, match=r"last start given was 30\. Give only starts beyond both"):
        segmenter.more_given([30])
    for starts in ([50, 40], np.array([50, 40], dtype=np.uint64), [-1], [40.5], [[40]]):
        with pytest.raises(InputError, match="must be a list of increasing token numbers"):
            segmenter.more_given(starts)
    segmenter.more_given([31])
    segmenter.feed(n=20)
    segmenter.more_given([40])  # the next token
    assert [event.start for event in segmenter.preview()] == [31]
    segmenter.feed(n=1)
    assert [event.start for event in segmenter.finish()] == [40]
    with pytest.raises(InputError, match="starts are given to methods H, T and R, not to 'F:3'"):
        StreamingSegmenter("F:3").more_given([4])
    with pytest.raises(InputError, match=r"draw them beforehand and give the tokens .* as given="):
        StreamingSegmenter("RM")
    with pytest.raises(InputError, match="R takes it too"):
        StreamingSegmenter("SM", given=[3])
    with pytest.raises(InputError, match="nothing was fed"):
        StreamingSegmenter("H", given=[3]).preview()
