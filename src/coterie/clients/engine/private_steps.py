"""Training that hides any one sample of a client: DP-SGD (Abadi et al., CCS 2016, arXiv 1607.00133).

Algorithm 1, every step:
    1. Each sample is taken by itself with the probability B / n (Poisson sampling).
    2. Each taken sample's gradient is cut to the length C, over all that is trained.
    3. Gaussian noise of deviation sigma C is added to the sum, which is divided by the expected size B.

A client has as many steps in an epoch as without privacy. What it makes of noisy gradients, as momentum or a pull,
costs nothing more. How many samples it has is taken as known.

Noise is added in floating-point numbers. Against somebody who reads the last digits of single ones (Mironov, CCS
2012), nothing is promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coterie.clients.rules.client import Client
from coterie.clients.rules.minibatch import minibatch_ranges
from coterie.clients.rules.requests import Request, Score, Train
from coterie.clients.rules.rule import Answer, Rule
from coterie.clients.rules.training import Training
from coterie.errors import BadInput
from coterie.models.networks import frozen_modules
from coterie.randomness import PrivateRandomness

CHUNK_SCALARS = 1 << 23
"""Scalars of single samples' gradients that are held at once: 32 MiB."""

LARGEST_CHUNK = 128
"""Most samples whose gradients are held at once: what they leave in a forward pass takes memory, too."""

HERE = "privacy.unit = 'example'"


@dataclass(frozen=True)
class ExamplePrivacy:
    """How any one training sample is hidden.

    Attributes:
        clip_norm: C, the length to which one sample's gradient is cut.
        noise_multiplier: sigma, the noise's deviation in units of `clip_norm`.
        randomness: where noise comes from, and which samples are taken; without a secret, they are new each time.
    """

    clip_norm: float
    noise_multiplier: float
    randomness: PrivateRandomness = field(default_factory=PrivateRandomness)

    def generators(self, client: Client, request: Train) -> tuple[np.random.Generator, np.random.Generator]:
        """Return what draws the samples of a training, and what draws its noise.

        The model that training starts from is part of the address: the same noise in two trainings of a round
        would be no noise in their difference.
        """
        start = blake2b(request.start.detach().cpu().numpy().tobytes(), digest_size=8).hexdigest()
        purposes = (f"{what}/{request.purpose}/{start}" for what in ("private samples", "private noise"))
        samples, noise = (self.randomness.stream(purpose, client.id, client.round) for purpose in purposes)
        return samples, noise

    def refuse(self, name: str, network: nn.Module, training: Training) -> None:
        """Let a network and settings pass that can be trained on single samples.

        Raises:
            BadInput: a norm's statistics mix samples, or the arithmetic is not that of float32.
        """
        frozen = frozen_modules(network)
        mixing = [path for path, m in network.named_modules() if isinstance(m, _BatchNorm) and m not in frozen]
        if mixing:
            raise BadInput(
                f"network.name = {name!r} is not possible with {HERE}: its batch normalisation ({mixing[0]}) mixes "
                "samples; it must be a network without batch normalisation, or with group or layer normalisation "
                "instead"
            )
        if training.precision != "fp32":
            raise BadInput(
                f"training.precision = {training.precision!r} is not possible with {HERE}: gradients of single "
                "samples are taken in float32; it must be fp32"
            )

    @torch.no_grad()
    def hide(self, total: Sequence[Tensor], expected: float, rng: np.random.Generator) -> list[Tensor]:
        """Return the mean gradient under noise (step 3).

        Args:
            total: sum of the cut gradients, tensor by tensor; it is written to.
            expected: how many samples a minibatch holds on average.
            rng: draws the noise.
        """
        deviation = self.noise_multiplier * self.clip_norm
        for gradient in total if deviation else ():
            gradient.add_(torch.from_numpy(deviation * rng.standard_normal(gradient.shape)).to(gradient.device))
        return list(torch._foreach_div(list(total), expected))


class PrivateSteps(NamedTuple):
    """The steps that hide a client's samples, as accountants of privacy count them.

    Attributes:
        probability: with which a step takes each sample.
        steps: how many there are.
    """

    probability: float
    steps: int


def count_private_steps(samples: int, batch_size: int, epochs: int, rounds: int = 1) -> PrivateSteps:
    """Return what a client with so many training samples does in the rounds in which it takes part.

    Args:
        samples: n, of the client.
        batch_size: B; a client with fewer samples takes all of them in every step.
        epochs: of one round.
        rounds: in which it takes part.
    """
    steps = len(minibatch_ranges(samples, batch_size, keep_single=True))
    return PrivateSteps(min(1.0, batch_size / samples) if samples else 0.0, steps * epochs * rounds)


def chunk_size(scalars: int) -> int:
    """Return of how many samples the gradients of so many scalars each are held at once."""
    return max(1, min(LARGEST_CHUNK, CHUNK_SCALARS // max(scalars, 1)))


@torch.no_grad()
def add_clipped(total: Sequence[Tensor], gradients: Sequence[Tensor], limit: float) -> None:
    """Add the gradients of single samples to a sum, each cut to a length (step 2).

    Args:
        total: the sum, tensor by tensor.
        gradients: `[B, *shape]` of each tensor. What is not finite counts as 0: it must not show.
        limit: the largest length of one sample's gradient, over all tensors.
    """
    if not gradients:
        return
    rows = [gradient.flatten(1) for gradient in gradients]
    lengths = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows]).norm(dim=0)
    finite = lengths.isfinite()
    if not finite.all():
        rows = [torch.where(finite[:, None], row, 0.0) for row in rows]
    factors = torch.where(finite, (limit / lengths).clamp(max=1.0), 0.0)
    for some, row in zip(total, rows, strict=True):
        some.add_((factors @ row).view(some.shape))


class OrderGuard:
    """Lets the rule of one order look at training samples by private steps alone, as many as a round has.

    Raises:
        BadInput: the rule looks at them in another way.
    """

    def __init__(self, rule: Rule, training: Training) -> None:
        refuse_rule(rule)
        self._rule = rule
        self._training = training
        self._trainings = 0
        self._epochs = 0

    def admit(self, request: Request) -> Request:
        """Return a request as it is to be answered.

        A second training gets a purpose of its own: with the noise of the first, their difference had none.

        Raises:
            BadInput: it looks at training samples in another way, or takes more steps than a round has.
        """
        if isinstance(request, Score) and request.split != "train":
            return request
        if type(request) is not Train:
            raise BadInput(
                f"the rule {self._rule.name} asks for {type(request).__name__}, which is not possible with {HERE}; "
                "it must ask only for training and for scores of held-out samples"
            )
        settings = {key: bool(getattr(request, key)) for key in ("trained_extras", "clip")}
        settings |= {key: getattr(request, key) is not None for key in ("weights", "minibatches")}
        if key := next((key for key, is_set in settings.items() if is_set), ""):
            raise BadInput(
                f"the rule {self._rule.name} trains with {key}, which is not possible with {HERE}; it must train "
                "by plain steps"
            )
        self._trainings += 1
        self._epochs += self._training.epochs if request.epochs is None else request.epochs
        if self._epochs > self._training.epochs:
            raise BadInput(
                f"the rule {self._rule.name} trains for {self._epochs} epochs, which is not possible with {HERE}: "
                f"the promise counts {self._training.epochs} in a round (training.epochs); it must be no more"
            )
        return request if self._trainings == 1 else replace(request, purpose=f"{request.purpose}/{self._trainings}")

    def censor(self, answer: Answer) -> Answer:
        """Return the answer without what a rule that trained has measured."""
        return replace(answer, report={}) if self._trainings else answer


def refuse_rule(rule: Rule) -> None:
    """Let a rule pass that looks at training samples by the steps of one local update alone.

    Raises:
        BadInput: it does not.
    """
    if not rule.private_steps:
        raise BadInput(
            f"the rule {rule.name} is not possible with {HERE}: it uses training samples outside the steps of a "
            "local update, where no noise hides them; it must be one that only trains"
        )
