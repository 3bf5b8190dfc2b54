"""Partial pooling (6.19 of docs/methods/partial-pooling.md): departures, shrunk by empirical Bayes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import coterie
from coterie.clients.data.federation import Federation
from coterie.clients.rules.pooled import find_shares
from coterie.clients.rules.requests import Split
from coterie.methods.partial_pooling import PartialPooling
from coterie.runs.schema.experiment import prepare
from coterie.runs.setup import load_federation
from tests.federated import planted, train

Floats = NDArray[np.float64]


def test_partial_pooling_6_19_shares() -> None:
    variances = np.array([[1.0, 0.0, 0.0, 3.0], [10.0, 5.0, 0.0, 0.0]])
    assert find_shares(variances, 10).tolist() == [0.5, 0.0, 0.0, 1.0]
    assert (np.diff([find_shares(variances, n)[0] for n in (1, 5, 50, 500)]) > 0).all()


@pytest.mark.slow
def test_partial_pooling_6_19_keeps_what_is_no_chance() -> None:
    kept = {}
    for kind in ("iid", "incongruent"):
        run = train(PartialPooling(), planted(kind, 4, clients=12), 6)
        variances = run.state.variances[0].double().view(2, -1).numpy()
        kept[kind] = float(find_shares(variances, int(np.median(run.server.samples))).mean())
    assert kept["iid"] < 0.35
    assert kept["incongruent"] > kept["iid"] + 0.3


def best_ridge(federation: Federation) -> float:
    """The mean RMSE of clients' ridges to the pooled least squares, at the strength that suits the test best."""

    def read(client: int, split: Split) -> tuple[Floats, Floats]:
        inputs, targets = federation.slice(client, split)
        return np.c_[inputs.double().numpy(), np.ones(len(inputs))], targets.double().numpy().ravel()

    clients = range(len(federation.names))
    parts = [(read(client, "train"), read(client, "test")) for client in clients]
    every = [train for train, _ in parts]
    pooled = np.linalg.lstsq(np.concatenate([x for x, _ in every]), np.concatenate([y for _, y in every]))[0]

    def error(strength: float) -> float:
        found = []
        for (x, y), (x_test, y_test) in parts:
            own = np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ (y - x @ pooled))
            found.append(np.sqrt(np.mean((x_test @ (pooled + own) - y_test) ** 2)))
        return float(np.mean(found))

    return min(map(error, np.logspace(-3, 6, 37)))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
def test_partial_pooling_6_19_is_nearly_the_best_ridge(spread: float, tmp_path: Path) -> None:
    """40 clients with 20 samples of a linear regression, whose coefficients vary by `spread` between clients."""
    rng, lines = np.random.default_rng(0), ["client,a,b,c,d,label"]
    for client in range(40):
        slopes = np.array([1.0, -1.0, 0.5, 0.0]) + spread * rng.normal(size=4)
        for _ in range(40):
            x = rng.normal(size=4)
            lines.append(f"c{client}," + ",".join(f"{v:.4f}" for v in (*x, x @ slopes + rng.normal())))
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n", "utf-8")
    asked = coterie.Experiment(
        data={"name": str(tmp_path / "a.csv"), "validation": 0.0, "test": 0.5},
        task="regression",
        network="linear",
        method={"name": "partial-pooling", "passes": 20},
        training={"lr": 0.1, "batch_size": 5},
        evaluation={"every": 15},
        run={"rounds": 15, "workers": 1, "folder": str(tmp_path / "runs")},
    )
    errors, methods = (
        {},
        {"pooled": asked.tables()["method"], "one": {"name": "fedavg"}, "alone": {"name": "local-only"}},
    )
    for name, method in methods.items():
        tables = {**asked.tables(), "method": method}
        tables["run"] = {**tables["run"], "name": name}
        errors[name] = coterie.run(coterie.Experiment.from_tables(tables)).summary["macro_rmse"]
    best = min(errors["one"], errors["alone"])
    assert errors["pooled"] < best * 1.02
    assert errors["pooled"] < 1.05 * best_ridge(load_federation(prepare(asked)))
    if spread == 0.3:
        assert errors["pooled"] < 0.98 * best
