"""Generating with a memory: transformers' own `generate`, with the memory for its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from workbench.core.errors import InputError
from workbench.memory.reading import Reader
from workbench.memory.session import Session
from workbench.recording import adapter

__all__ = ["Generator"]

# Tokens of a prompt that are read one by one, each looking for what is like itself.
_QUESTION = 64


class Generator(Reader):
    """Goes on from what was read."""

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
