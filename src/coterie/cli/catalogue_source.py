"""Read the entries of the catalogues from the source code: importing it would load torch, which takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from coterie.catalogue import first_sentence

PACKAGE = Path(__file__).parents[1]

CATALOGUES = {
    "methods": ("METHODS", "methods"),
    "networks": ("NETWORKS", "models"),
    "tasks": ("TASKS", "clients/tasks"),
    "datasets": ("DATASETS", "clients/data"),
    "splits": ("SPLITS", "clients/data"),
    "observers": ("OBSERVERS", "runs"),
}
"""For each kind: the name of its catalogue, and the folder whose files add to it."""

DECORATORS = {"TASKS": "task", "MEASURES": "measure", "DATASETS": "dataset", "SPLITS": "split"}
"""What adds to a catalogue beside its `add`."""

Definition = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True)
class ListedEntry:
    """An entry as a listing shows it."""

    name: str
    summary: str
    has_settings: bool


def read_entries(kind: str) -> list[ListedEntry]:
    """Return the entries of a kind (plural), in no particular order."""
    catalog, folder = CATALOGUES[kind]
    entries = []
    for path in sorted((PACKAGE / folder).glob("*.py")):
        text = path.read_text("utf-8")
        if f"{catalog}.add(" not in text and f"@{DECORATORS.get(catalog, catalog)}(" not in text:
            continue
        module = ast.parse(text)
        for definition in _definitions(module):
            entries += [_make_entry(name, definition) for name in _names(definition, catalog)]
        for name, target in _calls(module, catalog):
            *module_name, function = ast.unparse(target).split(".")  # cnn.lenet, or mlp of a module named so
            file = f"{folder}/{(module_name or [function])[0]}.py"
            entries.append(_make_entry(name, _find_definition(file, function)))
    return entries


@dataclass(frozen=True)
class ListedMetric:
    """A metric as a listing shows it."""

    summary: str
    less_is_better: bool
    tasks: tuple[str, ...]
    """The tasks that it means something for."""


def read_metrics() -> dict[str, ListedMetric]:
    """Return Coterie's metrics by name."""
    _, folder = CATALOGUES["tasks"]
    files = [f"{folder}/{path.name}" for path in sorted((PACKAGE / folder).glob("*.py"))]
    definitions = {d.name: d for file in files for d in _definitions(_parse(file))}
    tasks = {n: _read_names(d, "measurable", definitions) for d in definitions.values() for n in _names(d, "TASKS")}
    found = {}
    for definition in definitions.values():
        for decorator in definition.decorator_list:
            if (name := _registered_name(decorator, "MEASURES")) is not None and isinstance(decorator, ast.Call):
                said = {word.arg: ast.literal_eval(word.value) for word in decorator.keywords}
                some = tuple(task for task, metrics in tasks.items() if name in metrics)
                summary = str(ast.literal_eval(decorator.args[2]))
                found[name] = ListedMetric(summary, said.get("less_is_better", False), some)
    return found


def _names(definition: Definition, catalog: str) -> Iterator[str]:
    """Yield the names under which a definition adds itself to a catalogue."""
    names = (_registered_name(decorator, catalog) for decorator in definition.decorator_list)
    return (name for name in names if name is not None)


def _read_names(definition: Definition, attribute: str, known: Mapping[str, Definition]) -> tuple[str, ...]:
    """Return a class's attribute, which is a tuple of names; its own, or that of the first base that has one."""
    for node in definition.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == attribute:
            return tuple(ast.literal_eval(node.value))
    bases = definition.bases if isinstance(definition, ast.ClassDef) else []
    each = (_read_names(known[b.id], attribute, known) for b in bases if isinstance(b, ast.Name) and b.id in known)
    return next(each, ())


def read_docstring(file: str, function: str) -> str:
    """Return the docstring of a function."""
    return ast.get_docstring(_find_definition(file, function)) or ""


def read_constant(file: str, name: str) -> Any:
    """Return the value of a module's annotated constant, which must be a literal."""
    for node in _parse(file).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and node.value is not None:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def _find_definition(file: str, name: str) -> Definition:
    return next(d for d in _definitions(_parse(file)) if d.name == name)


@cache
def _parse(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text("utf-8"))


def _definitions(module: ast.Module) -> Iterator[Definition]:
    return (node for node in module.body if isinstance(node, Definition))


def _calls(module: ast.Module, catalog: str) -> Iterator[tuple[str, ast.expr]]:
    """Yield name and target of each `CATALOG.add("name")(target)`."""
    for node in module.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = _registered_name(node.value.func, catalog)
            if name is not None:
                yield name, node.value.args[0]


def _registered_name(node: ast.expr, catalog: str) -> str | None:
    """Return the name in `CATALOG.add("name")` or its decorator; None for any other expression."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name) and node.func.id == DECORATORS.get(catalog):
        return str(ast.literal_eval(node.args[0]))
    if not isinstance(node.func, ast.Attribute):
        return None
    owner = node.func.value
    if node.func.attr == "add" and isinstance(owner, ast.Name) and owner.id == catalog:
        return str(ast.literal_eval(node.args[0]))
    return None


def _make_entry(name: str, definition: Definition) -> ListedEntry:
    own = isinstance(definition, ast.FunctionDef) and definition.args.kwonlyargs
    fields = isinstance(definition, ast.ClassDef) and any(isinstance(n, ast.AnnAssign) for n in definition.body)
    return ListedEntry(name, first_sentence(ast.get_docstring(definition) or ""), bool(own or fields))
