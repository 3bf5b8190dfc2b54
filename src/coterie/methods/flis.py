"""FLIS: clients average with those whose models predict alike (Morafah, Vahidian, Wang and Lin, 2022).

https://arxiv.org/abs/2208.09754

The similarity of two clients is the share of the server's public samples on which their models agree.

With `mode = "dc"` (dynamic clustering), every round:
    1. The server sends all cluster models. Each client takes the one with the smallest loss on its own data.
    2. It trains that model, keeps the result and uploads it.
    3. The server compares the uploads of this round. A cluster model is the mean of an upload and of those similar
       enough to it, weighted by samples; uploads with the same neighbours make one.
With `mode = "hc"` (hierarchical clustering):
    0. Before the first round everybody trains once from the common initial model. The server compares the results,
       which decides for good who are neighbours, and drops them.
    1. Each client is sent the mean of its neighbours' last models, its own among them, weighted by samples.
    2. As above.
A client is evaluated with the model that it trained last.
Decisions where the paper is silent, and cost: docs/methods/flis.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.choose import ChooseThenTrain, ChooseTrainKeep
from coterie.clients.rules.local_update import LocalUpdate
from coterie.clients.rules.private_layers import PrivateUpdate
from coterie.grouping.affinity import quartiles
from coterie.grouping.cluster import cut_dendrogram, dendrogram
from coterie.grouping.relation import agreement, neighbour_weights, same_neighbours
from coterie.methods.client_rows import replace_rows
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, LogGap, Outputs, Replies, Send
from coterie.methods.k_models import read_choices
from coterie.methods.method import UNKNOWN, Affinity, Assignment, Cohort, Method, Needs, ServerView
from coterie.methods.privacy import UNTRIED, PrivacySupport
from coterie.methods.registry import METHODS, Grid

THRESHOLDS = {("hc", "hierarchy"): 0.45, ("hc", "threshold"): 0.96}
"""Least similarity of neighbours in the authors' scripts; 0.96 is fixed in their code for `hc`. Otherwise 0.4."""


@state("flis")
@dataclass(frozen=True, eq=False)
class FLISState:
    """What the server remembers."""

    models: Tensor  # [K, P] the cluster models (dc), or [n, P] every client's last (hc)
    near: NDArray[np.bool_]  # [n, n], who are neighbours (hc); everybody is its own
    predictions: NDArray[np.int64]  # [n, public samples], the class each client was last seen to predict
    compared: NDArray[np.bool_]  # [n], whose predictions were seen yet
    groups: NDArray[np.int64]  # [n], clients with equal neighbours; -1 who has not been compared (dc: this round)


@METHODS.add("flis")
@dataclass(frozen=True)
class FLIS(Method[FLISState]):
    """Each client averages with those whose models predict as its own does (Morafah et al., 2022).

    With `dc` neighbourhoods may overlap. The groups in the tables are the clients with equal
    neighbours; with `dc` only those of the round's cohort have one.

    Per round: up `m P b` bytes; down `m P b` with `hc`, `m K P b` with `dc`. `hc` begins with `n P b` each way.
    """

    family = "clustered, soft"

    mode: Annotated[
        Literal["dc", "hc"],
        Field(description="compare each round's cohort; or everybody once before the first round"),
    ] = "dc"
    join: Annotated[
        Literal["threshold", "hierarchy"] | None,
        Field(description="with all who are similar enough (dc), or within a cut of complete linkage (hc)"),
    ] = None
    threshold: Annotated[
        float | None,
        Field(ge=0, le=1, description="least similarity of neighbours; without it 0.4 (dc) or 0.45 (hc)"),
        Grid(0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96),
    ] = None
    evaluated: Annotated[
        Literal["local", "mixture"],
        Field(
            description="the model that is evaluated: the one a client trained last, or the one it would train next"
        ),
    ] = "local"

    @property
    def needs(self) -> Needs:
        seen = "its server looks at what each model predicts"
        return Needs(2500, distributions=True, models=seen, pairs="everybody" if self.mode == "hc" else "cohort")

    own_step = "it serves mixtures of models, and none of them goes on from one of the last round"

    @property
    def privacy_support(self) -> PrivacySupport:
        server = "its server compares what single clients' models predict"
        if self.mode != "dc":
            return PrivacySupport(server, UNTRIED, UNTRIED)
        chosen = "its clients choose which model they train by the loss on their samples"
        return PrivacySupport(server, chosen, chosen)

    def start(self, server: ServerView) -> FLISState:
        n, initial = server.n, server.initial(0)[None]
        return FLISState(
            initial if self.mode == "dc" else initial.repeat(n, 1),
            np.eye(n if self.mode == "hc" else 0, dtype=np.bool_),
            np.zeros((n, len(server.public_inputs())), np.int64),
            np.zeros(n, np.bool_),
            np.full(n, UNKNOWN, np.int64),
        )

    def round(self, state: FLISState, cohort: Cohort) -> Exchanges[FLISState]:
        return (
            yield from (self._train_with_cohort if self.mode == "dc" else self._train_with_neighbours)(
                state, cohort
            )
        )

    def _train_with_cohort(self, state: FLISState, cohort: Cohort) -> Exchanges[FLISState]:
        server, clients = cohort.server, cohort.clients
        send = {"models": Send.all(state.models, clients)}
        replies: Replies = yield Exchange(clients, ChooseTrainKeep(), send)  # steps 1 and 2
        if not len(replies):
            return state
        here = replies.clients
        state = yield from self._store_predictions(state, replies, server)
        near = yield from self._find_neighbours(state.predictions[here], here)
        labels, groups = same_neighbours(near), np.full(server.n, UNKNOWN, np.int64)
        groups[here] = labels
        _, first = np.unique(labels, return_index=True)
        weights = neighbour_weights(near[first], replies.samples)
        models = server.aggregation.mix(weights, replies.models)  # step 3
        return replace(state, models=models, groups=groups)

    def _train_with_neighbours(self, state: FLISState, cohort: Cohort) -> Exchanges[FLISState]:
        server, clients = cohort.server, cohort.clients
        if cohort.round == 1:
            everyone = server.everyone
            send = Send.same(server.initial(0), everyone)
            state = yield from self._compare(
                (yield Exchange(everyone, LocalUpdate(), {"model": send})), state, server
            )
        send = Send(*self._mix_neighbours(state, clients, server))
        replies: Replies = yield Exchange(clients, PrivateUpdate(), {"model": send})  # steps 1 and 2
        # Who missed the comparison has only itself: its first training starts from the common initial model too.
        state = yield from self._compare(replies, state, server)
        return (
            replace(state, models=replace_rows(state.models, replies.clients, replies.models))
            if len(replies)
            else state
        )

    def _compare(self, replies: Replies, state: FLISState, server: ServerView) -> Exchanges[FLISState]:
        """Find neighbours among all clients, with those that answered and were not compared before (step 0)."""
        if state.compared[replies.clients].all():
            return state
        state = yield from self._store_predictions(state, replies, server)
        there, near, groups = np.flatnonzero(state.compared), state.near.copy(), state.groups.copy()
        near[np.ix_(there, there)] = yield from self._find_neighbours(state.predictions[there], there)
        groups[there] = same_neighbours(near[there])
        return replace(state, near=near, groups=groups)

    def _store_predictions(self, state: FLISState, replies: Replies, server: ServerView) -> Exchanges[FLISState]:
        """Store what the uploads predict; with `hc` of clients that were not compared before."""
        fresh = np.ones(len(replies), np.bool_) if self.mode == "dc" else ~state.compared[replies.clients]
        predictions, compared = state.predictions.copy(), state.compared.copy()
        seen = replies.models[torch.from_numpy(fresh)]
        predictions[replies.clients[fresh]] = yield from _predict(seen, server)
        compared[replies.clients] = True
        return replace(state, predictions=predictions, compared=compared)

    def _find_neighbours(self, predictions: NDArray[np.int64], clients: Ids) -> Exchanges[NDArray[np.bool_]]:
        """Return who are neighbours `[r, r]`, each client its own."""
        alike = agreement(predictions, predictions)
        yield LogGap("predictions", clients, alike, "similarity")
        yield Log("similarity", quartiles(alike))
        yield Log("similarity threshold", self._threshold)
        if self._join == "threshold" or len(clients) < 2:
            return np.asarray(alike >= self._threshold)
        labels = cut_dendrogram(dendrogram(1 - alike, "complete"), 1 - self._threshold)
        return np.asarray(labels[:, None] == labels)

    def _mix_neighbours(self, state: FLISState, clients: Ids, server: ServerView) -> tuple[Tensor, Ids]:
        """Return the means over the neighbours of some clients, and the row of each client in them."""
        labels = same_neighbours(state.near[clients])
        _, first = np.unique(labels, return_index=True)
        weights = neighbour_weights(state.near[clients[first]], server.samples)
        return server.aggregation.mix(weights, state.models), labels

    def final_warnings(self, state: FLISState, server: ServerView, rounds: int) -> list[str]:
        """Say that nobody has a neighbour, or that all are neighbours, and how far clients agreed."""
        there = np.flatnonzero(state.groups != UNKNOWN)
        found = len(np.unique(state.groups[there]))
        if len(there) < 2 or 1 < found < len(there):
            return []
        alike = quartiles(agreement(state.predictions[there], state.predictions[there]))
        if found > 1 and alike["max"] >= self._threshold:  # neighbours there are, but no two clients have the same
            return []
        all_or_none = "all clients are one group" if found == 1 else "no client has a neighbour"
        return [
            f"{all_or_none} with method.threshold = {self._threshold:g}; at the last comparison two clients agreed "
            f"on {alike['min']:.3g} to {alike['max']:.3g} of the samples"
        ]

    def assignment(self, state: FLISState, server: ServerView) -> Assignment:
        everyone = server.everyone
        if self.evaluated == "local":
            return Assignment(state.models[:1], state.groups, np.zeros(server.n, np.int64), own="model")
        if self.mode == "dc":  # each client takes the cluster model that suits its training data best
            return Assignment(state.models, state.groups, np.full(server.n, UNKNOWN, np.int64))
        mixtures, rows = self._mix_neighbours(state, everyone, server)
        return Assignment(mixtures, state.groups, rows)

    def newcomer(self, state: FLISState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers train once and serve each the result; with `hc`, its mean with the neighbours' last models.

        With `dc` they train the cluster model of their choice, whose group they join. With `hc` they start from the
        common initial model and join the group of the client most similar to them; ties to the first.
        """
        groups, rows = np.full((2, len(clients)), UNKNOWN, np.int64)
        if self.mode == "dc":
            choose = Exchange(clients, ChooseThenTrain(), {"models": Send.all(state.models, clients)})
            replies: Replies = yield choose
        else:
            start = Send.same(server.initial(0), clients)
            replies = yield Exchange(clients, LocalUpdate(), {"model": start})
        if not len(replies):
            return Assignment(state.models, groups, rows)
        answered, own = np.isin(clients, replies.clients), replies.models
        if self.mode == "dc":
            groups[answered] = read_choices(replies)
        elif state.compared.any():
            there = np.flatnonzero(state.compared)
            alike = agreement((yield from _predict(own, server)), state.predictions[there])
            closest = there[alike.argmax(1)]
            groups[answered] = state.groups[closest]
            near = alike >= self._threshold
            if self._join == "hierarchy":
                near &= state.groups[there] == state.groups[closest][:, None]
            weights = neighbour_weights(
                np.concatenate([near, np.eye(len(own), dtype=np.bool_)], 1),
                np.concatenate([server.samples[there], replies.samples]),
            )
            near_models = torch.cat([state.models[torch.from_numpy(there)], own])
            own = server.aggregation.mix(weights, near_models)
        rows[answered] = len(state.models) + np.arange(len(own))
        return Assignment(torch.cat([state.models, own]), groups, rows)

    def affinity(self, state: FLISState, server: ServerView, clients: Ids) -> Affinity | None:
        if not state.compared[clients].all():
            return None
        seen = state.predictions[clients]
        return Affinity("share of public samples predicted differently", 1 - agreement(seen, seen))

    @property
    def _threshold(self) -> float:
        return THRESHOLDS.get((self.mode, self._join), 0.4) if self.threshold is None else self.threshold

    @property
    def _join(self) -> Literal["threshold", "hierarchy"]:
        return self.join or ("hierarchy" if self.mode == "hc" else "threshold")


def _predict(models: Tensor, server: ServerView) -> Exchanges[NDArray[np.int64]]:
    """Return the class that each of the models `[r, P]` predicts for each public sample; ties to the first."""
    outputs: Tensor = yield Outputs(models, server.public_inputs())
    return np.asarray(outputs.numpy().argmax(2), np.int64)
