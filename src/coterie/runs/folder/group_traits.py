"""What tells the groups of a run apart besides labels, and its file: layers of models, means of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.runs.folder.files import decode_arrays, encode_arrays

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LayerDistances:
    """How far apart the models are that clients sent in the last round, layer by layer."""

    layers: tuple[str, ...]
    """In forward order."""
    ratio: Floats
    """`[L]`: the distance of two clients of different groups over that of two of one group, both as root mean
    squares over all pairs; NaN for a layer that clients do not send, or that nobody has changed."""
    clients: int
    """How many sent a model and have a group."""


@dataclass(frozen=True, eq=False)
class InputMeans:
    """The mean training input of each group: every client counts alike, its samples are averaged first."""

    groups: NDArray[np.int64]
    """The groups that are described `[K]`, numbered as in all tables."""
    kind: Literal["images", "features"]
    means: Floats
    """`[K + 1, F]` by feature, the last row of all clients; of images, `[K + 1, height, width, channels]` bytes."""
    names: tuple[str, ...]
    """Of the features `[F]`; none for images."""
    deviation: Floats
    """Of each feature over the samples of all clients `[F]`; `[0]` for images."""
    apart: float
    """The share of the differences between clients' means that is one between groups."""
    chance: float
    """The same where clients are dealt to groups of these sizes by chance, the mean of many deals."""
    p: float
    """How often chance does as much, the deal at hand counted as one; NaN where no group has two clients."""


P = TypeVar("P", LayerDistances, InputMeans)


@dataclass(frozen=True, eq=False)
class GroupTraits:
    """What the end of a run knows of its groups."""

    round: int
    layers: LayerDistances | None = None
    inputs: InputMeans | None = None

    def encode(self) -> bytes:
        """Return the traits as an NPZ file."""
        kept: dict[str, Any] = {"round": np.asarray(self.round)}
        for part, of in (("layers", self.layers), ("inputs", self.inputs)):
            if of is not None:
                kept |= {f"{part}.{field.name}": np.asarray(getattr(of, field.name)) for field in fields(of)}
        if self.inputs is not None and self.inputs.kind == "images":
            kept["inputs.means"] = np.asarray(self.inputs.means, np.uint8)
        return encode_arrays(kept)

    @classmethod
    def decode(cls, path: Path) -> GroupTraits:
        """Read the traits from an NPZ file.

        Raises:
            BadInput: the file is damaged.
        """

        def read(kept: Mapping[str, Any]) -> GroupTraits:
            inputs = _read_part(kept, "inputs", InputMeans)
            if inputs is not None:
                inputs = replace(inputs, means=inputs.means.astype(np.float64))
                named = len(inputs.names) if inputs.kind == "features" else inputs.means[0].shape[-1]
                if len(inputs.means) != len(inputs.groups) + 1 or inputs.means.shape[-1] != named:
                    raise ValueError("its arrays do not fit each other")
            return cls(int(kept["round"]), _read_part(kept, "layers", LayerDistances), inputs)

        return decode_arrays(path, read)


def _read_part(kept: Mapping[str, Any], name: str, kind: type[P]) -> P | None:
    """Return a part of the traits whose fields are arrays, tuples or single values; None where it was not kept."""
    if not any(key.startswith(f"{name}.") for key in kept):
        return None
    values: dict[str, Any] = {}
    for field in fields(kind):
        array = kept[f"{name}.{field.name}"]
        is_tuple = str(field.type).startswith("tuple")
        values[field.name] = tuple(array.tolist()) if is_tuple else array if array.ndim else array.item()
    return kind(**values)
