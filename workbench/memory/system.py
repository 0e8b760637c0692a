"""A language model with a memory: read, recall, generate, and look at what was remembered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.core.boundaries import Boundaries
from workbench.core.errors import DataError, InputError, MissingDataError, ModelError
from workbench.core.story import Story
from workbench.memory.forming import Forming
from workbench.memory.layer import LayerShape
from workbench.memory.rotation import Rotation
from workbench.memory.row import Row
from workbench.memory.session import Session
from workbench.memory.settings import Settings
from workbench.memory.token_layer import (
    TokenSettings,
    begin_document,
    begin_window,
    cut_windows,
    install,
)
from workbench.recording import adapter
from workbench.recording.start import start_token

if TYPE_CHECKING:
    import pandas as pd

    from workbench.core.trace import Trace
    from workbench.models import LanguageModel

__all__ = ["MemoryModel"]

Floats = NDArray[np.float64]

# Tokens of a prompt that are read one by one, each looking for what is like itself.
_QUESTION = 64


class MemoryModel:
    """A language model that reads with a memory.

    Parameters
    ----------
    lm : the language model.
    settings : what is near, kept and recalled.
    forming : how units are formed; None: no units are.
    tokens : memory layers that keep single tokens; None: there are none.
    bos : what stands before the text, as in `record`.
    folder : of the files, for store="disk".
    name : how tables call it.
    """

    def __init__(
        self,
        lm: LanguageModel,
        settings: Settings,
        forming: Forming | None,
        *,
        tokens: TokenSettings | None = None,
        bos: str | int = "auto",
        folder: str | Path | None = None,
        name: str = "memory",
    ) -> None:
        self.lm, self.settings, self.forming, self.name = lm, settings, forming, name
        self.tokens = tokens
        if tokens is not None:
            tokens.check_settings(settings)
        self.start, self.start_reason = start_token(lm.tokenizer, bos)
        self.bos = bos
        self._folder = None if folder is None else Path(folder)
        if settings.store == "disk" and folder is None:
            raise InputError("store='disk' needs folder=: where the files of the memory go.")
        modules = adapter.attention_modules(lm.model)
        size = adapter.geometry(lm.model)
        if len(modules) != size["n_layers"]:
            raise ModelError(
                f"{type(lm.model).__name__} has attention in {len(modules)} of its "
                f"{size['n_layers']} layers; a memory needs all of them."
            )
        adapter.rotary_module(lm.model)
        own = [adapter.own_window(lm.model, layer, module) for layer, module in modules.items()]
        mixed = any(window is None for window in own)
        # Where only some layers see all of a text, the others are not meant to look back further;
        # nor are any, where nothing is to be changed at all.
        plain = settings.n_local is None
        self._shapes = [
            LayerShape(
                layer,
                size["n_heads"],
                size["n_kv_heads"],
                window,
                recalls=not (window and (mixed or plain)),
            )
            for layer, window in zip(modules, own, strict=True)
        ]
        self._check_windows([window for window in own if window], mixed)
        if tokens is not None:
            tokens.check_layers(self._shapes)
        self._rotations = [Rotation(lm.model, layer, m) for layer, m in modules.items()]
        self.refining_layers: list[int] = self._refining_layers(size["n_layers"])
        self.rows: list[Row] = []
        self._depth = 0  # branches that are open
        self._stories: list[list[Story]] = []
        self._pieces: list[list[tuple[int, str]]] = []
        self.reset()

    def _check_windows(self, own: list[int], mixed: bool) -> None:
        n_local, window = self.settings.n_local, self.lm.window
        if own and not mixed and n_local is not None and n_local > min(own):
            raise InputError(
                f"n_local={n_local}: every layer of {self.lm.name} sees {min(own)} tokens by its "
                f"own design; give n_local={min(own)} or less."
            )
        if n_local is not None and window is not None and n_local > window:
            raise InputError(f"n_local={n_local}: {self.lm.name} reads at most {window} tokens.")

    def _refining_layers(self, n_layers: int) -> list[int]:
        if self.forming is None or not self.forming.refined:
            return []
        if self.forming.per == "layer":
            return list(range(n_layers))
        if self.forming.layers is None:
            # A sliding layer forgets its keys, so that nobody could check its events later.
            kept = [shape.layer for shape in self._shapes if shape.recalls]
            last = [layer for layer in kept if layer >= n_layers - max(1, n_layers // 3)]
            return last or kept[-1:]
        chosen = sorted(set(self.forming.layers))
        if not chosen or not 0 <= chosen[0] <= chosen[-1] < n_layers:
            raise InputError(f"layers={chosen}: this model has layers 0 ... {n_layers - 1}.")
        return chosen

    # --- reading ---------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything.

        Raises
        ------
        InputError : within `branch`, where the memory lies in files that would be overwritten.
        """
        if self._depth and self.settings.store == "disk":
            raise InputError(
                "reset() inside branch() would overwrite the files of a memory that is to come "
                "back; use another system, or store='host'."
            )
        self.rows = []
        self._pieces = []
        self._stories = []

    def _ready(self, n: int) -> None:
        if not self.rows:
            for number in range(n):
                folder = None
                if self._folder is not None:
                    folder = self._folder / f"text-{number}"
                self.rows.append(
                    Row(
                        self._shapes,
                        self._rotations,
                        self.settings,
                        self.forming,
                        int(self.start is not None),
                        folder,
                        refining=self.refining_layers,
                    )
                )
                if self.tokens is not None:
                    install(self.rows[-1], self._rotations, self.tokens, self.settings)
            self._pieces = [[] for _ in range(n)]
            self._stories = [[] for _ in range(n)]
        if len(self.rows) != n:
            raise InputError(
                f"this memory holds {len(self.rows)} text(s), and {n} were given; give one for "
                "each, or reset() first."
            )

    def read(
        self, text: str | Story | Sequence[str | Story], *, progress: bool = False
    ) -> MemoryModel:
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

    # --- generating ------------------------------------------------------------------------

    @contextmanager
    def attached(self) -> Iterator[Session]:
        """The model with this memory as its attention, for transformers' own `generate`.

        Pass the session's `cache` to the model: `past_key_values=session.cache`.
        """
        with torch.inference_mode(), Session(self.lm, self.rows, self.refining_layers) as session:
            yield session

    @contextmanager
    def branch(self) -> Iterator[MemoryModel]:
        """Whatever is read or generated inside the block is forgotten on leaving it."""
        back = self._way_back()
        self._depth += 1
        try:
            yield self
        finally:
            self._depth -= 1
            back()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A call that fails half-way (a full disk, an interruption) leaves the last good state.

        Otherwise some layers would have stored what others have not.
        """
        back = self._way_back()
        try:
            yield
        except BaseException:
            back()
            raise

    def _way_back(self) -> Callable[[], None]:
        """A function that brings the memory back to what it is now."""
        rows = list(self.rows)
        copies = [row.copy() for row in rows]
        pieces = [list(row) for row in self._pieces]
        stories = [list(row) for row in self._stories]

        def back() -> None:
            # A reset in between has made rows of its own.
            self.rows, self._pieces, self._stories = rows, pieces, stories
            for row, copy in zip(rows, copies, strict=True):
                row.restore(copy)

        return back

    def generate(
        self,
        prompt: str | Sequence[str],
        *,
        max_new_tokens: int = 32,
        keep: bool = True,
        chat: bool = False,
        **options: Any,
    ) -> Any:
        """Read a prompt after what was read before, and go on from it.

        All but the last 64 tokens of a prompt are read like any text; the rest token by token,
        each looking for what is like itself, as generated tokens do.

        Parameters
        ----------
        prompt : one, or one for each row of a batch.
        max_new_tokens, options : of transformers' `generate` (do_sample=False unless given).
        keep : False forgets prompt and answer afterwards.
        chat : put the prompt into the tokenizer's chat template, as a user's turn.

        Returns
        -------
        The new text, a list of them for a batch.
        """
        with self._all_or_nothing() if keep else self.branch():
            return self._generate(prompt, max_new_tokens, chat, options)

    def _generate(
        self,
        prompt: str | Sequence[str],
        max_new_tokens: int,
        chat: bool,
        options: dict[str, Any],
    ) -> Any:
        for option in ("num_beams", "num_return_sequences"):
            if options.get(option, 1) != 1:
                raise InputError(
                    f"{option}={options[option]}: a memory holds one continuation of each text; "
                    f"generate with {option}=1 (several times within branch(), if wanted)."
                )
        single = isinstance(prompt, str)
        prompts: list[str] = [str(prompt)] if single else list(prompt)
        if chat:
            prompts = [
                self.lm.tokenizer.apply_chat_template(
                    [{"role": "user", "content": one}], tokenize=False, add_generation_prompt=True
                )
                for one in prompts
            ]
        parts = [self._tokens_of(one) for one in prompts]
        self._ready(len(prompts))
        for number, (one, ids) in enumerate(zip(prompts, parts, strict=True)):
            self._note(number, one, ids)
        head = [part[: max(0, len(part) - _QUESTION)] for part in parts]
        if any(head):
            self._read_ids(head, follow=_QUESTION)
        elif all(row.n == 0 for row in self.rows) and self.start is not None:
            self._read_ids([[] for _ in parts])
        tails = [part[len(first) :] for part, first in zip(parts, head, strict=True)]
        new = self._continue(tails, max_new_tokens, options)
        answers = []
        for number, ids in enumerate(new):
            text = self.lm.tokenizer.decode(ids, skip_special_tokens=True)
            done = len(self.rows[number].text.ids) - len(ids)
            raw = self.lm.tokenizer.decode(ids, skip_special_tokens=False)
            self._pieces[number].append((done, raw))
            answers.append(text)
        return answers[0] if single else answers

    def _continue(
        self, tails: list[list[int]], max_new_tokens: int, options: dict[str, Any]
    ) -> list[list[int]]:
        """Token by token through the ends of the prompts, then transformers' `generate`."""
        tokenizer, device = self.lm.tokenizer, self.lm.device
        pad = tokenizer.pad_token_id
        if pad is None:
            pad = tokenizer.eos_token_id or 0
        longest = max(len(tail) for tail in tails)
        ids = torch.tensor([[pad] * (longest - len(tail)) + tail for tail in tails]).to(device)
        mask = torch.tensor([[0] * (longest - len(tail)) + [1] * len(tail) for tail in tails])
        mask = mask.to(device)
        name = adapter.cache_argument(self.lm.model)
        options = {"do_sample": False, "pad_token_id": pad, **options}
        ends = options.get("eos_token_id", self.lm.model.generation_config.eos_token_id)
        ends = [ends] if isinstance(ends, int) else list(ends or [])
        with torch.inference_mode(), Session(self.lm, self.rows, self.refining_layers) as session:
            try:
                for place in range(longest - 1):
                    self.lm.model(
                        input_ids=ids[:, place : place + 1],
                        attention_mask=mask[:, : place + 1],
                        use_cache=True,
                        **{name: session.cache},
                    )
                session.ends = frozenset(ends)
                if tokenizer.pad_token_id not in ends:
                    session.pad = tokenizer.pad_token_id
                output = self.lm.model.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=max_new_tokens,
                    **{name: session.cache},
                    **options,
                )
                if not isinstance(output, torch.Tensor):
                    output = output.sequences
                # `generate` does not give the last new token back; the memory wants it.
                self.lm.model(
                    input_ids=output[:, -1:],
                    attention_mask=torch.ones_like(output),
                    use_cache=True,
                    **{name: session.cache},
                )
            finally:  # an interrupted one, too: a closed text would read nothing any more
                for row in self.rows:
                    row.closed = False
        new = []
        for row in output[:, longest:].tolist():
            if session.pad in row:  # what follows a text that a stop string ended
                row = row[: row.index(session.pad)]
            stop = next((i for i, token in enumerate(row) if token in ends), len(row) - 1)
            new.append(row[: stop + 1])
        return new

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

    def describe(self) -> dict[str, Any]:
        """Settings of the system, as JSON."""
        forming = None
        if self.forming is not None:
            forming = dataclasses.asdict(self.forming)
            if self.forming.given is not None:
                forming["given"] = list(self.forming.given)
        about = {"settings": dataclasses.asdict(self.settings), "forming": forming}
        if self.tokens is not None:
            about["tokens"] = dataclasses.asdict(self.tokens)
        return about

    def pieces(self, row: int = 0) -> list[tuple[int, str]]:
        """What was read and generated: (first token, text) of each piece."""
        return list(self._pieces[row])

    def stories(self, row: int = 0) -> list[Story]:
        """The stories among what was read."""
        return list(self._stories[row])

    def restore_pieces(self, pieces: list[list[tuple[int, str]]]) -> None:
        """Empty rows for texts that are about to be loaded; see `load_memory`."""
        self.reset()
        self._ready(len(pieces))
        self._pieces = pieces

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the memory to a folder; see `save_memory` and `load_memory`."""
        from workbench.memory.saving import save_memory

        return save_memory(self, folder, overwrite=overwrite)

    # --- what was remembered ---------------------------------------------------------------

    def _row(self, number: int) -> Row:
        if not self.rows or not self.rows[number].text.ids:
            raise MissingDataError("nothing was read yet; call read(text) first.")
        return self.rows[number]

    @property
    def n_tokens(self) -> int:
        """Tokens of the (first) text read so far; a start token is not counted."""
        return len(self.rows[0].text.ids) if self.rows else 0

    @property
    def n_local(self) -> int | None:
        """Tokens seen at their own places; None: all."""
        return self.settings.n_local

    @property
    def events(self) -> Boundaries:
        """Events of the (first) text, formed while it was read."""
        return self.events_of()

    def events_of(self, row: int = 0, layer: int = 0) -> Boundaries:
        """Events of one text of a batch; of one layer, where each has its own.

        Raises
        ------
        MissingDataError : nothing was read, or the system forms no events.
        """
        found = self._row(row)
        if found.former is None:
            raise MissingDataError(f"{self.name} keeps no events: {type(self).__name__}.")
        return found.former.events(layer if len(found.former.units) > 1 else 0)

    @property
    def surprisal(self) -> Floats:
        """Surprisal seen while reading the (first) text, nats, (n_tokens,)."""
        return np.array(self._row(0).text.measures["surprisal"], dtype=np.float64)

    @property
    def trace(self) -> Trace:
        """What was seen while reading the (first) text; see `trace_of`."""
        return self.trace_of()

    def trace_of(self, row: int = 0) -> Trace:
        """What was seen while reading: surprisal and keys, as `record` would give them."""
        from workbench.memory.traced import memory_trace

        self._row(row)
        return memory_trace(self, row)

    @property
    def retrievals(self) -> pd.DataFrame:
        """Everything recalled for the (first) text; see `retrievals_of`."""
        return self.retrievals_of()

    def retrievals_of(self, row: int = 0) -> pd.DataFrame:
        """A tidy table of what was recalled, see `RetrievalLog.table`; positions of the text."""
        if not self.rows:
            raise MissingDataError("nothing was read yet; call read(text) first.")
        table = self.rows[row].log.table()
        table["position"] -= self.rows[row].skip
        return table

    @property
    def attended(self) -> float:
        """Keys that a token of the (first) text saw, on average over tokens and layers."""
        seen = self._row(0).text.seen
        return float(np.nanmean(seen))

    def footprint(self) -> dict[str, int]:
        """Bytes: resident_kv, stored_kv (stored_in_memory + stored_in_files), index, log."""
        total: dict[str, int] = {}
        for row in self.rows:
            for layer in row.layers:
                for name, size in layer.footprint().items():
                    total[name] = total.get(name, 0) + size
            total["log"] = total.get("log", 0) + row.log.nbytes
        total["stored_kv"] = total.get("stored_in_memory", 0) + total.get("stored_in_files", 0)
        return total

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lm.name!r}: {self.n_tokens} tokens read)"
