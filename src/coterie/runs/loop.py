"""A run from setup to close: play the rounds, evaluate, record and save them; go on after an interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.clients.data.agree.description import describe
from coterie.clients.data.federation import Federation
from coterie.clients.engine.choice import choose_engine
from coterie.errors import BadInput
from coterie.grouping.labels import relabel
from coterie.grouping.private import Noise, follow_quantile
from coterie.methods import Cohort, Method
from coterie.methods.exchange import Ask, Exchange, Log, Replies
from coterie.methods.method import UNKNOWN
from coterie.methods.privacy import NoisyAggregation
from coterie.methods.split_halves import warn_of_mixed_groups
from coterie.models.factory import digest_start
from coterie.randomness import PrivateRandomness, make_secret, stream
from coterie.runs import newcomers, provenance
from coterie.runs.attack import MarkedTests
from coterie.runs.certainty import is_bounded, measure_intervals
from coterie.runs.checkpoints import CheckpointSchedule, open_checkpoints
from coterie.runs.divergence import Divergence
from coterie.runs.evaluation import LocalModels, measure_scores, plan_evaluation
from coterie.runs.events import LoggedNotes, Observer, Result, Round, Status, make_observers
from coterie.runs.folder import metrics
from coterie.runs.folder.group_traits import GroupTraits
from coterie.runs.folder.lock import lock_run
from coterie.runs.folder.picture import Picture
from coterie.runs.folder.run_folder import SECRET, RunFolder
from coterie.runs.given import take_given, write_given
from coterie.runs.group_traits import measure_inputs, measure_layers
from coterie.runs.picture import ModelSketches
from coterie.runs.promise import make_promise
from coterie.runs.record import (
    RoundResult,
    Scores,
    measure_by,
    people_table,
    round_row,
    round_tables,
)
from coterie.runs.schema.check import absolute_data, build_method, cohort_size, too_many_pairs
from coterie.runs.schema.experiment import Experiment, apply_changes, check
from coterie.runs.schema.sections import Data, make_name
from coterie.runs.screening import screen_updates, weigh_by_trust
from coterie.runs.setup import (
    World,
    build_simulation,
    find_trusted,
    make_server_view,
    network_name,
    quarantine_after,
)
from coterie.runtime.checkpoint import check_state
from coterie.runtime.garbage import freeze_objects
from coterie.runtime.ledger import FROZEN
from coterie.runtime.quarantine import Quarantine
from coterie.runtime.runtime import VANISHED, drive
from coterie.runtime.signals import defer_signals, insist_on_signals
from coterie.runtime.threads import one_thread

REGISTER = "register.json"
"""The file in a run's folder that says who its clients are, where these are real ones."""

MAX_SILENT_ROUNDS = 3
"""Rounds in a row in which nobody answers, after which a run stops."""


def run(experiment: Experiment, *, observers: Sequence[Observer] = (), world: World | None = None) -> Result:
    """Train, and keep everything in a fresh run folder.

    The clients are those of `world`, whose runtime is closed with the run; without one they are simulated.

    Ctrl-C ends a run early with its state saved: the result's status is then `interrupted`, and `resume` goes
    on to the very result that an uninterrupted run gives.

    Without observers, what there is to note goes to the log `coterie`, on standard error.

    Raises:
        BadInput: the experiment cannot run; nothing has been written then.
    """
    check(experiment)
    observers = [*(observers or (LoggedNotes(),)), *make_observers(experiment.run.observers)]
    with closing(Session(experiment, world, observers)) as session, freeze_objects():
        folder = RunFolder.create(experiment.run.folder, experiment.run.name or _make_name(session.experiment))
        with lock_run(folder):
            session.begin(folder)
            return _train_and_finish(session, folder)


def resume(
    folder: RunFolder | Path | str,
    *,
    observers: Sequence[Observer] = (),
    world: World | None = None,
    network: nn.Module | Callable[..., Any] | None = None,
    data: Any = None,
    allow: Iterable[str] = (),
) -> Result:
    """Go on with a run that was interrupted or killed, from its last sound checkpoint.

    A run that is finished stays as it is, and its result is given. `world` is as for `run`. `network` is needed
    where the run's was given in Python: a module with the same tensors, which gets the weights of the run's. So are
    `data`, which must be the same. `allow` are the modules and `package.module:object` that the run's
    experiment.toml may have imported.

    Raises:
        BadInput: the folder holds no run, it is still running, its experiment.toml or its data have changed, no
            checkpoint is sound, a table is damaged or missing, or its clients are real ones and there is no
            `world`.
    """
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    observers = observers or (LoggedNotes(),)
    experiment = Experiment.from_toml(folder.experiment_text() + "\n", allow)
    said = {"label": experiment.data.label, "client": experiment.data.client}
    if data is not None and (name := Data(name=data, **said).name) != experiment.data.name:
        raise BadInput(
            f"run {folder.name} has the data {experiment.data.name!r}, and these are {name!r}; give the same"
        )
    with lock_run(folder):
        progress = folder.progress()
        folder.check_tables()
        if folder.status == "finished" and progress and progress.rounds == experiment.run.rounds:
            _tell(observers, [f"run {folder.name} is finished; there is nothing left to do"])
            return _read_result(folder, experiment, "finished", observers)
        take_given(folder, experiment.network.name, network)
        check(experiment)
        if world is None and (folder.path / REGISTER).exists():
            words = f"resume='{folder.name}' runs='{folder.path.parent.resolve()}'"
            raise BadInput(
                f"run {folder.name} is one of real clients, who keep their own states; go on with it through its "
                f'app: flwr run APP local --run-config "{words}"'
            )
        observers = [*observers, *make_observers(experiment.run.observers)]
        with closing(Session(experiment, world, observers, folder.secret())) as session, freeze_objects():
            session.go_on(folder)
            return _train_and_finish(session, folder)


def rounds(experiment: Experiment, observers: Sequence[Observer] = ()) -> Iterator[Round]:
    """The loop itself: one `Round` after each round. Nothing is written, and clients held out are not evaluated.

    Raises:
        BadInput: the experiment cannot run.
    """
    check(experiment)
    observers = [*(observers or (LoggedNotes(),)), *make_observers(experiment.run.observers)]
    with closing(Session(experiment, None, observers)) as session:
        yield from train(session)


def train(session: Session) -> Generator[Round]:
    """Play the rounds that are left, one event after each. Whatever stops it, the last whole round is on disk.

    Raises:
        BadInput: nobody answers any more.
    """
    session.announce()
    try:
        for number in session.remaining_rounds():
            result = session.play_round(number)  # the method asks, the clients answer
            session.evaluate_if_due(result)
            with defer_signals():  # a round is recorded whole or not at all
                metrics_row = session.record(result)
                session.save_checkpoint_if_due()
            yield session.notify(result, metrics_row)
            session.stop_if_nobody_answers(result)
        session.warn_at_the_end()
    finally:
        session.save_last_round()


def _train_and_finish(session: Session, folder: RunFolder) -> Result:
    """Play the rounds that are left and close the books; Ctrl-C leaves a run that can be resumed."""
    status: Status = "interrupted"
    try:
        session.write_into(folder)
        # Closed first, so that the last round is on disk when the run says that it has ended.
        with closing(train(session)) as events:
            for _ in events:
                pass
        if (picture := session.picture()) is not None:
            folder.write_picture(picture)
        if (joined := session.receive_newcomers()) is not None:
            folder.write_newcomers(joined)
        if (intervals := session.measure_intervals()) is not None:
            folder.write_intervals(intervals)
        with defer_signals():
            folder.compact()
            folder.forget_secret()
            status = "finished"
    except KeyboardInterrupt:
        pass
    finally:  # also where a method or an observer raised
        folder.flush()  # a status promises these rounds
        folder.write_status(status, session.done, session.experiment.run.rounds)
    return _read_result(folder, session.experiment, status, session.observers)


class Session:
    """One run in this process: its clients, its method, its runtime, and the state after the last whole round.

    Without `write_into` no round is written.

    Args:
        experiment: what is trained, and how.
        world: the clients and the runtime that reaches them, which the session closes; None to simulate them.
        observers: are told how the run gets on.
        secret: of which a simulation's private randomness is made; a new one where it is empty.

    Attributes:
        population: all clients; those who are kept out of training, `newcomers` `[r]`, come last.
        federation: the `n` clients in training.
        server: what the method knows of the clients in training; `server_with_newcomers`, of all.
        done: the last whole round; 0 before the first.
        state: the method's, after that round.
        groups: of the clients in training `[n]`, as the tables number them; None before the first round.
    """

    # ---- setup

    @insist_on_signals()
    def __init__(
        self,
        experiment: Experiment,
        world: World | None = None,
        observers: Sequence[Observer] = (),
        secret: bytes = b"",
    ) -> None:
        places: dict[str, Any] = {"data.name": absolute_data(experiment.data.name)}
        if experiment.data.test_path is not None:
            places["data.test_path"] = absolute_data(experiment.data.test_path)
        if experiment.network.start is not None:
            places["network.start"] = str(Path(experiment.network.start).resolve())
        self.experiment = Experiment.from_tables(apply_changes(experiment.resolved().tables(), places))
        self.observers = observers
        self.method: Method[Any] = build_method(self.experiment.method)
        self._is_simulated = world is None
        privacy = experiment.privacy
        needs_secret = self._is_simulated and privacy.kind and privacy.noise_seed is None
        self._secret = secret or make_secret() if needs_secret else b""
        self._randomness = PrivateRandomness(self._secret, privacy.noise_seed)
        world = build_simulation(self.experiment, self.method, self._secret) if world is None else world
        self.population, self.newcomers, self.runtime = world.population, world.newcomers, world.runtime
        self.attackers = world.attackers
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
        if problems := too_many_pairs(experiment.method, self.server.n, experiment.run, experiment.scale):
            raise BadInput(problems)
        if self.method.needs.validation and self._count_unvalidated() == self.server.n:
            raise BadInput(
                f"data.validation = {experiment.data.validation:g} leaves every client without validation samples, "
                f"by which {experiment.method.name} decides with these settings; it must be larger, or clients "
                "must have more samples"
            )
        self.promise = make_promise(experiment, self.population.samples)
        self.has_batch_norm = engine.batch_norm
        if self.promise is not None and self.has_batch_norm:
            raise BadInput(
                f"network.name = {experiment.network.name!r} is not possible with privacy: noise would make the "
                "variances of its batch normalisation negative; it must be a network without, or with group or "
                "layer normalisation in its place"
            )
        self.clip_norm = experiment.privacy.clip_norm
        self.done = 0
        self.state: Any = self.method.start(self.server)
        check_state(self.state)
        self.groups: NDArray[np.int64] | None = None
        self.local: LocalModels | None = None
        if experiment.evaluation.evaluated == "local":
            self.local = LocalModels.none(self.server.n, self.layout.size)
        self._check_adaptation()
        self.metrics = measure_by(self.population)
        self.divergence = Divergence(self.federation.names, self.federation.classes, experiment.training.lr)
        self.sketches = ModelSketches(self.server.n)
        self.folder: RunFolder | None = None
        self._up_bytes, self._down_bytes, self._seconds = 0, 0, 0.0
        self._silent_rounds = 0
        self._is_whole = True

    def _check_adaptation(self) -> None:
        """Refuse layers that the network does not have, before any work.

        Raises:
            BadInput: there are such.
        """
        adapt = self.experiment.evaluation.adapt
        if adapt is not None and adapt.layers not in ("head", "private"):
            self.layout.select(adapt.layers, "evaluation.adapt.layers")

    @insist_on_signals()
    def begin(self, folder: RunFolder) -> None:
        """Write what is known before the first round into a fresh folder."""
        folder.write_experiment(self.experiment.to_toml())
        write_given(folder, self.experiment.network.name)
        if self._secret:
            folder.write_secret(self._secret)
        folder.write_environment(self.environment())
        folder.write_people(people_table(self.federation))
        folder.write_status("running", 0, self.experiment.run.rounds)

    @insist_on_signals()
    def go_on(self, folder: RunFolder) -> None:
        """Take up the run in a folder after its last sound checkpoint.

        Raises:
            BadInput: the data have changed, no checkpoint is sound, or a table is damaged or missing.
        """
        warnings = self.find_differences(folder.environment())
        warnings += self.restore(folder)
        if self._secret and not folder.secret():
            folder.write_secret(self._secret)
            if 0 < self.done < self.experiment.run.rounds:
                warnings.append(f"{SECRET} is gone: from here on, noise is other than it would have been")
        folder.check_tables(self.done)
        _tell(self.observers, warnings)
        if not folder.environment():  # killed before it was written
            folder.write_environment(self.environment())
        folder.write_people(people_table(self.federation))
        folder.write_status("running", self.done, self.experiment.run.rounds)
        folder.forget_after(self.done)

    @insist_on_signals()
    def write_into(self, folder: RunFolder) -> None:
        """Write all further rounds into a folder that holds the run's experiment, and checkpoints beside them."""
        table = folder.rounds()
        self._up_bytes, self._down_bytes = int(table["up_bytes"].sum()), int(table["down_bytes"].sum())
        self._seconds = float(table["seconds"].sum())
        self._silent_rounds = _count_silent_rounds(folder, self.done)
        if self.layout.frozen:
            self.runtime.equipped = set(folder.ledger().filter(pl.col("what") == FROZEN)["client"])
        self.divergence.restore(folder.clients(), folder.failures())
        self.folder, self.checkpoints = folder, open_checkpoints(folder)
        self._schedule, self._saved = CheckpointSchedule(self.experiment.run.checkpoint_every), self.done
        self.runtime.states.folder = folder.path
        folder.buffer_rounds()

    def close(self) -> None:
        """End the worker processes."""
        self.runtime.close()

    # ---- a round

    def announce(self) -> None:
        """Tell the observers what is about to be trained.

        Raises:
            BadInput: the run was resumed after its last round, and nobody had answered in the last few.
        """
        planned = self.experiment.run.rounds
        if self._silent_rounds >= MAX_SILENT_ROUNDS and self.done == planned:
            raise BadInput(
                f"nobody answered in the last {self._silent_rounds} rounds, and nothing was learnt; begin a new run"
            )
        experiment = self.experiment
        if self.folder is not None:  # a name that was taken is another now, and a folder may have been moved
            place = self.folder.path.resolve()  # not where the file says that it was: observers write there
            experiment = experiment.updated({"run.name": place.name, "run.folder": str(place.parent)})
        for observer in self.observers:
            observer.started(experiment, self.describe())
            _tell([observer], self.find_warnings())

    def find_warnings(self) -> list[str]:
        """Return what is to be known of the data, and of these clients with this method."""
        found = [*self.population.notes, *self._find_method_warnings()]
        if self._adds_noise and self.local is not None:
            found.append(
                "evaluation.evaluated = 'local' keeps each client's own model in the run's checkpoints, without "
                "noise: the promise does not cover them"
            )
        return found

    def _find_method_warnings(self) -> list[str]:
        found, few = self.method.warnings(self.server, self.experiment.run.rounds), self._count_unvalidated()
        if self.method.needs.validation and few:
            found.append(
                f"{few} of {self.server.n} clients have no validation samples and no say where "
                f"{self.experiment.method.name} decides by them"
            )
        return found

    def _count_unvalidated(self) -> int:
        """Count the clients in training that have no validation samples."""
        bounds = self.federation.bounds
        return int((bounds[:, 1] == bounds[:, 2]).sum())

    def remaining_rounds(self) -> range:
        """Return the numbers of the rounds that are left."""
        return range(self.done + 1, self.experiment.run.rounds + 1)

    @insist_on_signals()
    def play_round(self, number: int) -> RoundResult:
        """Play one round of the method; nothing of it counts before it is recorded."""
        started = time.perf_counter()
        self.runtime.begin_round(number)
        result = RoundResult(number, np.zeros(self.server.n, np.bool_))
        trained: list[tuple[Exchange, Replies]] = []
        explained = number == self.experiment.run.rounds and self.folder is not None and self.promise is None

        asked, earlier = np.zeros(self.server.n, np.bool_), list[Exchange]()

        def answer(ask: Ask) -> Replies | Tensor | None:
            self._refuse_second_release(ask, asked)
            reply = self.runtime.answer(ask)
            if isinstance(ask, Exchange) and isinstance(reply, Replies):
                reply = self._screen(ask, reply, number, earlier)
                earlier.append(ask)
                result.add_replies(ask, reply)
                if self.local is not None or explained:
                    trained.append((ask, reply))
            return reply

        server, noisy = self.server, self._make_noisy_aggregation(number)
        if noisy is not None:
            server = replace(server, aggregation=noisy)
        cohort = Cohort(number, self.draw_cohort(number), server)
        with one_thread(blas=True):
            result.state = drive(self.method.round(self.state, cohort), answer)
        self._note_privacy(result, noisy)
        if self.local is not None:
            result.local = self.local.updated(trained, self.server.initial(0))
        if explained:  # now, for the evaluation may write over what clients have sent
            groups = self.method.serving(result.state, self.server).groups
            result.layers = measure_layers(trained, groups, self.layout)
        result.seconds = time.perf_counter() - started
        return result

    def _screen(self, ask: Exchange, reply: Replies, number: int, earlier: Sequence[Exchange]) -> Replies:
        """Return the replies that count: with what hostile clients send, without what is out of proportion.

        `earlier` are the exchanges of the round before this one: in one a client may have been sent a model.
        """
        given = reply if self.attackers is None else self.attackers.strike(ask, reply, number, earlier)
        # Whether one client counts may not depend on how long the others' updates are; theirs are clipped anyway.
        bound = "off" if self._adds_noise else self.experiment.aggregation.norm_bound
        kept = screen_updates(ask, given, bound, earlier)
        if self.trusted is not None:
            kept = weigh_by_trust(ask, kept, self.trusted, earlier)
        for client in sorted(kept.missing.keys() - reply.missing.keys()):
            self.runtime.failures.append((client, kept.missing[client]))
            self.runtime.quarantine.note_failure(client, kept.missing[client])
        return replace(kept, samples=self.server.samples[kept.clients])

    @property
    def _adds_noise(self) -> bool:
        """Whether the server adds noise to sums."""
        return self.promise is not None and self.promise.kind == "server"

    def _make_noisy_aggregation(self, number: int) -> NoisyAggregation | None:
        """Return how models become centres in a round under noise by the server; None where it adds none."""
        if self.promise is None or not self._adds_noise:
            return None
        run, privacy = self.experiment.run, self.experiment.privacy
        noise = Noise(self.promise.multiplier, self.clip_norm, privacy.clip_quantile is not None)
        rng = self._randomness.stream("privacy", round=number)
        return NoisyAggregation(noise, run.participation * self.server.n, rng)

    def _refuse_second_release(self, ask: Ask, asked: NDArray[np.bool_]) -> None:
        """Let each client tell under its own noise once a round, as the promise counts; `asked` `[n]` says who did.

        Raises:
            RuntimeError: the method asks a client again.
        """
        if self.promise is None or self._adds_noise or not isinstance(ask, Exchange):
            return
        if ask.rule.uploads or ask.rule.client_state:
            if asked[ask.clients].any():
                raise RuntimeError(f"{self.experiment.method.name} asks a client twice in a private round")
            asked[ask.clients] = True

    def _note_privacy(self, result: RoundResult, noisy: NoisyAggregation | None) -> None:
        """Log what has been spent of the promise, and say where the clipping norm goes.

        Raises:
            RuntimeError: the method asked for more sums than the promise pays for.
        """
        if self.promise is None:
            return
        result.clip_norm, quantile = self.clip_norm, self.experiment.privacy.clip_quantile
        if noisy is not None:
            if noisy.sums > 1:
                raise RuntimeError(f"{self.experiment.method.name} asked for {noisy.sums} sums in a private round")
            if quantile is not None and noisy.sums:
                result.clip_norm = follow_quantile(self.clip_norm, noisy.short, quantile)
                self.runtime.logged.append(Log("clip norm", self.clip_norm))
        self.runtime.logged.append(Log("epsilon", self.promise.find_spent(result.number)))

    def draw_cohort(self, number: int) -> NDArray[np.int64]:
        """Draw who takes part in a round: uniform, without replacement, ascending.

        Source: docs/methods/conventions.md, convention 8. Where the server adds noise, each client is drawn by
        itself (Poisson sampling), as the promise supposes; so it may be nobody. It supposes too that nobody knows
        who was drawn, as whoever guesses the run's seed would.
        """
        n, run = self.server.n, self.experiment.run
        if self._adds_noise:
            drawn = self._randomness.stream("participation", round=number).random(n)
            return np.flatnonzero(drawn < run.participation)
        rng = stream(run.seed, "participation", round=number)
        return np.sort(rng.permutation(n)[: cohort_size(n, run.participation)])

    @insist_on_signals()
    def evaluate_if_due(self, result: RoundResult) -> None:
        """Score every client after a round that has an evaluation; the last one always has."""
        started = time.perf_counter()
        last = result.number == self.experiment.run.rounds
        if self.experiment.evaluation.is_due(result.number, self.experiment.run.rounds):
            result.scores = self.evaluate(result.state, last, result.local)
            self._log_backdoor(result.state)
        result.seconds += time.perf_counter() - started

    def _log_backdoor(self, state: Any) -> None:
        """Log how often the mark of hostile clients works on the others' test images, where that can be known."""
        if self.attackers is None or self.attackers.attack.kind != "backdoor":
            return
        assert isinstance(self.population, Federation)  # attacks are simulated
        tests = MarkedTests.of(self.population, self.attackers)
        success = tests.measure_success(self.method.serving(state, self.server), self.runtime.outputs)
        if success is not None:
            self.runtime.logged.append(Log("attack success", success))

    def evaluate(self, state: Any, last: bool, local: LocalModels | None = None) -> Scores:
        """Score every client on its held-out data with what it is served in `state`; groups as the method has them.

        Args:
            state: the method's.
            last: whether no round follows, for methods that end in an adaptation.
            local: the models that the clients trained, where those count (`evaluation.evaluated`).
        """
        exchanges = plan_evaluation(self.method, state, self.server, self.experiment.evaluation, last, local)
        groups = self.method.serving(state, self.server).groups
        return measure_scores(self.runtime, exchanges, self.server.everyone, groups, self.metrics)

    def record(self, result: RoundResult) -> dict[str, Any]:
        """Write the round's tables, where there is a folder, and make its state the run's.

        Returns:
            The round's row of the table of rounds.
        """
        groups = self._number_groups(result)
        row = round_row(result, groups, self.groups, self.federation, self.experiment, self.runtime, self.metrics)
        if self.folder is not None:
            self._explain_groups(result, groups)
            self.folder.write_round(
                result.number,
                **round_tables(result, row, groups, self.federation, self.experiment, self.runtime, self.metrics),
            )
        self._is_whole = False
        self.state, self.groups, self.local = result.state, groups, result.local
        if result.clip_norm is not None:
            self.clip_norm = result.clip_norm
        self.sketches.update(self.runtime.model_sketches)
        self.runtime.states.commit()
        changes = self.runtime.quarantine.commit()
        self.runtime.notes += [f"{self.federation.names[client]} {change}" for client, change in changes.items()]
        self.done, self._is_whole = result.number, True
        if result.scores is not None:
            self.divergence.note_losses(result.number, result.scores.loss, result.scores.tested)
            self.divergence.note_answers(result.number, result.took_part)
        self.divergence.note_failures(result.number, self.runtime.failures)
        return row

    def _explain_groups(self, result: RoundResult, groups: NDArray[np.int64]) -> None:
        """Keep what tells the groups of the last round apart, where there are some and nobody was promised privacy.

        Inputs are those of a simulation: real clients are asked for nothing.
        """
        if self.folder is None or self.promise is not None or result.number != self.experiment.run.rounds:
            return
        held = self.federation if isinstance(self.federation, Federation) else None
        inputs = None if held is None else measure_inputs(held, groups)
        if inputs is not None or result.layers is not None:
            self.folder.write_group_traits(GroupTraits(result.number, result.layers, inputs))

    def _number_groups(self, result: RoundResult) -> NDArray[np.int64]:
        """Return each client's group `[n]`, numbered by the smallest member as in all tables.

        Without an evaluation, a client whose group the method does not know keeps the one it had.
        """
        if result.scores is not None:
            return relabel(result.scores.groups)
        groups = relabel(self.method.serving(result.state, self.server).groups)
        return groups if self.groups is None else np.where(groups == UNKNOWN, self.groups, groups)

    def save_checkpoint_if_due(self) -> None:
        """Write a checkpoint where one is due, and let readers of the folder see the finished rounds in time."""
        if self.folder is None:
            return
        planned = self.experiment.run.rounds
        if self.done == planned or self._schedule.is_due(self.done):
            with self._schedule.time_checkpoint():
                self.folder.flush()  # a checkpoint may be no further than the tables
                self._save_checkpoint()
        if self._saved == self.done or self._schedule.flush_is_due():
            self.folder.flush()
            self.folder.write_status("running", self.done, planned, lasting=False)  # the checkpoint says it too
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
            self.experiment.run.rounds,
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
        _tell(self.observers, [f"round {result.number}: {note}" for note in self.runtime.notes])
        for observer in self.observers:
            observer.round(event)
        return event

    def stop_if_nobody_answers(self, result: RoundResult) -> None:
        """Count the rounds in a row in which nobody answered, though somebody was there.

        Raises:
            BadInput: there are `MAX_SILENT_ROUNDS` of them.
        """
        failures = [(client, reason) for client, reason in self.runtime.failures if reason != VANISHED]
        self._silent_rounds = self._silent_rounds + 1 if failures and not result.took_part.any() else 0
        if self._silent_rounds >= MAX_SILENT_ROUNDS:
            (client, reason), last = failures[0], result.number
            if self.folder is not None:
                self.folder.write_warnings([], self.divergence.sentences(), self.divergence.is_total)
            raise BadInput(
                f"nobody answered in rounds {last - self._silent_rounds + 1} to {last}, and nothing was learnt: "
                f"{self.federation.names[client]} {reason}; {self.runtime.remedy}"
            )

    # ---- the end

    def warn_at_the_end(self) -> None:
        """Tell the observers, and keep in the folder, how training diverged, and what did not come about."""
        diverged = self.divergence.sentences()
        warnings = [*self.method.final_warnings(self.state, self.server, self.done), *self._warn_of_mixed_groups()]
        if self.folder is not None:
            self.folder.write_warnings(warnings, diverged, self.divergence.is_total)
        _tell(self.observers, [*diverged, *warnings])

    @insist_on_signals()
    def _warn_of_mixed_groups(self) -> list[str]:
        """Say which groups hold clients that still differ, where a method was given the number of groups.

        Real clients are not asked to train once more for it, nor are those who were promised privacy.
        """
        if not self._is_simulated or self.promise is not None or self.groups is None:
            return []
        if not self.method.is_given_groups:
            return []
        serving = self.method.serving(self.state, self.server)
        self.runtime.begin_round(self.done)
        with one_thread(blas=True):
            asked = warn_of_mixed_groups(serving.models, serving.groups, self.groups, self.server, self.done)
            found: list[str] = drive(asked, self.runtime.answer)
        self.runtime.states.roll_back()
        return found

    @insist_on_signals()
    def picture(self) -> Picture | None:
        """Draw which clients are near each other, and their groups; None before anybody sent a model."""
        if self.groups is None:
            return None
        return self.sketches.draw(
            self.groups, self.done, lambda clients: self.method.affinity(self.state, self.server, clients)
        )

    @insist_on_signals()
    def receive_newcomers(self) -> pl.DataFrame | None:
        """Score the newcomers after the last round; None where there are none, or test data are left aside."""
        if not len(self.newcomers) or self.groups is None or self.experiment.evaluation.on != "test":
            return None
        rounds, runtime = self.experiment.run.rounds, self.runtime
        runtime.begin_round(rounds)  # clients without a group choose as in the last evaluation
        known = self.evaluate(self.state, last=True, local=self.local).groups
        runtime.begin_round(rounds + 1)
        dropout, runtime.dropout = runtime.dropout, 0.0  # nobody vanishes before having joined
        with one_thread(blas=True):
            table = newcomers.receive(
                self.method,
                self.state,
                runtime,
                self.server_with_newcomers,
                self.population,
                self.newcomers,
                known,
                self.groups,
                self.metrics,
                self.experiment.evaluation.adapt,
            )
        runtime.dropout = dropout
        runtime.states.roll_back()
        return table

    @insist_on_signals()
    def measure_intervals(self) -> pl.DataFrame | None:
        """Return how sure the last scores are, where that does not follow from the table of clients; else None.

        Real clients are not asked for it, nor are those who were promised privacy.
        """
        metric, evaluation = self.metrics.deciding.name, self.experiment.evaluation
        if not self._is_simulated or self.promise is not None or self.groups is None:
            return None
        assert isinstance(self.federation, Federation)
        if not is_bounded(metric, self.federation.task):
            return None
        rounds, runtime = self.experiment.run.rounds, self.runtime
        runtime.begin_round(rounds)  # clients draw what they drew in the last evaluation
        exchanges = plan_evaluation(self.method, self.state, self.server, evaluation, True, self.local)
        seed = self.experiment.run.seed
        table = measure_intervals(runtime, exchanges, self.federation, metric, evaluation.on, seed)
        runtime.states.roll_back()
        return table

    # ---- checkpoints, and what the run was made of

    def _save_checkpoint(self) -> None:
        self.checkpoints.save(self.done, self.to_checkpoint())
        self._saved = self.done

    def to_checkpoint(self) -> dict[str, Any]:
        """Return all that a run remembers between rounds, besides its tables."""
        memory = {"state": self.state, "groups": self.groups}
        if self.local is not None:
            memory |= {"local": self.local.models, "local_sent": self.local.sent, "local_kept": self.local.kept}
        if self._adds_noise:
            memory |= {"clip_norm": self.clip_norm}
        memory |= self.runtime.quarantine.to_checkpoint()
        return {**memory, **self.sketches.to_checkpoint(), **self.runtime.states.to_checkpoint()}

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
        if self.local is not None:
            self.local = LocalModels(memory["local"], memory["local_sent"], memory["local_kept"])
        self.clip_norm = memory.get("clip_norm", self.clip_norm)
        self.sketches.restore(memory["sketches"], memory["sketched"])
        self.runtime.quarantine.restore(memory.get("quarantine", {}))
        self.runtime.states.restore(memory["kept"], memory["has"])
        return [f"{sentence}; going on from the one after round {self.done}" for sentence in passed]

    def describe(self) -> list[str]:
        """Describe in a few lines who the clients are, what is trained, and how."""
        name = network_name(self.experiment, self.method, self.population.features)
        count = len(self.newcomers)
        return [
            *describe(self.federation).lines(),
            *([f"{count} more clients join when training has ended"] if count else []),
            f"network {name}: {self.layout.size:,} parameters in {len(self.layout.layers)} layers; "
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
        if self._class_names:
            found["classes"] = list(self._class_names)
        return found | ({"network": self._weights} if self._weights else {})

    def find_differences(self, before: dict[str, Any]) -> list[str]:
        """Return what is not as it was when the run began, one sentence each.

        Raises:
            BadInput: the clients' data have changed, so that there is nothing to go on with.
        """
        if before.get("federation", self._fingerprint) != self._fingerprint:
            raise BadInput(
                f"data.name = {self.experiment.data.name!r} no longer gives the clients the data they had when the "
                "run began; restore it, or start a new run"
            )
        if before.get("network", self._weights) != self._weights:
            raise BadInput(
                f"network.name = {self.experiment.network.name!r} no longer comes with the weights it had when the "
                "run began; restore them, or start a new run"
            )
        return provenance.find_differences(before, self.environment())

    @cached_property
    def _class_names(self) -> tuple[str, ...]:
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


def _read_result(
    folder: RunFolder, experiment: Experiment, status: Status, observers: Sequence[Observer]
) -> Result:
    table = folder.rounds()
    measured = folder.metrics
    summary = metrics.summary(table, measured, experiment.evaluation.last) if table.height else {}
    result = Result(folder.path, experiment, table, folder.clients(), folder.ledger(), summary, status, measured)
    for observer in observers:
        observer.finished(result)
    return result


def _tell(observers: Sequence[Observer], notes: Sequence[str]) -> None:
    for note in notes:
        for observer in observers:
            observer.note(note)


def _make_name(experiment: Experiment) -> str:
    """Make a run's name of what is run: fesem-digits-rotated-4-s0."""
    data = Path(experiment.data.name).stem if "/" in experiment.data.name else experiment.data.name
    words = f"{experiment.method.name}-{data}-{experiment.data.split}".replace("_", "-")
    return make_name(words, f"-s{experiment.run.seed}")
