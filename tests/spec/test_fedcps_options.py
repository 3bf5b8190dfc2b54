"""FedCPS under partial participation, vanishing clients, batch norm and kills, and each of its settings."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import coterie
from coterie.clients.data.federation import Federation, build
from coterie.clients.rules import Order, Score, Train, Training
from coterie.clients.rules.client import Client
from coterie.clients.rules.proximal import GRID, PLU
from coterie.clients.rules.requests import Losses
from coterie.errors import BadInput
from coterie.methods import METHODS, Cohort
from coterie.methods.fedcps import FedCPS, FedCPSState
from coterie.runs.schema.experiment import Experiment
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, Trained, planted, train
from tests.survival import local

SIZES = [40 + 3 * i for i in range(20)]


def next_round(
    run: Trained, state: FedCPSState, number: int, clients: Any = None, method: Any = None
) -> FedCPSState:
    """One more round from a state; everybody takes part unless `clients` says who."""
    who = run.server.everyone if clients is None else np.array(clients)
    local(run).begin_round(number)
    cohort = Cohort(number, who, run.server)
    after: FedCPSState = drive((method or run.method).round(state, cohort), local(run).answer)
    return after


def with_validation(federation: Federation) -> Federation:
    """The last ten training samples of each client become its validation samples."""
    bounds = federation.bounds.copy()
    bounds[:, 1] -= 10
    return replace(federation, bounds=bounds)


@pytest.mark.medium
def test_fedcps_buffers_go_with_their_layer_and_are_no_signal() -> None:
    """Running statistics are averaged with the base, are alike in all clusters, and move no tau^2."""
    run = train(FedCPS(3, 1, init="plain"), planted("feature"), 3, network="planted-batch-norm")
    layout = run.server.layout
    buffers = layout.everything - layout.trainable
    assert buffers.size == 32
    before, after = run.states[1:3]
    ((exchange, replies),) = run.asked[1]
    assert exchange.send["base"].part == layout.first_layers(1)
    middle = buffers.take(replies.models).double().mean(0).float()
    torch.testing.assert_close(buffers.take(after.models), middle.expand(3, -1), atol=1e-6, rtol=0)
    assert not torch.equal(middle, buffers.take(before.models[0]))
    picked = replies.numbers["choice"].astype(int)
    for k in np.unique(picked):
        moved = (replies.models[torch.from_numpy(picked == k)] - before.models[k]).double()
        now = float(layout.trainable.take(moved).square().mean())
        expected = (before.tau2[k] + now) / 2 if before.tau2[k] else now
        assert after.tau2[k] == pytest.approx(expected, rel=1e-6)


def test_fedcps_freezes_when_identities_have_settled() -> None:
    """Nobody changed in its last `window` participations, and 90% have taken part twice.

    See docs/methods/fedcps.md, step 6.
    """

    def frozen(taken: list[int], changed_at: list[int], window: int = 5) -> bool:
        state = FedCPSState.initial(torch.zeros(2, 3), len(taken))
        state = replace(state, taken=np.array(taken), changed_at=np.array(changed_at))
        return state.settle(window).frozen

    assert frozen([2] * 10, [0] * 10)
    assert frozen([2] * 9 + [0], [0] * 10)
    assert not frozen([2] * 8 + [1, 0], [0] * 10)
    assert not frozen([6] * 10, [2] * 10)  # changed in the second of six: four without a change
    assert frozen([7] * 10, [2] * 10)
    assert not frozen([7] * 10, [2] * 9 + [3])
    assert frozen([7] * 10, [2] * 9 + [6], window=1)


@pytest.mark.medium
def test_fedcps_changes_are_counted_by_participation() -> None:
    run = train(FedCPS(4, 1, init="kmeans"), planted("feature"), 3)
    run.method = FedCPS(4, 1, init="kmeans", window=99)
    swapped = replace(run.state, groups=(run.state.groups + 1) % 4, frozen=False)  # as if all had been elsewhere
    state = next_round(run, swapped, 4, [0, 5, 6])
    (changes,) = (log.values for log in local(run).logged if log.name == "identity changes")  # type: ignore[union-attr]
    assert changes == 3.0
    assert state.groups[[0, 5, 6]].tolist() == [0, 1, 2]
    assert np.flatnonzero(state.changed_at).tolist() == [0, 5, 6]
    assert state.changed_at[0] == state.taken[0] == 3
    assert state.taken[1] == 2


@pytest.mark.medium
def test_fedcps_a_late_client_of_a_frozen_federation_chooses_once() -> None:
    run = train(FedCPS(4, 1, init="kmeans"), planted("feature"), 1)
    state = run.state
    for number in (2, 3):
        state = next_round(run, state, number, np.arange(1, 20))
    assert state.frozen
    assert state.groups[0] == -1
    head, base = run.server.layout.last_layers(1).size, run.server.layout.first_layers(1).size
    for number, heads in ((4, 4), (5, 1)):
        state = next_round(run, state, number, [0, 1])
        down = local(run).ledger.bytes("down")
        assert down == {0: 4 * (base + heads * head), 1: 4 * (base + head)}
        assert state.groups[[0, 1]].tolist() == [0, 1]


@pytest.mark.slow
def test_fedcps_grid_takes_the_least_validation_loss() -> None:
    federation = with_validation(planted("feature", 2, samples=40))
    blur = torch.randn(federation.inputs.shape, generator=torch.Generator().manual_seed(0))
    federation = replace(federation, inputs=federation.inputs + 2 * blur)
    training = TRAINING.updated(epochs=10)
    run = train(FedCPS(2, 1, lambda_mode="grid", init="kmeans"), federation, 4, training=training)
    assert run.method.needs.validation
    assert not FedCPS().needs.validation
    ((_, replies),) = run.asked[3]
    engine, before, taken = local(run).engine, run.states[3].models, set()
    for client in range(20):
        me = engine.client(Order(client, 4, PLU(), {}), {})
        theta = before[int(replies.numbers["choice"][client])]
        models = [engine.answer([me], [Train(theta, pull)])[0].model for pull in GRID]  # type: ignore[union-attr]
        inputs, labels = federation.slice(client, "validation")
        outputs = engine.outputs(torch.stack(models), inputs)
        best = int((-outputs[:, torch.arange(10), labels].log().mean(1)).argmin())
        assert replies.report["lambda"][client] == GRID[best]
        assert torch.equal(replies.models[client], models[best])
        taken.add(best)
    assert len(taken) > 1
    assert run.bytes("up", 4) == 20 * (4 * run.server.layout.size + 8)


@pytest.mark.parametrize("mode", ["grid", "grid_steps"])
def test_fedcps_grid_keeps_lambda_0_without_validation_samples(mode: Any) -> None:
    """Losses on no samples choose nothing, and not the least strength of the grid."""
    federation = planted("feature", 2, clients=4, samples=40)
    run = train(FedCPS(2, 1, lambda_mode=mode, lambda_0=0.3), federation, 2)
    assert run.asked[-1][-1][1].report["lambda"] == [0.3] * 4


def at_work(pull: float | None, lr: float) -> Client:
    """A client that took `pull` last, of which only that and its learning rate matter."""
    state = {} if pull is None else {"pull": torch.tensor([pull])}
    layout: Any = None
    return Client(0, 1, 10, 0, layout, Training(lr=lr), state, lambda: torch.zeros(1))


def test_fedcps_steps_begin_at_lambda_0_and_go_one_place_on_the_grid() -> None:
    rule = PLU(lambda_mode="grid_steps", lambda_0=0.1, lambda_grid=(3.0, 0.01, 0.1, 1.0))
    assert rule.pulls_to_try(at_work(None, 0.1)) == (0.01, 0.1, 1.0)
    assert rule.pulls_to_try(at_work(0.01, 0.1)) == (0.01, 0.1)
    assert rule.pulls_to_try(at_work(3.0, 0.1)) == (1.0, 3.0)


def test_fedcps_a_pull_whose_training_fails_does_not_win_the_grid() -> None:
    client = replace(at_work(None, 0.1), validation=5)
    order: Any = SimpleNamespace(
        items={"heads": SimpleNamespace(values=torch.zeros(1, 1), part=None)},
        settings={"mean_samples": 10.0, "median": 0.0, "tau2/0": 0.0},
    )

    def answer(asked: Any) -> Any:
        if isinstance(asked, Losses):
            return torch.tensor([float("nan"), 0.3] if asked.split == "validation" else [0.0])
        return SimpleNamespace(model=torch.zeros(1), loss=0.0)

    work: Any = PLU(lambda_mode="grid", lambda_grid=(0.1, 1.0)).update(client, order)
    assert drive(work, answer).pull == 1.0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(1e-3, 10), st.sampled_from([None, 0.0, 0.5, 1e6]))
def test_fedcps_strengths_from_a_grid_stay_bounded(grid: list[float], lr: float, last: float | None) -> None:
    """A step of SGD at `lr` multiplies the distance by 1 - lr lambda, which stays at 0.5 or above."""
    for mode in ("grid", "grid_steps"):
        tried = PLU(lambda_mode=mode, lambda_grid=tuple(grid)).pulls_to_try(at_work(last, lr))
        assert tried
        assert max(tried) * lr <= 0.5 + 1e-9
        assert max(tried) <= max(grid)


@pytest.mark.slow
def test_fedcps_few_shot_clients_choose_a_stronger_pull() -> None:
    """Planted: a few-shot client trains on two classes and is validated on five, known to its cluster."""
    split = "few-shot(0.5, samples_per_class=16, sets=windows, held_out=regular)"
    federation = build("digits", split, 20, 0, validation=0.2, test=0.2)
    assert federation.few_shot is not None
    method = FedCPS(2, 1, lambda_mode="grid_steps", lambda_grid=(0.01, 0.1, 1.0, 3.0))
    run = train(method, federation, 5, training=Training(epochs=5, batch_size=48, lr=0.05), network="cnn")
    ((_, replies),) = run.asked[-1]
    pulls = np.array(replies.report["lambda"])
    assert set(pulls) <= {0.01, 0.1, 1.0, 3.0}
    assert pulls[federation.few_shot].mean() > 1.5 * pulls[~federation.few_shot].mean()


def test_fedcps_last_update_trains_all_the_head_or_nothing() -> None:
    usual = FedCPS(2, 1, lambda_mode="fixed")
    run = train(usual, planted("feature", 2), 2)
    layout, scored = run.server.layout, {}
    whats: tuple[Literal["all", "head", "none"], ...] = ("all", "head", "none")
    for what in whats:
        method = replace(usual, last_update=what)
        exchange = method.evaluation(run.state, run.server, run.server.everyone, last=True)
        sent = {name: send.item(0) for name, send in exchange.send.items()}
        order = Order(0, 2, exchange.rule, {name: item for name, item in sent.items() if item is not None})
        engine = local(run).engine
        client = engine.client(order, local(run).states.of(0))
        work = exchange.rule.run(client, order)
        result: Any = None
        while not isinstance(request := work.send(result), Score):
            (result,) = engine.answer([client], [request])
        scored[what] = request.model
    theta = run.state.models[run.state.groups[0]]
    base, head = layout.first_layers(1), layout.last_layers(1)
    assert torch.equal(base.take(scored["head"]), base.take(theta))
    assert not torch.equal(head.take(scored["head"]), head.take(theta))
    assert not torch.equal(base.take(scored["all"]), base.take(theta))
    assert torch.equal(scored["none"], local(run).states.kept["model"][0])


@pytest.mark.medium
def test_fedcps_evaluates_personal_models() -> None:
    """v_i; of who never took part a fresh update; in the end one of all. Nothing of it is kept or counted."""
    federation = planted("feature", sizes=SIZES)
    run = train(FedCPS(4, 1, init="kmeans", window=99), federation, 1)
    state = next_round(run, run.state, 2, np.arange(2, 20))
    kept = {name: rows.clone() for name, rows in local(run).states.kept.items()}
    ledger = list(local(run).ledger.rows)
    everyone = run.server.everyone
    now = local(run).measure(run.method.evaluation(state, run.server, everyone))
    last = local(run).measure(run.method.evaluation(state, run.server, everyone, last=True))
    assert now.report["choice"] == [0, 1, *[None] * 18]
    assert last.report["choice"] == [*[0, 1, 2, 3] * 5]
    engine = local(run).engine
    mine = {client: kept["model"][client] for client in range(2, 20)}
    for client in range(20):
        me = engine.client(Order(client, 2, PLU(), {}), {})
        told = {name: float(values[0]) for name, values in state.steering(everyone, run.server).items()}
        theta = state.models[client % 4]
        noise = None
        if client in mine:
            noise = _noise(run, client, theta)
        pull = PLU().pull(me, told, client % 4, noise)
        fresh = engine.answer([me], [Train(theta, pull, purpose="evaluation-batches")])[0].model  # type: ignore[union-attr]
        for replies, model in ((now, mine.get(client, fresh)), (last, fresh)):
            inputs, labels = federation.slice(client, "test")
            loss = float(-engine.outputs(model[None], inputs)[0][torch.arange(len(labels)), labels].log().mean())
            assert replies.report["score"][client].loss == pytest.approx(loss, abs=1e-5)
    assert local(run).ledger.rows == ledger
    assert all(torch.equal(rows, kept[name]) for name, rows in local(run).states.kept.items())
    assert torch.equal(run.served()[5], kept["model"][5])


def _noise(run: Trained, client: int, model: torch.Tensor) -> float:
    """sigma^2 by the formula of 3.4, for minibatches of 20 and a shorter last one, which counts by its size."""
    federation, engine = run.federation, local(run).engine
    me = engine.client(Order(client, 2, PLU(), {}), {})
    inputs, labels = federation.slice(client, "train")
    order = torch.from_numpy(me.stream("evaluation-noise").permutation(len(labels)))
    network, layout = deepcopy(engine.network), engine.layout
    layout.bind(network, model.clone())
    gradients, sizes = [], []
    for rows in torch.split(order, 20)[:8]:
        cost = nn.functional.cross_entropy(network(inputs[rows].permute(0, 3, 1, 2)), labels[rows])
        found = torch.autograd.grad(cost, [network.get_parameter(e.name) for e in layout.tensors])
        gradients.append(torch.cat([g.flatten() for g in found]).double())
        sizes.append(len(rows))
    rows_of, weight = torch.stack(gradients), torch.tensor(sizes).double()[:, None]
    middle = (weight * rows_of).sum(0) / weight.sum()
    return float((weight * (rows_of - middle).square()).mean(1).sum() / (len(sizes) - 1))


@pytest.mark.medium
def test_fedcps_newcomers_pick_the_smallest_loss() -> None:
    run = train(FedCPS(4, 1, init="kmeans"), planted("feature", clients=24), 4)
    state = replace(run.state, groups=run.state.groups[:20], taken=run.state.taken[:20])  # who trained: 20 of them
    clients = np.array([21, 22, 23])
    local(run).begin_round(9)
    joined = drive(run.method.newcomer(state, clients, run.server), local(run).answer)
    assert joined.groups.tolist() == [1, 2, 3]
    assert torch.equal(joined.models, run.state.models)
    layout = run.server.layout
    assert set(local(run).ledger.bytes("down").values()) == {4 * (layout.size + 3 * layout.last_layers(1).size)}


def test_fedcps_refuses_what_cannot_be() -> None:
    for layers in (0, 3):
        with pytest.raises(BadInput, match=rf"method\.personal_layers = {layers} .*1 to 2"):
            train(FedCPS(personal_layers=layers), planted("feature"), 0)
    with pytest.raises(BadInput, match=r"method\.lambda_min = 3 .*method\.lambda_max = 2"):
        FedCPS(lambda_min=3.0)
    for settings, said in (
        ({"personal_layers": "both"}, "integer or 'all'"),
        ({"lambda_power": 3}, r"method\.lambda_power = 3 .*1 or 2"),
        ({"init": "warm"}, r"method\.init = 'warm' .*'redraw', 'plain', 'kmeans' or 'silhouette'"),
    ):
        with pytest.raises(BadInput, match=said):
            METHODS["fedcps"].bind(settings, "method")
    assert METHODS["fedcps"].bind({"personal_layers": "all"})["personal_layers"] == "all"


def test_fedcps_logs_what_the_paper_plots() -> None:
    method = FedCPS(4, 1, init="redraw")
    run = train(method, planted("feature", sizes=SIZES), 2, participation=0.5, training=TRAINING)
    for number, logs in enumerate(run.logs, start=1):
        names: dict[str, Any] = {log.name: log.values for log in logs}
        assert list(names) == ["identity changes", "lambda", "tau2", "frozen"]
        replies = run.asked[number - 1][-1][1]
        assert list(names["lambda"]) == [str(client) for client in replies.clients]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skew", "participation", "sizes"),
    [
        ("permuted-labels", 1.0, [12, 12]),
        ("permuted-labels", 0.3, [12, 6, 3, 1]),
        ("rotated", 0.3, [12, 3]),
    ],
)
def test_fedcps_finds_planted_groups_by_default(
    skew: str, participation: float, sizes: list[int], tmp_path: Path
) -> None:
    experiment = Experiment().updated(
        {
            "data.split": f"{skew}({len(sizes)}, sizes={sizes})",
            "data.clients": sum(sizes),
            "method.name": "fedcps",
            "method.clusters": len(sizes),
            "run.rounds": 20 if participation == 1 else 40,
            "run.participation": participation,
            "run.workers": 1,
            "run.folder": str(tmp_path),
            "evaluation.every": 1000,
        }
    )
    assert coterie.run(experiment).summary["ari"] == 1
