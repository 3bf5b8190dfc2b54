"""FeSEM's update-aware E-step (docs/methods/fesem.md, D3): the rule, and the method in real runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import Answer, Client, Item, LocalUpdate, Order, Train, Trained, Training
from coterie.clients.rules.train_each import FARTHEST, TrainEach, find_least_moved
from coterie.methods import Cohort, FeSEM
from coterie.models.layout import Layout
from coterie.models.networks import build
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, planted, train

LAYOUT = Layout.of(torch.nn.Linear(3, 2))


def carry_out(rule: TrainEach, steps: Tensor) -> tuple[list[Train], Answer]:
    """The rule on models 0, 1, 2, …, the k-th of which training moves by `steps[k]` `[P]`."""
    models = torch.arange(float(len(steps)))[:, None].repeat(1, LAYOUT.size)
    me = Client(0, 1, 10, 0, LAYOUT, Training(), {}, lambda: models[0])
    work = rule.run(me, Order(0, 1, rule, {"models": Item(models)}, {"mu": 0.3}))
    asked: list[Train] = []
    result: Trained | None = None
    while True:
        try:
            request = work.send(result)
        except StopIteration as end:
            answer: Answer = end.value
            return asked, answer
        assert isinstance(request, Train)
        result = Trained(request.start + steps[len(asked)], float(len(asked)))
        asked.append(request)


def test_the_rule_sends_the_model_that_moved_least() -> None:
    steps = torch.tensor([3.0, 1.0, 2.0, 1.0])[:, None].repeat(1, LAYOUT.size)
    asked, answer = carry_out(TrainEach(), steps)
    assert [t.start[0].item() for t in asked] == [0.0, 1.0, 2.0, 3.0]
    assert {(t.pull, t.purpose, t.anchor) for t in asked} == {(0.3, "batches", None)}  # the same minibatches
    assert torch.equal(answer.uploads["model"], torch.full((LAYOUT.size,), 2.0))  # ties to the first
    assert answer.report == {"train_loss": 1.0}
    for k, step in enumerate((3.0, 1.0, 2.0, 1.0)):
        assert answer.numbers[f"moved{k}"] == pytest.approx(step * LAYOUT.size**0.5)


def test_the_rule_can_look_at_the_output_kernel_alone() -> None:
    steps = torch.zeros(2, LAYOUT.size)
    steps[0, 0], steps[1, -1] = 1.0, 5.0  # a weight, a bias
    _, answer = carry_out(TrainEach("last_kernel"), steps)
    assert answer.numbers == {"moved0": 1.0, "moved1": 0.0}
    _, answer = carry_out(TrainEach("all"), steps)
    assert answer.numbers == {"moved0": 1.0, "moved1": 5.0}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_training_that_diverges_is_no_choice(wrong: float) -> None:
    """And its distance can cross: a runtime takes no answer with NaN."""
    steps = torch.tensor([wrong, 4.0])[:, None].repeat(1, LAYOUT.size)
    _, answer = carry_out(TrainEach(), steps)
    assert answer.numbers["moved0"] == FARTHEST
    assert torch.isfinite(answer.uploads["model"]).all()


def test_buffers_are_no_displacement() -> None:
    layout = Layout.of(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    models = torch.zeros(2, layout.size)
    me = Client(0, 1, 10, 0, layout, Training(), {}, lambda: models[0])
    work = TrainEach().run(me, Order(0, 1, TrainEach(), {"models": Item(models)}))
    next(work)
    moved = models[0].clone()
    moved[layout.trainable.size :] = 9.0
    work.send(Trained(moved, 0.0))
    with pytest.raises(StopIteration) as end:
        work.send(Trained(models[0] + 1.0, 0.0))
    assert end.value.value.numbers["moved0"] == 0.0


def test_find_least_moved() -> None:
    numbers = {"moved0": np.array([1.0, 3.0]), "moved1": np.array([2.0, 0.5])}
    assert find_least_moved(numbers, 2).tolist() == [0, 1]
    assert find_least_moved({}, 3).tolist() == []


def test_one_model_is_a_local_update() -> None:
    """On a real engine, to the bit."""
    federation = planted("feature", clients=2)
    network, layout = build("mlp", {"hidden": "8"}, (8, 8, 1), 10, 0)
    start = layout.flatten(network)
    engine = Sequential(network, layout, federation, TRAINING, 0, start)
    orders = [
        Order(1, 1, TrainEach(), {"models": Item(start[None])}, {"mu": 0.1}),
        Order(1, 1, LocalUpdate(), {"model": Item(start)}, {"mu": 0.1}),
    ]
    each, plain = engine.run_rules(orders, [{}, {}])
    assert torch.equal(each.uploads["model"], plain.uploads["model"])
    assert each.numbers["moved0"] == pytest.approx(float((plain.uploads["model"] - start).norm()))


@pytest.mark.slow
def test_clients_join_the_centre_they_move_least_from() -> None:
    method = FeSEM(clusters=4, e_step="update_aware", signal="last_kernel")
    run = train(method, planted("feature"), 4, training=TRAINING.updated(epochs=5), participation=0.5)
    assert run.ari() == 1.0
    for before, after, exchanged in zip(run.states[1:], run.states[2:], run.asked[1:], strict=False):
        ((exchange, replies),) = exchanged
        assert isinstance(exchange.rule, TrainEach)
        moved = np.stack([replies.numbers[f"moved{k}"] for k in range(4)], 1)
        assert after.groups[replies.clients].tolist() == moved.argmin(1).tolist()
        away = np.setdiff1d(run.server.everyone, replies.clients)
        assert after.groups[away].tolist() == before.groups[away].tolist()
        part = method.compared_part(run.server)
        chosen = before.centres[torch.from_numpy(after.groups[replies.clients])]
        np.testing.assert_allclose(moved.min(1), part.take(replies.models - chosen).norm(dim=1), rtol=1e-4)


@pytest.mark.slow
def test_a_client_in_the_wrong_group_leaves_it() -> None:
    """D3: by the nearest centre it stays where it was put, by its own training it does not."""
    federation = planted("incongruent", 2)
    run = train(FeSEM(clusters=2), federation, 6)
    assert run.ari() == 1.0
    wrong = run.state.groups.copy()
    wrong[:4] = 1 - wrong[:4]
    e_steps: tuple[Literal["nearest", "update_aware"], ...] = ("nearest", "update_aware")
    nearest, update_aware = (FeSEM(clusters=2, e_step=e_step) for e_step in e_steps)
    state, found = replace(run.state, groups=wrong), {}
    for method in (nearest, update_aware):
        run.runtime.begin_round(7)
        cohort = Cohort(7, run.server.everyone, run.server)
        found[method] = drive(method.round(state, cohort), run.runtime.answer).groups
    assert found[update_aware].tolist() == run.state.groups.tolist()
    assert found[nearest].tolist() == wrong.tolist()


@pytest.mark.medium
def test_traffic() -> None:
    """Down m K P b, up m (P b + 4 K); the warm-up is FeSEM's."""
    clusters = 3
    run = train(FeSEM(clusters=clusters, e_step="update_aware"), planted("feature"), 2, participation=0.5)
    size = run.server.layout.size
    assert run.bytes("up", 1) == run.bytes("down", 1) == 20 * size * 4
    assert run.bytes("down", 2) == 10 * clusters * size * 4
    assert run.bytes("up", 2) == 10 * (size * 4 + 4 * clusters)
