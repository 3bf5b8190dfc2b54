"""Files of a run folder: each appears whole or not at all, and a damaged one is named."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from coterie.clients.open_files import put_in_place
from coterie.errors import BadInput


def write_whole(path: Path, data: bytes, *, lasting: bool = True, mode: int = 0o666) -> None:
    """Write a file so that it appears whole or not at all; who may read it, `mode` says as for `os.open`.

    A `lasting` file survives a power cut after this returns. Any other file may then be empty, or as it was before;
    writing it does not wait for the disk.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with open(fresh, "wb", opener=partial(os.open, mode=mode)) as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        put_in_place(fresh, path, lasting=lasting)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Encode a mapping as JSON that people can read."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any] | None:
    """Read the mapping in a JSON file; None where there is no such file.

    Raises:
        BadInput: the file cannot be read or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise damaged_file(path, error) from None
    if not isinstance(value, dict):
        raise damaged_file(path, ValueError("it holds no JSON object"))
    return value


def damaged_file(path: Path, error: Exception) -> BadInput:
    """Return the error for a file that cannot be read, in one sentence."""
    reason = str(error).split("\n", 1)[0]
    return BadInput(f"{path} is damaged ({reason}); {_REMEDY}")


def missing_file(path: Path, reason: str) -> BadInput:
    """Return the error for a file that somebody has removed, in one sentence."""
    return BadInput(f"{path} is missing ({reason}); {_REMEDY}")


_REMEDY = "restore it, or remove its folder and run it again"
