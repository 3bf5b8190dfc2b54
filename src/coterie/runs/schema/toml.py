"""TOML in and out of an experiment: exact on the way out, one sentence with file and line on the way in."""

from __future__ import annotations

import math
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from coterie.catalogue import Setting, plain
from coterie.errors import BadInput


def load(source: Path | str) -> dict[str, Any]:
    """Load the tables of a TOML file, or of a TOML text (a string that spans lines or does not end in .toml).

    Raises:
        BadInput: the file cannot be read, or is no TOML; with the line.
    """
    if isinstance(source, str) and ("\n" in source or not source.endswith(".toml")):
        return _parse(source, "the experiment")
    return _parse(_read(Path(source)), str(source))


_LONGEST = 1 << 20
"""Characters of an experiment file; the longest that people write has some thousands."""

_NAME = r"""(?:[\w-]+|"[^"\n]{0,200}"|'[^'\n]{0,200}')"""
_DEEPEST = re.compile(rf"(?<![\w-])(?:{_NAME}[ \t]*\.[ \t]*){{100}}|(?:[\[{{]\s*){{100}}")
"""Names with a hundred dots, or a hundred brackets in a row: a parser takes minutes, or all of its stack."""


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise BadInput(f"experiment file {str(path)!r} is not a file; name a file")
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(
            f"experiment file {str(path)!r} does not exist; write one with: coterie new {path}"
        ) from None
    except UnicodeDecodeError:
        raise BadInput(f"experiment file {str(path)!r} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise BadInput(f"experiment file {str(path)!r} cannot be read: {error.strerror}; name a file") from None


def _parse(text: str, where: str) -> dict[str, Any]:
    if len(text) > _LONGEST:
        raise BadInput(f"{where} has {len(text):,} characters; an experiment has at most {_LONGEST:,}")
    too_deep = BadInput(f"{where} is nested too deeply; use fewer levels")
    if _DEEPEST.search(text):
        raise too_deep
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    except ValueError as error:
        if not isinstance(error, tomllib.TOMLDecodeError):  # Python reads no whole number of so many digits
            raise BadInput(f"{where} has a number of more than 4,300 digits; write a smaller one") from None
        reason, line = str(error), max(len(text.splitlines()), 1)
        if place := re.search(r" \(at line (\d+), column \d+\)$", reason):
            reason, line = reason[: place.start()], int(place[1])
        reason = reason.removesuffix(" (at end of document)")
        raise BadInput(f"{where}, line {line}: no valid TOML; {reason[:1].lower()}{reason[1:]}") from None


def value_of(text: str) -> Any:
    """Parse what stands right of `key=` on a command line: a TOML value, or else the text itself.

    `inf` is such a text: no setting is an infinite number, and some take the word.
    """
    if len(text) > _LONGEST or _DEEPEST.search(text):
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # of numbers with thousands of digits, too
        return text
    if list(table) != ["value"]:
        return text
    value = table["value"]
    return text if isinstance(value, float) and not math.isfinite(value) else value


def dump(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the tables as TOML, one key a line."""
    parts = ["\n".join([f"[{name}]", *[_line(k, v) for k, v in table.items()]]) for name, table in tables.items()]
    return "\n\n".join(parts) + "\n"


def dump_commented(tables: Mapping[str, Mapping[str, Any]], known: Mapping[str, Iterable[Setting]]) -> str:
    """Write the tables as TOML, each known setting with its meaning and default; an unset one is a comment."""
    parts = []
    for name, settings in known.items():
        lines = [f"[{name}]"]
        for setting in settings:
            value = tables[name].get(setting.name)
            default = "" if setting.required or setting.default is None else literal(plain(setting.default))
            meaning = setting.meaning + (f" (default {default})" if default else "")
            lines += [f"# {line}" for line in textwrap.wrap(meaning, 100)]
            lines.append(f"# {setting.name} =" if value is None else _line(setting.name, value))
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def literal(value: Any) -> str:
    """Write one value as TOML, on one line."""
    if isinstance(value, tuple):
        return f"[{', '.join(literal(v) for v in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(_line(k, v) for k, v in value.items()) + "}"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").removesuffix("\n")


def _line(key: str, value: Any) -> str:
    bare = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else literal(key)
    return f"{bare} = {literal(value)}"


def comment(sentences: Iterable[str]) -> str:
    """Return sentences as comments, wrapped; what does not print is a question mark."""
    printable = ("".join(sign if sign.isprintable() else "?" for sign in sentence) for sentence in sentences)
    lines = (line for sentence in printable for line in textwrap.wrap(sentence, 110, subsequent_indent="  "))
    return "".join(f"# {line}\n" for line in lines)
