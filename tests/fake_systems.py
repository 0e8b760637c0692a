"""Systems with the memory systems' interface, made for tests of what uses them.

`Plain` computes with a real model and remembers everything; `Reader` uses no model: it finds the
answer in what it remembers, so that a test knows what it must say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch

from workbench.core.boundaries import Boundaries
from workbench.recording.start import start_token

RETRIEVAL_COLUMNS = (
    *("step", "position", "layer", "head", "unit", "similarity", "buffer", "rank", "lag"),
)


class Plain:
    """Full attention by the plain model, read and asked with no cache at all."""

    def __init__(self, lm: Any) -> None:
        self.lm = lm
        self.start, _ = start_token(lm.tokenizer)
        self.reset()

    def _ids(self, text: str) -> list[int]:
        return list(self.lm.tokenizer(text, add_special_tokens=False)["input_ids"])

    def reset(self) -> None:
        self.ids: list[int] = []

    def read(self, text: str) -> Plain:
        self.ids += self._ids(text)
        return self

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def attended(self) -> float:
        return (len(self.ids) + 1) / 2

    @property
    def events(self) -> Boundaries:
        return Boundaries([0], max(1, len(self.ids)))

    @property
    def retrievals(self) -> pd.DataFrame:
        return pd.DataFrame(columns=list(RETRIEVAL_COLUMNS))

    def footprint(self) -> dict[str, int]:
        return {"resident_kv": 4 * len(self.ids)}

    @contextmanager
    def branch(self) -> Iterator[Plain]:
        kept = list(self.ids)
        try:
            yield self
        finally:
            self.ids = kept

    def _with_start(self, ids: list[int]) -> torch.Tensor:
        return torch.tensor([([] if self.start is None else [self.start]) + ids])

    @torch.no_grad()
    def generate(
        self, prompt: str, max_new_tokens: int = 8, keep: bool = True, **options: Any
    ) -> str:
        assert options == {"do_sample": False}
        ids = self.ids + self._ids(prompt)
        given = self._with_start(ids)
        found = self.lm.model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=0,
        )[0, given.shape[1] :].tolist()
        if keep:
            self.ids = ids + found
        return str(self.lm.tokenizer.decode(found, skip_special_tokens=True))

    @torch.no_grad()
    def score(self, text: str, keep: bool = False) -> np.ndarray:
        new = self._ids(text)
        given = self._with_start(self.ids + new)
        logits = self.lm.model(given).logits[0].double().log_softmax(dim=-1)
        values = logits[:-1].gather(1, given[0, 1:, None])[:, 0].numpy()
        if len(values) < len(new):
            values = np.concatenate([[np.nan], values])
        if keep:
            self.ids += new
        return values[len(values) - len(new) :]


class Reader:
    """Remembers the last `sees` characters and answers passkey questions from them.

    Parameters
    ----------
    lm : only its tokenizer is used.
    sees : characters; None for all.
    size : tokens per event; event i is recalled in layer 0 by question `label` or every question.
    """

    n_local = 16

    def __init__(self, lm: Any, sees: int | None = None, size: int = 20) -> None:
        self.lm, self.sees, self.size = lm, sees, size
        self.n_reads = 0
        self.log: list[dict[str, Any]] = []
        self.recalls: tuple[int, ...] = ()
        self.reset()

    def reset(self) -> None:
        self.text = ""
        self.log = []

    def read(self, text: str) -> Reader:
        self.n_reads += 1
        self.text += text
        return self

    @property
    def n_tokens(self) -> int:
        return len(self.lm.tokenizer(self.text, add_special_tokens=False)["input_ids"])

    @property
    def attended(self) -> float:
        return 12.5

    def footprint(self) -> dict[str, int]:
        return {"resident_kv": 100, "index": 7}

    @property
    def events(self) -> Boundaries:
        return Boundaries(np.arange(0, self.n_tokens, self.size), self.n_tokens)

    @property
    def retrievals(self) -> pd.DataFrame:
        return pd.DataFrame(self.log, columns=list(RETRIEVAL_COLUMNS))

    @contextmanager
    def branch(self) -> Iterator[Reader]:
        text, log = self.text, list(self.log)
        try:
            yield self
        finally:
            self.text, self.log = text, log

    def generate(
        self, prompt: str, max_new_tokens: int = 8, keep: bool = True, **options: Any
    ) -> str:
        for layer, unit in enumerate(self.recalls):
            self.log.append(
                {"step": 0, "position": self.n_tokens, "layer": layer, "head": -1, "unit": unit}
            )
        label = re.search(r"What is the pass key( for \w+)?\?", prompt)
        assert label is not None
        seen = self.text if self.sees is None else self.text[-self.sees :]
        if keep:
            self.text += prompt
        named = re.escape(label.group(1) or "")
        found = re.search(rf"pass key{named} is ([0-9]+)\.", seen)
        return f" {found.group(1)}." if found else " I cannot tell."
