"""What the sections of an experiment name, each made once, and the rules between them.

Catalogues are imported when a section names an entry: they bring torch, which an experiment alone does not need.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.clients.rules.training import Training
from coterie.errors import BadInput, count_of
from coterie.methods.aggregation import Aggregation
from coterie.methods.privacy import Privacy
from coterie.methods.scale import Scale, too_many
from coterie.plugins import find_refusal
from coterie.runs.schema.names import (
    AUTO,
    CHOICES,
    bind,
    catalog,
    find_paths,
    make_task,
    named_columns,
    resolve_split,
)
from coterie.runs.schema.sections import REMOTE, Data, Evaluation, MethodChoice, Run

if TYPE_CHECKING:
    from coterie.clients.data.divide.split import Call
    from coterie.clients.tasks import Task
    from coterie.methods import Method

Settings = Mapping[str, Any]


class Parts:
    """What some sections of an experiment name: each is made once, and what cannot be is said in `problems`.

    Args:
        sections: by title. Of one that is not there nothing is said, nor of what would have to fit it.

    Attributes:
        settings: all settings of the method, the network and the task, by title.
        made: what rules ask for by these names: the sections, but `method` and `task` themselves in the place of
            theirs, and `choice`, the method's section; `calls`, what the split calls; `clients`, how many train,
            where that is known before the data are loaded.
        split: the text of the split, with what `auto` means.
        problems: one sentence for each thing that is wrong with a section or between sections.
    """

    def __init__(self, sections: Mapping[str, Any]) -> None:
        self.settings: dict[str, Settings] = {}
        self.made: dict[str, Any] = {
            title: part for title, part in sections.items() if title not in ("method", "task")
        }
        self.split = REMOTE
        self.problems: list[str] = []
        if refusal := find_refusal(find_paths(sections)):
            self.problems.append(refusal)
            return
        for title in CHOICES:
            if title in sections:
                self._try(self._make_choice, title, sections[title])
        if "data" in sections:
            self._try(self._make_split, sections["data"])
            self._count_clients(sections["data"], sections.get("run"))
        for rule in RULES:
            if (given := self._given_to(rule)) is not None:
                self._try(self.problems.extend, rule(**given))
        for is_wrong, sentence in IMPOSSIBLE:
            if (given := self._given_to(is_wrong)) is not None and is_wrong(**given):
                self.problems.append(sentence.format(**self.made))

    def _given_to(self, rule: Callable[..., Any]) -> dict[str, Any] | None:
        """Return the parts that a rule is on; None where one could not be made, which is said already."""
        given = {name: self.made.get(name) for name in signature(rule).parameters}
        return None if None in given.values() else given

    def _try(self, make: Callable[..., None], *given: Any) -> None:
        try:
            make(*given)
        except BadInput as problem:
            self.problems += problem.problems

    def _make_choice(self, title: str, choice: Any) -> None:
        self.settings[title] = settings = bind(choice)
        if title == "method":
            self.made |= {"choice": choice, "settings": settings}
            self.made["method"] = catalog(title)[choice.name].target(**settings)
        if title == "task":
            data = self.made.get("data")
            self.made["task"] = make_task(choice, settings, data is not None and data.is_remote)

    def _make_split(self, data: Data) -> None:
        if data.is_remote:
            return
        from coterie.clients.data.divide.split import parse_split
        from coterie.clients.data.read import datasets

        named = named_columns(data)
        self.problems += datasets.find_problems(data.name, named)
        self.problems += datasets.find_test_problems(data.name, data.test_path, named)
        self.split = resolve_split(data)
        self.made["calls"] = parse_split(self.split)

    def _count_clients(self, data: Data, run: Run | None) -> None:
        clients = data.clients
        if clients is None and not data.is_remote and "by-user" not in self.split:
            from coterie.clients.data.divide.partition import DEFAULT_CLIENTS

            clients = DEFAULT_CLIENTS
        if clients is not None:
            self.made["clients"] = clients - (0 if run is None else held_out_count(clients, run.holdout_clients))


# ---- rules that say more than one thing, or have to look further than at settings


def _refuse_folder(run: Run) -> Iterator[str]:
    folder, wrong = Path(run.folder), f"run.folder = {run.folder!r} is not possible"
    try:
        there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    except OSError as error:  # a name that no folder can have
        yield f"{wrong}; {error.strerror}, name another folder"
        return
    if not there.is_dir():
        yield f"{wrong}; {str(there)!r} is a file, name a folder"
        return
    try:
        # Permissions do not tell: a file system may be read-only, or have no room for folders of users at all.
        Path(tempfile.mkdtemp(prefix=".coterie-", dir=there)).rmdir()
    except OSError as error:
        yield f"{wrong}; no folder can be made in {str(there)!r} ({error.strerror})"


def _refuse_observers(run: Run) -> Iterator[str]:
    from coterie.runs.events import read_observer

    for text in run.observers or ():
        try:
            read_observer(text)
        except BadInput as problem:
            yield from (f"run.observers: {sentence}" for sentence in problem.problems)


def _refuse_augmentation(data: Data) -> Iterable[str]:
    from coterie.clients.data.divide.augmentation import find_problems

    return find_problems(data.augment or ())


_OF_REMOTE = ("features", "classes", "columns", "levels", "public_file")
OF_SIMULATIONS = ("split_seed", "test_path", "small_clients", "min_classes")
"""Keys of the section `[data]` that mean nothing where clients hold their own."""


def _refuse_keys_of_other_data(data: Data) -> Iterator[str]:
    whose = "a dataset" if data.is_remote else f"clients who hold their own data (data.name = {REMOTE!r})"
    for key in OF_SIMULATIONS if data.is_remote else _OF_REMOTE:
        if (value := getattr(data, key)) is not None:
            yield (
                f"data.{key} = {value!r} is not possible with data.name = {data.name!r}; it is for {whose}, leave "
                "it out"
            )


def _refuse_undescribed(data: Data) -> Iterator[str]:
    """Say what is missing of the description of data that only the clients have."""
    for key, right in (
        ("clients", "how many clients take part"),
        ("features", "the shape of one sample, as [28, 28, 1]"),
        ("classes", "how many classes there are, or numbers to predict, or their names"),
    ):
        if data.is_remote and getattr(data, key) is None:
            yield f"data.{key} is missing; with data.name = {REMOTE!r} it must say {right}"


def _refuse_columns(data: Data) -> Iterator[str]:
    """Say what is wrong with the columns that the tables of real clients are said to have."""
    columns, levels = data.columns or (), data.levels or {}
    if _repeats(columns):
        yield f"data.columns = {list(columns)} is not possible; it must name each column once"
    for name, values in levels.items():
        if columns and name not in columns:
            yield f"data.levels names {name!r}, which is not in data.columns; add it there, or leave it out"
        if not values or _repeats(values):
            yield f"data.levels.{name} = {list(values)} is not possible; it must name each value once"
    width = sum(len(levels.get(name, (name,))) for name in columns)
    if columns and levels and data.features not in (None, (width,)):
        yield (
            f"data.features = {list(data.features or ())} is not possible; data.columns and data.levels make "
            f"{count_of(width, 'input')}: it must be [{width}]"
        )


def _repeats(names: Sequence[str]) -> bool:
    return len(set(names)) < len(names)


def _refuse_users(data: Data, calls: list[Call]) -> Iterator[str]:
    from coterie.clients.data.divide.partition import without_users
    from coterie.clients.data.read.datasets import DATASETS, has_users

    if data.name in DATASETS and not has_users(data.name) and any(name == "by-user" for name, _ in calls):
        yield without_users(data.name)


def too_many_clusters(settings: Settings, clients: int) -> str:
    """Say that a method is to make more groups than there are clients in training; else empty."""
    clusters = settings.get("clusters")
    return f"method.clusters = {clusters}" if isinstance(clusters, int) and clusters > clients else ""


def _refuse_clusters(data: Data, settings: Settings, clients: int) -> Iterator[str]:
    from coterie.clients.data.divide.partition import DEFAULT_CLIENTS

    if wrong := too_many_clusters(settings, clients):
        all_train = clients == (data.clients or DEFAULT_CLIENTS)
        who = f"data.clients = {clients}" if all_train else f"the {clients} clients in training"
        yield f"{wrong} is more than {who}; it must be at most that"


def _refuse_task(choice: MethodChoice, method: Method[Any], task: Task) -> Iterator[str]:
    if wrong := method.needs.find_wrong_task(choice.name, task):
        yield wrong


_OF_ALL_TARGETS = {
    ("class_weights", "balanced"): "write a list with a weight for each class",
    ("target_scale", "global"): "write [[means], [deviations]], a number for each output",
}
"""Settings of tasks by which something is computed of all clients' targets, and what can stand in their place."""


def _refuse_statistics_of_targets(data: Data, task: Task, privacy: Privacy) -> Iterator[str]:
    whose = "with privacy: it would reveal statistics of all targets without noise" if privacy.kind else ""
    whose = "with data.name = 'remote': nobody sees all clients' targets" if data.is_remote else whose
    for (key, value), instead in _OF_ALL_TARGETS.items() if whose else ():
        if getattr(task, key, None) == value:
            yield f"task.{key} = {value!r} is not possible {whose}; {instead}"
    if data.is_remote and data.classes is not None:
        task.count(data.class_count)


def _refuse_statistics_of_inputs(data: Data, training: Training, privacy: Privacy) -> Iterator[str]:
    """Say what tells of samples without noise, or lets one sample alter what others train on."""
    if not privacy.kind:
        return
    told = "is not possible with privacy: it would reveal something of samples without noise"
    if data.standardise == "global" or (data.standardise == "client" and privacy.kind == "samples"):
        right = "none" if privacy.kind == "samples" else "none or client"
        yield f"data.standardise = {data.standardise!r} {told}; it must be {right}"
    if data.missing == "mean" and (privacy.kind == "samples" or not data.is_remote):
        yield f"data.missing = 'mean' {told}; it must be refuse, drop or zero"
    if training.stop is not None:
        yield f"training.stop = {training.stop!r} {told}; leave it out"


def _refuse_no_validation(
    choice: MethodChoice, method: Method[Any], data: Data, evaluation: Evaluation, training: Training
) -> Iterator[str]:
    needs = {
        f"these settings of {choice.name}": method.needs.validation,
        f"evaluation.on = {evaluation.on!r}": evaluation.on == "validation",
        f"training.stop = {training.stop!r}": training.stop is not None,
    }
    for what in (what for what, is_so in needs.items() if is_so and not data.validation):
        yield f"data.validation = 0 is not possible with {what}; it must be above 0"


def too_many_pairs(choice: MethodChoice, method: Method[Any], clients: int, run: Run, scale: Scale) -> list[str]:
    """Return why a method cannot have a matrix between so many clients, one sentence; nothing where it can."""
    pairs = method.needs.pairs
    compared = {"": 0, "cohort": cohort_size(clients, run.participation), "everybody": clients}[pairs]
    return too_many(choice.name, compared, scale)


def _refuse_aggregation(choice: MethodChoice, method: Method[Any], aggregation: Aggregation) -> Iterator[str]:
    if method.own_aggregation and not aggregation.is_mean:
        told = _tell_aggregation(aggregation)
        yield f"{told} is not possible with {choice.name}: {method.own_aggregation}; leave it out"
    if aggregation.optimizer != "none" and (why := method.own_aggregation or method.own_step):
        told = f"aggregation.optimizer = {aggregation.optimizer!r}"
        yield f"{told} is not possible with {choice.name}: {why}; leave it out"


def _refuse_robust_sums(privacy: Privacy, aggregation: Aggregation) -> Iterator[str]:
    if privacy.kind == "server" and not aggregation.is_mean:
        yield (
            f"{_tell_aggregation(aggregation)} is not possible with privacy.noise_by = 'server', which adds noise "
            "to plain sums of clients; leave it out"
        )


def _tell_aggregation(aggregation: Aggregation) -> str:
    key = "clip_norm" if aggregation.rule == "mean" else "rule"
    return f"aggregation.{key} = {getattr(aggregation, key)!r}"


def _refuse_uncovered(privacy: Privacy, choice: MethodChoice, method: Method[Any]) -> Iterator[str]:
    how = {"server": "noise_by = 'server'", "clients": "noise_by = 'clients'", "samples": "unit = 'example'"}
    if privacy.kind and (why := getattr(method.privacy_support, privacy.kind)):
        others = [words for kind, words in how.items() if not getattr(method.privacy_support, kind)]
        instead = f"it must be {' or '.join(others)}" if others else "leave privacy out"
        yield f"privacy.{how[privacy.kind]} is not possible with {choice.name}: {why}; {instead}"


RULES: tuple[Callable[..., Iterable[str]], ...] = (
    _refuse_augmentation,
    _refuse_keys_of_other_data,
    _refuse_undescribed,
    _refuse_columns,
    _refuse_folder,
    _refuse_observers,
    _refuse_users,
    _refuse_clusters,
    _refuse_task,
    _refuse_statistics_of_targets,
    _refuse_statistics_of_inputs,
    _refuse_no_validation,
    too_many_pairs,
    _refuse_aggregation,
    _refuse_uncovered,
    _refuse_robust_sums,
)
"""Each rule yields sentences on parts, named as in `Parts.made`, that are not possible together."""

IMPOSSIBLE: tuple[tuple[Callable[..., object], str], ...] = (
    # Data.
    (
        lambda data: data.label is not None and data.label == data.client,
        "data.label and data.client are both {data.label!r}; they must be two columns",
    ),
    (
        lambda data: data.validation + data.test >= 1,
        "data.validation = {data.validation:g} is not possible with data.test = {data.test:g}, because nothing is "
        "left to train on; together they must be below 1",
    ),
    (
        lambda data: data.samples_per_client is not None and data.samples_per_client < data.min_samples,
        "data.samples_per_client = {data.samples_per_client} is below data.min_samples = {data.min_samples}; raise "
        "it, or lower data.min_samples",
    ),
    (
        lambda data: data.is_remote and data.split not in (AUTO, REMOTE),
        "data.split = {data.split!r} is not possible with data.name = 'remote', because each client has its data "
        "already; leave it out",
    ),
    (
        lambda data: data.is_remote and isinstance(data.classes, tuple) and _repeats(data.classes),
        "data.classes = {data.classes} is not possible; it must name each class once",
    ),
    (
        lambda data: data.is_remote and data.public_file is None and data.public,
        "data.public = {data.public} is not possible without data.public_file; name the file of public samples",
    ),
    (
        lambda data, attack: data.is_remote and attack.share,
        "attack.share is not possible with data.name = 'remote', because attacks are only simulated; leave it out",
    ),
    # A run.
    (
        lambda run: run.ray_address is not None and run.runtime != "ray",
        "run.ray_address = {run.ray_address!r} is not possible with run.runtime = {run.runtime!r}; add --runtime "
        "ray, or leave it out",
    ),
    (
        lambda run, privacy: run.passes is not None and privacy.kind,
        "run.passes = {run.passes:g} is not possible with privacy, whose promise is for a fixed number of rounds; "
        "set only run.rounds",
    ),
    (
        lambda run, evaluation: run.passes is not None and evaluation.last > 1 and evaluation.every > 1,
        "evaluation.last = {evaluation.last} is not possible with run.passes and evaluation.every = "
        "{evaluation.every}, because nobody knows the last rounds before the run ends; evaluation.every must be 1",
    ),
    (
        lambda run, aggregation: aggregation.trusted and run.participation < 1,
        "run.participation = {run.participation:g} is not possible with aggregation.rule = 'fltrust', which needs "
        "the trusted clients in every round; it must be 1",
    ),
    (
        lambda training: training.momentum and training.optimizer != "sgd",
        "training.momentum = {training.momentum:g} has no effect here; it needs training.optimizer = 'sgd'",
    ),
    # What methods, evaluations and the end of a run cannot do without.
    (
        lambda choice, method, data: method.needs.public and data.is_remote and data.public_file is None,
        "data.public_file is missing; {choice.name} looks at unlabelled samples on the server, so name a .npz or "
        ".parquet file of them",
    ),
    (
        lambda choice, method, data: method.needs.public and data.public == 0,
        "data.public = 0 is not possible with {choice.name}; it must be at least 1, as in {method.needs.public}",
    ),
    (
        lambda training, evaluation: training.stop and evaluation.evaluated == "local",
        "evaluation.evaluated = 'local' is not possible with training.stop = {training.stop!r}, which ends the run "
        "with what the method served in the best round; it must be served",
    ),
    (
        lambda choice, method, network: (
            method.needs.gaussian and network.name != AUTO and not network.name.startswith("gaussian")
        ),
        "network.name = {network.name!r} is not possible with {choice.name}; it must have Gaussian features: "
        "gaussian-mlp, gaussian-cnn, or auto",
    ),
    # A promise of privacy, and what tells something of single units without noise.
    (
        lambda privacy, evaluation: privacy.kind == "samples" and evaluation.adapt is not None,
        "evaluation.adapt is not possible with privacy.unit = 'example', because it trains without noise; leave it "
        "out",
    ),
    (
        lambda privacy, data: privacy.kind in ("clients", "samples") and data.is_remote and privacy.delta is None,
        "privacy.delta is missing; give it, because a client cannot derive it: it does not know how many others "
        "there are",
    ),
    (
        lambda privacy, data: privacy.kind and data.is_remote and privacy.noise_seed is not None,
        "privacy.noise_seed = {privacy.noise_seed} is not possible with data.name = 'remote', because all clients "
        "and the server would know it and could remove the noise; leave it out",
    ),
)
"""What is wrong with parts, named as in `Parts.made`, and the sentence that says so."""


def cohort_size(clients: int, participation: float) -> int:
    """Return how many of so many clients take part in a round (docs/methods/conventions.md, convention 8)."""
    return max(1, int(participation * clients + 0.5))


def held_out_count(clients: int, share: float) -> int:
    """Return how many of so many clients a share keeps out of training: at least one, unless it is 0."""
    return max(1, int(share * clients + 0.5)) if share else 0
