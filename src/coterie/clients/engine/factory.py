"""Make the engine that a name stands for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.choice import is_perceptron
from coterie.clients.engine.convolution import is_chain
from coterie.clients.engine.device import OnDevice
from coterie.clients.engine.engine import Data, Engine
from coterie.clients.engine.private_steps import ExamplePrivacy
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules.training import Training
from coterie.models.layout import Layout


def make_engine(
    name: str,
    network: nn.Module,
    layout: Layout,
    data: Data,
    training: Training,
    seed: int,
    initial: Tensor,
    example_privacy: ExamplePrivacy | None = None,
) -> Engine:
    """The engine that `choose_engine` named: `sequential`, `batched` or `gpu`."""
    given = (network, layout, data, training, seed, initial)
    if name == "gpu":
        together = is_perceptron(network) and is_chain(network) and training.precision == "fp32"
        device = torch.device("cuda")
        return OnDevice(Batched if together else Sequential, *given, device, example_privacy)
    return (Batched if name == "batched" else Sequential)(*given, example_privacy)
