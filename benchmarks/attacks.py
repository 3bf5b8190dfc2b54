"""What hostile clients do to each method, by the rule with which its models are averaged.

    python -m benchmarks.attacks [--write FILE] [--only METHOD,…] [--kept]

20 clients hold digits in four rotations, and are trained for 10 rounds; a fifth of them is hostile. A cell is the
accuracy of the honest clients after the last round. Beside each attack stands what becomes of the same honest
clients if the hostile ones stay away (`nan`: what they send is refused).

A cell is kept as soon as it has ended, under a key of all its settings and Coterie's version, and is not run again
while its key is the same. `--kept` runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.kept_cells import Row, fill, put_between
from coterie.errors import BadInput
from coterie.experiments.folder.files import write_whole
from coterie.experiments.schema.experiment import Experiment

PAGE = Path(__file__).parents[1] / "docs" / "trust.md"
KEPT = PAGE.parent / "trust" / "attacks.json"
METHODS = ("fedavg", "ifca", "fesem", "cfl", "fedcps", "fedtsdp", "flis", "dcpfl", "layercfl")
ATTACKS: Mapping[str, float] = {
    "sign-flip": 0.2,
    "scale": 0.1,
    "gaussian": 0.2,
    "zero": 0.2,
    "label-flip": 0.2,
    "backdoor": 0.2,
    "alie": 0.2,
    "ipm": 0.2,
    "mimic": 0.2,
    "group-poison": 0.2,
}
"""The share of hostile clients by kind, the one of each that the literature has most."""
AWAY = "nan"
PLAIN: Mapping[str, Any] = {"norm_bound": "off"}
RULES: Mapping[str, Mapping[str, Any]] = {
    "mean, unbounded": PLAIN,
    "mean": {"norm_bound": 3},
    "trimmed-mean": {"rule": "trimmed-mean", "norm_bound": 3},
    "multi-krum": {"rule": "multi-krum", "norm_bound": 3},
    "geometric-median": {"rule": "geometric-median", "norm_bound": 3},
}
"""What `[aggregation]` says in each row."""
BEGIN, END = "<!-- attacks -->", "<!-- end of attacks -->"
CLOSE = 0.02
"""How far below the clients without the hostile ones counts as withstood."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    rule: str
    kind: str
    """Of the attack; empty for none."""

    def experiment(self) -> Experiment:
        """Return what is run."""
        share = ATTACKS.get(self.kind, 0.2)
        return Experiment(
            data={"name": "digits", "split": "rotated(4)", "clients": 20},
            method=self.method,
            training={"lr": 0.1, "batch_size": 16, "epochs": 2},
            evaluation={"every": 10},
            run={"rounds": 10, "workers": 1},
            aggregation=RULES[self.rule],
            attack={"share": share, "kind": self.kind} if self.kind else {},
        )

    @property
    def place(self) -> str:
        """What of its row says which cell it is."""
        return f"{self.method}, {self.rule}, {self.kind or 'none'}"


def cells(methods: Sequence[str]) -> list[Cell]:
    """Return the cells, method by method."""
    return [Cell(*which) for which in product(methods, RULES, ("", AWAY, *ATTACKS))]


def table(method: str, rows: Mapping[str, Row]) -> str:
    """Return a method's table in Markdown: a line a rule, a column an attack."""

    def shown(rule: str, kind: str) -> str:
        own, away = (rows.get(Cell(method, rule, of).place) for of in (kind, AWAY))
        if own is None or away is None:
            return ""
        text = f"{own['accuracy']:.2f}"
        return text if kind in ("", AWAY) or own["accuracy"] >= away["accuracy"] - CLOSE else f"**{text}**"

    heads = ["none", "away", *(f"{kind} {share:.0%}" for kind, share in ATTACKS.items())]
    lines = [f"| {' | '.join(['rule', *heads])} |", "|---" * (len(heads) + 1) + "|"]
    for rule in RULES:
        line = [rule, *(shown(rule, kind) for kind in ("", AWAY, *ATTACKS))]
        lines += [f"| {' | '.join(line)} |"]
    return f"### `{method}`\n\n" + "\n".join(lines)


def summary(methods: Sequence[str], rows: Mapping[str, Row]) -> str:
    """Return how many attacks each rule withstands with each method, in Markdown."""
    lines = [f"| rule | {' | '.join(f'`{method}`' for method in methods)} |", "|---" * (len(methods) + 1) + "|"]
    for rule in RULES:
        counts = []
        for method in methods:
            away = rows.get(Cell(method, rule, AWAY).place)
            own = [rows.get(Cell(method, rule, kind).place) for kind in ATTACKS]
            if away is None or None in own:
                counts.append("")
                continue
            withstood = sum(row["accuracy"] >= away["accuracy"] - CLOSE for row in own if row is not None)
            counts.append(f"{withstood} of {len(ATTACKS)}")
        lines.append(f"| {rule} | {' | '.join(counts)} |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Run what is missing, and write the tables."""
    rows, page = fill("attacks", __doc__, words, KEPT, METHODS, cells)
    if page is None:
        print(summary(METHODS, rows))
    else:
        parts = [summary(METHODS, rows), *(table(method, rows) for method in METHODS)]
        write_whole(page, put_between(page.read_text("utf-8"), BEGIN, END, parts).encode())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInput as problem:
        sys.exit("\n".join(problem.problems))
