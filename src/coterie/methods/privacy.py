"""Differential privacy: what a run promises each client, and centres under noise for every method that averages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator
from torch import Tensor

from coterie.catalogue import Section
from coterie.grouping.noise import Noise, noisy_centres
from coterie.methods.aggregation import Aggregator
from coterie.models.layout import Part


class Privacy(Section):
    """What nobody can learn from what leaves a run, however much else they know.

    That is (epsilon, delta)-differential privacy (Dwork and Roth, 2014) for one `unit`: with its data and without
    them, every outcome is nearly as likely.
    """

    title = "privacy"
    unit: Annotated[
        Literal["off", "client", "example"],
        Field(description="what is hidden: nothing, all that one client holds, or one training sample of a client"),
    ] = "off"
    noise_by: Annotated[
        Literal["server", "clients"] | None,
        Field(
            description="who adds noise (unit = client): the server to sums of updates, so that clients must "
            "trust it; or each client to its own update, so that it need trust nobody; without it, the server"
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        Field(gt=0, le=1000, description="the promise for the whole run; the noise multiplier follows from it"),
    ] = None
    noise_multiplier: Annotated[
        float | None,
        Field(
            gt=0,
            le=1e6,
            description="noise in units of clip_norm; given in place of epsilon, which follows from it",
        ),
    ] = None
    delta: Annotated[
        float | None,
        Field(
            gt=0, lt=1, description="the chance that the promise fails; without it, 1 / (clients, or samples)^1.1"
        ),
    ] = None
    clip_norm: Annotated[
        float,
        Field(gt=0, description="norm to which updates are clipped, or gradients of samples (unit = example)"),
    ] = 1.0
    clip_quantile: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="let clip_norm follow this quantile of the lengths of updates (noise_by = server); without "
            "it, it stays",
        ),
    ] = None
    noise_seed: Annotated[
        int | None,
        Field(
            ge=0,
            description="seed of a simulation's noise; the promise does not hold against anyone who knows it; "
            "without it, noise comes from a secret",
        ),
    ] = None

    @model_validator(mode="after")
    def _is_meant(self) -> Privacy:
        if self.unit == "off":
            if self != type(self).model_construct():
                raise ValueError("unit must be 'client' or 'example' where other keys of privacy are set")
            return self
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("either epsilon or noise_multiplier must be given, and not both")
        if self.noise_by is not None and self.unit != "client":
            raise ValueError("noise_by needs unit = 'client'; only clients can add noise to gradients of samples")
        if self.clip_quantile is not None and self.kind != "server":
            raise ValueError("clip_quantile needs unit = 'client' and noise_by = 'server'")
        return self

    @property
    def kind(self) -> Literal["", "server", "clients", "samples"]:
        """Where noise comes in: to the server's sums, to clients' updates, to steps on samples, or nowhere."""
        if self.unit == "off":
            return ""
        return "samples" if self.unit == "example" else self.noise_by or "server"


@dataclass(frozen=True)
class PrivacySupport:
    """Whether all that leaves clients is under the promise of each kind of noise: empty, or why it is not.

    A reason ends the sentence "privacy.noise_by = 'server' is not possible with cfl: …". Where a method gives none
    of its own, it is that nothing is said.
    """

    server: str = "it does not declare that a client's model enters one sum and nothing else"
    """Noise in sums covers it where a client's model reaches nothing else than one sum, its own group's."""
    clients: str = "it does not declare that its clients send one model a round and nothing else"
    """Noise in updates covers it where a client sends one model a round, and nothing else that its data decide."""
    samples: str = "it does not declare that its clients use their samples in training steps only"
    """Noise in steps covers it where all that a client sends comes of plain steps of training."""


def hides_nothing(server: str, clients: str = "", samples: str = "") -> PrivacySupport:
    """Return that no noise covers what leaves clients, and why; a reason that is not given is the one before it."""
    return PrivacySupport(server, clients or server, samples or clients or server)


UNTRIED = "its clients send only models, but nobody has tried how it makes groups of models under noise"
"""Of what noise would cover, for all that the server does with models under noise costs nothing."""

AVERAGES = PrivacySupport("", "", "")
"""Of a method whose clients train and send a model, and whose server averages these."""


@dataclass(eq=False)
class NoisyAggregation(Aggregator):
    """How models become centres in one round under noise by the server; it takes the place of `Aggregation`.

    Weights are left out: every client counts once, for what a large client adds could not be hidden as well.

    Attributes:
        noise: how much.
        expected: how many clients take part in a round on average.
        rng: draws the noise.
        sums: how many sums were asked for, each of which the promise pays for.
        short: see `NoisyCentres`.
    """

    noise: Noise
    expected: float
    rng: np.random.Generator
    sums: int = 0
    short: float = field(default=float("nan"))

    is_mean = False

    def average_groups(
        self,
        models: Tensor,
        groups: NDArray[np.int64],
        previous: Tensor,
        weights: ArrayLike | None = None,
        part: Part | None = None,
        step: bool = True,
    ) -> Tensor:
        """Return the centre of each group's models `[K, P]`; see `Aggregator.average_groups`."""
        found = noisy_centres(models, groups, previous, self.noise, self.expected, self.rng)
        self.sums += 1
        self.short = found.short
        return found.centres
