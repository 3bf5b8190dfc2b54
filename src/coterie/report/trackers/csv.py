"""A table of numbers that any spreadsheet opens: a line for each number of each round."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.report.trackers.tracker import Tracker

FILE = "tracked.csv"


@dataclass
class Csv(Tracker):
    """Writes round, name and value of every number into `tracked.csv` in the run's folder."""

    library = extra = "csv"

    def begin(self, folder: Path, settings: Mapping[str, str]) -> None:
        """Take up the file where a run goes on; rounds that are played again are written again."""
        self._path = folder / FILE
        if not self._path.exists():
            self._write([("round", "name", "value")], "w")

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Write a line for each number, in place of those of this round and later ones."""
        with self._path.open(newline="", encoding="utf-8") as file:
            rows = [(row[0], row[1], row[2]) for row in csv.reader(file)]
        if len(rows) > 1 and int(rows[-1][0]) >= round:
            self._write([rows[0], *(row for row in rows[1:] if int(row[0]) < round)], "w")
        self._write([(str(round), name, repr(value)) for name, value in values.items()], "a")

    def keep(self, folder: Path, files: Sequence[Path], summary: Mapping[str, float]) -> None:
        """Keep nothing more: everything lies beside the file."""

    def end(self, status: str) -> None:
        """End with nothing: the file is closed after each round."""

    def _write(self, rows: list[tuple[str, str, str]], mode: str) -> None:
        with self._path.open(mode, newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
