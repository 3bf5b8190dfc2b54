"""Tables in JSON that a reader of a change can follow: one line a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def write_rows(table: Mapping[str, Any], depths: Mapping[str, int]) -> str:
    """Write a table as JSON, a line for each of its keys.

    Args:
        table: what is written; numbers must be finite.
        depths: for keys whose value has lines of its own, how many levels of it are broken: 1 gives a line to each
            entry, 2 one to each entry of these.
    """
    lines = [f"{_write(key)}: {_write_lines(value, depths.get(key, 0), ' ')}" for key, value in table.items()]
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def _write_lines(value: Any, depth: int, indent: str) -> str:
    if not depth or not value or not isinstance(value, Mapping | list | tuple):
        return _write(value)
    inner = f"{indent} "
    if isinstance(value, Mapping):
        lines = [f"{_write(key)}: {_write_lines(entry, depth - 1, inner)}" for key, entry in value.items()]
        return f"{{\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}}}"
    lines = [_write_lines(entry, depth - 1, inner) for entry in value]
    return f"[\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}]"


def _write(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
