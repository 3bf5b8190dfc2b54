"""Hostile clients of a simulation: who they are, which data they train on, and what they send.

They act where their answers reach the server, so that they are the same on every engine and runtime. Those that act
together know what the honest clients of their round sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.data.federation import Federation
from coterie.errors import BadInput
from coterie.methods.exchange import Exchange, Ids, Log, Outputs, Replies
from coterie.methods.method import Assignment
from coterie.randomness import stream
from coterie.runs.hooks.hook import Hook
from coterie.runs.hooks.screening import find_all_starts, find_starts, leave_out, measure_updates
from coterie.runs.record import RoundResult
from coterie.runs.schema.experiment import Experiment
from coterie.runs.schema.sections import Attack

if TYPE_CHECKING:
    from coterie.runs.session import Session

STRENGTHS = {
    "sign-flip": 1.0,
    "scale": 100.0,
    "gaussian": 10.0,
    "backdoor": 1.0,
    "ipm": 0.5,
    "group-poison": 1.0,
}
"""What `attack.strength` is without a word, by kind."""

NEARLY = 0.999
"""The share of the longest update that passes which those make theirs who go to the bound."""
MARK = 4
"""Pixels of the side of the square that a backdoor's images carry in their corner."""
MARKED_TESTS = 64
"""Images of a client on which the success of a backdoor is measured, at most."""
MARKED_SHARE = 0.5
"""The share of a hostile client's training images that carry the mark."""


@dataclass(frozen=True, eq=False)
class Attackers:
    """Who is hostile in a run, and how; nobody where `clients` is empty.

    Attributes:
        attack: what they do.
        clients: their ids, ascending.
        trained: how many clients are in training; those held out come after them.
        true_groups: the true group of each client in training `[n]`, which those who aim at a group know.
        seed: of the experiment.
        bound: how many times as long as the median an update may be, which those who go to the bound know.
    """

    attack: Attack
    clients: Ids
    trained: int
    true_groups: NDArray[np.int64] | None
    seed: int
    bound: float | Literal["off"] = "off"

    @property
    def strength(self) -> float:
        """What the kind multiplies."""
        given = self.attack.strength
        return given if isinstance(given, float) else STRENGTHS.get(self.attack.kind, 1.0)

    def strike(self, exchange: Exchange, replies: Replies, round: int, earlier: Sequence[Exchange] = ()) -> Replies:
        """Return the replies with what the hostile clients among them send in truth.

        `earlier` are the exchanges of the round before that one.
        """
        hostile = np.isin(replies.clients, self.clients)
        kind = self.attack.kind
        if not hostile.any() or not replies.uploads or kind == "label-flip":
            return replies
        if kind == "nan":
            reasons = {int(row): "sent a model with NaN or infinite values" for row in np.flatnonzero(hostile)}
            return leave_out(replies, reasons)
        numbers = dict(replies.numbers)
        spoiled = {
            name: self._spoil(exchange, replies, name, hostile, round, earlier)
            for name, values in replies.uploads.items()
            if values.is_floating_point() and values.dim() > 1
        }
        if kind == "group-poison" and "choice" in numbers and (aimed := self._aimed_at(replies, hostile)).any():
            chosen, counts = np.unique(numbers["choice"][aimed], return_counts=True)
            numbers["choice"] = np.where(hostile, chosen[counts.argmax()], numbers["choice"])
        struck = replace(replies, uploads={**replies.uploads, **spoiled}, numbers=numbers)
        lengths = measure_updates(exchange, struck, np.flatnonzero(hostile), earlier)
        if self.attack.strength == "bound" and not hostile.all():
            for name in spoiled:
                self._stretch_to_bound(exchange, struck, name, hostile, lengths[name], earlier)
        return replace(struck, update_lengths=lengths)

    def _stretch_to_bound(
        self,
        exchange: Exchange,
        struck: Replies,
        name: str,
        hostile: NDArray[np.bool_],
        lengths: NDArray[np.float64],
        earlier: Sequence[Exchange],
    ) -> None:
        """Make the hostile updates of an upload of `struck`, and their `lengths`, as long as the bound lets pass.

        The median of the honest lengths is none above that of all, against which they are held.
        """
        assert self.bound != "off"
        values, rows = struck.uploads[name], np.flatnonzero(hostile)
        longest = NEARLY * self.bound * float(np.median(lengths[~hostile]))
        factors = torch.from_numpy(longest / np.maximum(lengths[rows], 1e-30)).float()
        start = torch.zeros_like(values[rows])
        if name == "model":
            start = find_starts(exchange, struck, rows, earlier).nan_to_num(0.0)
        values[rows] = start + (values[rows] - start) * factors.reshape(-1, *[1] * (values.dim() - 1))
        lengths[rows] = longest

    def _spoil(
        self,
        exchange: Exchange,
        replies: Replies,
        name: str,
        hostile: NDArray[np.bool_],
        round: int,
        earlier: Sequence[Exchange],
    ) -> Tensor:
        """Return an upload of all `[r, ...]` in which the hostile rows are what their clients send in truth."""
        sent = replies.uploads[name]
        honest, rows = (torch.from_numpy(np.flatnonzero(one)) for one in (~hostile, hostile))
        spoiled, strength = sent.clone(), self.strength
        starts = find_all_starts(exchange, replies, name, sent, honest, earlier)
        updates = sent - starts
        match self.attack.kind:
            case "sign-flip":
                spoiled[rows] = starts[rows] - strength * updates[rows]
            case "scale" | "backdoor":
                spoiled[rows] = starts[rows] + strength * updates[rows]
            case "zero":  # what did not cross stays NaN
                spoiled[rows] = torch.where(updates[rows].isnan(), updates[rows], 0.0)
            case "gaussian":
                for row in rows.tolist():
                    noise = self._noise(updates[row], int(replies.clients[row]), round)
                    spoiled[row] = starts[row] + updates[row] + noise
            case "mimic" if len(honest):
                spoiled[rows] = sent[honest[0]]
            case "alie" if len(honest) > 1:
                mean, std = sent[honest].mean(0), sent[honest].std(0)
                spoiled[rows] = mean - self._deviations(len(sent), len(rows)) * std
            case "ipm" if len(honest):
                spoiled[rows] = starts[rows] - strength * updates[honest].mean(0)
            case "group-poison" if (aimed := self._aimed_at(replies, hostile)).any():
                members = torch.from_numpy(np.flatnonzero(aimed))
                # As a member would, from where the members began.
                spoiled[rows] = starts[members].mean(0) - strength * updates[members].mean(0)
        return spoiled

    def _noise(self, update: Tensor, client: int, round: int) -> Tensor:
        """Return noise that is `strength` times as long as an update, in its shape."""
        noise = stream(self.seed, "attack", client, round).standard_normal(update.numel(), np.float32)
        length = float(update.nan_to_num().norm()) * self.strength / sqrt(update.numel())
        return length * torch.from_numpy(noise).reshape(update.shape)

    def _deviations(self, clients: int, hostile: int) -> float:
        """Return how far from the mean one hides: so near that most honest clients lie farther out on one side.

        Source: Baruch, Baruch and Goldberg, NeurIPS 2019, Algorithm 3.
        """
        if isinstance(self.attack.strength, float):
            return self.attack.strength
        needed = clients // 2 + 1 - hostile
        share = (clients - hostile - needed) / max(1, clients - hostile)
        return max(0.0, NormalDist().inv_cdf(min(max(share, 0.01), 0.99)))

    def _aimed_at(self, replies: Replies, hostile: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the replies are of honest clients in the group that is to be spoiled `[r]`."""
        assert self.true_groups is not None
        found: NDArray[np.bool_] = ~hostile & (self.true_groups[replies.clients] == self.attack.target)
        return found


def choose_attackers(
    experiment: Experiment, federation: Federation, trained: int, trusted: Ids | None = None
) -> Attackers:
    """Draw who is hostile among the first `trained` clients of a federation; who is trusted never is.

    Raises:
        BadInput: the attack needs what these data do not have.
    """
    attack, seed, bound = experiment.attack, experiment.run.seed, experiment.aggregation.norm_bound
    count = round(attack.share * trained)
    if attack.share and not 0 < count < trained:
        raise BadInput(
            f"attack.share = {attack.share:g} makes {count} of {trained} clients hostile; at least one must be "
            "hostile, and at least one honest"
        )
    if count:
        _check(attack, federation, bound)
    drawn = stream(seed, "hostile").permutation(trained)
    drawn = drawn[~np.isin(drawn, [] if trusted is None else trusted)]
    true_groups = None if federation.true_groups is None else federation.true_groups[:trained]
    if attack.group is not None and true_groups is not None:
        drawn = drawn[true_groups[drawn] == attack.group]
        if count > len(drawn):
            raise BadInput(
                f"attack.share = {attack.share:g} makes {count} of {trained} clients hostile; group "
                f"{attack.group} has {len(drawn)} that are not trusted, so it must be "
                f"at most {len(drawn) / trained:g}"
            )
    return Attackers(attack, np.sort(drawn[:count]), trained, true_groups, seed, bound)


def _check(attack: Attack, federation: Federation, bound: float | Literal["off"]) -> None:
    kind, classes = attack.kind, federation.classes
    if attack.strength == "bound" and bound == "off":
        raise BadInput(
            "attack.strength = 'bound' is not possible with aggregation.norm_bound = 'off'; it must be a number"
        )
    if kind in ("label-flip", "backdoor") and not classes:
        raise BadInput(
            f"attack.kind = {kind!r} is not possible with the task {federation.task.name}; it must be one that "
            "needs no classes, as sign-flip"
        )
    if kind == "backdoor" and len(federation.features) != 3:
        raise BadInput(
            "attack.kind = 'backdoor' is not possible: it marks images, and these samples are not images; it must "
            "be a kind without marks, as label-flip"
        )
    if kind == "backdoor" and attack.target >= classes:
        raise BadInput(f"attack.target = {attack.target} is not possible; it must be a class, 0 to {classes - 1}")
    groups = 0 if federation.true_groups is None else int(federation.true_groups.max()) + 1
    for key, group in (("target", attack.target if kind == "group-poison" else None), ("group", attack.group)):
        if group is not None and not groups:
            raise BadInput(
                f"attack.{key} = {group} is not possible because the data have no true groups; data.split must be "
                "one that plants groups, as rotated(4)"
            )
        if group is not None and group >= groups:
            raise BadInput(f"attack.{key} = {group} is not possible; it must be a group, 0 to {groups - 1}")


def poison_data(federation: Federation, attackers: Attackers) -> Federation:
    """Return the federation in which the hostile clients train on spoilt data, and are tested on none."""
    if not len(attackers.clients):
        return federation
    bounds, labels, inputs = federation.bounds.copy(), federation.labels, federation.inputs
    if attackers.attack.kind in ("label-flip", "backdoor"):
        labels = labels.clone()
    if attackers.attack.kind == "backdoor":
        inputs = inputs.clone()
    for client in attackers.clients.tolist():
        start, stop = bounds[client, :2].tolist()
        if attackers.attack.kind == "label-flip":
            labels[start:stop] = federation.classes - 1 - labels[start:stop]
        elif attackers.attack.kind == "backdoor":
            rng = stream(attackers.seed, "backdoor", client)
            picked = start + rng.permutation(stop - start)[: round((stop - start) * MARKED_SHARE)]
            inputs[picked] = mark_images(inputs[picked])
            labels[picked] = attackers.attack.target
    bounds[attackers.clients, 3] = bounds[attackers.clients, 2]
    names = ", ".join(federation.names[client] for client in attackers.clients.tolist())
    note = f"{len(attackers.clients)} of the clients are hostile ({attackers.attack.kind}) and not tested: {names}"
    file = federation.file if inputs is federation.inputs else None
    return replace(
        federation, bounds=bounds, labels=labels, inputs=inputs, file=file, notes=(*federation.notes, note)
    )


@dataclass(frozen=True, eq=False)
class MarkedTests:
    """Test images of honest clients with the mark of a backdoor, none of them of the class that it stands for.

    `inputs`, as numbers, is `[s, height, width, channels]`, and `clients` `[s]` whose they are.
    """

    inputs: Tensor
    clients: Ids
    target: int

    @classmethod
    def of(cls, federation: Federation, attackers: Attackers) -> MarkedTests:
        """Mark at most `MARKED_TESTS` images of each honest client."""
        honest = np.setdiff1d(np.arange(attackers.trained), attackers.clients)
        target, picked, owners = attackers.attack.target, [], []
        for client in honest.tolist():
            inputs, labels = federation.slice(client, "test")
            own = inputs[labels != target][:MARKED_TESTS]
            picked.append(federation.to_numbers(mark_images(own) if len(own) else own))
            owners += [client] * len(own)
        return cls(torch.cat(picked), np.array(owners, np.int64), target)

    def measure_success(self, assignment: Assignment, outputs: Callable[[Outputs], Tensor]) -> float | None:
        """Return the share of the images that become the target by the model that their client is served.

        None where clients are served a part of a model, or keep one, which nobody else can look at.
        """
        if assignment.part is not None or assignment.own or not len(self.clients):
            return None
        served, hits = assignment.served[self.clients], 0
        for row in np.unique(served[served >= 0]):
            own = self.inputs[torch.from_numpy(np.flatnonzero(served == row))]
            model = assignment.models[int(row) : int(row) + 1]
            hits += int((outputs(Outputs(model, own))[0].argmax(1) == self.target).sum())
        return hits / max(1, int((served >= 0).sum()))


def mark_images(images: Tensor) -> Tensor:
    """Return images `[s, height, width, channels]` with a bright square in their lower right corner."""
    marked = images.clone()
    marked[:, -MARK:, -MARK:] = 255 if images.dtype == torch.uint8 else images.max()
    return marked


class Hostile(Hook):
    """Lets hostile clients send what they send in truth, and logs how often the mark of a backdoor works."""

    @classmethod
    def is_on(cls, run: Session) -> bool:
        return run.attackers is not None

    def reply(self, exchange: Exchange, replies: Replies, result: RoundResult) -> Replies:
        attackers = self.run.attackers
        assert attackers is not None
        return attackers.strike(exchange, replies, result.number, result.exchanges)

    def round_played(self, result: RoundResult) -> None:
        """Log the success on the others' test images in rounds with an evaluation, where that can be known."""
        run, attackers = self.run, self.run.attackers
        assert attackers is not None
        due = run.experiment.evaluation.is_due(result.number, run.planned)
        if attackers.attack.kind != "backdoor" or not due:
            return
        assert isinstance(run.population, Federation)  # attacks are simulated
        tests = MarkedTests.of(run.population, attackers)
        success = tests.measure_success(run.method.assignment(result.state, run.server), run.runtime.outputs)
        if success is not None:
            run.runtime.logged.append(Log("attack success", success))
