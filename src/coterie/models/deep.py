"""The deep image networks of the papers, ResNet-18 and VGG-16, in their versions for 32x32 images.

Their layers start from He et al.'s (2015) distribution for ReLU. PyTorch's own default shrinks the signal
about 2.4-fold a layer, which sixteen layers without normalisation do not survive.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from coterie.models.features import image
from coterie.models.mlp import Rate, dense


class HeConv2d(nn.Conv2d):
    """A convolution that starts with weights N(0, 2 / fan-in) and no bias."""

    def reset_parameters(self) -> None:
        _he(self)


class HeLinear(nn.Linear):
    """A dense layer that starts with weights N(0, 2 / fan-in) and no bias."""

    def reset_parameters(self) -> None:
        _he(self)


def _he(layer: nn.Conv2d | nn.Linear) -> None:
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation without the step counter, which is no part of a model and cannot be averaged."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.num_batches_tracked = None

    def reset_running_stats(self) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        self.running_mean.zero_()
        self.running_var.fill_(1)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a strided 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = HeConv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = BatchNorm2d(outputs)
        self.conv2 = HeConv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(HeConv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """`[B, inputs, H, W]` to `[B, outputs, H / stride, W / stride]`."""
        inner: Tensor = self.norm1(self.conv1(x)).relu()
        outer: Tensor = self.norm2(self.conv2(inner)) + self.shortcut(x)
        return outer.relu()


def resnet18(
    features: tuple[int, ...],
    classes: int,
    *,
    width: Annotated[int, Field(ge=1, description="channels of the first stage; each next one doubles them")] = 64,
) -> nn.Sequential:
    """ResNet-18 with a 3x3 stem, four stages and batch normalisation (FedTSDP)."""
    _, _, channels = image("resnet18", features, 8)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    modules["conv1"] = HeConv2d(channels, width, 3, padding=1, bias=False)
    modules["norm1"] = BatchNorm2d(width)
    modules["relu1"] = nn.ReLU()
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        first = BasicBlock(inputs, outputs, 1 if stage == 0 else 2)
        modules[f"stage{stage + 1}"] = nn.Sequential(first, BasicBlock(outputs, outputs, 1))
        inputs = outputs
    modules["pool"] = nn.AdaptiveAvgPool2d(1)
    modules["flatten"] = nn.Flatten()
    modules["fc"] = nn.Linear(inputs, classes)
    return nn.Sequential(modules)


VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Channels of the thirteen convolutions of VGG-16, stage by stage; pooling ends a stage."""


def vgg16(
    features: tuple[int, ...],
    classes: int,
    *,
    head: Annotated[
        Literal["light", "full"], Field(description="two hidden dense layers of 512 (light) or of 4096 (full)")
    ] = "light",
    batch_norm: Annotated[bool, Field(description="batch normalisation after every convolution")] = False,
    dropout: Annotated[Rate, Field(description="dropout rate in the head")] = 0.5,
) -> nn.Sequential:
    """VGG-16 for images from 28x28, padded to 32x32 where smaller (LayerCFL)."""
    height, width, inputs = image("vgg16", features, 28)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    down, across = max(0, 32 - height), max(0, 32 - width)
    if down or across:
        modules["pad"] = nn.ZeroPad2d((across // 2, across - across // 2, down // 2, down - down // 2))
    number = 0
    for stage, widths in enumerate(VGG16, 1):
        for place, outputs in enumerate(widths, 1):
            number += 1
            modules[f"conv{number}"] = HeConv2d(inputs, outputs, 3, padding=1)
            if batch_norm:
                modules[f"norm{number}"] = BatchNorm2d(outputs)
            if place == len(widths):
                modules[f"pool{stage}"] = nn.MaxPool2d(2)
            modules[f"relu{number}"] = nn.ReLU()
            inputs = outputs
    modules["flatten"] = nn.Flatten()
    cells = max(32, height) // 32 * (max(32, width) // 32)
    hidden = (512, 512) if head == "light" else (4096, 4096)
    return nn.Sequential(modules | dense(cells * inputs, hidden, classes, dropout, layer=HeLinear))
