"""The promise of privacy that a run makes: how much noise it takes, and what has been spent of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.clients.engine.private_steps import ExamplePrivacy, count_private_steps
from coterie.clients.engine.upload_noise import UploadNoise
from coterie.errors import BadInput
from coterie.randomness import PrivateRandomness
from coterie.runs.accounting import Releases, find_epsilon, find_noise
from coterie.runs.schema.experiment import Experiment

SUBJECT = {
    "server": "the data of any one client, by noise that the server adds to sums of updates",
    "clients": "the data of any one client, by noise that it adds to its own updates",
    "samples": "any one training sample, by noise that its client adds in every step",
}


@dataclass(frozen=True)
class Promise:
    """What a run promises, for any one client or sample.

    Attributes:
        kind: where noise comes in; see `Privacy.kind`.
        delta: the chance that it fails.
        multiplier: the noise, in units of what it hides.
        each: what one round tells under noise: of a sample, at the client that spends most in the whole run.
        rounds: of the run.
        usual: for samples, what one round tells at the client of median size; None where clients are equally large.
        void_for: who can take the noise off; empty for nobody.
    """

    kind: Literal["server", "clients", "samples"]
    delta: float
    multiplier: float
    each: Releases
    rounds: int
    usual: Releases | None = None
    void_for: str = ""

    @property
    def epsilon(self) -> float:
        """Of the whole run."""
        return self.find_spent(self.rounds)

    def find_spent(self, rounds: int) -> float:
        """Return the epsilon of so many rounds."""
        return self._find(self.each, rounds)

    @property
    def usual_epsilon(self) -> float | None:
        """Of the whole run, for a sample of the client of median size; None where all are equally large."""
        return None if self.usual is None else self._find(self.usual, self.rounds)

    def _find(self, each: Releases, rounds: int) -> float:
        return find_epsilon(self.multiplier, each.repeated(rounds), self.delta)

    def to_json(self) -> dict[str, float | str]:
        """Return it as plain values."""
        usual = self.usual_epsilon
        return {
            "noise by": "server" if self.kind == "server" else "clients",
            "hides": "one sample" if self.kind == "samples" else "one client",
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise multiplier": self.multiplier,
            **({} if usual is None else {"epsilon of the median client": usual}),
            **({"void for": self.void_for} if self.void_for else {}),
        }

    def describe(self) -> str:
        """Say in one line what is promised."""
        usual = self.usual_epsilon
        void = f"; void for {self.void_for}" if self.void_for else ""
        most = "" if usual is None else f" ({usual:.3g} at the client of median size)"
        return (
            f"privacy: epsilon = {self.epsilon:.3g}{most} with delta = {self.delta:.2g} for {SUBJECT[self.kind]}; "
            f"noise multiplier {self.multiplier:.3g}{void}"
        )


def make_promise(experiment: Experiment, samples: NDArray[np.int64]) -> Promise | None:
    """Return what a run promises clients with so many training samples `[n]`; None where it promises nothing.

    Raises:
        BadInput: no noise keeps it, or the library that says so is not installed.
    """
    privacy, run = experiment.privacy, experiment.run
    kind = privacy.kind
    if not kind:
        return None
    crowd = len(samples) if kind != "samples" else int(samples.sum())
    delta = max(crowd, 2) ** -1.1 if privacy.delta is None else privacy.delta
    each = _list_releases(experiment, samples)
    whole = [releases.repeated(run.rounds) for releases in each]
    multiplier = privacy.noise_multiplier
    if multiplier is None:
        assert privacy.epsilon is not None
        multiplier = _find_noise_for_all(privacy.epsilon, whole, delta)
    spent = [find_epsilon(multiplier, releases, delta) for releases in whole]
    worst = each[int(np.argmax(spent))]
    void_for = "" if privacy.noise_seed is None else "whoever knows privacy.noise_seed"
    usual = _find_usual_releases(experiment, samples)
    return Promise(kind, delta, multiplier, worst, run.rounds, usual, void_for)


def _list_releases(experiment: Experiment, samples: NDArray[np.int64]) -> list[Releases]:
    """Return what a round tells of a unit, without what tells less in any case."""
    privacy, run, training = experiment.privacy, experiment.run, experiment.training
    if privacy.kind != "samples":
        # A client that hides its own updates tells something in every round that it takes part in: all, it may be.
        return [Releases(1, run.participation if privacy.kind == "server" else 1.0)]
    shares: dict[int, float] = {}
    for count in np.unique(samples[samples > 0]).tolist():
        probability, steps = count_private_steps(count, training.batch_size, training.epochs)
        shares[steps] = max(shares.get(steps, 0.0), probability)
    if not shares:
        raise BadInput("privacy.unit = 'example' is not possible, because no client has a training sample")
    return [Releases(steps, share) for steps, share in sorted(shares.items())]


def _find_usual_releases(experiment: Experiment, samples: NDArray[np.int64]) -> Releases | None:
    """Return what a round tells of a sample of the client of median size; None where all clients tell the same."""
    training, sizes = experiment.training, np.sort(samples[samples > 0])
    if experiment.privacy.kind != "samples" or sizes[0] == sizes[-1]:
        return None
    probability, steps = count_private_steps(int(sizes[len(sizes) // 2]), training.batch_size, training.epochs)
    return Releases(steps, probability)


def _find_noise_for_all(epsilon: float, releases: list[Releases], delta: float) -> float:
    """Return the noise multiplier that keeps the promise whichever of these releases is made."""
    left, multiplier = sorted(releases, key=lambda one: one.share * one.times**0.5), 0.0
    while left:
        worst = left.pop()
        multiplier = max(multiplier, find_noise(epsilon, worst, delta))
        left = [one for one in left if find_epsilon(multiplier, one, delta) > epsilon]
    return multiplier


def find_client_noise(
    experiment: Experiment, data: Any, secret: bytes = b""
) -> tuple[UploadNoise | None, ExamplePrivacy | None]:
    """Return the noise that clients add to what they send, and to steps of training; None where they add none.

    A client with data of its own knows of no other, and keeps the promise for itself.

    Args:
        experiment: what is promised.
        data: of all clients of a simulation, or of one client.
        secret: see `PrivateRandomness`.

    Raises:
        BadInput: as for `make_promise`.
    """
    privacy, kind = experiment.privacy, experiment.privacy.kind
    if kind not in ("clients", "samples"):
        return None, None
    samples = getattr(data, "samples", None)
    if samples is None:
        samples = np.array([len(data.slice(0, "train")[1])])
    promise = make_promise(experiment, samples)
    assert promise is not None
    randomness = PrivateRandomness(secret, privacy.noise_seed)
    if kind == "clients":
        return UploadNoise(privacy.clip_norm, promise.multiplier, randomness), None
    return None, ExamplePrivacy(privacy.clip_norm, promise.multiplier, randomness)
