"""The picture of a run's groups: sketches of the models that clients had last, and how far these are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from coterie.grouping.affinity import gram_coordinates, pairwise_distances
from coterie.methods.exchange import Ids
from coterie.methods.method import Affinity
from coterie.runs.folder.picture import Picture
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult
from coterie.runtime.states import ClientStates
from coterie.runtime.tensor_file import Stacked
from coterie.runtime.threads import one_thread

if TYPE_CHECKING:
    from coterie.runs.session import Session

MAX_PICTURED = 1000
"""Clients in the picture, at most."""

MAX_SKETCHED = 10_000
"""Clients whose sketches are kept, at most; evenly chosen from all."""

LARGEST = 1e15
"""Largest number of a sketch that is drawn: its square is still one of float32, which the picture is kept in."""

SKETCH = "sketch"
"""The name under which a client's sketch is kept."""


class ModelSketches(Hook):
    """Keeps the latest sketch of the model of each of some clients, and draws them when the run has ended."""

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        n = run.server.n
        self._chosen = np.linspace(0, n - 1, min(n, MAX_SKETCHED)).astype(np.int64)
        self._sketches = ClientStates(n)

    def round_ended(self, result: RoundResult) -> None:
        for clients, sketches in self.run.runtime.model_sketches:  # exchange by exchange; the last one counts
            for i in np.flatnonzero(np.isin(clients, self._chosen)).tolist():
                self._sketches.update(int(clients[i]), {SKETCH: sketches[i]})
        self._sketches.commit()

    def to_checkpoint(self) -> Mapping[str, Any]:
        clients, sketches = self._sketches.rows(SKETCH)
        return {"sketches": Stacked(sketches), "sketched": np.array(clients, np.int64)}

    def restore(self, memory: Mapping[str, Any]) -> None:
        sketched = torch.from_numpy(memory["sketched"])
        self._sketches.restore({SKETCH: memory["sketches"]}, {SKETCH: sketched})

    def run_ended(self) -> Sequence[str]:
        if self.run.folder is not None and (picture := self.draw()) is not None:
            self.run.folder.write_picture(picture)
        return ()

    def draw(self) -> Picture | None:
        """Draw how far apart the clients are, and their groups; None before anybody sent a model that can be drawn.

        Clients whose models are too large for that are left out, and the picture says how many.
        """
        groups = self.run.groups
        sketched, sketches = self._sketches.rows(SKETCH)
        sound = [i for i in range(len(sketched)) if bool((sketches[i].abs() <= LARGEST).all())]
        if groups is None or not sound:
            return None
        chosen = [sound[i] for i in np.linspace(0, len(sound) - 1, min(len(sound), MAX_PICTURED)).astype(int)]
        clients = np.array(sketched, np.int64)[chosen]
        with one_thread(blas=True):
            coordinates = gram_coordinates(torch.stack([sketches[i] for i in chosen]))
            affinity = self._find_affinity(clients)
        plane = np.zeros((len(clients), 2))
        plane[:, : coordinates.shape[1]] = coordinates[:, :2]
        if affinity is None:
            affinity = Affinity("distance of last sent models (sketched)", pairwise_distances(coordinates))
        left_out = len(sketched) - len(sound)
        name = f"{affinity.name}; too large to draw: {left_out} left out" if left_out else affinity.name
        return Picture(affinity.matrix, name, groups[clients], plane, clients, self.run.done)

    def _find_affinity(self, clients: Ids) -> Affinity | None:
        """Return what the method knows of the distances; None where its numbers are too large to compute with.

        Nobody's models may end a run for the sake of its picture.
        """
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                found = self.run.method.affinity(self.run.state, self.run.server, clients)
                if found is not None and np.isinf(np.asarray(found.matrix, np.float32)).any():
                    return None
        except (ArithmeticError, np.linalg.LinAlgError):
            return None
        return found
