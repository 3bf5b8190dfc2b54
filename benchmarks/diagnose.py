"""How often `coterie diagnose` errs: its level on one population, its power, and the groups that it finds.

    python -m benchmarks.diagnose [--write FILE] [--seconds N] [--level] [--kept] [--smoke]

20 clients hold digits, some 62 training images each, dealt anew for every federation. For the level all are draws
from one population, of the same size or of sizes from a third to all of that. For the power there are groups of the
same size, whose images are rotated or whose labels are shifted in a share of the samples: this is the strength.

A federation is kept once it has been diagnosed, and is not diagnosed again. All cases fill evenly, so `--seconds`
can stop at any time; the tables say of how many federations they are. `--level` diagnoses nothing but the 400
federations of one population, and `--kept` none.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import altair as alt
import numpy as np
import polars as pl
import torch
from scipy.stats import binomtest

from benchmarks.kept_cells import Row, put_between
from benchmarks.measuring import machine
from benchmarks.smoke import Arguments
from coterie.advice.diagnose.diagnose import diagnose
from coterie.clients.data.federation import Federation
from coterie.report.drawing.figure import FAINT
from coterie.report.drawing.saving import save_charts
from coterie.runs.folder.files import write_whole
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.setup import Backend, engine_spec, load_federation
from coterie.runtime.local.runtime import LocalRuntime
from coterie.studies.rows import write_rows

PAGE = Path(__file__).parents[1] / "docs" / "diagnose.md"
KEPT = PAGE.parent / "diagnose" / "calibration.json"
BEGIN, END = "<!-- calibration -->", "<!-- end of calibration -->"
CLIENTS = 20
ALPHA = 0.05
SMOKE = {"seconds": 1.0, "level": False, "kept": False}
PICTURE = "power"
Kind = Literal["same", "sizes", "rotated", "shifted"]
KINDS: Mapping[Kind, str] = {
    "same": "clients of one size",
    "sizes": "clients of different sizes",
    "rotated": "rotated images",
    "shifted": "shifted labels",
}
STRENGTHS = (0.1, 0.2, 0.3, 0.5, 1.0)


@dataclass(frozen=True)
class Case:
    """Federations of one kind."""

    kind: Kind
    groups: int = 1
    strength: float = 0.0
    """The share of samples that are changed."""
    federations: int = 10

    def place(self, seed: int) -> str:
        """What says which federation it is."""
        return f"{self.kind}, {self.groups} groups, {self.strength:g}, seed {seed}"


LEVEL = (Case("same", federations=200), Case("sizes", federations=200))
POWER = tuple(
    Case(kind, k, s, federations=30) for kind in ("rotated", "shifted") for k in (2, 4) for s in STRENGTHS
)


def diagnose_one(case: Case, seed: int) -> Row:
    """Diagnose a federation; return the p-value, the number of groups, and their ARI to the planted ones."""
    experiment = Experiment(
        data={"name": "digits", "split": "iid", "clients": CLIENTS, "validation": 0, "test": 0.3},
        method="fedavg",
        run={"seed": seed, "workers": 1},
    )
    prepared = prepare(experiment)
    whole = plant(load_federation(prepared), case, seed)
    spec = engine_spec(prepared, whole)
    backend = Backend(whole, np.empty(0, np.int64), LocalRuntime(spec, whole.samples, 0.0, 1, None))
    found = diagnose(experiment, backend=backend, alpha=ALPHA, gains=False)
    return {
        "p": found.structure.p,
        "groups": 0 if found.all_differ else len(found.groups),
        "ari": found.true_groups_ari,
        "seconds": round(found.seconds, 2),
    }


def plant(federation: Federation, case: Case, seed: int) -> Federation:
    """Return the federation with what a case says of its clients; client i is in group i mod K."""
    rng = np.random.default_rng((seed, 17))
    if case.kind == "same":
        return federation
    if case.kind == "sizes":
        bounds = federation.bounds.copy()
        bounds[:, 0] = bounds[:, 1] - np.ceil(federation.samples * rng.uniform(1 / 3, 1, federation.n)).astype(int)
        return replace(federation, bounds=bounds)
    inputs, labels = federation.inputs.clone(), federation.labels.clone()
    true_groups = np.arange(federation.n) % case.groups
    for client, group in enumerate(true_groups.tolist()):
        rows = np.arange(federation.bounds[client, 0], federation.bounds[client, 3])
        changed = torch.from_numpy(rows[rng.random(len(rows)) < case.strength])
        if case.kind == "rotated":
            inputs[changed] = torch.rot90(inputs[changed], group * 4 // case.groups, (1, 2))
        else:
            labels[changed] = (labels[changed] + group) % federation.classes
    return replace(federation, inputs=inputs, labels=labels, true_groups=true_groups)


def of_case(case: Case, rows: Mapping[str, Row]) -> list[Row]:
    """Return the rows of a case that there are."""
    places = (case.place(seed) for seed in range(case.federations))
    return [rows[place] for place in places if place in rows]


def level_table(rows: Mapping[str, Row]) -> str:
    """Return how often one population was found to be several, in Markdown."""
    lines = [
        "| one population | federations | p ≤ 1 % | p ≤ 5 % | p ≤ 10 % | divided |",
        "|---|---|---|---|---|---|",
    ]
    for case in LEVEL:
        found = of_case(case, rows)
        shares = [np.mean([row["p"] <= level for row in found]) for level in (0.01, 0.05, 0.1)] if found else []
        shares += [np.mean([row["groups"] != 1 for row in found])] if found else []
        cells = [KINDS[case.kind], str(len(found)), *(f"{share:.1%}" for share in shares)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def power_table(rows: Mapping[str, Row]) -> str:
    """Return what was found of planted groups by their strength, in Markdown."""
    heads = [*(f"{strength:.0%}" for strength in STRENGTHS), "federations"]
    lines = [f"| planted | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for first in POWER[:: len(STRENGTHS)]:
        cells, counts = [], []
        for strength in STRENGTHS:
            found = of_case(replace(first, strength=strength), rows)
            counts.append(len(found))
            if not found:
                cells.append("–")
                continue
            seen = np.mean([row["p"] <= ALPHA for row in found])
            right = np.mean([row["groups"] == first.groups for row in found])
            ari = np.mean([row["ari"] for row in found])
            cells.append(f"{seen:.0%} · {right:.0%} · {ari:.2f}")
        many = f"{min(counts)}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
        lines.append(f"| {first.groups} groups, {KINDS[first.kind]} | {' | '.join(cells)} | {many} |")
    return "\n".join(lines)


def draw_power(rows: Mapping[str, Row]) -> alt.FacetChart:
    """Draw how often structure is found by its strength, with 95 % intervals (Wilson); no strength is the level."""
    points = []
    for first in POWER[:: len(STRENGTHS)]:
        cases = [LEVEL[0], *(replace(first, strength=strength) for strength in STRENGTHS)]
        for case in cases:
            found = [row["p"] <= ALPHA for row in of_case(case, rows)]
            if found:
                tested = binomtest(sum(found), len(found))
                bounds = tested.proportion_ci(method="wilson")
                points.append(
                    {
                        "kind": KINDS[first.kind],
                        "groups": f"{first.groups} groups",
                        "strength": case.strength,
                        "found": float(np.mean(found)),
                        "low": bounds.low,
                        "high": bounds.high,
                    }
                )
    base = alt.Chart().encode(
        x=alt.X("strength:Q", title="samples that are changed", axis=alt.Axis(format="%")),
        color=alt.Color("groups:N", title=None, legend=alt.Legend(symbolOpacity=1, symbolType="circle")),
    )
    share = alt.Y("found:Q", title="federations in which structure is found", axis=alt.Axis(format="%"))
    band = base.mark_area(opacity=0.18).encode(y="low:Q", y2="high:Q")
    line = base.mark_line(point=True).encode(y=share)
    level = alt.Chart().mark_rule(strokeDash=[4, 4]).encode(y=alt.datum(ALPHA))
    layers = alt.layer(band, line, level, data=pl.DataFrame(points)).properties(width=300, height=260)
    chart: alt.FacetChart = layers.facet(column=alt.Column("kind:N", title=None)).properties(
        config=alt.Config(
            background="white", view=alt.ViewConfig(stroke=None), axis=alt.AxisConfig(gridColor=FAINT)
        )
    )
    return chart


def main(words: Sequence[str]) -> int:
    """Diagnose what is missing, and write or print the tables."""
    parser = Arguments("diagnose", __doc__, SMOKE, KEPT)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page that gets the tables")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="N", help="stop after so long")
    parser.add_argument("--level", action="store_true", help="diagnose federations of one population alone")
    parser.add_argument("--kept", action="store_true", help="diagnose nothing")
    asked = parser.read(words)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    cases = LEVEL if asked.level else (*LEVEL, *POWER)
    rows = fill(asked.rows, cases, diagnose_one, 0.0 if asked.kept else asked.seconds)
    if asked.write is None:
        print(f"{level_table(rows)}\n\n{power_table(rows)}")
    else:
        write_whole(asked.write, written(asked.write.read_text("utf-8"), rows).encode())
        save_charts({PICTURE: draw_power(rows)}, asked.write.parent / "pictures")
        (asked.write.parent / "pictures" / f"{PICTURE}.png").unlink()
    return 0


def written(page: str, rows: Mapping[str, Row]) -> str:
    """Return the page with the tables of these rows."""
    return put_between(page, BEGIN, END, [level_table(rows), POWER_CURVE, POWER_TEXT, power_table(rows)])


POWER_CURVE = (
    "The figure shows how often the test finds planted groups at 5 %, over the share of samples that are changed.\n"
    "Bands are 95 % intervals (Wilson); at 0 % changed samples, it is the error level.\n\n"
    "![How often structure is found, over the share of samples that are changed](pictures/power.svg)"
)

POWER_TEXT = (
    "The same in numbers: how often there was structure (p ≤ 5 %), how often as many groups as there are, and the\n"
    "mean ARI. The last column counts the federations of each strength."
)


class Planned(Protocol):
    """What is diagnosed so many times, from a seed each."""

    @property
    def federations(self) -> int:
        """How many there are."""

    def place(self, seed: int) -> str:
        """What says which federation it is."""


C = TypeVar("C", bound=Planned)


def fill(kept: Path, cases: Sequence[C], row_of: Callable[[C, int], Row], seconds: float) -> dict[str, Row]:
    """Diagnose what a file of kept rows lacks, for so many seconds; return all rows.

    Args:
        kept: the file; it is written after every twenty federations and at the end.
        cases: what is to be diagnosed; all fill evenly.
        row_of: makes the row of a case and a seed.
        seconds: 0 for what is kept alone.
    """
    empty: dict[str, Any] = {"benchmark": kept.stem, "rows": {}}
    before = json.loads(kept.read_text("utf-8")) if kept.exists() else empty
    rows: dict[str, Row] = before["rows"]
    todo = [(seed / case.federations, case, seed) for case in cases for seed in range(case.federations)]
    todo = sorted((one for one in todo if one[1].place(one[2]) not in rows), key=lambda one: one[0])
    end = time.perf_counter() + seconds
    for number, (_, case, seed) in enumerate(todo, 1):
        if time.perf_counter() >= end:
            break
        rows[case.place(seed)] = row = row_of(case, seed)
        if number % 20 == 0 or number == len(todo):
            print(f"{number}/{len(todo)} {case.place(seed)}: {row}", flush=True)
            keep(kept, {**before, "rows": rows})
    keep(kept, {**before, "rows": rows})
    return rows


def keep(kept: Path, found: Mapping[str, Any]) -> None:
    """Write the rows, in the order of their places, with the machine they were made on last."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    whole = {**found, "machine": machine(), "rows": dict(sorted(found["rows"].items()))}
    write_whole(kept, write_rows(whole, {"rows": 1}).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
