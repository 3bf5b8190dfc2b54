"""How one network is computed for many models at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from coterie.models.layout import Layout

Backward = Callable[[Sequence[Tensor], Tensor, Tensor, Tensor, Sequence[Tensor], Sequence[bool]], Tensor]
"""From views of a stack, samples `[n, width, ...]`, their targets and weights `[n, width]`, and tensors like the
views, which the gradients in those that are wanted overwrite, to the weighted sums of losses `[n]`."""


class Stacked(ABC):
    """A network for many models at once; `views` are its tensors, `[n, *shape]` each."""

    fewest = 1
    """Rows that a stack must have."""
    worthwhile = 1
    """Clients from which a kernel is faster than one client after another."""
    fixed_width = False
    """Whether results would depend on the width that minibatches are padded to, and must not."""

    def __init__(self, network: nn.Module, layout: Layout, to_numbers: Callable[[Tensor], Tensor]) -> None:
        self._network, self._layout, self._to_numbers = network, layout, to_numbers

    @abstractmethod
    def activations(self, features: tuple[int, ...]) -> int:
        """Scalars of one sample that are to stay in the cache: mostly all that a forward pass leaves behind."""

    def prepare(self, inputs: Tensor) -> Tensor:
        """Stored samples `[s, *features]` as `x` holds them: numbers, the channels last."""
        return self._to_numbers(inputs)

    @abstractmethod
    def logits(self, views: Sequence[Tensor], x: Tensor) -> Tensor:
        """Outputs `[n, width, ...]` of the samples `[n, width, ...]`."""
