"""What hostile clients do to each method, by the rule with which its models are averaged.

    python -m benchmarks.attacks [--write FILE] [--only METHOD,…] [--kept] [--smoke]

20 clients hold digits in four rotations, and are trained for 10 rounds; a fifth of them is hostile. A cell is the
accuracy of the honest clients after the last round. Beside each attack stands what becomes of the same honest
clients if the hostile ones stay away (`nan`: what they send is refused). The rule that serves a method best is run
with three seeds.

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

from benchmarks.kept_cells import Row, fill, play, put_between
from coterie.errors import BadInput
from coterie.experiments.compare.spec import key_of
from coterie.experiments.folder.files import write_whole
from coterie.experiments.schema.experiment import Experiment

PAGE = Path(__file__).parents[1] / "docs" / "trust.md"
KEPT = PAGE.parent / "trust" / "attacks.json"
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "ifca": {},
    "fesem": {},
    "fesem-5": {"name": "fesem", "clusters": 5},
    "cfl": {},
    "fedcps": {},
    "fedtsdp": {},
    "flis": {},
    "dcpfl": {},
    "layercfl": {},
}
"""What is tried, and what `[method]` says of it beside the name."""
SEEDS = (0, 1, 2)
"""Of the rule that serves a method best; all others are run with the first."""
BEST: Mapping[str, str] = {
    "fedavg": "fltrust",
    "ifca": "fltrust",
    "fesem": "fltrust",
    "fesem-5": "trimmed-mean",
    "cfl": "mean",
    "fedcps": "fltrust",
    "fedtsdp": "fltrust",
    "flis": "mean",
    "dcpfl": "fltrust",
    "layercfl": "mean",
}
"""The rule by which a method withstands most attacks over all seeds, of those that were tried with them."""
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
            method={"name": self.method, **METHODS[self.method]},
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


def play_seeds(experiment: Experiment) -> Row:
    """Run an experiment with the first seed, and with the others too where its rule serves its method best.

    Returns:
        The accuracy with the first seed, and under `seeds` that of each; 0 for a run that gave up.
    """
    best = {key_of(cell.experiment()) for cell in cells(list(METHODS)) if BEST[cell.method] == cell.rule}
    first = play(experiment)
    if key_of(experiment) not in best:
        return first
    further = [play(experiment.updated({"run.seed": seed})) for seed in SEEDS[1:]]
    return {**first, "seeds": [row["accuracy"] for row in (first, *further)]}


def list_columns(attacks: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return kinds and shares of the columns beside these attacks: none at all, hostile clients who stay away."""
    share = MANY if attacks is HEAVY else 0.2
    return [("", 0.2), (AWAY, share), *attacks.items()]


def cells(methods: Sequence[str]) -> list[Cell]:
    """Return the cells, method by method."""
    columns = dict.fromkeys([*list_columns(ATTACKS), *list_columns(HEAVY)])
    return [Cell(method, rule, *column) for method, rule, column in product(methods, RULES, columns)]


def is_withstood(cell: Cell, rows: Mapping[str, Row]) -> bool | None:
    """Return whether clients do nearly as well as if the hostile ones stayed away; None where it is not known.

    A run that gives up withstands nothing, also where it does so without an attack.
    """
    away = Cell(cell.method, cell.rule, AWAY, MANY if cell.share == MANY else 0.2)
    own, usual = rows.get(cell.place), rows.get(away.place)
    if own is None or usual is None:
        return None
    if "failed" in own or "failed" in usual:
        return False
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


def best_table(rows: Mapping[str, Row]) -> str:
    """Return the rule that serves each method best and what it leaves, over all seeds, in Markdown."""
    heads = ["method", "rule", "none", "away", "of 20 %", "of 40 %", "what costs more, in points"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method, rule in BEST.items():
        line, costly = [f"`{method}`", rule], []
        for kind in ("", AWAY):
            found = _mean(rows, Cell(method, rule, kind))
            line.append("" if found is None else f"{found:.3f}")
        for attacks, share, limit in ((ATTACKS, 0.2, CLOSE), (HEAVY, MANY, FAR)):
            losses = {kind: _lose(rows, Cell(method, rule, kind, some), share) for kind, some in attacks.items()}
            known = {kind: loss for kind, loss in losses.items() if loss is not None}
            line.append(f"{sum(loss <= limit for loss in known.values())} of {len(known)}")
            many = f" {MANY:.0%}" if attacks is HEAVY else ""
            costly += [f"{kind}{many} {100 * loss:.1f}" for kind, loss in known.items() if loss > limit]
        lines.append(f"| {' | '.join([*line, ', '.join(costly) or 'nothing'])} |")
    return "\n".join(lines)


def _mean(rows: Mapping[str, Row], cell: Cell) -> float | None:
    """Return the mean accuracy of a cell over all seeds; None where it was not run with all."""
    each = rows.get(cell.place, {}).get("seeds")
    return None if each is None else float(sum(each) / len(each))


def _lose(rows: Mapping[str, Row], cell: Cell, share: float) -> float | None:
    """Return what an attack costs the honest clients, beside hostile ones who stay away."""
    own, away = _mean(rows, cell), _mean(rows, Cell(cell.method, cell.rule, AWAY, share))
    return None if own is None or away is None else away - own


def main(words: Sequence[str]) -> int:
    """Run what is missing, and write the tables."""
    rows, page = fill("attacks", __doc__, words, KEPT, list(METHODS), cells, run=play_seeds)
    fifth, many = summary(list(METHODS), ATTACKS, rows), summary(list(METHODS), HEAVY, rows)
    if page is None:
        print(f"{fifth}\n\n{many}")
        return 0
    parts = [
        best_table(rows),
        "How many attacks each rule withstands, of 20% hostile clients with the first seed:",
        fifth,
        f"Of {MANY:.0%} hostile clients, within {100 * FAR:.0f} points:",
        many,
    ]
    for method in METHODS:
        parts += [f"### `{method}`", table(method, ATTACKS, rows), table(method, HEAVY, rows)]
    write_whole(page, put_between(page.read_text("utf-8"), BEGIN, END, parts).encode())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInput as problem:
        sys.exit("\n".join(problem.problems))
