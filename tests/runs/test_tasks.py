"""Every method on every task: it trains and scores, or refuses in one sentence before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.clients.tasks import TASKS
from coterie.errors import BadInput
from coterie.methods import METHODS, Method
from coterie.models.networks import build
from coterie.randomness import stream
from tests.tasked import NETWORK, write

REFUSED = {
    "fedcr": ("regression", "forecasting", "binary", "multilabel", "segmentation", "language"),
    "fedsr": ("regression", "forecasting", "binary", "multilabel", "segmentation", "language"),
    "fedtsdp": ("regression", "forecasting", "multilabel"),
    "flis": ("regression", "forecasting", "multilabel"),
    "clusterfl": ("regression", "forecasting", "multilabel"),
}
"""Which methods mean nothing on which tasks; all others learn them."""

LEARN = ("ifca", "fesem", "fedper", "ditto", "cfl", "per-fedavg", "feddane", "dcpfl")
OTHERS = ("regression", "binary", "multilabel", "segmentation", "language")


def experiment(folder: Path, task: str, method: str, **run: Any) -> coterie.Experiment:
    settings = {"clusters": 2} if "clusters" in {s.name for s in METHODS[method].settings} else {}
    return coterie.Experiment(
        data={"name": str(write(folder, task)), "validation": 0.2, "public": 6 if needs_public(method) else 0},
        task=task,
        network={"name": NETWORK[task]} if task in NETWORK else {"name": "auto"},
        method={"name": method, **settings},
        training={"lr": 0.05, "batch_size": 8, "epochs": 1},
        run={"rounds": 1, "workers": 1, "folder": str(folder / "runs"), **run},
    )


def needs_public(method: str) -> bool:
    built: Method[Any] = METHODS[method].target()
    return built.needs.public > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "method"),
    [(task, LEARN[(3 * number + i) % len(LEARN)]) for number, task in enumerate(OTHERS) for i in range(3)],
)
def test_a_method_learns_a_task(task: str, method: str, tmp_path: Path) -> None:
    rounds = coterie.run(experiment(tmp_path, task, method)).rounds
    first = TASKS[task].target().metrics[0]
    assert np.isfinite(rounds[f"macro_{first}"][-1])
    assert np.isfinite(rounds["loss"][-1])


@pytest.mark.medium
def test_units_that_nothing_matches_are_a_matter_of_the_network(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"units .*network"):
        coterie.run(experiment(tmp_path, "language", "fesem-ma"))


@pytest.mark.parametrize("method", sorted(REFUSED))
def test_a_method_that_cannot_learn_a_task_says_so_before_anything_starts(method: str, tmp_path: Path) -> None:
    for task in REFUSED[method]:
        with pytest.raises(BadInput) as refused:
            experiment(tmp_path, task, method).check()
        assert sum(f"task.name = '{task}'" in each for each in refused.value.problems) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.medium
def test_federated_averaging_of_a_regression_is_a_plain_loop(tmp_path: Path) -> None:
    """One client's training, written with PyTorch alone; then the mean of all clients, by their samples."""
    wanted = experiment(tmp_path, "regression", "fedavg", engine="sequential").updated(
        {"run.rounds": 2, "task.target_scale": "none"}
    )
    run = coterie.run(wanted)
    from coterie.clients.data.federation import build as build_federation
    from coterie.clients.tasks import Regression

    data = build_federation(
        str(write(tmp_path, "regression")), "by-user", None, 0, validation=0.2, task=Regression()
    )
    network, layout = build("mlp", {}, data.features, 3, 0)
    model = torch.cat([p.detach().flatten() for p in network.parameters()])
    loss = nn.MSELoss()
    for number in (1, 2):
        trained = []
        for client in range(data.n):
            nn.utils.vector_to_parameters(model.clone(), network.parameters())
            step = torch.optim.SGD(network.parameters(), lr=0.05)
            x, y = data.slice(client, "train")
            order = torch.from_numpy(stream(0, "batches", client, number).permutation(len(y)))
            for rows in torch.split(order, 8):
                step.zero_grad()
                loss(network(x[rows]), y[rows]).backward()
                step.step()
            trained.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
        weights = torch.from_numpy(data.samples / data.samples.sum()).float()
        model = (torch.stack(trained) * weights[:, None]).sum(0)
    nn.utils.vector_to_parameters(model, network.parameters())
    expected = []
    for client in range(data.n):
        x, y = data.slice(client, "test")
        with torch.no_grad():
            expected.append(float(loss(network(x), y).sqrt()))
    assert layout.size == len(model)
    assert run.rounds["macro_rmse"][-1] == pytest.approx(np.mean(expected), rel=1e-5)
