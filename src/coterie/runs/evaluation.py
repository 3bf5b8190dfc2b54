"""How the clients are evaluated: with which model, and whether they adapt a copy of it first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.clients.rules.before_and_after import BeforeAndAfter
from coterie.clients.rules.evaluate import Evaluate
from coterie.methods.exchange import Exchange, Ids, Send
from coterie.models.layout import Layout, Part
from coterie.runs.folder.tables import NOT_EVALUATED
from coterie.runs.record import Scores, read_scores
from coterie.runs.schema.sections import Adapt

if TYPE_CHECKING:
    from coterie.runs.session import Session

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
    """
    if adapt is None:
        return exchange
    layers = {"head": HEAD, "private": _name_layers(private, layout)}.get(adapt.layers, adapt.layers)
    rule = BeforeAndAfter(exchange.rule, adapt.epochs, adapt.steps, layers, adapt.lr, lr_drops)
    return replace(exchange, rule=rule)


def _name_layers(part: Part, layout: Layout) -> str:
    """Return the selection of all layers of which the part holds anything."""
    held = [name for number, name in enumerate(layout.layers) if (layout.of_layers([number]) & part).size]
    return "all" if len(held) in (0, len(layout.layers)) else ",".join(held)


def plan_evaluation(run: Session, state: Any, last: bool) -> Iterator[Exchange]:
    """Yield the exchanges by which all clients are evaluated: one, or one for each place where local models are.

    `last` says whether no round follows, for methods that end in an adaptation.
    """
    method, server, settings = run.method, run.server, run.experiment.evaluation
    everyone, split = server.everyone, settings.on
    private = method.private_layers(state, server) if settings.adapt is not None else server.layout.everything

    def adapted(exchange: Exchange) -> Exchange:
        return adapt_exchange(exchange, settings.adapt, private, server.layout, method.rate_drops)

    if settings.evaluated != "local":
        yield adapted(method.evaluation(state, server, everyone, split, last))
        return
    local = run.local_models
    if len(sent := everyone[local.sent]):
        yield adapted(Exchange(sent, Evaluate(split), {"model": Send(local.models, sent)}))
    if len(kept := everyone[local.kept]):
        yield adapted(Exchange(kept, Evaluate(split, "model")))
    if len(others := everyone[~(local.sent | local.kept)]):
        yield adapted(method.evaluation(state, server, others, split, last))


def evaluate(run: Session, state: Any, last: bool) -> Scores:
    """Score all clients on their held-out data with what they are served in `state`, groups as the method has them.

    Failures are added to the runtime's.
    """
    groups, runtime, scores = run.method.assignment(state, run.server).groups, run.runtime, []
    for exchange in plan_evaluation(run, state, last):
        replies = runtime.measure(exchange)
        runtime.failures.extend((c, f"{NOT_EVALUATED}{reason}") for c, reason in replies.missing.items())
        found = read_scores(replies, exchange.clients, groups[exchange.clients], run.metrics)
        scores.append((exchange.clients, found))
    return scores[0][1] if len(scores) == 1 else _join_scores(scores, run.server.n)


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
