"""A task as somebody would bring it, with a metric of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import poisson_nll_loss

from coterie.clients.tasks import Regression, measure


@measure("own-bias", "bias", "how far the mean is off", "value", is_share=False, less_is_better=True)
def bias(predicted: Tensor, targets: Tensor) -> float:
    return float((predicted - targets).mean().abs())


@dataclass(frozen=True)
class Counts(Regression):
    """Each target is a count; a network gives the logarithm of its mean."""

    highest: float = 1e3
    metrics = ("rmse", "own-bias")
    measurable = ("rmse", "mae", "own-bias")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return poisson_nll_loss(outputs.flatten(1), targets, reduction="none").mean(1)

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.flatten(1).exp().clamp(max=self.highest)
