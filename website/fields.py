"""What the API reference says of names without a docstring: settings by their `Field`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import griffe

BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class DescribedFields(griffe.Extension):
    """Take a setting's docstring from its `Field(…)`, wherever that is, and an attribute's from the class above."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Describe all classes of a package, before anything of it is shown."""
        classes = list(_classes_of(pkg))
        for found in classes:
            for member in found.members.values():
                if isinstance(member, griffe.Attribute):
                    _describe(member)
        for found in classes:
            _inherit(found)


def _classes_of(within: griffe.Object) -> Iterator[griffe.Class]:
    for member in within.members.values():
        if isinstance(member, griffe.Class):
            yield member
        if isinstance(member, griffe.Class | griffe.Module):
            yield from _classes_of(member)


def _describe(setting: griffe.Attribute) -> None:
    """Read a setting's description and bounds, or the comment behind it; leave its type alone in the annotation."""
    written, value = _expand(setting.annotation), str(setting.value)
    if value.startswith("Field("):
        written = f"({written}, {value})"
        default = next(iter(ast.parse(value, mode="eval").body.args), None)  # type: ignore[attr-defined]
        setting.value = None if default is None else ast.unparse(default)
    annotation = setting.annotation
    if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == "Annotated":
        inside = annotation.slice
        if isinstance(inside, griffe.ExprTuple):
            setting.annotation = inside.elements[0]
    if setting.docstring is not None:
        return
    for call in ast.walk(ast.parse(written, mode="eval")):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Field":
            given = {word.arg: word.value for word in call.keywords}
            said = given.get("description")
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                bounds = [f"{sign} {ast.unparse(given[word])}" for word, sign in BOUNDS.items() if word in given]
                _say(setting, said.value + f" ({', '.join(bounds)})" * bool(bounds))
                return
    _, mark, comment = setting.source.partition("  # ")
    if mark and "\n" not in setting.source:
        _say(setting, re.sub(r"\[[^\]]*\]", r"`\g<0>`", comment))


def _expand(annotation: str | griffe.Expr | None) -> str:
    """Return an annotation as Python has it, with what the module's own names in it stand for."""
    if not isinstance(annotation, griffe.Expr):
        return "None"
    found = [str(annotation)]
    for name in annotation.iterate():
        if isinstance(name, griffe.ExprName) and name.name[0].isupper():
            meant = name.resolved if hasattr(name, "resolved") else None
            if isinstance(meant, griffe.Attribute) and isinstance(meant.value, griffe.ExprSubscript):
                found.append(str(meant.value))
    return f"({', '.join(found)})"


def _say(setting: griffe.Attribute, text: str) -> None:
    setting.docstring = griffe.Docstring(f"{text[0].upper()}{text[1:]}.", parent=setting)


def _inherit(found: griffe.Class) -> None:
    """Give attributes without a docstring that of the nearest class above which has one.

    A function that overrides another is not shown, unless it says more: it is described where it is first defined.
    """
    try:
        above = found.mro()
    except ValueError:
        return
    for name, member in found.members.items():
        if not isinstance(member, griffe.Attribute) or member.docstring is not None or name.startswith("_"):
            continue
        for parent in above:
            inherited = parent.members.get(name)
            if inherited is not None and not inherited.is_alias and inherited.docstring is not None:
                member.docstring = inherited.docstring
                break
