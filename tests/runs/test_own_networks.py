"""Runs of networks of one's own: where they start, what never moves, workers, resuming, predicting, exporting."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import coterie
from coterie.advice.explain.explain import explain
from coterie.errors import BadInput
from coterie.models.networks import NETWORKS, channels_first
from coterie.plugins import fresh_consent
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.loop import resume, run
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session
from coterie.runtime.ledger import FROZEN
from coterie.shipping.model.export import export
from coterie.shipping.model.served import trained_model
from coterie.shipping.model.trained import read_model
from coterie.studies.compare.spec import key_of
from tests.interrupted import Stopping
from tests.own_networks import Frozen, ViT

OWN = "tests.own_networks:"


def experiment(network: Any, method: Any = "fedavg", **run: Any) -> Experiment:
    settings = {"rounds": 2, "workers": 1, **run}
    return Experiment(
        network=network,
        method=method,
        data={"name": "digits", "clients": 4, "split": "iid", "samples_per_client": 60},
        training={"lr": 0.05, "batch_size": 20},
        run=settings,
    )


def test_training_starts_where_the_module_is(tmp_path: Path) -> None:
    module = ViT(10)
    session = Session(experiment(module, "ifca"))
    try:
        flat = session.layout.flatten(module)
        assert torch.equal(session.server.initial(0), flat)
        others = [session.server.initial(variant) for variant in (1, 2)]
        assert not torch.equal(others[0], flat)
        assert not torch.equal(others[0], others[1])
        assert any("comes with" in said for said in session.describe())
    finally:
        session.close()
    weights = tmp_path / "start.safetensors"
    save_file({name: t.contiguous() for name, t in module.state_dict().items()}, weights)
    torch.save({"state_dict": module.state_dict()}, tmp_path / "start.pt")
    for file in (weights, tmp_path / "start.pt"):
        session = Session(experiment({"name": OWN + "ViT", "start": str(file)}))
        assert torch.equal(session.server.initial(0), flat)
        session.close()
    del (state := module.state_dict())["head.weight"], state["head.bias"]
    save_file({name: t.contiguous() for name, t in state.items()}, weights)
    session = Session(experiment({"name": OWN + "ViT", "start": str(weights)}))
    assert any(re.search(f"{weights}; head", said) for said in session.describe())
    session.close()


@pytest.mark.slow
def test_one_kernel_gives_the_same_bits_in_any_number_of_workers() -> None:
    torch.manual_seed(0)
    module, found = ViT(10), []
    # Ten clients are a chunk of eight in a kernel, and two who are trained one after the other.
    for engine, workers in (("auto", 1), ("batched", 2), ("sequential", 1)):
        asked = experiment(module, "ifca", workers=workers, engine=engine)
        session = Session(asked.updated({"data.clients": 10}))
        try:
            assert session.engine == ("sequential" if engine == "sequential" else "batched")
            for number in (1, 2):
                session.record(session.play_round(number))
            found.append(session.state.models.clone())
        finally:
            session.close()
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.allclose(found[0], found[2], atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("method", ["fedavg", "fesem", "ditto", "cfl", "lg-fedavg"])
def test_a_frozen_layer_never_moves(method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Frozen(10)
    before = {name: t.clone() for name, t in module.state_dict().items() if name.startswith("body")}
    session = Session(experiment(module, method))
    try:
        assert session.layout.size == 144 * 12 + 12 + 120 + 10
        for number in (1, 2):
            result = session.play_round(number)
            session.evaluate_if_due(result)
            down = [row for row in session.runtime.ledger.rows if row[2] == FROZEN]
            session.record(result)
            assert {row[3] for row in down} <= {4 * 9 + 4 + 4 * 4}
            counted = sorted(client for client, *_ in down)
            assert counted == ([0, 1, 2, 3] if number == 1 else [])
        after = session.runtime.engine.network.state_dict()
        for name, values in before.items():
            assert torch.equal(after[name], values), name
    finally:
        session.close()


@pytest.mark.slow
@pytest.mark.parametrize("network", [{"name": OWN + "Frozen"}, OWN + "tied"])
def test_two_workers_give_the_bits_of_one_and_resume_those_of_a_whole_run(network: Any, tmp_path: Path) -> None:
    settings = {"folder": str(tmp_path), "rounds": 2}
    whole = run(experiment(network, "fedper", **settings))
    two = run(experiment(network, "fedper", **{**settings, "workers": 2}))
    cut = run(experiment(network, "fedper", **settings), observers=[Stopping(1)])
    assert cut.status == "interrupted"
    again = resume(cut.folder)
    for other in (two, again):
        assert other.rounds.drop("seconds").equals(whole.rounds.drop("seconds"))
        assert other.clients.equals(whole.clients)
        assert other.ledger.equals(whole.ledger)


@pytest.mark.medium
def test_a_module_that_was_given_is_needed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    module, settings = Frozen(10), {"folder": str(tmp_path), "checkpoint_every": 1}
    whole = run(experiment(module, **settings))
    cut = run(experiment(module, **settings), observers=[Stopping(1)])
    text = (cut.folder / "experiment.toml").read_text("utf-8")
    assert 'name = "given:tests.own_networks.Frozen@' in text
    kept = load_file(cut.folder / "network.safetensors")
    assert all(torch.equal(kept[name], t) for name, t in module.state_dict().items())
    for name in [n for n in NETWORKS.entries if n.startswith("given:")]:  # as in another process
        monkeypatch.delitem(NETWORKS.entries, name)
    with pytest.raises(BadInput, match=r"network=.*coterie\.resume"):
        resume(cut.folder)
    with pytest.raises(BadInput, match=f"'?{cut.folder.name}"):
        resume(cut.folder, network=nn.Linear(2, 2))
    again = resume(cut.folder, network=Frozen(10))
    assert again.rounds.drop("seconds").equals(whole.rounds.drop("seconds"))
    model, _ = trained_model(RunFolder(cut.folder), group=0)
    assert torch.equal(model.network().get_parameter("body.0.weight"), module.get_parameter("body.0.weight"))


@pytest.mark.medium
@pytest.mark.parametrize("network", ["ViT", "Frozen"])
def test_a_network_of_a_path_is_exported_and_read(network: str, tmp_path: Path) -> None:
    result = run(experiment(OWN + network, folder=str(tmp_path)))
    trained, _ = trained_model(RunFolder(result.folder), group=0)
    x = channels_first(torch.randn(3, 8, 8, 1, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        wanted = trained.network()(x)
        export(trained, tmp_path / "model.safetensors")
        with fresh_consent(None):
            read = read_model(tmp_path / "model.safetensors", [OWN + network])
        assert torch.equal(read.network()(x), wanted)
        export(trained, tmp_path / "model.pt")
        state = torch.load(tmp_path / "model.pt", weights_only=True)
        plain = trained.network()
        plain.load_state_dict(state)
        assert torch.equal(plain(x), wanted)
    with fresh_consent(None), pytest.raises(BadInput, match="import"):
        read_model(tmp_path / "model.safetensors")


def test_a_head_that_is_named_stays_with_the_clients() -> None:
    session = Session(experiment({"name": OWN + "Recurrent", "head": ["gru", "classifier"]}, "fedper"))
    try:
        assert session.layout.layers == ("lstm", "gru+classifier")
        result = session.play_round(1)
        up = {scalars for _, way, _, scalars in session.runtime.ledger.rows if way == "up"}
        assert up == {session.layout.of_layers([0]).size}
        session.record(result)
    finally:
        session.close()


@pytest.mark.medium
def test_changed_weights_are_noticed(tmp_path: Path) -> None:
    cut = run(experiment(OWN + "ViT", folder=str(tmp_path), checkpoint_every=1), observers=[Stopping(1)])
    folder = RunFolder(cut.folder)
    folder.write_environment({**folder.environment(), "network": "0" * 16})
    with pytest.raises(BadInput, match=r"no longer.*weights"):
        resume(cut.folder)


def test_an_experiment_that_uses_nothing_new_has_the_key_of_before() -> None:
    plain = Experiment(network={"name": "vgg16", "head": "full"})
    assert plain.resolved().tables()["network"] == {
        "name": "vgg16",
        "head": "full",
        "batch_norm": False,
        "dropout": 0.5,
    }
    assert Experiment().resolved().tables()["network"] == {"name": "auto"}
    keys = {key_of(Experiment(network=n)) for n in ({"name": "cnn"}, {"name": "cnn", "initial": "kept"})}
    assert len(keys) == 2
    assert coterie.Experiment(network=ViT).network.name == OWN + "ViT"


@pytest.mark.medium
def test_explain_says_where_weights_come_from_and_what_the_head_is() -> None:
    found = "\n".join(explain(experiment(OWN + "Frozen", "fedper")).description)
    assert "comes with" in found
    assert "56 frozen parameters" in found
    assert "head, 130 of 1,870 parameters" in found
    named = explain(experiment({"name": OWN + "Frozen", "head": ["hidden", "head"]}, "fedper")).description[-1]
    assert "hidden+head, 1,870 of 1,870 parameters" in named
