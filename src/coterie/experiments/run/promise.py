"""The promise of privacy that a run makes: how much noise it takes, and what has been spent of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.clients.engine.upload_noise import UploadNoise
from coterie.experiments.run.accounting import Releases, find_epsilon, find_noise
from coterie.experiments.schema.experiment import Experiment

SUBJECT = {
    "server": "the data of any one client, by noise that the server adds to sums of updates",
    "clients": "the data of any one client, by noise that it adds to its own updates",
}


@dataclass(frozen=True)
class Promise:
    """What a run promises, for any one client.

    Attributes:
        kind: where noise comes in; see `Privacy.kind`.
        delta: the chance that it fails.
        multiplier: the noise, in units of what it hides.
        releases: what a whole run tells under noise.
    """

    kind: Literal["server", "clients"]
    delta: float
    multiplier: float
    releases: Releases

    @property
    def epsilon(self) -> float:
        """Of the whole run."""
        return find_epsilon(self.multiplier, self.releases, self.delta)

    def find_spent(self, rounds: int) -> float:
        """Return the epsilon of so many rounds."""
        return find_epsilon(self.multiplier, Releases(rounds, self.releases.share), self.delta)

    def to_json(self) -> dict[str, float | str]:
        """Return it as plain values."""
        return {
            "noise by": self.kind,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise multiplier": self.multiplier,
        }

    def describe(self) -> str:
        """Say in one line what is promised."""
        return (
            f"privacy: epsilon = {self.epsilon:.3g} with delta = {self.delta:.2g} for {SUBJECT[self.kind]}; "
            f"noise multiplier {self.multiplier:.3g}"
        )


def make_promise(experiment: Experiment, clients: int) -> Promise | None:
    """Return what a run with so many clients promises; None where it promises nothing.

    Raises:
        BadInput: no noise keeps it, or the library that says so is not installed.
    """
    privacy, run = experiment.privacy, experiment.run
    if privacy.kind not in ("server", "clients"):
        return None
    # A client that hides its own updates tells something in every round that it takes part in, and all may be.
    releases = Releases(run.rounds, run.participation if privacy.kind == "server" else 1.0)
    delta = max(clients, 2) ** -1.1 if privacy.delta is None else privacy.delta
    if privacy.noise_multiplier is not None:
        multiplier = privacy.noise_multiplier
        find_epsilon(multiplier, releases, delta)  # whoever misses the library hears of it now
    else:
        assert privacy.epsilon is not None
        multiplier = find_noise(privacy.epsilon, releases, delta)
    return Promise(privacy.kind, delta, multiplier, releases)


def make_upload_noise(experiment: Experiment, clients: int) -> UploadNoise | None:
    """Return what clients do to the models that they send; None for nothing.

    Raises:
        BadInput: as for `make_promise`.
    """
    if experiment.privacy.kind != "clients":
        return None
    promise = make_promise(experiment, clients)
    assert promise is not None
    return UploadNoise(experiment.privacy.clip_norm, promise.multiplier, secret=experiment.data.own)
