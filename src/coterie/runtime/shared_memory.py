"""Memory that several processes share: files, mapped by all of them, in which tensors have places.

On Linux such a file has no name: others find it through the process that made it, and it is gone with the last
process that maps it, however that ends. Elsewhere it is a temporary file with a name.
"""

from __future__ import annotations

import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.clients.data.read import storage
from coterie.clients.open_files import remove_when_unmapped
from coterie.errors import BadInput
from coterie.models.layout import BYTES_PER_SCALAR
from coterie.runtime.leftovers import remove_half_written

FOLDERS = (Path("/dev/shm"), Path(tempfile.gettempdir()))
"""Where a file with a name may be, the best place first."""
NAMELESS = sys.platform == "linux"
"""Whether files need no names."""

Paths = Mapping[int, tuple[str, int]]
"""Where pieces of memory are found, and how many scalars each has, by number."""


class Place(NamedTuple):
    """Where a float32 tensor lies: in which piece of memory, and from which scalar on."""

    piece: int
    offset: int
    shape: tuple[int, ...]

    def view(self, memory: Tensor) -> Tensor:
        """Return the tensor, given its piece of memory."""
        return memory[self.offset : self.offset + torch.Size(self.shape).numel()].view(self.shape)


@dataclass(frozen=True)
class _Piece:
    path: str
    handle: int | None
    """Of a file without a name, which it keeps there."""
    address: int
    scalars: int


class Arena:
    """The pieces of memory that one process shares with others."""

    def __init__(self) -> None:
        self._numbers = count()
        self._pieces: dict[int, _Piece] = {}
        self._spare: dict[int, Tensor] = {}
        self._open = True
        if not NAMELESS:  # where a process maps its files to its end, the next one removes them
            for folder in (FOLDERS[-1], storage.folder()):
                remove_half_written(folder, may_be_mine=True)
        weakref.finalize(self, _clean, self._pieces, os.getpid())

    def block(self, scalars: int, folder: Path | None = None) -> Tensor:
        """Allocate memory `[scalars]`; it is freed with the last tensor that is a view of it.

        Args:
            scalars: how many float32 numbers.
            folder: of the disk that shall hold it; without one it lies in memory where that is possible.

        Raises:
            BadInput: there is no room.
        """
        number, whole = self._make(scalars, folder)
        return _watch(whole, scalars, lambda: self._forget(number))

    def lease(self, scalars: int) -> Tensor:
        """Lease memory `[scalars]`, not cleared, until the last tensor that is a view of it has gone.

        Then it is leased again, which is faster: of new memory the system has to find and clear every page.

        Raises:
            BadInput: there is no room.
        """
        fitting = [(len(whole), number) for number, whole in self._spare.items() if scalars <= len(whole)]
        if fitting and min(fitting)[0] <= 2 * scalars:
            number = min(fitting)[1]
            whole = self._spare.pop(number)
        else:
            self._drop_spare()
            number, whole = self._make(scalars, None)
        return _watch(whole, scalars, lambda: self._return(number, whole))

    def place(self, values: Tensor) -> Place | None:
        """Return where `values` lie; None where they lie in no piece, or with gaps."""
        if not values.is_contiguous():
            return None
        if not values.numel():  # which has no address
            return next((Place(number, 0, tuple(values.shape)) for number in self._pieces), None)
        start = values.data_ptr()
        for number, piece in self._pieces.items():
            offset, beyond = divmod(start - piece.address, BYTES_PER_SCALAR)
            if offset >= 0 and offset + values.numel() <= piece.scalars and not beyond:
                return Place(number, offset, tuple(values.shape))
        return None

    def paths(self) -> Paths:
        """Return where every piece is found."""
        return {number: (piece.path, piece.scalars) for number, piece in self._pieces.items()}

    def close(self) -> None:
        """Unlink all pieces. Processes that have mapped one keep their mapping."""
        self._open = False
        self._spare.clear()
        _clean(self._pieces, os.getpid())

    def _make(self, scalars: int, folder: Path | None) -> tuple[int, Tensor]:
        scalars = max(scalars, 1)
        path, handle = make_file(scalars, folder)
        whole = map_file(path, scalars)
        number = next(self._numbers)
        self._pieces[number] = _Piece(path, handle, whole.data_ptr(), scalars)
        return number, whole

    def _return(self, number: int, whole: Tensor) -> None:
        if self._open:
            self._spare[number] = whole

    def _drop_spare(self) -> None:
        for number in list(self._spare):
            del self._spare[number]
            self._forget(number)

    def _forget(self, number: int) -> None:
        if number in self._pieces:
            _remove(self._pieces.pop(number))


def _watch(whole: Tensor, scalars: int, gone: Callable[[], None]) -> Tensor:
    """Return the first `scalars` of a piece; `gone` is called when neither they nor any view of them is left."""
    array = whole.numpy()[:scalars]  # tensors and arrays made of it hold this very object
    weakref.finalize(array, gone).atexit = False
    return torch.from_numpy(array)


def _clean(pieces: dict[int, _Piece], owner: int) -> None:
    if os.getpid() == owner:  # not in a process that was forked
        while pieces:
            _remove(pieces.popitem()[1])


def _remove(piece: _Piece) -> None:
    if piece.handle is None:
        remove_when_unmapped(Path(piece.path))
    else:
        os.close(piece.handle)


def make_file(scalars: int, folder: Path | None = None) -> tuple[str, int | None]:
    """Make a file with room for `scalars`; return its path, and the open file where it has no name.

    On a disk all blocks are allocated at once. A process that touched a hole of a sparse file when the disk is full
    would be killed.

    Raises:
        BadInput: there is no room.
    """
    if sys.platform == "linux" and NAMELESS and folder is None:
        handle = os.memfd_create("coterie")
        os.ftruncate(handle, scalars * BYTES_PER_SCALAR)
        return _path(handle), handle
    folders = FOLDERS if folder is None else (folder,)
    for place in folders:
        try:
            handle, name = tempfile.mkstemp(prefix=f".coterie-{os.getpid()}-", dir=place)
        except OSError:
            continue
        if NAMELESS:
            Path(name).unlink()
        try:
            _take(handle, scalars * BYTES_PER_SCALAR)
        except OSError:
            os.close(handle)
            Path(name).unlink(missing_ok=True)
            continue
        if NAMELESS:
            return _path(handle), handle
        os.close(handle)
        return name, None
    size = f"{scalars * BYTES_PER_SCALAR / 1e6:,.1f} MB"
    raise BadInput(
        f"the models of one exchange need {size} of shared memory, and neither {FOLDERS[0]} nor {FOLDERS[1]} has "
        "room for them; make room, or set run.workers = 1 and no run.client_timeout"
        if folder is None
        else f"the clients' states need {size} more in {folder}, which has no room for them; make room, or raise "
        "scale.states_mb until the states stay in memory"
    )


def map_file(path: str, scalars: int) -> Tensor:
    """Map a file into memory `[scalars]`.

    Raises:
        BadInput: the process has no such room left.
    """
    try:
        return torch.from_file(path, shared=True, size=scalars)
    except RuntimeError as error:
        size = f"{scalars * BYTES_PER_SCALAR / 1e6:,.1f} MB"
        raise BadInput(
            f"models need {size} at once, more than this process may have; free memory, lower run.participation so "
            "that fewer clients are asked in a round, or take a smaller network"
        ) from error


def _path(handle: int) -> str:
    return f"/proc/{os.getpid()}/fd/{handle}"


def _take(handle: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.truncate(handle, size)
