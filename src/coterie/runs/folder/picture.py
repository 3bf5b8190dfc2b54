"""The picture of a run's groups, and its file."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import BadInput
from coterie.runs.folder.files import damaged_file

IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Picture:
    """What the server saw when it last regrouped the clients."""

    affinity: FloatArray
    """`[n, n]` between clients, or `[n, K]` between clients and groups."""
    affinity_name: str
    """What the numbers are, as a reader would say it: `cosine similarity of updates`."""
    groups: IntArray
    """`[n]`, the group of each client, -1 for none."""
    coordinates: FloatArray
    """`[n, 2]`, a flat map of the clients' models (their first two principal components)."""
    clients: IntArray
    """`[n]`, the ids of the clients in the picture; they may be a part of the federation."""
    round: int

    def problems(self) -> list[str]:
        """One sentence for each array whose shape does not fit the number of clients."""
        n, found = len(self.clients), []
        if self.affinity.ndim != 2 or self.affinity.shape[0] != n:
            found.append(_misshapen("affinity", self.affinity, f"({n}, {n}) or ({n}, groups)"))
        if self.groups.shape != (n,):
            found.append(_misshapen("groups", self.groups, f"({n},)"))
        if self.coordinates.shape != (n, 2):
            found.append(_misshapen("coordinates", self.coordinates, f"({n}, 2)"))
        return found

    def encode(self) -> bytes:
        """The picture as an NPZ file.

        Raises:
            BadInput: the arrays do not agree in the number of clients.
        """
        if found := self.problems():
            raise BadInput(found)
        buffer = BytesIO()
        np.savez_compressed(
            buffer,
            affinity=np.asarray(self.affinity, np.float32),
            affinity_name=np.asarray(self.affinity_name, np.str_),
            groups=np.asarray(self.groups, np.int32),
            coordinates=np.asarray(self.coordinates, np.float32),
            clients=np.asarray(self.clients, np.int32),
            round=np.asarray(self.round, np.int32),
        )
        return buffer.getvalue()

    @classmethod
    def decode(cls, path: Path) -> Picture:
        """The picture in an NPZ file.

        Raises:
            FileNotFoundError: there is no such file.
            BadInput: the file cannot be read.
        """
        try:
            with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as kept:
                return cls(
                    kept["affinity"],
                    str(kept["affinity_name"]),
                    kept["groups"],
                    kept["coordinates"],
                    kept["clients"],
                    int(kept["round"]),
                )
        except FileNotFoundError:
            raise
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise damaged_file(path, error) from None


def _misshapen(name: str, array: npt.NDArray[Any], wanted: str) -> str:
    return f"picture.{name} has the shape {array.shape}; it must be {wanted}"
