"""The picture of a run's groups, and its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.runs.folder.files import decode_arrays, encode_arrays

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

    def encode(self) -> bytes:
        """The picture as an NPZ file."""
        narrow = {"f": np.float32, "i": np.int32}
        arrays = {name: np.asarray(value) for name, value in vars(self).items()}
        return encode_arrays(
            {name: array.astype(narrow.get(array.dtype.kind, array.dtype)) for name, array in arrays.items()}
        )

    @classmethod
    def decode(cls, path: Path) -> Picture:
        """The picture in an NPZ file.

        Raises:
            BadInput: the file is damaged.
        """

        def read(kept: Mapping[str, Any]) -> Picture:
            arrays = {name: kept[name] for name in ("affinity", "groups", "coordinates", "clients")}
            return cls(affinity_name=str(kept["affinity_name"]), round=int(kept["round"]), **arrays)

        return decode_arrays(path, read)
