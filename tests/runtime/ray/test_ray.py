"""The Ray runtime gives the local runtime's bits, whatever becomes of its workers and their machines."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.rules import ChooseThenTrain
from coterie.errors import BadInput
from coterie.grouping.exact_sums import Reduce
from coterie.methods.aggregation import Aggregation
from coterie.methods.exchange import Exchange, Outputs, Replies, Send
from coterie.runs.hooks.picture import ModelSketches
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session
from coterie.runtime.local.runtime import LocalRuntime
from coterie.runtime.runtime import Runtime
from tests.federated import same
from tests.process_table import command, family, has_ended, until
from tests.runtime.kinds import ask, kept, spec_of
from tests.runtime.test_faults import BAD, CLIENTS, Keeping, has_failed

MISSING = importlib.util.find_spec("ray") is None
pytestmark = [pytest.mark.medium, pytest.mark.skipif(MISSING, reason="Ray is not installed (coterie[ray])")]

WIDE = {"network.name": "mlp", "network.hidden": [800]}
"""240 kB a model: above 100 kB Ray hands what travels round in shared memory."""

EVERYONE = np.arange(CLIENTS)
SPEC = spec_of(CLIENTS, engine="batched", samples=40)

METHODS: dict[str, dict[str, Any]] = {
    "fedtsdp": {"run.client_dropout": 0.3},
    "fedper": {
        "run.participation": 0.5,
        "run.engine": "sequential",
        "privacy.unit": "example",
        "privacy.noise_multiplier": 1.0,
        **WIDE,
    },
    "feddane": {"run.client_dropout": 0.3},
    "scaffold": {},
}
"""Each with what else is said. FedTSDP asks for outputs; FedPer keeps states, and adds noise here; of FedDANE and
SCAFFOLD sums are made."""


def here() -> LocalRuntime:
    runtime = LocalRuntime(*SPEC, workers=1)
    runtime.together = 4  # several chunks of several clients
    return runtime


def on_ray(**settings: Any) -> Any:
    from coterie.runtime.ray.runtime import RayRuntime

    runtime = RayRuntime(*SPEC, **settings)
    runtime.together = 4
    return runtime


def keep(runtime: Runtime, number: int, fault: str = "", once: str = "") -> Replies:
    start = torch.linspace(-0.1, 0.1, runtime.layout.size)
    exchange = Exchange(EVERYONE, Keeping(fault, once), {"model": Send.same(start, EVERYONE)})
    return ask(runtime, exchange, number)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A Ray of its own, which every runtime of this module uses, and which leaves nothing behind."""
    before = signal.getsignal(signal.SIGTERM)
    others = set(family(os.getpid()))  # a federation that tests share may be running beside it
    first = on_ray()
    folder = Path(first.cluster.folder)
    try:
        assert signal.getsignal(signal.SIGTERM) == before
        assert (folder / "session_latest").exists()
        yield first
        # Python's own process that keeps track of shared memory stays as long as this one.
        new = [p for p in family(os.getpid()) if p not in others and not has_ended(p)]
        begun = [p for p in new if "multiprocessing" not in " ".join(command(p))]
        assert len(begun) > 3
    finally:
        first.close()
    assert until(lambda: all(map(has_ended, begun)), 180)  # Ray's own agents take their time on a busy machine
    assert not folder.exists()
    assert signal.getsignal(signal.SIGTERM) == before


def trained(method: str, runtime: str, **settings: Any) -> tuple[list[Any], Session]:
    """All that three rounds on digits leave behind."""
    experiment = Experiment(
        method=method,
        data={"name": "digits", "clients": 12, "split": "dirichlet(0.5)"},
        run={"workers": None if runtime == "ray" else 1, "runtime": runtime, "rounds": 3},
    ).updated(settings)
    session = Session(experiment, secret=bytes(32))
    seen: list[Any] = []
    try:
        for number in (1, 2, 3):
            result = session.play_round(number)
            session.evaluate_if_due(result)
            result.seconds = 0.0
            row = session.record(result)
            seen += [row, list(session.runtime.ledger.rows), list(session.runtime.failures), vars(result.scores)]
        seen += [session.to_checkpoint(), session.find(ModelSketches).draw()]
        return seen, session
    finally:
        session.close()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_method_gets_the_bits_of_the_local_runtime(ray: Any, method: str) -> None:
    expected, _ = trained(method, "local", **METHODS[method])
    found, session = trained(method, "ray", **METHODS[method])
    assert type(session.runtime) is type(ray)
    for one, other in zip(expected, found, strict=True):
        assert same(one, other)
    if method == "fedtsdp":
        assert [*expected[2], *expected[6], *expected[10]], "somebody failed"
    if method == "fedper":
        assert found[-2]["kept"]


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 20])
def test_sums_have_the_bits_of_rows(ray: Any, together: int) -> None:
    everyone = np.arange(60)
    asked = spec_of(60, engine="batched", samples=40)
    local, far = LocalRuntime(*asked, workers=1), type(ray)(*asked)
    far.together = together  # clients of a job; a call has several, and brings one sum of all
    start = torch.stack([torch.linspace(-0.1, end, local.layout.size) for end in (0.1, 0.2)])
    chosen = Reduce.by_choice(everyone, 2, np.random.default_rng(0).integers(1, 90, 60))
    chosen = replace(chosen, row_limit=float("inf"))
    send = {"models": Send.all(start, everyone)}
    try:
        rows = local.answer(Exchange(everyone, ChooseThenTrain(), send))
        assert isinstance(rows, Replies)
        limit = float(np.quantile(rows.update_lengths["model"], 0.9))
        for reduce in (chosen, replace(chosen, row_limit=limit)):
            sums = far.answer(Exchange(everyone, ChooseThenTrain(), send, reduce={"model": reduce}))
            assert len(sums.sums["model"].rows) == int((rows.update_lengths["model"] > reduce.row_limit).sum())
            found = [Aggregation().centres(replies, "model", reduce, start) for replies in (sums, rows)]
            assert torch.equal(*found)
    finally:
        far.close()
        local.close()


@pytest.mark.slow
def test_faulty_clients_are_left_out_and_come_back(ray: Any, tmp_path: Path) -> None:
    """The others get the bits of a run without a fault, and the state of who fails stays as it was."""
    sound, others = here(), [client for client in range(CLIENTS) if client != BAD]
    expected = [keep(sound, number) for number in range(1, 7)]
    assert torch.equal(keep(ray, 1).models, expected[0].models)
    before = kept(ray, BAD)["model"].clone()
    for number, fault in enumerate(("raise", "unreadable", "die"), 2):
        replies = keep(ray, number, fault)
        assert has_failed(replies.missing, fault)
        assert torch.equal(replies.models, expected[number - 1].models[others])
        assert torch.equal(kept(ray, BAD)["model"], before)
        assert len(ray.notes) == (fault == "die")
    # A worker that dies once costs nobody the round.
    replies = keep(ray, 5, "die", str(tmp_path))
    assert (tmp_path / "done").exists()
    assert dict(replies.missing) == {}
    assert torch.equal(replies.models, expected[4].models)
    assert [re.search("died; 4 ", note) is not None for note in ray.notes] == [True]
    assert torch.equal(keep(ray, 6).models, expected[5].models)
    assert ray.notes == []
    for client in range(CLIENTS):
        assert torch.equal(kept(ray, client)["model"], kept(sound, client)["model"])


@pytest.mark.slow
def test_whoever_takes_too_long_is_left_out(ray: Any) -> None:
    expected, runtime = keep(here(), 1), on_ray(timeout=5.0)
    replies = keep(runtime, 1, "sleep")
    others = [client for client in range(CLIENTS) if client != BAD]
    assert {client: "5 s" in reason for client, reason in replies.missing.items()} == {BAD: True}
    assert torch.equal(replies.models, expected.models[others])
    assert runtime.notes == []
    assert dict(keep(runtime, 2).missing) == {}


def test_outputs_that_cannot_be_computed(ray: Any) -> None:
    models = torch.zeros(2, ray.layout.size)
    with pytest.raises(RuntimeError, match=r"outputs.*RuntimeError: .*64"):
        ray.outputs(Outputs(models, torch.zeros(5, 7)))


def test_a_process_has_one_cluster(ray: Any) -> None:
    with pytest.raises(BadInput, match=r"'127.0.0.1:1'.* Ray .*:\d"):
        on_ray(address="127.0.0.1:1")
    on_ray(address="auto").close()
    assert dict(keep(ray, 1).missing) == {}


def test_other_versions_are_refused(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from a process that takes itself to have a newer PyTorch than the workers have."""
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9" if name == "torch" else real(name))
    with pytest.raises(BadInput, match=r"node [\d.]+ .*torch 2\S+;.* 9\.9"):
        on_ray()


ADDRESSES = {
    "somewhere": r"'somewhere' .*auto or HOST:PORT",
    "ray://127.0.0.1:10001": r"auto or HOST:PORT",
    "127.0.0.1:99999": r"auto or HOST:PORT",
    "127.0.0.1:{closed}": r"\(Connection refused\); .*ray start --head",
    "no-such-machine.invalid:6379": r"\(.*\); .*ray start --head",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_is_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # this module's own is of no matter
    with socket.socket() as bound:
        bound.bind(("", 0))  # without listening
        begun = time.monotonic()
        with pytest.raises(BadInput, match=ADDRESSES[address]):
            on_ray(address=address.format(closed=bound.getsockname()[1]))
    assert time.monotonic() - begun < 20


def test_an_address_of_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socketserver.TCPServer(("", 0), Web) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            with pytest.raises(BadInput, match=r"not Ray.*address"):
                on_ray(address=f"127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()


class Web(socketserver.BaseRequestHandler):
    """Answers as a web server does."""

    def handle(self) -> None:
        self.request.recv(1024)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.slow
def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.runtime.ray.cluster.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"^run\.runtime = 'ray' .*coterie\[ray\]$"):
        on_ray()
