"""The picture of a run's groups: sketches of the models that clients had last, and how far these are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.grouping.affinity import gram_coordinates, pairwise_distances
from coterie.methods.exchange import Ids
from coterie.methods.method import Affinity
from coterie.runs.folder.picture import Picture
from coterie.runtime.states import ClientStates
from coterie.runtime.tensor_file import Stacked
from coterie.runtime.threads import one_thread

MAX_PICTURED = 1000
"""Clients in the picture, at most."""

MAX_SKETCHED = 10_000
"""Clients whose sketches are kept, at most; evenly chosen from all."""

LARGEST = 1e15
"""Largest number of a sketch that is drawn: its square is still one of float32, which the picture is kept in."""

SKETCH = "sketch"
"""The name under which a client's sketch is kept."""


class ModelSketches:
    """The latest sketch of the model of each of some clients."""

    def __init__(self, clients: int) -> None:
        self._chosen = np.linspace(0, clients - 1, min(clients, MAX_SKETCHED)).astype(np.int64)
        self._sketches = ClientStates(clients)

    def update(self, sketched: Iterable[tuple[Ids, Tensor]]) -> None:
        """Keep the sketches `[m, width]` of some clients `[m]`, exchange by exchange; the last one counts."""
        for clients, sketches in sketched:
            for i in np.flatnonzero(np.isin(clients, self._chosen)).tolist():
                self._sketches.update(int(clients[i]), {SKETCH: sketches[i]})
        self._sketches.commit()

    def to_checkpoint(self) -> dict[str, Any]:
        """Return the sketches `[r, width]` and whose they are `[r]`."""
        clients, sketches = self._sketches.rows(SKETCH)
        return {"sketches": Stacked(sketches), "sketched": np.array(clients, np.int64)}

    def restore(self, sketches: Tensor, sketched: NDArray[Any]) -> None:
        """Keep what `to_checkpoint` gave, and nothing else."""
        self._sketches.restore({SKETCH: sketches}, {SKETCH: torch.from_numpy(sketched)})

    def draw(
        self, groups: NDArray[np.int64], round: int, affinity_of: Callable[[Ids], Affinity | None]
    ) -> Picture | None:
        """Draw how far apart the clients are, and their groups; None before anybody sent a model that can be drawn.

        Clients whose models are too large for that are left out, and the picture says how many.

        Args:
            groups: of all clients `[n]`.
            round: the last one.
            affinity_of: what the method knows of the distances of some clients; None for those of the sketches.
        """
        sketched, sketches = self._sketches.rows(SKETCH)
        sound = [i for i in range(len(sketched)) if bool((sketches[i].abs() <= LARGEST).all())]
        if not sound:
            return None
        chosen = [sound[i] for i in np.linspace(0, len(sound) - 1, min(len(sound), MAX_PICTURED)).astype(int)]
        clients = np.array(sketched, np.int64)[chosen]
        with one_thread(blas=True):
            coordinates = gram_coordinates(torch.stack([sketches[i] for i in chosen]))
            affinity = _affinity(affinity_of, clients)
        plane = np.zeros((len(clients), 2))
        plane[:, : coordinates.shape[1]] = coordinates[:, :2]
        if affinity is None:
            affinity = Affinity("distance of last sent models (sketched)", pairwise_distances(coordinates))
        left_out = len(sketched) - len(sound)
        name = f"{affinity.name}; too large to draw: {left_out} left out" if left_out else affinity.name
        return Picture(affinity.matrix, name, groups[clients], plane, clients, round)


def _affinity(affinity_of: Callable[[Ids], Affinity | None], clients: Ids) -> Affinity | None:
    """What a method knows of the distances; None where its numbers are too large to be computed with.

    Nobody's models may end a run for the sake of its picture.
    """
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            found = affinity_of(clients)
            if found is not None and np.isinf(np.asarray(found.matrix, np.float32)).any():
                return None
    except (ArithmeticError, np.linalg.LinAlgError):
        return None
    return found
