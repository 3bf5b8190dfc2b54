"""What tells the groups of a run apart besides labels, and its file: layers of models, means of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

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
            found = cls(int(kept["round"]), _read_layers(kept), _read_inputs(kept))
            if not found.is_whole:
                raise ValueError("its arrays do not fit each other")
            return found

        return decode_arrays(path, read)

    @property
    def is_whole(self) -> bool:
        """Whether the arrays fit each other."""
        layers, inputs = self.layers, self.inputs
        if layers is not None and layers.ratio.shape != (len(layers.layers),):
            return False
        if inputs is None:
            return True
        rows = len(inputs.groups) + 1
        if inputs.kind == "images":
            return inputs.means.ndim == 4 and len(inputs.means) == rows
        return inputs.means.shape == (rows, len(inputs.names)) and inputs.deviation.shape == (len(inputs.names),)


def _read_layers(kept: Any) -> LayerDistances | None:
    if "layers.layers" not in kept:
        return None
    return LayerDistances(tuple(kept["layers.layers"].tolist()), kept["layers.ratio"], int(kept["layers.clients"]))


def _read_inputs(kept: Any) -> InputMeans | None:
    if "inputs.kind" not in kept:
        return None
    kind = str(kept["inputs.kind"])
    if kind not in ("images", "features"):
        raise ValueError(f"inputs.kind = {kind!r}")
    return InputMeans(
        kept["inputs.groups"],
        "images" if kind == "images" else "features",
        kept["inputs.means"].astype(np.float64),
        tuple(kept["inputs.names"].tolist()),
        kept["inputs.deviation"],
        float(kept["inputs.apart"]),
        float(kept["inputs.chance"]),
        float(kept["inputs.p"]),
    )
