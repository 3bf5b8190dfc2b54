"""The cells of the leaderboard: a method on a federation at the best rate of a grid, kept with a digest.

It is run from every seed, and scored as served and after one epoch on each client.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from benchmarks.measuring import machine
from coterie.clients.data.read.datasets import Dataset, dataset
from coterie.errors import BadInput
from coterie.runs.folder.files import write_whole
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from coterie.runs.schema.names import build_method
from coterie.runs.schema.sections import make_name
from coterie.studies.compare.cells import CellOutcome
from coterie.studies.compare.measures import measure_cells
from coterie.studies.compare.spec import Cell, Comparison
from coterie.studies.compare.tuning import tuned_settings

SEEDS = (0, 1, 2, 3, 4)
TUNING_SEEDS = (0, 1)
"""From which each rate is tried, on validation samples."""
OTHER_SEEDS = (5, 6, 7, 8, 9)
"""From which FedAvg is run again, to show what other seeds do to one and the same method."""
RATES = (0.02, 0.05, 0.1, 0.2)
"""The learning rates that every method is tried with."""
ADAM_RATES = (0.002, 0.005, 0.01, 0.02)
ROUNDS = 20
ADAPTED = "+FT"
"""The end of a row's name that is a method after one epoch on each client."""
REFERENCE = "fedavg"
"""The method that cells are held against, whether they are this one at another rate, and that is run again."""
GAUSSIAN = ("fedcr", "fedsr")
"""Methods whose network ends in Gaussian features."""
UNDIGESTED = ("digest", "seconds", "machine")
"""Keys of a result that its digest does not cover: they differ from run to run."""

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Federation:
    """A federation of the leaderboard."""

    about: str
    """What it is, in a sentence."""
    skew: str
    """In what its clients differ, in a few words."""
    data: Mapping[str, Any]
    network: Mapping[str, Any]
    training: Mapping[str, Any]
    rounds: int = ROUNDS
    rates: tuple[float, ...] = RATES


class Characters(nn.Module):
    """The next character from the last four: an embedding of each, a hidden layer, a head."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 8)
        self.hidden = nn.Linear(32, width)
        self.head = nn.Linear(width, classes)

    def forward(self, characters: Tensor) -> Tensor:
        """Return a score of each character at every place, `[B, places, classes]`, of `[B, places]`."""
        seen = nn.functional.pad(self.embedding(characters), (0, 0, 3, 0))
        length = characters.shape[1]
        last = torch.cat([seen[:, begin : begin + length] for begin in range(4)], dim=2)
        scores: Tensor = self.head(torch.relu(self.hidden(last)))
        return scores


@dataset(users=True)
def hospitals(public: bool) -> Dataset:
    """Sixteen made hospitals with 100 stays each; in six of them the same signs mean the other outcome."""
    rng = np.random.default_rng(0)
    count, size, signs = 16, 100, 8
    inputs = rng.normal(size=(count * size, signs)).astype(np.float32)
    people = np.repeat(np.arange(count), size)
    special = (np.arange(count) >= 10).astype(np.int64)
    risk = 1.6 * np.where(special[people] == 1, -1, 1) * (inputs[:, 0] + 0.9 * inputs[:, 1]) + 0.8 * inputs[:, 2]
    back = (rng.random(count * size) < 1 / (1 + np.exp(-1.5 * risk))).astype(np.int64)
    names = tuple(f"hospital {number}" for number in range(count))
    return Dataset("hospitals", inputs, back, 2, people, names, user_groups=special)


@dataset()
def tumours(public: bool) -> Dataset:
    """569 tumours of the breast: 30 measures of nuclei of cells, benign or malignant (Wolberg et al., 1995)."""
    from sklearn.datasets import load_breast_cancer

    kept = load_breast_cancer()
    inputs = (kept.data - kept.data.mean(0)) / kept.data.std(0)
    return Dataset("tumours", inputs.astype(np.float32), kept.target.astype(np.int64), 2)


PERCEPTRON = {"name": "mlp", "hidden": [32]}
USUAL = {"epochs": 1, "batch_size": 20}
FEW = {"samples_per_client": 100, "public": 100}

FEDERATIONS: dict[str, Federation] = {
    "iid": Federation(
        "Digits of scikit-learn, dealt to 12 clients at random: the control, where nothing is to be found.",
        "no skew",
        {"name": "digits", "split": "iid", "clients": 12, **FEW},
        PERCEPTRON,
        USUAL,
    ),
    "labels": Federation(
        "Fashion-MNIST; each class is cut over 12 clients by a Dirichlet draw of 0.2 (label skew).",
        "skewed labels (Dirichlet)",
        {"name": "fashion-mnist", "split": "dirichlet(0.2)", "clients": 12, **FEW},
        PERCEPTRON,
        USUAL,
    ),
    "turned": Federation(
        "MNIST; 12 clients in four planted groups, whose images are turned by 0, 90, 180 and 270 degrees "
        "(feature skew).",
        "turned images, four planted groups",
        {"name": "mnist", "split": "rotated(4)", "clients": 12, **FEW},
        PERCEPTRON,
        USUAL,
    ),
    "writers": Federation(
        "MNIST by who wrote it: 16 writers, census employees or students (real feature skew; ARI against "
        "these two).",
        "handwriting, real",
        {"name": "mnist-writers", "split": "by-user", "clients": 16, "public": 100},
        PERCEPTRON,
        USUAL,
    ),
    "swapped": Federation(
        "Fashion-MNIST; 12 clients in three planted groups, each with a permutation of the labels of its own "
        "(concept skew).",
        "labels that mean different things, three planted groups",
        {"name": "fashion-mnist", "split": "permuted-labels(3)", "clients": 12, **FEW},
        PERCEPTRON,
        USUAL,
    ),
    "signals": Federation(
        "UCI HAR by person: 15 people who carry a phone, six activities (real, a signal).",
        "movements of people, real",
        {"name": "uci-har", "split": "by-user", "clients": 15, **FEW},
        PERCEPTRON,
        USUAL,
    ),
    "roles": Federation(
        "Shakespeare by role: 8 roles, the next character from the last four (real, text).",
        "speech of roles, real",
        {"name": "shakespeare", "split": "by-user", "clients": 8, "samples_per_client": 40, "public": 20},
        {"name": "benchmarks.leaderboard_cells:Characters"},
        {"epochs": 1, "batch_size": 10, "optimizer": "adam"},
        rounds=10,
        rates=ADAM_RATES,
    ),
    "table": Federation(
        "A made table of 16 hospitals; in six the same signs mean the other outcome (planted concept skew).",
        "signs that mean different things, two planted groups",
        {"name": "benchmarks.leaderboard_cells:hospitals", "split": "by-user", "public": 100},
        {"name": "mlp", "hidden": [16]},
        USUAL,
    ),
    "tumours": Federation(
        "Tumours of the breast by measures of cells, dealt to 8 hospitals by a Dirichlet draw of 0.3 (real data, "
        "medical; label skew).",
        "skewed labels, few samples, medical",
        {
            "name": "benchmarks.leaderboard_cells:tumours",
            "split": "dirichlet(0.3)",
            "clients": 8,
            "samples_per_client": 60,
            "public": 40,
        },
        {"name": "mlp", "hidden": [16]},
        USUAL,
    ),
}


def plan(
    federation: str, method: str, rate: float, seeds: Sequence[int] | None = None, *, tuning: bool = False
) -> Comparison:
    """Return the comparison of a method alone at a rate, with a second row after one epoch on each client.

    In tuning there is no such row, and the scores are on validation samples.

    Raises:
        BadInput: there is no such method.
    """
    one = FEDERATIONS[federation]
    network = (
        {**one.network, "name": "gaussian-mlp"} if method in GAUSSIAN and "hidden" in one.network else one.network
    )
    # A method with a learning rate of its own is tried with that.
    own = "method.lr" in tuned_settings(method)
    # A mean over three rounds: right after a full average of layers DC-PFL serves worse than a round later.
    evaluation = {
        "every": one.rounds,
        "last": min(3, one.rounds),
        **({"on": "validation"} if tuning else {"adapt": {"epochs": 1}}),
    }
    experiment = {
        "data": dict(one.data),
        "network": dict(network),
        "training": {**one.training, **({} if own else {"lr": rate})},
        "evaluation": evaluation,
        "run": {"rounds": one.rounds, "workers": 1},
    }
    return Comparison.from_tables(
        {
            "name": "leaderboard",
            "methods": {method: {"method": {"name": method, **({"lr": rate} if own else {})}}},
            "adapted": {} if tuning else {f"{method}{ADAPTED}": method},
            "seeds": list(SEEDS if seeds is None else seeds),
            "experiment": experiment,
        }
    )


def settings_of(federation: str, method: str) -> dict[str, Any]:
    """Return what a result depends on, as it is kept beside it."""
    import coterie

    rates = FEDERATIONS[federation].rates
    tables = plan(federation, method, rates[0]).tables()
    whole = {"experiment": tables["experiment"], "rates": list(rates)}
    seeds = {"seeds": list(SEEDS), "tuning_seeds": list(TUNING_SEEDS), "other_seeds": list(OTHER_SEEDS)}
    kept: dict[str, Any] = json.loads(json.dumps({**whole, **seeds, "coterie": coterie.__version__}))
    return kept


def compute(federation: str, method: str) -> Result:
    """Tune a method on a federation, run it from every seed, and return what is kept.

    A method that cannot run there has no rows; `failed` says why.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    begun = time.perf_counter()
    found: dict[str, Any] = {
        "federation": federation,
        "method": method,
        "settings": settings_of(federation, method),
        "failed": None,
        "measure": None,
        "rate": None,
        "trials": [],
        "rows": {},
        "again": [],
    }
    try:
        with tempfile.TemporaryDirectory() as folder:
            found |= _measure(federation, method, Path(folder))
    except BadInput as problem:
        found["failed"] = problem.problems[0]
    found = json.loads(json.dumps(found))
    return {
        **found,
        "digest": digest_of(found),
        "seconds": round(time.perf_counter() - begun, 2),
        "machine": machine(),
    }


def _measure(federation: str, method: str, pool: Path) -> dict[str, Any]:
    rates = FEDERATIONS[federation].rates
    plan(federation, method, rates[0]).check(pool)
    if rates is ADAM_RATES and build_method(Experiment(method=method).method).needs.plain_sgd:
        raise BadInput("its local steps are plain SGD, and the rates here are Adam's")
    trials: list[dict[str, Any]] = []
    for rate in rates:
        tried, falls, measure = _read_rows(plan(federation, method, rate, TUNING_SEEDS, tuning=True), pool)
        values, losses = ([run[what] for run in tried[method]] for what in ("value", "train_loss"))
        trials.append({"rate": rate, "values": values, "losses": losses})
    best = max(trials, key=lambda trial: _goodness(trial["values"], falls))
    rows, _, _ = _read_rows(plan(federation, method, best["rate"]), pool)
    again: list[dict[str, Any]] = []
    if method == REFERENCE:
        again = _read_rows(plan(federation, method, best["rate"], OTHER_SEEDS), pool)[0][method]
    return {
        "measure": measure,
        "falls": falls,
        "rate": best["rate"],
        "trials": trials,
        "rows": rows,
        "again": again,
    }


def _goodness(values: Sequence[float | None], falls: bool) -> float:
    """The mean over the seeds, turned so that more is better; least where a run ended without a number."""
    known = [np.nan if value is None else value for value in values]
    mean = float(np.mean(known))
    return -np.inf if np.isnan(mean) else -mean if falls else mean


def _read_rows(comparison: Comparison, pool: Path) -> tuple[dict[str, list[dict[str, Any]]], bool, str]:
    """Run a comparison; return what each row has, seed by seed, whether less is better, and of which measure."""
    outcomes = _play(comparison.cells(), pool)
    failed = [outcome.sentence for outcome in outcomes.values() if outcome.status != "finished"]
    if failed:
        raise BadInput(failed[0])
    frames = measure_cells(comparison, {key: RunFolder(pool / key) for key in outcomes})
    comparison = comparison.measured_by(frames.metrics)
    rows: dict[str, list[dict[str, Any]]] = {}
    columns = ("seed", "groups", "ari", "up_bytes", "down_bytes", "worst10")
    for end in frames.cells.iter_rows(named=True):
        clients = frames.clients.filter((pl.col("method") == end["method"]) & (pl.col("seed") == end["seed"]))
        passes = end.get("passes")
        extra = 1.0 if end["method"].endswith(ADAPTED) else 0.0
        rows.setdefault(end["method"], []).append(
            {name: end[name] for name in columns}
            | {
                "passes": None if passes is None else passes + extra,
                "samples": _mean_samples(RunFolder(pool / end["key"])),
                "train_loss": _last_loss(RunFolder(pool / end["key"])),
                "value": end[comparison.measure],
                "clients": clients[frames.metrics.deciding.name].to_list(),
            }
        )
    return rows, comparison.measure in frames.metrics.falling, comparison.measure


def _last_loss(folder: RunFolder) -> float | None:
    """The loss of the last round's training, which no two methods share to the last digit."""
    losses = folder.rounds()["train_loss"].drop_nulls()
    return float(losses[-1]) if len(losses) else None


def _mean_samples(folder: RunFolder) -> float | None:
    """The mean number of training samples a client."""
    federation = folder.federation()
    return None if federation is None else round(float(federation["train"].to_numpy().mean()), 1)


def _play(cells: Iterable[Cell], pool: Path) -> dict[str, CellOutcome]:
    """Run cells in this process, each into `pool/KEY`; what is there already is not run again."""
    import coterie
    from coterie.runtime.threads import one_thread

    outcomes: dict[str, CellOutcome] = {}
    for cell in {cell.key: cell for cell in cells}.values():
        if (pool / cell.key).exists():
            outcomes[cell.key] = CellOutcome("finished")
            continue
        try:
            with one_thread(blas=True):
                placed = cell.experiment.updated({"run.folder": str(pool), "run.name": cell.key})
                status = coterie.run(placed).status
        except BadInput as problem:
            outcomes[cell.key] = CellOutcome("failed", problem.problems[0])
            continue
        if status != "finished":
            raise KeyboardInterrupt
        outcomes[cell.key] = CellOutcome("finished")
    return outcomes


def digest_of(result: Result) -> str:
    """Return 32 hexadecimal digits over all of a result but how long it took, and where."""
    told = {key: value for key, value in result.items() if key not in UNDIGESTED}
    return blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()


def file_of(folder: Path, federation: str, method: str) -> Path:
    """Return where a result is kept."""
    return folder / federation / f"{make_name(method)}.json"


def keep(folder: Path, result: Result) -> Path:
    """Write a result, whole or not at all, and return its file."""
    path = file_of(folder, result["federation"], result["method"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, f"{json.dumps(result, indent=None, separators=(',', ':'))}\n".encode())
    return path


def read(folder: Path) -> dict[tuple[str, str], Result]:
    """Return the results in a folder, by federation and method; those of other federations are left out.

    Raises:
        BadInput: there is no such folder, or a file is damaged or was changed.
    """
    if not folder.is_dir():
        raise BadInput(f"{str(folder)!r} is no folder of results; make one with --folder {folder}")
    found: dict[tuple[str, str], Result] = {}
    for path in sorted(folder.glob("*/*.json")):
        result = read_file(path)
        if result["federation"] in FEDERATIONS:
            found[result["federation"], result["method"]] = result
    return found


def read_file(path: Path) -> Result:
    """Return the result in a file.

    Raises:
        BadInput: it is damaged, or its digest is another one.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text("utf-8"))
        kept, digest = result["digest"], digest_of(result)
        _ = result["federation"], result["method"], result["settings"], result["rows"]
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise BadInput(
            f"{str(path)!r} is no result of the leaderboard; remove it, and it is made again"
        ) from problem
    if kept != digest:
        raise BadInput(
            f"{str(path)!r} was changed: it says digest {kept}, and has {digest}; remove it, and it is made again"
        )
    return result


def join(own: Mapping[tuple[str, str], Result], folders: Sequence[Path]) -> dict[tuple[str, str], Result]:
    """Return the results with those of other folders, whose methods are further rows.

    Raises:
        BadInput: a folder's result is damaged, was changed or made under other settings, or its method is on the
            leaderboard already.
    """
    whole = dict(own)
    for folder in folders:
        for place, result in read(folder).items():
            path = str(file_of(folder, *place))
            if place in whole:
                raise BadInput(f"{path!r} is of {place[1]!r}, which is on the leaderboard already; remove the file")
            if not is_comparable(result):
                raise BadInput(
                    f"{path!r} was made under other settings than the leaderboard's {place[0]!r}; make it again by "
                    "the same version of Coterie"
                )
            whole[place] = result
    return whole


def is_comparable(result: Result) -> bool:
    """Return whether a result was made on the federation as it is now.

    The network is left out, which a method's own needs may decide.
    """

    def without_network(settings: Mapping[str, Any]) -> dict[str, Any]:
        shared = {key: value for key, value in settings["experiment"].items() if key != "network"}
        return {**settings, "experiment": shared}

    now = settings_of(result["federation"], "fedavg")
    return without_network(result["settings"]) == without_network(now)
