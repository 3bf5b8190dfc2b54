"""FedCPS's properties 3.8, and its bytes (docs/methods/fedcps.md)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.rules import Order, Score, Training
from coterie.clients.rules.proximal import PLU, pull_ratio
from coterie.methods import Cohort
from coterie.methods.fedcps import FedCPS, FedCPSState
from coterie.runtime.runtime import drive
from tests import federated
from tests.federated import TRAINING, planted, train
from tests.spec.quadratic import QUADRATIC, middles, quadratics
from tests.survival import local

SIZES = [40 + 3 * i for i in range(20)]


def personal(run: federated.Trained) -> Tensor:
    """What the clients keep as their own models `[n, P]`."""
    return local(run).states.kept["model"].clone()


def again(run: federated.Trained, state: FedCPSState, method: FedCPS, number: int) -> FedCPSState:
    """One more round of everybody, from a state."""
    run.runtime.begin_round(number)
    return drive(method.round(state, Cohort(number, run.server.everyone, run.server)), run.runtime.answer)


@pytest.mark.medium
def test_fedcps_3_8_2_without_steps_nothing_moves() -> None:
    still = train(FedCPS(3, 1, init="plain"), planted("feature"), 3, training=TRAINING.updated(lr=0.0))
    for state in still.states:
        assert torch.equal(state.models, still.states[0].models)
    assert torch.equal(personal(still), still.state.models[torch.from_numpy(still.state.groups)])
    assert (still.state.tau2[np.unique(still.state.groups)] == 1e-12).all()  # the floor


@pytest.mark.slow
def test_fedcps_3_8_2_an_infinite_pull_holds_every_model() -> None:
    """The step is explicit, so the pull times lr stays at 1: all that is left is the last of fifty gradients."""

    def farthest(strength: float, lr: float) -> float:
        method = FedCPS(2, 1, lambda_mode="fixed", lambda_0=strength, init="plain")
        run = train(method, planted("feature"), 1, training=Training(epochs=10, batch_size=20, lr=lr))
        starts = run.states[0].models[torch.from_numpy(run.state.groups)]
        return float((personal(run) - starts).norm(dim=1).max())

    held = [farthest(strength, 1 / strength) for strength in (100.0, 1000.0, 10000.0)]
    assert all(0 < later < 0.15 * sooner for sooner, later in pairwise(held))
    assert held[0] < farthest(0.0, 1 / 100) / 15


@pytest.mark.medium
def test_fedcps_3_8_4() -> None:
    """On quadratics around a_i the personal models are (a_i + lambda theta) / (1 + lambda)."""
    federation = quadratics([30, 30, 30])
    training = Training(epochs=150, batch_size=30, lr=0.2)
    method = FedCPS(1, "all", lambda_mode="fixed", lambda_0=0.5, init="redraw")
    run = train(method, federation, 2, network=QUADRATIC, training=training)
    theta = run.states[1].models[0]
    torch.testing.assert_close(personal(run), (middles(federation) + 0.5 * theta) / 1.5, atol=1e-4, rtol=0)


def test_fedcps_3_4_noise_is_the_variance_of_one_samples_gradient() -> None:
    """On quadratics a sample's gradient is w - x, so what comes up is about the variance of the samples: 1 here."""
    federation = quadratics([400] * 6)
    federation = replace(federation, inputs=torch.randn(federation.inputs.shape, generator=torch.manual_seed(0)))
    run = train(FedCPS(1, "all", init="redraw"), federation, 1, network=QUADRATIC, training=TRAINING)
    ((_, replies),) = run.asked[0]
    np.testing.assert_allclose(replies.numbers["noise"], 1.0, atol=0.25)
    assert abs(replies.numbers["noise"].mean() - 1.0) < 0.1


def _client(samples: int, lr: float = 0.1) -> Any:
    run = train(FedCPS(1, 1, init="redraw"), planted("iid", clients=1, samples=samples), 0)
    me = local(run).engine.client(Order(0, 1, PLU(), {}), {})
    return replace(me, training=me.training.updated(lr=lr))


def test_fedcps_3_8_5() -> None:
    """Lambda falls with n_i and tau^2 and rises with sigma^2, and its unit is that of the median."""

    def pull(
        samples: int = 100, noise: float = 1.0, spread: float = 1.0, unit: float = 1.0, **settings: Any
    ) -> float:
        told = {"mean_samples": 100.0, "tau2/0": spread, "median": unit / 100 ** settings.get("lambda_power", 1)}
        return PLU(**settings).pull(_client(samples), told, 0, noise)

    for power in (1, 2):
        assert all(a > b for a, b in pairwise(pull(n, lambda_power=power) for n in (60, 80, 100, 120)))
    assert all(a > b for a, b in pairwise(pull(spread=s) for s in (0.5, 1.0, 2.0)))
    assert all(a < b for a, b in pairwise(pull(noise=s) for s in (0.5, 1.0, 2.0)))
    assert pull() == pytest.approx(0.1)  # the median client has lambda_0
    assert pull(noise=7.0, unit=7.0) == pytest.approx(pull())  # all sigmas are 7 times as large
    assert pull(spread=7.0, unit=1 / 7) == pytest.approx(pull())
    assert pull(noise=1e-9) == 1e-3
    assert pull(noise=1e9) == 2.0
    assert pull(lambda_mode="eq3_raw") == pytest.approx(0.01)
    assert pull(lambda_mode="fixed", lambda_0=9.0) == 9.0
    assert PLU().pull(_client(1, lr=2.0), {"mean_samples": 1e6, "tau2/0": 0.0, "median": 0.0}, 0, None) == 0.25


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "power"), [("eq3_calibrated", 1), ("eq3_calibrated", 2), ("eq3_raw", 1)])
def test_fedcps_3_8_5_in_a_run(mode: Any, power: Any) -> None:
    """Every lambda of a run, from what crossed before it (docs/methods/fedcps.md)."""
    federation = planted("feature", sizes=SIZES)
    method = FedCPS(4, 1, lambda_mode=mode, lambda_power=power, lambda_0=0.2, init="redraw")
    run = train(method, federation, 5, participation=0.6)
    n, mean, mine = federation.samples, federation.samples.mean(), run.server.layout.trainable
    tau2, median, met = np.zeros(4), 0.0, set[int]()
    for asked, logs in zip(run.asked, run.logs, strict=True):
        exchange, replies = asked[-1]
        names: dict[str, Any] = {log.name: log.values for log in logs}
        picked = replies.numbers["choice"].astype(int)
        for client, k, noise in zip(replies.clients, picked, replies.numbers["noise"], strict=True):
            value = 0.2 * (mean / n[client]) ** power
            if client in met and tau2[k]:
                value = noise / (n[client] ** power * tau2[k])
                value *= 0.2 / median if mode == "eq3_calibrated" else 1.0
            assert names["lambda"][str(client)] == pytest.approx(min(max(value, 1e-3), 2.0))
        met |= set(replies.clients.tolist())
        starts = exchange.send["heads"].matrix
        for k in np.unique(picked):
            moved = mine.take(replies.models[torch.from_numpy(picked == k)] - starts[k]).double()
            now = float(moved.square().mean())
            tau2[k] = (tau2[k] + now) / 2 if tau2[k] else now
        ratios = replies.numbers["noise"] / (n[replies.clients].astype(float) ** power * tau2[picked])
        median = float(np.median(ratios))
        assert names["tau2"] == {str(k): pytest.approx(v) for k, v in enumerate(tau2) if v}
    np.testing.assert_allclose(run.state.tau2, tau2, rtol=1e-6)
    assert run.state.median == pytest.approx(median, rel=1e-6)


@pytest.mark.parametrize("samples", [5, 30, 120])
def test_fedcps_3_8_6(samples: int) -> None:
    """In Ditto's point-estimation model `pull_ratio` is the best lambda (D2); with n^2 it would not be."""
    sigma2, tau2, centre = 64.0, 1.0, 3.0
    rng = np.random.default_rng(samples)
    own = centre + rng.normal(0, np.sqrt(tau2), 400_000)
    middle = own + rng.normal(0, np.sqrt(sigma2 / samples), own.shape)

    def error(pull: float) -> float:
        return float(np.mean(((middle + pull * centre) / (1 + pull) - own) ** 2))

    best = pull_ratio(sigma2, samples, tau2, 1)
    grid = best * np.geomspace(0.2, 5, 81)
    found = grid[np.argmin([error(pull) for pull in grid])]
    assert found == pytest.approx(best, rel=0.1)
    assert error(best) < error(pull_ratio(sigma2, samples, tau2, 2))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"init": "kmeans"}, {"weights": "samples"}])
def test_fedcps_3_8_7(settings: Any) -> None:
    """After every round the base is the same in all clusters, the mean over everybody; heads are means apart."""
    run = train(
        FedCPS(4, 1, **{"init": "redraw", **settings}), planted("feature", sizes=SIZES), 4, participation=0.6
    )
    layout = run.server.layout
    head, base = layout.last_layers(1), layout.first_layers(1)
    for state in run.states:
        assert torch.equal(base.take(state.models), base.take(state.models[:1]).expand(4, -1))
        assert not torch.equal(head.take(state.models[0]), head.take(state.models[1]))
    for before, after, asked in zip(run.states[1:], run.states[2:], run.asked[1:], strict=False):
        ((_, replies),) = asked
        picked = replies.numbers["choice"].astype(int)
        update = replies.models.double() - before.models[torch.from_numpy(picked)]
        weight = torch.from_numpy(replies.samples if settings.get("weights") else np.ones(len(replies))).double()
        common = before.models[0] + (weight[:, None] * update).sum(0) / weight.sum()
        torch.testing.assert_close(base.take(after.models[0]), base.take(common).float(), atol=1e-6, rtol=0)
        for k in range(4):
            mine = torch.from_numpy(picked == k)
            if not mine.any():
                assert torch.equal(head.take(after.models[k]), head.take(before.models[k]))
                continue
            own = before.models[k] + (weight[mine, None] * update[mine]).sum(0) / weight[mine].sum()
            torch.testing.assert_close(head.take(after.models[k]), head.take(own).float(), atol=1e-6, rtol=0)


@pytest.mark.medium
@pytest.mark.parametrize(("groups", "seed"), [(2, 0), (4, 1)])
def test_fedcps_3_8_8(groups: int, seed: int) -> None:
    """From the warm-up's K-means the rotations are found, nobody moves, and the freeze saves K - 1 heads."""
    federation = planted("feature", groups, seed=seed)
    run = train(FedCPS(groups, 1, init="kmeans"), federation, 6, seed=seed)
    assert run.ari() == 1.0
    assert sum(changes or 0.0 for changes in run.logged("identity changes")) == 0
    assert run.logged("frozen") == [None, 0.0, 1.0, 1.0, 1.0, 1.0]  # everybody has taken part twice after round 3
    layout = run.server.layout
    base, head = layout.first_layers(1).size, layout.last_layers(1).size
    assert [run.bytes("down", t) for t in (2, 3)] == [20 * 4 * (base + groups * head)] * 2
    assert [run.bytes("down", t) for t in (4, 5, 6)] == [20 * 4 * layout.size] * 3
    assert [run.bytes("up", t) for t in range(2, 7)] == [20 * (4 * layout.size + 12)] * 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1))
def test_fedcps_3_8_9(seed: int) -> None:
    """From the same clusters, a pull leaves few-shot clients with a smaller gap between training and test loss."""
    federation = planted("feature", 2, sizes=[20, 20, 100, 100] * 5, seed=seed, test=50)
    blur = torch.randn(federation.inputs.shape, generator=torch.Generator().manual_seed(seed))
    federation = replace(federation, inputs=federation.inputs + 2 * blur)
    method = FedCPS(2, 1, init="kmeans", lambda_0=0.5)
    run = train(method, federation, 12, seed=seed, training=Training(epochs=5, batch_size=10, lr=0.1))

    def gap(model: FedCPS) -> float:
        again(run, run.state, model, 13)
        return float(np.mean([_gap(run, int(client)) for client in np.flatnonzero(federation.samples == 20)]))

    gaps = [gap(replace(method, lambda_0=strength)) for strength in (0.0, 0.1, 0.5)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[2] < 0.99 * gaps[0]


def _gap(run: federated.Trained, client: int) -> float:
    """Test loss less training loss of a client's own model."""
    engine, model = local(run).engine, local(run).states.of(client)["model"]
    me = engine.client(Order(client, 1, PLU(), {}), {})
    (own,), (other,) = (engine.answer([me], [request]) for request in (Score(model, "train"), Score(model)))
    return float(other.loss - own.loss)  # type: ignore[union-attr]  # a Score is answered by a Scored


@pytest.mark.medium
@pytest.mark.each_once
@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize(
    ("settings", "up", "heads"),
    [
        ({"personal_layers": 1}, 12, 1),
        ({"personal_layers": "all"}, 12, 2),
        ({"personal_layers": 1, "lambda_mode": "fixed"}, 8, 1),
    ],
)
def test_fedcps_8_5(participation: float, settings: Any, up: int, heads: int) -> None:
    """Down m (P_G + K P_H) b, up m (P b + 12); a probe of the redraw sends the same and gets a number back."""
    run = train(FedCPS(3, **{"init": "redraw", **settings}), planted("feature"), 2, participation=participation)
    layout, m = run.server.layout, round(20 * participation)
    head = layout.last_layers(heads).size
    models = 4 * (layout.size - head + 3 * head)
    probes = len(run.asked[0]) - 1
    assert probes >= 1
    assert run.bytes("down", 1) == m * (1 + probes) * models
    assert run.bytes("up", 1) == m * (4 * layout.size + up + 4 * probes)
    assert run.bytes("down", 2) == m * models
    assert run.bytes("up", 2) == m * (4 * layout.size + up)


@pytest.mark.medium
def test_fedcps_3_4_identity_is_the_smallest_loss_on_a_fresh_sample() -> None:
    """Ten of a hundred samples, others in every round, from a stream of their own."""
    federation = planted("feature", 4)
    run = train(FedCPS(4, 1, init="plain", identity_samples=10), federation, 3)
    engine, drawn = local(run).engine, []
    for number in (1, 2, 3):
        ((_, replies),) = run.asked[number - 1]
        for client, choice in zip(replies.clients, replies.numbers["choice"], strict=True):
            me = engine.client(Order(int(client), number, PLU(), {}), {})
            inputs, labels = federation.slice(int(client), "train")
            rows = torch.from_numpy(np.sort(me.stream("identity").permutation(100)[:10]))
            losses = [_loss(run, model, inputs[rows], labels[rows]) for model in run.states[number - 1].models]
            assert int(choice) == int(np.argmin(losses))
        drawn.append(rows.tolist())
    assert drawn[0] != drawn[1] != drawn[2]


def _loss(run: federated.Trained, model: Tensor, inputs: Tensor, labels: Tensor) -> float:
    engine = local(run).engine
    outputs = engine.outputs(model[None], inputs)[0]
    return float(-outputs[torch.arange(len(labels)), labels].log().mean())


def test_fedcps_says_that_one_cluster_suits_everybody() -> None:
    run = train(FedCPS(2, 1, init="plain"), planted("feature", clients=6), 2)
    alone = replace(run.state, groups=np.zeros(6, np.int64))
    (sentence,) = run.method.final_warnings(alone, run.server, 2)
    assert all(word in sentence for word in ("2 models", "method.init = "))
    assert "'plain'" not in sentence
    assert run.method.final_warnings(replace(alone, groups=np.array([0, 0, 0, 1, 1, 1])), run.server, 2) == []
