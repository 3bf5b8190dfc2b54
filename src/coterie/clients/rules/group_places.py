"""A rule by which a client tells which of several models suits its samples, and which suits a part of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from coterie.clients.rules.client import Client
from coterie.clients.rules.half_data import half_rows
from coterie.clients.rules.mixture import sample_losses
from coterie.clients.rules.requests import Inspect
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule

PLACES = ("place", "without_first", "without_second")
"""By all samples, and by those that are not of the first half, or not of the second."""


@rule("group-places")
@dataclass(frozen=True)
class GroupPlaces(Rule):
    """Tell which of the received `models` `[K, P]` has the least loss on the client's samples; nothing is trained.

    Also which has it on the samples outside each half of `HalfDirections`. Ties go to the first.
    """

    size: Annotated[int, Field(ge=1, description="samples in a half")] = 32
    writes = False

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        return dict.fromkeys(PLACES, (0.0, len(order.items["models"].values) - 1.0))

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the numbers `place`, `without_first` and `without_second`."""
        each = torch.zeros(len(order.items["models"].values), client.samples, dtype=torch.float64)
        for k, model in enumerate(order.items["models"].values if client.samples else ()):
            each[k] = yield Inspect(sample_losses, model=model)
        found = {PLACES[0]: float(each.sum(1).argmin())}
        for name, rows in zip(PLACES[1:], half_rows(client, self.size), strict=True):
            outside = torch.ones(client.samples, dtype=torch.bool)
            outside[torch.from_numpy(rows)] = False
            found[name] = float(each[:, outside].sum(1).argmin())
        return Answer(numbers=found)
