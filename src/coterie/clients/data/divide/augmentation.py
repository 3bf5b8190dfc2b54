"""Augmentation: how the samples of a minibatch are altered each time that they are trained on.

What is drawn belongs to seed, client, round and purpose of the training, like the order of the minibatches: neither
the number of workers nor a resumed run changes a bit of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Generator, Tensor

from coterie.catalogue import Catalog
from coterie.clients.data.divide.split import CALL, arguments_of
from coterie.errors import BadInput

Alter = Callable[[Generator, Tensor], Tensor]
"""From a generator and a minibatch `[B, channels, ...]`, as networks take it, to one of that shape and type."""

AUGMENTATIONS = Catalog("augmentation", group="coterie.augmentations")
"""What `data.augment` may name; `package.module:function` is imported."""


@dataclass(frozen=True)
class Augmentation:
    """What is done to every minibatch that is trained on, one after the other; it travels by its texts.

    Raises:
        BadInput: when it is first called, if a text names nothing that can be called so.
    """

    texts: tuple[str, ...]

    def __call__(self, generator: Generator, batch: Tensor) -> Tensor:
        """Return the minibatch altered."""
        for alter in self._alterations:
            batch = alter(generator, batch)
        return batch

    @cached_property
    def _alterations(self) -> list[Alter]:
        return [_read(text) for text in self.texts]

    def __getstate__(self) -> dict[str, tuple[str, ...]]:
        return {"texts": self.texts}

    def check(self, batch: Tensor) -> None:
        """Try it on a minibatch as a network takes it.

        Raises:
            BadInput: it fails, or gives back another shape or type.
        """
        for text, alter in zip(self.texts, self._alterations, strict=True):
            try:
                found = alter(torch.Generator().manual_seed(0), batch.clone())
            except BadInput:
                raise
            except Exception as error:  # whatever somebody's function raises
                why = f"{type(error).__name__}: {error}"
                raise BadInput(f"data.augment: {text} fails on a minibatch {list(batch.shape)}: {why}") from error
            if not isinstance(found, Tensor) or (found.shape, found.dtype) != (batch.shape, batch.dtype):
                what = f"{list(found.shape)} {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
                raise BadInput(
                    f"data.augment: {text} makes {what} of a minibatch {list(batch.shape)} {batch.dtype}; it must "
                    "keep shape and type"
                )


def find_problems(texts: Sequence[str]) -> list[str]:
    """Return what is wrong with the texts of `data.augment`, one sentence each."""
    found = []
    for text in texts:
        try:
            _read(text)
        except BadInput as error:
            found += error.problems
    return found


def _read(text: str) -> Alter:
    if ":" in text:
        alter: Alter = AUGMENTATIONS[text].target
        return alter
    match = CALL.fullmatch(text.strip())
    if match is None:
        raise BadInput(
            f"data.augment: {text!r} cannot be read; write flip, crop(4), or package.module:function of your own"
        )
    entry = AUGMENTATIONS[match["name"]]
    names = [setting.name for setting in entry.settings]
    settings = entry.bind(arguments_of(entry.name, match["arguments"] or "()", names), "data.augment")
    return partial(entry.target, **settings)


def _need_images(batch: Tensor) -> None:
    if batch.dim() != 4:
        raise BadInput("data.augment: flip and crop are for images (height x width x channels); leave them out")


def _draw(generator: Generator, count: int, batch: Tensor) -> Tensor:
    """Uniform numbers in 0 … 1, `[count]`, drawn on the CPU wherever the minibatch is."""
    return torch.rand(count, generator=generator).to(batch.device)


@AUGMENTATIONS.add("flip")
def flip(
    generator: Generator,
    batch: Tensor,
    *,
    share: Annotated[float, Field(ge=0, le=1, description="probability with which an image is flipped")] = 0.5,
) -> Tensor:
    """Images are mirrored, left to right."""
    _need_images(batch)
    flipped = _draw(generator, len(batch), batch) < share
    return torch.where(flipped[:, None, None, None], batch.flip(-1), batch)


@AUGMENTATIONS.add("crop")
def crop(
    generator: Generator,
    batch: Tensor,
    *,
    pad: Annotated[int, Field(ge=1, description="zeros on each side before an image is cut to its size again")] = 4,
) -> Tensor:
    """Images are moved at random by at most `pad` pixels each way; what comes in is 0, the mean if standardised."""
    _need_images(batch)
    count, _, height, width = batch.shape
    down, right = ((_draw(generator, count, batch) * (2 * pad + 1)).long().clamp(max=2 * pad) for _ in range(2))
    padded = torch.nn.functional.pad(batch, (pad, pad, pad, pad))
    rows = (down[:, None] + torch.arange(height, device=batch.device))[:, :, None]
    columns = (right[:, None] + torch.arange(width, device=batch.device))[:, None, :]
    samples = torch.arange(count, device=batch.device)[:, None, None]
    # Advanced indices on both sides of the channels put these last, which is how stored images lie.
    return padded[samples, :, rows, columns].movedim(-1, 1)


@AUGMENTATIONS.add("noise")
def noise(
    generator: Generator,
    batch: Tensor,
    *,
    scale: Annotated[float, Field(gt=0, description="standard deviation of what is added")] = 0.1,
) -> Tensor:
    """Gaussian noise is added to every number."""
    if not batch.is_floating_point():
        raise BadInput("data.augment: noise is for numbers, and samples are whole numbers that are looked up")
    return batch + scale * torch.randn(batch.shape, generator=generator).to(batch)
