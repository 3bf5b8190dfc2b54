"""How the clients are evaluated: with which model, and whether they adapt a copy of it first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.before_and_after import BeforeAndAfter
from coterie.clients.rules.evaluate import Evaluate
from coterie.methods import Method, ServerView
from coterie.methods.exchange import Exchange, Ids, Replies, Send
from coterie.models.layout import Layout, Part
from coterie.runs.divergence import NOT_EVALUATED
from coterie.runs.folder.metrics import RunMetrics
from coterie.runs.record import Scores, read_scores
from coterie.runs.schema.sections import Adapt, Evaluation
from coterie.runtime.runtime import Runtime

HEAD = "last:1"
"""The layers that `evaluation.adapt.layers = "head"` selects."""


def adapt_exchange(
    exchange: Exchange, adapt: Adapt | None, private: Part, layout: Layout, lr_drops: tuple[int, ...] = ()
) -> Exchange:
    """Return the exchange in which the clients are also scored after an adaptation; the same without one.

    Args:
        exchange: by which they are evaluated.
        adapt: how they adapt.
        private: the layers that the method keeps to each client.
        layout: of the models.
        lr_drops: the method's own (`Method.rate_drops`).

    Raises:
        BadInput: the network has no such layers.
    """
    if adapt is None:
        return exchange
    layers = {"head": HEAD, "private": _name_layers(private, layout)}.get(adapt.layers, adapt.layers)
    layout.select(layers, "evaluation.adapt.layers")
    rule = BeforeAndAfter(exchange.rule, adapt.epochs, adapt.steps, layers, adapt.lr, lr_drops)
    return replace(exchange, rule=rule)


def _name_layers(part: Part, layout: Layout) -> str:
    """Return the selection of all layers of which the part holds anything."""
    held = [name for number, name in enumerate(layout.layers) if (layout.of_layers([number]) & part).size]
    return "all" if len(held) in (0, len(layout.layers)) else ",".join(held)


@dataclass(frozen=True, eq=False)
class LocalModels:
    """What each client itself last trained in a round, for `evaluation.evaluated = "local"`.

    A model that a client keeps under the name `model` stays with it; of one that it sends, the server has a copy.
    """

    models: Tensor
    """`[n, P]`, of those who sent theirs."""
    sent: NDArray[np.bool_]
    kept: NDArray[np.bool_]

    @classmethod
    def none(cls, n: int, size: int) -> LocalModels:
        """Return those of `n` clients before the first round."""
        return cls(torch.zeros(n, size), np.zeros(n, np.bool_), np.zeros(n, np.bool_))

    def updated(self, exchanges: Sequence[tuple[Exchange, Replies]], initial: Tensor) -> LocalModels:
        """Return them after a round's exchanges; where a part was sent, the rest is the `initial` model's."""
        models, sent, kept = self.models.clone(), self.sent.copy(), self.kept.copy()
        for exchange, replies in exchanges:
            who = replies.clients
            if "model" in exchange.rule.client_state:
                kept[who], sent[who] = True, False
            elif "model" in exchange.rule.uploads:
                rows = replies.models
                models[torch.from_numpy(who)] = torch.where(rows.isnan(), initial, rows)
                kept[who], sent[who] = False, True
        return LocalModels(models, sent, kept)


def plan_evaluation(
    method: Method[Any],
    state: Any,
    server: ServerView,
    evaluation: Evaluation,
    last: bool,
    local: LocalModels | None,
) -> Iterator[Exchange]:
    """Yield the exchanges by which all clients are evaluated: one, or one for each place where local models are."""
    everyone, split = server.everyone, evaluation.on
    private = method.private_layers(state, server) if evaluation.adapt is not None else server.layout.everything

    def adapted(exchange: Exchange) -> Exchange:
        return adapt_exchange(exchange, evaluation.adapt, private, server.layout, method.rate_drops)

    if local is None:
        yield adapted(method.evaluation(state, server, everyone, split, last))
        return
    if len(sent := everyone[local.sent]):
        yield adapted(Exchange(sent, Evaluate(split), {"model": Send(local.models, sent)}))
    if len(kept := everyone[local.kept]):
        yield adapted(Exchange(kept, Evaluate(split, "model")))
    if len(others := everyone[~(local.sent | local.kept)]):
        yield adapted(method.evaluation(state, server, others, split, last))


def measure_scores(
    runtime: Runtime,
    exchanges: Iterator[Exchange],
    clients: Ids,
    groups: NDArray[np.int64],
    metrics: RunMetrics,
) -> Scores:
    """Score `clients` `[n]` by exchanges that each ask some of them; failures are added to the runtime's.

    `groups` `[n]` are as the method numbers them.
    """
    scores = []
    for exchange in exchanges:
        replies = runtime.measure(exchange)
        runtime.failures.extend((c, f"{NOT_EVALUATED}{reason}") for c, reason in replies.missing.items())
        scores.append((exchange.clients, read_scores(replies, exchange.clients, groups[exchange.clients], metrics)))
    return scores[0][1] if len(scores) == 1 else _join_scores(scores, len(clients))


def _join_scores(parts: Sequence[tuple[Ids, Scores]], n: int) -> Scores:
    """Put the scores of some clients each into the places of all n."""
    values = {name: np.full(n, np.nan) for name in parts[0][1].values}
    loss, tested, groups = np.full(n, np.nan), np.zeros(n, np.bool_), np.full(n, -1, np.int64)
    for clients, part in parts:
        groups[clients], loss[clients], tested[clients] = part.groups, part.loss, part.tested
        for name, whole in values.items():
            whole[clients] = part.values[name]
    after = [(clients, part.adapted) for clients, part in parts if part.adapted is not None]
    return Scores(values, loss, tested, groups, _join_scores(after, n) if after else None)
