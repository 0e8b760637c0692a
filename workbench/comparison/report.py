"""A comparison, and the events of one segmentation, as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.analysis.human import EVEN_SPACING
from workbench.analysis.reference import SELF
from workbench.comparison.table import LOWER_IS_BETTER, MEASURES

if TYPE_CHECKING:
    from workbench.comparison.result import Comparison
    from workbench.core.boundaries import Boundaries
    from workbench.core.trace import Trace

__all__ = ["events_table", "report"]

_KINDS = {
    "people": "people's boundaries",
    "author": "the author's scenes (one author's, not people's boundaries)",
    "": "no annotation",
}

_LEGEND = (
    "interval: 95 %, resampling the story's events with their lengths held fixed (graph "
    "measures; wider than the null, and no test against it) or the people (distances). null: "
    "mean ± sd of random segmentations with as many events; z and side: how far from it the "
    "value lies, and whether on the better or the worse side; p two-sided, not corrected for the "
    "number of rows. fixed: evenly spaced events, as many. ceiling: the range people reach among "
    f"themselves. {EVEN_SPACING}"
)

_NULLS = {
    "lengths": "the method's own event lengths in random order",
    "uniform": "boundaries anywhere, as many",
    "min_gap": "boundaries anywhere, with the same smallest event",
    "shift": "the method's boundaries, rotated around the text",
}

# Where a table's note is a code, what a reader of the report sees instead.
_SPELLED = {SELF: "people's boundaries against themselves: no distance"}


def report(result: Comparison, width: int = 110) -> str:
    """The summary as text: every value beside its interval, null, fixed twin and ceiling.

    Parameters
    ----------
    result : the comparison.
    width : columns to which sentences are wrapped; the tables take what they need.
    """
    summary = result.summary()
    parts = []
    for null in result.nulls:
        keys = result.under(null)[["story", "model", "method", "null"]].drop_duplicates()
        shown = summary.merge(keys)
        for (story, model), rows in shown.groupby(["story", "model"], sort=False):
            kind = str(rows["annotation"].iloc[0])
            parts.append(
                f"{story} · {model} · {_KINDS.get(kind, kind)}\nnull {null}: {_NULLS[null]}"
            )
            parts.append(_block(rows, width))
    notes = [_wrap(f"{note.rstrip('.')}.", width) for note in result.settings.get("notes", [])]
    notes.append(_wrap(_LEGEND, width))
    notes += [_wrap(text, width) for text in dict.fromkeys(summary["provenance"])]
    return "\n\n".join(parts) + "\n\n" + "\n".join(notes)


def _block(rows: pd.DataFrame, width: int) -> str:
    """One table: a heading per measure, a line per method, and the notes by number below."""
    lines: list[dict[str, str]] = []
    headings: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for measure in MEASURES:
        for i, row in enumerate(rows[rows["measure"] == measure].to_dict("records")):
            if i == 0:
                better = "lower" if LOWER_IS_BETTER[measure] else "higher"
                headings[len(lines)] = f"{measure} ({row['variant']}), {better} is better"
            notes = [_SPELLED.get(note, note) for note in row["note"].split("; ") if note]
            digits = _digits(row)
            lines.append(
                {
                    "method": row["method"],
                    "events": str(row["n_events"]),
                    "value": _number(row["value"], digits),
                    "interval": _range(row["ci_low"], row["ci_high"], digits),
                    "null": _plus_minus(row["null_mean"], row["null_sd"], digits),
                    "z": f"{row['z']:+.2f}" if np.isfinite(row["z"]) else "",
                    "side": _side(measure, row["difference"]),
                    "p": f"{row['p']:.3f}" if np.isfinite(row["p"]) else "",
                    "fixed": _number(row["fixed"], digits),
                    "ceiling": _range(row["ceiling_low"], row["ceiling_high"], digits),
                    "note": ",".join(
                        str(numbers.setdefault(note, len(numbers) + 1)) for note in notes
                    ),
                }
            )
    table = pd.DataFrame(lines)
    shown = table.drop(columns=[c for c in table.columns if (table[c] == "").all()])
    printed = shown.to_string(index=False).splitlines()
    parts = [printed[0]]
    for i, line in enumerate(printed[1:]):
        if i in headings:
            parts.append(headings[i])
        parts.append(line)
    for note, number in numbers.items():
        start = f"note {number}: "
        parts.append(
            textwrap.fill(
                note, width=width, initial_indent=start, subsequent_indent=" " * len(start)
            )
        )
    return "\n".join(parts)


def events_table(trace: Trace, events: Boundaries) -> pd.DataFrame:
    """One row per event: its place in tokens, words and seconds, and its first words.

    Columns: event, token, n_tokens, word, onset (s), surprisal (nats, of the first token),
    strength, text (the event's first words).
    """
    words = trace.words()
    of_token = trace.word_of_token()
    strength = np.full(events.n_events, np.nan)
    if events.strength is not None:
        strength[1:] = events.strength
    rows = []
    for number, (start, end) in enumerate(events):
        word = int(of_token[start])
        last = int(of_token[end]) if end < events.n else trace.n_words
        inside = word < trace.n_words
        rows.append(
            {
                "event": number,
                "token": start,
                "n_tokens": end - start,
                "word": word,
                "onset": float(words["onset"].iloc[word]) if inside else np.nan,
                "surprisal": float(trace.surprisal[start]),
                "strength": strength[number],
                "text": " ".join(words["word"].iloc[word : min(word + 8, max(last, word + 1))]),
            }
        )
    return pd.DataFrame(rows)


def _side(measure: str, difference: float) -> str:
    if not np.isfinite(difference) or difference == 0:
        return ""
    return "better" if (difference < 0) == LOWER_IS_BETTER[measure] else "worse"


def _digits(row: Mapping[Any, Any]) -> int:
    """Decimals that show the null's sd (or the value, without one) to two digits."""
    scale = row["null_sd"] if np.isfinite(row["null_sd"]) and row["null_sd"] > 0 else row["value"]
    if not np.isfinite(scale) or scale == 0:
        return 4
    return int(np.clip(1 - np.floor(np.log10(abs(scale))), 0, 9))


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if np.isfinite(value) else ""


def _range(low: float, high: float, digits: int) -> str:
    known = np.isfinite(low) and np.isfinite(high)
    return f"{low:.{digits}f} … {high:.{digits}f}" if known else ""


def _plus_minus(mean: float, sd: float, digits: int) -> str:
    known = np.isfinite(mean) and np.isfinite(sd)
    return f"{mean:.{digits}f} ± {sd:.{digits}f}" if known else ""


def _wrap(text: str, width: int) -> str:
    return textwrap.fill(text, width=width)
