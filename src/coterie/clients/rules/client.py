"""One client at work, as its rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from coterie.clients.rules.training import Training
from coterie.models.layout import Layout
from coterie.randomness import stream


@dataclass(frozen=True, eq=False)
class Client:
    """One client at work."""

    id: int
    """0, 1, … n - 1."""
    round: int
    """1, 2, …"""
    samples: int
    """Its training samples."""
    seed: int
    """The run's seed, to which the client's own streams belong."""
    layout: Layout
    """Where each tensor lies in a model."""
    training: Training
    """The local solver's settings in this round."""
    state: Mapping[str, Tensor]
    """The client's own vectors, by name; empty before the first answer with a `client_state`."""
    initial: Callable[[], Tensor]
    """The common initial model `[P]`, which every client can compute from the seed."""
    validation: int = 0
    """Its validation samples."""

    def stream(self, purpose: str) -> np.random.Generator:
        """The client's random numbers for a purpose in this round."""
        return stream(self.seed, purpose, self.id, self.round)
