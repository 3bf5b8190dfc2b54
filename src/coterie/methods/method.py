"""What a method is: the state it starts from, its round, and what it serves to whom."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.evaluate import Evaluate
from coterie.clients.tasks import Task
from coterie.methods.aggregation import Aggregation, Aggregator
from coterie.methods.exchange import Exchange, Exchanges, Ids, Send
from coterie.methods.privacy import PrivacySupport
from coterie.methods.scale import Scale
from coterie.models.layout import Layout, Part
from coterie.randomness import stream

S = TypeVar("S")

FAMILIES = (
    "clustered, hard",
    "clustered, soft",
    "clustered, one-shot",
    "clustered, hierarchical",
    "personal layers",
    "personal models",
    "regularised",
    "drift correction",
    "meta",
    "server optimisers",
    "one model",
)
"""The families of methods, in the order in which they are listed."""

Split = Literal["validation", "test"]


@dataclass(frozen=True, eq=False)
class ServerView:
    """What the server knows of the clients: how many, how much data each, and the network that all share."""

    samples: NDArray[np.int64]
    """Training samples of each client `[n]`."""
    layout: Layout
    """Where each tensor lies in a model."""
    seed: int
    """The run's seed; `stream` draws from it."""
    initial: Callable[[int], Tensor]
    """`initial(0)` is the common initial model `[P]`; 1, 2, … are further independent ones."""
    public: Tensor | None = None
    """Unlabelled inputs that the server holds `[M, *features]`, where there are any."""
    scale: Scale = field(default_factory=Scale)
    """From how many clients on a method may approximate."""
    aggregation: Aggregator = field(default_factory=Aggregation)
    """How models become centres."""
    features: tuple[int, ...] = ()
    """Shape of one sample."""
    classes: int = 0
    """How many classes there are; 0 where a sample is not of one class."""

    @property
    def n(self) -> int:
        """How many clients there are."""
        return len(self.samples)

    @property
    def everyone(self) -> Ids:
        """All client ids, ascending."""
        return np.arange(self.n)

    def public_inputs(self, rows: Ids | None = None) -> Tensor:
        """Return the public inputs `[N, *features]`, or some of them; for methods that name them in `needs`."""
        assert self.public is not None
        return self.public if rows is None else self.public[torch.from_numpy(rows)]

    def stream(self, purpose: str, round: int = -1) -> np.random.Generator:
        """Return the server's random generator for a purpose in a round."""
        return stream(self.seed, purpose, round=round)


@dataclass(frozen=True, eq=False)
class Cohort:
    """Who takes part in a round."""

    round: int
    """1, 2, …"""
    clients: Ids
    """Ascending ids `[m]`."""
    server: ServerView
    """What the server knows of all clients."""


@dataclass(frozen=True)
class Needs:
    """What a method cannot do without."""

    public: int = 0
    """Unlabelled inputs on the server, and how many are usual; 0 for a method that looks at none."""
    validation: bool = False
    """Validation samples on every client."""
    gaussian: bool = False
    """A network with Gaussian features (`gaussian-mlp`, `gaussian-cnn`)."""
    distributions: bool = False
    """A task whose outputs are distributions over classes, which are compared."""
    classes: bool = False
    """A task in which each sample is of one class, of which the network has an output each."""
    plain_sgd: bool = False
    """Local steps of plain SGD, to which momentum and Adam mean nothing."""
    models: str = ""
    """What the server does with single uploads of a model's size, in a sentence; empty where means will do."""
    pairs: Literal["", "cohort", "everybody"] = ""
    """A matrix between all clients of a round, or between all there are, where no other way is known for many."""

    def find_wrong_task(self, method: str, task: Task) -> str:
        """Return why a method cannot learn a task, in one sentence; empty where it can."""
        if self.classes and not task.of_classes:
            return (
                f"task.name = {task.name!r} is not possible with {method}: it looks at each class by itself, so "
                "each sample must be of one class; it must be classification"
            )
        if self.distributions and not task.distributes:
            return (
                f"task.name = {task.name!r} is not possible with these settings of {method}, which compare "
                f"distributions over classes; the outputs of {task.name} are not distributions"
            )
        return ""


@dataclass(frozen=True, eq=False)
class Affinity:
    """How far apart some clients were when they were last regrouped: `matrix` is `[r, r]` or `[r, K]`."""

    name: str
    """What was compared, for the page."""
    matrix: NDArray[np.float64]
    """Of r clients each to each, or to K centres."""


UNKNOWN = -1
"""The group of a client that has none yet."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """Which parameters each client is evaluated with.

    Attributes:
        models: `[K, P]`.
        groups: the group of each client `[n]`; -1 for a client that has none yet.
        rows: the row of `models` that each client is served `[n]`; where not given, that of its group. Who has
            none is evaluated with the row that suits its training data best.
        part: which columns of its row a client is served; without it, all.
        own: the name under which clients keep what is evaluated. The part of a client's row is laid over it, and
            without a part nothing is.
        shares: `[n, K]`, by which a client is evaluated with the mixture of what all models predict; 0 for who
            has none, which is evaluated with one row as without.
        neighbours: how many of a client's own samples predict beside what it is served (`Evaluate.neighbours`).
    """

    models: Tensor
    groups: NDArray[np.int64]
    rows: NDArray[np.int64] | None = None
    part: Part | None = None
    own: str = ""
    shares: NDArray[np.float64] | None = None
    neighbours: int = 0

    @property
    def served(self) -> NDArray[np.int64]:
        """The row of each client `[n]`; -1 for one that has yet to choose."""
        return self.groups if self.rows is None else self.rows


def serve(
    assignment: Assignment, rows: NDArray[np.int64], shares: NDArray[np.float64] | None = None
) -> dict[str, Send]:
    """Return what clients served `rows` `[m]` are sent: their row's part, or all rows to choose among.

    With `shares` `[m, K]` who has any is sent these and all rows, to mix.
    """
    if assignment.own and assignment.part is None:
        return {}
    mixing = np.zeros(len(rows), np.bool_) if shares is None else shares.any(1)
    send = {"model": Send(assignment.models, np.where(mixing, UNKNOWN, rows), assignment.part)}
    several = mixing | (rows == UNKNOWN)
    if several.any():
        every = np.tile(np.arange(len(assignment.models)), (len(rows), 1))
        send["models"] = Send(assignment.models, np.where(several[:, None], every, -1))
    if shares is not None:
        which = np.where(mixing, np.arange(len(rows)), -1)
        send["shares"] = Send(torch.from_numpy(shares).float(), which)
    return send


class Method(ABC, Generic[S]):
    """A frozen dataclass of settings with the algorithm beside it.

    A method knows nothing of processes, devices, files or progress bars. All that it remembers between rounds
    is in its state: a frozen dataclass of tensors, arrays and plain values.
    """

    family: ClassVar[str] = ""
    """Under which of `FAMILIES` it is listed; without one, under others."""

    uses_training: ClassVar[bool] = True
    """Whether clients train with the settings of `[training]`; where they do not, tuning leaves those alone."""

    @abstractmethod
    def start(self, server: ServerView) -> S:
        """Return the state before the first round.

        Raises:
            BadInput: a setting does not go with the network, the data or the clients.
        """

    @abstractmethod
    def round(self, state: S, cohort: Cohort) -> Exchanges[S]:
        """Run one round: yield exchanges, receive replies of any subset of the clients, return the new state."""

    @abstractmethod
    def assignment(self, state: S, server: ServerView) -> Assignment:
        """Return which model each client is assigned, and so evaluated with."""

    @abstractmethod
    def newcomer(self, state: S, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Say which group clients that were never in training join, and from which models they start.

        `server` knows the newcomers under the ids in `clients`; `state` may have no rows for them. The groups and
        rows of what is returned are theirs alone, `[len(clients)]`, in the order of `clients`.
        """

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Return one sentence for each consequence of these settings that is seldom meant."""
        return []

    def amounts_to(self, layout: Layout, rounds: int) -> str:
        """Return which other method these settings make of this one, on such a network in so many rounds.

        Empty where it stays itself. Tuning does not try settings that another method answers to, for its row would
        bear the wrong name.
        """
        return ""

    def final_warnings(self, state: S, server: ServerView, rounds: int) -> list[str]:
        """Return one sentence for each thing that did not come about in a run of `rounds` finished rounds.

        Above all groups: which test never fired, how near it came, and which setting would have fired it with which
        value. So the state of a method that tests something keeps the closest value so far. A sentence ends without
        a full stop, as a warning does.
        """
        return []

    @property
    def is_given_groups(self) -> bool:
        """Whether a setting says how many groups there are, which may be wrong."""
        return hasattr(self, "clusters")

    @property
    def own_aggregation(self) -> str:
        """Why another rule of aggregation cannot take the place of this method's own; empty where it can."""
        return ""

    @property
    def own_step(self) -> str:
        """Why a server optimizer cannot step in the place of this method; empty where it can."""
        return ""

    @property
    def privacy_support(self) -> PrivacySupport:
        """Which kinds of noise hide, with these settings, all that leaves clients (docs/privacy.md)."""
        return PrivacySupport()

    @property
    def needs(self) -> Needs:
        """What these settings cannot do without."""
        return Needs()

    @property
    def rate_drops(self) -> tuple[int, ...]:
        """Rounds after each of which its clients' learning rate is a tenth, beside the schedule of `training`."""
        return ()

    def evaluation(
        self, state: S, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        """Return the exchange by which `clients` are evaluated; it is no part of the method's traffic.

        `last` says that no round follows, for methods that end in a last adaptation.
        """
        assignment = self.assignment(state, server)
        shares = None if assignment.shares is None else assignment.shares[clients]
        send = serve(assignment, assignment.served[clients], shares)
        return Exchange(clients, Evaluate(split, assignment.own, neighbours=assignment.neighbours), send)

    def private_layers(self, state: S, server: ServerView) -> Part:
        """Return the layers that each client keeps to itself; all, where the method serves whole models."""
        layout, part = server.layout, self.assignment(state, server).part
        return layout.everything - part if part and part.size < layout.size else layout.everything

    def affinity(self, state: S, server: ServerView, clients: Ids) -> Affinity | None:
        """Return how far apart `clients` were at the last regrouping, where the method knows it."""
        return None
