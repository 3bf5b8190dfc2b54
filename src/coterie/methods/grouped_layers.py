"""Grouped layers: every layer of the network is everybody's, a group's, or a client's own.

Coterie's own: FedPer's private layers and FedCPS's common ones around groups that are found once. Every round:
    1. Each client lays the layers that it is sent over its own model, trains, and uploads all but private layers.
    2. In round `after`, K-means on the last uploads of all clients gives the groups. A client that is there for the
       first time later trains from the mean of the groups' models, and joins the nearest.
    3. Common layers become the mean of all uploads, the others the mean of the uploads of each group.
Decisions, and cost: docs/methods/grouped-layers.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.evaluate import Evaluate
from coterie.clients.rules.local_update import LocalUpdate
from coterie.clients.rules.private_layers import PrivateUpdate
from coterie.errors import BadInput
from coterie.grouping.affinity import model_distances, squared_distances
from coterie.grouping.cluster import kmeans
from coterie.grouping.exact_sums import Reduce
from coterie.methods.client_rows import replace_rows
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.k_models import RESTARTS, warn_of_sketches
from coterie.methods.method import UNKNOWN, Affinity, Assignment, Cohort, Method, Needs, ServerView, Split
from coterie.methods.privacy import UNTRIED, PrivacySupport
from coterie.methods.private_layers import evaluate_kept_models, send_shared_part
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Layout, Part


@state("grouped-layers")
@dataclass(frozen=True, eq=False)
class GroupedLayersState:
    """The groups and their models, who has taken part, and the uploads that make the groups."""

    models: Tensor  # [K, P], of the groups; one before they are found
    groups: NDArray[np.int64]  # [n], -1 for who was never there when they were found
    known: NDArray[np.bool_]  # [n], who has uploaded yet
    uploads: Tensor  # [n, T], what K-means sees of each client's last upload before they are found

    @property
    def starts(self) -> Tensor:
        """What clients train from `[K + 1, P]`: the groups' models, and their mean for who has no group."""
        return torch.cat([self.models, self.models.mean(0, keepdim=True)])

    def rows(self, clients: Ids) -> Ids:
        """Return the row of `starts` of each client."""
        return np.where(self.groups[clients] == UNKNOWN, len(self.models), self.groups[clients])


@METHODS.add("grouped-layers")
@dataclass(frozen=True)
class GroupedLayers(Method[GroupedLayersState]):
    """Groups found once by K-means, some layers private to each client, some common to all.

    Per round: down and up `b` times the scalars that are not private; to who starts, the private layers once.
    """

    family = "clustered, one-shot"

    clusters: Annotated[int, Field(ge=1, description="number of groups K"), Grid(2, 3, 4)] = 4
    after: Annotated[int, Field(ge=1, description="the round in which groups are found"), Grid(1, 3, 5)] = 3
    private: Annotated[
        str | None, Field(description="layers that each client keeps, as in last:1, fc2, norm; without it, none")
    ] = None
    common: Annotated[
        str | None, Field(description="layers that are everybody's, as in first:1, conv; without it, none")
    ] = None

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Warn of a run too short to find groups, and of K-means on sketches."""
        late = f"no groups are found before round {self.after} (after); this run has {rounds}"
        return [late] * (self.after > rounds) + warn_of_sketches(server)

    def amounts_to(self, layout: Layout, rounds: int) -> str:
        return "no search for groups" if self.after > rounds else ""

    @property
    def needs(self) -> Needs:
        apart = f", and averages {self.common} of all" * bool(self.common)
        return Needs(models="its server groups clients by their first models" + apart)

    privacy_support = PrivacySupport("its server makes groups of single clients' models", UNTRIED, UNTRIED)

    def start(self, server: ServerView) -> GroupedLayersState:
        layout, n = server.layout, server.n
        model, nobody = server.initial(0)[None], np.zeros(n, np.bool_)
        if not self.compared(layout):
            raise BadInput(
                f"method.private = {self.private!r} and method.common = {self.common!r} leave no layer to groups; "
                "they must leave one"
            )
        return GroupedLayersState(model, np.zeros(n, np.int64), nobody, torch.zeros(n, self.compared(layout).size))

    def round(self, state: GroupedLayersState, cohort: Cohort) -> Exchanges[GroupedLayersState]:
        server, clients, layout = cohort.server, cohort.clients, cohort.server.layout
        shared, common, compared = self.shared(layout), self.common_part(layout), self.compared(layout)
        rule = LocalUpdate() if self.private is None else PrivateUpdate()
        send = send_shared_part(state.starts, state.rows(clients), shared, layout, state.known[clients])
        grouped, own = len(state.models) > 1 and not common, state.groups[clients]
        means = Reduce(clients, server.samples[clients], own, len(state.models))
        reduce = {"model": means} if grouped and (own != UNKNOWN).all() else {}
        replies: Replies = yield Exchange(
            clients, rule, send, upload_part={"model": shared}, reduce=reduce
        )  # step 1
        known = state.known.copy()
        known[replies.clients] = True
        state = replace(state, known=known)
        if len(state.models) == 1:  # step 2
            uploads = replace_rows(state.uploads, replies.clients, compared.take(replies.models))
            state = replace(state, uploads=uploads)
            if cohort.round >= self.after and known.any():
                state = self._find_groups(state, cohort)
        groups = state.groups.copy()
        late = groups[replies.clients] == UNKNOWN
        if late.any():
            newly = compared.take(replies.models[torch.from_numpy(late)])
            groups[replies.clients[late]] = squared_distances(newly, compared.take(state.models)).argmin(1)
        # Step 3
        average, weights, before = server.aggregation, replies.samples, shared.take(state.models)
        means = Reduce(replies.clients, weights, groups[replies.clients], len(state.models))
        models = shared.put(state.models.clone(), average.centres(replies, "model", means, before, shared))
        if common:
            trained, before = common.take(replies.models), common.take(state.models[:1])
            models = common.put(models, average.average(trained, before, weights, common).repeat(len(models), 1))
        return replace(state, models=models, groups=groups)

    def assignment(self, state: GroupedLayersState, server: ServerView) -> Assignment:
        if self.private is None:
            return Assignment(state.models, state.groups)
        return Assignment(state.models, state.groups, part=self.shared(server.layout), own="model")

    def evaluation(
        self, state: GroupedLayersState, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        """Evaluate the shared layers over the client's own; a client without a model is sent a whole one."""
        if self.private is None:
            return super().evaluation(state, server, clients, split, last)
        rule, shared, rows = Evaluate(split, "model"), self.shared(server.layout), state.rows(clients)
        return evaluate_kept_models(rule, clients, state.starts, rows, shared, server.layout, state.known[clients])

    def newcomer(self, state: GroupedLayersState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers train once from the mean of the groups' models; each joins the nearest."""
        replies: Replies = yield Exchange(clients, LocalUpdate(), {"model": Send.same(state.starts[-1], clients)})
        groups, compared = np.full(len(clients), UNKNOWN), self.compared(server.layout)
        near = squared_distances(compared.take(replies.models), compared.take(state.models)).argmin(1)
        groups[np.isin(clients, replies.clients)] = near
        return Assignment(state.models, groups)

    def affinity(self, state: GroupedLayersState, server: ServerView, clients: Ids) -> Affinity | None:
        if not state.known[clients].all():
            return None
        return Affinity("l2 distance of layers", model_distances(state.uploads[torch.from_numpy(clients)]))

    def shared(self, layout: Layout) -> Part:
        """Return the layers that cross: all but the private ones."""
        private = layout.nothing if self.private is None else layout.select(self.private, "method.private")
        return layout.everything - private

    def common_part(self, layout: Layout) -> Part:
        """Return the layers that are averaged over everybody."""
        common = layout.nothing if self.common is None else layout.select(self.common, "method.common")
        return common & self.shared(layout)

    def compared(self, layout: Layout) -> Part:
        """Return what K-means sees: what can be trained of the layers that are the groups'."""
        return (self.shared(layout) - self.common_part(layout)) & layout.trainable

    def _find_groups(self, state: GroupedLayersState, cohort: Cohort) -> GroupedLayersState:
        """Group all clients that are known; each group starts from the one model that there was."""
        rng, above = cohort.server.stream("kmeans", cohort.round), cohort.server.scale.sketch_above
        seen = state.uploads[torch.from_numpy(state.known)]
        groups = np.full(len(state.known), UNKNOWN, np.int64)
        groups[state.known] = labels = kmeans(seen, self.clusters, RESTARTS, rng, above)
        return replace(state, models=state.models.repeat(int(labels.max()) + 1, 1), groups=groups)
