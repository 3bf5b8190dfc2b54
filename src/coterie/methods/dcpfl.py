"""DC-PFL: one group that is split along a dendrogram, and layers that are averaged when they need it (2025).

Liu, Huang, He and Cao: Dynamic clustering for personalized federated learning on heterogeneous edge devices,
https://arxiv.org/abs/2508.01580

Every round:
    1. Clients receive the layers that their group averaged last, lay them over their own models, and report their
       loss.
    2. They train and upload the layers that are due: high-discrepancy layers always, low ones every `alpha` rounds,
       all of them in the first rounds.
    3. The server averages the due layers in each group. The first models decide each layer's period (Eq. 6).
    4. The models of the first rounds, `t_start` of each client, give the distances between clients, and these the
       dendrogram.
    5. When the rapid decrease of the loss has ended, the next lower cut with finer groups becomes a candidate.
A trial takes the place of the next round: all clients train both models, and the smaller mean loss decides.
A layer is a parameter tensor, unless `unit` says otherwise.
Decisions where the paper is silent, and cost: docs/methods/dcpfl.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.evaluate import Evaluate
from coterie.clients.rules.private_layers import PrivateUpdate
from coterie.clients.rules.two_branches import Receive, TakeBranch, TrainBranches
from coterie.errors import BadInput, count_of
from coterie.grouping.affinity import Scaling, layer_discrepancies, scaled_l1
from coterie.grouping.cluster import dendrogram
from coterie.grouping.rapid_decrease import count_terms, cut_at, has_decrease_ended, next_cut, radii
from coterie.grouping.schedule import Layers, Unit, layer_parts, parts_of, periods, unit_names, whole_parts
from coterie.methods.aggregation import Aggregator
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, Replies, Send
from coterie.methods.k_models import ServesGroups
from coterie.methods.method import UNKNOWN, Affinity, Assignment, Cohort, Needs, ServerView, Split
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Layout, Part

Parts = Sequence[Part]
"""The tensors, or layers, that are averaged together `[L]`."""

MOST_THIRDS = 256
"""Clients through whom the distance of two that never met is taken: with all, it would take n³ steps."""

PUBLISHED_CUT = 0.8
"""The one cut of the paper's ablation without dynamic clustering."""


@state("dcpfl")
@dataclass(frozen=True, eq=False)
class DCPFLState:
    """The groups, what their members have yet to be sent, the dendrogram, the loss, and the candidate on trial."""

    models: Tensor  # [K, P], of the groups
    groups: NDArray[np.int64]  # [n]
    owed: Layers  # [n, L], the layers of its group's model that each client has yet to be sent
    started: NDArray[np.bool_]  # [n], who has taken part yet
    periods: NDArray[np.int64]  # [K, L], after how many rounds each layer is averaged again
    distances: NDArray[np.float64]  # [n, n], summed over the first rounds
    together: NDArray[np.int64]  # [n, n], in how many of them both took part
    cut: float  # where the dendrogram is cut, as a share of its height
    tried: float  # below which cut the next candidate lies
    tree: NDArray[np.float64] | None = None  # [n - 1, 4], once the first rounds are over
    losses: tuple[float, ...] = ()  # the mean training loss in each round since the groups changed
    last_full: int = 0  # the last round in which all layers were averaged
    next_trial: int = 0  # after a rejected trial no candidate is built before this round
    finer: Tensor | None = None  # [K', P], a candidate's models: the next round is its trial
    finer_groups: NDArray[np.int64] | None = None  # [n]
    finer_cut: float = 0.0
    gains: tuple[float, ...] = ()  # what this candidate's clients gained in trials that decided nothing
    closest: tuple[float, float] | None = None  # mean losses, now and finer, of the rejected trial that was closest

    @classmethod
    def initial(cls, server: ServerView, groups: Ids, cut: float, owed: bool, layers: int) -> DCPFLState:
        """Return `groups` `[n]` with the common initial model; `owed` says whether it has yet to be sent."""
        count, pairs = int(groups.max()) + 1, (server.n, server.n)
        return cls(
            server.initial(0).repeat(count, 1),
            groups,
            np.full((server.n, layers), owed),
            np.zeros(server.n, np.bool_),
            np.ones((count, layers), np.int64),
            np.zeros(pairs),
            np.zeros(pairs, np.int64),
            cut,
            cut,
        )

    def send_owed(self, clients: Ids, parts: Parts) -> Send:
        """Return the layers of its group's model that each of `clients` is owed."""
        owed = self.owed[clients]
        return Send(self.models, np.where(owed.any(1), self.groups[clients], UNKNOWN), parts_of(owed, parts))

    def send_download(self, clients: Ids, parts: Parts) -> dict[str, Send]:
        """Return the owed layers as `model`, or as `initial` on a client's first participation.

        See docs/methods/conventions.md, convention 10.
        """
        send, started = self.send_owed(clients, parts), self.started[clients]
        first, later = np.where(started, UNKNOWN, send.rows), np.where(started, send.rows, UNKNOWN)
        return {"initial": replace(send, rows=first), "model": replace(send, rows=later)}

    def mark_downloaded(self, clients: Ids) -> DCPFLState:
        """Return the state in which nothing is owed to `clients`."""
        owed, started = self.owed.copy(), self.started.copy()
        owed[clients], started[clients] = False, True
        return replace(self, owed=owed, started=started)

    def average_layers(self, replies: Replies, due: Layers, parts: Parts, aggregation: Aggregator) -> DCPFLState:
        """Average the layers `due` in the groups of the clients that answered; owe them to all members.

        `due` is `[K, L]`, or `[K, 1]` for all layers of a group or none.
        """
        groups = self.groups[replies.clients]
        there = np.isin(np.arange(len(due)), groups)[:, None]
        due = np.broadcast_to(due & there, self.periods.shape)
        models = self.models.clone()
        means = aggregation.average_groups(replies.models, groups, self.models, replies.samples)
        for model, found, part in zip(models, means, parts_of(due, parts), strict=True):
            part.copy(model, found)
        return replace(self, models=models, owed=self.owed | due[self.groups])

    def reschedule(self, replies: Replies, method: DCPFL, round: int, layout: Layout) -> DCPFLState:
        """Find the periods from whole models, in a round in which all layers were due; the first decides or all."""
        if not len(replies):
            return self
        if method.schedule == "start" and self.last_full:
            return replace(self, last_full=round)
        layers, groups = layer_parts(layout, method.unit), self.groups[replies.clients]
        found = layer_discrepancies(replies.models, groups, self.models, layers, method.scale)
        return replace(self, periods=method.schedule_periods(found, self.periods), last_full=round)

    def add_distances(self, clients: Ids, distances: NDArray[np.float64]) -> DCPFLState:
        """Add one round's distances `[r, r]` between `clients`."""
        pairs = np.ix_(clients, clients)
        total, together = self.distances.copy(), self.together.copy()
        total[pairs] += distances
        together[pairs] += 1
        return replace(self, distances=total, together=together)

    def average_groups(self, groups: Ids, replies: Replies, aggregation: Aggregator) -> Tensor:
        """Return models `[K', P]` of finer groups `[n]`: the means of the whole models that came back.

        A group without a whole model gets the model of the group that it is part of.
        """
        parents = self.groups[np.unique(groups, return_index=True)[1]]
        whole = ~replies.models.isnan().any(1).numpy()
        counted = np.where(whole, groups[replies.clients], UNKNOWN)
        return aggregation.average_groups(replies.models, counted, self.models[parents], replies.samples)

    def find_candidate(self, method: DCPFL, round: int) -> tuple[float, Ids] | None:
        """Return the next cut and its groups, where it is time for a trial."""
        if self.tree is None or not method.dynamic:
            return None
        if round < self.next_trial or not method.has_ended(self.losses):
            return None
        return next_cut(self.tree, self.tried, method.step)

    def propose(self, cut: float, groups: Ids, replies: Replies, aggregation: Aggregator) -> DCPFLState:
        """Store a candidate for the next round's trial."""
        finer = self.average_groups(groups, replies, aggregation)
        return replace(self, finer=finer, finer_groups=groups, finer_cut=cut)

    def regroup(self, groups: Ids, models: Tensor, cut: float, there: Ids) -> DCPFLState:
        """Move to other groups, which inherit their layers' periods.

        All layers are owed, except to clients `there`, whose models made these.
        """
        owed = np.ones_like(self.owed)
        owed[there] = False
        parents = self.groups[np.unique(groups, return_index=True)[1]]
        state = replace(self, models=models, groups=groups, owed=owed, periods=self.periods[parents])
        return replace(state, cut=cut, tried=cut, losses=(), next_trial=0)

    def is_measured(self, rounds: int) -> bool:
        """Say whether clients have on average been there in as many measured rounds."""
        return float(self.together.diagonal().mean()) >= rounds

    @property
    def mean_distances(self) -> NDArray[np.float64]:
        """`[n, n]`: means over the measured rounds in which both were there.

        Two clients that never met are as far apart as the larger of their distances to a third, taken for the third
        that makes this smallest; where there is none, as the mean of all others. Thirds are the `MOST_THIRDS`
        clients that met most others.
        """
        known, pairs = self.together > 0, ~np.eye(len(self.together), dtype=np.bool_)
        found = np.divide(self.distances, self.together, out=np.zeros_like(self.distances), where=known)
        if known[pairs].all():
            return found
        usual = float(found[known & pairs].mean()) if (known & pairs).any() else 0.0
        thirds = np.argsort(-known.sum(1), kind="stable")[:MOST_THIRDS]
        direct = np.where((known & pairs)[:, thirds], found[:, thirds], np.inf)
        through = np.stack([np.maximum(direct, row).min(1) for row in direct])
        return np.where(known | ~pairs, found, np.where(np.isfinite(through), through, usual))


@METHODS.add("dcpfl")
@dataclass(frozen=True)
class DCPFL(ServesGroups[DCPFLState]):
    """One group, split along a dendrogram of client models whenever the loss stops falling fast (Liu et al., 2025).

    Layers that are not averaged stay with the clients and go on training. What was averaged is sent at a member's
    next participation: a member that was away gets all layers that it missed. Distances are means over the first
    rounds in which both clients took part; of pairs that never met they follow from third clients.

    Per round: up `b` times the due layers of each client's group and 4 m bytes, down the layers last averaged; a
    trial: down `2 m P b`, up `m P b + 8 m`. A group of one exchanges its loss alone.
    """

    family = "clustered, hierarchical"

    t_start: Annotated[
        int, Field(ge=0, description="rounds of a client, on average, before the dendrogram is built")
    ] = 5
    window: Annotated[
        int, Field(ge=1, description="the window s: s + 1 losses are smoothed, rounded up to a multiple of alpha")
    ] = 5
    t_obv: Annotated[int, Field(ge=1, description="rounds the radius must stay above its minimum")] = 3
    t_sp: Annotated[int, Field(ge=1, description="rounds after a rejected trial until the next candidate")] = 6
    step: Annotated[float, Field(gt=0, le=1, description="how much lower the next cut is"), Grid(0.1, 0.2, 0.4)] = (
        0.1
    )
    alpha: Annotated[
        int,
        Field(ge=1, description="period in rounds of low-discrepancy layers; 1 averages all layers in every round"),
        Grid(2, 3, 5),
    ] = 3
    threshold: Annotated[
        float,
        Field(ge=0, description="a discrepancy below this share of the layers' mean is low"),
        Grid(0.05, 0.1, 0.2),
    ] = 0.1
    scale: Annotated[
        Scaling,
        Field(
            description="models are compared in one range for all of them, in each layer's own range, or in each "
            "whole model's own"
        ),
    ] = "common"
    unit: Annotated[Unit, Field(description="what has a period: each parameter tensor, or each whole layer")] = (
        "tensor"
    )
    schedule: Annotated[
        Literal["start", "renewed"],
        Field(description="periods are set once, at the start, or anew whenever all layers were averaged"),
    ] = "start"
    retry: Annotated[
        Literal["same", "next"],
        Field(description="after a lost trial: the same candidate, or the next finer one if any"),
    ] = "next"
    trial_loss: Annotated[
        Literal["train", "validation"],
        Field(description="what a trial compares; training losses favour small groups, down to single clients"),
    ] = "validation"
    margin: Annotated[
        float,
        Field(ge=0, description="standard errors over the clients by which a trial must win"),
    ] = 2.5
    dynamic: Annotated[bool, Field(description="split by trials; or once, at `cut`, after `t_start` rounds")] = True
    cut: Annotated[
        float | None,
        Field(ge=0, le=1, description="the one cut where dynamic = false; without it 0.8, as published"),
    ] = None

    def __post_init__(self) -> None:
        problems = []
        if self.dynamic and self.cut is not None:
            problems.append(
                f"cut = {self.cut:g} has no effect with dynamic = true; leave it out, or set dynamic = false"
            )
        if self.t_start == 0 and (self.dynamic or self.cut not in (0, 1)):
            problems.append(
                "t_start = 0 leaves no rounds that could give a dendrogram; it must be at least 1, unless "
                "dynamic = false and cut is 0 or 1"
            )
        if problems:
            raise BadInput(problems)

    @property
    def needs(self) -> Needs:
        return Needs(
            validation=self.dynamic and self.trial_loss == "validation",
            models="its server compares single clients' models",
            pairs="everybody",
        )

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Warn of a run too short for a dendrogram."""
        late = self.t_start >= rounds
        return [
            f"the dendrogram needs t_start = {self.t_start} rounds at full participation, and more if only some "
            f"clients take part; this run has {rounds}"
        ] * late

    def final_warnings(self, state: DCPFLState, server: ServerView, rounds: int) -> list[str]:
        """Say why a run that looks for groups ended with one: no dendrogram, no trial, or none that won."""
        if not self.dynamic or server.n == 1 or len(state.models) > 1:
            return []
        if state.tree is None:
            seen = float(state.together.diagonal().mean())
            return [
                f"clients took part {seen:.3g} times on average, and the dendrogram needs method.t_start = "
                f"{self.t_start}, so nothing was split"
            ]
        if state.closest is not None:
            now, finer = state.closest
            return [
                f"every trial kept the one group; in the closest the mean {self.trial_loss} loss was {finer:.4g} "
                f"with finer groups and {now:.4g} without (method.margin = {self.margin:g})"
            ]
        if not self.has_ended(state.losses):
            return [
                f"in {count_of(rounds, 'round')} the rapid decrease of the loss did not seem to end, so no groups "
                f"were tried (method.window = {self.window}, method.t_obv = {self.t_obv})"
            ]
        if next_cut(state.tree, state.tried, self.step) is None:
            return ["no groups came about: no lower cut of the dendrogram divides the one group"]
        return [
            f"the rapid decrease of the loss ended within {count_of(rounds, 'round')}, but no trial of groups was "
            "completed. A trial takes one more round, and clients that answer and have samples to measure its loss"
        ]

    own_step = "its layers are averaged in different rounds, and a trial may take back what was averaged"

    privacy_support = hides_nothing(
        "its server compares single clients' models and receives their losses",
        "its clients report their loss in every round",
    )

    def start(self, server: ServerView) -> DCPFLState:
        split = self.t_start == 0 and self.cut == 0
        groups = np.arange(server.n) if split else np.zeros(server.n, np.int64)
        layers = len(unit_names(server.layout, self.unit))
        return DCPFLState.initial(
            server, groups, 0.0 if split else 1.0, owed=not self.find_alone(groups).all(), layers=layers
        )

    def round(self, state: DCPFLState, cohort: Cohort) -> Exchanges[DCPFLState]:
        layout, number = cohort.server.layout, cohort.round
        parts, measuring = whole_parts(layout, self.unit), self.t_start > 0 and state.tree is None
        if state.finer is not None and state.finer_groups is not None:
            state = yield from self._run_trial(state, state.finer, state.finer_groups, cohort)
        else:
            # Step 1
            received: Replies = yield Exchange(
                cohort.clients, Receive(), state.send_download(cohort.clients, parts)
            )
            state = yield from self._observe_loss(state.mark_downloaded(received.clients), received)
            # Step 2
            full = measuring or number - state.last_full >= self.alpha
            full = full or state.find_candidate(self, number) is not None
            due = ((state.periods == 1) | full) & ~self.find_alone(state.groups)
            back = parts_of(due[state.groups[received.clients]], parts)
            replies: Replies = yield Exchange(received.clients, PrivateUpdate(), upload_part={"model": back})
            # Step 3
            state = state.average_layers(replies, due, parts, cohort.server.aggregation)
            if full:
                state = state.reschedule(replies, self, number, layout)
            if measuring:  # step 4
                state = self._build_dendrogram(state, replies, cohort)
            # Step 5
            candidate = state.find_candidate(self, number)
            if candidate is not None and len(replies):
                state = state.propose(*candidate, replies, cohort.server.aggregation)
        yield Log("cut", state.cut)
        names = unit_names(layout, self.unit)
        yield Log("period", dict(zip(names, state.periods.mean(0).tolist(), strict=True)))
        return state

    def assignment(self, state: DCPFLState, server: ServerView) -> Assignment:
        return Assignment(state.models, state.groups, own="model")

    def evaluation(
        self, state: DCPFLState, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        """Evaluate the client's own model under the owed layers (docs/methods/dcpfl.md, D15)."""
        parts = whole_parts(server.layout, self.unit)
        return Exchange(clients, Evaluate(split, "model"), {"model": state.send_owed(clients, parts)})

    def affinity(self, state: DCPFLState, server: ServerView, clients: Ids) -> Affinity:
        return Affinity("model discrepancy", state.mean_distances[np.ix_(clients, clients)])

    def _observe_loss(self, state: DCPFLState, received: Replies) -> Exchanges[DCPFLState]:
        """Store the mean loss of the models as received; log whether its rapid decrease has ended."""
        if not len(received):
            return state
        losses = (*state.losses, float(received.numbers["loss"].mean()))
        yield Log("loss", losses[-1])
        if np.isfinite(radius := float(radii(losses, self.terms)[-1])):
            yield Log("radius", radius)
        if self.has_ended(losses) and not self.has_ended(state.losses):
            yield Log("rapid decrease ended", 1.0)
        return replace(state, losses=losses)

    def _build_dendrogram(self, state: DCPFLState, replies: Replies, cohort: Cohort) -> DCPFLState:
        """Add up distances in the first rounds; after the last of them make the dendrogram."""
        n, layout = cohort.server.n, cohort.server.layout
        if n > 1 and len(replies):  # a single client has no distances
            state = state.add_distances(replies.clients, self.measure_distances(replies.models, layout))
        if cohort.round < self.t_start or (n > 1 and not state.is_measured(self.t_start)):
            return state
        state = replace(state, distances=state.mean_distances, together=np.ones_like(state.together))
        tree = dendrogram(state.distances) if n > 1 else np.empty((0, 4))
        state = replace(state, tree=tree)
        if self.dynamic:
            return state
        groups = cut_at(tree, self.fixed_cut)
        state = state.regroup(
            groups,
            state.average_groups(groups, replies, cohort.server.aggregation),
            self.fixed_cut,
            replies.clients,
        )
        parts = whole_parts(layout, self.unit)
        return state.average_layers(replies, ~self.find_alone(groups), parts, cohort.server.aggregation).reschedule(
            replies, self, cohort.round, layout
        )

    def _run_trial(self, state: DCPFLState, models: Tensor, groups: Ids, cohort: Cohort) -> Exchanges[DCPFLState]:
        """Let clients train the models of their group and of the finer one; the smaller mean loss decides.

        Heard are those that were sent both and have samples to tell the losses on; where nobody is, nothing is
        decided.
        """
        clients, layout = cohort.clients, cohort.server.layout
        alone = self.find_alone(state.groups)[state.groups, 0]
        parts = whole_parts(layout, self.unit)
        down = replace(state, owed=state.owed | ~alone[:, None]).send_download(clients, parts)
        down["finer"] = Send(models, np.where(alone, UNKNOWN, groups)[clients])
        received: Replies = yield Exchange(clients, TrainBranches(self.trial_loss), down)
        if not len(received):
            return state  # the trial is put off to the next round
        untold, sent_both = np.full(len(received), np.nan), ~alone[received.clients]
        now, finer = (received.numbers.get(name, untold) for name in ("now", "finer"))
        heard = sent_both & np.isfinite(now - finer)
        accepted, lost, gains, closest = False, False, state.gains, state.closest
        if heard.any():
            losses = float(now[heard].mean()), float(finer[heard].mean())
            gains = (*gains, *(now - finer)[heard].tolist())
            accepted, lost = self.judge_trial(gains, int(sent_both.sum()) / int((~alone).sum()))
            closest = min(filter(None, (closest, losses)), key=lambda x: x[1] - x[0])
            yield Log("trial", dict(zip(("now", "finer"), losses, strict=True)))
        yield Log("accepted", float(accepted))
        state = replace(state.mark_downloaded(received.clients), finer=None, finer_groups=None)
        final = groups if accepted else state.groups
        due = ~self.find_alone(final)
        back = [layout.everything if whole else layout.nothing for whole in due[final[received.clients], 0]]
        replies: Replies = yield Exchange(received.clients, TakeBranch(accepted), upload_part={"model": back})
        tried = state.finer_cut if lost and self.retry == "next" else state.tried
        gains = () if accepted or lost else gains
        state = replace(state, tried=tried, next_trial=cohort.round + self.t_sp, gains=gains, closest=closest)
        if accepted:
            state = state.regroup(groups, models, state.finer_cut, replies.clients)
        return state.average_layers(replies, due, parts, cohort.server.aggregation).reschedule(
            replies, self, cohort.round, layout
        )

    @property
    def fixed_cut(self) -> float:
        """The one cut where there are no trials."""
        return PUBLISHED_CUT if self.cut is None else self.cut

    def has_ended(self, losses: tuple[float, ...]) -> bool:
        """Say whether the rapid decrease of the losses since the last change has ended."""
        return has_decrease_ended(losses, self.terms, self.t_obv)

    @property
    def terms(self) -> int:
        """How many losses are smoothed over (docs/methods/dcpfl.md, D5)."""
        return count_terms(self.window, self.alpha)

    def judge_trial(self, gains: tuple[float, ...], share: float) -> tuple[bool, bool]:
        """Say whether the finer groups won and whether they lost, by how much lower the clients' losses were.

        The mean gain must be `margin` standard errors, as the clients' gains scatter: a client has few validation
        samples, and groups that are too fine would win by chance. What is no such gain is lost where everybody was
        there. Of a `share` of the clients a small one decides nothing: the next trial adds its gains. A single gain
        has no known error, and never wins.
        """
        gain, count = float(np.mean(gains)), len(gains)
        won = count > 1 and gain > self.margin * float(np.std(gains, ddof=1) / np.sqrt(count))
        return won, not won and (gain <= 0 or share >= 1)

    def find_alone(self, groups: Ids) -> Layers:
        """Find the groups of one client that keeps its model to itself `[K, 1]`."""
        return np.asarray((np.bincount(groups) == 1)[:, None])

    def measure_distances(self, models: Tensor, layout: Layout) -> NDArray[np.float64]:
        """Return the discrepancy between models `[n, P]`, without buffers."""
        layers = layer_parts(layout, self.unit) if self.scale == "layer" else [layout.trainable]
        return scaled_l1(models, parts=layers, common=self.scale == "common")

    def schedule_periods(self, discrepancies: NDArray[np.float64], previous: Ids) -> Ids:
        """Return after how many rounds each layer of each group is averaged again `[K, L]` (Eq. 6)."""
        return periods(discrepancies, self.alpha, self.threshold, previous)
