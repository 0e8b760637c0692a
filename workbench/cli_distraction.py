"""The command `workbench distraction`: how much attention stays with the own document (r_d)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.core.errors import DataError, InputError

if TYPE_CHECKING:
    from workbench.core.story import Story
    from workbench.tasks.distraction import Distraction

__all__ = ["EPILOG", "distraction"]

EPILOG = "Example: workbench distraction --documents docs.jsonl --d 1,2,4,8 --out results/r_d"


def distraction(
    documents: Annotated[
        list[str] | None,
        typer.Option(
            help="A .jsonl or .txt file, a folder of these, or a story's name; repeat for "
            "several. Default: every story that can be loaded."
        ),
    ] = None,
    d: Annotated[str, typer.Option("--d", help="Previous windows, separated by commas.")] = "1,2,4",
    window: Annotated[int, typer.Option(min=1, help="Tokens of a window.")] = 96,
    windows_per_document: Annotated[
        int, typer.Option(min=1, help="Windows of each document that ask.")
    ] = 1,
    orders: Annotated[
        int,
        typer.Option(
            min=1,
            help="Orders in which each is read for each d, own window elsewhere; at most d. The "
            "largest d takes out that the nearest window is preferred.",
        ),
    ] = 1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most documents that ask; the rest give windows.")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Layers, separated by commas; default: all.")
    ] = None,
    bar_own: Annotated[
        bool, typer.Option(help="Keep further windows of the asking document out of the d.")
    ] = True,
    model: Annotated[
        str, typer.Option(help="Model: the embedded default, a hub id, a folder, or a .gguf file.")
    ] = "smollm2-135m",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for table, settings and figures; must not exist.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list of rows as JSON, nothing else.")
    ] = False,
) -> None:
    """Attention to the own document's previous window over that to all d (r_d, FOT Figure 3)."""
    from workbench.models import load_model
    from workbench.tasks.distraction import distraction as run

    if out is not None and out.exists():
        raise DataError(f"{out} exists; give a folder that does not, or remove it.")
    sizes = _numbers("d", d)
    chosen = None if layers is None else _numbers("layers", layers)
    texts = _documents(documents)
    result = run(
        load_model(model),
        texts,
        sizes,
        window=window,
        layers=chosen,
        seed=seed,
        windows_per_document=windows_per_document,
        orders=orders,
        bar_own=bar_own,
        limit=limit,
        progress=not as_json,
    )
    if out is not None:
        _write(result, out)
        typer.echo(f"written to {out}", err=True)
    if as_json:
        print(result.table.to_json(orient="records", force_ascii=False, double_precision=15))
    else:
        print(_report(result))


def _documents(given: list[str] | None) -> list[str | Story]:
    from workbench.stories.library import list_stories, load_story
    from workbench.training.texts import read_documents

    found: list[str | Story] = []
    if not given:
        return found + [load_story(name) for name in list_stories()["name"]]
    for one in given:
        path = Path(one)
        if path.exists() or path.suffix in (".jsonl", ".txt") or one.startswith("datasets:"):
            found += list(read_documents(one))
        else:
            found.append(load_story(one))
    return found


def _numbers(name: str, given: str) -> list[int]:
    try:
        found = [int(part) for part in given.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise InputError(f"{name}: {given!r} is not a list of whole numbers like 1,2,4.")
    return found


def _write(result: Distraction, out: Path) -> None:
    from workbench.figures.export import find_browser, save_figures

    out.mkdir(parents=True)
    result.table.to_csv(out / "distraction.csv", index=False)
    settings = json.dumps(result.settings, indent=2, ensure_ascii=False)
    (out / "settings.json").write_text(settings + "\n", encoding="utf-8")
    figures = {"distraction": result.figure()}
    if max(result.settings["d"]) > 1:
        figures["distraction_layers"] = result.figure("layers")
    formats = ("html", "pdf", "svg", "png") if find_browser() else ("html",)
    save_figures(figures, out, formats)


def _report(result: Distraction) -> str:
    """Layers as rows, d as columns, and what the numbers are."""
    table, settings = result.table, result.settings
    rows = table[(table["head"] == -1) & (table["queries"] == "all")]
    means = rows[rows["statistic"] == "mean of ratios"]
    wide = means.pivot(index="layer", columns="d", values="value")
    wide = wide.rename(index={-1: "all"}, columns=lambda d: f"d={d}")
    lines = [wide.to_string(float_format="%.4f"), ""]
    together = rows[rows["layer"] == -1].drop(columns=["layer", "head", "queries", "model"])
    together = together.drop(columns=["provenance", "note"])
    lines += [together.to_string(index=False, float_format="%.4f"), ""]
    lines += [
        "r_d: attention of a window on its own document's previous window over that on all d "
        "previous\nwindows (first table: mean of ratios, heads together). baseline: 1/d, documents "
        "not told apart;\nplace_baseline: a reader that prefers places, whatever stands there; "
        "low, high: 95 % bootstrap\nover documents; previous_mass: share of attention that the d "
        "windows get together.",
        f"{settings['n_documents']} documents ask in {settings['n_windows']} windows; "
        f"left out: {settings['n_too_short']} too short, {settings['n_repeated']} repeated.",
    ]
    notes = [note for note in dict.fromkeys(table["note"]) if note]
    return "\n".join([*lines, *notes, str(settings["model"]["provenance"])])
