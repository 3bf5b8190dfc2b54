"""Which engine suits an experiment, and how many clients one kernel takes.

Both are functions of the network, the sizes and the settings, never of a clock, so that a run that is resumed,
or that runs elsewhere, chooses what it chose before.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from coterie.clients.training import Training
from coterie.engine.engine import has_batch_norm, has_dropout
from coterie.models.layout import Layout
from coterie.problems import BadInput

ENGINES = ("auto", "sequential", "batched")

BATCHABLE = (
    nn.Sequential,
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.ZeroPad2d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Flatten,
    nn.Identity,
    nn.Dropout,
)
"""Modules that are known to give the same under `vmap`. Dropout is among them for a rate of 0, which is none."""


def choose_engine(
    network: nn.Module, layout: Layout, training: Training, features: tuple[int, ...], wanted: str
) -> tuple[str, str]:
    return "batched", ""


def is_dense(network: nn.Module) -> bool:
    """Whether the network is nothing but dense layers with biases, and ReLU between them."""
    modules = [m for m in network.modules() if not isinstance(m, nn.Sequential)]
    if modules and isinstance(modules[0], nn.Flatten):
        modules = modules[1:]
    layers, between = modules[::2], modules[1::2]
    return (
        len(modules) % 2 == 1
        and all(isinstance(m, nn.Linear) and m.bias is not None for m in layers)
        and all(isinstance(m, nn.ReLU) for m in between)
    )


def refuse_unbatchable(network: nn.Module) -> None:
    pass


def chunk_size(layout: Layout) -> int:
    import os

    if "CH" in os.environ:
        return int(os.environ["CH"])
    return max(2, min(64, (1 << 20) // layout.size))
