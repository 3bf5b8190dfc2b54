"""What is known of the clients of an experiment before training: answers, how sure they are, sentences."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.advice.diagnose.answer import Suits, judge
from coterie.advice.diagnose.kinds import Kinds, may_mean
from coterie.advice.diagnose.pay import Pay
from coterie.advice.diagnose.signals import Signal, say_p, say_signals
from coterie.advice.diagnose.single_layers import LayerSignal, say_layers
from coterie.errors import count_of, shorten
from coterie.grouping.halves import LEAST, MOST_TURNED, Division, PairingTest

BETWEEN = 0.75
"""A client that has a smaller share of its votes for its own group sits between groups."""

MOST_DISTANCES = 80
"""Clients between whom all distances are told."""


@dataclass(frozen=True)
class Group:
    """Some clients that no test tells apart."""

    number: int
    clients: tuple[str, ...]
    """Their names."""
    confidence: float
    """The mean of its members' `Membership.confidence`."""


@dataclass(frozen=True)
class Membership:
    """Which group a client is of, and how surely: shares of votes of its halves, from all starts."""

    client: str
    group: int
    confidence: float
    second: int | None
    """The next likely group; None where there is one group."""
    second_share: float
    tested: bool
    """Whether its halves were held against others'; if not, it was only placed."""

    @property
    def is_between(self) -> bool:
        """Whether it sits between its group and the second."""
        return self.confidence < BETWEEN

    def say_between(self) -> str:
        """Return its shares of votes; most may be for another group than the one that the tree placed it in."""
        own, other = f"group {self.group} {self.confidence:.0%}", f"group {self.second} {self.second_share:.0%}"
        placed = f", though placed in group {self.group} by the mean distance" * (
            self.second_share > self.confidence
        )
        return f"{self.client} ({own}, {other}{placed})"


@dataclass(frozen=True)
class Diagnosis:
    """Whether clients should be grouped, and into which groups.

    Attributes:
        clients: how many there are in training.
        answered: how many of them took part from every start, and are placed.
        size: samples in each half.
        starts: initial models.
        alpha: the error level.
        draws: random pairings a test.
        structure: the test of all clients together.
        tests: which clients were held against each other, all of them first; each that rejected was divided.
        groups: those that were found, numbered by their first client; of those who stand apart, each is one.
        all_differ: every client is a group, for no number of groups describes them.
        memberships: one for each client that answered.
        resampled: the number of groups in each resample of clients and starts; 0 where everybody differs.
        true_groups_ari: agreement with true groups, for data that have them.
        small: clients whose halves are smaller; they were placed, not tested.
        turned_round: clients whose updates point against all others'; they were left out of the test.
        missing: why other clients did not answer, by name.
        notes: what is to be known of the data.
        signals: what else was tested beside the directions of updates, which alone decide.
        layers: what single layers say, where that was asked for.
        kinds: in what clients differ; None where nobody asked.
        pay: what each model that a client could have is worth; None where nobody asked or could be scored.
        unlearnt: why scores say nothing and what to change, where models learnt nothing; else empty.
        predicted: groups, and how many, are those whose linear models predict held-out samples best; one model for
            all predicts them worse.
        distances: between clients, in the order of `memberships`; none for more than `MOST_DISTANCES` clients.
        seconds: what it took.
    """

    clients: int
    answered: int
    size: int
    starts: int
    alpha: float
    draws: int
    structure: PairingTest
    tests: tuple[Division, ...]
    groups: tuple[Group, ...]
    all_differ: bool
    memberships: tuple[Membership, ...]
    resampled: tuple[int, ...]
    true_groups_ari: float | None
    small: tuple[str, ...]
    turned_round: tuple[str, ...]
    missing: dict[str, str]
    notes: tuple[str, ...]
    signals: tuple[Signal, ...] = ()
    layers: tuple[LayerSignal, ...] = ()
    kinds: Kinds | None = None
    pay: Pay | None = None
    unlearnt: str = ""
    distances: tuple[tuple[float, ...], ...] = ()
    seconds: float = 0.0
    predicted: bool = False

    @property
    def tested(self) -> int:
        """How many clients were held against each other."""
        return sum(member.tested for member in self.memberships)

    @property
    def is_possible(self) -> bool:
        """Whether there were enough clients to be tested."""
        return self.tested >= LEAST

    @property
    def has_structure(self) -> bool:
        """Whether clients are no draws from one population, by the test at its error level or by prediction."""
        return self.is_possible and (self.predicted or self.structure.p <= self.alpha)

    @property
    def is_told(self) -> bool:
        """Whether groups say anything: models learnt, or the test found structure without it."""
        return self.has_structure or not self.unlearnt

    @property
    def standing_apart(self) -> tuple[str, ...]:
        """Clients who are alone in their group beside larger ones."""
        if self.all_differ or len(self.groups) == 1:
            return ()
        return tuple(group.clients[0] for group in self.groups if len(group.clients) == 1)

    @property
    def maybe_hostile(self) -> tuple[Group, ...]:
        """Groups that hostile clients could be: together a fifth of all at most, unlike others in what labels mean.

        Of groups that told no profiles, any could be; where samples are of no class, no labels are flipped.
        """
        of_classes = self.kinds is None or self.kinds.targets == "classes"
        if not self.has_structure or self.all_differ or not of_classes:
            return ()
        told = {} if self.kinds is None else {one.group: one.found for one in self.kinds.groups}
        few, unknown = MOST_TURNED * self.answered, ("concept",)
        found = [g for g in self.groups if 1 < len(g.clients) <= few and may_mean(told.get(g.number, unknown))]
        # Of several that are too many together, nothing tells which are hostile, or that any are.
        return tuple(found) if sum(len(group.clients) for group in found) <= few else ()

    @property
    def between(self) -> tuple[Membership, ...]:
        """Clients who sit between two groups."""
        return () if self.all_differ else tuple(member for member in self.memberships if member.is_between)

    @property
    def expected(self) -> str:
        """The option that pays; where nobody was asked, what the structure and its kind let expect."""
        if self.pay is not None:
            return self.pay.best
        if not self.has_structure:
            return "global"
        of_labels = self.kinds is not None and self.kinds.named == ("labels",) and self.kinds.targets == "classes"
        return "tuned" if self.all_differ or of_labels else "group"

    @property
    def suits(self) -> Suits:
        """What to train for whom, or why that cannot be told."""
        few = f"a test needs {LEAST} clients, and {self.tested} could be tested"
        why_not = self.unlearnt or ("" if self.is_possible else few)
        return judge(self.expected, self.pay, self.structure.p, len(self.groups), why_not)

    def sentences(self) -> tuple[str, ...]:
        """Return the answers, one sentence each: whether there is structure, of what, which groups, who gains."""
        kinds = () if self.kinds is None else (self.kinds.sentence(),)
        if self.kinds is not None and self.kinds.skew is not None and self.unlearnt:
            kinds = (f"{self.kinds.sentence()}. This is by profiles of the clients' samples, which take no model",)
        if not self.is_told:
            p = f" ({say_p(self.structure, self.draws)})" if self.is_possible else ""
            answer = f"Do clients differ? It cannot be answered{p}, because {self.unlearnt}"
            return (answer, *self._say_turned_round(), *kinds, *self._say_left_out())
        pay = () if self.pay is None else self.pay.sentences()
        if self.unlearnt:
            pay = (f"Does it pay? It cannot be answered, because {self.unlearnt}",)
        signals = say_signals(self.signals, self.has_structure, self.alpha, self.draws)
        signals += say_layers(self.layers, self.alpha, self.draws)
        groups = (self._say_count(), *self._say_groups(), *self._say_hostile())
        recoded = () if self.kinds is None else tuple(one.sentence() for one in self.kinds.recoded)
        suits = () if self.pay is None else (self.suits.sentence,)
        first = (*recoded, *suits, self._say_structure(), *self._say_turned_round())
        return (*first, *signals, *kinds, *groups, *pay, *self._say_left_out())

    def _say_structure(self) -> str:
        if not self.is_possible:
            return (
                f"Do clients differ? It cannot be answered: {self.tested} of {self.clients} clients could be "
                f"tested, and a test needs {LEAST}"
            )
        starts = count_of(self.starts, "initial model")
        of = f"{count_of(self.tested, 'client')}, {count_of(self.size, 'sample')} in a half, {starts}"
        test, p = self.structure, say_p(self.structure, self.draws)
        if test.p > self.alpha and self.predicted:
            return (
                f"Do clients differ? Yes: models of {len(self.groups)} groups predict held-out samples better "
                f"than one model. The test on halves leaves it open ({p}; {of})"
            )
        answer = "Yes" if self.has_structure else "No difference was found"
        return (
            f"Do clients differ? {answer} ({p}): the mean distance between the two halves of a client's samples is "
            f"{test.own:.3f}, and between halves paired at random {test.random:.3f} ({of})"
        )

    def _say_count(self) -> str:
        if not self.is_possible:
            return "How many groups? Too few clients to tell; compare one model for all with training alone"
        if not self.has_structure:
            return "How many groups? One: train one model for all"
        level = "by what their models predict" if self.predicted else f"at a significance level of {self.alpha:.3g}"
        stable = (
            f"; resamples of clients and initial models give {_say_counts(self.resampled)}"
            if self.resampled
            else ""
        )
        if self.all_differ:
            return (
                f"How many groups? Everybody differs, {level}: most clients are in groups too small to be "
                f"tested{stable}"
            )
        apart = len(self.standing_apart)
        shared = len(self.groups) - apart
        sizes = ", ".join(str(len(group.clients)) for group in self.groups if len(group.clients) > 1)
        alone = f", and {count_of(apart, 'client')} standing apart" if apart else ""
        return f"How many groups? {count_of(shared, 'group')} with {sizes} clients{alone}, {level}{stable}"

    def _say_groups(self) -> tuple[str, ...]:
        if not self.has_structure or self.all_differ:
            return ()
        said = [
            f"Group {group.number}: {shorten(group.clients)} (confidence {group.confidence:.0%})"
            f"{self._say_kind(group.number)}"
            for group in self.groups
            if len(group.clients) > 1
        ]
        if self.standing_apart:
            said.append(f"Standing apart from all others: {shorten(self.standing_apart)}")
        if self.between:
            said.append(f"Between two groups: {shorten([member.say_between() for member in self.between])}")
        return tuple(said)

    def _say_hostile(self) -> tuple[str, ...]:
        """Say which groups clients that flip labels would look like, and what is left without them."""
        if not self.maybe_hostile:
            return ()
        numbers = [str(group.number) for group in self.maybe_hostile]
        clients = sum(len(group.clients) for group in self.maybe_hostile)
        left = sum(len(group.clients) > 1 for group in self.groups) - len(numbers)
        others = "one group" if left == 1 else f"{left} groups"
        of = f"{'groups' if len(numbers) > 1 else 'group'} {', '.join(numbers)}"
        return (
            f"Hostile? {count_of(clients, 'client')} of {of} may be: clients that flip labels together, or send "
            "meaningless updates, would also form such a group. Ask what labels mean there. All other clients are "
            f"{others}",
        )

    def _say_kind(self, group: int) -> str:
        what = "" if self.kinds is None else self.kinds.say_group(group)
        return f", unlike the others in {what}" if what else ""

    def _say_turned_round(self) -> tuple[str, ...]:
        if not self.turned_round:
            return ()
        they = "They are" if len(self.turned_round) > 1 else "It is"
        return (
            f"Hostile, or reversed? {count_of(len(self.turned_round), 'client')}: {shorten(self.turned_round)}. "
            "Updates point against those of all others, as if signs were flipped or labels meant the opposite. Ask "
            f"what the labels mean; one model for all cannot serve both. {they} left out of everything below",
        )

    def _say_left_out(self) -> tuple[str, ...]:
        said = []
        if self.small:
            few = f"fewer than {2 * self.size} training samples"
            said.append(f"Placed in a group but not tested, because they have {few}: {shorten(self.small)}")
        if self.missing:
            said.append(f"Without an answer: {shorten([f'{k} ({why})' for k, why in self.missing.items()])}")
        return tuple(said)

    def tables(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        found: dict[str, Any] = asdict(self)
        found["structure"] |= {"found": self.has_structure, "possible": self.is_possible}
        for member, of in zip(found["memberships"], self.memberships, strict=True):
            member["between"] = of.is_between
        return {
            **found,
            "pay": None if self.pay is None else self.pay.tables(),
            "answer": self.suits.kind,
            "tested": self.tested,
            "standing_apart": list(self.standing_apart),
            "maybe_hostile": [group.number for group in self.maybe_hostile],
            "sentences": list(self.sentences()),
        }


def make_groups(
    names: tuple[str, ...], labels: NDArray[np.int64], shares: NDArray[np.float64], tested: NDArray[np.bool_]
) -> tuple[tuple[Group, ...], tuple[Membership, ...]]:
    """Return the groups, and each client's membership.

    Args:
        names: of the clients `[r]`.
        labels: of each `[r]`, canonical.
        shares: of its votes for each group `[r, K]`.
        tested: whether its halves were tested `[r]`.
    """
    members = []
    for at, name in enumerate(names):
        order = [k for k in np.argsort(-shares[at], kind="stable").tolist() if k != labels[at]]
        second, share = (order[0], float(shares[at, order[0]])) if order else (None, 0.0)
        own = float(shares[at, labels[at]])
        members.append(Membership(name, int(labels[at]), own, second, share, bool(tested[at])))
    groups = [
        Group(
            k,
            tuple(names[i] for i in np.flatnonzero(labels == k)),
            float(np.mean([members[i].confidence for i in np.flatnonzero(labels == k)])),
        )
        for k in range(int(labels.max(initial=-1)) + 1)
    ]
    return tuple(groups), tuple(members)


def _say_counts(counts: tuple[int, ...]) -> str:
    """Say which numbers of groups resamples found: `3 (18 of 20), 4 (2 of 20)`."""
    values, times = np.unique(counts, return_counts=True)
    order = np.argsort(-times, kind="stable")[:3]
    words = [str(value) if value else "everybody differs" for value in values.tolist()]
    return ", ".join(f"{words[i]} ({times[i]} of {len(counts)})" for i in order)
