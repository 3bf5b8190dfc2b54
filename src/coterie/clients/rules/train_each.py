"""A rule that finds out where a client belongs by training: from each of K models, to see which holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.requests import Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule

FARTHEST = torch.finfo(torch.float32).max
"""How far a model has moved whose training diverged: a number that can cross."""


@rule("train-each")
@dataclass(frozen=True)
class TrainEach(Rule):
    """Train from each of the received `models` `[K, P]`, and send the one that moved least; ties to the first.

    The minibatches are the same for all K. The server may tell `mu`, as in `LocalUpdate`. This is the
    `update_aware` E-step of FeSEM (docs/methods/fesem.md, D3).
    """

    signal: Annotated[Literal["all", "last_kernel"], Field(description="the weights whose displacement counts")] = (
        "all"
    )
    uploads = ("model",)

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        return {f"moved{k}": (0.0, FARTHEST) for k in range(len(order.items["models"].values))}

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the `model` and the numbers `moved0`, `moved1`, …: how far each of the K has moved."""
        seen = client.layout.trainable if self.signal == "all" else client.layout.output_kernel
        starts = order.items["models"].values
        best: Trained = yield Train(starts[0], pull=order.settings.get("mu", 0.0))
        moved = [_measure_distance(seen.take(best.model), seen.take(starts[0]))]
        for start in starts[1:]:
            trained: Trained = yield Train(start, pull=order.settings.get("mu", 0.0))
            away = _measure_distance(seen.take(trained.model), seen.take(start))
            if away < min(moved):
                best = trained
            moved.append(away)
        return Answer(
            uploads={"model": best.model},
            numbers={f"moved{k}": away for k, away in enumerate(moved)},
            report={"train_loss": best.loss},
        )


def find_least_moved(numbers: Mapping[str, NDArray[np.float64]], starts: int) -> NDArray[np.int64]:
    """From which of `starts` models each client `[r]` moved least, given the numbers that came back."""
    moved = [numbers.get(f"moved{k}", np.empty(0)) for k in range(starts)]
    return np.asarray(np.argmin(moved, axis=0), np.int64)


def _measure_distance(model: Tensor, start: Tensor) -> float:
    away = float((model.double() - start.double()).norm())
    return min(away, FARTHEST) if np.isfinite(away) else FARTHEST
