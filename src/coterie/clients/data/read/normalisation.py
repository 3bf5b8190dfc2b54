"""How the raw values of the named datasets become samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Standard:
    """How raw values of a named dataset become samples: `(value / top - mean) / deviation`, by channel."""

    top: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @property
    def factor(self) -> NDArray[np.float32]:
        """What raw values are multiplied by first, `[channels]`."""
        return np.divide(np.float32(1 / self.top), np.array(self.deviation, np.float32))

    @property
    def shift(self) -> NDArray[np.float32]:
        """What is subtracted then, `[channels]`."""
        return np.divide(self.mean, self.deviation).astype(np.float32)

    def samples(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Raw values `[..., channels]` as samples of the same shape."""
        scaled = values.astype(np.float32)
        scaled *= self.factor
        scaled -= self.shift
        return scaled

    def spread(self, features: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return factor and shift for each number of a sample `[*features]`, the channels last.

        Long rows are scaled several times as fast as rows of three channels.
        """
        factor, shift = (
            torch.from_numpy(np.broadcast_to(each, features).copy()) for each in (self.factor, self.shift)
        )
        return factor, shift


_MNIST = Standard(255, (0.1307,), (0.3081,))
_CIFAR10 = Standard(255, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
STANDARDS = {
    "digits": Standard(16, (0.3053,), (0.3760,)),
    "mnist": _MNIST,
    "mnist-writers": _MNIST,
    "fashion-mnist": Standard(255, (0.2860,), (0.3530,)),
    "cifar10": _CIFAR10,
    "cifar10-20k": _CIFAR10,
    "hub:uoft-cs/cifar100": Standard(255, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "hub:ufldl-stanford/svhn/cropped_digits": Standard(255, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    # Of each channel over all 10,299 windows; accelerations in g, rotation in rad/s.
    "uci-har": Standard(
        1,
        (-0.0007, -0.0003, -0.0002, -0.0034, -0.0002, 0.0009, 0.8083, 0.0218, 0.0848),
        (0.1919, 0.1219, 0.1038, 0.4039, 0.3705, 0.2540, 0.4120, 0.3973, 0.3443),
    ),
}
"""How the samples of each named dataset were made."""
