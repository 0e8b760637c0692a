"""Attention to places: spans of the text, the tokens attended to most, whole rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.recording.reducer import Reducer

if TYPE_CHECKING:
    import xarray as xr

    from workbench.recording.attention_rows import AttentionRows, Reading

__all__ = ["FullRows", "Spans", "Top"]


class Spans(Reducer):
    """Attention to each of several spans of the text (documents, passages).

    Parameters
    ----------
    spans : boundaries over tokens, or (start, stop) token pairs, or a mapping from names to
        pairs; spans may overlap and leave gaps.
    per_token : keep a number per token, (layer, head, token, span); otherwise the mean over the
        tokens of each span, (layer, head, span_from, span).
    """

    name = "spans"

    def __init__(
        self,
        spans: Boundaries | Sequence[tuple[int, int]] | Mapping[str, tuple[int, int]],
        *,
        per_token: bool = False,
    ) -> None:
        self.names: list[str]
        if isinstance(spans, Boundaries):
            if spans.unit != "token":
                raise InputError(f"Spans takes boundaries over tokens, not {spans.unit}s.")
            pairs = list(zip(spans.starts.tolist(), spans.edges[1:].tolist(), strict=True))
            self.names = [str(number) for number in range(len(pairs))]
        elif isinstance(spans, Mapping):
            pairs, self.names = list(spans.values()), [str(name) for name in spans]
        else:
            pairs = list(spans)
            self.names = [str(number) for number in range(len(pairs))]
        if not pairs:
            raise InputError("spans is empty; give at least one (start, stop).")
        self.pairs = [(int(start), int(stop)) for start, stop in pairs]
        for start, stop in self.pairs:
            if not 0 <= start < stop:
                raise InputError(f"spans: ({start}, {stop}) is no span of tokens start < stop.")
        self.per_token = per_token

    def start(self, reading: Reading) -> None:
        """Check the spans against the text."""
        for start, stop in self.pairs:
            if stop > reading.n:
                raise InputError(
                    f"spans: ({start}, {stop}) ends after the text's {reading.n} tokens."
                )
        shape = (len(reading.layers), len(reading.heads))
        if self.per_token:
            self.values = torch.full((*shape, reading.n, len(self.pairs)), torch.nan)
        else:
            self.sums = np.zeros((*shape, len(self.pairs), len(self.pairs)))

    def update(self, rows: AttentionRows) -> None:
        """Sum the weights of each span."""
        masses = torch.stack(
            [rows.weights[..., rows.text(start, stop)].sum(-1) for start, stop in self.pairs],
            dim=-1,
        )
        masses = (masses / rows.total[..., None]).cpu()
        if self.per_token:
            self.values[rows.place, rows.heads, rows.tokens] = masses.float()
            return
        first = rows.tokens.start
        for number, (start, stop) in enumerate(self.pairs):
            mine = slice(max(start - first, 0), max(stop - first, 0))
            self.sums[rows.place, rows.heads, number] += masses[:, mine].double().sum(1).numpy()

    def finish(self) -> dict[str, xr.Variable]:
        """`attention_spans`, and where the spans begin and end."""
        import xarray as xr

        attrs = {"units": "1", "long_name": "attention to a span", "spans": self.names}
        starts, stops = np.array(self.pairs, dtype=np.int64).T
        if self.per_token:
            dims: tuple[str, ...] = ("layer", "head", "token", "span")
            values: NDArray[Any] = self.values.numpy()
        else:
            dims = ("layer", "head", "span_from", "span")
            values = self.sums / (stops - starts)[:, None]
        return {
            "attention_spans": xr.Variable(dims, values, attrs),
            "span_start": xr.Variable(("span",), starts, {"units": "token"}),
            "span_stop": xr.Variable(("span",), stops, {"units": "token"}),
        }

    def settings(self) -> dict[str, Any]:
        """Name and spans."""
        return {"name": self.name, "spans": self.pairs, "names": self.names}


class Top(Reducer):
    """The tokens that chosen tokens attend to most.

    Parameters
    ----------
    k : how many.
    tokens : whose attention; None: all (memory: layers × heads × tokens × k × 12 bytes).
    """

    name = "top"

    def __init__(self, k: int = 8, tokens: Iterable[int] | None = None) -> None:
        if k < 1:
            raise InputError(f"Top(k={k}): give at least 1.")
        self.k = int(k)
        self.tokens = None if tokens is None else sorted({int(token) for token in tokens})

    def wants(self, layer: int, start: int, stop: int) -> bool:
        """Blocks with a chosen token."""
        return bool(len(self._inside(start - self._skip, stop - self._skip)))

    def start(self, reading: Reading) -> None:
        """Check the chosen tokens."""
        self._skip = reading.skip
        tokens = range(reading.n) if self.tokens is None else self.tokens
        self._chosen = _chosen_tokens("Top", tokens, reading.n)
        shape = (len(reading.layers), len(reading.heads), len(self._chosen), self.k)
        self.mass = torch.full(shape, torch.nan)
        self.position = torch.full(shape, -2, dtype=torch.int64)

    def _inside(self, start: int, stop: int) -> NDArray[np.intp]:
        return np.flatnonzero((self._chosen >= start) & (self._chosen < stop))

    def update(self, rows: AttentionRows) -> None:
        """Keep the k largest weights of chosen rows."""
        places = self._inside(rows.tokens.start, rows.tokens.stop)
        chosen = self._chosen[places] - rows.tokens.start
        k = min(self.k, rows.weights.shape[2])
        mass, keys = rows.weights[:, chosen].topk(k, dim=-1)
        mass = mass / rows.total[:, chosen, None]
        tokens = keys + rows.first_key - self._skip
        tokens = torch.where(tokens < rows.text_start - rows.skip, -1, tokens)
        tokens = torch.where(mass > 0, tokens, -2)
        mass = torch.where(mass > 0, mass, torch.nan)
        into = (rows.place, rows.heads, slice(places[0], places[-1] + 1), slice(0, k))
        self.mass[into] = mass.float().cpu()
        self.position[into] = tokens.cpu()

    def finish(self) -> dict[str, xr.Variable]:
        """`attention_top` and `attention_top_token` (layer, head, top_query, top_rank).

        A token of -1 is the start token, -2 none (a query that sees fewer than k tokens).
        """
        import xarray as xr

        dims = ("layer", "head", "top_query", "top_rank")
        return {
            "attention_top": xr.Variable(
                dims, self.mass.numpy(), {"units": "1", "long_name": "largest attention"}
            ),
            "attention_top_token": xr.Variable(
                dims,
                self.position.numpy(),
                {"units": "token", "long_name": "token attended to; -1 start token, -2 none"},
            ),
            "top_query": xr.Variable(("top_query",), self._chosen, {"units": "token"}),
        }

    def settings(self) -> dict[str, Any]:
        """Name, k and tokens."""
        return {"name": self.name, "k": self.k, "tokens": self.tokens}


class FullRows(Reducer):
    """Whole rows of attention of chosen tokens, layers and heads.

    Parameters
    ----------
    tokens : whose rows; memory is layers × heads × tokens × text length × 4 bytes.
    layers, heads : numbers of those recorded; None: all.
    """

    name = "rows"

    def __init__(
        self,
        tokens: Iterable[int],
        layers: Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
    ) -> None:
        self.tokens = sorted({int(token) for token in tokens})
        self.layers = None if layers is None else sorted({int(layer) for layer in layers})
        self.heads = None if heads is None else sorted({int(head) for head in heads})

    def wants(self, layer: int, start: int, stop: int) -> bool:
        """Blocks with a chosen token in a chosen layer."""
        inside = (self._chosen >= start - self._skip) & (self._chosen < stop - self._skip)
        return layer in self._layer_row and bool(inside.any())

    def start(self, reading: Reading) -> None:
        """Check what is chosen against what is recorded."""
        self._skip = reading.skip
        self._chosen = _chosen_tokens("FullRows", self.tokens, reading.n)
        layers = _known("FullRows: layer", self.layers, reading.layers)
        heads = _known("FullRows: head", self.heads, reading.heads)
        self._layer_row = {layer: row for row, layer in enumerate(layers)}
        self._head_row = {reading.heads.index(head): row for row, head in enumerate(heads)}
        self._numbers = layers, heads
        shape = (len(layers), len(heads), len(self._chosen), reading.skip + reading.n)
        self.values = torch.zeros(shape)

    def update(self, rows: AttentionRows) -> None:
        """Keep the chosen rows."""
        inside = (self._chosen >= rows.tokens.start) & (self._chosen < rows.tokens.stop)
        chosen = self._chosen[inside] - rows.tokens.start
        for number, place in enumerate(range(rows.heads.start, rows.heads.stop)):
            if place not in self._head_row:
                continue
            found = rows.weights[number, chosen] / rows.total[number, chosen, None]
            row = self.values[self._layer_row[rows.layer], self._head_row[place]]
            places, found = np.flatnonzero(inside), found.float().cpu()
            before = rows.columns(rows.origin, rows.text_start)
            text = slice(max(rows.first_key, rows.text_start), rows.stop)
            row[places, text] = found[:, before.stop :]
            if before.stop > before.start:
                row[places, : rows.skip] = found[:, before]

    def finish(self) -> dict[str, xr.Variable]:
        """`attention_rows` (row_layer, row_head, row_token, key_token); key -1: start token."""
        import xarray as xr

        layers, heads = (np.array(numbers, dtype=np.int64) for numbers in self._numbers)
        keys = np.arange(-self._skip, self.values.shape[-1] - self._skip)
        return {
            "attention_rows": xr.Variable(
                ("row_layer", "row_head", "row_token", "key_token"),
                self.values.numpy(),
                {"units": "1", "long_name": "attention of chosen tokens"},
            ),
            "row_layer": xr.Variable(("row_layer",), layers),
            "row_head": xr.Variable(("row_head",), heads),
            "row_token": xr.Variable(("row_token",), self._chosen),
            "key_token": xr.Variable(("key_token",), keys),
        }

    def settings(self) -> dict[str, Any]:
        """Name and what is chosen."""
        return {
            "name": self.name,
            "tokens": self.tokens,
            "layers": self.layers,
            "heads": self.heads,
        }


def _chosen_tokens(name: str, tokens: Iterable[int], n: int) -> NDArray[np.int64]:
    chosen = np.array(sorted(tokens), dtype=np.int64)
    if not len(chosen) or chosen[0] < 0 or chosen[-1] >= n:
        raise InputError(f"{name}: tokens must be some of 0 ... {n - 1}.")
    return chosen


def _known(what: str, wanted: list[int] | None, recorded: list[int]) -> list[int]:
    if wanted is None:
        return recorded
    missing = sorted(set(wanted) - set(recorded))
    if missing or not wanted:
        raise InputError(f"{what} {missing} is not recorded; recorded: {recorded}.")
    return wanted
