"""The engine of a name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.clients.training import Training
from coterie.engine.batched import Batched
from coterie.engine.choice import is_perceptron
from coterie.engine.device import OnDevice
from coterie.engine.engine import Data, Engine
from coterie.engine.sequential import Sequential
from coterie.models.layout import Layout


def make_engine(
    name: str, network: nn.Module, layout: Layout, data: Data, training: Training, seed: int, initial: Tensor
) -> Engine:
    """The engine that `choose_engine` named: `sequential`, `batched` or `gpu`."""
    if name == "gpu":
        together = is_perceptron(network) and training.precision == "fp32"
        kind = Batched if together else Sequential
        return OnDevice(kind, network, layout, data, training, seed, initial, torch.device("cuda"))
    engine = Batched if name == "batched" else Sequential
    return engine(network, layout, data, training, seed, initial)
