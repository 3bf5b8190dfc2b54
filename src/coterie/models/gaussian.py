"""Stochastic features: networks whose body gives a Gaussian, of which the head sees a draw (FedCR, FedSR)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from coterie.errors import BadInput
from coterie.models.cnn import cnn
from coterie.models.features import image
from coterie.models.layout import Layout
from coterie.models.mlp import SomeWidths, Widths, mlp

SMALLEST_DEVIATION = 1e-6
"""Below it, the precision of a Gaussian, and products of many of them, would leave the range of float32."""

Features = Annotated[int, Field(ge=1, description="number of stochastic features (Z)")]


class Gaussian(nn.Module):
    """Between body and head: a draw of z ~ N(mu, sigma^2) while training, mu in evaluation.

    The body's outputs `[B, 2 Z]` are mu and s; sigma is softplus(s) (docs/methods/fedcr.md).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, outputs: Tensor) -> Tensor:
        """`[B, 2 Z]` to `[B, Z]`."""
        mean, deviation = moments(outputs)
        return draws(mean, deviation, 1)[0] if self.training else mean


def moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations `[B, Z]` of what a body gave, `[B, 2 Z]`."""
    mean, s = outputs.chunk(2, dim=1)
    return mean, positive(s)


def positive(s: Tensor) -> Tensor:
    """softplus(s) as a standard deviation, kept above `SMALLEST_DEVIATION`."""
    return softplus(s).clamp_min(SMALLEST_DEVIATION)


def draws(mean: Tensor, deviation: Tensor, count: int) -> Tensor:
    """`[count, B, Z]` from N(mean, deviation^2) `[B, Z]`, by PyTorch's own generator; gradients flow into both."""
    return mean + deviation * torch.randn(count, *mean.shape)


def divergence(mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor) -> Tensor:
    """KL( N(mean, deviation^2) || N(other_mean, other_deviation^2) ) summed over the last dimension.

    A deviation may have either sign.
    """
    ratio = (deviation / other_deviation).square()
    away = ((mean - other_mean) / other_deviation).square()
    return (ratio + away - 1 - ratio.log()).sum(-1) / 2


def gaussian_dim(network: nn.Module) -> int | None:
    """The number of stochastic features of a network, or None where it has none."""
    return next((m.dim for m in network.modules() if isinstance(m, Gaussian)), None)


def halves(network: nn.Module) -> tuple[nn.Sequential, int, nn.Sequential]:
    """The modules before the Gaussian features (the body), how many features they are, and what follows (the head).

    Raises:
        ValueError: the network is no `nn.Sequential` with one `Gaussian` among its members.
    """
    members = list(network.children()) if isinstance(network, nn.Sequential) else []
    places = [(i, m.dim) for i, m in enumerate(members) if isinstance(m, Gaussian)]
    if len(places) != 1:
        raise ValueError(
            f"the network has {len(places)} layers of Gaussian features between a body and a head; it must have "
            "one, as gaussian-mlp and gaussian-cnn have"
        )
    ((place, dim),) = places
    return nn.Sequential(*members[:place]), dim, nn.Sequential(*members[place + 1 :])


def class_features(layout: Layout) -> tuple[int, int]:
    """The number of classes C and of stochastic features Z, read off the weight `[C, Z]` of the head.

    Raises:
        BadInput: the layer before the head does not give 2 Z outputs, so that it has no Gaussian features.
    """
    weights = [e.shape for e in layout.tensors if e.role == "weight" and e.kind != "norm"]
    if len(weights) < 2 or len(weights[-1]) != 2 or weights[-2][0] != 2 * weights[-1][1]:
        raise BadInput(
            "the network has no Gaussian features before its last layer; it must be gaussian-mlp or gaussian-cnn"
        )
    classes, dim = weights[-1]
    return classes, dim


def gaussian_mlp(
    features: tuple[int, ...],
    classes: int,
    *,
    hidden: Annotated[Widths, Field(description="widths of the body's hidden layers")] = (200,),
    dim: Features = 64,
) -> nn.Sequential:
    """Perceptron whose last hidden layer is Gaussian features, and a dense head; takes samples of any shape."""
    return _stochastic(mlp(features, 2 * dim, hidden=hidden), dim, classes)


def gaussian_cnn(
    features: tuple[int, ...],
    classes: int,
    *,
    channels: Annotated[SomeWidths, Field(description="channels of the 3x3 convolutions")] = (16, 32),
    hidden: Annotated[Widths, Field(description="widths of the dense layers before the features")] = (64,),
    dim: Features = 256,
) -> nn.Sequential:
    """Plain CNN for images from 8x8 (`cnn`) that ends in Gaussian features, and a dense head (FedCR, FedSR)."""
    image("gaussian-cnn", features, max(8, 2 ** len(channels)))
    return _stochastic(cnn(features, 2 * dim, channels=channels, hidden=hidden), dim, classes)


def _stochastic(body: nn.Sequential, dim: int, classes: int) -> nn.Sequential:
    modules = OrderedDict(body.named_children())
    return nn.Sequential(modules | {"gaussian": Gaussian(dim), "head": nn.Linear(dim, classes)})
