"""Server optimizers: their steps, whose moments are whose, and that a run keeps them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie import BadInput, Experiment
from coterie.grouping.server_step import Optimizer, ServerStep
from coterie.methods import METHODS
from coterie.methods.aggregation import Aggregation
from coterie.methods.server_optimizer import ServerMoments, SteppingAggregation
from coterie.models.layout import Entry, Layout, Part
from coterie.runs.hooks.server_optimizer import ServerOptimizer
from coterie.runs.session import Session
from tests.federated import same

OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "adagrad", "adam", "yogi")
PLAIN = {"optimizer": "sgd", "server_lr": 1.0, "server_momentum": 0.0}
OWN = (
    "clusterfl",
    "dcpfl",
    "fedamp",
    "feddist",
    "fedpac",
    "fedsgd",
    "fedsoft",
    "fesem-ma",
    "flis",
    "lbfgs",
    "local-only",
    "robust-tkm",
)
SETTINGS: dict[str, dict[str, Any]] = {
    "cfl": {"t_min": 1, "eps1_frac": 2.0, "ratio": 0.1, "gamma_max": 0.1},
    "layercfl": {"t_min": 1, "eps1_frac": 2.0, "ratio": 0.1},
    "fedcps": {"personal_layers": 1, "init": "kmeans", "clusters": 2},
    "ifca": {"init": "kmeans", "clusters": 2},
    "fesem": {"clusters": 2},
    "fedtsdp": {"h": 0.0, "psi": 0.9, "eps1": 1e-6, "eps2": 0.5, "noise": "singletons"},
    "grouped-layers": {"clusters": 2, "after": 1, "private": "last:1", "common": "first:1"},
    "lg-fedavg": {"layers": 1, "pretrain": 1},
}


def experiment(method: str, aggregation: dict[str, Any], rounds: int = 4, **more: Any) -> Experiment:
    network = {"name": "gaussian-mlp", "hidden": [8], "dim": 4} if method in ("fedcr", "fedsr") else None
    return Experiment(
        data={"name": "digits", "split": "rotated(2)", "clients": 8, "samples_per_client": 40},
        method={"name": method, **SETTINGS.get(method, {})},
        network=network or {"name": "mlp", "hidden": [8, 8]},
        run={"rounds": rounds, "workers": 1, "participation": 0.75} | more,
        aggregation=aggregation,
    )


def states(experiment: Experiment) -> list[Any]:
    found = []
    with closing(Session(experiment)) as session:
        for number in session.remaining_rounds():
            result = session.play_round(number)
            session.record(result)
            found.append(result.state)
    return found


ALL = [name for name in METHODS.names() if METHODS[name].target.__module__.startswith("coterie.methods.")]


@pytest.mark.medium
@pytest.mark.thinned(3)
@pytest.mark.parametrize("method", [name for name in ALL if name not in OWN])
def test_a_whole_step_without_momentum_is_the_mean(method: str) -> None:
    """Bit for bit: `sgd` at 1 is the run without an optimizer, for every method that averages, and adam is not."""
    plain, without = states(experiment(method, PLAIN)), states(experiment(method, {}))
    assert all(same(ours, theirs) for ours, theirs in zip(plain, without, strict=True))
    adam = states(experiment(method, {"optimizer": "adam"}))
    assert not same(adam[-1], without[-1])


@pytest.mark.parametrize("method", OWN)
def test_methods_whose_models_take_no_step_refuse(method: str) -> None:
    with pytest.raises(BadInput, match=rf"^aggregation\.optimizer = 'adam' .*{method}"):
        Session(experiment(method, {"optimizer": "adam"})).close()


@pytest.mark.parametrize(
    "wrong", [{"server_lr": 1.0}, {"optimizer": "sgd", "tau": 0.1}, {"optimizer": "adagrad", "server_decay": 0.9}]
)
def test_a_setting_without_its_optimizer_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="needs optimizer = "):
        experiment("fedavg", wrong)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_those_of_flower(optimizer: Optimizer) -> None:
    """Of its FedAvgM, FedAdagrad, FedAdam and FedYogi: v begins as tau^2, and its Adam goes uncorrected."""
    strategy = pytest.importorskip("flwr.server.strategy")
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

    rng = np.random.default_rng(3)
    start = rng.normal(size=6).astype(np.float32)
    step = ServerStep(optimizer, 0.3, 0.0 if optimizer == "adagrad" else 0.8, 0.9, 0.01)
    given: dict[str, Any] = {"initial_parameters": ndarrays_to_parameters([start])}
    if optimizer == "sgd":
        theirs = strategy.FedAvgM(**given, server_learning_rate=0.3, server_momentum=0.8)
    else:
        given |= {"eta": 0.3, "tau": 0.01} | ({} if optimizer == "adagrad" else {"beta_1": 0.8, "beta_2": 0.9})
        theirs = getattr(strategy, f"Fed{optimizer.title()}")(**given)
        theirs.v_t = [np.full(6, 0.01**2, np.float32)]
    layout = flat_layout(6)
    moments, model = None, torch.from_numpy(start)[None]
    for number in (1, 2, 3, 4):
        trained, samples = rng.normal(size=(3, 6)).astype(np.float32), [5, 1, 4]
        if optimizer == "adam":
            theirs.eta = 0.3 * (1 - 0.8 ** (number + 1)) / np.sqrt(1 - 0.9 ** (number + 1))
        results = [
            (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([m]), count, {}))
            for m, count in zip(trained, samples, strict=True)
        ]
        expected, _ = theirs.aggregate_fit(number, results, [])
        ours = SteppingAggregation(Aggregation(), step, layout, moments)
        model, moments = ours.average(torch.from_numpy(trained), model, samples), ours.moments
        np.testing.assert_allclose(model[0].numpy(), parameters_to_ndarrays(expected)[0], atol=1e-6, rtol=1e-5)


# ---- whose moments are whose


def flat_layout(size: int, buffers: int = 0) -> Layout:
    found = [Entry("fc.weight", (size,), 0, 0, "dense", "weight")]
    if buffers:
        found.append(Entry("norm.running_var", (buffers,), size, 0, "norm", "buffer"))
    return Layout(tuple(found))


MOMENTUM = ServerStep("sgd", 1.0, 0.5, 0.0, 0.0)
TWO = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def play(
    last: ServerMoments | None, previous: Tensor, means: Tensor, members: Any = None
) -> tuple[Tensor, ServerMoments | None]:
    """One round in which each group has one client, whose model is the mean."""
    stepping = SteppingAggregation(Aggregation(), MOMENTUM, flat_layout(previous.shape[1]), last)
    groups = np.arange(len(means)) if members is None else np.asarray(members)
    return stepping.average_groups(means, groups, previous), stepping.moments


def test_both_sides_of_a_split_inherit() -> None:
    parent, moments = play(None, TWO[:1], TWO[:1] + 1)
    children, _ = play(moments, parent.repeat(2, 1), parent + torch.tensor([[0.0, 0.0], [2.0, 2.0]]))
    assert torch.equal(children - parent, torch.tensor([[0.5, 0.5], [2.5, 2.5]]))  # half the first step of 1


def test_a_merged_group_follows_the_one_whose_model_it_takes_over() -> None:
    both, moments = play(None, TWO, TWO + torch.tensor([[1.0, 1.0], [8.0, 8.0]]))
    merged, _ = play(moments, both[1:], both[1:])
    assert torch.equal(merged - both[1:], torch.full((1, 2), 4.0))


def test_a_group_with_a_model_of_nobodys_begins_without_moments() -> None:
    _, moments = play(None, TWO, TWO + 1)
    fresh, after = play(moments, TWO[:1] * 10, TWO[:1] * 10 + 3)
    assert torch.equal(fresh, TWO[:1] * 10 + 3)
    assert after is not None
    assert torch.equal(after.first, torch.full((1, 2), 3.0))


def test_a_group_without_members_rests_and_keeps_its_moments() -> None:
    both, moments = play(None, TWO, TWO + 1)
    again, moments = play(moments, both, both[:1] + 1, [0])
    assert torch.equal(again - both, torch.tensor([[1.5, 1.5], [0.0, 0.0]]))
    last, _ = play(moments, again, again)
    assert torch.equal(last - again, torch.tensor([[0.75, 0.75], [0.5, 0.5]]))


def test_groups_may_change_places() -> None:
    both, moments = play(None, TWO, TWO + torch.tensor([[1.0, 1.0], [8.0, 8.0]]))
    turned, _ = play(moments, both.flip(0), both.flip(0))
    assert torch.equal(turned - both.flip(0), torch.tensor([[4.0, 4.0], [0.5, 0.5]]))


def test_a_common_base_has_moments_of_its_own() -> None:
    """Two calls in a round: each group's head, and the base that all have (FedCPS)."""
    base, models, moments = Part.of([(0, 1)]), torch.tensor([[1.0, 2.0], [1.0, 4.0]]), None
    for expected in (torch.tensor([[2.0, 1.0], [2.0, 2.0]]), torch.tensor([[3.0, 1.5], [3.0, 3.0]])):
        trained = models + torch.tensor([[1.0, 1.0], [3.0, 2.0]])
        stepping = SteppingAggregation(Aggregation(), MOMENTUM, flat_layout(2), moments)
        means = stepping.average_groups(trained, np.arange(2), models)
        base.copy(means, stepping.average(trained, models[:1], part=base)[0])
        assert torch.equal(means - models, expected)
        models, moments = means, stepping.moments


def test_running_statistics_become_their_mean() -> None:
    step = ServerStep("adam", 0.01, 0.9, 0.99, 1e-3)
    stepping = SteppingAggregation(Aggregation(), step, flat_layout(1, buffers=1), None)
    found = stepping.average(TWO, TWO[:1])
    assert 1.0 < found[0, 0] < 2.0
    assert found[0, 1] == 3.0


def test_what_is_no_model_takes_no_step() -> None:
    stepping = SteppingAggregation(Aggregation(), MOMENTUM, flat_layout(2), None)
    assert torch.equal(stepping.average(TWO, torch.zeros(1, 2), step=False), TWO.mean(0, keepdim=True))
    assert stepping.moments is None


# ---- a run


@pytest.mark.medium
@pytest.mark.parametrize("method", ["cfl", "ifca", "fedcps", "fesem", "fedtsdp", "grouped-layers"])
def test_each_group_of_a_run_has_its_moments(method: str) -> None:
    """After every round, also one that splits: a row of moments under each model, which goes on with it."""
    with closing(Session(experiment(method, {"optimizer": "sgd", "server_lr": 0.5}, rounds=5))) as session:
        hook, counts = session.find(ServerOptimizer), []
        for number in session.remaining_rounds():
            result = session.play_round(number)
            session.record(result)
            served = session.method.assignment(session.state, session.server)
            moments: ServerMoments = hook.to_checkpoint()["server_moments"]
            part = session.layout.everything if served.part is None else served.part
            assert torch.equal(part.take(moments.models), part.take(served.models))
            assert (part.take(moments.first).norm(dim=1) > 0).any()
            counts.append(len(moments.models))
    assert counts[-1] > 1


@pytest.mark.medium
def test_noise_by_the_server_goes_into_the_step() -> None:
    promised = experiment("fedavg", {"optimizer": "sgd", "server_momentum": 0.5}).updated(
        {"privacy.unit": "client", "privacy.noise_multiplier": 1.0, "privacy.noise_seed": 1}
    )
    plain = promised.updated({"aggregation.optimizer": "none", "aggregation.server_momentum": None})
    moved, mean = states(promised), states(plain)
    assert torch.equal(moved[0].model, mean[0].model)
    assert not torch.equal(moved[1].model, mean[1].model)
