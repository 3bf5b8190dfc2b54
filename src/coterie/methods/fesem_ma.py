"""FeSEM-MA: FeSEM whose centres and distances do not depend on the order of hidden units (Long et al., 2023).

FeSEM's rounds (see `fesem.py`), but for two things:
    1. M-step: a centre is the mean of its members after their hidden units were matched, as in PFNM and FedMA.
    2. E-step: the distance of a model to a centre is the smallest over the orders of its units.
Decisions where the paper is silent, and cost: docs/methods/fesem-ma.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.grouping.affinity import gram_coordinates, pairwise_distances
from coterie.grouping.matching import align_units, average_matched, hidden_layers
from coterie.methods.exchange import Ids, Send
from coterie.methods.fesem import FeSEM, FeSEMState
from coterie.methods.method import Affinity, Cohort, ServerView
from coterie.methods.registry import METHODS, Grid


@METHODS.add("fesem-ma")
@dataclass(frozen=True)
class FeSEMMA(FeSEM):
    """FeSEM with matched averaging: hidden units are matched before models are averaged or compared (2023).

    A centre is the mean of its members after their units were matched to one another, layer after layer, as
    PFNM and FedMA do it; once an M-step, without training between layers (docs/methods/fesem-ma.md, D2). The
    E-step's distance is the smallest over the orders of units (D3). Layers keep their width, for clients are sent
    centres (D1); then the popularity of global units says nothing, and there is no gamma0 to set.

    In the warm-up clients may start from models of their own, which is where matching has something to do (D4).

    The network must be a chain of convolutions and dense layers. Traffic is that of FeSEM.
    """

    family = "clustered, hard"

    start_models: Annotated[
        Literal["common", "independent"],
        Field(description="what clients start from in the warm-up: one model, or each its own"),
    ] = "common"
    sweeps: Annotated[
        int, Field(ge=0, description="how often the units of every client are matched again"), Grid(5, 8)
    ] = 5

    own_aggregation = "it averages the units that it has matched"

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Warn as FeSEM does, and of the time that matching takes with so many clients."""
        found = super().warnings(server, rounds)
        if found:
            most = 2 * self.clusters + self.sweeps + 1
            found.append(f"the units of {server.n:,} models are matched up to {most} times a round")
        return found

    def start(self, server: ServerView) -> FeSEMState:
        """Start as FeSEM does.

        Raises:
            BadInput: the network is no chain whose units can be matched.
        """
        hidden_layers(server.layout)
        return super().start(server)

    def affinity(self, state: FeSEMState, server: ServerView, clients: Ids) -> Affinity:
        models = align_units(state.last[torch.from_numpy(clients)], state.centres[0], server.layout)
        points = gram_coordinates(self.compared_part(server).take(models))
        return Affinity("distance between client models, units matched", pairwise_distances(points))

    def _send_first_models(self, server: ServerView) -> Send:
        if self.start_models == "common":
            return super()._send_first_models(server)
        return Send(torch.stack([server.initial(i) for i in range(server.n)]), server.everyone)

    def _align(self, models: Tensor, cohort: Cohort) -> Tensor:
        """Return models `[r, P]` with their units in the order of the matched mean of all of them."""
        if self.start_models == "common":
            return models
        return align_units(
            models, self._average_centres(models, cohort.server, cohort.round)[0], cohort.server.layout
        )

    def measure_distances(self, models: Tensor, centres: Tensor, server: ServerView) -> NDArray[np.float64]:
        """Return the squared distances `[m, K]`, with a model's units in the centre's order (Dist_MA, D3)."""
        found = super().measure_distances(models, centres, server)
        for k, centre in enumerate(centres):
            placed = align_units(models, centre, server.layout)
            if placed is not models:
                found[:, k : k + 1] = super().measure_distances(placed, centre[None], server)
        return found

    def _average_members(self, state: FeSEMState, groups: Ids, server: ServerView, round: int) -> Tensor:
        rng, weights = server.stream("matching", round), self._weigh_clients(server)
        return average_matched(state.last, groups, state.centres, server.layout, rng, self.sweeps, weights)

    def _average_centres(self, centres: Tensor, server: ServerView, round: int = -1) -> Tensor:
        rng, together = server.stream("matching-centres", round), np.zeros(len(centres), np.int64)
        return average_matched(centres, together, centres[:1], server.layout, rng, self.sweeps)
