"""The commands `workbench recall` and `workbench heads`: contiguity in people and in models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["heads", "recall"]

RECALL_EPILOG = "Example: workbench recall recalls.csv --by condition --json"
HEADS_EPILOG = "Example: workbench heads --order shuffled --lists 5 --top 10"

Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Json = Annotated[bool, typer.Option("--json", help="Print a list of rows as JSON, nothing else.")]

_HEAD_COLUMNS = (
    *("layer", "head", "matching", "matching_sem", "duplicate", "previous", "copying", "peak_lag"),
    *("difference", "difference_sem", "index", "distance", "beta_enc", "beta_rec", "gamma"),
    *("lag0_peak", "gaussian_distance", "permuted_percentile", "random_walk_percentile"),
)
_SHORT = {
    "matching_sem": "±",
    "difference": "f-b",
    "difference_sem": "± ",
    "duplicate": "dupl",
    "previous": "prev",
    "distance": "D",
    "beta_enc": "b_enc",
    "beta_rec": "b_rec",
    "lag0_peak": "lag0",
    "gaussian_distance": "D_gauss",
    "permuted_percentile": "P_perm",
    "random_walk_percentile": "P_walk",
    "peak_lag": "peak",
}


def recall(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Recall tables (subject, list, position, trial_type, item), behaviour files "
            "(*_beh.tsv), or a folder of these."
        ),
    ],
    by: Annotated[
        str | None, typer.Option(help="Column by which lists are grouped, e.g. condition.")
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(help="Table of studied items, where FILES hold only recalled ones, in order."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Your name of a column: role=name, e.g. subject=participant. Repeat."),
    ] = None,
    max_lag: Annotated[
        int | None, typer.Option(help="Largest lag; default: 5, or what the lists allow.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws of each null.")] = 500,
    bootstrap: Annotated[int, typer.Option(help="Resamples of subjects.")] = 1000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Lag-CRP, asymmetry, temporal factor and serial position of recalls, with nulls."""
    from workbench.analysis.recall.summary import recall_summary
    from workbench.stories.recall_readers import load_recalls

    for name, value in (("draws", draws), ("bootstrap", bootstrap)):
        if value < 1:
            raise InputError(f"{name}={value} is not allowed; give at least 1.")
    table = load_recalls(files, study=study, columns=_columns(column))
    found = recall_summary(
        table, by=by, max_lag=max_lag, draws=draws, resamples=bootstrap, seed=seed
    )
    if as_json:
        _print_rows(found)
        return
    for group, rows in found.groupby("group", sort=False):
        if by is not None:
            typer.echo(f"\n{by}: {group}")
        for measure, part in rows.groupby("measure", sort=False):
            if str(measure).startswith("asymmetry_") and measure != "asymmetry_index":
                continue
            _print_part(rows if measure == "asymmetry_index" else part, str(measure))
    typer.echo(
        "\nMeans over subjects, 95 % bootstrap intervals over subjects; p two-sided, not corrected."
        "\nnull: shuffle, recalled items in random order; reverse, whole lists backwards or not; "
        "\nitems, as many items drawn at random."
    )
    if found["n_subjects"].max() < 10:
        typer.echo("Few subjects: intervals that resample them are too narrow.")


def heads(
    model: Annotated[
        str, typer.Option(help="Model: the embedded default, a hub id, a folder, or a .gguf file.")
    ] = "smollm2-135m",
    order: Annotated[
        str,
        typer.Option(help="Order of the repeated list: exact, or shuffled (the stricter control)."),
    ] = "exact",
    items: Annotated[int, typer.Option(help="Different word tokens of a list.")] = 100,
    lists: Annotated[int, typer.Option(help="Number of lists (seeds 0, 1, ...).")] = 5,
    scale: Annotated[
        str, typer.Option(help="Of the curves that are fitted: raw, log-centred, probability.")
    ] = "raw",
    draws: Annotated[int, typer.Option(help="Permutations of each head's curve.")] = 200,
    top: Annotated[int, typer.Option(help="Heads shown, by matching score (JSON: all).")] = 15,
    seed: Annotated[int, typer.Option(help="Seed of the nulls.")] = 0,
    as_json: Json = False,
) -> None:
    """Attention heads as recall: scores, asymmetry and CMR fits beside their nulls."""
    from workbench.analysis.recall.heads import head_fit_summary, head_table
    from workbench.core.checks import check_option
    from workbench.recording.heads import SCALES, head_recall

    check_option("scale", scale, SCALES)  # before a model is loaded
    for name, value in (("lists", lists), ("draws", draws), ("top", top)):
        if value < 1:
            raise InputError(f"{name}={value} is not allowed; give at least 1.")
    found = head_recall(model, order=order, n_items=items, seeds=lists)
    table = head_table(found, scale, draws=draws, seed=seed)
    if as_json:
        settings = {name: found.settings[name] for name in ("model", "order", "n_items")}
        _print_rows(table.assign(**settings, n_lists=lists))
        return
    best = table.sort_values("matching", ascending=False, kind="stable").head(top)
    shown = best.loc[:, list(_HEAD_COLUMNS)].rename(columns=_SHORT)
    typer.echo(shown.to_string(index=False, float_format="%.3f"))
    typer.echo(
        f"\n{len(table)} heads, {lists} lists of {items} tokens, {order} repeat, curves: {scale}."
        "\n± standard error over lists. f-b: value at lag +1 minus that at -1. D: distance to CMR "
        "\n(lags -5 ... 5) at b_enc, b_rec, gamma; D_gauss: of a Gaussian. P_perm, P_walk: share of"
        "\nthe curve's own permutations, and of random walks, that come as near to CMR as it does."
    )
    for row in head_fit_summary(found, scale, draws=min(draws, 100), seed=seed).to_dict("records"):
        typer.echo(
            f"D < {row['threshold']:g}: {row['n_below']} of {row['n_heads']} heads "
            f"({row['share']:.1%}; single lists {row['list_low']:.1%} ... {row['list_high']:.1%}), "
            f"{row['random_walk']:.1%} of random walks, {row['permuted']:.1%} of permuted curves; "
            f"{row['n_lag0']} of these heads peak at lag 0, {row['n_low_matching']} have a "
            "matching score below 0.01"
        )
    first, second = found.surprisal.mean(axis=0)
    typer.echo(
        f"surprisal {first:.2f} nats per token in the first list, {second:.2f} in the second"
    )
    typer.echo(str(found.settings["provenance"]))


def _columns(given: list[str] | None) -> dict[str, str] | None:
    pairs = {}
    for pair in given or []:
        role, separator, name = pair.partition("=")
        if not (role and separator and name):
            raise InputError(f"--column {pair!r} is not role=name, e.g. subject=participant.")
        pairs[role] = name
    return pairs or None


def _print_rows(table: pd.DataFrame) -> None:
    typer.echo(table.to_json(orient="records", force_ascii=False, double_precision=15))


def _print_part(rows: pd.DataFrame, measure: str) -> None:
    if measure == "asymmetry_index":
        rows = rows[rows["measure"].str.startswith("asymmetry_")]
        title = "asymmetry, forward over backward at lag 1"
        shown = rows.assign(measure=rows["measure"].str.removeprefix("asymmetry_"))
        first = "measure"
    else:
        rows = rows[rows["measure"] == measure]
        title = measure.replace("_", " ").replace("lag crp", "lag-CRP")
        first = next((c for c in ("lag", "position") if rows[c].notna().any()), "measure")
        shown = rows
    columns = [first, "value", "ci_low", "ci_high", "null_mean", "null_sd", "z", "p", "n_subjects"]
    head = rows.iloc[0]
    typer.echo(f"\n{title} ({head['n_lists']} lists, null: {head['null']})")
    typer.echo(shown[columns].to_string(index=False, float_format="%.4f"))
