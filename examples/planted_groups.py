"""Do my clients fall into groups, and does a model per group beat one model for all, for every client?

python examples/planted_groups.py
"""

from typing import Any

import polars as pl

import coterie

SHARED: dict[str, Any] = {
    "data": {"name": "digits", "split": "rotated(4)", "clients": 20, "test": 0.3},
    "network": {"name": "mlp", "hidden": [32]},
    "training": {"epochs": 5, "batch_size": 10, "lr": 0.1},
    "run": {"rounds": 10},
}

one = coterie.run(coterie.Experiment(method="fedavg", **SHARED))
groups = coterie.run(coterie.Experiment(method={"name": "fesem", "clusters": 4}, **SHARED))

last = pl.col("round") == 10
beside = groups.clients.filter(last).join(one.clients.filter(last), on="client", suffix="_one_model")
gain = beside.select("client", "group", gain=pl.col("accuracy") - pl.col("accuracy_one_model"))

print(f"groups found: {groups.summary['groups']}, agreement with the true ones: {groups.summary['ari']:.2f}")
by_group = gain.group_by("group").agg(pl.len().alias("clients"), pl.mean("gain"), least=pl.min("gain"))
print(by_group.sort("group"))
print(f"clients worse off: {gain.filter(pl.col('gain') < 0).height} of {gain.height}")
