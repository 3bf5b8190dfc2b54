"""Rules of clients whose samples are shared among K cluster models, which pull at their own models (FedSoft)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.mixture import sample_losses
from coterie.clients.rules.requests import Inspect, Request, Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule

LEAST_SHARE = 1e-4
"""The share of a cluster that no sample is nearest to."""


@rule("sample-shares")
@dataclass(frozen=True)
class SampleShares(Rule):
    """Tell for which share of the samples each received model of `models` `[K, P]` has the smallest loss."""

    writes = False

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        return {f"share{k}": (0.0, 1.0) for k in range(len(order.items["models"].values))}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the numbers `share0`, `share1`, …; ties go to the first."""
        return Answer(numbers=_as_numbers((yield from self._estimate(client, order.items["models"].values))))

    def _estimate(self, client: Client, models: Tensor) -> Generator[Request, Any, Tensor]:
        """Return the shares `[K]`, each at least `LEAST_SHARE`."""
        losses = torch.empty(len(models), client.samples)
        for row, model in zip(losses, models, strict=True):
            row.copy_((yield Inspect(sample_losses, model=model)))
        counts = torch.bincount(losses.argmin(0), minlength=len(models)) if client.samples else losses.new_zeros(1)
        return (counts / max(client.samples, 1)).expand(len(models)).clamp_min(LEAST_SHARE)


@rule("soft-cluster-update")
@dataclass(frozen=True)
class SoftClusterUpdate(SampleShares):
    """Train the client's own model, pulled to the received `models` `[K, P]` by its shares u of them (FedSoft).

    It minimises `F_i(w) + (lam/2) sum_k u_k ||w - c_k||^2`. The shares are those received as `shares` `[K]`, or
    found anew where none are.
    """

    lam: Annotated[float, Field(ge=0, description="strength of the pull")] = 0.1
    uploads, client_state = ("model",), ("model",)

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the `model`, which is also kept, and the shares as `SampleShares` does."""
        models = order.items["models"].values
        if "shares" in order.items:
            shares = order.items["shares"].values
        else:
            shares = yield from self._estimate(client, models)
        total = shares.double().sum()
        # The pulls to all models are one, to their mean by shares.
        anchor = ((shares.double() / total) @ models.double()).float()
        own = client.state["model"] if "model" in client.state else client.initial()
        trained: Trained = yield Train(own, pull=self.lam * float(total), anchor=anchor)
        return Answer(
            {"model": trained.model}, _as_numbers(shares), {"model": trained.model}, {"train_loss": trained.loss}
        )


def _as_numbers(shares: Tensor) -> dict[str, float]:
    return {f"share{k}": float(share) for k, share in enumerate(shares)}
