"""How many groups: each number tried for a few rounds on some of the clients (FeSEM, section 5.2).

The paper chooses its K by running FeSEM with each number of centres on 100 sampled nodes for three rounds. Here the
scores are of validation samples, over several seeds, and all numbers meet the same clients and draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from coterie.errors import BadInput
from coterie.runs.schema.experiment import Experiment
from coterie.studies.compare.spec import Comparison, shared_tables
from coterie.studies.compare.table import interval

NODES, ROUNDS, SEEDS, MOST = 100, 3, 3, 6
"""Clients that take part in a round, rounds, seeds, and the largest number of groups that is tried."""


@dataclass(frozen=True)
class Tried:
    """A number of groups."""

    clusters: int
    mean: float
    low: float
    """Ends of the 95 % interval of the difference to the best, paired by seed; 0 for the best."""
    high: float

    @property
    def is_alike(self) -> bool:
        """Whether it cannot be told from the best."""
        return self.low <= 0 <= self.high


def plan(
    experiment: Experiment, clients: int, most: int = MOST, seeds: int = SEEDS, rounds: int = ROUNDS
) -> Comparison:
    """Return the runs: the experiment's method with 1, 2, …, `most` groups.

    Args:
        experiment: whose data, network, training and method; the method must have `clusters`.
        clients: how many there are; where more than `NODES`, so many are drawn in each round.
        most: the largest number of groups.
        seeds: how many.
        rounds: of each run.

    Raises:
        BadInput: the method has no number of groups.
    """
    tables, method = shared_tables(experiment), experiment.tables()["method"]
    tables["run"] |= {"rounds": rounds, "participation": min(1.0, NODES / clients)}
    tables["run"].pop("passes", None)
    tables["evaluation"] |= {"every": rounds, "last": 1, "on": "validation"}
    return Comparison.from_tables(
        {
            "name": "choose-k",
            "seeds": seeds,
            "experiment": tables,
            "methods": {f"K = {k}": {"method": {**method, "clusters": k}} for k in range(1, most + 1)},
            "adapted": {},
        }
    )


def choose(comparison: Comparison, cells: pl.DataFrame, falls: bool) -> tuple[int, list[Tried]]:
    """Return the number of groups with the best mean, the smaller one of equals, and what each came to.

    A number of groups is left out if one of its runs failed or diverged.

    Args:
        comparison: as `plan` gives it.
        cells: what its runs measured (`coterie.studies.compare.measures.Frames.cells`).
        falls: whether less of the measure is better.

    Raises:
        BadInput: no number of groups has a score from every seed.
    """
    sound: dict[int, list[float]] = {}
    for k, method in enumerate(comparison.methods, 1):
        values = cells.filter(method=method.name).sort("seed")[comparison.measure].cast(pl.Float64)
        if len(values) and values.is_finite().all(ignore_nulls=False):
            sound[k] = values.to_list()
    if not sound:
        raise BadInput("no number of groups has a score: runs failed or diverged; try a smaller training.lr")
    sign = -1 if falls else 1
    means = {k: sum(own) / len(own) for k, own in sound.items()}
    best = max(means, key=lambda k: (sign * means[k], -k))
    tried = []
    for k, own in sound.items():
        differences = [mine - his for mine, his in zip(own, sound[best], strict=True)]
        _, low, high = (0.0, 0.0, 0.0) if k == best else interval(differences)
        tried.append(Tried(k, means[k], low, high))
    return best, tried
