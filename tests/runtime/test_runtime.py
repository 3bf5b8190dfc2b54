"""What every runtime does alike: who vanishes, who writes where, what shapes cross, and what is kept."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import Answer, Client, LocalUpdate, Order, Rule, Work, rule
from coterie.errors import BadInput
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.models.layout import Layout
from coterie.runtime.local.runtime import LocalRuntime
from coterie.runtime.remote.codec import pack_answer, unpack_answer
from coterie.runtime.runtime import BadAsk, Runtime, drive
from coterie.runtime.states import ClientStates
from tests.runtime.kinds import ask, kept, runtime_of, runtimes, spec_of
from tests.runtime.local.test_pool import worker_processes

CLIENTS = 8
EVERYONE = np.arange(CLIENTS)
each = runtimes("alone", "batched", "workers", "batched workers", "loopback", clients=CLIENTS)


# ---- who vanishes


@rule("test-nothing")
@dataclass(frozen=True)
class Nothing(Rule):
    """Say that one is there."""

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        return Answer(numbers={"here": 1.0})


def test_a_round_of_many_exchanges_loses_as_many_clients_as_one_of_few() -> None:
    clients, rounds, client_dropout = np.arange(100), 5, 0.2
    runtime = runtime_of("alone", 100, client_dropout=client_dropout)
    lost = 0
    send = {"greeting": Send.same(torch.zeros(5), clients)}
    for number in range(1, rounds + 1):
        first = ask(runtime, Exchange(clients, Nothing(), send), number)
        down = {client for client, way, _, _ in runtime.ledger.rows if way == "down"}
        assert down == set(clients)
        for _ in range(3):
            later = ask(runtime, Exchange(clients, Nothing(), send), None)
            assert later.clients.tolist() == first.clients.tolist()
            assert set(later.missing) == set(first.missing)
        assert runtime.failures == sorted(first.missing.items())
        lost += len(first.missing)
    # 500 draws at 0.2: within three standard deviations.
    assert abs(lost - 100) < 27


def test_who_vanishes_does_so_in_whichever_exchange_asks_first() -> None:
    runtime = runtime_of("alone", client_dropout=0.5)
    gone = set(ask(runtime, Exchange(EVERYONE, Nothing())).missing)
    assert 0 < len(gone) < CLIENTS
    runtime.begin_round(1)
    late = max(gone)
    others = np.array([c for c in EVERYONE if c != late])
    assert set(ask(runtime, Exchange(others, Nothing()), None).missing) == gone - {late}
    assert late in ask(runtime, Exchange(EVERYONE, Nothing()), None).missing


# ---- who writes where


@rule("test-vandal")
@dataclass(frozen=True)
class Vandal(Rule):
    """Overwrite all that was received and kept, after having sent what it looked like."""

    uploads, client_state = ("model",), ("model",)
    keep: bool = False

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        seen = order.items["model"].values.clone()
        if "model" in client.state:
            seen += client.state["model"]
        for item in order.items.values():
            item.values.fill_(-99.0)
        for values in client.state.values():
            values.fill_(-99.0)
        return Answer(
            {"model": seen}, {"all": float(order.items["all"].values.sum())}, {"model": seen} if self.keep else {}
        )


@pytest.mark.medium
def test_whatever_a_rule_overwrites_affects_nobody_else(runtime: Runtime) -> None:
    matrix = torch.arange(3.0 * runtime.layout.size).view(3, -1).clone()
    before = matrix.clone()
    rows = np.arange(CLIENTS) % 3
    part = runtime.layout.last_layers(1) | runtime.layout.first_tensors(1)
    assert len(part.ranges) == 2
    send = {
        "model": Send(matrix, rows),
        "again": Send(matrix, rows),
        "all": Send.all(matrix, EVERYONE),
        "some": Send.all(matrix[1:], EVERYONE, part),
    }
    first = ask(runtime, Exchange(EVERYONE, Vandal(keep=True), send))
    assert dict(first.missing) == {}
    assert torch.equal(matrix, before)
    assert torch.equal(first.models, before[torch.from_numpy(rows)])
    before_it = {c: kept(runtime, c)["model"].clone() for c in range(CLIENTS)}
    for _ in range(2):  # once as a measurement
        again = runtime.measure(Exchange(EVERYONE, Vandal(), send))
        assert torch.equal(again.models, 2 * before[torch.from_numpy(rows)])
        assert torch.equal(matrix, before)
        assert all(torch.equal(kept(runtime, c)["model"], before_it[c]) for c in range(CLIENTS))
        again = ask(runtime, Exchange(EVERYONE, Vandal(), send), None)
        assert torch.equal(again.models, 2 * before[torch.from_numpy(rows)])
        assert all(torch.equal(kept(runtime, c)["model"], before_it[c]) for c in range(CLIENTS))


# ---- shapes


@rule("test-gaussians")
@dataclass(frozen=True)
class Gaussians(Rule):
    """Send and keep what is not model-shaped: a matrix, and one scalar; `wrong` sends another shape."""

    wrong: bool = False
    uploads, optional_uploads, client_state = ("model", "gaussians", "scale"), ("scale",), ("gaussians",)

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        classes, features = layout.tensors[-2].shape
        return {"gaussians": (classes, 2 * features), "scale": ()}

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        shape = self.shapes(client.layout)["gaussians"]
        found = torch.arange(float(torch.Size(shape).numel())).view(shape) + client.id
        if "gaussians" in client.state:
            found = found + client.state["gaussians"]
        send = {
            "model": torch.full((client.layout.size,), float(client.id)),
            "gaussians": found,
            "scale": torch.tensor(client.id / 2),
        }
        if self.wrong:
            send["gaussians"] = found.T.contiguous()
        if client.id % 2:
            del send["scale"]
        return Answer(send, {}, {"gaussians": found})


@pytest.mark.medium
def test_what_is_sent_and_kept_may_have_another_shape(runtime: Runtime) -> None:
    shape = Gaussians().shapes(runtime.layout)["gaussians"]
    assert shape == (10, 64)
    base = torch.arange(640.0).view(shape)
    part = runtime.layout.last_layers(1)
    for number in (1, 2):
        replies = ask(runtime, Exchange(EVERYONE, Gaussians(), upload_part={"model": part}), number)
        assert dict(replies.missing) == {}
        expected = torch.stack([number * (base + c) for c in range(CLIENTS)])
        assert torch.equal(replies.uploads["gaussians"], expected)
        assert replies.uploads["scale"].shape == (CLIENTS,)
        assert replies.uploads["scale"][::2].tolist() == [0.0, 1.0, 2.0, 3.0]
        assert replies.uploads["scale"][1::2].isnan().all()
        assert torch.equal(part.take(replies.models)[:, 0], torch.arange(8.0))
        assert all(torch.equal(kept(runtime, c)["gaussians"], expected[c]) for c in range(CLIENTS))
        up = [(c, what, n) for c, way, what, n in runtime.ledger.rows if way == "up"]
        assert up[:5] == [
            (0, "model", part.size),
            (0, "gaussians", 640),
            (0, "scale", 1),
            (1, "model", part.size),
            (1, "gaussians", 640),
        ]
    nobody = runtime.answer(Exchange(EVERYONE[:0], Gaussians()))
    assert isinstance(nobody, Replies)
    assert nobody.uploads["gaussians"].shape == (0, *shape)


@pytest.mark.medium
def test_another_shape_than_the_declared_one_is_a_failure(runtime: Runtime) -> None:
    replies = ask(runtime, Exchange(EVERYONE, Gaussians(wrong=True)))
    assert set(replies.missing) == set(EVERYONE)
    (reason,) = set(replies.missing.values())
    assert re.search(r"gaussians .*\(64, 10\); .*\(10, 64\)", reason)


def test_a_message_of_another_shape_is_refused() -> None:
    layout = runtime_of("alone").layout
    order = Order(0, 1, Gaussians(), {})
    message = pack_answer(order, Answer({"gaussians": torch.zeros(640)}))
    with pytest.raises(BadInput, match=r"gaussians.*\(640,\).*\(10, 64\)"):
        unpack_answer(order, message, layout)


def test_a_part_is_of_a_model() -> None:
    runtime = runtime_of("alone")
    with pytest.raises(ValueError, match=r"upload_part.*'gaussians'.*\(10, 64\)"):
        runtime.answer(Exchange(EVERYONE, Gaussians(), upload_part={"gaussians": runtime.layout.last_layers(1)}))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("hello", "str"),
        (Exchange(EVERYONE, LocalUpdate(), {"model": Send.all(torch.zeros(1, 3), EVERYONE)}), "model"),
    ],
)
def test_a_mistake_in_what_a_method_asks_is_raised_where_it_asks(asked: Any, told: str) -> None:
    def play_round() -> Generator[Any, Any, int]:
        yield asked
        return 0

    with pytest.raises(BadAsk, match=told) as raised:
        drive(play_round(), runtime_of("alone").answer)
    assert raised.traceback[-1].name == "play_round"


# ---- what is kept


@rule("test-forgetful")
@dataclass(frozen=True)
class Forgetful(Rule):
    """Keep a branch beside a model; in later rounds, forget it where the server tells so."""

    client_state = ("model", "branch")

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        values = torch.full((client.layout.size,), 1.0 + client.id)
        forgets = bool(order.settings["forget"])
        had = {name: float(v[0]) for name, v in client.state.items()}
        return Answer(numbers=had, client_state={"model": values, "branch": None if forgets else values})


def test_what_is_forgotten_is_gone(runtime: Runtime) -> None:
    size = runtime.layout.size

    def go(number: int, forget: list[float]) -> Replies:
        replies = ask(runtime, Exchange(EVERYONE, Forgetful(), settings={"forget": np.array(forget)}), number)
        assert dict(replies.missing) == {}
        return replies

    go(1, [0.0] * CLIENTS)
    assert all(set(kept(runtime, c)) == {"model", "branch"} for c in range(CLIENTS))
    go(2, [1.0, 0.0] * (CLIENTS // 2))
    assert [set(kept(runtime, c)) for c in (0, 1)] == [{"model"}, {"model", "branch"}]
    third = go(3, [1.0] * CLIENTS)
    assert np.isnan(third.numbers["branch"]).tolist() == [True, False] * (CLIENTS // 2)
    assert all(set(kept(runtime, c)) == {"model"} for c in range(CLIENTS))
    assert all(torch.equal(kept(runtime, c)["model"], torch.full((size,), 1.0 + c)) for c in range(CLIENTS))
    go(4, [1.0] * CLIENTS)  # once more, of what nobody has
    if isinstance(runtime, LocalRuntime):
        runtime.states.commit()
        assert set(runtime.states.kept) == set(runtime.states.has) == {"model"}


def test_what_was_forgotten_or_kept_since_the_last_commit_can_be_undone() -> None:
    states = ClientStates(2)
    states.update(0, {"branch": torch.ones(3)})
    states.commit()
    states.update(0, {"branch": None})
    states.update(1, {"branch": torch.ones(3), "other": torch.ones(2)})
    states.update(1, {"branch": None})
    assert states.of(0) == {}
    assert set(states.of(1)) == {"other"}
    states.roll_back()
    assert states.of(0)["branch"].tolist() == [1.0] * 3
    assert states.of(1) == {}
    assert set(states.kept) == {"branch"}
    states.update(0, {"branch": None})
    states.commit()
    assert states.kept == states.has == {}
    states.roll_back()
    assert states.of(0) == {}


def test_nothing_of_what_one_client_forgot_is_left() -> None:
    states = ClientStates(2)
    states.update(0, {"branch": torch.ones(3)})
    states.update(1, {"branch": torch.ones(3)})
    states.update(0, {"branch": None})
    assert states.kept["branch"].tolist() == [[0.0] * 3, [1.0] * 3]
    with pytest.raises(ValueError, match=r"client 0.*branch.*\(2,\).*\(3,\)"):
        states.update(0, {"branch": torch.ones(2)})


# ---- exchanges


def test_equal_items_are_made_once() -> None:
    """Also of a part of two ranges, and of a list of rows: both would be copies."""
    layout = runtime_of("alone").layout
    matrix = torch.randn(4, layout.size)
    part = layout.last_layers(1) | layout.first_tensors(1)
    assert len(part.ranges) == 2
    pairs = np.array([[0, 2], [1, 3]] * (CLIENTS // 2))
    send = {
        "part": Send(matrix, EVERYONE % 2, part),
        "pairs": Send(matrix, pairs),
        "same pairs": Send(matrix, pairs),
    }
    orders = Exchange(EVERYONE, LocalUpdate(), send).orders(1)
    assert [o.client for o in orders] == EVERYONE.tolist()
    for order in orders:
        like = orders[order.client % 2]
        assert order.items["part"] is like.items["part"]
        assert order.items["pairs"] is order.items["same pairs"] is like.items["pairs"]
        assert torch.equal(order.items["part"].values, part.take(matrix[order.client % 2]))
        assert torch.equal(order.items["pairs"].values, matrix[torch.from_numpy(pairs[order.client])])
    assert orders[0].items["part"] is not orders[1].items["part"]


@pytest.mark.parametrize(
    ("matrix", "rows", "said"),
    [
        (torch.zeros(3, 4).double(), [0, 1], r"torch\.float64 .*\(3, 4\); .*torch\.float32"),
        (torch.zeros(3), [0, 1], r"\(3,\); .*torch\.float32 \[K, P\]"),
        (torch.zeros(3, 4), [0, 3], "rows .*0 to 3; .* 3, or -1"),
        (torch.zeros(3, 4), [[0, 3], [1, 2]], "rows .*0 to 3; .* 3"),
        (torch.zeros(3, 4), [-2, 0], "rows .*-2 to 0"),
        (torch.zeros(0, 4), [0, 0], "rows .* 0"),
        (torch.zeros(3, 4), [0.0, 1.0], r"rows .*float64 .*\(2,\); .*\[m\] or \[m, k\]"),
        (torch.zeros(3, 4), [[[0]]], r"rows .*int64 .*\(1, 1, 1\); .*\[m\] or \[m, k\]"),
    ],
)
def test_what_cannot_be_sent_is_refused(matrix: Tensor, rows: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Send(matrix, np.array(rows))


def test_what_can_be_sent() -> None:
    Send(torch.zeros(3, 4), np.array([[0, 1], [-1, -1]]))
    Send(torch.zeros(0, 4), np.array([-1, -1]))
    Send(torch.zeros(0, 4), np.zeros((2, 0), np.int64))


def test_all_that_an_exchange_holds_is_there_for_each_client() -> None:
    matrix, part = torch.zeros(3, 4), runtime_of("alone").layout.last_layers(1)
    for wrong, said in (
        ({"send": {"model": Send(matrix, np.array([0, 1]))}}, r"send\['model'\]\.rows .* 2; .* 3"),
        ({"send": {"model": Send(matrix, np.array([0, 1, 2]), [part])}}, r"send\['model'\]\.part .* 1; .* 3"),
        ({"settings": {"mu": np.zeros(4)}}, r"settings\['mu'\] .* 4; .* 3"),
        ({"upload_part": {"model": [part] * 2}}, r"upload_part\['model'\] .* 2; .* 3"),
    ):
        with pytest.raises(ValueError, match=said):
            Exchange(np.arange(3), LocalUpdate(), **wrong)
    with pytest.raises(ValueError, match=r"upload_part.*'modle'.*'model'"):
        Exchange(np.arange(3), LocalUpdate(), upload_part={"modle": part})


def test_an_engine_that_owns_a_device_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sequential, "one_process", True)
    spec, samples = spec_of(3)
    LocalRuntime(spec, samples)
    assert worker_processes() == []
    with pytest.raises(BadInput, match=r"run\.workers = 2 .*client_timeout = 1\.5 .*run\.engine = 'sequential'"):
        LocalRuntime(spec, samples, workers=2, timeout=1.5)
