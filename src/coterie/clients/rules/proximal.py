"""FedCPS at the client: which cluster it belongs to, how strongly it is pulled there, the proximal local update.

What it receives is `base`, the layers that all clusters share (nothing where they share none), and `heads`, the
other layers in K versions to choose among, or `head`, those of the cluster that it chose before.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.requests import Gradients, Losses, Request, Score, Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.models.layout import Layout, Part

GRID = (0.1, 1.0, 2.0)
"""The strengths among which a client picks by its validation samples unless others are set, as in Ditto's code."""
NOISE_BATCHES = 8
"""Minibatches from which the noise of gradients is estimated, at most."""

Mode = Literal["eq3_calibrated", "fixed", "eq3_raw", "grid", "grid_steps"]


def pull_ratio(noise: float, samples: float, spread: float, power: int) -> float:
    """`r = sigma^2 / (n^p tau^2)` (Eq. 3): with p = 1 the best pull for the mean loss of n samples.

    Args:
        noise: sigma^2, the variance of one sample's gradient in one coordinate.
        samples: n.
        spread: tau^2, the variance of clients' models around their cluster's in one coordinate; positive.
        power: p.
    """
    return float(noise / (samples**power * spread))


@rule("choose-identity")
@dataclass(frozen=True)
class ChooseIdentity(Rule):
    """Which cluster's model has the smallest loss on some fresh own training samples; ties to the first."""

    samples: Annotated[int, Field(ge=1, description="samples of the test, drawn anew in each round")] = 256

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        clusters = math.inf  # whoever is sent but one head answers with the cluster it chose before
        if "heads" in order.items:
            clusters = len(order.items["heads"].values)
        elif "tau2/0" in order.settings:
            clusters = sum(name.startswith("tau2/") for name in order.settings)
        return {"choice": (0, clusters - 1)}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the number `choice`; nothing is trained."""
        choice, _ = yield from self.choose_cluster(client, order)
        return Answer(numbers={"choice": float(choice)})

    def choose_cluster(
        self, client: Client, order: Order, purpose: str = "identity"
    ) -> Generator[Request, Any, tuple[int, Tensor]]:
        """The cluster and its model `[P]`; whoever is sent one `head` stays with the cluster it chose last."""
        base = order.items["base"].onto(client.initial()) if "base" in order.items else client.initial()
        if "head" in order.items:
            return int(client.state["identity"]), order.items["head"].onto(base)
        heads = order.items["heads"]
        models = base.repeat(len(heads.values), 1)
        if heads.part is not None:
            heads.part.put(models, heads.values)
        losses = yield Losses(models, samples=self.samples, purpose=purpose)
        choice = int(losses.argmin())
        return choice, models[choice]


@dataclass(frozen=True, eq=False)
class ProximalUpdate:
    """What a proximal local update made of the model `start` of a `cluster`, its pull, and the gradients' noise."""

    trained: Trained
    start: Tensor
    cluster: int
    pull: float
    noise: float | None


@rule("plu")
@dataclass(frozen=True)
class PLU(ChooseIdentity):
    """The proximal local update: `F_i(w) + (lambda_i/2) ||w - theta||^2`, from the model theta of the own cluster.

    The result is the client's personal model, and what the server averages. The server tells `mean_samples`,
    `median` and, for each cluster k, `tau2/k`; see `pull`.

    Attributes:
        lambda_mode: how lambda is found; `grid` tries all of `lambda_grid` and keeps what has the least validation
            loss, `grid_steps` tries the client's last one and its neighbours on the grid, at first `lambda_0`.
        lambda_0: lambda itself (`fixed`), or that of the median client; 0 for no pull at all, whatever the mode.
        lambda_power: p of `pull_ratio`.
        lambda_min: the least lambda of Eq. 3.
        lambda_max: the largest, and never above 0.5 / lr.
        lambda_grid: the strengths of `grid` and `grid_steps`; above 0.5 / lr they are cut there.
    """

    lambda_mode: Mode = "eq3_calibrated"
    lambda_0: float = 0.1
    lambda_power: Literal[1, 2] = 1
    lambda_min: float = 1e-3
    lambda_max: float = 2.0
    lambda_grid: tuple[float, ...] = GRID
    uploads: ClassVar[tuple[str, ...]] = ("model",)
    client_state: ClassVar[tuple[str, ...]] = ("model", "identity", "pull")

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        return {**super().numbers(order), "spread": (0.0, math.inf)}

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        """The identity is one number, and so is the pull."""
        return {"identity": (1,), "pull": (1,)}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the personal `model` and the numbers `choice` and `spread`; `noise` where it is wanted."""
        done = yield from self.update(client, order)
        moved = client.layout.trainable.take(done.trained.model - done.start).double().square().mean()
        numbers = {"choice": float(done.cluster), "spread": float(moved)}
        if done.noise is not None:
            numbers["noise"] = done.noise
        model = done.trained.model
        kept: dict[str, Tensor | None] = {"model": model, "identity": torch.tensor([float(done.cluster)])}
        if self.lambda_mode == "grid_steps":
            kept["pull"] = torch.tensor([done.pull])
        return Answer(
            {"model": model},
            numbers,
            kept,
            {"train_loss": done.trained.loss, "lambda": done.pull},
        )

    def update(
        self, client: Client, order: Order, prefix: str = "", trained_part: Part | None = None
    ) -> Generator[Request, Any, ProximalUpdate]:
        """Identity, lambda and training; `prefix` stands before the purposes of everything that is drawn."""
        cluster, theta = yield from self.choose_cluster(client, order, f"{prefix}identity")
        noise, last = None, client.state.get("identity")
        if self.measures_noise:
            noise = yield from _measure_noise(client, theta, f"{prefix}noise")
        if self.lambda_0 and self.lambda_mode.startswith("grid") and client.validation:
            pulls = self.pulls_to_try(client)
        else:
            known = None if last is None else noise
            pulls = (self.pull(client, order.settings, cluster, known),)
        results = []
        for pull in pulls:
            trained: Trained = yield Train(theta, pull, theta, part=trained_part, purpose=f"{prefix}batches")
            results.append(trained)
        best = 0
        if len(results) > 1:
            losses = yield Losses(torch.stack([r.model for r in results]), split="validation")
            best = int(losses.nan_to_num(nan=torch.inf).argmin())  # a pull that fails wins nothing
        return ProximalUpdate(results[best], theta, cluster, pulls[best], noise)

    @property
    def measures_noise(self) -> bool:
        """Whether the noise of gradients matters."""
        return self.lambda_0 > 0 and self.lambda_mode.startswith("eq3")

    def pulls_to_try(self, client: Client) -> tuple[float, ...]:
        """The strengths among which the validation samples decide, in ascending order."""
        lr = client.training.lr_at(client.round)
        grid = sorted({min(value, 0.5 / lr if lr else value) for value in self.lambda_grid})
        if self.lambda_mode == "grid":
            return tuple(grid)
        last = client.state.get("pull")
        here = self.lambda_0 if last is None else float(last)
        at = min(range(len(grid)), key=lambda place: abs(grid[place] - here))
        return tuple(grid[max(at - 1, 0) : at + 2])

    def pull(self, client: Client, settings: Mapping[str, float], cluster: int, noise: float | None) -> float:
        """The client's lambda (docs/methods/fedcps.md, D1 to D4): the larger, the fewer samples it has.

        Args:
            client: its samples and its learning rate count.
            settings: `mean_samples`, of all clients; `tau2/k`, see `pull_ratio`; `median` of the last
                round's ratios. 0 stands for what is not known yet.
            cluster: the client's.
            noise: of its gradients, see `pull_ratio`; None where it is not known, or the client is there for the
                first time.
        """
        if not self.measures_noise:
            return self.lambda_0
        spread, median, lr = settings[f"tau2/{cluster}"], settings["median"], client.training.lr_at(client.round)
        if noise is None or not spread or not median:
            found = self.lambda_0 * (settings["mean_samples"] / max(client.samples, 1)) ** self.lambda_power
        else:
            found = pull_ratio(noise, client.samples, spread, self.lambda_power)
            if self.lambda_mode == "eq3_calibrated":  # without the loss's curvature the ratio is only relative (D3)
                found *= self.lambda_0 / median
        return min(max(found, self.lambda_min), self.lambda_max, 0.5 / lr if lr else self.lambda_max)


@rule("plu-then-evaluate")
@dataclass(frozen=True)
class PLUThenEvaluate(PLU):
    """Score the personal model; of who is sent a cluster's layers, a fresh one, which is then forgotten."""

    split: Annotated[Literal["validation", "test"], Field(description="which held-out data")] = "test"
    head_only: Annotated[bool, Field(description="a fresh update trains the layers of the cluster alone")] = False
    uploads, client_state = (), ()

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        return {}

    def run(self, client: Client, order: Order) -> Work:
        """Report the scores, and the `choice` of a fresh update."""
        choice, head = None, _personal_part(order)
        if head is None:
            model = client.state["model"]
        else:
            done = yield from self.update(client, order, "evaluation-", head if self.head_only else None)
            model, choice = done.trained.model, done.cluster
        scored = yield Score(model, self.split)
        return Answer(report={"score": scored, "choice": choice})


def _personal_part(order: Order) -> Part | None:
    """The part of the model that each cluster has for itself, where any of it was sent."""
    return next((order.items[name].part for name in ("head", "heads") if name in order.items), None)


def _measure_noise(client: Client, model: Tensor, purpose: str) -> Generator[Request, Any, float | None]:
    """sigma^2: the variance of one sample's gradient in one coordinate, from some minibatches at `model` `[P]`.

    Every minibatch counts by its size, which for equal ones is the formula of docs/methods/fedcps.md. A client with
    one minibatch cuts it in two halves; None for one that has a single sample.
    """
    size = client.training.batch_size if client.samples > client.training.batch_size else -(-client.samples // 2)
    request = Gradients(model, NOISE_BATCHES, size=max(size, 1), purpose=purpose)
    gradients = client.layout.trainable.take((yield request))
    if len(gradients) < 2:
        return None
    sizes = np.minimum(size, client.samples - size * np.arange(len(gradients)))
    middle = torch.zeros(gradients.shape[1], dtype=torch.float64)
    for gradient, count in zip(gradients, sizes, strict=True):
        middle.add_(gradient, alpha=float(count) / float(sizes.sum()))
    apart = sum(float(count * (g - middle).square().mean()) for g, count in zip(gradients, sizes, strict=True))
    return apart / (len(gradients) - 1)
