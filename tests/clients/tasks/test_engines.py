"""The engines answer alike on every task, and somebody's own task is trained one client after another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.data.federation import Federation, build
from coterie.clients.engine.batched import Batched
from coterie.clients.engine.engine import Engine
from coterie.clients.rules import Gradients, LocalUpdate, Losses, Order, Score, Train, Training
from coterie.clients.rules.meta import MetaTrain
from coterie.clients.tasks import TASKS, Classification, Regression, Targets, Task
from coterie.errors import BadInput
from coterie.plugins import give
from coterie.runtime.local.runtime import EngineSpec
from tests.tasked import write


def data_for(folder: Path, task: Task | str) -> Federation:
    known = TASKS[task].target() if isinstance(task, str) else task
    name = task if isinstance(task, str) else "regression" if not known.distributes else "classification"
    return build(str(write(folder, name)), "by-user", None, 0, task=known)


def engine_for(data: Federation, wanted: str, training: Training, network: str = "mlp") -> Engine:
    give([network])
    return EngineSpec(network, {}, data.features, data, training, 0, wanted).build()


def answers(engine: Engine, request: Any) -> list[Any]:
    clients = [engine.client(Order(i, 1, LocalUpdate(), {}), {}) for i in range(4)]
    return engine.answer(clients, [request] * 4)


def agree(one: Engine, two: Engine, request: Any) -> None:
    for a, b in zip(answers(one, request), answers(two, request), strict=True):
        if isinstance(a, Tensor):
            assert torch.allclose(a, b, atol=1e-5)
            continue
        assert a.loss == pytest.approx(b.loss, abs=1e-5)
        if isinstance(request, Score):
            assert a.samples == b.samples == 4
            assert np.array_equal(a.actual, b.actual)
            assert np.array_equal(a.correct, b.correct)
            assert a.values.keys() == b.values.keys()
            assert all(a.values[name] == pytest.approx(b.values[name], abs=1e-4, nan_ok=True) for name in a.values)
        else:
            assert torch.allclose(a.model, b.model, atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("task", ["binary", "multilabel", "regression"])
def test_engines_agree_on_every_task(task: str, tmp_path: Path) -> None:
    data, training = data_for(tmp_path, task), Training(lr=0.1, batch_size=4)
    one, two = (engine_for(data, wanted, training) for wanted in ("sequential", "batched"))
    model = one.client(Order(0, 1, LocalUpdate(), {}), {}).initial()
    for request in (
        Train(model, epochs=2, pull=0.5, anchor=torch.zeros_like(model), part=one.layout.last_layers(1)),
        Losses(torch.stack([model, 2 * model])),
        Gradients(model, full=True),
        Score(model),
        MetaTrain(model, 0.1, 0.1, second_order=True),
    ):
        agree(one, two, request)


@pytest.mark.medium
@pytest.mark.parametrize(("task", "network"), [("segmentation", "pixels"), ("language", "recurrent")])
def test_engines_agree_on_tasks_of_modules(task: str, network: str, tmp_path: Path) -> None:
    data, training = data_for(tmp_path, task), Training(lr=0.1, batch_size=4)
    one, two = (engine_for(data, wanted, training, f"tests.tasked:{network}") for wanted in ("sequential", "auto"))
    assert isinstance(two, Batched)
    model = one.client(Order(0, 1, LocalUpdate(), {}), {}).initial()
    for request in (
        Train(model, epochs=2),
        Losses(torch.stack([model, 2 * model])),
        Gradients(model),
        Score(model),
    ):
        agree(one, two, request)


@pytest.mark.parametrize("task", [Classification((1.0, 2.0, 3.0), 0.1), Classification(class_weights="balanced")])
def test_engines_agree_on_weights(task: Classification, tmp_path: Path) -> None:
    data = data_for(tmp_path, task)
    one, two = (engine_for(data, wanted, Training(lr=0.1, batch_size=4)) for wanted in ("sequential", "batched"))
    model = one.client(Order(0, 1, LocalUpdate(), {}), {}).initial()
    agree(one, two, Train(model, epochs=2))
    agree(one, two, Score(model))


def test_a_gradient_is_that_of_autograd(tmp_path: Path) -> None:
    data = data_for(tmp_path, Regression(target_scale="none"))
    engine = engine_for(data, "sequential", Training())
    model = engine.client(Order(0, 1, LocalUpdate(), {}), {}).initial()
    (found, *_) = answers(engine, Gradients(model, full=True))
    x, y = data.slice(0, "train")
    loss = torch.nn.functional.mse_loss(engine.network(x), y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(engine.network.parameters()))])
    assert torch.allclose(found[0], expected, atol=1e-6)


@dataclass(frozen=True)
class Sign(Task):
    """Somebody's own task, whose loss branches on a value."""

    margin: float = 1.0
    name = "sign"
    metrics = ("mae",)

    def read_targets(self, values: NDArray[Any], where: str, notes: list[str], known: Any = None) -> Targets:
        return Targets(np.sign(values).reshape(len(values), -1).astype(np.float32), 3)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        away = (self.margin - outputs * targets).mean(1)
        return away if float(away.detach().sum()) > 0 else -away

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.sign()


def test_a_task_of_ones_own_needs_no_vmap(tmp_path: Path) -> None:
    data = data_for(tmp_path, Sign())
    one, two = (engine_for(data, wanted, Training(lr=0.1, batch_size=4)) for wanted in ("sequential", "batched"))
    model = one.client(Order(0, 1, LocalUpdate(), {}), {}).initial()
    for request in (Train(model), Losses(model[None]), Gradients(model), Score(model)):
        agree(one, two, request)
    assert answers(one, Score(model))[0].values.keys() == {"mae"}


def test_a_network_that_gives_something_else_is_refused(tmp_path: Path) -> None:
    pixels = data_for(tmp_path, "segmentation")
    with pytest.raises(BadInput, match="2 numbers"):
        engine_for(pixels, "sequential", Training())
    texts = data_for(tmp_path, "language")
    assert texts.inputs.dtype == torch.int64
    with pytest.raises(BadInput, match="tokens"):
        engine_for(texts, "sequential", Training())
    with pytest.raises(BadInput, match=r"split = 'dirichlet' .*language"):
        build(str(write(tmp_path, "language")), "dirichlet(1)", 2, 0, task=TASKS["language"].target())


def test_tokens_are_classified_as_sequences(tmp_path: Path) -> None:
    texts = data_for(tmp_path, "language")
    path = tmp_path / "sequences.npz"
    tokens = texts.inputs.numpy()
    np.savez(path, tokens=tokens, y=tokens[:, 0] % 2, client=np.repeat(np.arange(4), 20))
    data = build(str(path), "by-user", None, 0)
    assert data.inputs.dtype == torch.int64
    engine = engine_for(replace(data), "sequential", Training(lr=0.5, batch_size=4, epochs=5), "tasked-sequences")
    model = engine.client(Order(0, 1, LocalUpdate(), {}), {}).initial()
    (trained, *_) = answers(engine, Train(model))
    assert trained.loss < answers(engine, Losses(model[None]))[0].item()
