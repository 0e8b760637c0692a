"""From times to words, and sentences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.errors import InputError, MissingDataError
from workbench.core.story import Annotation, Story
from workbench.stories import sentences
from workbench.stories.alignment import untimed_words, word_spans
from workbench.stories.presses import presses_from_times
from workbench.stories.sentences import lack_of_sentences, sentence_starts_of_text, splitter
from workbench.stories.timing import RULES, annotated_boundaries, gap_times, times_to_words

ONSETS = np.array([0.0, 1.0, 2.0, 5.0, 6.0, 7.0])
OFFSETS = np.array([0.8, 1.9, 2.5, 5.5, 6.5, 7.5])
STARTS = np.array([0, 3, 5])


# --- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "times", "expected"),
    [
        ("next", [2.7], [3]),  # in the pause: the new sentence's first word
        ("next", [5.0], [3]),  # at the onset itself
        ("next", [5.2], [4]),
        ("next", [-1.0, 0.0], []),  # word 0 always starts an event
        ("next", [7.1, 100.0], []),  # after the last onset
        ("previous", [2.7], [2]),
        ("previous", [5.0, 5.2, 7.5], [3, 5]),
        ("previous", [-1.0, 0.5], []),
        ("nearest", [2.7, 3.6], [2, 3]),
        ("nearest", [3.5], [2]),  # a tie goes to the earlier word
        ("nearest", [7.5], [5]),
        # people press when the story is over, too, and before it has begun
        ("previous", [7.51, 100.0], []),
        ("nearest", [-4.0, 7.51, 100.0], []),
        ("sentence", [-0.1, 7.51, 100.0], []),
        ("sentence", [0.1, 3.7], [3]),  # gaps at 3.75 and 6.75
        ("sentence", [5.25], [3]),  # a tie goes to the earlier gap
        ("sentence", [5.3, 7.5], [5]),
        ("next", [2.7, 2.8, 2.9], [3]),
        ("next", [], []),
    ],
)
def test_rules_by_hand(rule: str, times: list[float], expected: list[int]) -> None:
    assert times_to_words(times, ONSETS, OFFSETS, rule, STARTS).tolist() == expected


def test_gap_times() -> None:
    np.testing.assert_allclose(gap_times(ONSETS, OFFSETS, STARTS), [3.75, 6.75])


def slow_rule(
    t: float, onset: list[float], offset: list[float], rule: str, starts: list[int]
) -> int:
    n = len(onset)
    if t < onset[0]:
        return 0
    if t > offset[-1]:
        return n
    if rule == "next":
        return next((i for i in range(n) if onset[i] >= t), n)
    if rule == "previous":
        return max((i for i in range(n) if onset[i] <= t), default=0)
    if rule == "nearest":
        return min(range(n), key=lambda i: (abs(onset[i] - t), i))
    inner = [s for s in starts if s > 0]
    gaps = {s: (offset[s - 1] + onset[s]) / 2 for s in inner}
    return min(inner, key=lambda s: (abs(gaps[s] - t), s)) if inner else 0


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12).map(sorted),
    st.lists(st.integers(-5, 50), max_size=8),
    st.sets(st.integers(1, 11), max_size=4),
    st.sampled_from(RULES),
)
def test_rules_follow_their_definitions(
    onset: list[int], times: list[int], chosen: set[int], rule: str
) -> None:
    # Whole and half seconds are exact, so that ties are ties.
    offset = [*onset[1:], onset[-1] + 1]
    starts = [0, *sorted(s for s in chosen if s < len(onset))]
    words = [slow_rule(t, onset, offset, rule, starts) for t in times]
    expected = sorted({word for word in words if 0 < word < len(onset)})
    assert times_to_words(times, onset, offset, rule, starts).tolist() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], ONSETS, OFFSETS, "closest"), "rule='closest' is not known.*'sentence'"),
        (([1.0], ONSETS, OFFSETS, "sentence"), "needs sentence_starts"),
        (([np.nan], ONSETS, OFFSETS, "next"), "times must be finite"),
        (([1.0], ONSETS[::-1], OFFSETS, "next"), "onsets must be finite and must not decrease"),
        (([1.0], [0.0, np.nan], [1.0, 1.0], "next"), "onsets must be finite"),
    ],
)
def test_bad_arguments(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        times_to_words(*arguments)


# --- boundaries of stories ---------------------------------------------------------------------


def story_of(*annotations: Annotation, text: str = "It rained. Then it all stopped.") -> Story:
    words = word_spans(text)
    n = len(words)
    words = words.assign(onset=ONSETS[:n], offset=OFFSETS[:n], timed=True)
    return Story("test", text, words, annotations)


PUBLISHED = Annotation("people", "published", times=np.array([2.7, 2.8, 6.1, 99.0]))
PRESSES = Annotation(
    "people",
    "presses",
    presses=presses_from_times([1, 2, 1, 2, 3], [1.5, 1.5, 4.0, 5.5, 5.5]),
    duration=8.0,
)
AUTHOR = Annotation("author", "scenes", words=np.array([2]))
MODEL = Annotation("model", "gpt", times=np.array([1.5]))


def test_published_times_become_boundaries() -> None:
    boundaries = annotated_boundaries(story_of(PUBLISHED, AUTHOR))
    assert boundaries.starts.tolist() == [0, 3, 5]
    assert (boundaries.method, boundaries.unit, boundaries.n) == ("H", "word", 6)
    assert boundaries.strength is None
    assert boundaries.settings == {
        "kind": "people",
        "source": "published",
        "rule": "next",
        "n_times": 4,
        "n_outside": 1,
        "n_merged": 1,
    }


def test_presses_become_boundaries_with_a_strength() -> None:
    boundaries = annotated_boundaries(
        story_of(PUBLISHED, PRESSES), source="presses", percentile=50, step=0.01
    )
    assert boundaries.settings["source"] == "presses"
    assert boundaries.strength is not None
    assert len(boundaries.strength) == boundaries.n_events - 1
    assert (boundaries.strength > 0).all()


def test_the_k_most_likely_positions() -> None:
    story = story_of(PUBLISHED, PRESSES)
    # Two of three people at 1.5 and 5.5 s, one at 4 s.
    assert story.boundaries(n_boundaries=2).starts.tolist() == [0, 2, 4]
    assert story.boundaries(n_boundaries=3).starts.tolist() == [0, 2, 3, 4]
    assert story.boundaries(n_boundaries=3).settings["source"] == "presses"
    with pytest.raises(MissingDataError, match=r"'test' .* and 40 were asked for"):
        story.boundaries(n_boundaries=40)
    with pytest.raises(MissingDataError, match=r"2 most likely human positions .* not public"):
        story_of(PUBLISHED).boundaries(n_boundaries=2)


def test_the_three_kinds_are_never_mixed() -> None:
    story = story_of(AUTHOR, MODEL, PUBLISHED)
    assert annotated_boundaries(story).method == "H"
    author = annotated_boundaries(story, kind="author")
    assert (author.starts.tolist(), author.method) == ([0, 2], "author")
    model = annotated_boundaries(story, kind="model")
    assert (model.starts.tolist(), model.method) == ([0, 2], "model")
    assert annotated_boundaries(story_of(AUTHOR, MODEL)).method == "author"
    with pytest.raises(MissingDataError, match="no boundaries by people or an author"):
        annotated_boundaries(story_of(MODEL))
    with pytest.raises(MissingDataError, match=r"no per-person presses|no annotation"):
        annotated_boundaries(story_of(AUTHOR), kind="people")
    with pytest.raises(InputError, match="kind='reader' is not known"):
        annotated_boundaries(story, kind="reader")
    with pytest.raises(InputError, match="percentile= belongs to people's presses"):
        annotated_boundaries(story, kind="author", percentile=90)


def test_no_word_times_is_an_error() -> None:
    text = "It rained. Then it all stopped."
    story = Story("silent", text, untimed_words(text), (PUBLISHED,))
    with pytest.raises(MissingDataError, match="needs word times, and story 'silent' has none"):
        story.boundaries()


def test_the_sentence_rule_uses_the_sentences_of_the_text() -> None:
    assert story_of(PUBLISHED).boundaries(rule="sentence").starts.tolist() == [0, 2]
    words = " ".join(["word"] * 300)
    table = word_spans(words).assign(onset=np.arange(300.0), offset=np.arange(300.0), timed=True)
    story = Story("flat", words, table, (PUBLISHED,))
    with pytest.raises(
        MissingDataError, match=r"'sentence' cannot .* 300 words .* finds 1 sentence"
    ):
        story.boundaries(rule="sentence")
    assert lack_of_sentences(story_of(PUBLISHED)) == ""


# --- sentences ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.", [0]),
        ("He came. She left! Why? Nobody knows.", [0, 2, 4, 5]),
        ("Dr. Smith met Mr. Jones at 5 p.m. yesterday. Then they left.", [0, 9]),
        ('"Stop!" she said.  He   stopped.', [0, 3]),
        ("No punctuation at all", [0]),
        ("Again. Again. Again.", [0, 1, 2]),
        ("A\u00a0line. Another\nline.", [0, 2, 3]),
    ],
)
def test_sentence_starts(text: str, expected: list[int]) -> None:
    assert sentence_starts_of_text(text).tolist() == expected


def test_a_splitter_that_changes_whitespace_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "First  thing. Second\tthing.Third thing. Fourth one."
    pieces = ["First thing.  ", "Second thing.", "Third thing.\n", "lost", " Fourth   one."]
    monkeypatch.setattr(sentences, "_sentences", lambda _: pieces)
    # The third starts inside the word "thing.Third"; the word after it is its first whole one.
    # "lost" is not in the text, and nothing is made of it.
    assert sentences._starts.__wrapped__(text) == (0, 2, 4, 5)


@given(st.lists(st.sampled_from(["Yes.", "No!", "He", "left.", "Mr.", "3.5", "..."]), min_size=1))
def test_starts_are_ordered_and_begin_with_0(words: list[str]) -> None:
    starts = sentence_starts_of_text(" ".join(words))
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    assert starts[-1] < len(words)


def test_the_splitter_is_named() -> None:
    assert splitter().startswith("pysbd 0.")
