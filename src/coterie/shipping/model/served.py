"""Which trained model a run serves to a client or to a group, taken from its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.clients.data.agree.population import ClientInfo, RemotePopulation
from coterie.clients.data.federation import Federation
from coterie.clients.data.read.datasets import DATASETS
from coterie.clients.data.read.preparation import AS_READ, Preparation
from coterie.clients.rules import Evaluate, Rule
from coterie.clients.rules.evaluated_model import HandOver
from coterie.clients.tasks import CLASSIFICATION
from coterie.errors import BadInput, count_of, shorten, unknown
from coterie.methods.exchange import Exchange
from coterie.methods.method import UNKNOWN, serve
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.given import take_given
from coterie.runs.schema.experiment import Experiment, Prepared, prepare
from coterie.runs.session import Session
from coterie.runs.setup import Backend, agreed_preparation, engine_spec, network_name
from coterie.runtime.remote.message import Message
from coterie.runtime.remote.runtime import NUMBER, RemoteRuntime
from coterie.runtime.runtime import Failure, drive
from coterie.shipping.model.trained import About, Trained, describe_task, rest_of
from coterie.shipping.registration import Registration


def trained_model(
    folder: RunFolder,
    client: str | None = None,
    group: int | None = None,
    network: nn.Module | Callable[..., Any] | None = None,
    allow: Iterable[str] = (),
) -> tuple[Trained, list[str]]:
    """Return the model of a client or of a group after the last round that a checkpoint holds.

    A client's is the one that it was evaluated with: what it is served, over what it keeps, after the choice or the
    adaptation that its evaluation begins with. A group's is what all its members are served.

    Args:
        folder: of a run, finished or interrupted, whose data are there. Of a real federation, groups alone.
        client: its name or, where nobody has that name, its number. Clients who were held out of training come
            last; such a one gets the model that the method gives it on arrival.
        group: its number in the run's tables. With neither, that of the only group.
        network: as for `resume`, where the run's network was given in Python.
        allow: as for `resume`.

    Returns:
        The model, and a sentence on each thing about it that a reader might not expect.

    Raises:
        BadInput: the run cannot be taken up, there is no such client or group, or a group has no model of its own.
    """
    if client is not None and group is not None:
        raise BadInput("a client and a group are asked for at once; name one of them")
    with _restore(folder, network, allow) as run:
        found, notes = run.trained(client, group)
        return found, [*run.notes, *notes]


def client_models(
    folder: RunFolder,
    clients: Sequence[str],
    network: nn.Module | Callable[..., Any] | None = None,
    allow: Iterable[str] = (),
) -> tuple[list[Trained | None], list[str]]:
    """Return the models of several clients, as `trained_model` does for one, and the notes on them.

    A client whom the run does not know gets the model of the run's only group; None where it has several.

    Args:
        folder: of a run that `knows_one_of` them.
        clients: their names.
        network: as for `trained_model`.
        allow: as for `trained_model`.

    Raises:
        BadInput: the run cannot be taken up.
    """
    with _restore(folder, network, allow) as run:
        known = run.session.population.names
        found, notes = {name: run.trained(name) for name in clients if name in known}, [*run.notes]
        strangers = [name for name in clients if name not in found]
        if strangers and (only := run.only_group()) is not None:
            found |= dict.fromkeys(strangers, only)
            unknown_to_it = count_of(len(strangers), "client")
            notes.append(
                f"{unknown_to_it} not known to the run ({shorten(strangers)}): the model of its only group predicts"
            )
        for _, more in found.values():
            notes += [note for note in more if note not in notes]
        return [found[name][0] if name in found else None for name in clients], notes


def knows_one_of(run: RunFolder, clients: Sequence[str]) -> bool:
    """Return whether a run that keeps its clients' models trained one of these clients."""
    federation = run.federation() if clients and (run.path / "checkpoints").is_dir() else None
    return federation is not None and not set(clients).isdisjoint(federation["name"].to_list())


@contextmanager
def _restore(
    folder: RunFolder, network: nn.Module | Callable[..., Any] | None, allow: Iterable[str]
) -> Iterator[_RestoredRun]:
    """Restore a run from its last checkpoint, for as long as its models are taken from it."""
    experiment, moved = adapt_to_this_machine(Experiment.from_toml(folder.experiment_text() + "\n", allow))
    take_given(folder, experiment.network.name, network)
    prepared, own = prepare(experiment), experiment.data.is_remote
    with closing(Session(prepared, _restore_clients(folder, prepared) if own else None)) as session:
        notes = [*moved, *([] if own else session.find_differences(folder.environment()))]
        notes += session.restore(folder)
        if not session.done:
            raise BadInput(f"run {folder.name} has no checkpoint yet, so nothing is trained; go on with it first")
        yield _RestoredRun(session, prepared, folder.name, notes)


def adapt_to_this_machine(experiment: Experiment) -> tuple[Experiment, list[str]]:
    """Return the experiment as one process of this machine can go on with it, and what that may change."""
    changes: dict[str, Any] = {
        "run.workers": 1,
        "run.runtime": "local",
        "run.ray_address": None,
        "run.client_timeout": None,
    }
    notes = []
    if experiment.run.engine == "gpu" and not torch.cuda.is_available():
        changes["run.engine"] = "auto"
        notes.append(
            "the run used a GPU, which this machine lacks: a model that adapts first may differ in its last digits"
        )
    return experiment.updated(changes), notes


class _NoClients(RemoteRuntime):
    """A runtime that reaches no client."""

    def post(self, messages: Mapping[int, Message]) -> Mapping[int, Message | Failure]:
        return {client: Failure("is not reached from here") for client in messages}


def _restore_clients(folder: RunFolder, prepared: Prepared) -> Backend:
    """Return the clients of a real federation as its run folder knows them, with a runtime that reaches none."""
    federation, data = folder.federation(), prepared.experiment.data
    if federation is None or data.features is None or data.classes is None:
        raise BadInput(f"run {folder.name} does not say who its clients are; it holds no federation.parquet")
    features = tuple(data.features)
    task = prepared.task or CLASSIFICATION
    classes, outputs = task.count(data.class_count)
    rows = federation.select("name", "train", "validation", "test").iter_rows()
    clients = tuple(ClientInfo(name, (t, v, e), features, classes, "", outputs) for name, t, v, e in rows)
    known = agreed_preparation(data, Registration.read(folder.path).agreement)
    population = RemotePopulation(data.name, clients, task=task, preparation=known)
    engine = engine_spec(prepared, population).build()
    return Backend(population, np.empty(0, np.int64), _NoClients(engine, population.bounds))


def _preparation(session: Session, client: str | None) -> Preparation | None:
    """Return how samples for the model are made; None for a named dataset as it is, or where nobody knows."""
    population = session.population
    if isinstance(population, RemotePopulation):
        return None if population.preparation == AS_READ else population.preparation
    assert isinstance(population, Federation)
    found = population.preparation_of(None if client is None else _find_client(client, population.names))
    return None if session.experiment.data.name in DATASETS and found == AS_READ else found


def _class_names(session: Session) -> tuple[str, ...] | None:
    """Return the names of the classes or outputs, where they have any."""
    data = session.experiment.data
    if data.is_remote:
        return None if data.classes is None or isinstance(data.classes, int) else tuple(data.classes)
    assert isinstance(session.population, Federation)
    return session.population.target_names


class _ServedModel(NamedTuple):
    """The model `[P]` of a client, the group it chose, if any, and over how many draws its score is a mean."""

    model: Tensor
    choice: int | None
    draws: int


@dataclass(frozen=True)
class _RestoredRun:
    """A run restored from its last checkpoint, and the models in it."""

    session: Session
    prepared: Prepared
    run: str
    notes: list[str]
    """What a reader might not expect of any of its models."""

    def trained(self, client: str | None = None, group: int | None = None) -> tuple[Trained, list[str]]:
        """Return the model of a client or of a group, and notes on it; with neither, that of the only group."""
        session = self.session
        population, experiment = session.population, session.experiment
        session.runtime.begin_round(session.done)
        model, whose, notes = self._group(group) if client is None else self._client(client)
        about = About(
            network_name(self.prepared, population.features),
            experiment.network.settings,
            population.features,
            population.outputs,
            _class_names(session),
            experiment.data.name if experiment.data.name in DATASETS else "",
            f"{whose} of run {self.run} after round {session.done}",
            preparation=_preparation(session, client),
            output=experiment.network.output,
            head=session.layout.head,
            task=describe_task(experiment.task, population.task),
        )
        rest = rest_of(about.network, session.runtime.engine.network, session.layout)
        return Trained(model.clone(), session.layout, about, rest), notes

    def only_group(self) -> tuple[Trained, list[str]] | None:
        """Return the model of the only group, and notes on it; None where there are several, or it has none."""
        try:
            return self.trained()
        except BadInput:
            return None

    def _client(self, text: str) -> tuple[Tensor, str, list[str]]:
        """Return the model of a client, whose it is, and notes on it."""
        if isinstance(self.session.population, RemotePopulation):
            raise _keeps_its_model(text, self.run)
        client = _find_client(text, self.session.population.names)
        whose = f"client {self.session.population.names[client]!r}"
        if client in self.session.newcomers:
            return self._newcomer_model(client), whose, [f"{whose} never trained; this is its model on arrival"]
        if NUMBER in self.session.runtime.states.to_checkpoint()["kept"]:  # a rehearsal: states are elsewhere
            raise _keeps_its_model(text, self.run)
        evaluation = self._evaluation(client)
        served = self._hand_over(evaluation, client)
        averaged = (
            f"in the run, {whose} is scored by the mean over {served.draws} draws of its features; these "
            "predictions use the means of the features"
        )
        return served.model, whose, [averaged] * (served.draws > 0) or _note_neighbours(evaluation.rule, whose)

    def _group(self, group: int | None) -> tuple[Tensor, str, list[str]]:
        """Return the model of a group by its number in the tables, whose it is, and notes on it."""
        groups = self.session.groups
        assert groups is not None  # there is a checkpoint
        numbers = np.unique(groups[groups != UNKNOWN]).tolist()
        if group is None and len(numbers) != 1:
            sizes = [f"{number}{self._tell(f' ({np.count_nonzero(groups == number)})')}" for number in numbers]
            raise BadInput(
                f"run {self.run} has "
                f"{count_of(len(numbers), 'group')}{self._tell(', each with its number of clients')}: "
                f"{shorten(sizes)}; choose one with --group, or a client"
                f"{self._tell(f' ({shorten(self.session.population.names)})')} with --client; a column client "
                "names one for each sample"
            )
        number = numbers[0] if group is None else group
        if number not in numbers:
            raise BadInput(
                f"group {number} is unknown in run {self.run}; its groups are {shorten([str(n) for n in numbers])}"
            )
        members = np.flatnonzero(groups == number)
        model, notes = self._shared_model(number, members)
        size = f" ({len(members)} client{'s' * (len(members) > 1)})"
        return model, f"group {number}{self._tell(size)}", notes

    def _tell(self, crowd: str) -> str:
        """Return what is said of how many clients are in groups, or who; nothing where privacy was promised."""
        return crowd if self.session.promise is None else ""

    def _evaluation(self, client: int) -> Exchange:
        """Return the exchange by which the client was evaluated after the last round of the checkpoint."""
        session = self.session
        last = session.done == session.planned
        split = session.experiment.evaluation.on
        return session.method.evaluation(session.state, session.server, np.array([client]), split, last)

    def _hand_over(self, evaluation: Exchange, client: int) -> _ServedModel:
        """Return what the client would be evaluated with."""
        self._refuse_mixture(evaluation)
        engine = self.session.runtime.engine
        noise, engine.upload_noise = engine.upload_noise, None  # what a client hands to itself needs none
        replies = self.session.runtime.measure(replace(evaluation, rule=HandOver(evaluation.rule)))
        engine.upload_noise = noise
        if client in replies.missing:
            name = self.session.population.names[client]
            raise BadInput(f"client {name!r} has no model that could be used: it {replies.missing[client]}")
        at = int(np.searchsorted(replies.clients, client))
        choices = replies.report.get("choice")
        return _ServedModel(
            replies.models[at], None if choices is None else choices[at], replies.report["draws"][at]
        )

    def _refuse_mixture(self, evaluation: Exchange) -> None:
        """Refuse what mixes the predictions of several models.

        Raises:
            BadInput: it does.
        """
        if "shares" in evaluation.send:
            count = len(evaluation.send["models"].matrix)
            raise BadInput(
                f"run {self.run} serves each client a mixture of what {count} models predict, which is no model "
                "that could be used by itself"
            )

    def _newcomer_model(self, client: int) -> Tensor:
        """Return the model that the method gives to a client that was held out of training."""
        session = self.session
        session.runtime.begin_round(session.done + 1)
        session.runtime.client_dropout = 0.0  # nobody vanishes before having joined
        # All of them arrive together: a method may look at each beside the others.
        arrival = session.method.newcomer(session.state, session.newcomers, session.server_with_newcomers)
        joined = drive(arrival, session.runtime.answer)
        sends = serve(joined, joined.served, joined.shares)
        return self._hand_over(Exchange(session.newcomers, Evaluate(own=joined.own), sends), client).model

    def _shared_model(self, group: int, members: NDArray[np.int64]) -> tuple[Tensor, list[str]]:
        """Return the one model that all members `[m]` of a group are served, and notes on it."""
        session = self.session
        assignment = session.method.assignment(session.state, session.server)
        evaluation = self._evaluation(int(members[0]))
        self._refuse_mixture(evaluation)
        rows = np.unique(assignment.served[members[assignment.groups[members] != UNKNOWN]])
        if not len(rows) and (choice := self._hand_over(evaluation, int(members[0])).choice) is not None:
            rows = np.array([choice])  # all of them choose anew in each evaluation
        part, wrong = assignment.part, ""
        if assignment.own and part is None and assignment.rows is not None:
            wrong = f"group {group} shares no model; each of its clients has its own"
        elif len(rows) != 1:
            wrong = f"the clients of group {group} are served {len(rows)} different models"
        elif part is not None and part.size < session.layout.size:
            of = f"{part.size:,} of {session.layout.size:,} parameters"
            wrong = f"group {group} shares {of}; its clients keep the rest"
        if wrong:
            names = shorten([repr(session.population.names[member]) for member in members])
            raise BadInput(f"{wrong}; choose a client with --client{self._tell(f': {names}')}")
        notes = _note_neighbours(evaluation.rule, f"a client of group {group}")
        if not notes and evaluation.rule != Evaluate(session.experiment.evaluation.on):
            notes = [f"a client of group {group} is served a model of its own; --client gives that"]
        return assignment.models[int(rows[0])], notes


def _note_neighbours(rule: Rule, whose: str) -> list[str]:
    """Say that a client is scored by more than the model that it is served, where it is."""
    if not isinstance(rule, Evaluate) or not rule.neighbours:
        return []
    count = rule.neighbours
    return [
        f"in the run, {whose} predicts by the model and its {count} nearest samples; these predictions are by the "
        "model alone"
    ]


def _keeps_its_model(client: str, run: str) -> BadInput:
    return BadInput(f"client {client!r} of run {run} keeps its model to itself; give its state folder, or a group")


def _find_client(text: str, names: Sequence[str]) -> int:
    """Return the client of that name or, where nobody has it, of that number."""
    if text in names:
        return names.index(text)
    if text.isascii() and text.isdigit() and int(text) < len(names):
        return int(text)
    raise BadInput(
        unknown("client", text, names, instead=f"a number from 0 to {len(names) - 1}, or a group by --group")
    )
