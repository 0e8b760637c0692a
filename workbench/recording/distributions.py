"""Next-token distributions, measured while they stream by.

The language-model head turns hidden states into logits a block of positions at a time, and every
measure is taken from a few rows that are still in the processor's cache. Tokens × vocabulary
never exist at once. With z the logits minus their largest, e = exp(z) and s = Σ e, one pass of
exp gives all of

- surprisal = log s - z[token]
- entropy H = log s - Σ e·z / s
- KL(new || old) = log s(old) - Σ e(new)·z(old) / s(new) - H(new)

Logits in half precision are first made float32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.recording import adapter
from workbench.recording.measures import DIVERGENCES

__all__ = ["LOG_ENDS", "n_blocks", "score", "surprisal_from_hidden"]

_BLOCK = 128  # positions whose logits exist at once
_ROWS = 4  # of them measured at once, per thread: what a core's cache holds

LOG_ENDS = "log_ends"
"""Result of `score` for `ends`: log of the mass on them, before each token and after the last."""

Floats = NDArray[np.float64]


def score(
    model: Any,
    hidden: Tensor,
    targets: Tensor,
    *,
    measures: Collection[str] = ("surprisal",),
    pairs: NDArray[np.int64] | None = None,
    ends: Tensor | None = None,
    last_logits: Tensor | None = None,
    step: Callable[[], None] = lambda: None,
) -> dict[str, Floats]:
    """Measure how each token is predicted, and how far it moves the prediction.

    Parameters
    ----------
    model : whose language-model head is used.
    hidden : (n + 1, hidden_size), final hidden states (after the last norm) before each token
        and after the last one; only (n, ...) are needed without a divergence and `ends`.
    targets : (n,), token ids; `hidden[i]` predicts `targets[i]`.
    measures : names in `measures.MEASURES`.
    pairs : (m, 2), rows of `hidden` (old, new), old < new, between which the divergences among
        `measures` are measured too; a row is held from the old to the new one.
    ends : (vocabulary,), bool: tokens whose mass is summed in every row.
    last_logits : (vocabulary,), the model's own logits after the very last of `hidden`, which
        our reading of its head must give too.
    step : called after each block, for a progress bar.

    Returns
    -------
    For each measure an array (n,), value i about token i; for each divergence under
    "pair:<name>" an array (m,); `LOG_ENDS` (n + 1,) where `ends` is given.

    Raises
    ------
    ModelError : the head's logits are not the model's own, or are not finite.
    """
    logits_of = adapter.head_logits(model)
    if last_logits is not None:
        _check_head(model, logits_of(hidden[-1:])[0], last_logits)
    divergences = [name for name in DIVERGENCES if name in measures]
    n = len(targets)
    n_rows = n + 1 if divergences or ends is not None else n
    run = _Pass(measures, divergences, n, n_rows, pairs, ends, hidden.device)
    targets = targets.to(hidden.device)
    block: Tensor | None = None
    for start in range(0, n_rows, _BLOCK):
        stop = min(start + _BLOCK, n_rows)
        size = stop - start
        out = None
        if block is not None and block.dtype == hidden.dtype:
            out = block[1 : size + 1]
        logits = logits_of(hidden[start:stop], out)
        if block is None:
            kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
            shape = (min(_BLOCK, n_rows) + 1, logits.shape[1])
            block = torch.empty(shape, dtype=kind, device=logits.device)
        target = block[1 : size + 1]
        if logits.data_ptr() != target.data_ptr():
            target.copy_(logits)
        del logits
        bad = run.block(block, start, stop, targets)
        if bad is not None:
            raise ModelError(_not_finite(hidden, bad))
        block[0].copy_(block[size])
        step()
    return run.results()


def surprisal_from_hidden(
    model: Any,
    hidden: Tensor,
    targets: Tensor,
    last_logits: Tensor | None = None,
    *,
    step: Callable[[], None] = lambda: None,
) -> Floats:
    """Surprisal in nats of `targets[i]` as predicted by `hidden[i]`, shape (n,); see `score`."""
    return score(model, hidden, targets, last_logits=last_logits, step=step)["surprisal"]


def n_blocks(n: int) -> int:
    """Number of blocks in which `score` measures n targets (at most)."""
    return -(-(n + 1) // _BLOCK)


class _Pass:
    """State of one streaming pass: what was found so far, and rows that are still needed."""

    def __init__(
        self,
        measures: Collection[str],
        divergences: list[str],
        n: int,
        n_rows: int,
        pairs: NDArray[np.int64] | None,
        ends: Tensor | None,
        device: torch.device,
    ) -> None:
        self.measures = set(measures)
        self.divergences = divergences
        self.n = n
        self.pairs = np.zeros((0, 2), dtype=np.int64) if pairs is None else pairs
        if not divergences:
            self.pairs = self.pairs[:0]
        self.ends = ends
        # Metal devices have no float64.
        self.wide = torch.float32 if device.type == "mps" else torch.float64
        self.values: dict[str, Tensor] = {}

        def column(name: str, length: int) -> None:
            self.values[name] = torch.full((length,), torch.nan, dtype=self.wide, device=device)

        for name in self.measures:
            column(name, n)
        for name in divergences:
            column(f"pair:{name}", len(self.pairs))
        if ends is not None:
            column(LOG_ENDS, n_rows)
        # Of each row: log s and the entropy, for the divergences from it and to it.
        self.log_sum = torch.zeros(n_rows, dtype=self.wide, device=device)
        self.entropy = torch.zeros(n_rows, dtype=self.wide, device=device)
        self.ends_of = np.argsort(self.pairs[:, 1], kind="stable")  # pairs by their new row
        self.next_pair = 0
        self.held: dict[int, Tensor] = {}
        self.scratch: Tensor | None = None
        self.e: Tensor | None = None

    def block(self, z: Tensor, start: int, stop: int, targets: Tensor) -> int | None:
        """Measure rows start ... stop - 1, logits in z[1:]; z[0] is the row before, centred.

        Returns the number of the first row that is not finite, None if there is none.
        """
        rows = _ROWS * max(1, torch.get_num_threads()) if z.device.type == "cpu" else _BLOCK
        rows = min(rows, z.shape[0] - 1)
        if self.scratch is None or self.e is None:
            self.scratch = torch.empty(rows, z.shape[1], dtype=z.dtype, device=z.device)
            self.e = torch.empty(rows + 1, z.shape[1], dtype=z.dtype, device=z.device)
            if self.ends is not None:
                self.ends = self.ends.to(device=z.device, dtype=z.dtype)
        for first in range(start, stop, rows):
            last = min(first + rows, stop)
            at = first - start + 1
            bad = self._rows(z[at - 1 : at + last - first], first, last, targets)
            if bad is not None:
                return bad
        self._hold(z, start, stop)
        return None

    def _rows(self, z: Tensor, first: int, last: int, targets: Tensor) -> int | None:
        """Measure rows first ... last - 1; z has one row more, the one before them."""
        assert self.e is not None
        assert self.scratch is not None
        count = last - first
        new, e = z[1:], self.e[1 : count + 1]
        new.sub_(new.amax(dim=1, keepdim=True))
        torch.exp(new, out=e)
        total = e.sum(dim=1).to(self.wide)
        log_sum = total.log()
        mean = self._dot(e, new) / total
        self.log_sum[first:last] = log_sum
        self.entropy[first:last] = log_sum - mean
        if not bool(self.entropy[first:last].isfinite().all()):
            return first + int((~self.entropy[first:last].isfinite()).nonzero()[0, 0])

        scored = min(last, self.n) - first  # the row after the last token predicts nothing
        if scored > 0:
            place = slice(first, first + scored)
            chosen = new[:scored].gather(1, targets[place, None])
            self.values["surprisal"][place] = log_sum[:scored] - chosen[:, 0].to(self.wide)
            if "entropy" in self.measures:
                self.values["entropy"][place] = self.entropy[place]
            if "varentropy" in self.measures:
                spread = self.scratch[:scored]
                torch.sub(new[:scored], mean[:scored, None].to(new.dtype), out=spread)
                spread.square_().mul_(e[:scored])
                self.values["varentropy"][place] = spread.sum(dim=1).to(self.wide) / total[:scored]
            if "rank" in self.measures:
                above = (new[:scored] > chosen).sum(dim=1)
                self.values["rank"][place] = (above + 1).to(self.wide)
        if self.ends is not None:
            self.values[LOG_ENDS][first:last] = torch.mv(e, self.ends).to(self.wide).log() - log_sum
        if self.divergences:
            skip = 1 if first == 0 else 0  # nothing comes before the very first row
            new_rows = torch.arange(first + skip, last, device=z.device)
            steps = slice(first + skip - 1, last - 1)
            found = self._between(
                z[skip:count], self.e[skip:count], new_rows - 1, z[skip + 1 :], e[skip:], new_rows
            )
            for name, value in found.items():
                self.values[name][steps] = value
            self.e[0].copy_(e[count - 1])
        return None

    def _between(
        self, z_old: Tensor, e_old: Tensor, old: Tensor, z_new: Tensor, e_new: Tensor, new: Tensor
    ) -> dict[str, Tensor]:
        """Divergences of rows `old` and `new`, of which z and e are given; each (k,)."""
        found = {}
        if "bayesian_surprise" in self.divergences:
            cross = self.log_sum[old] - self._dot(e_new, z_old) / self.log_sum[new].exp()
            # Rounding can leave a tiny negative number where the two are all but equal.
            found["bayesian_surprise"] = (cross - self.entropy[new]).clamp_(min=0)
        if "bayesian_surprise_old_new" in self.divergences:
            cross = self.log_sum[new] - self._dot(e_old, z_new) / self.log_sum[old].exp()
            found["bayesian_surprise_old_new"] = (cross - self.entropy[old]).clamp_(min=0)
        if "jensen_shannon" in self.divergences and len(old):
            assert self.scratch is not None
            kind = z_new.dtype
            both = e_new / self.log_sum[new].exp()[:, None].to(kind)
            both.addcmul_(e_old, (-self.log_sum[old]).exp()[:, None].to(kind))
            # The mixture is half of `both`: its entropy is log 2 - ½ Σ both·log both.
            mixed = np.log(2) + torch.special.entr(both).sum(dim=1).to(self.wide) / 2
            half = (self.entropy[new] + self.entropy[old]) / 2
            found["jensen_shannon"] = (mixed - half).clamp_(min=0, max=float(np.log(2)))
        return found

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Row by row Σ a·b; torch's sum is pairwise and so far more exact than BLAS's dot."""
        assert self.scratch is not None
        product = self.scratch[: len(a)]
        torch.mul(a, b, out=product)
        return product.sum(dim=1).to(self.wide)

    def _hold(self, z: Tensor, start: int, stop: int) -> None:
        """Measure the pairs that end in this block, and keep the rows of those still open."""
        while self.next_pair < len(self.pairs):
            pair = int(self.ends_of[self.next_pair])
            old, new = (int(row) for row in self.pairs[pair])
            if new >= stop:
                break
            z_old = self.held[old] if old < start else z[old - start + 1]
            z_old, z_new = z_old[None], z[new - start + 1][None]
            rows = (torch.tensor([row], device=z.device) for row in (old, new))
            old_row, new_row = rows
            found = self._between(z_old, z_old.exp(), old_row, z_new, z_new.exp(), new_row)
            for name, value in found.items():
                self.values[f"pair:{name}"][pair] = value[0]
            self.next_pair += 1
        open_rows = {int(self.pairs[pair, 0]) for pair in self.ends_of[self.next_pair :]}
        kept = {row: held for row, held in self.held.items() if row in open_rows}
        fresh = {row: z[row - start + 1].clone() for row in open_rows if start <= row < stop}
        self.held = kept | fresh

    def results(self) -> dict[str, Floats]:
        return {name: value.cpu().to(torch.float64).numpy() for name, value in self.values.items()}


def _check_head(model: Any, ours: Tensor, theirs: Tensor) -> None:
    ours, theirs = ours.float(), theirs.float()
    gap = float((ours - theirs).abs().max())
    size = float(theirs.abs().max())
    if not np.isfinite(gap):
        return  # the block that holds it names the position
    eps = torch.finfo(model.dtype).eps
    if gap > 256 * eps * max(size, 1.0):
        raise ModelError(
            f"{type(model).__name__} does more to its logits than is known here (they differ by "
            f"{gap:.2g}); its surprisal would be wrong, so it is not computed."
        )


def _not_finite(hidden: Tensor, place: int) -> str:
    where = "in the hidden states" if not hidden[place].isfinite().all() else "in the head"
    return (
        f"the logits at position {place} are NaN or infinite ({where}); load the model with "
        "dtype='float32', and check its weights."
    )
