"""Who the clients are, as whoever runs a method knows them: counts and names, no sample of anybody's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.data.federation import Federation
from coterie.clients.data.read.preparation import AS_READ, Column, Preparation
from coterie.clients.tasks import CLASSIFICATION, Task


@dataclass(frozen=True)
class ClientInfo:
    """What a client tells of itself and of its data; no sample is in it."""

    name: str
    sizes: tuple[int, int, int]
    """Training, validation and test samples."""
    features: tuple[int, ...]
    """Shape of one sample."""
    classes: int
    digest: str
    """Of all its samples."""
    outputs: int = 0
    """Numbers that a network gives for a prediction; as many as there are classes unless given."""
    columns: tuple[Column, ...] = ()
    """Of its table, told before the clients agree on them; a column of text has only values that it may tell."""
    sums: tuple[tuple[float, ...], ...] = ()
    """Count, sum and sum of squares of each channel of its training samples, told where all are scaled alike."""

    def __post_init__(self) -> None:
        if not self.outputs:
            object.__setattr__(self, "outputs", self.classes)


@dataclass(frozen=True)
class RemotePopulation:
    """The clients of a real federation, known by what they told; their data are elsewhere."""

    name: str
    clients: tuple[ClientInfo, ...]
    """At least one; all hold samples of one shape and the same classes."""
    public: Tensor | None = None
    task: Task = CLASSIFICATION
    preparation: Preparation = AS_READ
    """How every client makes inputs, as far as they agreed on it."""
    true_groups = None
    few_shot = None
    histograms = None
    notes = ()
    augment = None

    @property
    def features(self) -> tuple[int, ...]:
        return self.clients[0].features

    @property
    def classes(self) -> int:
        return self.clients[0].classes

    @property
    def outputs(self) -> int:
        return self.clients[0].outputs

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(client.name for client in self.clients)

    @property
    def n(self) -> int:
        return len(self.clients)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Training, validation and test samples `[n, 3]`."""
        return np.array([client.sizes for client in self.clients], np.int64)

    @property
    def bounds(self) -> NDArray[np.int64]:
        sizes = self.sizes
        ends = np.cumsum(sizes).reshape(sizes.shape)
        return np.column_stack([ends[:, 0] - sizes[:, 0], ends]).astype(np.int64)

    @property
    def samples(self) -> NDArray[np.int64]:
        return self.sizes[:, 0]

    @property
    def test_samples(self) -> NDArray[np.int64]:
        return self.sizes[:, 2]

    @property
    def fingerprint(self) -> str:
        """The digests of the clients and of the public inputs, in one."""
        digest = blake2b(" ".join(client.digest for client in self.clients).encode(), digest_size=16)
        if self.public is not None:
            digest.update(self.public.contiguous().numpy().data)
        return digest.hexdigest()

    def to_numbers(self, stored: Tensor) -> Tensor:
        """Return public samples, which are numbers or tokens, as they are."""
        return stored

    def reordered(self, clients: NDArray[np.int64]) -> RemotePopulation:
        """Return only `clients`, numbered 0, 1, … in the order given."""
        return replace(self, clients=tuple(self.clients[i] for i in clients))


Population = Federation | RemotePopulation
"""Clients as whoever runs a method knows them; `bounds` matter only by their differences."""
