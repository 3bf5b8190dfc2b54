"""Imports point downwards: which part of the package may import which, as a table.

Every import statement counts, wherever it stands: at the top, inside a function or under TYPE_CHECKING (where a
row may name more, for annotations alone).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "coterie"
ANYTHING = "coterie"

GROUND = ("problems", "starting", "streams", "catalog", "labels", "scale")
"""Small modules that every part may import."""

MACHINERY = (
    frozenset({"asyncio", "concurrent", "multiprocessing", "os", "queue", "subprocess", "sys", "threading"})
    | frozenset({"http", "mmap", "pathlib", "shutil", "socket", "tempfile", "urllib"})
    | frozenset({"logging", "rich", "tqdm", "typer"})
)
"""Processes, sockets, files and progress bars: a method and its building blocks know nothing of them."""

TYPE_CHECKING = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
REMOTE = frozenset({"flwr", "ray"})
TORCH = frozenset({"torch"})


@dataclass(frozen=True)
class May:
    """What one part may import of the package, beside the ground, and what it must not import from outside."""

    use: tuple[str, ...] = ()
    never: frozenset[str] = frozenset()
    name: tuple[str, ...] = ()
    """What it may import for annotations alone, under TYPE_CHECKING."""


METHODS = ("methods", "exchange", "grouping", "sharing", "clients", "federation", "models")
RECORDS = ("runs", "tables", "metrics", "events")
RUNNING = ("experiment", "experiment_toml", "sections", *METHODS, "runtime", "engine", "report", *RECORDS)

TABLE: dict[str, May] = {
    # The public names, and the parts that people touch.
    "__init__": May((ANYTHING,)),
    "__main__": May((ANYTHING,)),
    "cli": May((ANYTHING,), REMOTE),
    "live": May((ANYTHING,), REMOTE),
    "cli_compare": May((ANYTHING,), REMOTE),
    "cli_explain": May((ANYTHING,), REMOTE),
    "cli_options": May(("experiment", "experiment_check", "experiment_toml"), TORCH | REMOTE),
    "cli_reproduce": May((ANYTHING,), REMOTE),
    "cli_predict": May((ANYTHING,), REMOTE),
    "cli_flower": May((ANYTHING,), REMOTE),
    "demo": May((ANYTHING,), REMOTE),
    "flower": May((ANYTHING,), frozenset({"ray"})),
    "flower_demo": May((ANYTHING,), REMOTE),
    "listing": May((ANYTHING,), REMOTE),
    "catalog_source": May((), TORCH | REMOTE),
    # Many experiments side by side, and those of published tables.
    "comparing": May(("comparison", "report", *RECORDS), REMOTE),
    "comparison": May(("interrupts", "live", "locks", "running", "session", "experiment_check", *RUNNING), REMOTE),
    "reproduction": May(("comparison", *RUNNING), TORCH | REMOTE),
    "papers": May((), TORCH | REMOTE),
    # An experiment, from what is to be done down to the models.
    "running": May(("interrupts", "locks", "session", "world", *RUNNING), REMOTE),
    "session": May(("experiment_check", "measuring", "newcomers", "provenance", "world", *RUNNING), REMOTE),
    "world": May(("experiment_check", "newcomers", *RUNNING), REMOTE),
    # Models after training.
    "predicting": May(("trained", "engine", "federation", "models", "runtime", "tables"), REMOTE),
    "exporting": May(("trained", "models", "tables"), REMOTE),
    "served": May(("experiment_check", "session", "trained", "world", *RUNNING), REMOTE),
    "trained": May(("models", "runtime"), REMOTE),
    # What a run would take, before it begins.
    "explaining": May(("calibration", "footprint", "session", *RUNNING), REMOTE),
    "calibration": May(("clients", "exchange", "models", "runtime"), REMOTE),
    "footprint": May((), REMOTE),
    "provenance": May((), REMOTE),
    "newcomers": May(("measuring", *RUNNING), REMOTE),
    "measuring": May(("clients", "exchange", "grouping", "methods", "models", "runtime.ledger", *RECORDS), REMOTE),
    "experiment": May(("experiment_check", "experiment_toml", "sections", *METHODS), REMOTE),
    "experiment_check": May(("experiment", "experiment_toml", "newcomers", "sections", *METHODS), REMOTE),
    "sections": May(("experiment_toml",), TORCH | REMOTE),
    "experiment_toml": May((), TORCH | REMOTE),
    "methods": May(METHODS, MACHINERY | REMOTE),
    "exchange": May(("clients", "models.layout"), MACHINERY | REMOTE),
    "grouping": May(("models", "sharing"), MACHINERY | REMOTE),
    "sharing": May(("models",), MACHINERY | REMOTE),
    "clients": May(("models",), MACHINERY | REMOTE),
    "federation": May((), REMOTE),
    "models": May((), MACHINERY | REMOTE),
    # Who answers a method: never told which method is asking.
    "runtime": May(("exchange", "engine", "clients", "federation", "models", *RECORDS, "methods.method")),
    "engine": May(("clients", "models"), REMOTE),
    # What a run leaves behind, and who reads it.
    "report": May(("comparison", *RECORDS), TORCH | REMOTE),
    "runs": May(("round_files", "sections", *RECORDS), TORCH | REMOTE),
    "round_files": May(RECORDS, TORCH | REMOTE),
    "tables": May(RECORDS, TORCH | REMOTE),
    "metrics": May(RECORDS, TORCH | REMOTE),
    "events": May(RECORDS, TORCH | REMOTE, name=("experiment",)),
    # The ground.
    "interrupts": May((), TORCH | REMOTE),
    "locks": May((), TORCH | REMOTE),
    "problems": May((), TORCH | REMOTE),
    "starting": May((), TORCH | REMOTE),
    "streams": May((), TORCH | REMOTE),
    "catalog": May((), TORCH | REMOTE),
    "labels": May((), TORCH | REMOTE),
    "scale": May((), TORCH | REMOTE),
}


def violations(package: Path) -> list[str]:
    """One sentence for each import in `package` that the table does not allow."""
    return [sentence for path in sorted(package.rglob("*.py")) for sentence in _of_file(package, path)]


def _of_file(package: Path, path: Path) -> Iterator[str]:
    place = path.relative_to(package)
    part = place.parts[0].removesuffix(".py")
    if part not in TABLE:
        yield f"{place}: {part} is in no row of the table; say there what it may import"
        return
    for line, name, for_types in imports(package, path):
        allowed = (part, *GROUND, *TABLE[part].use, *(TABLE[part].name if for_types else ()))
        top, _, inside = name.partition(".")
        if top != package.name:
            if top in TABLE[part].never:
                yield f"{place}:{line}: {part} must not import {top}"
        elif ANYTHING not in allowed and not any(inside == a or inside.startswith(f"{a}.") for a in allowed):
            yield f"{place}:{line}: {part} must not import {name}; it may import {_listed(allowed)}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys(names))


def imports(package: Path, path: Path) -> Iterator[tuple[int, str, bool]]:
    """Every module that a file imports, also by `import_module("…")`.

    Line, absolute dotted name, and whether it is imported under TYPE_CHECKING.
    """
    here = [package.name, *path.relative_to(package).with_suffix("").parts]
    tree = ast.parse(path.read_text("utf-8"))
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) in TYPE_CHECKING]
    for_types = {node for guard in guards for statement in guard.body for node in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = ".".join([*(here[: -node.level] if node.level else []), *filter(None, [node.module])])
            inside = [f"{origin}.{alias.name}" for alias in node.names]
            names = list(dict.fromkeys(name if _is_module(package, name) else origin for name in inside))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [str(a.value) for a in node.args[:1] if isinstance(a, ast.Constant)]
        else:
            continue
        for name in names:
            yield node.lineno, name, node in for_types


def _is_module(package: Path, name: str) -> bool:
    place = package.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or place.is_dir()


def test_imports_point_downwards() -> None:
    found = violations(PACKAGE)
    assert not found, "\n".join(found)


def test_the_table_is_about_the_package() -> None:
    assert PACKAGE.is_dir()
    seen = {name for path in PACKAGE.rglob("*.py") for _, name, _ in imports(PACKAGE, path)}
    assert "coterie.problems" in seen
    rows = set(TABLE) | {ANYTHING, "methods.method", "models.layout", "runtime.ledger"}
    assert {name for may in TABLE.values() for name in (*may.use, *may.name)} <= rows


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("models/layout.py", "from coterie.methods import fesem"),
        ("models/layout.py", "import coterie.clients.training as training"),
        ("clients/sgd.py", "from coterie import Experiment"),
        ("clients/sgd.py", "from coterie import exchange"),
        ("clients/sgd.py", "from ..federation import partition"),
        ("clients/sgd.py", "from .. import runtime"),
        ("exchange.py", "from coterie.models import networks"),
        ("runtime/local.py", "from coterie.methods.fesem import FeSEM"),
        ("runtime/local.py", "from coterie.methods import method, fesem"),
        ("runtime/local.py", "def answer():\n    from coterie.methods import CATALOG"),
        ("runtime/local.py", "import importlib\nimportlib.import_module('coterie.methods.fesem')"),
        ("engine/loop.py", "from coterie.exchange import Exchange"),
        ("methods/fesem.py", "from coterie.runtime.local import Local"),
        ("methods/fesem.py", "import multiprocessing.shared_memory"),
        ("methods/fesem.py", "from pathlib import Path"),
        ("federation/partition.py", "from coterie.models.layout import Layout"),
        ("report/page.py", "import torch"),
        ("report/page.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor"),
        ("report/page.py", "from coterie.engine import loop"),
        ("events.py", "from coterie.experiment import Experiment"),
        ("events.py", "if not TYPE_CHECKING:\n    from coterie.experiment import Experiment"),
        ("events.py", "if TYPE_CHECKING:\n    pass\nelse:\n    from coterie.experiment import Experiment"),
        ("runs.py", "from coterie.runtime.local import Local"),
        ("experiment.py", "from coterie.running import run"),
        ("running.py", "from coterie import cli"),
        ("somewhere.py", "import math"),
    ],
)
def test_the_check_catches(tmp_path: Path, place: str, source: str) -> None:
    package = _package(tmp_path, place, source)
    found = violations(package)
    assert len(found) == 1, found
    assert found[0].startswith(place)


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("models/layout.py", "import torch\nfrom coterie.problems import BadInput\nfrom coterie import streams"),
        ("exchange.py", "from coterie.models.layout import Part\nfrom coterie.clients.sgd import Sgd"),
        ("methods/fesem.py", "from coterie.exchange import Exchange\nfrom . import method\nfrom .method import M"),
        ("runtime/local.py", "import multiprocessing\nfrom coterie.methods.method import Method"),
        ("runtime/local.py", "from coterie.methods import method\nfrom .. import exchange\nimport ray"),
        ("report/page.py", "from coterie import runs\nfrom coterie.metrics import columns\nimport polars"),
        ("events.py", "import typing\nif typing.TYPE_CHECKING:\n    from coterie.experiment import Experiment"),
        ("cli.py", "from coterie.running import run\nfrom coterie import Experiment"),
        ("__init__.py", "from coterie.methods.fesem import FeSEM as FeSEM"),
    ],
)
def test_the_check_lets_pass(tmp_path: Path, place: str, source: str) -> None:
    assert violations(_package(tmp_path, place, source)) == []


def _package(folder: Path, place: str, source: str) -> Path:
    """A package of empty modules with one file of the given source."""
    package = folder / "coterie"
    modules = "problems streams exchange runs metrics runtime/local methods/method methods/fesem models/networks"
    for name in (*modules.split(), "models/layout", "clients/training", "engine/loop", "running", "cli"):
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (package / place).parent.mkdir(parents=True, exist_ok=True)
    (package / place).write_text(source, "utf-8")
    return package
