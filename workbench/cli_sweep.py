"""The command `workbench sweep`: how much memory a system needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.core.errors import InputError

if TYPE_CHECKING:
    from workbench.tasks.capacity import Capacity

__all__ = ["SWEEP_EPILOG", "sweep"]

SWEEP_EPILOG = (
    "Example: workbench sweep pieman --n-mem 0,128,512 --share 0,0.3,0.6 --gamma 0.5,1,2 "
    "--n-local 64,128,256,512 --total 512 --out results/sweep"
)


def sweep(
    text: Annotated[str, typer.Argument(help="Name of a story, or a text file.")],
    n_mem: Annotated[str, typer.Option(help="Tokens recalled, separated by commas.")] = "",
    share: Annotated[
        str, typer.Option(help="Parts of them that are the contiguity buffer's, 0 to 1.")
    ] = "",
    gamma: Annotated[str, typer.Option(help="Thresholds of surprise.")] = "",
    n_local: Annotated[
        str, typer.Option(help="Local windows; the rest of --total is recalled tokens.")
    ] = "",
    total: Annotated[
        int | None,
        typer.Option(help="n_local + n_mem of --n-local; default: --base-n-local + --base-n-mem."),
    ] = None,
    system: Annotated[str, typer.Option(help="emllm-S, emllm-SM+C, ..., or infllm.")] = (
        "emllm-SM+C"
    ),
    base_n_local: Annotated[int, typer.Option(help="Local window of the other settings.")] = 512,
    base_n_mem: Annotated[int, typer.Option(help="Tokens recalled in the other settings.")] = 512,
    n_init: Annotated[int, typer.Option(min=0, help="First tokens that are always seen.")] = 128,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens read at once.")] = 256,
    model: Annotated[
        str, typer.Option(help="Model: the embedded default, a hub id, a folder, or a .gguf file.")
    ] = "smollm2-135m",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of rows, tables and figures; a run goes on there."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list of rows as JSON, nothing else.")
    ] = False,
) -> None:
    """Read one text at many settings of a memory system, one setting changed at a time."""
    from workbench.stories.library import load_story
    from workbench.tasks.capacity import capacity_sweep

    values = {
        "n_mem": [int(value) for value in _numbers("n-mem", n_mem, whole=True)],
        "share": _numbers("share", share),
        "gamma": _numbers("gamma", gamma),
        "n_local": [int(value) for value in _numbers("n-local", n_local, whole=True)],
    }
    found = capacity_sweep(
        load_story(text),
        **values,  # type: ignore[arg-type]
        total=total,
        system=system,
        base={"n_init": n_init, "n_local": base_n_local, "n_mem": base_n_mem, "chunk": chunk},
        lm=model,
        seed=seed,
        out=out,
        progress=True,
    )
    if out is not None:
        _write(found, out)
    if as_json:
        typer.echo(found.table.to_json(orient="records", force_ascii=False, double_precision=15))
    else:
        typer.echo(_report(found))


def _write(found: Capacity, out: Path) -> None:
    from workbench.figures.export import find_browser, save_figures
    from workbench.figures.retrieval import figure_capacity, figure_retrieval_lag

    found.table.to_csv(out / "capacity.csv", index=False)
    figures = {"capacity": figure_capacity(found.table)}
    if len(found.lags):
        found.lags.to_csv(out / "lag_crp.csv", index=False)
        base = found.lags.assign(provenance=found.table["provenance"].iloc[0])
        figures["lag_crp"] = figure_retrieval_lag(base, by="label")
    formats = ("html", "pdf", "svg", "png") if find_browser() else ("html",)
    save_figures(figures, out, formats)
    typer.echo(f"written to {out}", err=True)


def _report(found: Capacity) -> str:
    table = found.table
    first = ["label", "n_local", "n_mem", "share", "gamma", "nats", "ci_low", "ci_high"]
    second = ["label", "n_events", "n_stored", "ever", "forward", "backward", "asymmetry"]
    parts = [
        table[[*first, "difference", "difference_low", "difference_high"]],
        table[[*second, "asymmetry_low", "asymmetry_high", "attended", "seconds"]],
    ]
    lines = [part.to_string(index=False, float_format="%.3f", na_rep="") for part in parts]
    n = int(table["n_tokens"].iloc[0])
    return "\n\n".join(
        [
            *lines,
            f"{table['system'].iloc[0]} on the same {n:,} tokens, chunks of "
            f"{int(table['chunk'].iloc[0])}. nats: mean surprisal per token; low, high: 95 % "
            "bootstrap over blocks of tokens;\ndifference: from base, on the same blocks. ever: "
            "share of the stored events that any layer recalled. forward, backward:\nlag-CRP of "
            "the similarity buffer at +1, -1, mean over layers; asymmetry: (f - b) / (f + b), "
            "interval over retrieval steps\n(none from fewer than five). attended: keys a token "
            "saw. n_local settings share one sum of n_local + n_mem.",
            str(table["provenance"].iloc[0]),
        ]
    )


def _numbers(name: str, given: str, *, whole: bool = False) -> list[float]:
    parts = [part.strip() for part in given.split(",") if part.strip()]
    try:
        found = [float(part) for part in parts]
    except ValueError:
        found = [float("nan")]
    kind = "whole numbers like 128,512" if whole else "numbers like 0,0.3"
    if any(value != value or (whole and value != int(value)) for value in found):
        raise InputError(f"--{name}: {given!r} is not a list of {kind}.")
    return found
