"""Steps that hide any one sample: single samples' gradients, what is cut and added, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isnan
from pathlib import Path
from typing import Any

import numpy as np
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
    AdaptThenEvaluate,
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
from coterie.models.layout import Layout
from coterie.models.networks import channels_first
from coterie.models.origin import initialise
from coterie.plugins import allow
from coterie.randomness import PrivateRandomness
from coterie.runtime.local.runtime import EngineSpec
from coterie.runtime.ray.calls import Shipped
from tests.clients.engine.population import SEED, Population, Samples, population
from tests.federated import planted, same, train
from tests.own_networks import Frozen, Language, Recurrent, tied
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


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "convolutions": Plain,
    "branching": Branching,
    "recurrent": partial(Recurrent, 4),
    "tied": partial(tied, (8, 8, 1), 4),
    "frozen": partial(Frozen, 4),
}


# ---- gradients of single samples


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_a_loop(name: str) -> None:
    torch.manual_seed(1)
    network = NETWORKS[name]()
    if name == "recurrent":
        network = nn.Sequential(network, _First())
    layout = Layout.of(network)
    vector = initialise(network, layout, 0)
    layout.bind(network, vector)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    x, y = torch.randn(7, 1, 8, 8), torch.randint(4, (7,))
    parameters = {e.name: network.get_parameter(e.name) for e in layout.tensors}
    before = vector.clone()
    each = ObjectiveOfEach(
        TaskLoss(), LocalModel(network, layout), layout, layout.tensors, {}, TASKS["classification"].target()
    )
    found = each.gradients(parameters, Batch(x, y))
    assert torch.equal(vector, before)
    for i in range(len(x)):
        loss = cross_entropy(network(x[i : i + 1]), y[i : i + 1])
        for mine, theirs in zip(found, torch.autograd.grad(loss, list(parameters.values())), strict=True):
            assert torch.allclose(mine[i], theirs, atol=1e-6)


class _First(nn.Module):
    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        return given[0]


def test_gradients_in_some_tensors_alone() -> None:
    given = private(EXACT)
    layout = given.layout
    parameters = {e.name: given.network.get_parameter(e.name) for e in layout.tensors}
    batch = Batch(channels_first(given.data.inputs[0][:5]), given.data.labels[0][:5])
    model, task = LocalModel(given.network, layout), given.data.task
    whole = ObjectiveOfEach(TaskLoss(), model, layout, layout.tensors, {}, task).gradients(parameters, batch)
    (last,) = ObjectiveOfEach(TaskLoss(), model, layout, layout.tensors[-1:], {}, task).gradients(parameters, batch)
    assert torch.equal(last, whole[-1])


def test_dropout_is_drawn_for_each_sample() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4))
    layout = Layout.of(network)
    x = torch.ones(6, 1, 8, 8)
    parameters = {e.name: network.get_parameter(e.name) for e in layout.tensors}
    each = ObjectiveOfEach(
        TaskLoss(), LocalModel(network, layout), layout, layout.tensors, {}, TASKS["classification"].target()
    )
    weight, _ = each.gradients(parameters, Batch(x, torch.zeros(6, dtype=torch.int64)))
    assert len({tuple((row[0] == 0).tolist()) for row in weight}) == 6


# ---- what is cut and what is added


def test_every_sample_counts_up_to_the_limit() -> None:
    noise = torch.Generator().manual_seed(0)
    gradients = [10 ** torch.randn(9, 1, 1, generator=noise) * torch.randn(9, 3, 4, generator=noise) for _ in "ab"]
    whole = torch.cat([g.flatten(1) for g in gradients], 1)
    lengths = whole.norm(dim=1)
    assert lengths.min() < 2 < lengths.max()
    expected = (whole * (2 / lengths).clamp(max=1)[:, None]).sum(0)
    total = [torch.zeros(3, 4) for _ in "ab"]
    add_clipped(total, gradients, 2.0)
    assert torch.allclose(torch.cat([t.flatten() for t in total]), expected, atol=1e-5)
    for row in range(9):
        alone = [torch.zeros(3, 4) for _ in "ab"]
        add_clipped(alone, [g[row : row + 1] for g in gradients], 2.0)
        assert float(torch.cat(alone).norm()) <= min(2.0, float(lengths[row])) * (1 + 1e-5)


@pytest.mark.parametrize("odd", [inf, -inf, float("nan"), 1e30])
def test_what_is_not_finite_does_not_show(odd: float) -> None:
    total = [torch.ones(2)]
    add_clipped(total, [torch.tensor([[odd, 1.0], [0.0, 0.0], [3.0, 4.0]])], 1.0)
    assert torch.allclose(total[0], torch.tensor([1.6, 1.8]))


def test_without_noise_it_is_plain_training() -> None:
    for settings in ({}, {"pull": 0.5}, {"lr": 0.01, "epochs": 1}):
        plain, hidden = population(Sequential, ALL), private(EXACT, ALL)
        for one, two in zip(trained(plain, **settings), trained(hidden, **settings), strict=True):
            assert torch.allclose(one.model, two.model, atol=1e-6)


@pytest.mark.parametrize("solver", [{"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adam", "lr": 0.01}])
def test_every_solver_takes_private_steps(solver: Mapping[str, Any]) -> None:
    training = ALL.updated(**solver)
    one, two = trained(population(Sequential, training), keep_solver=True), trained(private(EXACT, training))
    for a, b in zip(one, two, strict=True):
        assert torch.allclose(a.model, b.model, atol=1e-5)
    kept = trained(private(EXACT, training), keep_solver=True)
    for a, b in zip(one, kept, strict=True):
        assert a.solver is not None
        assert b.solver is not None
        assert torch.allclose(a.solver, b.solver, atol=1e-5)


def test_only_the_part_moves() -> None:
    given = private(HIDDEN)
    part = given.layout.last_layers(1)
    rest = given.layout.everything - part
    for start, after in zip(given.models, trained(given, part=part), strict=True):
        assert torch.equal(rest.take(after.model), rest.take(start))
        assert not torch.equal(part.take(after.model), part.take(start))


def test_a_step_moves_no_further_than_its_samples_may() -> None:
    given = private(privacy(1e-3, 0.0), ALL.updated(epochs=1, lr=1.0))
    for start, after in zip(given.models, trained(given), strict=True):
        assert 0 < float((after.model - start).norm()) <= 1e-3 * (1 + 1e-3)


def test_noise_has_its_deviation() -> None:
    given = private(privacy(0.5, 3.0), Training(epochs=4, batch_size=10, lr=1.0), counts=(40,))
    quiet = private(privacy(0.5, 0.0), Training(epochs=4, batch_size=10, lr=1.0), counts=(40,))
    away = (trained(given)[0].model - trained(quiet)[0].model) / 4
    # 16 steps of 3.0 * 0.5 / 10 each; what the samples say differs by at most 0.06 beside it.
    assert float(away.std()) == pytest.approx(0.15, rel=0.1)
    mean = privacy(0.5, 3.0).hide([torch.zeros(200, 500)], 10.0, np.random.default_rng(0))
    assert float(mean[0].std()) == pytest.approx(0.15, rel=0.01)
    assert abs(float(mean[0].mean())) < 0.002


def test_an_empty_minibatch_is_noise_alone() -> None:
    training = Training(epochs=5, batch_size=1, lr=1.0)
    quiet = private(privacy(1.0, 0.0), training, counts=(2,))
    quiet.data.inputs[0] = quiet.data.inputs[0].fill_(inf)  # no sample counts
    assert torch.equal(trained(quiet)[0].model, quiet.models[0])
    loud = private(privacy(1.0, 1.0), training, counts=(2,))
    loud.data.inputs[0] = quiet.data.inputs[0]
    assert float((trained(loud)[0].model - loud.models[0]).std()) == pytest.approx(10**0.5, rel=0.1)


def test_nobody_trains_without_samples() -> None:
    given = private(HIDDEN, counts=(0,))
    (found,) = trained(given)
    assert torch.equal(found.model, given.models[0])


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
    def engines() -> list[Any]:
        found = []
        for kind in (Sequential, Batched):
            given = population(kind, TEN)
            given.engine.example_privacy = HIDDEN
            found.append(given)
        given = population(Sequential, TEN)
        on = OnDevice(
            Sequential,
            given.network,
            given.layout,
            given.data,
            TEN,
            SEED,
            given.models[0],
            torch.device("cpu"),
            HIDDEN,
        )
        return [*found, replace(given, engine=on)]

    one, two, three = (trained(given) for given in engines())
    assert equal(one, two)
    assert equal(one, three)


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


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Losses(W[None]), "Losses"),
        (Losses(W[None], "validation"), "Losses"),
        (Gradients(W), "Gradients"),
        (Inspect(lambda batch, model: W), "Inspect"),
        (Score(W, "train"), "Score"),
        (MetaTrain(W, 0.1, 0.1), "MetaTrain"),
        (Request(), "Request"),
        (Train(W, weights=W), "weights"),
        (Train(W, trained_extras={"prior": W}), "trained_extras"),
        (Train(W, clip=1.0), "clip"),
        (Train(W, minibatches=2), "minibatches"),
        (Train(W, epochs=3), "3 epochs"),
    ],
)
def test_other_looks_at_samples_are_refused(request_: Request, reason: str) -> None:
    with pytest.raises(BadInput, match=rf"ask-all .*{reason}.*privacy\.unit = 'example'"):
        carry_out(AskAll((request_,)))


def test_epochs_of_all_trainings_count_together() -> None:
    start = torch.zeros(private(HIDDEN).layout.size)
    with pytest.raises(BadInput, match=r"3 epochs.* 2 .*training\.epochs"):
        carry_out(AskAll((Train(start, epochs=1), Train(start))))


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


@pytest.mark.parametrize("rule", [Choose(), AdaptThenEvaluate()])
def test_other_rules_are_refused_before_they_begin(rule: Rule) -> None:
    with pytest.raises(BadInput, match=rf"{rule.name} .*privacy\.unit = 'example'"):
        carry_out(rule)


def test_a_choice_by_training_samples_is_refused() -> None:
    with pytest.raises(BadInput, match=r"evaluate .*Losses"):
        carry_out(Evaluate(), models=torch.zeros(2, private(HIDDEN).layout.size))


def test_a_round_is_refused_before_anybody_begins() -> None:
    federation = planted(clients=2, samples=10)
    with pytest.raises(BadInput, match="send-gradient"):
        train(FedSGD(), federation, 1, example_privacy=HIDDEN)
    assert len(train(FedProx(), federation, 1, example_privacy=HIDDEN).states) == 2


def spec(network: str, **settings: Any) -> EngineSpec:
    data = planted(clients=2, samples=10)
    return EngineSpec(network, {}, data.features, data, TEN, 0, example_privacy=HIDDEN, **settings)


def test_norms_over_the_batch_are_refused() -> None:
    with pytest.raises(BadInput, match=r"network\.name = 'planted-batch-norm'"):
        spec("planted-batch-norm").build()
    allow(["tests.own_networks:Frozen"])
    assert spec("tests.own_networks:Frozen").build().example_privacy == HIDDEN


def test_it_travels_with_the_specification() -> None:
    shipped = Shipped.of(spec("planted-perceptron"))
    assert shipped.build().example_privacy == HIDDEN


def test_half_precision_is_refused() -> None:
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


@pytest.mark.parametrize("name", ["tied", "frozen", "convolutions"])
def test_every_network_takes_private_steps(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    given = private(EXACT, ALL.updated(epochs=2), network, counts=(20,))
    plain = population(Sequential, ALL.updated(epochs=2), network, counts=(20,))
    trainable = given.layout.trainable
    (mine,), (theirs,) = trained(given), trained(plain)
    assert torch.allclose(trainable.take(mine.model), trainable.take(theirs.model), atol=1e-5)
    for entry in given.layout.buffers:
        assert torch.equal(entry.view(mine.model), entry.view(given.models[0]))


class Squared(Objective):
    """A loss that may not share a kernel."""

    name = "squared-for-a-test"
    batchable = False

    def loss(self, model: LocalModel, batch: Batch, extras: Mapping[str, Tensor]) -> Tensor:
        return batch.mean(model(batch.inputs).square().mean(1)) * extras["scale"]


def test_an_objective_takes_private_steps() -> None:
    ask = {"objective": Squared(), "extras": {"scale": torch.tensor(2.0)}}
    one, two = trained(population(Sequential, ALL), **ask), trained(private(EXACT, ALL), **ask)
    for a, b in zip(one, two, strict=True):
        assert torch.allclose(a.model, b.model, atol=1e-5)


def test_tokens_take_private_steps() -> None:
    network = nn.Sequential(Language(7), _Logits())
    layout = Layout.of(network)
    parameters = {e.name: network.get_parameter(e.name) for e in layout.tensors}
    x, y = torch.randint(7, (5, 4)), torch.randint(7, (5,))
    each = ObjectiveOfEach(
        TaskLoss(), LocalModel(network, layout), layout, layout.tensors, {}, TASKS["classification"].target()
    )
    found = each.gradients(parameters, Batch(x, y))
    whole = torch.autograd.grad(cross_entropy(network(x), y), list(parameters.values()))
    for mine, theirs in zip(found, whole, strict=True):
        assert torch.allclose(mine.mean(0), theirs, atol=1e-6)


class _Logits(nn.Module):
    def forward(self, given: dict[str, Tensor]) -> Tensor:
        return given["logits"]
