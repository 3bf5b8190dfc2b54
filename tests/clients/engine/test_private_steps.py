"""Steps that hide any one sample: single samples' gradients, what is cut and added, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isnan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.clients.data.divide.augmentation import Augmentation
from coterie.clients.data.federation import build
from coterie.clients.engine.batched import Batched
from coterie.clients.engine.device import OnDevice
from coterie.clients.engine.differentiation import ObjectiveOfEach
from coterie.clients.engine.private_steps import (
    ExamplePrivacy,
    OrderGuard,
    PrivateSteps,
    add_clipped,
    chunk_size,
    count_private_steps,
)
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import (
    RULES,
    Answer,
    Batch,
    Choose,
    Client,
    Evaluate,
    Gradients,
    Inspect,
    Item,
    LocalModel,
    LocalUpdate,
    Losses,
    MetaTrain,
    Objective,
    ObjectiveUpdate,
    Order,
    Request,
    Rule,
    Score,
    TaskLoss,
    Train,
    Trained,
    Training,
    UpdateKeepingSolver,
)
from coterie.clients.rules.rule import Work
from coterie.clients.tasks import TASKS
from coterie.errors import BadInput
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx
from coterie.methods.fedsgd import FedSGD
from coterie.models.layout import Layout, Part
from coterie.models.networks import channels_first, set_training
from coterie.plugins import allow
from coterie.randomness import PrivateRandomness
from coterie.runtime.local.runtime import EngineSpec
from coterie.runtime.ray.calls import Shipped
from tests.clients.engine.population import SEED, Population, Samples, population
from tests.federated import planted, same, train
from tests.own_networks import Frozen, Recurrent, tied
from tests.tasked import NETWORK, write


def privacy(clip_norm: float, noise_multiplier: float) -> ExamplePrivacy:
    """With the same draws each time."""
    return ExamplePrivacy(clip_norm, noise_multiplier, PrivateRandomness(seed=SEED))


EXACT = privacy(clip_norm=1e9, noise_multiplier=0.0)
HIDDEN = privacy(clip_norm=0.5, noise_multiplier=1.0)
ALL = Training(epochs=3, batch_size=64, lr=0.1)
"""Minibatches that hold all samples of a client."""
TEN = Training(epochs=2, batch_size=10, lr=0.1)


def private(hidden: ExamplePrivacy, training: Training = TEN, name: Any = "mlp", **settings: Any) -> Population:
    found = population(Sequential, training, name, **settings)
    found.engine.example_privacy = hidden
    return found


def trained(given: Population, **settings: Any) -> list[Trained]:
    requests = [Train(model, **settings) for model in given.models]
    found = given.engine.answer(given.clients, requests)
    assert all(isinstance(one, Trained) for one in found)
    return found  # type: ignore[return-value]  # as was asserted


class Plain(nn.Module):
    """Drops units behind a norm over groups, and keeps a count of how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten())
        self.head = nn.Linear(144, 4)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += x.mean()
        logits: Tensor = self.head(self.body(x).relu())
        return logits


class Branching(nn.Module):
    """A network that asks for a value, which `vmap` refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.flat(x))
        return logits if float(x.detach().sum()) > 0 else 2 * logits


# ---- what is cut and what is added


class _First(nn.Module):
    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        return given[0]


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "convolutions": Plain,
    "branching": Branching,
    "recurrent": lambda: nn.Sequential(Recurrent(4), _First()),
    "tied": partial(tied, (8, 8, 1), 4),
    "frozen": partial(Frozen, 4),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_the_mean_of_gradients_cut_sample_by_sample(name: str) -> None:
    """Against a loop, in all tensors and in some; samples far from the others count no more than these."""
    torch.manual_seed(1)
    given = private(EXACT, ALL.updated(epochs=1, lr=1.0), NETWORKS[name](), counts=(20,))
    layout, network, start = given.layout, given.network, given.models[0]
    given.data.inputs[0] *= torch.linspace(0.1, 4, 20).view(-1, 1, 1, 1)
    x, y = given.data.slice(0, "train")
    layout.bind(network, start.clone())
    set_training(network)
    for part in (layout.everything, layout.last_layers(1)):
        moving = [e for e in layout.tensors if not Part.of([(e.start, e.stop)]) - part]
        parameters = [network.get_parameter(e.name) for e in moving]
        rows = []
        for i in range(20):
            loss = cross_entropy(network(channels_first(x[i : i + 1])), y[i : i + 1])
            rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
        lengths = torch.stack(rows).norm(dim=1)
        limit = float(lengths.median())
        assert lengths.min() < limit < lengths.max()
        expected = (torch.stack(rows) * (limit / lengths).clamp(max=1)[:, None]).mean(0)
        given.engine.example_privacy = privacy(limit, 0.0)
        (found,) = trained(given, part=part)
        moved = torch.cat([(e.view(start) - e.view(found.model)).flatten() for e in moving])
        assert torch.allclose(moved, expected, atol=1e-5)
        rest = layout.everything - Part.of((e.start, e.stop) for e in moving)
        assert torch.equal(rest.take(found.model), rest.take(start))  # buffers too


def test_dropout_is_drawn_for_each_sample() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4))
    layout = Layout.of(network)
    parameters = {e.name: network.get_parameter(e.name) for e in layout.tensors}
    model, task = LocalModel(network, layout), TASKS["classification"].target()
    each = ObjectiveOfEach(TaskLoss(), model, layout, layout.tensors, {}, task)
    weight, _ = each.gradients(parameters, Batch(torch.ones(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64)))
    assert len({tuple((row[0] == 0).tolist()) for row in weight}) == 6


@pytest.mark.parametrize("odd", [inf, -inf, float("nan"), 1e30])
def test_what_is_not_finite_does_not_show(odd: float) -> None:
    total = [torch.ones(2)]
    add_clipped(total, [torch.tensor([[odd, 1.0], [0.0, 0.0], [3.0, 4.0]])], 1.0)
    assert torch.allclose(total[0], torch.tensor([1.6, 1.8]))


class Squared(Objective):
    """A loss that may not share a kernel."""

    name = "squared-for-a-test"
    batchable = False

    def loss(self, model: LocalModel, batch: Batch, extras: Mapping[str, Tensor]) -> Tensor:
        return batch.mean(model(batch.inputs).square().mean(1)) * extras["scale"]


@pytest.mark.parametrize(
    ("training", "settings"),
    [
        ({}, {}),
        ({}, {"pull": 0.5}),
        ({}, {"lr": 0.01, "epochs": 1}),
        ({"momentum": 0.9, "weight_decay": 0.01}, {"keep_solver": True}),
        ({"optimizer": "adam", "lr": 0.01}, {"keep_solver": True}),
        ({}, {"objective": Squared(), "extras": {"scale": torch.tensor(2.0)}}),
    ],
)
def test_without_noise_it_is_plain_training(training: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    plain, hidden = population(Sequential, ALL.updated(**training)), private(EXACT, ALL.updated(**training))
    for one, two in zip(trained(plain, **settings), trained(hidden, **settings), strict=True):
        assert torch.allclose(one.model, two.model, atol=1e-5)
        if one.solver is not None:
            assert two.solver is not None
            assert torch.allclose(one.solver, two.solver, atol=1e-5)


def test_noise_has_its_deviation() -> None:
    given = private(privacy(0.5, 3.0), Training(epochs=4, batch_size=10, lr=1.0), counts=(40,))
    quiet = private(privacy(0.5, 0.0), Training(epochs=4, batch_size=10, lr=1.0), counts=(40,))
    away = (trained(given)[0].model - trained(quiet)[0].model) / 4
    # 16 steps of 3.0 * 0.5 / 10 each; what the samples say differs by at most 0.06 beside it.
    assert float(away.std()) == pytest.approx(0.15, rel=0.1)


def test_an_empty_minibatch_is_noise_alone() -> None:
    training = Training(epochs=5, batch_size=1, lr=1.0)
    quiet = private(privacy(1.0, 0.0), training, counts=(2, 0))
    quiet.data.inputs[0] = quiet.data.inputs[0].fill_(inf)  # no sample counts
    for found, start in zip(trained(quiet), quiet.models, strict=True):
        assert torch.equal(found.model, start)
    loud = private(privacy(1.0, 1.0), training, counts=(2,))
    loud.data.inputs[0] = quiet.data.inputs[0]
    assert float((trained(loud)[0].model - loud.models[0]).std()) == pytest.approx(10**0.5, rel=0.1)


def test_samples_are_drawn_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often each is met is binomial; in epochs of a permutation, each is met once."""
    met = torch.zeros(1000, dtype=torch.int64)

    def note(generator: torch.Generator, batch: Tensor) -> Tensor:
        assert len(batch) == 1  # what alters several could mix them
        met[int(batch[0, 0, 0, 0])] += 1
        return batch

    monkeypatch.setattr(Samples, "augment", staticmethod(note))
    given = private(EXACT, Training(epochs=1, batch_size=10, lr=0.0), counts=(1000,), features=(1, 1, 1))
    given.data.inputs[0][:] = torch.arange(1000.0).view(-1, 1, 1, 1)
    trained(given)
    assert float(met.float().mean()) == pytest.approx(1, abs=0.1)
    assert float(met.float().var()) == pytest.approx(0.99, abs=0.15)


def test_samples_are_altered_from_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trained(private(HIDDEN))
    monkeypatch.setattr(Samples, "augment", Augmentation(("noise(scale=0.5)",)))
    altered = trained(private(HIDDEN))
    assert equal(altered, trained(private(HIDDEN)))
    assert not equal(altered, plain)


# ---- randomness


def equal(one: list[Trained], two: list[Trained]) -> bool:
    return all(torch.equal(a.model, b.model) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("randomness", [PrivateRandomness(seed=SEED), PrivateRandomness(b"nobody knows it")])
def test_noise_belongs_to_client_round_purpose_and_start(randomness: PrivateRandomness) -> None:
    hidden = replace(HIDDEN, randomness=randomness)
    client, start = private(HIDDEN).clients[0], torch.zeros(5)

    def draw(client: Client, request: Train) -> list[float]:
        return [float(rng.random()) for rng in hidden.generators(client, request)]

    usual = draw(client, Train(start))
    assert usual == draw(client, Train(start.clone(), pull=3.0))
    assert usual == draw(replace(client, seed=4), Train(start))  # which everybody may know
    others = [
        draw(replace(client, id=1), Train(start)),
        draw(replace(client, round=3), Train(start)),
        draw(client, Train(start, purpose="others")),
        draw(client, Train(start + 1)),
    ]
    assert len({number for some in [usual, *others] for number in some}) == 10


def test_without_a_secret_nothing_is_drawn_again() -> None:
    given = private(ExamplePrivacy(0.5, 1.0))
    assert not equal(trained(given), trained(given))
    assert equal(trained(private(HIDDEN)), trained(private(HIDDEN)))


def test_chunks_change_no_more_than_last_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(private(HIDDEN))
    assert chunk_size(10**12) == 1
    monkeypatch.setattr("coterie.clients.engine.sequential.chunk_size", lambda scalars: 3)
    for one, two in zip(whole, trained(private(HIDDEN)), strict=True):
        assert torch.allclose(one.model, two.model, atol=1e-5)


def test_every_engine_takes_the_same_steps() -> None:
    one = private(HIDDEN)
    many = population(Batched, TEN)
    many.engine.example_privacy = HIDDEN
    network, layout, cpu = one.network, one.layout, torch.device("cpu")
    moved = OnDevice(network, layout, one.data, TEN, SEED, one.models[0], HIDDEN, kind=Sequential, device=cpu)
    for other in (many, replace(one, engine=moved)):
        assert equal(trained(one), trained(other))


@pytest.mark.medium
@pytest.mark.parametrize("remote", [False, True])
def test_runs_have_the_same_bits_wherever_they_run(remote: bool) -> None:
    federation = planted(clients=4, samples=30)
    here = train(FedAvg(), federation, 2, example_privacy=HIDDEN)
    there = train(FedAvg(), federation, 2, example_privacy=HIDDEN, remote=remote, workers=1 if remote else 2)
    assert same(here.state, there.state)
    assert not same(here.state, train(FedAvg(), federation, 2).state)


# ---- what is counted


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((100, 20, 3), PrivateSteps(0.2, 15)),
        ((101, 20, 3, 4), PrivateSteps(20 / 101, 72)),
        ((5, 20, 3, 2), PrivateSteps(1.0, 6)),
        ((0, 20, 3, 2), PrivateSteps(0.0, 0)),
        ((50, 10, 0), PrivateSteps(0.2, 0)),
    ],
)
def test_steps_are_counted(given: tuple[int, ...], expected: PrivateSteps) -> None:
    assert count_private_steps(*given) == expected


def test_as_many_steps_are_taken_as_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []
    hide = ExamplePrivacy.hide

    def note(privacy: ExamplePrivacy, total: Any, expected: float, rng: Any) -> list[Tensor]:
        taken.append(expected)
        return hide(privacy, total, expected, rng)

    monkeypatch.setattr(ExamplePrivacy, "hide", note)
    given = private(HIDDEN)
    trained(given)
    counted = [count_private_steps(len(y), 10, 2) for y in given.data.labels]
    assert len(taken) == sum(c.steps for c in counted)
    sizes = [c.probability * len(y) for c, y in zip(counted, given.data.labels, strict=True)]
    assert sorted(set(taken)) == pytest.approx(sorted(set(sizes)))


# ---- what crosses, and what is refused


def carry_out(rule: Rule, privacy: ExamplePrivacy | None = HIDDEN, **items: Tensor) -> list[Answer]:
    given = population(Sequential, TEN)
    given.engine.example_privacy = privacy
    sent = {name: Item(values) for name, values in items.items()} or {"model": Item(given.models[0])}
    orders = [Order(i, 1, rule, sent) for i in range(3)]
    return given.engine.run_rules(orders, [{} for _ in orders])


@dataclass(frozen=True)
class AskAll(Rule):
    """Ask for whatever it is given, and tell what came of it."""

    requests: tuple[Any, ...] = ()
    uploads, private_steps = ("model",), True
    name = "ask-all"

    def run(self, client: Client, order: Order) -> Work:
        results: list[Any] = []
        for request in self.requests:
            results += [(yield request)]
        last = results[-1]
        model = {"model": last.model} if isinstance(last, Trained) else {}
        return Answer(model, report={"train_loss": 1.0, "first": results[0]})


def test_training_tells_a_model_and_nothing_else() -> None:
    for rule in (LocalUpdate(), ObjectiveUpdate(TaskLoss()), UpdateKeepingSolver()):
        for answer in carry_out(rule):
            assert set(answer.uploads) == {"model"}
            assert answer.numbers == {}
            assert set(answer.report) == {"trained_samples"}
    assert isnan(trained(private(HIDDEN))[0].loss)
    assert set(carry_out(LocalUpdate(), None)[0].report) == {"train_loss", "trained_samples"}


def test_held_out_samples_are_scored() -> None:
    found = carry_out(Evaluate())
    assert [answer.report["score"].samples for answer in found] == [50, 23, 33]


def test_two_trainings_of_an_order_have_noise_of_their_own() -> None:
    start = torch.zeros(private(HIDDEN).layout.size)
    half = Train(start, epochs=1)
    answers = carry_out(AskAll((half, half)))
    guard = OrderGuard(AskAll(), TEN)
    first, second = guard.admit(half), guard.admit(half)
    assert isinstance(first, Train)
    assert isinstance(second, Train)
    assert (first.purpose, second.purpose) == ("batches", "batches/2")
    alone = carry_out(AskAll((half,)))
    assert not torch.equal(answers[0].uploads["model"], alone[0].uploads["model"])


W = torch.zeros(1)
START = torch.zeros(private(HIDDEN).layout.size)


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([Losses(W[None], "validation")], "Losses"),
        ([Gradients(W)], "Gradients"),
        ([Inspect(lambda batch, model: W)], "Inspect"),
        ([Score(W, "train")], "Score"),
        ([MetaTrain(W, 0.1, 0.1)], "MetaTrain"),
        ([Train(W, weights=W)], "weights"),
        ([Train(W, trained_extras={"prior": W})], "trained_extras"),
        ([Train(W, clip=1.0)], "clip"),
        ([Train(W, minibatches=2)], "minibatches"),
        ([Train(START, epochs=1), Train(START)], r"3 epochs.* 2 .*training\.epochs"),
    ],
)
def test_other_looks_at_samples_are_refused(requests: Sequence[Request], reason: str) -> None:
    """Also where several trainings of one order make more steps than are counted."""
    with pytest.raises(BadInput, match=rf"ask-all .*{reason}") as error:
        carry_out(AskAll(tuple(requests)))
    assert "privacy.unit = 'example'" in str(error.value)


def test_rules_say_whether_they_take_private_steps() -> None:
    rules: dict[str, Any] = {name: RULES[name].target for name in RULES.names() if not name.startswith("test")}
    assert {name for name, kind in rules.items() if kind.private_steps} == {
        "evaluate",
        "evaluate-draws",
        "evaluate-head",
        "evaluate-interpolation",
        "evaluate-two-heads",
        "frozen-head-update",
        "hand-over",
        "local-update",
        "objective-update",
        "private-update",
        "train-own",
        "update-keeping-solver",
    }


def test_other_rules_are_refused_before_anybody_begins() -> None:
    with pytest.raises(BadInput, match=r"choose .*privacy\.unit = 'example'"):
        carry_out(Choose())
    with pytest.raises(BadInput, match=r"evaluate .*Losses"):
        carry_out(Evaluate(), models=torch.zeros(2, len(START)))
    federation = planted(clients=2, samples=10)
    with pytest.raises(BadInput, match="send-gradient"):
        train(FedSGD(), federation, 1, example_privacy=HIDDEN)
    assert len(train(FedProx(), federation, 1, example_privacy=HIDDEN).states) == 2


def spec(network: str, **settings: Any) -> EngineSpec:
    data = planted(clients=2, samples=10)
    return EngineSpec(network, {}, data.features, data, TEN, 0, example_privacy=HIDDEN, **settings)


def test_norms_over_the_batch_and_other_arithmetic_are_refused() -> None:
    with pytest.raises(BadInput, match=r"network\.name = 'planted-batch-norm'"):
        spec("planted-batch-norm").build()
    allow(["tests.own_networks:Frozen"])
    assert spec("tests.own_networks:Frozen").build().example_privacy == HIDDEN
    assert Shipped.of(spec("planted-perceptron")).build().example_privacy == HIDDEN
    with pytest.raises(BadInput, match=r"training\.precision = 'bf16'"):
        replace(spec("planted-perceptron"), training=TEN.updated(precision="bf16")).build()


def test_clients_are_trained_one_after_the_other() -> None:
    assert isinstance(spec("planted-perceptron").build(), Sequential)
    assert isinstance(replace(spec("planted-perceptron"), example_privacy=None).build(), Batched)
    with pytest.raises(BadInput, match=r"engine = 'batched'.*samples"):
        replace(spec("planted-perceptron"), wanted="batched").build()


# ---- tasks


@pytest.mark.parametrize("task", ["segmentation", "language", "multilabel", "binary", "regression", "forecasting"])
def test_every_task_takes_private_steps(task: str, tmp_path: Path) -> None:
    data = build(str(write(tmp_path, task)), "by-user", None, 0, task=TASKS[task].target())
    training = Training(epochs=2, batch_size=100, lr=0.05)
    plain = EngineSpec(NETWORK.get(task, "mlp"), {}, data.features, data, training, 0, "sequential")
    models = []
    for one in (plain, replace(plain, example_privacy=EXACT)):
        engine = one.build()
        client = engine.client(Order(0, 1, LocalUpdate(), {}), {})
        (found,) = engine.answer([client], [Train(client.initial())])
        assert isinstance(found, Trained)
        models.append(found.model)
    assert torch.allclose(models[0], models[1], atol=1e-5)
