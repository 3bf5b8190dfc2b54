"""Which model a run serves to whom: the very one that its evaluation measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import coterie
from coterie.clients.data import build as build_federation
from coterie.clients.data.agree.own import Holding
from coterie.clients.data.agree.population import RemotePopulation
from coterie.clients.data.federation import Federation
from coterie.clients.data.read.columns import Named
from coterie.clients.data.read.preparation import Preparation
from coterie.clients.engine.engine import Engine
from coterie.clients.rules import (
    AdaptThenEvaluate,
    Answer,
    Client,
    Evaluate,
    Losses,
    Order,
    PLUThenEvaluate,
    Rule,
    Work,
    rule,
)
from coterie.clients.rules.evaluated_model import HandOver
from coterie.errors import BadInput
from coterie.methods import METHODS
from coterie.methods.exchange import Exchange, Send
from coterie.models.layout import Layout
from coterie.models.networks import channels_first
from coterie.runs import loop
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import prepare
from coterie.runs.session import Session
from coterie.runs.setup import Backend, engine_spec
from coterie.runtime.remote.client_runner import ClientRunner
from coterie.runtime.remote.codec import pack_order, unpack_order
from coterie.runtime.remote.message import Message
from coterie.runtime.remote.runtime import RemoteRuntime
from coterie.shipping.model.served import adapt_to_this_machine, trained_model
from coterie.shipping.model.trained import Trained
from coterie.shipping.registration import Registration
from tests.interrupted import Stopping
from tests.loopback import MemoryStateStore

CLIENTS = 8
SERVING = ("fesem", "ifca", "fedcps", "fedrep", "ditto", "per-fedavg", "fedcr", "dcpfl", "fedtsdp")
"""One method of each way in which a client comes to what it is evaluated with."""


@rule("asks-for-no-score")
class AsksForNoScore(Rule):
    """A rule that evaluates nothing."""

    def run(self, client: Client, order: Order) -> Work:
        yield Losses(order.items["model"].values[None])
        return Answer()

    def settings(self) -> dict[str, object]:
        return {}


def test_what_scores_nothing_hands_nothing_over() -> None:
    session = Session(coterie.Experiment(method="fedavg", data={"clients": 3}, run={"workers": 1}))
    try:
        model, who = session.server.initial(0), np.array([1, 2])
        send = {"model": Send.same(model, who)}
        session.runtime.begin_round(1)
        replies = session.runtime.measure(Exchange(who, HandOver(AsksForNoScore()), send))
        assert list(replies.missing) == [1, 2]
        assert "no model" in replies.missing[1]
        replies = session.runtime.measure(Exchange(who, HandOver(Evaluate("validation")), send))
        assert torch.equal(replies.models, torch.stack([model, model]))
        assert session.runtime.ledger.rows == []
    finally:
        session.close()


@pytest.fixture(scope="module")
def federation() -> Federation:
    return build_federation("digits", "rotated(4)", CLIENTS, 0, samples_per_client=60, public=None)


def trained(folder: Path, method: str, rounds: int = 3, **run: object) -> RunFolder:
    experiment = coterie.Experiment(
        method=method,
        data={"clients": CLIENTS, "samples_per_client": 60, "split": "rotated(4)"},
        run={"rounds": rounds, "participation": 0.5, "workers": 1, "folder": str(folder), "name": method, **run},
    )
    return RunFolder(coterie.run(experiment).folder)


def accuracy(model: Trained, federation: Federation, client: int) -> float:
    inputs, labels = federation.slice(client, "test")
    with torch.inference_mode():
        guesses = model.network()(channels_first(inputs)).argmax(1)
    return float((guesses == labels).float().mean())


@pytest.mark.medium
@pytest.mark.thinned(3)
@pytest.mark.parametrize("method", SERVING)
def test_a_client_gets_the_model_it_was_evaluated_with(tmp_path: Path, method: str) -> None:
    run = trained(tmp_path, method)
    public = METHODS[method].target().needs.public
    held = build_federation(
        "digits", "rotated(4)", CLIENTS, 0, samples_per_client=60, public=None, usual_public=public
    )
    last = run.clients().filter(run.clients()["round"] == 3)
    for client in (0, 5):
        model, notes = trained_model(run, client=str(client))
        assert model.about.whose == f"client 'client {client}' of run {method} after round 3"
        if method == "fedcr":  # scored by the mean of several draws
            (note,) = notes
            assert re.search(f"'client {client}' .*18 draws", note)
            continue
        assert notes == []
        assert accuracy(model, held, client) == pytest.approx(last["accuracy"][client], abs=1e-6)


@pytest.mark.medium
def test_a_group_gets_what_its_members_are_served(tmp_path: Path, federation: Federation) -> None:
    run = trained(tmp_path, "ifca", rounds=2)
    last = run.clients().filter(run.clients()["round"] == 2)
    groups = last["group"].to_numpy()
    assert len(set(groups.tolist())) > 1
    for group in set(groups.tolist()):
        members = np.flatnonzero(groups == group)
        model, notes = trained_model(run, group=group)
        assert notes == []
        assert f"group {group} ({len(members)} client" in model.about.whose
        for member in members.tolist():
            assert torch.equal(trained_model(run, client=f"client {member}")[0].vector, model.vector)
    with pytest.raises(BadInput, match=r"ifca .*\d groups, .*: 0 \(\d\), 1 .*--group"):
        trained_model(run)
    with pytest.raises(BadInput, match=r"group 9 .*ifca; .* 0, 1"):
        trained_model(run, group=9)
    with pytest.raises(BadInput, match=r"client.*group"):
        trained_model(run, client="0", group=0)
    with pytest.raises(BadInput, match=r"'client 99' .*client \d"):
        trained_model(run, client="client 99")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("method", "said"),
    [("fedper", "group 0 .*13,000 of 15,010.*'client 0'"), ("local-only", "group 0 .*no model.*'client 0'")],
)
def test_a_group_without_a_model_says_so(tmp_path: Path, method: str, said: str) -> None:
    run = trained(tmp_path, method, rounds=1)
    with pytest.raises(BadInput, match=said):
        trained_model(run, group=0)


@pytest.mark.medium
def test_what_clients_make_of_a_groups_model_is_said(tmp_path: Path) -> None:
    run = trained(tmp_path, "ditto", rounds=1)
    group, notes = trained_model(run)  # there is one group
    assert ["--client" in note for note in notes] == [True]
    assert not torch.equal(group.vector, trained_model(run, client="2")[0].vector)


@pytest.mark.medium
@pytest.mark.parametrize("method", ["ifca", "fedtsdp"])
def test_newcomers_get_the_model_they_arrive_with(tmp_path: Path, method: str) -> None:
    run = trained(tmp_path, method, rounds=2, holdout_clients=0.3)
    joined = run.newcomers()
    assert joined is not None
    assert joined.height == 2
    session = Session(coterie.Experiment.from_toml(run.experiment_text() + "\n"))
    session.close()
    held = session.population
    assert isinstance(held, Federation)
    for client, name, arrival in joined.select("client", "name", "arrival").iter_rows():
        model, notes = trained_model(run, client=name)
        assert [repr(name) in note for note in notes] == [True]
        assert accuracy(model, held, client) == pytest.approx(arrival, abs=1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_run_on_a_gpu_is_taken_up_without_one() -> None:
    given = coterie.Experiment(run={"engine": "gpu", "workers": 3, "client_timeout": 5.0, "rounds": 7})
    found, notes = adapt_to_this_machine(given)
    assert found == coterie.Experiment(run={"engine": "auto", "workers": 1, "rounds": 7})
    assert ["GPU" in note for note in notes] == [True]
    assert adapt_to_this_machine(found) == (found, [])


@pytest.mark.medium
def test_an_interrupted_run_gives_its_last_checkpoint(tmp_path: Path, federation: Federation) -> None:
    experiment = coterie.Experiment(
        method="fedavg",
        data={"clients": CLIENTS, "samples_per_client": 60, "split": "rotated(4)"},
        run={"rounds": 9, "workers": 1, "folder": str(tmp_path), "name": "cut", "checkpoint_every": 1},
    )

    result = coterie.run(experiment, observers=[Stopping(2)])
    assert result.status == "interrupted"
    model, _ = trained_model(RunFolder(result.folder), client="4")
    assert model.about.whose.endswith("round 2")
    accuracies = result.clients.filter(result.clients["round"] == 2)["accuracy"]
    assert accuracy(model, federation, 4) == pytest.approx(accuracies[4], abs=1e-6)
    older, newest = sorted((result.folder / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    model, notes = trained_model(RunFolder(result.folder), client="4")
    assert model.about.whose.endswith("round 1")
    assert ["damaged" in note for note in notes] == [True]
    older.unlink()
    newest.unlink()
    with pytest.raises(BadInput, match=r"cut .*no checkpoint"):
        trained_model(RunFolder(result.folder), client="4")


class AtHome(RemoteRuntime):
    """Clients with data of their own, in this process."""

    def __init__(self, runners: Sequence[ClientRunner], engine: Engine, bounds: NDArray[np.int64]) -> None:
        super().__init__(engine, bounds)
        self._runners = runners

    def post(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        return {client: self._runners[client].answer(message) for client, message in messages.items()}


NAMES = [*map(str, range(9)), "nine"]
OWN = {"name": "remote", "clients": CLIENTS, "features": [8, 8, 1], "classes": NAMES}
REHEARSED = {"clients": CLIENTS, "samples_per_client": 60, "split": "rotated(4)"}


def federated(
    folder: Path, federation: Federation, method: str, data: dict[str, Any]
) -> tuple[RunFolder, dict[int, torch.Tensor]]:
    """A run whose clients keep data and states to themselves, and the models that they were evaluated with."""
    experiment = coterie.Experiment(
        method=method, data=data, run={"rounds": 3, "workers": 1, "folder": str(folder), "name": "real"}
    ).resolved()
    prepared = prepare(experiment)
    holdings = [Holding.of(federation, client) for client in range(CLIENTS)]
    engines = [engine_spec(prepared, holding).build() for holding in holdings]
    served: dict[int, torch.Tensor] = {}

    def keeps(client: int) -> Callable[[torch.Tensor, Layout], None]:
        return lambda model, layout: served.update({client: model.clone()})

    runners = [ClientRunner(engine, MemoryStateStore(), keeps(client)) for client, engine in enumerate(engines)]
    remote = RemotePopulation("own", tuple(holding.info for holding in holdings))
    population = remote if experiment.data.is_remote else federation
    backend = Backend(population, np.empty(0, np.int64), AtHome(runners, engines[0], remote.bounds))
    run = RunFolder(loop.run(experiment, backend=backend).folder)
    Registration("0" * 32, remote.clients).write(run.path)
    return run, served


@pytest.mark.medium
@pytest.mark.parametrize("data", [OWN, REHEARSED], ids=["own", "rehearsed"])
def test_a_real_federation_gives_its_groups_models(
    tmp_path: Path, federation: Federation, data: dict[str, Any]
) -> None:
    run, served = federated(tmp_path, federation, "ifca", data)
    last = run.clients().filter(run.clients()["round"] == 3)
    for group, client in zip(last["group"], last["client"], strict=True):
        model, notes = trained_model(run, group=group)
        assert notes == []
        assert model.about.labels == (tuple(NAMES) if data is OWN else None)
        assert torch.equal(model.vector, served[client])


@pytest.mark.medium
def test_how_arrays_of_real_clients_become_inputs_stays_with_the_model(
    tmp_path: Path, federation: Federation
) -> None:
    said = {"standardise": "client", "missing": "zero", "label": "ill"}
    run, _ = federated(tmp_path, federation, "fedavg", {**OWN, **said})
    known = Preparation(missing="zero", standardise="client", named=Named(label="ill"))
    assert trained_model(run)[0].about.preparation == known


@pytest.mark.medium
@pytest.mark.parametrize("data", [OWN, REHEARSED], ids=["own", "rehearsed"])
def test_a_real_federation_does_not_give_its_clients_models(
    tmp_path: Path, federation: Federation, data: dict[str, Any]
) -> None:
    run, _ = federated(tmp_path, federation, "fedper", data)
    with pytest.raises(BadInput, match=r"'client 0' .*real.*state"):
        trained_model(run, client="client 0")
    with pytest.raises(BadInput, match=r"group 0 .*13,000 of 15,010"):
        trained_model(run, group=0)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.array(["cat", "dog", "eel"])[np.arange(120) % 3]
    features = rng.normal(size=(120, 5)) + 3 * np.eye(3, 5)[np.arange(120) % 3]
    path = tmp_path / "pets.npz"
    np.savez(path, x=features, y=labels)
    return path


@pytest.mark.medium
def test_a_model_knows_what_its_classes_are_called(tmp_path: Path, pets: Path) -> None:
    experiment = coterie.Experiment(
        method="fedavg",
        data={"name": str(pets), "clients": 4},
        run={"rounds": 1, "workers": 1, "folder": str(tmp_path / "runs"), "name": "pets"},
    )
    run = RunFolder(coterie.run(experiment).folder)
    about = trained_model(run)[0].about
    assert about.labels == ("cat", "dog", "eel")
    assert (about.data, about.features, about.classes) == ("", (5,), 3)
    with np.load(pets) as held:
        np.savez(pets, x=held["x"] + 1, y=held["y"])
    with pytest.raises(BadInput, match="no longer"):
        trained_model(run)


@pytest.mark.parametrize(
    "evaluation",
    [Evaluate("validation", "model"), AdaptThenEvaluate(layers="last:1", epochs=2), PLUThenEvaluate(lambda_0=0.3)],
    ids=lambda evaluation: evaluation.name,
)
def test_handing_over_crosses_as_bytes(evaluation: Rule) -> None:
    order = Order(3, 7, HandOver(evaluation), {})
    found = unpack_order(pack_order(order)).rule
    assert found == order.rule
    assert isinstance(found, HandOver)
    assert type(found.evaluation) is type(evaluation)
