"""How often FedTSDP's Hopkins statistic passes its threshold by chance, by how many clients it draws.

    python -m benchmarks.hopkins [--rounds 40] [--seeds 0 1 2] [--smoke]

With `h = 1` nobody is ever grouped, so that training is FedAvg's whatever is drawn, and runs of one seed differ in
the draws alone. Every run is 20 clients of at most 150 images, of which 105 train a perceptron as the paper trains.
Printed are the shares of rounds in which the statistic is above 0.65, the threshold of the paper: the mean, the
lowest and the highest of the seeds.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

import coterie
from benchmarks.document_sections import markdown
from benchmarks.smoke import Arguments
from coterie.runs.schema.experiment import Experiment
from coterie.runtime.threads import one_thread

THRESHOLD = 0.65
CLIENTS = 20
DRAWS: Mapping[str, Mapping[str, Any]] = {
    "2": {"sample": 0.1},
    "4": {"sample": 0.2},
    "10": {"sample": 0.5},
    "20": {"sample": 1.0},
    "2, mean of ten draws": {"sample": 0.1, "repeats": 10},
}
"""How many of 20 clients are drawn, and the settings of FedTSDP that draw so."""
SPLITS = (
    ("iid", "fashion-mnist"),
    ("iid", "digits"),
    ("dirichlet(0.5)", "fashion-mnist"),
    ("dirichlet(0.2)", "fashion-mnist"),
    ("dirichlet(0.5)", "digits"),
)


def share_above(split: str, data: str, draws: str, rounds: int, seed: int) -> float:
    """Return the share of a run's rounds in which the statistic was above the threshold.

    Raises:
        BadInput: the data are not to be had.
    """
    with tempfile.TemporaryDirectory() as folder, one_thread(blas=True):
        result = coterie.run(
            Experiment(
                data={"name": data, "split": split, "clients": CLIENTS, "samples_per_client": 150, "public": 200},
                method={"name": "fedtsdp", "h": 1.0, **DRAWS[draws]},
                network="mlp",
                training={"epochs": 2, "batch_size": 50, "lr": 0.05, "lr_decay": 0.95, "momentum": 0.5},
                evaluation={"every": rounds},
                run={"rounds": rounds, "seed": seed, "workers": 1, "folder": folder},
            )
        )
        logged = pl.read_parquet(Path(result.folder) / "log.parquet").filter(pl.col("name") == "hopkins")
    return int((logged["value"] > THRESHOLD).sum()) / len(logged)


def main() -> None:
    """Run every split with every way to draw, and print the table."""
    parser = Arguments("hopkins", __doc__, {"rounds": 2, "seeds": [0]})
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.read()
    lines = []
    for draws in list(DRAWS)[: 1 if given.smoke else None]:
        line = [draws]
        for split, data in SPLITS:
            shares = [share_above(split, data, draws, given.rounds, seed) for seed in given.seeds]
            line.append(f"{sum(shares) / len(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})")
            print(f"{draws} of {CLIENTS}, {split}, {data}: {line[-1]}", flush=True)
        lines.append(line)
    print(markdown((f"of {CLIENTS} clients", *(f"{split}, {data}" for split, data in SPLITS)), lines))


if __name__ == "__main__":
    main()
