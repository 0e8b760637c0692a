"""What tests of memory systems share: tiny models of each family, texts, what a query saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tiny_models import byte_tokenizer, tiny_model

from workbench.memory import layer as layer_module
from workbench.models import LanguageModel

FAMILIES = ("llama", "mistral", "qwen3", "phi3", "gemma3")
_LMS: dict[str, LanguageModel] = {}


def family_lm(family: str) -> LanguageModel:
    """A tiny random model of a family, with a tokenizer of one token per letter."""
    if family not in _LMS:
        _LMS[family] = LanguageModel(
            family, tiny_model(family), byte_tokenizer(), provenance="random weights"
        )
    return _LMS[family]


def letters(n: int, seed: int = 0) -> str:
    """A text of n tokens of `byte_tokenizer`."""
    return "".join(np.random.default_rng(seed).choice(list("abcdef ,."), n))


def words(n: int, seed: int = 0) -> str:
    """A text of n words for `tiny_lm`."""
    vocabulary = [
        "It",
        "rained",
        "on",
        "the",
        "town",
        "and",
        "did",
        "not",
        "mind",
        "She",
        "said",
        "stay",
        "He",
        "left",
        "at",
        "noon",
    ]
    return " ".join(np.random.default_rng(seed).choice(vocabulary, n))


def plain_scores(lm: LanguageModel, ids: list[int], start: int | None) -> np.ndarray:
    """Log-probabilities of the plain model, NaN where nothing predicts the first token."""
    given = torch.tensor([([] if start is None else [start]) + ids])
    with torch.no_grad():
        logits = lm.model(given, use_cache=False).logits[0].double().log_softmax(dim=-1)
    found = logits[:-1].gather(1, given[0, 1:, None])[:, 0].numpy()
    return found if start is not None else np.concatenate([[np.nan], found])


def ids_of(lm: LanguageModel, text: str) -> list[int]:
    """Tokens of a text."""
    return list(lm.tokenizer(text, add_special_tokens=False)["input_ids"])


class Seen(NamedTuple):
    """What one query of one layer saw: positions, place by place, for every key-value head."""

    layer: int
    query: int
    near: tuple[int, ...]
    left: tuple[int, ...]
    far: tuple[tuple[int, ...], ...]


@contextmanager
def watched(system: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Seen]]:
    """Notes what each query sees: the values are made to carry their own positions.

    Values are replaced by their positions in the text before they enter the memory, so what is
    stored and fetched says itself where it came from.
    """
    found: list[Seen] = []
    current: list[Any] = []
    attend, take_in = layer_module.attend, layer_module.LayerMemory.attend

    def carrying(self: Any, queries: Any, keys: Any, values: Any, scale: float, **more: Any) -> Any:
        start = self.near.first + self.near.n
        places = torch.arange(start, start + values.shape[1], dtype=values.dtype)
        current[:] = [self]
        return take_in(self, queries, keys, places[None, :, None].expand_as(values), scale, **more)

    def noting(nq: Any, fq: Any, near: Any, far: Any, scale: float, **more: Any) -> Any:
        memory = current[0]
        m, n = nq.shape[1], near.rotated.shape[1]
        assert near.values[0, :, 0].tolist() == list(range(near.first, near.first + n))
        heads = near.values.shape[0]
        for i in range(m):
            query = near.first + n - m + i
            edge = max(near.first, query - near.window + 1)
            left = tuple(range(near.first, max(near.first, min(edge, near.far_limit))))
            rows: list[tuple[int, ...]] = [()] * heads
            if far is not None:
                allowed = far.allowed
                if allowed is None:
                    allowed = torch.ones(far.values.shape[:2], dtype=torch.bool)
                rows = [
                    tuple(int(v) for v in far.values[h, allowed[h], 0].tolist())
                    for h in range(heads)
                ]
            found.append(
                Seen(memory.shape.layer, query, tuple(range(edge, query + 1)), left, tuple(rows))
            )
        return attend(nq, fq, near, far, scale, **more)

    with monkeypatch.context() as patch:
        patch.setattr(layer_module.LayerMemory, "attend", carrying)
        patch.setattr(layer_module, "attend", noting)
        yield found
