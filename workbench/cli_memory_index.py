"""The command `workbench recall-of-index`: what approximate search finds of the exact answer."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

__all__ = ["EPILOG", "recall_of_index"]

EPILOG = "Example: workbench recall-of-index --units 25000 --k 16"


def recall_of_index(
    units: Annotated[int, typer.Option(min=2, help="Units of the synthetic store.")] = 25_000,
    queries: Annotated[int, typer.Option(min=2, help="Queries.")] = 200,
    k: Annotated[int, typer.Option(min=1, help="Of recall@k.")] = 16,
    ann_above: Annotated[int, typer.Option(min=1, help="Units searched exactly.")] = 256,
    probed: Annotated[float, typer.Option(help="Share of the cells a query looks into.")] = 0.25,
    seed: Annotated[int, typer.Option(help="Of the store and of the interval.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, nothing else.")
    ] = False,
) -> None:
    """Recall of approximate search against exact search, on a synthetic store."""
    from workbench.memory import ann

    rows, asked = ann.synthetic_store(units, queries, seed=seed)
    found = ann.recall_of_index(
        [(i, query, rows) for i, query in enumerate(asked)],
        k=k,
        above=ann_above,
        probed=probed,
        seed=seed,
    )
    if as_json:
        print(json.dumps({"store": "synthetic", "probed": probed, **dataclasses.asdict(found)}))
        return
    print(f"synthetic store: {found.n_units} units, {found.n_queries} queries (no text was read)")
    print(f"  recall@{k}   {found.mean:.3f} [{found.low:.3f}, {found.high:.3f}] (95 %, bootstrap)")
    print(f"  chance      {found.chance:.5f}")
