"""Damages files of run folders, and says which damage was accepted and changed what the run says.

`python -m tests.damage --cases 1000 --seed 0` makes a finished run, a stopped one and one that broke off. Then it
damages one file of one of them 1,000 times: a bit is flipped, the file is cut, removed, or exchanged for that of
another run. Whoever reads the run afterwards must be told which file it is, or get the numbers that the run wrote.
It prints each case that was accepted and gave other numbers, and then ends with 1.

What a person may edit (experiment.toml) and what is no number of the run (pages, locks, the status, of which the
tables say what is true) is left out.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import coterie
from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder

LEFT_OUT = {"experiment.toml", "report.html", "status.json", ".lock"}
WAYS = ("bit", "cut", "removed", "exchanged")


class _StopAfter(coterie.Observer):
    def __init__(self, number: int, error: type[BaseException]) -> None:
        self._number, self._error = number, error

    def round(self, round: coterie.Round) -> None:
        if round.number == self._number:
            raise self._error


class _Killed(Exception):
    """Stands for a kill: nothing of the run's end is written."""


def make_runs(folder: Path, seed: int) -> dict[str, Path]:
    """Make a finished run, a stopped one and one that broke off, with groups, unseen clients and intervals."""
    found = {}
    for name, error in (("finished", None), ("stopped", KeyboardInterrupt), ("broken-off", _Killed)):
        experiment = coterie.Experiment.from_tables(
            {
                "method": {"name": "fesem", "clusters": 2, "warm_up": 1},
                "data": {"clients": 6, "samples_per_client": 40},
                "network": {"name": "mlp", "hidden": [8]},
                "run": {
                    **{"rounds": 4, "seed": seed, "workers": 1, "holdout_clients": 0.3, "name": name},
                    **{"folder": str(folder), "checkpoint_every": 1},
                },
            }
        )
        with suppress(_Killed):
            coterie.run(experiment, observers=[] if error is None else [_StopAfter(3, error)])
        found[name] = folder / name
    return found


def read_all(path: Path) -> dict[str, Any]:
    """Return everything that a run's folder says in numbers.

    Raises:
        BadInput: a file is damaged or missing.
    """
    run = RunFolder(path)
    tables = {name: getattr(run, name)() for name in ("rounds", "clients", "ledger", "failures", "log")}
    tables |= {name: getattr(run, name)() for name in ("federation", "newcomers", "intervals")}
    found: dict[str, Any] = {name: None if table is None else table.write_json() for name, table in tables.items()}
    picture, traits = run.picture(), run.group_traits()
    found |= {"picture": None if picture is None else picture.encode()}
    found |= {"traits": None if traits is None else traits.encode()}
    return found | {"warnings": run.warnings(), "environment": run.environment()}


def damage(path: Path, way: str, other: Path, rng: np.random.Generator) -> bool:
    """Damage a file in one way; say whether that changed it."""
    whole = path.read_bytes()
    if way == "removed":
        path.unlink()
        return True
    if way == "exchanged":
        if not other.is_file() or other.read_bytes() == whole:
            return False
        shutil.copy(other, path)
        return True
    if not whole:
        return False
    at = int(rng.integers(len(whole)))
    if way == "cut":
        path.write_bytes(whole[:at])
    else:
        bits = bytearray(whole)
        bits[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(bits))
    return True


def campaign(folder: Path, cases: int, seed: int, say: Callable[[str], None] = print) -> Iterator[str]:
    """Damage one file after another; yield each case whose damage was accepted and gave other numbers.

    Args:
        folder: an empty one.
        cases: how many files are damaged.
        seed: of the runs, and of what is damaged how.
        say: is told how many cases were refused and how many changed nothing that anybody reads.
    """
    runs, others = make_runs(folder / "own", seed), make_runs(folder / "other", seed + 1)
    before = {name: read_all(path) for name, path in runs.items()}
    rng = np.random.default_rng(seed)
    files = [
        (name, path.relative_to(run))
        for name, run in runs.items()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in LEFT_OUT and "baselines" not in path.parts
    ]
    refused = same = number = 0
    while number < cases:
        (name, file), way = files[int(rng.integers(len(files)))], WAYS[int(rng.integers(len(WAYS)))]
        work = folder / "damaged"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(runs[name], work)
        if not damage(work / file, way, others[name] / file, rng):
            continue
        number += 1
        try:
            now = read_all(work)
        except BadInput as problem:
            refused += 1
            if file.name not in str(problem) and "manifest" not in str(problem):
                yield f"case {number}: {name}/{file}, {way}: the sentence names another file: {problem}"
            continue
        if now == before[name]:
            same += 1
        else:
            parts = [part for part in now if now[part] != before[name][part]]
            yield f"case {number}: {name}/{file}, {way}: accepted, and {', '.join(parts)} changed"
    say(f"{number} files damaged: {refused} refused, {same} with the numbers that they had")


def main() -> int:
    """Play a campaign and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = list(campaign(Path(folder), asked.cases, asked.seed))
    print("\n".join([*found, f"{len(found)} accepted with other numbers, or named wrongly"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
