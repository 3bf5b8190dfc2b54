"""Networks on which engines are tried: a few modules of somebody's own, and chains of many kinds of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, cat, nn, tanh


class Attention(nn.Module):
    """A block of a transformer over the time steps of a signal, which comes with the channels first."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = nn.Linear(3, width)
        self.block = nn.TransformerEncoderLayer(width, 2, width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.block(self.enter(x.transpose(1, 2))).mean(1))
        return logits


class Steps(nn.Module):
    """A GRU over a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.GRU(3, 6, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x.transpose(1, 2))[0][:, -1])
        return logits


class Branches(nn.Module):
    """Two branches over an image, one of convolutions with a norm; a frozen layer, and one that is there twice."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Conv2d(1, 4, 3, 2, 1)
        self.norm = nn.GroupNorm(2, 4)
        self.flat = nn.Linear(64, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.again = nn.Linear(8, 8, bias=False)
        self.twice = self.again
        self.head = nn.Linear(64 + 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.twice(tanh(self.again(self.frozen(tanh(self.flat(x.flatten(1)))))))
        logits: Tensor = self.head(cat([tanh(self.norm(self.images(x))).flatten(1), flat], 1))
        return logits


class Shifted(nn.Linear):
    """A dense layer that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1.0


def _twice() -> nn.Module:
    same = nn.Linear(8, 8)
    return nn.Sequential(nn.Linear(5, 8), same, nn.Tanh(), same, nn.Linear(8, 4, bias=False))


def _images() -> nn.Module:
    return nn.Sequential(
        nn.ZeroPad2d((1, 0, 2, 1)),
        nn.Conv2d(2, 6, 3, stride=(2, 1), groups=2, bias=False),
        nn.GroupNorm(3, 6),
        nn.Tanh(),
        nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        nn.Sequential(nn.Conv2d(6, 4, 3, padding="same", dilation=2), nn.LayerNorm([4, 5, 6])),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.LayerNorm(3, eps=0.1, bias=False),
        nn.Identity(),
        nn.Dropout(0.0),
        nn.AdaptiveAvgPool2d(2),
        nn.GroupNorm(2, 4, affine=False),
        nn.Flatten(),
        nn.Linear(16, 8),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace=True),
        nn.LayerNorm(8),
        nn.Linear(8, 4, bias=False),
    )


def _signals() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 6, 5, stride=2, padding=3, dilation=2),
        nn.LayerNorm(7),
        nn.ReLU(),
        nn.AvgPool1d(3, stride=1, padding=1),
        nn.GroupNorm(2, 6),
        nn.Conv1d(6, 4, 3, padding="same", groups=2, bias=False),
        nn.LayerNorm([4, 7]),
        nn.MaxPool1d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def _strided() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=2, padding=1, groups=2),
        nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, padding="same", bias=False),
        nn.Flatten(),
        nn.Linear(27, 4),
    )


def _others() -> nn.Module:
    return nn.Sequential(Shifted(6, 5), nn.Tanh(), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 4))


def _over_time() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(15, 4))


OWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (Attention, (5, 3)),
    "gru": (Steps, (5, 3)),
    "branches": (Branches, (8, 8, 1)),
}
"""Those that a module writes out itself, with the shape of a sample."""

CHAINS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (_images, (9, 7, 2)),
    "signals": (_signals, (16, 3)),
    "strided": (_strided, (9, 9, 2)),
    "twice": (_twice, (5,)),
    "others": (_others, (6,)),
    "over time": (_over_time, (4, 3)),
}
"""Sequences of layers of PyTorch."""

LISTED: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "perceptron": ("mlp", (8, 8, 1), {"hidden": (16,)}),
    "wide perceptron": ("mlp", (12, 12, 1), {"hidden": (40,)}),
    "deep and wide perceptron": ("mlp", (12, 12, 1), {"hidden": (40, 16)}),
    "deep perceptron": ("mlp", (6, 6, 2), {"hidden": (7, 5)}),
    "no hidden layer": ("mlp", (61,), {"hidden": ()}),
    "cnn": ("cnn", (9, 8, 3), {"channels": (4, 6), "hidden": (8,)}),
    "lenet": ("lenet", (16, 16, 3), {}),
    "cnn of signals": ("har-cnn", (12, 3), {"channels": (4, 6), "hidden": (8,)}),
}
"""Those that Coterie lists, with settings."""
