"""Worker processes that start slowly, stop, or are interrupted: nobody waits for ever, nobody pays for it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import coterie
from coterie.clients.engine.engine import Engine
from coterie.clients.rules import Answer, Client, LocalUpdate, Order, Rule, Train, Work, rule
from coterie.errors import BadInput
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runtime.local import workers
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from coterie.runtime.runtime import Runtime
from tests.federated import TRAINING, planted
from tests.runtime.local.test_workers import Asleep, mixed, runtime_of, worker_processes

LIMIT = 3.0
"""Seconds that a client may take; the machine may be busy."""


@rule("test-words")
@dataclass(frozen=True)
class Words(Rule):
    """How long the words are that came with the order."""

    words: str = ""

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        return Answer(numbers={"length": float(len(self.words))})


def ask_words(runtime: Runtime, words: str) -> Replies:
    runtime.begin_round(1)
    replies = runtime.answer(Exchange(np.arange(6), Words(words)))
    assert isinstance(replies, Replies)
    return replies


class Slow(EngineSpec):
    """Takes longer to build an engine than clients are given to answer."""

    def build(self) -> Engine:
        time.sleep(2 * LIMIT)
        return super().build()


class Broken(EngineSpec):
    """Builds an engine in the process it was made in only."""

    def build(self) -> Engine:
        if multiprocessing.parent_process() is not None:
            raise OSError("no such network here")
        return super().build()


@pytest.mark.slow
@pytest.mark.parametrize("forks", [True, False])
def test_a_client_pays_for_its_own_time_only(forks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for that in which a worker, new or in the place of another, gets its engine."""
    monkeypatch.setattr(workers, "FORKS", forks)
    runtime = runtime_of(timeout=LIMIT, kind=Slow)
    try:
        send = {"model": Send.same(torch.ones(runtime.layout.size), np.arange(6))}
        for _ in range(2):
            assert dict(mixed(runtime, send).missing) == {}
            for worker in worker_processes():
                worker.kill()
        runtime.begin_round(2)
        replies = runtime.answer(Exchange(np.arange(6), Asleep(100 * LIMIT, only=1)))
        assert isinstance(replies, Replies)
        assert dict(replies.missing) == {1: f"took longer than {LIMIT:g} s"}
    finally:
        runtime.close()


@pytest.mark.skipif(not workers.FORKS, reason="there is no fork")
def test_a_forked_worker_has_an_engine_of_its_own() -> None:
    """It builds none, but has the parent's, in pages that are copied when either writes to them."""
    runtime = runtime_of(kind=Broken)
    try:
        state = runtime.engine.network.state_dict()
        assert not any(values.is_shared() for values in state.values())
        before = {name: values.clone() for name, values in state.items()}
        clients = np.arange(6)
        runtime.begin_round(1)
        start = torch.linspace(-0.1, 0.1, runtime.layout.size)
        trained = runtime.answer(Exchange(clients, LocalUpdate(), {"model": Send.same(start, clients)}))
        assert isinstance(trained, Replies)
        assert not torch.equal(trained.models[0], start)
        assert all(torch.equal(state[name], values) for name, values in before.items())
    finally:
        runtime.close()


@pytest.mark.slow
def test_workers_that_cannot_start_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FORKS", False)
    runtime = runtime_of(kind=Broken)
    try:
        with pytest.raises(BadInput) as raised:
            mixed(runtime, {"model": Send.same(torch.ones(runtime.layout.size), np.arange(6))})
        (said,) = raised.value.problems
        assert said == (
            "run.workers = 2 is not possible: a worker ended 3 times before it was ready (OSError: no such network "
            "here); free memory, or set run.workers = 1 and no run.client_timeout"
        )
    finally:
        runtime.close()


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["as it was", "grows"])
def test_a_worker_that_is_stopped_is_replaced(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE_SECONDS", LIMIT)
    runtime = runtime_of(timeout=LIMIT)
    try:
        clients = np.arange(6)
        small = {"models": Send.all(torch.ones(2, runtime.layout.size), clients)}
        large = {"models": Send.all(torch.ones(40, runtime.layout.size), clients)}
        expected = mixed(runtime, small).models
        victim = worker_processes()[0]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGSTOP)
        replies = mixed(runtime, large if memory == "grows" else small)
        assert victim.pid not in {worker.pid for worker in worker_processes()}
        assert dict(replies.missing) == {}  # it is no client's fault
        assert replies.numbers["rows"].tolist() == [40.0 if memory == "grows" else 2.0] * 6
        again = mixed(runtime, small)
        assert torch.equal(again.models, expected)
    finally:
        runtime.close()


@pytest.mark.slow
def test_a_worker_that_is_stopped_before_it_reads_a_long_message_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipe takes some 200 kB; nobody reads what is beyond."""
    monkeypatch.setattr(workers, "PATIENCE_SECONDS", LIMIT)
    runtime = runtime_of()
    try:
        assert dict(ask_words(runtime, "few").missing) == {}
        victim = worker_processes()[0]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGSTOP)
        replies = ask_words(runtime, "many " * 200_000)
        assert dict(replies.missing) == {}
        assert replies.numbers["length"].tolist() == [1_000_000.0] * 6
    finally:
        runtime.close()


def train_of(runtime: LocalRuntime) -> Exchange:
    """A local update of everybody."""
    clients = np.arange(6)
    start = torch.linspace(-0.1, 0.1, runtime.layout.size)
    return Exchange(clients, LocalUpdate(), {"model": Send.same(start, clients)})


class Interruption(BaseException):
    """Something that nobody in between may take for a client's fault."""


@pytest.mark.medium
def test_no_worker_answers_what_was_asked_before_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = runtime_of()
    try:
        expected = ask_words(runtime, "a whole new question").numbers["length"].tolist()

        def interrupted(pipes: object, patience: float) -> object:
            raise Interruption

        with monkeypatch.context() as patch:
            patch.setattr(workers, "wait", interrupted)
            with pytest.raises(Interruption):
                ask_words(runtime, "old")
        assert ask_words(runtime, "a whole new question").numbers["length"].tolist() == expected == [20.0] * 6
        assert runtime.failures == []
    finally:
        runtime.close()


@pytest.mark.medium
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="nobody says that a process is stopped")
def test_a_busy_worker_that_is_stopped_is_replaced_though_clients_have_no_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "MAX_STOPPED_SECONDS", 0.5)
    runtime, alone = runtime_of(), runtime_of(workers=1)
    try:
        exchange = train_of(runtime)
        runtime.begin_round(1)
        runtime.answer(exchange)
        victim = worker_processes()[0]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGSTOP)
        runtime.begin_round(2)
        alone.begin_round(2)
        replies, expected = runtime.answer(exchange), alone.answer(exchange)
        assert isinstance(replies, Replies)
        assert isinstance(expected, Replies)
        assert dict(replies.missing) == {}
        assert torch.equal(replies.models, expected.models)
        assert runtime.notes == [
            "a worker process was stopped; another takes its place, and its clients are asked again"
        ]
        runtime.begin_round(3)
        assert runtime.notes == []
    finally:
        runtime.close()


@rule("test-killed-once")
@dataclass(frozen=True)
class KilledOnce(Rule):
    """Train; the first of all who comes to it after one of the others ends its process."""

    folder: str = ""
    uploads, client_state = ("model",), ("model",)

    def run(self, client: Client, order: Order) -> Work:
        trained = (yield Train(order.items["model"].values)).model
        if client.id == 5 and self.folder:
            with suppress(FileExistsError):
                (Path(self.folder) / "done").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return Answer({"model": trained}, client_state={"model": trained})


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_kill_in_the_middle_of_a_chunk_gives_the_same_bits_and_a_note(engine: str, tmp_path: Path) -> None:
    federation = planted(clients=40, sizes=[20 + 3 * i for i in range(40)])
    spec = EngineSpec("planted-perceptron", {}, federation.features, federation, TRAINING, 0, engine)
    clients, found = np.arange(40), []
    for count, folder in ((1, ""), (2, str(tmp_path)), (3, "")):
        runtime = LocalRuntime(spec, federation.samples, workers=count)
        try:
            runtime.begin_round(1)
            send = {"model": Send.same(torch.linspace(-0.1, 0.1, runtime.layout.size), clients)}
            replies = runtime.answer(Exchange(clients, KilledOnce(folder), send))
            assert isinstance(replies, Replies)
            assert dict(replies.missing) == {}
            assert len(runtime.notes) == bool(folder)
            kept = torch.stack([runtime.states.of(c)["model"] for c in range(40)])
            found.append((replies.models.clone(), replies.sketches, kept))
        finally:
            runtime.close()
    assert (tmp_path / "done").exists()
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert isinstance(one, torch.Tensor)
            assert isinstance(same, torch.Tensor)
            assert torch.equal(one, same)


@pytest.mark.slow
def test_a_run_says_that_a_worker_was_replaced(tmp_path: Path) -> None:
    class Killer:
        notes: ClassVar[list[str]] = []

        def started(self, experiment: coterie.Experiment, description_lines: Sequence[str]) -> None:
            pass

        def finished(self, result: coterie.Result) -> None:
            pass

        def note(self, text: str) -> None:
            self.notes.append(text)

        def round(self, round: coterie.Round) -> None:
            if round.number == 1:  # while they are idle, as when memory is short
                for child in multiprocessing.active_children():
                    if child.name == "coterie worker":
                        child.kill()
                        child.join()

    settings: dict[str, Any] = {"method": "fedavg", "data": {"clients": 5}}
    killer = Killer()
    run = {"rounds": 3, "folder": str(tmp_path), "workers": 2}
    result = coterie.run(coterie.Experiment(**settings, run=run), observers=[killer])
    alone = coterie.run(coterie.Experiment(**settings, run=run | {"workers": 1}))
    assert result.rounds.drop("seconds").equals(alone.rounds.drop("seconds"))
    said = "round 2: a worker process died; another takes its place, and its clients are asked again"
    assert killer.notes.count(said) == 2


class Elsewhere(str):
    """A text that only the process which wrote it can read."""

    def __reduce__(self) -> tuple[Callable[[int], Elsewhere], tuple[int]]:
        return _read_by, (os.getpid(),)


def _read_by(process: int) -> Elsewhere:
    if os.getpid() != process:
        raise ModuleNotFoundError("no such rule here")
    return Elsewhere()


def test_a_question_that_workers_cannot_read_is_said_for_every_client() -> None:
    runtime = runtime_of()
    try:
        replies = ask_words(runtime, Elsewhere("a word"))
        assert dict(replies.missing) == dict.fromkeys(range(6), "ModuleNotFoundError: no such rule here")
        assert ask_words(runtime, "few").numbers["length"].tolist() == [3.0] * 6
        assert runtime.notes == []
    finally:
        runtime.close()
