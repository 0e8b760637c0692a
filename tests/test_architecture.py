"""The house rules that no other test would notice: directions of imports, what loads when."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import workbench

ROOT = Path(workbench.__file__).parent

# A part may import parts on its own step and below. What is not named here fails the test, so
# that a new part gets its place when it is made.
STEPS = (
    {"core"},
    {"stories", "recording", "events", "models", "embedded", "encoders", "sentence_encoder"}
    | {"wheels"},
    {"analysis", "memory"},
    {"training", "tasks"},
    {"figures"},
    {"comparison"},
    {"cli", "cli_recall", "cli_table2", "cli_train", "cli_tasks", "cli_memory", "cli_sweep"}
    | {"cli_distraction", "cli_memory_index"},
    {"__init__", "__main__"},
)
STEP = {part: step for step, parts in enumerate(STEPS) for part in parts}

# Convenience methods (`story.consensus()`, `trace.save()`, a result's `figure()`), inside their
# bodies.
CONVENIENCE = {
    "workbench.core.story": {"stories"},
    "workbench.core.trace": {"recording"},
    "workbench.tasks.distraction": {"figures"},
}

HEAVY = ("torch", "transformers", "plotly", "sklearn", "statsmodels", "networkx", "zarr")


@dataclass(frozen=True)
class Import:
    module: str
    """The module that imports, dotted."""
    target: str
    """What it imports, dotted: a module, or a module and a name of it."""
    line: int
    place: str
    """"top" of the module, "body" of a function, or "types" (only for type checkers)."""

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: {self.target}"


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["workbench", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path) -> Iterator[Import]:
    def walk(node: ast.AST, place: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = place
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inside = "body"
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inside = "types"
            if isinstance(child, ast.Import):
                for name in child.names:
                    yield Import(module, name.name, child.lineno, place)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module}, line {child.lineno}: a relative import"
                for name in child.names:
                    yield Import(module, f"{child.module}.{name.name}", child.lineno, place)
            else:
                yield from walk(child, inside)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), "top")


def part_of(dotted: str) -> str:
    """`workbench.core.story` → core; the package itself → __init__."""
    pieces = dotted.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return [found for name, path in modules().items() for found in imports_of(name, path)]


def module_named(target: str, known: dict[str, Path]) -> str:
    """The module of an import that may name something inside it."""
    return target if target in known else target.rpartition(".")[0]


def test_every_part_has_a_place():
    unplaced = {part_of(name) for name in modules()} - set(STEP)
    assert not unplaced, f"give these a step in this file: {sorted(unplaced)}"


def test_imports_go_one_way(imports):
    known = modules()
    wrong = []
    for found in imports:
        if not found.target.startswith("workbench.") or found.place == "types":
            continue
        here, there = part_of(found.module), part_of(module_named(found.target, known))
        if there == "__init__":  # the version, which loads nothing
            assert found.target == "workbench.__version__", str(found)
            continue
        allowed = found.place == "body" and there in CONVENIENCE.get(found.module, ())
        if STEP[there] > STEP[here] and not allowed:
            wrong.append(str(found))
    assert not wrong, "imports against the direction:\n" + "\n".join(wrong)


def test_every_convenience_is_used(imports):
    for module, parts in CONVENIENCE.items():
        used = {part_of(found.target) for found in imports if found.module == module}
        assert parts <= used, module


def test_no_cycles_when_modules_load(imports):
    known = modules()
    graph: dict[str, set[str]] = {name: set() for name in known}
    for found in imports:
        if found.place == "top" and found.target.startswith("workbench."):
            graph[found.module].add(module_named(found.target, known))
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail("modules import each other: " + " ← ".join(error.args[1]))


def test_core_loads_nothing_heavy(imports):
    heavy = [
        str(found)
        for found in imports
        if part_of(found.module) == "core"
        and found.place == "top"
        and found.target.split(".")[0] in HEAVY
    ]
    assert not heavy


def test_measures_and_types_use_no_torch_and_draw_nothing(imports):
    """Core and graph measures are numpy and scipy; pictures are the business of figures."""
    wrong = [
        str(found)
        for found in imports
        if (part_of(found.module) == "core" and found.target.split(".")[0] == "torch")
        or (
            part_of(found.module) in {"core", "stories", "recording", "events", "analysis"}
            and found.target.split(".")[0] == "plotly"
        )
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import workbench", ("torch", "transformers", "pandas", "plotly", "scipy")),
        ("import workbench.cli", ("torch", "transformers", "pandas", "plotly")),
        ("from workbench import Boundaries, KeyGraph, Story", ("torch", "plotly")),
        ("from workbench import compare, segment, record, load_model", ("torch", "plotly")),
    ],
)
def test_what_an_import_loads(statement, absent):
    code = f"{statement}\nimport sys\nprint(*(name for name in {absent!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", [n for n in workbench.__all__ if n != "__version__"])
def test_every_public_name_loads_and_is_documented(name):
    value = getattr(workbench, name)
    text = value.__doc__ or ""
    assert text.strip(), f"workbench.{name} has no docstring"
    assert not text.startswith(f"{name}("), f"workbench.{name} has only dataclass's own docstring"
    assert value.__module__ == workbench._HOME[name], f"workbench.{name} lives elsewhere"


def test_public_names_are_the_type_checkers_names(imports):
    """The imports for type checkers and the table used at run time name the same things."""
    typed = {
        found.target.rpartition(".")[2]: found.target.rpartition(".")[0]
        for found in imports
        if found.module == "workbench" and found.place == "types"
    }
    assert typed == workbench._HOME


def test_the_version_is_one():
    """The wheel takes it from the package; the citation and the changelog are kept by hand."""
    checkout = ROOT.parent
    if not (checkout / "CITATION.cff").is_file():
        pytest.skip("not a checkout")
    citation = (checkout / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {workbench.__version__}\n" in citation
    changelog = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = next(line for line in changelog.splitlines() if line.startswith("## "))
    assert newest.split()[1] == workbench.__version__


def test_each_module_says_what_it_is_for():
    silent = [
        name
        for name, path in modules().items()
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent
