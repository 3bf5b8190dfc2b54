"""The engine that a name stands for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.choice import is_perceptron
from coterie.clients.engine.convolution import is_chain
from coterie.clients.engine.device import OnDevice
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules.training import Training


def engine_class(name: str, network: nn.Module, training: Training) -> Callable[..., Engine]:
    """What makes the engine that `choose_engine` named: `sequential`, `batched` or `gpu`."""
    if name == "gpu":
        together = is_perceptron(network) and is_chain(network) and training.precision == "fp32"
        return partial(OnDevice, kind=Batched if together else Sequential, device=torch.device("cuda"))
    return Batched if name == "batched" else Sequential
