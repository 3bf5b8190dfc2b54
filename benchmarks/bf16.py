"""What `training.precision = "bf16"` gains and costs: seconds of a round, and the accuracy in the end.

    python -m benchmarks.bf16 [--only cifar] [--seeds 3] [--rounds 10] [--json FILE] [--smoke]

FedAvg on real data, rounds of both precisions in turn, so that both meet the same moods of the machine. A round is
training and the evaluation of all clients, in float32 either way; nothing is written. `faster` is the ratio of
the medians of all rounds but the first; accuracies are means over the seeds after the last round, and the
difference is that of each seed with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import arguments, median, write
from benchmarks.smoke import shrink
from coterie.clients.rules.training import Precision
from coterie.errors import BadInput
from coterie.runs.loop import rounds
from coterie.runs.schema.experiment import Experiment

PRECISIONS: tuple[Precision, Precision] = ("fp32", "bf16")

EXPERIMENTS: Mapping[str, Mapping[str, Any]] = {
    "digits, cnn, batch 10": {
        "data": {"name": "digits", "split": "dirichlet(0.5)", "clients": 20},
        "network": "cnn",
        "training": {"batch_size": 10, "lr": 0.05},
    },
    "Fashion-MNIST, cnn, batch 32": {
        "data": {"name": "fashion-mnist", "split": "dirichlet(0.5)", "clients": 50, "samples_per_client": 143},
        "network": "cnn",
        "training": {"batch_size": 32, "lr": 0.1},
    },
    "CIFAR-10, simple-cnn, batch 10": {
        "data": {"name": "cifar10", "split": "iid", "clients": 50, "samples_per_client": 72},
        "network": "simple-cnn",
        "training": {"batch_size": 10, "lr": 0.1},
    },
    "CIFAR-10, fedcr-cnn, batch 48": {
        "data": {"name": "cifar10", "split": "iid", "clients": 20, "samples_per_client": 140},
        "network": "fedcr-cnn",
        "training": {"batch_size": 48, "lr": 0.1},
    },
}
"""Clients hold some 50 to 100 training samples each, as in the benchmarks that these sizes are from."""


def compared(title: str, seeds: int, count: int, *, smoke: bool = False) -> dict[str, Any]:
    """One experiment in both precisions, over the seeds."""
    seconds: dict[str, list[float]] = {p: [] for p in PRECISIONS}
    accuracy: dict[str, list[float]] = {p: [] for p in PRECISIONS}
    for seed in range(seeds):
        # Left to itself, float32 might take the other engine.
        run = {"rounds": count, "seed": seed, "engine": "sequential"}
        base = Experiment(**EXPERIMENTS[title], method="fedavg", run=run)
        base = shrink(base) if smoke else base
        one, other = (rounds(base.updated({"training.precision": p})) for p in PRECISIONS)
        with closing(one), closing(other):  # type: ignore[type-var]  # they are generators
            for pair in zip(one, other, strict=True):
                for precision, found in zip(PRECISIONS, pair, strict=True):
                    if found.number > 1:
                        seconds[precision].append(found.metrics["seconds"])
                    if found.number == count:
                        accuracy[precision].append(found.metrics["accuracy"])
    full, half = (accuracy[p] for p in PRECISIONS)
    apart = [b - a for a, b in zip(full, half, strict=True)]
    return {
        "experiment": title,
        "rounds": count,
        "seeds": seeds,
        "fp32_round_s": median(seconds["fp32"]),
        "bf16_round_s": median(seconds["bf16"]),
        "faster": median(seconds["fp32"]) / median(seconds["bf16"]),
        "fp32_accuracy": sum(full) / seeds,
        "bf16_accuracy": sum(half) / seeds,
        "difference": sum(apart) / seeds,
        "least": min(apart),
        "most": max(apart),
    }


def main() -> None:
    """Print the table."""
    parser = arguments("bf16", __doc__, {"only": "mnist", "seeds": 1, "rounds": 2}, repeats=None)
    parser.add_argument("--only", metavar="TEXT", default="", help="experiments whose title holds this")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, …")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each run")
    asked = parser.read()
    rows = []
    for title in EXPERIMENTS:
        if asked.only.lower() in title.lower():
            try:
                rows.append(compared(title, asked.seeds, asked.rounds, smoke=asked.smoke))
            except BadInput as problem:
                Console(stderr=True).print(f"{title} is left out: {problem}")
    table = Table(title=f"bfloat16 against float32, {asked.rounds} rounds, {asked.seeds} seeds")
    for column in ("experiment", "fp32 s", "bf16 s", "faster", "fp32 accuracy", "bf16 accuracy", "difference"):
        table.add_column(column, justify="left" if column == "experiment" else "right")
    for row in rows:
        table.add_row(
            row["experiment"],
            f"{row['fp32_round_s']:.3f}",
            f"{row['bf16_round_s']:.3f}",
            f"{row['faster']:.2f}",
            f"{row['fp32_accuracy']:.4f}",
            f"{row['bf16_accuracy']:.4f}",
            f"{row['difference']:+.4f} ({row['least']:+.4f} to {row['most']:+.4f})",
        )
    Console(width=130).print(table)
    write(asked.json, "bf16", rows)


if __name__ == "__main__":
    main()
