"""Clients kept out of training (`run.holdout_clients`) join after it: how the method does for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.clients.rules.evaluate import AdaptThenEvaluate, Evaluate
from coterie.methods.exchange import Exchange
from coterie.methods.method import UNKNOWN, serve
from coterie.runs.evaluation import adapt_exchange
from coterie.runs.folder.metrics import ADAPTED
from coterie.runs.folder.tables import ARRIVAL, newcomers_schema
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import Scores, read_scores
from coterie.runtime.runtime import drive
from coterie.runtime.threads import one_thread

if TYPE_CHECKING:
    from coterie.runs.session import Session


class UnseenClients(Hook):
    """Scores clients that were never in training; of it nothing is counted, and nobody learns anything."""

    @classmethod
    def is_on(cls, run: Session) -> bool:
        """Whether there are such clients, and test data are not left aside."""
        return len(run.newcomers) > 0 and run.experiment.evaluation.on == "test"

    def describe_end(self) -> str:
        return f"scoring the clients who join after training: {len(self.run.newcomers):,}"

    def run_ended(self) -> Sequence[str]:
        if self.run.folder is not None and (table := self.receive()) is not None:
            self.run.folder.write_newcomers(table)
        return ()

    def receive(self) -> pl.DataFrame | None:
        """Return the table `newcomers_schema` of a trained method; None before the first round.

        Each is scored on its own test samples twice: with the model that the method gives it, and with that model
        after the experiment's adaptation, or without one after one local update.
        """
        run, runtime, rounds = self.run, self.run.runtime, self.run.planned
        if run.groups is None:
            return None
        runtime.begin_round(rounds)  # clients without a group choose as in the last evaluation
        known = run.evaluate(run.state, last=True).groups
        runtime.begin_round(rounds + 1)
        client_dropout, runtime.client_dropout = runtime.client_dropout, 0.0  # nobody vanishes before having joined
        with one_thread(blas=True):
            arrival, adapted = self._score()
        runtime.client_dropout = client_dropout
        runtime.states.roll_back()
        clients, population, metrics = run.newcomers, run.population, run.metrics
        return pl.DataFrame(
            {
                "client": clients,
                "name": [population.names[i] for i in clients],
                "true_group": [
                    None if population.true_groups is None else int(population.true_groups[i]) for i in clients
                ],
                "group": renumber_groups(arrival.groups, known, run.groups),
                "test_samples": population.test_samples[clients],
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

    def _score(self) -> tuple[Scores, Scores]:
        """Return how they do on arrival, and after they have adapted."""
        run, method, server, clients = self.run, self.run.method, self.run.server_with_newcomers, self.run.newcomers
        joined = drive(method.newcomer(run.state, clients, server), run.runtime.answer)
        sends = serve(joined, joined.served, joined.shares)
        own, neighbours = joined.own, joined.neighbours
        evaluated = Exchange(clients, Evaluate(own=own, neighbours=neighbours), sends)
        if (adapt := run.experiment.evaluation.adapt) is None:
            rule = AdaptThenEvaluate(own=own, neighbours=neighbours, lr_drops=method.rate_drops)
            adapting = Exchange(clients, rule, sends)
        else:
            private = method.private_layers(run.state, server)
            adapting = adapt_exchange(evaluated, adapt, private, server.layout, method.rate_drops)
        arrival, adapted = (
            read_scores(run.runtime.measure(exchange), clients, joined.groups, run.metrics)
            for exchange in (evaluated, adapting)
        )
        return arrival, adapted.adapted or adapted


def renumber_groups(
    found: NDArray[np.int64], known: NDArray[np.int64], groups: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return newcomers' groups as the tables number them; one without trained clients gets a new number.

    Args:
        found: of the newcomers `[r]`, as the method numbers them.
        known: of the trained clients `[n]`, as the method numbers them, chosen ones included.
        groups: of the same, as their tables number them.
    """
    numbers = {int(own): int(shown) for own, shown in zip(known, groups, strict=True)} | {UNKNOWN: UNKNOWN}
    for group in found:
        numbers.setdefault(int(group), max(*numbers.values(), *groups.tolist()) + 1)
    return np.array([numbers[int(group)] for group in found], np.int64)
