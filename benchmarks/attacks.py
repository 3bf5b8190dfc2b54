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
MANY = 0.4
HEAVY: Mapping[str, float] = dict.fromkeys(("sign-flip", "scale", "gaussian", "label-flip", "alie", "ipm"), MANY)
"""The kinds that are tried with twice as many."""
AWAY = "nan"
RULES: Mapping[str, Mapping[str, Any]] = {
    "mean, unbounded": {"norm_bound": "off"},
    "mean": {"norm_bound": 3},
    "trimmed-mean": {"rule": "trimmed-mean", "norm_bound": 3},
    "multi-krum": {"rule": "multi-krum", "norm_bound": 3},
    "geometric-median": {"rule": "geometric-median", "norm_bound": 3},
    "fltrust": {"rule": "fltrust", "norm_bound": 3},
}
"""What `[aggregation]` says in each row. FLTrust trusts a client of each true group."""
BEGIN, END = "<!-- attacks -->", "<!-- end of attacks -->"
CLOSE = 0.02
"""How far below the clients without the hostile ones counts as withstood; of `MANY`, `FAR`."""
FAR = 0.05


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    rule: str
    kind: str
    """Of the attack; empty for none."""
    share: float = 0.2
    """Of hostile clients."""

    def experiment(self) -> Experiment:
        """Return what is run."""
        aggregation = dict(RULES[self.rule])
        if self.rule == "fltrust":
            aggregation["trusted"] = TRUSTED
        if self.share == MANY and self.rule in ("trimmed-mean", "multi-krum"):
            aggregation["hostile"] = MANY
        return Experiment(
            data={"name": "digits", "split": "rotated(4)", "clients": 20},
            method=self.method,
            training={"lr": 0.1, "batch_size": 16, "epochs": 2},
            evaluation={"every": 10},
            run={"rounds": 10, "workers": 1},
            aggregation=aggregation,
            attack={"share": self.share, "kind": self.kind} if self.kind else {},
        )

    @property
    def place(self) -> str:
        """What of its row says which cell it is."""
        many = f" {MANY:.0%}" if self.share == MANY else ""
        return f"{self.method}, {self.rule}, {self.kind or 'none'}{many}"


TRUSTED = ("client 0", "client 1", "client 2", "client 3")
"""One of each group: client i turns its digits by i mod 4 quarters."""


def list_columns(attacks: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return kinds and shares of the columns beside these attacks: none at all, hostile clients who stay away."""
    share = MANY if attacks is HEAVY else 0.2
    return [("", 0.2), (AWAY, share), *attacks.items()]


def cells(methods: Sequence[str]) -> list[Cell]:
    """Return the cells, method by method."""
    columns = dict.fromkeys([*list_columns(ATTACKS), *list_columns(HEAVY)])
    return [Cell(method, rule, *column) for method, rule, column in product(methods, RULES, columns)]


def is_withstood(cell: Cell, rows: Mapping[str, Row]) -> bool | None:
    """Return whether clients do nearly as well as if the hostile ones stayed away; None where it is not known."""
    away = Cell(cell.method, cell.rule, AWAY, MANY if cell.share == MANY else 0.2)
    own, usual = rows.get(cell.place), rows.get(away.place)
    if own is None or usual is None:
        return None
    return bool(own["accuracy"] >= usual["accuracy"] - (FAR if cell.share == MANY else CLOSE))


def table(method: str, attacks: Mapping[str, float], rows: Mapping[str, Row]) -> str:
    """Return a method's table in Markdown: a line a rule, a column an attack."""
    heads = ["none", "away", *(f"{kind} {share:.0%}" for kind, share in attacks.items())]
    lines = [f"| {' | '.join(['rule', *heads])} |", "|---" * (len(heads) + 1) + "|"]
    for rule in RULES:
        line = [rule]
        for column in list_columns(attacks):
            cell = Cell(method, rule, *column)
            text = f"{rows[cell.place]['accuracy']:.2f}" if cell.place in rows else ""
            lost = column in attacks.items() and is_withstood(cell, rows) is False
            line.append(f"**{text}**" if lost else text)
        lines += [f"| {' | '.join(line)} |"]
    return "\n".join(lines)


def summary(methods: Sequence[str], attacks: Mapping[str, float], rows: Mapping[str, Row]) -> str:
    """Return how many attacks each rule withstands with each method, in Markdown."""
    lines = [f"| rule | {' | '.join(f'`{method}`' for method in methods)} |", "|---" * (len(methods) + 1) + "|"]
    for rule in RULES:
        counts = []
        for method in methods:
            found = [is_withstood(Cell(method, rule, *column), rows) for column in attacks.items()]
            counts.append("" if None in found else f"{sum(map(bool, found))} of {len(attacks)}")
        lines.append(f"| {rule} | {' | '.join(counts)} |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Run what is missing, and write the tables."""
    rows, page = fill("attacks", __doc__, words, KEPT, METHODS, cells)
    fifth, many = summary(METHODS, ATTACKS, rows), summary(METHODS, HEAVY, rows)
    if page is None:
        print(f"{fifth}\n\n{many}")
        return 0
    parts = [fifth, f"Of {MANY:.0%} hostile clients, within {100 * FAR:.0f} points:", many]
    for method in METHODS:
        parts += [f"### `{method}`", table(method, ATTACKS, rows), table(method, HEAVY, rows)]
    write_whole(page, put_between(page.read_text("utf-8"), BEGIN, END, parts).encode())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInput as problem:
        sys.exit("\n".join(problem.problems))
