"""Memory that several processes share: a file, mapped by all of them, in which tensors have places."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from coterie.models.layout import BYTES_PER_SCALAR
from coterie.problems import BadInput

FOLDERS = (Path("/dev/shm"), Path(tempfile.gettempdir()))
"""Where the file may be, the best place first."""


@dataclass(frozen=True)
class Place:
    """Where a float32 tensor lies in the arena."""

    offset: int
    shape: tuple[int, ...]

    def view(self, arena: Tensor) -> Tensor:
        size = torch.Size(self.shape).numel()
        return arena[self.offset : self.offset + size].view(self.shape)


def make_file(scalars: int) -> Path:
    """A new file with room for `scalars`, all of it taken now.

    A file with holes is no room: whoever touched a page that the disk no longer has would be killed.

    Raises:
        BadInput: there is no room.
    """
    size = scalars * BYTES_PER_SCALAR
    for folder in FOLDERS:
        try:
            handle, name = tempfile.mkstemp(prefix=f"coterie-{os.getpid()}-", dir=folder)
        except OSError:
            continue
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, size)
            else:
                os.truncate(handle, size)
            return Path(name)
        except OSError:
            Path(name).unlink()
        finally:
            os.close(handle)
    raise BadInput(
        f"the models of one exchange need {size / 1e6:,.1f} MB that the workers share, and neither {FOLDERS[0]} "
        f"nor {FOLDERS[1]} has room for them; make room, or set run.workers = 1 and no run.client_timeout"
    )


def mapped(file: Path | None, scalars: int) -> Tensor:
    """The file's memory `[scalars]`; nothing without a file."""
    return torch.empty(0) if file is None else torch.from_file(str(file), shared=True, size=scalars)
