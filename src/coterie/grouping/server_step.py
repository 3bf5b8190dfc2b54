"""One step of a server's optimizer: where a model goes whose clients' mean lies at a distance from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Optimizer = Literal["sgd", "adagrad", "adam", "yogi"]


@dataclass(frozen=True)
class ServerStep:
    """The steps of FedAvgM (Hsu, Qi and Brown, 2019) and of Reddi et al., 2021, Algorithm 2, with `d = mean - x`.

    `sgd`: `m <- momentum m + d`, `x <- x + lr m`. The others: `m <- momentum m + (1 - momentum) d` and
    `x <- x + lr m / (sqrt(v) + tau)`, where v begins as tau^2 and becomes

    * `adagrad`: `v + d^2`
    * `adam`: `decay v + (1 - decay) d^2`
    * `yogi`: `v - (1 - decay) d^2 sign(v - d^2)`

    Sources: https://arxiv.org/abs/1909.06335, https://arxiv.org/abs/2003.00295
    """

    optimizer: Optimizer
    """Which step is taken."""
    lr: float
    """The server's learning rate."""
    momentum: float
    """Share of the first moment that is kept."""
    decay: float
    """Share of the second moment that is kept (`adam`, `yogi`)."""
    tau: float
    """What is added to the root of the second moment."""

    def begin(self, size: int) -> tuple[Tensor, Tensor]:
        """Return both moments of a group that begins, m and v, `[size]` each; v is `[0]` for `sgd`."""
        return torch.zeros(size), torch.full((0 if self.optimizer == "sgd" else size,), self.tau**2)

    def take(self, x: Tensor, mean: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the model after a step, and both moments, float32.

        Args:
            x: the model before the round `[P]`.
            mean: of its clients' models `[P]`.
            first: m `[P]`.
            second: v `[P]`; `[0]` for `sgd`.
        """
        d, m = mean.double() - x.double(), first.double()
        if self.optimizer == "sgd":
            m = self.momentum * m + d
            # In this form a step of 1 without momentum gives the mean to the bit.
            return (mean.double() + (self.lr * m - d)).float(), m.float(), second
        m = self.momentum * m + (1 - self.momentum) * d
        v, square = second.double(), d * d
        if self.optimizer == "adagrad":
            v = v + square
        elif self.optimizer == "adam":
            v = self.decay * v + (1 - self.decay) * square
        else:
            v = v - (1 - self.decay) * square * torch.sign(v - square)
        return (x.double() + self.lr * m / (v.sqrt() + self.tau)).float(), m.float(), v.float()
