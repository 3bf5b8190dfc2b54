"""SCAFFOLD (6.20 of docs/methods/scaffold.md)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie.clients.rules import Gradients, Train
from coterie.grouping.aggregate import mean
from coterie.methods import FedAvg
from coterie.methods.scaffold import Scaffold, ScaffoldState
from tests.federated import TRAINING, planted, train
from tests.survival import SIZES, asked, kept

both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])


@both_engines
def test_scaffold_6_20_begins_as_fedavg_and_alone_stays_it(engine: str) -> None:
    """Without a control variate yet, or where everybody's is a client's own: bit for bit."""
    for clients, rounds in ((20, 1), (1, 4)):
        federation = planted("feature", clients=clients, sizes=SIZES[:clients])
        settings: dict[str, Any] = {"training": TRAINING.updated(epochs=2, lr_decay=0.9), "engine": engine}
        scaffold = train(Scaffold(), federation, rounds, **settings)
        fedavg = train(FedAvg(weights="uniform"), federation, rounds, **settings)
        for ours, theirs in zip(scaffold.states, fedavg.states, strict=True):
            assert torch.equal(ours.model, theirs.model)
    assert scaffold.state.control.abs().max() > 0


@pytest.mark.medium
@pytest.mark.parametrize("network", ["planted-perceptron", "narrow-batch-norm"])
def test_scaffold_6_20(network: str) -> None:
    """y is trained along c - c_i; c_i gains (x - y) / (K lr) - c; x is the mean; c moves by m / n mean gains."""
    run = train(Scaffold(), planted("feature", sizes=SIZES), 3, participation=0.5, network=network)
    signal = run.server.layout.trainable
    own = torch.zeros(20, run.server.layout.size)
    for number in (1, 2, 3):
        before: ScaffoldState = run.states[number - 1]
        ((_, replies),) = run.asked[number - 1]
        found, gains = [], []
        for client in replies.clients.tolist():
            linear = before.control[0] - own[client]
            y = asked(run, client, number, Train(before.model[0], linear=linear, plain=True)).model
            steps = -(-SIZES[client] // 20)
            if network == "narrow-batch-norm" and SIZES[client] % 20 == 1:
                steps -= 1
            gain = (before.model[0] - y) / (steps * 0.1) - before.control[0]
            gains.append(signal.copy(torch.zeros_like(gain), gain))
            own[client] += gains[-1]
            found.append(y)
        after: ScaffoldState = run.states[number]
        assert torch.equal(after.model, mean(torch.stack(found), before.model))
        expected = before.control + 0.5 * torch.stack(gains).mean(0)
        torch.testing.assert_close(after.control, expected, atol=1e-6, rtol=1e-5)
    assert (signal.take(own).norm(dim=1) > 0).sum() > 10
    for client, control in enumerate(kept(run, "control")):
        assert torch.equal(own[client], torch.zeros_like(own[client]) if control is None else control)
    # c is the mean of all c_i, those of clients who were never there being 0.
    torch.testing.assert_close(run.state.control[0], own.mean(0), atol=1e-6, rtol=1e-4)


def test_scaffold_6_20_a_control_variate_is_the_mean_gradient_on_the_way() -> None:
    """With one step a round, c_i is the gradient at x."""
    run = train(Scaffold(), planted("feature"), 1, training=TRAINING.updated(batch_size=100))
    for client in (0, 7):
        (gradient,) = asked(run, client, 1, Gradients(run.server.initial(0), full=True))
        control = kept(run, "control")[client]
        assert control is not None
        torch.testing.assert_close(control, gradient, atol=1e-5, rtol=1e-4)


def test_scaffold_6_20_steps_are_plain_whatever_the_solver() -> None:
    plain = train(Scaffold(), planted("feature"), 2)
    momentum = train(Scaffold(), planted("feature"), 2, training=TRAINING.updated(momentum=0.9))
    assert torch.equal(plain.state.model, momentum.state.model)


@pytest.mark.slow
def test_scaffold_6_20_holds_clients_together() -> None:
    """The point of it: after many local steps, models of unlike clients lie closer than FedAvg's."""
    training = TRAINING.updated(epochs=5, lr=0.05)
    federation = planted("label", 2)
    apart = {}
    for name, method in (("scaffold", Scaffold()), ("fedavg", FedAvg(weights="uniform"))):
        ((_, replies),) = train(method, federation, 6, training=training).asked[-1]
        apart[name] = float((replies.models - replies.models.mean(0)).norm(dim=1).mean())
    assert apart["scaffold"] < 0.7 * apart["fedavg"]
