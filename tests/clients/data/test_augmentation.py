"""Augmentation: what it does to a minibatch, and that its draws are addressed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

import coterie
from coterie.clients.data.divide.augmentation import Augmentation, find_problems
from coterie.errors import BadInput
from coterie.plugins import allow
from coterie.runs.schema.experiment import Experiment


def drawn(*texts: str, seed: int = 0) -> Callable[[Tensor], Tensor]:
    found = Augmentation(texts)
    return lambda batch: found(Generator().manual_seed(seed), batch)


def narrow(generator: Generator, batch: Tensor) -> Tensor:
    return batch[..., :-1]


def fail(generator: Generator, batch: Tensor) -> Tensor:
    raise RuntimeError("no luck")


def images(count: int = 40) -> Tensor:
    """Channels first, as a network sees them, and stored with the channels last."""
    return torch.arange(1.0, count * 6 * 6 * 2 + 1).view(count, 6, 6, 2).permute(0, 3, 1, 2)


def test_flips_mirror_some_images() -> None:
    batch = images()
    found = drawn("flip")(batch)
    flipped = [torch.equal(one, own.flip(-1)) for one, own in zip(found, batch, strict=True)]
    kept = [torch.equal(one, own) for one, own in zip(found, batch, strict=True)]
    assert all(a != b for a, b in zip(flipped, kept, strict=True))
    assert 8 < sum(flipped) < 32
    assert torch.equal(drawn("flip(1.0)")(batch), batch.flip(-1))
    assert torch.equal(drawn("flip(share=0)")(batch), batch)


def test_crops_move_images_and_fill_with_zeros() -> None:
    batch = images(200)
    found = drawn("crop(2)")(batch)
    assert found.stride()[1] == 1  # channels stay last in memory
    moves = set()
    for one, own in zip(found, batch, strict=True):
        padded = torch.nn.functional.pad(own, (2, 2, 2, 2))
        (move,) = [(y, x) for y in range(5) for x in range(5) if torch.equal(padded[:, y : y + 6, x : x + 6], one)]
        moves.add(move)
    assert len(moves) == 25


def test_alterations_follow_each_other_by_one_generator() -> None:
    batch = images()
    both = drawn("flip", "crop(1)")(batch)
    generator = Generator().manual_seed(0)
    apart = Augmentation(("crop(1)",))(generator, Augmentation(("flip",))(Generator().manual_seed(0), batch))
    assert both.shape == apart.shape == batch.shape
    assert not torch.equal(both, apart)
    assert torch.equal(both, drawn("flip", "crop(1)")(batch))
    assert not torch.equal(both, drawn("flip", "crop(1)", seed=1)(batch))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("flop", "'flop'.*flip"),
        ("flip(2)", r"augment\.share.* 2\b"),
        ("crop(pad=0)", r"augment\.pad.* 0\b"),
        ("4", "'4'.*flip, crop.*module:function"),
        ("no.such.module:f", "no.such"),
    ],
)
def test_texts_that_mean_nothing_get_one_sentence(text: str, says: str) -> None:
    (problem,) = find_problems([text])
    assert re.search(says, problem)


@pytest.mark.parametrize(
    ("text", "batch", "says"),
    [
        ("flip", torch.zeros(2, 5), "flip.* x "),
        ("noise", torch.zeros(2, 5, dtype=torch.int64), "noise.*numbers"),
        (f"{__name__}:narrow", torch.zeros(2, 5), r"narrow.*\[2, 4\] torch.float32.*\[2, 5\]"),
        (f"{__name__}:fail", torch.zeros(2, 5), r"fail.*\[2, 5\].*RuntimeError: no luck"),
    ],
)
def test_what_cannot_be_done_to_samples_is_known_before_training(text: str, batch: Tensor, says: str) -> None:
    allow([f"{__name__}:narrow", f"{__name__}:fail"])
    with pytest.raises(BadInput, match=says):
        Augmentation((text,)).check(batch)


def test_batching_is_refused_in_one_sentence() -> None:
    wanted = Experiment(method="fedavg", data={"name": "digits", "augment": ("flip",)}, run={"engine": "batched"})
    with pytest.raises(BadInput, match=r"engine = 'batched'.*augment"):
        coterie.run(wanted)
