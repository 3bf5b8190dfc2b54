"""A rule by which a client tells which of several models suits its samples, and which suits a part of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from coterie.clients.rules.client import Client
from coterie.clients.rules.half_data import half_rows
from coterie.clients.rules.mixture import UNLIKELY, sample_losses
from coterie.clients.rules.requests import Inspect
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule

PLACES = ("place", "without_first", "without_second")
"""By all samples, and by those that are not of the first half, or not of the second."""

HELD_OUT = "held_out"
"""The mean loss of the samples of both halves, each under the model that suits the samples outside its half."""


@rule("group-places")
@dataclass(frozen=True)
class GroupPlaces(Rule):
    """Tell which of K groups suits the client's samples, by models that were trained outside each half of them.

    The received `models` `[2 K, P]` are those without everybody's first halves (see `HalfDirections`), and those
    without the second ones. Nothing is trained. Ties go to the first group.
    """

    size: Annotated[int, Field(ge=1, description="samples in a half")] = 32
    writes = False

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        last = len(order.items["models"].values) // 2 - 1.0
        return {**dict.fromkeys(PLACES, (0.0, last)), HELD_OUT: (0.0, UNLIKELY)}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the numbers `place`, `without_first`, `without_second` and `held_out`."""
        models = order.items["models"].values
        each = torch.zeros(len(models), client.samples, dtype=torch.float64)
        for row, model in zip(each, models if client.samples else (), strict=False):
            row.copy_((yield Inspect(sample_losses, model=model)))
        losses = each.reshape(2, -1, client.samples)
        found, held, count = {PLACES[0]: float(losses.sum((0, 2)).argmin())}, 0.0, 0
        for name, of_half, rows in zip(PLACES[1:], losses, half_rows(client, self.size), strict=True):
            inside = torch.zeros(client.samples, dtype=torch.bool)
            inside[torch.from_numpy(rows)] = True
            place = int(of_half[:, ~inside].sum(1).argmin())
            found[name], held, count = float(place), held + float(of_half[place, inside].sum()), count + len(rows)
        return Answer(numbers={**found, HELD_OUT: min(held / max(1, count), UNLIKELY)})
