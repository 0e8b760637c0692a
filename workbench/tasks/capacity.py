"""How much a memory system needs: one text read at many settings, one setting changed at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.checks import whole_number
from workbench.core.errors import InputError, MissingDataError
from workbench.core.story import Story
from workbench.models import DEFAULT_MODEL, LanguageModel, load_model
from workbench.tasks.meter import measured
from workbench.tasks.records import RunFolder
from workbench.tasks.run_settings import agreed, model_settings
from workbench.tasks.systems import SystemSpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FACTORS", "Capacity", "Setting", "capacity_sweep", "capacity_table", "sweep_settings"]

FACTORS = ("n_mem", "share", "gamma", "n_local")

_BASE = {"n_init": 128, "n_local": 512, "n_mem": 512, "chunk": 256}
_LEAST_BLOCKS = 10


@dataclass(frozen=True)
class Setting:
    """One reading of the text.

    Parameters
    ----------
    factor : what is changed; "base" for the setting that the others are compared with.
    value : what it is changed to; NaN for "base".
    options : of the system.
    """

    factor: str
    value: float
    options: dict[str, Any]

    @property
    def label(self) -> str:
        """As "n_local=64"; "base"."""
        return self.factor if self.factor == "base" else f"{self.factor}={self.value:g}"


@dataclass(frozen=True, eq=False)
class Capacity:
    """What the readings gave.

    Parameters
    ----------
    table : see `capacity_table`.
    lags : label → lag-CRP of the units recalled by similarity and of all (`retrieval_lag_crp`,
        layer "all"), below each other, with the columns label, factor and value before them; for
        readings that recalled something.
    settings : what they were made with.
    """

    table: pd.DataFrame
    lags: pd.DataFrame
    settings: dict[str, Any]


def sweep_settings(
    *,
    n_mem: Sequence[int] = (),
    share: Sequence[float] = (),
    gamma: Sequence[float] = (),
    n_local: Sequence[int] = (),
    total: int | None = None,
    base: Mapping[str, Any] | None = None,
) -> list[Setting]:
    """The settings of a sweep: the base, and each value of each factor with all else as there.

    Parameters
    ----------
    n_mem, share, gamma : values of each; `share` is that of the contiguity buffer.
    n_local : local windows at a fixed budget: n_mem is `total` - n_local.
    total : n_local + n_mem of these; None: that of the base.
    base : options of the system; default: n_init 128, n_local 512, n_mem 512, chunk 256.

    Raises
    ------
    InputError : no value at all, one twice, or a window larger than the budget.
    """
    common = {**_BASE, **(base or {})}
    budget = common["n_local"] + common["n_mem"] if total is None else total
    found = [Setting("base", float("nan"), common)]
    given = {"n_mem": n_mem, "share": share, "gamma": gamma, "n_local": n_local}
    for factor, values in given.items():
        for value in values:
            options = {**common, factor: value}
            if factor == "n_local":
                whole_number("n_local", value, 1)
                if value > budget:
                    raise InputError(
                        f"n_local={value} is more than the budget of n_local + n_mem = {budget} "
                        "tokens; raise total=, or leave it out."
                    )
                options["n_mem"] = budget - int(value)
            found.append(Setting(factor, float(value), options))
    labels = [setting.label for setting in found]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise InputError(f"{', '.join(repeated)} was given more than once.")
    if len(found) == 1:
        raise InputError(f"nothing is swept; give values of {', '.join(FACTORS)}.")
    return found


def capacity_sweep(
    text: str | Story,
    *,
    n_mem: Sequence[int] = (),
    share: Sequence[float] = (),
    gamma: Sequence[float] = (),
    n_local: Sequence[int] = (),
    total: int | None = None,
    system: str = "emllm-SM+C",
    base: Mapping[str, Any] | None = None,
    lm: LanguageModel | str | None = None,
    block: int = 64,
    draws: int = 1000,
    seed: int = 0,
    out: str | Path | None = None,
    progress: bool = False,
) -> Capacity:
    """Read one text at many settings of a memory system.

    Parameters
    ----------
    text : what is read, from its beginning, at every setting anew.
    n_mem, share, gamma, n_local, total, base : see `sweep_settings`.
    system : name of the system.
    lm : the model; default: the embedded one.
    block, draws, seed : of the bootstrap, see `capacity_table`.
    out : folder that keeps a row for each setting when it is done, so that an interrupted run
        goes on.
    progress : show a bar on standard error.

    Raises
    ------
    InputError : values that are not allowed; a folder made with other settings.
    """
    import pandas as pd
    from tqdm import tqdm

    from workbench.tasks.systems import system_specs

    settings = sweep_settings(
        n_mem=n_mem, share=share, gamma=gamma, n_local=n_local, total=total, base=base
    )
    (named,) = system_specs(system)
    if gamma and not named.name.startswith("emllm-"):
        raise InputError(f"gamma= is of surprise; {system} forms its units without it.")
    whole_number("block", block, 1)
    if not isinstance(lm, LanguageModel):
        lm = load_model(lm or DEFAULT_MODEL)
    content = text.text if isinstance(text, Story) else text
    specs = {s.label: SystemSpec(s.label, named.name, dict(s.options)) for s in settings}
    described: dict[str, Any] = {
        "task": "capacity",
        "model": model_settings(lm),
        "text": hashlib.sha256(content.encode()).hexdigest(),
        "block": block,
        "seed": seed,
        "systems": {label: spec.settings() for label, spec in specs.items()},
    }
    rows: dict[str, dict[str, Any]] = {}
    folder = None
    if out is not None:
        folder = RunFolder(out)
        described = agreed(folder, described)
        folder.store_settings(described)
        rows = {row["label"]: row for row in folder.rows()}
    for spec in specs.values():
        spec.make(lm)  # a setting that is not allowed is told before hours of reading
    bar = tqdm(settings, desc="settings", disable=not progress)
    for setting in bar:
        if setting.label in rows:
            continue
        made = _read(specs[setting.label], setting, content, lm, block, seed)
        rows[setting.label] = made
        if folder is not None:
            with folder.writing():
                folder.append(made)
    chosen = [rows[setting.label] for setting in settings]
    table = capacity_table(chosen, draws=draws, seed=seed)
    table["model"], table["provenance"] = lm.name, lm.provenance
    lags = [
        pd.DataFrame(row["lags"]).assign(
            label=row["label"], factor=row["factor"], value=_number(row["value"])
        )
        for row in chosen
        if row["lags"]
    ]
    return Capacity(
        table, pd.concat(lags, ignore_index=True) if lags else pd.DataFrame(), described
    )


def capacity_table(
    rows: Sequence[Mapping[str, Any]], *, draws: int = 1000, seed: int = 0, level: float = 0.95
) -> pd.DataFrame:
    """The table of a sweep: rows as they were stored, with intervals.

    Parameters
    ----------
    rows : of the settings; the first is the one the others are compared with.
    draws, seed, level : of the bootstrap over blocks of neighbouring tokens, the same ones for all
        settings; no interval from fewer than 10 blocks.

    Returns
    -------
    One row per setting: label, factor, value, system, n_local, n_mem, share, gamma, chunk,
    n_tokens, nats (mean surprisal per token), ci_low, ci_high, difference (from the base, on the
    same tokens), difference_low, difference_high, n_events, tokens_per_event, n_stored (events
    that could be recalled), ever (share of these that any layer recalled at any time), forward and
    backward (lag-CRP of the similarity buffer at +1 and -1), asymmetry ((f - b) / (f + b)) with
    asymmetry_low and asymmetry_high (bootstrap over retrieval steps), attended (keys a token saw,
    mean), seconds. NaN where nothing was stored or recalled.
    """
    import pandas as pd

    from workbench.analysis.statistics import percentile_interval

    if not rows:
        raise MissingDataError("no setting was read.")
    sums = np.array([row["block_nats"] for row in rows], dtype=np.float64)
    count = np.array(rows[0]["block_tokens"], dtype=np.float64)
    n = sums.shape[1]
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=draws)
    # Paired with the base: the same blocks are drawn for both.
    found = []
    for row, own in zip(rows, sums, strict=True):
        record = {k: v for k, v in row.items() if not k.startswith("block_") and k != "lags"}
        for names, values in (
            (("nats", "ci_low", "ci_high"), own),
            (("difference", "difference_low", "difference_high"), own - sums[0]),
        ):
            sample = (weights @ values) / (weights @ count)
            ends = percentile_interval(sample, level) if n >= _LEAST_BLOCKS else (np.nan, np.nan)
            record |= dict(zip(names, (values.sum() / count.sum(), *map(float, ends))))
        found.append({name: _number(value) for name, value in record.items()})
    columns = [
        *("label", "factor", "value", "system", "n_local", "n_mem", "share", "gamma", "chunk"),
        *("n_tokens", "nats", "ci_low", "ci_high", "difference", "difference_low"),
        *("difference_high", "n_events", "tokens_per_event", "n_stored", "ever", "forward"),
        *("backward", "asymmetry", "asymmetry_low", "asymmetry_high", "attended", "seconds"),
    ]
    return pd.DataFrame(found)[columns]


def _read(
    spec: SystemSpec, setting: Setting, text: str, lm: LanguageModel, block: int, seed: int
) -> dict[str, Any]:
    """One reading as a row of plain values; None where something is not defined."""
    system = spec.make(lm)
    with measured(lm.device.type) as cost:
        system.read(text)
    nats = np.asarray(system.surprisal, dtype=np.float64)
    first = int(np.isnan(nats[:1]).sum())  # a first token that nothing predicts
    sums, count = _blocks(nats[first:], block)
    n_events = None
    if system.forming is not None:
        n_events = int(system.events.n_events)
    gamma = None if system.forming is None else dict(system.forming.options).get("gamma")
    row: dict[str, Any] = {
        "label": setting.label,
        "factor": setting.factor,
        "value": setting.value if setting.factor != "base" else None,
        "system": spec.name,
        "n_local": system.settings.n_local,
        "n_mem": system.settings.n_mem,
        "share": system.settings.share,
        "gamma": gamma,
        "chunk": system.settings.chunk,
        "n_tokens": len(nats),
        "n_events": n_events,
        "tokens_per_event": None if n_events is None else len(nats) / n_events,
        "attended": system.attended,
        "seconds": cost.seconds,
        "block_nats": sums.tolist(),
        "block_tokens": count.tolist(),
    }
    return row | _recall(system, seed)


def _recall(system: Any, seed: int) -> dict[str, Any]:
    """What was recalled; None throughout where nothing was."""
    from workbench.analysis.retrieval import RetrievedEvents
    from workbench.analysis.retrieval_lag import retrieval_asymmetry, retrieval_lag_crp
    from workbench.analysis.retrieval_units import unit_recall

    names = ("forward", "backward", "asymmetry", "asymmetry_low", "asymmetry_high")
    nothing: dict[str, Any] = dict.fromkeys(("n_stored", "ever", *names))
    try:
        events = RetrievedEvents.of(system)
    except MissingDataError:
        return {**nothing, "lags": []}
    units = unit_recall(events)
    found = retrieval_asymmetry(events, seed=seed)
    lags = []
    for buffer in ("similarity", "both"):
        curve = retrieval_lag_crp(events, buffer=buffer, order="woven", seed=seed)
        curve = curve[curve["layer"] == "all"].drop(columns="layer")
        lags += [{k: _plain(v) for k, v in point.items()} for point in curve.to_dict("records")]
    return {
        "n_stored": len(units),
        "ever": float((units["layers"] > 0).mean()),
        **{name: _plain(found[name]) for name in names},
        "lags": lags,
    }


def _blocks(nats: NDArray[np.float64], size: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    starts = np.arange(0, len(nats), size)
    return np.add.reduceat(nats, starts), np.diff([*starts, len(nats)])


def _plain(value: Any) -> Any:
    """For JSON, which knows no NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _number(value: Any) -> Any:
    return np.nan if value is None else value
