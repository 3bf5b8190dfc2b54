"""The text of a split: one partition and any number of skews, as in `dirichlet(0.5) + rotated(4)`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from typing import Any

from coterie.clients.data.divide import flower_splits
from coterie.clients.data.divide.partition import SPLITS
from coterie.clients.data.divide.skew import SKEWS
from coterie.errors import BadInput

Call = tuple[str, dict[str, Any]]

_PLUS = re.compile(r"\+(?![^()]*\))")
"""A plus sign outside brackets."""

CALL = re.compile(r"(?P<name>(?:flwr:)?[A-Za-z][\w-]*)\s*(?P<arguments>\(.*\))?", re.DOTALL)


def parse_split(text: str) -> list[Call]:
    """The partition and then the skews in the order written, each with all its settings checked and filled in.

    A skew alone stands for `iid` and that skew. Values are literals; a bare word is a string; arguments
    without a name go by the order of the signature.

    >>> parse("permuted-labels(2)")
    [('iid', {}), ('permuted-labels', {'groups': 2})]

    Raises:
        BadInput: one sentence for each thing that is wrong with the text.
    """
    problems: list[str] = []
    calls: list[Call] = []
    for piece in _PLUS.split(text):
        try:
            calls.append(_call(piece, text))
        except BadInput as error:
            problems += error.problems
    partitions = [name for name, _ in calls if name not in SKEWS]
    if len(partitions) > 1:
        problems.append(
            f"split = {text!r} has {len(partitions)} partitions ({', '.join(partitions)}); keep one, only skews "
            f"({', '.join(sorted(SKEWS))}) can be added to it"
        )
    skews = [name for name, _ in calls if name in SKEWS]
    problems += [
        f"split = {text!r} has {name} {skews.count(name)} times; keep one of them"
        for name in sorted(set(skews))
        if skews.count(name) > 1
    ]
    if problems:
        raise BadInput(problems)
    if not partitions:
        calls.insert(0, ("iid", {}))
    return sorted(calls, key=lambda call: call[0] in SKEWS)


def check_split(text: str) -> list[str]:
    """All that can be known to be wrong from the text alone, one sentence each."""
    try:
        parse_split(text)
    except BadInput as error:
        return error.problems
    return []


def _call(piece: str, text: str) -> Call:
    match = CALL.fullmatch(piece.strip())
    if match is None:
        what = f"{piece.strip()!r} in it" if piece.strip() else "an empty part of it"
        raise BadInput(
            f"split = {text!r} cannot be read: {what} is not of the form name or name(setting=value); a split "
            "looks like 'dirichlet(0.5) + rotated(4)'"
        )
    name, arguments = match["name"], match["arguments"] or "()"
    if name.startswith(flower_splits.PREFIX):
        theirs = name.removeprefix(flower_splits.PREFIX)
        order = list(inspect.signature(flower_splits.partitioner(theirs)).parameters)
        settings = arguments_of(name, arguments, order)
        flower_splits.check_settings(theirs, settings)
        return name, settings
    entry = SPLITS[name]
    settings = entry.bind(arguments_of(name, arguments, [setting.name for setting in entry.settings]), name)
    if name == "few-shot" and settings["few_classes"] > settings["classes"]:
        raise BadInput(
            f"few-shot.few_classes = {settings['few_classes']} is not possible; it must be at most "
            f"classes = {settings['classes']}"
        )
    return name, settings


def arguments_of(name: str, arguments: str, order: Sequence[str]) -> dict[str, Any]:
    """The literal arguments of a call by name."""
    try:
        call = ast.parse(f"f{arguments}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    if not isinstance(call, ast.Call) or not is_call or any(keyword.arg is None for keyword in call.keywords):
        raise BadInput(f"{name}{arguments} cannot be read; write settings as in {name}(setting=value)")
    if len(call.args) > len(order):
        known = f"only {', '.join(order)}" if order else "none"
        raise BadInput(f"{name}{arguments} has too many settings; {name} takes {known}")
    settings: dict[str, Any] = {}
    for key, value in [*zip(order, call.args, strict=False), *((str(k.arg), k.value) for k in call.keywords)]:
        if key in settings:
            raise BadInput(f"{name}{arguments} sets {key} twice; give each setting once")
        settings[key] = _literal(name, key, value)
    return settings


def _literal(name: str, key: str, value: ast.expr) -> Any:
    if isinstance(value, ast.Name):
        return value.id
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise BadInput(
            f"{name}.{key} = {ast.unparse(value)} is not possible; it must be a number, a word or a list of them"
        ) from None
