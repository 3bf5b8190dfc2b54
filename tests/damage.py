"""Damages files of run folders, and says which damage was accepted and changed what the run says.

`python -m tests.damage --cases 1000 --seed 0` makes a finished run, a stopped one and one that is still running.
Then it damages one file of one of them 1,000 times: a bit is flipped, the file is cut, removed, or exchanged for
that of another run. Whoever reads the run afterwards, or its checkpoints to go on from, must be told which file it
is, or get the numbers that the run wrote. Every `ALIVE`-th case damages a file beneath a run, which then goes on to
its end. It prints each case that was accepted and gave other numbers, and then ends with 1.

What a person may edit (experiment.toml) and what is no number of the run (pages, locks, the status, of which the
tables say what is true) is left out. 1,000 cases of the seed 350428112 found nothing: 961 were refused, and 39 had
the numbers of before.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

import coterie
from coterie.errors import BadInput
from coterie.runs.checkpoint_schedule import open_checkpoints
from coterie.runs.folder.run_folder import RunFolder

LEFT_OUT = {"experiment.toml", "report.html", "status.json", ".lock"}
WAYS = ("bit", "cut", "removed", "exchanged")


ALIVE = 25
"""One of so many cases is beneath a run that goes on."""


class _After(coterie.Observer):
    """Acts once a round is over, while the run is there and would go on."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self._number, self._act = number, act

    def round(self, round: coterie.Round) -> None:
        if round.number == self._number:
            self._act()


def _interrupt() -> None:
    raise KeyboardInterrupt


def _play(folder: Path, name: str, seed: int, act: Callable[[], object] = lambda: None) -> Path:
    """Play four rounds with groups, unseen clients and intervals; something happens after the third."""
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
    coterie.run(experiment, observers=[_After(3, act)])
    return folder / name


def make_runs(folder: Path, seed: int) -> dict[str, Path]:
    """Make a finished run, a stopped one, and what lies on the disk while one is running."""
    running = folder / "running"
    return {
        "finished": _play(folder, "finished", seed),
        "stopped": _play(folder, "stopped", seed, _interrupt),
        "running": _play(folder, "while", seed, lambda: shutil.copytree(folder / "while", running)) and running,
    }


def read_all(path: Path) -> dict[str, Any]:
    """Return everything that a run's folder says in numbers, and what it can be resumed from.

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
    found |= {"warnings": run.warnings(), "environment": run.environment()}
    checkpoints = open_checkpoints(run)
    for file in sorted(checkpoints.folder.glob("*.safetensors")):
        number, _ = checkpoints.load(file)  # which holds the state against its digest
        with safe_open(file, framework="pt") as held:
            found[f"checkpoint {number}"] = held.metadata()["digest"]
    return found


def read_results(path: Path) -> dict[str, Any]:
    """Return the numbers that a run must come to again: all but the seconds, and what says which run it was."""
    run, found = RunFolder(path), read_all(path)
    found["rounds"] = run.rounds().drop("seconds").write_json()
    return {name: value for name, value in found.items() if name != "environment"}


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
    assert RunFolder(runs["running"]).status == "running"
    before = {name: read_all(path) for name, path in runs.items()}
    # What goes on from a checkpoint earlier than the last two of a finished run may keep that one, too.
    kept = {part: value for part, value in before["running"].items() if part.startswith("checkpoint")}
    results = kept | read_results(runs["finished"])
    rng = np.random.default_rng(seed)
    files = [
        (name, path.relative_to(run))
        for name, run in runs.items()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in LEFT_OUT and "baselines" not in path.parts
    ]
    on_the_way = [file for name, file in files if name == "running"]
    refused = same = number = alive = 0
    while number < cases:
        (name, file), way = files[int(rng.integers(len(files)))], WAYS[int(rng.integers(len(WAYS)))]
        goes_on, work = number % ALIVE == 0, folder / "damaged"
        shutil.rmtree(work, ignore_errors=True)
        if goes_on:
            name, file = "running", on_the_way[int(rng.integers(len(on_the_way)))]
            work, was, read = work / "finished", results, read_results
        else:
            shutil.copytree(runs[name], work)
            was, read = before[name], read_all
        changed: list[bool] = []
        spoil = partial(_spoil, changed, work / file, way, others[name] / file, rng)
        now, problem = None, None
        try:
            _play(work.parent, work.name, seed, spoil) if goes_on else spoil()
            now = read(work)
        except BadInput as refusal:
            problem = refusal
        if not changed[0]:
            continue
        number, alive = number + 1, alive + goes_on
        if now is None:
            refused += 1
            if file.name not in str(problem) and "manifest" not in str(problem):
                yield f"case {number}: {name}/{file}, {way}: the sentence names another file: {problem}"
            continue
        # A checkpoint that is gone is not gone on from; the one before it comes to the same.
        parts = [part for part in now if now[part] != was.get(part)]
        parts += [part for part in was if part not in now and not part.startswith("checkpoint")]
        if not parts:
            same += 1
        else:
            yield f"case {number}: {name}/{file}, {way}: accepted, and {', '.join(parts)} changed"
    say(
        f"{number} files damaged, {alive} of them beneath a run that went on: {refused} refused, {same} with the "
        "numbers that they had"
    )


def _spoil(changed: list[bool], path: Path, way: str, other: Path, rng: np.random.Generator) -> None:
    changed.append(damage(path, way, other, rng))


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
