"""Comparisons whose numbers are written down by hand: tables of cells, and run folders round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import CLIENTS as RUN_CLIENTS
from coterie.runs.folder.tables import FAILURES, FEDERATION, LEDGER, LOG, ROUNDS
from coterie.studies.compare.measures import CELLS, CLIENTS, CURVES, Frames
from coterie.studies.compare.spec import Comparison


def comparison(
    methods: Sequence[str] = ("fedavg", "ifca", "local-only"), seeds: int = 3, **more: Any
) -> Comparison:
    """The methods on 6 clients of the synthetic data, labelled as they are written; the first is the baseline.

    There are no rows after adaptation unless they are asked for.
    """
    given = {"name": "by-hand", "methods": list(methods), "seeds": seeds, "adapted": {}, **more}
    return Comparison.from_tables({"experiment": {"data": {"clients": 6}}, **given})


def frames(comparison: Comparison, values: Mapping[str, Any], **columns: Mapping[str, Sequence[Any]]) -> Frames:
    """Cells whose measure has the values, and further columns of `CELLS` likewise; the rest is made up.

    The values are one a seed for each method, or for each setting and method; of None the cell is not finished, of
    NaN it has no value.
    """
    rows = []
    for cell in comparison.cells():
        of_setting = values[cell.setting] if cell.setting else values
        number = comparison.seeds.index(cell.seed)
        value = of_setting.get(cell.method, [None] * len(comparison.seeds))[number]
        if value is None:
            continue
        row: dict[str, Any] = {name: 0.5 if kind == pl.Float64 else 1 for name, kind in CELLS.items()}
        row |= dict.fromkeys(name for name in CELLS if name.startswith(("adapted_", "newcomers", "diverged")))
        row |= {"setting": cell.setting, "method": cell.method, "seed": cell.seed, "key": cell.key}
        row |= {comparison.measure: value if value == value else None}
        row |= {name: of_method[cell.method][number] for name, of_method in columns.items()}
        rows.append(row)
    return Frames(pl.DataFrame(rows, CELLS), pl.DataFrame(schema=CURVES), pl.DataFrame(schema=CLIENTS))


Logged = Mapping[str, Mapping[int, Mapping[str, float]]]
"""What a method logs: by name, round and part."""


def folder(
    parent: Path,
    name: str,
    accuracy: Sequence[float | None],
    *,
    planted: bool = True,
    people: bool = True,
    log: Logged | None = None,
) -> RunFolder:
    """A finished run of two clients with these mean accuracies, None in a round without an evaluation.

    Round r sends 100 r bytes up and 10 r down, makes 2 local passes and takes r simulated seconds; it has r groups.
    """
    made = RunFolder.create(parent, name)
    made.write_experiment('[method]\nname = "fedavg"\n')
    for number, value in enumerate(accuracy, 1):
        row: dict[str, Any] = {"round": number, "groups": number, "moved": 0, "train_loss": None, "passes": 2.0}
        row |= dict.fromkeys(("macro_accuracy", "f1", "macro_f1", "std"), value)
        if value is not None:
            row |= {"accuracy": value - 0.01, "worst10": value - 0.1, "loss": 1 - value}
        row |= {"ari": number / 10, "nmi": number / 20} if planted else {}
        row |= {"up_bytes": 100 * number, "down_bytes": 10 * number, "simulated_seconds": float(number)}
        row |= {"seconds": 0.25, "participants": 2, "failed": number % 2}
        of_both = {"round": number, "took_part": True, "up_bytes": 50 * number, "down_bytes": 5 * number}
        clients = [
            {
                **of_both,
                **{"client": client, "group": client, "test_samples": 10 * (client + 1)},
                **{"accuracy": value + (0.1 if client else -0.1), "loss": 1 - value, "f1": value},
            }
            for client in (0, 1)
            if value is not None
        ]
        logged = [
            (number, what, of, logged)
            for what, by_round in (log or {}).items()
            for of, logged in by_round.get(number, {}).items()
        ]
        made.write_round(
            number,
            pl.DataFrame([row], ROUNDS),
            pl.DataFrame(clients, RUN_CLIENTS),
            pl.DataFrame(schema=LEDGER),
            pl.DataFrame([(number, 0, "late")] * row["failed"], schema=FAILURES, orient="row"),
            pl.DataFrame(logged, schema=LOG, orient="row"),
        )
    if people:
        who = {"few_shot": False, "train": 60, "validation": 10, "test": 30, "labels": [0, 1]}
        made.write_federation(
            pl.DataFrame(
                [
                    {"client": i, "name": f"hospital {i}", "true_group": i if planted else None, **who}
                    for i in (0, 1)
                ],
                FEDERATION,
            )
        )
    made.compact()
    made.write_status("finished", len(accuracy), len(accuracy))
    return made
