"""The outputs of a mixture of models predict the mixture of what the models predict."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.clients.tasks import TASKS

SHARES = torch.tensor([0.7, 0.3, 0.0])
SHAPES = {"classification": (5, 4), "binary": (5, 1), "segmentation": (5, 4, 3, 3), "language": (5, 6, 4)}


@pytest.mark.parametrize("name", SHAPES)
def test_distributions_are_mixed(name: str) -> None:
    task = TASKS[name].target()
    outputs = torch.randn(3, *SHAPES[name], generator=torch.Generator().manual_seed(0)) * 3
    mixed = task.distributions(task.mix(outputs, SHARES))
    each = torch.stack([task.distributions(one) for one in outputs])
    torch.testing.assert_close(mixed, torch.einsum("k,k...->...", SHARES, each))


@pytest.mark.parametrize(("name", "read"), [("multilabel", "scores"), ("regression", "predict")])
def test_probabilities_of_labels_and_numbers_are_mixed(name: str, read: str) -> None:
    task = TASKS[name].target()
    outputs = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0))

    def of(values: Tensor) -> Tensor:
        found: Tensor = getattr(task, read)(values)
        return found

    mixed, each = of(task.mix(outputs, SHARES)), torch.stack([of(one) for one in outputs])
    torch.testing.assert_close(mixed, torch.einsum("k,k...->...", SHARES, each))
