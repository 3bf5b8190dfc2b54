"""Clients that fail: whoever answers well gets the bits of a run without the fault, and nobody else is touched."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.clients.rules import Answer, Client, Order, Rule, Train, Work, rule
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runtime.local.runtime import LocalRuntime
from coterie.runtime.runtime import Runtime
from tests.federated import planted
from tests.loopback import LoopbackRuntime
from tests.runtime.kinds import ask, kept, spec_of

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
    "unreadable": "ValueError: invalid literal",
    "sleep": " 3 s$",
    "die": "died",
    "die in mid-message": "died",
    "nothing": "TypeError: .*Answer",
    "nan model": "model .*NaN",
    "infinite model": "model .*infinite",
    "nan state": "own .*NaN",
    "nan number": "rounds = nan",
    "double model": r"model .*torch\.float64; .*torch\.float32",
    "short model": r"model .*\(10,\); .*\(2410,\)",
    "other name": "diary",
}
CARRIED = {"sleep", "die", "die in mid-message", "unreadable"}
"""Faults that only a worker can have."""
IN_PROCESS = [f for f in REASONS if f not in CARRIED]
CASES = [
    *((f, ("sequential", "batched")[k % 2], 1) for k, f in enumerate(IN_PROCESS)),
    *((f, "batched", 2) for f in ("raise", *sorted(CARRIED), "nan model", "nan state")),
]


def local(engine: str, workers: int, timeout: float | None = None) -> LocalRuntime:
    runtime = LocalRuntime(*spec_of(CLIENTS, engine=engine, samples=40), workers=workers, timeout=timeout)
    if engine == "batched":
        runtime.most = runtime.together = 4  # several chunks of several clients
    return runtime


def keep(runtime: Runtime, number: int | None, fault: str = "", once: str = "") -> Replies:
    who, start = np.arange(CLIENTS), torch.linspace(-0.1, 0.1, runtime.layout.size)
    return ask(runtime, Exchange(who, Keeping(fault, once), {"model": Send.same(start, who)}), number)


def has_failed(failures: Mapping[int, str] | Sequence[tuple[int, str]], fault: str) -> bool:
    """Say whether the bad client alone failed, and by that fault."""
    ((client, reason),) = dict(failures).items()
    return client == BAD and re.search(REASONS[fault], reason) is not None


@pytest.mark.medium
@pytest.mark.parametrize(("fault", "engine", "workers"), CASES)
def test_a_faulty_client_is_left_out_and_comes_back(fault: str, engine: str, workers: int) -> None:
    sound = local(engine, 1)
    expected = [keep(sound, number) for number in (1, 2, 3)]
    others = [c for c in range(CLIENTS) if c != BAD]
    with closing(local(engine, workers, timeout=3.0 if fault == "sleep" else None)) as runtime:
        first = keep(runtime, 1)
        before = kept(runtime, BAD)["model"].clone()
        second = keep(runtime, 2, fault)
        assert has_failed(second.missing, fault)
        assert has_failed(runtime.failures, fault)
        assert second.clients.tolist() == others
        assert torch.equal(second.models, expected[1].models[others])
        assert second.numbers["rounds"].tolist() == [2.0] * len(others)
        assert torch.equal(kept(runtime, BAD)["model"], before)
        up = {client for client, way, _, _ in runtime.ledger.rows if way == "up"}
        assert up == set(others)
        third = keep(runtime, 3)
        assert runtime.failures == []
        assert dict(third.missing) == {}
        assert torch.equal(first.models, expected[0].models)
        assert torch.equal(third.models, expected[2].models)
        for client in range(CLIENTS):
            assert torch.equal(kept(runtime, client)["model"], kept(sound, client)["model"])


@pytest.mark.medium
def test_a_worker_that_dies_once_costs_nobody_the_round(tmp_path: Path) -> None:
    expected = keep(local("batched", 1), 1)
    with closing(local("batched", 2)) as runtime:
        replies = keep(runtime, 1, "die", str(tmp_path))
        assert (tmp_path / "done").exists()
        assert dict(replies.missing) == {}
        assert runtime.failures == []
        assert torch.equal(replies.models, expected.models)
        (note,) = runtime.notes
        assert "died" in note
        keep(runtime, 2)
        assert runtime.notes == []


@pytest.mark.parametrize("fault", IN_PROCESS)
def test_a_faulty_client_at_the_other_end_of_a_wire(fault: str) -> None:
    engine = local("sequential", 1).engine
    runtime = LoopbackRuntime(engine, planted(clients=CLIENTS, samples=40).bounds)
    first = keep(runtime, 1)
    before = kept(runtime, BAD)["model"].clone()
    second = keep(runtime, 2, fault)
    assert has_failed(second.missing, fault)
    assert torch.equal(kept(runtime, BAD)["model"], before)
    third = keep(runtime, 3)
    assert len(first) == len(third) == CLIENTS


def test_who_left_in_one_exchange_is_away_in_the_next() -> None:
    runtime = local("sequential", 1)
    keep(runtime, 1, "raise")
    sent = len(runtime.ledger.rows)
    replies = keep(runtime, None)
    assert BAD not in replies.clients
    assert list(replies.missing) == [BAD]
    assert has_failed(runtime.failures, "raise")
    assert BAD not in {client for client, *_ in runtime.ledger.rows[sent:]}


def test_a_measurement_says_who_is_missing_and_keeps_and_counts_nothing() -> None:
    runtime = local("sequential", 1)
    keep(runtime, 1)
    before, rows = [kept(runtime, c)["model"].clone() for c in range(CLIENTS)], list(runtime.ledger.rows)
    who = np.arange(CLIENTS)
    start = torch.zeros(runtime.layout.size)
    replies = runtime.measure(Exchange(who, Keeping("raise"), {"model": Send.same(start, who)}))
    assert has_failed(replies.missing, "raise")
    assert runtime.failures == []
    assert runtime.ledger.rows == rows
    assert all(torch.equal(kept(runtime, c)["model"], before[c]) for c in range(CLIENTS))
    assert len(keep(runtime, 2)) == CLIENTS


@pytest.mark.parametrize("kind", ["local", "loopback"])
def test_ctrl_c_passes(kind: str) -> None:
    """In this process, an interruption is the user's."""
    runtime: Runtime = local("sequential", 1)
    if kind == "loopback":
        runtime = LoopbackRuntime(local("sequential", 1).engine, planted(clients=CLIENTS, samples=40).bounds)
    with pytest.raises(KeyboardInterrupt):
        keep(runtime, 1, "interrupt")


def test_an_interruption_that_a_client_makes_up_is_its_own_fault() -> None:
    with closing(local("sequential", 2)) as runtime:
        assert dict(keep(runtime, 1, "interrupt").missing) == {BAD: "KeyboardInterrupt: "}


def test_nobody_answers() -> None:
    runtime = local("sequential", 1)
    runtime.client_dropout = 1.0
    replies = keep(runtime, 1)
    assert replies.models.shape == (0, runtime.layout.size)
    assert replies.clients.shape == replies.samples.shape == (0,)
    assert len(replies.missing) == CLIENTS
