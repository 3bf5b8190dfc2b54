"""Per-FedAvg (docs/methods/per-fedavg.md), and its reduction (8.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.engine.bound_network import BoundNetwork
from coterie.clients.rules import Gradients, Score, Train
from coterie.clients.rules.evaluate import AdaptThenEvaluate
from coterie.clients.rules.meta import MetaTrain, group_minibatches
from coterie.clients.rules.minibatch import Batch, Samples
from coterie.grouping.aggregate import mean
from coterie.methods import FedAvg, Method
from coterie.methods.per_fedavg import PerFedAvg
from tests.federated import TRAINING, planted, train
from tests.survival import SIZES, asked

METHODS: dict[str, Method[Any]] = {
    "first": PerFedAvg(),
    "hf": PerFedAvg(order="hf", beta=0.05, delta=0.01),
}
every_method = pytest.mark.parametrize("name", METHODS)
some_or_all = pytest.mark.parametrize("participation", [1.0, 0.5])


@pytest.mark.medium
@pytest.mark.each_once
@pytest.mark.parametrize(
    ("network", "engine"),
    [
        ("planted-perceptron", "sequential"),
        ("planted-perceptron", "batched"),
        ("narrow-batch-norm", "sequential"),  # it has no kernel for many clients
    ],
)
@some_or_all
@pytest.mark.parametrize("order", ["first", "hf"])
def test_per_fedavg_8_1(
    engine: str, participation: float, order: Any, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With alpha = 0 it is FedAvg fed only the b1 batches, with step beta: bit for bit, in every round."""
    federation = planted("feature", sizes=SIZES)
    training = TRAINING.updated(epochs=2, lr=0.3)
    settings: dict[str, Any] = {"participation": participation, "network": network}
    method = PerFedAvg(order=order, alpha=0.0, beta=0.07)
    ours = train(method, federation, 4, training=training, engine=engine, **settings)
    whole, size = BoundNetwork.minibatches, 3 if order == "hf" else 2

    def second_only(
        self: BoundNetwork, data: Samples, rng: np.random.Generator, width: int, weights: None = None
    ) -> Iterator[Batch]:
        yield from (group[1] for group in group_minibatches(list(whole(self, data, rng, width)), size))

    monkeypatch.setattr(BoundNetwork, "minibatches", second_only)
    training = training.updated(lr=0.07)
    theirs = train(FedAvg(weights="uniform"), federation, 4, training=training, **settings)
    assert not torch.equal(ours.states[0].model, ours.state.model)
    for one, other in zip(ours.states, theirs.states, strict=True):
        assert torch.equal(one.model, other.model)


@pytest.mark.medium
@pytest.mark.each_once
@some_or_all
@pytest.mark.parametrize("order", ["first", "hf"])
def test_per_fedavg_6_9(order: Any, participation: float) -> None:
    """Everybody takes the steps from W; the mean is uniform; alpha and beta are the round's learning rate."""
    training = TRAINING.updated(lr_decay=0.5, epochs=2)
    federation = planted("feature", sizes=SIZES)
    for alpha, beta in ((None, None), (0.02, 0.2)):
        hf: dict[str, Any] = {"delta": 0.01} if order == "hf" else {}
        method = PerFedAvg(order=order, alpha=alpha, beta=beta, **hf)
        run = train(method, federation, 2, training=training, participation=participation)
        for number in (1, 2):
            before, lr = run.states[number - 1].model, 0.1 * 0.5 ** (number - 1)
            request = MetaTrain(
                before[0],
                lr if alpha is None else alpha,
                lr if beta is None else beta,
                second_order=order == "hf",
                delta=0.01,
            )
            ((_, replies),) = run.asked[number - 1]
            trained = [asked(run, int(c), number, request).model for c in replies.clients]
            assert torch.equal(replies.models, torch.stack(trained))
            assert torch.equal(run.states[number].model, mean(torch.stack(trained), before))


@pytest.mark.parametrize("alpha", [None, 0.03])
def test_per_fedavg_6_9_evaluation_takes_a_plain_step_of_alpha_and_forgets_it(alpha: float | None) -> None:
    """One step, as the method is trained for; neither the momentum of training nor its learning rate counts."""
    training = TRAINING.updated(momentum=0.9, lr=0.1, lr_decay=0.5)
    run = train(PerFedAvg(alpha=alpha), planted("incongruent"), 4, participation=0.5, training=training)
    everyone = run.server.everyone
    exchange = run.method.evaluation(run.state, run.server, everyone, "validation")
    assert exchange.rule == AdaptThenEvaluate("validation", steps=1, lr=alpha, plain=True)
    scores = run.runtime.measure(run.method.evaluation(run.state, run.server, everyone)).report["score"]
    served = run.state.model[0]
    for client in everyone:
        (gradient,) = asked(run, client, 4, Gradients(served, batches=1, purpose="adaptation"))
        adapted = served - (0.1 * 0.5**3 if alpha is None else alpha) * gradient
        assert scores[client].loss == pytest.approx(asked(run, client, 4, Score(adapted)).loss, abs=1e-5)
    assert torch.equal(run.served(), served.expand(20, -1))
    longer = PerFedAvg(fine_tune=3).evaluation(run.state, run.server, everyone)
    assert longer.rule == AdaptThenEvaluate("test", epochs=3, plain=True)
    both = PerFedAvg(alpha=0.05, fine_tune_steps=7)
    found = run.runtime.measure(both.evaluation(run.state, run.server, everyone)).report["score"]
    model = asked(run, 0, 4, Train(served, minibatches=7, lr=0.05, plain=True, purpose="adaptation")).model
    assert found[0].loss == asked(run, 0, 4, Score(model)).loss


@pytest.mark.slow
@every_method
def test_per_fedavg_6_9_is_better_after_a_step_than_before(name: str) -> None:
    """Where no model suits everybody, its own adapts to each, and to more than FedAvg's serves."""
    federation = planted("incongruent")
    run = train(METHODS[name], federation, 8)
    plain = train(FedAvg(), federation, 8)

    def accuracy(steps: int) -> float:
        method = replace(METHODS[name], fine_tune_steps=steps)  # type: ignore[type-var]  # a dataclass
        found = run.runtime.measure(method.evaluation(run.state, run.server, run.server.everyone))
        return float(np.mean([s.correct.sum() / s.actual.sum() for s in found.report["score"]]))

    assert run.accuracy().mean() == accuracy(1) > accuracy(0) + 0.1
    assert accuracy(5) > accuracy(0) + 0.2
    assert accuracy(5) > plain.accuracy().mean() + 0.2
