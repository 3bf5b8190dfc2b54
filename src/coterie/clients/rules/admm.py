"""The rule of clients whose own models are pulled by those that are related to them (ClusterFL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from coterie.clients.rules.client import Client
from coterie.clients.rules.private_layers import overlay_own_model
from coterie.clients.rules.requests import Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule


@rule("related-update")
@dataclass(frozen=True)
class RelatedUpdate(Rule):
    """Train the client's own model for ClusterFL, keep it, and send it with its loss.

    It minimises `F_i(w) + (alpha + (rho/2) sum_j F_ij^2) ||w||^2 - sum_j F_ij <U_j + rho Omega_j, w>`. The client
    receives the sum as `attraction` and `rho sum_j F_ij^2` as `strength`. Without them there is no relation yet: F
    is 0.
    """

    alpha: Annotated[float, Field(ge=0, description="weight of ||w||^2")] = 1e-3
    epochs: Annotated[int, Field(ge=0, description="passes over own data")] = 20
    uploads, client_state = ("model",), ("model",)

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the `model` and the number `loss`, the mean of F_i over the last epoch, if there was one."""
        start = overlay_own_model(client, order)
        pull, linear = 2 * self.alpha, None
        items = {name: item.values for name, item in order.items.items()}
        if "attraction" in items:
            pull += float(items["strength"])
            linear = client.layout.trainable.put(torch.zeros_like(start), -items["attraction"])
        trained: Trained = yield Train(
            start, pull=pull, anchor=torch.zeros_like(start), linear=linear, epochs=self.epochs
        )
        numbers = {"loss": trained.loss} if np.isfinite(trained.loss) else {}
        return Answer({"model": trained.model}, numbers, {"model": trained.model}, {"train_loss": trained.loss})
