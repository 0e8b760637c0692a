"""record(attention=...): variables, options, files, and reducers of one's own."""

from __future__ import annotations

import numpy as np
import oracles_attention as oracle
import pytest
import torch
import xarray as xr
from tiny_lm import tiny_lm

import workbench as wb
from workbench.core.errors import InputError
from workbench.core.story import Story
from workbench.recording.reducers import (
    Distance,
    Entropy,
    First,
    FullRows,
    Inside,
    InsideDraws,
    Lag,
    Reducer,
    Spans,
    Top,
    lag_edges,
    make_reducers,
)
from workbench.stories.alignment import untimed_words

TEXT = "It rained on the town, and the town did not mind. She said: stay! He left at noon. " * 3


@pytest.fixture(scope="module")
def lm():
    return tiny_lm()


@pytest.fixture(scope="module")
def story():
    return Story("rain", TEXT, untimed_words(TEXT))


@pytest.fixture(scope="module")
def matrix(lm, story):
    ids = torch.from_numpy(wb.record(story, lm).dataset["token_id"].values)
    ids = torch.cat([torch.tensor([0]), ids])[None]
    lm.model.set_attn_implementation("eager")
    found = oracle.eager_attentions(lm.model, ids)
    lm.model.set_attn_implementation("sdpa")
    return found


def test_statistics_stand_beside_surprisal_and_keys(lm, story, matrix, tmp_path):
    plain = wb.record(story, lm)
    trace = wb.record(story, lm, attention=("lag", "entropy", "distance", "first", "sink"))
    np.testing.assert_array_equal(trace.surprisal, plain.surprisal)
    np.testing.assert_array_equal(trace.keys(), plain.keys())
    data = trace.dataset
    assert data["attention_entropy"].dims == ("layer", "head", "token")
    assert data["attention_lag"].dims == ("layer", "head", "part", "lag_bin")
    assert data["head"].values.tolist() == [0, 1, 2, 3]
    assert data["attention_entropy"].attrs["units"] == "nat"
    np.testing.assert_allclose(
        data["attention_entropy"], oracle.entropy(matrix[:, :, 1:]), atol=1e-5
    )
    np.testing.assert_allclose(
        data["attention_distance"], oracle.distance(matrix)[:, :, 1:], atol=1e-4
    )
    assert [s["name"] for s in trace.settings["attention_statistics"]] == [
        *("lag", "entropy", "distance", "first", "sink")
    ]
    assert plain.settings["attention_statistics"] == []
    again = wb.load_trace(trace.save(tmp_path / "trace.zarr"))
    xr.testing.assert_identical(again.dataset, data)


def test_mass_by_lag_adds_up(lm, story, matrix):
    """Mean × pairs, over all lags, is all attention that goes to the text."""
    trace = wb.record(story, lm, attention="lag")
    data = trace.dataset
    mass = (data["attention_lag"].fillna(0) * data["attention_lag_pairs"]).sum(["part", "lag_bin"])
    np.testing.assert_allclose(mass, matrix[:, :, 1:, 1:].sum((-1, -2)), rtol=1e-5)
    n = trace.n_tokens
    assert int(data["attention_lag_pairs"].sum()) == n * (n + 1) // 2


def test_first_tokens_can_be_left_out_of_the_lags(lm, story, matrix):
    trace = wb.record(story, lm, attention=Lag(parts=2, without_first=3), bos="<|endoftext|>")
    data = trace.dataset
    edges = np.append(data["lag_first"], data["lag_last"][-1] + 1)
    lag, pairs = oracle.lag_means(matrix, edges, data["part_first"].values, 1, without_first=3)
    np.testing.assert_array_equal(data["attention_lag_pairs"], pairs)
    np.testing.assert_allclose(data["attention_lag"], lag, atol=1e-6)


def test_chosen_layers_and_heads_without_keys(lm, story, matrix):
    trace = wb.record(
        story, lm, layers=[0, -1], attention_heads=[1, 3], keys=False, attention=Entropy()
    )
    assert trace.dataset["layer"].values.tolist() == [0, 2]
    assert "key" not in trace.dataset
    expected = oracle.entropy(matrix[[0, 2]][:, [1, 3], 1:])
    np.testing.assert_allclose(trace.dataset["attention_entropy"], expected, atol=1e-5)


def test_events_of_words_tokens_and_methods(lm, story, matrix):
    plain = wb.record(story, lm)
    words = wb.Boundaries([0, 11, 30], n=story.n_words, unit="word")
    tokens = plain.to_tokens(words)
    for events in (words, tokens):
        trace = wb.record(story, lm, attention="inside", events=events)
        np.testing.assert_allclose(
            trace.dataset["attention_inside"],
            oracle.inside(matrix, tokens.starts.tolist(), 1),
            atol=1e-5,
        )
    trace = wb.record(story, lm, attention="inside", events="F:20")
    expected = wb.segment(plain, "F:20")
    settings = trace.settings["attention_statistics"][0]
    assert settings["starts"] == expected.starts.tolist()
    assert settings["method"] == expected.method
    np.testing.assert_allclose(
        trace.dataset["attention_inside"],
        oracle.inside(matrix, expected.starts.tolist(), 1),
        atol=1e-5,
    )


def test_spans_per_token_and_as_boundaries(lm, story, matrix):
    n = wb.record(story, lm).n_tokens
    trace = wb.record(story, lm, attention=Spans([(0, 10), (5, n)], per_token=True))
    expected = np.stack([matrix[:, :, 1:, 1:11].sum(-1), matrix[:, :, 1:, 6:].sum(-1)], axis=-1)
    np.testing.assert_allclose(trace.dataset["attention_spans"], expected, atol=1e-6)
    halves = wb.Boundaries([0, n // 2], n=n)
    trace = wb.record(story, lm, attention="spans", spans=halves)
    own = trace.dataset["attention_spans"].values
    assert (own[:, :, 0, 1] == 0).all()  # nothing looks ahead
    expected = matrix[:, :, 1 + n // 2 :, 1 : 1 + n // 2].sum(-1).mean(-1)
    np.testing.assert_allclose(own[:, :, 1, 0], expected, atol=1e-6)


def test_a_reducer_of_ones_own(lm, story, matrix):
    class Most(Reducer):
        name = "most"

        def start(self, reading):
            self.most = np.zeros((len(reading.layers), len(reading.heads)))

        def update(self, rows):
            most = rows.probability.amax(dim=(1, 2)).cpu().numpy()
            place = rows.place, rows.heads
            self.most[place] = np.maximum(self.most[place], most)

        def finish(self):
            return {"attention_most": xr.Variable(("layer", "head"), self.most)}

    trace = wb.record(story, lm, attention=["entropy", Most()])
    np.testing.assert_allclose(
        trace.dataset["attention_most"], matrix[:, :, 1:].max((-1, -2)), atol=1e-6
    )


def test_windows_of_a_long_text(lm, story):
    """Each token's row is that of the window that scores it; a window's start token is no text."""
    from workbench.recording.windows import plan_windows

    plain = wb.record(story, lm, keys=False)
    n, ids = plain.n_tokens, torch.from_numpy(plain.dataset["token_id"].values)
    starts, spans = [0, 9, 31, 60], [(0, 20), (30, 70)]
    trace = wb.record(
        story,
        lm,
        keys=False,
        window=41,
        min_context=12,
        attention=[
            *("entropy", "distance", "first"),
            Lag(parts=3, exact=4),
            Inside(wb.Boundaries(starts, n=n)),
            InsideDraws([starts]),
            Spans(spans, per_token=True),
            FullRows(range(n)),
            Top(2),
        ],
    )
    windows = trace.settings["windows"]
    assert windows["starts"][:2] == [0, windows["starts"][1]]
    matrix = np.zeros((3, 4, n, n + 1))  # key 0: the start token of the window
    first = np.zeros((3, 4, n))
    lm.model.set_attn_implementation("eager")
    for part in plan_windows(n, 40, 12):
        read = torch.cat([torch.tensor([0]), ids[part.start : part.stop]])[None]
        found = oracle.eager_attentions(lm.model, read)[:, :, 1:]
        rows = slice(part.first, part.stop)
        fresh = found[:, :, part.first - part.start :]
        matrix[:, :, rows, part.start + 1 : part.stop + 1] = fresh[..., 1:]
        matrix[:, :, rows, 0] = fresh[..., 0]
        first[:, :, rows] = fresh[..., :4].sum(-1)
    lm.model.set_attn_implementation("sdpa")
    data = trace.dataset
    np.testing.assert_allclose(data["attention_rows"], matrix, atol=1e-6)
    np.testing.assert_allclose(data["attention_entropy"], oracle.entropy(matrix), atol=1e-5)
    np.testing.assert_allclose(data["attention_first"], first, atol=1e-6)
    whole = np.concatenate([np.zeros((3, 4, 1, n + 1)), matrix], axis=2)
    inside = oracle.inside(whole, starts, 1)
    np.testing.assert_allclose(data["attention_inside"], inside, atol=1e-6)
    np.testing.assert_allclose(
        data["attention_inside_draws"].values[..., 0], inside.mean(-1), atol=1e-6
    )
    mass = np.stack([matrix[..., a + 1 : b + 1].sum(-1) for a, b in spans], axis=-1)
    np.testing.assert_allclose(data["attention_spans"], mass, atol=1e-6)
    text = matrix[..., 1:]
    lag = (data["attention_lag"].fillna(0) * data["attention_lag_pairs"]).sum("part")
    lags = np.arange(n)[:, None] - np.arange(n)[None, :]
    for b, (low, high) in enumerate(zip(data["lag_first"].values, data["lag_last"].values)):
        chosen = (lags >= low) & (lags <= high)
        np.testing.assert_allclose(lag[..., b], text[:, :, chosen].sum(-1), atol=1e-5)
    seen = (text[0, 0] > 0).sum()
    assert int(data["attention_lag_pairs"].sum()) == seen
    picked = data["attention_top_token"].values
    best = np.take_along_axis(matrix, np.maximum(picked, -1) + 1, axis=-1)
    np.testing.assert_allclose(
        np.nan_to_num(data["attention_top"]), best * (picked > -2), atol=1e-6
    )


def test_memory_grows_with_the_text_not_with_its_square(lm):
    """Buffers of a block, and a number per token: doubling the text doubles them."""
    from workbench.recording.attention import AttentionObserver
    from workbench.recording.instruments import Instruments

    def largest(n):
        observer = AttentionObserver([Entropy(), Lag(), Distance()], range(3), range(4), n)
        ids = torch.randint(1, 200, (1, n), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode(), Instruments(lm.model, [observer]):
            lm.model(ids, use_cache=False, logits_to_keep=1)
        return sum(b.numel() for b in observer._buffers.values()), n * n * 4

    few, _ = largest(600)
    many, whole = largest(1200)
    assert many < 2.1 * few
    assert many < whole / 2


def test_lag_bins():
    assert lag_edges(1).tolist() == [0, 1]
    assert lag_edges(5, exact=16).tolist() == [0, 1, 2, 3, 4, 5]
    edges = lag_edges(2000, exact=4, per_doubling=1)
    assert edges.tolist() == [0, 1, 2, 3, 4, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2000]
    for n in (2, 17, 18, 100, 6001):
        edges = lag_edges(n)
        assert edges[0] == 0
        assert edges[-1] == n
        assert (np.diff(edges) > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "entropie"}, r"attention='entropie' is not known. Choose one of: 'lag'"),
        ({"attention": ()}, "attention is empty"),
        ({"attention": ("entropy", "entropy")}, "'entropy' is there twice"),
        ({"attention": "inside"}, r'"inside" needs events='),
        ({"attention": "spans"}, r'"spans" needs spans='),
        ({"events": "S"}, "belong to attention="),
        ({"attention": "entropy", "attention_heads": 4}, r"attention_heads: 4 is outside .* 3"),
        ({"attention": "inside", "events": wb.Boundaries([0], n=5)}, "events cut 5 tokens"),
        ({"attention": "inside", "events": 7}, "Boundaries over tokens or words, or a method"),
        ({"attention": Spans([(0, 9999)])}, r"\(0, 9999\) ends after the text's"),
        ({"attention": Top(tokens=[9999])}, "Top: tokens must be some of 0"),
        ({"attention": FullRows([0], layers=[7])}, r"FullRows: layer \[7\] is not recorded"),
        ({"attention": InsideDraws([[0, 9999]])}, "9999 is not a token of a text of"),
    ],
)
def test_bad_input_by_message(lm, story, options, message):
    with pytest.raises(InputError, match=message):
        wb.record(story, lm, **options)


def test_bad_reducers_by_message():
    with pytest.raises(InputError, match="not words"):
        Inside(wb.Boundaries([0], n=4, unit="word"))
    with pytest.raises(InputError, match=r"First\(tokens=0\)"):
        First(0)
    with pytest.raises(InputError, match="parts=0"):
        Lag(parts=0)
    with pytest.raises(InputError, match="spans is empty"):
        Spans([])
    with pytest.raises(InputError, match=r"\(4, 4\) is no span"):
        Spans({"a": (4, 4)})
    with pytest.raises(InputError, match="must begin with 0 and increase"):
        InsideDraws([[0, 3, 3]])
    with pytest.raises(InputError, match=r"Top\(k=0\)"):
        Top(0)
    assert [reducer.name for reducer in make_reducers(["lag", First(2)])] == ["lag", "first"]


def test_variables_that_clash_are_an_error(lm, story):
    class Clash(Reducer):
        def start(self, reading):
            pass

        def update(self, rows):
            pass

        def finish(self):
            return {self.variable: xr.Variable((self.dim,), np.zeros(self.size))}

    for variable, dim, size, message in (
        ("surprisal", "layer", 3, "'surprisal' is a variable of the trace"),
        ("attention_own", "layer", 5, r"dimension 'layer' of 'attention_own' has 5 entries"),
        ("attention_own", "rank", 4, r"dimension 'rank' of 'attention_own' is a measure"),
    ):
        clash = Clash()
        clash.variable, clash.dim, clash.size = variable, dim, size
        with pytest.raises(InputError, match=message):
            wb.record(story, lm, attention=[clash])
