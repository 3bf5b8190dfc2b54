"""The tables of an experiment, key by key; those of training and scale stand where they are used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from coterie.catalogue import Changes, Section


class Choice(Section):
    """A section that names an entry of a catalogue and carries that entry's own settings as further keys."""

    model_config = ConfigDict(extra="allow")
    name: str
    """The entry's name, or `package.module:object`."""

    @property
    def settings(self) -> dict[str, Any]:
        """The entry's own settings as they were given, without defaults."""
        return dict(self.model_extra or {})

    def with_settings(self, settings: Mapping[str, Any]) -> Choice:
        """The same choice with other settings of its own."""
        own = {key: getattr(self, key) for key in type(self).model_fields if key not in settings}
        return type(self)(**own, **settings)


REMOTE = "remote"
"""The data of clients who hold their own, in the place of a dataset's name; and how these are split."""


class Data(Section):
    """Whose data: the dataset, and how it is split among clients.

    In the place of a name there may be data themselves, which are then kept under a name that digests them.
    """

    title = "data"

    def __init__(self, /, **keys: Any) -> None:
        if not isinstance(keys.get("name"), str | Path | None):
            from coterie.clients.data.read import given  # brings torch, as whoever has such data does

            if given.is_given(keys["name"]):
                from coterie.clients.data.read.columns import Named

                words = [keys.get(key) if isinstance(keys.get(key), str) else None for key in ("label", "client")]
                keys["name"] = given.keep(keys["name"], Named(*words))
        super().__init__(**keys)

    name: Annotated[
        str,
        Field(
            description="a name of coterie list datasets, a path to .csv, .npz, .parquet or a folder, "
            "hub:owner/name, or remote for data that the clients of a real federation hold"
        ),
    ] = "digits"
    split: Annotated[
        str,
        Field(
            description="how samples are dealt to clients: coterie list splits; parts combine with +; auto is "
            "by-user if the data name their users, rotated(4) for the named image datasets, and iid otherwise"
        ),
    ] = "auto"
    clients: Annotated[int | None, Field(ge=1, description="number of clients; without it, the split's own")] = None
    split_seed: Annotated[
        int | None,
        Field(
            ge=0,
            description="seed of who holds what, and of which samples are for testing; without it, run.seed. "
            "Validation samples are drawn with run.seed",
        ),
    ] = None
    validation: Annotated[float, Field(ge=0, lt=1, description="share of each client's samples for validation")] = (
        0.1
    )
    test: Annotated[float, Field(gt=0, lt=1, description="share of each client's samples for testing")] = 0.2
    test_path: Annotated[
        str | None,
        Field(
            description="a file or folder of further samples in the same format, used only for testing; data.test "
            "then has no effect"
        ),
    ] = None
    min_samples: Annotated[int, Field(ge=2, description="a client with fewer samples is small")] = 10
    min_classes: Annotated[
        int | None,
        Field(ge=1, description="a client with fewer classes among its training samples is small; without it, 1"),
    ] = None
    small_clients: Annotated[
        Literal["refuse", "leave-out", "keep"] | None,
        Field(
            description="what to do with small clients and those without test samples; without it, they are left "
            "out if clients are the users of the data (by-user), and refused otherwise"
        ),
    ] = None
    samples_per_client: Annotated[
        int | None, Field(ge=1, description="keep at most this many samples of each client; without it, all")
    ] = None
    augment: Annotated[
        tuple[str, ...] | None,
        Field(
            min_length=1,
            description="changes of each training minibatch, as in ['flip', 'crop(4)'], or a "
            "package.module:function(generator, batch) of your own; without it, nothing",
        ),
    ] = None
    label: Annotated[
        str | None,
        Field(min_length=1, description="the column to predict; without it, the one with a usual name"),
    ] = None
    client: Annotated[
        str | None,
        Field(
            min_length=1,
            description="the column that names each sample's client; without it, one with a usual name if there "
            "is one",
        ),
    ] = None
    missing: Annotated[
        Literal["refuse", "drop", "mean", "zero"] | None,
        Field(
            description="what becomes of missing values: the data are refused, the sample is dropped, or the value "
            "becomes the mean of all training samples (at a real client, of its own) or zero; without it, refuse"
        ),
    ] = None
    standardise: Annotated[
        Literal["none", "client", "global"] | None,
        Field(
            description="standardise inputs by the training samples of each client, or (global) of all; "
            "without it, none"
        ),
    ] = None
    public: Annotated[
        int | None,
        Field(ge=0, description="unlabelled samples on the server; without it, the method's usual number"),
    ] = None
    features: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...] | None,
        Field(min_length=1, description="for remote data only: the shape of one sample, as in [28, 28, 1]"),
    ] = None
    classes: Annotated[
        int | tuple[str, ...] | None,
        Field(description="for remote data only: the number of classes or of predicted numbers, or their names"),
    ] = None
    columns: Annotated[
        tuple[str, ...] | None,
        Field(
            min_length=1,
            description="for remote data only: the columns of each client's table, in the order of the inputs; "
            "without it, those of the first client, by name",
        ),
    ] = None
    levels: Annotated[
        dict[str, tuple[str, ...]] | None,
        Field(
            min_length=1,
            description="for remote data only: the values of text columns, as in {ward = ['a', 'b']}; without it, "
            "the values that clients may report",
        ),
    ] = None
    public_file: Annotated[
        str | None,
        Field(description="for remote data only: unlabelled samples on the server, .npz, .parquet or a folder"),
    ] = None

    @field_validator("clients", mode="before")
    @classmethod
    def _is_no_column(cls, clients: Any) -> Any:
        if isinstance(clients, str) and not clients.isdigit():
            raise ValueError(
                "it must be a number of clients; to name the column of the clients, write --set client=COLUMN"
            )
        return clients

    @property
    def is_remote(self) -> bool:
        """Whether the clients hold data that nobody else has."""
        return self.name == REMOTE

    @property
    def class_count(self) -> int:
        """How many classes or outputs clients who hold their own data are said to have; 0 where nothing is said."""
        return self.classes if isinstance(self.classes, int) else len(self.classes or ())


class TaskChoice(Choice):
    """What is learnt, and its own settings as further keys."""

    title = "task"
    name: Annotated[
        str,
        Field(
            description="coterie list tasks, or package.module:Task; auto follows the data's targets: "
            "classification if they are labels"
        ),
    ] = "auto"
    metrics: Annotated[
        tuple[str, ...] | None,
        Field(min_length=1, description="the metrics, of which the first decides; without it, the task's own"),
        Changes("tables"),
    ] = None


class Network(Choice):
    """Which network, where its weights come from, and its own settings as further keys.

    A network with a setting called `head` of its own, as vgg16, has that one where the value is a text.
    """

    title = "network"
    name: Annotated[
        str,
        Field(
            description="coterie list networks, or package.module:factory of your own; auto takes one that fits "
            "the data"
        ),
    ] = "auto"
    initial: Annotated[
        Literal["kept", "fresh"] | None,
        Field(
            description="keep the weights that the network comes with, or draw them anew; without it, a registered "
            "network is drawn anew, and your own is kept"
        ),
    ] = None
    start: Annotated[
        str | None, Field(min_length=1, description="a file of weights to start from, .safetensors or .pt")
    ] = None
    output: Annotated[
        str | None,
        Field(
            min_length=1, description="which of several outputs is used, by name or number; without it, the first"
        ),
    ] = None
    head: Annotated[
        tuple[str, ...] | str | None,
        Field(
            description="modules that form the head of personalised methods, together one last layer; without it, "
            "the last module that the network registers"
        ),
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """The network's own settings as they were given, without defaults."""
        own = {"head": self.head} if isinstance(self.head, str) else {}
        return own | super().settings


class MethodChoice(Choice):
    """Which method, and its own settings as further keys."""

    title = "method"
    name: Annotated[str, Field(description="coterie list methods")] = "fesem"


class Adapt(Section):
    """How clients adapt a copy of what they are evaluated with; the same for every method.

    The learning rate follows the schedule of `training` and, where a method has one of its own, that one too.
    """

    title = "evaluation.adapt"
    epochs: Annotated[
        int | None,
        Field(ge=0, description="passes over the client's training data; without it, as many as in a round"),
    ] = None
    steps: Annotated[int | None, Field(ge=0, description="minibatches, instead of passes")] = None
    layers: Annotated[
        str, Field(description="all, head, private (what a method keeps to each client), or a selection of layers")
    ] = "all"
    lr: Annotated[
        float | None,
        Field(
            ge=0, description="learning rate in the first round, decaying as in training; without it, training.lr"
        ),
    ] = None

    @model_validator(mode="after")
    def _has_one_length(self) -> Adapt:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("write epochs or steps, not both")
        return self


class Evaluation(Section):
    """When clients are evaluated, with which model, and on which of their held-out data."""

    title = "evaluation"
    every: Annotated[
        int, Field(ge=1, description="rounds between evaluations; the last round is always evaluated")
    ] = 1
    last: Annotated[
        int,
        Field(ge=1, description="evaluate each of the last so many rounds; a run's scores are means over them"),
    ] = 1
    on: Annotated[
        Literal["test", "validation"],
        Field(
            description="the samples that models are scored on; validation is for choosing settings: then no test "
            "sample is used, and clients held out are not scored"
        ),
    ] = "test"
    evaluated: Annotated[
        Literal["served", "local"] | None,
        Field(
            description="the model that is scored: the one that the method serves (the default), or the one that "
            "the client itself last trained in a round"
        ),
    ] = None
    adapt: Annotated[
        Adapt | None,
        Field(
            strict=False,
            description="also score every client after it has trained a copy on its own data: a table of epochs or "
            "steps, layers (all, head, private or a selection) and lr, as in {epochs = 1}; without it, none",
        ),
    ] = None

    def is_due(self, number: int, rounds: int) -> bool:
        """Say whether round `number` of a run of so many rounds is evaluated."""
        return number % self.every == 0 or number > rounds - self.last


class Attack(Section):
    """Hostile clients, to see what a method and its aggregation withstand; in simulation alone.

    They take part as the others do. What they score counts nowhere.
    """

    title = "attack"
    share: Annotated[float, Field(ge=0, lt=1, description="share of the clients in training that are hostile")] = (
        0.0
    )
    kind: Annotated[
        Literal[
            "sign-flip",
            "scale",
            "gaussian",
            "zero",
            "nan",
            "label-flip",
            "backdoor",
            "alie",
            "ipm",
            "mimic",
            "group-poison",
        ],
        Field(
            description="what they do: reverse their update, multiply it, add noise, send zeros or NaN; train on "
            "flipped labels, or on images with a mark; or, together, hide in the spread of the others (alie), "
            "reverse the others' mean (ipm), repeat one of them (mimic), or spoil one group"
        ),
    ] = "sign-flip"
    strength: Annotated[
        Annotated[float, Field(gt=0)] | Literal["bound"] | None,
        Field(
            description="the factor of an update (sign-flip 1, scale 100, backdoor 1, ipm 0.5, group-poison 1), "
            "the length of noise in updates (gaussian 10), or deviations from the mean (alie: as many as hide); "
            "'bound': the usual one, and then as long as aggregation.norm_bound lets pass",
        ),
    ] = None
    target: Annotated[
        int, Field(ge=0, description="the class that a mark stands for (backdoor), or the true group to spoil")
    ] = 0
    group: Annotated[
        int | None,
        Field(ge=0, description="the true group that all hostile clients belong to; without it, any group"),
    ] = None

    @model_validator(mode="after")
    def _is_meant(self) -> Attack:
        if not self.share and self != type(self).model_construct():
            raise ValueError("share must be above 0 where an attack is described")
        return self


RESERVED = r"(?i:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)"
"""How the names begin that no file may have on Windows, whatever their ending."""
NAME = re.compile(rf"(?!{RESERVED})[^\W_][\w.+=-]*(?<!\.)")
"""What a run may be called: a plain name of a folder, on every system."""
NAME_RULES = (
    "letters, digits, '-', '_', '.', '+' or '=', begin with a letter or a digit, do not end with '.', and take no "
    "name that Windows reserves, such as 'con'"
)
"""What `NAME` asks for, behind "write"."""
LONGEST_NAME = 80
"""Characters of a run's name; a folder's name has room for them on every system."""


def make_name(text: str, tail: str = "", otherwise: str = "run") -> str:
    """Return a text as a name that `NAME` allows, in lower case; other characters become a dash.

    It is cut so that `tail`, and a number behind that, are whole. Where nothing is left it is `otherwise`.
    """
    words = "".join(c if c.isalnum() or c in "._" else "-" for c in text.lower()).split("-")
    name = _cut("-".join(word for word in words if word).lstrip("._-").rstrip("-."), tail, LONGEST_NAME - 4)
    return name if NAME.fullmatch(name) else f"{otherwise}{tail}"


def numbered_names(name: str) -> Iterator[str]:
    """Yield NAME, NAME-2, NAME-3, …, cut so that the number is whole."""
    yield _cut(name)
    for number in count(2):
        yield _cut(name, f"-{number}")


def _cut(name: str, tail: str = "", longest: int = LONGEST_NAME) -> str:
    room = longest - len(tail)
    return f"{name if len(name) <= room else name[:room].rstrip('-.')}{tail}"


class Run(Section):
    """How long, with whom, from which seed, and where the result goes."""

    title = "run"
    rounds: Annotated[int, Field(ge=1, lt=10**6, description="communication rounds"), Changes("tables")] = 20
    passes: Annotated[
        float | None,
        Field(
            gt=0,
            le=10**6,
            description="local passes after which the run ends, as a mean over clients, with warm-ups; run.rounds "
            "is then the largest number of rounds",
        ),
        Changes("tables"),
    ] = None
    participation: Annotated[float, Field(gt=0, le=1, description="share of the clients in each round")] = 1.0
    client_dropout: Annotated[
        float, Field(ge=0, lt=1, description="probability that a client vanishes in the middle of a round")
    ] = 0.0
    holdout_clients: Annotated[
        float,
        Field(ge=0, lt=1, description="share of the clients kept out of training, who join after it has ended"),
    ] = 0.0
    seed: Annotated[
        int, Field(ge=0, description="seed of all random numbers; the same seed gives the same bits")
    ] = 0
    workers: Annotated[
        int | None,
        Field(ge=1, le=256, description="worker processes; without it, one per core"),
        Changes("nothing"),
    ] = None
    runtime: Annotated[
        Literal["local", "ray"],
        Field(description="where simulated clients work: this machine, or a Ray cluster"),
        Changes("nothing"),
    ] = "local"
    ray_address: Annotated[
        str | None,
        Field(
            min_length=1, description="auto, or HOST:PORT of a Ray cluster; without it, a new one on this machine"
        ),
        Changes("nothing"),
    ] = None
    engine: Annotated[
        Literal["auto", "sequential", "batched", "gpu"],
        Field(
            description="clients one after the other, many in one kernel, or a GPU, on which nothing was measured "
            "so far; auto is the faster of the other two"
        ),
    ] = "auto"
    client_timeout: Annotated[
        float | None,
        Field(
            gt=0,
            le=10**6,
            description="seconds after which a client that has not answered is left out of the round",
        ),
        Changes("nothing"),
    ] = None
    quarantine_after: Annotated[
        Annotated[int, Field(ge=1, lt=10**6)] | Literal["never"] | None,
        Field(
            description="after this many failed rounds in a row a client sits out as many, then twice as many, "
            "and so on; without it, 3 for clients with their own data and never for simulated ones"
        ),
    ] = None
    edge_servers: Annotated[
        int | None,
        Field(
            ge=1,
            description="edge servers between clients and server: each adds up what its equal share of clients "
            "sends, where it can; the run's log says what crosses behind it",
        ),
        Changes("tables"),
    ] = None
    link_mbit: Annotated[
        float,
        Field(gt=0, description="speed of a client's link in simulated time, Mbit/s each way"),
        Changes("tables"),
    ] = 2.0
    seconds_per_sample: Annotated[
        float,
        Field(ge=0, description="a client's computing in simulated time, seconds per training sample"),
        Changes("tables"),
    ] = 0.0
    checkpoint_every: Annotated[
        int | None,
        Field(ge=1, description="rounds between checkpoints; without it, as often as 5 % of the time allows"),
        Changes("nothing"),
    ] = None
    imports: Annotated[
        tuple[str, ...] | None,
        Field(
            min_length=1,
            description="modules to import first, which register methods, networks, tasks and others",
        ),
    ] = None
    observers: Annotated[
        tuple[str, ...] | None,
        Field(min_length=1, description="observers of the run: coterie list observers, as in printer(every=5)"),
        Changes("nothing"),
    ] = None
    folder: Annotated[str, Field(min_length=1, description="where run folders are made"), Changes("nothing")] = (
        "runs"
    )
    name: Annotated[
        str | None, Field(description="the run's name; without it, one is made up"), Changes("nothing")
    ] = None

    @field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, name: str | None) -> str | None:
        if name is not None and not NAME.fullmatch(name):
            raise ValueError(f"write {NAME_RULES}")
        if name is not None and len(name) > LONGEST_NAME:
            raise ValueError(f"it has {len(name)} characters, and may have {LONGEST_NAME}")
        return name
