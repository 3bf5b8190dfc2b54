"""What a run will take: bytes and memory are those of the run, whoever really worked."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.advice.explain import footprint
from coterie.advice.explain.explain import Explanation, explain
from coterie.advice.explain.sampled import choose_stand_ins, makespan
from coterie.clients.rules.client import Client
from coterie.clients.rules.local_update import LocalUpdate
from coterie.clients.rules.rule import Order, Work, rule
from coterie.errors import BadInput
from coterie.methods import METHODS
from coterie.methods.exchange import Exchange, Exchanges, Replies, Send
from coterie.methods.fedavg import FedAvg
from coterie.methods.method import Cohort
from coterie.methods.one_model import GlobalState
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.session import Session
from tests.commandline import Terminal

CLIENTS = 12
LEARNING = ("fedcps", "fedtsdp", "ifca")
"""Methods whose messages depend on what clients learn, from the first round on."""
EXACT = [e.name for e in METHODS if e.target.__module__.startswith("coterie.") and e.name not in LEARNING]
"""Methods of whose first rounds every message is known before anybody has learnt anything."""


def experiment(method: str | dict[str, Any] = "fedavg", **run: Any) -> Experiment:
    """Twelve clients of different sizes, one after the other, so that few of them stand for the others."""
    return Experiment(
        data={"name": "digits", "clients": CLIENTS, "split": "dirichlet(1.0) + rotated(2)"},
        method=method,
        run={"rounds": 2, "engine": "sequential", "workers": 2, **run},
    )


def part(found: Explanation, name: str) -> int:
    (size,) = (p.bytes for p in found.memory if p.name == name)
    return size


# ---- against the run


@pytest.mark.slow
@pytest.mark.thinned(12)
@pytest.mark.parametrize("method", EXACT)
def test_bytes_are_those_of_the_run(method: str) -> None:
    asked = experiment(method, participation=0.75)
    found = explain(asked)
    first, second = coterie.rounds(asked)
    assert found.first is not None
    assert found.later is not None
    for cost, round in ((found.first, first), (found.later, second)):
        assert cost.up_bytes == round.metrics["up_bytes"]
        assert cost.down_bytes == round.metrics["down_bytes"]
        assert cost.participants == round.metrics["participants"]
        assert cost.simulated_seconds == pytest.approx(round.metrics["simulated_seconds"])
    assert found.up_bytes == second.up_bytes_total
    assert found.down_bytes == second.down_bytes_total


@pytest.mark.medium
@pytest.mark.thinned(12)
@pytest.mark.parametrize("method", [e.name for e in METHODS if e.target.__module__.startswith("coterie.")])
def test_it_says_why_a_server_looks_at_single_models(method: str) -> None:
    """Whether each does is seen in tests/runs/test_sums.py."""
    found = explain(experiment(method, workers=1, rounds=1))
    (where,) = (part.where for part in found.memory if part.name == "answers")
    assert METHODS[method].target().needs.models in where
    assert found.up_bytes is not None


@pytest.mark.medium
def test_of_clients_that_diverge_no_totals_are_made() -> None:
    found = explain(experiment().updated({"training.lr": 1e30}))
    assert len(found.notes) == len(explain(experiment()).notes) + 2
    assert (found.first, found.later, found.seconds, found.up_bytes) == (None, None, None, None)


@pytest.mark.medium
def test_many_rounds_are_as_the_second() -> None:
    found = explain(experiment("fesem", rounds=30, participation=0.5))
    assert found.first is not None
    assert found.later is not None
    assert found.first.up_bytes == 2 * found.later.up_bytes  # the warm-up of everybody
    assert found.up_bytes == found.first.up_bytes + 29 * found.later.up_bytes
    assert found.seconds == pytest.approx(
        found.start_seconds + found.first.seconds + 29 * found.later.seconds + found.end_seconds
    )


@pytest.mark.slow
@pytest.mark.parametrize(("last", "due"), [(1, [3, 6, 7]), (3, [3, 5, 6, 7])])
def test_evaluations_are_counted_where_they_are_due(last: int, due: list[int]) -> None:
    asked = experiment(rounds=7).updated({"evaluation.every": 3, "evaluation.last": last})
    found = explain(asked)
    assert [round.number for round in coterie.rounds(asked) if round.scores is not None] == due
    assert found.first is not None
    assert found.later is not None
    assert found.evaluations == len(due)
    work = found.first.seconds - found.first.evaluation_seconds
    work += 6 * (found.later.seconds - found.later.evaluation_seconds)
    evaluated = len(due) * found.later.evaluation_seconds
    assert found.seconds == pytest.approx(found.start_seconds + work + evaluated + found.end_seconds)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fesem", "em-groups", "halves", "ditto", "fedamp"])
def test_of_a_large_cohort_a_part_is_tried_and_all_is_counted(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a round asks everybody, cohort or not."""
    asked = experiment(method, participation=0.75)
    whole = explain(asked)
    monkeypatch.setattr("coterie.advice.explain.explain.MOST_BYTES", 6 * 4 * 15_010)
    found = explain(asked)
    for cost, expected in ((found.first, whole.first), (found.later, whole.later)):
        assert cost is not None
        assert expected is not None
        assert cost.participants == expected.participants
        assert cost.up_bytes == expected.up_bytes
        assert cost.down_bytes == expected.down_bytes
    for name in {part.name for part in whole.memory} & {"models sent", "answers", "client states"}:
        assert part(found, name) == part(whole, name)


STARTED: list[float] = []


@rule("test-slow-start")
@dataclass(frozen=True)
class SlowStart(LocalUpdate):
    """Local training that takes a second the first time that a process does it, as one that compiles a kernel."""

    def run(self, client: Client, order: Order) -> Work:
        if not STARTED:
            STARTED.append(1.0)
            time.sleep(STARTED[0])
        return (yield from super().run(client, order))


@dataclass(frozen=True)
class StartsSlowly(FedAvg):
    """FedAvg by clients whose process starts slowly."""

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        send = {"model": Send.same(state.model[0], cohort.clients)}
        replies: Replies = yield Exchange(cohort.clients, SlowStart(), send)
        return GlobalState(cohort.server.aggregation.average(replies.models, state.model))


@pytest.mark.slow
def test_what_a_process_does_but_once_is_not_counted_for_each_client() -> None:
    STARTED.clear()
    first = explain(
        Experiment(
            data={"name": "digits", "clients": 300, "min_samples": 2},
            method=StartsSlowly,
            run={"rounds": 2, "engine": "sequential", "workers": 1},
        )
    ).first
    assert STARTED
    assert first is not None
    assert first.clients_seconds < 100 * STARTED[0], "of 300 clients two at a time, each as slow as the first"


@pytest.mark.slow
def test_an_adaptation_as_long_as_a_round_takes_all_of_its_epochs() -> None:
    """Clients try few of many epochs; one with a number of its own tries as many as it says."""
    seconds = []
    for epochs, adapt in ((400, {}), (400, {"epochs": 10})):
        found = explain(experiment().updated({"training.epochs": epochs, "evaluation.adapt": adapt}))
        assert found.later is not None
        seconds.append(found.later.evaluation_seconds)
    assert seconds[0] > 6 * seconds[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fedavg", "fedrep", {"name": "ditto", "personal_epochs": 5}, {"name": "fesem", "warm_up": 20}]
)
def test_of_many_epochs_alone_those_are_scaled_that_follow_them(method: str | dict[str, Any]) -> None:
    """A method's own passes, to warm up or for a head, are as many however many epochs there are."""
    few, ten, many = (explain(experiment(method).updated({"training.epochs": n})) for n in (5, 10, 40))
    for cost in ("first", "later"):
        read = [getattr(found, cost).read_bytes for found in (few, ten, many)]
        assert read[2] == pytest.approx(read[1] + 6 * (read[1] - read[0]))
    if method == "fedrep":
        assert many.later is not None
        assert ten.later is not None
        assert many.later.clients_seconds < 3 * ten.later.clients_seconds


@pytest.mark.slow
def test_the_promise_of_privacy_is_that_of_all_epochs() -> None:
    """Clients try few of many epochs, in which far less is spent."""
    asked = experiment(engine="auto").updated(
        {
            "privacy.unit": "example",
            "privacy.noise_multiplier": 2.0,
            "privacy.clip_norm": 1.0,
            "training.epochs": 30,
        }
    )
    with closing(Session(prepare(asked))) as session:
        (promise,) = (line for line in session.describe() if line.startswith("privacy"))
    assert promise in explain(asked).description


# ---- memory


@pytest.mark.medium
def test_memory_is_what_the_sizes_say() -> None:
    asked = experiment("ditto", participation=0.5)
    found = explain(asked)
    with_network = [line for line in found.description if line.startswith("network")]
    assert "15,010 parameters" in with_network[0]
    size = 4 * 15_010
    assert part(found, "data") == 1797 * (4 * 64 + 8)
    assert part(found, "models sent") == size
    assert part(found, "answers") == CLIENTS // 2 * size
    assert part(found, "client states") == (CLIENTS + CLIENTS // 2) * size
    assert part(found, "server state") == 2 * size
    assert part(found, "sketches of models") == CLIENTS * 512 * 4
    assert found.bytes == sum(p.bytes for p in found.memory)
    assert found.fits is True


@pytest.mark.medium
@pytest.mark.parametrize(
    ("data_mb", "workers", "how"), [(4_000, 1, "in memory"), (4_000, 2, "shared by 2"), (0, 2, "mapped by 2")]
)
def test_it_is_said_where_the_samples_lie(terminal: Terminal, data_mb: int, workers: int, how: str) -> None:
    asked = experiment(workers=workers).updated({"scale.data_mb": data_mb, "training.epochs": 3})
    found, size = explain(asked), 1797 * 4 * 64
    assert how in found.data.where
    assert (found.data.memory_bytes, found.data.disk_bytes) == ((0, size) if data_mb == 0 else (size, 0))
    assert part(found, "data") == 1797 * 8 + found.data.memory_bytes
    assert found.first is not None
    trained = found.first.read_bytes / (3 * 4 * 64)
    assert 0.6 * 1797 < trained < 0.8 * 1797
    words = ("--clients", "12", "--workers", str(workers), "--set", f"scale.data_mb={data_mb}")
    out = " ".join(terminal("explain", "fedavg", *words).out.split())
    assert f"460 kB {found.data.where}" in out


@pytest.mark.medium
def test_what_has_no_room_is_said_before_it_is_tried(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.setattr("coterie.advice.explain.explain.available_bytes", lambda: CLIENTS * 4 * 15_010)
    found = explain(experiment().updated({"aggregation.rule": "median"}))  # of single models
    assert found.fits is False
    assert found.first is None
    assert found.seconds is None
    assert part(found, "answers") == CLIENTS * 4 * 15_010
    code, out, err = terminal("explain", "fedavg", "--clients", "12", "--set", "aggregation.rule=median")
    assert (code, err) == (0, "")
    assert " not fit" in out


def test_held_counts_every_tensor_once() -> None:
    one = torch.zeros(5)
    assert footprint.tensor_bytes({"a": (one, [one]), "b": np.zeros(3), "c": "text"}) == 20 + 24


# ---- who stands for whom


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(2, 10))
def test_the_few_stand_for_all(sizes: list[int], count: int) -> None:
    stand_in = choose_stand_ins(np.array(sizes), count).tolist()
    few = set(stand_in)
    assert len(few) == min(count, len(sizes))
    for client, stand in enumerate(stand_in):
        assert abs(sizes[stand] - sizes[client]) == min(abs(sizes[one] - sizes[client]) for one in few)
        assert stand == client or client not in few
    assert {min(sizes), max(sizes)} <= {sizes[one] for one in few}


def test_the_slowest_worker_decides() -> None:
    assert makespan(np.array([1.0, 1.0, 1.0, 1.0]), 2) == 2
    assert makespan(np.array([9.0, 1.0, 1.0, 1.0]), 2) == 9


@pytest.mark.slow
def test_many_clients_have_the_messages_of_the_few_that_work(terminal: Terminal) -> None:
    """Of a hundred 32 work; the others keep what these keep, and send as much."""
    asked = experiment("fedrep", participation=0.5, engine="batched", client_dropout=0.2)
    asked = asked.updated({"data.clients": 100})
    found = explain(asked)
    assert (found.engine, found.reason, found.chunk > 1) == ("batched", "as asked", True)
    first, second = coterie.rounds(asked)
    assert found.up_bytes == second.up_bytes_total
    assert found.first is not None
    assert found.first.participants == first.metrics["participants"] < 50
    assert part(found, "client states") == 150 * 4 * 15_010


# ---- the command


@pytest.mark.medium
def test_the_command_says_all_of_it(terminal: Terminal, tmp_path: Path) -> None:
    code, out, err = terminal("explain", "fesem", "--clients", "12", "--rounds", "4", "--set", "lr=0")
    assert (code, err) == (0, "")
    for words in (
        "batched",
        "kernel",
        "memory  about",
        "worker processes",
        "server state",
        "whole run",
        "simulated",
    ):
        assert words in out
    assert "note: training.lr = 0" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
def test_json_is_for_machines(terminal: Terminal) -> None:
    code, out, err = terminal(
        "explain", "fedavg", "--clients", "12", "--participation", "0.5", "--rounds", "3", "--json"
    )
    assert (code, err) == (0, "")
    read = json.loads(out)
    assert read["experiment"]["method"]["name"] == "fedavg"
    assert read["whole"]["up_bytes"] == 3 * 6 * 4 * 15_010
    assert read["first"]["down_bytes"] == 6 * 4 * 15_010
    assert read["whole"]["bytes"] == sum(p["bytes"] for p in read["memory"])


def test_the_same_is_refused_as_by_run(terminal: Terminal) -> None:
    words = ("fesm", "--rounds", "0", "--set", "lr")
    explained, ran = terminal("explain", *words), terminal("run", *words)
    assert explained.code == 2
    assert explained.err == ran.err
    with pytest.raises(BadInput):
        coterie.explain(Experiment(method={"name": "fesem", "clusters": 50}))
