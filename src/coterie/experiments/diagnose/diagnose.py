"""Asks the clients of an experiment for what their halves say, and makes a diagnosis of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from coterie.clients.data.federation import Federation
from coterie.errors import BadInput
from coterie.experiments.diagnose.diagnosis import Diagnosis, make_groups
from coterie.experiments.run.loop import Session
from coterie.experiments.run.setup import World
from coterie.experiments.schema.experiment import Experiment, check
from coterie.grouping.halves import (
    LEAST,
    find_groups,
    half_distances,
    membership_shares,
    pairing_test,
    resampled_counts,
)
from coterie.methods.exchange import Ask, Exchange, Replies
from coterie.methods.split_halves import GatheredHalves, gather_halves
from coterie.runtime.runtime import drive
from coterie.runtime.threads import one_thread

STARTS, DRAWS, RESAMPLES = 4, 999, 20
"""Initial models, random pairings a test, and resamples."""


def diagnose(
    experiment: Experiment,
    *,
    world: World | None = None,
    alpha: float = 0.05,
    starts: int = STARTS,
    progress: Callable[[int, int], None] = lambda start, starts: None,
) -> Diagnosis:
    """Say whether the clients of an experiment should be grouped, and into which groups, before training.

    Each client trains for some steps on either half of its data, from a few initial models, and sends where that
    led. Nothing else crosses, and nothing is written. Data, network, local solver and seed are the experiment's;
    its method only chooses the network where that is `auto`. Simulated clients all answer, whatever `run.dropout`.

    Args:
        experiment: whose clients.
        world: the clients and the runtime that reaches them, which is closed; None to simulate them.
        alpha: the error level: clients of one population are divided with a probability of at most that.
        starts: initial models.
        progress: is told how many starts are done, and of how many.

    Raises:
        BadInput: the experiment cannot run, or `alpha` or `starts` is not possible.
    """
    problems = []
    if not 1 / (1 + DRAWS) <= alpha < 1:
        problems.append(f"alpha = {alpha:g} is not possible; it must be from {1 / (1 + DRAWS):g} up to below 1")
    if starts < 1:
        problems.append(f"starts = {starts} is not possible; it must be at least 1")
    check(experiment)
    if (unit := experiment.privacy.unit) != "off":
        problems.append(
            f"privacy.unit = {unit!r} is not possible with a diagnosis: no noise covers what clients send of their "
            "halves; leave privacy out, or ask clients whose data may be looked at"
        )
    if problems:
        raise BadInput(problems)
    begun = time.perf_counter()
    with closing(Session(experiment, world)) as session:
        missing: dict[int, str] = {}

        def answer(ask: Ask) -> Replies | Tensor | None:
            reply = session.runtime.answer(ask)
            if isinstance(ask, Exchange) and isinstance(reply, Replies):
                if session.attackers is not None:
                    reply = session.attackers.strike(ask, reply, 1)
                missing.update(reply.missing)
            return reply

        session.runtime.dropout = 0.0
        session.runtime.begin_round(1)
        with one_thread(blas=True):
            server = session.server
            gathered = drive(
                gather_halves(server.everyone, server, starts, lambda done: progress(done, starts)), answer
            )
            return _conclude(session, gathered, alpha, starts, missing, begun)


def _conclude(
    session: Session, gathered: GatheredHalves, alpha: float, starts: int, missing: dict[int, str], begun: float
) -> Diagnosis:
    """Return what the gathered halves say."""
    server, names = session.server, np.array(session.federation.names, dtype=object)
    clients, tested = gathered.clients, gathered.tested
    for client in np.setdiff1d(server.everyone, [*clients, *gathered.turned_round]).tolist():
        missing.setdefault(client, "has too few samples, or its training diverged")
    products = gathered.products
    test = pairing_test(
        half_distances(products, np.flatnonzero(tested)) if tested.sum() >= LEAST else np.empty((0, 0)),
        server.stream("pairings"),
        DRAWS,
    )
    found = find_groups(products, alpha, server.stream("pairings"), DRAWS, tested)
    several = found.count > 1 and not found.all_differ
    shares = (
        membership_shares(products, found.labels, server.stream("memberships"), RESAMPLES)
        if several
        else np.eye(found.count)[found.labels]
    )
    resampled: tuple[int, ...] = ()
    if found.count > 1:
        rows = np.stack([2 * np.flatnonzero(tested), 2 * np.flatnonzero(tested) + 1], 1).ravel()
        counts = resampled_counts(products[:, rows[:, None], rows], alpha, server.stream("resamples"), RESAMPLES)
        resampled = tuple(counts.tolist())
    groups, members = make_groups(tuple(names[clients]), found.labels, shares, tested)
    planted = session.federation.planted if isinstance(session.federation, Federation) else None
    return Diagnosis(
        server.n,
        len(clients),
        gathered.size,
        starts,
        alpha,
        DRAWS,
        test,
        found.tests,
        groups,
        found.all_differ,
        members,
        resampled,
        None if planted is None or not len(clients) else float(adjusted_rand_score(planted[clients], found.labels)),
        tuple(names[clients[~tested]]),
        tuple(names[gathered.turned_round]),
        {str(names[client]): reason for client, reason in sorted(missing.items())},
        tuple(session.population.notes),
        time.perf_counter() - begun,
    )
