"""Every transfer is counted, once for each client and from the message itself.

See docs/methods/conventions.md, conventions 10 and 11.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from coterie.clients.rules import Answer, Client, Order, Rule, Work, rule
from coterie.methods.exchange import Exchange, Send
from coterie.models.layout import Part
from coterie.runtime.ledger import Ledger
from coterie.runtime.runtime import Runtime
from tests.runtime.kinds import ask, runtimes

CLIENTS = 4
EVERYONE = np.arange(CLIENTS)
IDS = range(CLIENTS)


@rule("test-echo")
@dataclass(frozen=True)
class Echo(Rule):
    """Send one model, keep another, and report two numbers, the second from odd clients only."""

    uploads, client_state = ("model", "second"), ("diary",)

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        size = client.layout.size
        vectors = {"model": torch.arange(float(size)) + client.id, "second": torch.full((size,), 2.0)}
        numbers = {"loss": 1.0, **({"odd": 3.0} if client.id % 2 else {})}
        return Answer(vectors, numbers, {"diary": torch.ones(size)}, {"remark": 5})


each = runtimes("alone", "workers", "loopback", clients=CLIENTS)


def test_every_transfer_is_a_row(runtime: Runtime) -> None:
    """One row for all is counted for each; a row of -1 is nothing; parts count their own size, numbers one."""
    size = runtime.layout.size
    matrix = torch.zeros(3, size)
    head = runtime.layout.last_layers(1)
    parts = [Part.of([(0, 10 * (c + 1))]) for c in IDS]
    send = {
        "model": Send.same(matrix[0], EVERYONE),
        "heads": Send.all(matrix, EVERYONE, head),
        "some": Send(matrix, np.array([0, -1, 2, -1]), parts),
        "pairs": Send(matrix, np.array([[0, 1], [1, 2], [-1, -1], [2, 2]])),
    }
    back = {"second": [Part.of([(5, 6 + c), (50, 60)]) for c in IDS]}
    ask(runtime, Exchange(EVERYONE, Echo(), send, {"steer": np.ones(CLIENTS)}, back))
    down = [
        [("model", size), ("heads", 3 * head.size), ("some", 10), ("pairs", 2 * size)],
        [("model", size), ("heads", 3 * head.size), ("pairs", 2 * size)],
        [("model", size), ("heads", 3 * head.size), ("some", 30)],
        [("model", size), ("heads", 3 * head.size), ("pairs", 2 * size)],
    ]
    up = [[("model", size), ("second", 11 + c), ("loss", 1), *([("odd", 1)] if c % 2 else [])] for c in IDS]
    expected = [(c, "down", what, n) for c in IDS for what, n in down[c]]
    expected += [(c, "up", what, n) for c in IDS for what, n in up[c]]
    assert runtime.ledger.rows == expected
    assert runtime.ledger.bytes("up") == {c: 4 * sum(n for _, n in up[c]) for c in IDS}
    assert runtime.ledger.bytes("down") == {c: 4 * sum(n for _, n in down[c]) for c in IDS}


def test_what_did_not_cross_is_nan(runtime: Runtime) -> None:
    parts = [Part.of([(c, c + 2), (50, 60)]) for c in IDS]
    replies = ask(runtime, Exchange(EVERYONE, Echo(), upload_part={"model": parts}))
    for c in IDS:
        row = replies.models[c]
        assert row.isfinite().nonzero().flatten().tolist() == [c, c + 1, *range(50, 60)]
        assert torch.equal(parts[c].take(row), parts[c].take(torch.arange(float(len(row))) + c))
    assert replies.uploads["second"].isfinite().all()
    assert np.isnan(replies.numbers["odd"]).tolist() == [True, False, True, False]
    assert replies.report["remark"] == [5] * CLIENTS


def test_who_vanishes_was_sent_something_and_sends_nothing(runtime: Runtime) -> None:
    runtime.client_dropout = 0.5
    lost: set[int] = set()
    for number in range(1, 9):
        send = {"model": Send.same(torch.zeros(runtime.layout.size), EVERYONE)}
        replies = ask(runtime, Exchange(EVERYONE, Echo(), send), number)
        ways = [(client, way) for client, way, _, _ in runtime.ledger.rows]
        assert {client for client, way in ways if way == "down"} == set(EVERYONE)
        assert {client for client, way in ways if way == "up"} == set(replies.clients)
        assert set(replies.missing) == set(EVERYONE) - set(replies.clients)
        assert [client for client, _ in runtime.failures] == sorted(replies.missing)
        lost |= set(replies.missing)
    assert lost == set(EVERYONE)


def test_simulated_seconds() -> None:
    """T = max_i [T_cmp,i + 8 up_i / R + 8 down_i / R]: one client computes long, another sends much."""
    ledger = Ledger([(0, "down", "model", 1000), (0, "up", "model", 250), (1, "down", "model", 1000)])
    # R = 0.1 Mbit/s: client 0 moves 5000 bytes in 0.4 s, client 1 4000 bytes in 0.32 s.
    assert ledger.seconds(0.1, {}) == pytest.approx(0.4)
    assert ledger.seconds(0.1, {0: 1.0, 1: 1.05}) == pytest.approx(1.4)
    assert ledger.seconds(0.1, {0: 1.0, 1: 1.5}) == pytest.approx(1.82)
    assert ledger.seconds(1.0, {0: 1.0, 2: 7.0}) == pytest.approx(7.0)
    assert Ledger().seconds(1.0, {}) == 0.0
