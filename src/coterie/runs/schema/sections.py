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

    name: str = Field(
        "digits",
        description="a name of coterie list datasets, a path to .csv, .npz, .parquet or a folder, "
        "hub:owner/name, or remote for data that the clients of a real federation hold",
    )
    split: str = Field(
        "auto",
        description="how samples are dealt to clients: coterie list splits; parts combine with +; auto is "
        "by-user if the data name their users, rotated(4) for the named image datasets, and iid otherwise",
    )
    clients: int | None = Field(None, ge=1, description="number of clients; without it, the split's own")
    split_seed: int | None = Field(
        None,
        ge=0,
        description="the seed that deals samples to clients and sets some aside for testing; without it, run.seed. "
        "Validation samples are always drawn with run.seed",
    )
    validation: float = Field(0.1, ge=0, lt=1, description="share of each client's samples for validation")
    test: float = Field(0.2, gt=0, lt=1, description="share of each client's samples for testing")
    test_path: str | None = Field(
        None,
        description="a file or folder of further samples in the same format, used only for testing; data.test "
        "then has no effect",
    )
    min_samples: int = Field(10, ge=2, description="a client with fewer samples is small")
    min_classes: int | None = Field(
        None, ge=1, description="a client with fewer classes among its training samples is small; without it, 1"
    )
    small_clients: Literal["refuse", "leave-out", "keep"] | None = Field(
        None,
        description="what to do with small clients and those without test samples; without it, they are left "
        "out if clients are the users of the data (by-user), and refused otherwise",
    )
    samples_per_client: int | None = Field(
        None, ge=1, description="keep at most this many samples of each client; without it, all"
    )
    augment: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="changes of each training minibatch, as in ['flip', 'crop(4)'], or a "
        "package.module:function(generator, batch) of your own; without it, nothing",
    )
    label: str | None = Field(
        None, min_length=1, description="the column to predict; without it, the one with a usual name"
    )
    client: str | None = Field(
        None,
        min_length=1,
        description="the column that names each sample's client; without it, one with a usual name if there is one",
    )
    missing: Literal["refuse", "drop", "mean", "zero"] | None = Field(
        None,
        description="what becomes of missing values: the data are refused, the sample is dropped, or the value "
        "becomes the mean of all training samples (at a real client, of its own) or zero; without it, refuse",
    )
    standardise: Literal["none", "client", "global"] | None = Field(
        None,
        description="standardise inputs by the training samples of each client, or (global) of all; "
        "without it, none",
    )
    public: int | None = Field(
        None, ge=0, description="unlabelled samples on the server; without it, the method's usual number"
    )
    features: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, min_length=1, description="for remote data only: the shape of one sample, as in [28, 28, 1]"
    )
    classes: int | tuple[str, ...] | None = Field(
        None, description="for remote data only: the number of classes or of predicted numbers, or their names"
    )
    columns: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="for remote data only: the columns of each client's table, in the order of the inputs; "
        "without it, those of the first client, by name",
    )
    levels: dict[str, tuple[str, ...]] | None = Field(
        None,
        min_length=1,
        description="for remote data only: the values of text columns, as in {ward = ['a', 'b']}; without it, "
        "the values that clients may report",
    )
    public_file: str | None = Field(
        None, description="for remote data only: unlabelled samples on the server, .npz, .parquet or a folder"
    )

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
    name: str = Field(
        "auto",
        description="coterie list tasks, or package.module:Task; auto follows the data's targets: "
        "classification if they are labels",
    )
    metrics: Annotated[tuple[str, ...] | None, Changes("tables")] = Field(
        None, min_length=1, description="the metrics, of which the first decides; without it, the task's own"
    )


class Network(Choice):
    """Which network, where its weights come from, and its own settings as further keys.

    A network with a setting called `head` of its own, as vgg16, has that one where the value is a text.
    """

    title = "network"
    name: str = Field(
        "auto",
        description="coterie list networks, or package.module:factory of your own; auto takes one that fits "
        "the data",
    )
    initial: Literal["kept", "fresh"] | None = Field(
        None,
        description="keep the weights that the network comes with, or draw them anew; without it, a registered "
        "network is drawn anew, and your own is kept",
    )
    start: str | None = Field(
        None, min_length=1, description="a file of weights to start from, .safetensors or .pt"
    )
    output: str | None = Field(
        None, min_length=1, description="which of several outputs is used, by name or number; without it, the first"
    )
    head: tuple[str, ...] | str | None = Field(
        None,
        description="modules that form the head of personalised methods, together one last layer; without it, "
        "the last module that the network registers",
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The network's own settings as they were given, without defaults."""
        own = {"head": self.head} if isinstance(self.head, str) else {}
        return own | super().settings


class MethodChoice(Choice):
    """Which method, and its own settings as further keys."""

    title = "method"
    name: str = Field("fesem", description="coterie list methods")


class Adapt(Section):
    """How clients adapt a copy of what they are evaluated with; the same for every method.

    The learning rate follows the schedule of `training` and, where a method has one of its own, that one too.
    """

    title = "evaluation.adapt"
    epochs: int | None = Field(
        None, ge=0, description="passes over the client's training data; without it, as many as in a round"
    )
    steps: int | None = Field(None, ge=0, description="minibatches, instead of passes")
    layers: str = Field(
        "all", description="all, head, private (what a method keeps to each client), or a selection of layers"
    )
    lr: float | None = Field(
        None, ge=0, description="learning rate in the first round, decaying as in training; without it, training.lr"
    )

    @model_validator(mode="after")
    def _has_one_length(self) -> Adapt:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("write epochs or steps, not both")
        return self


class Evaluation(Section):
    """When clients are evaluated, with which model, and on which of their held-out data."""

    title = "evaluation"
    every: int = Field(1, ge=1, description="rounds between evaluations; the last round is always evaluated")
    last: int = Field(
        1, ge=1, description="evaluate each of the last so many rounds; a run's scores are means over them"
    )
    on: Literal["test", "validation"] = Field(
        "test",
        description="the samples that models are scored on; validation is for choosing settings: then no test "
        "sample is used, and clients held out are not scored",
    )
    evaluated: Literal["served", "local"] | None = Field(
        None,
        description="the model that is scored: the one that the method serves (the default), or the one that "
        "the client itself last trained in a round",
    )
    adapt: Adapt | None = Field(
        None,
        strict=False,
        description="also score every client after it has trained a copy on its own data: a table of epochs or "
        "steps, layers (all, head, private or a selection) and lr, as in {epochs = 1}; without it, none",
    )

    def is_due(self, number: int, rounds: int) -> bool:
        """Say whether round `number` of a run of so many rounds is evaluated."""
        return number % self.every == 0 or number > rounds - self.last


class Attack(Section):
    """Hostile clients, to see what a method and its aggregation withstand; in simulation alone.

    They take part as the others do. What they score counts nowhere.
    """

    title = "attack"
    share: float = Field(0.0, ge=0, lt=1, description="share of the clients in training that are hostile")
    kind: Literal[
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
    ] = Field(
        "sign-flip",
        description="what they do: reverse their update, multiply it, add noise, send zeros or NaN; train on "
        "flipped labels, or on images with a mark; or, together, hide in the spread of the others (alie), "
        "reverse the others' mean (ipm), repeat one of them (mimic), or spoil one group",
    )
    strength: Annotated[float, Field(gt=0)] | Literal["bound"] | None = Field(
        None,
        description="the factor of an update (sign-flip 1, scale 100, backdoor 1, ipm 0.5, group-poison 1), "
        "the length of noise in updates (gaussian 10), or deviations from the mean (alie: as many as hide); "
        "'bound': the default, with updates as long as aggregation.norm_bound allows",
    )
    target: int = Field(
        0, ge=0, description="the class that a mark stands for (backdoor), or the true group to spoil"
    )
    group: int | None = Field(
        None, ge=0, description="the true group that all hostile clients belong to; without it, any group"
    )

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
    rounds: Annotated[int, Changes("tables")] = Field(20, ge=1, lt=10**6, description="communication rounds")
    passes: Annotated[float | None, Changes("tables")] = Field(
        None,
        gt=0,
        le=10**6,
        description="local passes after which the run ends, as a mean over clients, with warm-ups; run.rounds "
        "is then the largest number of rounds",
    )
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients in each round")
    client_dropout: float = Field(
        0.0, ge=0, lt=1, description="probability that a client vanishes in the middle of a round"
    )
    holdout_clients: float = Field(
        0.0, ge=0, lt=1, description="share of the clients kept out of training, who join after it has ended"
    )
    seed: int = Field(0, ge=0, description="seed of all random numbers; the same seed gives the same bits")
    workers: Annotated[int | None, Changes("nothing")] = Field(
        None, ge=1, le=256, description="worker processes; without it, one per core"
    )
    runtime: Annotated[Literal["local", "ray"], Changes("nothing")] = Field(
        "local", description="where simulated clients work: this machine, or a Ray cluster"
    )
    ray_address: Annotated[str | None, Changes("nothing")] = Field(
        None, min_length=1, description="auto, or HOST:PORT of a Ray cluster; without it, a new one on this machine"
    )
    engine: Literal["auto", "sequential", "batched", "gpu"] = Field(
        "auto",
        description="sequential: one client after the other; batched: many in one kernel; gpu: on a GPU, which "
        "nobody has measured yet; auto: sequential or batched, whichever is faster",
    )
    client_timeout: Annotated[float | None, Changes("nothing")] = Field(
        None,
        gt=0,
        le=10**6,
        description="seconds after which a client that has not answered is left out of the round",
    )
    quarantine_after: Annotated[int, Field(ge=1, lt=10**6)] | Literal["never"] | None = Field(
        None,
        description="after this many failed rounds in a row a client sits out as many, then twice as many, "
        "and so on; without it, 3 for clients with their own data and never for simulated ones",
    )
    edge_servers: Annotated[int | None, Changes("tables")] = Field(
        None,
        ge=1,
        description="edge servers between clients and server: each adds up what its equal share of clients "
        "sends, where it can; the run's log says what crosses behind it",
    )
    link_mbit: Annotated[float, Changes("tables")] = Field(
        2.0, gt=0, description="speed of a client's link in simulated time, Mbit/s each way"
    )
    seconds_per_sample: Annotated[float, Changes("tables")] = Field(
        0.0, ge=0, description="a client's computing in simulated time, seconds per training sample"
    )
    checkpoint_every: Annotated[int | None, Changes("nothing")] = Field(
        None, ge=1, description="rounds between checkpoints; without it, as often as 5 % of the time allows"
    )
    imports: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="modules to import first, which register methods, networks, tasks and others",
    )
    observers: Annotated[tuple[str, ...] | None, Changes("nothing")] = Field(
        None, min_length=1, description="observers of the run: coterie list observers, as in printer(every=5)"
    )
    folder: Annotated[str, Changes("nothing")] = Field(
        "runs", min_length=1, description="where run folders are made"
    )
    name: Annotated[str | None, Changes("nothing")] = Field(
        None, description="the run's name; without it, one is made up"
    )

    @field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, name: str | None) -> str | None:
        if name is not None and not NAME.fullmatch(name):
            raise ValueError(f"write {NAME_RULES}")
        if name is not None and len(name) > LONGEST_NAME:
            raise ValueError(f"it has {len(name)} characters, and may have {LONGEST_NAME}")
        return name
