"""What `coterie diagnose` says of federations whose truth is known, and what full training then shows.

    COTERIE_DATA=… python -m benchmarks.diagnose_truth [--write FILE] [--only truth,map] [--kept] [--smoke]

For the truth 16 federations are diagnosed: planted ones of digits, whose groups and kind of skew are known, and
real ones, clients of which are writers, people and roles. Then everything that a client could have is trained in
full, 40 rounds, and measured on test samples, which the diagnosis has not seen: FedAvg, the same fine-tuned,
Ditto, training alone, and `halves` for the groups.

For the map 20 clients of MNIST are diagnosed, with four planted groups of one kind and from 25 samples each on,
with five seeds.

A cell is kept as soon as it has ended, under a key of all its settings, and is not made again while its key is the
same. `--kept` makes nothing.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.kept_cells import Row, put_between
from benchmarks.measuring import machine
from benchmarks.smoke import Arguments, pick_two, shrink
from coterie.advice.diagnose.diagnose import diagnose
from coterie.advice.diagnose.pay import TITLES
from coterie.grouping.gains import mean_gain
from coterie.runs.folder.files import write_whole
from coterie.runs.schema.experiment import Experiment
from coterie.studies.compare.spec import key_of
from coterie.studies.rows import write_rows

PAGE = Path(__file__).parents[1] / "docs" / "diagnose.md"
KEPT = PAGE.parent / "diagnose" / "truth.json"
TRUTH_MARKS = ("<!-- truth -->", "<!-- end of truth -->")
MAP_MARKS = ("<!-- map -->", "<!-- end of map -->")
ROUNDS = 40
PARTS = ("truth", "map")
NEAR = 0.01
"""What is chosen is right if nothing does better by more than so much on test samples."""

KIND_NAMES = {"labels": "labels", "features": "features", "concept": "meaning"}


class Characters(nn.Module):
    """The next character from the last five, by a convolution."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 16)
        self.window = nn.Conv1d(16, 64, 5)
        self.head = nn.Linear(64, classes)

    def forward(self, characters: Tensor) -> Tensor:
        seen = nn.functional.pad(self.embedding(characters).transpose(1, 2), (4, 0))
        return cast(Tensor, self.head(self.window(seen).relu().transpose(1, 2)))


@dataclass(frozen=True)
class Case:
    """A federation.

    Attributes:
        title: what the table calls it.
        data: the section of the experiment.
        kinds: planted kinds of skew; None where nobody knows.
        groups: planted groups; None where nobody knows.
        network: a name.
        hostile: share of clients that flip signs.
    """

    title: str
    data: dict[str, Any]
    kinds: tuple[str, ...] | None
    groups: int | None
    network: str = "mlp"
    hostile: float = 0.0

    @property
    def place(self) -> str:
        """What says which row it is."""
        return f"truth, {self.title}"

    def experiment(self) -> Experiment:
        """Return what is diagnosed."""
        characters = self.network != "mlp"
        return Experiment(
            data=self.data,
            method="fedavg",
            network=self.network,
            training={"epochs": 2, "lr": 0.01, "optimizer": "adam"} if characters else {"epochs": 5},
            run={"seed": 1, "workers": 1, "rounds": ROUNDS},
            evaluation={"every": ROUNDS},
            attack={"kind": "sign-flip", "share": self.hostile} if self.hostile else {},
        )


def digits(split: str, clients: int = 24) -> dict[str, Any]:
    """Return the section of data of planted clients of digits."""
    return {"name": "digits", "split": split, "clients": clients, "validation": 0.0}


def real(name: str, **settings: Any) -> dict[str, Any]:
    """Return the section of data of clients as they come."""
    return {"name": name, "split": "by-user", "validation": 0.0, **settings}


CASES = (
    Case("one population", digits("iid"), (), 1),
    Case("one population, a fifth flips signs", digits("iid"), (), 1, hostile=0.2),
    Case("labels: Dirichlet 0.3", digits("dirichlet(0.3)"), ("labels",), None),
    Case("labels: 4 groups, each much of one class", digits("label-groups(4)"), ("labels",), 4),
    Case("features: 2 rotations", digits("rotated(2)"), ("features",), 2),
    Case("features: 4 rotations", digits("rotated(4)"), ("features",), 4),
    Case("features: 2 rotations, 18 and 6 clients", digits("rotated(2, sizes=[18, 6])"), ("features",), 2),
    Case("features: 2 rotations, a fifth flips signs", digits("rotated(2)"), ("features",), 2, hostile=0.2),
    Case("meaning: 2 permutations", digits("permuted-labels(2)"), ("concept",), 2),
    Case("meaning: 4 permutations", digits("permuted-labels(4)"), ("concept",), 4),
    Case("meaning: 8 permutations", digits("permuted-labels(8)", 32), ("concept",), 8),
    Case("meaning: 4 of 12, 6, 3, 3 clients", digits("permuted-labels(4, sizes=[12, 6, 3, 3])"), ("concept",), 4),
    Case(
        "labels and meaning: Dirichlet 1, 2 permutations",
        digits("dirichlet(1) + permuted-labels(2)"),
        ("labels", "concept"),
        2,
    ),
    Case("MNIST, 40 writers", real("mnist-writers", clients=40), None, None),
    Case("UCI HAR, 30 people", real("uci-har", clients=30, samples_per_client=100), None, None),
    Case(
        "Shakespeare, 16 roles",
        real("shakespeare", clients=16, samples_per_client=60),
        None,
        None,
        network="benchmarks.diagnose_truth:Characters",
    ),
)

FULL: Mapping[str, Any] = {
    "global": "fedavg",
    "personal": "ditto",
    "local": "local-only",
    "group": "halves",
}
"""The methods that train in full what an option stands for; the fine-tuned model is FedAvg's, adapted."""


def see_truth(asked: Experiment) -> Row:
    """Diagnose a federation, then train everything in full; return what was said and what came out."""
    found = diagnose(asked)
    pay = found.pay
    assert pay is not None
    assert found.kinds is not None
    truth = {}
    begun = time.perf_counter()
    for option, method in FULL.items():
        adapt = {"evaluation.adapt": {"epochs": 5}} if option == "global" else {}
        trained = run_in_full(asked.updated({"method": {"name": method}, **adapt}))
        name = "macro_accuracy" if pay.measure == "accuracy" else "loss"
        truth[option] = float(trained[name])
        if option == "global":
            truth["tuned"] = float(trained[f"adapted_{name}"])
    return {
        "key": key_of(asked),
        "p": found.structure.p,
        "kinds": list(found.kinds.named),
        "groups": 0 if found.all_differ else len(found.groups),
        "ari": found.true_groups_ari,
        "left_out": len(found.turned_round),
        "measure": pay.measure,
        "best": pay.best,
        "said": {option.name: option.score for option in pay.options},
        "truth": truth,
        "seconds": round(found.seconds, 1),
        "full_seconds": round(time.perf_counter() - begun, 1),
    }


def run_in_full(experiment: Experiment) -> Mapping[str, Any]:
    """Train to the end and return the metrics of the last round."""
    import coterie
    from coterie.runtime.threads import one_thread

    with one_thread(blas=True):
        *_, last = coterie.rounds(experiment)
    return last.metrics


SKEWS = {"labels": "label-groups(4)", "features": "rotated(4)", "meaning": "permuted-labels(4)"}
SAMPLES = (25, 50, 100)
SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Place:
    """A cell of the map."""

    skew: str
    samples: int
    seed: int

    @property
    def place(self) -> str:
        """What says which row it is."""
        return f"map, {self.skew}, {self.samples} samples, seed {self.seed}"

    def experiment(self) -> Experiment:
        """Return what is diagnosed: all of a client's samples are for training."""
        data = {"name": "mnist", "split": SKEWS[self.skew], "clients": 20, "samples_per_client": self.samples}
        return Experiment(
            data={**data, "validation": 0.0, "test": 0.04},
            method="fedavg",
            network={"name": "mlp", "hidden": [32]},
            run={"seed": self.seed, "workers": 1},
        )


def see_place(asked: Experiment) -> Row:
    """Diagnose a cell of the map; return the scores."""
    found = diagnose(asked)
    assert found.pay is not None
    return {
        "key": key_of(asked),
        "groups": 0 if found.all_differ else len(found.groups),
        "ari": found.true_groups_ari,
        "said": {option.name: option.score for option in found.pay.options},
        "best": found.pay.best,
    }


def find_truly_best(row: Row) -> str:
    """Return the option that does best on test samples after full training."""
    sign = 1 if row["measure"] == "accuracy" else -1
    scores: Mapping[str, float] = row["truth"]
    return max(scores, key=lambda option: sign * scores[option])


def find_regret(row: Row) -> float:
    """Return how much better the best does on test samples than what was chosen; of a group's model either kind."""
    sign, chosen = (1 if row["measure"] == "accuracy" else -1), row["best"].removesuffix("-tuned")
    return float(sign * (row["truth"][find_truly_best(row)] - row["truth"][chosen]))


def find_faults(case: Case, row: Row) -> list[str]:
    """Return in what a diagnosis was wrong, a few words each."""
    found = []
    if case.groups == 1 and row["groups"] != 1:
        found.append("structure where there is none")
    if case.groups not in (None, 1) and row["groups"] != case.groups:
        found.append(f"{row['groups'] or 'no'} groups of {case.groups}")
    if case.kinds is not None and set(row["kinds"]) != set(case.kinds):
        said = " and ".join(KIND_NAMES[kind] for kind in row["kinds"]) or "nothing"
        found.append(f"kind: {said}")
    if (regret := find_regret(row)) > NEAR:
        lost = f"{100 * regret:.1f} points" if row["measure"] == "accuracy" else f"{regret:.3f}"
        found.append(f"{TITLES[find_truly_best(row)]} does better by {lost}")
    return found


def truth_table(rows: Mapping[str, Row]) -> str:
    """Return what was said, what came out and what was wrong, in Markdown."""
    options = ("global", "tuned", "personal", "local", "group")
    heads = ["federation", "p", "differs in", "groups", "ARI", "pays", *(TITLES[o] for o in options), "wrong"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for case in CASES:
        row = rows.get(case.place)
        if row is None:
            continue
        share = row["measure"] == "accuracy"
        scores = []
        for option in options:
            pair = [of.get(option) for of in (row["said"], row["truth"])]
            shown = ["–" if v is None else f"{100 * v:.1f}" if share else f"{v:.3f}" for v in pair]
            scores.append(f"{shown[0]} → {shown[1]}")
        cells = [
            case.title,
            f"{row['p']:.3f}",
            ", ".join(KIND_NAMES[kind] for kind in row["kinds"]) or "nothing",
            str(row["groups"] or "all differ"),
            "–" if row["ari"] is None else f"{row['ari']:.2f}",
            TITLES[row["best"]],
            *scores,
            "; ".join(find_faults(case, row)) or "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def say_truth(rows: Mapping[str, Row]) -> str:
    """Return how often it was right, in a few sentences."""
    known = [(case, rows[case.place]) for case in CASES if case.place in rows]
    kinds = [set(row["kinds"]) == set(case.kinds) for case, row in known if case.kinds is not None]
    groups = [row["groups"] == case.groups for case, row in known if case.groups is not None]
    near = [find_regret(row) <= NEAR for _, row in known]
    seconds, full = (sum(row[name] for _, row in known) for name in ("seconds", "full_seconds"))
    return (
        f"Of {len(known)} federations, what was named as paying was on test samples within 1 point (or 0.01 of "
        f"loss) of the best after full training in {sum(near)}. The kind of skew was right in {sum(kinds)} of "
        f"{len(kinds)} where it is known, the number of groups in {sum(groups)} of {len(groups)}. All diagnoses "
        f"took {seconds:.0f} seconds on a busy core, full training of the five {full:.0f}."
    )


def say_points(gains: Sequence[float]) -> str:
    """Return the mean of the seeds' gains in points, and half the width of its interval of 95 %."""
    mean = mean_gain(100 * np.array(gains))
    return f"{mean.value:+.1f}" + (f" ± {mean.high - mean.value:.1f}" if len(gains) > 1 else "")


def map_table(rows: Mapping[str, Row]) -> str:
    """Return what groups gain over fine-tuning and over training alone, by kind and samples, in Markdown."""
    lines = [
        f"| groups differ in | {' | '.join(f'{count} samples' for count in SAMPLES)} |",
        "|---" * (1 + len(SAMPLES)) + "|",
    ]
    for skew in SKEWS:
        cells = []
        for count in SAMPLES:
            found = [rows[p.place] for s in SEEDS if (p := Place(skew, count, s)).place in rows]
            grouped = [row["said"] for row in found if "group" in row["said"]]
            if not found:
                cells.append("")
            elif not grouped:
                tuned = [row["said"]["tuned"] - row["said"]["local"] for row in found]
                cells.append(f"no groups found; {say_points(tuned)} fine-tuned over alone")
            else:
                gains = [say_points([said["group"] - said[o] for said in grouped]) for o in ("tuned", "local")]
                few = "" if len(grouped) == len(found) else f" (in {len(grouped)} of {len(found)})"
                cells.append(f"{gains[0]} · {gains[1]}{few}")
        lines.append(f"| {skew} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Make what is missing, and write or print the tables."""
    parser = Arguments("diagnose_truth", __doc__, {"only": ",".join(PARTS), "kept": False}, KEPT)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page that gets the tables")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,…", help="truth or map alone")
    parser.add_argument("--kept", action="store_true", help="make nothing")
    asked = parser.read(words)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    kept: Path = asked.rows
    rows: dict[str, Any] = json.loads(kept.read_text("utf-8"))["rows"] if kept.exists() else {}
    cells: list[Case | Place] = [*CASES] if "truth" in asked.only else []
    cells += (
        [Place(skew, count, seed) for seed, skew, count in product(SEEDS, SKEWS, SAMPLES)]
        if "map" in asked.only
        else []
    )
    todo = [cell for cell in cells if rows.get(cell.place, {}).get("key") != key_of(cell.experiment())]
    todo = [] if asked.kept else pick_two(todo) if asked.smoke else todo
    for number, cell in enumerate(todo, 1):
        experiment = shrink(cell.experiment()) if asked.smoke else cell.experiment()
        rows[cell.place] = row = see_truth(experiment) if isinstance(cell, Case) else see_place(experiment)
        print(f"{number}/{len(todo)} {cell.place}: {row}", flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        found = {"benchmark": "diagnose_truth", "machine": machine(), "rows": rows}
        write_whole(kept, write_rows(found, {"rows": 1}).encode())
    if asked.write is None:
        print(f"{truth_table(rows)}\n\n{say_truth(rows)}\n\n{map_table(rows)}")
    else:
        write_whole(asked.write, written(asked.write.read_text("utf-8"), rows).encode())
    return 0


def written(page: str, rows: Mapping[str, Row]) -> str:
    """Return the page with the tables of these rows."""
    page = put_between(page, *TRUTH_MARKS, [truth_table(rows), say_truth(rows)])
    return put_between(page, *MAP_MARKS, [map_table(rows)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
