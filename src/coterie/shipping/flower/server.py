"""The server of a federation: waits for the clients, runs an experiment with them, and writes the run's folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.serverapp import Grid
from torch import Tensor

from coterie.advice.diagnose.diagnose import check_diagnosis, diagnose
from coterie.advice.diagnose.diagnosis import Diagnosis
from coterie.clients.data.agree.agreement import Agreement, check_width, propose_columns
from coterie.clients.data.agree.own import Holding, public_inputs
from coterie.clients.data.agree.population import ClientInfo, Population, RemotePopulation
from coterie.clients.tasks import CLASSIFICATION
from coterie.errors import BadInput, print_escaped
from coterie.runs import loop
from coterie.runs.events import Observer, Result
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.held_out_clients import hold_out_clients
from coterie.runs.schema.experiment import Experiment, Prepared, prepare
from coterie.runs.schema.names import named_columns
from coterie.runs.setup import Backend, agreed_preparation, engine_spec, load_federation
from coterie.runtime.flower.roster import Roster
from coterie.runtime.flower.runtime import FlowerRuntime
from coterie.runtime.remote.codec import VERSION
from coterie.runtime.remote.message import Message, Value
from coterie.shipping.flower.client import HELLO, ORDER
from coterie.shipping.flower.status import StatusWriter
from coterie.shipping.registration import Registration

DEFAULT_WAIT = 300.0
"""Seconds to wait for the clients where a run's configuration says nothing."""

NAMES_UNBOUND = (
    "no client's name is bound to its key, so any node can claim any name; bind a name to a key with: flwr "
    "supernode register KEY.pub local --name NAME"
)


def serve(grid: Grid, settings: Mapping[str, Any], app: Path, observers: Sequence[Observer] = ()) -> Result:
    """Run an experiment, or go on with a run, with the clients that are connected.

    Args:
        grid: reaches them.
        settings: of the run: `experiment`, the path of its file, absolute or in `app`; `runs`, where run folders
            are; `name`, of the run; `resume`, the name of a run to go on with; `wait`, seconds to wait for the
            clients; `round-seconds`, seconds that a client has for an answer.
        app: the app's folder.
        observers: are told how the run gets on.

    Raises:
        BadInput: the experiment cannot run, or the clients did not come as it says.
    """
    config = _Config.read(settings)
    folder = RunFolder.find(config.resume, config.runs) if config.resume else None
    if folder is None:
        experiment = _read_experiment(config, app)
    else:
        experiment = Experiment.from_toml(folder.experiment_text() + "\n")
    prepared = prepare(experiment)
    former = None if folder is None else Registration.read(folder.path)
    backend, registration = _gather(grid, prepared, config, former)
    assert isinstance(backend.runtime, FlowerRuntime)
    watching = [*observers, StatusWriter(backend.runtime, registration)]
    if folder is None:
        return loop.run(prepared, observers=watching, backend=backend)
    return loop.resume(folder, observers=watching, backend=backend)


def diagnose_clients(
    grid: Grid, settings: Mapping[str, Any], app: Path, progress: Callable[[str], None]
) -> tuple[Experiment, Diagnosis]:
    """Say whether the clients that are connected should be grouped; return the experiment with what was found.

    Args:
        grid: reaches them.
        settings: as for `serve`, without `name` and `resume`; with `profiles`, clients are also asked how often
            each class is and what their inputs sum to, which they tell where their own configuration says so.
        app: the app's folder.
        progress: is told what has been done, a sentence at a time.

    Raises:
        BadInput: the experiment cannot run or be diagnosed, or the clients did not come as it says.
    """
    config, profiles = _Config.read(settings), settings.get("profiles", False)
    if not isinstance(profiles, bool):
        raise BadInput(f"profiles = {profiles!r} is not possible; it must be true or false")
    experiment = _read_experiment(config, app)
    prepared = prepare(experiment)
    check_diagnosis(experiment)
    backend, _ = _gather(grid, prepared, config, None)
    return experiment, diagnose(experiment, backend=backend, profiles=profiles, progress=progress)


@dataclass(frozen=True)
class _Config:
    """A run's configuration."""

    experiment: str
    runs: str
    name: str
    resume: str
    wait: float
    seconds: float | None

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> _Config:
        """Check and read the settings of a run.

        Raises:
            BadInput: one sentence for each value that is not possible.
        """
        numbers, problems = {}, []
        for key, usual in (("wait", DEFAULT_WAIT), ("round-seconds", 0.0)):
            value = settings.get(key, usual)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                problems.append(f"{key} = {value!r} is not possible; it must be a number of seconds, 0 or more")
            else:
                numbers[key] = float(value)
        if problems:
            raise BadInput(problems)
        experiment, runs = str(settings.get("experiment") or "experiment.toml"), str(settings.get("runs") or "runs")
        name, resume = str(settings.get("name") or ""), str(settings.get("resume") or "")
        return cls(experiment, runs, name, resume, numbers["wait"], numbers["round-seconds"] or None)


def _read_experiment(config: _Config, app: Path) -> Experiment:
    """Read the experiment that a run's configuration names; its paths become absolute, for a run may be resumed."""
    experiment = Experiment.from_toml(app / config.experiment)
    changes: dict[str, Any] = {"run.folder": config.runs}
    if config.name:
        changes["run.name"] = config.name
    if experiment.data.public_file is not None:
        changes["data.public_file"] = str((app / experiment.data.public_file).resolve())
    return experiment.updated(changes).resolved()


def _gather(
    grid: Grid, prepared: Prepared, config: _Config, former: Registration | None
) -> tuple[Backend, Registration]:
    """Wait for the clients; return them with the runtime that reaches them, and their registration."""
    experiment, run = prepared.experiment, prepared.experiment.run
    key = uuid4().hex if former is None else former.key
    context = {"version": VERSION, "experiment": experiment.to_toml(), "run": key}
    gathering = _Gathering(grid, prepared, config, context)
    whole: Population
    if experiment.data.is_remote:
        present, agreement = gathering.gather_own(former)
        registration = former or Registration(key, present, agreement)
        public = _load_public(experiment, prepared.method.needs.public, agreement)
        known = agreed_preparation(experiment.data, agreement)
        whole = RemotePopulation("own data", registration.clients, public, prepared.task or CLASSIFICATION, known)
    else:  # a rehearsal: whoever knows the experiment knows what each client holds
        whole = load_federation(prepared)
        digests = {name: Holding.of(whole, i).digest for i, name in enumerate(whole.names)}
        present, agreement = gathering.wait(None, digests, enough=len(digests) if former is None else 1), None
        registration = former or Registration(key, present)
    roster = gathering.roster
    population, newcomers = hold_out_clients(whole, run.holdout_clients, run.seed)
    roster.names = population.names
    engine = engine_spec(prepared, population).build()
    order = {**context, **_tell(agreement), "asks": ORDER}
    seconds = run.client_timeout or config.seconds
    runtime = FlowerRuntime(engine, population.bounds, roster, order, seconds, config.wait, run.client_dropout)
    runtime.channels = 0 if agreement is None else len(agreement.mean)
    return Backend(population, newcomers, runtime), registration


class _Gathering:
    """Waits for the clients of a run, and has them agree on their columns.

    Args:
        grid: reaches them.
        prepared: says what they must hold.
        config: says how long to wait for them.
        context: the values of every message.
    """

    def __init__(self, grid: Grid, prepared: Prepared, config: _Config, context: Mapping[str, Value]) -> None:
        self._grid, self._prepared, self._config, self._context = grid, prepared, config, context
        self._experiment = prepared.experiment
        self._said: set[str] = set()
        self.roster: Roster
        """Of those who were waited for last."""

    def gather_own(self, former: Registration | None) -> tuple[tuple[ClientInfo, ...], Agreement | None]:
        """Wait for clients who hold their own data; return those who take part, and what they agreed on.

        Raises:
            BadInput: too few came, or they cannot agree.
        """
        data = self._experiment.data
        if former is not None:
            digests = {client.name: client.digest for client in former.clients}
            return self.wait(former.agreement, digests, enough=1), former.agreement
        wanted = int(data.clients or 1)
        present = self.wait(None, enough=wanted)
        agreement = Agreement(propose_columns(present, data.columns, data.levels))
        check_width(agreement.columns, data.features or ())
        alike = data.standardise == "global"
        if not agreement.columns and not alike:
            return present, None
        present = self.wait(agreement, enough=wanted)
        if alike:
            agreement = agreement.scaled(present)
            present = self.wait(agreement, {client.name: "" for client in present}, enough=wanted)
        return present, agreement

    def wait(
        self, agreement: Agreement | None, digests: Mapping[str, str] | None = None, *, enough: int
    ) -> tuple[ClientInfo, ...]:
        """Wait for clients and ask each who it is; return them in the order of their names.

        Args:
            agreement: what they do alike, as far as it is known.
            digests: who may take part, and what the data of each must be; "" where nobody knows yet.
            enough: so many must come.

        Raises:
            BadInput: fewer came in time.
        """
        digests, own = digests or {}, self._experiment.data.is_remote

        def check(client: ClientInfo) -> str | None:
            problem = _mismatch(self._prepared, agreement, client) if own else None
            return problem or _changed(digests, client)

        hello = Message({**self._context, **_tell(agreement), "asks": HELLO})
        self.roster = Roster(self._grid, hello, check, bind_names=own)
        self.roster.names = tuple(digests)
        wanted = len(digests) or int(self._experiment.data.clients or 1)
        present = self.roster.wait_for_clients(wanted, enough, self._config.wait, self._say)
        if own:
            self._say("each client is known by its key" if self.roster.names_are_bound else NAMES_UNBOUND)
        return tuple(present.values())[:wanted]

    def _say(self, text: str) -> None:
        """Print what was not said before: clients are asked up to three times."""
        if text not in self._said:
            self._said.add(text)
            print_escaped(text, flush=True)


def _tell(agreement: Agreement | None) -> dict[str, Value]:
    return {} if agreement is None else {"agreed": agreement.to_json()}


def _mismatch(prepared: Prepared, agreement: Agreement | None, client: ClientInfo) -> str | None:
    """Return why a client's data do not fit the experiment; None where they do. The client checks this too."""
    experiment, data = prepared.experiment, prepared.experiment.data
    if agreement is not None and not agreement.mean and data.standardise == "global" and not client.sums:
        return "it sends no sums of its samples, which data.standardise = 'global' needs"
    open_columns = agreement is None and client.columns
    if client.features != tuple(data.features or ()) and not open_columns:
        right = list(data.features or ())
        return f"its samples have the shape {list(client.features)}; it must be {right}, as data.features says"
    if (client.classes, client.outputs) != (prepared.task or CLASSIFICATION).count(data.class_count):
        held = f"{client.classes} classes" if client.classes else f"{client.outputs} outputs"
        return f"it has {held}; it must have {data.class_count}, as data.classes says"
    if experiment.evaluation.on == "validation" and not client.sizes[1]:
        return "it has no validation samples, and evaluation.on = 'validation'"
    return None


def _changed(digests: Mapping[str, str], client: ClientInfo) -> str | None:
    """Return why a client's data are not those that it must have; None where they are, or nobody knows."""
    if digests and client.name not in digests:
        return f"the experiment has no client of that name; known: {', '.join(list(digests)[:10])}"
    if digests.get(client.name) and digests[client.name] != client.digest:
        return "its data have changed since the run began"
    return None


def _load_public(experiment: Experiment, usual: int, agreement: Agreement | None) -> Tensor | None:
    """Load the unlabelled samples that the server holds, for a method that needs them."""
    data = experiment.data
    count = usual if data.public is None else data.public
    if data.public_file is None or not count:
        return None
    assert data.features is not None
    return public_inputs(
        Path(data.public_file),
        data.features,
        count,
        experiment.run.seed,
        agreement,
        missing=data.missing or "refuse",
        named=named_columns(data),
        declared=data.levels or (),
    )
