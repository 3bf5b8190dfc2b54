"""CFL: clustered federated learning by recursive bipartition (Sattler, Müller and Samek, IEEE TNNLS 2020).

https://arxiv.org/abs/1910.01991. Also called FMTL, and FedCluster in FeSEM's tables.

All clients start in one leaf of a tree. Every round:
    1. Each client trains the model of its leaf and uploads it; the server keeps its update.
    2. The server compares the updates of all clients, by their cosines.
    3. A leaf is tested when its mean update is shorter than eps1 while a member's is longer than eps2: its model
       has come to rest and does not suit them all. It is cut in two by linkage, and the cut is accepted if the
       sides are farther apart than gamma_max (Theorem 1). By default a test on halves of the members' data must say
       that they are no draws from one population (`grouping.halves`), and it is cut by what that measures.
    4. Every leaf's model becomes the mean of what its members trained.

LayerCFL and AdaCFL are the same recursion on the updates, or weights, of some layers. The settings are theirs too.
Decisions where the paper is silent, and cost: docs/methods/cfl.md and docs/methods/layercfl.md
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.local_update import LocalUpdate, UpdateKeepingSolver
from coterie.errors import BadInput
from coterie.grouping.cluster import Linkage, bipartition, nearest_group
from coterie.grouping.halves import LEAST, client_distances, pairing_test
from coterie.grouping.labels import relabel
from coterie.grouping.layers import (
    ALL,
    AUTO,
    UNDECIDED,
    LayerChoice,
    Measure,
    candidates,
    compare_parts,
    compare_signals,
    decide_layer,
    distances,
    record_look,
)
from coterie.grouping.micro import bipartition_of_many
from coterie.grouping.split_tree import Gates, Leaves, born, norms, row_of, separation, separation_at, split
from coterie.methods.client_rows import add_rows, replace_rows
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, LogGap, Replies, Send
from coterie.methods.k_models import ServesGroups
from coterie.methods.method import UNKNOWN, Affinity, Assignment, Cohort, Needs, ServerView
from coterie.methods.privacy import UNTRIED, PrivacySupport
from coterie.methods.registry import METHODS, Grid
from coterie.methods.split_halves import compare_halves
from coterie.models.layout import BYTES_PER_SCALAR, Layout, Part

NOISE: Final = "noise"

LEVEL, TESTS = 0.003, 2
"""The p-value of a test on halves below which members of a leaf count as no draws from one population, and how many
tests in a round must say so, each with other halves: a leaf is tested in every round in which it rests."""

MOST_TESTED = 200
"""Members of a leaf who train on halves, drawn at random where there are more."""

DRAWS = 3999
"""Random pairings of a test."""

Layers = Annotated[
    str,
    Field(
        description="layers that are compared: auto, feature_skew, label_skew, all, or as in conv, last:1, fc1,fc2"
    ),
]

Signal = Annotated[Literal["update", "weights"], Field(description="what is compared of these layers")]

Distance = Annotated[Measure, Field(description="how it is compared")]

FirstSplit = Annotated[int, Field(ge=1, description="the first round in which a leaf may be split")]

Weights = Annotated[Literal["samples", "uniform"], Field(description="a client's weight in its leaf's mean")]


Gamma = Annotated[
    Annotated[float, Field(ge=0, le=1)] | Literal["noise"],
    Field(
        description="the separation, 0 … 1, that two sides must exceed; or noise: a test on halves of the "
        "members' data must reject that both sides have one distribution"
    ),
]

ASKED = 5
SURELY = 0.999
"""Rounds in which a client was asked and silent, and how certain that must be, for others not to wait for it."""

SAMPLE = 2_000
"""Clients in the matrix of a sample, where there are too many for a matrix of all."""


@state("layercfl")
@dataclass(frozen=True, eq=False)
class CFLState(Leaves, LayerChoice):
    """The tree of leaves, the layers that are compared, and every client's last update."""

    updates: Tensor  # [n, T], on the trainable tensors
    updated_in: NDArray[np.int64]  # [n], the round of that update, 0 before the first
    tests: NDArray[np.int64]  # [4], leaves so far that were tested, at rest, unsuited, and held against gamma_max
    closest: NDArray[np.float64]  # [3], nearest so far: |mean| / unit, longest / eps2, separation / gamma_max

    @classmethod
    def initial(cls, server: ServerView, parts: int, chosen: int) -> CFLState:
        """Return one leaf with all clients in it.

        Args:
            server: what it knows of the clients.
            parts: number of selections of layers that are compared.
            chosen: which of them decides, -1 while that is undecided.
        """
        n, width, none = server.n, server.layout.trainable.size, np.zeros(0, np.int64)
        model = server.initial(0)[None]
        return cls(
            chosen=chosen,
            looks=0,
            silhouettes=np.zeros(parts),
            agreements=np.zeros(parts),
            groupings=np.zeros((parts, n), np.int64),
            models=model,
            groups=np.zeros(n, np.int64),
            nodes=np.zeros(1, np.int64),
            tops=np.zeros((1, parts)),
            until=np.zeros(1, np.int64),
            splits=none.reshape(0, 2),
            before=model[:0],
            means=torch.zeros(0, 2, width),
            updates=torch.zeros(n, width),
            updated_in=np.zeros(n, np.int64),
            tests=np.zeros(4, np.int64),
            closest=np.array([np.inf, 0.0, 0.0]),
        )

    def store_updates(self, replies: Replies, trainable: Part, round: int) -> CFLState:
        """Return the state with each client's update: its model less that of its leaf."""
        starts, updated_in = trainable.take(self.models), self.updated_in.copy()
        moved = add_rows(trainable.take(replies.models), starts, self.groups[replies.clients], -1.0)
        updated_in[replies.clients] = round
        return replace(self, updates=replace_rows(self.updates, replies.clients, moved), updated_in=updated_in)

    def find_known(self, round: int) -> Ids:
        """Return the clients with an update from their leaf's model: one of this round, or since the leaf was made.

        See docs/methods/layercfl.md, D16.
        """
        return np.flatnonzero((self.updated_in == round) | (self.updated_in > born(self)[self.groups]))

    def find_mute(self, round: int, share: float) -> Ids:
        """Return the clients who never answer: in the rounds since they did, or joined their leaf, they were asked.

        They were so at least `ASKED` times if all take part in each round, and with a chance of `SURELY` if a
        `share` does. A leaf does not wait for them (docs/methods/layercfl.md, D16).
        """
        silent = round - np.maximum(self.updated_in, born(self)[self.groups])
        return np.flatnonzero((silent >= ASKED) & ((1 - share) ** silent <= 1 - SURELY))

    def updates_of(self, clients: Ids) -> Tensor:
        """Return the last updates of `clients` `[r, T]`."""
        return self.updates if len(clients) == len(self.updated_in) else self.updates[torch.from_numpy(clients)]

    def signals_of(self, clients: Ids, signal: str, trainable: Part) -> Tensor:
        """Return `[r, T]` to compare: the last updates of `clients`, or their leaf's model plus these."""
        updates = self.updates_of(clients)
        if signal == "update":
            return updates
        return add_rows(updates, trainable.take(self.models), self.groups[clients])


@METHODS.add("cfl")
@dataclass(frozen=True)
class CFL(ServesGroups[CFLState]):
    """Recursive bipartition by the cosine of whole updates (Sattler et al., 2020; also FMTL, FedCluster).

    The released code is `eps1 = 0.4` (and `eps2 = 1.6`, which is `ratio = 4` times that), `linkage = "complete"`,
    `gamma_max = 0`, `t_min = 21`, `cooldown = 0`, `persist_opt = true`. Its thresholds are lengths of
    one network's updates.

    FeSEM's version of it is `layers = "last:1"`, `linkage = "average"`, `gamma_max = 0.13`, `t_min = 30`, tested
    whatever the norms (`eps1_frac = 2`, `ratio = 0`), each new leaf after thirty rounds more (`retrain = 30`).

    Per round: down and up `m P b` bytes. Unless `gamma_max` is a number, each client of a leaf that passes both
    thresholds is sent the model once more (twice before a cut) and answers `2 P b` bytes (of models of more than
    262,144 parameters, two sketches of 8,192 numbers).
    """

    family = "clustered, hierarchical"

    layers: Layers = ALL
    signal: Signal = "update"
    distance: Distance = "cosine"
    linkage: Annotated[
        Linkage, Field(description="of the bipartition: complete as in CFL's code; single is its formula's optimum")
    ] = "average"
    eps1_frac: Annotated[
        float | None,
        Field(
            ge=0,
            description="eps1 as a share of the leaf's longest mean update, 0.1 in LayerCFL; without it, it is the "
            "longest update now / ratio",
        ),
    ] = None
    ratio: Annotated[float, Field(ge=0, description="eps2 / eps1, r"), Grid(1.0, 2.0, 4.0, 10.0)] = 2.0
    eps1: Annotated[float | None, Field(ge=0, description="eps1 itself; CFL's code has 0.4")] = None
    eps2: Annotated[float | None, Field(ge=0, description="eps2 itself; CFL's code has 1.6")] = None
    t_min: Annotated[FirstSplit, Grid(5, 10, 21)] = 5
    gamma_max: Annotated[Gamma, Grid(0.0, 0.13, NOISE)] = NOISE
    cooldown: Annotated[int, Field(ge=0, description="rounds without a test after a refused split")] = 10
    retrain: Annotated[int, Field(ge=0, description="rounds that a new leaf trains before it is tested")] = 0
    recursive: Annotated[bool, Field(description="test new leaves at once, on the updates that made them")] = False
    weights: Weights = "uniform"
    persist_opt: Annotated[bool, Field(description="clients keep their solver's memory, as in CFL's code")] = False
    log_gaps: Annotated[
        Literal["chosen", "every"],
        Field(description="layers whose gaps are logged: the compared ones, or all, which takes longer"),
    ] = "chosen"

    eps2_is_of_selected: ClassVar[bool] = False
    """Whether eps2 is held against the updates of the compared layers alone (LayerCFL, Eq. 28)."""

    def __post_init__(self) -> None:
        problems = []
        if self.distance == "l2" and self.gamma_max not in (0, NOISE):
            problems.append(
                f"method.gamma_max = {self.gamma_max!r} is not possible with distance = 'l2', because it bounds "
                f"cosines; it must be 0 or {NOISE!r}"
            )
        if self.distance == "l2" and self.layers == AUTO:
            problems.append(
                "method.layers = 'auto' is not possible with distance = 'l2', because distances in layers of "
                "different sizes cannot be compared; it must name layers, as in last:1"
            )
        if problems:
            raise BadInput(problems)

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Warn of a run too short to split a leaf, and of what is approximate with so many clients."""
        late, scale = self.t_min > rounds, server.scale
        found = [f"no leaf is tested before round {self.t_min} (t_min); this run has {rounds}"] * late
        if server.n > scale.sketch_above:
            size = server.layout.trainable.size * BYTES_PER_SCALAR * server.n / 1e6
            found.append(
                f"{server.n:,} clients are more than scale.sketch_above = {scale.sketch_above:,}: layers and gaps "
                f"are judged by a sample of them; the last updates of all take {size:,.0f} MB"
            )
        if server.n > scale.hierarchy_above:
            found.append(
                f"{server.n:,} clients are more than scale.hierarchy_above = {scale.hierarchy_above:,}: large "
                "leaves are split by micro-clusters of their members"
            )
        return found

    def amounts_to(self, layout: Layout, rounds: int) -> str:
        return "FedAvg" if self.t_min > rounds else ""

    def final_warnings(self, state: CFLState, server: ServerView, rounds: int) -> list[str]:
        """Say which test kept all clients in one leaf, how near it came, and which setting decides it."""
        if len(state.splits):
            return []
        tested, rested, unsuited, cut = state.tests.tolist()
        shortest, longest, apart = state.closest.tolist()
        if rounds < self.t_min:
            why = f"no leaf is tested before round {self.t_min} (method.t_min)"
        elif server.n <= 2:
            why = "a leaf of one or two clients is never split, and there are no larger ones"
        elif not tested:
            why = f"too few rounds had updates of all {server.n} members of the leaf; "
            why += "raise run.participation if it is below 1, or lower run.client_dropout"
        elif not rested:
            name, unit = self._rest
            times = shortest / unit if unit else math.inf
            why = f"the leaf never converged: its mean update was never shorter than {times:.3g} times eps1 "
            why += f"(method.{name})"
        elif not unsuited:
            why = f"the leaf's model suited all members: after convergence the longest update was {longest:.3g} "
            why += f"times eps2 (method.{'ratio' if self.eps2 is None else 'eps2'})"
        elif not cut and self.gamma_max == NOISE:
            why = f"no cut could be tested: a test needs {LEAST} members whose data can be halved"
        elif not cut:
            why = "there was nothing to cut: the updates of all members were equal"
        elif self.gamma_max == NOISE:
            why = f"every cut of {cut} was refused: halves of the members' data did not tell the members apart "
            why += f"(p was at least {LEVEL / apart:.3g}; a split needs p below {LEVEL} with two draws of halves)"
        else:
            why = f"every cut of {cut} was refused: the separation of its sides was at most {apart:.3g} times "
            why += f"method.gamma_max = {self.gamma_max:g}"
        return [f"no groups came about: {why}"]

    @property
    def _rest(self) -> tuple[str, float]:
        """The setting that decides when a leaf rests, and eps1 in the unit of `CFLState.closest`."""
        if self.eps1 is not None:
            return "eps1", self.eps1
        if self.eps1_frac is not None:
            return "eps1_frac", self.eps1_frac
        return "ratio", 1 / self.ratio if self.ratio else math.inf

    needs = Needs(models="its server compares single clients' updates")

    @property
    def privacy_support(self) -> PrivacySupport:
        server = "its server compares single clients' updates"
        if self.gamma_max != NOISE:
            return PrivacySupport(server, UNTRIED, UNTRIED)
        halves = "its clients train on halves of their samples and report the result of each"
        return PrivacySupport(server, halves, halves)

    def start(self, server: ServerView) -> CFLState:
        parts, chosen = candidates(server.layout, self.layers)
        return CFLState.initial(server, len(parts), chosen)

    def round(self, state: CFLState, cohort: Cohort) -> Exchanges[CFLState]:
        server, clients = cohort.server, cohort.clients
        rule = UpdateKeepingSolver() if self.persist_opt else LocalUpdate()
        send = {"model": Send(state.models, state.groups[clients])}
        replies: Replies = yield Exchange(clients, rule, send)  # step 1
        state = state.store_updates(replies, server.layout.trainable, cohort.round)
        known = state.find_known(cohort.round)
        state, matrix = yield from self._compare(state, cohort, known)  # step 2
        state = yield from self._split_leaves(state, cohort, known, matrix)  # step 3
        # Step 4. The updates that caused a split are averaged in the new leaves (docs/methods/layercfl.md, D13).
        groups, weights = state.groups[replies.clients], replies.samples if self.weights == "samples" else None
        return replace(
            state, models=server.aggregation.average_groups(replies.models, groups, state.models, weights)
        )

    def newcomer(self, state: CFLState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Send newcomers down the tree: at each split to the side whose mean update is nearer to theirs.

        They make one local update from each model that was split, for updates compare only if they start from one
        model. It is the rule of CFL's parameter tree, with the mean of each side in place of its nearest member.
        """
        nodes = np.zeros(len(clients), np.int64)
        part, trainable = self._select_part(state, server.layout), server.layout.trainable
        for number, node in enumerate(state.splits[:, 0].tolist()):
            asked, start = clients[nodes == node], state.before[number]
            if not len(asked):
                continue
            replies: Replies = yield Exchange(asked, LocalUpdate(), {"model": Send.same(start, asked)})
            nodes[nodes == node] = UNKNOWN
            for client, model in zip(replies.clients, replies.models, strict=True):
                signals = torch.cat([trainable.take(model - start)[None], state.means[number]])
                signals = signals if self.signal == "update" else signals + trainable.take(start)
                apart = distances(compare_signals(part.take(signals), self.distance), self.distance)[0, 1:]
                nodes[clients == client] = 2 * number + 1 + int(apart.argmin())
        rows = [UNKNOWN if node == UNKNOWN else row_of(state, int(node)) for node in nodes]
        return Assignment(state.models, np.array(rows, np.int64))

    def affinity(self, state: CFLState, server: ServerView, clients: Ids) -> Affinity:
        signals = self._select_part(state, server.layout).take(
            state.signals_of(clients, self.signal, server.layout.trainable)
        )
        name = f"{'1 - cosine' if self.distance == 'cosine' else 'l2 distance'} of the last {self.signal}"
        return Affinity(name, distances(compare_signals(signals, self.distance), self.distance))

    def _compare(
        self, state: CFLState, cohort: Cohort, known: Ids
    ) -> Exchanges[tuple[CFLState, NDArray[np.float64] | None]]:
        """Return the matrix `[r, r]` between the `known` clients in the compared layers, and log the gaps.

        Above `scale.sketch_above` clients there is no matrix: a fixed sample of them gives the gaps and the layers.

        `layers = "auto"` is LayerCFL's choice of a layer: every round before `t_min` in which all clients are known
        adds a comparison in every layer, and round `t_min` decides, or a later one if there were fewer than two
        such rounds (docs/methods/layercfl.md, D2). Until then all tensors count, and no leaf is split.
        """
        server = cohort.server
        parts, _ = candidates(server.layout, self.layers)
        ready = cohort.round >= self.t_min and state.looks >= self._least_looks
        decides_now = state.chosen == UNDECIDED and ready
        if decides_now:
            state = decide_layer(state)
        names = list(parts)
        name = names[state.chosen]
        if state.chosen != UNDECIDED and (decides_now or cohort.round == 1):
            yield Log("chosen", {name: 1.0})
        choosing = state.chosen == UNDECIDED
        if not len(known):
            return state, np.zeros((0, 0))
        waited_for = np.setdiff1d(server.everyone, state.find_mute(cohort.round, len(cohort.clients) / server.n))
        everybody = len(known) > 2 and np.isin(waited_for, known).all()
        many = len(known) > server.scale.sketch_above
        if many:
            size = min(SAMPLE, server.scale.sketch_above)
            known = np.intersect1d(known, server.stream("sample of clients").permutation(server.n)[:size])
        signals = state.signals_of(known, self.signal, server.layout.trainable)
        compared = names if choosing or self.log_gaps == "every" else [name]
        matrices = {}
        for of, both in zip(compared, compare_parts(signals, [parts[of] for of in compared]), strict=True):
            yield LogGap(of, known, both["cosine"], "similarity")  # Gap1
            yield LogGap(of, known, both["l2"], "distance")  # Gap2
            matrices[of] = both[self.distance]
        if choosing and everybody:
            state, silhouettes = record_look(state, known, list(matrices.values()), self.linkage)
            yield Log("silhouette", dict(zip(names, silhouettes.tolist(), strict=True)))
        # What deciding takes: with the layers all of them are compared, and that of everything is their sum.
        yield Log("multiplications", len(known) * (len(known) + 1) / 2 * parts[ALL if choosing else name].size)
        return state, None if many else matrices[name]

    def _split_leaves(
        self, state: CFLState, cohort: Cohort, known: Ids, matrix: NDArray[np.float64] | None
    ) -> Exchanges[CFLState]:
        """Test each leaf whose members are known or mute (docs/methods/layercfl.md, D16); split what passes."""
        server = cohort.server
        parts = list(candidates(server.layout, self.layers)[0].values())
        part = state.chosen if self.eps2_is_of_selected else -1
        samples = server.samples if self.weights == "samples" else np.ones(server.n)
        mute = state.find_mute(cohort.round, len(cohort.clients) / server.n)
        tests, closest = state.tests.copy(), state.closest.copy()
        state = replace(state, tops=state.tops.copy(), until=state.until.copy(), tests=tests, closest=closest)
        logs: dict[str, dict[str, float]] = {"leaf": {}, "update norm": {}, "split threshold": {}}
        if cohort.round == 1:
            logs["leaf"]["0"] = -1.0
        for node in (queue := state.nodes.tolist()):
            row = row_of(state, node)
            everyone = np.flatnonzero(state.groups == row)
            members = np.intersect1d(everyone, known)
            if not len(members) or not np.isin(np.setdiff1d(everyone, members), mute).all():
                continue
            updates, weights = state.updates_of(members), samples[members]
            mean = server.aggregation.average(updates, torch.zeros_like(updates[:1]), weights, step=False)
            lengths = norms(mean, parts)[0]
            longest = norms(updates, [parts[-1], parts[part]]).max(0)
            state.tops[row] = np.maximum(state.tops[row], lengths)
            top, tested_top = state.tops[row, [-1, part]].tolist()
            eps1, eps2 = self.gates.thresholds(top, tested_top, float(longest[0]))
            logs["update norm"][str(node)], logs["split threshold"][str(node)] = float(lengths[-1]), eps1
            waiting = state.chosen == UNDECIDED and cohort.round >= self.t_min and self._least_looks > 0
            early = cohort.round < self.t_min or cohort.round <= state.until[row] or len(members) <= 2
            if early or waiting:
                continue
            tests[0] += 1
            # What the setting multiplies: eps1 itself may be 0, and how near it came would be lost.
            unit = 1.0 if self.eps1 is not None else longest[0] if self.eps1_frac is None else top
            closest[0] = min(closest[0], lengths[-1] / unit if unit else np.inf)
            if lengths[-1] >= eps1:
                continue
            tests[1] += 1
            closest[1] = max(closest[1], longest[1] / eps2 if eps2 else np.inf)
            if longest[1] < eps2:
                continue
            tests[2] += 1
            sides, apart, inside = self._cut_leaf(state, members, known, matrix, cohort)
            if not sides.any():
                continue  # equal members are not cut
            if isinstance(self.gamma_max, str):  # NOISE
                sides, times = yield from self._test_halves(state, row, members, sides, inside, cohort)
            else:
                times = apart / self.gamma_max if self.gamma_max else math.inf if apart else 0.0
            if np.isnan(times):
                continue  # not a refusal: the leaf waits until enough members can tell
            tests[3] += 1
            closest[2] = max(closest[2], times)
            if times <= 1:
                state.until[row] = cohort.round + self.cooldown
                continue
            halves = server.aggregation.average_groups(
                updates, sides, torch.zeros_like(updates[:2]), weights, step=False
            )
            # Who never answers stays on the first side; it has nothing that would tell.
            whole = np.zeros(len(everyone), np.int64)
            whole[np.isin(everyone, members)] = sides
            state = split(state, row, whole, halves, cohort.round)
            children = [2 * len(state.splits) - 1, 2 * len(state.splits)]
            for child in children if self.retrain else ():
                state.until[row_of(state, child)] = cohort.round + self.retrain - 1
            logs["leaf"] |= {str(child): float(node) for child in children}
            queue += children if self.recursive else []
        logs["leaf size"] = {str(node): float((state.groups == row).sum()) for row, node in enumerate(state.nodes)}
        for name, values in logs.items():
            if values:
                yield Log(name, values)
        return state

    def _cut_leaf(
        self,
        state: CFLState,
        members: Ids,
        known: Ids,
        matrix: NDArray[np.float64] | None,
        cohort: Cohort,
    ) -> tuple[NDArray[np.int64], float, NDArray[np.float64] | None]:
        """Return the sides of a leaf of `members`, 0 and 1 `[m]`, their separation, and the matrix `[m, m]`.

        Equal members are not cut.

        Without a test the separation is infinite.

        The `matrix` is between all `known` clients. Without one, the members are compared here; above
        `scale.hierarchy_above` clients by way of micro-clusters, if the leaf is larger than a sample.
        """
        server = cohort.server
        if matrix is not None:
            at = np.searchsorted(known, members)
            inside = matrix[np.ix_(at, at)]
        else:
            rows = self._select_part(state, server.layout).take(
                state.signals_of(members, self.signal, server.layout.trainable)
            )
            above = server.scale.hierarchy_above
            if server.n > above and len(members) > min(SAMPLE, above):
                seed = int(server.stream("micro-clusters", cohort.round).integers(2**31))
                sides, alike = bipartition_of_many(rows, self.distance, self.linkage, seed)
                return sides, separation_at(alike) if self.distance == "cosine" else math.inf, None
            inside = compare_signals(rows, self.distance)
        apart = distances(inside, self.distance)
        sides = bipartition(apart, self.linkage) if apart.any() else np.zeros(len(members), np.int64)
        separated = separation(inside, sides) if self.distance == "cosine" and sides.any() else math.inf
        return sides, separated, inside

    def _test_halves(
        self,
        state: CFLState,
        row: int,
        members: Ids,
        sides: NDArray[np.int64],
        inside: NDArray[np.float64] | None,
        cohort: Cohort,
    ) -> Exchanges[tuple[NDArray[np.int64], float]]:
        """Test whether a leaf's members are of one population, and cut it by what the test measured (D9).

        All are asked, also those who do not take part in this round, for a few of a leaf tell little. Who is to be
        cut is tested again with other halves.

        Members who were not tested go to the side that their updates are nearer to. Where members were not all
        compared with each other, the `sides` stay.

        Returns:
            The sides `[m]`, and `LEVEL` by the greater p-value: above 1 where they are no draws from one
            population. NaN where fewer than `LEAST` could tell (D16).
        """
        server = cohort.server
        rng = server.stream(f"halves of leaf {state.nodes[row]}", cohort.round)
        asked = np.sort(rng.permutation(members)[:MOST_TESTED])
        if len(asked) < LEAST:
            return sides, math.nan
        part, rows = self._select_part(state, server.layout), np.full(len(asked), row)
        times = math.inf
        for draw in range(TESTS):
            found = yield from compare_halves(asked, rows, state.models, server, part, draw)
            if row not in found:
                return sides, math.nan
            tested, halves = found[row]
            times = min(times, LEVEL / pairing_test(halves, rng, DRAWS).p)
            if times <= 1:
                break
        if inside is not None:
            at, own = np.searchsorted(members, tested), bipartition(client_distances(halves), self.linkage)
            sides = nearest_group(distances(inside, self.distance)[:, at], own)
            sides[at] = own
        return relabel(sides), times

    def _select_part(self, state: CFLState, layout: Layout) -> Part:
        """Return the tensors that are compared; all of them while the layer is undecided."""
        return list(candidates(layout, self.layers)[0].values())[state.chosen]

    @property
    def _least_looks(self) -> int:
        """In how many rounds all clients must have been compared before a layer is chosen."""
        return min(2, self.t_min - 1)

    @property
    def gates(self) -> Gates:
        """The thresholds of the two norms."""
        return Gates(self.eps1_frac, self.ratio, self.eps1, self.eps2)
