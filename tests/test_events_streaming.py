"""Events from chunks equal events from the whole text, for every setting and every division."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
from fakes import fake_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import InputError, MissingDataError
from workbench.core.keygraph import KeyGraph
from workbench.events.methods import segment
from workbench.events.signals import surprise_boundaries
from workbench.events.streaming import Event, StreamingSegmenter


def text(n, seed, unscored=True, heads=2, d=3):
    """Surprisal with long quiet stretches, and keys with a common part."""
    rng = np.random.default_rng(seed)
    values = rng.gamma(1.5, 2.0, n)
    quiet = rng.integers(n)
    values[quiet : quiet + n // 3] = 1.0
    if unscored:
        values[0] = np.nan
        values[rng.integers(n, size=n // 40)] = np.nan
    keys = rng.normal(size=(heads, n, d)) + 2 * rng.normal(size=(heads, 1, d))
    return values, keys.astype(np.float32)


def in_chunks(segmenter, values, keys, cuts):
    events = []
    for a, b in pairwise([0, *sorted(cuts), len(values)]):
        events += segmenter.feed(values[a:b], None if keys is None else keys[:, a:b])
    return events + segmenter.finish()


def same(events, whole):
    assert [(event.start, event.end) for event in events] == list(whole)
    marks = np.array([event.strength for event in events])
    assert np.isnan(marks[0])
    if whole.strength is None:
        assert np.isnan(marks).all()
    else:
        np.testing.assert_array_equal(marks[1:], whole.strength)
    assert [event.open for event in events] == [False] * (len(events) - 1) + [whole.open]


def offline(trace, method, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return segment(trace, method, **options)


def divisions(n):
    return st.lists(st.integers(0, n), max_size=12) | st.just(list(range(n)))


moving = st.fixed_dictionaries(
    {"window": st.sampled_from([512, 20, 64]), "min_values": st.sampled_from([2, 16])}
)
frozen = st.fixed_dictionaries(
    {
        "window": st.just("chunk"),
        "chunk": st.sampled_from([1, 7, 50, 512]),
        "n_local": st.sampled_from([512, 700]),
        "n_init": st.sampled_from([2, 30, 90]),
    }
)
sizes = st.fixed_dictionaries(
    {
        "gamma": st.sampled_from([0.0, 1.0, 2.5]),
        "start": st.sampled_from(["surprising", "before"]),
        "min_size": st.sampled_from([1, 2, 8]),
        "max_size": st.sampled_from([None, 8, 30, 128]),
        "short": st.sampled_from(["merge", "drop"]),
    }
)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(1, 260), st.integers(0, 9999), moving | frozen, sizes)
def test_thresholds(data, n, seed, window, size):
    values, _ = text(n, seed)
    options = {**window, **size}
    whole = offline(fake_trace(values), "S", **options)
    cuts = data.draw(divisions(n))
    same(in_chunks(StreamingSegmenter("S", **options), values, None, cuts), whole)


@settings(deadline=None, max_examples=150)
@given(
    st.data(),
    st.integers(1, 260),
    st.integers(0, 9999),
    moving | frozen,
    sizes,
    st.sampled_from(["SM", "SC"]),
    st.sampled_from(["next", "rest", "three"]),
    st.sampled_from([2, 9, 40, 512]),
    st.booleans(),
)
def test_refined_thresholds(data, n, seed, window, size, method, scope, refine_window, diagonal):
    values, keys = text(n, seed)
    options = {**window, **size, "scope": scope, "refine_window": refine_window}
    graph = KeyGraph(keys, diagonal=diagonal)
    whole = offline(fake_trace(values), method, graph=graph, **options)
    segmenter = StreamingSegmenter(method, diagonal=diagonal, **options)
    same(in_chunks(segmenter, values, keys, data.draw(divisions(n))), whole)


@settings(deadline=None, max_examples=80)
@given(
    st.data(),
    st.integers(1, 260),
    st.integers(0, 9999),
    frozen,
    sizes,
    st.sampled_from(["SM", "SC"]),
)
def test_the_released_rule(data, n, seed, window, size, method):
    values, keys = text(n, seed)
    options = {**window, **size, "rule": "reference"}
    whole = offline(fake_trace(values), method, graph=KeyGraph(keys), **options)
    segmenter = StreamingSegmenter(method, **options)
    same(in_chunks(segmenter, values, keys, data.draw(divisions(n))), whole)


@settings(deadline=None, max_examples=40)
@given(
    st.data(),
    st.integers(1, 200),
    st.integers(0, 99),
    st.sampled_from(["F:1", "F:7", "F:64", "F:300"]),
    st.sampled_from(["", "M", "C"]),
)
def test_fixed_lengths(data, n, seed, code, refinement):
    values, keys = text(n, seed)
    method = f"F{refinement}{code[1:]}"
    whole = offline(fake_trace(values), method, graph=KeyGraph(keys))
    segmenter = StreamingSegmenter(method)
    fed = keys if refinement else None
    same(in_chunks(segmenter, values, fed, data.draw(divisions(n))), whole)


def test_given_boundaries_and_other_signals():
    values, keys = text(300, 1, unscored=False)
    starts = [20, 70, 71, 200]
    segmenter = StreamingSegmenter("HM", given=starts)
    events = in_chunks(segmenter, values, keys, [15, 16, 80, 250])
    from workbench.core.boundaries import Boundaries
    from workbench.events.refinement import refine

    assert [event.start for event in events] == list(
        refine(KeyGraph(keys), Boundaries(starts, 300)).starts
    )
    assert not events[-1].open
    plain = StreamingSegmenter("T", given=[0, *starts])
    assert [e.start for e in plain.feed(n=100) + plain.feed(n=200) + plain.finish()] == [0, *starts]
    for code in "BE":
        found = in_chunks(StreamingSegmenter(code, gamma=1.5), values, None, [7, 100])
        assert [e.start for e in found] == list(surprise_boundaries(values, gamma=1.5).starts)


def test_events_come_out_when_the_delay_says():
    values = np.random.default_rng(0).uniform(1, 2, 400)
    values[[50, 90, 300]] = 30.0
    keys = np.random.default_rng(1).normal(size=(1, 400, 3)) + 1
    options = {"gamma": 4.0, "max_size": None}

    def given_out(method, **more):
        segmenter = StreamingSegmenter(method, **options, **more)
        when = []
        for t in range(400):
            part = keys[:, t : t + 1] if segmenter.method.refinement else None
            when += [t] * len(segmenter.feed(values[t : t + 1], part))
        return segmenter.delay, when

    assert given_out("S") == ("none", [50, 90, 300])
    assert given_out("S", start="before") == ("one token", [50, 90, 300])
    delay, when = given_out("SM", refine_window=200)
    assert delay == "until the next boundary, at most 100 tokens after its unrefined end"
    assert when == [90, 190 - 1, 399]  # 90 + 100 tokens are known with token 189
    delay, when = given_out("SM", scope="rest", refine_window=60)
    assert delay == "30 tokens after its unrefined end"
    assert when == [79, 119, 329]


def test_memory_does_not_grow_with_the_text():
    rng = np.random.default_rng(0)
    held = {}
    for method, options in (
        ("SM", {}),
        ("SM", {"max_size": None, "gamma": 50.0}),  # one event, never ended
        ("SC", {"scope": "three"}),
        ("SM", {"window": "chunk", "rule": "reference", "chunk": 128, "n_local": 256}),
    ):
        segmenter = StreamingSegmenter(method, **options)
        most = []
        for _ in range(150):
            segmenter.feed(rng.gamma(1.5, 2.0, 64), rng.normal(size=(2, 64, 4)) + 1)
            keys, source = segmenter._keys, segmenter._source
            values = getattr(source, "_values", ())
            most.append((len(keys.rows), len(keys._buffer), len(values)))
        held[method, str(options)] = np.max(most[75:], axis=0)
        assert segmenter.n == 9600
        assert len(segmenter.finish()) >= 1
    for (method, options), (rows, buffer, values) in held.items():
        assert rows <= 512 + 256 + 128, (method, options)
        assert buffer <= 4 * (512 + 256 + 128), (method, options)
        assert values <= 256 + 128, (method, options)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("R", {}, "method 'R' cannot be streamed: R draws its boundaries from all places"),
        ("P", {}, "'P' cannot be streamed: P may find"),
        ("K", {}, "'K' cannot be streamed"),
        ("GM", {}, "'GM' cannot be streamed"),
        ("V", {}, "'V' cannot be streamed"),
        ("SO", {}, "'SO' cannot be streamed: O is the optimum over the whole text; use SM"),
        ("F", {}, "'F' cannot be streamed: without a length"),
        ("HM", {}, "'HM' cannot be streamed: its boundaries come from the whole text; give"),
        ("T", {}, "'T' cannot be streamed"),
        ("S", {"given": [4]}, "given= belongs to methods H and T, not to 'S'"),
        ("S", {"n_boundaries": 5}, "n_boundaries=5 cannot be streamed"),
        ("SM", {"rule": "reference"}, "rule='reference' cannot be streamed without chunks"),
        ("SM", {"rule": "own"}, "rule='own' is not known"),
        ("SM", {"scope": "all"}, "scope='all' is not known"),
        ("SM", {"variant": "x"}, "variant='x' is not known"),
        ("SM", {"refine_window": 1}, "refine_window=1 must be at least 2"),
        ("S", {"window": "frozen"}, "window='frozen' is not known"),
        ("S", {"window": "chunk", "chunk": 9000}, "chunk=9000 must lie between"),
        ("S", {"start": "after"}, "start='after' is not known"),
        ("S", {"short": "x"}, "short='x' is not known"),
        ("S", {"max_size": 2}, "max_size=2 is smaller"),
        ("S", {"gamma": np.inf}, "gamma=inf"),
        ("H", {"given": [3, 2]}, "given= must be a list of increasing"),
        ("X", {}, "method 'X' is not known"),
    ],
)
def test_what_needs_the_future_is_refused_by_name(method, options, words):
    with pytest.raises(InputError, match=words):
        StreamingSegmenter(method, **options)


def test_bad_chunks_are_named():
    segmenter = StreamingSegmenter("SM")
    with pytest.raises(InputError, match="nothing was fed; a text"):
        segmenter.finish()
    segmenter = StreamingSegmenter("SM")
    with pytest.raises(InputError, match=r"one length \(values: 3, keys: 2 tokens\)"):
        segmenter.feed(np.ones(3), np.ones((2, 4)))
    with pytest.raises(MissingDataError, match="method SM needs the keys"):
        segmenter.feed(np.ones(3))
    with pytest.raises(MissingDataError, match="method SM needs the values"):
        segmenter.feed(None, np.ones((3, 4)))
    with pytest.raises(InputError, match=r"keys must have the shape"):
        segmenter.feed(np.ones(3), np.ones(3))
    assert segmenter.n == 0
    segmenter.feed(np.ones(3), np.ones((3, 4)))
    with pytest.raises(InputError, match=r"keys have 1 heads of 5 dim.* had 1 of 4"):
        segmenter.feed(np.ones(3), np.ones((3, 5)))
    bad = np.ones((3, 4))
    bad[1] = np.nan
    with pytest.raises(InputError, match="the keys at position 4 are not finite"):
        segmenter.feed(np.ones(3), bad)
    with pytest.raises(InputError, match="the value at position 5 is infinite"):
        segmenter.feed([1.0, 1.0, np.inf], np.ones((3, 4)))
    assert segmenter.feed(np.ones(0), np.ones((0, 4))) == []
    assert segmenter.finish() == [Event(0, 3, pytest.approx(np.nan, nan_ok=True), True)]
    for call in (segmenter.finish, lambda: segmenter.feed(np.ones(1), np.ones((1, 4)))):
        with pytest.raises(InputError, match="the text was finished"):
            call()
    late = StreamingSegmenter("H", given=[10])
    late.feed(n=5)
    with pytest.raises(InputError, match="given start 10 lies outside the 5 tokens"):
        late.finish()
    with pytest.raises(InputError, match="nothing was fed: give values"):
        StreamingSegmenter("F:3").feed()
