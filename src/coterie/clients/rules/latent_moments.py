"""A rule that tells what the features of a client's samples are like under a model (FLUX)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import LocalModel
from coterie.clients.rules.requests import Inspect
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.clients.rules.two_heads import output_shape
from coterie.models.layout import Layout
from coterie.randomness import stream


@rule("latent-moments")
@dataclass(frozen=True)
class LatentMoments(Rule):
    """Tell means of the features under the received `model`, and deviations, of all samples and of each class.

    They are taken along random directions, the same at all clients.
    """

    directions: Annotated[int, Field(ge=1, description="random directions of the features")] = 1
    deviations: Annotated[bool, Field(description="tell deviations, too")] = True
    uploads, writes = ("moments",), False

    def run(self, client: Client, order: Order) -> Work:
        """Answer with `moments` `[1 + classes, 1 or 2, directions]`; 0 for a class with fewer than two samples."""
        shape = self.shapes(client.layout)["moments"]
        if not client.samples:
            return Answer({"moments": torch.zeros(shape)})
        width = output_shape(client.layout)[1]
        drawn = stream(client.seed, "latent directions").standard_normal((width, self.directions))
        axes = torch.from_numpy(np.linalg.qr(drawn)[0])

        def take(batch: Batch, model: LocalModel | None) -> Tensor:
            assert model is not None
            features = model.features(batch.inputs).double() @ axes
            found = torch.zeros(shape, dtype=torch.float64)
            found[0] = self._moments(features)
            for k in range(shape[0] - 1):
                of_class = features[batch.labels == k]
                if len(of_class) > 1:
                    found[1 + k] = self._moments(of_class)
            return found

        return Answer({"moments": (yield Inspect(take, model=order.items["model"].values)).float()})

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"moments": (1 + output_shape(layout)[0], 1 + self.deviations, self.directions)}

    def _moments(self, features: Tensor) -> Tensor:
        return torch.stack([features.mean(0), features.std(0, correction=0)][: 1 + self.deviations])
