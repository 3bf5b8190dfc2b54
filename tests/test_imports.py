"""Imports point one way: a package may import those after it in `ORDER`, never one before it.

Every import statement counts, wherever it stands: at the top, inside a function or under TYPE_CHECKING. Inside a
package its parts import each other in no circle; there a statement counts that is carried out at once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "coterie"

ORDER = [
    "cli",
    "report",
    "studies",
    "shipping",
    "advice",
    "runs",
    "runtime",
    "methods",
    "clients",
    "grouping",
    "models",
]

LEADING = {"errors", "randomness", "catalogue", "plugins", "room"}
"""Small modules that every package may import; they import each other alone."""

MACHINERY = (
    frozenset({"asyncio", "concurrent", "multiprocessing", "os", "queue", "subprocess", "threading"})
    | frozenset({"http", "mmap", "pathlib", "shutil", "socket", "tempfile", "urllib"})
    | frozenset({"logging", "rich", "tqdm", "typer", "flwr", "ray"})
)
REMOTE = frozenset({"flwr", "ray"})
REACHES_OTHERS = ("runtime/ray", "runtime/flower", "shipping/flower", "cli/flower")
"""Where those libraries may be imported; nowhere else."""

NEVER = {
    "methods": MACHINERY,
    "clients/rules": MACHINERY,
    "grouping": MACHINERY,
    "models": MACHINERY,
    "report": frozenset({"torch"}),
    "runs/folder": frozenset({"torch"}),
    "studies/papers": frozenset({"torch"}),
}
"""What has no place in a folder: algorithms know nothing of processes, sockets or files."""

WITHIN_RUNS = ("studies/papers/networks", "report/trackers/tensorboard")
"""What only a run loads, which has torch by then: networks that items name by their path, and TensorBoard."""

OF_METHODS = {"exchange", "method"}
"""All that a runtime may import of the methods: it is never told which one asks."""


def violations(package: Path) -> list[str]:
    """One sentence for each import in `package` that points up, or brings in what has no place there."""
    return [sentence for path in sorted(package.rglob("*.py")) for sentence in _violations_of(package, path)]


def _violations_of(package: Path, path: Path) -> Iterator[str]:
    place = path.relative_to(package)
    part = place.parts[0].removesuffix(".py")
    if part in {"__init__", "__main__"}:
        return
    if part not in ORDER and part not in LEADING:
        yield f"{place}: {part} is none of {', '.join(ORDER)}"
        return
    below = ORDER[ORDER.index(part) :] if part in ORDER else []
    never = frozenset().union(*(names for folder, names in NEVER.items() if Path(folder) in place.parents))
    if not str(place).startswith(REACHES_OTHERS):
        never |= REMOTE
    if str(place).startswith(WITHIN_RUNS):
        never -= {"torch"}
    for line, name in imports(package, path):
        top, _, inside = name.partition(".")
        if top != package.name:
            if top in never:
                yield f"{place}:{line}: {place.parent} must not import {top}"
        elif inside.partition(".")[0] not in {*below, *LEADING, "__version__"}:
            yield f"{place}:{line}: {part} must not import {name}"
        elif part == "runtime" and inside.split(".")[0] == "methods" and not _is_of_methods(inside):
            yield f"{place}:{line}: runtime must not import {name}"


def _is_of_methods(inside: str) -> bool:
    return len(inside.split(".")) > 1 and inside.split(".")[1] in OF_METHODS


def imports(package: Path, path: Path, at_once: bool = False) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that a file imports, also by `import_module("…")`.

    `at_once` leaves out what is imported for types alone, or when a function is called.
    """
    here = [package.name, *path.relative_to(package).with_suffix("").parts]
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = ".".join([*(here[: -node.level] if node.level else []), *filter(None, [node.module])])
            names = [f"{origin}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [str(a.value) for a in node.args[:1] if isinstance(a, ast.Constant)]
        else:
            continue
        for name in names:
            yield node.lineno, name


@pytest.mark.medium
def test_imports_point_one_way() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.medium
def test_no_package_has_parts_that_import_each_other_in_a_circle() -> None:
    assert circles(PACKAGE) == []


def circles(package: Path) -> list[str]:
    """One sentence for each package whose parts, modules and folders, cannot be put into an order."""
    found = []
    for folder in (path.parent for path in sorted(package.rglob("__init__.py")) if path.parent != package):
        prefix = ".".join([package.name, *folder.relative_to(package).parts, ""])
        wanted: dict[str, set[str]] = {}
        for path in folder.rglob("*.py"):
            part = path.relative_to(folder).with_suffix("").parts[0]
            names = (name for _, name in imports(package, path, at_once=True) if name.startswith(prefix))
            wanted.setdefault(part, set()).update(name.removeprefix(prefix).partition(".")[0] for name in names)
        try:
            TopologicalSorter({part: names - {part} for part, names in wanted.items()}).prepare()
        except CycleError as error:
            found.append(f"in {folder.relative_to(package)}: {' needs '.join(error.args[1])}")
    return found


def test_the_listing_is_the_order() -> None:
    found = {path.stem for path in PACKAGE.iterdir() if path.name != "py.typed" and not path.name.startswith("__")}
    assert found == {*ORDER, *LEADING}


@pytest.mark.parametrize("folder", sorted(p for p in PACKAGE.rglob("*") if p.is_dir() and "__" not in p.name))
def test_each_package_says_what_lives_there(folder: Path) -> None:
    if folder.name not in {"flower_app", "templates"}:  # no packages
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("models/layout.py", "from coterie.methods import fesem"),
        ("runtime/local/runtime.py", "from coterie.methods.fesem import FeSEM"),
        ("report/page.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from coterie.cli import app"),
    ],
)
def test_the_check_catches(tmp_path: Path, place: str, source: str) -> None:
    found = violations(_package(tmp_path, place, source))
    assert len(found) == 1, found
    assert found[0].startswith(place)


def _package(folder: Path, place: str, source: str) -> Path:
    """A package with one file of the given source."""
    package = folder / "coterie"
    path = package / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, "utf-8")
    return package
