"""Comparison: the result of `workbench.compare`, with its figures and files."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.comparison.table import HEADLINE
from workbench.core.boundaries import Boundaries
from workbench.core.checks import check_option
from workbench.core.errors import DataError, InputError
from workbench.core.replacing import replace_folder

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["Comparison", "check_target", "load_comparison"]

FIGURES = ("graph", "human", "trace")
_FORMAT = "workbench comparison 1"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Numbers, boundaries and word surprise of stories × models × methods.

    Attributes
    ----------
    table : one row per number; columns in `workbench.comparison.table.COLUMNS`.
    settings : what the comparison was run with: arguments, models, versions, date.
    words : one row per word: story, model, word, onset (s, NaN without word times), surprisal
        (nats, summed over the word's tokens).
    events : word boundaries by (story, model, method), gamma in their settings.
    references : what the methods are compared with, by story: word boundaries of people or of
        the author.
    density : people's smoothed presses: story, time (s), density; empty without presses.
    sensitivity : the distances to people under each rule that turns a time into a word.
    """

    table: pd.DataFrame
    settings: dict[str, Any]
    words: pd.DataFrame
    events: dict[tuple[str, str, str], Boundaries]
    references: dict[str, Boundaries]
    density: pd.DataFrame
    sensitivity: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def stories(self) -> list[str]:
        """Names of the stories, in the order they were given."""
        return list(dict.fromkeys(self.table["story"]))

    @property
    def models(self) -> list[str]:
        """Names of the models, in the order they were given."""
        return list(dict.fromkeys(self.table["model"]))

    @property
    def methods(self) -> list[str]:
        """Method codes, in the order they were given."""
        return list(dict.fromkeys(self.table["method"]))

    @property
    def nulls(self) -> list[str]:
        """The nulls that were asked for, in that order."""
        return list(self.settings["nulls"])

    def under(self, null: str | None = None) -> pd.DataFrame:
        """The rows of the table under one null.

        Parameters
        ----------
        null : one that was asked for; None: the first. Under "lengths", methods whose lengths
            are all alike have "shift" instead, and these rows are included.
        """
        chosen = self.nulls[0] if null is None else null
        check_option("null", chosen, self.nulls)
        shown = self.table["null"] == chosen
        if chosen == "lengths":
            keys = ["story", "model", "method"]
            under = pd.MultiIndex.from_frame(self.table.loc[shown, keys].drop_duplicates())
            rest = ~pd.MultiIndex.from_frame(self.table[keys]).isin(under)
            shown |= rest & (self.table["null"] == "shift")
        rows = self.table[shown]
        rows.attrs["draws"] = self.settings["draws"]  # figures print it
        return rows

    def summary(self, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
        """One row per story × model × method × measure (and per null, where several were asked).

        Graph measures are means over all layers and heads; their null is the mean over the same
        heads of each random draw, so z and p allow for heads that agree with each other.

        Parameters
        ----------
        variants : the variant shown of each measure, e.g. {"conductance": "standard:min"};
            default: Newman modularity, standard conductance averaged over events, ratio of sums,
            σ = 0, sentence gaps.
        """
        shown = {**HEADLINE, **(variants or {})}
        table = self.table
        known = set(zip(table["measure"], table["variant"]))
        for measure, variant in (variants or {}).items():
            if (measure, variant) not in known:
                listed = sorted(v for m, v in known if m == measure)
                raise InputError(
                    f"variants: {measure!r} has no variant {variant!r} here; it has {listed}."
                )
        rows = table["layer"].isna() & table["head"].isna()
        rows &= table["variant"] == table["measure"].map(shown)
        columns = [c for c in table.columns if c not in ("layer", "head")]
        return table.loc[rows, columns].reset_index(drop=True)

    def figure(self, kind: str, **options: Any) -> go.Figure:
        """A plotly figure of this comparison.

        Parameters
        ----------
        kind : "graph": graph measures per layer as differences from the null (EM-LLM Figure
            4A); "human": distances to people (EM-LLM Figure 4B); "trace": surprise over the
            words with the boundaries of methods and people.
        options : `story`, `model`, `null` (default: the first that was asked for), and what the
            figure's function takes.

        Raises
        ------
        InputError : unknown kind, story or model.
        """
        check_option("kind", kind, FIGURES)
        story = options.pop("story", None)
        model = options.pop("model", None)
        if story is not None:
            check_option("story", story, self.stories)
        if model is not None:
            check_option("model", model, self.models)
        if kind == "trace":
            return self._trace_figure(story or self.stories[0], model or self.models[0], options)
        table = self.under(options.pop("null", None))
        if story is not None:
            table = table[table["story"] == story]
        if model is not None:
            table = table[table["model"] == model]
        if kind == "graph":
            from workbench.figures.graph import figure_graph

            measures = ("modularity", "conductance", "intra_inter")
            shown = {measure: HEADLINE[measure] for measure in measures}
            # The null's band is what a line is read against; each value's own interval stands in
            # the table, and is drawn with intervals=True.
            return figure_graph(table, **{"variants": shown, "intervals": False, **options})
        from workbench.figures.human import figure_human

        return figure_human(table, **options)

    def _trace_figure(self, story: str, model: str, options: dict[str, Any]) -> go.Figure:
        from workbench.figures.trace import figure_trace

        words = self.words[(self.words["story"] == story) & (self.words["model"] == model)]
        rows = self.table[(self.table["story"] == story) & (self.table["model"] == model)]
        density = self.density[self.density["story"] == story]
        reference = self.references.get(story)
        return figure_trace(
            words.reset_index(drop=True),
            {
                method: events.inner
                for (s, m, method), events in self.events.items()
                if (s, m) == (story, model) and method != "H"
            },
            people=None if reference is None else reference.inner,
            density=density if len(density) else None,
            kind=rows["annotation"].iloc[0] or "people",
            title=f"{story} read by {model}",
            provenance=rows["provenance"].iloc[0],
            **options,
        )

    def figures(self) -> dict[str, go.Figure]:
        """Every figure by file name: graph and human per null, a trace per story and model."""
        drawn = {}
        for null in self.nulls:
            ending = "" if len(self.nulls) == 1 else f"_{null}"
            drawn[f"graph{ending}"] = self.figure("graph", null=null)
            if (self.table["measure"] == "wasserstein").any():
                drawn[f"human{ending}"] = self.figure("human", null=null)
        for story in self.stories:
            for model in self.models:
                name = f"trace_{story}" if len(self.models) == 1 else f"trace_{story}_{model}"
                plain = _free_name(_file_name(name), drawn)
                drawn[plain] = self.figure("trace", story=story, model=model)
        return drawn

    def save(
        self,
        folder: str | Path,
        *,
        formats: Sequence[str] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write table (parquet and csv), summary, figures and settings to a folder.

        Parameters
        ----------
        folder : written whole or not at all.
        formats : of the figures; default: html, and pdf, svg and png where a Chrome is found.
        overwrite : replace an earlier comparison in that folder.

        Raises
        ------
        InputError : the folder exists (and overwrite is False), or holds something else.
        ExportError : a static format was asked for by name and no Chrome is found.
        """
        from workbench.figures.export import find_browser, save_figures

        target = Path(folder)
        check_target(target, overwrite)
        if formats is None:
            formats = ("html", "pdf", "svg", "png") if find_browser() else ("html",)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            self.table.to_parquet(scratch / "table.parquet", index=False)
            self.table.to_csv(scratch / "table.csv", index=False)
            self.summary().to_csv(scratch / "summary.csv", index=False)
            self.words.to_parquet(scratch / "words.parquet", index=False)
            self.density.to_parquet(scratch / "density.parquet", index=False)
            self.sensitivity.to_csv(scratch / "sensitivity.csv", index=False)
            _write_json(scratch / "settings.json", {"format": _FORMAT, **self.settings})
            _write_json(scratch / "events.json", self._events_as_json())
            save_figures(self.figures(), scratch / "figures", formats)
            scratch.chmod(0o755)
            replace_folder(scratch, target)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        return target

    def _events_as_json(self) -> dict[str, Any]:
        return {
            "events": [
                {"story": s, "model": m, "method": k, **_boundaries_to_dict(events)}
                for (s, m, k), events in self.events.items()
            ],
            "references": {s: _boundaries_to_dict(events) for s, events in self.references.items()},
        }

    def _repr_html_(self) -> str:
        html: str = self.summary().to_html(escape=True, index=False, float_format="{:.4g}".format)
        return html

    def __repr__(self) -> str:
        return (
            f"Comparison({', '.join(self.stories)} × {', '.join(self.models)} × "
            f"{', '.join(self.methods)}: {len(self.table)} rows; see .summary(), .table, .figure())"
        )


def load_comparison(folder: str | Path) -> Comparison:
    """Read a comparison written by `Comparison.save`.

    Raises
    ------
    DataError : the folder is missing, is not a comparison, or lacks a file.
    """
    source = Path(folder)
    settings_file = source / "settings.json"
    if not settings_file.is_file():
        raise DataError(
            f"{source} is not a saved comparison (no settings.json); give a folder that "
            "Comparison.save or `workbench compare --out` wrote."
        )
    try:
        settings = json.loads(settings_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(
            f"{settings_file} is no JSON ({error}); run the comparison again."
        ) from error
    if not isinstance(settings, dict) or settings.pop("format", None) != _FORMAT:
        raise DataError(f"{settings_file} is not of the format {_FORMAT!r}.")
    try:
        stored = json.loads((source / "events.json").read_text(encoding="utf-8"))
        return Comparison(
            table=pd.read_parquet(source / "table.parquet"),
            settings=settings,
            words=pd.read_parquet(source / "words.parquet"),
            events={
                (row["story"], row["model"], row["method"]): _boundaries_from_dict(row)
                for row in stored["events"]
            },
            references={s: _boundaries_from_dict(row) for s, row in stored["references"].items()},
            density=pd.read_parquet(source / "density.parquet"),
            sensitivity=_read_csv(source / "sensitivity.csv"),
        )
    except FileNotFoundError as error:
        raise DataError(
            f"{source} lacks {Path(str(error.filename)).name}; the folder is incomplete, run the "
            "comparison again."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{source} is damaged ({type(error).__name__}: {error}); run the comparison again."
        ) from error


def check_target(target: Path, overwrite: bool) -> None:
    """Raise `InputError` unless a comparison may be written to this folder."""
    if not target.exists():
        # Told before hours of work, not after them.
        parent = next(p for p in target.absolute().parents if p.exists())
        if not parent.is_dir():
            raise InputError(f"{target} cannot be made, because {parent} is a file.")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise InputError(f"{target} cannot be made: {parent} may not be written to.")
        return
    if not target.is_dir():
        raise InputError(f"{target} is a file; name a folder.")
    if not any(target.iterdir()):
        return
    if not (target / "settings.json").is_file():
        raise InputError(f"{target} holds other files; name a new or empty folder.")
    if not overwrite:
        raise InputError(f"{target} already holds a comparison; pass overwrite=True (--overwrite).")


def _boundaries_to_dict(events: Boundaries) -> dict[str, Any]:
    return {
        "starts": events.starts.tolist(),
        "n": events.n,
        "unit": events.unit,
        "code": events.method,
        "open": events.open,
        "strength": None if events.strength is None else _as_json(events.strength.tolist()),
        "settings": events.settings,
    }


def _boundaries_from_dict(row: dict[str, Any]) -> Boundaries:
    strength = row.get("strength")
    return Boundaries(
        row["starts"],
        n=row["n"],
        unit=row["unit"],
        strength=None if strength is None else [float(value) for value in strength],
        open=row.get("open", False),
        method=row["code"],
        settings=row["settings"],
    )


def _as_json(values: list[float]) -> list[float | str]:
    """Numbers, those that JSON does not know ("inf", "-inf", "nan") as text."""
    return [value if math.isfinite(value) else str(value) for value in values]


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False, default=_plain)
    path.write_text(text, encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value)


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    if "note" in table:
        table["note"] = table["note"].astype("str").where(table["note"].notna(), "")
    return table


def _file_name(name: str) -> str:
    """A name that every file system takes: no separators, at most 200 bytes."""
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return plain.encode()[:200].decode(errors="ignore")


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """The name, numbered where another one has become the same ("a b" and "a_b")."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(free for free in names if free not in taken)
