"""Texts of the tasks: exact lengths, what stands where, what is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_lm import tiny_tokenizer

from workbench.core.errors import InputError
from workbench.tasks.items import Item, Question, count_tokens, fitted, token_span
from workbench.tasks.key_value import KeyValue
from workbench.tasks.needle import Needle, extend
from workbench.tasks.passkey import FILLER, LABELS, Passkey

TOKENIZER = tiny_tokenizer()
DEPTHS = st.lists(st.integers(0, 20).map(lambda i: i / 20), min_size=1, max_size=5, unique=True)
KEY_LINE = r"The pass key((?: for \w+)?) is (\d{5})\. Remember it\. \2 is the pass key\1\."


def n_tokens(text: str) -> int:
    return len(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def longest(item: Item) -> int:
    return n_tokens(item.text) + max(n_tokens(q.prompt) for q in item.questions)


@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from(["fot", "infinitebench"]),
    labelled=st.booleans(),
    length=st.integers(620, 3000),
    depths=DEPTHS,
    seed=st.integers(0, 2**31),
)
def test_passkey_texts(form, labelled, length, depths, seed):
    items = Passkey(form, labelled).items(TOKENIZER, length, depths, seed)
    assert len(items) == (1 if labelled else len(depths))
    asked = [question for item in items for question in item.questions]
    assert [question.depth for question in asked] == depths
    sentence = max(n_tokens("\n" + line) for line in FILLER)
    for item in items:
        assert item.n_tokens == longest(item)
        assert item.n_text == n_tokens(item.text)
        assert length - sentence <= item.n_tokens <= length
        lines = re.findall(KEY_LINE, item.text)
        assert len(lines) == len(item.questions)
        assert len({key for _, key in lines}) == len(lines)
        # Without keys there is the instruction and an unbroken cycle of filler.
        body = re.sub(KEY_LINE + "\n?", "", item.text).split("\n", 1)[1]
        sentences = re.findall(r"[^.\s][^.]*\.", body)
        cycle = [FILLER[i % 5] for i in range(len(sentences))]
        assert sentences == cycle
        for question in item.questions:
            a, b = question.chars
            label, key = re.fullmatch(KEY_LINE, item.text[a:b]).groups()
            assert key == question.answer
            assert label == (f" for {question.label}" if labelled else "")
            assert 10_000 <= int(key) <= 99_999
            assert question.prompt.endswith(f"The pass key{label} is")
            # As many sentences (lines of five) stand before it as the depth says.
            before = re.sub(KEY_LINE + "\n?", "", item.text[:a]).split("\n", 1)[1]
            count = len(re.findall(r"[^.\s][^.]*\.", before))
            if form == "fot":
                assert count == round(question.depth * len(sentences))
            else:
                groups = -(-len(sentences) // 5)
                assert count == min(5 * round(question.depth * groups), len(sentences))


@pytest.mark.parametrize("form", ["fot", "infinitebench"])
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_the_tokens_of_the_key_line_decode_to_it(form, depth):
    (item,) = Passkey(form).items(TOKENIZER, 700, [depth], 5)
    (question,) = item.questions
    first, last = question.tokens
    ids = TOKENIZER(item.text, add_special_tokens=False)["input_ids"]
    decoded = TOKENIZER.decode(ids[first:last])
    line = item.text[slice(*question.chars)]
    assert line in decoded
    assert line not in TOKENIZER.decode(ids[first + 1 : last])
    assert line not in TOKENIZER.decode(ids[first : last - 1])


def test_a_tokenizer_without_offsets_gives_the_same_span():
    class Slow:
        is_fast = False

        def __call__(self, text, **options):
            return TOKENIZER(text, add_special_tokens=False)

        def decode(self, ids, **options):
            return TOKENIZER.decode(ids, **options)

    text = "There it is. The pass key is 12345. Here we go."
    span = text.index("The pass"), text.index(" Here")
    assert token_span(Slow(), text, span) == token_span(TOKENIZER, text, span)


def test_seeds_and_labels():
    task = Passkey(labelled=True)
    (one,) = task.items(TOKENIZER, 1500, [0, 0.5, 1], 0)
    assert task.items(TOKENIZER, 1500, [0, 0.5, 1], 0) == [one]
    first_labels = {
        task.items(TOKENIZER, 1500, [0, 0.5, 1], seed)[0].questions[0].label for seed in range(12)
    }
    assert len(first_labels) > 3  # a depth is not tied to a label
    keys = {Passkey().items(TOKENIZER, 700, [d], s)[0].questions[0].answer for d, s in
            [(0, 0), (0.5, 0), (0, 1), (0.5, 1)]}  # fmt: skip
    assert len(keys) == 4
    assert len(set(LABELS)) == len(LABELS)


def test_room_for_the_answer():
    (item,) = Passkey().items(TOKENIZER, 700, [0.5], 0)
    question = item.questions[0]
    assert question.max_new_tokens == max(8, n_tokens(" " + question.answer) + 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Passkey("fo"), "form='fo' is not known. Choose one of: 'fot', 'infinitebench'"),
        (lambda: Passkey().items(TOKENIZER, 20, [0.5], 0), "length=20: a passkey-fot text needs"),
        (lambda: Passkey().items(TOKENIZER, 900, [], 0), "depths is empty"),
        (lambda: Passkey().items(TOKENIZER, 900, [1.2], 0), "depth=1.2 must lie between 0"),
        (lambda: Passkey().items(TOKENIZER, 900, [float("nan")], 0), "depth=nan must lie"),
        (lambda: Passkey().items(TOKENIZER, 900, [0.5, 0.5], 0), "names a depth twice"),
        (
            lambda: Passkey(labelled=True).items(TOKENIZER, 9000, np.linspace(0, 1, 21), 0),
            "21 depths for 20 labels",
        ),
        (lambda: KeyValue().items(TOKENIZER, 20, [0.5], 0), "length=20: a key-value text needs"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(InputError, match=re.escape(message)):
        call()


@settings(max_examples=25, deadline=None)
@given(length=st.integers(400, 4000), depths=DEPTHS, seed=st.integers(0, 1000))
def test_key_value_texts(length, depths, seed):
    (item,) = KeyValue().items(TOKENIZER, length, depths, seed)
    pairs = json.loads(item.text[item.text.index("{") :])
    assert len(set(pairs) | set(pairs.values())) == 2 * len(pairs)
    keys = list(pairs)
    for question, depth in zip(item.questions, depths):
        key = keys[round(depth * (len(pairs) - 1))]
        assert question.label == key
        assert question.answer == pairs[key]
        assert f'Key: "{key}"' in question.prompt
        assert item.text[slice(*question.chars)] == f'"{key}": "{pairs[key]}"'
        assert question.max_new_tokens > n_tokens(question.answer)
    assert item.n_tokens == longest(item) <= length
    # One more pair of this or a longer kind would not have fitted.
    pair = max(n_tokens(f'"{k}": "{v}", ') for k, v in pairs.items())
    assert item.n_tokens + pair + 40 > length


def story(sentences: int) -> str:
    words = ["rain", "town", "stone", "river", "bell", "lamp", "door", "ship"]
    return " ".join(
        f"Sentence {i} tells of the {words[i % 8]} and the {words[(i * 3 + 1) % 8]}."
        for i in range(sentences)
    )


def needle_task(sentences: int = 80, **more) -> Needle:
    return Needle(
        story(sentences), "The parrot is called Otto.", "The parrot is called", "Otto", **more
    )


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(200, 1200),
    depth=st.integers(0, 8).map(lambda i: i / 8),
    seed=st.integers(0, 3),
)
def test_needles(length, depth, seed):
    task = needle_task()
    (item,) = task.items(TOKENIZER, length, [depth], seed)
    (question,) = item.questions
    assert item.text[slice(*question.chars)] == task.needle
    rest = item.text[: question.chars[0]] + item.text[question.chars[1] + 1 :]
    assert rest.strip() in task.haystack
    assert task.haystack.startswith(rest.strip()) == (seed == 0)
    sentence = n_tokens(" Sentence 79 tells of the stone and the stone.")
    assert length - sentence - 3 <= item.n_tokens == longest(item) <= length
    numbers = [int(n) for n in re.findall(r"Sentence (\d+)", item.text)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    before = len(re.findall("Sentence", item.text[: question.chars[0]]))
    assert before == round(depth * len(numbers))


def test_a_short_haystack_is_refused_or_extended():
    with pytest.raises(InputError, match=r"the haystack has about \d+ tokens; give a longer text"):
        needle_task(5).items(TOKENIZER, 900, [0.5], 0)
    (item,) = needle_task(5, extend=True).items(TOKENIZER, 900, [0.5], 0)
    assert 900 - 20 <= item.n_tokens == longest(item) <= 900
    assert item.text[slice(*item.questions[0].chars)] == "The parrot is called Otto."
    bare = item.text.replace("The parrot is called Otto.", "")
    for line in FILLER:
        bare = bare.replace(line, "")
    assert bare.split() == story(5).split()


def test_a_text_without_punctuation_is_cut_between_words():
    task = Needle(" ".join(f"word{i}" for i in range(300)), "Otto sings.", "Who sings?", "Otto")
    (item,) = task.items(TOKENIZER, 300, [0.5], 0)
    assert 290 <= item.n_tokens <= 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"haystack": "  "}, "haystack is empty"),
        ({"answer": ""}, "answer is empty"),
        ({"answer": "Ottokar"}, "does not contain the answer 'Ottokar'"),
        ({"haystack": "Otto was there."}, "the haystack contains the answer 'Otto' already"),
        ({"question": "Is it Otto?"}, "contains the answer"),
    ],
)
def test_needles_that_test_nothing_are_refused(change, message):
    given = {"haystack": story(3), "needle": "It is Otto.", "question": "Who?", "answer": "Otto"}
    with pytest.raises(InputError, match=re.escape(message)):
        Needle(**{**given, **change})


def test_each_seed_takes_its_own_stretch():
    task = needle_task(30)
    # 12 sentences or so: several stretches, but not a hundred.
    texts = {task.items(TOKENIZER, 250, [1.0], seed)[0].text for seed in range(5)}
    assert len(texts) == 5
    with pytest.raises(InputError, match=r"seed=99: the haystack holds \d+ different stretches"):
        task.items(TOKENIZER, 250, [1.0], 99)


@settings(max_examples=40, deadline=None)
@given(before=st.integers(0, 30), after=st.integers(0, 30), more=st.integers(0, 1500))
def test_extend_keeps_the_relative_place(before, after, more):
    left, right = story(before) + " " * (before > 0), " " * (after > 0) + story(after)
    text = left + "NEEDLE." + right
    span = len(left), len(left) + 7
    question = "\nWhere?"
    length = n_tokens(text) + n_tokens(question) + more
    found, place = extend(text, span, length, TOKENIZER, question=question)
    assert found[slice(*place)] == "NEEDLE."
    total = n_tokens(found) + n_tokens(question)
    sentence = max(n_tokens(" " + line) for line in FILLER)
    assert length - sentence - 2 <= total <= length
    bare = found
    for line in FILLER:
        bare = bare.replace(line, "")
    assert bare.split() == text.split()
    share = n_tokens(left) / max(1, n_tokens(left) + n_tokens(right))
    if before or after:
        now = n_tokens(found[: place[0]])
        now /= max(1, now + n_tokens(found[place[1] :]))
        assert abs(now - share) <= 2 * sentence / total


def test_extend_refuses():
    with pytest.raises(InputError, match="must be a span of the text's 5 characters"):
        extend("short", (3, 9), 50, TOKENIZER)
    with pytest.raises(InputError, match="length=3: the text needs at least"):
        extend(story(3), (0, 5), 3, TOKENIZER)


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    length=st.integers(3, 300),
    guess=st.floats(0.2, 30),
)
def test_fitted_finds_the_longest(sizes, length, guess):
    """Units of any size: the most of them that fit, whatever is guessed about their size."""

    class Letters:
        is_fast = True

        def __call__(self, text, return_offsets_mapping=False, **options):
            found = {"input_ids": list(text)}
            if return_offsets_mapping:
                found["offset_mapping"] = [(i, i + 1) for i in range(len(text))]
            return found

    def build(count: int) -> Item:
        text = "x" + "".join("a" * size for size in sizes[:count])
        return Item(text, (Question("?", "x", 0.0, (0, 1)),))

    item = fitted(build, Letters(), length, per_unit=guess, what="it", most=len(sizes))
    fitting = [k for k in range(len(sizes) + 1) if 2 + sum(sizes[:k]) <= length]
    assert item.n_tokens == 2 + sum(sizes[: max(fitting)])
    assert count_tokens(Letters(), item.text) == item.n_text
