"""Hidden states of chosen layers while a model reads: how far each token moves them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from workbench.core.errors import ModelError
from workbench.recording import adapter
from workbench.recording.instruments import Observer

__all__ = ["StateRecorder", "drift"]

_ROWS = 512


def drift(states: Tensor) -> NDArray[np.float64]:
    """1 - cosine of successive states (n, hidden), shape (n - 1,); 0 ... 2.

    NaN where a state is all zeros.
    """
    result = np.empty(max(0, len(states) - 1))
    for start in range(0, len(result), _ROWS):
        block = states[start : start + _ROWS + 1].float().cpu().double()
        block = block / block.norm(dim=1, keepdim=True)
        # Half the squared distance of unit vectors: exact also where they are almost equal.
        moved = (block[1:] - block[:-1]).square().sum(dim=1) / 2
        result[start : start + len(moved)] = moved.numpy()
    return result


class StateRecorder(Observer):
    """Keeps the drift of what chosen layers hand on (the residual stream), or the states too.

    A layer's state is the output of its block; that of the last layer comes before the final
    norm. Drift of token t is 1 - cosine of its state and that of token t - 1 in the same
    reading; NaN for the first token of the text.

    Parameters
    ----------
    layers : which, zero-based.
    n : number of tokens of the text.
    skip : number of tokens read before it (a start token).
    keep : keep the states, as float32: layers × n × hidden × 4 bytes.
    """

    def __init__(self, layers: Sequence[int], n: int, skip: int = 0, *, keep: bool = False) -> None:
        self.layers = list(layers)
        self.n = n
        self.skip = skip
        self.drift = np.full((len(self.layers), n), np.nan)
        self.states: NDArray[np.float32] | None = None
        self._keep = keep
        self._origin, self._fresh = 0, skip

    def window(self, origin: int, fresh: int) -> None:
        """See `Observer.window`."""
        self._origin, self._fresh = origin, max(fresh, self.skip)

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Hooks on the model's layers inside the block."""
        blocks = adapter.layer_modules(model)
        with ExitStack() as stack:
            for row, layer in enumerate(self.layers):

                def keep(_: nn.Module, args: tuple[Any, ...], output: Any, row: int = row) -> None:
                    self._store(row, output[0] if isinstance(output, tuple) else output)

                stack.callback(blocks[layer].register_forward_hook(keep).remove)
            yield

    def _store(self, row: int, output: Tensor) -> None:
        if output.dim() != 3 or output.shape[0] != 1:
            raise ModelError(
                f"layer {self.layers[row]} hands on a tensor of shape {tuple(output.shape)}, not "
                "the states (1, tokens, hidden) of one text."
            )
        states = output[0]
        begin = self._fresh - self._origin  # the first new token's row
        first = self._fresh - self.skip
        stop = first + len(states) - begin
        before = max(begin - 1, self.skip if self._origin == 0 else 0)
        moved = drift(states[before:])
        self.drift[row, stop - len(moved) : stop] = moved
        if self._keep:
            if self.states is None:
                shape = (len(self.layers), self.n, states.shape[1])
                self.states = np.empty(shape, dtype=np.float32)
            self.states[row, first:stop] = states[begin:].float().cpu().numpy()
