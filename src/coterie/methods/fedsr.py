"""FedSR: a model with stochastic features that are small and depend on the class alone.

Nguyen, Torr and Lim, NeurIPS 2022.

Every round:
    1. The server sends the model and the prior of the features: r, s and c.
    2. Each client trains both, with one draw of the features: the cross-entropy, c_l2r times their norm, and c_cmi
       times the divergence from the prior of their class.
    3. The server averages both, all clients alike.
With `prior = "own"`, as in the authors' code, the prior never crosses: each client goes on from its own.
For its evaluation a client trains the head, or all, of a copy on its own data (FedSR-FT).
Decisions where the paper is silent, and cost: docs/methods/fedsr.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.evaluate import AdaptThenEvaluate
from coterie.clients.rules.invariant import InvariantUpdate, OwnPriorUpdate, initial_prior
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.method import Cohort, Needs, ServerView, Split, serve
from coterie.methods.one_model import GlobalState, OneModel
from coterie.methods.privacy import UNTRIED, PrivacySupport
from coterie.methods.registry import METHODS, Grid


@state("fedsr")
@dataclass(frozen=True, eq=False)
class FedSRState(GlobalState):
    """The global model, and the prior that is learnt beside it."""

    prior: Tensor  # [1, 2 C Z + 1]: r, s and c; where clients have their own, the first one


@METHODS.add("fedsr")
@dataclass(frozen=True)
class FedSR(OneModel):
    """One model whose features are regularised to be simple, adapted before evaluation (Nguyen et al., 2022).

    With one draw z of the features N(mu(x), sigma(x)^2) a client minimises the cross-entropy, plus `c_l2r` times
    the norm of z (as the authors' code has it, not its square), plus `c_cmi` times the divergence of N(c mu, (c
    sigma)^2) from N(r_y, softplus(s_y)^2). The prior starts at r = 0, s = 1 and c = 1. Without both terms this is
    FedAvg.

    FedCR's comparison takes 0.001 for both weights. Per round: down and up `m b (P + 2 C Z + 1)` bytes, or `m b P`
    with priors of the clients' own.
    """

    family = "regularised"

    c_l2r: Annotated[float, Field(ge=0, description="weight of the features' norm"), Grid(0.001, 0.01, 0.1)] = 1e-2
    c_cmi: Annotated[
        float,
        Field(ge=0, description="weight of the divergence from the class's prior"),
        Grid(0.0001, 0.0005, 0.001),
    ] = 5e-4
    adapt: Annotated[
        Literal["head", "all"], Field(description="the part that clients train before an evaluation")
    ] = "head"
    fine_tune: Annotated[
        int, Field(ge=0, description="passes over own data before an evaluation, 10 in FedCR's comparison")
    ] = 10
    prior: Annotated[
        Literal["averaged", "own"] | None,
        Field(description="one for all, averaged (so without it); or each client its own (the authors' code)"),
    ] = None

    needs = Needs(gaussian=True, classes=True)

    @property
    def privacy_support(self) -> PrivacySupport:
        adapted = "its clients train on their samples before they are scored"
        if self.prior == "own":
            return PrivacySupport(UNTRIED, UNTRIED, adapted)
        told = "its clients send priors of the classes beside their model"
        return PrivacySupport(told, told, adapted)

    def start(self, server: ServerView) -> FedSRState:
        return FedSRState(server.initial(0)[None], initial_prior(server.layout)[None])

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        assert isinstance(state, FedSRState)
        clients = cohort.clients
        send = {"model": Send.same(state.model[0], clients)}
        aggregation, mean = cohort.server.aggregation, Reduce.mean(clients)
        replies: Replies
        if self.prior == "own":
            replies = yield Exchange(clients, OwnPriorUpdate(self.c_l2r, self.c_cmi), send, reduce={"model": mean})
            return replace(state, model=aggregation.centres(replies, "model", mean, state.model))
        send["prior"] = Send.same(state.prior[0], clients)
        replies = yield Exchange(clients, InvariantUpdate(self.c_l2r, self.c_cmi), send, reduce={"model": mean})
        model = aggregation.centres(replies, "model", mean, state.model)
        return FedSRState(model, aggregation.average(replies.uploads["prior"], state.prior, step=False))

    def evaluation(
        self, state: GlobalState, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        assignment = self.assignment(state, server)
        rule = AdaptThenEvaluate(split, layers="last:1" if self.adapt == "head" else "all", epochs=self.fine_tune)
        return Exchange(clients, rule, serve(assignment, assignment.served[clients]))
