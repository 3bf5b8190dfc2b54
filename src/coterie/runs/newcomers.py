"""Clients kept out of training, who join after it: who they are, and how the method does for them."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.clients.data.agree.population import Population
from coterie.clients.rules.evaluate import AdaptThenEvaluate, Evaluate
from coterie.errors import BadInput
from coterie.methods.exchange import Exchange
from coterie.methods.method import UNKNOWN, Method, ServerView, serve
from coterie.randomness import stream
from coterie.runs.evaluation import adapt_exchange
from coterie.runs.folder.metrics import ADAPTED, RunMetrics
from coterie.runs.folder.tables import ARRIVAL, newcomers_schema
from coterie.runs.record import read_scores
from coterie.runs.schema.check import held_out_count
from coterie.runs.schema.sections import Adapt
from coterie.runtime.runtime import Runtime, drive

P = TypeVar("P", bound=Population)


def hold_out_clients(federation: P, share: float, seed: int) -> tuple[P, NDArray[np.int64]]:
    """Return the federation with a random share of its clients moved to the end, and their ids there.

    Raises:
        BadInput: nobody would be left to train.
    """
    n = federation.n
    count = held_out_count(n, share)
    if count >= n:
        raise BadInput(
            f"run.holdout_clients = {share:g} keeps {count} of {n} clients out of training; it must leave one"
        )
    if not count:
        return federation, np.empty(0, np.int64)
    away = np.sort(stream(seed, "holdout-clients").permutation(n)[:count])
    order = np.concatenate([np.setdiff1d(np.arange(n), away), away])
    return federation.reordered(order), np.arange(n - count, n)


def receive(
    method: Method[Any],
    state: Any,
    runtime: Runtime,
    server: ServerView,
    federation: Population,
    clients: NDArray[np.int64],
    known: NDArray[np.int64],
    groups: NDArray[np.int64],
    metrics: RunMetrics,
    adapt: Adapt | None = None,
) -> pl.DataFrame:
    """Score a trained method on `clients` that were never in training; return the table `newcomers_schema`.

    Each is scored on its own test samples twice: with the model that the method gives it, and with that model
    after the experiment's adaptation, or without one after one local update. Neither teaches the method anything.

    Args:
        method: whose rule for newcomers is used.
        state: after the last round.
        runtime: it carries the rule to the newcomers; its round, ledger and failures are theirs alone.
        server: knows the trained clients and the newcomers behind them.
        federation: of the same clients.
        clients: ids of the newcomers `[r]`.
        known: groups of the trained clients, as the method numbers them, chosen ones included.
        groups: of the same, as their tables number them.
        metrics: of the run; they are scored by all that its tables show.
        adapt: how they adapt (`evaluation.adapt`).
    """
    joined = drive(method.newcomer(state, clients, server), runtime.answer)
    sends = serve(joined, joined.served)
    arrival = read_scores(
        runtime.measure(Exchange(clients, Evaluate(own=joined.own), sends)), clients, joined.groups, metrics
    )
    exchange = Exchange(clients, AdaptThenEvaluate(own=joined.own, lr_drops=method.rate_drops), sends)
    if adapt is not None:
        evaluated = Exchange(clients, Evaluate(own=joined.own), sends)
        private = method.private_layers(state, server)
        exchange = adapt_exchange(evaluated, adapt, private, server.layout, method.rate_drops)
    adapted = read_scores(runtime.measure(exchange), clients, joined.groups, metrics)
    adapted = adapted if adapted.adapted is None else adapted.adapted
    return pl.DataFrame(
        {
            "client": clients,
            "name": [federation.names[i] for i in clients],
            "planted": [None if federation.planted is None else int(federation.planted[i]) for i in clients],
            "group": renumber_groups(arrival.groups, known, groups),
            "test_samples": federation.test_samples[clients],
            "arrival": arrival.values[metrics.deciding.name],
            "adapted": adapted.values[metrics.deciding.name],
            **{
                f"{when}{metric.name}": scores.values[metric.name]
                for metric in metrics.further
                for when, scores in ((ARRIVAL, arrival), (ADAPTED, adapted))
            },
        },
        schema_overrides=newcomers_schema(metrics),
    ).with_columns(pl.col(pl.Float64).fill_nan(None))


def renumber_groups(
    found: NDArray[np.int64], known: NDArray[np.int64], groups: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the newcomers' groups as the tables number them; one without trained clients gets a new number."""
    numbers = {int(own): int(shown) for own, shown in zip(known, groups, strict=True)} | {UNKNOWN: UNKNOWN}
    for group in found:
        numbers.setdefault(int(group), max(*numbers.values(), *groups.tolist()) + 1)
    return np.array([numbers[int(group)] for group in found], np.int64)
