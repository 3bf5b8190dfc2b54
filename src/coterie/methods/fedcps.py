"""FedCPS: clusters that clients pick, a shared base, and a proximal update of each client's own strength.

Yang, Liu, Feng, Liu and Liu, Computers, Materials & Continua 83(1), 2025, https://doi.org/10.32604/cmc.2025.060709

The K models have one base, the lower layers, and K heads above it. Every round:
    1. The server sends the base and all heads; once identities are frozen, the head of the client's own cluster.
    2. The client picks the cluster whose model has the smallest loss on some of its samples (Eq. 2).
    3. It trains from that model, pulled back by a strength lambda of its own: fewer samples, stronger (Eq. 3). The
       result is its personal model, which it keeps and uploads.
    4. The server averages the base over all clients and each head over those that picked it (Eq. 5), and updates
       the spreads tau^2 that lambda needs.
    5. Identities are frozen when they have settled.
Decisions where the paper is silent, and cost: docs/methods/fedcps.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.proximal import GRID, PLU, ChooseIdentity, Mode, PLUThenEvaluate, pull_ratio
from coterie.errors import BadInput
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Ids, Log, Replies
from coterie.methods.k_models import (
    Init,
    SharedBase,
    begin_from_first,
    cluster_first_models,
    describe_first_clustering,
    draw_models,
    read_choices,
    redraw_until_all_picked,
    serve_picked,
    warn_of_one_choice,
    warn_of_sketches,
)
from coterie.methods.method import UNKNOWN, Assignment, Cohort, Method, Needs, ServerView, Split
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid
from coterie.models.layout import Layout

MIN_TAU2 = 1e-12
"""The least tau^2."""
SETTLED_SHARE = 0.9
"""The share of clients that have taken part twice before a freeze."""


@state("fedcps")
@dataclass(frozen=True, eq=False)
class FedCPSState:
    """Models, identities, and what steers lambda and the freeze."""

    models: Tensor  # [K, P], the clusters' models theta; the base is the same in all
    groups: NDArray[np.int64]  # [n], each client's identity when it last took part, -1 before
    taken: NDArray[np.int64]  # [n], in how many rounds each has taken part
    changed_at: NDArray[np.int64]  # [n], in which of them its identity last changed, 0 for never
    tau2: NDArray[np.float64]  # [K], spread of personal models around the cluster's, 0 before the first
    median: float  # of sigma^2 / (n^p tau^2) over the last round's clients, 0 before the first
    frozen: bool  # whether clients keep their identity

    @classmethod
    def initial(cls, models: Tensor, clients: int) -> FedCPSState:
        """Return the state before the first round."""
        none, groups = np.zeros(clients, np.int64), np.full(clients, UNKNOWN, np.int64)
        return cls(models, groups, none, none, np.zeros(len(models)), median=0.0, frozen=False)

    def heads_sent(self, clients: Ids) -> NDArray[np.int64]:
        """Return the cluster whose head each client is sent; -1 for all heads."""
        return self.groups[clients] if self.frozen else np.full(len(clients), UNKNOWN, np.int64)

    def steering(self, clients: Ids, server: ServerView) -> dict[str, NDArray[np.float64]]:
        """Return the numbers that lambda is computed from; see `PLU`."""
        steering = {"mean_samples": server.samples.mean(), "median": self.median}
        steering |= {f"tau2/{k}": spread for k, spread in enumerate(self.tau2)}
        return {name: np.full(len(clients), value, np.float64) for name, value in steering.items()}

    def find_changes(self, clients: Ids, picked: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Find the `clients` that pick another cluster than when they last took part."""
        return np.asarray((self.groups[clients] != UNKNOWN) & (self.groups[clients] != picked))

    def note_round(self, replies: Replies, picked: NDArray[np.int64], power: int) -> FedCPSState:
        """Update identities, spreads and the median ratio after a round (docs/methods/fedcps.md); not the models.

        Args:
            replies: of the round.
            picked: the cluster of each client that answered `[r]`.
            power: p of the ratio.
        """
        groups, taken, changed_at = self.groups.copy(), self.taken.copy(), self.changed_at.copy()
        taken[replies.clients] += 1
        moved = replies.clients[self.find_changes(replies.clients, picked)]
        changed_at[moved] = taken[moved]
        groups[replies.clients] = picked
        state = replace(
            self, groups=groups, taken=taken, changed_at=changed_at, tau2=self._update_spread(replies, picked)
        )
        noise = replies.numbers.get("noise", np.empty(0))
        ratios = [
            pull_ratio(noise[i], replies.samples[i], state.tau2[picked[i]], power)
            for i in np.flatnonzero(noise >= 0)
        ]
        return replace(state, median=float(np.median(ratios)) if ratios else self.median)

    def settle(self, window: int) -> FedCPSState:
        """Freeze identities for good once none has changed in `window` participations."""
        still = (self.changed_at == 0) | (self.taken - self.changed_at >= window)
        settled = still.all() and (self.taken >= 2).mean() >= SETTLED_SHARE
        return replace(self, frozen=self.frozen or bool(settled))

    def _update_spread(self, replies: Replies, picked: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return tau^2 of each cluster: half of it new, and all of it the first time."""
        tau2 = self.tau2.copy()
        for k in np.unique(picked):
            now = float(torch.from_numpy(replies.numbers["spread"][picked == k]).mean())
            tau2[k] = max((tau2[k] + now) / 2 if tau2[k] else now, MIN_TAU2)
        return tau2


@METHODS.add("fedcps")
@dataclass(frozen=True)
class FedCPS(Method[FedCPSState]):
    """Decentralised clustering, a pull of each client's own strength, and shared lower layers (Yang et al., 2025).

    The mean of updates is the mean of models less their common start. So models are uploaded, which makes Eq. 5
    exact, and FedCPS without pull and shared layers the same as IFCA to the last bit.

    The warm-up lets a round show groups also where one epoch teaches little (docs/methods/fedcps.md, D6).

    Per round: down `m (P_G + K P_H) b` bytes, frozen `m P b`; up `m (P b + 12)`. What lambda is computed from (mean
    samples, tau^2, the median) are settings and not counted. Modes without noise send 4 bytes less.
    """

    family = "clustered, hard"

    clusters: Annotated[int, Field(ge=1, description="number of clusters K"), Grid(1, 2, 3, 4)] = 3
    personal_layers: Annotated[
        int | Literal["all"], Field(description="last layers of each cluster alone, L_P"), Grid(1, 2, 3)
    ] = 2
    lambda_mode: Annotated[
        Mode,
        Field(
            description="eq3: sigma^2 / (n^p tau^2), divided by its median or raw; fixed: lambda_0 for all; grid: "
            "the best of lambda_grid by validation loss, in steps only beside the last choice"
        ),
    ] = "eq3_calibrated"
    lambda_0: Annotated[
        float, Field(ge=0, description="lambda of the median client; 0 for no pull"), Grid(0.0, 0.01, 0.1, 1.0)
    ] = 0.1
    lambda_power: Annotated[Literal[1, 2], Field(description="p of n^p; 1 is optimal, 2 as printed")] = 1
    lambda_min: Annotated[float, Field(ge=0, description="the least lambda of Eq. 3")] = 1e-3
    lambda_max: Annotated[float, Field(ge=0, description="the largest; never above 0.5 / lr either")] = 2.0
    lambda_grid: Annotated[
        tuple[Annotated[float, Field(ge=0)], ...],
        Field(min_length=1, description="what clients choose from by their validation loss (grid, grid_steps)"),
    ] = GRID
    identity_samples: Annotated[
        int, Field(ge=1, description="fresh samples by which a client chooses its cluster")
    ] = 256
    init: Annotated[
        Init,
        Field(
            description="heads: from the groups of a local round of all, by the better separated of K-means and "
            "average linkage, or by K-means; redrawn until all are picked; or drawn once"
        ),
    ] = "silhouette"
    warm_up: Annotated[
        int, Field(ge=0, description="passes over own data before heads come from groups; 0 for those of any round")
    ] = 20
    last_update: Annotated[
        Literal["all", "head", "none"],
        Field(
            description="what everybody trains once more before the last evaluation; head: personal_layers alone"
        ),
    ] = "all"
    weights: Annotated[
        Literal["uniform", "samples"], Field(description="a client's weight in the means; Eq. 5 is uniform")
    ] = "uniform"
    window: Annotated[
        int,
        Field(
            ge=1,
            description="participations of a client since its cluster last changed, from which on it has settled",
        ),
    ] = 5

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Warn of K-means on sketches."""
        return warn_of_sketches(server) if self.init in ("silhouette", "kmeans") else []

    def __post_init__(self) -> None:
        if self.lambda_min > self.lambda_max:
            above = f"above method.lambda_max = {self.lambda_max:g}"
            raise BadInput(f"method.lambda_min = {self.lambda_min:g} is {above}; it must not be")

    @property
    def needs(self) -> Needs:
        first = describe_first_clustering(self.init, self.clusters)
        return Needs(validation=self.lambda_mode.startswith("grid"), models=first)

    def amounts_to(self, layout: Layout, rounds: int) -> str:
        """Without a pull, one cluster is FedAvg, and clusters that share nothing are IFCA (3.8.1, 3.8.3)."""
        if self.lambda_0 > 0 or self.lambda_mode not in ("eq3_calibrated", "fixed"):
            return ""
        is_apart = self.personal_layers == "all" or self.personal_layers >= len(layout.layers)
        is_warmed = self.warm_up > 0 and self.init in ("silhouette", "kmeans")
        return "FedAvg" if self.clusters == 1 else "IFCA" if is_apart and not is_warmed else ""

    def final_warnings(self, state: FedCPSState, server: ServerView, rounds: int) -> list[str]:
        """Say so if one cluster suits everybody best, which leaves one group."""
        return warn_of_one_choice(state.groups, self.clusters, self.init)

    privacy_support = hides_nothing(
        "its first models and its steps depend on what single clients choose",
        "its clients report which model they choose",
    )

    def start(self, server: ServerView) -> FedCPSState:
        return FedCPSState.initial(self._draw_models(server, 0), server.n)

    def round(self, state: FedCPSState, cohort: Cohort) -> Exchanges[FedCPSState]:
        server, clients, layout = cohort.server, cohort.clients, cohort.server.layout
        if cohort.round == 1 and self.clusters > 1:
            if self.init in ("silhouette", "kmeans"):
                replies, labels = yield from cluster_first_models(
                    state.models[0], self.clusters, cohort, self.init, self.warm_up or None
                )
                begun, known = begin_from_first(state.models, labels), replies.clients
                means = Reduce(known, self._weigh(known, server), labels, self.clusters)
                return replace(state, models=self._average(begun, replies, means, server))
            if self.init == "redraw":
                state = replace(state, models=(yield from self._redraw(cohort)))
        sends = self._make_shared_base(layout).send(state.models, state.heads_sent(clients))
        rule, steering = self._make_rule(), state.steering(clients, server)
        means = Reduce.by_choice(clients, self.clusters, self._weigh(clients, server))
        replies = yield Exchange(clients, rule, sends, steering, reduce={"model": means})  # steps 1-3
        picked = read_choices(replies)
        models = self._average(state.models, replies, means, server)  # step 4
        yield Log("identity changes", float(state.find_changes(replies.clients, picked).sum()))
        state = state.note_round(replies, picked, self.lambda_power)
        state = replace(state, models=models).settle(self.window)  # step 5
        strengths = zip(replies.clients, replies.report.get("lambda", []), strict=False)
        yield Log("lambda", {str(client): float(strength) for client, strength in strengths})
        yield Log("tau2", {str(k): float(spread) for k, spread in enumerate(state.tau2) if spread})
        yield Log("frozen", float(state.frozen))
        return state

    def assignment(self, state: FedCPSState, server: ServerView) -> Assignment:
        return Assignment(state.models, state.groups, own="model")

    def evaluation(
        self, state: FedCPSState, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        """Evaluate personal models, after a fresh update for a client without one, and in the end for all."""
        fresh = (state.groups[clients] == UNKNOWN) | (last and self.last_update != "none")
        sends = self._make_shared_base(server.layout).send(state.models, state.heads_sent(clients), fresh)
        head_only = last and self.last_update == "head"
        rule = PLUThenEvaluate(**self._make_rule().settings(), split=split, head_only=head_only)
        return Exchange(clients, rule, sends, state.steering(clients, server))

    def newcomer(self, state: FedCPSState, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers pick as all clients do: the model with the smallest loss on their data."""
        replies: Replies = yield self._ask_choices(state.models, clients, server.layout)
        return serve_picked(state.models, clients, replies)

    def _ask_choices(self, models: Tensor, clients: Ids, layout: Layout) -> Exchange:
        sends = self._make_shared_base(layout).send(models, np.full(len(clients), UNKNOWN))
        return Exchange(clients, ChooseIdentity(self.identity_samples), sends)

    def _redraw(self, cohort: Cohort) -> Exchanges[Tensor]:
        layout = cohort.server.layout
        draw = partial(self._draw_models, cohort.server)
        return (
            yield from redraw_until_all_picked(
                draw, lambda models: self._ask_choices(models, cohort.clients, layout), 0.4 / self.clusters
            )
        )

    def _draw_models(self, server: ServerView, attempt: int) -> Tensor:
        """Return K independent heads over the base of the common initial model."""
        return self._make_shared_base(server.layout).copy_base(
            draw_models(server, self.clusters, attempt), server.initial(0)
        )

    def _weigh(self, clients: Ids, server: ServerView) -> Ids:
        return server.samples[clients] if self.weights == "samples" else np.ones_like(clients)

    def _average(self, models: Tensor, replies: Replies, picked: Reduce, server: ServerView) -> Tensor:
        return self._make_shared_base(server.layout).average_heads(models, replies, picked, server.aggregation)

    def _make_shared_base(self, layout: Layout) -> SharedBase:
        return SharedBase.below(self.personal_layers, layout)

    def _make_rule(self) -> PLU:
        strength = self.lambda_mode, self.lambda_0, self.lambda_power, self.lambda_min, self.lambda_max
        return PLU(self.identity_samples, *strength, self.lambda_grid)
