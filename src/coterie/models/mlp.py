"""The perceptron, and the dense head that the convolutional networks end in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from torch import nn

MOST_LAYERS = 1000
"""Layers that settings give a network at most; it is called layer by layer."""


def _widths(value: Any) -> Any:
    """Widths as they come from a file (a list or one number) or a command line (`64,32`)."""
    if isinstance(value, str):
        parts = [p.strip() for p in value.split(",") if p.strip()]
        if not all(p.isdecimal() for p in parts):
            raise ValueError("write widths separated by commas, such as 64,32")
        value = tuple(int(p) for p in parts)
    if isinstance(value, list | tuple) and len(value) > MOST_LAYERS:
        raise ValueError(f"give at most {MOST_LAYERS:,} widths, not {len(value):,}")
    return (value,) if isinstance(value, int) else value


Width = Annotated[int, Field(ge=1)]
Widths = Annotated[
    tuple[Width, ...], BeforeValidator(_widths, json_schema_input_type=tuple[Width, ...] | Width | str)
]
"""Widths of consecutive layers, nearest to the input first."""


def _not_empty(widths: tuple[int, ...]) -> tuple[int, ...]:
    if not widths:
        raise ValueError("give at least one width, such as 16,32")
    return widths


SomeWidths = Annotated[Widths, AfterValidator(_not_empty)]
"""Widths of consecutive layers, of which there must be at least one."""

Rate = Annotated[float, Field(ge=0, lt=1)]
"""The probability that dropout sets an activation to zero."""


def dense(
    inputs: int, hidden: Sequence[int], classes: int, dropout: float = 0.0, layer: type[nn.Linear] = nn.Linear
) -> OrderedDict[str, nn.Module]:
    """Layers `fc1`, `fc2`, … of a dense head: ReLU, and dropout where asked for, after all but the last.

    `layer` is the class of the hidden ones; the last, which no ReLU follows, is always a plain `nn.Linear`.
    """
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for number, width in enumerate(hidden, 1):
        modules[f"fc{number}"] = layer(inputs, width)
        modules[f"fc{number}-relu"] = nn.ReLU()
        if dropout:
            modules[f"fc{number}-dropout"] = nn.Dropout(dropout)
        inputs = width
    modules[f"fc{len(hidden) + 1}"] = nn.Linear(inputs, classes)
    return modules


def mlp(
    features: tuple[int, ...],
    classes: int,
    *,
    hidden: Annotated[Widths, Field(description="widths of the hidden layers; none is a linear model")] = (200,),
) -> nn.Sequential:
    """Perceptron with ReLU between its dense layers; takes samples of any shape, flattened."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), **dense(prod(features), hidden, classes)))


def linear(features: tuple[int, ...], classes: int) -> nn.Sequential:
    """Linear model: logistic, multinomial or linear regression, as the task is (`mlp` without hidden layers)."""
    return mlp(features, classes, hidden=())
