"""Statistics of attention with a number per token: entropy, distance, first tokens, own event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.recording.reducer import Reducer

if TYPE_CHECKING:
    import xarray as xr

    from workbench.recording.attention_rows import AttentionRows, Reading

__all__ = ["Distance", "Entropy", "First", "Inside", "InsideDraws", "Sink"]


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


def _check_length(what: str, n: int, expected: int) -> None:
    if n != expected:
        raise InputError(f"{what} cut {n} tokens, and the text has {expected} in this model.")
