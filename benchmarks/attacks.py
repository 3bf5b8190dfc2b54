"""What hostile clients do to each method, by the rule with which its models are averaged.

    python -m benchmarks.attacks [--write FILE] [--only METHOD,…] [--kept] [--smoke]

20 clients hold digits in four rotations, and are trained for 10 rounds; a fifth of them is hostile. A cell is the
accuracy of the honest clients after the last round. Beside each attack stands what becomes of the same honest
clients if the hostile ones stay away (`nan`: what they send is refused). The rule that serves a method best is run
with three seeds, and so are, for the methods that then withstand most, attacks of the strength that hurts most:
multiples of an update up to just under `norm_bound`, sent by clients of all groups or by two of one group's five.

A cell is kept as soon as it has ended, under a key of all its settings and Coterie's version, and is not run again
while its key is the same. `--kept` runs nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.kept_cells import Row, fill, play, put_between
from coterie.errors import BadInput
from coterie.runs.folder.files import write_whole
from coterie.runs.schema.experiment import Experiment
from coterie.studies.compare.spec import key_of

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
Strength = float | Literal["bound"] | None
GRID: Sequence[tuple[str, Strength]] = (
    ("sign-flip", 2.0),
    ("sign-flip", 2.9),
    ("sign-flip", "bound"),
    ("scale", "bound"),
    ("gaussian", "bound"),
    ("ipm", 3.0),
    ("ipm", "bound"),
    ("alie", "bound"),
    ("group-poison", 2.9),
    ("group-poison", "bound"),
)
"""What a fifth of all clients does beside `ATTACKS`: up to just under a bound of 3, or always just that."""
AIMED: Sequence[tuple[str, Strength]] = (
    ("sign-flip", 2.9),
    ("sign-flip", "bound"),
    ("gaussian", "bound"),
    ("ipm", "bound"),
)
"""What two of the five clients of the first group do."""
STRONG = ("ifca", "fesem-5", "cfl", "fedcps", "flis", "layercfl")
"""The methods that are tried with these."""
RULES: Mapping[str, Mapping[str, Any]] = {
    "mean, unbounded": {"norm_bound": "off"},
    "mean, bound 100": {},
    "mean": {"norm_bound": 3},
    "trimmed-mean": {"rule": "trimmed-mean", "norm_bound": 3},
    "multi-krum": {"rule": "multi-krum", "norm_bound": 3},
    "geometric-median": {"rule": "geometric-median", "norm_bound": 3},
    "fltrust": {"rule": "fltrust", "norm_bound": 3},
}
"""What `[aggregation]` says in each row. FLTrust trusts a client of each true group."""
FRONT_RULES = ("fltrust", "mean", "mean, bound 100")
"""Those of which the page's front speaks."""
BEGIN, END = "<!-- attacks -->", "<!-- end of attacks -->"
FRONT = "<!-- in short -->", "<!-- end of in short -->"
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
    strength: Strength = None
    group: int | None = None
    """Of which all hostile clients are."""

    def experiment(self) -> Experiment:
        """Return what is run."""
        aggregation = dict(RULES[self.rule])
        if self.rule == "fltrust":
            aggregation["trusted"] = TRUSTED
        if self.share == MANY and self.rule in ("trimmed-mean", "multi-krum"):
            aggregation["hostile"] = MANY
        attack = {"share": self.share, "kind": self.kind, "strength": self.strength, "group": self.group}
        return Experiment(
            data={"name": "digits", "split": "rotated(4)", "clients": 20},
            method={"name": self.method, **METHODS[self.method]},
            training={"lr": 0.1, "batch_size": 16, "epochs": 2},
            evaluation={"every": 10},
            run={"rounds": 10, "workers": 1},
            aggregation=aggregation,
            attack=attack if self.kind else {},
        )

    @property
    def place(self) -> str:
        """What of its row says which cell it is."""
        many = f" {MANY:.0%}" if self.share == MANY else ""
        return f"{self.method}, {self.rule}, {self.what}{many}"

    @property
    def what(self) -> str:
        """The attack, with a strength that is not the usual one."""
        strength = "" if self.strength is None else f" {self.strength}"
        return f"{self.kind or 'none'}{strength}{'' if self.group is None else ' within'}"

    @property
    def away(self) -> Cell:
        """The cell in which as many hostile clients, or the usual share, stay away."""
        share = 0.2 if self.group is None and self.share != MANY else self.share
        return replace(self, kind=AWAY, share=share, strength=None)


TRUSTED = ("client 0", "client 1", "client 2", "client 3")
"""One of each group: client i turns its digits by i mod 4 quarters."""


@cache
def find_seeded() -> frozenset[str]:
    """Return the keys of the cells that are run with all seeds."""
    best = [cell for cell in cells(list(METHODS)) if BEST[cell.method] == cell.rule]
    front = [Cell(*pair, *attack) for pair in product(STRONG, ("fltrust", "mean")) for attack in ATTACKS.items()]
    return frozenset(key_of(cell.experiment()) for cell in (*best, *front, *strong_cells(list(METHODS))))


def play_seeds(experiment: Experiment) -> Row:
    """Run an experiment with the first seed, and with the others too where its rule serves its method best.

    Returns:
        The accuracy with the first seed, and under `seeds` that of each, under `first_group` that of the honest
        clients of the first group alone; 0 for a run that gave up.
    """

    def play_one(one: Experiment) -> Row:
        return play(one, lambda last: {"first_group": float(np.nanmean(np.asarray(last.scores)[::4]))})

    first = play_one(experiment)
    if key_of(experiment) not in find_seeded():
        return {"key": first["key"], "accuracy": first["accuracy"]}
    each = [first, *(play_one(experiment.updated({"run.seed": seed})) for seed in SEEDS[1:])]
    groups = [row.get("first_group", 0.0) for row in each]
    return {**first, "seeds": [row["accuracy"] for row in each], "first_group": groups}


def strong_pairs(methods: Sequence[str] = STRONG) -> list[tuple[str, str]]:
    """Return the methods and rules that the strongest attacks are tried on."""
    rules = {method: ("mean, bound 100", "mean", BEST[method], "multi-krum", "fltrust") for method in STRONG}
    return [(method, rule) for method in STRONG if method in methods for rule in dict.fromkeys(rules[method])]


def list_strong(method: str, rule: str) -> list[Cell]:
    """Return the strongest attacks by a fifth of all clients."""
    return [Cell(method, rule, kind, strength=strength) for kind, strength in GRID]


def list_aimed(method: str, rule: str) -> list[Cell]:
    """Return the strongest attacks on the first group: by a fifth of all clients, and by two of its own."""
    aimed = [cell for cell in list_strong(method, rule) if cell.kind == "group-poison"]
    return aimed + [Cell(method, rule, kind, 0.1, strength, group=0) for kind, strength in AIMED]


def list_columns(attacks: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return kinds and shares of the columns beside these attacks: none at all, hostile clients who stay away."""
    share = MANY if attacks is HEAVY else 0.2
    return [("", 0.2), (AWAY, share), *attacks.items()]


def cells(methods: Sequence[str]) -> list[Cell]:
    """Return the cells, method by method."""
    columns = dict.fromkeys([*list_columns(ATTACKS), *list_columns(HEAVY)])
    usual = [Cell(method, rule, *column) for method, rule, column in product(methods, RULES, columns)]
    return list(dict.fromkeys([*usual, *strong_cells(methods)]))


def strong_cells(methods: Sequence[str]) -> list[Cell]:
    """Return the cells of the strongest attacks on these methods, and beside each the one without the hostile."""
    attacks = [cell for pair in strong_pairs(methods) for cell in (*list_strong(*pair), *list_aimed(*pair))]
    return list(dict.fromkeys(cell for attack in attacks for cell in (attack.away, attack)))


def is_withstood(cell: Cell, rows: Mapping[str, Row]) -> bool | None:
    """Return whether clients do nearly as well as if the hostile ones stayed away; None where it is not known.

    A run that gives up withstands nothing, also where it does so without an attack.
    """
    own, usual = rows.get(cell.place), rows.get(cell.away.place)
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
        for attacks, limit in ((ATTACKS, CLOSE), (HEAVY, FAR)):
            losses = {kind: _lose(rows, Cell(method, rule, kind, some)) for kind, some in attacks.items()}
            known = {kind: loss for kind, loss in losses.items() if loss is not None}
            line.append(f"{sum(loss <= limit for loss in known.values())} of {len(known)}")
            many = f" {MANY:.0%}" if attacks is HEAVY else ""
            costly += [f"{kind}{many} {100 * loss:.1f}" for kind, loss in known.items() if loss > limit]
        lines.append(f"| {' | '.join([*line, ', '.join(costly) or 'nothing'])} |")
    return "\n".join(lines)


def strong_table(attacks: Callable[[str, str], list[Cell]], of: str, rows: Mapping[str, Row]) -> str:
    """Return what the attacks on each method under each rule cost, in points, in Markdown.

    `of` says whom: `seeds` all honest clients, `first_group` those of the first group.
    """
    lines: list[str] = []
    for method, rule in strong_pairs():
        losses = {cell.what: loss for cell in attacks(method, rule) if (loss := _lose(rows, cell, of)) is not None}
        if not losses:
            continue
        heads = ["method", "rule", *losses, "most"]
        lines = lines or [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        texts = [f"{100 * loss:.1f}" for loss in (*losses.values(), max(losses.values()))]
        texts = [f"**{text}**" if float(text) > 100 * CLOSE else text for text in texts]
        lines.append(f"| {' | '.join([f'`{method}`', rule, *texts])} |")
    return "\n".join(lines)


def find_worst(method: str, rule: str, rows: Mapping[str, Row]) -> tuple[float, str]:
    """Return the most points that an attack of a fifth of all clients costs over all seeds, and which it is."""
    usual = [Cell(method, rule, kind, share) for kind, share in ATTACKS.items()]
    losses = {cell.what: _lose(rows, cell) for cell in (*usual, *list_strong(method, rule))}
    known = ((100 * loss, what) for what, loss in losses.items() if loss is not None)
    return max(known, default=(math.nan, "not run"))


def _lose_most(rows: Mapping[str, Row], attacks: Sequence[Cell]) -> float:
    """Return the most points that any of these attacks costs the honest clients of the first group."""
    losses = [_lose(rows, cell, "first_group") for cell in attacks]
    return max((100 * loss for loss in losses if loss is not None), default=math.nan)


def _mean(rows: Mapping[str, Row], cell: Cell, of: str = "seeds") -> float | None:
    """Return the mean accuracy of a cell over all seeds; None where it was not run with all."""
    each = rows.get(cell.place, {}).get(of)
    return None if each is None else float(sum(each) / len(each))


def _lose(rows: Mapping[str, Row], cell: Cell, of: str = "seeds") -> float | None:
    """Return what an attack costs the honest clients, beside hostile ones who stay away."""
    own, usual = _mean(rows, cell, of), _mean(rows, cell.away, of)
    return None if own is None or usual is None else usual - own


def in_short(rows: Mapping[str, Row]) -> list[str]:
    """Return what the worst attack costs each method under the rules that the front speaks of, in Markdown."""
    lines = [f"| rule | {' | '.join(f'`{method}`' for method in STRONG)} |", "|---" * (len(STRONG) + 1) + "|"]
    held, most = dict[str, int](), dict[str, float]()
    for rule in FRONT_RULES:
        worst = [find_worst(method, rule, rows) for method in STRONG]
        lines.append(f"| {' | '.join([rule, *(f'{points:.1f} ({what})' for points, what in worst)])} |")
        held[rule], (most[rule], _) = sum(points <= 100 * CLOSE for points, _ in worst), max(worst)
    aimed = {rule: max(_lose_most(rows, list_aimed(method, rule)) for method in STRONG) for rule in FRONT_RULES}
    n, trusted, bound, usual = len(STRONG), *FRONT_RULES
    within = {rule: f"{count or 'none'} {'stay' if count > 1 else 'stays'}" for rule, count in held.items()}
    sentence = (
        f"{len(ATTACKS) + len(GRID)} attacks by a fifth of the clients were tried on {n} methods. **With a trusted "
        f"client of each group, {held[trusted]} of the {n} methods lose at most two points to any attack, and none "
        f"loses more than {most[trusted]:.1f}. With `norm_bound = 3` alone, {within[bound]} within two points, and "
        f"one loses {most[bound]:.1f}. With the usual bound of 100, {within[usual]} within two points, and one "
        f"loses {most[usual]:.1f}. Attacks on one group cost this group up to {aimed[trusted]:.1f}, "
        f"{aimed[bound]:.1f} and {aimed[usual]:.1f} points under the three rules.**"
    )
    return [sentence, "\n".join(lines)]


def render(page: str, rows: Mapping[str, Row]) -> str:
    """Return the page with the tables of these rows."""
    parts = [
        "The rule with which each method withstands most attacks of the usual strength, over all seeds:",
        best_table(rows),
        "What the strongest attacks, by a fifth of all clients, cost the honest clients in points, over all seeds:",
        strong_table(list_strong, "seeds", rows),
        "What attacks on the first group cost its own honest clients in points, over all seeds:",
        strong_table(list_aimed, "first_group", rows),
        "How many attacks of the usual strength each rule withstands, with 20% hostile clients and the first seed:",
        summary(list(METHODS), ATTACKS, rows),
        f"The same with {MANY:.0%} hostile clients, within {100 * FAR:.0f} points:",
        summary(list(METHODS), HEAVY, rows),
    ]
    for method in METHODS:
        parts += [f"### `{method}`", table(method, ATTACKS, rows), table(method, HEAVY, rows)]
    return put_between(put_between(page, BEGIN, END, parts), *FRONT, in_short(rows))


def main(words: Sequence[str]) -> int:
    """Run what is missing, and write the tables."""
    rows, page = fill("attacks", __doc__, words, KEPT, list(METHODS), cells, run=play_seeds)
    if page is None:
        print("\n\n".join(in_short(rows)))
    else:
        write_whole(page, render(page.read_text("utf-8"), rows).encode())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInput as problem:
        sys.exit("\n".join(problem.problems))
