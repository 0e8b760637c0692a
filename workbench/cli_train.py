"""The commands `workbench train fot` and `workbench train presets`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.core.errors import InputError, MissingDataError

if TYPE_CHECKING:
    import pandas as pd

    from workbench.training.loop import Trainer

__all__ = ["train"]

train = typer.Typer(
    help="Train memory layers: crossbatch (Focused Transformer) and its baselines.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FOT_EPILOG = "Example: workbench train fot --preset dictionary --out runs/fot"


@train.command(epilog=FOT_EPILOG)
def fot(
    preset: Annotated[
        str | None, typer.Option(help="An experiment of the paper; see workbench train presets.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="Which of its curves; default: the first.")
    ] = None,
    size: Annotated[str, typer.Option(help="Of the preset: tiny, small or paper.")] = "tiny",
    model: Annotated[
        str | None, typer.Option(help="Instead: a model to fine-tune (hub id, folder, .gguf).")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Its documents: .jsonl, .txt, a folder, datasets:NAME. Repeat for a mixture."
        ),
    ] = None,
    share: Annotated[
        list[float] | None, typer.Option(help="Share of tokens of each --data, in their order.")
    ] = None,
    field: Annotated[str, typer.Option(help="Field of a .jsonl line with the text.")] = "text",
    instructions: Annotated[
        Path | None, typer.Option(help="Instead of --data: a .jsonl file of prompt and answer.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="fot, standard, xl, mt, or fot+mt (mt from half of the steps on).")
    ] = "fot",
    memory_layers: Annotated[
        str | None, typer.Option(help="Zero-based, e.g. 6,12,18; default: at 1/4, 1/2, 3/4.")
    ] = None,
    memory_positions: Annotated[
        str, typer.Option(help="Of memory keys: zero (as if first), or none in memory layers.")
    ] = "zero",
    join: Annotated[str, typer.Option(help="softmax (one over all) or gate.")] = "softmax",
    d: Annotated[
        str, typer.Option(help="Documents a row sees, its own included: 2, or 2,64.")
    ] = "2",
    d_rule: Annotated[
        str | None,
        typer.Option(help="Several d: sampled (default), accuracy, or steps (with --d-starts)."),
    ] = None,
    d_starts: Annotated[str | None, typer.Option(help="First step of each d, e.g. 0,5000.")] = None,
    windows: Annotated[int, typer.Option(help="Previous windows of each document (w).")] = 1,
    parts: Annotated[
        str | None,
        typer.Option(
            help="Instead of --d: (positives:negatives) of parts of the batch, "
            "e.g. 0:0,1:1,2:1,3:0."
        ),
    ] = None,
    negatives: Annotated[str, typer.Option(help="next, random, or hardest.")] = "next",
    contrast: Annotated[
        float, typer.Option(help="Weight of an InfoNCE term; 0 is the paper.")
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option(help="Keys per query and head; default: all (mt: 32).")
    ] = None,
    window: Annotated[int, typer.Option(help="Tokens of a window.")] = 512,
    rows: Annotated[int, typer.Option(help="Documents side by side (at least d).")] = 4,
    accumulation: Annotated[int, typer.Option(help="Batches per step.")] = 1,
    short: Annotated[
        str, typer.Option(help="Documents shorter than two windows: drop or pack.")
    ] = "drop",
    steps: Annotated[int | None, typer.Option(help="Default: the preset's own, or 1000.")] = None,
    rate: Annotated[float, typer.Option(help="Highest learning rate (--model).")] = 2e-5,
    warmup: Annotated[int, typer.Option(help="Steps to it (--model).")] = 100,
    precision: Annotated[str, typer.Option(help="no or bf16 (--model).")] = "no",
    checkpointing: Annotated[
        bool, typer.Option(help="Compute layers twice to save memory (--model).")
    ] = False,
    save_every: Annotated[int, typer.Option(help="Steps between kept states (--model).")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, data and links.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the model, its metrics and its state.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the state in --out.")] = False,
    log: Annotated[str, typer.Option(help="auto, csv, or tensorboard (both).")] = "auto",
    cpu: Annotated[bool, typer.Option(help="Stay on the processor.")] = False,
    half: Annotated[
        bool, typer.Option(help="Store a preset's decoder in 16 bits, and measure it so.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON, nothing else.")
    ] = False,
) -> None:
    """Train a preset of the paper from scratch, or fine-tune a model on documents."""
    if (preset is None) == (model is None):
        raise InputError("give --preset or --model, one of the two.")
    if out is None:
        raise InputError("give --out, the folder for what is trained.")
    if out.exists() and any(out.iterdir()) and not resume:
        raise InputError(f"{out} is not empty; give another --out, or --resume to go on there.")
    if preset is not None:
        from workbench.training.experiments import build

        trainer = build(
            preset, variant, size=size, seed=seed, steps=steps, out=out, log=log, cpu=cpu
        )
        _train(trainer, resume)
        if trainer.accelerator.is_main_process:
            found = _finish_preset(trainer, preset, variant, size, seed, out, half)
            _show(found, as_json)
        return
    from workbench.models import load_model
    from workbench.training.finetune import fine_tune, save_pretrained
    from workbench.training.loop import Settings
    from workbench.training.schedules import Rate, schedule

    assert model is not None
    total = 1000 if steps is None else steps
    values = _numbers("d", d)
    rule = d_rule or ("constant" if len(values) == 1 else "sampled")
    starts = {"starts": _numbers("d-starts", d_starts)} if d_starts else {}
    lm = load_model(model, device="cpu" if cpu else None)
    documents, weights, examples = _texts(lm, data, share, field, instructions)
    trainer = fine_tune(
        lm,
        documents,
        Settings(
            total,
            Rate(rate, rate / 10, min(warmup, total)),
            betas=(0.9, 0.95),
            precision=precision,
            checkpointing=checkpointing,
            save_every=save_every,
            seed=seed,
        ),
        schedule(values[0] if rule == "constant" and len(values) == 1 else values, rule, **starts),
        method=method,
        memory_layers=_numbers("memory-layers", memory_layers) if memory_layers else None,
        memory_positions=memory_positions,
        join=join,
        instructions=examples,
        rows=rows,
        window=window,
        accumulation=accumulation,
        short=short,
        weights=weights,
        out=out,
        log=log,
        cpu=cpu,
        windows=windows,
        negatives=negatives,
        parts=_parts(parts) if parts else None,
        contrast=contrast,
        top_k=top_k,
    )
    _train(trainer, resume)
    if trainer.accelerator.is_main_process:
        save_pretrained(trainer.decoder, lm.tokenizer, out / "model")  # type: ignore[arg-type]
        _show({"training": trainer.rows[-1:]}, as_json)
        typer.echo(f"written to {out}", err=True)


@train.command(epilog="Example: workbench train presets")
def presets() -> None:
    """List the presets, what they show, and their variants."""
    from workbench.training.presets import PRESETS

    for name, sizes in PRESETS.items():
        tiny = sizes["tiny"]
        typer.echo(f"{name}: {tiny.about}\n  variants: {', '.join(tiny.variants)}")
    typer.echo(
        "\nSizes: tiny (a processor, minutes), small (one graphics card), paper (its Table 9). "
        "\nsmall and paper are laid out and built, but have not been trained."
    )


def _train(trainer: Trainer, resume: bool) -> None:
    if resume:
        step = trainer.resume()
        typer.echo(f"going on from step {step}", err=True)
    trainer.train(progress=True)


def _finish_preset(
    trainer: Trainer, preset: str, variant: str | None, size: str, seed: int, out: Path, half: bool
) -> dict[str, Any]:
    """Write the decoder and what it reaches; returns the tables as rows."""
    import torch

    from workbench.training.checkpoints import save_decoder
    from workbench.training.experiments import report
    from workbench.training.presets import preset as chosen

    experiment = chosen(preset, size)
    name = next(iter(experiment.variants)) if variant is None else variant
    decoder: Any = trainer.decoder.cpu()
    if half:
        decoder = decoder.half().float()
    tables = report(decoder, experiment, experiment.variants[name])
    found = {title: json.loads(table.to_json(orient="records")) for title, table in tables.items()}
    about = {"preset": preset, "variant": name, "size": size, "seed": seed}
    save_decoder(
        out / "decoder.safetensors",
        decoder,
        dtype=torch.float16 if half else None,
        training={**about, "steps": trainer.settings.steps},
        reached=found,
    )
    typer.echo(f"written to {out}", err=True)
    return {"training": trainer.rows[-1:], **found}


def _texts(
    lm: Any,
    data: list[str] | None,
    share: list[float] | None,
    field: str,
    instructions: Path | None,
) -> tuple[list[Any] | None, Any, list[Any] | None]:
    """Documents and their weights, or instructions."""
    from workbench.training.instruction import read_instructions
    from workbench.training.loader import mixture_weights
    from workbench.training.texts import document_tokens, read_documents

    if (instructions is None) == (not data):
        raise InputError("give --data or --instructions, one of the two.")
    if instructions is not None:
        return None, None, read_instructions(instructions, lm.tokenizer)
    assert data is not None
    if share and len(share) != len(data):
        raise InputError(f"there are {len(share)} --share for {len(data)} --data; give one each.")
    documents: list[Any] = []
    source: list[int] = []
    for number, name in enumerate(data):
        found = document_tokens(read_documents(name, field=field), lm.tokenizer)
        if not found:
            raise MissingDataError(f"{name} holds no document.")
        documents += found
        source += [number] * len(found)
    weights = None
    if share:
        weights = mixture_weights([len(doc) for doc in documents], source, share)
    return documents, weights, None


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--{name} {text!r} must be whole numbers, e.g. 2,64.") from error


def _parts(text: str) -> tuple[tuple[int, int], ...]:
    try:
        pairs = [tuple(int(n) for n in part.split(":")) for part in text.split(",")]
        return tuple((positives, negatives) for positives, negatives in pairs)
    except ValueError as error:
        raise InputError(
            f"--parts {text!r} must be positives:negatives, e.g. 0:0,1:1,2:1,3:0."
        ) from error


def _show(found: dict[str, Any], as_json: bool) -> None:
    import pandas as pd

    if as_json:
        clean = {
            title: [{k: None if v != v else v for k, v in row.items()} for row in rows]
            for title, rows in found.items()
        }
        typer.echo(json.dumps(clean, default=float, allow_nan=False))
        return
    for title, rows in found.items():
        table: pd.DataFrame = pd.DataFrame(rows)
        typer.echo(f"\n{title}")
        typer.echo(table.to_string(index=False, float_format="%.4g"))
    typer.echo(
        "\nr_d: attention on the own document's previous window ÷ on all d of them; without focus "
        "it is 1/d (baseline).\nIntervals: 95 %, documents resampled; one training, one seed."
    )
