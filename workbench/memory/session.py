"""A model whose attention is a memory: attached for the length of a `with` block.

Only public extension points are used: a registered attention function, a cache object, and
forward hooks. The model is given position 0 for every token, so that its attention function gets
queries and keys before rotation; the memory turns them itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from workbench.core.errors import InputError, ModelError
from workbench.memory.row import Row
from workbench.recording import adapter

if TYPE_CHECKING:
    from workbench.models import LanguageModel

__all__ = ["Session", "make_cache"]


def make_cache(session: Session) -> Any:
    """A transformers cache that hands the memory's tokens to the attention function instead."""
    from transformers import Cache
    from transformers.cache_utils import DynamicLayer

    class MemoryCache(Cache):
        """Holds nothing itself: the memory keeps keys and values."""

        is_compileable = False
        session: Session

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            return key_states, value_states

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return self.session.n_given

        def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
            return self.session.n_given + int(query_length), 0

        def reorder_cache(self, beam_idx: Tensor) -> None:
            raise InputError(
                "beam search copies texts between the rows of a batch, which a memory cannot; "
                "generate with num_beams=1."
            )

    # transformers takes a cache without layers for one of linear attention, and slices no prompt.
    cache = MemoryCache(layers=[DynamicLayer() for _ in session.rows[0].layers])
    cache.session = session
    return cache


class Session:
    """Attaches rows of memory to a model.

    Parameters
    ----------
    lm : the language model.
    rows : one memory per row of the batch.
    key_layers : layers whose keys refine boundaries.

    Attributes
    ----------
    n_given : tokens given since the session began (what transformers takes for the length of the
        cache).
    """

    def __init__(self, lm: LanguageModel, rows: Sequence[Row], key_layers: Sequence[int]) -> None:
        self.lm = lm
        self.rows = list(rows)
        self.n_given = 0
        self.reading = False
        self.ends: frozenset[int] = frozenset()
        self.pad: int | None = None  # what `generate` gives for texts that have ended
        self._key_layers = set(key_layers)
        self._modules = adapter.attention_modules(lm.model)
        self._layer_of = {id(module): layer for layer, module in self._modules.items()}
        self._valid: list[slice] = []
        self._ids: Tensor | None = None
        self._stack: ExitStack | None = None
        self._hidden: Tensor | None = None
        self.cache = make_cache(self)

    def __enter__(self) -> Session:
        model = self.lm.model
        decoder = model.get_decoder()
        with ExitStack() as stack:
            stack.enter_context(adapter.registered_attention(model, self._attention, masked=False))
            rotary = adapter.rotary_module(model)
            stack.callback(rotary.register_forward_hook(self._no_turn).remove)
            before = decoder.register_forward_pre_hook(self._before, with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(decoder.register_forward_hook(self._after).remove)
            stack.callback(model.register_forward_hook(self._predicted).remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    # --- one call of the decoder -----------------------------------------------------------

    def _before(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        name = adapter.cache_argument(self.lm.model)
        if kwargs.get(name) is not self.cache:
            raise InputError(
                "the model was called without this memory's cache while the memory was attached; "
                f"pass {name}=session.cache, or leave the block first."
            )
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is None:
            raise InputError("a memory reads token ids; give input_ids, not inputs_embeds.")
        if ids.shape[0] != len(self.rows):
            raise InputError(
                f"{ids.shape[0]} rows of tokens were given to a memory of {len(self.rows)} texts."
            )
        self._ids = ids
        length = ids.shape[1]
        mask = kwargs.get("attention_mask")
        self._valid = []
        for number, row in enumerate(self.rows):
            part = slice(0, length)
            if isinstance(mask, Tensor) and mask.dim() == 2:
                there = mask[number, -length:].bool().nonzero()[:, 0]
                begin, end = 0, 0
                if len(there):
                    begin, end = int(there[0]), int(there[-1]) + 1
                    if end - begin != len(there):
                        raise InputError(
                            f"row {number}: padding stands between its tokens; pad at one side."
                        )
                part = slice(begin, end)
            if self.pad is not None and int(ids[number, -1]) == self.pad:
                row.closed = True
            if row.closed:
                part = slice(0, 0)
            self._valid.append(part)
            if part.stop > part.start:
                row.settle()
        kwargs = dict(kwargs)
        kwargs["attention_mask"] = None
        kwargs["position_ids"] = torch.zeros_like(ids)
        return args, kwargs

    @staticmethod
    def _no_turn(_: nn.Module, __: Any, output: Any) -> Any:
        cos, sin = output
        return torch.ones_like(cos), torch.zeros_like(sin)

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        layer = self._layer_of[id(module)]
        if softcap is not None or s_aux is not None:
            raise ModelError(
                f"layer {layer}: {type(module).__name__} caps its scores or has attention sinks "
                "of its own, which memory systems do not do yet; use another model."
            )
        batch, heads, length, dim = query.shape
        scale = dim**-0.5 if scaling is None else float(scaling)
        output = query.new_zeros(batch, length, heads, value.shape[3])
        for number, (row, part) in enumerate(zip(self.rows, self._valid, strict=True)):
            if part.stop == part.start:
                continue
            keys = key[number, :, part]
            if layer in self._key_layers:
                row.keys[layer] = keys
            output[number, part] = row.layers[layer].attend(
                query[number, :, part],
                keys,
                value[number, :, part],
                scale,
                step=row.step,
                reading=self.reading,
            )
        return output, None

    def _after(self, _: nn.Module, __: Any, output: Any) -> None:
        hidden = output[0]
        self._hidden = hidden
        for number, (row, part) in enumerate(zip(self.rows, self._valid, strict=True)):
            if part.stop > part.start:
                row.n += part.stop - part.start
                row.step += 1
                if not self.reading:
                    self._note(number, row, part)
                row.hidden = hidden[number, part.stop - 1]
                row.log_p = None
        self.n_given += hidden.shape[1]

    def _note(self, number: int, row: Row, part: slice) -> None:
        """Generated tokens form events like read ones."""
        assert self._ids is not None
        ids = self._ids[number, part].tolist()
        forming = None if row.former is None else row.former.forming
        moved = forming is not None and forming.signal == "bayesian_surprise"
        measures = row.measure_step(ids[0]) if len(ids) == 1 and not moved else {}
        if not measures:
            measures = self._scored(number, row, part)
        row.feed(ids, measures)
        row.closed = ids[-1] in self.ends

    def _scored(self, number: int, row: Row, part: slice) -> dict[str, Any]:
        from workbench.recording.distributions import score

        assert self._ids is not None
        assert self._hidden is not None
        states = self._hidden[number, part]
        ids = self._ids[number, part]
        if row.hidden is None:
            return {}
        states = torch.cat((row.hidden[None], states))
        return dict(
            score(
                self.lm.model,
                states,
                ids,
                measures=("surprisal", "entropy", "bayesian_surprise"),
            )
        )

    def _predicted(self, _: nn.Module, __: Any, output: Any) -> None:
        logits = getattr(output, "logits", None)
        if logits is None:
            return
        for number, (row, part) in enumerate(zip(self.rows, self._valid, strict=True)):
            if part.stop > part.start and logits.shape[1] and part.stop == self._length:
                row.log_p = row.predicted(logits[number, -1])
                if not bool(row.log_p.isfinite().any()) or bool(row.log_p.isnan().any()):
                    raise ModelError(
                        f"the logits after token {row.n - 1} are NaN or infinite; load the model "
                        "with dtype='float32', and check its weights."
                    )

    @property
    def _length(self) -> int:
        assert self._ids is not None
        return int(self._ids.shape[1])
