"""What a run will take, told before it begins: engine, memory, time and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from coterie.advice.explain import footprint
from coterie.advice.explain.sampled import OutOfMemory, Peak, SampledRuntime, Shares
from coterie.clients.data.federation import Federation
from coterie.errors import count_of
from coterie.models.layout import BYTES_PER_SCALAR, Layout
from coterie.room import available_bytes
from coterie.runs.hooks.picture import MAX_SKETCHED, ModelSketches
from coterie.runs.hooks.unseen_clients import UnseenClients
from coterie.runs.promise import make_promise
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.schema.refusals import cohort_size
from coterie.runs.session import Session
from coterie.runtime.local.runtime import LocalRuntime
from coterie.runtime.threads import cores

T = TypeVar("T")

MOST_EPOCHS = 10
"""Epochs that clients try at most; of more, time and samples are scaled."""
MOST_BYTES = 400_000_000
"""Bytes of models in one exchange that are tried at most; of more, a smaller cohort is asked, and costs scaled."""


@dataclass(frozen=True)
class MemoryPart:
    """One part of a run's memory."""

    name: str
    bytes: int
    where: str = ""
    """What decides its size, in a few words."""


@dataclass(frozen=True)
class Cost:
    """What a round takes.

    Seconds are predicted from a few clients on this machine; bytes and participants are counted from the messages.
    """

    clients_seconds: float
    """All clients of the round, on all worker processes."""
    server_seconds: float
    """What the method computes between its exchanges, and the run's own measurements."""
    evaluation_seconds: float
    """All clients measuring what they are served, in a round that has an evaluation."""
    participants: int
    up_bytes: int
    down_bytes: int
    simulated_seconds: float
    """Of the slowest client, at `run.link_mbit`."""
    read_bytes: int
    """Stored samples that training goes through, each time that it does."""

    @property
    def seconds(self) -> float:
        """A round with its evaluation."""
        return self.clients_seconds + self.server_seconds + self.evaluation_seconds


@dataclass(frozen=True)
class Stored:
    """Where the inputs lie: in memory, or in a file of which the system keeps in memory what it has room for."""

    memory_bytes: int
    disk_bytes: int
    where: str
    """In a few words."""


@dataclass(frozen=True)
class Explanation:
    """What is known of a run before it begins."""

    experiment: Experiment
    description: tuple[str, ...]
    """Who the clients are and what is trained, in a few lines."""
    engine: str
    reason: str
    """Why this engine."""
    chunk: int
    """How many clients one kernel takes at most."""
    workers: int
    data: Stored
    memory: tuple[MemoryPart, ...]
    """At the peak, with every client having taken part."""
    available_bytes: int | None
    """What this machine had free before anything was loaded; None where it does not say."""
    start_seconds: float
    """Until the first round begins, the import of the package left out."""
    first: Cost | None
    """The first round; None where its messages have no room here."""
    later: Cost | None
    """The second round, which stands for all later ones; None where there is none."""
    end_seconds: float
    """After the last round: the picture of the groups, clients who join."""
    notes: tuple[str, ...]
    """What the method says of these settings, what will be approximate, and who failed."""

    @property
    def bytes(self) -> int:
        """Memory in all."""
        return sum(part.bytes for part in self.memory)

    @property
    def fits(self) -> bool | None:
        """Whether this machine has room; None where it does not say."""
        return None if self.available_bytes is None else self.bytes <= self.available_bytes

    @property
    def evaluations(self) -> int:
        """Rounds with an evaluation."""
        rounds = self.experiment.expected_rounds
        return sum(self.experiment.evaluation.is_due(number, rounds) for number in range(1, rounds + 1))

    @property
    def seconds(self) -> float | None:
        """Seconds of the whole run; None where no round could be gone through."""
        if self.first is None:
            return None
        each = self.later or self.first
        work = self._whole(lambda cost: cost.clients_seconds + cost.server_seconds)
        first = self.experiment.evaluation.is_due(1, self.experiment.expected_rounds)
        evaluated = self.first.evaluation_seconds * first + each.evaluation_seconds * (self.evaluations - first)
        return self.start_seconds + work + evaluated + self.end_seconds

    @property
    def up_bytes(self) -> int | None:
        """Bytes that clients send in the whole run, if all later rounds are as the second."""
        return None if self.first is None else int(self._whole(lambda cost: cost.up_bytes))

    @property
    def down_bytes(self) -> int | None:
        """Bytes that clients are sent in the whole run, likewise."""
        return None if self.first is None else int(self._whole(lambda cost: cost.down_bytes))

    @property
    def simulated_seconds(self) -> float | None:
        """Simulated seconds of the whole run, likewise."""
        return None if self.first is None else self._whole(lambda cost: cost.simulated_seconds)

    def _whole(self, of: Callable[[Cost], float]) -> float:
        assert self.first is not None
        rest = 0.0 if self.later is None else of(self.later) * (self.experiment.expected_rounds - 1)
        return of(self.first) + rest

    def tables(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        plain = asdict(self)
        del plain["experiment"]
        for name, cost in (("first", self.first), ("later", self.later)):
            if cost is not None:
                plain[name]["seconds"] = cost.seconds
        names = ("bytes", "fits", "evaluations", "seconds", "up_bytes", "down_bytes", "simulated_seconds")
        return {
            "experiment": self.experiment.tables(),
            **plain,
            "whole": {name: getattr(self, name) for name in names},
        }


def explain(experiment: Experiment) -> Explanation:
    """Predict what a run will take, from the real work of a few clients in its first two rounds.

    The data are loaded and the workers started as for a run. A few clients of different sizes work, and the
    others' answers are copies of theirs, so that messages and the server's matrices have their true number and
    size. Of more than `MOST_EPOCHS`, or of a cohort whose models take more than `MOST_BYTES`, a part is tried
    and its costs are scaled. Nothing is written. A method whose course depends on what clients learn, as in
    trial rounds, may take another one in the run.

    Raises:
        BadInput: the experiment cannot run.
    """
    prepared = prepare(experiment)
    elsewhere = experiment.run.runtime != "local"
    asked = prepared.experiment
    epochs = min(asked.training.epochs, MOST_EPOCHS)
    here = asked.updated({"run.runtime": "local", "run.ray_address": None, "training.epochs": epochs})
    free, before = available_bytes(), footprint.resident_bytes()
    begun = time.perf_counter()
    with closing(Session(replace(prepared, experiment=here))) as session:
        start = time.perf_counter() - begun
        run = session.experiment.run
        workers = cores() if run.workers is None else run.workers
        assert isinstance(session.runtime, LocalRuntime)
        sample = session.runtime = SampledRuntime(session.runtime, workers, free)
        promise = make_promise(asked, session.population.samples)  # of all epochs, not of those that are tried
        notes = session.find_warnings()
        if elsewhere:
            notes.append("this holds for this machine only, with run.runtime = 'local'")
        first = later = None
        end = 0.0
        shares = Shares(epochs / asked.training.epochs if epochs else 1.0, *_shrink_cohort(session))
        try:
            first = _round(session, sample, 1, shares)
            later = _round(session, sample, 2, shares) if run.rounds > 1 else None
            end = sum(_phase(sample, session.find(ModelSketches).draw)[1:])
            if UnseenClients.is_on(session):
                end += sum(_phase(sample, session.find(UnseenClients).receive)[1:])
        except OutOfMemory:
            first = later = None
            notes.append(
                "the messages of one exchange do not fit in this machine's memory, so the trial was stopped"
            )
        notes += [f"a client that was tried gave no answer: {reason}" for reason in sample.lost]
        if sample.lost and first is not None:
            # The others' answers are copies: with none, all that follows from it is too little.
            first = later = None
            notes.append("so time and traffic of the run are not predicted")
        session.promise = promise
        return Explanation(
            session.experiment.updated(
                {"run.participation": run.participation, "training.epochs": asked.training.epochs}
            ),
            (*session.describe(), _describe_head(session.layout)),
            session.engine,
            session.engine_reason,
            sample.together,
            workers,
            _stored(session, workers),
            tuple(_memory(session, sample, before)),
            free,
            start,
            first,
            later,
            end,
            tuple(notes),
        )


def _describe_head(layout: Layout) -> str:
    """Say what counts as the head where a method tells head and body apart."""
    size, of = layout.last_layers(1).size, layout.size
    why = "network.head says so" if layout.head else "the last layer that the network registers"
    return f"head: layer {layout.layers[-1]}, {size:,} of {of:,} parameters ({why}); body: all other layers"


def _shrink_cohort(session: Session) -> tuple[int, int]:
    """Let a round ask no more clients than have room for their models; return how many of how many it asks."""
    run, each = session.experiment.run, session.layout.size * BYTES_PER_SCALAR
    cohort, room = cohort_size(session.server.n, run.participation), max(2, MOST_BYTES // max(1, each))
    if cohort <= room:
        return cohort, cohort
    session.experiment = session.experiment.updated({"run.participation": room / session.server.n})
    return cohort_size(session.server.n, session.experiment.run.participation), cohort


def _round(session: Session, sample: SampledRuntime, number: int, shares: Shares) -> Cost:
    """Play a share of a round and its evaluation, and return what the whole costs."""
    last = number == session.experiment.expected_rounds
    sample.shares = shares
    result, training, serving = _phase(sample, lambda: session.play_round(number))
    sample.shares = Shares(shares.epochs)
    result.scores, evaluating, counting = _phase(sample, lambda: session.evaluate(result.state, last))
    sample.shares = Shares()
    row, _, recording = _phase(sample, lambda: session.record(result))
    times = shares.times(sample.asked)
    read = sum(result.trained_samples.values()) * times
    return Cost(
        training,
        serving * times + recording,
        evaluating + counting,
        round(row["participants"] * times),
        row["up_bytes"] + round(sample.untried_bytes["up"]),
        row["down_bytes"] + round(sample.untried_bytes["down"]),
        row["simulated_seconds"],
        int(read) * _clients(session).inputs[:1].nbytes,
    )


def _phase(sample: SampledRuntime, do: Callable[[], T]) -> tuple[T, float, float]:
    """Return what `do` returns, the seconds that all clients would take in it, and those of everything else."""
    sample.predicted = sample.spent = 0.0
    begun = time.perf_counter()
    found = do()
    return found, sample.predicted, max(0.0, time.perf_counter() - begun - sample.spent)


def _clients(session: Session) -> Federation:
    assert isinstance(session.population, Federation)  # all is simulated
    return session.population


def _stored(session: Session, workers: int) -> Stored:
    """Return where the inputs lie."""
    inputs, file = _clients(session).inputs, _clients(session).file
    users = f"{workers} worker processes" if workers > 1 else "one process"
    if file is not None:
        return Stored(0, inputs.nbytes, f"in a file in {file.folder}, mapped by {users}")
    return Stored(inputs.nbytes, 0, f"in memory, shared by {users}" if workers > 1 else "in memory")


def _describe_form(peak: Peak, reason: str) -> str:
    """Say whether models come added up, and why not; `reason` is the method's."""
    if peak.form == "sums":
        return ", added up by the workers" + f", but a row each when {reason}" * bool(reason)
    own = {"": "", "run": "this run looks at single models", "few": "sums would not take less"}[peak.form]
    reasons = ", and ".join(one for one in (own, reason) if one)
    return ", a row each" * bool(peak.answers) + f": {reasons}" * bool(reasons)


def _memory(session: Session, sample: SampledRuntime, before: int) -> list[MemoryPart]:
    """Return the parts of a run's memory at its peak."""
    whole, n = _clients(session), session.server.n
    public = 0 if whole.public is None else whole.public.nbytes
    data = (whole.inputs.nbytes if whole.file is None else 0) + whole.labels.nbytes + public
    mapped = "" if whole.file is None else ", without the inputs, which are mapped"
    peak, seen, width = sample.peak, min(n, MAX_SKETCHED), sample.sketcher.width
    form = _describe_form(peak, session.method.needs.models)
    how = f"in the largest exchange, of {count_of(peak.clients, 'client')}{form}"
    parts = [
        MemoryPart("Python and libraries", before),
        MemoryPart("data", data, f"{len(whole.labels):,} samples of {whole.inputs[:1].numel():,} numbers{mapped}"),
        MemoryPart("models sent", peak.sent, "in the largest exchange, each once"),
        MemoryPart("answers", peak.answers, how),
    ]
    if scalars := sample.largest_state:
        # What is replaced stays until the round is whole.
        rows, limit = n + min(n, peak.clients), session.experiment.scale.states_mb
        kept = rows * scalars * BYTES_PER_SCALAR
        spill = f"; beyond {limit:,} MB in a mapped file (scale.states_mb)" if kept > limit * 1e6 else ""
        parts.append(MemoryPart("client states", kept, f"{rows:,} x {scalars:,} numbers{spill}"))
    parts += [
        MemoryPart("server state", 2 * footprint.tensor_bytes(session.state), "before and after a round"),
        MemoryPart("sketches of models", seen * width * BYTES_PER_SCALAR, f"{seen:,} x {width:,} numbers"),
    ]
    if sizes := footprint.worker_bytes():
        each = f"{len(sizes)} of {sum(sizes) / len(sizes) / 1e6:,.0f} MB each, as measured"
        parts.append(MemoryPart("worker processes", sum(sizes), each))
    return parts
