"""Recalled events: matching, calibration, order and tables, on planted retellings."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from fakes import fake_story, fake_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.event_matching import calibrated_level, first_mentions, match_sentences
from workbench.analysis.recall.lag import lag_crp
from workbench.analysis.recall.serial import serial_position
from workbench.analysis.recall_predictors import event_predictors, recall_table
from workbench.analysis.story_recall import event_texts, story_recall, transcript_sentences
from workbench.core.boundaries import Boundaries
from workbench.core.errors import DataError, InputError, MissingDataError
from workbench.encoders import CachedEncoder


class Bag:
    """Counts of words: an encoder whose similarities can be worked out by hand."""

    name = "bag"

    def __init__(self) -> None:
        self.place: dict[str, int] = {}
        self.calls: list[str] = []

    def encode(self, texts):
        self.calls += texts
        vectors = np.zeros((len(texts), 4000), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().replace(".", "").split():
                vectors[row, self.place.setdefault(word, len(self.place))] += 1
        return vectors


N_EVENTS = 6


def planted_story(name: str = "tale", seed: int = 0):
    """Six events of four sentences, each with words of its own, and their sentences."""
    events = [
        [
            " ".join(
                [
                    f"{name}{e}w{s}x{w}".capitalize() if w == 0 else f"{name}{e}w{s}x{w}"
                    for w in range(6)
                ]
            )
            + "."
            for s in range(4)
        ]
        for e in range(N_EVENTS)
    ]
    words = " ".join(s for event in events for s in event).split()
    return fake_story(words, name=name, author=np.arange(1, N_EVENTS) * 24), events


def retelling(events, order, per_event=2, rng=None):
    rng = rng or np.random.default_rng(0)
    return " ".join(
        events[e][s] for e in order for s in sorted(rng.choice(4, per_event, replace=False))
    )


def transcripts(texts: dict[tuple[str, str], str], condition: str = "") -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"subject": who, "story": story, "condition": condition, "text": text}
            for (who, story), text in texts.items()
        ]
    )


ORDERS = {"a": [3, 0, 5, 1], "b": [0, 1, 2, 3, 4, 5], "c": [5, 4], "d": [2, 5]}


@pytest.fixture(scope="module")
def planted():
    story, events = planted_story()
    table = transcripts({(who, "tale"): retelling(events, o) for who, o in ORDERS.items()})
    return story, story_recall(table, stories=story, encoder=Bag(), n_null=400)


def test_planted_order_is_recovered(planted):
    _, recall = planted
    sequences = recall.sequences
    for who, order in ORDERS.items():
        rows = sequences[(sequences["subject"] == who) & (sequences["trial_type"] == "recall")]
        assert rows["item"].tolist() == [event + 1 for event in order]
        assert rows["position"].tolist() == list(range(1, len(order) + 1))
        own = recall.events[recall.events["subject"] == who].set_index("event")
        assert set(own.index[own["recalled"] == 1]) == {event + 1 for event in order}
        assert [int(own.loc[event + 1, "order"]) for event in order] == list(
            range(1, len(order) + 1)
        )
        assert own.loc[own["recalled"] == 0, "order"].isna().all()
        assert (own.loc[own["recalled"] == 1, "n_sentences"] == 2).all()
    assert (sequences["list"] == "tale").all()


def test_retellings_take_part_in_every_recall_measure(planted):
    _, recall = planted
    b = lag_crp(recall).query("subject == 'b'").set_index("lag")["prob"]
    assert b[1] == 1.0
    assert b[-1] != b[-1] or b[-1] == 0
    c = lag_crp(recall).query("subject == 'c'").set_index("lag")["prob"]
    assert c[-1] == 1.0
    shares = serial_position(recall, pooled=True)["prob"].tolist()
    assert shares == [2 / 4, 2 / 4, 2 / 4, 2 / 4, 2 / 4, 4 / 4]


def test_level_row_says_what_was_done(planted):
    _, recall = planted
    row = recall.levels.iloc[0]
    assert (row["story"], row["n_events"], row["n_subjects"]) == ("tale", 6, 4)
    assert row["n_sentences"] == 2 * sum(map(len, ORDERS.values()))
    assert row["n_null"] >= 400
    assert row["null_passed"] <= 0.05
    assert row["recalled"] == pytest.approx(sum(map(len, ORDERS.values())) / 24)
    assert row["baseline"] < row["recalled"]
    summary = recall.summary(resamples=200)
    assert summary["story"].tolist() == ["tale"]
    assert summary["recalled"].item() == pytest.approx(row["recalled"])
    assert summary["ci_low"].item() < row["recalled"] < summary["ci_high"].item()
    assert summary["baseline"].item() == pytest.approx(row["baseline"])


def test_repeats_count_once_and_do_not_break_the_order():
    story, events = planted_story()
    said = " ".join([events[1][0], events[4][0], events[1][1], events[1][2], events[2][3]])
    other = retelling(events, range(6), 4)
    table = transcripts({("a", "tale"): said, ("b", "tale"): other})
    recall = story_recall(table, stories=story, encoder=Bag(), n_null=300)
    rows = recall.sequences.query("subject == 'a' and trial_type == 'recall'")
    assert rows["item"].tolist() == [2, 5, 3]
    sequences = recall.recall_sequences()
    assert sequences.n_repeats.sum() == 0
    assert sequences.n_intrusions.sum() == 0
    own = recall.events.query("subject == 'a'").set_index("event")
    assert own.loc[2, "n_sentences"] == 3


def test_sentences_about_something_else_belong_to_no_event():
    story, events = planted_story()
    _, others = planted_story("else")
    said = f"{events[0][0]} {others[0][0]} {others[1][1]} {events[3][1]}"
    table = transcripts({("a", "tale"): said, ("b", "tale"): retelling(events, range(6), 4)})
    recall = story_recall(table, stories=story, encoder=Bag(), n_null=300)
    rows = recall.sentences.query("subject == 'a'")
    assert rows["passed"].tolist() == [True, False, False, True]
    assert rows.loc[rows["passed"], "event"].tolist() == [1, 4]


def test_level_is_passed_by_five_per_cent_of_fresh_shuffles():
    story, events = planted_story()
    rng = np.random.default_rng(1)
    texts = {
        (f"s{i}", "tale"): retelling(events, rng.permutation(6)[:4], 3, rng) for i in range(12)
    }
    table = transcripts(texts)
    recall = story_recall(table, stories=story, encoder=Bag(), n_null=4000, seed=0)
    level = recall.levels["level"].item()
    vectors = CachedEncoder(Bag_ := Bag())
    targets = vectors.encode(event_texts(story, story.boundaries()))
    best = []
    for text in texts.values():
        words = text.split()
        sizes = [len(sentence.split()) for sentence in transcript_sentences(text)]
        for _ in range(60):
            mixed = [words[i] for i in rng.permutation(len(words))]
            edges = np.cumsum([0, *sizes])
            sentences = [" ".join(mixed[a:b]) for a, b in pairwise(edges)]
            best += (vectors.encode(sentences) @ targets.T).max(axis=1).tolist()
    assert Bag_.calls
    # Similarities of counts are few and tied: at most the rate, and the next level down exceeds it.
    values = np.array(best)
    assert (values > level + 1e-6).mean() < 0.06
    assert (values > level - 1e-6).mean() > 0.04


def test_null_of_other_stories_is_their_transcripts_as_they_were_said():
    (tale, events), (other, others) = planted_story(), planted_story("other")
    texts = {}
    for i in range(4):
        texts[(f"s{i}", "tale")] = retelling(events, range(6), 3)
        texts[(f"s{i}", "other")] = retelling(others, range(6), 3)
    recall = story_recall(transcripts(texts), stories=[tale, other], encoder=Bag(), null="stories")
    assert recall.levels["n_null"].tolist() == [4 * 18, 4 * 18]
    # The stories share no word: nothing said about the other passes, everything about this does.
    assert recall.levels["level"].tolist() == [0.0, 0.0]
    assert recall.levels["baseline"].tolist() == [0.0, 0.0]
    assert recall.levels["recalled"].tolist() == [1.0, 1.0]
    one = recall.select(story="other")
    assert set(one.events["story"]) == {"other"}
    assert list(one.boundaries) == ["other"]


def test_same_seed_same_result_and_each_text_encoded_once():
    story, events = planted_story()
    table = transcripts({("a", "tale"): retelling(events, [1, 2], 4)})
    bag = Bag()
    memo = CachedEncoder(bag)
    first = story_recall(table, stories=story, encoder=memo, seed=5)
    before = len(bag.calls)
    again = story_recall(table, stories=story, encoder=memo, seed=5)
    assert len(bag.calls) == before == len(set(bag.calls))
    pd.testing.assert_frame_equal(first.events, again.events)
    pd.testing.assert_frame_equal(first.levels, again.levels)


def test_event_texts_cover_the_story_and_sentences_the_transcript():
    story, _ = planted_story()
    texts = event_texts(story, story.boundaries())
    assert len(texts) == N_EVENTS
    assert " ".join(texts) == story.text
    said = "So,  he left.\nThen she came! And um. Mr. Smith went home"
    assert transcript_sentences(said) == [
        "So, he left.",
        "Then she came!",
        "And um.",
        "Mr. Smith went home",
    ]


# --- pure functions ----------------------------------------------------------------------------


@given(
    st.lists(st.floats(-1, 1), min_size=20, max_size=300), st.sampled_from([0.05, 0.1, 0.25, 0.5])
)
@settings(deadline=None)
def test_calibrated_level_is_the_least_that_holds_the_rate(values, rate):
    level = calibrated_level(values, rate)
    array = np.array(values)
    assert level in array
    assert (array > level).mean() <= rate + 1e-12
    lower = array[array < level]
    if len(lower):
        assert (array > lower.max()).mean() > rate - 1 / len(array)
        assert int((array > lower.max()).sum()) > int(np.floor(rate * len(array) + 1e-9))


@given(
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(0, 2**31),
)
@settings(deadline=None)
def test_matching_from_its_definition(n_sentences, n_events, seed):
    rng = np.random.default_rng(seed)
    similarity = rng.integers(0, 5, size=(n_sentences, n_events)) / 4
    found = match_sentences(similarity, 0.5)
    seen: list[int] = []
    for row, event in zip(similarity, found):
        best = max(row)
        assert event == (list(row).index(best) if best > 0.5 else -1)
        if event >= 0 and event not in seen:
            seen.append(int(event))
    assert first_mentions(found).tolist() == seen


def test_bad_levels_and_matrices():
    with pytest.raises(InputError, match="19 null sentences cannot show"):
        calibrated_level(np.zeros(19))
    with pytest.raises(InputError, match="must lie between 0 and 1"):
        calibrated_level(np.zeros(50), 1.5)
    with pytest.raises(InputError, match="not finite"):
        calibrated_level([np.nan] * 30)
    with pytest.raises(InputError, match="sentences × events"):
        match_sentences(np.zeros((3, 0)), 0.1)


# --- predictors --------------------------------------------------------------------------------


def presses(rows) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["subject", "time", "condition"])
    return table.assign(start=table["time"] - 0.5, end=table["time"] + 0.5, merged=False)


def test_predictors_from_their_definitions():
    table = presses(
        [("a", 5.9, "clear"), ("b", 4.0, "clear"), ("b", 4.5, "clear"), ("c", 5.0, "n")]
    )
    story = fake_story(12, seconds_per_word=1.0, presses=table)
    values = np.arange(12, dtype=float)
    values[0] = np.nan
    trace = fake_trace(values, story=story)
    cut = Boundaries([0, 4, 7], n=12, unit="word")
    found = event_predictors(story, cut, trace, window=1.0, first_words=2)
    assert found["n_words"].tolist() == [4, 3, 5]
    np.testing.assert_allclose(found["log_words"], np.log2([4, 3, 5]))
    assert found["position"].tolist() == [0, 0.5, 1]
    assert found["position_squared"].tolist() == [1, 0, 1]
    np.testing.assert_allclose(found["surprisal"], [2, 5, 9])
    np.testing.assert_allclose(found["onset_surprisal"], [1, 4.5, 7.5])
    # Onset 4 s: of the people in "clear", b pressed within 1 s, a did not; onset 7 s: nobody.
    np.testing.assert_allclose(found["boundary"], [np.nan, 0.5, 0.0])
    everyone = event_predictors(story, cut, condition="all", window=1.0)
    np.testing.assert_allclose(everyone["boundary"], [np.nan, 2 / 3, 0.0])
    assert everyone["surprisal"].isna().all()
    wide = event_predictors(story, cut, window=1.95)
    np.testing.assert_allclose(wide["boundary"], [np.nan, 1.0, 0.5])


def test_recall_table_joins_own_presses_and_predictors():
    story, events = planted_story()
    table = transcripts({(who, "tale"): retelling(events, o) for who, o in ORDERS.items()})
    timed = fake_story(
        story.text.split(),
        name="tale",
        seconds_per_word=1.0,
        author=np.arange(1, 6) * 24,
        presses=presses([("a", 24.5, ""), ("b", 100.0, "")]),
    )
    cut = Boundaries(np.arange(6) * 24, n=144, unit="word")
    recall = story_recall(table, cut, stories=timed, encoder=Bag(), n_null=300)
    joined = recall_table(recall, timed, fake_trace(np.ones(144), story=timed))
    assert len(joined) == 24
    own = joined.set_index(["subject", "event"])
    assert own.loc[("a", 2), "pressed"] == 1
    assert own.loc[("b", 2), "pressed"] == 0
    assert np.isnan(own.loc[("a", 1), "pressed"])
    assert np.isnan(own.loc[("c", 2), "pressed"])
    assert own.loc[("c", 2), "boundary"] == 0.5
    assert (joined["surprisal"] == 1).all()
    assert joined["recalled"].tolist() == recall.events["recalled"].tolist()


def test_bad_predictors():
    story = fake_story(12, seconds_per_word=1.0)
    cut = Boundaries([0, 4], n=12, unit="word")
    with pytest.raises(InputError, match="over 12 tokens"):
        event_predictors(story, Boundaries([0, 4], n=12))
    with pytest.raises(InputError, match="window=0"):
        event_predictors(story, cut, window=0)
    with pytest.raises(InputError, match="first_words=0"):
        event_predictors(story, cut, first_words=0)
    with pytest.raises(InputError, match="the trace has 5 words"):
        event_predictors(story, cut, fake_trace(np.ones(5)))
    story, events = planted_story()
    table = transcripts({("a", "tale"): retelling(events, range(6), 4)})
    recall = story_recall(table, stories=story, encoder=Bag(), n_null=300)
    with pytest.raises(InputError, match="give it in stories="):
        recall_table(recall, planted_story("else")[0])
    with pytest.raises(InputError, match="traces has none of story 'tale'"):
        recall_table(recall, story, fake_trace(np.ones(5)))


# --- bad input of story_recall -----------------------------------------------------------------


class Broken:
    def encode(self, texts):
        return np.zeros(3)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"null": "letters"}, InputError, "null='letters' is not known"),
        ({"null": "stories"}, InputError, "there are none"),
        ({"rate": 2.0}, InputError, "rate=2.0"),
        ({"events": Boundaries([0, 3], n=9, unit="word")}, InputError, "over 9 words"),
        ({"events": {}}, InputError, "events has none for story 'tale'"),
        ({"stories": "other"}, InputError, "no transcript retells it"),
        ({"encoder": 3}, InputError, "encoder is a int"),
        ({"encoder": Broken()}, Exception, "one vector per text"),
        ({"condition": "clear", "events": {}}, InputError, "leave it out when events are given"),
        ({"transcripts": pd.DataFrame({"subject": ["a"]})}, DataError, "no column 'story'"),
        ({"transcripts": "nowhere"}, InputError, "no such file or folder"),
    ],
)
def test_bad_input(change, error, message):
    story, events = planted_story()
    table = transcripts({("a", "tale"): retelling(events, range(6), 4)})
    options = {"transcripts": table, "stories": story, "encoder": Bag(), "n_null": 100, **change}
    if options["stories"] == "other":
        options["stories"] = [story, planted_story("other")[0]]
    with pytest.raises(error, match=message):
        story_recall(options.pop("transcripts"), options.pop("events", None), **options)


def test_no_annotation_and_no_events():
    story = fake_story(30, name="tale")
    with pytest.raises(MissingDataError, match="no boundaries by people or an author"):
        story_recall(transcripts({("a", "tale"): "W1 w2."}), stories=story, encoder=Bag())


def test_select_names_the_choices(planted):
    _, recall = planted
    with pytest.raises(InputError, match=r"story='x' is not known\. Choose one of: 'tale'"):
        recall.select(story="x")


def test_two_stories_need_a_mapping():
    (tale, events), (other, others) = planted_story(), planted_story("other")
    table = transcripts(
        {("a", "tale"): retelling(events, [1], 4), ("a", "other"): retelling(others, [1], 4)}
    )
    with pytest.raises(InputError, match="as a mapping"):
        story_recall(table, tale.boundaries(), stories=[tale, other], encoder=Bag())


# --- the real encoder --------------------------------------------------------------------------


@pytest.mark.model
def test_sentences_of_a_bundled_story_are_found_in_the_order_they_were_copied():
    import workbench
    from workbench.stories.sentences import sentence_starts

    name = workbench.list_stories().query("annotations.str.startswith('author')")["name"].iloc[0]
    story = workbench.load_story(name)
    cut = story.boundaries()
    words = story.text.split()
    edges = [*sentence_starts(story).tolist(), len(words)]
    spans = list(pairwise(edges))
    labels = cut.labels()
    rng = np.random.default_rng(0)
    order = rng.permutation(cut.n_events)[: min(8, cut.n_events)]
    said = []
    for event in order:
        inside = [s for s in spans if labels[s[0]] == event and labels[s[1] - 1] == event]
        said += [" ".join(words[a:b]) for a, b in sorted(inside, key=lambda s: s[0] - s[1])[:8]]
    recall = story_recall(
        transcripts({("copyist", name): " ".join(said)}), stories=story, n_null=200
    )
    rows = recall.sequences.query("trial_type == 'recall'")
    # Sentences are shorter than events; nearly all planted events must come out, in order.
    found = [item - 1 for item in rows["item"] if item - 1 in order]
    assert len(found) >= len(order) - 1
    places = [order.tolist().index(event) for event in found]
    assert np.mean(np.diff(places) > 0) >= 0.8
    # Twice as many as of shuffled words; short sentences are not specific enough to pass.
    assert recall.levels["passed"].item() > 2 * recall.levels["rate"].item()


@pytest.mark.model
@pytest.mark.slow
def test_eventnoise_is_scored_whole(data_folder):
    assert os.environ["WORKBENCH_DATA"] == str(data_folder)
    recall = story_recall("eventnoise")
    assert recall.levels["n_subjects"].tolist() == [34, 34, 34]
    assert (recall.levels["recalled"] > recall.levels["baseline"]).all()
    forward = lag_crp(recall, pooled=True).set_index("lag")["prob"]
    assert forward[1] > 2 * forward[-1]
