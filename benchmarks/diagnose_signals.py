"""What other signals than directions of updates tell `coterie diagnose`: level on one population, and power.

    python -m benchmarks.diagnose_signals [--write FILE] [--seconds N] [--kept] [--smoke]

20 clients of digits as in `benchmarks.diagnose`, one start, with 100 public samples at the server. The same halves
are tested by the directions of updates, by losses under each other's models and by predictions on public samples.
For the level all clients are of one population. For the power two groups differ in a share of the samples: two
groups of ten, or two clients and all others.

A federation is kept once it has been diagnosed, and is not diagnosed again. `--kept` diagnoses nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks import diagnose as calibration
from benchmarks.kept_cells import Row, put_between
from benchmarks.smoke import Arguments
from coterie.advice.diagnose.diagnose import diagnose
from coterie.clients.data.federation import Federation
from coterie.runs.folder.files import write_whole
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.setup import Backend, engine_spec, load_federation
from coterie.runtime.local.runtime import LocalRuntime

PAGE = calibration.PAGE
KEPT = PAGE.parent / "diagnose" / "signals.json"
BEGIN, END = "<!-- signals -->", "<!-- end of signals -->"
PUBLIC = 100
SIGNALS: Mapping[str, str] = {
    "directions": "directions of updates",
    "losses": "losses",
    "predictions": "predictions",
}
MINORITY = 2
"""Clients who are the smaller of two groups."""


@dataclass(frozen=True)
class Case:
    """Federations of one kind.

    Attributes:
        planted: what is planted; the small group has the first `MINORITY` clients.
        few: whether one group is small.
        federations: how many there are.
    """

    planted: calibration.Case
    few: bool
    federations: int

    @property
    def title(self) -> str:
        """What the table calls it."""
        if self.planted.kind == "same":
            return "one population"
        sizes = f"{MINORITY} of {calibration.CLIENTS}" if self.few else "half"
        return f"{sizes} with {self.planted.strength:.0%} {calibration.KINDS[self.planted.kind]}"

    def place(self, seed: int) -> str:
        """What says which federation it is."""
        return f"{self.title}, seed {seed}"

    def plant(self, federation: Federation, seed: int) -> Federation:
        """Return the federation with the groups in it."""
        if not self.few:
            return calibration.plant(federation, self.planted, seed)
        changed = calibration.plant(federation, replace(self.planted, groups=2), seed)
        first = changed.bounds[1::2][:MINORITY]  # the clients of the second group are the odd ones
        inputs, labels = federation.inputs.clone(), federation.labels.clone()
        for start, *_, stop in first.tolist():
            inputs[start:stop], labels[start:stop] = changed.inputs[start:stop], changed.labels[start:stop]
        true_groups = np.zeros(federation.n, np.int64)
        true_groups[1 : 2 * MINORITY : 2] = 1
        return replace(federation, inputs=inputs, labels=labels, true_groups=true_groups)


LEVEL = Case(calibration.Case("same"), False, 200)
POWER = tuple(
    Case(calibration.Case(kind, 2, strength), few, 20)
    for few, strength in ((False, 0.3), (True, 0.5), (True, 1.0))
    for kind in ("rotated", "shifted")
)
CASES = (LEVEL, *POWER)


def test_one(case: Case, seed: int) -> Row:
    """Diagnose a federation; return the p-value by each signal."""
    experiment = Experiment(
        data={
            "name": "digits",
            "split": "iid",
            "clients": calibration.CLIENTS,
            "validation": 0,
            "test": 0.3,
            "public": PUBLIC,
        },
        method="fedavg",
        run={"seed": seed, "workers": 1},
    )
    prepared = prepare(experiment)
    whole = case.plant(load_federation(prepared), seed)
    spec = engine_spec(prepared, whole)
    backend = Backend(whole, np.empty(0, np.int64), LocalRuntime(spec, whole.samples, 0.0, 1, None))
    found = diagnose(experiment, backend=backend, starts=1, gains=False, losses=True)
    return {"directions": found.structure.p, **{signal.name: signal.test.p for signal in found.signals}}


def of_case(case: Case, rows: Mapping[str, Row]) -> list[Row]:
    """Return the rows of a case that there are."""
    return [rows[place] for seed in range(case.federations) if (place := case.place(seed)) in rows]


def table(rows: Mapping[str, Row]) -> str:
    """Return how often each signal told clients apart, in Markdown."""
    lines = [
        f"| federations | {' | '.join(SIGNALS.values())} | losses alone | how many |",
        "|---" * (len(SIGNALS) + 3) + "|",
    ]
    for case in CASES:
        if not (found := of_case(case, rows)):
            continue
        seen = {name: np.array([row[name] <= calibration.ALPHA for row in found]) for name in SIGNALS}
        alone = float(np.mean(seen["losses"] & ~seen["directions"]))
        cells = [*(f"{seen[name].mean():.1%}" for name in SIGNALS), f"{alone:.1%}", str(len(found))]
        lines.append(f"| {case.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def written(page: str, rows: Mapping[str, Row]) -> str:
    """Return the page with the table of these rows."""
    return put_between(page, BEGIN, END, [table(rows)])


def main(words: Sequence[str]) -> int:
    """Diagnose what is missing, and write or print the table."""
    parser = Arguments("diagnose_signals", __doc__, calibration.SMOKE, KEPT)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page that gets the table")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="N", help="stop after so long")
    parser.add_argument("--kept", action="store_true", help="diagnose nothing")
    asked = parser.read(words)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows = calibration.fill(asked.rows, CASES, test_one, 0.0 if asked.kept else asked.seconds)
    if asked.write is None:
        print(table(rows))
    else:
        write_whole(asked.write, written(asked.write.read_text("utf-8"), rows).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
