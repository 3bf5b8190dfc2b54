"""A rule that tells the losses of others' models on either half of a client's data (`coterie diagnose`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.fold import RowScores
from coterie.clients.rules.half_data import half_rows
from coterie.clients.rules.requests import Inspect
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.models.layout import Layout


@rule("half-losses")
@dataclass(frozen=True)
class HalfLosses(Rule):
    """Tell the mean loss of each of the received `models` `[k, P]` on either half of the data.

    Halves are those of `HalfDirections`.
    """

    size: Annotated[int, Field(ge=1, description="samples in a half")] = 32
    models: Annotated[int, Field(ge=1, description="how many models are received")] = 1
    uploads, writes = ("losses",), False

    def run(self, client: Client, order: Order) -> Work:
        """Answer with `losses` `[2, models]`; 0 without two samples, and where a model's loss is not finite."""
        halves, losses = half_rows(client, self.size), torch.zeros(self.shapes(client.layout)["losses"])
        if not halves.size:
            return Answer({"losses": losses})
        score = RowScores(halves.ravel(), "loss")
        for number, model in enumerate(order.items["models"].values):
            found: Tensor = yield Inspect(score, model=model)
            losses[:, number] = found.view(2, -1).mean(1)
        return Answer({"losses": losses.nan_to_num(0.0, 0.0, 0.0)})

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"losses": (2, self.models)}
