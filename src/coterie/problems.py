"""Bad input, said in one sentence each: the key, the value, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError


class BadInput(ValueError):
    """What the user gave cannot be used. `problems` holds one sentence per thing that is wrong."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None where nothing is close."""
    names = list(known)
    folded = {n.lower().replace("_", "-"): n for n in names}
    close = get_close_matches(name.lower().replace("_", "-"), folded, n=1, cutoff=0.55)
    return folded[close[0]] if close else None


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """One sentence for a name nobody knows: the nearest one if there is any, else all of them."""
    names = sorted(known)
    close = nearest(name, names)
    hint = f"did you mean {close}?" if close else f"known: {', '.join(names)}" if names else "there is none yet"
    return f"{what} {name!r} is unknown; {hint}"


def sentences(error: ValidationError, prefix: str = "", known: Iterable[str] = ()) -> list[str]:
    """One sentence for each thing pydantic found, under dotted keys that start with `prefix`."""
    found: dict[str, str] = {}
    for item in error.errors(include_url=False):
        where = ".".join([p for p in (prefix, *_keys(item["loc"])) if p])
        sentence = _sentence(where, item, known)
        if where not in found:
            found[where] = sentence
        elif "; it must be " in sentence:
            # One value refused by each branch of a union is one problem, not several.
            found[where] += " or " + sentence.split("; it must be ", 1)[1]
    return list(found.values())


def _keys(loc: tuple[int | str, ...]) -> list[str]:
    """The location as the user wrote it: pydantic's markers for union branches are left out."""
    return [str(part) for part in loc if not (isinstance(part, str) and ("[" in part or part in _BRANCHES))]


_BRANCHES = {"int", "float", "str", "bool", "none"}


def _sentence(where: str, item: Any, known: Iterable[str]) -> str:
    value, kind, context = item.get("input"), item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        key = where.rsplit(".", 1)[-1]
        close = nearest(key, known)
        names = ", ".join(known)
        hint = f"did you mean {close}?" if close else (f"known: {names}" if names else "remove it")
        return f"{where} is not a setting; {hint}"
    if kind == "missing":
        return f"{where} is missing; give it a value"
    if kind == "literal_error":
        return f"{where} = {value!r} is not possible; it must be {context['expected']}"
    if kind == "value_error":
        return f"{where} = {value!r} is not possible; {str(item['msg']).removeprefix('Value error, ')}"
    message = str(item["msg"])
    if not message.startswith("Input should be "):
        message = re.sub(r"^(\w+) should ", lambda m: f"the {m[1].lower()} must ", message)
        return f"{where} = {value!r} is not possible; {message}"
    wanted = message.removeprefix("Input should be ")
    return f"{where} = {value!r} is not possible; it must be {wanted[:1].lower()}{wanted[1:]}"
