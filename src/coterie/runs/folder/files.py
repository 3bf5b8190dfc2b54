"""Files of a run folder: each appears whole or not at all, none is a link, and a damaged one is named."""

from __future__ import annotations

import json
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.clients.open_files import replace_whole
from coterie.errors import BadInput

T = TypeVar("T")

MOST_BYTES = 2**32
"""The largest file of a run that is read; a table of rounds has some hundred bytes a round."""

MOST_TEXT = 2**26
"""The largest JSON or TOML file of a run that is read."""


def write_whole(path: Path, data: bytes, *, lasting: bool = True, private: bool = False) -> None:
    """Write a file so that it appears whole or not at all (`coterie.clients.open_files.replace_whole`)."""
    with replace_whole(path, lasting=lasting, private=private) as file:
        file.write(data)


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a regular file. A pipe, which may never end, a device or a file of more bytes than `most` is not read.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read, or is not such a file.
    """
    flags = (
        os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )  # a pipe would wait for a writer
    with os.fdopen(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is no regular file")
        if found.st_size > most:
            raise OSError(f"it has {found.st_size:,} bytes, and at most {most:,} are read")
        return file.read()


def refuse_links(folder: Path, entries: Iterable[Path] | None = None) -> None:
    """Refuse a folder in which a link leads out of it, at any depth: what is read, written or removed is elsewhere.

    The folder itself may be a link, and may lie behind one. W&B keeps links to its logs in a folder of its own,
    which may be no such link, but is not looked into.

    Args:
        folder: one that Coterie writes into.
        entries: what of it is looked at; None for everything.

    Raises:
        BadInput: there is such a link.
    """
    home = os.path.realpath(folder)
    for entry in folder.iterdir() if entries is None else entries:
        for path in chain([entry], _find_below(entry)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
                raise BadInput(
                    f"{path} is a link that leads out of {folder}, and is not followed; remove it, or put what it "
                    "leads to in its place"
                )


def _find_below(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder at any depth, without what is in a folder of W&B."""
    for place, folders, files in os.walk(folder):
        if Path(place).name == "wandb":
            folders.clear()
        else:
            yield from (Path(place, name) for name in chain(folders, files))


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Encode a mapping as JSON that people can read."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any] | None:
    """Read the mapping in a JSON file; None where there is no such file.

    Raises:
        BadInput: the file cannot be read or holds something else.
    """
    try:
        with naming_damage(path):
            value = json.loads(read_file(path, MOST_TEXT).decode(), parse_constant=_refuse_constant)
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
            if not isinstance(value, dict):
                raise ValueError("it holds no JSON object")
            return value
    except FileNotFoundError:
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def encode_arrays(arrays: Mapping[str, Any]) -> bytes:
    """Encode arrays as an NPZ file."""
    buffer, kept = BytesIO(), dict[str, Any](arrays)
    np.savez_compressed(buffer, **kept)
    return buffer.getvalue()


def decode_arrays(path: Path, read: Callable[[Mapping[str, NDArray[Any]]], T]) -> T:
    """Return what `read` makes of the arrays in an NPZ file.

    Raises:
        BadInput: the file is damaged, or lacks an array.
    """
    # Of the bytes: NumPy leaves a file open that it cannot read.
    with naming_damage(path), np.load(BytesIO(read_file(path)), allow_pickle=False) as kept:
        return read(dict(kept))


_DAMAGE = (ValueError, KeyError, TypeError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What readers of Python and NumPy raise over damaged files."""


@contextmanager
def naming_damage(path: Path, *further: type[BaseException]) -> Iterator[None]:
    """Read a file in the block; what is wrong with it is said of `path`. `further` is what other readers raise.

    Raises:
        FileNotFoundError: there is no such file.
        BadInput: it is damaged.
    """
    kinds: tuple[type[BaseException], ...] = (*_DAMAGE, *further)
    try:
        yield
    except FileNotFoundError:
        raise
    except kinds as error:
        raise damaged_file(path, error) from None


def damaged_file(path: Path, error: BaseException) -> BadInput:
    """Return the error for a file that cannot be read, in one sentence."""
    reason = str(error).split("\n", 1)[0]
    return BadInput(f"{path} is damaged ({reason}); {_REMEDY}")


def missing_file(path: Path, reason: str) -> BadInput:
    """Return the error for a file that somebody has removed, in one sentence."""
    return BadInput(f"{path} is missing ({reason}); {_REMEDY}")


_REMEDY = "restore it, or remove the run's folder and repeat the run"
