"""The `workbench` command: the same calls as the Python interface, from a shell.

Results go to standard output; progress, notes and errors to standard error. Bad input ends with
a non-zero status and one line.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench import (
    cli_distraction,
    cli_memory,
    cli_memory_index,
    cli_recall,
    cli_sweep,
    cli_table2,
    cli_tasks,
    cli_train,
)
from workbench.core.errors import InputError, WorkbenchError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["app", "main"]

app = typer.Typer(
    name="workbench",
    help="Cut stories into events with a language model, and compare the cuts with people.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# typer carries its own copy of click or uses an installed one; both have this base of usage errors.
_UsageError: Any = typer.BadParameter.__mro__[2]

Json = Annotated[bool, typer.Option("--json", help="Print a list of rows as JSON, nothing else.")]
ModelName = Annotated[
    str, typer.Option(help="Model: the embedded default, a hub id, a folder, or a .gguf file.")
]
Gamma = Annotated[float, typer.Option(help="Threshold of surprise, in standard deviations.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]


@app.callback()
def start(context: typer.Context) -> None:
    """Show the help when no command is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command(
    epilog="Example: workbench compare --stories pieman --methods S,SM,F,H --null lengths,uniform "
    "--out results/pieman"
)
def compare(
    stories: Annotated[
        str | None,
        typer.Option(help="Names or files, separated by commas; default: the bundled stories."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Codes, separated by commas (see workbench methods); default: "
            "S,SM,SC,F,FM,FC,R, and H where every story has people's boundaries."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Model or models, separated by commas.")
    ] = "smollm2-135m",
    gamma: Gamma = 1.0,
    match: Annotated[
        str,
        typer.Option(
            help="How many boundaries: people (each method its strongest, as many as people's), "
            "method (people's likeliest, as many as the method's: EM-LLM's rule), or none."
        ),
    ] = "people",
    null: Annotated[
        str,
        typer.Option(
            help="Random baseline(s), separated by commas: lengths (the method's event lengths "
            "in random order), uniform (boundaries anywhere), min_gap (the same with a smallest "
            "event), shift (the boundaries rotated around the text)."
        ),
    ] = "lengths",
    draws: Annotated[int, typer.Option(help="Random segmentations per null.")] = 1000,
    bootstrap: Annotated[int, typer.Option(help="Resamples behind each interval.")] = 500,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for table, figures and settings.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier comparison there.")] = False,
    as_json: Json = False,
) -> None:
    """Compare segmentation methods with people (or with the author of a bundled story)."""
    from workbench.comparison.compare import compare as run
    from workbench.comparison.report import report
    from workbench.comparison.result import check_target

    if out is not None:
        check_target(out, overwrite)
    result = run(
        stories=_split(stories),
        methods=_split(methods),
        model=_split(model) or [],
        gamma=gamma,
        match=None if match == "none" else match,
        null=_split(null) or [],
        draws=draws,
        bootstrap=bootstrap,
        seed=seed,
        progress=True,
    )
    if out is not None:
        result.save(out, overwrite=overwrite)
        typer.echo(f"written to {out}", err=True)
    if as_json:
        _print_rows(result.table)
    else:
        typer.echo(report(result))
        if out is None:
            typer.echo("\nEvery layer and head, and the figures: add --out FOLDER.", err=True)


@app.command(epilog="Example: workbench record pieman --out pieman.zarr")
def record(
    story: Annotated[str, typer.Argument(help="Name of a story, or a text or word table.")],
    out: Annotated[Path, typer.Option(help="Folder (zarr) to write.")],
    model: ModelName = "smollm2-135m",
    keys: Annotated[bool, typer.Option(help="Record the keys of every layer and head.")] = True,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier recording.")] = False,
    as_json: Json = False,
) -> None:
    """Let a model read a story and record surprisal and keys."""
    from workbench.recording.record import record as run

    trace = run(story, model, keys=keys, progress=True)
    trace.save(out, overwrite=overwrite)
    typer.echo(f"written to {out}", err=True)
    if as_json:
        _print_rows(trace.words())
    else:
        import numpy as np

        typer.echo(repr(trace))
        typer.echo(f"mean surprisal {np.nanmean(trace.surprisal):.3f} nats per token")
        typer.echo(trace.settings["provenance"])


@app.command(epilog="Example: workbench segment pieman --method SM --gamma 1.5")
def segment(
    source: Annotated[str, typer.Argument(help="A recording (.zarr), a story's name, or a file.")],
    method: Annotated[str, typer.Option(help="Method code, e.g. S, SM, F, F:64, R, H.")] = "S",
    model: ModelName = "smollm2-135m",
    gamma: Gamma = 1.0,
    boundaries: Annotated[
        int | None, typer.Option(help="Keep the strongest so many boundaries.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Cut a story into events and print one row per event."""
    from workbench.comparison.report import events_table
    from workbench.events.methods import parse_method
    from workbench.events.methods import segment as run
    from workbench.recording.cache import cached_record
    from workbench.recording.storage import load_trace

    parse_method(method)  # a wrong code is told before a model is loaded
    path = Path(source)
    trace = (
        load_trace(path) if path.suffix == ".zarr" else cached_record(source, model, progress=True)
    )
    events = run(trace, method, gamma=gamma, n_boundaries=boundaries, seed=seed)
    table = events_table(trace, events)
    if as_json:
        _print_rows(table)
    else:
        typer.echo(table.to_string(index=False, float_format="%.2f"))
        typer.echo(
            "\ntoken, word: where the event starts, from 0; onset in seconds; surprisal in nats, "
            "of its first\ntoken; strength: how strongly the method marked its start."
        )
        typer.echo(f"{events!r}\n{trace.settings['provenance']}")


@app.command(epilog="Example: workbench stories --json")
def stories(as_json: Json = False) -> None:
    """List the stories that can be loaded by name, with source and licence."""
    from workbench.stories.library import list_stories

    table = list_stories()
    if not as_json:
        table["word_times"] = table["word_times"].map({True: "yes", False: "no"})
    _print_listing(table, as_json)


@app.command(epilog="Example: workbench models")
def models(as_json: Json = False) -> None:
    """List the models known by name, and what else can be loaded."""
    from workbench.models import list_models

    _print_listing(list_models(), as_json)


@app.command(epilog="Example: workbench methods")
def methods(as_json: Json = False) -> None:
    """List the segmentation methods and the papers they come from."""
    from workbench.events.methods import methods_table

    table = methods_table()
    if not as_json:
        typer.echo(
            "A method's code is a proposal and, where it is refined, a refinement: S, SM, FC.\n"
        )
        table.insert(0, "method", table["code"] + "  " + table.pop("name"))
        table = table.drop(columns="code")
    _print_listing(table, as_json)


app.command(epilog=cli_recall.RECALL_EPILOG)(cli_recall.recall)
app.command(epilog=cli_recall.HEADS_EPILOG)(cli_recall.heads)
app.command(epilog=cli_table2.EPILOG)(cli_table2.table2)


def _split(value: str | None) -> list[str] | None:
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not parts:
        raise InputError("an empty list was given; separate names by commas.")
    return parts


def _print_rows(table: pd.DataFrame) -> None:
    typer.echo(table.to_json(orient="records", force_ascii=False, double_precision=15))


def _print_listing(table: pd.DataFrame, as_json: bool) -> None:
    if as_json:
        _print_rows(table)
        return
    # Bounded, so that a listing in a file or a very wide window reads well, too.
    width = min(max(shutil.get_terminal_size().columns, 40), 100)
    for row in table.to_dict("records"):
        head, *rest = row.items()
        typer.echo(str(head[1]))
        for name, value in rest:
            if str(value) not in ("", "nan", "None"):
                line = f"{str(name).replace('_', ' ')}: {value}"
                typer.echo(
                    textwrap.fill(line, width, initial_indent="  ", subsequent_indent=4 * " ")
                )


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


app.add_typer(cli_train.train, name="train")
app.command(epilog=cli_memory.READ_EPILOG)(cli_memory.read)
app.command("recall-of-index", epilog=cli_memory_index.EPILOG)(cli_memory_index.recall_of_index)
app.command(epilog=cli_tasks.PASSKEY_EPILOG)(cli_tasks.passkey)
app.command(epilog=cli_sweep.SWEEP_EPILOG)(cli_sweep.sweep)
app.command("key-value", epilog=cli_tasks.KEY_VALUE_EPILOG)(cli_tasks.key_value)
app.command(epilog=cli_tasks.NEEDLE_EPILOG)(cli_tasks.needle)
app.command(epilog=cli_distraction.EPILOG)(cli_distraction.distraction)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; errors raised on purpose become one line and status 2."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"note: {_one_line(message)}", file=sys.stderr)

    warnings.showwarning = show
    try:
        status = app(args=arguments, prog_name="workbench", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except WorkbenchError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except _UsageError as error:
        message = error.format_message()
        print(f"error: {_one_line(message)} (see workbench --help)", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that may not be written to
        print(f"error: {_one_line(error)}", file=sys.stderr)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
