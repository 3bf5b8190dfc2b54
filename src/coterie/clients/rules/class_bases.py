"""A rule that tells in which directions the inputs of each class lie (PACFL)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import LocalModel
from coterie.clients.rules.requests import Inspect
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.models.layout import Layout


@rule("class-bases")
@dataclass(frozen=True)
class ClassBases(Rule):
    """Tell the first left singular vectors of the inputs of each class, a column a sample."""

    width: Annotated[int, Field(ge=1, description="numbers of an input")] = 1
    classes: Annotated[int, Field(ge=1, description="classes; 1 takes all samples together")] = 1
    vectors: Annotated[int, Field(ge=1, description="singular vectors of a class")] = 3
    uploads, writes = ("bases",), False

    def run(self, client: Client, order: Order) -> Work:
        """Answer with `bases` `[classes, vectors, width]`; 0 where a class has too few samples for so many."""

        def take(batch: Batch, _: LocalModel | None) -> Tensor:
            found = torch.zeros(self.shapes(client.layout)["bases"], dtype=torch.float64)
            inputs = batch.inputs.flatten(1).double()
            labels = batch.labels if self.classes > 1 else torch.zeros(len(inputs), dtype=torch.int64)
            for k in range(self.classes):
                of_class = inputs[labels == k]
                if len(of_class):
                    leading = torch.linalg.svd(of_class, full_matrices=False).Vh[: self.vectors]
                    found[k, : len(leading)] = leading
            return found

        if not client.samples:
            return Answer({"bases": torch.zeros(self.shapes(client.layout)["bases"])})
        return Answer({"bases": (yield Inspect(take)).float()})

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"bases": (self.classes, self.vectors, self.width)}
