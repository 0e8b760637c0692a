"""Reducers: what is kept of attention while a model reads. One small class is one statistic.

A reducer of one's own is a class with `start`, `update` and `finish`:

    class Backward(Reducer):
        '''Largest attention of each head to any one token.'''

        def start(self, reading):
            self.most = np.zeros((len(reading.layers), len(reading.heads)))

        def update(self, rows):
            most = rows.probability.amax(dim=(1, 2)).cpu().numpy()
            self.most[rows.place, rows.heads] = np.maximum(self.most[rows.place, rows.heads], most)

        def finish(self):
            return {"attention_most": xr.Variable(("layer", "head"), self.most)}

    wb.record(story, attention=["entropy", Backward()])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from workbench.recording.attention import AttentionRows, Reading

__all__ = [
    "REDUCERS",
    "Distance",
    "Entropy",
    "First",
    "FullRows",
    "Inside",
    "InsideDraws",
    "Lag",
    "Reducer",
    "Sink",
    "Spans",
    "Top",
    "lag_edges",
    "make_reducers",
]


class Reducer:
    """Base of what reduces attention; override the three methods.

    `name` and what `settings` returns are kept with the trace.
    """

    name = "own"

    def wants(self, layer: int, start: int, stop: int) -> bool:
        """Whether rows of the queries at positions start ... stop - 1 are needed."""
        return True

    def start(self, reading: Reading) -> None:
        """Called before reading."""
        raise NotImplementedError

    def update(self, rows: AttentionRows) -> None:
        """Called for each block of rows of each layer and key-value head."""
        raise NotImplementedError

    def finish(self) -> dict[str, xr.Variable]:
        """The statistics as labelled variables; "layer", "head" and "token" are the trace's."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Name and numbers of this reducer, as JSON can hold them."""
        return {"name": self.name}


class _PerToken(Reducer):
    """One number per layer, head and token."""

    units = "1"
    long_name = ""

    def start(self, reading: Reading) -> None:
        """Make room: layers × heads × tokens × 4 bytes."""
        shape = (len(reading.layers), len(reading.heads), reading.n)
        self.values = torch.full(shape, torch.nan)

    def update(self, rows: AttentionRows) -> None:
        """Keep one number per row."""
        self.values[rows.place, rows.heads, rows.tokens] = self.value(rows).float().cpu()

    def value(self, rows: AttentionRows) -> torch.Tensor:
        """The number of each row, (heads, rows)."""
        raise NotImplementedError

    def finish(self) -> dict[str, xr.Variable]:
        """`attention_<name>` (layer, head, token)."""
        import xarray as xr

        attrs = {"units": self.units, "long_name": self.long_name}
        values = self.values.numpy()
        return {f"attention_{self.name}": xr.Variable(("layer", "head", "token"), values, attrs)}


class Entropy(_PerToken):
    """Entropy of each row in nats; where a model has a learned sink, it is one more outcome."""

    name = "entropy"
    units = "nat"
    long_name = "entropy of a token's attention, -Σ p log p"

    def value(self, rows: AttentionRows) -> torch.Tensor:
        """-Σ p log p."""
        return rows.entropy


class Distance(_PerToken):
    """Mean distance in tokens between a token and what it attends to, Σ p·(i - j) / Σ p.

    The start token counts as the token before the first. Of what a learned sink takes nothing
    goes to a token, so the rest is taken as 1.
    """

    name = "distance"
    units = "token"
    long_name = "mean distance of the tokens attended to"

    def value(self, rows: AttentionRows) -> torch.Tensor:
        """Σ w·(i - j) / Σ w."""
        weights = rows.weights
        # Counted back from the block's end, so that near keys keep their digits.
        back = torch.arange(rows.stop - rows.first_key, device=weights.device).flip(0)
        offset = torch.arange(rows.n_rows, device=weights.device).flip(0)
        total = rows.total if rows.sink is None else rows.total - rows.sink.exp()
        return weights @ back.to(weights.dtype) / total - offset.to(weights.dtype)


class First(_PerToken):
    """Attention to the first tokens that the model read, the start token included.

    Parameters
    ----------
    tokens : how many; 4 as the attention sinks of Xiao et al. (2024).
    """

    name = "first"

    def __init__(self, tokens: int = 4) -> None:
        if tokens < 1:
            raise InputError(f"First(tokens={tokens}): give at least 1.")
        self.tokens = int(tokens)
        self.long_name = f"attention to the first {self.tokens} tokens read (with a start token)"

    def value(self, rows: AttentionRows) -> torch.Tensor:
        """Σ p over the first tokens of what the layer was given."""
        first = rows.columns(rows.origin, rows.origin + self.tokens)
        return rows.weights[..., first].sum(-1) / rows.total

    def settings(self) -> dict[str, Any]:
        """Name and number of tokens."""
        return {"name": self.name, "tokens": self.tokens}


class Sink(_PerToken):
    """Attention that a learned sink takes and no token gets (gpt-oss); 0 in other models."""

    name = "sink"
    long_name = "attention to the learned sink"

    def value(self, rows: AttentionRows) -> torch.Tensor:
        """Share of the sink."""
        return rows.sink_mass


class Inside(_PerToken):
    """Attention to the token's own event, up to the token itself.

    Parameters
    ----------
    events : boundaries over the text's tokens.
    """

    name = "inside"
    long_name = "attention to the token's own event (itself included)"

    def __init__(self, events: Boundaries) -> None:
        if events.unit != "token":
            raise InputError(
                f"Inside takes boundaries over tokens, not {events.unit}s; record(..., events=) "
                "converts them."
            )
        self.events = events

    def start(self, reading: Reading) -> None:
        """Check that the events are of this text."""
        _check_length("events", self.events.n, reading.n)
        super().start(reading)

    def value(self, rows: AttentionRows) -> torch.Tensor:
        """Σ p over the own event."""
        masses = torch.empty_like(rows.total)
        edges = self.events.edges
        first = rows.tokens.start
        event = int(np.searchsorted(edges, first, side="right")) - 1
        while event < self.events.n_events and edges[event] < rows.tokens.stop:
            mine = slice(max(int(edges[event]) - first, 0), int(edges[event + 1]) - first)
            keys = rows.text(int(edges[event]), rows.tokens.stop)
            masses[:, mine] = rows.weights[:, mine, keys].sum(-1) / rows.total[:, mine]
            event += 1
        return masses

    def settings(self) -> dict[str, Any]:
        """Name, method and starts of the events."""
        starts = self.events.starts.tolist()
        return {"name": self.name, "method": self.events.method, "starts": starts}


class InsideDraws(Reducer):
    """Mean attention to the own event under many segmentations at once (null distributions).

    Parameters
    ----------
    starts : (draws, n_events), first tokens of the events, increasing, column 0 all 0.
    name : of the variable, `attention_<name>` (layer, head, draw).
    """

    def __init__(self, starts: ArrayLike, *, name: str = "inside_draws") -> None:
        self.starts = np.atleast_2d(np.asarray(starts, dtype=np.int64))
        if (self.starts[:, 0] != 0).any() or (np.diff(self.starts, axis=1) <= 0).any():
            raise InputError("starts: each row must begin with 0 and increase.")
        self.name = name

    def start(self, reading: Reading) -> None:
        """Find the start of each token's event in each draw: draws × tokens × 8 bytes."""
        if self.starts.max() >= reading.n:
            raise InputError(
                f"starts: {self.starts.max()} is not a token of a text of {reading.n}."
            )
        self.skip = reading.skip
        marks = np.zeros((len(self.starts), reading.n), dtype=np.int64)
        np.put_along_axis(marks, self.starts, self.starts, axis=1)
        self._own = torch.from_numpy(np.maximum.accumulate(marks, axis=1).T.copy())  # (n, draws)
        shape = (len(reading.layers), len(reading.heads), len(self.starts))
        self.sums = torch.zeros(shape, dtype=torch.float64)
        self.n = reading.n

    def update(self, rows: AttentionRows) -> None:
        """Add Σ p over own events, by differences of running sums from the row's end."""
        # From the end: what is inside is near, and keeps its digits.
        running = rows.weights.flip(-1).cumsum(-1)
        own = self._own[rows.tokens].to(running.device) + self.skip
        place = rows.stop - 1 - torch.clamp(own, min=max(rows.first_key, rows.text_start))
        masses = running.gather(2, place[None].expand(len(running), -1, -1))
        self.sums[rows.place, rows.heads] += (
            (masses / rows.total[..., None]).sum(1, dtype=torch.float64).cpu()
        )

    def finish(self) -> dict[str, xr.Variable]:
        """`attention_<name>` (layer, head, draw)."""
        import xarray as xr

        attrs = {"units": "1", "long_name": "mean attention to the own event, per segmentation"}
        values = (self.sums / self.n).numpy()
        return {f"attention_{self.name}": xr.Variable(("layer", "head", "draw"), values, attrs)}

    def settings(self) -> dict[str, Any]:
        """Name and number of segmentations."""
        return {"name": self.name, "draws": len(self.starts)}


def lag_edges(n: int, exact: int = 16, per_doubling: int = 2) -> NDArray[np.int64]:
    """First lags of the bins, and the lag after the last.

    Lags 0 ... exact have a bin each; after them there are `per_doubling` bins for each doubling,
    up to the largest lag, n - 1.
    """
    if exact < 0 or per_doubling < 1:
        raise InputError(
            f"lag bins: exact={exact} must be at least 0, and per_doubling={per_doubling} at "
            "least 1."
        )
    small = np.arange(min(exact + 1, n) + 1)
    doublings = max(0.0, np.log2(n / (exact + 1)))
    steps = np.arange(1, int(np.ceil(doublings * per_doubling)) + 1)
    large = np.rint((exact + 1) * 2.0 ** (steps / per_doubling)).astype(np.int64)
    return np.unique(np.concatenate([small, np.minimum(large, n)]))


class Lag(Reducer):
    """Attention by lag: mean attention of a token to a token `lag` before it.

    The mean is over all pairs of tokens of the text with a lag of the bin, for successive parts
    of the text, so that what differs between parts can be seen. Times the number of pairs it is
    the mass. The start token is no text and does not count as a key (its share is in `First`).

    Parameters
    ----------
    exact, per_doubling : see `lag_edges`.
    parts : number of parts of the text (as equal as can be).
    without_first : text tokens at the beginning that do not count as keys either. Attention that
        a head does not need elsewhere goes to the first tokens and would, as far as it goes to
        them, rise with the lag; without a start token leave out the first.
    """

    name = "lag"

    def __init__(
        self,
        *,
        exact: int = 16,
        per_doubling: int = 2,
        parts: int = 10,
        without_first: int = 0,
    ) -> None:
        if parts < 1 or without_first < 0:
            raise InputError(
                f"Lag: parts={parts} must be at least 1, and without_first={without_first} at "
                "least 0."
            )
        lag_edges(1, exact, per_doubling)
        self.exact, self.per_doubling = exact, per_doubling
        self.parts, self.without_first = parts, without_first

    def start(self, reading: Reading) -> None:
        """Make room for a number per layer, head, part and bin."""
        n = reading.n
        self.parts = min(self.parts, n)
        self.edges = lag_edges(n, self.exact, self.per_doubling)
        self.part_starts = np.linspace(0, n, self.parts + 1).astype(np.int64)
        self._n = n
        shape = (len(reading.layers), len(reading.heads), self.parts)
        self.sums = np.zeros((*shape, len(self.edges) - 1))
        self.pairs = np.zeros((self.parts, n + 1), dtype=np.int64)  # differences over lags
        self._counted: tuple[int, int] = (-1, -1)
        self._layer: NDArray[np.float64] | None = None
        self._open = -1

    def update(self, rows: AttentionRows) -> None:
        """Add one block to the sums over exact lags of the layer at hand."""
        if rows.place != self._open:
            self._close()
            self._open = rows.place
            self._layer = np.zeros((self.sums.shape[1], self.parts, self._n))
        assert self._layer is not None
        tokens = np.arange(rows.tokens.start, rows.tokens.stop)
        part = np.searchsorted(self.part_starts, tokens, side="right") - 1
        first, last = int(part[0]), int(part[-1])
        wanted = np.arange(first, last + 1)[:, None] == part[None, :]
        selected = torch.from_numpy(wanted).to(rows.total) / rows.total[:, None, :]
        from_key = rows.text_start + self.without_first
        sums = rows.lag_sums(selected, from_key)[..., : self._n]
        found = sums.double().cpu().numpy()
        self._layer[rows.heads, first : last + 1, : found.shape[-1]] += found
        if rows.place == 0 and rows.heads.start == 0:
            # A token has the lags 0 ... to the first key that counts.
            longest = tokens + rows.skip - from_key
            possible = longest >= 0
            into, longest = part[possible], longest[possible]
            np.add.at(self.pairs, (into, np.zeros_like(into)), 1)
            np.add.at(self.pairs, (into, longest + 1), -1)

    def _close(self) -> None:
        if self._layer is not None:
            binned = np.add.reduceat(self._layer, self.edges[:-1], axis=-1)
            self.sums[self._open] += binned
        self._layer, self._open = None, -1

    def finish(self) -> dict[str, xr.Variable]:
        """`attention_lag` (layer, head, part, lag_bin), its pairs, and the bins' lags."""
        import xarray as xr

        self._close()
        counts = np.add.reduceat(np.cumsum(self.pairs, axis=1)[:, :-1], self.edges[:-1], axis=1)
        mean = np.where(counts > 0, self.sums / np.maximum(counts, 1), np.nan)
        tokens = {"units": "token"}
        return {
            "attention_lag": xr.Variable(
                ("layer", "head", "part", "lag_bin"),
                mean.astype(np.float32),
                {"units": "1", "long_name": "mean attention to a token this far back"},
            ),
            "attention_lag_pairs": xr.Variable(
                ("part", "lag_bin"), counts, {"units": "1", "long_name": "pairs of tokens"}
            ),
            "lag_first": xr.Variable(("lag_bin",), self.edges[:-1], tokens),
            "lag_last": xr.Variable(("lag_bin",), self.edges[1:] - 1, tokens),
            "part_first": xr.Variable(("part",), self.part_starts[:-1], tokens),
        }

    def settings(self) -> dict[str, Any]:
        """Name, bins, parts and what is left out."""
        return {
            "name": self.name,
            "exact": self.exact,
            "per_doubling": self.per_doubling,
            "parts": self.parts,
            "without_first": self.without_first,
        }


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


REDUCERS = ("lag", "entropy", "distance", "first", "sink", "inside", "spans", "top")
"""Names that `record(attention=...)` knows."""


def make_reducers(
    attention: str | Reducer | Iterable[str | Reducer],
    *,
    events: Boundaries | None = None,
    spans: Any = None,
) -> list[Reducer]:
    """Reducers from names, each with its defaults, and from Reducers as they are.

    Parameters
    ----------
    attention : names of `REDUCERS`, and Reducers.
    events : what "inside" needs.
    spans : what "spans" needs.

    Raises
    ------
    InputError : an unknown name, one that needs what was not given, or two of one name.
    """
    given = [attention] if isinstance(attention, (str, Reducer)) else list(attention)
    simple = {"lag": Lag, "entropy": Entropy, "distance": Distance, "first": First, "sink": Sink}
    made: list[Reducer] = []
    for item in given:
        if isinstance(item, Reducer):
            made.append(item)
            continue
        check_option("attention", item, REDUCERS)
        if item == "inside":
            if events is None:
                raise InputError('attention "inside" needs events= (Boundaries or a method code).')
            made.append(Inside(events))
        elif item == "spans":
            if spans is None:
                raise InputError('attention "spans" needs spans= (token pairs or Boundaries).')
            made.append(Spans(spans))
        elif item == "top":
            made.append(Top())
        else:
            made.append(simple[item]())
    names = [reducer.name for reducer in made if reducer.name != Reducer.name]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"attention: {twice[0]!r} is there twice; give each statistic once.")
    if not made:
        raise InputError("attention is empty; leave it out for none.")
    return made


def _check_length(what: str, n: int, expected: int) -> None:
    if n != expected:
        raise InputError(f"{what} cut {n} tokens, and the text has {expected} in this model.")


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
