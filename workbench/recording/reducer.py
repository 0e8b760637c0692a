"""The base of reducers: what is kept of attention while a model reads.

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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

    from workbench.recording.attention_rows import AttentionRows, Reading

__all__ = ["Reducer"]


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
