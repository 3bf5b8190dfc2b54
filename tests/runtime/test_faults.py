"""Clients that fail: whoever answers well gets the bits of a run without the fault, and nobody else is touched."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.clients.rules import Answer, Client, Order, Rule, Train, Work, rule
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from coterie.runtime.runtime import VANISHED, Runtime
from tests.federated import TRAINING, planted
from tests.loopback import LoopbackRuntime

CLIENTS = 9
BAD = 3
NAN = float("nan")


@rule("test-keeping")
@dataclass(frozen=True)
class Keeping(Rule):
    """Train the received model, send it, keep it; where `fault` says so, client `BAD` does something else.

    A fault ends after the first time in the folder `once`, where one is given.
    """

    fault: str = ""
    once: str = ""
    uploads, client_state = ("model",), ("model",)

    def run(self, client: Client, order: Order) -> Work:
        trained = (yield Train(order.items["model"].values)).model
        sent, kept, numbers = trained, trained, {"rounds": float(client.round)}
        if client.id == BAD and self.fault and self._due():
            match self.fault:
                case "raise":
                    raise RuntimeError("no electricity")
                case "interrupt":
                    raise KeyboardInterrupt
                case "exit":
                    sys.exit(3)
                case "unreadable":
                    return Answer({"model": sent}, numbers, {"model": kept}, {"diary": Unreadable()})
                case "sleep":
                    time.sleep(600)
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "die in mid-message":
                    _cut_off_in_mid_message()
                case "nothing":
                    return None  # type: ignore[return-value]  # that is the fault
                case "nan model":
                    sent = trained.clone().index_fill_(0, torch.tensor([7]), NAN)
                case "infinite model":
                    sent = trained / 0.0
                case "nan state":
                    kept = trained.clone().index_fill_(0, torch.tensor([7]), NAN)
                case "nan number":
                    numbers = {"rounds": NAN}
                case "double model":
                    sent = trained.double()
                case "short model":
                    sent = trained[:10]
                case "other name":
                    return Answer({"model": sent, "diary": sent}, numbers, {"model": kept})
        return Answer({"model": sent}, numbers, {"model": kept})

    def _due(self) -> bool:
        if not self.once:
            return True
        mark = Path(self.once) / "done"
        if mark.exists():
            return False
        mark.touch()
        return True


class Unreadable:
    """Can be put into a message, and not taken out of it."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return int, ("a diary",)


def _cut_off_in_mid_message() -> None:
    """Promise a message of 1000 bytes, send 10 of them, and die."""
    frame = sys._getframe()
    while frame.f_code.co_name != "serve":
        assert frame.f_back is not None
        frame = frame.f_back
    os.write(frame.f_locals["pipe"].fileno(), (1000).to_bytes(4, "big") + bytes(10))
    os.kill(os.getpid(), signal.SIGKILL)


REASONS = {
    "raise": "RuntimeError: no electricity",
    "exit": "SystemExit: 3",
    "unreadable": (r"\(ValueError: .*'a diary'\)"),
    "sleep": "3 s",
    "die": "worker process",
    "die in mid-message": "worker process",
    "nothing": "TypeError: .*Answer",
    "nan model": "model .*NaN",
    "infinite model": "model .*infinite",
    "nan state": "model .*NaN",
    "nan number": "sent rounds = nan",
    "double model": r"model .*torch\.float64; .*torch\.float32",
    "short model": r"model .*\(10,\); .*\(2410,\)",
    "other name": "a diary",
}
CARRIED = {"sleep", "die", "die in mid-message", "unreadable"}
"""Faults that only a worker can have."""
IN_PROCESS = [f for f in REASONS if f not in CARRIED]
CASES = [
    *((f, ("sequential", "batched")[k % 2], 1) for k, f in enumerate(IN_PROCESS)),
    *((f, "batched", 2) for f in ("raise", *sorted(CARRIED), "nan model", "nan state")),
]


def local(engine: str, workers: int, timeout: float | None = None) -> LocalRuntime:
    federation = planted(clients=CLIENTS, samples=40)
    spec = EngineSpec("planted-perceptron", {}, federation.features, federation, TRAINING, 0, engine)
    runtime = LocalRuntime(spec, federation.samples, workers=workers, timeout=timeout)
    if engine == "batched":
        runtime.most = runtime.together = 4  # several chunks of several clients
    return runtime


def ask(runtime: Runtime, number: int, faulty: Rule, clients: int = CLIENTS) -> Replies:
    runtime.begin_round(number)
    who = np.arange(clients)
    start = torch.linspace(-0.1, 0.1, runtime.layout.size)
    replies = runtime.answer(Exchange(who, faulty, {"model": Send.same(start, who)}))
    assert isinstance(replies, Replies)
    return replies


def state_of(runtime: LocalRuntime, client: int) -> torch.Tensor:
    return runtime.states.of(client)["model"].clone()


@pytest.mark.medium
@pytest.mark.parametrize(("fault", "engine", "workers"), CASES)
def test_a_faulty_client_is_left_out_and_comes_back(fault: str, engine: str, workers: int) -> None:
    sound = local(engine, 1)
    expected = [ask(sound, number, Keeping()) for number in (1, 2, 3)]
    others = [c for c in range(CLIENTS) if c != BAD]
    runtime = local(engine, workers, timeout=3.0 if fault == "sleep" else None)
    try:
        first = ask(runtime, 1, Keeping())
        before = state_of(runtime, BAD)
        second = ask(runtime, 2, Keeping(fault))
        ((client, reason),) = runtime.failures
        assert (client, bool(re.search(REASONS[fault], reason))) == (BAD, True)
        assert dict(second.missing) == {BAD: reason}
        assert second.clients.tolist() == others
        assert torch.equal(second.models, expected[1].models[others])
        assert second.numbers["rounds"].tolist() == [2.0] * len(others)
        assert torch.equal(state_of(runtime, BAD), before)
        up = {client for client, way, _, _ in runtime.ledger.rows if way == "up"}
        assert up == set(others)
        third = ask(runtime, 3, Keeping())
        assert runtime.failures == []
        assert dict(third.missing) == {}
        assert torch.equal(first.models, expected[0].models)
        assert torch.equal(third.models, expected[2].models)
        for client in range(CLIENTS):
            assert torch.equal(state_of(runtime, client), state_of(sound, client))
    finally:
        runtime.close()


@pytest.mark.medium
def test_a_worker_that_dies_once_costs_nobody_the_round(tmp_path: Path) -> None:
    expected = ask(local("batched", 1), 1, Keeping())
    runtime = local("batched", 2)
    try:
        replies = ask(runtime, 1, Keeping("die", str(tmp_path)))
        assert (tmp_path / "done").exists()
        assert dict(replies.missing) == {}
        assert runtime.failures == []
        assert torch.equal(replies.models, expected.models)
        (note,) = runtime.notes
        assert "worker process" in note
        ask(runtime, 2, Keeping())
        assert runtime.notes == []
    finally:
        runtime.close()


@pytest.mark.parametrize("fault", IN_PROCESS)
def test_a_faulty_client_at_the_other_end_of_a_wire(fault: str) -> None:
    engine = local("sequential", 1).engine
    runtime = LoopbackRuntime(engine, planted(clients=CLIENTS, samples=40).bounds)
    first = ask(runtime, 1, Keeping())
    before = runtime.kept(BAD)["model"].clone()
    second = ask(runtime, 2, Keeping(fault))
    assert [*second.missing] == [BAD]
    assert re.search(REASONS[fault], second.missing[BAD])
    assert torch.equal(runtime.kept(BAD)["model"], before)
    third = ask(runtime, 3, Keeping())
    assert len(first) == len(third) == CLIENTS


def test_who_left_in_one_exchange_is_away_in_the_next() -> None:
    runtime = local("sequential", 1)
    ask(runtime, 1, Keeping("raise"))
    sent = len(runtime.ledger.rows)
    who = np.arange(CLIENTS)
    start = torch.zeros(runtime.layout.size)
    replies = runtime.answer(Exchange(who, Keeping(), {"model": Send.same(start, who)}))
    assert isinstance(replies, Replies)
    assert BAD not in replies.clients
    assert [*replies.missing] == [BAD]
    assert runtime.failures == [(BAD, REASONS["raise"])]
    assert BAD not in {client for client, *_ in runtime.ledger.rows[sent:]}


def test_a_measurement_says_who_is_missing_and_keeps_and_counts_nothing() -> None:
    runtime = local("sequential", 1)
    ask(runtime, 1, Keeping())
    before, rows = [state_of(runtime, c) for c in range(CLIENTS)], list(runtime.ledger.rows)
    who = np.arange(CLIENTS)
    start = torch.zeros(runtime.layout.size)
    replies = runtime.measure(Exchange(who, Keeping("raise"), {"model": Send.same(start, who)}))
    assert dict(replies.missing) == {BAD: REASONS["raise"]}
    assert runtime.failures == []
    assert runtime.ledger.rows == rows
    assert all(torch.equal(state_of(runtime, c), before[c]) for c in range(CLIENTS))
    assert len(ask(runtime, 2, Keeping())) == CLIENTS


@pytest.mark.parametrize("kind", ["local", "loopback"])
def test_ctrl_c_passes(kind: str) -> None:
    """In this process, an interruption is the user's."""
    runtime: Runtime = local("sequential", 1)
    if kind == "loopback":
        runtime = LoopbackRuntime(local("sequential", 1).engine, planted(clients=CLIENTS, samples=40).bounds)
    with pytest.raises(KeyboardInterrupt):
        ask(runtime, 1, Keeping("interrupt"))


def test_an_interruption_that_a_client_makes_up_is_its_own_fault() -> None:
    runtime = local("sequential", 2)
    try:
        assert dict(ask(runtime, 1, Keeping("interrupt")).missing) == {BAD: "KeyboardInterrupt: "}
    finally:
        runtime.close()


def test_nobody_answers() -> None:
    runtime = local("sequential", 1)
    runtime.client_dropout = 1.0
    replies = ask(runtime, 1, Keeping())
    assert replies.models.shape == (0, runtime.layout.size)
    assert replies.clients.shape == replies.samples.shape == (0,)
    assert set(replies.missing.values()) == {VANISHED}
    assert len(replies.missing) == CLIENTS
