"""The rule of a client that trains its cluster's model, pulled to a common one, and the common one (StoCFL)."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.clients.rules.client import Client
from coterie.clients.rules.requests import Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule


@rule("cluster-and-common")
@dataclass(frozen=True)
class ClusterAndCommon(Rule):
    """Train the received `model` on `F_i(w) + (mu/2) ||w - common||^2`, and the received `common` model on F_i.

    The server tells `mu`. Both trainings meet the same minibatches.
    """

    uploads, writes = ("model", "common"), False

    def run(self, client: Client, order: Order) -> Work:
        """Answer with both, the `model` and the `common` one."""
        common = order.items["common"].values
        own: Trained = yield Train(order.items["model"].values, pull=order.settings["mu"], anchor=common)
        shared: Trained = yield Train(common)
        return Answer({"model": own.model, "common": shared.model}, report={"train_loss": own.loss})
