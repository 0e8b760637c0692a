"""Table 2 as text: the paper's layout, with what stands beside every number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from workbench.core.checks import check_option, plural

if TYPE_CHECKING:
    from workbench.analysis.table2 import Table2

__all__ = ["report"]


def report(found: Table2, nulls: Sequence[str] | None = None) -> str:
    """Differences from random under each null, then how the order of methods agrees (Markdown).

    Parameters
    ----------
    nulls : those shown; None: all.
    """
    settings = found.settings
    shown = list(settings["nulls"]) if nulls is None else list(nulls)
    for null in shown:
        check_option("null", null, settings["nulls"])
    lines = [_head(found), ""]
    for model in settings["models"]:
        table = found.table[found.table["model"] == model]
        for null in shown:
            lines += _null_table(table[table["null"] == null], model, null)
        orders = found.orders[(found.orders["model"] == model) & found.orders["null"].isin(shown)]
        lines += _order_table(orders)
        pairs = found.pairs[(found.pairs["model"] == model) & found.pairs["null"].isin(shown)]
        lines += _pair_table(pairs)
    return "\n".join(lines)


def _head(found: Table2) -> str:
    s = found.settings
    used = sum(row["chunks"] for row in s["texts"])
    left = sum(row["left_out"] for row in s["texts"])
    where = (
        "the weights of the last third of the layers, added"
        if s["refine_on"] == "summed"
        else "each head's own graph"
    )
    return (
        f"Table 2 (Fountas et al. 2025) on {plural(len(s['texts']), 'text')}: "
        f"{plural(used, 'chunk')} of {s['chunk']} tokens ({left} tokens at the ends left out), "
        f"γ = {s['gamma']:g}, events of {s['min_size']} to {s['max_size']} tokens, as many for "
        f"every method as S finds in the chunk; refinement on {where}; {s['draws']} random cuts "
        f"per chunk and null.\n"
        "Each cell: mean difference from random ± sd over chunk × layer × head; sd of chunk "
        "means / of layer means; [95 % interval]; heads above : below 0 (Wilcoxon over chunks, "
        "Benjamini–Hochberg 0.05).\n"
        f"{s['provenance']}"
    )


def _null_table(rows: pd.DataFrame, model: str, null: str) -> list[str]:
    from workbench.analysis.table2 import HEADLINE, scale_of

    have = set(zip(rows["measure"], rows["variant"]))
    pairs = [pair for pair in HEADLINE if pair in have] or sorted(have)
    used = sorted(set(rows["null_used"]) - {null})
    note = f" (degenerate for some methods, where {', '.join(used)} was drawn)" if used else ""
    titles = [_title(measure, variant) for measure, variant in pairs]
    lines = [
        f"**{model}, null {null}**{note}",
        "",
        f"| method (events) | {' | '.join(titles)} |",
        f"|---|{'---|' * len(pairs)}",
    ]
    for method in dict.fromkeys(rows["method"]):
        here = rows[rows["method"] == method]
        cells = []
        for measure, variant in pairs:
            row = here[(here["measure"] == measure) & (here["variant"] == variant)].iloc[0]
            cells.append(_cell(row, scale_of(measure, variant)))
        label = method if len(used) == 0 else _marked(here, method, null)
        lines.append(f"| {label} ({here['events'].iloc[0]:.1f}) | {' | '.join(cells)} |")
    return [*lines, ""]


def _title(measure: str, variant: str) -> str:
    from workbench.analysis.table2 import scale_of

    scale = scale_of(measure, variant)
    return f"{measure} {variant}" + (f" ×1e{round(np.log10(scale))}" if scale != 1 else "")


def _marked(rows: pd.DataFrame, method: str, null: str) -> str:
    return method if rows["null_used"].iloc[0] == null else f"{method}*"


def _cell(row: pd.Series, scale: float) -> str:
    if not np.isfinite(row["difference"]):
        return "not defined"
    text = f"{_number(row['difference'] * scale)} ± {_number(row['sd'] * scale)}; "
    text += f"{_number(row['sd_chunks'] * scale)} / {_number(row['sd_layers'] * scale)}; "
    if np.isfinite(row["ci_low"]):
        text += f"[{_number(row['ci_low'] * scale)}, {_number(row['ci_high'] * scale)}]; "
    text += f"{row['heads_up']} : {row['heads_down']} of {row['heads']}"
    if row["undefined"] > 0:
        text += f" ({row['undefined']:.0%} undefined)"
    return text


def _number(value: float) -> str:
    if not np.isfinite(value):
        return "–"
    size = abs(value)
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def _order_table(rows: pd.DataFrame) -> list[str]:
    from workbench.analysis.table2 import HEADLINE

    lines = [
        "**Order of the methods against the published one** (Kendall's τ [95 % interval], "
        "p, pairs in the published order; best method first)",
        "",
        "| null | measure | our order | Mistral-7B | LLaMA2-7B | LLaMA3-8B |",
        "|---|---|---|---|---|---|",
    ]
    for null in dict.fromkeys(rows["null"]):
        for measure, variant in HEADLINE:
            chosen = (rows["null"] == null) & (rows["measure"] == measure)
            here = rows[chosen & (rows["variant"] == variant)]
            if here.empty:
                continue
            cells = [_tau(row) for _, row in here.iterrows()]
            order = here["order"].iloc[0]
            lines.append(f"| {null} | {measure} {variant} | {order} | {' | '.join(cells)} |")
    return [*lines, ""]


def _tau(row: pd.Series) -> str:
    if not np.isfinite(row["tau"]):
        return "–"
    text = f"{row['tau']:.2f}"
    if np.isfinite(row["tau_low"]):
        text += f" [{row['tau_low']:.2f}, {row['tau_high']:.2f}]"
    return f"{text}, p {row['p']:.3f}, {row['agree']}/{row['pairs']}"


def _pair_table(rows: pd.DataFrame) -> list[str]:
    from workbench.analysis.table2 import HEADLINE, scale_of

    if rows.empty:
        return []
    # Methods have equally many events, so "uniform" and "min_gap" cancel out of a pair.
    first = "lengths" if (rows["null"] == "lengths").any() else rows["null"].iloc[0]
    rows = rows[rows["null"].isin({"uniform", first})]
    lines = [
        "**Pairs of methods, head by head** (difference of the differences from random "
        "[95 % interval]; heads above : below 0; under min_gap as under uniform)",
        "",
    ]
    pairs = [p for p in HEADLINE if ((rows["measure"] == p[0]) & (rows["variant"] == p[1])).any()]
    titles = [_title(measure, variant) for measure, variant in pairs]
    lines += [f"| null | pair | {' | '.join(titles)} |", f"|---|---|{'---|' * len(pairs)}"]
    for null in dict.fromkeys(rows["null"]):
        under = rows[rows["null"] == null]
        for a, b in dict.fromkeys(zip(under["method"], under["against"])):
            cells = []
            for measure, variant in pairs:
                chosen = (under["method"] == a) & (under["against"] == b)
                chosen &= (under["measure"] == measure) & (under["variant"] == variant)
                row, scale = under[chosen].iloc[0], scale_of(measure, variant)
                text = _number(row["difference"] * scale)
                if np.isfinite(row["ci_low"]):
                    low, high = _number(row["ci_low"] * scale), _number(row["ci_high"] * scale)
                    text += f" [{low}, {high}]"
                cells.append(f"{text}; {row['heads_up']} : {row['heads_down']}")
            lines.append(f"| {null} | {a} − {b} | {' | '.join(cells)} |")
    return [*lines, ""]
