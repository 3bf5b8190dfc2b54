"""Where a method wants means alone, runtimes bring sums, and the means have the bits that rows give."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.rules import Answer, ChooseThenTrain, Client, LocalUpdate, Order, Rule, Work, rule
from coterie.clients.rules.mixture import MixtureUpdate
from coterie.grouping.exact_sums import Reduce
from coterie.methods.aggregation import Aggregation
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runtime.runtime import Runtime
from tests.runtime.kinds import ask, runtime_of, runtimes

CLIENTS = 60
EVERYONE = np.arange(CLIENTS)
each = runtimes("alone", "workers", "batched", "batched workers", "three batched workers", clients=CLIENTS)
WEIGHTS = np.random.default_rng(0).integers(1, 90, CLIENTS)


def starts(runtime: Runtime, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 0.1 * torch.randn(count, runtime.layout.size, generator=generator)


def summed(reduce: Reduce) -> Reduce:
    """As a run asks in which nobody looks at single models."""
    return replace(reduce, row_limit=float("inf"))


def one_mean(runtime: Runtime, rule: Rule) -> Exchange:
    send = Send.same(starts(runtime, 1)[0], EVERYONE)
    return Exchange(EVERYONE, rule, {"model": send}, reduce={"model": summed(Reduce.mean(EVERYONE, WEIGHTS))})


def centres(replies: Replies, exchange: Exchange, previous: Tensor) -> Tensor:
    return Aggregation().centres(replies, "model", exchange.reduce["model"], previous)


def test_one_mean_has_the_bits_of_rows(runtime: Runtime) -> None:
    exchange, previous = one_mean(runtime, LocalUpdate()), starts(runtime, 1)
    sums = ask(runtime, exchange)
    counted = runtime.ledger.rows[:]
    rows = ask(runtime, replace(exchange, reduce={}))
    assert "model" in sums.sums
    assert "model" not in sums.uploads
    assert torch.equal(centres(sums, exchange, previous), centres(rows, exchange, previous))
    assert sums.sketches is not None
    assert rows.sketches is not None
    assert torch.equal(sums.sketches, rows.sketches)
    assert np.array_equal(sums.update_lengths["model"], rows.update_lengths["model"])
    assert counted == runtime.ledger.rows  # what crosses is each client's model


def test_means_by_choice_have_the_bits_of_rows(runtime: Runtime) -> None:
    previous = starts(runtime, 2)
    reduce = {"model": summed(Reduce.by_choice(EVERYONE, 2, WEIGHTS))}
    exchange = Exchange(EVERYONE, ChooseThenTrain(), {"models": Send.all(previous, EVERYONE)}, reduce=reduce)
    sums, rows = ask(runtime, exchange), ask(runtime, replace(exchange, reduce={}))
    assert len(np.unique(rows.numbers["choice"])) == 2
    assert "model" in sums.sums
    assert torch.equal(centres(sums, exchange, previous), centres(rows, exchange, previous))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_model_for_every_group_has_the_bits_of_rows(share: float, runtime: Runtime) -> None:
    previous, reduce = starts(runtime, 3), summed(Reduce(EVERYONE, WEIGHTS, None, 3))
    exchange = Exchange(EVERYONE, MixtureUpdate(3), {"models": Send.all(previous, EVERYONE)})
    rows = ask(runtime, exchange)
    limit = float(np.quantile(rows.update_lengths["models"], share))
    sums = ask(runtime, replace(exchange, reduce={"models": replace(reduce, row_limit=limit)}))
    assert len(sums.sums["models"].rows) == (rows.update_lengths["models"] > limit).sum()
    found = [Aggregation().centres(replies, "models", reduce, previous) for replies in (sums, rows)]
    assert torch.equal(*found)
    for k in range(3):
        alone = Aggregation().average(rows.uploads["models"][:, k], previous[k : k + 1], WEIGHTS)
        assert torch.allclose(found[0][k], alone[0], rtol=0, atol=1e-6)


def test_every_number_of_workers_gives_the_same_bits() -> None:
    found = []
    for kind in ("batched", "batched workers", "three batched workers"):
        runtime = runtime_of(kind, CLIENTS)
        exchange = one_mean(runtime, LocalUpdate())
        found.append(centres(ask(runtime, exchange), exchange, starts(runtime, 1)))
        runtime.close()
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_long_updates_come_as_rows_and_count_all_the_same(runtime: Runtime) -> None:
    exchange, previous = one_mean(runtime, LocalUpdate()), starts(runtime, 1)
    rows = ask(runtime, replace(exchange, reduce={}))
    limit = float(np.median(rows.update_lengths["model"]))
    limited = replace(exchange, reduce={"model": replace(exchange.reduce["model"], row_limit=limit)})
    sums = ask(runtime, limited)
    assert np.array_equal(sums.sums["model"].rows, np.flatnonzero(rows.update_lengths["model"] > limit))
    assert torch.equal(centres(sums, exchange, previous), centres(rows, exchange, previous))


def test_a_start_too_large_for_sums_brings_rows(runtime: Runtime) -> None:
    send = Send.same(torch.full((runtime.layout.size,), 200.0), EVERYONE)
    replies = ask(runtime, replace(one_mean(runtime, LocalUpdate()), send={"model": send}))
    assert not replies.sums
    assert "model" in replies.uploads


def test_few_clients_send_rows_where_sums_would_take_more_memory(runtime: Runtime) -> None:
    few = np.arange(2)
    send = {"model": Send.same(starts(runtime, 1)[0], few)}
    assert not ask(runtime, Exchange(few, LocalUpdate(), send, reduce={"model": summed(Reduce.mean(few))})).sums


def test_rows_come_where_nobody_says_that_they_can_be_done_without(runtime: Runtime) -> None:
    exchange = one_mean(runtime, LocalUpdate())
    asked = replace(exchange, reduce={"model": Reduce.mean(EVERYONE, WEIGHTS)})
    assert not ask(runtime, asked).sums


def test_rows_have_the_mean_that_methods_take_of_matrices(runtime: Runtime) -> None:
    exchange, previous = one_mean(runtime, LocalUpdate()), starts(runtime, 1)
    rows = ask(runtime, replace(exchange, reduce={}))
    assert torch.equal(centres(rows, exchange, previous), Aggregation().average(rows.models, previous, WEIGHTS))


def test_real_clients_send_rows() -> None:
    remote, local = runtime_of("loopback", CLIENTS), runtime_of("alone", CLIENTS)
    exchange, previous = one_mean(remote, LocalUpdate()), starts(remote, 1)
    rows, sums = ask(remote, exchange), ask(local, exchange)
    assert not rows.sums
    assert torch.equal(centres(sums, exchange, previous), centres(rows, exchange, previous))


@rule("sent-or-killed")
@dataclass(frozen=True)
class SentOrKilled(Rule):
    """Send the model back, moved by the client's number; one client kills its worker the first time."""

    uploads = ("model",)
    mark: str = ""

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        if order.client == 31 and self.mark and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Answer({"model": order.items["model"].values + 0.001 * order.client})


@pytest.mark.parametrize("kind", ["workers", "three batched workers"])
def test_a_worker_that_dies_changes_no_bit(kind: str, tmp_path: Path) -> None:
    runtime = runtime_of(kind, CLIENTS)
    exchange, previous = one_mean(runtime, SentOrKilled()), starts(runtime, 1)
    whole = ask(runtime, exchange)
    killed = ask(runtime, replace(exchange, rule=SentOrKilled(str(tmp_path / "mark"))))
    assert runtime.notes
    assert len(killed) == CLIENTS
    assert whole.sums
    assert killed.sums
    assert torch.equal(centres(killed, exchange, previous), centres(whole, exchange, previous))
    runtime.close()
