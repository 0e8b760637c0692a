"""Reading with a memory: chunk by chunk, scored, events forming on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.core.errors import DataError, InputError
from workbench.core.story import Story
from workbench.memory.row import Row
from workbench.memory.session import Session
from workbench.memory.state import MemoryState
from workbench.memory.token_layer import begin_document, begin_window, cut_windows
from workbench.recording import adapter

__all__ = ["Reader"]

Floats = NDArray[np.float64]


class Reader(MemoryState):
    """Reads and scores texts."""

    def read(self, text: str | Story | Sequence[str | Story], *, progress: bool = False) -> Self:
        """Read a text, or one for each row of a batch, after what was read before.

        A call that fails (a full disk, an interruption) leaves the memory as it was.

        Returns
        -------
        The system itself.

        Raises
        ------
        DataError : a text is empty.
        """
        texts = [text] if isinstance(text, str | Story) else list(text)
        if not texts:
            raise DataError("there is no text to read: the list is empty.")
        with self._all_or_nothing():
            self._go_on(texts, begins=True, progress=progress)
        return self

    def _go_on(
        self, texts: Sequence[str | Story], *, begins: bool = False, progress: bool = False
    ) -> None:
        """Read texts; `begins`: as documents of their own, for memories that hold one."""
        found = [self._tokens_of(piece) for piece in texts]
        self._ready(len(texts))
        if begins and self.tokens is not None and self.tokens.per_document:
            for row in self.rows:
                begin_document(row)
        for number, (piece, ids) in enumerate(zip(texts, found, strict=True)):
            self._note(number, piece, ids)
        self._read_ids(found, progress=progress)

    def _tokens_of(self, piece: str | Story) -> list[int]:
        from workbench.recording.tokens import tokenize

        text = piece if isinstance(piece, str) else piece.text
        where = "the text" if isinstance(piece, str) else f"story {piece.name!r}"
        return list(tokenize(self.lm.tokenizer, text, where).ids.tolist())

    def _note(self, number: int, piece: str | Story, ids: list[int]) -> None:
        """Before a piece is read: keep it, and look for events that are found in it as it is."""
        row = self.rows[number]
        text = piece if isinstance(piece, str) else piece.text
        done = len(row.text.ids)
        self._pieces[number].append((done, text))
        if isinstance(piece, Story):
            self._stories[number].append(piece)
        if row.former is not None and self.forming is not None and self.forming.needs_text:
            from workbench.memory.given import starts_in

            starts = starts_in(self.forming, self.lm.tokenizer, text, len(ids), done)
            row.former.expect(start + done for start in starts)

    def _read_ids(self, ids: list[list[int]], *, follow: int = 0, progress: bool = False) -> None:
        """Read tokens; `follow` more of each text are about to be read one by one."""
        from tqdm import tqdm

        if self.start is not None:
            given = [
                [self.start, *part] if row.n == 0 else part
                for row, part in zip(self.rows, ids, strict=True)
            ]
        else:
            given = ids
        chunk = self.settings.chunk
        longest = max(len(part) for part in given)
        label = f"{self.name} reads"
        with (
            torch.inference_mode(),
            Session(self.lm, self.rows, self.refining_layers) as session,
            tqdm(total=longest, desc=label, disable=not progress, unit="token") as bar,
        ):
            session.reading = True
            for parts in self._windows(given, follow):
                length = max(len(part) for part in parts)
                for begin in range(0, length, chunk):
                    self._read_chunk(session, [part[begin : begin + chunk] for part in parts])
                    bar.update(min(chunk, length - begin))

    def _windows(self, given: list[list[int]], follow: int) -> Iterator[list[list[int]]]:
        """What is read at one go: all, or one window of each text after the other."""
        if self.tokens is None or self.tokens.last_context is None:
            yield given
            return
        assert self.settings.n_local is not None
        last = max(0, self.tokens.last_context - follow)
        n_local = self.settings.n_local
        cut = [cut_windows(part, n_local, last) if part else [] for part in given]
        for number in range(max(len(windows) for windows in cut)):
            for row, windows in zip(self.rows, cut, strict=True):
                if number < len(windows):
                    begin_window(row)
            yield [windows[number] if number < len(windows) else [] for windows in cut]

    def _read_chunk(self, session: Session, parts: list[list[int]]) -> None:
        longest = max(len(part) for part in parts)
        pad = self.lm.tokenizer.pad_token_id or 0
        ids = torch.tensor([part + [pad] * (longest - len(part)) for part in parts])
        mask = torch.tensor([[1] * len(part) + [0] * (longest - len(part)) for part in parts])
        before = [(row.n, row.hidden) for row in self.rows]
        decoder = self.lm.model.get_decoder()
        device = self.lm.device
        options = {adapter.cache_argument(self.lm.model): session.cache}
        output = decoder(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            use_cache=True,
            **options,
        )
        for number, (row, part) in enumerate(zip(self.rows, parts, strict=True)):
            if part:
                self._score_chunk(row, part, output[0][number, : len(part)], *before[number])

    def _score_chunk(
        self, row: Row, part: list[int], hidden: torch.Tensor, done: int, last: torch.Tensor | None
    ) -> None:
        """Measure the tokens just read, and let events form."""
        from workbench.recording.distributions import score

        if done == 0 and row.skip:
            part, first = part[1:], hidden
        elif last is None:  # no start token: nothing predicts the first
            first = hidden
        else:
            first = torch.cat((last[None].to(hidden.device), hidden))
        if not part:
            return
        unpredicted = len(part) + 1 - len(first)
        names = ["surprisal", "entropy"]
        if self.forming is not None and self.forming.signal == "bayesian_surprise":
            names.append("bayesian_surprise")
        targets = torch.tensor(part[unpredicted:])
        measures: dict[str, Floats] = {}
        if len(targets):
            found = score(self.lm.model, first, targets, measures=names)
            measures = {name: found[name] for name in names}
        if unpredicted:
            nothing = np.full(unpredicted, np.nan)
            measures = {
                name: np.concatenate((nothing, measures.get(name, np.zeros(0)))) for name in names
            }
        row.feed(part, measures)

    def score(
        self, text: str | Story | Sequence[str | Story], *, keep: bool = False, force: bool = False
    ) -> Any:
        """Log-probabilities (nats) of the tokens of a text after what was read before.

        Parameters
        ----------
        keep : the text stays in memory.
        force : score although the query is not causal (query="chunk"): later tokens then decide
            what earlier ones see, so these are not probabilities of a reading.

        Returns
        -------
        float64 (n_tokens,); a list of them for a batch. NaN where nothing predicts a first token.
        """
        if self.settings.query == "chunk" and self.forming is not None and not force:
            raise InputError(
                "query='chunk' lets later tokens choose what earlier ones see, so the scores "
                "would not be probabilities; use query='previous', or force=True to have them."
            )
        with self._all_or_nothing() if keep else self.branch():
            before = [len(row.text.ids) for row in self.rows]
            self._go_on([text] if isinstance(text, str | Story) else list(text))
            before = before or [0] * len(self.rows)
            found = [
                -np.array(row.text.measures["surprisal"][n:], dtype=np.float64)
                for row, n in zip(self.rows, before, strict=True)
            ]
        return found[0] if isinstance(text, str | Story) else found
