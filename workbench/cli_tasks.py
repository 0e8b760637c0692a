"""The commands `workbench passkey`, `key-value` and `needle`: what memory systems retrieve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.core.errors import InputError

if TYPE_CHECKING:
    from workbench.tasks.grid import TaskResult
    from workbench.tasks.items import Task

__all__ = ["key_value", "needle", "passkey"]

PASSKEY_EPILOG = (
    "Example: workbench passkey --system emllm-SM+C --system window --lengths 1k,4k "
    "--depths 0,0.5,1 --n-local 512 --n-mem 512 --out results/passkey"
)
KEY_VALUE_EPILOG = "Example: workbench key-value --system emllm-S --lengths 2k --seeds 5"
NEEDLE_EPILOG = (
    'Example: workbench needle book.txt --needle "The parrot of the captain is called Otto." '
    '--question "The parrot of the captain is called" --answer Otto --lengths 4k --extend'
)

Systems = Annotated[
    list[str] | None,
    typer.Option(
        "--system",
        help="Repeat for several: emllm-S, emllm-SM+C, ..., infllm, window, full. window gets "
        "n_local + n_mem tokens, so that all see as many.",
    ),
]
Lengths = Annotated[
    str, typer.Option(help="Tokens of text and question, separated by commas; 1k is 1,000.")
]
Depths = Annotated[
    str, typer.Option(help="Places from 0 (start) to 1 (just before the question), by commas.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Texts per length and depth.")]
ModelName = Annotated[
    str, typer.Option(help="Model: the embedded default, a hub id, a folder, or a .gguf file.")
]
NInit = Annotated[int | None, typer.Option(min=0, help="First tokens that are always seen.")]
NLocal = Annotated[int | None, typer.Option(min=1, help="Tokens of the local window.")]
NMem = Annotated[int | None, typer.Option(min=0, help="Tokens recalled.")]
Chunk = Annotated[int | None, typer.Option(min=1, help="Tokens read at once.")]
Full = Annotated[
    str | None,
    typer.Option(help="Longest text for full; default: what the model's window holds."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder of the rows; a run that was interrupted goes on there."),
]
Estimated = Annotated[bool, typer.Option("--estimate", help="Only say what the run would take.")]
Json = Annotated[bool, typer.Option("--json", help="Print a list of rows as JSON, nothing else.")]


def passkey(
    system: Systems = None,
    lengths: Lengths = "1k,4k",
    depths: Depths = "0,0.25,0.5,0.75,1",
    seeds: Seeds = 3,
    form: Annotated[
        str, typer.Option(help="fot (Mohtashami & Jaggi, Focused Transformer) or infinitebench.")
    ] = "fot",
    labelled: Annotated[
        bool,
        typer.Option("--labelled", help="All depths in one text, each key with its own label."),
    ] = False,
    extend: Annotated[
        str | None,
        typer.Option(help="One more length, e.g. 1M, by filler; time and bytes are told first."),
    ] = None,
    model: ModelName = "smollm2-135m",
    n_init: NInit = None,
    n_local: NLocal = None,
    n_mem: NMem = None,
    chunk: Chunk = None,
    full_to: Full = None,
    out: Out = None,
    estimate: Estimated = False,
    as_json: Json = False,
) -> None:
    """Passkey retrieval over depth and length, with intervals and a heat map."""
    from workbench.tasks.passkey import Passkey

    sizes = _lengths(lengths)
    if extend is not None:
        sizes = sorted({*sizes, *_lengths(extend)})
    _run(
        Passkey(form, labelled),
        system,
        sizes,
        _numbers("depths", depths),
        seeds,
        model,
        {"n_init": n_init, "n_local": n_local, "n_mem": n_mem, "chunk": chunk},
        full_to,
        out,
        estimate_first=estimate or extend is not None,
        stop=estimate,
        as_json=as_json,
    )


def key_value(
    system: Systems = None,
    lengths: Lengths = "1k,4k",
    depths: Depths = "0,0.25,0.5,0.75,1",
    seeds: Seeds = 3,
    model: ModelName = "smollm2-135m",
    n_init: NInit = None,
    n_local: NLocal = None,
    n_mem: NMem = None,
    chunk: Chunk = None,
    full_to: Full = None,
    out: Out = None,
    estimate: Estimated = False,
    as_json: Json = False,
) -> None:
    """Retrieval of one value from a JSON object of random keys and values."""
    from workbench.tasks.key_value import KeyValue

    _run(
        KeyValue(),
        system,
        _lengths(lengths),
        _numbers("depths", depths),
        seeds,
        model,
        {"n_init": n_init, "n_local": n_local, "n_mem": n_mem, "chunk": chunk},
        full_to,
        out,
        estimate_first=estimate,
        stop=estimate,
        as_json=as_json,
    )


def needle(
    text: Annotated[Path, typer.Argument(help="Text file: the haystack.")],
    needle: Annotated[str, typer.Option(help="Sentence that is hidden in it.")],
    question: Annotated[str, typer.Option(help="What is asked after the text.")],
    answer: Annotated[str, typer.Option(help="What the output must contain.")],
    system: Systems = None,
    lengths: Lengths = "1k,4k",
    depths: Depths = "0,0.25,0.5,0.75,1",
    seeds: Seeds = 1,
    extend: Annotated[
        bool,
        typer.Option("--extend", help="Lengthen a short text by filler; time is told first."),
    ] = False,
    model: ModelName = "smollm2-135m",
    n_init: NInit = None,
    n_local: NLocal = None,
    n_mem: NMem = None,
    chunk: Chunk = None,
    full_to: Full = None,
    out: Out = None,
    estimate: Estimated = False,
    as_json: Json = False,
) -> None:
    """Retrieval of your sentence from your text, over depth and length."""
    from workbench.stories.text import read_text
    from workbench.tasks.needle import Needle

    if not text.is_file():
        raise InputError(f"{text} is not a file; give the text to hide the needle in.")
    task = Needle(read_text(text, whitespace="keep"), needle, question, answer, extend)
    _run(
        task,
        system,
        _lengths(lengths),
        _numbers("depths", depths),
        seeds,
        model,
        {"n_init": n_init, "n_local": n_local, "n_mem": n_mem, "chunk": chunk},
        full_to,
        out,
        estimate_first=estimate or extend,
        stop=estimate,
        as_json=as_json,
    )


def _run(
    task: Task,
    systems: list[str] | None,
    lengths: list[int],
    depths: list[float],
    seeds: int,
    model: str,
    budgets: dict[str, int | None],
    full_to: str | None,
    out: Path | None,
    *,
    estimate_first: bool,
    stop: bool,
    as_json: bool,
) -> None:
    from workbench.models import load_model
    from workbench.tasks.grid import run_grid
    from workbench.tasks.items import check_depths
    from workbench.tasks.systems import system_specs

    chosen = systems or ["emllm-SM+C", "infllm", "window"]
    options = {name: value for name, value in budgets.items() if value is not None}
    check_depths(depths)
    specs = system_specs(chosen, options)
    limit: dict[str, int] = {}
    if full_to is not None and "full" in chosen:
        (limit["full"],) = _lengths(full_to)
    lm = load_model(model)
    if estimate_first:
        readings = seeds * (1 if task.together else len(depths))
        _tell_estimates(lm, specs, lengths, limit, readings)
        if stop:
            return
    result = run_grid(
        chosen,
        task,
        lengths,
        depths,
        seeds,
        lm=lm,
        options=options,
        max_length=limit,
        out=out,
        progress=True,
    )
    if out is not None:
        _write(result, out)
    for row in result.skipped.to_dict("records"):
        typer.echo(f"not run: {row['system']} on {row['length']} tokens, {row['reason']}", err=True)
    if as_json:
        shown = result.table.drop(columns=["versions"])
        typer.echo(shown.to_json(orient="records", force_ascii=False, double_precision=15))
    else:
        typer.echo(_report(result))


def _tell_estimates(
    lm: Any, specs: list[Any], lengths: list[int], limit: dict[str, int], readings: int
) -> None:
    """What a run will take by a measured speed, on standard error."""
    from workbench.tasks.estimate import estimate_reading, measure_speed
    from workbench.tasks.passkey import Passkey
    from workbench.tasks.run_settings import limits_of

    limits = limits_of(specs, limit, lm)
    sample = Passkey().items(lm.tokenizer, 2048, [0.5], 0)[0].text
    total = 0.0
    for spec in specs:
        speed = measure_speed(spec.make(lm), sample)
        for length in lengths:
            if length <= limits[spec.label]:
                found = estimate_reading(
                    lm, length, spec.name, options=spec.options, tokens_per_second=speed
                )
                total += readings * found.seconds
                typer.echo(f"{spec.label}: {found}, {readings} times", err=True)
        typer.echo(f"{spec.label}: {speed:.0f} tokens a second on 2,048 tokens", err=True)
    typer.echo(
        f"together about {total / 60:.0f} minutes of reading where time grows with length "
        "(full attention takes longer)",
        err=True,
    )


def _write(result: TaskResult, out: Path) -> None:
    from workbench.figures.export import find_browser, save_figures
    from workbench.figures.tasks import figure_depth_length
    from workbench.tasks.summary import accuracy_table, paired_table

    accuracy_table(result.table).to_csv(out / "accuracy.csv", index=False)
    paired_table(result.table).to_csv(out / "paired.csv", index=False)
    figure = figure_depth_length(result.table, provenance=[result.settings["model"]["provenance"]])
    formats = ("html", "pdf", "svg", "png") if find_browser() else ("html",)
    save_figures({"depth_length": figure}, out, formats)
    typer.echo(f"written to {out}", err=True)


def _report(result: TaskResult) -> str:
    """The tables as text."""
    from workbench.tasks.summary import accuracy_table, paired_table

    table = result.table
    cells = accuracy_table(table)
    pooled = accuracy_table(table, by=("system", "length"))
    pooled.insert(2, "depth", "all")
    lines = [_text(pooled), "", _text(cells)]
    lines.append(
        f"\nShare right by the rule: {', '.join(dict.fromkeys(table['scoring']))}; low, high: 95 % "
        "Wilson interval over texts."
    )
    pairs = paired_table(table)
    if len(pairs):
        lines += ["", pairs.to_string(index=False, float_format="%.3f")]
        lines.append(
            "\nThe same texts: difference of shares with its 95 % interval (Newcombe, paired); p: "
            "exact McNemar test,\ntwo-sided; p_holm: corrected for all rows above."
        )
    if "key_recalled" in table and table["key_recalled"].notna().any():
        recalled = accuracy_table(table, by=("system", "length"), measure="key_recalled")
        lines += ["", _text(recalled.rename(columns={"right": "recalled", "accuracy": "share"}))]
        lines.append("\nHow often the event that holds the key was recalled while answering.")
    lines += ["", str(result.settings["model"]["provenance"])]
    return "\n".join(lines)


def _text(table: Any) -> str:
    return str(table.to_string(index=False, float_format="%.3f"))


def _lengths(given: str) -> list[int]:
    """Lengths as written, 1k,4k,1M → [1000, 4000, 1000000]."""
    found = []
    for part in _parts("lengths", given):
        number, unit = (part[:-1], part[-1]) if part[-1] in "kKM" else (part, "")
        factor = {"": 1, "k": 1000, "K": 1000, "M": 1_000_000}[unit]
        try:
            size = float(number) * factor
        except ValueError:
            size = float("nan")
        if not (size >= 1 and size == int(size)):
            raise InputError(f"length {part!r} is not a number of tokens like 500, 4k or 1M.")
        found.append(int(size))
    return found


def _numbers(name: str, given: str) -> list[float]:
    try:
        return [float(part) for part in _parts(name, given)]
    except ValueError:
        raise InputError(f"{name}: {given!r} is not a list of numbers like 0,0.5,1.") from None


def _parts(name: str, given: str) -> list[str]:
    parts = [part.strip() for part in given.split(",") if part.strip()]
    if not parts:
        raise InputError(f"{name}: an empty list was given; separate values by commas.")
    return parts
