"""How the real clients of a run stand: `federation.json` in its folder, written anew after every exchange.

`coterie flower status` reads it, so nothing that needs torch or Flower is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import BadInput
from coterie.runs.folder.files import damaged_file, encode_json, write_whole
from coterie.runs.folder.run_folder import RunFolder, list_runs

if TYPE_CHECKING:
    from coterie.runs.events import Result, Round
    from coterie.runs.schema.experiment import Experiment
    from coterie.runtime.flower.runtime import FlowerRuntime
    from coterie.shipping.registration import Registration

FEDERATION = "federation.json"


@dataclass(frozen=True)
class ClientStatus:
    """One client. What is not known (yet) is None."""

    client: int
    """Its number in the run."""
    name: str
    node: str | None
    """Flower's number of its node."""
    samples: int | None
    """For training."""
    group: int | None
    online: bool
    last_round: int | None
    """The last round in which it answered."""
    last_seen: datetime | None
    """When that was."""
    problem: str | None
    """Why it gave no answer when it was last asked."""


@dataclass(frozen=True)
class FederationStatus:
    """All clients after `round` of `of` rounds, as of `written`."""

    round: int
    of: int
    written: datetime
    clients: list[ClientStatus]

    @classmethod
    def read(cls, run: RunFolder) -> FederationStatus:
        """Read `federation.json` of a run.

        Raises:
            BadInput: the run is a simulation, or the file is damaged.
        """
        from pydantic import TypeAdapter, ValidationError

        path = run.path / FEDERATION
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except FileNotFoundError:
            raise BadInput(
                f"{str(run.path)!r} has no {FEDERATION}: it is a simulation, or its first round has not ended; see "
                f"its rounds with: coterie show {run.path}"
            ) from None
        except ValidationError as error:
            wrong = error.errors()[0]
            place = ".".join(map(str, wrong["loc"])) or "its text"
            raise damaged_file(path, ValueError(f"{place}: {wrong['msg'][:1].lower()}{wrong['msg'][1:]}")) from None

    def write(self, folder: Path) -> None:
        """Write `federation.json`."""
        clients = [{**asdict(c), "last_seen": c.last_seen and _to_json(c.last_seen)} for c in self.clients]
        content = {**asdict(self), "written": _to_json(self.written), "clients": clients}
        write_whole(folder / FEDERATION, encode_json(content), lasting=False)


def _to_json(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def latest_run(folder: Path | str) -> RunFolder:
    """Return the run of real clients in `folder` whose status was written last.

    Raises:
        BadInput: there is none.
    """
    runs = [(path.stat().st_mtime, run) for run in list_runs(folder) if (path := run.path / FEDERATION).exists()]
    if not runs:
        raise BadInput(
            f"no run in {str(folder)!r} is one of real clients; name a run or its folder, or the folder of runs "
            "with --folder"
        )
    return max(runs, key=lambda found: found[0])[1]


class StatusWriter:
    """Observes a run of real clients and writes down who takes part and how each client stands.

    Args:
        runtime: its roster knows which clients are connected.
        registration: of the run.
    """

    def __init__(self, runtime: FlowerRuntime, registration: Registration) -> None:
        self._runtime = runtime
        self._registration = registration
        self._samples = {client.name: client.sizes[0] for client in registration.clients}
        self._rounds = 0
        self._round = 0
        self._groups: list[int] | None = None

    def started(self, experiment: Experiment, description_lines: Sequence[str]) -> None:
        folder = self._runtime.states.folder
        self._rounds = experiment.expected_rounds
        if folder is not None:
            self._registration.write(folder)
            progress = RunFolder(folder).progress()
            self._round = 0 if progress is None else progress.round
            self._runtime.on_roster_change = self._write
            self._write()

    def round(self, round: Round) -> None:
        self._rounds = round.planned
        self._round, self._groups = round.number, None if round.groups is None else round.groups.tolist()
        self._write()

    def note(self, text: str) -> None:
        pass

    def finished(self, result: Result) -> None:
        pass

    def _write(self) -> None:
        folder, roster = self._runtime.states.folder, self._runtime.roster
        if folder is not None:
            clients = [self._status(client) for client in range(len(roster.names))]
            FederationStatus(self._round, self._rounds, datetime.now(UTC), clients).write(folder)

    def _status(self, client: int) -> ClientStatus:
        from coterie.methods.method import UNKNOWN

        roster, groups = self._runtime.roster, self._groups
        name, node, last = roster.names[client], roster.node(client), roster.last_answer(client)
        group = UNKNOWN if groups is None or client >= len(groups) else groups[client]
        return ClientStatus(
            client,
            name,
            None if node is None else str(node),
            self._samples[name],
            None if group == UNKNOWN else group,
            node is not None,
            last.round,
            last.at,
            self._runtime.quarantine.reason(client) or last.problem,
        )
