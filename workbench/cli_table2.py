"""The command `workbench table2`: EM-LLM's Table 2 on a folder of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.core.errors import InputError

__all__ = ["table2"]

EPILOG = "Example: workbench table2 texts/ --chunk 512 --null uniform,lengths --out results/table2"


def table2(
    texts: Annotated[
        list[str],
        typer.Argument(help="A folder of texts (.txt), or texts and names of stories."),
    ],
    model: Annotated[
        str, typer.Option(help="Model or models, separated by commas.")
    ] = "smollm2-135m",
    gamma: Annotated[float, typer.Option(help="Threshold of surprise (the paper's).")] = 1e-3,
    chunk: Annotated[int, typer.Option(help="Tokens per chunk; each is a graph.")] = 512,
    min_size: Annotated[int, typer.Option(help="Least tokens per event.")] = 8,
    methods: Annotated[str, typer.Option(help="Of F,FM,FC,S,SM,SC.")] = "F,FM,FC,S,SM,SC",
    null: Annotated[
        str, typer.Option(help="Random baselines: uniform (the paper's), lengths, min_gap, shift.")
    ] = "uniform,lengths,min_gap,shift",
    refine_on: Annotated[
        str, typer.Option(help="Graph that refines: summed (last third of layers) or head.")
    ] = "summed",
    draws: Annotated[int, typer.Option(help="Random cuts per chunk and null.")] = 100,
    resamples: Annotated[int, typer.Option(help="Resamples behind each interval.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for tables and settings.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier result there.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows as JSON, nothing else.")
    ] = False,
) -> None:
    """Compare methods with random segmentation on every head (EM-LLM, Table 2)."""
    from workbench.analysis.table2 import check_table2_target
    from workbench.analysis.table2 import table2 as run

    if out is not None:
        check_table2_target(out, overwrite)
    chosen = [part.strip() for part in methods.split(",") if part.strip()]
    models = [part.strip() for part in model.split(",") if part.strip()]
    nulls = [part.strip() for part in null.split(",") if part.strip()]
    if not (chosen and models and nulls):
        raise InputError("an empty list was given; separate names by commas.")
    found = run(
        texts[0] if len(texts) == 1 else texts,
        models,
        gamma=gamma,
        chunk=chunk,
        min_size=min_size,
        methods=chosen,
        nulls=nulls,
        refine_on=refine_on,
        draws=draws,
        resamples=resamples,
        seed=seed,
        progress=True,
    )
    if out is not None:
        found.save(out, overwrite=overwrite)
        typer.echo(f"written to {out}", err=True)
    if as_json:
        text = found.table.to_json(orient="records", force_ascii=False, double_precision=15)
        typer.echo(text)
    else:
        typer.echo(found.report())
