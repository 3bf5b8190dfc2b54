"""The tables that grow by each round: in memory first, then in files of some rounds, in the end one file each.

While a run goes on, finished rounds add files: `metrics/000007.zip`, or `metrics/000007-000012.zip` where several
had waited in memory, with an Arrow stream for each table. When it ends they become one Parquet file a table
(`rounds.parquet`), which polars and pandas read with one call.

Rounds are removed from the last one back, so at any moment the files hold all rounds from 1 to some last one, which
is no earlier than the run's status says. A table that is read is held against this, and every file says of which
run it belongs to. A file that is missing, cut off or another run's raises an error; it never gives a wrong table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import polars as pl

from coterie.clients.open_files import remove
from coterie.errors import BadInput
from coterie.runs.folder.files import damaged_file, missing_file, write_whole
from coterie.runs.folder.tables import (
    cast_columns,
    decode,
    decode_round,
    drop_infinite,
    encode,
    encode_round,
    find_mismatches,
    scored_columns,
    stack_tables,
)


class _RoundsFile(NamedTuple):
    """A file of rounds that follow one another."""

    first: int
    last: int
    path: Path

    @classmethod
    def of(cls, path: Path) -> _RoundsFile | None:
        """Return the file's rounds, or None if its name is not one that `name` gives."""
        found = re.fullmatch(r"(\d{6})(?:-(\d{6}))?", path.stem, re.ASCII)
        return None if found is None else cls(int(found[1]), int(found[2] or found[1]), path)

    @staticmethod
    def name(first: int, last: int) -> str:
        return f"{first:06d}.zip" if first == last else f"{first:06d}-{last:06d}.zip"

    @property
    def rounds(self) -> range:
        return range(self.first, self.last + 1)

    def read(self, table: str, schemas: Mapping[str, pl.Schema], run: str) -> pl.DataFrame:
        """Read the rounds of one table.

        Raises:
            FileNotFoundError: there is no such file.
            BadInput: it is damaged, of another run, or holds other rounds than its name says.
        """
        frame = decode_round(self.path, table, schemas, run)
        found = set(frame["round"])
        if not all(number in self.rounds for number in found) or (
            table == "rounds" and len(found) < len(self.rounds)
        ):
            raise damaged_file(self.path, ValueError("it holds other rounds than its name says"))
        return frame


def _drop_covered(parts: Sequence[_RoundsFile]) -> list[_RoundsFile]:
    """Leave out files whose rounds are all in another: a kill while rounds are dropped may leave both."""
    found: list[_RoundsFile] = []
    for part in sorted(parts, key=lambda part: (part.first, -part.last)):
        if not found or part.last > found[-1].last:
            found.append(part)
    return found


class RoundFiles:
    """The growing tables of one run folder.

    Args:
        folder: the run's.
        schemas: returns the tables' columns by table; it is asked when a table is written or read.
        reported: returns up to which round the run's status says that all rounds are here.
        run: returns what the run's files say of which run they are; empty where they say nothing.
        check: checks that a file of the folder is as the run wrote it, by name.
        write: writes files into the folder, by name; without it they are written as they are.

    Attributes:
        is_buffered: whether rounds that are written wait in memory until `flush`. Reading a table flushes first.
    """

    def __init__(
        self,
        folder: Path,
        schemas: Callable[[], Mapping[str, pl.Schema]],
        reported: Callable[[], int],
        run: Callable[[], str] = str,
        check: Callable[[str], None] = lambda _: None,
        write: Callable[[Mapping[str, bytes]], None] | None = None,
    ) -> None:
        self._check, self._write_files = check, write or partial(_write_files, folder)
        self._folder = folder
        self._schemas = schemas
        self._reported = reported
        self._run = run
        self._parts = folder / "metrics"
        self._waiting: dict[int, dict[str, pl.DataFrame]] = {}
        self.is_buffered = False

    def write(self, number: int, frames: Mapping[str, pl.DataFrame]) -> None:
        """Keep a round's part of every table; writing a round again replaces it.

        Raises:
            BadInput: a frame has other columns or types, a missing value, or rows of another round.
        """
        frames = {**frames, "log": drop_infinite(frames["log"])}
        found = [
            p
            for table, frame in frames.items()
            for p in find_mismatches(table, frame, self._schemas()[table], number)
        ]
        if frames["rounds"].height != 1:
            found.append(f"rounds has {frames['rounds'].height} rows; a round has exactly one")
        if found:
            raise BadInput(found)
        if number - 1 not in self._waiting:  # a file holds rounds that follow one another
            self.flush()
        self._waiting[number] = {
            table: cast_columns(frames[table], schema) for table, schema in self._schemas().items()
        }
        if not self.is_buffered:
            self.flush()

    def flush(self) -> None:
        """Put the rounds that wait in memory on the disk, as one file."""
        if not self._waiting:
            return
        first, last = min(self._waiting), max(self._waiting)
        for part in self._list_parts():
            if part.first <= last and first <= part.last and (part.first, part.last) != (first, last):
                self._keep_rounds(part, range(part.first, first), range(last + 1, part.last + 1))
        waiting = self._waiting.values()
        tables = {
            table: stack_tables(schema, (frames[table] for frames in waiting))
            for table, schema in self._schemas().items()
        }
        self._parts.mkdir(exist_ok=True)
        write_whole(self._parts / _RoundsFile.name(first, last), encode_round(tables, self._schemas(), self._run()))
        self._waiting.clear()

    def read(self, table: str, least: int = 0) -> pl.DataFrame:
        """Read a table from its compacted file and the parts; a part is newer than a compacted row of its round.

        Args:
            table: its name.
            least: a round that must be there, with all before it, whatever the run's status says.

        Raises:
            BadInput: a file is damaged or missing; the sentence names it.
        """
        self.flush()
        while True:
            before = self._list_parts(), self._reported()
            try:
                return self._read(table, _drop_covered(before[0]), max(before[1], least))
            except (FileNotFoundError, BadInput):
                # Another process may compact the run or resume it; nothing else removes files.
                if before == (self._list_parts(), self._reported()):
                    raise

    def _read(self, table: str, parts: Sequence[_RoundsFile], least: int) -> pl.DataFrame:
        schemas = self._schemas()
        run = self._run()
        frames = [part.read(table, schemas, run) for part in parts]
        newer = [number for part in parts for number in part.rounds]
        whole = self._read_compacted(table, newer)
        rounds = whole if table == "rounds" else self._read_compacted("rounds", newer)
        self._require_all([*newer, *rounds["round"]], bool(parts), least)
        if rounds.height:
            self._require_table(table, whole, rounds)
        return stack_tables(
            schemas[table], [whole.filter(pl.col("round").is_in(rounds["round"].implode())), *frames]
        ).sort("round", maintain_order=True)

    def _read_compacted(self, table: str, newer: Sequence[int]) -> pl.DataFrame:
        """Read a compacted table without the rounds that parts hold; empty where there is none."""
        path, schema = self._compacted_path(table), self._schemas()[table]
        self._check(path.name)
        if not path.exists():
            return pl.DataFrame(schema=schema)
        return decode(path, schema, self._run()).filter(~pl.col("round").is_in(newer))

    def _require_all(self, numbers: Collection[int], has_parts: bool, least: int) -> None:
        """Check that the files hold every round up to `least` and up to the last that they hold.

        Raises:
            BadInput: a file is missing, or the compacted table of rounds is cut short.
        """
        held, end = set(numbers), max([least, *numbers])
        first = next((number for number in range(1, end + 1) if number not in held), None)
        if first is None:
            return
        last = next((number for number in range(first, end) if number + 1 in held), end)
        which = f"no file holds {f'round {last}' if last == first else f'rounds {first} to {last}'}"
        whole = self._compacted_path("rounds")
        if has_parts or not any(self._compacted_path(table).exists() for table in self._schemas()):
            raise missing_file(self._parts / _RoundsFile.name(first, last), which)
        raise damaged_file(whole, ValueError(which)) if whole.exists() else missing_file(whole, which)

    def _require_table(self, table: str, whole: pl.DataFrame, rounds: pl.DataFrame) -> None:
        """Check that every compacted table is there, and that one of them has the rows that its rounds speak of.

        Raises:
            BadInput: one is missing, or this one is cut short.
        """
        for path in map(self._compacted_path, self._schemas()):
            if not path.exists():  # the table of rounds is written last
                raise missing_file(path, "the other tables are there")
        spoken_of = {
            "clients": pl.col(scored_columns(rounds.schema)[0]).is_not_null(),
            "ledger": pl.col("up_bytes") + pl.col("down_bytes") > 0,
            "failures": pl.col("failed") > 0,
        }
        if table in spoken_of and (lacking := set(rounds.filter(spoken_of[table])["round"]) - set(whole["round"])):
            raise damaged_file(self._compacted_path(table), ValueError(f"it lacks round {min(lacking)}"))

    def forget_after(self, number: int) -> None:
        """Drop the rows of rounds later than `number`."""
        self.flush()
        for part in reversed(self._list_parts()):  # a kill leaves no gap
            if part.last > number:
                self._keep_rounds(part, range(part.first, number + 1))
        for table, schema in self._schemas().items():
            whole = self._compacted_path(table)
            self._check(whole.name)
            if whole.exists():
                frame = decode(whole, schema, self._run())
                kept = frame.filter(pl.col("round") <= number)
                if kept.height < frame.height:
                    self._write_files({whole.name: encode(kept, schema, self._run())})

    def compact(self) -> None:
        """Turn the files of some rounds each into one file a table, ascending by round."""
        # The table of rounds is the last to gain a round and the first to lose one: what the others have beyond it
        # does not count.
        frames = {table: self.read(table) for table in ("log", "ledger", "failures", "clients", "rounds")}
        frames["clients"] = frames["clients"].sort("round", "client")
        encoded = {table: encode(frame, self._schemas()[table], self._run()) for table, frame in frames.items()}
        self._write_files({self._compacted_path(table).name: content for table, content in encoded.items()})
        for part in self._list_parts():
            remove(part.path)
        if self._parts.is_dir() and not any(self._parts.iterdir()):
            self._parts.rmdir()

    def _compacted_path(self, table: str) -> Path:
        return self._folder / f"{table}.parquet"

    def _list_parts(self) -> list[_RoundsFile]:
        """List the files of some rounds each, ascending.

        Raises:
            BadInput: an earlier version of Coterie has left others.
        """
        if (self._parts / "rounds").is_dir():
            raise BadInput(f"{self._parts} was left by an earlier version; resume the run with that, or begin anew")
        try:
            found = [_RoundsFile.of(path) for path in self._parts.glob("*.zip")]
        except FileNotFoundError:  # the folder went away while it was read: the run was compacted
            return []
        return sorted(part for part in found if part is not None)

    def _keep_rounds(self, part: _RoundsFile, *ranges: range) -> None:
        """Drop all rounds of a file except these."""
        tables = {table: part.read(table, self._schemas(), self._run()) for table in self._schemas()}
        for some in ranges:
            if some:
                kept = {t: f.filter(pl.col("round").is_between(some[0], some[-1])) for t, f in tables.items()}
                content = encode_round(kept, self._schemas(), self._run())
                write_whole(self._parts / _RoundsFile.name(some[0], some[-1]), content)
        remove(part.path)


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        write_whole(folder / name, content)
