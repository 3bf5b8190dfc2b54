"""A run folder: everything a run leaves on disk, read and written in one place.

The tables that grow by each round are `coterie.runs.folder.round_files`.
Every file appears whole or not at all, so a run can be killed, resumed or read at any moment.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import polars as pl
from pydantic import ConfigDict, Field, TypeAdapter

from coterie.clients.open_files import remove
from coterie.errors import BadInput, unknown
from coterie.runs.folder.files import (
    MOST_TEXT,
    damaged_file,
    encode_json,
    naming_damage,
    read_file,
    read_json,
    refuse_links,
    write_whole,
)
from coterie.runs.folder.group_traits import GroupTraits
from coterie.runs.folder.kept import ENVIRONMENT, WARNINGS, KeptWarnings, parse_kept, read_kept
from coterie.runs.folder.manifest import Manifest
from coterie.runs.folder.metrics import CLASSIFICATION, RunMetrics
from coterie.runs.folder.picture import Picture
from coterie.runs.folder.round_files import RoundFiles
from coterie.runs.folder.tables import (
    FEDERATION,
    INTERVALS,
    LOG,
    decode,
    encode,
    growing_tables,
    newcomers_schema,
)
from coterie.runs.schema import toml
from coterie.runs.schema.sections import NAME, NAME_RULES, numbered_names
from coterie.runtime.leftovers import is_alive

T = TypeVar("T")

FORMAT = 2
"""Of run folders: from 2 on a list of digests (`manifest.Manifest`) must be there."""

State = Literal["running", "finished", "interrupted"]

PICTURE, GROUP_TRAITS, KEPT_WARNINGS = "picture.npz", "groups.npz", "warnings.json"

SECRET = "noise.secret"
"""The file of which a private run's noise is made. It is there until the run is finished; nothing else holds it."""


@dataclass(frozen=True)
class Progress:
    """How far a run had come when it last wrote its status."""

    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid")

    state: State
    round: Annotated[int, Field(ge=0, lt=10**6)]
    """Rounds finished."""
    rounds: Annotated[int, Field(ge=0, lt=10**6)]
    """Rounds planned."""
    pid: Annotated[int, Field(ge=0, lt=2**31)]
    host: str
    updated: str
    """UTC, ISO 8601."""


_PROGRESS = TypeAdapter(Progress)


class RunFolder:
    """One run on disk. Opening a folder reads nothing and creates nothing."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        """The folder."""
        self._manifest = Manifest(self.path, self._must_have_manifest)
        self._tables = RoundFiles(self)
        self._metrics: RunMetrics | None = None
        self._identity: str | None = None

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def name(self) -> str:
        """What the run is called: the folder\'s own name."""
        return self.path.resolve().name

    @classmethod
    def create(cls, parent: Path | str, name: str) -> RunFolder:
        """A fresh folder `parent/name`; a taken name becomes `name-2`, `name-3`, …, cut where it would be too long.

        Raises:
            BadInput: the name is no plain folder name.
        """
        if not NAME.fullmatch(name):
            raise BadInput(f"name = {name!r} is not possible; write {NAME_RULES}")
        Path(parent).mkdir(parents=True, exist_ok=True)
        names = numbered_names(name)
        while True:
            path = Path(parent) / next(names)
            with suppress(FileExistsError):
                path.mkdir()
                return cls(path)

    @classmethod
    def find(cls, text: str, parent: Path | str) -> RunFolder:
        """The run that `text` names: a path, a name in `parent`, or the beginning of exactly one name there.

        Raises:
            BadInput: no such run, or several.
        """
        for path in (Path(parent) / text, Path(text)) if text else ():
            if _is_run(path):
                return cls(path)
        known = [folder.name for folder in list_runs(parent)]
        if not known:
            raise BadInput(f"run {text!r} is unknown; there is no run in {str(parent)!r} yet")
        begin = [name for name in known if text and name.startswith(text)]
        if len(begin) == 1:
            return cls(Path(parent) / begin[0])
        if begin:
            raise BadInput(f"run {text!r} could be {_several(begin)}; write the whole name of one")
        raise BadInput(unknown("run", text, known))

    def write_experiment(self, text: str) -> None:
        """Keep the exact experiment, as TOML."""
        write_whole(self.path / "experiment.toml", text.encode())

    def experiment_text(self) -> str:
        """The exact experiment, as it was written. Whatever uses a run begins with it, so links are refused here.

        Raises:
            BadInput: the folder holds none, or a link that leads out of it, or its path is no text.
        """
        try:
            str(self.path).encode()
        except UnicodeEncodeError:  # pages cannot name it, and libraries cannot open its files
            raise BadInput(f"the folder {str(self.path)!r} has a name that is not UTF-8; rename it") from None
        try:
            refuse_links(self.path)
            return read_file(self.path / "experiment.toml", MOST_TEXT).decode()
        except FileNotFoundError:
            raise BadInput(f"{self.path} is no run: it holds no experiment.toml") from None
        except (OSError, UnicodeDecodeError) as error:
            raise damaged_file(self.path / "experiment.toml", error) from None

    def experiment(self) -> dict[str, Any]:
        """The experiment as a dictionary.

        Raises:
            BadInput: it is missing, or it is no TOML.
        """
        text = self.experiment_text()
        try:
            return toml.load(text + "\n")
        except BadInput as problem:
            raise damaged_file(self.path / "experiment.toml", problem) from None

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Keep versions, seed, command, start time, and metrics other than a classifier's, as JSON.

        Beside them stands by what the run's tables know each other: a digest of the experiment as the run began.
        """
        run = self.identify()
        if not run:
            text = self.experiment_text() if _is_run(self.path) else ""
            run = blake2b(text.encode(), digest_size=8).hexdigest()
        self._metrics = self._identity = None
        content = encode_json({**environment, "run": run, "format": FORMAT})
        self._manifest.write({"environment.json": content})

    def write_secret(self, secret: bytes) -> None:
        """Keep what the run's noise is made of, where its owner alone can read it."""
        write_whole(self.path / SECRET, secret.hex().encode(), private=True)

    def secret(self) -> bytes:
        """Return what the run's noise is made of; empty where nothing is kept.

        Raises:
            BadInput: the file is damaged, or belongs to somebody else.
        """
        path = self.path / SECRET
        try:
            with naming_damage(path):
                secret = bytes.fromhex(read_file(path, MOST_TEXT).decode("ascii"))
                if len(secret) != 32:
                    raise ValueError(f"it holds {len(secret)} bytes")
                return secret
        except FileNotFoundError:
            return b""

    def forget_secret(self) -> None:
        """Remove it: from now on nobody can make the run's noise again."""
        remove(self.path / SECRET)

    def identify(self) -> str:
        """Return what the run's tables say of which run they are; empty for a run of an earlier version."""
        if self._identity is None:
            environment = self.environment()
            if not environment:  # nothing is written yet
                return ""
            self._identity = str(environment.get("run", ""))
        return self._identity

    def environment(self) -> dict[str, Any]:
        """Versions, seed, command and start time; empty where none was kept."""
        self._manifest.check("environment.json")
        path = self.path / "environment.json"
        if (kept := read_json(path)) is None:
            return {}
        parse_kept(path, kept, ENVIRONMENT)
        return kept

    @property
    def is_checked(self) -> bool:
        """Whether the run keeps digests of its files, by which damage is found; runs of earlier versions do not."""
        return self._manifest.exists()

    def settle(self) -> None:
        """Let the files as they are now be the only valid ones.

        Raises:
            BadInput: one is damaged or missing.
        """
        self._manifest.settle()

    def _must_have_manifest(self) -> bool:
        form = (read_json(self.path / "environment.json") or {}).get("format", 1)
        return isinstance(form, int) and form >= FORMAT

    def write_files(self, files: Mapping[str, bytes]) -> None:
        """Write files of the run by name; in a run that keeps digests, with theirs."""
        if self.is_checked:
            self._manifest.write(files)
        else:
            for name, content in files.items():
                write_whole(self.path / name, content)

    def _read(self, name: str, decode: Callable[[Path], T]) -> T | None:
        """Return what a file of the run holds, checked by its digest; None where there is no file."""
        self._manifest.check(name)
        path = self.path / name
        return decode(path) if path.exists() else None

    @property
    def metrics(self) -> RunMetrics:
        """The run's metrics in order, the first of which decides.

        Raises:
            BadInput: the file that says so is damaged.
        """
        if self._metrics is None:
            environment = self.environment()
            if not environment:  # nothing is written yet
                return CLASSIFICATION
            kept = environment.get("metrics")
            self._metrics = RunMetrics.from_json(kept) if kept else CLASSIFICATION
        return self._metrics

    def schemas(self) -> dict[str, pl.Schema]:
        """Return the columns of the tables that grow by each round."""
        return growing_tables(self.metrics)

    def reported_rounds(self) -> int:
        """Return up to which round the run's status says that all rounds are here."""
        progress = self.progress()
        return 0 if progress is None else progress.round

    def write_table(self, name: str, frame: pl.DataFrame, schema: pl.Schema) -> None:
        """Write a table as a Parquet file of the run."""
        self.write_files({f"{name}.parquet": encode(frame, schema, self.identify())})

    def read_table(self, name: str, schema: pl.Schema) -> pl.DataFrame | None:
        """Return the table in a Parquet file of the run; None where there is none.

        Raises:
            BadInput: the file is damaged.
        """
        return self._read(f"{name}.parquet", lambda path: decode(path, schema, self.identify()))

    def write_federation(self, federation: pl.DataFrame) -> None:
        """Keep who the clients are; columns `FEDERATION`."""
        self.write_table("federation", federation, FEDERATION)

    def federation(self) -> pl.DataFrame | None:
        """One row a client, ascending: name, true group, samples, labels; None where none was kept.

        Raises:
            BadInput: the file is damaged, or has the name that it had in an earlier version.
        """
        former, now = self.path / "people.parquet", self.path / "federation.parquet"
        if former.exists() and not now.exists():
            raise BadInput(f"{former} is called {now.name} now; rename it")
        return self.read_table("federation", FEDERATION)

    def write_newcomers(self, newcomers: pl.DataFrame) -> None:
        """Keep how the clients fare that were held out of training; columns `newcomers_schema`."""
        self.write_table("newcomers", newcomers, newcomers_schema(self.metrics))

    def newcomers(self) -> pl.DataFrame | None:
        """One row a client that was held out of training; None where nobody was, or the run has not ended.

        Raises:
            BadInput: the file is damaged.
        """
        return self.read_table("newcomers", newcomers_schema(self.metrics))

    def write_intervals(self, intervals: pl.DataFrame) -> None:
        """Keep how sure the last scores are; columns `INTERVALS`."""
        self.write_table("intervals", intervals, INTERVALS)

    def intervals(self) -> pl.DataFrame | None:
        """One row a client, ascending; None where the metric needs none, or the run has not ended.

        Raises:
            BadInput: the file is damaged.
        """
        return self.read_table("intervals", INTERVALS)

    def write_warnings(
        self, warnings: Sequence[str], diverged: Sequence[str] = (), diverged_for_all: bool = False
    ) -> None:
        """Keep what did not come about, one sentence each; no file where there is none.

        Args:
            warnings: what the method says.
            diverged: how training has diverged, which commands say once more where they end.
            diverged_for_all: whether it has for every client.
        """
        if warnings or diverged:
            kept = KeptWarnings(
                warnings=[*diverged, *warnings], diverged=len(diverged), diverged_for_all=diverged_for_all
            )
            self.write_files({KEPT_WARNINGS: encode_json(kept.model_dump(exclude_defaults=True))})

    def warnings(self) -> list[str]:
        """What did not come about, how training diverged first; nothing before the run has ended.

        Raises:
            BadInput: the file is damaged.
        """
        return self._read_warnings().warnings

    def divergences(self) -> list[str]:
        """Those of the warnings that say how training has diverged.

        Raises:
            BadInput: the file is damaged.
        """
        kept = self._read_warnings()
        return kept.warnings[: kept.diverged]

    def diverged_for_all(self) -> bool:
        """Whether training has diverged for every client, so that no model of the run is of use.

        Raises:
            BadInput: the file is damaged.
        """
        return self._read_warnings().diverged_for_all

    def _read_warnings(self) -> KeptWarnings:
        return self._read(KEPT_WARNINGS, lambda path: read_kept(path, WARNINGS)) or KeptWarnings()

    def write_round(
        self,
        number: int,
        rounds: pl.DataFrame,
        clients: pl.DataFrame,
        ledger: pl.DataFrame,
        failures: pl.DataFrame,
        log: pl.DataFrame | None = None,
    ) -> None:
        """Keep what one round measured, in memory after `buffer_rounds`.

        The frames have the columns of `ROUNDS` (one row), `CLIENTS`, `LEDGER`, `FAILURES` and `LOG`, in any order;
        None is an empty log.
        """
        log = pl.DataFrame(schema=LOG) if log is None else log
        given = {"log": log, "ledger": ledger, "failures": failures, "clients": clients, "rounds": rounds}
        self._tables.write(number, given)

    def buffer_rounds(self) -> None:
        """Keep the rounds that are written from now on in memory until `flush`; one file each would cost more."""
        self._tables.is_buffered = True

    def flush(self) -> None:
        """Put the rounds that wait in memory on the disk, as one file. To read a table does so, too."""
        self._tables.flush()

    def rounds(self) -> pl.DataFrame:
        """One row a finished round, ascending; columns `ROUNDS`.

        Raises:
            BadInput: a file is damaged or missing; the sentence names it.
        """
        return self._tables.read("rounds")

    def clients(self) -> pl.DataFrame:
        """One row a finished round and client, ascending; columns `CLIENTS`."""
        return self._tables.read("clients").sort("round", "client")

    def ledger(self) -> pl.DataFrame:
        """One row a transfer of the finished rounds, in the order written; columns `LEDGER`."""
        return self._tables.read("ledger")

    def failures(self) -> pl.DataFrame:
        """One row a client that did not answer in a finished round; columns `FAILURES`."""
        return self._tables.read("failures")

    def log(self) -> pl.DataFrame:
        """One row a number that the method logged in a finished round, in the order logged; columns `LOG`."""
        return self._tables.read("log")

    def check_tables(self, least: int = 0) -> None:
        """Check that the tables of all rounds up to `least`, and up to what the status says, are there and sound.

        Raises:
            BadInput: a file is damaged or missing; the sentence names it.
        """
        for table in self.schemas():
            self._tables.read(table, least)

    def forget_after(self, number: int) -> None:
        """Drop what rounds later than `number` and the run's end measured: a resumed run measures them again."""
        self._manifest.remove(("newcomers.parquet", KEPT_WARNINGS, "intervals.parquet"))
        self._tables.forget_after(number)

    def compact(self) -> None:
        """Turn the files of some rounds each into one file a table, ascending by round."""
        self._tables.compact()

    def write_picture(self, picture: Picture) -> None:
        """Keep the last regrouping."""
        self.write_files({PICTURE: picture.encode()})

    def picture(self) -> Picture | None:
        """The last regrouping, or None where the method made none.

        Raises:
            BadInput: the file is damaged.
        """
        return self._read(PICTURE, Picture.decode)

    def write_group_traits(self, traits: GroupTraits) -> None:
        """Keep what tells the groups of the last round apart."""
        self.write_files({GROUP_TRAITS: traits.encode()})

    def group_traits(self) -> GroupTraits | None:
        """What tells the groups apart; None before the last round, or for a run of an earlier version.

        Raises:
            BadInput: the file is damaged.
        """
        return self._read(GROUP_TRAITS, GroupTraits.decode)

    def write_status(self, state: State, round: int, rounds: int, *, lasting: bool = True) -> None:
        """Write how far this process has brought the run: `round` of `rounds` are finished and on the disk.

        A status that is not `lasting` may be lost in a power cut, and an earlier one come back.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        progress = Progress(state, round, rounds, os.getpid(), platform.node(), now)
        write_whole(self.path / "status.json", encode_json(asdict(progress)), lasting=lasting)

    def progress(self) -> Progress | None:
        """Read the status that the run wrote last; None where it has not begun.

        Raises:
            BadInput: the file is damaged.
        """
        path = self.path / "status.json"
        try:
            kept = read_json(path)
        except BadInput:
            if not path.is_file() or path.stat().st_size:
                raise
            kept = None  # the machine stopped before it was on the disk
        if kept is None:
            return None
        return parse_kept(path, kept, _PROGRESS)

    @property
    def status(self) -> State:
        """`running` only while the process that said so lives; a killed run is `interrupted`."""
        progress = self.progress()
        if progress is None or (progress.state == "running" and _is_dead(progress)):
            return "interrupted"
        return progress.state


def list_runs(parent: Path | str) -> list[RunFolder]:
    """The runs in a folder, by name; none where the folder does not exist."""
    parent = Path(parent)
    return [RunFolder(p) for p in sorted(parent.iterdir()) if _is_run(p)] if parent.is_dir() else []


def _several(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _is_run(path: Path) -> bool:
    return (path / "experiment.toml").is_file()


def _is_dead(progress: Progress) -> bool:
    """Whether the process that wrote the status is gone; unknown on another machine, which counts as alive."""
    return progress.host == platform.node() and not is_alive(progress.pid)
