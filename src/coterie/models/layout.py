"""Which slice of a flat parameter vector is which tensor, of which layer, of which kind.

A model is one float32 vector: first every trainable tensor in forward order (weight before bias, a norm's
scale and shift after the layer it follows), then every buffer (running statistics). Signals, distances and
norms look at the trainable head of the vector only; buffers travel with the layer that owns them.

Frozen parameters (`requires_grad = False`) are no part of the vector: they never move, and all clients share them.
A module all of whose own parameters are frozen keeps its buffers, too. A parameter that several modules share is
one slice. No part of a model either: whole-number buffers (step counters), and buffers that a module does not save
(`persistent = False`) or that are not finite (masks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from coterie.errors import BadInput, count_of, unknown

Kind = Literal["conv", "dense", "norm", "other"]
Role = Literal["weight", "bias", "buffer"]

BYTES_PER_SCALAR = 4


@dataclass(frozen=True)
class Entry:
    """One tensor of a model: where it lies in the flat vector and what it is.

    A convolution's weight is stored channels-last (`[out, height, width, in]`) and seen as PyTorch's
    `[out, in, height, width]`, which is what makes it fast on a CPU. Any other tensor is stored as PyTorch does.
    (A kernel of one pixel lies the same way in both, and is seen as PyTorch's, so that the images alone say which.)
    """

    name: str
    """As in the network's `state_dict`."""
    shape: tuple[int, ...]
    """As PyTorch sees it."""
    start: int
    """Its first scalar's place in the flat vector."""
    layer: int
    """Which layer owns it: 0, 1, … in forward order. A norm belongs to the layer it follows."""
    kind: Kind
    """What its layer is: a convolution, dense, a norm, …"""
    role: Role
    """What it is to its layer: weight, bias, buffer, …"""

    @property
    def size(self) -> int:
        """Its scalars."""
        return torch.Size(self.shape).numel()

    @property
    def stop(self) -> int:
        """The place after its last scalar."""
        return self.start + self.size

    @property
    def module(self) -> str:
        """The path of the module that owns it; of a parameter of the network itself, its own name."""
        return self.name.rpartition(".")[0] or self.name

    def view(self, vector: Tensor) -> Tensor:
        """The tensor as a view of a flat vector `[P]`."""
        return self._shaped(vector[self.start : self.stop], ())

    def views(self, matrix: Tensor) -> Tensor:
        """The tensor of every row of a population `[n, P]`, as one view `[n, *shape]`."""
        return self._shaped(matrix[:, self.start : self.stop], (matrix.shape[0],))

    def _shaped(self, flat: Tensor, lead: tuple[int, ...]) -> Tensor:
        if len(self.shape) < 3 or self.kind != "conv" or all(side == 1 for side in self.shape[2:]):
            return flat.view((*lead, *self.shape))
        out, inner, *space = self.shape
        stored = flat.view(*lead, out, *space, inner)
        last = stored.dim() - 1
        first = len(lead)
        return stored.permute(*range(first + 1), last, *range(first + 1, last))


@dataclass(frozen=True)
class Part:
    """A selection of a flat vector: sorted, disjoint, non-adjacent `(start, stop)` ranges."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Part:
        """The union of ranges in any order; touching ranges are merged, empty ones dropped."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(r for r in ranges if r[0] < r[1]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        return cls(tuple(merged))

    @property
    def size(self) -> int:
        """Number of scalars."""
        return sum(stop - start for start, stop in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: Part) -> Part:
        return Part.of(self.ranges + other.ranges)

    def __and__(self, other: Part) -> Part:
        return Part.of((max(a, c), min(b, d)) for a, b in self.ranges for c, d in other.ranges)

    def __sub__(self, other: Part) -> Part:
        if not self.ranges:
            return self
        edges = [0, *(edge for r in other.ranges for edge in r), self.ranges[-1][1]]
        gaps = Part.of((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True))
        return self & gaps

    def take(self, values: Tensor) -> Tensor:
        """Columns of `[..., P]` that belong to the part, `[..., size]`; a view where the part is one range."""
        if len(self.ranges) == 1:
            start, stop = self.ranges[0]
            return values[..., start:stop]
        return torch.cat([values[..., a:b] for a, b in self.ranges] or [values[..., :0]], dim=-1)

    def put(self, target: Tensor, values: Tensor) -> Tensor:
        """Write `values` `[..., size]` into the part's columns of `target` `[..., P]`, in place.

        Raises:
            ValueError: `values` has more or fewer columns than the part.
        """
        if values.shape[-1] != self.size:
            raise ValueError(f"{values.shape[-1]} columns do not fit a part of {self.size}")
        offset = 0
        for start, stop in self.ranges:
            width = stop - start
            target[..., start:stop] = values[..., offset : offset + width]
            offset += width
        return target

    def copy(self, target: Tensor, source: Tensor) -> Tensor:
        """Overwrite the part's columns of `target` with those of `source`, both `[..., P]`, in place."""
        for start, stop in self.ranges:
            target[..., start:stop] = source[..., start:stop]
        return target


@dataclass(frozen=True)
class Layout:
    """The map of one network's flat vector."""

    entries: tuple[Entry, ...]
    """All tensors, in forward order, buffers behind them."""
    tied: tuple[tuple[str, str], ...] = ()
    """Other names of a parameter that several modules share, each with the name that its entry has."""
    frozen: tuple[tuple[str, int], ...] = ()
    """Names and scalars of the parameters and buffers that are no part of a model because they never change."""
    head: tuple[str, ...] = ()
    """Modules that together are the last layer, where they were named."""

    @classmethod
    def of(cls, network: nn.Module, head: Sequence[str] = ()) -> Layout:
        """Read the layout off a network. Modules are taken in the order they were registered.

        A layer is a module that owns trainable weights and is no norm; a norm and its buffers belong to the layer
        registered before it.

        Args:
            network: any module.
            head: paths of modules that together are one layer, the last; without it every layer is by itself.

        Raises:
            BadInput: a name in `head` is no module with trainable parameters, or nothing is trainable.
        """
        body: list[_Tensor] = []
        last: list[_Tensor] = []
        buffers: list[_Tensor] = []
        owners: dict[nn.Parameter, str] = {}
        tied: list[tuple[str, str]] = []
        frozen: list[tuple[str, int]] = []
        layer = -1
        for path, module in network.named_modules():
            kind, in_head = _kind(module), any(f"{path}.".startswith(f"{name}.") for name in head)
            own = [
                (_join(path, name), p) for name, p in module.named_parameters(recurse=False, remove_duplicate=False)
            ]
            first = [(name, p) for name, p in own if owners.setdefault(p, name) == name]
            tied += [(name, owners[p]) for name, p in own if owners[p] != name and p.requires_grad]
            frozen += [(name, p.numel()) for name, p in first if not p.requires_grad]
            trained = [(name, p) for name, p in first if p.requires_grad]
            if trained and not in_head and (kind != "norm" or layer < 0):
                layer += 1
            for name, parameter in trained:
                role: Role = "bias" if name.rpartition(".")[2].startswith("bias") else "weight"
                tensor = _Tensor(name, tuple(parameter.shape), HEAD if in_head else layer, kind, role)
                (last if in_head else body).append(tensor)
            keeps_buffers = bool(own) and not any(p.requires_grad for _, p in own)
            for name, buffer in module.named_buffers(recurse=False):
                if _is_constant(module, name, buffer):
                    continue
                if keeps_buffers:
                    frozen.append((_join(path, name), buffer.numel()))
                    continue
                owner = HEAD if in_head else max(layer, 0)  # what comes before every layer goes with the first
                buffers.append(_Tensor(_join(path, name), tuple(buffer.shape), owner, kind, "buffer"))
        if problems := _find_problems(body + last, head, frozen):
            raise BadInput(problems)
        entries, start = [], 0
        for name, shape, number, kind, role in body + last + buffers:
            entry = Entry(name, shape, start, layer + 1 if number == HEAD else number, kind, role)
            entries.append(entry)
            start = entry.stop
        return cls(tuple(entries), tuple(tied), tuple(frozen), tuple(head))

    @cached_property
    def size(self) -> int:
        """P: scalars in the vector, buffers included."""
        return self.entries[-1].stop if self.entries else 0

    @cached_property
    def tensors(self) -> tuple[Entry, ...]:
        """The trainable tensors in forward order."""
        return tuple(e for e in self.entries if e.role != "buffer")

    @cached_property
    def buffers(self) -> tuple[Entry, ...]:
        """The running statistics, which are averaged and not trained."""
        return tuple(e for e in self.entries if e.role == "buffer")

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The layers' names in forward order, a layer being named after its module."""
        names: dict[int, str] = {}
        for entry in self.tensors:
            names.setdefault(entry.layer, entry.module)
        if self.head:
            names[self.tensors[-1].layer] = "+".join(self.head)
        return tuple(names[i] for i in sorted(names))

    @cached_property
    def frozen_size(self) -> int:
        """Scalars that all clients share and nobody changes."""
        return sum(size for _, size in self.frozen)

    @cached_property
    def everything(self) -> Part:
        """All columns."""
        return Part.of([(0, self.size)])

    @cached_property
    def trainable(self) -> Part:
        """The columns that are trained: all but the buffers."""
        return Part.of([(0, self.tensors[-1].stop if self.tensors else 0)])

    @cached_property
    def output_kernel(self) -> Part:
        """The weight of the last layer, without its bias."""
        last = self.tensors[-1].layer
        return self.where(lambda e: e.layer == last and e.role == "weight" and e.kind != "norm")

    @cached_property
    def nothing(self) -> Part:
        """No column."""
        return Part(())

    def where(self, test: Callable[[Entry], bool]) -> Part:
        """Every tensor and buffer for which `test` holds."""
        return Part.of((e.start, e.stop) for e in self.entries if test(e))

    def of_layers(self, layers: Iterable[int]) -> Part:
        """Layers by number (0-based), norms and buffers included. Negative numbers count from the output.

        Raises:
            BadInput: a number outside -layers … layers - 1.
        """
        count = len(self.layers)
        numbers = list(layers)
        beyond = [
            f"layer {i} does not exist; this network has {count_of(count, 'layer')}"
            for i in numbers
            if not -count <= i < count
        ]
        if beyond:
            raise BadInput(beyond)
        wanted = {i % count for i in numbers}
        return self.where(lambda e: e.layer in wanted)

    def first_layers(self, count: int) -> Part:
        """The `count` layers nearest to the input."""
        return self.where(lambda e: e.layer < count)

    def last_layers(self, count: int) -> Part:
        """The `count` layers nearest to the output."""
        return self.where(lambda e: e.layer >= len(self.layers) - count)

    def first_tensors(self, count: int) -> Part:
        """The first `count` trainable tensors in forward order; a buffer goes with the last tensor of its layer."""
        last = {e.layer: number for number, e in enumerate(self.tensors)}
        numbers = {e.name: number for number, e in enumerate(self.tensors)}
        return self.where(lambda e: numbers.get(e.name, last.get(e.layer, 0)) < count)

    def of_kind(self, kind: Kind) -> Part:
        """Weights and biases of all layers of a kind; without norms' buffers unless the kind is norm."""
        return self.where(lambda e: e.kind == kind)

    def select(self, text: str, key: str = "layers") -> Part:
        """Layers as a user writes them: `all`, `conv`, `dense`, `norm`, `first:2`, `last:1`, or layer names
        separated by commas. `key` is the setting that a sentence about them names.

        Raises:
            BadInput: a name that is no layer of this network, or a count that is not in 1 … layers.
        """
        if text == "all":
            return self.everything
        if text in ("conv", "dense", "norm"):
            part = self.of_kind(text)  # type: ignore[arg-type]  # narrowed by the test above
            if not part:
                raise BadInput(f"{key} = {text!r} selects nothing: this network has no {text} layer")
            return part
        head, _, count = text.partition(":")
        if head in ("first", "last"):
            if not count.isdecimal() or not 1 <= int(count) <= len(self.layers):
                raise BadInput(f"{key} = {text!r} is not possible; write {head}:1 … {head}:{len(self.layers)}")
            return self.first_layers(int(count)) if head == "first" else self.last_layers(int(count))
        names = [n.strip() for n in text.split(",")]
        if wrong := [
            unknown(f"{key} =", name, self.layers, "in this network") for name in names if name not in self.layers
        ]:
            raise BadInput(wrong)
        return self.of_layers(self.layers.index(name) for name in names)

    def flatten(self, network: nn.Module) -> Tensor:
        """The network's parameters and buffers as a new vector `[P]`."""
        vector = torch.empty(self.size)
        state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        with torch.no_grad():
            for entry in self.entries:
                entry.view(vector).copy_(state[entry.name])
        return vector

    def bind(self, network: nn.Module, vector: Tensor) -> None:
        """Make the network's parameters and buffers views of `vector` `[P]`: writing one writes the other."""
        for entry in self.entries:
            path, _, name = entry.name.rpartition(".")
            module = network.get_submodule(path)
            if entry.role == "buffer":
                module._buffers[name] = entry.view(vector)
            else:
                module._parameters[name] = nn.Parameter(entry.view(vector))
        for other, name in self.tied:
            path, _, own = other.rpartition(".")
            network.get_submodule(path)._parameters[own] = network.get_parameter(name)


class Row(NamedTuple):
    """One layer of a network, as a table shows it."""

    layer: str
    kind: str
    """`conv`, `dense`, or `conv + norm` where a norm belongs to the layer."""
    tensors: int
    """Trainable tensors."""
    scalars: int
    """Scalars, buffers included."""


def table(layout: Layout) -> list[Row]:
    """The layers in forward order; tensors and scalars add up to those of the network."""
    rows = []
    for number, name in enumerate(layout.layers):
        own = [e for e in layout.entries if e.layer == number]
        kinds = dict.fromkeys(e.kind for e in own)
        rows.append(Row(name, " + ".join(kinds), sum(e.role != "buffer" for e in own), sum(e.size for e in own)))
    return rows


def _find_problems(tensors: Sequence[_Tensor], head: Sequence[str], frozen: Sequence[tuple[str, int]]) -> list[str]:
    paths = [tensor.name.rpartition(".")[0] for tensor in tensors]
    known = [path for path in dict.fromkeys(paths) if path]
    among = "among the modules with parameters that are trained"
    found = [
        unknown("network.head =", name, known, among)
        for name in head
        if not any(f"{path}.".startswith(f"{name}.") for path in paths)
    ]
    if not tensors and frozen:
        found.append("every parameter of the network is frozen; at least one must have requires_grad = True")
    return found


class _Tensor(NamedTuple):
    """A tensor whose place in the vector is not known yet."""

    name: str
    shape: tuple[int, ...]
    layer: int
    kind: Kind
    role: Role


HEAD = -2
"""The layer of what belongs to the head, until all layers are numbered."""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_constant(module: nn.Module, name: str, buffer: Tensor) -> bool:
    """Whether a buffer is no part of a model, since it holds no result of training."""
    saved = name not in module._non_persistent_buffers_set
    return not (buffer.is_floating_point() and saved and bool(buffer.is_meta or buffer.isfinite().all()))


def _kind(module: nn.Module) -> Kind:
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return "conv"
    if isinstance(module, nn.Linear):
        return "dense"
    name = type(module).__name__
    return "norm" if "Norm" in name else "other"
