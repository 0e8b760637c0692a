"""The command `workbench read`: a text read with a memory, what it kept, and what it answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.core.errors import DataError

__all__ = ["READ_EPILOG", "read"]

READ_EPILOG = (
    'Example: workbench read tortoise --system emllm-SM+C --ask "Who won the race?" --out memory/'
)


def read(
    text: Annotated[str, typer.Argument(help="A story's name, a text file or a table of words.")],
    system: Annotated[
        str,
        typer.Option(help="emllm-S, emllm-SM+C (any method of segment), infllm, window or full."),
    ] = "emllm-SM+C",
    ask: Annotated[
        list[str] | None,
        typer.Option(help="What is put behind the text; repeat for several, each on its own."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of an answer.")] = 32,
    chat: Annotated[bool, typer.Option("--chat", help="Ask in the model's chat template.")] = False,
    model: Annotated[
        str, typer.Option(help="Model: the embedded default, a hub id, a folder, or a .gguf file.")
    ] = "smollm2-135m",
    n_init: Annotated[int | None, typer.Option(min=0, help="First tokens always seen.")] = None,
    n_local: Annotated[int | None, typer.Option(min=1, help="Tokens of the local window.")] = None,
    n_mem: Annotated[int | None, typer.Option(min=0, help="Tokens recalled.")] = None,
    chunk: Annotated[int | None, typer.Option(min=1, help="Tokens read at once.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Of the surprise threshold.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder in which the memory is saved; it must not exist.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, nothing else.")
    ] = False,
) -> None:
    """Read a text with a memory system, ask it, and save what it remembers."""
    import numpy as np

    from workbench.memory import make_system
    from workbench.models import load_model
    from workbench.stories.library import load_story

    given = {"n_init": n_init, "n_local": n_local, "n_mem": n_mem, "chunk": chunk, "gamma": gamma}
    options = {name: value for name, value in given.items() if value is not None}
    if out is not None and out.exists():
        raise DataError(f"{out} exists; give a folder that does not, or remove it.")
    lm = load_model(model)
    memory = make_system(system, lm, **options)
    story = load_story(text)
    memory.read(story, progress=not as_json)
    answers = [
        {
            "question": question,
            "answer": memory.generate(
                question, max_new_tokens=max_new_tokens, chat=chat, keep=False
            ),
        }
        for question in ask or []
    ]
    about: dict[str, Any] = {
        "story": story.name,
        "system": memory.name,
        "model": lm.name,
        "provenance": lm.provenance,
        "tokens": memory.n_tokens,
        "mean_surprisal": float(np.nanmean(memory.surprisal)),
        "tokens_attended": memory.attended,
        "events": memory.events.n_events if memory.forming is not None else None,
        "retrievals": len(memory.retrievals),
        "answers": answers,
    }
    if out is not None:
        about["saved"] = str(memory.save(out))
    if as_json:
        print(json.dumps(about, ensure_ascii=False))
        return
    print(f"{memory.name} ({lm.name}) read {story.name}: {memory.n_tokens} tokens")
    print(f"  mean surprisal    {about['mean_surprisal']:.3f} nats a token")
    print(f"  tokens attended   {memory.attended:.0f} on average")
    if about["events"] is not None:
        print(
            f"  events            {about['events']} (mean {memory.n_tokens / about['events']:.1f})"
        )
        print(f"  units recalled    {about['retrievals']} in all layers and steps")
    for one in answers:
        print(f"\n> {one['question']}\n{one['answer'].strip()}")
    if out is not None:
        print(f"\nsaved in {about['saved']}")
    print(f"\n{lm.provenance}")
