"""Run systems through a task over lengths, depths and seeds; what is done is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.checks import plural, whole_number
from workbench.core.errors import InputError, WorkbenchError
from workbench.models import DEFAULT_MODEL, LanguageModel, load_model
from workbench.recording.record import versions
from workbench.tasks.estimate import check_memory
from workbench.tasks.items import Item, Question, Task, check_depths
from workbench.tasks.meter import Measured, measured
from workbench.tasks.passkey import Passkey
from workbench.tasks.recalled import KeyRecall, key_recall
from workbench.tasks.records import RunFolder
from workbench.tasks.run_settings import agreed, grid_settings, limits_of
from workbench.tasks.scoring import contains
from workbench.tasks.systems import SystemsLike, SystemSpec, system_specs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TaskResult", "load_result", "run_grid"]

_CELL = ("system", "length", "depth", "seed")


@dataclass(frozen=True, eq=False)
class TaskResult:
    """Rows of a run.

    Parameters
    ----------
    table : one row per system, length, depth and seed, see `run_grid`.
    settings : what they were made with.
    skipped : cells that were asked for and not run: system, length, reason.
    folder : where they are kept; None if only in memory.
    """

    table: pd.DataFrame
    settings: dict[str, Any]
    skipped: pd.DataFrame
    folder: Path | None = None


def run_grid(
    systems: SystemsLike,
    task: Task | str = "passkey",
    lengths: Sequence[int] = (1000, 4000),
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    seeds: int | Sequence[int] = 3,
    *,
    lm: LanguageModel | str | None = None,
    options: Mapping[str, Any] | None = None,
    max_length: Mapping[str, int] | None = None,
    max_new_tokens: int | None = None,
    out: str | Path | None = None,
    resume: bool = True,
    progress: bool | Callable[[dict[str, Any]], None] = False,
) -> TaskResult:
    """Ask systems for what texts contain: one row per system, length, depth and seed.

    Every text is read once by each system, and each question is asked from a branch of that
    reading, greedily. With `out` each row is on the disk before the next is begun: an interrupted
    run goes on where it stopped, a repeated one costs nothing, and more lengths, depths, seeds or
    systems can be added to a folder later.

    Parameters
    ----------
    systems, options : as in `workbench.tasks.systems.system_specs`.
    task : "passkey", or a `Passkey`, `KeyValue` or `Needle`.
    lengths : tokens of text and question together.
    depths : places of what is asked for, from 0 (start of the text) to 1 (just before the end).
    seeds : how many (0, 1, ...), or a list.
    lm : the model; default: the embedded one.
    max_length : label → longest text that system reads; the rest is skipped and listed. Where
        nothing is said, `full` reads as much as the model's window holds.
    max_new_tokens : length of the outputs; default: what the answer needs, and a little more.
    out : folder of the rows.
    resume : go on in a folder that has rows already; False refuses it.
    progress : True for a bar on standard error, or a function that is called with each new row.

    Returns
    -------
    TaskResult; with `out`, its table has all rows of the folder. Columns: system, task, length,
    depth, seed, label; correct (by the rule in `scoring`), contains (the answer stands anywhere
    in the output), output, expected; n_tokens (text and question), n_read (counted by the system
    after the text), key_start, key_end (tokens of the text), distance (tokens from the key's end
    to the end of the question); seconds_reading and tokens_per_second (of the text),
    seconds_generating; peak_memory, memory_before (bytes) and memory_of (see `Measured`), while
    reading; attended (mean number of keys a query saw in reading); footprint (dict of bytes);
    n_events; key_in_window (the key was in the local window to the end of the answer);
    key_recalled, key_recalled_whole, key_layers (see `KeyRecall`; missing where it was, or where
    nothing is recalled); reading (rows with the same number share one reading, and its time).

    Raises
    ------
    InputError : a value that is not allowed; a folder made with other settings, which are named;
        a reading that needs more memory than there is.
    """
    task = _task(task)
    places = check_depths(depths)
    sizes = [whole_number("length", length, 1) for length in lengths]
    numbers = (
        list(range(whole_number("seeds", seeds, 1)))
        if not isinstance(seeds, Sequence)
        else [whole_number("seed", seed) for seed in seeds]
    )
    for name, values in (("lengths", sizes), ("seeds", numbers)):
        if not values or len(set(values)) < len(values):
            raise InputError(f"{name}={values} must name at least one value, and none twice.")
    if max_new_tokens is not None:
        whole_number("max_new_tokens", max_new_tokens, 1)
    specs = system_specs(systems, options)
    if not isinstance(lm, LanguageModel):
        lm = load_model(lm or DEFAULT_MODEL)
    limits = limits_of(specs, max_length or {}, lm)
    settings = grid_settings(specs, task, lm, max_new_tokens, places)
    folder = None if out is None else RunFolder(out)
    rows: list[dict[str, Any]] = []
    if folder is not None:
        settings = agreed(folder, settings, resume)
        rows = folder.rows()
    done = {_cell(row) for row in rows}
    plan = [
        (spec, length, seed, missing)
        for length in sorted(sizes)
        for spec in specs
        if length <= limits[spec.label]
        for seed in numbers
        if (missing := [d for d in places if (spec.label, length, d, seed) not in done])
    ]
    longest: dict[str, int] = {}
    for spec, length, *_ in plan:
        longest[spec.label] = max(length, longest.get(spec.label, 0))
    check_memory(lm, specs, longest)

    with _writing(folder, settings if plan else None), _shown(progress, plan, task) as tell:
        maker = _Maker(lm)
        for spec, length, seed, missing in plan:
            for item, questions in _texts(task, lm.tokenizer, length, places, seed, missing):
                reading = len({(row["system"], row["reading"]) for row in rows})
                system = maker.empty(spec)
                with measured(lm.device.type) as took:
                    system.read(item.text)
                shared = _of_reading(system, item, took)
                for question in questions:
                    row = {
                        "system": spec.label,
                        "task": task.name,
                        "length": length,
                        "depth": question.depth,
                        "seed": seed,
                        **_answered(system, task, item, question, max_new_tokens, lm),
                        **shared,
                        "reading": reading,
                        "date": datetime.now(UTC).isoformat(timespec="seconds"),
                        "versions": versions(),
                    }
                    rows.append(row)
                    if folder is not None:
                        folder.append(row)
                    tell(row)
    return TaskResult(_table(rows), settings, _skipped(specs, sizes, limits), _path(folder))


def load_result(folder: str | Path) -> TaskResult:
    """Rows of a run, finished or not.

    Raises
    ------
    InputError : no run is kept there.
    """
    kept = RunFolder(folder)
    settings = kept.settings()
    if settings is None:
        raise InputError(f"{folder} holds no run; name the folder given as out.")
    return TaskResult(_table(kept.rows()), settings, _skipped([], [], {}), kept.folder)


# --- one text ------------------------------------------------------------------------------


class _Maker:
    """Makes a system when another one is due, and empties it for the next text otherwise."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self.spec: SystemSpec | None = None
        self.system: Any = None

    def empty(self, spec: SystemSpec) -> Any:
        if spec is not self.spec:
            self.system = None  # its memory is given back before the next takes its own
            self.system, self.spec = spec.make(self.lm), spec
        else:
            self.system.reset()
        return self.system


def _texts(
    task: Task,
    tokenizer: Any,
    length: int,
    depths: list[float],
    seed: int,
    missing: list[float],
) -> Iterator[tuple[Item, list[Question]]]:
    """Texts that still have questions to be asked, with these."""
    if task.together:
        (item,) = task.items(tokenizer, length, depths, seed)
        yield item, [question for question in item.questions if question.depth in missing]
        return
    for depth in missing:
        (item,) = task.items(tokenizer, length, [depth], seed)
        yield item, list(item.questions)


def _of_reading(system: Any, item: Item, took: Measured) -> dict[str, Any]:
    attended, events = _known(system, "attended"), _known(system, "events")
    footprint = _known(system, "footprint")
    return {
        "n_tokens": item.n_tokens,
        "n_text": item.n_text,
        "n_read": int(system.n_tokens),
        "seconds_reading": took.seconds,
        "tokens_per_second": item.n_text / took.seconds,
        "peak_memory": took.peak,
        "memory_before": took.before,
        "memory_of": took.of,
        "attended": None if attended is None else float(attended),
        "footprint": {k: int(v) for k, v in footprint().items()} if footprint else None,
        "n_events": None if events is None else int(events.n_events),
    }


def _answered(
    system: Any,
    task: Task,
    item: Item,
    question: Question,
    max_new_tokens: int | None,
    lm: LanguageModel,
) -> dict[str, Any]:
    """One question on what was read, asked in a branch so that the next finds the same memory."""
    before = int(system.n_tokens)
    recall: KeyRecall | None = None
    with system.branch():
        with measured(lm.device.type) as took:
            output = system.generate(
                question.prompt,
                max_new_tokens=max_new_tokens or question.max_new_tokens,
                keep=True,  # until the branch ends, so that its recalls can be looked at
                do_sample=False,
            )
        # A start token that the system put first moves everything by one.
        shift = before - item.n_text
        span = question.tokens[0] + shift, question.tokens[1] + shift
        n_local = _known(system, "n_local")
        # In sight to the last token of the answer, so that it need not be recalled.
        near = None if n_local is None else bool(span[0] >= system.n_tokens - int(n_local))
        retrievals, events = _known(system, "retrievals"), _known(system, "events")
        found = retrievals is not None and events is not None and shift in (0, 1)
        if found and not near:
            recall = key_recall(retrievals, events, span, before)
    return {
        "label": question.label,
        "correct": bool(task.score(output, question.answer)),
        "contains": contains(output, question.answer),
        "scoring": task.scoring,
        "output": output,
        "expected": question.answer,
        "key_start": question.tokens[0],
        "key_end": question.tokens[1],
        "distance": item.n_tokens - question.tokens[1],
        "seconds_generating": took.seconds,
        "key_in_window": near,
        "key_recalled": None if recall is None else recall.any,
        "key_recalled_whole": None if recall is None else recall.whole,
        "key_layers": None if recall is None else recall.layers,
    }


def _known(system: Any, name: str) -> Any:
    """An attribute of a system; None where it has none, or says that there is none."""
    try:
        return getattr(system, name, None)
    except WorkbenchError:
        return None


# --- settings and rows ---------------------------------------------------------------------


def _task(task: Task | str) -> Task:
    if isinstance(task, str):
        if task != "passkey":
            raise InputError(
                f"task={task!r} is not known by name; give 'passkey', or a Passkey, KeyValue or "
                "Needle with its settings."
            )
        return Passkey()
    return task


def _cell(row: Mapping[str, Any]) -> tuple[str, int, float, int]:
    system, length, depth, seed = (row[name] for name in _CELL)
    return system, length, depth, seed


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame(rows)
    if len(table):
        table = table.drop_duplicates(list(_CELL), ignore_index=True)
    for column in ("key_recalled", "key_recalled_whole", "key_in_window"):
        if column in table:
            table[column] = table[column].astype("boolean")
    return table


def _skipped(
    specs: Sequence[SystemSpec], lengths: Sequence[int], limits: Mapping[str, float]
) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {
            "system": spec.label,
            "length": length,
            "reason": f"longer than the {plural(int(limits[spec.label]), 'token')} it reads",
        }
        for spec in specs
        for length in lengths
        if length > limits[spec.label]
    ]
    return pd.DataFrame(rows, columns=["system", "length", "reason"])


def _path(folder: RunFolder | None) -> Path | None:
    return None if folder is None else folder.folder


@contextlib.contextmanager
def _writing(folder: RunFolder | None, settings: dict[str, Any] | None) -> Iterator[None]:
    """Hold the folder and store the settings; nothing is touched when nothing is to be done."""
    if folder is None or settings is None:
        yield
        return
    with folder.writing():
        folder.store_settings(settings)
        yield


@contextlib.contextmanager
def _shown(
    progress: bool | Callable[[dict[str, Any]], None],
    plan: Sequence[tuple[SystemSpec, int, int, list[float]]],
    task: Task,
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What is called with each row: nothing, the user's function, or a bar over tokens read."""
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda row: None
        return
    import sys

    from tqdm import tqdm

    total = sum(length * len(missing) for _, length, _, missing in plan)
    with tqdm(total=total, unit="token", unit_scale=True, file=sys.stderr, desc=task.name) as bar:

        def tell(row: dict[str, Any]) -> None:
            mark = "right" if row["correct"] else "wrong"
            bar.set_postfix_str(
                f"{row['system']} {row['length']} at {row['depth']:g}: {mark}", refresh=False
            )
            bar.update(row["length"])

        yield tell
