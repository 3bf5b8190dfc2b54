"""Small convolutional networks: those of the papers, and a plain one for images and one for signals.

Pooling stands before ReLU throughout. Both only ever compare, so the outputs and the gradients are the same
as the other way round, and ReLU has a quarter of the work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from coterie.models.deep import BatchNorm2d
from coterie.models.features import image, signal
from coterie.models.mlp import Rate, SomeWidths, Widths, dense

ConvDropout = Annotated[Rate, Field(description="dropout rate after the convolutions")]
DenseDropout = Annotated[Rate, Field(description="dropout rate after the first dense layer")]


def cnn(
    features: tuple[int, ...],
    classes: int,
    *,
    channels: Annotated[SomeWidths, Field(description="channels of the 3x3 convolutions")] = (16, 32),
    hidden: Annotated[Widths, Field(description="widths of the dense layers before the last")] = (64,),
    norm: Annotated[bool, Field(description="batch normalisation after each convolution")] = False,
) -> nn.Sequential:
    """Plain CNN for images from 8x8: padded 3x3 convolutions, each halving the image, then dense layers."""
    size = image("cnn", features, max(8, 2 ** len(channels)))
    return _convolutional(size, classes, channels, 3, hidden, padding=1, norm=norm)


def fedtsdp_cnn(
    features: tuple[int, ...],
    classes: int,
    *,
    pool: Annotated[
        Literal["once", "twice"],
        Field(description="pool after the second convolution, or after both (a fifth of the parameters)"),
    ] = "once",
    conv_dropout: ConvDropout = 0.25,
    dense_dropout: DenseDropout = 0.5,
) -> nn.Sequential:
    """CNN of FedTSDP: two 3x3 convolutions (32, 64), a dense layer of 512."""
    size = image("fedtsdp-cnn", features, 6 if pool == "once" else 10)
    pools = {2} if pool == "once" else {1, 2}
    rates = conv_dropout, dense_dropout
    return _convolutional(size, classes, (32, 64), 3, (512,), pools=pools, dropout=rates)


def simple_cnn(
    features: tuple[int, ...],
    classes: int,
    *,
    conv_dropout: ConvDropout = 0.25,
    dense_dropout: DenseDropout = 0.5,
) -> nn.Sequential:
    """CNN of pfl-research's CIFAR-10 benchmark: two 3x3 convolutions (32, 64), a dense layer of 128."""
    size = image("simple-cnn", features, 6)
    rates = conv_dropout, dense_dropout
    return _convolutional(size, classes, (32, 64), 3, (128,), pools={2}, dropout=rates)


def femnist_cnn(features: tuple[int, ...], classes: int) -> nn.Sequential:
    """CNN of FeSEM on FEMNIST: two padded 5x5 convolutions (32, 64), a dense layer of 248 (LEAF)."""
    size = image("femnist-cnn", features, 4)
    return _convolutional(size, classes, (32, 64), 5, (248,), padding=2)


def lenet(features: tuple[int, ...], classes: int) -> nn.Sequential:
    """LeNet of DC-PFL on CIFAR-10: 5x5 convolutions (6, 16), dense layers of 120 and 84."""
    return _convolutional(image("lenet", features, 16), classes, (6, 16), 5, (120, 84))


def lenet_wide(features: tuple[int, ...], classes: int) -> nn.Sequential:
    """LeNet of DC-PFL on Fashion-MNIST: padded 5x5 convolutions (16, 32), dense layers of 120 and 84."""
    size = image("lenet-wide", features, 4)
    return _convolutional(size, classes, (16, 32), 5, (120, 84), padding=2)


def fedcr_cnn(features: tuple[int, ...], classes: int) -> nn.Sequential:
    """CNN of FedCR and FedCPS on CIFAR: 5x5 convolutions (64, 64), two dense layers of 1024."""
    return _convolutional(image("fedcr-cnn", features, 16), classes, (64, 64), 5, (1024, 1024))


def fedcr_cnn_small(features: tuple[int, ...], classes: int) -> nn.Sequential:
    """CNN of FedCR and FedCPS on MNIST: 5x5 convolutions (4, 12), two dense layers of 1024."""
    size = image("fedcr-cnn-small", features, 16)
    return _convolutional(size, classes, (4, 12), 5, (1024, 1024))


def har_cnn(
    features: tuple[int, ...],
    classes: int,
    *,
    channels: Annotated[SomeWidths, Field(description="channels of the convolutions")] = (32, 64),
    hidden: Annotated[Widths, Field(description="widths of the dense layers before the last")] = (64,),
) -> nn.Sequential:
    """1-D CNN for signals such as UCI HAR: convolutions over 5 time steps, each halving the signal."""
    time, inputs = signal("har-cnn", features, 2 ** len(channels))
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for number, width in enumerate(channels, 1):
        modules[f"conv{number}"] = nn.Conv1d(inputs, width, 5, padding=2)
        modules[f"conv{number}-pool"] = nn.MaxPool1d(2)
        modules[f"conv{number}-relu"] = nn.ReLU()
        time, inputs = time // 2, width
    modules["flatten"] = nn.Flatten()
    return nn.Sequential(modules | dense(time * inputs, hidden, classes))


def _convolutional(
    size: tuple[int, int, int],
    classes: int,
    channels: Sequence[int],
    kernel: int,
    hidden: Sequence[int],
    *,
    padding: int = 0,
    pools: Collection[int] | None = None,
    dropout: tuple[float, float] = (0.0, 0.0),
    norm: bool = False,
) -> nn.Sequential:
    """Convolutions `conv1`, `conv2`, … with 2x2 pooling after those numbered in `pools` (all), then a head.

    `dropout` has the rates after the convolutions and in the head.
    """
    height, width, inputs = size
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for number, outputs in enumerate(channels, 1):
        modules[f"conv{number}"] = nn.Conv2d(inputs, outputs, kernel, padding=padding)
        if norm:
            modules[f"conv{number}-norm"] = BatchNorm2d(outputs)
        height, width = (side + 2 * padding - kernel + 1 for side in (height, width))
        if pools is None or number in pools:
            modules[f"conv{number}-pool"] = nn.MaxPool2d(2)
            height, width = height // 2, width // 2
        modules[f"conv{number}-relu"] = nn.ReLU()
        inputs = outputs
    if dropout[0]:
        modules["conv-dropout"] = nn.Dropout(dropout[0])
    modules["flatten"] = nn.Flatten()
    return nn.Sequential(modules | dense(height * width * inputs, hidden, classes, dropout[1]))
