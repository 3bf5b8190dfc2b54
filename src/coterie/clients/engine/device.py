"""An engine on a device of its own: what it is asked travels there, what it answers comes back to the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.engine import Data, Engine
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules.client import Client
from coterie.clients.rules.requests import Request, Result, Split


@dataclass(eq=False)
class OnDevice(Engine):
    """`Sequential` or `Batched` whose tensors lie on a device; rules, and all that crosses, stay on the CPU.

    It is the same code as on a CPU, and on the device "cpu" gives the same bits. On a GPU it is unmeasured
    (`benchmarks.gpu` measures it): nobody has tuned it, and there are no CUDA graphs. One process owns the device.
    """

    kind: type[Sequential] | type[Batched] = field(kw_only=True)
    """The engine that computes."""
    device: torch.device = field(kw_only=True)
    """Where it computes."""
    one_process = True

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.network, self.device
        # What a model consists of is bound to a vector on the device; step counters and masks are no part of it.
        for module in network.modules():
            module._buffers = {n: None if b is None else b.to(device) for n, b in module._buffers.items()}
        for parameter in network.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(device)
        if device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cudnn.deterministic = True
        held, initial = _DataOnDevice(self.data, device), self.initial.to(device)
        given = (network, self.layout, held, self.training, self.seed, initial, self.example_privacy)
        self._inner = self.kind(*given)
        self.together = self._inner.together
        self.independent = self._inner.independent and device.type == "cpu"

    def answer(self, clients: Sequence[Client], requests: Sequence[Request]) -> list[Result]:
        """Answer one request for each client, in order."""
        found = self._inner.answer(clients, [_move(self.device, r) for r in requests])
        return [_move(torch.device("cpu"), result) for result in found]

    def outputs(self, models: Tensor, inputs: Tensor, temperature: float = 1.0) -> Tensor:
        """Softmax outputs `[n, samples, classes]` at a temperature."""
        found = self._inner.outputs(models.to(self.device), inputs.to(self.device), temperature)
        return found.cpu()


class _DataOnDevice:
    """A federation whose samples are on the device when they are looked at."""

    def __init__(self, data: Data, device: torch.device) -> None:
        self._data = data
        self._device = device
        self.augment = data.augment
        self.classes, self.task, self.outputs = data.classes, data.task, data.outputs

    def slice(self, client: int, split: Split) -> tuple[Tensor, Tensor]:
        inputs, labels = self._data.slice(client, split)
        return self._data.to_numbers(inputs).to(self._device), labels.to(self._device)

    def to_numbers(self, stored: Tensor) -> Tensor:
        return stored


def _move(device: torch.device, asked: Any) -> Any:
    """A tensor, or a request or result, with all its tensors on the device.

    What is no dataclass stays as it is: a request that brings its own algorithm may be answered by a number.
    """
    if isinstance(asked, Tensor):
        return asked.to(device)
    if isinstance(asked, Mapping):
        return {name: _move(device, value) for name, value in asked.items()}
    if not is_dataclass(asked) or isinstance(asked, type):
        return asked
    held = {f.name: getattr(asked, f.name) for f in fields(asked)}
    return replace(asked, **{n: _move(device, v) for n, v in held.items() if isinstance(v, Tensor | Mapping)})
