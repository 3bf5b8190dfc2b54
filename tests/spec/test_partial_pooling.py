"""Partial pooling (6.19 of docs/methods/partial-pooling.md): departures, shrunk by empirical Bayes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.clients.rules.pooled import find_shares
from coterie.methods.partial_pooling import PartialPooling
from tests.federated import planted, train


def test_partial_pooling_6_19_shares() -> None:
    variances = np.array([[1.0, 0.0, 0.0, 3.0], [10.0, 5.0, 0.0, 0.0]])
    assert find_shares(variances, 10).tolist() == [0.5, 0.0, 0.0, 1.0]
    assert (np.diff([find_shares(variances, n)[0] for n in (1, 5, 50, 500)]) > 0).all()


def test_partial_pooling_6_19_keeps_what_is_no_chance() -> None:
    kept = {}
    for kind in ("iid", "incongruent"):
        run = train(PartialPooling(), planted(kind, 4, clients=12), 6)
        variances = run.state.variances[0].double().view(2, -1).numpy()
        kept[kind] = float(find_shares(variances, int(np.median(run.server.samples))).mean())
    assert kept["iid"] < 0.35
    assert kept["incongruent"] > kept["iid"] + 0.3


def test_partial_pooling_6_19_costs() -> None:
    federation = planted("feature", clients=8)
    run = train(PartialPooling(), federation, 3)
    size, told = run.server.layout.size, 2 * len(run.server.layout.layers)
    assert [run.bytes("down", number) for number in (1, 2, 3)] == [
        8 * more * 4 for more in (size, 2 * size + told, 2 * size + told)
    ]
    assert {run.bytes("up", number) for number in (1, 2, 3)} == {8 * (size + told) * 4}


@pytest.mark.medium
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
def test_partial_pooling_6_19_is_as_good_as_the_best_ridge(spread: float, tmp_path: Path) -> None:
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
    methods = {
        "pooled": asked.method,
        "one": {"name": "fedavg"},
        "alone": {"name": "local-only"},
    }
    errors = {}
    for name, method in methods.items():
        tables = {**asked.tables(), "method": method if isinstance(method, dict) else asked.tables()["method"]}
        tables["run"] = {**tables["run"], "name": name}
        errors[name] = coterie.run(coterie.Experiment.from_tables(tables)).summary["macro_rmse"]
    best = min(errors["one"], errors["alone"])
    assert errors["pooled"] < best * 1.02
    if spread == 0.3:
        assert errors["pooled"] < 0.98 * best
