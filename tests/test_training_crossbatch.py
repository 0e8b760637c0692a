"""Crossbatch attention: who sees whom, what it computes, where gradients go."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCABULARY, tiny_model

from workbench.core.errors import InputError, ModelError
from workbench.training.attention import Far, Near, attend, masses, own_share_loss
from workbench.training.crossbatch import Crossbatch, Memory, Probe
from workbench.training.decoder import Decoder, DecoderConfig
from workbench.training.long_memory import read_with_memory, store_memory
from workbench.training.methods import MemorizingTransformer, TransformerXL
from workbench.training.pretrained import PretrainedDecoder
from workbench.training.rows import IGNORED, Batch, Links, Mixed, Paper

RNG = np.random.default_rng(0)


def batch_of(documents: int, n: int, *, windows: int = 1, vocabulary: int = 20, seed: int = 0):
    """Random documents: `windows` previous windows (suppliers, latest first), one current."""
    made = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocabulary, ((windows + 1) * documents, n), generator=made)
    number = np.tile(np.arange(documents), windows + 1)
    place = np.repeat([*range(windows - 1, -1, -1), windows], documents)
    return Batch(
        ids,
        torch.ones_like(ids, dtype=torch.bool),
        ids.roll(-1, 1),
        number,
        place,
        suppliers=windows * documents,
    )


def small(**more) -> Decoder:
    torch.manual_seed(0)
    options = {"layers": 3, "dim": 24, "heads": 2, "head_dim": 12, "feed_forward": 32}
    decoder = Decoder(DecoderConfig(20, memory_layers=(1,), **{**options, **more})).double()
    return decoder.eval()


def oracle(query, key, value, far_key, far_value, allowed, far_allowed, scale):
    """One softmax over window and far tokens, query by query."""
    rows, heads, n, _ = query.shape
    groups = heads // key.shape[1]
    out = torch.zeros_like(query)
    for r in range(rows):
        for h in range(heads):
            g = h // groups
            for t in range(n):
                near = [j for j in range(n) if allowed[r, 0, t, j]]
                seen = [j for j in range(far_key.shape[2]) if far_allowed[r, j]]
                keys = torch.cat((key[r, g, near], far_key[r, g, seen]))
                values = torch.cat((value[r, g, near], far_value[r, g, seen]))
                weights = (keys @ query[r, h, t] * scale).softmax(0)
                out[r, h, t] = weights @ values
    return out


def random_parts(seed: int, *, rows=2, heads=4, kv_heads=2, n=5, m=7, dim=3):
    made = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=made, dtype=torch.float64)

    causal = torch.ones(n, n, dtype=torch.bool).tril()[None, None].expand(rows, 1, n, n)
    near = Near(
        draw(rows, heads, n, dim), draw(rows, kv_heads, n, dim), draw(rows, kv_heads, n, dim),
        causal, 0.7,
    )  # fmt: skip
    allowed = torch.rand(rows, m, generator=made) < 0.7
    own = torch.rand(rows, m, generator=made) < 0.5
    far = Far(draw(rows, kv_heads, m, dim), draw(rows, kv_heads, m, dim), allowed, own & allowed)
    return near, far


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_joint_attention_equals_its_definition(seed):
    near, far = random_parts(seed)
    expected = oracle(
        near.query, near.key, near.value, far.key, far.value, near.allowed, far.allowed, 0.7
    )
    torch.testing.assert_close(attend(near, far), expected)
    # The way with explicit scores (bias, top k) is the same function.
    wide = Far(far.key, far.value, far.allowed, far.own, top_k=6)
    zero = Near(**{**near.__dict__, "bias": torch.zeros(1, dtype=torch.float64)})
    everything = Far(**{**wide.__dict__, "top_k": 100})
    torch.testing.assert_close(attend(zero, everything), expected)


def test_top_k_keeps_the_best_keys_only():
    near, far = random_parts(3)
    everyone = torch.ones_like(far.allowed)
    far = Far(far.key, far.value, everyone, everyone, top_k=2)
    keys = far.key.repeat_interleave(2, dim=1)
    scores = torch.einsum("rhtd,rhmd->rhtm", near.query, keys)
    best = scores.sort(dim=-1, descending=True).indices[..., :2]
    output = attend(near, far)
    for r, h, t in np.ndindex(2, 4, 5):
        kept = torch.zeros(7, dtype=torch.bool)
        kept[best[r, h, t]] = True
        one = oracle(
            near.query[r : r + 1, h : h + 1],
            near.key[r : r + 1, h // 2 : h // 2 + 1],
            near.value[r : r + 1, h // 2 : h // 2 + 1],
            far.key[r : r + 1, h // 2 : h // 2 + 1],
            far.value[r : r + 1, h // 2 : h // 2 + 1],
            near.allowed,
            kept[None],
            0.7,
        )
        torch.testing.assert_close(output[r, h, t], one[0, 0, t])


def test_the_gate_mixes_two_softmaxes():
    near, far = random_parts(1)
    everyone = torch.ones_like(far.allowed)
    far = Far(far.key, far.value, everyone, everyone)
    gate = torch.tensor([0.0, 1.0, -2.0, 50.0], dtype=torch.float64)
    keys = far.key.repeat_interleave(2, dim=1)
    values = far.value.repeat_interleave(2, dim=1)
    recalled = (near.query @ keys.mT * 0.7).softmax(-1) @ values
    share = torch.sigmoid(gate)[:, None, None]
    expected = share * recalled + (1 - share) * attend(near, None)
    torch.testing.assert_close(attend(near, far, gate), expected)


def test_a_row_that_sees_nothing_far_is_left_to_its_window():
    near, far = random_parts(2)
    nobody = torch.zeros_like(far.allowed)
    empty = Far(far.key, far.value, nobody, nobody)
    plain = attend(near, None)
    torch.testing.assert_close(attend(near, empty), plain)
    torch.testing.assert_close(attend(near, empty, torch.ones(4, dtype=torch.float64)), plain)
    own, everything = masses(near, empty)
    assert (own == 0).all()
    assert (everything == 0).all()
    assert (own_share_loss(near, empty) == 0).all()


def test_the_contrast_is_minus_log_of_the_share():
    near, far = random_parts(5)
    far = Far(far.key, far.value, torch.ones_like(far.allowed), torch.arange(7).lt(3).expand(2, 7))
    own, everything = masses(near, far)
    expected = -(own / everything).log()
    torch.testing.assert_close(own_share_loss(near, far), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("d", [1, 2, 5, 8])
def test_uniform_attention_gives_one_over_d(d):
    """With equal scores the own window has 1/d of the mass on all d windows (r_d, Figure 3)."""
    decoder = small()
    batch = batch_of(8, 6)
    with torch.no_grad():
        decoder.blocks[1].attention.query.weight.zero_()
        probe = Probe()
        decoder(Crossbatch(batch, Paper(d), RNG, probe=probe))
    ratio = probe.own[1] / probe.all[1]
    assert ratio.shape == (8, 2, 6)
    torch.testing.assert_close(ratio, torch.full_like(ratio, 1 / d), atol=1e-6, rtol=0)
    # All keys equal: query t sees t + 1 near and 6·d far tokens.
    expected = torch.tensor([6 * d / (6 * d + t + 1) for t in range(6)])
    torch.testing.assert_close(probe.all[1][0, 0], expected, atol=1e-6, rtol=0)


def test_rows_of_the_paper_count_the_document_itself():
    links = Paper(3).links(batch_of(5, 4), RNG)
    assert links.rows.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 1]]
    assert links.own.tolist() == [[True, False, False]] * 5
    two = Paper(2, windows=2).links(batch_of(3, 4, windows=2), RNG)
    # Rows 0-2 are the latest windows, 3-5 those before.
    assert two.rows.tolist() == [[0, 3, 1, 4], [1, 4, 2, 5], [2, 5, 0, 3]]
    assert two.own.tolist() == [[True, True, False, False]] * 3
    assert Paper(0).links(batch_of(3, 4), RNG).rows.shape == (3, 0)


def test_parts_of_the_mixed_form():
    """LongLLaMA's 3B setting over four windows per document."""
    ids = torch.ones(8, 4, dtype=torch.long)
    batch = Batch(
        ids, ids.bool(), ids, np.repeat([10, 20], 4), np.tile(np.arange(4), 2), suppliers=0
    )
    links = Mixed().links(batch, RNG)
    assert links.contexts.tolist() == [0, 2, 3, 3] * 2
    assert links.own.sum(axis=1).tolist() == [0, 1, 2, 3] * 2
    assert links.rows[1].tolist() == [0, 7, -1]  # own previous one, the other's last
    assert links.rows[3].tolist() == [2, 1, 0]


@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from(["next", "random", "hardest"]),
    st.integers(0, 10_000),
)
@settings(max_examples=40, deadline=None)
def test_no_row_sees_its_own_later_windows(d, windows, negatives, seed):
    rng = np.random.default_rng(seed)
    documents = rng.integers(0, 4, size=6)  # some occur twice
    rows = 6 * (windows + 1)
    now = rng.integers(0, 4, size=6)
    place = np.concatenate([now - back for back in range(1, windows + 1)] + [now])
    ids = torch.ones(rows, 3, dtype=torch.long)
    valid = torch.from_numpy((place >= 0)[:, None].repeat(3, axis=1))
    batch = Batch(ids, valid, ids, np.tile(documents, windows + 1), place, suppliers=6 * windows)
    similarity = rng.normal(size=(6, rows))
    links = Paper(d, windows, negatives).links(batch, rng, similarity)
    for row in range(6):
        seen = links.rows[row][links.rows[row] >= 0]
        assert len(set(seen)) == len(seen)
        assert (seen < batch.suppliers).all()
        mine = batch.document[seen] == documents[row]
        assert (batch.window[seen][mine] < now[row]).all()
        assert valid[torch.from_numpy(seen)].all()
        assert (links.own[row][: len(seen)] == mine).all()
        assert len(seen) <= d * windows


def test_hardest_negatives_are_the_most_similar():
    similarity = np.array([[0, 1, 5, 3, 0, 0.0]] * 6)
    links = Paper(3, negatives="hardest").links(batch_of(6, 3), RNG, similarity)
    assert links.rows[0].tolist() == [0, 2, 3]
    assert links.rows[2].tolist() == [2, 3, 1]
    decoder = small()
    memory = Crossbatch(batch_of(6, 3), Paper(3, negatives="hardest"), RNG)
    decoder(memory)
    assert memory.links is not None
    assert (memory.links.contexts == 3).all()


def test_nothing_leaks_from_other_rows_than_the_linked_ones():
    decoder, batch = small(), batch_of(5, 6)
    before = decoder(Crossbatch(batch, Paper(2), RNG))
    ids = batch.ids.clone()
    ids[3] = 1 + ids[3] % 19  # the previous window of document 3: rows 2 and 3 see it
    changed = Batch(ids, batch.valid, batch.targets, batch.document, batch.window, batch.suppliers)
    after = decoder(Crossbatch(changed, Paper(2), RNG))
    differs = (before - after).abs().amax(dim=(1, 2)) > 1e-12
    assert differs.tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("place", range(6))
def test_no_token_sees_later_ones_of_its_window(place):
    decoder, batch = small(), batch_of(3, 6)
    before = decoder(Crossbatch(batch, Paper(2), RNG))
    ids = batch.ids.clone()
    ids[3:, place] = 1 + ids[3:, place] % 19
    changed = Batch(ids, batch.valid, batch.targets, batch.document, batch.window, batch.suppliers)
    after = decoder(Crossbatch(changed, Paper(2), RNG))
    differs = (before - after).abs().amax(dim=(0, 2)) > 1e-12
    assert differs.tolist() == [t >= place for t in range(6)]


def test_padding_is_not_seen():
    decoder, batch = small(), batch_of(4, 6)
    valid = batch.valid.clone()
    valid[1, 4:] = False
    valid[5, 2:] = False
    short = Batch(batch.ids, valid, batch.targets, batch.document, batch.window, batch.suppliers)
    before = decoder(Crossbatch(short, Paper(3), RNG))
    ids = batch.ids.clone()
    ids[~valid] = 1 + ids[~valid] % 19
    again = Batch(ids, valid, batch.targets, batch.document, batch.window, batch.suppliers)
    after = decoder(Crossbatch(again, Paper(3), RNG))
    real = valid[4:]
    torch.testing.assert_close(before[real], after[real])
    assert torch.isfinite(before).all()


def gradients(decoder: Decoder, memory: Memory) -> dict[str, torch.Tensor]:
    """Gradients of current row 0's output with respect to all rows' memory keys and values."""
    kept = {}

    def hook(name):
        def keep(_, __, output):
            output.retain_grad()
            kept[name] = output

        return keep

    attention = decoder.blocks[1].attention
    handles = [
        attention.key.register_forward_hook(hook("key")),
        attention.value.register_forward_hook(hook("value")),
    ]
    try:
        decoder(memory)[0].square().sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    return {name: output.grad.abs().sum(dim=(1, 2)) for name, output in kept.items()}


def test_gradients_reach_keys_and_values_of_positives_and_negatives():
    found = gradients(small(), Crossbatch(batch_of(4, 5), Paper(3), RNG))
    for grad in found.values():
        assert (grad[[0, 1, 2, 4]] > 0).all()  # own, two negatives, the window itself
        assert (grad[[3, 5, 6, 7]] == 0).all()
    detached = gradients(small(), Crossbatch(batch_of(4, 5), Paper(3), RNG, detach=True))
    for grad in detached.values():
        assert (grad[[0, 1, 2, 3]] == 0).all()
        assert grad[4] > 0


@pytest.mark.parametrize("join", ["softmax", "gate"])
def test_a_memorizing_transformer_gives_its_memory_no_gradient(join):
    decoder, method = small(join=join), MemorizingTransformer(capacity=10, top_k=3)
    first, second = batch_of(2, 5).alone(), batch_of(2, 5, seed=1).alone()
    first = Batch(first.ids, first.valid, first.targets, first.document, first.window - 1)
    decoder(method.memory(first, 1, RNG))
    method.end()
    memory = method.memory(second, 1, RNG)
    output = decoder(memory)
    kept = method.tensors()
    assert not any(tensor.requires_grad for tensor in kept.values())
    assert kept["kept.0.1.key"].shape == (2, 2, 5, 12)
    assert (output - decoder(Memory(second))).abs().max() > 1e-6
    output.sum().backward()


# --- d = 1, w = 1 is attention to the previous window -----------------------------------------


def test_one_document_equals_attention_to_the_previous_window():
    """Without positions in the memory layer: one row of two windows, masked below it."""
    decoder, batch = small(), batch_of(3, 6)
    found = decoder(Crossbatch(batch, Paper(1), RNG))
    joined = torch.cat((batch.ids[:3], batch.ids[3:]), dim=1)
    whole = Batch(
        joined, torch.ones_like(joined, dtype=torch.bool), joined, np.arange(3), np.zeros(3, int)
    )
    torch.testing.assert_close(found, blocked(decoder, whole, layers=(0, 2), n=6)[:, 6:])


def blocked(decoder: Decoder, batch: Batch, layers: tuple[int, ...], n: int) -> torch.Tensor:
    """Rows of two windows; the named layers do not look across their border."""
    from workbench.training import decoder as module

    usual = module._window_mask
    calls = iter(range(len(decoder.blocks)))

    def mask(valid, offsets):
        allowed = usual(valid, offsets)
        if next(calls) in layers:
            side = torch.arange(2 * n) // n
            allowed = allowed & (side[:, None] == side)
        return allowed

    module._window_mask = mask
    try:
        return decoder(Memory(batch))
    finally:
        module._window_mask = usual


@pytest.mark.parametrize("positions", ["bias", "rope"])
def test_transformer_xl_sees_the_window_before_at_its_distance(positions):
    """One layer: two windows read one after the other are one row of two windows."""
    torch.manual_seed(0)
    config = DecoderConfig(
        20, layers=1, dim=24, heads=2, head_dim=12, feed_forward=32, memory_layers=(),
        positions=positions,
    )  # fmt: skip
    decoder = Decoder(config).double().eval()
    ids = torch.randint(1, 20, (2, 12), generator=torch.Generator().manual_seed(0))
    valid = torch.ones(2, 6, dtype=torch.bool)
    number = np.arange(2)
    method = TransformerXL(capacity=6)
    outputs = []
    for window in range(2):
        part = ids[:, 6 * window : 6 * window + 6]
        batch = Batch(part, valid, part, number, np.full(2, window))
        outputs.append(decoder(method.memory(batch, 1, RNG)))
        method.end()
    whole = Batch(ids, torch.ones_like(ids, dtype=torch.bool), ids, number, np.zeros(2, int))
    torch.testing.assert_close(torch.cat(outputs, dim=1), decoder(Memory(whole)))


def test_a_new_document_starts_with_an_empty_memory():
    decoder, method = small(), MemorizingTransformer(capacity=20, top_k=None)
    first = batch_of(2, 5).alone()
    first = Batch(first.ids, first.valid, first.targets, np.array([0, 1]), np.array([3, 3]))
    decoder(method.memory(first, 1, RNG))
    method.end()
    second = batch_of(2, 5, seed=1).alone()
    second = Batch(second.ids, second.valid, second.targets, np.array([0, 7]), np.array([4, 0]))
    output = decoder(method.memory(second, 1, RNG))
    differs = (output - decoder(Memory(second))).abs().amax(dim=(1, 2)) > 1e-9
    assert differs.tolist() == [True, False]


def test_memory_drops_its_oldest_tokens_first():
    decoder, method = small(), MemorizingTransformer(capacity=8, top_k=None)
    kept = []
    for window in range(3):
        batch = batch_of(1, 5, seed=window).alone()
        batch = Batch(batch.ids, batch.valid, batch.targets, np.array([0]), np.array([window]))
        decoder(method.memory(batch, 1, RNG))
        method.end()
        kept.append(method.tensors()["kept.0.1.key"])
    assert [tensor.shape[2] for tensor in kept] == [5, 8, 8]
    torch.testing.assert_close(kept[2][:, :, :3], kept[1][:, :, 5:])


def test_long_memory_equals_crossbatch():
    decoder = small()
    batch = batch_of(6, 5)
    expected = decoder(Crossbatch(batch, Paper(6), RNG))[:1]
    stored = store_memory(decoder, batch.ids[:6], batch=2)
    found = read_with_memory(decoder, stored, batch.ids[6:7], block=4)
    torch.testing.assert_close(found, expected)
    best = decoder(Crossbatch(batch, Paper(6), RNG, top_k=7))[:1]
    found = read_with_memory(decoder, stored, batch.ids[6:7], top_k=7, block=4)
    torch.testing.assert_close(found, best)


def test_gradient_checkpointing_changes_nothing():
    for memory in (Crossbatch(batch_of(4, 5), Paper(3), RNG), Memory(batch_of(4, 5).alone())):
        found = []
        for checkpointing in (False, True):
            decoder = small().train()
            decoder.checkpointing = checkpointing
            decoder(memory).square().sum().backward()
            found.append([p.grad.clone() for p in decoder.parameters() if p.grad is not None])
        for plain, twice in zip(*found, strict=True):
            torch.testing.assert_close(plain, twice)


# --- any decoder of transformers --------------------------------------------------------------


def pretrained(family: str = "llama", layers=(1, 2), **more) -> PretrainedDecoder:
    return PretrainedDecoder(tiny_model(family).double(), layers, **more)


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "gpt_neox", "olmo2", "llama_yarn"])
def test_without_memory_a_model_is_itself(family):
    decoder = pretrained(family)
    batch = batch_of(3, 7, vocabulary=VOCABULARY)
    expected = decoder.model(batch.ids).logits
    with decoder.attached():
        found = decoder(Memory(batch.alone()))
        after = decoder(Crossbatch(batch, Paper(0), RNG))
    torch.testing.assert_close(found, expected[3:])
    torch.testing.assert_close(after, expected[3:])
    torch.testing.assert_close(decoder.model(batch.ids).logits, expected)  # restored


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "gpt_neox", "llama_yarn"])
def test_memory_keys_stand_at_position_zero(family):
    """One memory token at position 0 and one window of a single token: a row of two at position 0.

    With one layer of memory and a window of one token at position 0, the memory key and the query
    are both unrotated: the layer's attention is that of a two-token row with equal positions.
    """
    model = tiny_model(family).double()
    decoder = PretrainedDecoder(model, (0,))
    ids = torch.tensor([[5], [9]])
    batch = Batch(
        ids, torch.ones_like(ids, dtype=torch.bool), ids, np.zeros(2, int), np.arange(2), 1
    )
    outputs = {}

    def keep(name):
        def hook(module, args, output):
            outputs.setdefault(name, output[0].detach())

        return hook

    from workbench.recording.adapter import attention_modules

    attention = attention_modules(model)[0]
    with decoder.attached():
        handle = attention.register_forward_hook(keep("memory"))
        decoder(Crossbatch(batch, Paper(1), RNG))
        handle.remove()
    handle = attention.register_forward_hook(keep("joined"))
    model(ids.T, position_ids=torch.zeros(1, 2, dtype=torch.long))
    handle.remove()
    torch.testing.assert_close(outputs["memory"][1, 0], outputs["joined"][0, 1])


def test_without_positions_a_model_attends_to_the_previous_window_as_to_its_own():
    """`none`: the order of windows of one memory layer is of no consequence."""
    decoder = pretrained(memory_positions="none", layers=(1,))
    batch = batch_of(2, 5, windows=2, vocabulary=VOCABULARY)
    with decoder.attached():
        found = decoder(Crossbatch(batch, Paper(2, windows=2), RNG))
        order = [2, 3, 0, 1, 4, 5]
        swapped = Batch(
            batch.ids[order], batch.valid, batch.targets[order], batch.document, batch.window, 4
        )
        torch.testing.assert_close(decoder(Crossbatch(swapped, Paper(2, windows=2), RNG)), found)


def test_transformer_xl_on_a_pretrained_model():
    """One layer of memory is exact: its first layer sees the window before at its distance."""
    model = tiny_model("llama").double()
    decoder = PretrainedDecoder(model, (1,))
    ids = torch.randint(3, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(1))
    kept = {}

    from workbench.recording.adapter import attention_modules

    attention = attention_modules(model)[0]
    handle = attention.register_forward_hook(lambda m, a, o: kept.update(last=o[0].detach()))
    model(ids)
    expected = kept["last"][:, 6:]
    method = TransformerXL(capacity=6)
    valid = torch.ones(1, 6, dtype=torch.bool)
    with decoder.attached():
        for window in range(2):
            part = ids[:, 6 * window : 6 * window + 6]
            batch = Batch(part, valid, part, np.array([0]), np.array([window]))
            decoder(method.memory(batch, 1, RNG))
            method.end()
    handle.remove()
    torch.testing.assert_close(kept["last"], expected)


def test_gradient_checkpointing_of_a_pretrained_model():
    found = []
    for checkpointing in (False, True):
        decoder = pretrained().train().requires_grad_(True)
        decoder.checkpointing = checkpointing
        with decoder.attached():
            batch = batch_of(3, 5, vocabulary=VOCABULARY)
            decoder(Crossbatch(batch, Paper(2), RNG)).square().sum().backward()
        found.append([p.grad.clone() for p in decoder.parameters() if p.grad is not None])
    assert len(found[0]) == len(found[1])
    for plain, twice in zip(*found, strict=True):
        torch.testing.assert_close(plain, twice)


@pytest.mark.parametrize(
    ("family", "reason"),
    [("gemma2", "caps its scores"), ("mistral", "sliding window of 16"), ("gpt2", "rotary")],
)
def test_layers_that_cannot_hold_memory_say_why(family, reason):
    decoder = pretrained(family, (0,))
    batch = batch_of(2, 20, vocabulary=VOCABULARY)
    with decoder.attached(), pytest.raises(ModelError, match=reason):
        decoder(Crossbatch(batch, Paper(1), RNG))


def test_bad_input_is_named():
    with pytest.raises(InputError, match=r"memory_layers=\[9\] must name layers"):
        pretrained(layers=[9])
    with pytest.raises(InputError, match=r"the decoder has layers 0 \.\.\. 1"):
        DecoderConfig(20, memory_layers=(2,))
    with pytest.raises(InputError, match="negatives='near' is not known"):
        Paper(2, negatives="near")
    with pytest.raises(InputError, match="must be pairs"):
        Mixed(parts=((1,),))
    with pytest.raises(InputError, match="needs the similarity"):
        Paper(2, negatives="hardest").links(batch_of(3, 3), RNG)
    with pytest.raises(ModelError, match=r"inside `with decoder.attached"):
        pretrained()(Memory(batch_of(2, 4).alone()))
    assert Links(np.array([[1, -1]]), np.array([[True, False]])).contexts.tolist() == [1]
    assert IGNORED == -100
