"""What the live page shows of run folders, as plain values, also while a run writes into them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from coterie.errors import BadInput
from coterie.report.drawing.colours import of_groups
from coterie.runs.folder.metrics import MACRO
from coterie.runs.folder.reading import method_name
from coterie.runs.folder.run_folder import RunFolder, list_runs

MOST_CLIENTS = 120
"""At most so many clients are shown one by one."""

MOST_POINTS = 400
"""A curve has at most about so many points; a longer run is drawn by every k-th round."""

MOST_FAILURES = 50
"""At most so many answers that did not come are listed, the last ones."""

RECENT_ROUNDS = 10
"""The time left is the mean time of so many last rounds, times the rounds that are left."""

Described = dict[str, Any]
"""Numbers, texts, lists and tables: what JSON can say."""


class Watched:
    """The runs in a folder as the page shows them. A run whose files have not changed is not read again.

    Args:
        folder: in which the run folders are.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._kept: dict[str, tuple[object, Described]] = {}

    def find(self, name: str) -> RunFolder:
        """Return the run of that very name in the folder.

        Raises:
            BadInput: there is none; a path is no name.
        """
        for run in list_runs(self.folder):
            if run.path.name == name:
                return run
        raise BadInput(f"run {name!r} is unknown")

    def index(self) -> list[Described]:
        """Return a row for each run, by name; of a run that cannot be read, the reason."""
        rows = {run.path.name: self._row(run) for run in list_runs(self.folder)}
        self._kept = {name: kept for name, kept in self._kept.items() if name in rows}
        return list(rows.values())

    def detail(self, name: str) -> Described:
        """Return a run's row, its curves, its groups round by round, and what went wrong.

        Raises:
            BadInput: there is no such run.
        """
        run = self.find(name)
        found = self._row(run)
        return found | dict(_try({"problem": found["problem"]}, lambda: _sayable(_detail(run))))

    def _row(self, run: RunFolder) -> Described:
        name, stamp = run.path.name, _stamp(run)
        if name in self._kept and self._kept[name][0] == stamp:
            row = dict(self._kept[name][1])
        else:
            row = {**_EMPTY, "name": name.encode(errors="replace").decode()} | _try(
                {}, lambda: _sayable(_describe(run))
            )
            if not row["problem"]:
                self._kept[name] = stamp, dict(row)
        # A killed run writes nothing: whether its process lives is asked each time.
        row["state"] = _try({"state": "unreadable"}, lambda: {"state": run.status})["state"]
        row["left"] = row["left"] if row["state"] == "running" else None
        return row


_EMPTY: Described = {
    "state": "interrupted",
    "round": 0,
    "rounds": 0,
    "method": "",
    "data": "",
    "split": "",
    "runtime": "",
    "metric": "",
    "is_share": False,
    "less_is_better": False,
    "value": None,
    "worst10": None,
    "groups": None,
    "ari": None,
    "failed": 0,
    "bytes": 0,
    "seconds": 0.0,
    "left": None,
    "started": None,
    "updated": None,
    "problem": "",
}
"""A row of the index, of a run that has said nothing yet."""


def _try(otherwise: Described, read: Callable[[], Described]) -> Described:
    """Return what is read, or why it cannot be: files of a running process come, grow and go."""
    try:
        return read()
    except BadInput as problem:
        return {**otherwise, "problem": "; ".join(problem.problems)}
    except _UNREADABLE as error:
        return {**otherwise, "problem": f"it cannot be read just now ({type(error).__name__})"}


_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError),
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
)
"""What reading the files of one run may raise; no such file may keep the others from being shown."""


def _sayable(described: Described) -> Described:
    """Return what JSON can say as it is.

    Raises:
        ValueError: it holds a number or a text that JSON has not.
    """
    json.dumps(described, ensure_ascii=False, allow_nan=False).encode()
    return described


def _stamp(run: RunFolder) -> object:
    """Return what changes when a run writes."""
    return tuple(_changed(run.path / name) for name in ("status.json", "warnings.json", "environment.json", ""))


def _changed(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _describe(run: RunFolder) -> Described:
    progress, experiment = run.progress(), run.experiment()
    metric = run.metrics.columns[run.metrics.headline]
    data = experiment.get("data", {})
    said: Described = {
        "method": method_name(experiment),
        "data": Path(str(data.get("name", "digits"))).name if isinstance(data, dict) else str(data),
        "split": str(data.get("split", "auto")) if isinstance(data, dict) else "auto",
        "runtime": str(experiment.get("run", {}).get("runtime", "local")),
        "metric": metric.title,
        "is_share": metric.is_share,
        "less_is_better": metric.less_is_better,
        "started": run.environment().get("started"),
    }
    if progress is None:
        return said
    said |= {key: asdict(progress)[key] for key in ("round", "rounds", "updated")}
    rounds = run.rounds()
    if rounds.height:
        said |= {
            "value": _last(rounds, run.metrics.headline),
            **{column: _last(rounds, column) for column in ("worst10", "groups", "ari")},
            "failed": int(rounds["failed"].sum()),
            "bytes": int(rounds["up_bytes"].sum()) + int(rounds["down_bytes"].sum()),
            "seconds": float(rounds["seconds"].sum()),
            "left": _seconds_left(rounds, progress.rounds),
        }
    return said


def _last(rounds: pl.DataFrame, column: str) -> float | None:
    """Return the last value of a column that there is."""
    if column not in rounds.columns:
        return None
    known = [value for value in rounds[column].to_list() if value is not None and math.isfinite(value)]
    return known[-1] if known else None


def _seconds_left(rounds: pl.DataFrame, planned: int) -> float:
    recent = [float(seconds) for seconds in rounds["seconds"].tail(RECENT_ROUNDS)]
    return sum(recent) / len(recent) * max(0, planned - int(rounds["round"].to_list()[-1]))


def _detail(run: RunFolder) -> Described:
    metrics, rounds = run.metrics, run.rounds()
    keys = [metrics.headline, "worst10", "loss", *(f"{MACRO}{metric.name}" for metric in metrics.further)]
    step = max(1, math.ceil(rounds.height / MOST_POINTS))
    curves = [
        {"key": key, "title": column.title, "is_share": column.is_share, "points": list(_points(rounds, key, step))}
        for key in dict.fromkeys(keys)
        if key in rounds.columns and (column := metrics.columns.get(key)) is not None
    ]
    failures = run.failures()
    return {
        "curves": [curve for curve in curves if curve["points"]],
        "moved": [[row["round"], row["moved"]] for row in rounds.iter_rows(named=True) if row["moved"]],
        "members": _members(run),
        "failures": {
            "count": failures.height,
            "last": failures.tail(MOST_FAILURES).reverse().rows(),
        },
        "warnings": run.warnings(),
        "seed": run.environment().get("seed"),
        "now": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _points(rounds: pl.DataFrame, key: str, step: int) -> Iterator[tuple[int, float]]:
    values = list(rounds.select("round", key).iter_rows())
    for place, (number, value) in enumerate(values):
        shown = place % step == 0 or place == len(values) - 1
        if shown and value is not None and math.isfinite(value):
            yield number, value


def _members(run: RunFolder) -> Described:
    """Return the group of each client in each evaluated round, and the groups' colours; -1 is no group."""
    clients, federation = run.clients(), run.federation()
    if not clients.height:
        return {"rounds": [], "clients": [], "colours": {}, "total": 0}
    names = {} if federation is None else dict(federation.select("client", "name").iter_rows())
    ids = clients["client"].unique().sort().to_list()
    numbers = clients["round"].unique().sort().to_list()
    numbers = numbers[:: max(1, math.ceil(len(numbers) / MOST_POINTS))]
    shown = clients.filter(pl.col("client").is_in(ids[:MOST_CLIENTS]) & pl.col("round").is_in(numbers))
    of = {(client, number): group for client, number, group in shown.select("client", "round", "group").iter_rows()}
    groups = sorted({-1 if group is None else group for group in of.values()})
    return {
        "rounds": numbers,
        "clients": [
            {"name": str(names.get(client, f"client {client}")), "groups": [of.get((client, n)) for n in numbers]}
            for client in ids[:MOST_CLIENTS]
        ],
        "colours": dict(zip(map(str, groups), of_groups(groups), strict=True)),
        "total": len(ids),
    }
