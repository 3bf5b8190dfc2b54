"""Worker processes that do not start, die or are interrupted: nobody waits for ever, nobody pays for it."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import coterie
from coterie.clients.engine.engine import Engine
from coterie.clients.rules import Answer, Client, LocalUpdate, Order, Rule, Work, rule
from coterie.errors import BadInput
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runtime.local import pool
from coterie.runtime.local.runtime import EngineSpec
from coterie.runtime.runtime import Runtime
from tests.runtime.kinds import ask
from tests.runtime.local.test_pool import kill_workers, mixed, runtime_of


@rule("test-words")
@dataclass(frozen=True)
class Words(Rule):
    """How long the words are that came with the order."""

    words: str = ""

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        return Answer(numbers={"length": float(len(self.words))})


def ask_words(runtime: Runtime, words: str) -> Replies:
    return ask(runtime, Exchange(np.arange(6), Words(words)))


class Broken(EngineSpec):
    """Builds an engine in the process it was made in only."""

    def build(self) -> Engine:
        if multiprocessing.parent_process() is not None:
            raise OSError("no such network here")
        return super().build()


@pytest.mark.skipif(not pool.FORKS, reason="there is no fork")
def test_a_forked_worker_has_an_engine_of_its_own() -> None:
    """It builds none, but has the parent's, in pages that are copied when either writes to them."""
    with closing(runtime_of(kind=Broken)) as runtime:
        state = runtime.engine.network.state_dict()
        assert not any(values.is_shared() for values in state.values())
        before = {name: values.clone() for name, values in state.items()}
        clients = np.arange(6)
        start = torch.linspace(-0.1, 0.1, runtime.layout.size)
        trained = ask(runtime, Exchange(clients, LocalUpdate(), {"model": Send.same(start, clients)}))
        assert not torch.equal(trained.models[0], start)
        assert all(torch.equal(state[name], values) for name, values in before.items())


def _say_an_error(pipe: Connection) -> None:
    pipe.send("OSError: no such network here")


@pytest.mark.slow
def test_workers_that_cannot_start_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    context, begun = multiprocessing.get_context("fork"), []

    def start(forks: bool, equip: object) -> Any:
        ours, theirs = context.Pipe()
        process = context.Process(target=_say_an_error, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        begun.append(process)
        return process, ours

    runtime = runtime_of()
    kill_workers()
    monkeypatch.setattr(pool, "start", start)
    try:
        with pytest.raises(BadInput) as raised:
            mixed(runtime, {"model": Send.same(torch.ones(runtime.layout.size), np.arange(6))})
        (said,) = raised.value.problems
        assert re.match(r"run\.workers = 2 .*3 times .*OSError: no such network.*run\.workers = 1", said)
        assert not any(process.is_alive() for process in begun)
        monkeypatch.undo()  # and with room again, the run goes on
        assert len(mixed(runtime, {"model": Send.same(torch.ones(runtime.layout.size), np.arange(6))})) == 6
    finally:
        runtime.close()


class Interruption(BaseException):
    """Something that nobody in between may take for a client's fault."""


@pytest.mark.medium
def test_no_worker_answers_what_was_asked_before_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(runtime_of()) as runtime:
        expected = ask_words(runtime, "a whole new question").numbers["length"].tolist()

        def interrupted(pipes: object, patience: float) -> object:
            raise Interruption

        with monkeypatch.context() as patch:
            patch.setattr(pool, "wait", interrupted)
            with pytest.raises(Interruption):
                ask_words(runtime, "old")
        assert ask_words(runtime, "a whole new question").numbers["length"].tolist() == expected == [20.0] * 6
        assert runtime.failures == []


@pytest.mark.slow
def test_a_run_says_that_a_worker_was_replaced(tmp_path: Path) -> None:
    class Killer(coterie.Observer):
        notes: ClassVar[list[str]] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

        def round(self, round: coterie.Round) -> None:
            if round.number == 1:  # while they are idle, as when memory is short
                kill_workers()

    settings: dict[str, Any] = {"method": "fedavg", "data": {"clients": 3}}
    killer = Killer()
    run = {"rounds": 2, "folder": str(tmp_path), "workers": 2}
    result = coterie.run(coterie.Experiment(**settings, run=run), observers=[killer])
    alone = coterie.run(coterie.Experiment(**settings, run=run | {"workers": 1}))
    assert result.rounds.drop("seconds").equals(alone.rounds.drop("seconds"))
    assert any(re.match("round 2: .*died", note) for note in killer.notes)


class Elsewhere(str):
    """A text that only the process which wrote it can read."""

    def __reduce__(self) -> tuple[Callable[[int], Elsewhere], tuple[int]]:
        return _read_by, (os.getpid(),)


def _read_by(process: int) -> Elsewhere:
    if os.getpid() != process:
        raise ModuleNotFoundError("no such rule here")
    return Elsewhere()


def test_a_question_that_workers_cannot_read_is_said_for_every_client() -> None:
    with closing(runtime_of()) as runtime:
        replies = ask_words(runtime, Elsewhere("a word"))
        assert dict(replies.missing) == dict.fromkeys(range(6), "ModuleNotFoundError: no such rule here")
        assert ask_words(runtime, "few").numbers["length"].tolist() == [3.0] * 6
        assert runtime.notes == []
