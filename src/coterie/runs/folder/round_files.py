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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from coterie.clients.open_files import remove
from coterie.errors import BadInput
from coterie.runs.folder.files import damaged_file, missing_file, write_whole
from coterie.runs.folder.tables import (
    cast_columns,
    decode_round,
    encode,
    encode_round,
    scored_columns,
    stack_tables,
)

if TYPE_CHECKING:
    from coterie.runs.folder.run_folder import RunFolder


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
    """The growing tables of a run folder, whose rounds are written in ascending order.

    Attributes:
        is_buffered: whether rounds that are written wait in memory until `flush`. Reading a table flushes first.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._parts = folder.path / "metrics"
        self._waiting: dict[int, dict[str, pl.DataFrame]] = {}
        self.is_buffered = False

    def write(self, number: int, frames: Mapping[str, pl.DataFrame]) -> None:
        """Keep a round's part of every table."""
        if number - 1 not in self._waiting:  # a file holds rounds that follow one another
            self.flush()
        self._waiting[number] = {
            table: cast_columns(frames[table], schema) for table, schema in self._folder.schemas().items()
        }
        if not self.is_buffered:
            self.flush()

    def flush(self) -> None:
        """Put the rounds that wait in memory on the disk, as one file."""
        if not self._waiting:
            return
        waiting = self._waiting.values()
        tables = {
            table: stack_tables(schema, (frames[table] for frames in waiting))
            for table, schema in self._folder.schemas().items()
        }
        self._write_part(min(self._waiting), max(self._waiting), tables)
        self._waiting.clear()

    def _write_part(self, first: int, last: int, tables: Mapping[str, pl.DataFrame]) -> None:
        self._parts.mkdir(exist_ok=True)
        content = encode_round(tables, self._folder.schemas(), self._folder.identify())
        write_whole(self._parts / _RoundsFile.name(first, last), content)

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
            before = self._list_parts(), self._folder.reported_rounds()
            try:
                return self._read(table, _drop_covered(before[0]), max(before[1], least))
            except (FileNotFoundError, BadInput):
                # Another process may compact the run or resume it; nothing else removes files.
                if before == (self._list_parts(), self._folder.reported_rounds()):
                    raise

    def _read(self, table: str, parts: Sequence[_RoundsFile], least: int) -> pl.DataFrame:
        schemas, run = self._folder.schemas(), self._folder.identify()
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
        schema = self._folder.schemas()[table]
        found = self._folder.read_table(table, schema)
        return pl.DataFrame(schema=schema) if found is None else found.filter(~pl.col("round").is_in(newer))

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
        if has_parts or not any(self._compacted_path(table).exists() for table in self._folder.schemas()):
            raise missing_file(self._parts / _RoundsFile.name(first, last), which)
        raise damaged_file(whole, ValueError(which)) if whole.exists() else missing_file(whole, which)

    def _require_table(self, table: str, whole: pl.DataFrame, rounds: pl.DataFrame) -> None:
        """Check that every compacted table is there, and that one of them has the rows that its rounds speak of.

        Raises:
            BadInput: one is missing, or this one is cut short.
        """
        for path in map(self._compacted_path, self._folder.schemas()):
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
                self._drop_after(part, number)
        for table, schema in self._folder.schemas().items():
            frame = self._folder.read_table(table, schema)
            if frame is not None and (frame["round"] > number).any():
                self._folder.write_table(table, frame.filter(pl.col("round") <= number), schema)

    def compact(self) -> None:
        """Turn the files of some rounds each into one file a table, ascending by round."""
        # The table of rounds is the last to gain a round and the first to lose one: what the others have beyond it
        # does not count.
        frames = {table: self.read(table) for table in ("log", "ledger", "failures", "clients", "rounds")}
        frames["clients"] = frames["clients"].sort("round", "client")
        schemas, run = self._folder.schemas(), self._folder.identify()
        self._folder.write_files(
            {f"{table}.parquet": encode(frame, schemas[table], run) for table, frame in frames.items()}
        )
        for part in self._list_parts():
            remove(part.path)
        if self._parts.is_dir() and not any(self._parts.iterdir()):
            self._parts.rmdir()

    def _compacted_path(self, table: str) -> Path:
        return self._folder.path / f"{table}.parquet"

    def _list_parts(self) -> list[_RoundsFile]:
        """List the files of some rounds each, ascending."""
        try:
            found = [_RoundsFile.of(path) for path in self._parts.glob("*.zip")]
        except FileNotFoundError:  # the folder went away while it was read: the run was compacted
            return []
        return sorted(part for part in found if part is not None)

    def _drop_after(self, part: _RoundsFile, number: int) -> None:
        """Drop all rounds of a file that are later than `number`."""
        if part.first <= number:
            schemas, run = self._folder.schemas(), self._folder.identify()
            kept = {table: part.read(table, schemas, run) for table in schemas}
            kept = {table: frame.filter(pl.col("round") <= number) for table, frame in kept.items()}
            self._write_part(part.first, number, kept)
        remove(part.path)
