"""A rule in which a client trains the global model, and shrinks its departure by what halves of its samples say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.requests import Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.models.layout import Layout, Part

Shrunk = Literal["layer", "tensor"]
"""What has a share of its own: a layer, or its weights and its constants each."""


@rule("pooled-update")
@dataclass(frozen=True)
class PooledUpdate(Rule):
    """Train the received `model` and send it; keep a `personal` one, whose departure is shrunk.

    The client departs from the received model by d on all samples, and by a and b on either half. How a and b
    agree, layer by layer, tells the server how much of d is noise. It sends by what clients departed on average in
    the last round, the `mean`, and two variances a layer, `variances` `[2 L]`: between clients, and of one sample
    within a client. The personal model departs by the mean, and of what d differs from it by `find_shares`.
    """

    passes: Annotated[int, Field(ge=1, description="passes over the client's samples, and over either half")] = 5
    by: Annotated[Shrunk, Field(description="what has a share of its own")] = "layer"
    uploads, client_state = ("model", "moments"), ("personal",)

    def run(self, client: Client, order: Order) -> Work:
        """Answer with the `model`, and of each layer a·b and n ||a - b||^2 / 4 in `moments` `[2, L]`."""
        received, count, layout = order.items["model"].values, client.samples, client.layout
        first = torch.zeros(count)
        first[torch.from_numpy(client.stream("pooling halves").permutation(count)[: (count + 1) // 2])] = 1.0
        whole: Trained = yield Train(received, epochs=self.passes)
        halves: list[Tensor] = []
        for number, half in enumerate((first, 1 - first)):
            weights = half * (count / max(1.0, float(half.sum())))
            purpose = f"half {number} of pooling"
            found: Trained = yield Train(received, epochs=self.passes, weights=weights, purpose=purpose)
            halves.append((found.model - received).double())
        (a, b), model, moments = halves, whole.model, torch.zeros(self.shapes(layout)["moments"])
        personal, told = model.clone(), "variances" in order.items
        mean = order.items["mean"].values if told else torch.zeros_like(model)
        shares = find_shares(order.items["variances"].values.double().view(2, -1).numpy(), count) if told else None
        for layer, part in enumerate(list_parts(layout, self.by).values()):
            own, other = part.take(a), part.take(b)
            moments[0, layer] = float(own @ other)
            moments[1, layer] = count * float((own - other).square().sum()) / 4
            share = 0.0 if shares is None else float(shares[layer])
            part.copy(personal, received + mean + share * (model - received - mean))
        report = {"train_loss": whole.loss}
        return Answer({"model": model, "moments": moments}, client_state={"personal": personal}, report=report)

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"moments": (2, len(list_parts(layout, self.by)))}


def list_parts(layout: Layout, by: Shrunk) -> dict[str, Part]:
    """Return what has a share of its own, by name: the trainable part of each layer, or each trainable tensor."""
    if by == "tensor":
        tensors = {entry.name: Part.of([(entry.start, entry.stop)]) & layout.trainable for entry in layout.entries}
        return {name: part for name, part in tensors.items() if part}
    return {name: layout.of_layers([layer]) & layout.trainable for layer, name in enumerate(layout.layers)}


def find_shares(variances: NDArray[np.float64], samples: int) -> NDArray[np.float64]:
    """Return the share of its departure that a client of so many samples keeps, by layer `[L]`.

    Args:
        variances: between clients, and within a client of one sample `[2, L]`; none is below 0.
        samples: of the client.
    """
    between, within = variances
    total = between + within / max(1, samples)
    return np.asarray(np.divide(between, total, out=np.zeros_like(between), where=total > 0))
