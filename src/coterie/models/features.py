"""Which shapes of samples a network takes, and the sentence for those it does not."""

from __future__ import annotations

from typing import NoReturn

from coterie.errors import BadInput


def format_shape(shape: tuple[int, ...]) -> str:
    """A shape as a reader writes it: 28x28x1."""
    return "x".join(map(str, shape)) or "()"


def image(network: str, features: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Height, width and channels of the samples, for a network that takes images of `smallest` or more.

    Raises:
        BadInput: the samples are no images, or too small for the network.
    """
    if len(features) != 3 or min(features[:2]) < smallest:
        _refuse(network, features, f"images (height x width x channels) of {smallest}x{smallest} or larger")
    height, width, channels = features
    return height, width, channels


def signal(network: str, features: tuple[int, ...], shortest: int) -> tuple[int, int]:
    """Time steps and channels of the samples, for a network that takes signals of `shortest` steps or more.

    Raises:
        BadInput: the samples are no signals, or too short for the network.
    """
    if len(features) != 2 or features[0] < shortest:
        _refuse(network, features, f"signals (time x channels) of {shortest} or more time steps")
    time, channels = features
    return time, channels


def _refuse(network: str, features: tuple[int, ...], takes: str) -> NoReturn:
    kind = {1: "flat vectors", 2: "signals", 3: "images", 4: "volumes"}.get(len(features), "samples")
    raise BadInput(f"network {network} cannot take {kind} of {format_shape(features)}; it takes {takes}")
