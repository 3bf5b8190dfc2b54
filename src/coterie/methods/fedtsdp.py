"""FedTSDP: two stages of clustering once predictions look clusterable, and ever fewer shared layers.

Zhu, Fan and Xie, Complex & Intelligent Systems, 2024, https://arxiv.org/abs/2308.15821

Every round:
    1. Each client lays the shared layers of its cluster over its own model, trains, and uploads the whole result.
    2. The server draws public samples, and lets every upload predict them.
    3. If the Hopkins statistic of the predictions is above h (Eq. 6), clients are regrouped: by the divergence of
       predictions (Eq. 5), and inside these groups by the distance of weights (Eq. 9).
    4. A regrouping shrinks the shared depth (Eq. 11) and makes the drawn samples likelier (Eq. 7, 8).
    5. In each cluster the shared layers become the mean of the uploads.
Decisions where the paper is silent, and cost: docs/methods/fedtsdp.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules import Evaluate
from coterie.clients.rules.private_layers import PrivateUpdate
from coterie.errors import BadInput, count_of
from coterie.grouping.affinity import inner_products, model_distances, quartiles
from coterie.grouping.cluster import (
    Eps,
    Noise,
    cluster_by_distance,
    dendrogram,
    nearest_group,
    refine_groups,
)
from coterie.grouping.divergence import js_divergences
from coterie.grouping.gaps import find_groups, in_mean_squares, is_look, without_mean_direction
from coterie.grouping.labels import relabel
from coterie.grouping.trigger import Rho, hopkins, reweight_batch
from coterie.methods.aggregation import Aggregator
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, LogGap, Outputs, Replies, Send
from coterie.methods.method import UNKNOWN, Affinity, Assignment, Cohort, Method, Needs, ServerView, Split
from coterie.methods.privacy import UNTRIED, hides_nothing
from coterie.methods.private_layers import evaluate_kept_models, send_shared_part
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Layout, Part
from coterie.randomness import NOBODY

Rounding = Literal["floor", "round", "ceil"]
"""How a shared depth of parts of layers becomes a number of tensors."""

FEW_CLIENTS, FEW_SAMPLES = 12, 24
"""Clients, and training samples of half of them, below which the test of stage 2 may miss groups."""

LITTLE = 0.02
"""A divergence of predictions below which models have hardly learnt what their clients differ in: after two steps a
round planted groups are within 0.014 (docs/methods/fedtsdp.md, planted groups)."""


@state("fedtsdp")
@dataclass(frozen=True, eq=False)
class FedTSDPState:
    """Cluster models, who belongs where, the shared depth, and the public samples' weights."""

    models: Tensor  # [K, P], one a cluster; a private tensor stays as it was when it was last shared
    groups: Ids  # [n], the cluster of each client
    depth: float  # s, how many layers are shared
    weights: NDArray[np.float64]  # [M], pi, how likely each public sample is drawn
    known: NDArray[np.bool_]  # [n], who has uploaded yet
    uploads: Tensor  # [u, P], the last model of each of those: when others are regrouped it may be away
    compared: Ids  # [r], who was there at the last regrouping
    divergences: NDArray[np.float64]  # [r, r], between what they predicted then
    second: Ids  # [n], the groups that tests of stage 2 have found
    products: NDArray[np.float64]  # [n, n], of updates from a common start, since groups came about; else [0, 0]
    together: Ids  # [n, n], over how many rounds
    highest: float = 0.0  # of all values of the statistic so far

    @classmethod
    def initial(cls, server: ServerView, depth: float, tested: bool = True) -> FedTSDPState:
        """Return one cluster with the common initial model, no uploads, and equally likely public samples."""
        w0, n, size = server.initial(0)[None], server.n, len(server.public_inputs())
        groups, known, weights = np.zeros(n, np.int64), np.zeros(n, np.bool_), np.full(size, 1 / size)
        nobody, pairs = np.zeros(0, np.int64), np.zeros((n, n) if tested else (0, 0), np.int64)
        return cls(
            models=w0,
            groups=groups,
            depth=depth,
            weights=weights,
            known=known,
            uploads=w0[:0],
            compared=nobody,
            divergences=np.zeros((0, 0)),
            second=groups,
            products=pairs.astype(np.float64),
            together=pairs,
        )

    def store_models(self, replies: Replies) -> FedTSDPState:
        """Store the models that came back as their clients' last uploads."""
        known = self.known.copy()
        known[replies.clients] = True
        if len(replies) == known.sum():
            return replace(self, known=known, uploads=replies.models)
        uploads = torch.empty(int(known.sum()), self.models.shape[1])
        uploads[torch.from_numpy(self.known[known])] = self.uploads
        uploads[torch.from_numpy(np.isin(np.flatnonzero(known), replies.clients))] = replies.models
        return replace(self, known=known, uploads=uploads)

    def note_updates(self, replies: Replies, part: Part, layout: Layout) -> FedTSDPState:
        """Add the products of updates of clients who trained from one group's model: its `part`, over their own.

        A scalar of one layer counts as much as one of any other (docs/methods/fedtsdp.md, D4).
        """
        products, together = self.products.copy(), self.together.copy()
        groups = self.groups[replies.clients]
        for group in np.unique(groups):
            clients = replies.clients[groups == group]
            starts = self.models[group].repeat(len(clients), 1)
            known = torch.from_numpy(self.known[clients])
            own = self.uploads[np.searchsorted(np.flatnonzero(self.known), clients[self.known[clients]])]
            starts[known] = part.copy(own, starts[known])
            ends = replies.models[torch.from_numpy(groups == group)]
            at = np.ix_(clients, clients)
            updates = ends - starts
            for layer in range(len(layout.layers)):
                scalars = layout.of_layers([layer]) & layout.trainable
                apart = without_mean_direction(inner_products(scalars.take(updates)))
                products[at] += scalars.size * in_mean_squares(apart)
            together[at] += 1
        return replace(self, products=products, together=together)

    def divide_groups(self, rng: np.random.Generator) -> tuple[FedTSDPState, int]:
        """Divide the groups in which updates since they came about show groups, and say how many (stage 2 by test).

        Clients who were never there in one round count as strangers (docs/methods/fedtsdp.md, D4).
        """
        products, together = self.products.copy(), self.together.copy()
        second, divided = self.second.copy(), 0
        for group in np.unique(self.second):
            members = np.flatnonzero((self.second == group) & self.known)
            at = np.ix_(members, members)
            mean = products[at] / np.maximum(together[at], 1)
            pieces = find_groups(mean, rng)
            second[members] = np.where(pieces > 0, second.max() + pieces, group)
            if pieces.any():
                divided += 1
                products[at], together[at] = 0.0, 0
        groups = relabel(second) if second.any() else self.groups
        parents = self.groups[np.unique(groups, return_index=True)[1]]
        state = replace(self, models=self.models[torch.from_numpy(parents)], groups=groups, second=relabel(second))
        return replace(state, products=products, together=together), divided

    def average_groups(self, replies: Replies, part: Part, aggregation: Aggregator) -> FedTSDPState:
        """Set `part` of each cluster's model to the mean of its members, weighted by samples."""
        trained, previous = part.take(replies.models), part.take(self.models)
        groups = self.groups[replies.clients]
        means = aggregation.average_groups(trained, groups, previous, replies.samples, part)
        return replace(self, models=part.put(self.models.clone(), means))

    def count_tensors(self, layout: Layout, rounding: Rounding = "floor") -> int:
        """Return how many trainable tensors, counted from the input, make up the shared depth.

        See docs/methods/fedtsdp.md, D12.
        """
        tensors = self.depth * len(layout.tensors) / len(layout.layers)
        if rounding == "ceil":
            return ceil(tensors - 1e-9)
        return floor(tensors + (0.5 if rounding == "round" else 0.0) + 1e-9)

    def shared_part(self, layout: Layout, rounding: Rounding = "floor") -> Part:
        """Return the tensors that cluster members share."""
        return layout.first_tensors(self.count_tensors(layout, rounding))

    def draw_batch(self, size: int, server: ServerView, round: int = NOBODY) -> Ids:
        """Draw a round's public samples, ascending: `size` or all there are, with probabilities pi, none twice."""
        count, rng = len(self.weights), server.stream("public batch", round)
        return np.sort(rng.choice(count, min(size, count), replace=False, p=self.weights))


@METHODS.add("fedtsdp")
@dataclass(frozen=True)
class FedTSDP(Method[FedTSDPState]):
    """Two-stage decoupling with adaptive personalisation layers (Zhu, Fan and Xie, 2023).

    Until the first regrouping this is FedAvg. Clients upload their private layers too, for the server looks at what
    whole models predict. A client that is away at a regrouping joins the cluster whose predictions are nearest to
    those of its last upload (D18), or the largest cluster if it never uploaded.

    By default stage 2 is no distance but a test, which looks for groups in rounds 1, 2, 4, ..., whatever the
    predictions do: 3.5 depends on the network, and says nothing after a few steps (D4). The paper's own settings
    are `eps2 = 3.5` and `damp_only_if_changed = false`. Other readings of it (docs/methods/fedtsdp.md):
    `noise = "singletons"` for DBSCAN's noise (D3), `sample` and `repeats` for the statistic's draws (D6),
    `rho = "literal"`, which draws one batch for ever (D9), and `rounding` of the depth (D12).

    Per round: up `m P b` bytes; down the shared scalars, and a whole model on a client's first participation.
    """

    family = "clustered, hard"

    h: Annotated[
        float, Field(ge=0, le=1, description="regroup if the Hopkins statistic is above"), Grid(0.6, 0.65, 0.7)
    ] = 0.65
    psi: Annotated[float, Field(gt=0, le=1, description="factor on the shared layers at a regrouping")] = 0.98
    eps1: Annotated[
        Eps,
        Field(description="two clients with a smaller JS divergence are linked; inf links all"),
        Grid(0.1, 0.15, 0.2),
    ] = 0.15
    eps2: Annotated[
        Eps | Literal["auto"],
        Field(description="two clients at a smaller distance are linked; inf links all; auto: by a test"),
        Grid("auto", 1.0, 3.5, 10.0),
    ] = "auto"
    noise: Annotated[Noise, Field(description="unlinked clients are one group, or each alone")] = "group"
    stages: Annotated[Literal["both", "first", "second"], Field(description="which stages group")] = "both"
    rho: Annotated[Rho, Field(description="weight moved to the batch; literal is Eq. 7 as printed")] = 0.5
    sample: Annotated[float, Field(gt=0, le=1, description="share of the clients in a draw of the statistic")] = 1.0
    repeats: Annotated[int, Field(ge=1, description="draws that the Hopkins statistic is a mean of")] = 1
    public_batch: Annotated[int, Field(ge=1, description="public samples predicted in a round")] = 50
    damp_only_if_changed: Annotated[
        bool, Field(description="finding the same groups again changes neither the depth nor the public weight")
    ] = True
    shared: Annotated[float | None, Field(ge=0, description="layers shared at first; without it, all")] = None
    rounding: Annotated[Rounding, Field(description="round parts of layers to whole tensors")] = "floor"

    @property
    def needs(self) -> Needs:
        kept = "its server keeps each client's last model, and looks at what it predicts"
        return Needs(10_000, distributions=True, models=kept, pairs="everybody" if self.tests else "cohort")

    @property
    def tests(self) -> bool:
        """Whether stage 2 is a test, which looks for groups whatever predictions do."""
        return self.eps2 == "auto" and self.stages != "first"

    def shared_part(self, state: FedTSDPState, server: ServerView) -> Part:
        """Return the tensors that cluster members share."""
        return state.shared_part(server.layout, self.rounding)

    privacy_support = hides_nothing(
        "its server compares what single clients' models predict, and the models", UNTRIED
    )

    def start(self, server: ServerView) -> FedTSDPState:
        layers = len(server.layout.layers)
        depth = float(layers if self.shared is None else self.shared)
        if depth > layers:
            raise BadInput(
                f"method.shared = {depth:g} is not possible; this network has {count_of(layers, 'layer')}"
            )
        return FedTSDPState.initial(server, depth, self.tests)

    def round(self, state: FedTSDPState, cohort: Cohort) -> Exchanges[FedTSDPState]:
        server, clients, layout = cohort.server, cohort.clients, cohort.server.layout
        part = self.shared_part(state, server)
        send = send_shared_part(state.models, state.groups[clients], part, layout, state.known[clients])
        replies: Replies = yield Exchange(clients, PrivateUpdate(), send)  # step 1
        if not len(replies):
            return state
        yield Log("shared layers", state.depth)
        yield Log("shared tensors", state.count_tensors(layout, self.rounding))
        if self.tests:
            state = state.note_updates(replies, part, layout)
        state, batch = state.store_models(replies), state.draw_batch(self.public_batch, server, cohort.round)
        q: Tensor = yield Outputs(replies.models, server.public_inputs(batch))  # step 2
        js, points = js_divergences(q, kernel=server.scale.js), q.flatten(1).double().numpy()
        statistic = hopkins(points, server.stream("hopkins", cohort.round), self.repeats, self.sample)
        state = replace(state, highest=float(np.fmax(state.highest, statistic)))
        if self.tests and is_look(cohort.round):
            state, divided = state.divide_groups(server.stream("second stage", cohort.round))
            yield Log("divided groups", divided)
        # Groups that a test has found stand; predictions are asked only before.
        fired = statistic > self.h and len(replies) >= 3 and not state.second.any()
        if fired:  # steps 3 and 4
            state = yield from self._regroup(state, replies, q, js, batch, server)
        state = state.average_groups(replies, part, server.aggregation)  # step 5
        yield Log("hopkins", statistic)
        yield Log("hopkins threshold", self.h)
        yield Log("fired", float(fired))
        yield LogGap("predictions", replies.clients, js, "distance")
        yield Log("js", quartiles(js))
        yield Log("eps1", float(self.eps1))
        return state

    def _regroup(
        self,
        state: FedTSDPState,
        replies: Replies,
        q: Tensor,
        js: NDArray[np.float64],
        batch: Ids,
        server: ServerView,
    ) -> Exchanges[FedTSDPState]:
        here, labels = replies.clients, np.zeros(len(replies), np.int64)
        if self.stages != "second":
            labels = cluster_by_distance(js, float(self.eps1), self.noise)
        if self.stages != "first" and self.eps2 != "auto":
            weights = server.layout.trainable.take(replies.models)
            labels = refine_groups(labels, weights, float(self.eps2), self.noise)
        yield from self._log_distances(replies, server)
        groups = np.full(server.n, UNKNOWN, np.int64)
        groups[here] = labels
        away = state.known & (groups == UNKNOWN)
        if away.any():
            theirs = yield Outputs(state.uploads[away[state.known]], server.public_inputs(batch))
            groups[away] = nearest_group(js_divergences(theirs, q, kernel=server.scale.js), labels)
        groups = relabel(np.where(state.known, groups, np.bincount(groups[state.known]).argmax()))
        # Every cluster has a member in `here`; private tensors come from the former cluster of its first.
        first = here[np.unique(groups[here], return_index=True)[1]]
        models = state.models[torch.from_numpy(state.groups[first])]
        changed = not np.array_equal(relabel(groups[here]), relabel(state.groups[here]))
        state = replace(state, models=models, groups=groups, compared=here, divergences=js)
        if self.damp_only_if_changed and not changed:
            return state
        return replace(state, depth=state.depth * self.psi, weights=reweight_batch(state.weights, batch, self.rho))

    def _log_distances(self, replies: Replies, server: ServerView) -> Exchanges[None]:
        """Log how far apart the weights are that the second stage would group, were all clients one group."""
        distances = model_distances(server.layout.trainable.take(replies.models))
        yield LogGap("weights", replies.clients, distances, "distance")
        yield Log("distances", quartiles(distances))

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Say where the test of stage 2 has too little to go by: few clients, or few samples each."""
        samples, n = int(np.median(server.samples)), server.n
        if not self.tests or (n >= FEW_CLIENTS and samples >= FEW_SAMPLES):
            return []
        few = count_of(n, "client") if n < FEW_CLIENTS else f"a median of {samples} training samples a client"
        return [
            f"{few} may be too few for method.eps2 = 'auto' to find groups by updates; it was tried on groups of "
            f"five clients, and with {FEW_SAMPLES} samples a client on groups of twelve "
            "(docs/methods/fedtsdp.md, planted groups)"
        ]

    def final_warnings(self, state: FedTSDPState, server: ServerView, rounds: int) -> list[str]:
        """Say why there is one group: the statistic stayed low, or all clients were linked."""
        if len(state.models) > 1:
            return []
        if not len(state.compared):
            if state.highest > self.h:
                return [
                    f"the Hopkins statistic passed method.h = {self.h:g} only in rounds in which fewer than three "
                    "clients answered"
                ]
            return [
                f"the Hopkins statistic did not pass method.h = {self.h:g} in {count_of(rounds, 'round')}; its "
                "highest value "
                f"was {state.highest:.3f}"
            ]
        if self.stages == "second" or len(state.compared) < 2:
            return []
        apart = dendrogram(state.divergences, "single")[-1, 2]
        # Models that have hardly left their common start predict alike, whatever their data.
        first = "; predictions hardly differ yet, so try more training.epochs first" if apart < LITTLE else ""
        return [
            f"clients were regrouped into one group, because method.eps1 = {self.eps1} links all of them; a "
            f"method.eps1 below {apart:.3g} would have divided them at the last regrouping{first}"
        ]

    def assignment(self, state: FedTSDPState, server: ServerView) -> Assignment:
        return Assignment(state.models, state.groups, part=self.shared_part(state, server), own="model")

    def evaluation(
        self, state: FedTSDPState, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        """Evaluate the shared layers over the client's own model, or a whole model if it has none."""
        rule, shared = Evaluate(split, "model"), self.shared_part(state, server)
        rows, known = state.groups[clients], state.known[clients]
        return evaluate_kept_models(rule, clients, state.models, rows, shared, server.layout, known)

    def newcomer(self, state: FedTSDPState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers train once from the clusters' mean; each joins the cluster that predicts most like it.

        A model trained from one cluster would join that one. A newcomer that does not answer joins the largest.
        """
        groups, part = np.full(len(clients), np.bincount(state.groups).argmax()), self.shared_part(state, server)
        mean = {"model": Send.same(state.models.mean(0), clients, part)}
        replies: Replies = yield Exchange(clients, PrivateUpdate(), mean)
        if len(replies) and len(state.models) > 1:
            inputs = server.public_inputs(state.draw_batch(self.public_batch, server))
            q, theirs = (yield Outputs(replies.models, inputs)), (yield Outputs(state.uploads, inputs))
            apart = js_divergences(q, theirs, kernel=server.scale.js)
            groups[np.isin(clients, replies.clients)] = nearest_group(apart, state.groups[state.known])
        return Assignment(state.models, groups, part=part, own="model")

    def affinity(self, state: FedTSDPState, server: ServerView, clients: Ids) -> Affinity | None:
        if not np.isin(clients, state.compared).all():
            return None
        at = np.ix_(*[np.searchsorted(state.compared, clients)] * 2)
        return Affinity("divergence of predictions", state.divergences[at])
