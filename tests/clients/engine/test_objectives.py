"""Local losses that a rule brings, and whatever else it may ask: on both engines, on workers, and over bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.device import OnDevice
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import (
    OBJECTIVES,
    RULES,
    Answer,
    Batch,
    Client,
    Gradients,
    Inspect,
    LocalModel,
    LocalUpdate,
    Loss,
    Objective,
    ObjectiveUpdate,
    Order,
    Request,
    Rule,
    TaskLoss,
    Train,
    Trained,
    Training,
    Work,
    objective,
    rule,
)
from coterie.clients.rules.minibatch import Samples
from coterie.clients.rules.requests import LocalNetwork
from coterie.grouping.aggregate import mean
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.methods.one_model import GlobalState, OneModel
from coterie.models.networks import channels_first
from coterie.randomness import stream
from tests.clients.engine.population import SEED, Population, population
from tests.federated import planted, same, train

PLAIN = Training(epochs=2, batch_size=10, lr=0.1)
# ---- one file: a loss, the rule that trains on it, the method that sends the rule


@objective("test-adjusted-focal")
@dataclass(frozen=True)
class AdjustedFocal(Objective):
    """Focal loss of logits to which the log frequency of each class is added (Lin 2017; Menon 2021)."""

    gamma: float = 2.0
    tau: float = 1.0

    def loss(self, model: LocalModel, batch: Batch, extras: Mapping[str, Tensor]) -> Loss:
        logits = model(batch.inputs) + self.tau * extras["frequency"].log()
        each = cross_entropy(logits, batch.labels, reduction="none")
        return Loss(batch.mean((1 - torch.exp(-each)) ** self.gamma * each), batch.mean(each))


def class_frequency(batch: Batch, model: LocalModel | None) -> Tensor:
    """The share of each of 10 classes, none below one in a hundred."""
    counts = torch.bincount(batch.labels, minlength=10).float()
    return (counts / counts.sum().clamp(min=1)).clamp(min=0.01)


@rule("test-adjusted-update")
@dataclass(frozen=True)
class AdjustedUpdate(Rule):
    """Train on the adjusted focal loss with the client's own class frequencies."""

    gamma: float = 2.0
    uploads = ("model",)

    def run(self, client: Client, order: Order) -> Work:
        frequency: Tensor = yield Inspect(class_frequency)
        trained: Trained = yield Train(
            order.items["model"].values,
            pull=0.1,
            objective=AdjustedFocal(self.gamma),
            extras={"frequency": frequency},
        )
        return Answer({"model": trained.model}, report={"train_loss": trained.loss})


@dataclass(frozen=True)
class AdjustedAvg(OneModel):
    """FedAvg of clients that train on the adjusted focal loss, or by another rule."""

    rule: Rule = AdjustedUpdate()

    def round(self, state: GlobalState, cohort: Any) -> Any:
        send = {"model": Send.same(state.model[0], cohort.clients)}
        replies: Replies = yield Exchange(cohort.clients, self.rule, send)
        return GlobalState(mean(replies.models, state.model, replies.samples))


SIZES = [20 + 14 * i for i in range(10)]


@pytest.mark.medium
def test_a_new_loss_runs_everywhere() -> None:
    """Equal to 1e-5 between engines; to the bit between runtimes."""
    federation, method = planted("label", clients=10, sizes=SIZES), AdjustedAvg()
    runs = {engine: train(method, federation, 2, engine=engine) for engine in ("sequential", "batched")}
    for elsewhere in ({"workers": 2}, {"remote": True}):
        other = train(method, federation, 2, engine="batched", **elsewhere)
        assert all(same(a, b) for a, b in zip(runs["batched"].states, other.states, strict=True)), elsewhere
    one, many = (run.states[-1].model for run in runs.values())
    assert (one - many).abs().max() <= 1e-5
    plain = train(AdjustedAvg(rule=LocalUpdate()), federation, 2).states[-1].model
    assert (one - plain).abs().max() > 1e-2


@pytest.mark.medium
def test_a_registered_objective_by_its_name() -> None:
    """The rule's settings are plain values, from which a remote client builds rule and objective."""
    update = ObjectiveUpdate(TaskLoss())
    kind = RULES[update.name]
    assert kind.target(**kind.bind(json.loads(json.dumps(update.settings())))) == update
    assert OBJECTIVES["test-adjusted-focal"].bind({"gamma": 1.0}) == {"gamma": 1.0, "tau": 1.0}
    federation = planted("label", clients=10, sizes=SIZES)
    ours, plain, remote = (
        train(AdjustedAvg(rule=each), federation, 2, remote=over).states[-1].model
        for each, over in ((update, False), (LocalUpdate(), False), (update, True))
    )
    assert (ours - plain).abs().max() <= 1e-6
    assert torch.equal(ours, remote)


def test_an_objective_comes_with_its_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not imported the module that registers it, as a spawned worker or one of Ray's."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_losses.py").write_text(
        "from dataclasses import dataclass\nfrom coterie.clients.rules import Objective, objective\n"
        "@objective('test-elsewhere')\n@dataclass(frozen=True)\nclass Elsewhere(Objective):\n"
        "    gamma: float = 1.0\n"
    )
    monkeypatch.setattr(OBJECTIVES, "entries", dict(OBJECTIVES.entries))
    update = ObjectiveUpdate(import_module("own_losses").Elsewhere(2.0))
    content = bytes(ForkingPickler.dumps(update))  # as a worker process is sent it
    monkeypatch.delitem(sys.modules, "own_losses")
    del OBJECTIVES.entries["test-elsewhere"]
    assert ForkingPickler.loads(content).settings() == update.settings()
    assert OBJECTIVES["test-elsewhere"].bind({}) == {"gamma": 1.0}


# ---- what an engine makes of an objective


def answered(people: Population, requests: list[Request]) -> list[Any]:
    return people.engine.answer(people.clients[: len(requests)], requests)


def assert_alike(one: Trained, other: Trained, tolerance: float = 1e-5) -> None:
    assert (one.model - other.model).abs().max() <= tolerance
    assert one.loss == pytest.approx(other.loss, abs=1e-5, nan_ok=True)


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": ("mlp", (8, 8, 1)),
    "cnn": (
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Tanh(), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(36, 4)
        ),
        (8, 8, 1),
    ),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_extras_of_each_client(network: str) -> None:
    """Clients with extras of their own share a kernel; the networks see samples as they are under `Sequential`."""
    name, features = NETWORKS[network]
    one, many = (population(kind, PLAIN, name, features=features) for kind in (Sequential, Batched))
    asked: list[Request] = [
        Train(
            m,
            objective=AdjustedFocal(),
            extras={"frequency": softmax(torch.arange(4.0) * i / 5, 0)},
            weights=torch.linspace(0.0, 2.0, c.samples),
        )
        for i, (m, c) in enumerate(zip(one.models, one.clients, strict=True))
    ]
    for a, b in zip(answered(one, asked), answered(many, asked), strict=True):
        assert_alike(a, b)


@objective("test-distil")
@dataclass(frozen=True)
class Distil(Objective):
    """Towards the logits of a teacher, and features of small norm."""

    def loss(self, model: LocalModel, batch: Batch, extras: Mapping[str, Tensor]) -> Tensor:
        away = model(batch.inputs) - model.logits_at(extras["teacher"], batch.inputs)
        return batch.mean(away.square().sum(1)) + 0.1 * batch.mean(model.features(batch.inputs).square().sum(1))


def test_a_teacher_and_features() -> None:
    """One step against a plain loop; and on both engines alike."""
    training = Training(epochs=1, batch_size=100, lr=0.05)
    one, many = (population(kind, training) for kind in (Sequential, Batched))
    asked: list[Request] = [
        Train(m, objective=Distil(), extras={"teacher": one.models[0]}) for m in reversed(one.models)
    ]
    found = answered(one, asked)
    for a, b in zip(found, answered(many, asked), strict=True):
        assert_alike(a, b)
    x, _ = one.data.slice(2, "train")
    x = channels_first(x).flatten(1)
    start = one.models[-3].clone().requires_grad_()
    w1, b1, w2, b2 = (e.view(start) for e in one.layout.tensors)
    t1, c1, t2, c2 = (e.view(one.models[0]) for e in one.layout.tensors)
    hidden = (x @ w1.T + b1).relu()
    away = hidden @ w2.T + b2 - ((x @ t1.T + c1).relu() @ t2.T + c2)
    loss = away.square().sum(1).mean() + 0.1 * hidden.square().sum(1).mean()
    (gradient,) = torch.autograd.grad(loss, start)
    assert (found[2].model - (start - 0.05 * gradient)).abs().max() <= 1e-5
    assert found[2].loss == pytest.approx(loss.item(), rel=1e-5)


@objective("test-scaled")
@dataclass(frozen=True)
class Scaled(Objective):
    """Cross-entropy at a temperature that is learnt, of inputs with noise; it observes the labels."""

    batchable = False

    def loss(self, model: LocalModel, batch: Batch, extras: Mapping[str, Tensor]) -> Loss:
        noisy = batch.inputs + 0.01 * torch.randn(batch.inputs.shape)
        return Loss(batch.loss(model(noisy) * extras["scale"]), observed={"labels": batch.labels})

    def summarise(self, observed: Any, extras: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"labels": torch.cat([o["labels"] for o in observed])} if observed else {}


@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_what_is_trained_beside_the_model_and_what_is_observed(kind: type[Sequential] | type[Batched]) -> None:
    people = population(kind, PLAIN)
    scale = torch.ones(1)
    for _ in range(2):
        asked: list[Request] = [
            Train(m, objective=Scaled(), trained_extras={"scale": scale}) for m in people.models
        ]
        found = answered(people, asked)
        again = answered(people, asked)
        for i, (a, b) in enumerate(zip(found, again, strict=True)):
            assert torch.equal(a.model, b.model)  # what is drawn is addressed
            assert torch.equal(a.extras["scale"], b.extras["scale"])
            assert not torch.equal(a.extras["scale"], scale)
            rng = stream(SEED, "batches", i, 2)
            _, last = rng.permutation(people.clients[i].samples), rng.permutation(people.clients[i].samples)
            assert torch.equal(a.summary["labels"], people.data.slice(i, "train")[1][last])
    assert torch.equal(scale, torch.ones(1))


@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_weights_that_are_not_one_for_each_sample_are_refused(kind: type[Sequential] | type[Batched]) -> None:
    people = population(kind, PLAIN)
    with pytest.raises(ValueError, match=r"^weights .*\(3,\).*\(50,\)"):
        answered(people, [Train(people.models[0], weights=torch.ones(3))])


# ---- a look at the inputs, and requests that no engine knows


def subspace(batch: Batch, model: LocalModel | None) -> Tensor:
    """The first two directions of the features."""
    features = batch.inputs.flatten(1) if model is None else model.features(batch.inputs)
    directions: Tensor = torch.linalg.svd(features, full_matrices=False)[2][:2]
    return directions


@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_a_look_at_the_inputs(kind: type[Sequential] | type[Batched]) -> None:
    people = population(kind, PLAIN)
    before = answered(people, [Train(m) for m in people.models])
    pixels, features = answered(people, [Inspect(subspace), Inspect(subspace, "test", people.models[1])])
    assert (pixels.shape, features.shape) == ((2, 64), (2, 16))
    after = answered(people, [Train(m) for m in people.models])
    assert all(torch.equal(a.model, b.model) for a, b in zip(before, after, strict=True))


@dataclass(frozen=True, eq=False)
class StepBack(Request):
    """An algorithm of its own: up the gradient of each minibatch."""

    start: Tensor

    def run(self, network: LocalNetwork, samples: Samples, client: Client) -> Tensor:
        network.load_for_training(self.start, client, "batches")
        gradient = torch.zeros_like(self.start)
        for batch in network.minibatches(samples, client.stream("batches"), client.training.batch_size):
            network.gradient(batch.inputs, batch.labels, into=gradient)
            network.vector.add_(gradient)
        return network.vector.clone()


@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_a_request_that_brings_its_algorithm(kind: type[Sequential] | type[Batched]) -> None:
    people = population(kind, PLAIN.updated(batch_size=100))
    back, gradients = answered(people, [StepBack(people.models[0]), Gradients(people.models[1])])
    (one,) = answered(people, [Gradients(people.models[0])])
    assert (back - people.models[0] - one[0]).abs().max() <= 1e-5
    assert gradients.shape == (1, people.layout.size)


@dataclass(frozen=True, eq=False)
class CountSamples(Request):
    """An algorithm that is answered by no tensor: a number, or nothing where there is no sample."""

    def run(self, network: LocalNetwork, samples: Samples, client: Client) -> int | None:
        return len(samples[1]) or None


@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_a_request_may_be_answered_by_a_number_or_nothing(kind: type[Sequential] | type[Batched]) -> None:
    people = population(kind, PLAIN.updated(batch_size=100), counts=(20, 0, 5))
    assert people.engine.answer(people.clients, [CountSamples()] * 3) == [20, None, 5]
    own, initial = people.network, people.layout.flatten(people.network)
    on_device = OnDevice(
        own, people.layout, people.data, PLAIN, SEED, initial, kind=kind, device=torch.device("cpu")
    )
    assert on_device.answer(people.clients, [CountSamples()] * 3) == [20, None, 5]
