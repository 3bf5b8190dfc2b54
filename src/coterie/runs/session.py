"""A run in this process: how it is set up, what it does in a round, what it remembers."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from math import ceil, fsum, inf
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.data.agree.description import describe
from coterie.clients.data.federation import Federation
from coterie.clients.engine.choice import choose_engine
from coterie.errors import BadInput, count_of
from coterie.grouping.labels import relabel
from coterie.methods import Cohort
from coterie.methods.exchange import Ask, Exchange, Replies
from coterie.methods.method import UNKNOWN
from coterie.models.factory import digest_start
from coterie.randomness import PrivateRandomness, make_secret, stream
from coterie.runs import evaluation, provenance
from coterie.runs.checkpoint_schedule import CheckpointSchedule, open_checkpoints
from coterie.runs.events import EndObserver, Observer, Round, tell_regularly
from coterie.runs.folder import metrics
from coterie.runs.folder.baselines import LOCAL
from coterie.runs.folder.run_folder import SECRET, RunFolder
from coterie.runs.given import write_given
from coterie.runs.hooks.divergence import Divergence
from coterie.runs.hooks.hook import Hook
from coterie.runs.hooks.local_models import LocalModels
from coterie.runs.hooks.order import make_hooks
from coterie.runs.promise import make_promise
from coterie.runs.record import (
    RoundResult,
    Scores,
    federation_table,
    is_enough,
    mean_passes,
    measure_by,
    round_row,
    round_tables,
)
from coterie.runs.schema.experiment import Experiment, Prepared, prepare
from coterie.runs.schema.refusals import cohort_size, too_many_clusters, too_many_pairs
from coterie.runs.setup import (
    Backend,
    build_simulation,
    find_trusted,
    make_server_view,
    network_name,
    quarantine_after,
)
from coterie.runtime.checkpoint import check_state
from coterie.runtime.ledger import FROZEN
from coterie.runtime.quarantine import Quarantine
from coterie.runtime.runtime import VANISHED, drive
from coterie.runtime.signals import insist_on_signals
from coterie.runtime.threads import one_thread

H = TypeVar("H", bound=Hook)

MAX_SILENT_ROUNDS = 3
"""Rounds in a row in which nobody answers, after which a run stops."""


class Session:
    """One run in this process: its clients, its method, its runtime, and the state after the last whole round.

    Without `write_into` no round is written. What it does beside its rounds are its hooks (`hooks/order.py`).

    Args:
        experiment: what is trained, and how.
        backend: the clients and the runtime that reaches them, which the session closes; None to simulate them.
        observers: are told how the run gets on.
        secret: of which a simulation's private randomness is made; a new one where it is empty.

    Attributes:
        population: all clients; those who are kept out of training, `newcomers` `[r]`, come last.
        federation: the `n` clients in training.
        server: what the method knows of the clients in training; `server_with_newcomers`, of all.
        hooks: in the order in which they are called.
        done: the last whole round; 0 before the first.
        planned: the last round of the run; with `run.passes` the most, until they are reached.
        state: the method's, after that round.
        groups: of the clients in training `[n]`, as the tables number them; None before the first round.
        folder: where the run is written; None where it is not.
    """

    # ---- setup

    @insist_on_signals()
    def __init__(
        self,
        experiment: Experiment | Prepared,
        backend: Backend | None = None,
        observers: Sequence[Observer] = (),
        secret: bytes = b"",
    ) -> None:
        self.prepared = prepare(experiment)
        self.experiment, self.method = self.prepared.experiment, self.prepared.method
        self.observers = observers
        self.is_simulated = backend is None
        privacy = self.experiment.privacy
        needs_secret = self.is_simulated and privacy.kind and privacy.noise_seed is None
        self._secret = secret or make_secret() if needs_secret else b""
        self.randomness = PrivateRandomness(self._secret, privacy.noise_seed)
        backend = build_simulation(self.prepared, self._secret) if backend is None else backend
        self.population, self.newcomers, self.runtime = backend.population, backend.newcomers, backend.runtime
        self.attackers = backend.attackers
        self.federation = self.population.reordered(np.arange(self.population.n - len(self.newcomers)))
        try:
            self._set_up()
        except BaseException:
            self.runtime.close()
            raise

    def _set_up(self) -> None:
        experiment, engine = self.experiment, self.runtime.engine
        self.layout = engine.layout
        self.runtime.quarantine = Quarantine(quarantine_after(experiment))
        self.engine, self.engine_reason = choose_engine(
            engine.network,
            self.layout,
            experiment.training,
            self.federation.features,
            experiment.run.engine,
            experiment.data.augment is not None,
            private=engine.example_privacy is not None,
        )
        self.server_with_newcomers = make_server_view(experiment, self.population, engine)
        self.server = replace(
            self.server_with_newcomers, samples=experiment.aggregation.cap_samples(self.federation.samples)
        )
        self.trusted = find_trusted(experiment, self.federation)
        if problems := too_many_pairs(
            experiment.method, self.method, self.server.n, experiment.run, experiment.scale
        ):
            raise BadInput(problems)
        by_loss = "training.stop" if experiment.training.stop is not None else ""
        decides = experiment.method.name if self.method.needs.validation else by_loss
        if decides and self._count_unvalidated() == self.server.n:
            raise BadInput(
                f"data.validation = {experiment.data.validation:g} leaves no client a validation sample, and "
                f"{decides} decides by these; it must be larger, or clients must have more samples"
            )
        self.promise = make_promise(experiment, self.population.samples)
        self.has_batch_norm = engine.batch_norm
        if self.promise is not None and self.has_batch_norm:
            raise BadInput(
                f"network.name = {experiment.network.name!r} is not possible with privacy: noise can make the "
                "variances of its batch normalisation negative; it must be a network without batch normalisation, "
                "or with group or layer normalisation instead"
            )
        adapt = experiment.evaluation.adapt
        if adapt is not None and adapt.layers not in ("head", "private"):
            self.layout.select(adapt.layers, "evaluation.adapt.layers")  # refuses layers that there are not
        self.state: Any = self.method.start(self.server)
        check_state(self.state)
        served = self.method.assignment(self.state, self.server).served
        if served.shape != (self.server.n,):
            raise ValueError(
                f"the assignment of {type(self.method).__name__} is of shape {served.shape}; it must be "
                f"({self.server.n},), one for each client"
            )
        self.metrics = measure_by(self.population)
        self.groups: NDArray[np.int64] | None = None
        self.folder: RunFolder | None = None
        self.done, self._passes = 0, list[float]()
        self.planned = experiment.run.rounds
        self._is_whole = True
        self._up_bytes, self._down_bytes, self._seconds, self._silent_rounds = 0, 0, 0.0, 0
        self.hooks = make_hooks(self)

    @insist_on_signals()
    def begin(self, folder: RunFolder) -> None:
        """Write what is known before the first round into a fresh folder."""
        folder.write_experiment(self.experiment.to_toml())
        write_given(folder, self.experiment.network.name)
        if self._secret:
            folder.write_secret(self._secret)
        folder.write_environment(self.environment())
        folder.write_federation(federation_table(self.federation))
        folder.settle()
        folder.write_status("running", 0, self.expected)

    @insist_on_signals()
    def go_on(self, folder: RunFolder) -> None:
        """Take up the run in a folder after its last sound checkpoint.

        Raises:
            BadInput: the data have changed, no checkpoint is sound, a table is damaged or missing, or nobody had
                answered in the last rounds of all.
        """
        warnings = self.find_differences(folder.environment())
        warnings += self.restore(folder)
        self._silent_rounds = _count_silent_rounds(folder, self.done)
        if self._has_given_up and self.done == self.planned:
            raise BadInput(
                f"nobody answered in the last {count_of(self._silent_rounds, 'round')}, and the model did not "
                "change in them; begin a new run"
            )
        if self._secret and not folder.secret():
            folder.write_secret(self._secret)
            if 0 < self.done < self.experiment.run.rounds:
                warnings.append(
                    f"{SECRET} is missing, so from here on the noise differs from that of an uninterrupted run"
                )
        folder.check_tables(self.done)
        self.tell(warnings)
        if not folder.environment():  # killed before it was written
            folder.write_environment(self.environment())
        folder.write_federation(federation_table(self.federation))
        folder.write_status("running", self.done, self.expected)
        folder.forget_after(self.done)
        folder.settle()

    @insist_on_signals()
    def write_into(self, folder: RunFolder) -> None:
        """Write all further rounds into a folder that holds the run's experiment, and checkpoints beside them."""
        table = folder.rounds()
        self._up_bytes, self._down_bytes = int(table["up_bytes"].sum()), int(table["down_bytes"].sum())
        self._seconds = float(table["seconds"].sum())
        if self.layout.frozen:
            self.runtime.equipped = set(folder.ledger().filter(pl.col("what") == FROZEN)["client"])
        self.find(Divergence).read_tables(folder.clients(), folder.failures())
        self.folder, self.checkpoints = folder, open_checkpoints(folder)
        self._schedule, self._saved = CheckpointSchedule(self.experiment.run.checkpoint_every), self.done
        self.runtime.states.folder = folder.path
        folder.buffer_rounds()

    def close(self) -> None:
        """End the worker processes."""
        self.runtime.close()

    @property
    def adds_noise(self) -> bool:
        """Whether the server adds noise to sums."""
        return self.promise is not None and self.promise.kind == "server"

    # ---- a round

    def announce(self) -> None:
        """Tell the observers what is about to be trained."""
        experiment = self.experiment
        if self.folder is not None:  # a name that was taken is another now, and a folder may have been moved
            place = self.folder.path.resolve()  # not where the file says that it was: observers write there
            experiment = experiment.updated({"run.name": place.name, "run.folder": str(place.parent)})
        for observer in self.observers:
            observer.started(experiment, self.describe())
        self.tell(self.find_warnings())

    def tell(self, notes: Sequence[str]) -> None:
        """Tell the observers what there is to note."""
        for note in notes:
            for observer in self.observers:
                observer.note(note)

    @contextmanager
    def _phase(self, text: str) -> Iterator[None]:
        """Tell the observers what is done in the block and how far it has got, where there is something to say."""
        observers = [each for each in self.observers if text and isinstance(each, EndObserver)]

        def tell(said: str) -> None:
            for observer in observers:
                observer.phase(said)

        tell(text)
        self.runtime.on_answers = tell_regularly(tell, text) if observers else None
        try:
            yield
        finally:
            self.runtime.on_answers = None

    def find_warnings(self) -> list[str]:
        """Return what is to be known of the data, and of these clients with this method."""
        found = [*self.population.notes, *self.method.warnings(self.server, self.experiment.run.rounds)]
        if self.method.needs.validation and (few := self._count_unvalidated()):
            found.append(
                f"{few} of {self.server.n} clients have no validation samples; {self.experiment.method.name} "
                "decides without them"
            )
        if many := too_many_clusters(self.experiment.method.settings, self.server.n):
            found.append(
                f"{many} is more than the {count_of(self.server.n, 'client')} in training: some groups stay empty"
            )
        training, name = self.experiment.training, self.experiment.method.name
        if self.method.needs.plain_sgd and (training.optimizer != "sgd" or training.momentum):
            idle = f"momentum = {training.momentum:g}" if training.optimizer == "sgd" else "optimizer = 'adam'"
            found.append(f"training.{idle} has no effect on {name}, whose local steps are plain SGD")
        if self.adds_noise and self.experiment.evaluation.evaluated == "local":
            found.append(
                "evaluation.evaluated = 'local' keeps each client's own model in the run's checkpoints without "
                "noise; the promise of privacy does not cover these models"
            )
        return found

    def _count_unvalidated(self) -> int:
        """Count the clients in training that have no validation samples."""
        bounds = self.federation.bounds
        return int((bounds[:, 1] == bounds[:, 2]).sum())

    def remaining_rounds(self) -> Iterator[int]:
        """Yield the numbers of the rounds that are left, each once the one before it is recorded."""
        while self.done < self.planned:
            yield self.done + 1

    @insist_on_signals()
    def play_round(self, number: int) -> RoundResult:
        """Play one round of the method; nothing of it counts before it is recorded."""
        started = time.perf_counter()
        self.runtime.begin_round(number)
        result = RoundResult(number, np.zeros(self.server.n, np.bool_))
        cohort = Cohort(number, self.draw_cohort(number), self.server)
        for hook in self.hooks:
            cohort = hook.server_view(cohort)

        was_answered = False

        def answer(ask: Ask) -> Replies | Tensor | None:
            nonlocal was_answered
            if not isinstance(ask, Exchange):
                return self.runtime.answer(ask)
            replies = self._exchange(self._limit_sums(ask, cohort), result)
            was_answered = was_answered or len(replies) > 0
            return replies

        work, name = self.method.round(self.state, cohort), type(self.method).__name__
        if not isinstance(work, Generator):
            raise TypeError(f"the round of {name} has no yield; it asks clients by: yield Exchange(...)")
        with one_thread(blas=True):
            try:
                result.state = drive(work, answer)
            except Exception as mistake:
                if not was_answered and (failures := self._find_failures()):
                    client, reason = failures[0]
                    raise BadInput(
                        f"nobody answered in round {number}, and {name} cannot finish the round without answers "
                        f"({mistake}): {self.federation.names[client]!r} {reason}; {self.runtime.remedy}"
                    ) from mistake
                raise
        if result.state is None:
            raise TypeError(f"the round of {name} returns nothing; it must return the state")
        result.passes = mean_passes(result.trained_samples, self.federation.samples)
        if is_enough([*self._passes, result.passes], self.experiment.run.passes):
            self.planned = number
        for hook in self.hooks:
            hook.round_played(result)
        result.seconds = time.perf_counter() - started
        return result

    def draw_cohort(self, number: int) -> NDArray[np.int64]:
        """Draw who takes part in a round: uniform, without replacement, ascending.

        Source: docs/methods/conventions.md, convention 8.
        """
        n, run = self.server.n, self.experiment.run
        rng = stream(run.seed, "participation", round=number)
        return np.sort(rng.permutation(n)[: cohort_size(n, run.participation)])

    def _limit_sums(self, exchange: Exchange, cohort: Cohort) -> Exchange:
        """Return an exchange that brings rows wherever somebody must see them, though the method does not."""
        if not exchange.reduce:
            return exchange
        average = cohort.server.aggregation

        def limit(name: str) -> float:
            limits = (hook.row_limit(exchange, name, cohort.round) for hook in self.hooks)
            return min(limits, default=inf) if average.takes_sums else 0.0

        reduce = {n: replace(r, row_limit=limit(n), of_run=average.grid) for n, r in exchange.reduce.items()}
        return replace(exchange, reduce=reduce)

    def _exchange(self, exchange: Exchange, result: RoundResult) -> Replies:
        """Have an exchange answered; whom a hook leaves out of the replies has failed."""
        for hook in self.hooks:
            hook.ask(exchange)
        replies = self.runtime.answer(exchange)
        assert isinstance(replies, Replies)
        answered = replies.missing.keys()
        for hook in self.hooks:
            replies = hook.reply(exchange, replies, result)
        for client in sorted(replies.missing.keys() - answered):
            self.runtime.failures.append((client, replies.missing[client]))
            self.runtime.quarantine.note_failure(client, replies.missing[client])
        result.add(exchange, replies)
        return replies

    @insist_on_signals()
    def evaluate_if_due(self, result: RoundResult) -> None:
        """Score every client after a round that has an evaluation; the last one always has."""
        started = time.perf_counter()
        if self.experiment.evaluation.is_due(result.number, self.planned):
            result.scores = self.evaluate(result.state, result.number == self.planned)
        result.seconds += time.perf_counter() - started

    def evaluate(self, state: Any, last: bool) -> Scores:
        """Score every client on its held-out data with what it is served in `state`; groups as the method has them.

        `last` is for methods that end in an adaptation: whether no round follows.
        """
        return evaluation.evaluate(self, state, last)

    @property
    def expected(self) -> int:
        """The rounds that the run should take in all, judged by the local passes so far where these decide."""
        made, wanted = fsum(self._passes), self.experiment.run.passes
        if wanted is None or self.done == self.planned:
            return self.planned
        if not made:
            return max(self.experiment.expected_rounds, self.done + 1)
        run = self.experiment.run
        later = fsum(self._passes[1:]) / max(1, self.done - 1)  # the first round may hold a warm-up
        each = later or self.experiment.training.epochs * run.participation or made / self.done
        return min(self.planned, self.done + max(1, ceil((wanted - made) / each - 0.5)))

    def record(self, result: RoundResult) -> dict[str, Any]:
        """Write the round's tables, where there is a folder, and make its state the run's.

        Returns:
            The round's row of the table of rounds.
        """
        groups = self._number_groups(result)
        row = round_row(self, result, groups)
        if self.folder is not None:
            self.folder.write_round(result.number, **round_tables(self, result, row, groups))
        self._is_whole = False
        self.state, self.groups = result.state, groups
        self.runtime.states.commit()
        for hook in self.hooks:
            hook.round_ended(result)
        self._passes.append(result.passes)
        self.done, self._is_whole = result.number, True
        return row

    def _number_groups(self, result: RoundResult) -> NDArray[np.int64]:
        """Return each client's group `[n]`, numbered by the smallest member as in all tables.

        Without an evaluation, a client whose group the method does not know keeps the one it had.
        """
        if result.scores is not None:
            return relabel(result.scores.groups)
        groups = relabel(self.method.assignment(result.state, self.server).groups)
        return groups if self.groups is None else np.where(groups == UNKNOWN, self.groups, groups)

    def save_checkpoint_if_due(self) -> None:
        """Write a checkpoint where one is due, and let readers of the folder see the finished rounds in time."""
        if self.folder is None:
            return
        if self.done == self.planned or self._schedule.is_due(self.done):
            with self._schedule.time_checkpoint():
                self.folder.flush()  # a checkpoint may be no further than the tables
                self._save_checkpoint()
        if self._saved == self.done or self._schedule.flush_is_due():
            self.folder.flush()
            self.folder.write_status(
                "running", self.done, self.expected, lasting=False
            )  # the checkpoint says it too
            self._schedule.flushed()

    def save_last_round(self) -> None:
        """Forget a round that was cut off, and put all whole ones on the disk.

        If a round was cut off while it was being recorded, the last checkpoint holds.
        """
        self.runtime.states.roll_back()
        if self.folder is not None:
            self.folder.flush()
            if self._is_whole and self._saved < self.done:
                self._save_checkpoint()

    def notify(self, result: RoundResult, row: dict[str, Any]) -> Round:
        """Tell the observers of a recorded round; return what they are told."""
        self._up_bytes, self._down_bytes = self._up_bytes + row["up_bytes"], self._down_bytes + row["down_bytes"]
        self._seconds += result.seconds
        assert self.groups is not None
        event = Round(
            result.number,
            self.expected,
            row,
            np.bincount(self.groups[self.groups >= 0]).tolist(),
            self._up_bytes,
            self._down_bytes,
            self._seconds,
            list(self.runtime.failures),
            self.groups,
            self.federation.names,
            self.metrics,
            None if result.scores is None else result.scores.values[self.metrics.of[0].name],
        )
        self.tell([f"round {result.number}: {note}" for note in self.runtime.notes])
        for observer in self.observers:
            observer.round(event)
        return event

    def stop_if_nobody_answers(self, result: RoundResult) -> None:
        """Count the rounds in a row in which nobody answered, though somebody was there.

        Raises:
            BadInput: there are `MAX_SILENT_ROUNDS` of them, or as many as the run has rounds.
        """
        failures = self._find_failures()
        self._silent_rounds = self._silent_rounds + 1 if failures and not result.took_part.any() else 0
        if self._has_given_up:
            (client, reason), last = failures[0], result.number
            first = last - self._silent_rounds + 1
            when = f"rounds {first} to {last}" if first < last else f"round {last}"
            self._write_warnings([])
            raise BadInput(
                f"nobody answered in {when}, and the model did not change: {self.federation.names[client]!r} "
                f"{reason}; {self.runtime.remedy}"
            )

    @property
    def _has_given_up(self) -> bool:
        return self._silent_rounds >= min(MAX_SILENT_ROUNDS, self.planned)

    def _find_failures(self) -> list[tuple[int, str]]:
        """Return which clients failed in the last round, and why; not those that were away."""
        return [(client, reason) for client, reason in self.runtime.failures if reason != VANISHED]

    # ---- the end

    @insist_on_signals()
    def finish(self) -> None:
        """Have the hooks write what is to be kept of the run; tell, and keep, what did not come about."""
        warnings = self.method.final_warnings(self.state, self.server, self.done)
        if self._silent_rounds and (failures := self._find_failures()):
            (client, reason), count = failures[0], self._silent_rounds
            last = f"the last {count} rounds" if count > 1 else "the last round"
            warnings.append(f"nobody answered in {last}: {self.federation.names[client]!r} {reason}")
        elif not self._up_bytes and self.done and self.experiment.method.name != LOCAL:
            warnings.append(
                f"{self.experiment.method.name} shared no parameters: each client has trained alone, as with "
                "local-only; share layers that are trained"
            )
        for hook in self.hooks:
            with self._phase(hook.describe_end()):
                warnings = [*warnings, *hook.run_ended()]
        self.tell([*self._write_warnings(warnings), *warnings])

    def _write_warnings(self, warnings: Sequence[str]) -> list[str]:
        """Keep warnings beside sentences on how training diverged, and return these."""
        divergence = self.find(Divergence)
        sentences = divergence.sentences()
        if self.folder is not None:
            self.folder.write_warnings(warnings, sentences, divergence.is_total)
        return sentences

    # ---- what is remembered, and what the run was made of

    def find(self, kind: type[H]) -> H:
        """Return the run's hook of a kind, which it must have."""
        return next(hook for hook in self.hooks if isinstance(hook, kind))

    @property
    def local_models(self) -> LocalModels:
        """What the clients trained last; for a run that evaluates them by it."""
        return self.find(LocalModels)

    def _save_checkpoint(self) -> None:
        self.checkpoints.save(self.done, self.to_checkpoint())
        self._saved = self.done

    def to_checkpoint(self) -> dict[str, Any]:
        """Return all that a run remembers between rounds, besides its tables."""
        memory = {"state": self.state, "groups": self.groups}
        for hook in self.hooks:
            memory |= hook.to_checkpoint()
        return {**memory, **self.runtime.states.to_checkpoint()}

    def restore(self, folder: RunFolder) -> list[str]:
        """Return to the last sound checkpoint in a folder, if there is one.

        Returns:
            A sentence on each checkpoint that had to be passed over.

        Raises:
            BadInput: there are checkpoints, and none can be used.
        """
        latest = open_checkpoints(folder).latest()
        if latest is None:
            return []
        self.done, memory, passed = latest
        self.state, self.groups = memory["state"], memory["groups"]
        for hook in self.hooks:
            hook.restore(memory)
        self.runtime.states.restore(memory["kept"], memory["has"])
        if (wanted := self.experiment.run.passes) is not None:
            self._passes = folder.rounds().head(self.done)["passes"].fill_null(0).to_list()
            self.planned = self.done if is_enough(self._passes, wanted) else self.planned
        return [f"{sentence}; the run goes on from the checkpoint after round {self.done}" for sentence in passed]

    def describe(self) -> list[str]:
        """Describe in a few lines who the clients are, what is trained, and how."""
        name = network_name(self.prepared, self.population.features)
        count, layers = len(self.newcomers), len(self.layout.layers)
        return [
            *describe(self.federation),
            *([f"{count} more clients join when training has ended"] if count else []),
            f"network {name}: {self.layout.size:,} parameters in {layers} layer{'s' * (layers != 1)}; "
            f"{self.engine} engine ({self.engine_reason})",
            *self.runtime.engine.notes,
            *([self.promise.describe()] if self.promise is not None else []),
        ]

    def environment(self) -> dict[str, Any]:
        """Return versions, seed, command and what the data are."""
        found = provenance.environment(self.experiment.run.seed, self.engine, self._fingerprint, self.describe())
        if self.metrics != metrics.CLASSIFICATION:
            found["metrics"] = self.metrics.to_json()
        if self.promise is not None:
            found["privacy"] = self.promise.to_json()
        if self.class_names:
            found["classes"] = list(self.class_names)
        return found | ({"network": self._weights} if self._weights else {})

    def find_differences(self, before: dict[str, Any]) -> list[str]:
        """Return what is not as it was when the run began, one sentence each.

        Raises:
            BadInput: the clients' data have changed, so that there is nothing to go on with.
        """
        data, network = self.experiment.data.name, self.experiment.network.name
        for key, now, what in (
            ("federation", self._fingerprint, f"data.name = {data!r} no longer gives the clients the data"),
            ("network", self._weights, f"network.name = {network!r} no longer comes with the weights"),
        ):
            if before.get(key, now) != now:
                raise BadInput(f"{what} with which the run began; restore them, or start a new run")
        return provenance.find_differences(before, self.environment())

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """What the classes of the clients' labels are called; empty where they have numbers alone."""
        declared = self.experiment.data.classes
        names = self.population.target_names if isinstance(self.population, Federation) else declared
        return names if isinstance(names, tuple) and self.population.histograms is not None else ()

    @cached_property
    def _weights(self) -> str:
        """A digest of what a network of somebody's own starts from, frozen parameters included; else empty."""
        engine = self.runtime.engine
        return digest_start(engine.network, engine.initial) if engine.notes else ""

    @cached_property
    def _fingerprint(self) -> str:
        return self.population.fingerprint


def _count_silent_rounds(folder: RunFolder, done: int) -> int:
    """Return in how many of the last finished rounds nobody answered, though somebody was there.

    A run that has given up and is resumed does not count anew: it would go on to its end untrained.
    """
    failures = folder.failures().filter(pl.col("reason") != VANISHED)
    silent = set(folder.rounds().filter(pl.col("participants") == 0)["round"]) & set(failures["round"])
    return next(count for count in range(done + 1) if done - count not in silent)
