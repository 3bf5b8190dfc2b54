"""Checks of an experiment's sections before work starts: all that can be known wrong, at once.

Catalogues are imported when asked for: they bring torch, which an experiment alone does not need.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.catalogue import Catalog, Section, Setting
from coterie.clients.rules.training import Training
from coterie.errors import BadInput, nearest
from coterie.methods.aggregation import Aggregation
from coterie.methods.privacy import Privacy
from coterie.methods.scale import Scale, too_many
from coterie.plugins import find_refusal, import_modules, is_path
from coterie.runs.schema import toml
from coterie.runs.schema.registry import SECTIONS, as_table, section_settings
from coterie.runs.schema.sections import (
    OWN,
    Choice,
    Data,
    Evaluation,
    MethodChoice,
    Network,
    Run,
    TaskChoice,
)

if TYPE_CHECKING:
    from coterie.clients.data.read.columns import Named
    from coterie.clients.tasks import Task
    from coterie.methods import Method

CHOICES = ("method", "network", "task")
"""The sections whose further keys belong to an entry of a catalogue."""

AUTO = "auto"
"""The network or the split that fits the data."""

NAMING = {
    "method.name": "method",
    "network.name": "network",
    "task.name": "task",
    "task.metrics": "metric",
    "data.name": "dataset",
    "data.augment": "augmentation",
    "run.observers": "observer",
    "run.imports": "module",
}
"""What an experiment names under which key, of what may have to be imported."""

LOOKUP = ("method", "network", "task", "training", "data", "evaluation", "run", "scale", "aggregation", "privacy")
"""Where a bare key is looked for."""


def find_names(sections: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what sections, in any of their forms, or dotted keys name: the key, a key of `NAMING`, and each name.

    What is no text, as a network that was given in Python, names nothing.
    """
    for whole, value in sections.items():
        title, _, key = str(whole).partition(".")
        table = {key: value} if key else {"name": value}
        if not key and isinstance(value, Mapping | Section):
            table = dict(value)
        for name, given in table.items():
            kind = NAMING.get(f"{title}.{name}", "")
            for text in given if isinstance(given, list | tuple) else [given]:
                if kind and isinstance(text, str):
                    yield f"{title}.{name}", kind, text.partition("(")[0].strip()


def find_paths(sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the modules and `package.module:object` that sections or dotted keys name, by where they stand."""
    return {
        f"{key} = {name!r}": name
        for key, kind, name in find_names(sections)
        if kind == "module" or (is_path(name) and kind != "metric" and not name.startswith("hub:"))
    }


def find_failed_imports(sections: Mapping[str, Any]) -> list[str]:
    """Import the modules of `run.imports`, in whatever form the section is given; return why any cannot be.

    Where nobody gave one of them, none is imported: `check` says so.
    """
    names = (as_table("run", sections.get("run")) or {}).get("imports")
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return []  # said when the section is built
    if find_refusal(dict(zip(names, names, strict=True))):
        return []
    try:
        import_modules(names)
    except BadInput as problem:
        return [f"run.imports: {sentence}" for sentence in problem.problems]
    return []


def catalog(kind: str) -> Catalog:
    """Return the catalogue of a kind of `NAMING`, or of splits, with its entries loaded; plurals are understood."""
    if kind.startswith("method"):
        from coterie.methods import METHODS

        return METHODS
    if kind.startswith("network"):
        from coterie.models.networks import NETWORKS

        return NETWORKS
    if kind.startswith("task"):
        from coterie.clients.tasks import TASKS

        return TASKS
    if kind.startswith("metric"):
        from coterie.clients.tasks import MEASURES

        return MEASURES
    if kind.startswith("augmentation"):
        from coterie.clients.data.divide.augmentation import AUGMENTATIONS

        return AUGMENTATIONS
    if kind.startswith("observer"):
        from coterie.runs.events import OBSERVERS

        return OBSERVERS
    from coterie.clients.data import DATASETS, SPLITS

    return DATASETS if kind.startswith("dataset") else SPLITS


def find_problems(sections: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each thing that is wrong within or between the sections given, by title."""
    if refusal := find_refusal(find_paths(sections)):
        return [refusal]
    found: list[str] = []
    for title in CHOICES:
        if title in sections:
            found += _refused(sections[title])
    if "data" in sections:
        found += _data(sections["data"])
    if "run" in sections:
        found += _folder(sections["run"]) + _runtime(sections["run"]) + _observers(sections["run"])
    if "training" in sections:
        found += _training(sections["training"])
    found += _clusters(sections.get("data"), sections.get("method"), sections.get("run"))
    found += _needs(sections.get("data"), sections.get("network"), sections.get("method"))
    found += _task(sections.get("data"), sections.get("task"), sections.get("method"))
    found += _declared(sections.get("data"), sections.get("task"))
    found += _measured(sections.get("data"), sections.get("evaluation"))
    found += _pairs(sections.get("data"), sections.get("method"), sections.get("run"), sections.get("scale"))
    found += _aggregation(sections.get("method"), sections.get("aggregation"), sections.get("run"))
    found += _privacy(
        *(sections.get(title) for title in ("privacy", "method", "aggregation", "data", "evaluation", "task"))
    )
    if "attack" in sections and sections["attack"].share and "data" in sections and sections["data"].own:
        found.append("attack.share is not possible with data.name = 'own'; attacks are simulated, leave it out")
    return found


def unknown_names(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the names in sections of which other keys are wrong too, so that none is built."""
    found: list[str] = []
    for title in (title for title in CHOICES if title in tables):
        name = tables[title].get("name")
        is_auto = name == AUTO and title != "method"
        if not isinstance(name, str) or is_auto:
            continue
        try:
            catalog(title)[name]
        except BadInput as problem:
            found += problem.problems
    from coterie.clients.data import check_split
    from coterie.clients.data.read.columns import Named
    from coterie.clients.data.read.datasets import find_problems

    data, split, *words = (tables.get("data", {}).get(key) for key in ("name", "split", "label", "client"))
    named = Named(*(word if isinstance(word, str) else None for word in words))
    found += find_problems(data, named) if isinstance(data, str) and data != OWN else []
    return found + (check_split(split) if isinstance(split, str) and split not in (AUTO, OWN) else [])


def build_method(choice: MethodChoice) -> Method[Any]:
    """Build the method with its settings.

    Raises:
        BadInput: there is no such method, or it refuses its settings.
    """
    method: Method[Any] = catalog("method")[choice.name].target(**bind(choice))
    return method


def build_task(choice: TaskChoice) -> Task | None:
    """Build the task with its settings and metrics; None where the data say what they are for.

    Raises:
        BadInput: there is no such task, it refuses its settings, or it cannot be measured by such a metric.
    """
    settings = bind(choice)
    if choice.name == AUTO:
        return None
    task: Task = catalog("task")[choice.name].target(**settings)
    if not hasattr(task, "name"):
        type(task).name = choice.name  # somebody's own class, which nothing has registered
    return set_metrics(task, choice)


def set_metrics(task: Task, choice: TaskChoice) -> Task:
    """Return the task, measured as its section says.

    Raises:
        BadInput: it cannot be measured by such a metric.
    """
    if choice.metrics is None:
        return task
    from coterie.clients.tasks.measures import find_wrong_metrics

    wrong = find_wrong_metrics(task, choice.metrics)
    if wrong:
        raise BadInput(wrong)
    return task.with_metrics(choice.metrics)


def resolve_split(data: Data) -> str:
    """Return the split; for `auto`, the one that fits the data."""
    from coterie.clients.data.read.datasets import default_split

    if data.split != AUTO:
        return data.split
    return OWN if data.own else default_split(data.name, named_columns(data))


def named_columns(data: Data) -> Named:
    """Return what the data's label and client are called, where the experiment says it."""
    from coterie.clients.data.read.columns import Named

    return Named(data.label, data.client)


def absolute_data(name: str) -> str:
    """Return the name of the data, a path made absolute: a run on it can then be resumed from anywhere.

    Raises:
        OSError: no file can have that name.
    """
    from coterie.clients.data.read.datasets import DATASETS

    path = Path(name)
    return name if name == OWN or name in DATASETS or not path.exists() else str(path.resolve())


def known_settings(method: str, network: str, task: str = AUTO) -> dict[str, list[Setting]]:
    """Return the settings of each section, with those of the method, the network and the task, where they exist."""
    known = {title: section_settings(title) for title in SECTIONS}
    for title, name in (("method", method), ("network", network), ("task", task)):
        own = _own_settings(title, name)
        # An entry's own settings stand before keys of the section that are called the same.
        names = {setting.name for setting in own}
        known[title] = [setting for setting in known[title] if setting.name not in names] + own
    return known


def _own_settings(title: str, name: str) -> list[Setting]:
    """Return the settings of a method, network or task; none where there is no such."""
    if name == AUTO and title != "method":
        return []
    try:
        return catalog(title)[name].settings
    except BadInput:
        return []


def qualify(key: str, method: str, network: str, task: str = AUTO, value: Any = None) -> str:
    """Return the dotted key that a bare one means: `mu` is `method.mu` where the method has such a setting.

    The value, where it is known, goes into what is said of a key that is a section.

    Raises:
        BadInput: no section has that key, or several have; the sentence names them.
    """
    if "." in key:
        return key
    known = {title: [s.name for s in settings] for title, settings in known_settings(method, network, task).items()}
    # A bare key never means a table in a section, or what every network has: methods have settings of these names.
    known["network"] = ["name", *(setting.name for setting in _own_settings("network", network))]
    owners = [f"{t}.{key}" for t in LOOKUP if key in known[t] and key not in getattr(SECTIONS[t], "tables", ())]
    if len(owners) > 1:  # delta is that of the method or the task where these have one
        owners = [owner for owner in owners if not owner.startswith("privacy.")]
    if not owners and method not in catalog("method"):
        return f"method.{key}"  # the unknown method is the problem to report, not what its settings may be
    if len(owners) == 1:
        return owners[0]
    if owners:
        raise BadInput(f"{key} could be {', '.join(owners[:-1])} or {owners[-1]}; write which")
    if key in SECTIONS:
        named = f"{key}.name={value}, or " if isinstance(value, str) and key in (*CHOICES, "data") else ""
        raise BadInput(f"{key} is a section; write {named}{key}.KEY with one of {', '.join(known[key])}")
    if task == AUTO and (tasks := find_tasks([key])):
        typed = "VALUE" if value is None else as_typed(value)
        flags = f"--set task.name={tasks[0]} --set {shlex.quote(f'task.{key}={typed}')}"
        owner = f"the task{'s' * (len(tasks) > 1)} {join_names(tasks)}"
        raise BadInput(f"{key} is a setting of {owner}, and task.name = 'auto'; write {flags}")
    close = nearest(key, [name for title in LOOKUP for name in known[title]])
    if close:
        homes = [f"{title}.{close}" for title in LOOKUP if close in known[title]]
        hint = f"did you mean {close if len(homes) == 1 else ' or '.join(homes)}?"
    else:
        hint = f"{method} has {', '.join(known['method'])}; for all keys see: coterie new"
    raise BadInput(f"{key} is not a setting of {method} or of any section; {hint}")


def find_tasks(keys: Iterable[str]) -> list[str]:
    """Return the names of the tasks that have all these settings, the general ones first."""
    wanted = set(keys)
    return [task.name for task in catalog("task") if wanted <= {setting.name for setting in task.settings}]


def join_names(names: Sequence[str], word: str = "and") -> str:
    """Return names as a sentence lists them: `a, b and c`."""
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def as_typed(value: Any) -> str:
    """Return a value as a user types it behind --set, on one line: texts without quotes, all else as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(as_typed(v) if isinstance(v, list | tuple) else toml.literal(v) for v in value)}]"
    return value if isinstance(value, str) else toml.literal(value)


def bind(choice: Choice) -> dict[str, Any]:
    """Return all settings of the method, network or task that a section names, checked, with their defaults.

    Raises:
        BadInput: there is no such method, network or task, or one sentence for each setting that is not possible.
    """
    if choice.name == AUTO and choice.title != "method":
        if choice.settings:
            keys = ", ".join(f"{choice.title}.{k}" for k in choice.settings)
            tasks = find_tasks(choice.settings) if choice.title == "task" else []
            shown = {"name": tasks[0], **choice.settings} if tasks else {}
            flags = " ".join(f"--set {shlex.quote(f'{choice.title}.{k}={as_typed(v)}')}" for k, v in shown.items())
            owner = f", {join_names(tasks, 'or')}" if len(tasks) > 1 else ""
            raise BadInput(
                f"{choice.title}.name = 'auto' takes no settings, yet there is {keys}; name the {choice.title}"
                f"{owner}{f', as in {flags}' if flags else ''}"
            )
        return {}
    return catalog(choice.title)[choice.name].bind(choice.settings, choice.title)


def _refused(choice: Choice) -> list[str]:
    try:
        if isinstance(choice, MethodChoice):
            build_method(choice)  # a method may refuse settings that do not go together
        elif isinstance(choice, TaskChoice):
            build_task(choice)
        else:
            bind(choice)
    except BadInput as problem:
        return problem.problems
    return []


def _data(data: Data) -> list[str]:
    from coterie.clients.data import check_build
    from coterie.clients.data.divide.augmentation import find_problems as find_augmentation_problems
    from coterie.clients.data.read.datasets import find_test_problems

    altered = find_augmentation_problems(data.augment or ())
    twice = []
    if data.label is not None and data.label == data.client:
        twice = [f"data.label and data.client are both {data.label!r}; they must be two columns"]
    if data.own:
        return twice + altered + _own(data)
    found = [
        f"data.{key} = {getattr(data, key)!r} is not possible with data.name = {data.name!r}; it describes data "
        f"of clients who hold their own (data.name = {OWN!r}), leave it out"
        for key in ("features", "classes", "columns", "levels", "public_file")
        if getattr(data, key) is not None
    ]
    named = named_columns(data)
    found += twice + altered + find_test_problems(data.name, data.test_path, named)
    return found + check_build(
        data.name,
        resolve_split(data),
        validation=data.validation,
        test=data.test,
        min_samples=data.min_samples,
        samples_per_client=data.samples_per_client,
        named=named,
    )


def _own(data: Data) -> list[str]:
    """What is wrong with the description of data that only the clients have."""
    found = []
    for key, right in (
        ("clients", "how many clients take part"),
        ("features", "the shape of one sample, as [28, 28, 1]"),
        ("classes", "how many classes there are, or numbers to predict, or their names"),
    ):
        if getattr(data, key) is None:
            found.append(f"data.{key} is missing; with data.name = {OWN!r} it must say {right}")
    if data.split not in (AUTO, OWN):
        found.append(
            f"data.split = {data.split!r} is not possible with data.name = {OWN!r}; the data are where they are: "
            "leave it out"
        )
    if data.features is not None and min(data.features) < 1:
        found.append(f"data.features = {list(data.features)} is not possible; every length must be at least 1")
    names = data.classes if isinstance(data.classes, tuple) else None
    if names is not None and len(set(names)) != len(names):
        found.append(f"data.classes = {list(names)} is not possible; every name must be there once")
    if data.validation + data.test >= 1:
        found.append(
            f"validation + test = {data.validation + data.test:g} leaves nothing to train on; it must be below 1"
        )
    found += _columns(data)
    found += [
        f"data.{key} = {getattr(data, key)!r} is not possible with data.name = {OWN!r}; every client holds its own "
        "samples, leave it out"
        for key in ("test_path", "small_clients", "min_classes")
        if getattr(data, key) is not None
    ]
    if data.public_file is None and data.public:
        found.append(f"data.public = {data.public} is not possible without data.public_file; name the file of them")
    return found


def _columns(data: Data) -> list[str]:
    """What is wrong with the columns that the tables of real clients are said to have."""
    columns, levels, found = data.columns or (), data.levels or {}, []
    if len(set(columns)) != len(columns):
        found.append(f"data.columns = {list(columns)} is not possible; every name must be there once")
    for name, values in levels.items():
        if columns and name not in columns:
            found.append(f"data.levels names {name!r}, which is not in data.columns; add it there, or leave it out")
        if not values or len(set(values)) != len(values):
            found.append(f"data.levels.{name} = {list(values)} is not possible; it must name each value once")
    if columns and levels and data.features is not None and not found:
        width = sum(len(levels.get(name, (name,))) for name in columns)
        if data.features != (width,):
            found.append(
                f"data.features = {list(data.features)} is not possible; data.columns and data.levels make "
                f"{width} inputs: it must be [{width}]"
            )
    return found


def _needs(data: Data | None, network: Network | None, method: MethodChoice | None) -> list[str]:
    """What the method cannot do without and the other sections do not give."""
    if method is None or _refused(method):
        return []
    needs, found = build_method(method).needs, []
    if data is not None and needs.public and data.own and data.public_file is None:
        found.append(
            f"data.public_file is missing; {method.name} looks at unlabelled samples on the server, name a .npz or "
            ".parquet file of them"
        )
    if data is not None and needs.public and data.public == 0:
        found.append(
            f"data.public = 0 is not possible with {method.name}; it must be at least 1, as in {needs.public}"
        )
    if data is not None and needs.validation and data.validation == 0:
        found.append(
            f"data.validation = 0 is not possible with these settings of {method.name}; it must be above 0"
        )
    if network is not None and network.name != AUTO and needs.gaussian and not network.name.startswith("gaussian"):
        found.append(
            f"network.name = {network.name!r} is not possible with {method.name}; it must have Gaussian features: "
            "gaussian-mlp, gaussian-cnn, or auto"
        )
    return found


def _privacy(
    privacy: Privacy | None,
    method: MethodChoice | None,
    aggregation: Aggregation | None,
    data: Data | None,
    evaluation: Evaluation | None,
    task: TaskChoice | None,
) -> list[str]:
    """A promise that the method, its aggregation or what is known of the clients does not let a run keep."""
    if privacy is None or not privacy.kind:
        return []
    found = []
    how = {"server": "noise_by = 'server'", "clients": "noise_by = 'clients'", "samples": "unit = 'example'"}
    if method is not None and not _refused(method):
        covered = build_method(method).covered
        if why := getattr(covered, privacy.kind):
            others = [words for kind, words in how.items() if not getattr(covered, kind)]
            instead = f"possible with it: {' or '.join(others)}" if others else "leave privacy out"
            found.append(f"privacy.{how[privacy.kind]} is not possible with {method.name}: {why}; {instead}")
    if privacy.kind == "server" and aggregation is not None and not aggregation.is_mean:
        key = "clip_norm" if aggregation.rule == "mean" else "rule"
        found.append(
            f"aggregation.{key} = {getattr(aggregation, key)!r} is not possible with privacy.noise_by = 'server', "
            "which hides a client in sums; leave it out"
        )
    if privacy.kind == "samples" and evaluation is not None and evaluation.adapt is not None:
        found.append(
            "evaluation.adapt is not possible with privacy.unit = 'example', for adaptation trains without noise; "
            "leave it out"
        )
    found += _find_statistics_without_noise(privacy, data, task)
    if privacy.kind != "server" and data is not None and data.own and privacy.delta is None:
        found.append("privacy.delta is missing; a client does not know how many others there are, so give it")
    if data is not None and data.own and privacy.noise_seed is not None:
        found.append(
            f"privacy.noise_seed = {privacy.noise_seed} is not possible with data.name = {data.name!r}, for all "
            "clients and the server know it, and could take the noise off; leave it out"
        )
    return found


def _find_statistics_without_noise(privacy: Privacy, data: Data | None, task: TaskChoice | None) -> list[str]:
    """Sentences on what is computed before training by which one unit alters what others train on."""
    found, hides_samples = [], privacy.kind == "samples"
    if data is not None and data.standardise == "global":
        right = "none" if hides_samples else "none or client"
        found.append(
            "data.standardise = 'global' is not possible with privacy, for the mean of all samples is told without "
            f"noise; it must be {right}"
        )
    if data is not None and data.standardise == "client" and hides_samples:
        found.append(
            "data.standardise = 'client' is not possible with privacy.unit = 'example', for each sample alters all "
            "others of its client by their mean, which no noise covers; it must be none"
        )
    if data is not None and data.missing == "mean" and (hides_samples or not data.own):
        found.append(
            "data.missing = 'mean' is not possible with privacy, for the mean of the training samples is told "
            "without noise; it must be refuse, drop or zero"
        )
    settings = {} if task is None or task.name == AUTO else task.settings
    if settings.get("class_weights") == "balanced":
        found.append(
            "task.class_weights = 'balanced' is not possible with privacy, for all classes are counted without "
            "noise; it must be none or a list with a weight for each class"
        )
    if settings.get("target_scale") == "global":
        found.append(
            "task.target_scale = 'global' is not possible with privacy, for the mean of all targets is told "
            "without noise; leave it out or write [[means], [deviations]]"
        )
    return found


def _aggregation(method: MethodChoice | None, aggregation: Aggregation | None, run: Run | None) -> list[str]:
    """A rule of aggregation that the method has no use for, or that the run cannot keep."""
    if aggregation is not None and aggregation.trusted and run is not None and run.participation < 1:
        return [
            f"run.participation = {run.participation:g} is not possible with aggregation.rule = 'fltrust', which "
            "needs the trusted clients in every round; it must be 1"
        ]
    if method is None or aggregation is None or aggregation.is_mean or _refused(method):
        return []
    own = build_method(method).own_aggregation
    key = "clip_norm" if aggregation.rule == "mean" else "rule"
    value = getattr(aggregation, key)
    return [f"aggregation.{key} = {value!r} is not possible with {method.name}: {own}; leave it out"] if own else []


def _task(data: Data | None, choice: TaskChoice | None, method: MethodChoice | None) -> list[str]:
    """What the method cannot learn, or clients who hold their own data cannot know."""
    if choice is None or choice.name == AUTO or _refused(choice):
        return []
    task, found = build_task(choice), []
    assert task is not None
    if method is not None and not _refused(method):
        found = [build_method(method).needs.find_wrong_task(method.name, task)]
    if data is not None and data.own and choice.settings.get("class_weights") == "balanced":
        found.append(
            "task.class_weights = 'balanced' is not possible with data.name = 'own': nobody counts the samples "
            "of all clients; write a list with a weight for each class"
        )
    if data is not None and data.own and choice.settings.get("target_scale") == "global":
        found.append(
            "task.target_scale = 'global' is not possible with data.name = 'own': nobody sees the targets of all "
            "clients; write [[means], [deviations]], a number for each output"
        )
    return [sentence for sentence in found if sentence]


def _declared(data: Data | None, choice: TaskChoice | None) -> list[str]:
    """What the task cannot have as many of as clients who hold their own data are said to have."""
    if data is None or choice is None or not data.own or data.classes is None or _refused(choice):
        return []
    from coterie.clients.tasks import CLASSIFICATION

    try:
        (build_task(choice) or CLASSIFICATION).count(data.class_count)
    except BadInput as problem:
        return problem.problems
    return []


def _measured(data: Data | None, evaluation: Evaluation | None) -> list[str]:
    if data is None or evaluation is None or evaluation.on == "test" or data.validation > 0:
        return []
    return [f"data.validation = 0 is not possible with evaluation.on = {evaluation.on!r}; it must be above 0"]


def _folder(run: Run) -> list[str]:
    folder = Path(run.folder)
    try:
        there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    except OSError as error:  # a name that no folder can have
        return [f"run.folder = {run.folder!r} is not possible; {error.strerror}, name another folder"]
    if not there.is_dir():
        return [f"run.folder = {run.folder!r} is not possible; {str(there)!r} is a file, name a folder"]
    try:
        # Permissions do not tell: a file system may be read-only, or have no room for folders of users at all.
        Path(tempfile.mkdtemp(prefix=".coterie-", dir=there)).rmdir()
    except OSError as error:
        why = f"no folder can be made in {str(there)!r} ({error.strerror})"
        return [f"run.folder = {run.folder!r} is not possible; {why}"]
    return []


def _runtime(run: Run) -> list[str]:
    if run.ray_address is None or run.runtime == "ray":
        return []
    return [
        f"run.ray_address = {run.ray_address!r} is not possible with run.runtime = {run.runtime!r}; "
        "add --runtime ray, or leave it out"
    ]


def _observers(run: Run) -> list[str]:
    from coterie.runs.events import read_observer

    found: list[str] = []
    for text in run.observers or ():
        try:
            read_observer(text)
        except BadInput as problem:
            found += [f"run.observers: {sentence}" for sentence in problem.problems]
    return found


def _training(training: Training) -> list[str]:
    if not training.momentum or training.optimizer == "sgd":
        return []
    return [
        f"training.momentum = {training.momentum:g} counts for nothing here; it needs training.optimizer = 'sgd'"
    ]


def _trained(data: Data, run: Run | None) -> int | None:
    """Return how many clients are in training; None where only the data tell."""
    from coterie.clients.data.divide.partition import DEFAULT_CLIENTS

    clients = data.clients
    if clients is None and "by-user" not in resolve_split(data):
        clients = DEFAULT_CLIENTS
    away = held_out_count(clients, run.holdout_clients) if run is not None and clients is not None else 0
    return None if clients is None else clients - away


def _pairs(data: Data | None, method: MethodChoice | None, run: Run | None, scale: Scale | None) -> list[str]:
    if data is None or method is None or run is None or scale is None or _refused(method):
        return []
    clients = _trained(data, run)
    return [] if clients is None else too_many_pairs(method, clients, run, scale)


def too_many_pairs(choice: MethodChoice, clients: int, run: Run, scale: Scale) -> list[str]:
    """Return why a method cannot have a matrix between so many clients, one sentence; nothing where it can."""
    pairs = build_method(choice).needs.pairs
    compared = {"": 0, "cohort": cohort_size(clients, run.participation), "everybody": clients}[pairs]
    return too_many(choice.name, compared, scale)


def cohort_size(clients: int, participation: float) -> int:
    """Return how many of so many clients take part in a round (docs/methods/conventions.md, convention 8)."""
    return max(1, int(participation * clients + 0.5))


def held_out_count(clients: int, share: float) -> int:
    """Return how many of so many clients a share keeps out of training: at least one, unless it is 0."""
    return max(1, int(share * clients + 0.5)) if share else 0


def _clusters(data: Data | None, method: MethodChoice | None, run: Run | None) -> list[str]:
    if data is None or method is None or _refused(method):
        return []
    clusters, clients = bind(method).get("clusters"), _trained(data, run)
    if not isinstance(clusters, int) or clients is None or not getattr(build_method(method), "takes_k", True):
        return []
    if clusters <= clients:
        return []
    away = run is not None and run.holdout_clients
    who = f"the {clients} clients in training" if away else f"data.clients = {clients}"
    return [f"method.clusters = {clusters} is more than {who}; it must be at most that"]
