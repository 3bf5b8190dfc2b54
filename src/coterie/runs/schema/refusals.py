"""What the sections of an experiment name, each made once, and the rules between them.

Catalogues are imported when a section names an entry: they bring torch, which an experiment alone does not need.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from coterie.runs.schema.sections import REMOTE, Attack, Data, Evaluation, MethodChoice, Network, Run

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
            wanted = signature(rule).parameters
            given = {name: self.made[name] for name in wanted if self.made.get(name) is not None}
            if len(given) == len(wanted):  # what could not be made is said already
                self._try(self.problems.extend, rule(**given))

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


# ---- one section


def _refuse_folder(run: Run) -> Iterator[str]:
    folder = Path(run.folder)
    try:
        there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    except OSError as error:  # a name that no folder can have
        yield f"run.folder = {run.folder!r} is not possible; {error.strerror}, name another folder"
        return
    if not there.is_dir():
        yield f"run.folder = {run.folder!r} is not possible; {str(there)!r} is a file, name a folder"
        return
    try:
        # Permissions do not tell: a file system may be read-only, or have no room for folders of users at all.
        Path(tempfile.mkdtemp(prefix=".coterie-", dir=there)).rmdir()
    except OSError as error:
        why = f"no folder can be made in {str(there)!r} ({error.strerror})"
        yield f"run.folder = {run.folder!r} is not possible; {why}"


def _refuse_runtime(run: Run) -> Iterator[str]:
    if run.ray_address is not None and run.runtime != "ray":
        yield (
            f"run.ray_address = {run.ray_address!r} is not possible with run.runtime = {run.runtime!r}; "
            "add --runtime ray, or leave it out"
        )


def _refuse_passes(run: Run, privacy: Privacy, evaluation: Evaluation) -> Iterator[str]:
    if run.passes is None:
        return
    if privacy.kind:
        yield (
            f"run.passes = {run.passes:g} is not possible with privacy, whose promise is for a fixed number of "
            "rounds; set run.rounds alone"
        )
    if evaluation.last > 1 and evaluation.every > 1:
        yield (
            f"evaluation.last = {evaluation.last} needs evaluation.every = 1 with run.passes: which rounds are the "
            "last is known only when the run ends"
        )


def _refuse_observers(run: Run) -> Iterator[str]:
    from coterie.runs.events import read_observer

    for text in run.observers or ():
        try:
            read_observer(text)
        except BadInput as problem:
            yield from (f"run.observers: {sentence}" for sentence in problem.problems)


def _refuse_momentum(training: Training) -> Iterator[str]:
    if training.momentum and training.optimizer != "sgd":
        yield f"training.momentum = {training.momentum:g} has no effect here; it needs training.optimizer = 'sgd'"


def _refuse_data(data: Data) -> Iterator[str]:
    from coterie.clients.data.divide.augmentation import find_problems as find_augmentation_problems

    if data.label is not None and data.label == data.client:
        yield f"data.label and data.client are both {data.label!r}; they must be two columns"
    yield from find_augmentation_problems(data.augment or ())
    if data.validation + data.test >= 1:
        yield f"validation + test = {data.validation + data.test:g} leaves nothing to train on; it must be below 1"
    for key in OF_SIMULATIONS if data.is_remote else _OF_REMOTE:
        if getattr(data, key) is not None:
            whose = "a dataset" if data.is_remote else f"clients who hold their own data (data.name = {REMOTE!r})"
            yield (
                f"data.{key} = {getattr(data, key)!r} is not possible with data.name = {data.name!r}; it is for "
                f"{whose}, leave it out"
            )
    yield from _refuse_remote(data) if data.is_remote else _refuse_simulated(data)


_OF_REMOTE = ("features", "classes", "columns", "levels", "public_file")
OF_SIMULATIONS = ("split_seed", "test_path", "small_clients", "min_classes")
"""Keys of the section `[data]` that mean nothing where clients hold their own."""


def _refuse_simulated(data: Data) -> Iterator[str]:
    if data.samples_per_client is not None and data.samples_per_client < data.min_samples:
        yield (
            f"samples_per_client = {data.samples_per_client} is below min_samples = {data.min_samples}; raise it"
        )


def _refuse_remote(data: Data) -> Iterator[str]:
    """Say what is wrong with the description of data that only the clients have."""
    for key, right in (
        ("clients", "how many clients take part"),
        ("features", "the shape of one sample, as [28, 28, 1]"),
        ("classes", "how many classes there are, or numbers to predict, or their names"),
    ):
        if getattr(data, key) is None:
            yield f"data.{key} is missing; with data.name = {REMOTE!r} it must say {right}"
    if data.split not in (AUTO, REMOTE):
        yield (
            f"data.split = {data.split!r} is not possible with data.name = {REMOTE!r}; the data are where they "
            "are: leave it out"
        )
    names = data.classes if isinstance(data.classes, tuple) else None
    if names is not None and len(set(names)) != len(names):
        yield f"data.classes = {list(names)} is not possible; every name must be there once"
    yield from _refuse_columns(data)
    if data.public_file is None and data.public:
        yield f"data.public = {data.public} is not possible without data.public_file; name the file of them"


def _refuse_columns(data: Data) -> Iterator[str]:
    """Say what is wrong with the columns that the tables of real clients are said to have."""
    columns, levels, found = data.columns or (), data.levels or {}, list[str]()
    if len(set(columns)) != len(columns):
        found.append(f"data.columns = {list(columns)} is not possible; every name must be there once")
    for name, values in levels.items():
        if columns and name not in columns:
            found.append(f"data.levels names {name!r}, which is not in data.columns; add it there, or leave it out")
        if not values or len(set(values)) != len(values):
            found.append(f"data.levels.{name} = {list(values)} is not possible; it must name each value once")
    yield from found
    if columns and levels and data.features is not None and not found:
        width = sum(len(levels.get(name, (name,))) for name in columns)
        if data.features != (width,):
            yield (
                f"data.features = {list(data.features)} is not possible; data.columns and data.levels make "
                f"{count_of(width, 'input')}: it must be [{width}]"
            )


# ---- between sections


def _refuse_users(data: Data, calls: list[Call]) -> Iterator[str]:
    from coterie.clients.data.divide.partition import without_users
    from coterie.clients.data.read.datasets import DATASETS, has_users

    if data.name in DATASETS and not has_users(data.name) and any(name == "by-user" for name, _ in calls):
        yield without_users(data.name)


def _refuse_clusters(data: Data, method: Method[Any], settings: Settings, clients: int) -> Iterator[str]:
    from coterie.clients.data.divide.partition import DEFAULT_CLIENTS

    clusters = settings.get("clusters")
    if isinstance(clusters, int) and clusters > clients and getattr(method, "takes_k", True):
        all_train = clients == (data.clients or DEFAULT_CLIENTS)
        who = f"data.clients = {clients}" if all_train else f"the {clients} clients in training"
        yield f"method.clusters = {clusters} is more than {who}; it must be at most that"


def _refuse_needs(choice: MethodChoice, method: Method[Any], data: Data) -> Iterator[str]:
    """Say what the method cannot do without and the data do not give."""
    needs = method.needs
    if needs.public and data.is_remote and data.public_file is None:
        yield (
            f"data.public_file is missing; {choice.name} looks at unlabelled samples on the server, name a .npz or "
            ".parquet file of them"
        )
    if needs.public and data.public == 0:
        yield f"data.public = 0 is not possible with {choice.name}; it must be at least 1, as in {needs.public}"
    if needs.validation and data.validation == 0:
        yield f"data.validation = 0 is not possible with these settings of {choice.name}; it must be above 0"


def _refuse_network(choice: MethodChoice, method: Method[Any], network: Network) -> Iterator[str]:
    if method.needs.gaussian and network.name != AUTO and not network.name.startswith("gaussian"):
        yield (
            f"network.name = {network.name!r} is not possible with {choice.name}; it must have Gaussian features: "
            "gaussian-mlp, gaussian-cnn, or auto"
        )


def _refuse_task(choice: MethodChoice, method: Method[Any], task: Task) -> Iterator[str]:
    if wrong := method.needs.find_wrong_task(choice.name, task):
        yield wrong


def _refuse_task_of_own(data: Data, task: Task) -> Iterator[str]:
    """Say what clients who hold their own data cannot know."""
    if not data.is_remote:
        return
    if getattr(task, "class_weights", None) == "balanced":
        yield (
            "task.class_weights = 'balanced' is not possible with data.name = 'remote': nobody counts the samples "
            "of all clients; write a list with a weight for each class"
        )
    if getattr(task, "target_scale", None) == "global":
        yield (
            "task.target_scale = 'global' is not possible with data.name = 'remote': nobody sees the targets of "
            "all clients; write [[means], [deviations]], a number for each output"
        )
    if data.classes is not None:
        task.count(data.class_count)


def _refuse_unmeasured(data: Data, evaluation: Evaluation) -> Iterator[str]:
    if evaluation.on == "validation" and not data.validation:
        yield f"data.validation = 0 is not possible with evaluation.on = {evaluation.on!r}; it must be above 0"


def _refuse_stop(training: Training, data: Data, evaluation: Evaluation, privacy: Privacy) -> Iterator[str]:
    """Say where a run cannot end by its validation loss, or cannot return to an earlier round."""
    if training.stop is None:
        return
    if not data.validation:
        yield f"data.validation = 0 is not possible with training.stop = {training.stop!r}; it must be above 0"
    if evaluation.evaluated == "local":
        yield (
            f"evaluation.evaluated = 'local' is not possible with training.stop = {training.stop!r}, which returns "
            "to what the method served in an earlier round; it must be served"
        )
    if privacy.kind:
        yield (
            f"training.stop = {training.stop!r} is not possible with privacy, because losses on validation samples "
            "would decide without noise; leave it out"
        )


def too_many_pairs(choice: MethodChoice, method: Method[Any], clients: int, run: Run, scale: Scale) -> list[str]:
    """Return why a method cannot have a matrix between so many clients, one sentence; nothing where it can."""
    pairs = method.needs.pairs
    compared = {"": 0, "cohort": cohort_size(clients, run.participation), "everybody": clients}[pairs]
    return too_many(choice.name, compared, scale)


def _refuse_trusted(aggregation: Aggregation, run: Run) -> Iterator[str]:
    if aggregation.trusted and run.participation < 1:
        yield (
            f"run.participation = {run.participation:g} is not possible with aggregation.rule = 'fltrust', which "
            "needs the trusted clients in every round; it must be 1"
        )


def _refuse_aggregation(choice: MethodChoice, method: Method[Any], aggregation: Aggregation) -> Iterator[str]:
    if method.own_aggregation and not aggregation.is_mean:
        told = _tell_aggregation(aggregation)
        yield f"{told} is not possible with {choice.name}: {method.own_aggregation}; leave it out"


def _refuse_optimizer(choice: MethodChoice, method: Method[Any], aggregation: Aggregation) -> Iterator[str]:
    if aggregation.optimizer != "none" and (why := method.own_aggregation or method.own_step):
        told = f"aggregation.optimizer = {aggregation.optimizer!r}"
        yield f"{told} is not possible with {choice.name}: {why}; leave it out"


def _tell_aggregation(aggregation: Aggregation) -> str:
    key = "clip_norm" if aggregation.rule == "mean" else "rule"
    return f"aggregation.{key} = {getattr(aggregation, key)!r}"


def _refuse_attack(attack: Attack, data: Data) -> Iterator[str]:
    if attack.share and data.is_remote:
        yield "attack.share is not possible with data.name = 'remote'; attacks are simulated, leave it out"


# ---- between a promise of privacy and what does not let a run keep it


def _refuse_uncovered(privacy: Privacy, choice: MethodChoice, method: Method[Any]) -> Iterator[str]:
    how = {"server": "noise_by = 'server'", "clients": "noise_by = 'clients'", "samples": "unit = 'example'"}
    if privacy.kind and (why := getattr(method.privacy_support, privacy.kind)):
        others = [words for kind, words in how.items() if not getattr(method.privacy_support, kind)]
        instead = f"possible with it: {' or '.join(others)}" if others else "leave privacy out"
        yield f"privacy.{how[privacy.kind]} is not possible with {choice.name}: {why}; {instead}"


def _refuse_robust_sums(privacy: Privacy, aggregation: Aggregation) -> Iterator[str]:
    if privacy.kind == "server" and not aggregation.is_mean:
        yield (
            f"{_tell_aggregation(aggregation)} is not possible with privacy.noise_by = 'server', which hides a "
            "client in sums; leave it out"
        )


def _refuse_adaptation(privacy: Privacy, evaluation: Evaluation) -> Iterator[str]:
    if privacy.kind == "samples" and evaluation.adapt is not None:
        yield (
            "evaluation.adapt is not possible with privacy.unit = 'example', for adaptation trains without noise; "
            "leave it out"
        )


def _refuse_statistics_of_data(privacy: Privacy, data: Data) -> Iterator[str]:
    """Say what is computed of samples before training by which one unit alters what others train on."""
    if not privacy.kind:
        return
    hides_samples = privacy.kind == "samples"
    if data.standardise == "global":
        right = "none" if hides_samples else "none or client"
        yield (
            "data.standardise = 'global' is not possible with privacy, because the mean of all samples would be "
            f"sent without noise; it must be {right}"
        )
    if data.standardise == "client" and hides_samples:
        yield (
            "data.standardise = 'client' is not possible with privacy.unit = 'example', because each sample "
            "changes its client's other samples through their mean, without noise; it must be none"
        )
    if data.missing == "mean" and (hides_samples or not data.is_remote):
        yield (
            "data.missing = 'mean' is not possible with privacy, because the mean of the training samples would "
            "be sent without noise; it must be refuse, drop or zero"
        )
    if privacy.kind != "server" and data.is_remote and privacy.delta is None:
        yield "privacy.delta is missing; a client does not know how many others there are, so give it"
    if data.is_remote and privacy.noise_seed is not None:
        yield (
            f"privacy.noise_seed = {privacy.noise_seed} is not possible with data.name = {data.name!r}, because "
            "all clients and the server know it, and could remove the noise; leave it out"
        )


def _refuse_statistics_of_targets(privacy: Privacy, task: Task) -> Iterator[str]:
    if not privacy.kind:
        return
    if getattr(task, "class_weights", None) == "balanced":
        yield (
            "task.class_weights = 'balanced' is not possible with privacy, because all classes would be counted "
            "without noise; it must be none or a list with a weight for each class"
        )
    if getattr(task, "target_scale", None) == "global":
        yield (
            "task.target_scale = 'global' is not possible with privacy, because the mean of all targets would be "
            "sent without noise; leave it out or write [[means], [deviations]]"
        )


RULES: tuple[Callable[..., Iterable[str]], ...] = (
    _refuse_data,
    _refuse_folder,
    _refuse_runtime,
    _refuse_passes,
    _refuse_observers,
    _refuse_momentum,
    _refuse_users,
    _refuse_clusters,
    _refuse_needs,
    _refuse_network,
    _refuse_task,
    _refuse_task_of_own,
    _refuse_unmeasured,
    _refuse_stop,
    too_many_pairs,
    _refuse_trusted,
    _refuse_aggregation,
    _refuse_optimizer,
    _refuse_uncovered,
    _refuse_robust_sums,
    _refuse_adaptation,
    _refuse_statistics_of_data,
    _refuse_statistics_of_targets,
    _refuse_attack,
)
"""Each rule yields sentences on parts, named as in `Parts.made`, that are not possible together."""


def cohort_size(clients: int, participation: float) -> int:
    """Return how many of so many clients take part in a round (docs/methods/conventions.md, convention 8)."""
    return max(1, int(participation * clients + 0.5))


def held_out_count(clients: int, share: float) -> int:
    """Return how many of so many clients a share keeps out of training: at least one, unless it is 0."""
    return max(1, int(share * clients + 0.5)) if share else 0
