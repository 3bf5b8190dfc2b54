"""Asks the clients of an experiment what their halves say and who gains by what, and makes a diagnosis."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from math import comb

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from coterie.advice.diagnose.answer import LEANING
from coterie.advice.diagnose.diagnosis import MOST_DISTANCES, Diagnosis, make_groups
from coterie.advice.diagnose.kinds import GroupKinds, Kinds, Recoding, Targets
from coterie.advice.diagnose.pay import Pay, choose_kind, weigh
from coterie.advice.diagnose.signals import MOST_CLIENTS, MOST_PUBLIC, Signal
from coterie.advice.diagnose.single_layers import LayerSignal, compare_layers
from coterie.clients.data.divide.partition import DEFAULT_CLIENTS
from coterie.clients.data.federation import Federation
from coterie.clients.data.read.columns import Named
from coterie.clients.data.read.datasets import DATASETS, default_split
from coterie.clients.rules.fold import FOLDS
from coterie.clients.rules.half_data import is_sketched
from coterie.errors import BadInput, count_of
from coterie.grouping.cluster import average_linkage
from coterie.grouping.halves import (
    LEAST,
    client_distances,
    find_groups,
    half_distances,
    membership_shares,
    pairing_test,
    resampled_counts,
)
from coterie.grouping.recoding import find_recoding
from coterie.grouping.skew import find_group_skew, find_skew
from coterie.methods.cross_fit import ROUNDS, choose_passes, cross_fit, place_by_other_half
from coterie.methods.exchange import Ask, Exchange, Replies
from coterie.methods.half_models import compare_losses, compare_predictions
from coterie.methods.likely_places import choose_groups, is_small_and_linear, place_by_likelihood
from coterie.methods.profiles import gather_profiles
from coterie.methods.split_halves import GatheredHalves, gather_halves
from coterie.runs.events import tell_regularly
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.session import Session
from coterie.runs.setup import Backend
from coterie.runtime.runtime import drive
from coterie.runtime.threads import one_thread

LEARNT = 0.15
"""The share of what naming the commonest class gets wrong that a model must get right to have learnt anything."""

LEARNT_OF_ERRORS = 0.01
"""The share of the error of one number for all samples that a model must save to have learnt anything."""

FAR = 1e3
"""Models whose errors are so many times that of one number for all samples diverged."""

COMMON = 0.75
"""Where one class has so many of the samples, a model that has learnt may still name it always."""

TURNED = -1
"""In the place of a group's number: of a client whose updates point against all others'."""

STARTS, DRAWS, RESAMPLES = 4, 999, 20
"""Initial models, random pairings a test, and resamples."""
MOST_STARTS = 1000
"""Initial models at most; all clients train from each of them."""

MOST_COUNTED = 20
"""Groups that are looked for, at most, where linear models tell how many there are."""

NOT_ASKED = (
    "gains were not computed, because batch normalisation would use the samples that models are scored on; take a "
    "network without it, or with group or layer normalisation instead"
)

UNTRIED = (
    "with --no-gains it is unknown whether models learn from these data at all; if they do not, no structure can "
    "be found"
)

NOT_COMPARED = (
    "losses, predictions and layers were not compared: with {size:,} parameters clients send only sketches of "
    "directions"
)


def diagnose(
    experiment: Experiment,
    *,
    backend: Backend | None = None,
    alpha: float = 0.05,
    starts: int = STARTS,
    gains: bool = True,
    profiles: bool | None = None,
    losses: bool = False,
    layers: bool = False,
    progress: Callable[[str], None] = lambda sentence: None,
) -> Diagnosis:
    """Say whether clients of an experiment should be grouped, into which groups, and who gains, before training.

    Each client trains for some steps on either half of its data, from a few initial models, and sends where that
    led. Then a few rounds train a model for all and one for each group, without a part of everybody's samples, on
    which they are scored beside what a client can make alone. Nothing but these models and scores crosses, and
    nothing is written. Data, network, local solver and seed are the experiment's; its method only chooses the
    network where that is `auto`. Simulated clients all answer, whatever `run.client_dropout`.

    Args:
        experiment: whose clients.
        backend: the clients and the runtime that reaches them, which is closed; None to simulate them.
        alpha: the error level: clients of one population are divided with a probability of at most that.
        starts: initial models.
        gains: whether to find out who gains by what, which takes most of the time.
        profiles: whether clients tell how often each class is, and what its inputs sum to, so that kinds of skew
            can be told apart; None if they are simulated alone.
        losses: whether clients also tell what each other's models lose on their data. Each is sent the models of at
            most 64 clients' halves. Where the server holds public samples, predictions on these are compared, too.
        layers: whether to find out which layers tell the clients apart, of at most 64 clients.
        progress: is told what has been done, a sentence at a time, and every few seconds how far it has got.

    Raises:
        BadInput: the experiment cannot run, or `alpha` or `starts` is not possible.
    """
    prepared = prepare(experiment)
    check_diagnosis(prepared.experiment, alpha, starts)
    begun = time.perf_counter()
    with closing(Session(prepared, backend)) as session:
        missing: dict[int, str] = {}

        def answer(ask: Ask) -> Replies | Tensor | None:
            reply = session.runtime.answer(ask)
            if isinstance(ask, Exchange) and isinstance(reply, Replies) and session.attackers is not None:
                return session.attackers.strike(ask, reply, 1)
            return reply

        def answer_of_halves(ask: Ask) -> Replies | Tensor | None:
            reply = answer(ask)
            if isinstance(reply, Replies):
                missing.update(reply.missing)
            return reply

        def say_start(done: int) -> None:
            progress(f"start {done} of {starts}: all clients have trained on their halves")

        session.runtime.client_dropout = 0.0
        session.runtime.begin_round(1)
        session.runtime.on_answers = tell_regularly(progress, "clients train on their halves")
        with one_thread(blas=True):
            server = session.server
            public = server.public is not None and session.population.task.distributes
            most = MOST_CLIENTS if (losses or public or layers) and not is_sketched(server.layout) else 0
            gathered = drive(gather_halves(server.everyone, server, starts, say_start, most), answer_of_halves)
            found, labels, places = _conclude(session, gathered, alpha, starts, missing, answer)
            signals = _find_signals(session, gathered, losses, public, answer)
            if layers and gathered.models is not None:
                found = replace(found, layers=_find_layers(session, gathered, found, labels))
            told = backend is None if profiles is None else profiles
            parts = np.zeros_like(labels) if found.all_differ or not found.has_structure else labels
            kinds = _find_kinds(session, gathered, parts, alpha, answer, told)
            found = replace(found, signals=signals, kinds=kinds)
            asked = gains and not session.has_batch_norm
            text = "clients train and score a model for all, for their group and of their own"
            session.runtime.on_answers = tell_regularly(progress, text)
            pay = _find_gains(session, gathered, found, labels, places, answer, progress) if asked else None
            unlearnt = _judge_learning(session, pay) if asked and gathered.size else ""
            notes = (*_note_invented_clients(experiment), *found.notes)
            if gains and not asked:
                notes = (*notes, NOT_ASKED)
            if not gains and not found.has_structure:
                notes = (*notes, UNTRIED)
            if (losses or public or layers) and not most:
                notes = (*notes, NOT_COMPARED.format(size=server.layout.size))
            pay, seconds = None if unlearnt else pay, time.perf_counter() - begun
            return replace(found, pay=pay, unlearnt=unlearnt, notes=notes, seconds=seconds)


def check_diagnosis(experiment: Experiment, alpha: float = 0.05, starts: int = STARTS) -> None:
    """Check what is to be known before clients are asked anything.

    Raises:
        BadInput: one sentence for each thing that is not possible with a diagnosis.
    """
    problems = []
    if not 1 / (1 + DRAWS) <= alpha < 1:
        problems.append(f"alpha = {alpha:g} is not possible; it must be from {1 / (1 + DRAWS):g} up to below 1")
    if not 1 <= starts <= MOST_STARTS:
        problems.append(f"starts = {starts} is not possible; it must be from 1 to {MOST_STARTS}")
    if (unit := experiment.privacy.unit) != "off":
        problems.append(
            f"privacy.unit = {unit!r} is not possible with a diagnosis: clients train on halves of their data and "
            "send the results without noise; leave privacy out, or ask clients whose data may be looked at"
        )
    if problems:
        raise BadInput(problems)


def _judge_learning(session: Session, pay: Pay | None) -> str:
    """Say why the scores say nothing, and what to change: no model beats a guess, or all diverged; else nothing."""
    if pay is None:
        if (session.federation.samples < 2 * FOLDS).all():  # nobody could be scored
            return ""
        why = "every model diverged"
    else:
        scores = [option.score for option in pay.options]
        best, guessed = (max if pay.measure == "accuracy" else min)(scores), _guess(session, pay)
        if pay.measure == "accuracy":
            if best > guessed + LEARNT * (1 - guessed) or guessed >= COMMON or np.isnan(guessed):
                return ""
            why = f"the best model is right in {best:.1%}, and always naming the commonest class in {guessed:.1%}"
        else:
            if best < (1 - LEARNT_OF_ERRORS) * guessed or np.isnan(guessed):
                return ""
            one = f"predicting one number for all samples reaches {guessed:.4g}"
            below = f"no model's {pay.measure.upper()} is below {best:.4g}, and {one}"
            why = "every model diverged" if best > FAR * guessed else below
    return f"nothing was learnt: {why}; try {_say_remedy(session)}"


def _say_remedy(session: Session) -> str:
    """Say which settings would let models learn, as options of the command line."""
    data, task = session.experiment.data, session.population.task
    unscaled = (data.standardise or "none") == "none" and not task.tokens
    flags = ["--set standardise=global"] if unscaled else []
    if getattr(task, "target_scale", "not a setting of this task") == "none":
        flags += [f"--set task.name={task.name}", "--set task.target_scale=global"]
    other = "another --set lr=…"
    return f"{' '.join(flags)}, or {other}" if flags and not data.is_remote else other


def _guess(session: Session, pay: Pay) -> float:
    """Return the mean score over clients of the best answer that is the same for all; NaN where it is not known."""
    federation = session.federation
    if pay.measure == "accuracy":
        counts = federation.histograms
        if counts is None or not counts.sum():
            return np.nan
        held = counts[counts.sum(1) > 0]
        return float((held[:, held.sum(0).argmax()] / held.sum(1)).mean())
    if pay.measure == "loss" or not isinstance(federation, Federation):
        return np.nan
    targets = federation.labels.double().numpy().reshape(len(federation.labels), -1)
    held = [targets[start:end] for start, end in federation.bounds[:, :2].tolist() if end > start]
    pooled = np.concatenate(held)
    if pay.measure == "mae":
        return float(np.mean([np.abs(own - np.median(pooled, axis=0)).mean() for own in held]))
    return float(np.mean([np.sqrt(np.square(own - pooled.mean(axis=0)).mean()) for own in held]))


def _find_distances(products: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    """Return the distances between clients, of products `[V, 2 n, 2 n]`; none of very many clients."""
    if not LEAST <= products.shape[1] // 2 <= MOST_DISTANCES:
        return ()
    return tuple(tuple(row) for row in client_distances(half_distances(products)).round(4).tolist())


def _find_signals(
    session: Session,
    gathered: GatheredHalves,
    losses: bool,
    public: bool,
    answer: Callable[[Ask], Replies | Tensor | None],
) -> tuple[Signal, ...]:
    """Return what the models of halves say beside their directions, where enough clients are compared."""
    halves, server, found = gathered.models, session.server, list[Signal]()
    if halves is None:
        return ()

    def test(name: str, samples: int, distances: NDArray[np.float64]) -> None:
        if len(distances) >= 2 * LEAST:
            outcome = pairing_test(distances, server.stream(f"pairings by {name}"), DRAWS)
            found.append(Signal(name, len(distances) // 2, samples, outcome))

    if losses:
        test("losses", gathered.size, drive(compare_losses(halves, gathered.size), answer))
    if public:
        many = len(server.public_inputs())
        rows = np.sort(server.stream("public samples").permutation(many)[:MOST_PUBLIC])
        test("predictions", len(rows), drive(compare_predictions(halves, server.public_inputs(rows)), answer))
    return tuple(found)


def _find_layers(
    session: Session, gathered: GatheredHalves, found: Diagnosis, labels: NDArray[np.int64]
) -> tuple[LayerSignal, ...]:
    """Return what each layer says of the clients, and how far it parts the groups `[r]`, where there are
    several."""
    halves, server = gathered.models, session.server
    assert halves is not None
    several = found.has_structure and not found.all_differ
    groups = labels[np.searchsorted(gathered.clients, halves.clients)] if several else None
    return compare_layers(halves, server.initial(0), server.layout, groups, server.stream, DRAWS)


def _find_kinds(
    session: Session,
    gathered: GatheredHalves,
    groups: NDArray[np.int64],
    alpha: float,
    answer: Callable[[Ask], Replies | Tensor | None],
    told: bool,
) -> Kinds:
    """Return of what kind clients differ, and each group `[r]` from all others, as far as they tell."""
    clients, population, skew, count = gathered.clients, session.population, None, 0
    task, of_groups, recoded = population.task, list[GroupKinds](), list[Recoding]()
    classes = population.classes if task.one_class else 0
    turned = gathered.turned_round
    if told and gathered.size and len(clients) and not task.tokens:
        targets = population.outputs if task.numbers else 0
        everybody = np.union1d(clients, turned)
        asked = gather_profiles(everybody, gathered.size, tuple(population.features), classes, targets)
        all_sound, all_profiles = drive(asked, answer)
        straight = np.isin(all_sound, clients)
        sound, profiles = all_sound[straight], all_profiles[straight]
        count, stream = len(sound), session.server.stream
        if count >= LEAST:
            skew = find_skew(profiles, stream("profiles"), DRAWS, task.numbers)
            of_groups = _find_group_kinds(session, profiles, groups[np.searchsorted(clients, sound)], alpha)
            if classes:
                of = np.full(len(all_sound), TURNED)
                of[straight] = groups[np.searchsorted(clients, sound)]
                recoded = _find_recoded(session, all_profiles, all_sound, of)
    few, many = np.quantile(session.federation.samples, (0.1, 0.9), method="nearest").astype(int).tolist()
    numbers: Targets = "labels" if task.probable else "numbers"
    kind: Targets = "classes" if classes else numbers if task.numbers else "others"
    found = () if skew is None else skew.kinds(alpha)
    return Kinds(count, skew, found, few, many, kind, tuple(of_groups), tuple(recoded), alpha)


def _find_recoded(
    session: Session, profiles: NDArray[np.float64], clients: NDArray[np.int64], groups: NDArray[np.int64]
) -> list[Recoding]:
    """Return which groups seem to have the classes of the largest one under other names.

    Args:
        session: knows what clients and classes are called.
        profiles: of the clients `[r]`.
        clients: their ids.
        groups: of each, or `TURNED`.
    """
    largest, found = int(np.bincount(groups[groups != TURNED]).argmax()), list[Recoding]()
    names = np.array(session.federation.names, object)[clients]
    classes = session.class_names or tuple(map(str, range(profiles.shape[2])))
    others = f"in group {largest}" if len(np.unique(groups[groups != TURNED])) > 1 else "elsewhere"
    for group in np.unique(groups[groups != largest]).tolist():
        meaning = find_recoding(profiles, groups == group, groups == largest)
        if meaning is not None:
            other = [(classes[own], classes[to]) for own, to in enumerate(meaning.tolist()) if own != to]
            found.append(Recoding(tuple(map(str, names[groups == group])), others, tuple(other)))
    return found


def _find_group_kinds(
    session: Session, profiles: NDArray[np.float64], groups: NDArray[np.int64], alpha: float
) -> list[GroupKinds]:
    """Return in what each group `[r]` differs from all others, of those that chance could not make.

    Of K groups each is tested at `alpha / K`; two are one test. Where clients can be drawn in too few ways for
    that, the group is left out.
    """
    parts, sizes = np.unique(groups, return_counts=True)
    tests, found = 1 if len(parts) == 2 else len(parts), list[GroupKinds]()
    for group, size in zip(parts.tolist(), sizes.tolist(), strict=True):
        ways = comb(len(groups), size) / (2 if 2 * size == len(groups) else 1)
        if not 1 < size < len(groups) - 1 or ways * alpha < tests:
            continue
        if tests == 1 and found:  # the other one of two
            found.append(replace(found[0], group=group, clients=size))
            continue
        stream, numbers = session.server.stream(f"profiles of group {group}"), session.population.task.numbers
        skew = find_group_skew(profiles, groups == group, stream, DRAWS, numbers)
        found.append(GroupKinds(group, size, skew, skew.kinds(alpha / tests)))
    return found


def _find_gains(
    session: Session,
    gathered: GatheredHalves,
    found: Diagnosis,
    labels: NDArray[np.int64],
    places: NDArray[np.int64],
    answer: Callable[[Ask], Replies | Tensor | None],
    progress: Callable[[str], None],
) -> Pay | None:
    """Return who gains by what; None where nobody has samples enough.

    Args:
        session: asks the clients.
        gathered: who they are `[r]`.
        found: what is known of them.
        labels: their groups `[r]`.
        places: the same by the samples outside each half `[2, r]`, for scores on that half.
        answer: answers for the clients.
        progress: is told each fold.
    """
    server, clients = session.server, gathered.clients
    if not gathered.size or not len(clients):
        return None
    grouped = found.has_structure and not found.all_differ
    training, kind = session.experiment.training, choose_kind(session.population.task)
    passes = choose_passes(server.samples[clients], training.batch_size, training.epochs)

    def say_fold(done: int) -> None:
        progress(f"fold {done} of {FOLDS}: all clients have scored the models that were trained without it")

    fit = drive(
        cross_fit(clients, places if grouped else None, server, gathered.size, passes, kind, ROUNDS, say_fold),
        answer,
    )
    names = np.array(session.federation.names, dtype=object)[clients]
    kept = "group" if grouped else "" if found.has_structure else "global"
    return weigh(fit, kind, names, labels if grouped else np.zeros(len(clients), np.int64), kept)


def _conclude(
    session: Session,
    gathered: GatheredHalves,
    alpha: float,
    starts: int,
    missing: dict[int, str],
    answer: Callable[[Ask], Replies | Tensor | None],
) -> tuple[Diagnosis, NDArray[np.int64], NDArray[np.int64]]:
    """Return what the halves say, the groups `[r]`, and the same by the samples outside each half `[2, r]`."""
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
    labels, places, predicted = found.labels, None, False
    if test.p <= max(alpha, LEANING) and not found.all_differ and is_small_and_linear(server.layout):
        apart, most = client_distances(half_distances(products)), min(MOST_COUNTED, len(clients) // 2)
        guesses = (average_linkage(apart, count) for count in range(1, most + 1))
        placed = drive(choose_groups(clients, guesses, server, gathered.size), answer)
        predicted = placed.count > 1
        if found.count > 1 and not predicted:  # too few samples to predict by; the test says that there are groups
            placed = drive(place_by_likelihood(clients, found.labels, server, gathered.size), answer)
        if placed.count > 1:
            labels, places = placed.relabelled()
    several = predicted or (found.count > 1 and not found.all_differ)
    if places is None:
        places = place_by_other_half(products, labels) if several else np.stack([labels] * 2)
    shares = (
        membership_shares(products, labels, server.stream("memberships"), RESAMPLES)
        if several
        else np.eye(found.count)[found.labels]
    )
    resampled: tuple[int, ...] = ()
    if found.count > 1 and not predicted:
        rows = np.stack([2 * np.flatnonzero(tested), 2 * np.flatnonzero(tested) + 1], 1).ravel()
        counts = resampled_counts(products[:, rows[:, None], rows], alpha, server.stream("resamples"), RESAMPLES)
        resampled = tuple(counts.tolist())
    groups, members = make_groups(tuple(names[clients]), labels, shares, tested)
    true_groups = session.federation.true_groups if isinstance(session.federation, Federation) else None
    diagnosis = Diagnosis(
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
        None
        if true_groups is None or not len(clients)
        else float(adjusted_rand_score(true_groups[clients], labels)),
        tuple(names[clients[~tested]]),
        tuple(names[gathered.turned_round]),
        {str(names[client]): reason for client, reason in sorted(missing.items())},
        tuple(session.population.notes),
        distances=_find_distances(products),
        predicted=predicted,
    )
    return diagnosis, labels, places


def _note_invented_clients(experiment: Experiment) -> tuple[str, ...]:
    """Say that data name no clients, where nobody said who is to hold what: those asked about are then invented."""
    data = experiment.data
    if data.split != "auto" or data.is_remote or data.name in DATASETS:
        return ()
    if default_split(data.name, Named(data.label, data.client)) == "by-user":
        return ()
    count = data.clients or DEFAULT_CLIENTS
    return (
        f"{data.name} does not name the client of a sample, so samples were dealt to {count_of(count, 'client')} "
        "at random; data.client names the column of the clients",
    )
