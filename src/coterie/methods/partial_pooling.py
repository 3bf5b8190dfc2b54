"""Partial pooling: one model for all, and for each client a departure from it, shrunk by empirical Bayes.

Morris, Parametric Empirical Bayes Inference: Theory and Applications, JASA 78, 1983,
https://doi.org/10.1080/01621459.1983.10477920. A ridge to the mean whose strength the data say, for any network.

Every round:
    1. The server sends the model W, the mean departure from it in the last round, and of each layer the variance
       between clients and that within one.
    2. Each client trains W on all of its n samples, and departs by d; and on either half, and departs by a and b.
       It uploads W + d, and of each layer a·b and n ||a - b||^2 / 4.
    3. Its own model departs by the mean, and by between / (between + within / n) of what d differs from that.
    4. W becomes the mean of the uploads by samples. The variance within is the mean of n ||a - b||^2 / 4. That
       between is the mean of a·b, less the squared length of the mean departure.
Decisions, and cost: docs/methods/partial-pooling.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.pooled import PooledUpdate, Shrunk, find_shares, list_parts
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Log, Replies, Send
from coterie.methods.method import Cohort, ServerView
from coterie.methods.one_model import ServesOneModel
from coterie.methods.privacy import hides_nothing
from coterie.methods.registry import METHODS, Grid


@state("partial-pooling")
@dataclass(frozen=True, eq=False)
class PoolingState:
    """The model, the mean departure, and the variances, which have no row before the first round."""

    model: Tensor  # [1, P]
    mean: Tensor  # [1, P]
    variances: Tensor  # [1, 2 L]


@METHODS.add("partial-pooling")
@dataclass(frozen=True)
class PartialPooling(ServesOneModel[PoolingState]):
    """One model for all, and departures from it that are shrunk by empirical Bayes, layer by layer (Morris, 1983).

    Where clients differ by chance alone everybody is served one model, W and its mean step; where each has much to
    go by, what its own samples say. Per round: down `m (2 P + 2 L) b`, up `m (P + 2 L) b` bytes.
    """

    family = "personal models"
    own = "personal"

    passes: Annotated[
        int, Field(ge=1, description="passes over a client's samples, and over either half"), Grid(1, 5, 20)
    ] = 5
    shrink: Annotated[
        Shrunk,
        Field(description="what has a share of its own: each layer, or each layer's weights and its constants"),
    ] = "layer"

    privacy_support = hides_nothing("its clients report how the halves of their samples agree")

    def start(self, server: ServerView) -> PoolingState:
        model = server.initial(0)[None]
        return PoolingState(
            model, torch.zeros_like(model), torch.empty(0, 2 * len(list_parts(server.layout, self.shrink)))
        )

    def round(self, state: PoolingState, cohort: Cohort) -> Exchanges[PoolingState]:
        clients = cohort.clients
        send = {"model": Send.same(state.model[0], clients)}  # step 1
        if len(state.variances):
            send |= {"mean": Send.same(state.mean[0], clients), "variances": Send.same(state.variances[0], clients)}
        rule, means = PooledUpdate(self.passes, self.shrink), Reduce.mean(clients, cohort.server.samples[clients])
        replies: Replies = yield Exchange(clients, rule, send, reduce={"model": means})  # steps 2 and 3
        model = cohort.server.aggregation.centres(replies, "model", means, state.model)  # step 4
        if not (replies.samples > 1).any():
            return PoolingState(model, state.mean, state.variances)
        mean, variances = yield from estimate_departures(replies, means, state.model, cohort.server, self.shrink)
        return PoolingState(model, mean, variances)


def estimate_departures(
    replies: Replies, means: Reduce, models: Tensor, server: ServerView, shrink: Shrunk
) -> Exchanges[tuple[Tensor, Tensor]]:
    """Return what the clients of each group depart by on average `[K, P]`, and the variances `[1, 2 L]` (step 4).

    Args:
        replies: of `PooledUpdate`; at least one client has more than one sample.
        means: that were asked for, of each group.
        models: that they were sent `[K, P]`.
        server: that asked them.
        shrink: what has variances of its own.
    """
    parts, samples = list_parts(server.layout, shrink), replies.samples
    groups = means.groups_of(replies.clients, replies.numbers)
    mean = server.aggregation.centres(replies, "model", means, models, step=False) - models
    told = samples > 1
    share = samples[told] / samples[told].sum()
    found = np.einsum("r,rkl->kl", share, replies.uploads["moments"].double().numpy()[told])
    of_groups = np.bincount(groups[told], samples[told], len(models)) / samples[told].sum()
    for layer, part in enumerate(parts.values()):
        found[0, layer] -= float(of_groups @ part.take(mean).double().square().sum(1).numpy())
    variances = np.maximum(found, 0.0)
    kept = find_shares(variances, int(np.median(samples[told])))
    yield Log("kept of a departure", dict(zip(parts, kept.tolist(), strict=True)))
    return mean, torch.from_numpy(variances).float().view(1, -1)
