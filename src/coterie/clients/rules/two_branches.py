"""Rules of a client that is asked for its loss before it trains, and that tries two models (DC-PFL)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.private_layers import overlay_own_model
from coterie.clients.rules.requests import Losses, Train
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule


@rule("receive")
@dataclass(frozen=True)
class Receive(Rule):
    """Lay what is received over the own model, keep it, and tell its loss on own training data.

    Whoever missed the verdict of a trial forgets the branch it still has.
    """

    client_state = ("model", "finer")

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        return {"loss": (-math.inf, math.inf)}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the number `loss`; nothing is trained."""
        own = overlay_own_model(client, order)
        losses = yield Losses(own[None])
        return Answer(numbers={"loss": float(losses[0])}, client_state={"model": own, "finer": None})


@rule("train-branches")
@dataclass(frozen=True)
class TrainBranches(Rule):
    """Train the own model with what is received laid over it, and the received `finer`, on the same minibatches.

    Both results are kept until the server says which one counts (`TakeBranch`). A client that is sent no `finer`
    has but one branch, which stands for both. Who has no samples of the `split` tells no losses.
    """

    split: Annotated[Literal["train", "validation"], Field(description="the own data on which losses are told")] = (
        "train"
    )
    client_state = ("model", "finer")

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        # Whether a client has validation samples, only the client knows.
        return {} if self.split == "validation" else dict.fromkeys(("now", "finer"), (-math.inf, math.inf))

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the losses `now` and `finer` after training."""
        now = yield Train(overlay_own_model(client, order))
        keep: dict[str, Tensor | None] = {"model": now.model, "finer": None}
        branches = [now.model]
        if "finer" in order.items:
            finer = yield Train(order.items["finer"].values)
            keep["finer"] = finer.model
            branches.append(finer.model)
        numbers = {}
        if self.split == "train" or client.validation:
            losses = yield Losses(torch.stack(branches), self.split)
            numbers = {"now": float(losses[0]), "finer": float(losses[-1])}
        return Answer(numbers=numbers, client_state=keep, report={"train_loss": now.loss})


@rule("take-branch")
@dataclass(frozen=True)
class TakeBranch(Rule):
    """Go on with one of the two branches, send it back, and forget the other."""

    finer: Annotated[bool, Field(description="whether the branch of the finer groups counts")] = False
    uploads, client_state = ("model",), ("model", "finer")

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the `model`; nothing is trained."""
        yield from ()
        taken = client.state["finer"] if self.finer and "finer" in client.state else client.state["model"]
        return Answer(uploads={"model": taken}, client_state={"model": taken, "finer": None})
