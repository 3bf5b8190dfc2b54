"""How a module of somebody's own is called with a batch, and which of its outputs counts.

A batch reaches it as PyTorch people expect: images with the channels first, whole numbers as whole numbers. It is
called once on zeros before anything starts, which tells what it takes and what it gives.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.errors import BadInput
from coterie.models.features import format_shape

SAMPLES = 2
"""In the batch of zeros; a length of one would let every shape pass."""


@dataclass(frozen=True)
class Call:
    """A forward pre-hook: what the module is called with, from a batch as networks take it.

    Attributes:
        as_stored: a sequence comes as `[B, time, channels]`, and not as `[B, channels, time]`.
        whole: the inputs are whole numbers, as tokens are.
        names: what the parts of a sample are called, where `forward` asks for several: one after the other along
            the first length of a sample, each with the others' shape.
    """

    as_stored: bool = False
    whole: bool = False
    names: tuple[str, ...] = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the module is called with in the place of one batch."""
        if len(args) != 1 or kwargs:
            return None
        (x,) = args
        if self.as_stored and x.dim() == 3:
            x = x.transpose(1, 2)
        if self.whole and x.dtype != torch.int64:
            x = x.long()
        if not self.names:
            return (x,), {}
        parts = x.unbind(1) if len(self.names) > 1 else (x,)
        return (), dict(zip(self.names, parts, strict=True))

    def __str__(self) -> str:
        kind = "as integers" if self.whole else ""
        order = "as sequences of time x channels" if self.as_stored and not self.names else ""
        names = f"as the keyword arguments {', '.join(self.names)}" if self.names else ""
        return ", ".join(word for word in (kind, order, names) if word)


@dataclass(frozen=True)
class Pick:
    """A forward hook: the output that counts, where a module gives several: the first, or the one of a name."""

    network: str
    output: str | None = None

    def __call__(self, module: nn.Module, args: Any, given: Any) -> Any:
        """Return the tensor.

        Raises:
            BadInput: there is none, or none of that name.
        """
        if isinstance(given, Tensor):
            return given
        items = _outputs(given)
        if self.output is None:
            found = next((value for value in items.values() if isinstance(value, Tensor)), None)
        else:
            found = items.get(self.output)
        if isinstance(found, Tensor):
            return found
        if self.output is None:
            raise BadInput(
                f"network {self.network} gives {type(given).__name__} without a tensor; it must give one"
            )
        known = ", ".join(name for name, value in items.items() if isinstance(value, Tensor)) or "none"
        raise BadInput(f"network.output = {self.output!r} is no output of {self.network}; its outputs: {known}")


def _outputs(given: Any) -> dict[str, Any]:
    """The outputs by name, or by number where they have no names."""
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    if isinstance(given, tuple) and hasattr(given, "_fields"):
        return dict(zip(given._fields, given, strict=True))
    if isinstance(given, list | tuple):
        return {str(number): value for number, value in enumerate(given)}
    return dict(vars(given)) if hasattr(given, "__dict__") else {}


def prepare(network: nn.Module, name: str, features: tuple[int, ...], outputs: int, output: str | None) -> Call:
    """Hook a module so that it takes batches as networks do and gives one tensor; return how it is called.

    A plain `nn.Sequential` that takes them as it is stays without hooks, and so on the fast paths.

    Raises:
        BadInput: it cannot take such samples, or gives another number of outputs.
    """
    call, given = _find_call(network, name, features)
    if call != Call():
        network.register_forward_pre_hook(call, with_kwargs=True)
    if type(network) is not nn.Sequential or not isinstance(given, Tensor):
        network.register_forward_hook(Pick(name, output))
    elif output is not None:
        raise BadInput(f"network.output = {output!r} is not possible: {name} gives one tensor; leave it out")
    _check_outputs(Pick(name, output)(network, (), given), name, outputs)
    return call


def count_outputs(network: nn.Module, name: str, features: tuple[int, ...], output: str | None) -> int:
    """Return how many numbers a module gives at each place of a sample: the last length of its output.

    Raises:
        BadInput: it cannot take such samples, or gives no tensor.
    """
    return int(Pick(name, output)(network, (), _find_call(network, name, features)[1]).shape[-1])


def _find_call(network: nn.Module, name: str, features: tuple[int, ...]) -> tuple[Call, Any]:
    """Return how a module can be called with a batch of zeros, and what it then gives.

    Raises:
        BadInput: it cannot take such samples.
    """
    first: Exception | None = None
    for call in _possible_calls(network, features):
        try:
            return call, _try(network, call, features)
        except Exception as error:  # noqa: BLE001  # whatever a module raises that gets what it cannot take
            first = first or error
    assert first is not None
    reason = str(first).strip().split("\n", 1)[0]
    raise BadInput(
        f"network {name} cannot take samples of {format_shape(features)}, which come as a batch of "
        f"{format_shape(tuple(_example(features).shape))} ({type(first).__name__}: {reason})"
    )


def takes_whole_numbers(network: nn.Module) -> bool:
    """Whether a network that was prepared takes whole numbers, such as tokens."""
    return any(isinstance(hook, Call) and hook.whole for hook in network._forward_pre_hooks.values())


def _possible_calls(network: nn.Module, features: tuple[int, ...]) -> Iterator[Call]:
    asked = _asked(network)
    if "input_ids" in asked or (len(asked) > 1 and len(features) > 1 and features[0] == len(asked)):
        several = len(features) > 1 and 1 < features[0] <= len(asked)
        names = asked[: features[0]] if several else ("input_ids",) if "input_ids" in asked else asked[:1]
        yield Call(as_stored=True, whole=True, names=names)
        yield Call(as_stored=True, names=names)
        return
    plain = Call()
    yield plain
    if len(features) == 2:
        yield replace(plain, as_stored=True)
    yield replace(plain, whole=True, as_stored=len(features) == 2)


def _asked(network: nn.Module) -> tuple[str, ...]:
    """The parameters that `forward` cannot do without, and the ids and masks of token models."""
    try:
        parameters = list(inspect.signature(network.forward).parameters.values())
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    usual = [p for p in parameters if p.kind in kinds]
    return tuple(p.name for p in usual if p.default is p.empty or p.name in ("input_ids", "attention_mask"))


def _example(features: tuple[int, ...]) -> Tensor:
    x = torch.zeros(SAMPLES, *features)
    return x.movedim(-1, 1) if x.dim() > 2 else x


@torch.no_grad()
def _try(network: nn.Module, call: Call, features: tuple[int, ...]) -> Any:
    modes = {m: m.training for m in network.modules()}
    network.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            args, kwargs = call(network, (_example(features),), {})
            return network(*args, **kwargs)
    finally:
        for module, mode in modes.items():
            module.training = mode


def _check_outputs(given: Tensor, name: str, outputs: int) -> None:
    if given.shape[:1] != (SAMPLES,):
        raise BadInput(
            f"network {name} gives outputs of shape {format_shape(tuple(given.shape))} for {SAMPLES} samples; the "
            "first length must be the number of samples"
        )
    if outputs > 1 and outputs not in given.shape[1:]:
        raise BadInput(
            f"network {name} gives {format_shape(tuple(given.shape[1:]))} outputs a sample, and the data need "
            f"{outputs}; give the network as many"
        )
