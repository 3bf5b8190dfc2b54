"""Networks of one's own: any class or function that gives an `nn.Module`, called with what its signature asks for.

A path `package.module:object` is imported. What was given in Python and has no path is known in this process alone,
under a name that begins with `given:`; a module's name ends in a digest of its weights.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from torch import nn
from torch.nn.parameter import is_lazy

from coterie.catalogue import Catalog, Entry, T, first_sentence, plain
from coterie.errors import BadInput, sentences, show_value
from coterie.plugins import give as give_names

GIVEN = "given:"
"""How the name of a network begins that was given in Python and cannot be imported."""

FEATURES = ("features",)
OUTPUTS = ("classes", "outputs", "num_classes", "n_classes", "num_outputs")
"""Parameters that are given the shape of a sample, and how many numbers the network gives for each prediction."""


class NetworkCatalog(Catalog):
    """Registered networks, and those of one's own: what a package or a path brings, or was given in Python."""

    _brings = False

    def add(self, name: str) -> Callable[[T], T]:
        """Decorator: list `target` under `name`."""
        if not (self._brings or name.startswith(GIVEN)):
            return super().add(name)

        def keep(target: T) -> T:
            self.add_own(name, target)
            return target

        return keep

    def add_own(self, name: str, target: Callable[..., Any]) -> None:
        """List a module, or a class or function that gives one, called with what its signature asks for."""
        self.entries[name] = OwnEntry(name, Factory(name, target))

    def _bring(self, name: str) -> None:
        if name.startswith(GIVEN):
            if name not in self.entries:
                raise BadInput(
                    f"network {name!r} was given in Python and cannot be built again from its name; give it again "
                    "as network=, as in coterie.resume(folder, network=module)"
                )
            return
        self._brings = True
        try:
            super()._bring(name)
        finally:
            self._brings = False


def split_given(name: str) -> tuple[str, str]:
    """What was given in Python, and the digest of its weights; empty for a class or function, or another name."""
    what, _, weights = name.removeprefix(GIVEN).rpartition("@")
    return (what, weights) if name.startswith(GIVEN) and what else (name.removeprefix(GIVEN), "")


class Factory:
    """Calls a class or function with what its signature asks for; of a module it makes copies.

    Args:
        name: what sentences about it call it.
        target: a class or function that gives an `nn.Module`, or such a module.
    """

    def __init__(self, name: str, target: Callable[..., Any]) -> None:
        self.name = name
        self.target = target
        if isinstance(target, nn.Module):
            self.__module__, self.__qualname__ = type(target).__module__, type(target).__qualname__
            self._parameters: dict[str, inspect.Parameter] = {}
        else:
            update_wrapper(self, target, updated=())
            self._parameters = _parameters_of(target)
        self.schema = _schema(name, target, self._parameters)

    def __reduce__(self) -> tuple[Any, ...]:
        return Factory, (self.name, self.target)

    def __call__(self, features: tuple[int, ...], outputs: int, **settings: Any) -> nn.Module:
        """Build the network.

        Raises:
            BadInput: it raises something, or gives no `nn.Module`.
        """
        if isinstance(self.target, nn.Module):
            return deepcopy(self.target)
        known = {**dict.fromkeys(FEATURES, features), **dict.fromkeys(OUTPUTS, outputs), **settings}
        args, keywords = [], {k: v for k, v in settings.items() if k not in self._parameters}
        for name, parameter in self._parameters.items():
            if name in known and parameter.kind is parameter.POSITIONAL_ONLY:
                args.append(known[name])
            elif name in known and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                keywords[name] = known[name]
        try:
            network = self.target(*args, **keywords)
        except BadInput:
            raise
        except Exception as error:
            told = ", ".join(f"{key} = {show_value(value)}" for key, value in settings.items())
            of = f" with {told}" if told else ""
            raise BadInput(f"network {self.name}{of} cannot be built: {type(error).__name__}: {error}") from error
        if not isinstance(network, nn.Module):
            raise BadInput(f"network {self.name} gives {type(network).__name__}; it must give a torch.nn.Module")
        return network


@dataclass(frozen=True)
class OwnEntry(Entry):
    """An entry whose settings are the parameters of somebody's own class or function."""

    target: Factory

    @cached_property
    def summary(self) -> str:
        """The first sentence of its docstring; of a module there is none."""
        return (
            "" if isinstance(self.target.target, nn.Module) else first_sentence(inspect.getdoc(self.target) or "")
        )

    @cached_property
    def schema(self) -> type[BaseModel]:
        """What its parameters are."""
        return self.target.schema

    def bind(self, settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Check and convert the settings; defaults that can be written down are filled in."""
        given = {name: plain(value) for name, value in settings.items()}
        try:
            checked = self.schema.model_validate(given)
        except ValidationError as error:
            problems = sentences(error, prefix, list(self.schema.model_fields), self.name)
            if any(item["type"] == "missing" for item in error.errors(include_url=False)):
                problems.append(
                    "Coterie fills in these parameters of your own network: features (the shape of a sample) and "
                    "classes or num_classes (the number of outputs); --set network.NAME=VALUE sets any other"
                )
            raise BadInput(problems) from None
        values = {name: getattr(checked, name) for name in self.schema.model_fields}
        values |= checked.model_extra or {}
        return {name: value for name, value in values.items() if name in given or _is_plain(value)}


def give(network: Any, catalog: NetworkCatalog) -> str:
    """Return the name under which a module, class or function given in Python is known in this process.

    One that can be imported is known by its path. A module is copied: what happens to it later changes nothing.

    Raises:
        BadInput: it is none of these, or a module that cannot be copied.
    """
    network = getattr(network, "_orig_mod", network)  # what torch.compile was given
    if isinstance(network, nn.DataParallel):
        network = network.module
    if not isinstance(network, nn.Module):
        module, qualname = getattr(network, "__module__", ""), getattr(network, "__qualname__", "")
        if not callable(network) or not module or not qualname:
            raise BadInput(
                f"network = {network!r} is not possible; it must be a name, a torch.nn.Module, or a class or "
                "function that gives one"
            )
        name = f"{module}:{qualname}" if "<" not in qualname else f"{GIVEN}{module}.{qualname}"
        catalog.add_own(name, network)
        give_names([name])
        return name
    try:
        copied = deepcopy(network)
    except Exception as error:
        raise BadInput(f"network = {type(network).__name__}(…) cannot be copied: {error}") from error
    name = f"{GIVEN}{type(network).__module__}.{type(network).__qualname__}@{digest(copied)}"
    if name not in catalog:
        catalog.add_own(name, copied)
    return name


def digest(network: nn.Module) -> str:
    """Return 16 hexadecimal digits of all parameters and buffers, and of which parameters are frozen."""
    found = hashlib.blake2b(digest_size=8)
    trained = {name for name, p in network.named_parameters(remove_duplicate=False) if p.requires_grad}
    for name, tensor in network.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        found.update(f"{name} {name in trained} ".encode())
        if not is_lazy(tensor):
            values = tensor.detach().cpu().contiguous()
            found.update(f"{values.dtype} {tuple(values.shape)} ".encode())
            found.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def digest_start(network: nn.Module, initial: torch.Tensor) -> str:
    """Return 16 hexadecimal digits of the model `[P]` that a network starts from, and of what is frozen in it."""
    found = hashlib.blake2b(initial.numpy().tobytes(), digest_size=8)
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            values = parameter.detach().cpu().contiguous().flatten()
            found.update(name.encode() + values.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _parameters_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # written in C
        return {}


def _schema(name: str, target: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> type[BaseModel]:
    """The settings that a user may give: parameters by name, checked by their annotations where these are known."""
    source: Any = target.__init__ if inspect.isclass(target) else target
    try:
        hints = get_type_hints(source, include_extras=True)
    except Exception:  # noqa: BLE001  # an annotation may name whatever its module does not know here
        hints = {}
    fields: dict[str, Any] = {}
    extra = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = _as_given(hints.get(parameter.name, Any))
        if parameter.name in (*FEATURES, *OUTPUTS):
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hint, Field(default=default) if default is not ... else ...)
    for own in (*FEATURES, *OUTPUTS):  # may be given too, in the place of what the data say
        if own in parameters:
            fields[own] = (Annotated[Any, Field(description="as the data say, unless given")], None)
    config = ConfigDict(
        extra="allow" if extra else "forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    try:
        return create_model(name, __config__=config, **fields)
    except Exception:  # noqa: BLE001  # an annotation that pydantic does not take, or a name that it has itself
        plain: dict[str, Any] = {
            n: (Any, default) for n, (_, default) in fields.items() if not hasattr(BaseModel, n)
        }
        config["extra"] = "allow"
        return create_model(name, __config__=config, **plain)


def _as_given(hint: Any) -> Any:
    """An annotation under which a list of a file may stand, which comes as a tuple."""
    kinds = [get_origin(part) or part for part in (get_args(hint) if _is_union(hint) else (hint,))]
    if list in kinds or Sequence in kinds:
        return Annotated[hint, BeforeValidator(lambda value: list(value) if isinstance(value, tuple) else value)]
    return hint


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _is_plain(value: Any) -> bool:
    """Whether a value can be written into an experiment's file."""
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    return isinstance(value, bool | int | float | str)
