"""Where the samples lie: in memory, or, where they take more than a limit, in a file that is mapped into memory.

Such a file is written once, by the process that divides the data. All workers map it, and the system reads those of
its pages that are looked at, and drops them again when memory runs short. On Linux it has no name, and is gone with
the last process that maps it, however that ends. Elsewhere it has one, and is removed when the process ends.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from coterie.clients.open_files import remove_when_unmapped
from coterie.errors import BadInput

MEGABYTE = 1_000_000
MEMORY_MB = 4_000
"""Megabytes that one array of samples may take in memory, unless somebody says another number."""
BLOCK_BYTES = 1 << 23
"""Bytes of samples that are looked at, copied or converted at once."""

_limit: ContextVar[float] = ContextVar("memory of samples", default=MEMORY_MB * MEGABYTE)


@contextmanager
def memory_limit(megabytes: float) -> Iterator[None]:
    """Let arrays that `allocate` makes meanwhile lie in memory up to so many megabytes each."""
    token = _limit.set(megabytes * MEGABYTE)
    try:
        yield
    finally:
        _limit.reset(token)


def is_large(size: int) -> bool:
    """Return whether samples of so many bytes are not to lie in memory."""
    return size > _limit.get()


@dataclass(frozen=True)
class MappedFile:
    """A file that samples are mapped from; another process of this machine can open it."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    folder: str
    """Where it lies, for a reader: a file without a name has no path to be shown."""

    def open(self) -> NDArray[Any]:
        """Map it, `shape`, to be read and written.

        Raises:
            BadInput: it is no longer there, or this is another machine.
        """
        try:
            return np.asarray(np.memmap(self.path, self.dtype, "r+", shape=self.shape))
        except (OSError, ValueError):
            raise BadInput(
                f"this process cannot open the file of samples in {self.folder}; run all processes on one machine, "
                "or raise scale.data_mb until the samples stay in memory"
            ) from None


_files: weakref.WeakKeyDictionary[mmap.mmap, MappedFile] = weakref.WeakKeyDictionary()
"""The files that `allocate` made, by their mappings."""


def file_of(values: NDArray[Any]) -> MappedFile | None:
    """Return the file that an array of `allocate` is mapped from, as a whole; None where it is in memory."""
    mapping = _mapping(values)
    return None if mapping is None else _files.get(mapping)


def is_mapped(values: NDArray[Any]) -> bool:
    """Return whether an array, or what it is a view of, is mapped from any file."""
    return _mapping(values) is not None


def _mapping(values: Any) -> mmap.mmap | None:
    while isinstance(values, np.ndarray):
        values = values.base
    return values if isinstance(values, mmap.mmap) else None


def folder() -> Path:
    """Return the folder of such files: TMPDIR, else /var/tmp, which is on a disk where /tmp may be memory."""
    usual = Path("/var/tmp")
    return Path(tempfile.gettempdir()) if os.environ.get("TMPDIR") or not usual.is_dir() else usual


def allocate(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array to be filled: in memory, or mapped where it takes more than the limit.

    Raises:
        BadInput: the disk has no room for it.
        MemoryError: memory has none.
    """
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if kind.hasobject or not size:
        return np.empty(shape, kind)
    if is_large(size):
        return _map_new(shape, kind, size)
    try:
        # PyTorch's memory begins at a line of cache and NumPy's does not, and products then take longer.
        room = torch.empty(size, dtype=torch.uint8)
    except RuntimeError:  # as PyTorch says it
        raise MemoryError(f"tried to allocate {size} bytes") from None
    return room.numpy().view(kind).reshape(shape)


def _map_new(shape: tuple[int, ...], kind: np.dtype[Any], size: int) -> NDArray[Any]:
    where, nameless = folder(), sys.platform == "linux"
    handle, name = None, ""
    try:
        handle, name = tempfile.mkstemp(prefix=f".coterie-{os.getpid()}-", dir=where)
        path = f"/proc/{os.getpid()}/fd/{handle}" if nameless else name
        # All blocks at once: a process that touched a hole of a sparse file on a full disk would be killed.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size)
        else:
            os.truncate(handle, size)
        values = np.memmap(path, kind, "r+", shape=shape)
    except OSError as error:
        if handle is not None:
            os.close(handle)
            Path(name).unlink()
        raise BadInput(
            f"samples of {size / 1e9:,.2f} GB need a file, which cannot be made in {where} ({error.strerror}); let "
            "TMPDIR name another folder, or raise scale.data_mb until they stay in memory"
        ) from None
    if nameless:
        Path(name).unlink()
    mapping = _mapping(values)
    assert mapping is not None
    _files[mapping] = MappedFile(path, kind.str, shape, str(where))
    weakref.finalize(mapping, _release, handle, None if nameless else name, os.getpid())
    return np.asarray(values)


def _release(handle: int, name: str | None, owner: int) -> None:
    if os.getpid() != owner:  # forked
        return
    os.close(handle)
    if name is not None:
        remove_when_unmapped(Path(name))


def blocks(values: NDArray[Any]) -> Iterator[slice]:
    """Yield slices of rows that follow each other, each of at most `BLOCK_BYTES`, or one row."""
    row = max(1, values[:1].nbytes)
    step = max(1, BLOCK_BYTES // row)
    for start in range(0, len(values), step):
        yield slice(start, min(start + step, len(values)))


def take(values: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows that are numbered or marked in `rows`, as a copy that `allocate` made."""
    numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
    found = allocate((len(numbers), *values.shape[1:]), values.dtype)
    for some in blocks(found):
        if values.flags.aligned:
            # All rows are there; `clip` alone writes them where they belong without a copy in between.
            np.take(values, numbers[some], axis=0, out=found[some], mode="clip")
        else:  # as an archive may hold them: `take` would copy the whole array first
            found[some] = values[numbers[some]]
    return found


def to_floats(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as 32-bit numbers in a copy that `allocate` made; what is too large becomes infinite."""
    found = allocate(values.shape, np.float32)
    with np.errstate(over="ignore"):
        for some in blocks(found):
            found[some] = values[some]
    return found


def join(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays of like rows one behind the other, in an array that `allocate` made."""
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    found = allocate(shape, np.result_type(*(part.dtype for part in parts)))
    start = 0
    for part in parts:
        for some in blocks(part):
            found[start + some.start : start + some.stop] = part[some]
        start += len(part)
    return found
