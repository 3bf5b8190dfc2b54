"""What a promise of privacy costs in accuracy, and what it costs to make it to groups.

    COTERIE_DATA=… python -m benchmarks.privacy [--write FILE] [--only METHOD,…] [--kept] [--smoke]

600 clients hold 80 digits of MNIST each, half of them upside down, and a fifth takes part in a round. All that a
client holds is hidden with one epsilon: by noise of the server for FedAvg and IFCA, and by noise of the clients for
FeSEM, whose server looks at single models. A cell is the accuracy after the last of 30 rounds; three seeds.

A cell is kept as soon as it has ended, under a key of all its settings and Coterie's version, and is not run again
while its key is the same. `--kept` runs nothing. With the page its picture is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import altair as alt
import polars as pl

from benchmarks.kept_cells import Row, fill, write_with_picture
from coterie.errors import BadInput
from coterie.report.drawing.figure import Chart
from coterie.runs.schema.experiment import Experiment

PAGE = Path(__file__).parents[1] / "docs" / "privacy.md"
KEPT = PAGE.parent / "privacy" / "accuracy.json"
PICTURE = "privacy"
METHODS: Mapping[str, tuple[Any, str]] = {
    "fedavg": ("fedavg", "server"),
    "ifca": ({"name": "ifca", "init": "plain", "clusters": 2}, "server"),
    "fesem": ({"name": "fesem", "clusters": 2, "warm_up": 0}, "clients"),
}
"""The method with its settings, and who adds noise."""
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, None)
"""None promises nothing."""
SEEDS = (0, 1, 2)
BEGIN, END = "<!-- accuracy -->", "<!-- end of accuracy -->"


@dataclass(frozen=True)
class PrivateCell:
    """One run."""

    method: str
    epsilon: float | None
    seed: int

    def experiment(self) -> Experiment:
        """Return what is run."""
        method, noise_by = METHODS[self.method]
        promise = {"unit": "client", "noise_by": noise_by, "epsilon": self.epsilon, "clip_norm": 0.3}
        promise["noise_seed"] = self.seed  # so that a cell can be made again
        return Experiment(
            data={"name": "mnist", "split": "rotated(2)", "clients": 600, "samples_per_client": 80},
            network={"name": "mlp", "hidden": [32]},
            method=method,
            training={"lr": 0.1, "batch_size": 20, "epochs": 2},
            evaluation={"every": 30},
            run={"rounds": 30, "participation": 0.2, "seed": self.seed, "workers": 1},
            privacy={} if self.epsilon is None else promise,
        )

    @property
    def place(self) -> str:
        """What of its row says which cell it is."""
        return f"{self.method}, {self.epsilon}, {self.seed}"


def cells(methods: Sequence[str]) -> list[PrivateCell]:
    """Return the cells, seed by seed."""
    return [PrivateCell(m, e, s) for s, m, e in product(SEEDS, methods, reversed(EPSILONS))]


def accuracies(method: str, epsilon: float | None, rows: Mapping[str, Row]) -> list[float]:
    """Return what came out, a number a seed."""
    found = [rows.get(PrivateCell(method, epsilon, seed).place) for seed in SEEDS]
    return [float(row["accuracy"]) for row in found if row is not None]


def table(rows: Mapping[str, Row]) -> str:
    """Return the table in Markdown: a line a method, a column an epsilon."""
    heads = ["no promise" if epsilon is None else f"{epsilon:g}" for epsilon in reversed(EPSILONS)]
    lines = [f"| method | noise by | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    for method, (_, noise_by) in METHODS.items():
        found = [accuracies(method, epsilon, rows) for epsilon in reversed(EPSILONS)]
        shown = [f"{fmean(some):.3f}" if some else "" for some in found]
        lines.append(f"| `{method}` | {noise_by} | {' | '.join(shown)} |")
    return "\n".join(lines)


def draw(rows: Mapping[str, Row]) -> Chart:
    """Draw accuracy against epsilon; a dashed line is what the method has without a promise."""
    points = [
        {"method": method, "epsilon": epsilon, "accuracy": value}
        for method, epsilon in product(METHODS, EPSILONS)
        for value in accuracies(method, epsilon, rows)
    ]
    table = pl.DataFrame(points, schema={"method": pl.String, "epsilon": pl.Float64, "accuracy": pl.Float64})
    colour = alt.Color("method:N", title=None, sort=list(METHODS), scale=alt.Scale(scheme="tableau10"))
    y = alt.Y("mean(accuracy):Q", title="accuracy", scale=alt.Scale(domain=[0, 1]))
    x = alt.X("epsilon:Q", title="epsilon of each client (less promises more)", scale=alt.Scale(type="log", base=2))
    private = alt.Chart(table.filter(pl.col("epsilon").is_not_null()))
    free = alt.Chart(table.filter(pl.col("epsilon").is_null())).mark_rule(strokeDash=[4, 4])
    lines = private.mark_line(point=True).encode(x=x, y=y, color=colour)
    return alt.layer(lines, free.encode(y=y, color=colour))


def main(words: Sequence[str]) -> int:
    """Run what is missing, and write the table and the picture."""
    rows, page = fill("privacy", __doc__, words, KEPT, list(METHODS), cells)
    if page is None:
        print(table(rows))
        return 0
    write_with_picture(page, (BEGIN, END), [table(rows)], draw(rows), PICTURE, "Accuracy against epsilon")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInput as problem:
        sys.exit("\n".join(problem.problems))
