"""Rules of clients that belong to one of K groups, and draw which by how likely their samples are (EM groups)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.mixture import sample_losses
from coterie.clients.rules.objective import LocalModel
from coterie.clients.rules.requests import Inspect, Request, Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule

LEAST_LOSS = 1e-12
"""A mean loss of numbers below this counts as this, for its logarithm is taken."""


def total_surprise(batch: Batch, model: LocalModel | None) -> Tensor:
    """Return minus the log-likelihood of all samples `[1]`, but for a constant.

    Where losses are of numbers they are no likelihoods. Errors are then taken to be normal, of the variance that
    suits the samples best: s/2 log(mean loss).
    """
    losses = sample_losses(batch, model).double()
    if batch.task.probable:
        return losses.sum()[None]
    return len(losses) / 2 * losses.mean().clamp(min=LEAST_LOSS).log()[None]


@rule("group-shares")
@dataclass(frozen=True)
class GroupShares(Rule):
    """Tell how likely all of the client's samples come from each of the received `models` `[K, P]`."""

    writes = False

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        return {f"share{k}": (0.0, 1.0) for k in range(len(order.items["models"].values))}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the numbers `share0`, `share1`, …; nothing is trained."""
        surprise = yield from self._measure(client, order)
        return Answer(numbers=self._tell(surprise))

    def _measure(self, client: Client, order: Order) -> Generator[Request, Any, Tensor]:
        """Return minus the log-likelihood `[K]`; zeros without samples or where there is one model."""
        models = order.items["models"].values
        found = torch.zeros(len(models), dtype=torch.float64)
        if client.samples and len(models) > 1:
            for k, model in enumerate(models):
                found[k] = (yield Inspect(total_surprise, model=model))[0]
        return found

    def _tell(self, surprise: Tensor) -> dict[str, float]:
        return {f"share{k}": share for k, share in enumerate((-surprise).softmax(0).clamp(0, 1).tolist())}


@rule("drawn-update")
@dataclass(frozen=True)
class DrawnUpdate(GroupShares):
    """Draw one of the received `models` `[K, P]` by its likelihood, and train it (stochastic EM).

    The setting `heat` is what log-likelihoods are divided by for the draw; the shares that are told are those at 1.
    """

    writes = True
    uploads = ("model",)

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        return {**super().numbers(order), "choice": (0, len(order.items["models"].values) - 1)}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the trained `model`, the number `choice`, and shares as `GroupShares` does."""
        surprise = yield from self._measure(client, order)
        # The largest of log-likelihoods with Gumbel noise is a draw from their softmax.
        noise = torch.from_numpy(client.stream("draw of a group").gumbel(size=len(surprise)))
        choice = int((noise - surprise / order.settings["heat"]).argmax())
        trained: Trained = yield Train(order.items["models"].values[choice])
        numbers = {**self._tell(surprise), "choice": float(choice)}
        return Answer({"model": trained.model}, numbers, report={"train_loss": trained.loss})
