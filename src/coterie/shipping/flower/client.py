"""The client of a federation: answers the server's messages with its own data."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from torch import Tensor

from coterie.clients.data.agree.agreement import Agreement
from coterie.clients.data.agree.own import Holding, load_own, path_withheld
from coterie.clients.data.read.datasets import DATASETS
from coterie.clients.data.read.preparation import Column
from coterie.clients.engine.engine import Engine
from coterie.clients.rules.profile import HalfProfiles, InputMoments
from coterie.clients.rules.rule import Order
from coterie.clients.tasks import CLASSIFICATION
from coterie.errors import BadInput, print_escaped
from coterie.models.layout import Layout
from coterie.plugins import allowed_by_environment, give, is_path
from coterie.runs.schema import toml
from coterie.runs.schema.experiment import Experiment, Prepared
from coterie.runs.schema.names import build_method, build_task, catalog, find_names, named_columns
from coterie.runs.setup import engine_spec, load_federation, make_augmentation, network_name
from coterie.runtime.leftovers import remove_half_written
from coterie.runtime.remote.client_runner import ClientRunner, StateStore
from coterie.runtime.remote.handshake import REGISTERED, pack_hello
from coterie.runtime.remote.message import Message
from coterie.shipping.model.trained import MODEL, About, describe_task, rest_of, write_model

Settings = Mapping[str, Any]
HELLO, ORDER = "hello", "order"
"""What a message asks for."""

OWNER_FILE = "client.txt"
"""In a client's folder: the name of the client it belongs to."""

RUN_KEY = re.compile("[0-9a-f]{32}")
"""The key of a run. It becomes the name of a folder, so nothing else may be in it."""

REMEDY = (
    "whoever runs this client must have it installed and start the node with --node-config \"allow='{module}'\""
)
"""How a message's name can be allowed."""

CACHED_CLIENTS = 64
"""Clients whose data and engines a process keeps in memory; where each has a machine of its own there is one."""


@dataclass(frozen=True)
class Node:
    """What the operator of a node says of it.

    Attributes:
        client: the client's name or, in a rehearsal, its number.
        data: path of its data; empty in a rehearsal.
        folder: path of a folder for what it keeps.
        tell_levels: whether the server may be told which values the client's columns of text have.
        tell_profiles: whether it may be told how often each class is and what inputs sum to.
        allowed: the modules and `package.module:object` that an experiment may name.
    """

    client: str
    data: str
    folder: str
    tell_levels: bool
    tell_profiles: bool
    allowed: tuple[str, ...]

    @classmethod
    def read(cls, node: Settings, run: Settings) -> Node:
        """Read the configuration of a node, as `answer_message` takes it; the environment allows names, too.

        Raises:
            BadInput: the client has no name, or what must be true or false is something else.
        """
        name = str(node.get("client", node.get("partition-id", "")))
        if not name.strip():
            raise BadInput(
                "client is missing in the node's configuration; start the node with --node-config 'client=…'"
            )
        for key in ("tell-levels", "tell-profiles"):
            if not isinstance(node.get(key, False), bool):
                raise BadInput(f"{key} = {node[key]!r} is not possible; it must be true or false")
        given = {**run, **node} if "partition-id" in node else node
        data, folder = (str(given.get(key) or "").replace("{client}", name) for key in ("data", "state-dir"))
        tells = bool(node.get("tell-levels")), bool(node.get("tell-profiles"))
        allowed = {*str(node.get("allow") or "").split(), *allowed_by_environment()}
        return cls(name, data, folder, *tells, tuple(sorted(allowed)))


def answer_message(message: Message, node: Settings, run: Settings) -> Message:
    """Answer a message of the server. Any error becomes a refusal of one sentence, which is logged too.

    Args:
        message: asks who the client is, or holds an order.
        node: the configuration of this node: `client`, its name, or in a rehearsal its number; `data`, the path of
            its data; `state-dir`, a folder for what it keeps; `tell-levels` and `tell-profiles`, true or false;
            `allow`, the modules and `package.module:object` that an experiment may name, apart by spaces, without
            which it can name what Coterie has alone.
        run: the configuration of the run. To the nodes of Flower's simulation, which have a `partition-id`, it may
            say `data` and `state-dir`, with `{client}` for the number; no other node is told by the server what to
            read or where to write. No node at all is told what to import.
    """
    try:
        message.check_version()
        agreed = message.text("agreed") if "agreed" in message.values else None
        client = find_client(message.text("experiment"), agreed, Node.read(node, run))
        if message.text("asks") == HELLO:
            name = str(node.get("client", ""))
            if REGISTERED in message.values and message.text(REGISTERED) != name:
                raise BadInput(
                    f"client = {name!r} is not this node's name; start it with the name that its key was "
                    "registered with"
                )
            return client.hello()
        run_key = message.text("run")
        if not RUN_KEY.fullmatch(run_key):
            raise BadInput(f"a message says run = {run_key!r}; it must be 32 digits from 0 to f")
        return client.runner(run_key, message.text("digest")).answer(message)
    except BadInput as error:
        problem, refusal = "; ".join(error.problems), Message.refuse("; ".join(error.told))
    except Exception as error:  # noqa: BLE001  # it is shown to the server and in this node's log
        problem = f"{type(error).__name__}: {error}"
        refusal = Message.refuse(problem)
    name = str(node.get("client", node.get("partition-id", "")))
    problem = " ".join(problem.split())
    print_escaped(
        f"coterie: {name or 'this node'} cannot do what it is asked: {problem}", file=sys.stderr, flush=True
    )
    return Message({**refusal.values, "name": name})


def _check_telling(order: Order) -> None:
    """Check that an order does not ask what a client tells of its data only where its operator lets it.

    Raises:
        BadInput: it does.
    """
    if isinstance(order.rule, HalfProfiles | InputMoments):
        raise BadInput(
            "the server asks for class frequencies and sums of inputs, which this client does not send; its "
            "operator may allow it with --node-config 'tell-profiles=true'"
        )


def _take_names(experiment: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    """Let this process import what the tables of an experiment name, if this node's operator allows all of it.

    A package or module that is allowed allows `run.imports` of it and of what is below it, and its entry points; a
    module also its objects by their paths. Coterie's own names need nobody's consent.

    Raises:
        BadInput: one sentence for each name that is not allowed.
    """
    names, problems = [], []
    for _, kind, name in find_names(experiment):
        what, module, accepted = f"{kind} {name!r}", name.partition(":")[0], {name}
        if kind == "module" or is_path(name):
            accepted |= _packages(module) if kind == "module" else {module}
            names.append(name)
        elif (offer := catalog(kind).find_offer(name)) is not None:
            what, module = f"{what} of the package {offer.package}", offer.module
            accepted = {offer.path} | _packages(module)
        else:
            continue
        if accepted.isdisjoint(allowed):
            problems.append(f"{what} is not allowed here; {REMEDY.format(module=module)}")
    if problems:
        raise BadInput(problems)
    give(names)


def _packages(module: str) -> set[str]:
    """Return a module and all packages that it is in."""
    parts = module.split(".")
    return {".".join(parts[: i + 1]) for i in range(len(parts))}


def _refuse_files(experiment: Experiment) -> None:
    """Refuse an experiment of a message by which this node would read a file that the server names.

    Raises:
        BadInput: there is such a file.
    """
    named = {"network.start": experiment.network.start, "data.test_path": experiment.data.test_path}
    problems = [
        f"{key} = {path!r} is not possible here, because a client reads no file that a server names; leave it out"
        for key, path in named.items()
        if path is not None
    ]
    if problems:
        raise BadInput(problems)


class FlowerClient:
    """One client, as a message and its node's configuration describe it.

    Args:
        experiment: the text of its experiment.
        agreed: what all clients do alike, as text; None as long as they have not agreed on it, or need not.
        node: the configuration.

    Raises:
        BadInput: the experiment is not possible here.
    """

    def __init__(self, experiment: str, agreed: str | None, node: Node) -> None:
        _take_names(toml.load(experiment + "\n"), node.allowed)
        self._experiment = Experiment.from_toml(experiment + "\n")
        _refuse_files(self._experiment)
        self._agreed = None if agreed is None else Agreement.from_json(agreed)
        self._node = node

    def hello(self) -> Message:
        """Say who this is and how much it holds; and what the clients agree on next, which is columns or sums."""
        holding, info = self._holding, self._holding.info
        self._make_folder()  # what is wrong with it is said now and not in the first round
        if self._agreed is None and self._experiment.data.is_remote:
            info = replace(info, columns=tuple(map(self._censor, holding.preparation.columns)))
        elif self._agreed is not None and not self._agreed.mean:
            info = replace(info, sums=holding.sums)
        return pack_hello(info)

    def _censor(self, column: Column) -> Column:
        """Return a column without the values of its text, unless these may be told."""
        return column if self._node.tell_levels or column.levels is None else replace(column, levels=())

    def runner(self, run: str, digest: str) -> ClientRunner:
        """Return what carries out this client's orders in a run.

        Raises:
            BadInput: its data are not those that it had when it joined.
        """
        if self._holding.digest != digest:
            raise BadInput("its data have changed since it joined the run; put them back as they were")
        store = StateStore(self._make_folder() / "states" / run)
        check = None if self._node.tell_profiles else _check_telling
        return ClientRunner(self._engine, store, self._save_model, check)

    @cached_property
    def _prepared(self) -> Prepared:
        """The experiment as the server has checked it: here, no file or folder is looked at that it names."""
        experiment = self._experiment
        task = build_task(experiment.task, experiment.data.is_remote)
        return Prepared(experiment, build_method(experiment.method), task)

    @cached_property
    def _holding(self) -> Holding:
        """What the client holds.

        Raises:
            BadInput: it cannot be read, is not as the experiment says, or there is no such client in a rehearsal.
        """
        data, node = self._experiment.data, self._node
        if data.is_remote:
            if not node.data:
                raise BadInput(
                    "data is missing in the node's configuration; name a .csv, .npz or .parquet file or a folder"
                )
            assert data.features is not None
            assert data.classes is not None
            path = Path(node.data).absolute()
            with path_withheld(path):
                holding = load_own(
                    node.client,
                    path,
                    data.features,
                    data.classes,
                    validation=data.validation,
                    test=data.test,
                    min_samples=data.min_samples,
                    seed=self._experiment.run.seed,
                    missing=data.missing or "refuse",
                    standardise=data.standardise or "none",
                    named=named_columns(data),
                    task=self._prepared.task or CLASSIFICATION,
                    agreed=self._agreed,
                    declared=data.levels or (),
                )
            return replace(holding, augment=make_augmentation(data, holding.parts[0][0]))
        if node.data or data.name not in DATASETS:
            raise BadInput(
                DATASETS.problem(data.name)
                or f"data.name = {data.name!r} is not possible here; it must be 'remote' for a client that has "
                f"data, or in a rehearsal one of {', '.join(DATASETS.names())}"
            )
        federation = load_federation(self._prepared)
        if not node.client.isdecimal() or int(node.client) >= federation.n:
            raise BadInput(
                f"client = {node.client!r} is not possible; {data.name} has the clients 0 to {federation.n - 1}"
            )
        return Holding.of(federation, int(node.client))

    @cached_property
    def _engine(self) -> Engine:
        return engine_spec(self._prepared, self._holding).build()

    def _save_model(self, model: Tensor, layout: Layout) -> None:
        """Save the model that this client was evaluated with, ready for use."""
        experiment, holding = self._experiment, self._holding
        classes = experiment.data.classes
        about = About(
            network_name(self._prepared, holding.features),
            experiment.network.settings,
            holding.features,
            holding.outputs,
            classes if isinstance(classes, tuple) else None,
            "" if experiment.data.is_remote else experiment.data.name,
            f"client {self._node.client}",
            preparation=holding.preparation if experiment.data.is_remote else None,
            output=experiment.network.output,
            head=layout.head,
            task=describe_task(experiment.task, holding.task),
        )
        rest = rest_of(about.network, self._engine.network, layout)
        write_model(self._make_folder() / MODEL, model.detach().contiguous(), layout, about, rest)

    def _make_folder(self) -> Path:
        """Return the client's folder, which is made where it does not exist.

        Raises:
            BadInput: the configuration names none, it cannot be made, or it belongs to another client.
        """
        named, name = self._node.folder, self._node.client
        if not named:
            raise BadInput("state-dir is missing in the node's configuration; name a folder that this client keeps")
        folder = Path(named)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise BadInput(
                f"state-dir = {named!r} is not possible ({error.strerror}); name another folder",
                told=f"its state-dir is not possible ({error.strerror}); it must name another folder",
            ) from None
        remove_half_written(folder)
        owner = _claim_folder(folder, name)
        if owner != name:
            problem = f"is that of client {owner}; give each client a folder of its own"
            raise BadInput(f"state-dir = {named!r} {problem}", told=f"its state-dir {problem}")
        return folder


NEWEST_CLIENTS: dict[Node, tuple[str, str | None, FlowerClient]] = {}
"""By node the newest client and what a message said of it; the one asked for last comes last."""

_clients_lock = Lock()


def find_client(experiment: str, agreed: str | None, node: Node) -> FlowerClient:
    """Return the client that these describe, with its data and engine where it was asked last with the same.

    Of a node only the newest client is kept: an older one, which had agreed on less, would hold its data once more.
    """
    with _clients_lock:
        known = NEWEST_CLIENTS.get(node)
        if known is None or known[:2] != (experiment, agreed):
            known = experiment, agreed, FlowerClient(experiment, agreed, node)
        NEWEST_CLIENTS.pop(node, None)
        NEWEST_CLIENTS[node] = known
        if len(NEWEST_CLIENTS) > CACHED_CLIENTS:
            del NEWEST_CLIENTS[next(iter(NEWEST_CLIENTS))]
    return known[2]


def _claim_folder(folder: Path, name: str) -> str:
    """Return the client that a folder belongs to: `name` from now on where it belonged to none."""
    path = folder / OWNER_FILE
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(name)
    except FileExistsError:
        return path.read_text("utf-8") or name  # another process may be writing it just now
    return name
